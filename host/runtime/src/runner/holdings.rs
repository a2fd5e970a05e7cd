//! The resources of one instance and their limits: its own memory and tables, its handles, its open files, and the
//! memory that the runner keeps for handles and files.
//!
//! The memory for handles and files cannot be measured directly. Instead, each call that leaves data in the runner adds
//! an upper bound on the size of the data to a sum. If the sum exceeds the limit, the actual size is computed
//! ([`weight`]). So the sum is exact near the limit, and costs almost nothing otherwise. For tiny handles, only their
//! number is limited.

use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use baton_election::Time;
use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;

use crate::runner::weight::{self, BUFFER};
use crate::wire::limits::{LimitKind, Limits, NearLimit, Tally, saturated};
use crate::wire::output::{Notice, Output};
use crate::wire::shared::SharedMemory;
use baton_base::clock::Clock;

const COUNT_HANDLES_EVERY: Duration = Duration::from_millis(100);

/// Number of calls to [`Holdings::table`] per reading of the clock. Reading the clock on every call would be slow.
const LOOK_EVERY: u32 = 64;

/// Maximum memory (bytes) that the runner may keep for an instance's handles and files. If the instance uses less than
/// its memory limit, the runner may also keep the difference.
const KEPT: u64 = 16 << 20;

pub(crate) struct Holdings {
    pub(crate) table: ResourceTable,
    limits: Limits,
    tally: SharedMemory<Tally>,
    output: Arc<dyn Output>,
    clock: Clock,
    handles_counted: Time,
    /// Number of calls to [`Self::table`] since the clock was last read.
    asked: u32,
    /// Upper bound on the memory that the runner keeps for the instance (bytes).
    kept: u64,
    /// The files that the instance has opened. Some may have been closed since.
    files: Vec<Weak<dyn Any + Send + Sync>>,
    /// A token that is cloned for each buffer whose size cannot be measured. The token's reference count shows how many
    /// of these buffers exist.
    buffers: Arc<()>,
    /// The limits that [`Self::near`] has already reported.
    told: Vec<LimitKind>,
    refused: Vec<&'static str>,
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("the coordinator asked for {what}, which it has not been granted: {remedy}")]
pub(crate) struct TooMuch {
    what: String,
    remedy: String,
}

