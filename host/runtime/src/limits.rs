//! What an instance may use of the host, and what it does use.
//!
//! Exceeding a limit ends the instance with a message that names the limit and the flag that grants more; coming
//! near one is told once. Lines of output are the exception: what is too much is dropped and counted (`output`).

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use wasmtime_wasi::ResourceTableError;

use super::shared::Sharable;
use baton_store::clock::nanoseconds_on;

/// What an instance may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// All linear memories together, in bytes.
    pub memory: u64,
    /// The elements of all tables together.
    pub table_elements: u64,
    /// Core instances, and as many memories and tables: what a component is made of.
    pub instances: u64,
    /// What it holds at a time, of the host (streams, files, timers) and of its own components.
    pub handles: u64,
    /// Files, folders and listings of folders that it has open at a time.
    pub files: u64,
    /// Lines that it may print or log a second in the long run; twice that after a silence.
    pub output: u32,
}

impl Default for Limits {
    /// Far more than the components that are known to us use.
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            table_elements: 1_000_000,
            instances: 1_000,
            handles: 10_000,
            files: 256,
            output: 500,
        }
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
    /// Of files, folders and listings that were open, at the same time.
    pub files: u64,
    /// Of the host's memory for its handles, in bytes, as far as that was looked at.
    pub kept: u64,
    /// Of requests over HTTP, at the same time.
    pub requests: u64,
    /// Lines that it printed or logged.
    pub lines: u64,
    /// Those that were dropped beside them.
    pub dropped: u64,
}

/// What leaves an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// A request over HTTP.
    Request,
    /// A call on a file or folder, or on what it reads from and writes to.
    File,
    /// A write to its output, or a line of its log.
    Output,
    /// A commit of its state.
    Commit,
}

impl Effect {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Request, Self::File, Self::Output, Self::Commit];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::File => "file",
            Self::Output => "output",
            Self::Commit => "commit",
        }
    }
}

/// How many effects of an instance have passed, and how many were refused since its time was over. Of commits those are
/// refused that are not saved, for whatever reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Effects {
    passed: [u64; Effect::ALL.len()],
    refused: [u64; Effect::ALL.len()],
}

impl Effects {
    /// Of each kind so many that have passed, and so many that were refused.
    pub fn of(count: impl Fn(Effect) -> [u64; 2]) -> Self {
        let counts = Effect::ALL.map(count);
        Self { passed: counts.map(|[passed, _]| passed), refused: counts.map(|[_, refused]| refused) }
    }

    /// How many of this kind have passed.
    pub fn passed(&self, effect: Effect) -> u64 {
        self.passed[effect as usize]
    }

    /// How many of this kind were refused.
    pub fn refused(&self, effect: Effect) -> u64 {
        self.refused[effect as usize]
    }
}

impl Add for Effects {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::of(|effect| {
            let add = |count: fn(&Self, Effect) -> u64| count(&self, effect).saturating_add(count(&other, effect));
            [add(Self::passed), add(Self::refused)]
        })
    }
}

/// It uses much of what it may.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NearLimit {
    /// Of what.
    pub what: Limited,
    /// How much it uses.
    pub used: u64,
    /// How much it may use.
    pub limit: u64,
}

/// What there is a limit for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Limited {
    /// Its linear memories.
    Memory,
    /// What its runner keeps for its handles.
    Kept,
    /// The elements of its tables.
    TableElements,
    /// Its handles.
    Handles,
    /// Files, folders and listings that are open.
    Files,
}

impl Limited {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Kept => "memory of the host",
            Self::TableElements => "table elements",
            Self::Handles => "handles",
            Self::Files => "files",
        }
    }

    /// What grants more.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Memory | Self::Kept => "--max-memory",
            Self::TableElements => "--max-table-elements",
            Self::Handles => "--max-handles",
            Self::Files => "--max-files",
        }
    }
}

/// Counts what one instance uses, in memory that its runner writes and its host reads. Anyone may read it at any time;
/// what decides something is not read from here.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Tally {
    pub(super) memory: AtomicU64,
    pub(super) table_elements: AtomicU64,
    pub(super) instances: AtomicU64,
    pub(super) handles: AtomicU64,
    pub(super) files: AtomicU64,
    pub(super) kept: AtomicU64,
    requests: AtomicU64,
    lines: AtomicU64,
    dropped: AtomicU64,
    /// When it last said that it did useful work, in nanoseconds of the boot clock, which all processes share; 0 for
    /// never.
    progress: AtomicU64,
    /// Not 0 once an effect was refused.
    refused: AtomicU64,
    effects_passed: [AtomicU64; Effect::ALL.len()],
    effects_refused: [AtomicU64; Effect::ALL.len()],
}

// SAFETY: atomic numbers, and less than a page of them.
unsafe impl Sharable for Tally {}

impl Tally {
    pub(super) fn usage(&self) -> Usage {
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

    pub(super) fn effects(&self) -> Effects {
        Effects::of(|effect| {
            [&self.effects_passed, &self.effects_refused].map(|counts| counts[effect as usize].load(Ordering::Relaxed))
        })
    }

    pub(super) fn count_effect(&self, effect: Effect, has_passed: bool) {
        let counts = if has_passed { &self.effects_passed } else { &self.effects_refused };
        counts[effect as usize].fetch_add(1, Ordering::Relaxed);
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

    /// It did useful work, just now.
    pub(super) fn makes_progress(&self) {
        self.progress.store(nanoseconds_on(ClockId::Boottime), Ordering::Relaxed);
    }

    /// How long ago it last said that it did useful work; none if it never did.
    pub(super) fn since_progress(&self) -> Option<Duration> {
        let at = Some(self.progress.load(Ordering::Relaxed)).filter(|at| *at > 0)?;
        Some(Duration::from_nanos(nanoseconds_on(ClockId::Boottime).saturating_sub(at)))
    }

    /// An effect of it was refused.
    pub(super) fn has_refused(&self) {
        self.refused.store(1, Ordering::Relaxed);
    }

    /// Whether an effect of it was refused.
    pub(super) fn refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed) != 0
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
            "the instance needs more core instances, memories or tables ({count}) than its limit of {limit}; raise \
             `--max-instances`"
        ))
    }
}

impl Limits {
    /// The limit on handles, for those who count in this type.
    pub(super) fn handles(&self) -> usize {
        saturated(self.handles)
    }

    fn too_many_handles(&self) -> String {
        format!("the instance needs more handles than its limit of {}; raise `--max-handles`", self.handles)
    }
}

pub(super) fn saturated(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
