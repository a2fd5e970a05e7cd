//! The gate: what every effect of an instance passes, the deadline that what has passed is held to once more if it has
//! to wait, and the watchdog behind both.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use baton_election::Time;

use crate::clock::Clock;

/// An effect was refused: the term's deadline has passed, or the instance is being killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the term is over: effects of this instance are refused")]
pub struct Refused;

/// Until when effects may leave this process. The gate of an instance has one; so has what passed it and then waits in
/// the process for whoever takes it, such as a line that nobody has read yet: that is judged by it right before it
/// leaves. Clones are the same deadline.
#[derive(Clone, Debug)]
pub struct Deadline {
    clock: Clock,
    shared: Arc<SharedDeadline>,
}

#[derive(Debug)]
struct SharedDeadline {
    /// Nanoseconds of [`Time`].
    at: AtomicU64,
    ended: AtomicBool,
}

impl Deadline {
    /// A deadline at that time.
    pub fn new(clock: Clock, at: Time) -> Self {
        let shared = SharedDeadline { at: AtomicU64::new(nanoseconds(at)), ended: AtomicBool::new(false) };
        Self { clock, shared: Arc::new(shared) }
    }

    /// Whether it has passed, by the clock as it is now, or was ended.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The time until it passes.
    pub fn remaining(&self) -> Duration {
        if self.has_ended() {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.nanoseconds().saturating_sub(nanoseconds(self.clock.now())))
    }

    /// Moves it after a renewal. One that has ended stays so.
    pub fn extend(&self, at: Time) {
        self.shared.at.store(nanoseconds(at), Ordering::Release);
    }

    /// Has it passed from now on, whatever the clock says.
    pub fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
    }

    /// Whether it was ended.
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    fn nanoseconds(&self) -> u64 {
        self.shared.at.load(Ordering::Acquire)
    }
}

/// The gate of one instance. It is open until its deadline or until it is closed, and then never again.
#[derive(Debug)]
pub struct Gate {
    deadline: Deadline,
    /// Nanoseconds of [`Time`].
    abort_at: AtomicU64,
    /// When the process first found that it had been paused past the deadline; of no meaning while that is later.
    woken: AtomicU64,
    refused: AtomicBool,
    gone: AtomicBool,
}

impl Gate {
    /// Opens a gate until `deadline`, for an instance that must be gone by `abort_at`.
    pub fn new(clock: Clock, deadline: Time, abort_at: Time) -> Self {
        Self {
            deadline: Deadline::new(clock, deadline),
            abort_at: AtomicU64::new(nanoseconds(abort_at)),
            woken: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    /// Lets one effect pass, by the clock as it is now.
    ///
    /// # Errors
    /// [`Refused`] from the deadline on, and once it is closed.
    pub fn pass(&self) -> Result<(), Refused> {
        if self.deadline.has_passed() {
            self.refused.store(true, Ordering::Release);
            return Err(Refused);
        }
        Ok(())
    }

    /// Whether it has refused an effect.
    pub fn has_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }

    /// Moves the deadlines after a renewal. A closed gate stays closed.
    pub fn extend(&self, deadline: Time, abort_at: Time) {
        self.deadline.extend(deadline);
        self.abort_at.store(nanoseconds(abort_at), Ordering::Release);
    }

    /// Refuses everything from now on.
    pub fn close(&self) {
        self.deadline.end();
    }

    /// The time until effects are refused.
    pub fn remaining(&self) -> Duration {
        self.deadline.remaining()
    }

    /// Says that the process has found at `now` that it was paused. If that was past the deadline, no effect is caused
    /// any more, since this gate refuses; so the kill may take from now on what it may take otherwise. That is given
    /// once: whoever is paused again and again, or woken too late each time, would never end.
    fn wakes(&self, now: Time) {
        let deadline = self.deadline.nanoseconds();
        if nanoseconds(now) >= deadline && self.woken.load(Ordering::Acquire) < deadline {
            self.woken.store(nanoseconds(now), Ordering::Release);
        }
    }

    /// From when on the instance counts as not gone in time.
    fn overdue_at(&self) -> Time {
        let (abort_at, deadline) = (self.abort_at.load(Ordering::Acquire), self.deadline.nanoseconds());
        let woken = Some(self.woken.load(Ordering::Acquire)).filter(|woken| *woken >= deadline);
        let room = abort_at.saturating_sub(deadline);
        Time(Duration::from_nanos(woken.map_or(abort_at, |woken| abort_at.max(woken.saturating_add(room)))))
    }

    /// See [`last_words_within`].
    fn last_words_within(&self) -> Duration {
        let room = self.abort_at.load(Ordering::Acquire).saturating_sub(self.deadline.nanoseconds());
        last_words_within(Duration::from_nanos(room))
    }

    /// Says that the instance is gone: nobody need watch it any more.
    pub fn set_gone(&self) {
        self.close();
        self.gone.store(true, Ordering::Release);
    }
}

fn nanoseconds(time: Time) -> u64 {
    u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX)
}

