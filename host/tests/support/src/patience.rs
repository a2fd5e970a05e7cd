//! Timeouts that adapt to a busy machine.
//!
//! No test knows how fast its machine is, or what else the machine runs. A wait therefore fails only after one minute
//! ([`QUIET`]) of counted time:
//!
//! - Time in which a thread of the test or of its descendants waits for a CPU does not count.
//! - If a child process of the test has started a compiler or a build, each progress of the compiler or the build
//!   restarts the timeout.
//!
//! A test that waits for many events in a row calls [`Patience::renew`] after each event.

#![allow(clippy::disallowed_methods, reason = "a guard against hangs need not count suspends")]
#![allow(dead_code, reason = "several test targets share the support modules")]

use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The default limit of a wait.
pub const QUIET: Duration = Duration::from_secs(60);

/// Minimum interval between two readings of threads and processes. Tests must call [`Patience::lasts`] at least this
/// often.
pub const LOOK: Duration = Duration::from_secs(1);

/// The timeout of one wait.
#[derive(Clone, Copy)]
pub struct Patience {
    limit: Duration,
    since: Meter,
}

/// The error returned when a wait times out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InVain;

impl Default for Patience {
    fn default() -> Self {
        Self::of(QUIET)
    }
}

impl Patience {
    /// A timeout of `limit`.
    pub fn of(limit: Duration) -> Self {
        Self { limit, since: Meter::read() }
    }

    /// Restarts the timeout. Call this after progress.
    pub fn renew(&mut self) {
        self.since = Meter::read();
    }

    /// Returns false once the wait has timed out.
    pub fn lasts(&mut self) -> bool {
        let now = Meter::read();
        if now.build_ticks > self.since.build_ticks {
            self.since = now;
        }
        now.available - self.since.available < self.limit
    }

    /// Calls `check` every `interval` until it returns a value.
    ///
    /// # Errors
    /// [`InVain`] if the wait times out.
    pub fn poll<T>(interval: Duration, mut check: impl FnMut() -> Option<T>) -> Result<T, InVain> {
        let mut patience = Self::default();
        loop {
            if let Some(value) = check() {
                return Ok(value);
            }
            if !patience.lasts() {
                return Err(InVain);
            }
            std::thread::sleep(interval);
        }
    }

    /// Waits until a future completes.
    ///
    /// # Errors
    /// [`InVain`] if the wait times out.
    pub async fn of_future<F: Future>(future: F) -> Result<F::Output, InVain> {
        let (mut future, mut patience) = (pin!(future), Self::default());
        loop {
            if let Ok(output) = tokio::time::timeout(LOOK, &mut future).await {
                return Ok(output);
            }
            if !patience.lasts() {
                return Err(InVain);
            }
        }
    }
}

/// The time that counts toward timeouts, and the progress of builds, since this process took its first reading.
#[derive(Clone, Copy, Default)]
struct Meter {
    /// Elapsed time without the waits for a CPU. For each interval between two readings, the longest wait of any thread
    /// is subtracted.
    available: Duration,
    /// CPU time of compilers and builds, in the kernel's clock ticks. These processes exit by themselves, or when they
    /// exceed their host's limits. Hosts and emulators never exit by themselves, so their CPU time is not included.
    build_ticks: u64,
}

impl Meter {
    fn read() -> Self {
        static LAST: Mutex<Option<Reading>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let reading = match last.take() {
            Some(reading) if reading.at.elapsed() < LOOK => reading,
            previous => Reading::now(previous),
        };
        let meter = reading.meter;
        *last = Some(reading);
        meter
    }
}

struct Reading {
    at: Instant,
    meter: Meter,
    /// Time that each thread of this process and its descendants has waited for a CPU since the thread's start.
    waited: HashMap<u32, Duration>,
    /// CPU time of each builder since its start, in ticks.
    ticks: HashMap<u32, u64>,
}

impl Reading {
    fn now(previous: Option<Self>) -> Self {
        let at = Instant::now();
        let (mut waited, mut ticks) = (HashMap::new(), HashMap::new());
        for process in own_processes() {
            for thread in numeric_entries(&format!("/proc/{}/task", process.id)) {
                if let Some(time) = waited_for_cpu(process.id, thread) {
                    waited.insert(thread, time);
                }
            }
            if process.is_builder {
                ticks.insert(process.id, process.ticks);
            }
        }
        let Some(previous) = previous else {
            return Self { at, meter: Meter::default(), waited, ticks };
        };
        // These threads may wait for one another, so the longest wait for a CPU delays them all.
        let delays =
            waited.iter().map(|(id, &time)| time.saturating_sub(previous.waited.get(id).copied().unwrap_or_default()));
        let delay = delays.max().unwrap_or_default();
        let new_ticks =
            ticks.iter().map(|(id, &ticks)| ticks.saturating_sub(previous.ticks.get(id).copied().unwrap_or(0)));
        let meter = Meter {
            available: previous.meter.available + (at - previous.at).saturating_sub(delay),
            build_ticks: previous.meter.build_ticks + new_ticks.sum::<u64>(),
        };
        Self { at, meter, waited, ticks }
    }
}

struct Process {
    id: u32,
    /// True if the process exits by itself and is neither this process nor one of its direct children.
    is_builder: bool,
    ticks: u64,
}

/// Name prefixes of processes that do not exit by themselves: hosts and browsers. A leader's runner constantly uses CPU
/// time. If the runner counted as a builder, no wait would time out.
const NEVER_DONE: [&str; 2] = ["baton", "chrom"];

/// Returns this process and all of its descendants.
fn own_processes() -> Vec<Process> {
    let mut children: HashMap<u32, Vec<(u32, u64, bool)>> = HashMap::new();
    for id in numeric_entries("/proc") {
        if let Some((parent, ticks, exits)) = stat(id) {
            children.entry(parent).or_default().push((id, ticks, exits));
        }
    }
    let own = std::process::id();
    let mut found = vec![(Process { id: own, is_builder: false, ticks: 0 }, 0)];
    let mut next = 0;
    while next < found.len() {
        let (id, depth) = (found[next].0.id, found[next].1 + 1);
        for (id, ticks, exits) in children.remove(&id).unwrap_or_default() {
            found.push((Process { id, is_builder: depth > 1 && exits, ticks }, depth));
        }
        next += 1;
    }
    found.into_iter().map(|(process, _)| process).collect()
}

/// Returns a process's parent, the CPU time of the process and its reaped children (in ticks), and true if the process
/// exits by itself.
fn stat(id: u32) -> Option<(u32, u64, bool)> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once('(')?;
    let fields: Vec<&str> = after.split(' ').collect();
    let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Some((fields.get(1)?.parse().ok()?, ticks, !NEVER_DONE.iter().any(|start| name.starts_with(start))))
}

/// Time that a thread has waited for a CPU since its start. `None` if the kernel does not report this time; the waits
/// of the thread then count toward the timeout.
fn waited_for_cpu(process: u32, thread: u32) -> Option<Duration> {
    let schedstat = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

fn numeric_entries(folder: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
