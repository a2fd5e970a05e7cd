//! The page: until when effects may leave a runner, as the host says it and the runner reads it.
//!
//! The host writes absolute times, one for each of the kernel's clocks that it does not believe alone
//! ([`Clock`](baton_store::clock::Clock)), since a process that has just begun has not seen how they moved before. A
//! process that finds one of them past is past the deadline, whatever the others say.
//!
//! There is room for two deadlines, and a count says which of them holds: the host writes the other one, whole, before it
//! counts up. So a host that is put aside, stopped or ended in the middle of writing leaves the deadline before, and
//! neither refuses an effect nor ends a runner (the kernel's sequence latch, `seqcount_latch_t`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::ClockId;

use super::limits::{Effect, Tally};
use super::shared::{Mapped, Others, Sharable, SharedMemory};
use baton_store::clock::nanoseconds_on;
use baton_store::doorbell::Doorbell;
use baton_store::gate::Refused;

/// The clocks by which a deadline is told.
const CLOCKS: [ClockId; 3] = [ClockId::Boottime, ClockId::MonotonicRaw, ClockId::Realtime];

/// Who takes longer to read the clocks and to ask, in nanoseconds, was put aside or stopped meanwhile, and tries again so
/// often in all.
const AT_ONCE: u64 = 1_000_000;
/// See [`AT_ONCE`].
const TRIES: usize = 4;

/// What stands in the page. As it begins, nothing may leave.
#[repr(C)]
struct Record {
    /// How many deadlines were written. The last one stands where its number is even or odd, the next is written to the
    /// other place.
    written: AtomicU64,
    /// Two deadlines by each of [`CLOCKS`], in nanoseconds.
    deadlines: [[AtomicU64; 3]; 2],
    /// Not 0 once it is closed for good.
    closed: AtomicU64,
    /// Not 0 once its host may open it any moment.
    opens: AtomicU64,
    /// How late who watches it may see that it was opened, once that is so, in nanoseconds.
    lateness: AtomicU64,
}

// SAFETY: atomic numbers, and less than a page of them.
unsafe impl Sharable for Record {}

/// The page of a runner, as its host writes it.
pub(super) struct Page {
    record: SharedMemory<Record>,
    /// Held by the thread that writes.
    writing: Mutex<()>,
    /// Of who watches it.
    doorbell: Option<Doorbell>,
}

impl Page {
    /// A page by which nothing may leave yet, and the file by which a runner maps it.
    ///
    /// # Errors
    /// Where the system has no more memory files.
    pub(super) fn make() -> io::Result<(Self, OwnedFd)> {
        let (record, file) = SharedMemory::<Record>::make("baton-page", Others::Read)?;
        Ok((Self { record, writing: Mutex::new(()), doorbell: None }, file))
    }

