//! The page and the gate. The page is shared memory in which the host publishes the deadline. The gate is the check of
//! the deadline in the runner.
//!
//! A deadline consists of an absolute time on each of three kernel clocks, since no single clock is trusted
//! ([`Clock`](baton_base::clock::Clock)). The times are absolute because a new process does not know how far each clock
//! has advanced since a point in the past. The deadline has passed as soon as any clock has passed its time, whatever
//! the other clocks show.
//!
//! The page holds two deadlines and a count that selects the current one. The host writes the other deadline completely
//! before it increments the count. If the host is preempted, stopped or killed in the middle of a write, the previous
//! deadline stays current. So an interrupted write alone does not make the gate refuse effects, and does not end a
//! runner. The kernel calls this a sequence latch (`seqcount_latch_t`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::ClockId;

use crate::wire::limits::{EffectKind, Tally};
use crate::wire::shared::{Mapped, Others, Sharable, SharedMemory};
use baton_base::clock::nanoseconds_on;
use baton_base::gate::Refused;

const CLOCKS: [ClockId; 3] = [ClockId::Boottime, ClockId::MonotonicRaw, ClockId::Realtime];

/// Maximum time for reading the clocks and the remaining time (ns). If a reading takes longer, assume that the thread
/// was preempted and read again, up to `TRIES` times in total.
const PREEMPTED_AFTER: u64 = 1_000_000;
const TRIES: usize = 4;

/// The content of the page. While it is all zeros, all effects are refused.
#[repr(C)]
struct PageContent {
    /// Number of deadlines written. The number's parity selects the slot that holds the last deadline. The next
    /// deadline goes to the other slot.
    written: AtomicU64,
    /// Two deadlines, each with a time (ns) for every clock of [`CLOCKS`].
    deadlines: [[AtomicU64; 3]; 2],
    /// Nonzero once the page is permanently closed.
    closed: AtomicU64,
}

// SAFETY: the struct consists of atomic integers, and is smaller than a page.
unsafe impl Sharable for PageContent {}

/// The host's side of a runner's page.
pub(crate) struct Page {
    record: SharedMemory<PageContent>,
    writing: Mutex<()>,
}

impl Page {
    /// Creates a page that still refuses all effects. Also returns the file from which a runner maps the page.
    pub(crate) fn make() -> io::Result<(Self, OwnedFd)> {
        let (record, file) = SharedMemory::<PageContent>::make("baton-page", Others::Read)?;
        Ok((Self { record, writing: Mutex::new(()) }, file))
    }

    /// Lets effects pass for the time that `remaining` returns. This method reads the clocks before it calls
    /// `remaining`. If the host is stopped between the two, the page therefore grants too little time, but never too
    /// much. To keep this loss small, the method repeats readings that took long.
    pub(crate) fn open_for(&self, remaining: impl Fn() -> Duration) {
        let _writing = self.lock();
        let mut deadline = [0; 3];
        for _ in 0..TRIES {
            let now = CLOCKS.map(nanoseconds_on);
            let remaining = u64::try_from(remaining().as_nanos()).unwrap_or(u64::MAX);
            deadline = now.map(|now| now.saturating_add(remaining));
            if nanoseconds_on(CLOCKS[0]).saturating_sub(now[0]) < PREEMPTED_AFTER {
                break;
            }
        }
        self.record.write(deadline);
    }

