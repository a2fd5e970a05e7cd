//! An instance's async runtime. Two threads take turns driving it: the guest's thread while the guest waits, and a
//! second thread, `beside`, while the guest computes.
//!
//! So the thread that waits for a response also sends the request and reads the response. If another thread did this
//! work, the request and the response would each have to wait for a thread to wake up. A wake-up takes longer than a
//! short request. The second thread is needed because a guest may begin a request and then compute: the request must
//! make progress during that time. The second thread sleeps while nothing is in progress, and while the guest waits.

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

use baton_base::clock::Clock;

/// Maximum number of file operations that run at a time. Further operations wait.
const FILE_THREADS: usize = 4;

/// Time for which a guest computes before the second thread drives the guest's tasks. The actual time may be up to
/// twice as long. In the meantime, the guest can add to a task, for example a body to a request, so that everything is
/// sent together.
const TOGETHER: Duration = Duration::from_millis(10);

/// Time for which a guest polls without waiting before its polls drive the runtime. This time matters only while no
/// task is in progress, since the second thread drives the runtime while a task is in progress.
const LOOKS_FOR: Duration = Duration::from_millis(1);

/// The runtime of an instance, with all the threads that it will ever have.
pub(super) struct GuestRuntime {
    /// A single-threaded runtime: one thread at a time drives it.
    runtime: Arc<Runtime>,
    turns: Arc<Turns>,
}

impl GuestRuntime {
    pub(super) fn new(files: bool) -> io::Result<Self> {
        let threads = if files { FILE_THREADS } else { 1 };
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(threads)
            .thread_keep_alive(Duration::MAX)
            .thread_name("guest")
            .enable_all()
            .build()?;
        // The pool starts a thread only if all its other threads are busy. Block all threads at the same time, so that
        // the pool starts every thread now.
        let all = Arc::new(Barrier::new(threads + 1));
        for _ in 0..threads {
            let all = Arc::clone(&all);
            runtime.spawn_blocking(move || all.wait());
        }
        all.wait();
        let runtime = Arc::new(runtime);
        let driven = Arc::clone(&runtime);
        let (hand_over, handed_over) = std::sync::mpsc::channel::<Arc<Turns>>();
        let beside = thread::Builder::new().name("beside".into()).spawn(move || {
            if let Ok(turns) = handed_over.recv() {
                turns.drive_beside(&driven);
            }
        })?;
        let turns = Arc::new(Turns::new(beside.thread().clone()));
        let _ = hand_over.send(Arc::clone(&turns));
        Ok(Self { runtime, turns })
    }

    pub(super) fn begun(&self) -> Begun {
        Begun { runtime: Arc::clone(&self.runtime), turns: Arc::clone(&self.turns) }
    }

    pub(super) fn looks(&self, clock: &Clock) -> PollTracker {
        let turn = self.turns.turn.load(SeqCst);
        PollTracker { turns: Arc::clone(&self.turns), clock: clock.clone(), turn, since: clock.now() }
    }

    /// Only one thread may call this method, with one guest at a time.
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
                    // The guest can already continue. Still yield once, so that tasks make progress even if the guest
                    // polls in a loop. Then yield again, to handle the events that arrived during the first yield.
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

/// Notified when the guest can continue.
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

/// Starts tasks, which run both while the guest waits and while it computes.
#[derive(Clone)]
pub(crate) struct Begun {
    runtime: Arc<Runtime>,
    turns: Arc<Turns>,
}

impl Begun {
    /// Starts a task from outside the runtime, for a host call of the guest. Dropping the handle aborts the task.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> AbortOnDropJoinHandle<T> {
        // Spawn from inside the runtime. Spawning from outside would make a system call to wake the runtime, even if it
        // is awake.
        self.runtime.block_on(lazy(|_| self.go_on(future)))
    }

    /// Starts a task from inside the runtime. The task continues an operation that another task began. Dropping the
    /// handle aborts the task.
    pub(crate) fn go_on<T: Send + 'static>(
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

/// Tracks how long a guest has been polling without waiting. While a guest polls without waiting and no task is in
/// progress, only these polls can drive the runtime's timers.
pub(crate) struct PollTracker {
    turns: Arc<Turns>,
    clock: Clock,
    /// The value of [`Turns::turn`] at the last poll.
    turn: u64,
    /// Time of the first poll in this turn, or of the last poll that drove the runtime, whichever is later.
    since: Time,
}

impl PollTracker {
    /// Records a poll, and drives the runtime if the guest has been polling for [`LOOKS_FOR`]. Must be called before
    /// each poll.
    pub(crate) async fn look(&mut self) {
        let (turn, now) = (self.turns.turn.load(SeqCst), self.clock.now());
        if turn != self.turn {
            (self.turn, self.since) = (turn, now);
        } else if now.since(self.since) >= LOOKS_FOR && self.turns.under_way.load(SeqCst) == 0 {
            yield_now().await;
            (self.turn, self.since) = (self.turns.turn.load(SeqCst), self.clock.now());
        }
    }
}

/// Counts a task as in progress until dropped.
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

/// The shared state with which the guest's thread and the second thread agree on which of them drives the runtime.
///
/// Each thread first writes its own state and then reads the other's, with sequentially consistent operations. So if
/// both change their states at the same time, at least one of them sees the other's change.
struct Turns {
    /// Incremented when the guest starts to wait and when it continues, so the number is odd while the guest waits.
    turn: AtomicU64,
    under_way: AtomicUsize,
    /// True while the second thread sleeps and must be woken if there is work.
    sleeps: AtomicBool,
    /// True while the second thread drives the runtime, or is about to.
    drives: AtomicBool,
    /// Notified when the guest starts to wait. The second thread then stops driving the runtime, so that the guest's
    /// thread can drive it.
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

    /// True if the second thread has nothing to do in this turn.
    fn is_idle(&self, turn: u64) -> bool {
        self.under_way.load(SeqCst) == 0 || turn % 2 == 1
    }

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
                // The guest has waited in the meantime, so its own thread has driven the tasks.
                continue;
            }
            self.drives.store(true, SeqCst);
            // Check the turn after each notification, which may be left over from an earlier turn.
            while self.turn.load(SeqCst) == turn {
                runtime.block_on(self.let_go.notified());
            }
            self.drives.store(false, SeqCst);
        }
    }

    /// Sleeps until a task starts, or the guest computes again.
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
