//! The watchdog. It ends the host's process if an instance does not exit in time. It also notifies the users of timers
//! when the timers have fallen behind, for example during a suspend. An instance whose process was killed counts as
//! exited, even if the process has not been reaped yet.
//!
//! The watchdog waits for no other thread, with one exception. Before the watchdog ends the process, a separate thread
//! sends the last messages of the host (the "last words"). The watchdog waits for this thread up to a time limit.
//!
//! A late wake-up shows that the whole process was paused, perhaps past the deadline. The gate refuses all effects
//! after the deadline, so the instance cannot act while the host kills it. The elector (`baton_election`) and the
//! watchdog therefore give the host its usual time again to kill the instance. The usual time is 0.13 of the lease
//! duration, from the deadline (0.8) to 0.93:
//!
//! - The watchdog measures this time from the wake-up.
//! - The elector measures this time from the kill, or from a wake-up after the kill. After a suspend, the elector keeps
//!   counting from the kill, because it cannot tell a suspend from a clock that was set.
//!
//! The watchdog and the elector each give the host more time only once. Otherwise, a host that always wakes late would
//! never end itself.

use std::os::fd::AsFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use baton_election::Time;
use rustix::time::ClockId;
use tokio::sync::watch;

use super::{Gate, end_this_process};
use crate::clock::{Alarm, Clock, nanoseconds_on, towards};
use crate::doorbell::Doorbell;

/// Longest sleep while an instance is running. Sleeps are limited because the timers' clock may run slow, which the
/// kernel does not report.
const LONGEST: Duration = Duration::from_secs(5);

/// Longest sleep if one of these conditions holds, because the watchdog could then sleep through a clock step or a
/// pause:
///
/// - The kernel does not report clock steps.
/// - The time from the deadline until the instance must have exited is at most [`PAUSED`]. The watchdog does not notice
///   a pause of that length.
///
/// The sleep is then a quarter of the time from the deadline until the instance must have exited, but at least
/// [`CLOSELY`] and at most this value.
const LONGEST_UNTOLD: Duration = Duration::from_millis(500);

/// Shortest sleep before the deadline, and the interval of checks after it.
const CLOSELY: Duration = Duration::from_millis(50);

/// Delay of a wake-up from which the watchdog concludes that the whole process was paused.
const PAUSED: Duration = Duration::from_millis(500);

/// Minimum time by which timers must have fallen behind before their users are notified, in nanoseconds.
const MISSED: i128 = 10_000_000;

/// The time of the next check while no instance is watched.
const NEVER: u64 = u64::MAX;

/// Interval at which the watchdog checks whether the last words have been sent.
const NAP: Duration = Duration::from_millis(5);

/// Ends the process if an instance does not exit in time, no matter what the other threads do. Also reports time that
/// timers have missed: timers stop while the machine is suspended, and their clock may be slewed.
///
/// The host has one watchdog thread, which sleeps while no instance is running, and one thread for the watchdog's
/// messages.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<Watched>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Watched {
    state: Mutex<WatchedState>,
    changed: Doorbell,
    /// The time of the next planned check, in nanoseconds on the host's clock.
    due: AtomicU64,
    words: Words,
}

/// The watchdog's messages. A separate thread sends them, because sending may block on a lock, on memory or on a
/// descriptor. The watchdog waits only a limited time for that thread to send the last words.
#[derive(Debug, Default)]
struct Words {
    /// True if timers have fallen behind, and their users have not been notified yet.
    missed: AtomicBool,
    tell_missed: watch::Sender<()>,
    asked: AtomicBool,
    /// Time limit for the last words, in nanoseconds.
    longest: AtomicU64,
    said: AtomicBool,
    ended: AtomicBool,
}

impl Words {
    fn speak(&self, last_words: &dyn Fn(&str, Duration)) {
        while !self.ended.load(Ordering::Acquire) {
            if self.asked.load(Ordering::Acquire) {
                let longest = Duration::from_nanos(self.longest.load(Ordering::Acquire));
                last_words("an instance is still running and the lease is about to expire: the host exits", longest);
                self.said.store(true, Ordering::Release);
                return;
            }
            if self.missed.swap(false, Ordering::AcqRel) {
                self.tell_missed.send_replace(());
            }
            std::thread::park();
        }
    }

