//! The page: until when effects may leave a runner, as the host says it and the runner reads it.
//!
//! The host writes absolute times, one for each of the kernel's clocks that it does not believe alone
//! ([`Clock`](crate::clock::Clock)), since a process that has just begun has not seen how they moved before. Whoever
//! reads one of them late is past the deadline, whatever the others say. What stands there is one record: the writer
//! counts up before and after it writes, and a reader that does not see a whole one takes it for a closed gate
//! (a sequence lock; Lameter, "Effective Synchronization on Linux/NUMA Systems", 2005).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::time::ClockId;

use super::limits::Tally;
use super::shared::{Access, Others, Sharable, Shared};
use crate::clock::nanoseconds_on;
use crate::gate::Refused;

/// A reader looks so often for a whole record.
const TRIES: usize = 100;

/// The clocks by which a deadline is told.
const CLOCKS: [ClockId; 3] = [ClockId::Boottime, ClockId::MonotonicRaw, ClockId::Realtime];

/// What stands in the page. As it begins, nothing may leave.
#[repr(C)]
struct Record {
    /// Odd while the rest is being written.
    sequence: AtomicU64,
    /// The deadline by each of [`CLOCKS`], in nanoseconds.
    deadline: [AtomicU64; 3],
    /// Not 0 once it is closed for good.
    closed: AtomicU64,
    /// How late who watches it may see that it was opened or closed, in nanoseconds.
    lateness: AtomicU64,
}

// SAFETY: atomic numbers, and less than a page of them.
unsafe impl Sharable for Record {}

/// The page of a runner, as its host writes it.
pub(super) struct Page {
    record: Shared<Record>,
    /// Held by whoever writes.
    writing: Mutex<()>,
}

impl Page {
    /// A page by which nothing may leave yet, and the file by which a runner maps it. Who watches it may see so late that
    /// it was opened or closed.
    ///
    /// # Errors
    /// Where the system has no more memory files.
    pub(super) fn make(lateness: Duration) -> io::Result<(Self, OwnedFd)> {
        let (record, file) = Shared::<Record>::make("baton-page", Others::Read)?;
        record.lateness.store(u64::try_from(lateness.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        Ok((Self { record, writing: Mutex::new(()) }, file))
    }

    /// Lets effects leave for so long from now on.
    pub(super) fn open_for(&self, remaining: Duration) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let Record { sequence, deadline, .. } = &*self.record;
        let before = sequence.load(Ordering::Relaxed);
        sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (clock, deadline) in CLOCKS.into_iter().zip(deadline) {
            let at = nanoseconds_on(clock).saturating_add(u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX));
            deadline.store(at, Ordering::Relaxed);
        }
        sequence.store(before.wrapping_add(2), Ordering::Release);
    }

    /// Lets nothing leave from now on, and never again.
    pub(super) fn close(&self) {
        self.record.closed.store(1, Ordering::Release);
    }
}

/// The gate of an instance in its runner: open until the deadline that the host has written, or until that closes it.
pub(super) struct Gate {
    record: Shared<Record>,
    tally: Shared<Tally>,
}

impl Gate {
    /// By the page in this file. What it refuses, the tally says.
    ///
    /// # Errors
    /// Where it cannot be mapped.
    pub(super) fn map(page: impl AsFd, tally: &Shared<Tally>) -> io::Result<Self> {
        Ok(Self { record: Shared::map(page, Access::Reads)?, tally: tally.clone() })
    }

    /// Lets one effect pass, by the clocks as they are now.
    ///
    /// # Errors
    /// [`Refused`] from the deadline on, and once it is closed.
    pub(super) fn pass(&self) -> Result<(), Refused> {
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
pub(super) struct Watched(Shared<Record>);

impl Watched {
    /// By the page in this file.
    ///
    /// # Errors
    /// Where it cannot be mapped.
    pub(super) fn map(page: impl AsFd) -> io::Result<Self> {
        Shared::map(page, Access::Reads).map(Self)
    }

    /// How late its opening and closing may be seen.
    pub(super) fn lateness(&self) -> Duration {
        Duration::from_nanos(self.0.lateness.load(Ordering::Relaxed))
    }

    /// The time until its runner must have ended; none before that has begun to run an instance.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let has_begun = self.0.sequence.load(Ordering::Acquire) > 0;
        has_begun.then(|| self.0.remaining())
    }
}

impl Record {
    fn remaining(&self) -> Duration {
        let Some(deadline) = self.deadline() else { return Duration::ZERO };
        let left = CLOCKS.into_iter().zip(deadline).map(|(clock, at)| at.saturating_sub(nanoseconds_on(clock)));
        Duration::from_nanos(left.min().unwrap_or(0))
    }

