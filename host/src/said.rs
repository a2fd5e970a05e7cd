//! What a node has said of itself in the store, as `baton nodes` and the endpoint tell it.

use baton_store::{Announcement, Digest, Labels, Listens};
use serde::Serialize;
use utoipa::ToSchema;

/// What a node last said of itself. The keys of its JSON are an interface.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, ToSchema)]
pub struct Said {
    /// Its id.
    pub node: String,
    /// The start of the host that said so.
    pub incarnation: String,
    /// When, in RFC 3339 and by its own clock; null where it has said nothing yet. It says so at each change and once a minute.
    pub at: Option<String>,
    /// How early it takes a lease that is free, 100 being at once; null where it does not say.
    pub priority: Option<u8>,
    /// What people know it by.
    #[schema(value_type = BTreeMap<String, String>)]
    pub labels: Labels,
    /// The version of its host; null where that is one that does not say, and does not know steering.
    pub version: Option<String>,
    /// The digest of what its instance runs; null where none does.
    #[schema(value_type = Option<String>)]
    pub runs: Option<Digest>,
    /// Why it would not take the lease: `away` (something is planned for its machine), `suspended`, `stepped-down`,
    /// `transferring` or `cooling-off`; null where it would, or does not say.
    pub stays_out: Option<String>,
    /// Whether it leads as many other elections as it should, so that it would take the lease only if nobody else does.
    pub leads_enough: bool,
    /// Another start of a host that calls itself the same; null where there is none.
    pub rival: Option<String>,
    /// The node that it hears from over a link, and since when; null where it asks the store alone, or does not say.
    #[schema(value_type = Option<Object>)]
    pub listens: Option<Listens>,
}

impl From<&Announcement> for Said {
    fn from(said: &Announcement) -> Self {
        let Announcement {
            node,
            incarnation,
            at,
            priority,
            labels,
            version,
            runs,
            stays_out,
            leads_enough,
            rival,
            listens,
            ..
        } = said.clone();
        let (at, version) = (Some(at), Some(version).filter(|version| !version.is_empty()));
        Self { node, incarnation, at, priority, labels, version, runs, stays_out, leads_enough, rival, listens }
    }
}
