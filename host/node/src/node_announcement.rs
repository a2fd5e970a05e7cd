//! A node's announcement, as `baton nodes` and the admin API show it.

use baton_store::{AnnouncedLink, Announcement, Digest, Labels};
use serde::Serialize;
use utoipa::ToSchema;

/// A node's last announcement. The JSON keys are a public interface.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, ToSchema)]
pub struct NodeAnnouncement {
    /// The node's id.
    pub node: String,
    /// The host's incarnation.
    pub incarnation: String,
    /// Time of the announcement (RFC 3339, the node's clock); null before the first announcement. A node announces
    /// itself after each change, and at least once a minute.
    pub at: Option<String>,
    /// The node's `--priority`; null if its host does not announce one.
    pub priority: Option<u8>,
    /// The node's `--label`s.
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
    /// Version of the host; null if the host is too old to announce its version. Such a host does not support steering.
    pub version: Option<String>,
    /// Digest of the module that the node's instance runs; null if none runs.
    #[schema(value_type = Option<String>)]
    pub runs: Option<Digest>,
    /// The shards of the group that the node leads, by index; empty in an election without shards.
    pub shards: Vec<u8>,
    /// Reason why the node is ineligible: `maintenance`, `suspended`, `stepped-down`, `transferring` or `cooling-off`;
    /// null if it is eligible.
    pub ineligible: Option<String>,
    /// True if the node leads `--max-leaderships` other elections. The node then takes the lease only if no other node
    /// does.
    pub at_leadership_limit: bool,
    /// Incarnation of another host with the same node id, if there is one.
    pub duplicate: Option<String>,
    /// The node at the other end of this node's link, and since when; null if the node only polls the store.
    #[schema(value_type = Option<Object>)]
    pub link: Option<AnnouncedLink>,
}

impl From<&Announcement> for NodeAnnouncement {
    fn from(announcement: &Announcement) -> Self {
        let Announcement {
            node,
            incarnation,
            at,
            priority,
            labels,
            version,
            runs,
            shards,
            ineligible,
            at_leadership_limit,
            duplicate,
            link,
            ..
        } = announcement.clone();
        let shards = shards.into_iter().filter(|(_, shard)| shard.leads).map(|(index, _)| index).collect();
        let (at, version) = (Some(at), Some(version).filter(|version| !version.is_empty()));
        Self {
            node,
            incarnation,
            at,
            priority,
            labels,
            version,
            runs,
            shards,
            ineligible,
            at_leadership_limit,
            duplicate,
            link,
        }
    }
}
