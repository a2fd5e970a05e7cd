//! What one instance holds, and how it is held to its limits: its own memory and tables, its handles, the files that
//! it has open, and what the host keeps in its own memory for all that.
//!
//! The last cannot be read anywhere. So each call that leaves something behind adds what that weighs at the most, and
//! once the sum leaves the limit, what is there is weighed again ([`weight`]): exact where it matters,
//! and free where it does not. Handles that weigh next to nothing are bounded by their number alone.

use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use baton_election::Time;
use wasmtime::ResourceLimiter;
use wasmtime::component::ResourceTable;

use super::limits::{Limited, Limits, NearLimit, Tally, saturated};
use super::output::{Notice, Output};
use super::shared::SharedMemory;
use super::weight::{self, BUFFER};
use baton_store::clock::Clock;

/// Handles are counted no more often than this.
const COUNT_HANDLES_EVERY: Duration = Duration::from_millis(100);

/// The clock is read for that whenever they were asked for so often.
const LOOK_EVERY: u32 = 64;

/// The host may keep so much for an instance, in bytes, beside what this one may have of its own and does not use.
const KEPT: u64 = 16 << 20;

/// What one instance holds.
pub(super) struct Holdings {
    /// Its handles of the host.
    pub(super) table: ResourceTable,
    limits: Limits,
    tally: SharedMemory<Tally>,
    output: Arc<dyn Output>,
    clock: Clock,
    handles_counted: Time,
    /// How often its handles were asked for since then.
    asked: u32,
    /// The host keeps no more for it than this, in bytes.
    kept: u64,
    /// The files that it has opened, and that may be open still.
    files: Vec<Weak<dyn Any + Send + Sync>>,
    /// Held by all that has a buffer and that nobody can weigh.
    buffers: Arc<()>,
    /// Of what people were told that it uses much.
    told: Vec<Limited>,
    /// Of what they were told that it may have no more.
    refused: Vec<&'static str>,
}

/// The instance may have no more of something. Says of what, and what grants more.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the coordinator asked for {what}, which it is not granted: {remedy}")]
pub(super) struct TooMuch {
    what: String,
    remedy: String,
}

impl Holdings {
    pub(super) fn new(limits: Limits, tally: &SharedMemory<Tally>, output: &Arc<dyn Output>, clock: &Clock) -> Self {
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

    /// Its handles, for a call that may make one. Nobody tells when there are more, so they are looked at now and then.
    pub(super) fn table(&mut self) -> &mut ResourceTable {
        self.asked += 1;
        if self.asked >= LOOK_EVERY {
            self.asked = 0;
            self.look();
        }
        &mut self.table
    }

    /// The memory of its own that is in use, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.tally.memory.load(Ordering::Relaxed)
    }

    /// It is about to be made of so many core instances, or memories or tables; it gets no further than to the limit.
    pub(super) fn has_instances(&self, number: u64) {
        self.tally.instances.store(number.min(self.limits.instances), Ordering::Relaxed);
    }

    /// The host is about to keep up to so many bytes more for it.
    ///
    /// # Errors
    /// [`TooMuch`] if that is more than it may, and then it keeps no more. People are told of it once.
    pub(super) fn keep(&mut self, bytes: usize) -> Result<(), TooMuch> {
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

    /// It is about to have a buffer, for as long as it has what this returns.
    ///
    /// # Errors
    /// As [`Holdings::keep`].
    pub(super) fn buffer(&mut self) -> Result<Arc<()>, TooMuch> {
        self.keep(BUFFER)?;
        Ok(Arc::clone(&self.buffers))
    }

    /// It is about to open a file, or to list a folder.
    ///
    /// # Errors
    /// [`TooMuch`] if it has as many open as it may. People are told of it once.
    pub(super) fn open(&mut self) -> Result<(), TooMuch> {
        let (limit, open) = (self.limits.files, self.open_files());
        if open < limit {
            self.near(Limited::Files, open + 1, limit);
            return Ok(());
        }
        Err(self.refuse(
            "files",
            TooMuch {
                what: format!("more than {limit} open files, folders and listings"),
                remedy: format!("`--max-files {}` grants more", limit.saturating_mul(2)),
            },
        ))
    }

    /// It has opened this file, which is open for as long as anything holds it.
    pub(super) fn opened<T: Send + Sync + 'static>(&mut self, file: &Arc<T>) {
        let file: Weak<T> = Arc::downgrade(file);
        self.files.push(file);
        self.tally.files.fetch_max(self.files.len() as u64, Ordering::Relaxed);
    }

