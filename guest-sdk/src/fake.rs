//! The simulated host of a native test, with its clock, term and state.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, SystemTime};

use crate::bindings::baton::host::state::Change;
use crate::bindings::baton::host::term::StopReason;
use crate::testing::Harness;
use crate::{Failure, Result, StateError};

/// Time by which the clock advances in each call that does not wait: a check, a sleep after the stop, and a sleep of
/// length 0. Without this step, a loop of these calls would never reach the next scripted event.
const INSTANT: Duration = Duration::from_millis(1);

/// Time after the last scripted event until the harness kills a coordinator that is still running.
const PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// The default limits of the real host, in bytes.
const LARGEST_KEY: usize = 512;
const LARGEST_VALUE: usize = 1 << 20;
const LARGEST_STATE: usize = 4 << 20;

/// A handle to the simulated host. All handles of a harness share one `World`.
#[derive(Clone)]
pub(crate) struct Host {
    world: Arc<Mutex<World>>,
    /// True for the test's own handle. Scripted failures and kills do not affect calls through this handle.
    by_test: bool,
}

pub(crate) struct World {
    pub(crate) term: u64,
    pub(crate) next_term: u64,
    pub(crate) election: String,
    pub(crate) node: String,
    pub(crate) remaining: Duration,
    pub(crate) shard: (u32, u32),
    pub(crate) scheduled_for: Option<SystemTime>,
    pub(crate) last_completed: Option<SystemTime>,
    pub(crate) grace: Duration,
    pub(crate) began: SystemTime,
    /// Time since `began`.
    pub(crate) now: Duration,
    pub(crate) progress: usize,
    pub(crate) commits: usize,
    pub(crate) step_down: Option<String>,
    pub(crate) refusals: VecDeque<StateError>,
    #[cfg(feature = "async")]
    pub(crate) answer: Option<futures::Answer>,
    #[cfg(feature = "async")]
    pub(crate) latency: Duration,
    values: BTreeMap<String, Vec<u8>>,
    running: bool,
    stop: Option<(StopReason, String)>,
    stopped_at: Duration,
    killed: Option<String>,
    /// Scripted events, sorted by time, then by the order in which the test added them.
    script: BTreeMap<(Duration, usize), Action>,
    scripted: usize,
    waits: BTreeMap<usize, (Until, Waker)>,
    #[cfg(feature = "async")]
    began_waits: usize,
}

pub(crate) enum Action {
    Do(Box<dyn FnOnce(&Harness) + Send>),
    Kill(String),
}

/// The condition that a future waits for. With both a time and the stop, the future waits for the earlier of the two.
#[derive(Clone, Copy)]
struct Until {
    time: Option<Duration>,
    stop: bool,
}

impl Until {
    fn has_come(self, world: &World) -> bool {
        (self.stop && world.stop.is_some()) || self.time.is_some_and(|time| time <= world.now)
    }
}

struct Kill;

