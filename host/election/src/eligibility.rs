//! The conditions, other than the lease, under which this node may lead: operators' commands, maintenance and priority.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::record::Version;
use crate::timing::{LONGEST_POLL, Time};

/// The highest priority. A node with this priority takes a free lease without waiting for other nodes.
pub const HIGHEST_PRIORITY: u8 = 100;

/// Time for which a node with priority 0 lets other nodes take a free lease first. This is long enough for them to read
/// and request the lease.
const MAX_DEFERRAL: Duration = Duration::from_secs(2);

/// Time for which a node that leads more shards than another node lets other nodes take a released lease first.
pub(crate) const YIELDS_FOR: Duration = Duration::from_secs(1);

/// Time after which a node takes a free lease even if its host has reached its leadership quota (`--max-leaderships`).
pub(crate) const TAKE_ANYWAY_AFTER: Duration = Duration::from_secs(10);

/// The conditions under which this node may lead. Baton's promises hold even if these conditions are wrong, because the
/// conditions can only prevent or end a term.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Eligibility {
    /// Human-readable reason why this node is drained for maintenance of its machine; `None` if it is not drained.
    /// Maintenance is independent of the commands.
    pub maintenance: Option<String>,
    /// The commands that prevent this node from leading, most important first. The first command that has not expired
    /// applies.
    pub commands: Vec<Ineligibility>,
    /// The command that chooses this node as the next leader, if any.
    pub chosen: Option<Chosen>,
    /// This node's priority, from 0 to [`HIGHEST_PRIORITY`]. Nodes with a higher priority take a free lease earlier.
    pub priority: u8,
    /// True if another node leads fewer shards of the group. This node then lets other nodes take a released lease
    /// first. It takes a lease that has expired, or whose holder has exited, at once.
    pub yields: bool,
    /// The version of the steering object (the operators' commands in the store) from which the host derived these
    /// conditions.
    pub steering: SteeringVersion,
}

impl Default for Eligibility {
    /// Conditions that do not prevent this node from leading. The steering object counts as absent.
    fn default() -> Self {
        Self {
            maintenance: None,
            commands: Vec::new(),
            chosen: None,
            priority: HIGHEST_PRIORITY,
            yields: false,
            steering: SteeringVersion::Absent,
        }
    }
}

/// The version of the steering object that the host has read.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum SteeringVersion {
    /// The host has not read the object yet.
    Unread,
    /// The host has found that there is no such object.
    Absent,
    /// The host has read this version of the object.
    Read(Version),
}

impl SteeringVersion {
    /// Returns true if the host has read exactly this version of the steering object. `None` means that there is no
    /// steering object.
    #[must_use]
    pub fn is(&self, version: Option<&Version>) -> bool {
        match self {
            Self::Unread => false,
            Self::Absent => version.is_none(),
            Self::Read(known) => version == Some(known),
        }
    }
}

/// A command that prevents this node from leading.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Ineligibility {
    /// The id of the command. Once this ineligibility has ended, the elector ignores commands with the same id.
    pub id: String,
    /// The cause.
    pub cause: IneligibleCause,
    /// Human-readable reason. The guest receives it with the request to stop.
    pub reason: String,
    /// The time at which the ineligibility ends; `None` if only a later input can end it.
    pub until: Option<Time>,
    /// Maximum duration of the ineligibility after the node has given up the lease. Applies only if the node held the
    /// lease when the ineligibility began.
    pub after_release: Option<Duration>,
}

/// The cause of an ineligibility.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum IneligibleCause {
    /// The machine is about to be frozen, rebooted or removed: see [`Eligibility::maintenance`].
    Maintenance,
    /// The election is suspended.
    Suspended,
    /// An operator asked this node to step down.
    SteppedDown,
    /// The lease is being transferred to another node.
    Transferring {
        /// The id of the other node.
        to: String,
    },
    /// This node stepped down on its own. Only the elector sets this cause.
    CoolingOff,
}

impl IneligibleCause {
    /// The name of the cause in announcements.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Maintenance => "maintenance",
            Self::Suspended => "suspended",
            Self::SteppedDown => "stepped-down",
            Self::Transferring { .. } => "transferring",
            Self::CoolingOff => "cooling-off",
        }
    }
}

/// A command that chooses this node as the next leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Chosen {
    /// The time at which the command expires.
    pub until: Time,
    /// True if an operator gave the command. The node then takes a free lease even if its host has reached its
    /// leadership quota. False if another node gave the command because that node has a lower priority.
    pub by_operator: bool,
}

/// Returns the longest delay that the priority and the host's leadership quota can add to a takeover if no other node
/// is available. `has_quota` is true if the quota is smaller than the number of elections in which the host takes part.
#[must_use]
pub fn longest_deferral(priority: u8, has_quota: bool) -> Duration {
    // A node polls exactly when the deferral for its priority ends. `TAKE_ANYWAY_AFTER` can end between two polls, so
    // add the longest polling interval.
    let quota = if has_quota { TAKE_ANYWAY_AFTER + LONGEST_POLL } else { Duration::ZERO };
    deferral(priority).max(quota)
}

/// The time for which a node with this priority lets other nodes take a free lease first.
pub(crate) fn deferral(priority: u8) -> Duration {
    MAX_DEFERRAL * u32::from(HIGHEST_PRIORITY.saturating_sub(priority)) / u32::from(HIGHEST_PRIORITY)
}