/// How often the watchdog reads the clock while an instance lives.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// A watchdog that finds this much more time passed than it slept was itself stopped, with the process.
const PAUSED: Duration = Duration::from_millis(500);

/// How often the end looks whether its last words are said.
const NAP: Duration = Duration::from_millis(5);

/// How long a host that ends itself may wait for its last words, where there is `room` between the deadline and the
/// moment at which it must end: a third of what is left of the lease then. Of D, 0.13 are between the two and 0.07 are
/// left.
pub fn last_words_within(room: Duration) -> Duration {
    room * 7 / 13 / 3
}

/// Ends the process if an instance is not gone in time, whatever all other threads do.
///
/// One thread per host, asleep while no instance lives, and one that sleeps until there are last words.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<Watched>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Watched {
    state: Mutex<WatchedState>,
    changed: Condvar,
    words: Words,
}

/// Last words. Whoever speaks them may block: on a lock whose owner does not run, on memory, on whatever is
/// written to. So a thread of its own speaks, and the end waits for it a bounded time, on nothing else.
#[derive(Debug, Default)]
struct Words {
    asked: AtomicBool,
    /// How long the end waits for them, in nanoseconds.
    longest: AtomicU64,
    said: AtomicBool,
    /// Nobody will ask any more.
    ended: AtomicBool,
}

impl Words {
    /// The speaker's whole life.
    fn speak(&self, last_words: &dyn Fn(&str, Duration)) {
        while !self.ended.load(Ordering::Acquire) {
            if self.asked.load(Ordering::Acquire) {
                let longest = Duration::from_nanos(self.longest.load(Ordering::Acquire));
                last_words("an instance is not gone and the lease is about to end: the host ends itself", longest);
                self.said.store(true, Ordering::Release);
                return;
            }
            std::thread::park();
        }
    }

    /// Returns when they are said, and after `longest` at the latest. Of the clocks it reads the one that takes no
    /// lock.
    fn ask(&self, speaker: &Thread, clock: &Clock, longest: Duration) {
        let until = clock.boot() + longest;
        self.longest.store(u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
        self.asked.store(true, Ordering::Release);
        speaker.unpark();
        while !self.said.load(Ordering::Acquire) && clock.boot() < until {
            std::thread::park_timeout(NAP);
        }
    }
}

#[derive(Debug, Default)]
struct WatchedState {
    gates: Vec<Weak<Gate>>,
    ended: bool,
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, WatchedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watchdog {
    /// Starts the watchdog. When an instance outlives its time it calls `last_words` on a thread of its own, with the
    /// reason and the time that they may take, and ends the process once they are said or that time is over.
    ///
    /// # Errors
    /// Where the system has no thread left.
    pub fn start(clock: Clock, last_words: impl Fn(&str, Duration) + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Watched { state: Mutex::default(), changed: Condvar::new(), words: Words::default() });
        let mut watchdog = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let spoken = Arc::clone(&shared);
        watchdog.threads.push(thread("last-words").spawn(move || spoken.words.speak(&last_words))?);
        let speaker = watchdog.threads[0].thread().clone();
        watchdog.threads.push(thread("watchdog").spawn(move || watch(&shared, &clock, &speaker))?);
        Ok(watchdog)
    }

    /// Watches the instance behind `gate` until it is gone.
    pub fn watch(&self, gate: &Arc<Gate>) {
        self.shared.lock().gates.push(Arc::downgrade(gate));
        self.shared.changed.notify_one();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
        self.shared.words.ended.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // One that panicked has nothing more to say here.
            let _ = thread.join();
        }
    }
}

fn watch(watched: &Watched, clock: &Clock, speaker: &Thread) {
    let mut state = watched.lock();
    let mut last_read = clock.now();
    while !state.ended {
        state.gates.retain(|gate| gate.upgrade().is_some_and(|gate| !gate.gone.load(Ordering::Acquire)));
        if state.gates.is_empty() {
            state = watched.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            last_read = clock.now();
            continue;
        }
        let now = clock.now();
        let gates: Vec<Arc<Gate>> = state.gates.iter().filter_map(Weak::upgrade).collect();
        match look(&gates, std::mem::replace(&mut last_read, now), now) {
            Look::Again(wait) => {
                let (back, _) = watched.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
                state = back;
            }
            Look::Overdue(longest) => {
                watched.words.ask(speaker, clock, longest);
                std::process::abort();
            }
        }
    }
}

/// What the watchdog finds when it looks at the gates.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// It looks again after so long.
    Again(Duration),
    /// An instance is not gone in time. The last words may take so long.
    Overdue(Duration),
}