    fn have_missed(&self, speaker: &Thread) {
        self.missed.store(true, Ordering::Release);
        speaker.unpark();
    }

    /// Waits at most `longest` until the last words are sent. Reads only the boot clock, which needs no lock.
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
    /// Starts the watchdog. If an instance does not exit in time, a separate thread calls `last_words` with the reason
    /// and a time limit. The watchdog ends the process when `last_words` has returned or the time limit has passed.
    ///
    /// # Errors
    /// Fails if the system has no threads or descriptors left.
    pub fn start(clock: Clock, last_words: impl Fn(&str, Duration) + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Watched {
            state: Mutex::default(),
            changed: Doorbell::new()?,
            due: AtomicU64::new(NEVER),
            words: Words::default(),
        });
        let mut watchdog = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let spoken = Arc::clone(&shared);
        let alarm = Alarm::new()?;
        watchdog.threads.push(thread("last-words").spawn(move || spoken.words.speak(&last_words))?);
        let speaker = watchdog.threads[0].thread().clone();
        watchdog.threads.push(thread("watchdog").spawn(move || {
            let watched = AssertUnwindSafe(|| watch(&shared, &clock, alarm, &speaker));
            // A host without a watchdog must not lead.
            if catch_unwind(watched).is_err() {
                end_this_process();
            }
        })?);
        Ok(watchdog)
    }

    /// Returns a watch channel that changes when timers have missed time while an instance is watched. The channel also
    /// changes when the watchdog starts to watch the first instance, because the watchdog does not notice missed time
    /// while it watches no instance.
    pub fn missed_by_timers(&self) -> watch::Receiver<()> {
        self.shared.words.tell_missed.subscribe()
    }

    /// Watches the instance behind `gate` until the instance has exited or is dying.
    pub fn watch(&self, gate: &Arc<Gate>) {
        let mut state = self.shared.lock();
        state.gates.push(Arc::downgrade(gate));
        self.shared.due.fetch_min(super::nanoseconds(gate.now()), Ordering::Relaxed);
        drop(state);
        self.shared.changed.ring();
    }

    /// Returns how late the watchdog's next check is. A long delay shows that the watchdog is stuck or the process was
    /// paused.
    #[must_use]
    pub fn late(&self, now: Time) -> Duration {
        Duration::from_nanos(super::nanoseconds(now).saturating_sub(self.shared.due.load(Ordering::Relaxed)))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.ring();
        self.shared.words.ended.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn watch(watched: &Watched, clock: &Clock, mut alarm: Alarm, speaker: &Thread) {
    // `None` while no instance is watched: the clock is not checked during that time.
    let mut last: Option<(Time, Timers)> = None;
    loop {
        let mut state = watched.lock();
        if state.ended {
            return;
        }
        state.gates.retain(|gate| gate.upgrade().is_some_and(|gate| gate.is_watched()));
        if state.gates.is_empty() {
            last = None;
            watched.due.store(NEVER, Ordering::Relaxed);
            drop(state);
            sleep(watched, &alarm, None);
            continue;
        }
        alarm.forget_steps();
        let now = clock.now();
        let planned = last.as_ref().map_or(now, |(planned, _)| *planned);
        // Do not keep gates alive while sleeping: a gate without other references does not need to be watched.
        let gates = state.gates.iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        let found = look(&gates, planned, now, alarm.hears_steps());
        drop(gates);
        match found {
            Look::Again(wait) => {
                let (timers, have_missed) = match last {
                    Some((_, timers)) => timers.looked_at(now),
                    None => (Timers::at(now), true),
                };
                if have_missed {
                    watched.words.have_missed(speaker);
                }
                last = Some((now + wait, timers));
                watched.due.store(super::nanoseconds(now + wait), Ordering::Relaxed);
                drop(state);
                sleep(watched, &alarm, Some(wait));
            }
            Look::Overdue(longest) => {
                watched.words.ask(speaker, clock, longest);
                end_this_process();
            }
        }
    }
}

fn sleep(watched: &Watched, alarm: &Alarm, longest: Option<Duration>) {
    // Ignore why the sleep ended: the caller checks the gates in any case.
    let _ = alarm.wait(longest, [watched.changed.as_fd()]);
    watched.changed.has_rung();
}

struct Timers {
    /// Time by which the host's clock was ahead of the timers' clock at the last notification, in nanoseconds.
    ahead: i128,
}

impl Timers {
    fn at(now: Time) -> Self {
        Self { ahead: Self::ahead(now) }
    }

    fn ahead(now: Time) -> i128 {
        i128::from(super::nanoseconds(now)) - i128::from(nanoseconds_on(ClockId::Monotonic))
    }

    /// Returns true if timers have fallen so far behind since the last notification that their users must be notified
    /// again.
    fn looked_at(self, now: Time) -> (Self, bool) {
        let at = Self::at(now);
        if at.ahead > self.ahead + MISSED { (at, true) } else { (self, false) }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Look {
    Again(Duration),
    /// The duration is the time limit for the last words.
    Overdue(Duration),
}

/// Checks the gates at `now`, and decides when to check them again. `planned` is the time at which this check should
/// have happened. If `is_told` is true, the alarm reports clock steps, so the watchdog may sleep longer.
fn look(gates: &[Arc<Gate>], planned: Time, now: Time, is_told: bool) -> Look {
    if now.since(planned) > PAUSED {
        gates.iter().for_each(|gate| gate.wakes(now));
    }
    let first = gates.iter().map(|gate| (gate.overdue_at(), gate.last_words_within())).min();
    if let Some((_, longest)) = first.filter(|(overdue_at, _)| now >= *overdue_at) {
        return Look::Overdue(longest);
    }
    // Wake up exactly at the deadline, since a short lease leaves little time after it.
    let waits = gates.iter().map(|gate| {
        let (deadline, overdue_at) = (Time(Duration::from_nanos(gate.deadline.nanoseconds())), gate.overdue_at());
        if now >= deadline {
            return overdue_at.since(now).min(CLOSELY);
        }
        let room = overdue_at.since(deadline);
        let longest = if is_told && room > PAUSED { LONGEST } else { (room / 4).clamp(CLOSELY, LONGEST_UNTOLD) };
        towards(deadline.since(now)).min(longest)
    });
    Look::Again(waits.min().unwrap_or(CLOSELY))
}

#[cfg(test)]
mod tests {
    use baton_election::timing::last_words_within;

    use super::*;

    #[test]
    fn last_words_end_well_before_the_lease() {
        for seconds in [2, 15, 60] {
            let lease = Duration::from_secs(seconds);
            let longest = last_words_within(lease * 93 / 100 - lease * 8 / 10);
            assert!(longest > lease * 2 / 100 && longest < lease * 7 / 300 + NAP, "{longest:?} of {lease:?}");
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the gate of an instance with a lease of 100 s, and the time at which the lease was last renewed.
    fn gate() -> (Arc<Gate>, Time) {
        let renewed = Time(SECOND * 1000);
        (Arc::new(Gate::new(Clock::default(), renewed + SECOND * 80, renewed + SECOND * 93)), renewed)
    }

    #[test]
    fn running_instance_is_overdue_at_its_abort_time() {
        let (gate, renewed) = gate();
        let look = |planned, now| look(std::slice::from_ref(&gate), renewed + planned, renewed + now, false);
        assert_eq!(look(SECOND * 10, SECOND * 10), Look::Again(LONGEST_UNTOLD));
        let just_before = SECOND * 80 - Duration::from_millis(3);
        assert_eq!(look(just_before, just_before), Look::Again(Duration::from_millis(3)));
        assert_eq!(look(SECOND * 80, SECOND * 80), Look::Again(CLOSELY));
        let just_before = SECOND * 93 - Duration::from_millis(3);
        assert_eq!(look(just_before, just_before), Look::Again(Duration::from_millis(3)));
        assert!(matches!(look(just_before, SECOND * 93), Look::Overdue(_)));
    }

    #[test]
    fn kill_has_its_usual_time_after_a_pause() {
        let (gate, renewed) = gate();
        let look = |planned, now| look(std::slice::from_ref(&gate), renewed + planned, renewed + now, false);
        assert_eq!(look(SECOND * 60, SECOND * 70), Look::Again(LONGEST_UNTOLD));
        assert!(matches!(look(SECOND * 92, SECOND * 93), Look::Again(_)), "it woke past the deadline, at 0.93 D");
        assert!(matches!(look(SECOND * 105, SECOND * 105), Look::Again(_)));
        assert!(matches!(look(SECOND * 106, SECOND * 106), Look::Overdue(_)));
        let later = renewed + SECOND * 100;
        gate.extend(later + SECOND * 80, later + SECOND * 93);
        assert!(matches!(look(SECOND * 110, SECOND * 180), Look::Again(_)));
        assert!(matches!(look(SECOND * 192, SECOND * 192), Look::Again(_)));
        assert!(matches!(look(SECOND * 193, SECOND * 193), Look::Overdue(_)));
    }

    #[test]
    fn pause_before_the_deadline_extends_nothing() {
        let (gate, renewed) = gate();
        let look = |planned, now| look(std::slice::from_ref(&gate), renewed + planned, renewed + now, false);
        assert!(matches!(look(SECOND * 60, SECOND * 79), Look::Again(_)));
        assert!(matches!(look(SECOND * 93, SECOND * 93), Look::Overdue(_)));
    }

    #[test]
    fn process_that_always_wakes_late_still_ends() {
        let lates = [600, 1_000, 5_000, 60_000].map(Duration::from_millis);
        for (late, is_told) in lates.into_iter().flat_map(|late| [(late, false), (late, true)]) {
            let (gate, renewed) = gate();
            let (mut planned, mut now) = (renewed, renewed);
            while let Look::Again(wait) = look(std::slice::from_ref(&gate), planned, now, is_told) {
                planned = now + wait;
                now = planned + late;
                assert!(now <= renewed + SECOND * 93 + late * 2, "woken {late:?} late, it goes on for ever");
            }
            assert!(now >= renewed + SECOND * 93, "{now:?}");
        }
    }

    #[test]
    fn checks_are_more_frequent_when_lease_is_short() {
        let renewed = Time(SECOND * 1000);
        for (lease, untold, told) in [(2, 65, 65), (15, 487, 5_000), (60, 500, 5_000)] {
            let lease = SECOND * lease;
            let gate = Arc::new(Gate::new(Clock::default(), renewed + lease * 80 / 100, renewed + lease * 93 / 100));
            for (wait, is_told) in [(untold, false), (told, true)] {
                let found = look(std::slice::from_ref(&gate), renewed, renewed, is_told);
                let Look::Again(waits) = found else { panic!("it is in time") };
                assert_eq!(waits.as_millis(), wait, "{lease:?}");
            }
        }
    }

    #[test]
    fn missed_time_counts_from_the_last_notification() {
        let now = Clock::default().now();
        let little = Duration::from_millis(5);
        let (timers, told) = Timers::at(now).looked_at(now + little);
        assert!(!told);
        let (timers, told) = timers.looked_at(now + SECOND);
        assert!(told);
        let (timers, told) = timers.looked_at(now + SECOND + little);
        assert!(!told);
        assert!(timers.looked_at(now + SECOND * 2).1);
    }

    #[tokio::test]
    async fn timer_users_are_notified_when_first_instance_is_watched() {
        let clock = Clock::default();
        let watchdog =
            Watchdog::start(clock.clone(), |why, _| panic!("{why}")).unwrap_or_else(|error| panic!("{error}"));
        let mut missed = watchdog.missed_by_timers();
        let far = clock.now() + SECOND * 3600;
        let gate = Arc::new(Gate::new(clock, far, far));
        watchdog.watch(&gate);
        assert!(missed.changed().await.is_ok());
    }
}
