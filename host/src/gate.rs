//! The gate: what every effect of an instance passes, and the watchdog behind it.

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

/// The gate of one instance. It is open until its deadline or until it is closed, and then never again.
#[derive(Debug)]
pub struct Gate {
    clock: Clock,
    /// Nanoseconds of [`Time`].
    deadline: AtomicU64,
    abort_at: AtomicU64,
    closed: AtomicBool,
    refused: AtomicBool,
    gone: AtomicBool,
}

impl Gate {
    /// Opens a gate until `deadline`, for an instance that must be gone by `abort_at`.
    pub fn new(clock: Clock, deadline: Time, abort_at: Time) -> Self {
        Self {
            clock,
            deadline: AtomicU64::new(nanoseconds(deadline)),
            abort_at: AtomicU64::new(nanoseconds(abort_at)),
            closed: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    /// Lets one effect pass, by the clock as it is now.
    ///
    /// # Errors
    /// [`Refused`] from the deadline on, and once it is closed.
    pub fn pass(&self) -> Result<(), Refused> {
        let is_open = !self.closed.load(Ordering::Acquire)
            && nanoseconds(self.clock.now()) < self.deadline.load(Ordering::Acquire);
        if !is_open {
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
        self.deadline.store(nanoseconds(deadline), Ordering::Release);
        self.abort_at.store(nanoseconds(abort_at), Ordering::Release);
    }

    /// Refuses everything from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// The time until effects are refused.
    pub fn remaining(&self) -> Duration {
        if self.closed.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.deadline.load(Ordering::Acquire).saturating_sub(nanoseconds(self.clock.now())))
    }

    /// From when on the instance counts as not gone in time. A process that woke at `woken` from a pause past the
    /// deadline can cause no effect, since this gate refuses; so from then on the kill may take what it may take
    /// otherwise.
    fn overdue_at(&self, woken: Time) -> Time {
        let abort_at = self.abort_at.load(Ordering::Acquire);
        let room = abort_at.saturating_sub(self.deadline.load(Ordering::Acquire));
        Time(Duration::from_nanos(abort_at.max(nanoseconds(woken).saturating_add(room))))
    }

    /// See [`last_words_within`].
    fn last_words_within(&self) -> Duration {
        let room = self.abort_at.load(Ordering::Acquire).saturating_sub(self.deadline.load(Ordering::Acquire));
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
    let mut woken = Time::default();
    while !state.ended {
        state.gates.retain(|gate| gate.upgrade().is_some_and(|gate| !gate.gone.load(Ordering::Acquire)));
        if state.gates.is_empty() {
            state = watched.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            last_read = clock.now();
            continue;
        }
        let now = clock.now();
        if now.since(last_read) > WATCH_EVERY + PAUSED {
            woken = now;
        }
        last_read = now;
        let gates = state.gates.iter().filter_map(Weak::upgrade);
        let first = gates.map(|gate| (gate.overdue_at(woken), gate.last_words_within())).min();
        if let Some((_, longest)) = first.filter(|(overdue_at, _)| now >= *overdue_at) {
            watched.words.ask(speaker, clock, longest);
            std::process::abort();
        }
        // To the point, since a short lease leaves little after it.
        let wait = first.map_or(WATCH_EVERY, |(overdue_at, _)| overdue_at.since(now).min(WATCH_EVERY));
        let (back, _) = watched.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
        state = back;
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

    #[test]
    fn after_a_pause_the_kill_has_what_it_has_otherwise() {
        let clock = Clock::default();
        let now = clock.now();
        let (deadline, abort_at) = (now + Duration::from_secs(80), now + Duration::from_secs(93));
        let gate = Gate::new(clock, deadline, abort_at);
        let never = Time::default();
        assert_eq!(gate.overdue_at(never), abort_at);
        assert_eq!(gate.overdue_at(deadline - Duration::from_secs(10)), abort_at, "it woke before the deadline");
        let woken = deadline + Duration::from_secs(100);
        assert_eq!(gate.overdue_at(woken), woken + Duration::from_secs(13));
    }
}
