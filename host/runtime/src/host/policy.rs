//! The rights and limits of one coordinator's instances, whichever version they run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Folder;
use crate::runner::guest::CALL_BYTES;
use crate::runner::http::{HttpPolicy, KEPT_BY_KERNEL};
use crate::wire::limits::Limits;
use baton_store::state;

/// The rights and limits of one coordinator's instances. A runner gets the policy before it gets an instance.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Policy {
    /// Limits of each instance.
    pub limits: Limits,
    /// Limits of the coordinator's state.
    pub state_limits: state::Limits,
    /// Folders that the instances may use. The runner opens the folders again for each instance.
    pub folders: Vec<Folder>,
    /// Rights for HTTP requests.
    pub http: HttpPolicy,
    /// Duration of the lease (D).
    pub lease: Duration,
}

/// Number of descriptors that a runner needs for itself, in addition to those that its guest uses.
const DESCRIPTORS: u64 = 64;

/// Memory (bytes) that a runner may use in addition to its guest's memory and its coordinator's state.
const ROOM: u64 = 64 << 20;

/// Maximum memory (bytes) that the kernel uses for a connection. There is one buffer for each direction, and the kernel
/// doubles the size that was set (socket(7)).
const CONNECTION: u64 = 4 * KEPT_BY_KERNEL as u64;

impl Policy {
    /// Returns the number of descriptors that a runner may need.
    pub fn descriptors(&self) -> u64 {
        let guests = [self.limits.files, self.http.max_requests(), self.folders.len() as u64];
        guests.into_iter().fold(DESCRIPTORS, u64::saturating_add)
    }

    /// Returns how much memory (bytes) a runner may allocate after it has become ready.
    pub(crate) fn memory(&self) -> u64 {
        let Self { limits, state_limits, .. } = self;
        let most = [limits.memory, state_limits.total.saturating_mul(2), ROOM];
        most.into_iter().fold(0, u64::saturating_add)
    }

    /// Returns [`Policy::memory`] plus the memory that the kernel uses for the runner: page tables and socket buffers
    /// (bytes).
    pub(crate) fn memory_in_all(&self) -> u64 {
        let own = self.memory();
        let connections = self.http.max_requests().saturating_mul(CONNECTION);
        [own, own / 128, connections].into_iter().fold(0, u64::saturating_add)
    }

    /// Returns the maximum number of bytes that one call may pass to the host. The maximum is larger than the state's
    /// limits allow, so that the host can reject a commit that exceeds those limits with an ordinary error.
    pub(crate) fn call_bytes(&self, uses_state: bool) -> usize {
        let state = usize::try_from(self.state_limits.total).unwrap_or(usize::MAX);
        if uses_state { CALL_BYTES.saturating_add(state.saturating_mul(2)) } else { CALL_BYTES }
    }
}
