//! Limits on the resources of an instance, and its actual usage.
//!
//! An instance ends if it exceeds the limit on memory, table elements, core instances or handles. The message names the
//! limit and, if there is one, the flag that raises it. An instance that opens too many files only gets an error. Lines
//! above the limit on output are dropped and counted (`output`).
//!
//! If an instance comes close to a limit in [`LimitKind`], the runner reports this once.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use wasmtime_wasi::ResourceTableError;

use crate::wire::shared::Sharable;
use baton_base::clock::nanoseconds_on;

/// Limits on the resources of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Total size of all linear memories (bytes).
    pub memory: u64,
    /// Maximum number of elements of all tables together.
    pub table_elements: u64,
    /// Maximum number of core instances in a component. Also the maximum number of memories, and of tables.
    pub instances: u64,
    /// Maximum number of open handles, both to host resources (streams, files, timers) and to resources of the guest's
    /// own components.
    pub handles: u64,
    /// Number of files, folders and folder listings open at a time.
    pub files: u64,
    /// Maximum average number of lines printed or logged per second. A burst may have twice as many lines.
    pub output: u32,
}

impl Default for Limits {
    /// Returns limits that are far higher than any known component needs.
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            table_elements: 1_000_000,
            instances: 1_000,
            handles: 50_000,
            files: 256,
            output: 500,
        }
    }
}

/// Resources that an instance has used: peak values, except that `lines` and `dropped` are totals.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Usage {
    /// Linear memory (bytes).
    pub memory: u64,
    /// Table elements.
    pub table_elements: u64,
    /// The highest of three numbers: core instances, memories and tables.
    pub instances: u64,
    /// Handles open at a time.
    pub handles: u64,
    /// Files, folders and listings open at a time.
    pub files: u64,
    /// Memory that the handles take in the runner (bytes). The peak may be higher: the runner measures this memory only
    /// from time to time.
    pub kept: u64,
    /// HTTP requests in flight at a time.
    pub requests: u64,
    /// Lines printed or logged.
    pub lines: u64,
    /// Lines dropped. `lines` does not include them.
    pub dropped: u64,
}

/// An action of an instance that is visible outside its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EffectKind {
    /// An HTTP request.
    Request,
    /// A call on a file, a folder or a file stream.
    File,
    /// A write to standard output or standard error, or a log message.
    Output,
    /// A commit of the state.
    Commit,
}

impl EffectKind {
    /// All kinds of effects.
    pub const ALL: [Self; 4] = [Self::Request, Self::File, Self::Output, Self::Commit];

    /// Returns the name in events and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::File => "file",
            Self::Output => "output",
            Self::Commit => "commit",
        }
    }
}

/// Counts of the effects that passed the gate, and of the effects that were refused. A commit that was not saved counts
/// as refused.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EffectCounts {
    passed: [u64; EffectKind::ALL.len()],
    refused: [u64; EffectKind::ALL.len()],
}

impl EffectCounts {
    /// Builds the counts from a function that returns two numbers for each kind of effect: the number of passed
    /// effects, and the number of refused effects.
    pub fn of(count: impl Fn(EffectKind) -> [u64; 2]) -> Self {
        let counts = EffectKind::ALL.map(count);
        Self { passed: counts.map(|[passed, _]| passed), refused: counts.map(|[_, refused]| refused) }
    }

    /// Returns the number of effects of this kind that have passed.
    pub fn passed(&self, effect: EffectKind) -> u64 {
        self.passed[effect as usize]
    }

    /// Returns the number of effects of this kind that were refused.
    pub fn refused(&self, effect: EffectKind) -> u64 {
        self.refused[effect as usize]
    }
}

impl Add for EffectCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::of(|effect| {
            let add = |count: fn(&Self, EffectKind) -> u64| count(&self, effect).saturating_add(count(&other, effect));
            [add(Self::passed), add(Self::refused)]
        })
    }
}

/// A report that an instance uses at least 80% of a limited resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NearLimit {
    /// The limited resource.
    pub what: LimitKind,
    /// Current usage.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