    /// A whole record's deadlines; none while it is closed, or if no whole one is to be had.
    fn deadline(&self) -> Option<[u64; 3]> {
        let Self { sequence, deadline, closed, .. } = self;
        (0..TRIES)
            .find_map(|_| {
                let before = sequence.load(Ordering::Acquire);
                let read = deadline.each_ref().map(|at| at.load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                let is_whole = before.is_multiple_of(2) && sequence.load(Ordering::Relaxed) == before;
                is_whole.then_some(read)
            })
            .filter(|_| closed.load(Ordering::Acquire) == 0)
    }
}

/// A gate of this process and its page, for tests.
#[cfg(test)]
pub(super) fn gate_for(remaining: Duration) -> (std::sync::Arc<Gate>, Page) {
    let (page, file) = Page::make(Duration::ZERO).unwrap_or_else(|error| panic!("{error}"));
    page.open_for(remaining);
    let gate = Gate::map(&file, &Shared::alone()).unwrap_or_else(|error| panic!("{error}"));
    (std::sync::Arc::new(gate), page)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::sync::atomic::AtomicBool;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn gate() -> (Gate, Page, Shared<Tally>) {
        let (page, file) = Page::make(Duration::ZERO).unwrap();
        let tally = Shared::alone();
        (Gate::map(&file, &tally).unwrap(), page, tally)
    }

    #[test]
    fn it_begins_closed_and_once_closed_it_never_opens_again() {
        let (gate, page, tally) = gate();
        assert_eq!((gate.pass(), gate.remaining()), (Err(Refused), Duration::ZERO));
        page.open_for(HOUR);
        assert_eq!(gate.pass(), Ok(()));
        assert!(gate.remaining() > HOUR / 2 && gate.remaining() <= HOUR);
        page.close();
        page.open_for(HOUR);
        assert_eq!((gate.pass(), gate.remaining()), (Err(Refused), Duration::ZERO));
        assert!(tally.refused());
    }

    #[test]
    fn whichever_clock_is_late_closes_it() {
        for (late, clock) in CLOCKS.into_iter().enumerate() {
            let (gate, page, _) = gate();
            page.open_for(HOUR);
            page.record.deadline[late].store(nanoseconds_on(clock), Ordering::Relaxed);
            assert_eq!(gate.pass(), Err(Refused), "{clock:?}");
        }
    }

    #[test]
    fn half_a_record_lets_nothing_pass() {
        let (gate, page, _) = gate();
        page.open_for(HOUR);
        // A host that was ended, or stopped, in the middle of it.
        page.record.sequence.fetch_add(1, Ordering::Relaxed);
        assert_eq!(gate.pass(), Err(Refused));
        page.record.sequence.fetch_add(1, Ordering::Relaxed);
        assert_eq!(gate.pass(), Ok(()));
    }

    #[test]
    fn a_reader_never_sees_parts_of_two_records() {
        let (gate, page, _) = gate();
        let ended = AtomicBool::new(false);
        let step = |n: u64| {
            let Record { sequence, deadline, .. } = &*page.record;
            let before = sequence.load(Ordering::Relaxed);
            sequence.store(before + 1, Ordering::Relaxed);
            fence(Ordering::Release);
            deadline.iter().for_each(|at| at.store(n, Ordering::Relaxed));
            sequence.store(before + 2, Ordering::Release);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..200_000).for_each(step);
                ended.store(true, Ordering::Relaxed);
            });
            while !ended.load(Ordering::Relaxed) {
                if let Some([a, b, c]) = gate.record.deadline() {
                    assert!(a == b && b == c, "{a} {b} {c}");
                }
            }
        });
    }
}
