//! An instance's async runtime, which two threads drive by turns: the guest's own while it waits for something, and one
//! beside it while it computes.
//!
//! So a request is made, and its answer read, by the thread that waits for it. Where another thread did this, the request
//! would wait until that has woken up, and its answer until the guest's has: each takes longer than making a short request.
//! But a guest may begin a request and then compute, and its request goes on meanwhile: that is what the thread beside is
//! for. It sleeps where nothing is begun, and where the guest waits.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use baton_election::Time;
use futures::FutureExt as _;
use futures::future::lazy;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::yield_now;
use wasmtime_wasi::runtime::{AbortOnDropJoinHandle, spawn};

use baton_store::clock::Clock;

/// Calls on files that run at a time; further ones wait for their turn.
const FILE_THREADS: usize = 4;

/// What a guest has begun goes on beside it once it has computed for so long, and for twice as long at the latest. Until
/// then the guest may add to what it has begun first, such as a body to a request, and all of that is sent at once.
const TOGETHER: Duration = Duration::from_millis(10);

/// A guest that looks whether something is there, and has nothing under way, drives its runtime once it has looked for so
/// long and not waited. Where something is under way, the thread beside does so, and does it better.
const LOOKS_FOR: Duration = Duration::from_millis(1);

/// The runtime of an instance, with all threads that it will ever have.
pub(super) struct GuestRuntime {
    /// Of one thread: whichever drives it.
    runtime: Arc<Runtime>,
    turns: Arc<Turns>,
}

impl GuestRuntime {
    /// One whose threads are there: the one beside, and those that make calls which block.
    pub(super) fn new(files: bool) -> io::Result<Self> {
        let threads = if files { FILE_THREADS } else { 1 };
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(threads)
            .thread_keep_alive(Duration::MAX)
            .thread_name("guest")
            .enable_all()
            .build()?;
        // A thread is made for a call when all others are busy.
        let all = Arc::new(Barrier::new(threads + 1));
        for _ in 0..threads {
            let all = Arc::clone(&all);
            runtime.spawn_blocking(move || all.wait());
        }
        all.wait();
        let runtime = Arc::new(runtime);
        let driven = Arc::clone(&runtime);
        let (hand_over, handed_over) = std::sync::mpsc::channel::<Arc<Turns>>();
        // It ends with the process.
        let beside = thread::Builder::new().name("beside".into()).spawn(move || {
            if let Ok(turns) = handed_over.recv() {
                turns.drive_beside(&driven);
            }
        })?;
        let turns = Arc::new(Turns::new(beside.thread().clone()));
        let _ = hand_over.send(Arc::clone(&turns));
        Ok(Self { runtime, turns })
    }

    /// What begins something on it.
    pub(super) fn begun(&self) -> Begun {
        Begun { runtime: Arc::clone(&self.runtime), turns: Arc::clone(&self.turns) }
    }

    /// What its guest looks with whether something is there.
    pub(super) fn looks(&self, clock: &Clock) -> Looks {
        let turn = self.turns.turn.load(SeqCst);
        Looks { turns: Arc::clone(&self.turns), clock: clock.clone(), turn, since: clock.now() }
    }

    /// Runs the guest. Only one thread may do so, and only one guest at a time.
    pub(super) fn run<T>(&self, guest: impl Future<Output = T>) -> T {
        let _entered = self.runtime.enter();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut guest = pin!(guest);
        loop {
            if let Poll::Ready(output) = guest.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            self.turns.guest_waits();
            self.runtime.block_on(async {
                match woken.0.notified().now_or_never() {
                    // What goes on has its turn, however often the guest only looks; and once more, for what has come in
                    // the first.
                    Some(()) => {
                        yield_now().await;
                        yield_now().await;
                    }
                    None => woken.0.notified().await,
                }
            });
            self.turns.guest_computes();
        }
    }
}

/// Whether the guest has something to go on with.
#[derive(Default)]
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

/// Begins what goes on while the guest waits or computes.
#[derive(Clone)]
pub(in super::super) struct Begun {
    runtime: Arc<Runtime>,
    turns: Arc<Turns>,
}