/// A limited resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LimitKind {
    /// Linear memory.
    Memory,
    /// Memory that the handles take in the runner.
    Kept,
    /// Table elements.
    TableElements,
    /// Handles.
    Handles,
    /// Open files, folders and listings.
    Files,
}

impl LimitKind {
    /// Returns the name in events and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Kept => "memory of the host",
            Self::TableElements => "table elements",
            Self::Handles => "handles",
            Self::Files => "files",
        }
    }

    /// Returns the flag that raises the limit, if any.
    pub fn flag(self) -> Option<&'static str> {
        match self {
            Self::Memory | Self::Kept => Some("--max-memory"),
            Self::TableElements | Self::Handles | Self::Files => None,
        }
    }
}

/// Counts of the resources that one instance uses, in memory that its runner writes and its host reads. The host must
/// not trust the values: a guest that has taken over its runner can write anything.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Tally {
    pub(crate) memory: AtomicU64,
    pub(crate) table_elements: AtomicU64,
    pub(crate) instances: AtomicU64,
    pub(crate) handles: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) kept: AtomicU64,
    requests: AtomicU64,
    lines: AtomicU64,
    dropped: AtomicU64,
    /// Time of the last progress report (ns of the boot clock, which all processes share); 0 if there was none.
    progress: AtomicU64,
    /// Nonzero once an effect has been refused.
    refused: AtomicU64,
    effects_passed: [AtomicU64; EffectKind::ALL.len()],
    effects_refused: [AtomicU64; EffectKind::ALL.len()],
}

// SAFETY: the struct consists of atomic integers, and is smaller than a page.
unsafe impl Sharable for Tally {}

impl Tally {
    pub(crate) fn usage(&self) -> Usage {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Usage {
            memory: read(&self.memory),
            table_elements: read(&self.table_elements),
            instances: read(&self.instances),
            handles: read(&self.handles),
            files: read(&self.files),
            kept: read(&self.kept),
            requests: read(&self.requests),
            lines: read(&self.lines),
            dropped: read(&self.dropped),
        }
    }

    pub(crate) fn effects(&self) -> EffectCounts {
        EffectCounts::of(|effect| {
            [&self.effects_passed, &self.effects_refused].map(|counts| counts[effect as usize].load(Ordering::Relaxed))
        })
    }

    pub(crate) fn count_effect(&self, effect: EffectKind, has_passed: bool) {
        let counts = if has_passed { &self.effects_passed } else { &self.effects_refused };
        counts[effect as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_line(&self) {
        self.lines.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn record_requests(&self, number: u64) {
        self.requests.fetch_max(number, Ordering::Relaxed);
    }

    pub(crate) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn record_progress(&self) {
        self.progress.store(nanoseconds_on(ClockId::Boottime), Ordering::Relaxed);
    }

    pub(crate) fn since_progress(&self) -> Option<Duration> {
        let at = Some(self.progress.load(Ordering::Relaxed)).filter(|at| *at > 0)?;
        Some(Duration::from_nanos(nanoseconds_on(ClockId::Boottime).saturating_sub(at)))
    }

    pub(crate) fn has_refused(&self) {
        self.refused.store(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed) != 0
    }
}

impl Limits {
    /// Explains a wasmtime error if one of these limits caused it. Returns `None` for any other error.
    pub(crate) fn explain(&self, error: &wasmtime::Error) -> Option<String> {
        if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) {
            return Some(self.too_many_handles());
        }
        let cause = error.root_cause().to_string();
        if cause.contains("handle limit exceeded") {
            return Some(self.too_many_handles());
        }
        let count = cause.strip_prefix("resource limit exceeded: ")?;
        let limit = self.instances;
        Some(format!("the instance needs more core instances, memories or tables ({count}) than the limit of {limit}"))
    }
}

impl Limits {
    pub(crate) fn handles(&self) -> usize {
        saturated(self.handles)
    }

    fn too_many_handles(&self) -> String {
        format!("the instance needs more handles than the limit of {}", self.handles)
    }
}

pub(crate) fn saturated(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