impl Holdings {
    pub(crate) fn new(limits: Limits, tally: &SharedMemory<Tally>, output: &Arc<dyn Output>, clock: &Clock) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits.handles());
        Self {
            table,
            limits,
            tally: tally.clone(),
            output: Arc::clone(output),
            clock: clock.clone(),
            handles_counted: clock.now(),
            asked: 0,
            kept: 0,
            files: Vec::new(),
            buffers: Arc::default(),
            told: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Returns the table of the instance's handles. Wasmtime does not report new handles, so this method also counts
    /// the handles from time to time.
    pub(crate) fn table(&mut self) -> &mut ResourceTable {
        self.asked += 1;
        if self.asked >= LOOK_EVERY {
            self.asked = 0;
            self.look();
        }
        &mut self.table
    }

    /// Returns the size of the instance's own memory (bytes).
    pub(crate) fn memory(&self) -> u64 {
        self.tally.memory.load(Ordering::Relaxed)
    }

    /// Records how many core instances, memories or tables the instance is about to have. Caps the number at the limit.
    pub(crate) fn has_instances(&self, number: u64) {
        self.tally.instances.store(number.min(self.limits.instances), Ordering::Relaxed);
    }

    /// Reserves `bytes` of the runner's memory, for a call that leaves at most this much data in the runner.
    ///
    /// # Errors
    /// [`TooMuch`] if the reservation would exceed the limit. In this case, nothing is reserved. Only the first such
    /// error is reported to the host.
    pub(crate) fn keep(&mut self, bytes: usize) -> Result<(), TooMuch> {
        if self.has_room(bytes as u64, self.memory()) {
            self.kept = self.kept.saturating_add(bytes as u64);
            return Ok(());
        }
        let (memory, may_be) = (self.limits.memory, self.may_keep(self.memory()));
        Err(self.refuse(
            "memory",
            TooMuch {
                what: format!(
                    "more than {} MiB of the host's memory for handles (requests, headers, streams)",
                    may_be >> 20
                ),
                remedy: format!("`--max-memory {}MiB` grants more", memory.saturating_mul(2).div_ceil(1 << 20)),
            },
        ))
    }

    /// Reserves memory for a buffer until the returned token is dropped.
    pub(crate) fn buffer(&mut self) -> Result<Arc<()>, TooMuch> {
        self.keep(BUFFER)?;
        Ok(Arc::clone(&self.buffers))
    }

    /// Checks that the instance may open one more file, or list one more folder.
    ///
    /// # Errors
    /// [`TooMuch`] if the limit on open files is reached. Only the first such error is reported to the host.
    pub(crate) fn open(&mut self) -> Result<(), TooMuch> {
        let (limit, open) = (self.limits.files, self.open_files());
        if open < limit {
            self.near(LimitKind::Files, open + 1, limit);
            return Ok(());
        }
        Err(self.refuse(
            "files",
            TooMuch {
                what: format!("more than {limit} open files, folders and listings"),
                remedy: "no setting raises this limit: close some of them".to_owned(),
            },
        ))
    }

    /// Records an opened file. The file counts as open until its last reference is dropped.
    pub(crate) fn opened<T: Send + Sync + 'static>(&mut self, file: &Arc<T>) {
        let file: Weak<T> = Arc::downgrade(file);
        self.files.push(file);
        self.tally.files.fetch_max(self.files.len() as u64, Ordering::Relaxed);
    }

    fn open_files(&mut self) -> u64 {
        self.files.retain(|file| file.strong_count() > 0);
        self.files.len() as u64
    }

    /// Returns how many bytes the runner may keep while the instance itself uses `memory` bytes.
    fn may_keep(&self, memory: u64) -> u64 {
        self.limits.memory.saturating_add(KEPT).saturating_sub(memory)
    }

    /// Returns true if the runner may keep another `more` bytes while the instance itself uses `memory` bytes. Computes
    /// the actual size of the handles only if needed.
    fn has_room(&mut self, more: u64, memory: u64) -> bool {
        let may_be = self.may_keep(memory);
        let fits = |kept: u64| kept.saturating_add(more) <= may_be;
        fits(self.kept) || fits(self.weigh())
    }

    fn weigh(&mut self) -> u64 {
        let buffers = Arc::strong_count(&self.buffers).saturating_sub(1);
        self.kept = (weight::of_all(&mut self.table) + buffers * BUFFER) as u64;
        self.tally.kept.fetch_max(self.kept, Ordering::Relaxed);
        self.kept
    }

    /// Counts the handles and computes their size, if a count is due.
    fn look(&mut self) {
        let now = self.clock.now();
        if now.since(self.handles_counted) >= COUNT_HANDLES_EVERY {
            self.handles_counted = now;
            let handles = self.table.iter_mut().count() as u64;
            self.tally.handles.fetch_max(handles, Ordering::Relaxed);
            self.near(LimitKind::Handles, handles, self.limits.handles);
            let kept = self.weigh();
            let may_be = self.may_keep(self.memory());
            self.near(LimitKind::Kept, kept, may_be);
        }
    }

    /// Determines the peak number of handles when the instance ends. A table never gives up a slot, so the peak is the
    /// total number of slots, used and free. To count the free slots, this function sets the table's capacity to 0. The
    /// table then accepts new handles only in free slots, so the function adds handles until the table refuses.
    pub(crate) fn finish(&mut self) {
        self.weigh();
        let held = self.table.iter_mut().count() as u64;
        self.table.set_max_capacity(0);
        let free = std::iter::repeat_with(|| self.table.push(())).take_while(Result::is_ok).count() as u64;
        self.tally.handles.fetch_max(held + free, Ordering::Relaxed);
    }

    /// Reports a limit once at least 80% of it is used. Reports each limit only once.
    fn near(&mut self, what: LimitKind, used: u64, limit: u64) {
        if used.saturating_mul(5) >= limit.saturating_mul(4) && used > 0 && !self.told.contains(&what) {
            self.told.push(what);
            self.output.notice(Notice::NearLimit(NearLimit { what, used, limit }));
        }
    }

    /// Reports that the instance has hit the limit of a resource. Reports only the first refusal of each `kind`.
    fn refuse(&mut self, kind: &'static str, why: TooMuch) -> TooMuch {
        let TooMuch { what, remedy } = &why;
        if !self.refused.contains(&kind) {
            self.refused.push(kind);
            self.output.notice(Notice::Denied { what, remedy });
        }
        why
    }
}

impl ResourceLimiter for Holdings {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let limit = self.limits.memory;
        let wanted = self.memory().saturating_add(desired.saturating_sub(current) as u64);
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        if wanted > limit {
            wasmtime::bail!(
                "the instance needs {} MiB of memory, but its limit is {} MiB; raise `--max-memory`",
                mib(wanted),
                limit >> 20
            );
        }
        if !self.has_room(0, wanted) {
            wasmtime::bail!(
                "the instance needs {} MiB of memory, and the host {} MiB for its handles, but the limit for both is \
                 {} MiB; raise `--max-memory`",
                mib(wanted),
                mib(self.kept),
                limit.saturating_add(KEPT) >> 20
            );
        }
        self.tally.memory.store(wanted, Ordering::Relaxed);
        self.near(LimitKind::Memory, wanted, limit);
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let limit = self.limits.table_elements;
        let grown = desired.saturating_sub(current) as u64;
        let wanted = self.tally.table_elements.load(Ordering::Relaxed).saturating_add(grown);
        if wanted > limit {
            wasmtime::bail!("the instance needs {wanted} table elements, but the limit is {limit}");
        }
        self.tally.table_elements.store(wanted, Ordering::Relaxed);
        self.near(LimitKind::TableElements, wanted, limit);
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
