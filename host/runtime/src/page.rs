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
}

// SAFETY: atomic numbers, and less than a page of them.
unsafe impl Sharable for Record {}

/// The page of a runner, as its host writes it.
pub(super) struct Page {
    record: SharedMemory<Record>,
    /// Held by the thread that writes.
    writing: Mutex<()>,
}

impl Page {
    /// A page by which nothing may leave yet, and the file by which a runner maps it.
    ///
    /// # Errors
    /// Where the system has no more memory files.
    pub(super) fn make() -> io::Result<(Self, OwnedFd)> {
        let (record, file) = SharedMemory::<Record>::make("baton-page", Others::Read)?;
        Ok((Self { record, writing: Mutex::new(()) }, file))
    }

    /// Lets effects leave for as long as `remaining` says. The clocks are read before it is asked: a host that is stopped
    /// in between lets them leave for less, and never for more. Unless that is so each time, it asks again, so that less is
    /// next to nothing.
    pub(super) fn open_for(&self, remaining: impl Fn() -> Duration) {
        let _writing = self.lock();
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

    /// The time until effects are refused; zero before the host has written the first deadline.
    pub(super) fn remaining(&self) -> Duration {
        self.record.remaining()
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
    fn gate_is_open_from_the_first_deadline_until_the_page_is_closed() {
        let (gate, page, _) = gate();
        assert_eq!(gate.remaining(), Duration::ZERO);
        page.open_for(|| HOUR);
        assert!(gate.remaining() > HOUR / 2);
        page.close();
        assert_eq!(gate.remaining(), Duration::ZERO);
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
