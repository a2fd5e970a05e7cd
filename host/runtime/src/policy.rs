//! What the instances of one coordinator may do and use, whichever version they run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::engine::Purpose;
use super::guest::CALL_BYTES;
use super::http::HttpPolicy;
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

    /// What one call may hand over, in bytes: a commit that is too large must arrive to be told so.
    pub(super) fn call_bytes(&self, uses_state: bool) -> usize {
        let state = usize::try_from(self.state_limits.total).unwrap_or(usize::MAX);
        if uses_state { CALL_BYTES.saturating_add(state.saturating_mul(2)) } else { CALL_BYTES }
    }
}