fn look(gates: &[Arc<Gate>], last_read: Time, now: Time) -> Look {
    if now.since(last_read) > WATCH_EVERY + PAUSED {
        gates.iter().for_each(|gate| gate.wakes(now));
    }
    let first = gates.iter().map(|gate| (gate.overdue_at(), gate.last_words_within())).min();
    match first {
        Some((overdue_at, longest)) if now >= overdue_at => Look::Overdue(longest),
        // To the point, since a short lease leaves little after it.
        Some((overdue_at, _)) => Look::Again(overdue_at.since(now).min(WATCH_EVERY)),
        None => Look::Again(WATCH_EVERY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_from_the_deadline_on_and_never_reopens_once_closed() {
        let clock = Clock::default();
        let past = clock.now();
        let future = past + Duration::from_secs(3600);
        let gate = Gate::new(clock, past, future);
        assert!(!gate.has_refused());
        assert_eq!(gate.pass(), Err(Refused));
        assert!(gate.has_refused());
        gate.extend(future, future);
        assert_eq!(gate.pass(), Ok(()));
        gate.close();
        gate.extend(future, future);
        assert_eq!(gate.pass(), Err(Refused));
        assert_eq!(gate.remaining(), Duration::ZERO);
    }

    #[test]
    fn last_words_are_over_well_before_the_lease() {
        for seconds in [2, 15, 60] {
            let lease = Duration::from_secs(seconds);
            let longest = last_words_within(lease * 93 / 100 - lease * 8 / 10);
            assert!(longest > lease * 2 / 100 && longest < lease * 7 / 300 + NAP, "{longest:?} of {lease:?}");
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// The gate of an instance under a lease of 100 s that was last renewed at the returned time.
    fn gate() -> (Arc<Gate>, Time) {
        let renewed = Time(SECOND * 1000);
        (Arc::new(Gate::new(Clock::default(), renewed + SECOND * 80, renewed + SECOND * 93)), renewed)
    }

    #[test]
    fn an_instance_that_is_not_gone_is_overdue_at_its_time() {
        let (gate, renewed) = gate();
        let look = |last_read, now| look(std::slice::from_ref(&gate), renewed + last_read, renewed + now);
        assert_eq!(look(SECOND * 80, SECOND * 80), Look::Again(WATCH_EVERY));
        let just_before = SECOND * 93 - Duration::from_millis(3);
        assert_eq!(look(just_before, just_before), Look::Again(Duration::from_millis(3)));
        assert!(matches!(look(just_before, SECOND * 93), Look::Overdue(_)));
    }

    #[test]
    fn after_a_pause_the_kill_has_what_it_has_otherwise() {
        let (gate, renewed) = gate();
        let look = |last_read, now| look(std::slice::from_ref(&gate), renewed + last_read, renewed + now);
        assert_eq!(look(SECOND * 60, SECOND * 70), Look::Again(WATCH_EVERY));
        assert!(matches!(look(SECOND * 92, SECOND * 93), Look::Again(_)), "it woke past the deadline, at 0.93 D");
        assert!(matches!(look(SECOND * 105, SECOND * 105), Look::Again(_)));
        assert!(matches!(look(SECOND * 106, SECOND * 106), Look::Overdue(_)));
        // A renewal that succeeds after all begins a new time.
        let later = renewed + SECOND * 100;
        gate.extend(later + SECOND * 80, later + SECOND * 93);
        assert!(matches!(look(SECOND * 110, SECOND * 180), Look::Again(_)));
        assert!(matches!(look(SECOND * 192, SECOND * 192), Look::Again(_)));
        assert!(matches!(look(SECOND * 193, SECOND * 193), Look::Overdue(_)));
    }

    #[test]
    fn a_pause_that_ended_before_the_deadline_gives_nothing() {
        let (gate, renewed) = gate();
        let look = |last_read, now| look(std::slice::from_ref(&gate), renewed + last_read, renewed + now);
        assert!(matches!(look(SECOND * 60, SECOND * 79), Look::Again(_)));
        assert!(matches!(look(SECOND * 93, SECOND * 93), Look::Overdue(_)));
    }

    #[test]
    fn whoever_is_woken_too_late_each_time_ends_all_the_same() {
        for late in [600, 1_000, 5_000, 60_000].map(Duration::from_millis) {
            let (gate, renewed) = gate();
            let (mut last_read, mut now) = (renewed, renewed);
            while matches!(look(std::slice::from_ref(&gate), last_read, now), Look::Again(_)) {
                (last_read, now) = (now, now + late);
                assert!(now <= renewed + SECOND * 93 + late * 2, "woken {late:?} late, it goes on for ever");
            }
            assert!(now >= renewed + SECOND * 93, "{now:?}");
        }
    }
}