impl Host {
    pub(crate) fn new() -> Self {
        let world = World {
            term: 0,
            next_term: 1,
            election: "test".to_owned(),
            node: "test-0".to_owned(),
            remaining: Duration::from_secs(12),
            shard: (0, 1),
            scheduled_for: None,
            last_completed: None,
            grace: Duration::from_secs(5),
            // The start of 2026: arbitrary, but the same in every run.
            began: SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600),
            now: Duration::ZERO,
            progress: 0,
            commits: 0,
            step_down: None,
            refusals: VecDeque::new(),
            #[cfg(feature = "async")]
            answer: None,
            #[cfg(feature = "async")]
            latency: Duration::ZERO,
            values: BTreeMap::new(),
            running: false,
            stop: None,
            stopped_at: Duration::ZERO,
            killed: None,
            script: BTreeMap::new(),
            scripted: 0,
            waits: BTreeMap::new(),
            #[cfg(feature = "async")]
            began_waits: 0,
        };
        Self { world: Arc::new(Mutex::new(world)), by_test: true }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        // Ignore the lock's poisoning, so that a test can inspect the host after a coordinator has panicked.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn number(&self) -> u64 {
        self.world().term
    }

    pub(crate) fn election(&self) -> String {
        self.world().election.clone()
    }

    pub(crate) fn node(&self) -> String {
        self.world().node.clone()
    }

    pub(crate) fn module(&self) -> String {
        format!("sha256:{:064}", 0)
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.world().remaining
    }

    pub(crate) fn now(&self) -> SystemTime {
        let world = self.world();
        world.began + world.now
    }

    pub(crate) fn shard(&self) -> (u32, u32) {
        self.world().shard
    }

    pub(crate) fn scheduled_for(&self) -> Option<SystemTime> {
        self.world().scheduled_for
    }

    pub(crate) fn last_completed(&self) -> Option<SystemTime> {
        self.world().last_completed
    }

    /// Advances the clock slightly, so that a loop of checks eventually reaches the stop.
    pub(crate) fn check(&self) {
        self.pass(INSTANT);
        self.live();
    }

    pub(crate) fn stop_requested(&self) -> Option<(StopReason, String)> {
        self.world().stop.clone()
    }

    pub(crate) fn grace(&self) -> Duration {
        let world = self.world();
        if world.stop.is_some() { (world.stopped_at + world.grace).saturating_sub(world.now) } else { Duration::ZERO }
    }

    pub(crate) fn progress(&self) {
        self.world().progress += 1;
    }

    pub(crate) fn step_down(&self, reason: &str) {
        self.world().step_down.get_or_insert_with(|| reason.to_owned());
        self.stop(StopReason::StepDown, format!("the coordinator requested a step-down: {reason}"));
    }

    pub(crate) fn sleep(&self, length: Duration) {
        let stopped = self.world().stop.is_some();
        self.pass(if stopped { INSTANT } else { length.max(INSTANT) });
        self.live();
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.world().values.get(key).cloned()
    }

    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        self.world().values.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
    }

    pub(crate) fn commit(&self, changes: Vec<Change>) -> Result<(), StateError> {
        self.live();
        let mut world = self.world();
        if !self.by_test
            && let Some(refusal) = world.refusals.pop_front()
        {
            return Err(refusal);
        }
        let mut values = world.values.clone();
        for change in changes {
            let (Change::Put((key, _)) | Change::Delete(key)) = &change;
            if key.is_empty() || key.len() > LARGEST_KEY {
                return Err(StateError::InvalidKey(format!(
                    "a key must have 1 to {LARGEST_KEY} bytes, not {}",
                    key.len()
                )));
            }
            match change {
                Change::Put((key, value)) if value.len() > LARGEST_VALUE => {
                    let length = value.len();
                    let why = format!("the value for `{key}` has {length} bytes, but the limit is {LARGEST_VALUE}");
                    return Err(StateError::TooLarge(why));
                }
                Change::Put((key, value)) => values.insert(key, value),
                Change::Delete(key) => values.remove(&key),
            };
        }
        let size: usize = values.iter().map(|(key, value)| key.len() + value.len()).sum();
        if size > LARGEST_STATE {
            let why = format!("the state would have {size} bytes, but the limit is {LARGEST_STATE}");
            return Err(StateError::TooLarge(why));
        }
        world.values = values;
        if !self.by_test {
            world.commits += 1;
        }
        Ok(())
    }

    /// Asks the coordinator to stop, and schedules its kill for the end of the grace period.
    pub(crate) fn stop(&self, reason: StopReason, message: String) {
        let mut world = self.world();
        if !world.running || world.stop.is_some() {
            return;
        }
        world.stop = Some((reason, message));
        world.stopped_at = world.now;
        let grace = world.grace;
        world.script(grace, Action::Kill(format!("it was still running {grace:?} after the request to stop")));
        drop(world);
        self.wake();
    }

    /// Advances the clock, and runs the scripted events that become due. Returns early if an event stops or kills the
    /// coordinator.
    pub(crate) fn pass(&self, length: Duration) {
        let until = self.world().now.saturating_add(length);
        let was_stopped = self.world().stop.is_some();
        loop {
            let mut world = self.world();
            if world.killed.is_some() || (!was_stopped && world.stop.is_some()) {
                return;
            }
            let due =
                world.script.first_entry().filter(|first| first.key().0 <= until).map(|first| first.remove_entry());
            let Some(((at, _), action)) = due else {
                world.now = world.now.max(until);
                drop(world);
                return self.wake();
            };
            world.now = world.now.max(at);
            match action {
                Action::Kill(why) => world.killed = Some(why),
                Action::Do(act) => {
                    drop(world);
                    self.wake();
                    act(&Harness::of(Self { by_test: true, ..self.clone() }));
                }
            }
        }
    }

    pub(crate) fn serve(&self, run: impl FnOnce(Self) -> Result) -> Result {
        self.world().begin();
        let host = Self { by_test: false, ..self.clone() };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(host)));
        let killed = self.world().end();
        match ended {
            Ok(result) => result,
            Err(panic) if panic.is::<Kill>() => Err(Failure::killed(killed.unwrap_or_default())),
            Err(panic) => resume_unwind(panic),
        }
    }

    fn live(&self) {
        if !self.by_test && self.world().killed.is_some() && !std::thread::panicking() {
            // Print no message and no backtrace: this is a deliberate kill, not a bug in the coordinator.
            resume_unwind(Box::new(Kill));
        }
    }

    fn wake(&self) {
        let mut world = self.world();
        let mut waits = std::mem::take(&mut world.waits);
        let due: Vec<_> = waits.extract_if(.., |_, (until, _)| until.has_come(&world)).collect();
        world.waits = waits;
        drop(world);
        due.into_iter().for_each(|(_, (_, waker))| waker.wake());
    }
}

