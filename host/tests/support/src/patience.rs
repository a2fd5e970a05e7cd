//! How long a test waits: for as long as something moves.
//!
//! No test knows how fast its machine is, or what else keeps that busy. So a wait does not count the time that
//! passes but the time that was there for what it waits for: none while one of this test's threads or processes stands
//! in line for a processor, and none while a compiler or a build that its hosts have started gets on. When nothing has
//! come of a whole minute of that, the wait is given up.
//!
//! A test that waits for many things in a row says so with each one, by [`Patience::renew`].

#![allow(clippy::disallowed_methods, reason = "a guard against hangs need not count suspends")]
#![allow(dead_code, reason = "the support modules serve several test targets")]

use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How much time may be there in which nothing moves.
pub const QUIET: Duration = Duration::from_secs(60);

/// How often the threads and processes are looked at. A test that waits asks no less often.
pub const LOOK: Duration = Duration::from_secs(1);

/// The patience of one wait.
#[derive(Clone, Copy)]
pub struct Patience {
    limit: Duration,
    since: Meter,
}

/// What a wait that was in vain returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InVain;

impl Default for Patience {
    /// One that lasts for [`QUIET`].
    fn default() -> Self {
        Self::of(QUIET)
    }
}

impl Patience {
    /// One that lasts for so much time in which nothing moves.
    pub fn of(limit: Duration) -> Self {
        Self { limit, since: Meter::read() }
    }

    /// What is waited for has come nearer.
    pub fn renew(&mut self) {
        self.since = Meter::read();
    }

    /// Whether it is too early to give up.
    pub fn lasts(&mut self) -> bool {
        let now = Meter::read();
        if now.built > self.since.built {
            self.since = now;
        }
        now.had - self.since.had < self.limit
    }

    /// Looks again and again until there is something to return.
    ///
    /// # Errors
    /// [`InVain`] after so long in which nothing has moved.
    pub fn poll<T>(every: Duration, mut look: impl FnMut() -> Option<T>) -> Result<T, InVain> {
        let mut patience = Self::default();
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if !patience.lasts() {
                return Err(InVain);
            }
            std::thread::sleep(every);
        }
    }

    /// Waits for a future's end.
    ///
    /// # Errors
    /// [`InVain`] after so long in which nothing has moved.
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

/// What has moved so far, since this process began to look.
#[derive(Clone, Copy, Default)]
struct Meter {
    /// The time in which none of our threads had to wait for a processor.
    had: Duration,
    /// The processor time of compilers and builds, in the kernel's ticks: what hosts start ends by itself, or by its
    /// host's limits. A host itself, and an emulator, are never done.
    built: u64,
}

impl Meter {
    fn read() -> Self {
        static LAST: Mutex<Option<Looked>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let looked = match last.take() {
            Some(looked) if looked.at.elapsed() < LOOK => looked,
            before => Looked::now(before),
        };
        let meter = looked.meter;
        *last = Some(looked);
        meter
    }
}

struct Looked {
    at: Instant,
    meter: Meter,
    /// How long each of our threads has waited for a processor in its life.
    waited: HashMap<u32, Duration>,
    /// How much processor time each of the builders has had.
    built: HashMap<u32, u64>,
}

impl Looked {
    fn now(before: Option<Self>) -> Self {
        let at = Instant::now();
        let (mut waited, mut built) = (HashMap::new(), HashMap::new());
        for process in ours() {
            for thread in numbers(&format!("/proc/{}/task", process.id)) {
                if let Some(time) = has_waited(process.id, thread) {
                    waited.insert(thread, time);
                }
            }
            if process.is_builder {
                built.insert(process.id, process.ticks);
            }
        }
        let Some(before) = before else {
            return Self { at, meter: Meter::default(), waited, built };
        };
        // Threads that wait for one another wait for the one that stands in line the longest.
        let in_line =
            waited.iter().map(|(id, &time)| time.saturating_sub(before.waited.get(id).copied().unwrap_or_default()));
        let in_line = in_line.max().unwrap_or_default();
        let new_ticks =
            built.iter().map(|(id, &ticks)| ticks.saturating_sub(before.built.get(id).copied().unwrap_or(0)));
        let meter = Meter {
            had: before.meter.had + (at - before.at).saturating_sub(in_line),
            built: before.meter.built + new_ticks.sum::<u64>(),
        };
        Self { at, meter, waited, built }
    }
}

struct Process {
    id: u32,
    /// Neither this process nor one that it has started itself, but one that those have started, and that ends by itself.
    is_builder: bool,
    ticks: u64,
}

/// How the processes are called that run for as long as who started them: a host's own and a browser's. A leader's runner
/// always gets on, and a wait that such a process renewed would have no end.
const NEVER_DONE: [&str; 2] = ["baton", "chrom"];

/// This process, all that it has started, and all that those have started.
fn ours() -> Vec<Process> {
    let mut children: HashMap<u32, Vec<(u32, u64, bool)>> = HashMap::new();
    for id in numbers("/proc") {
        if let Some((parent, ticks, ends)) = stat(id) {
            children.entry(parent).or_default().push((id, ticks, ends));
        }
    }
    let own = std::process::id();
    let mut found = vec![(Process { id: own, is_builder: false, ticks: 0 }, 0)];
    let mut next = 0;
    while next < found.len() {
        let (id, depth) = (found[next].0.id, found[next].1 + 1);
        for (id, ticks, ends) in children.remove(&id).unwrap_or_default() {
            found.push((Process { id, is_builder: depth > 1 && ends, ticks }, depth));
        }
        next += 1;
    }
    found.into_iter().map(|(process, _)| process).collect()
}

/// The parent of a process, how much processor time it has had, with that of the children that it has outlived, and whether
/// it ends by itself.
fn stat(id: u32) -> Option<(u32, u64, bool)> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once('(')?;
    let fields: Vec<&str> = after.split(' ').collect();
    let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Some((fields.get(1)?.parse().ok()?, ticks, !NEVER_DONE.iter().any(|start| name.starts_with(start))))
}

/// How long a thread has waited for a processor so far. None where the kernel does not say: then all time counts.
fn has_waited(process: u32, thread: u32) -> Option<Duration> {
    let said = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat")).ok()?;
    said.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

fn numbers(folder: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