impl Begun {
    /// Begins what the guest asks for, in a call of its. It ends when the handle is dropped.
    pub(in super::super) fn begin<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> AbortOnDropJoinHandle<T> {
        // Who is not on the runtime would wake it for that, by a call of the system, whether it sleeps or not.
        self.runtime.block_on(lazy(|_| self.go_on(future)))
    }

    /// Has what is left of something that was begun go on by itself. It ends when the handle is dropped.
    pub(in super::super) fn go_on<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> AbortOnDropJoinHandle<T> {
        let under_way = UnderWay::begin(&self.turns);
        spawn(async move {
            let _under_way = under_way;
            future.await
        })
    }
}

/// How a guest looks whether something is there: while it only looks and has nothing under way, nobody else drives the
/// runtime's timers.
pub(in super::super) struct Looks {
    turns: Arc<Turns>,
    clock: Clock,
    /// The guest's turn in which it looked last, and since when it looks in that.
    turn: u64,
    since: Time,
}

impl Looks {
    /// To be called before each look.
    pub(in super::super) async fn look(&mut self) {
        let (turn, now) = (self.turns.turn.load(SeqCst), self.clock.now());
        if turn != self.turn {
            (self.turn, self.since) = (turn, now);
        } else if now.since(self.since) >= LOOKS_FOR && self.turns.under_way.load(SeqCst) == 0 {
            yield_now().await;
            (self.turn, self.since) = (self.turns.turn.load(SeqCst), self.clock.now());
        }
    }
}

/// Something that was begun and has not ended.
struct UnderWay(Arc<Turns>);

impl UnderWay {
    fn begin(turns: &Arc<Turns>) -> Self {
        turns.under_way.fetch_add(1, SeqCst);
        turns.wake_beside();
        Self(Arc::clone(turns))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, SeqCst);
    }
}

/// Whose turn it is.
///
/// Either thread first says what it does and then looks what the other does, in one order that both see: so one of them
/// sees that the other has changed its mind.
struct Turns {
    /// Goes up when the guest begins to wait and when it goes on: odd while it waits.
    turn: AtomicU64,
    /// What was begun and has not ended.
    under_way: AtomicUsize,
    /// The thread beside sleeps until it is woken.
    sleeps: AtomicBool,
    /// The thread beside drives the runtime, or is about to.
    drives: AtomicBool,
    /// Told that the guest waits, and drives the runtime itself.
    let_go: Notify,
    beside: Thread,
}

impl Turns {
    fn new(beside: Thread) -> Self {
        Self {
            turn: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
            sleeps: AtomicBool::new(false),
            drives: AtomicBool::new(false),
            let_go: Notify::new(),
            beside,
        }
    }

    fn guest_waits(&self) {
        self.turn.fetch_add(1, SeqCst);
        if self.drives.load(SeqCst) {
            self.let_go.notify_one();
        }
    }

    fn guest_computes(&self) {
        self.turn.fetch_add(1, SeqCst);
        if self.under_way.load(SeqCst) > 0 {
            self.wake_beside();
        }
    }

    fn wake_beside(&self) {
        if self.sleeps.load(SeqCst) && self.sleeps.swap(false, SeqCst) {
            self.beside.unpark();
        }
    }

    /// Whether there is nothing to drive in this turn of the guest.
    fn is_idle(&self, turn: u64) -> bool {
        self.under_way.load(SeqCst) == 0 || turn % 2 == 1
    }

    /// What the thread beside does.
    fn drive_beside(&self, runtime: &Runtime) -> ! {
        loop {
            let turn = self.turn.load(SeqCst);
            thread::sleep(TOGETHER);
            let now = self.turn.load(SeqCst);
            if self.is_idle(now) {
                self.sleep(now);
                continue;
            }
            if now != turn {
                // The guest has waited, and driven what it has begun.
                continue;
            }
            self.drives.store(true, SeqCst);
            // It may have been told so of a turn before.
            while self.turn.load(SeqCst) == turn {
                runtime.block_on(self.let_go.notified());
            }
            self.drives.store(false, SeqCst);
        }
    }

    /// Sleeps until something is begun, or the guest goes on to compute.
    fn sleep(&self, turn: u64) {
        self.sleeps.store(true, SeqCst);
        if self.turn.load(SeqCst) != turn || !self.is_idle(turn) {
            self.sleeps.store(false, SeqCst);
        }
        while self.sleeps.load(SeqCst) {
            thread::park();
        }
    }
}