    /// The same, for somebody who watches it: this is rung before it is opened, and that may be seen so late from then on.
    pub(super) fn watched(self, doorbell: Doorbell, lateness: Duration) -> Self {
        self.record.lateness.store(u64::try_from(lateness.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        Self { doorbell: Some(doorbell), ..self }
    }

    /// Has who watches it look at it from now on: it may be opened any moment.
    pub(super) fn announce(&self) {
        let _writing = self.lock();
        self.tell_of_opening();
    }

    /// It is not about to be opened after all. One that was opened stays watched.
    pub(super) fn withdraw(&self) {
        let _writing = self.lock();
        if self.record.written.load(Ordering::Relaxed) == 0 {
            self.record.opens.store(0, Ordering::Release);
        }
    }

    /// Lets effects leave for as long as `remaining` says. The clocks are read before it is asked: a host that is stopped
    /// in between lets them leave for less, and never for more. Unless that is so each time, it asks again, so that less is
    /// next to nothing.
    pub(super) fn open_for(&self, remaining: impl Fn() -> Duration) {
        let _writing = self.lock();
        // Before and not after: a host may be stopped in between for as long as it likes.
        self.tell_of_opening();
        let mut deadline = [0; 3];
        for _ in 0..TRIES {
            let now = CLOCKS.map(nanoseconds_on);
            let remaining = u64::try_from(remaining().as_nanos()).unwrap_or(u64::MAX);
            deadline = now.map(|now| now.saturating_add(remaining));
            if nanoseconds_on(CLOCKS[0]).saturating_sub(now[0]) < AT_ONCE {
                break;
            }
        }
        self.record.write(deadline);
    }

    /// Lets nothing leave from now on, and never again.
    pub(super) fn close(&self) {
        self.record.closed.store(1, Ordering::Release);
    }

    /// Rings, unless it has.
    fn tell_of_opening(&self) {
        if self.record.opens.swap(1, Ordering::Release) == 0
            && let Some(doorbell) = &self.doorbell
        {
            doorbell.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The gate of an instance in its runner: open until the deadline that the host has written, or until that closes it.
pub(super) struct Gate {
    record: SharedMemory<Record>,
    tally: SharedMemory<Tally>,
}

impl Gate {
    /// By the page in this file. What it refuses, the tally says.
    ///
    /// # Errors
    /// Where it cannot be mapped.
    pub(super) fn map(page: impl AsFd, tally: &SharedMemory<Tally>) -> io::Result<Self> {
        Ok(Self { record: SharedMemory::map(page, Mapped::Reads)?, tally: tally.clone() })
    }

    /// Lets one effect pass, by the clocks as they are now, and counts it.
    ///
    /// # Errors
    /// [`Refused`] from the deadline on, and once it is closed.
    pub(super) fn pass(&self, effect: Effect) -> Result<(), Refused> {
        let passed = self.check();
        self.tally.count_effect(effect, passed.is_ok());
        passed
    }

    /// Lets what belongs to an effect that has passed go on.
    ///
    /// # Errors
    /// As for [`Gate::pass`].
    pub(super) fn check(&self) -> Result<(), Refused> {
        if self.remaining().is_zero() {
            self.tally.has_refused();
            return Err(Refused);
        }
        Ok(())
    }

    /// The time until effects are refused.
    pub(super) fn remaining(&self) -> Duration {
        self.record.remaining()
    }
}

/// The page of a runner as who watches it reads it.
pub(super) struct Watched(SharedMemory<Record>);

impl Watched {
    /// By the page in this file.
    ///
    /// # Errors
    /// Where it cannot be mapped.
    pub(super) fn map(page: impl AsFd) -> io::Result<Self> {
        SharedMemory::map(page, Mapped::Reads).map(Self)
    }

    /// How late its opening may be seen; none while its host does not open it, and rings before it does.
    pub(super) fn lateness(&self) -> Option<Duration> {
        let opens = self.0.opens.load(Ordering::Acquire) > 0;
        opens.then(|| Duration::from_nanos(self.0.lateness.load(Ordering::Relaxed)))
    }

    /// The time until its runner must have ended; none before that has begun to run an instance.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let has_begun = self.0.written.load(Ordering::Acquire) > 0;
        has_begun.then(|| self.0.remaining())
    }
}

impl Record {
    fn remaining(&self) -> Duration {
        let Some(deadline) = self.deadline() else { return Duration::ZERO };
        let left = CLOCKS.into_iter().zip(deadline).map(|(clock, at)| at.saturating_sub(nanoseconds_on(clock)));
        Duration::from_nanos(left.min().unwrap_or(0))
    }

    /// Only one may write at a time.
    fn write(&self, deadline: [u64; 3]) {
        let next = self.written.load(Ordering::Relaxed).wrapping_add(1);
        // A reader of any of these writes sees that the deadline before holds since.
        fence(Ordering::Release);
        for (place, at) in self.place_of(next).iter().zip(deadline) {
            place.store(at, Ordering::Relaxed);
        }
        self.written.store(next, Ordering::Release);
    }

    /// The deadline that holds; none before there is one, and once the page is closed.
    fn deadline(&self) -> Option<[u64; 3]> {
        let mut written = self.written.load(Ordering::Acquire);
        loop {
            let read = self.place_of(written).each_ref().map(|at| at.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            // What was read is whole unless the next but one was begun meanwhile.
            let by_now = self.written.load(Ordering::Acquire);
            if by_now == written {
                return (written > 0 && self.closed.load(Ordering::Acquire) == 0).then_some(read);
            }
            written = by_now;
        }
    }

    fn place_of(&self, number: u64) -> &[AtomicU64; 3] {
        let [even, odd] = &self.deadlines;
        if number.is_multiple_of(2) { even } else { odd }
    }
}

/// A gate of this process and its page, for tests.
#[cfg(test)]
pub(super) fn gate_for(remaining: Duration) -> (std::sync::Arc<Gate>, Page) {
    let (page, file) = Page::make().unwrap_or_else(|error| panic!("{error}"));
    page.open_for(|| remaining);
    let gate = Gate::map(&file, &SharedMemory::alone()).unwrap_or_else(|error| panic!("{error}"));
    (std::sync::Arc::new(gate), page)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::sync::atomic::AtomicBool;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn gate() -> (Gate, Page, SharedMemory<Tally>) {
        let (page, file) = Page::make().unwrap();
        let tally = SharedMemory::alone();
        (Gate::map(&file, &tally).unwrap(), page, tally)
    }

    #[test]
    fn it_begins_closed_and_once_closed_it_never_opens_again() {
        let (gate, page, tally) = gate();
        assert_eq!((gate.check(), gate.remaining()), (Err(Refused), Duration::ZERO));
        page.open_for(|| HOUR);
        assert_eq!(gate.check(), Ok(()));
        assert!(gate.remaining() > HOUR / 2 && gate.remaining() <= HOUR);
        page.close();
        page.open_for(|| HOUR);
        assert_eq!((gate.check(), gate.remaining()), (Err(Refused), Duration::ZERO));
        assert!(tally.refused());
    }

    #[test]
    fn whichever_clock_is_late_closes_it() {
        for (late, clock) in CLOCKS.into_iter().enumerate() {
            let (gate, page, _) = gate();
            page.open_for(|| HOUR);
            page.record.place_of(1)[late].store(nanoseconds_on(clock), Ordering::Relaxed);
            assert_eq!(gate.check(), Err(Refused), "{clock:?}");
        }
    }

    /// A host that is put aside, stopped or ended in the middle of it.
    #[test]
    fn while_a_deadline_is_being_written_the_one_before_holds() {
        let (gate, page, _) = gate();
        page.record.place_of(1).iter().for_each(|at| at.store(u64::MAX, Ordering::Relaxed));
        assert_eq!(gate.check(), Err(Refused), "the first is not written yet");
        page.open_for(|| HOUR);
        page.record.place_of(2)[0].store(1, Ordering::Relaxed);
        assert_eq!(gate.check(), Ok(()));
    }

    #[test]
    fn a_host_that_is_stopped_while_it_writes_lets_nothing_leave_for_longer_and_asks_again() {
        let (gate, page, _) = gate();
        let (deadline, asked) = (nanoseconds_on(CLOCKS[0]) + HOUR.as_nanos() as u64, AtomicU64::new(0));
        page.open_for(|| {
            if asked.fetch_add(1, Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_nanos(AT_ONCE * 20));
            }
            Duration::from_nanos(deadline - nanoseconds_on(CLOCKS[0]))
        });
        assert!(asked.into_inner() > 1);
        assert!(gate.record.deadline().unwrap()[0] <= deadline);
        // One that is stopped each time has to do with less.
        page.open_for(|| {
            std::thread::sleep(Duration::from_nanos(AT_ONCE));
            Duration::from_nanos(deadline - nanoseconds_on(CLOCKS[0]))
        });
        assert!(gate.record.deadline().unwrap()[0] <= deadline - AT_ONCE);
    }

    #[test]
    fn what_is_closed_while_it_is_opened_stays_closed() {
        let (gate, page, _) = gate();
        page.open_for(|| {
            page.close();
            HOUR
        });
        assert_eq!(gate.check(), Err(Refused));
    }

    #[test]
    fn who_watches_is_told_before_the_first_deadline_and_waits_for_it() {
        let (page, file) = Page::make().unwrap();
        let (doorbell, lateness) = (Doorbell::new().unwrap(), Duration::from_secs(1));
        let page = page.watched(doorbell.clone(), lateness);
        let watched = Watched::map(&file).unwrap();
        assert_eq!((watched.remaining(), watched.lateness(), doorbell.has_rung()), (None, None, false));
        page.open_for(|| {
            assert_eq!((watched.remaining(), watched.lateness()), (None, Some(lateness)));
            assert!(doorbell.has_rung());
            HOUR
        });
        assert!(watched.remaining().unwrap() > HOUR / 2);
        // Once is enough: who waits for a deadline looks at it then.
        page.open_for(|| HOUR);
        assert!(!doorbell.has_rung());
        page.close();
        assert_eq!(watched.remaining(), Some(Duration::ZERO));
    }

    #[test]
    fn who_watches_is_told_once_of_one_that_is_about_to_be_opened_and_again_after_that_was_taken_back() {
        let (page, file) = Page::make().unwrap();
        let doorbell = Doorbell::new().unwrap();
        let page = page.watched(doorbell.clone(), Duration::from_secs(1));
        let watched = Watched::map(&file).unwrap();
        page.announce();
        page.announce();
        assert!(doorbell.has_rung() && watched.lateness().is_some());
        page.withdraw();
        assert_eq!((watched.lateness(), doorbell.has_rung()), (None, false));
        page.announce();
        assert!(doorbell.has_rung() && watched.lateness().is_some());
        page.open_for(|| HOUR);
        assert!(!doorbell.has_rung(), "it looks by itself since it was told");
        page.withdraw();
        assert!(watched.lateness().is_some() && watched.remaining().unwrap() > HOUR / 2, "it is open");
    }

    #[test]
    fn a_reader_sees_whole_deadlines_and_always_one() {
        let (gate, page, _) = gate();
        let (ended, seen) = (AtomicBool::new(false), AtomicU64::new(0));
        page.record.write([0; 3]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // At least as many as it takes until some were read meanwhile.
                for n in 1.. {
                    page.record.write([n; 3]);
                    if n > 200_000 && seen.load(Ordering::Relaxed) > 1_000 {
                        break;
                    }
                }
                ended.store(true, Ordering::Relaxed);
            });
            let mut last = 0;
            while !ended.load(Ordering::Relaxed) {
                let [a, b, c] = gate.record.deadline().unwrap();
                assert!(a == b && b == c && a >= last, "{a} {b} {c} after {last}");
                seen.fetch_add(u64::from(a > last), Ordering::Relaxed);
                last = a;
            }
        });
    }
}