    /// Permanently refuses all effects from now on.
    pub(crate) fn close(&self) {
        self.record.closed.store(1, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The gate in the runner of an instance: open until the deadline in the page passes or the host closes the page.
pub(crate) struct RunnerGate {
    record: SharedMemory<PageContent>,
    tally: SharedMemory<Tally>,
}

impl RunnerGate {
    /// Maps the page in this file. The gate counts effects in `tally`.
    pub(crate) fn map(page: impl AsFd, tally: &SharedMemory<Tally>) -> io::Result<Self> {
        Ok(Self { record: SharedMemory::map(page, Mapped::Reads)?, tally: tally.clone() })
    }

    /// Counts one effect, and lets it pass if the gate is open.
    pub(crate) fn pass(&self, effect: EffectKind) -> Result<(), Refused> {
        let passed = self.check();
        self.tally.count_effect(effect, passed.is_ok());
        passed
    }

    /// Checks the gate again for an effect that has already passed. Does not count the effect again.
    pub(crate) fn check(&self) -> Result<(), Refused> {
        if self.remaining().is_zero() {
            self.tally.has_refused();
            return Err(Refused);
        }
        Ok(())
    }

    /// Returns the time until effects are refused. Returns zero if the host has not written a deadline yet.
    pub(crate) fn remaining(&self) -> Duration {
        self.record.remaining()
    }
}

impl PageContent {
    fn remaining(&self) -> Duration {
        let Some(deadline) = self.deadline() else { return Duration::ZERO };
        let left = CLOCKS.into_iter().zip(deadline).map(|(clock, at)| at.saturating_sub(nanoseconds_on(clock)));
        Duration::from_nanos(left.min().unwrap_or(0))
    }

    /// Writes the next deadline. The caller must hold [`Page::writing`].
    fn write(&self, deadline: [u64; 3]) {
        let next = self.written.load(Ordering::Relaxed).wrapping_add(1);
        // Pairs with the acquire fence in `deadline`. If a reader sees a value that is stored below, it also sees that
        // the count has changed since it began, and retries.
        fence(Ordering::Release);
        for (place, at) in self.slot_of(next).iter().zip(deadline) {
            place.store(at, Ordering::Relaxed);
        }
        self.written.store(next, Ordering::Release);
    }

    /// Returns the current deadline, or `None` if no deadline has been written yet or the page has been closed.
    fn deadline(&self) -> Option<[u64; 3]> {
        let mut written = self.written.load(Ordering::Acquire);
        loop {
            let read = self.slot_of(written).each_ref().map(|at| at.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            // If the count is unchanged, the deadline was read completely, since the next write uses the other slot.
            let count_now = self.written.load(Ordering::Acquire);
            if count_now == written {
                return (written > 0 && self.closed.load(Ordering::Acquire) == 0).then_some(read);
            }
            written = count_now;
        }
    }

    fn slot_of(&self, number: u64) -> &[AtomicU64; 3] {
        let [even, odd] = &self.deadlines;
        if number.is_multiple_of(2) { even } else { odd }
    }
}

#[cfg(test)]
pub(crate) fn gate_for(remaining: Duration) -> (std::sync::Arc<RunnerGate>, Page) {
    let (page, file) = Page::make().unwrap_or_else(|error| panic!("{error}"));
    page.open_for(|| remaining);
    let gate = RunnerGate::map(&file, &SharedMemory::alone()).unwrap_or_else(|error| panic!("{error}"));
    (std::sync::Arc::new(gate), page)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::sync::atomic::AtomicBool;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn gate() -> (RunnerGate, Page, SharedMemory<Tally>) {
        let (page, file) = Page::make().unwrap();
        let tally = SharedMemory::alone();
        (RunnerGate::map(&file, &tally).unwrap(), page, tally)
    }

    #[test]
    fn gate_starts_closed_and_stays_closed_once_page_is_closed() {
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
    fn gate_closes_when_any_clock_passes_the_deadline() {
        for (late, clock) in CLOCKS.into_iter().enumerate() {
            let (gate, page, _) = gate();
            page.open_for(|| HOUR);
            page.record.slot_of(1)[late].store(nanoseconds_on(clock), Ordering::Relaxed);
            assert_eq!(gate.check(), Err(Refused), "{clock:?}");
        }
    }

    #[test]
    fn previous_deadline_is_valid_while_the_next_is_written() {
        let (gate, page, _) = gate();
        page.record.slot_of(1).iter().for_each(|at| at.store(u64::MAX, Ordering::Relaxed));
        assert_eq!(gate.check(), Err(Refused), "the first is not written yet");
        page.open_for(|| HOUR);
        page.record.slot_of(2)[0].store(1, Ordering::Relaxed);
        assert_eq!(gate.check(), Ok(()));
    }

    #[test]
    fn deadline_is_never_later_when_host_is_stopped_while_writing() {
        let (gate, page, _) = gate();
        let (deadline, asked) = (nanoseconds_on(CLOCKS[0]) + HOUR.as_nanos() as u64, AtomicU64::new(0));
        page.open_for(|| {
            if asked.fetch_add(1, Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_nanos(PREEMPTED_AFTER * 20));
            }
            Duration::from_nanos(deadline - nanoseconds_on(CLOCKS[0]))
        });
        assert!(asked.into_inner() > 1);
        assert!(gate.record.deadline().unwrap()[0] <= deadline);
        // If the host is preempted on every try, the page allows less time than `remaining` returned.
        page.open_for(|| {
            std::thread::sleep(Duration::from_nanos(PREEMPTED_AFTER));
            Duration::from_nanos(deadline - nanoseconds_on(CLOCKS[0]))
        });
        assert!(gate.record.deadline().unwrap()[0] <= deadline - PREEMPTED_AFTER);
    }

    #[test]
    fn page_stays_closed_when_closed_while_it_is_opened() {
        let (gate, page, _) = gate();
        page.open_for(|| {
            page.close();
            HOUR
        });
        assert_eq!(gate.check(), Err(Refused));
    }

    #[test]
    fn gate_is_open_from_first_deadline_until_page_is_closed() {
        let (gate, page, _) = gate();
        assert_eq!(gate.remaining(), Duration::ZERO);
        page.open_for(|| HOUR);
        assert!(gate.remaining() > HOUR / 2);
        page.close();
        assert_eq!(gate.remaining(), Duration::ZERO);
    }

    #[test]
    fn reader_sees_only_whole_deadlines_during_writes() {
        let (gate, page, _) = gate();
        let (ended, seen) = (AtomicBool::new(false), AtomicU64::new(0));
        page.record.write([0; 3]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Write until the reader has seen more than 1,000 different deadlines.
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