    fn open_files(&mut self) -> u64 {
        self.files.retain(|file| file.strong_count() > 0);
        self.files.len() as u64
    }

    /// What the host may keep for it while it has so much memory of its own, in bytes.
    fn may_keep(&self, memory: u64) -> u64 {
        self.limits.memory.saturating_add(KEPT).saturating_sub(memory)
    }

    /// Whether the host may keep so much more for it while it has so much of its own. Weighs what there is if it must.
    fn has_room(&mut self, more: u64, memory: u64) -> bool {
        let may_be = self.may_keep(memory);
        let fits = |kept: u64| kept.saturating_add(more) <= may_be;
        fits(self.kept) || fits(self.weigh())
    }

    /// Weighs what the host keeps for it.
    fn weigh(&mut self) -> u64 {
        let buffers = Arc::strong_count(&self.buffers).saturating_sub(1);
        self.kept = (weight::of_all(&mut self.table) + buffers * BUFFER) as u64;
        self.tally.kept.fetch_max(self.kept, Ordering::Relaxed);
        self.kept
    }

    /// Looks at its handles from time to time.
    fn look(&mut self) {
        let now = self.clock.now();
        if now.since(self.handles_counted) >= COUNT_HANDLES_EVERY {
            self.handles_counted = now;
            let handles = self.table.iter_mut().count() as u64;
            self.tally.handles.fetch_max(handles, Ordering::Relaxed);
            self.near(Limited::Handles, handles, self.limits.handles);
            let kept = self.weigh();
            let may_be = self.may_keep(self.memory());
            self.near(Limited::Kept, kept, may_be);
        }
    }

    /// Finds the peak of the handles when no more come: a table never gives back the places that it once had, and
    /// takes no more than those if it may have none.
    pub(super) fn finish(&mut self) {
        self.weigh();
        let held = self.table.iter_mut().count() as u64;
        self.table.set_max_capacity(0);
        let free = std::iter::repeat_with(|| self.table.push(())).take_while(Result::is_ok).count() as u64;
        self.tally.handles.fetch_max(held + free, Ordering::Relaxed);
    }

    /// Tells once that 80% of something is used.
    fn near(&mut self, what: Limited, used: u64, limit: u64) {
        if used.saturating_mul(5) >= limit.saturating_mul(4) && used > 0 && !self.told.contains(&what) {
            self.told.push(what);
            self.output.notice(Notice::NearLimit(NearLimit { what, used, limit }));
        }
    }

    /// Tells once that it may have no more of something.
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
                "the instance needs {} MiB of memory, and its limit is {} MiB; raise `--max-memory`",
                mib(wanted),
                limit >> 20
            );
        }
        if !self.has_room(0, wanted) {
            wasmtime::bail!(
                "the instance needs {} MiB of memory, and the host keeps {} MiB for its handles; the limit for both is \
                 {} MiB: raise `--max-memory`",
                mib(wanted),
                mib(self.kept),
                limit.saturating_add(KEPT) >> 20
            );
        }
        self.tally.memory.store(wanted, Ordering::Relaxed);
        self.near(Limited::Memory, wanted, limit);
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let limit = self.limits.table_elements;
        let grown = desired.saturating_sub(current) as u64;
        let wanted = self.tally.table_elements.load(Ordering::Relaxed).saturating_add(grown);
        if wanted > limit {
            wasmtime::bail!(
                "the instance needs {wanted} table elements, and its limit is {limit}; raise `--max-table-elements`"
            );
        }
        self.tally.table_elements.store(wanted, Ordering::Relaxed);
        self.near(Limited::TableElements, wanted, limit);
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