impl World {
    pub(crate) fn script(&mut self, after: Duration, action: Action) {
        self.scripted += 1;
        let key = (self.now.saturating_add(after), self.scripted);
        self.script.insert(key, action);
    }

    fn begin(&mut self) {
        assert!(!self.running, "this harness already runs a coordinator: create another harness for a second one");
        self.running = true;
        self.term = self.next_term;
        self.next_term += 1;
        (self.stop, self.killed, self.step_down) = (None, None, None);
        (self.progress, self.commits) = (0, 0);
        let last = self.script.last_key_value().map_or(self.now, |((at, _), _)| *at);
        let why = "the test did not end it within a day of the test's clock: see `Harness::stop_after`";
        self.script(last.saturating_sub(self.now).saturating_add(PATIENCE), Action::Kill(why.to_owned()));
    }

    /// Ends the run, and returns the reason for the kill if the coordinator was killed.
    fn end(&mut self) -> Option<String> {
        self.running = false;
        self.script.clear();
        self.waits.clear();
        self.killed.take()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

#[cfg(feature = "async")]
mod futures {
    use std::pin::{Pin, pin};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake};

    use super::*;
    use crate::http::{Body, Error, Request, Response};

    pub(crate) type Answer = Box<dyn FnMut(Request<Vec<u8>>) -> Result<Response<Vec<u8>>, Error> + Send>;

    impl Host {
        /// Waits for this time or the stop. Without `length`, waits only for the stop.
        pub(crate) fn wait(&self, length: Option<Duration>) -> Wait {
            if self.world().stop.is_some() {
                self.pass(INSTANT);
            }
            self.wait_until(length.map(|length| length.max(INSTANT)), true)
        }

        pub(crate) async fn send<B: Into<Body>>(&self, request: Request<B>) -> Result<Response<Body>, Error> {
            let (head, body) = request.into_parts();
            let body = body.into().bytes_contents().await?.to_vec();
            let latency = self.world().latency;
            self.wait_until(Some(latency), false).await;
            // Do not hold the lock during the call: the function may call the harness.
            let answer = self.world().answer.take();
            let Some(mut answer) = answer else {
                return Err(Error::msg("this test does not answer requests: see `Harness::answer`"));
            };
            let response = answer(Request::from_parts(head, body));
            self.world().answer.get_or_insert(answer);
            Ok(response?.map(Body::from))
        }

        fn wait_until(&self, length: Option<Duration>, stop: bool) -> Wait {
            let mut world = self.world();
            world.began_waits += 1;
            let time = length.map(|length| world.now.saturating_add(length));
            Wait { host: self.clone(), id: world.began_waits, until: Until { time, stop } }
        }

        /// Runs a future to completion. Whenever the future is pending, advances the clock to the end of the earliest
        /// wait, or to the next scripted event.
        pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
            let mut future = pin!(future);
            let woken = Arc::new(Woken(AtomicBool::new(false)));
            let waker = Waker::from(woken.clone());
            loop {
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return output;
                }
                while !woken.0.swap(false, Ordering::Relaxed) {
                    self.pass_to_next();
                    self.live();
                }
            }
        }

        fn pass_to_next(&self) {
            let world = self.world();
            let timer = world.waits.values().filter_map(|(until, _)| until.time).min();
            let scripted = world.script.first_key_value().map(|((at, _), _)| *at);
            // This fallback is not used: while a term runs, the script contains at least the kill that ends the term.
            let next = timer.into_iter().chain(scripted).min().unwrap_or(world.now);
            let length = next.saturating_sub(world.now).max(INSTANT);
            drop(world);
            self.pass(length);
        }
    }

    pub(crate) struct Wait {
        host: Host,
        id: usize,
        until: Until,
    }

    impl Future for Wait {
        type Output = ();

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            self.host.live();
            let mut world = self.host.world();
            if self.until.has_come(&world) {
                return Poll::Ready(());
            }
            world.waits.insert(self.id, (self.until, cx.waker().clone()));
            Poll::Pending
        }
    }

    impl Drop for Wait {
        fn drop(&mut self) {
            self.host.world().waits.remove(&self.id);
        }
    }

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
