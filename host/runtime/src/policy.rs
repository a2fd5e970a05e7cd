//! What the instances of one coordinator may do and use, whichever version they run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::Purpose;
use super::guest::CALL_BYTES;
use super::http::{HttpPolicy, KEPT_BY_KERNEL};
use super::limits::Limits;
use crate::Folder;
use baton_store::state;

/// What the instances of one coordinator may do and use. Their runners have it before there is an instance.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Policy {
    /// What each may use.
    pub limits: Limits,
    /// How much state they may keep.
    pub state_limits: state::Limits,
    /// The folders that they may use, opened anew for each instance.
    pub folders: Vec<Folder>,
    /// What they may do over HTTP.
    pub http: HttpPolicy,
    /// Whether one that traps leaves a core dump.
    pub core_dump: bool,
    /// Whether they are profiled.
    pub profile: bool,
    /// The length of the lease (D) under which they run.
    pub lease: Duration,
}

/// The descriptors that a runner has beside those of its guest.
const DESCRIPTORS: u64 = 64;

/// What a runner may have of memory beside what its guest and the calls of that need, in bytes.
const ROOM: u64 = 64 << 20;

/// See [`Policy::remains`].
const REMAINS: u64 = 256 << 20;

/// What the kernel keeps of a connection at the most, in bytes: both ways, and twice what it was told (socket(7)).
const CONNECTION: u64 = 4 * KEPT_BY_KERNEL as u64;

impl Policy {
    /// What the code of their modules is compiled for.
    #[must_use]
    pub fn purpose(&self) -> Purpose {
        Purpose { core_dump: self.core_dump, profile: self.profile }
    }

    /// How many descriptors a runner may need.
    pub fn descriptors(&self) -> u64 {
        let guests = [self.limits.files, self.http.max_requests(), self.folders.len() as u64];
        guests.into_iter().fold(DESCRIPTORS, u64::saturating_add)
    }

    /// How much memory a runner may take for itself beyond what it has when it is ready, in bytes.
    pub(super) fn memory(&self) -> u64 {
        let Self { limits, state_limits, .. } = self;
        // A core dump is the memory once more, in buffers that grow by half of what is there or double.
        let dump = if self.core_dump { limits.memory.saturating_mul(4) } else { 0 };
        let most = [limits.memory, state_limits.total.saturating_mul(2), dump, ROOM];
        most.into_iter().fold(0, u64::saturating_add)
    }

    /// The same with what the kernel has for it: tables of pages, buffers of sockets, and the file of what it leaves.
    pub(super) fn memory_in_all(&self) -> u64 {
        let own = self.memory();
        let connections = self.http.max_requests().saturating_mul(CONNECTION);
        [own, own / 128, connections, self.remains().unwrap_or(0)].into_iter().fold(0, u64::saturating_add)
    }

    /// The length of the file for what is kept of an instance, in bytes; none where nothing is. A core dump is no larger than
    /// its instance's memory, and [`REMAINS`] together with a profile.
    pub(super) fn remains(&self) -> Option<u64> {
        (self.core_dump || self.profile).then(|| self.limits.memory.saturating_add(REMAINS))
    }

    /// What one call may hand over, in bytes: a commit that is too large must arrive to be told so.
    pub(super) fn call_bytes(&self, uses_state: bool) -> usize {
        let state = usize::try_from(self.state_limits.total).unwrap_or(usize::MAX);
        if uses_state { CALL_BYTES.saturating_add(state.saturating_mul(2)) } else { CALL_BYTES }
    }
}
