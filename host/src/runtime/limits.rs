//! What an instance may use of the host, and what it does use.
//!
//! Exceeding a limit ends the instance with a message that names the limit and the flag that grants more; coming
//! near one is told once. Lines of output are the exception: what is too much is dropped and counted (`output`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_election::Time;
use serde::Serialize;
use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::ResourceTableError;

use super::output::{Notice, Output};
use crate::clock::Clock;

/// What an instance may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// All linear memories together, in bytes.
    pub memory: u64,
    /// The elements of all tables together.
    pub table_elements: u64,
    /// Core instances, and as many memories and tables: what a component is made of.
    pub instances: u64,
    /// What it holds at a time, of the host (streams, files, timers) and of its own components.
    pub handles: u64,
    /// Lines that it may print or log a second in the long run; twice that after a silence.
    pub output: u32,
}

impl Default for Limits {
    /// Far more than the components that are known to us use.
    fn default() -> Self {
        Self { memory: 256 << 20, table_elements: 1_000_000, instances: 1_000, handles: 10_000, output: 500 }
    }
}

/// What an instance has used, at its peak or in all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Usage {
    /// Of memory, in bytes.
    pub memory: u64,
    /// Of table elements.
    pub table_elements: u64,
    /// Of core instances; of memories or tables where there are more of these.
    pub instances: u64,
    /// Of handles, at the same time.
    pub handles: u64,
    /// Of requests over HTTP, at the same time.
    pub requests: u64,
    /// Lines that it printed or logged.
    pub lines: u64,
    /// Those that were dropped beside them.
    pub dropped: u64,
}

/// It uses much of what it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NearLimit {
    /// Of what.
    pub what: &'static str,
    /// How much it uses.
    pub used: u64,
    /// How much it may use.
    pub limit: u64,
    /// What grants more.
    pub flag: &'static str,
}

/// Counts what one instance uses. Anyone may read it at any time.
#[derive(Debug, Default)]
pub(super) struct Tally {
    memory: AtomicU64,
    table_elements: AtomicU64,
    instances: AtomicU64,
    handles: AtomicU64,
    requests: AtomicU64,
    lines: AtomicU64,
    dropped: AtomicU64,
}

impl Tally {
    pub(super) fn usage(&self) -> Usage {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Usage {
            memory: read(&self.memory),
            table_elements: read(&self.table_elements),
            instances: read(&self.instances),
            handles: read(&self.handles),
            requests: read(&self.requests),
            lines: read(&self.lines),
            dropped: read(&self.dropped),
        }
    }

    pub(super) fn count_line(&self) {
        self.lines.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn has_requests(&self, number: u64) {
        self.requests.fetch_max(number, Ordering::Relaxed);
    }

    pub(super) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Handles are counted this often while the guest runs: nobody tells when there are more.
const COUNT_HANDLES_EVERY: Duration = Duration::from_millis(100);

/// Holds one instance to its limits.
pub(super) struct Meter {
    limits: Limits,
    tally: Arc<Tally>,
    output: Arc<dyn Output>,
    clock: Clock,
    handles_counted: Time,
    /// Of what it was told that much is used.
    told: Vec<&'static str>,
}

impl Meter {
    pub(super) fn new(limits: Limits, tally: &Arc<Tally>, output: &Arc<dyn Output>, clock: &Clock) -> Self {
        Self {
            limits,
            tally: Arc::clone(tally),
            output: Arc::clone(output),
            clock: clock.clone(),
            handles_counted: clock.now(),
            told: Vec::new(),
        }
    }

    /// The memory in use, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.tally.memory.load(Ordering::Relaxed)
    }

    /// It is about to be made of so many core instances, or memories or tables; it gets no further than to the limit.
    pub(super) fn has_instances(&self, number: u64) {
        self.tally.instances.store(number.min(self.limits.instances), Ordering::Relaxed);
    }

    /// A table that holds no more handles than are granted.
    pub(super) fn table(&self) -> ResourceTable {
        let mut table = ResourceTable::new();
        table.set_max_capacity(self.limits.handles());
        table
    }

    /// Looks at the handles from time to time.
    pub(super) fn look_at(&mut self, table: &mut ResourceTable) {
        let now = self.clock.now();
        if now.since(self.handles_counted) >= COUNT_HANDLES_EVERY {
            self.handles_counted = now;
            let handles = table.iter_mut().count() as u64;
            self.tally.handles.fetch_max(handles, Ordering::Relaxed);
            self.near("handles", handles, self.limits.handles, "--max-handles");
        }
    }

    /// Finds the peak of the handles when no more come: a table never gives back the places that it once had, and
    /// takes no more than those if it may have none.
    pub(super) fn finish(&self, table: &mut ResourceTable) {
        let held = table.iter_mut().count() as u64;
        table.set_max_capacity(0);
        let free = std::iter::repeat_with(|| table.push(())).take_while(Result::is_ok).count() as u64;
        self.tally.handles.fetch_max(held + free, Ordering::Relaxed);
    }

    /// Tells once that 80% of something is used.
    fn near(&mut self, what: &'static str, used: u64, limit: u64, flag: &'static str) {
        if used.saturating_mul(5) >= limit.saturating_mul(4) && used > 0 && !self.told.contains(&what) {
            self.told.push(what);
            self.output.notice(Notice::NearLimit(NearLimit { what, used, limit, flag }));
        }
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let limit = self.limits.memory;
        let wanted = self.tally.memory.load(Ordering::Relaxed).saturating_add(desired.saturating_sub(current) as u64);
        if wanted > limit {
            wasmtime::bail!(
                "it needs more memory than it was granted: {} MiB of {} MiB; --max-memory grants more",
                wanted.div_ceil(1 << 20),
                limit >> 20
            );
        }
        self.tally.memory.store(wanted, Ordering::Relaxed);
        self.near("memory", wanted, limit, "--max-memory");
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let limit = self.limits.table_elements;
        let grown = desired.saturating_sub(current) as u64;
        let wanted = self.tally.table_elements.load(Ordering::Relaxed).saturating_add(grown);
        if wanted > limit {
            wasmtime::bail!(
                "it needs more table elements than it was granted: {wanted} of {limit}; --max-table-elements grants more"
            );
        }
        self.tally.table_elements.store(wanted, Ordering::Relaxed);
        self.near("table elements", wanted, limit, "--max-table-elements");
        Ok(true)
    }

    fn instances(&self) -> usize {
        saturated(self.limits.instances)
    }

    fn tables(&self) -> usize {
        saturated(self.limits.instances)
    }

    fn memories(&self) -> usize {
        saturated(self.limits.instances)
    }
}

impl Limits {
    /// What an error of wasmtime's means where one of these limits led to it, and what grants more.
    pub(super) fn explain(&self, error: &wasmtime::Error) -> Option<String> {
        if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) {
            return Some(self.too_many_handles());
        }
        let cause = error.root_cause().to_string();
        if cause.contains("handle limit exceeded") {
            return Some(self.too_many_handles());
        }
        let count = cause.strip_prefix("resource limit exceeded: ")?;
        let limit = self.instances;
        Some(format!(
            "it needs more core instances, memories or tables than it was granted: {count} of {limit}; --max-instances \
             grants more"
        ))
    }
}

impl Limits {
    /// The limit on handles, for those who count in this type.
    pub(super) fn handles(&self) -> usize {
        saturated(self.handles)
    }

    fn too_many_handles(&self) -> String {
        format!("it needs more handles than it was granted: {}; --max-handles grants more", self.handles)
    }
}

fn saturated(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
