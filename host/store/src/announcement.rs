//! What a node says of itself in an election: `ELECTION/nodes/NODE`. People read it, and other
//! nodes the term in it: a node that finds the record deleted, or an earlier one in its place, learns it here.

use std::collections::BTreeMap;

use baton_election::{ElectionName, Op, Reply, StoreError, Term};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::Digest;
use crate::clock::{rfc3339, wall};
use crate::{LeaseStore, Listed, Listing, ModuleStore as _, ObjectStore, PlainObject};

/// A node says what it has each minute. After so long without a word it may be gone.
pub const SILENT: time::Duration = time::Duration::minutes(3);

/// What people know a node by: names and values.
pub type Labels = BTreeMap<String, String>;

/// So many labels a node has at the most.
pub const MOST_LABELS: usize = 16;

/// So long is each name and each value of a label at the most, in bytes.
pub const LONGEST_LABEL: usize = 63;

/// Which modules a node has, and which term it has seen. It says so at each change and once a minute.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// Its id.
    pub node: String,
    /// This start of it.
    pub incarnation: String,
    /// When it said so, in RFC 3339.
    pub at: String,
    /// Where its modules come from; empty where it did not say.
    #[serde(default)]
    pub source: String,
    /// What it could start at once: the current version and what it would fall back on.
    pub holds: Vec<Digest>,
    /// What its instance is; none while it is a standby.
    pub runs: Option<Digest>,
    /// What people know it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The highest term that it has seen in the election, in this or an earlier start; 0 where it has seen none, or did
    /// not say.
    #[serde(default)]
    pub term: Term,
    /// The version of its host; empty where it did not say.
    #[serde(default)]
    pub version: String,
    /// The [mark](crate::steering::Steering::mark) of what it was last asked to do; none where it has not read that yet, or
    /// cannot be asked, as hosts that do not know steering.
    #[serde(default)]
    pub steered: Option<String>,
    /// Why it would not take the lease now: `maintenance` (of its machine), `suspended`,
    /// `stepped-down`, `transferring`, `cooling-off`; none where it would,
    /// or did not say.
    #[serde(default)]
    pub stays_out: Option<String>,
    /// How early it takes a lease that is free: one of 100 lets nobody be first. None where it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// Whether its host leads as many other elections as it should, so that it would take this lease only if nobody else
    /// does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leads_enough: bool,
    /// Another start of a host that says the same id, and was heard after this one had begun to speak.
    #[serde(default)]
    pub rival: Option<String>,
    /// Where others find its admin endpoint; empty where it has none, or none that is of use to others, or did not say. A
    /// host that knows no such field says what it has anew without it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub admin: String,
    /// Whom it listens to, over a link; none where it asks the store alone, or did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listens: Option<Listens>,
    /// Where and by what nodes of other machines know it; none where it has no links with these, or did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerWord>,
}

/// Where nodes of other machines find one, and by what they know it. What this version does not know is left alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerWord {
    /// A host and a port.
    #[serde(default)]
    pub address: String,
    /// The fingerprint of the certificate that it shows there.
    #[serde(default)]
    pub certificate: String,
}

/// Whom a node listens to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listens {
    /// The node that leads.
    pub to: String,
    /// Since when, in RFC 3339.
    pub since: String,
}

impl Announcement {
    /// What a node says now that has seen no term.
    #[must_use]
    pub fn now(node: &str, incarnation: &str, source: &str, holds: Vec<Digest>, runs: Option<Digest>) -> Self {
        let [node, incarnation, source] = [node, incarnation, source].map(str::to_owned);
        Self {
            node,
            incarnation,
            at: rfc3339(wall()),
            source,
            holds,
            runs,
            labels: Labels::default(),
            term: 0,
            version: String::new(),
            steered: None,
            stays_out: None,
            priority: None,
            leads_enough: false,
            rival: None,
            admin: String::new(),
            listens: None,
            peer: None,
        }
    }

    /// As it is stored.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        serde_json::json!(self).to_string().into()
    }

    /// From what is stored; none if a node of Baton did not write it.
    #[must_use]
    pub fn decode(content: &[u8]) -> Option<Self> {
        serde_json::from_slice(content).ok()
    }

    /// When it said so; none if it wrote no time.
    #[must_use]
    pub fn when(&self) -> Option<OffsetDateTime> {
        OffsetDateTime::parse(&self.at, &Rfc3339).ok()
    }

    /// Whether it may still be there, as far as is known `now`.
    #[must_use]
    pub fn is_fresh(&self, now: OffsetDateTime) -> bool {
        self.when().is_some_and(|at| now - at <= SILENT)
    }
}

/// Takes back what a node has said, which named this `term`, unless nothing else may know of it: where the record, as it
/// is now, names no term as high, because it was deleted or an earlier one was put in its place, or cannot be read. Returns
/// whether it did.
///
/// # Errors
/// Those of the store. It may have been taken back only where the outcome is unknown.
pub async fn withdraw(
    leases: &dyn LeaseStore,
    modules: &dyn ObjectStore,
    election: &ElectionName,
    node: &str,
    term: Term,
) -> Result<bool, StoreError> {
    if !may_withdraw(leases, election, term).await {
        return Ok(false);
    }
    modules.withdraw(election, node).await?;
    Ok(true)
}

/// Age of an announcement from which its node counts as dead for good. A live node announces itself every minute.
pub const GONE: time::Duration = time::Duration::hours(24);

/// Withdraws the announcements of dead nodes, as [`withdraw`] does. Otherwise they pile up where nodes come and go, and a
/// takeover reads all of them. Returns how many it withdrew.
///
/// The caller has just announced itself. The age of an announcement is its distance from the newest one, so this machine's
/// clock does not matter. A store that notes no times is of one machine: there, the nodes' own times count.
///
/// # Errors
/// Those of the store.
pub async fn withdraw_gone(
    leases: &dyn LeaseStore,
    modules: &dyn ObjectStore,
    election: &ElectionName,
) -> Result<usize, StoreError> {
    let listed = modules.list(&Listing::Announcements(election.clone())).await?;
    let newest = listed.iter().filter_map(|listed| listed.put).max();
    let is_old = |listed: &Listed| listed.put.zip(newest).is_none_or(|(put, newest)| newest - put > GONE);
    let mut announced = Vec::new();
    for listed in listed.into_iter().filter(is_old) {
        let PlainObject::Announcement(_, node) = &listed.object else { continue };
        let content = modules.announced(election, node).await?;
        let said = content.and_then(|content| Announcement::decode(&content));
        announced.extend(said.and_then(|said| Some((said.when()?, listed, said.term))));
    }
    let newest_said = announced.iter().map(|(at, ..)| *at).max();
    let mut withdrawn = 0;
    for (at, Listed { object, put, .. }, term) in announced {
        let is_gone = put.is_some() || newest_said.is_some_and(|newest| newest - at > GONE);
        if is_gone && may_withdraw(leases, election, term).await {
            // Keep the announcement if the node has announced itself again.
            withdrawn += usize::from(modules.remove(&object, put).await?);
        }
    }
    Ok(withdrawn)
}

/// True unless an announcement may be the only thing that names this term.
async fn may_withdraw(leases: &dyn LeaseStore, election: &ElectionName, term: Term) -> bool {
    term == 0 || matches!(leases.request(election, Op::Read).await, Ok(Reply::Read(record)) if record.names(term))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use baton_election::Record;

    use super::*;
    use crate::MemoryStore;

    #[test]
    fn an_announcement_is_read_as_it_is_written() {
        let digest = Digest::of(b"");
        let said = Announcement::now("web-3-0", "abc", "job.wasm", vec![digest], Some(digest));
        assert_eq!(Announcement::decode(&said.encode()), Some(said.clone()));
        let age = OffsetDateTime::now_utc() - said.when().unwrap();
        assert!(age.abs() < time::Duration::minutes(1), "{said:?}");
        let later = |minutes| said.is_fresh(OffsetDateTime::now_utc() + time::Duration::minutes(minutes));
        assert_eq!((later(0), later(4)), (true, false));
        let standby = Announcement { at: "2026-11-21T12:00:00.000000Z".to_owned(), runs: None, term: 7, ..said };
        let json = format!(
            r#"{{"at":"2026-11-21T12:00:00.000000Z","holds":["{digest}"],"incarnation":"abc","node":"web-3-0","rival":null,"runs":null,"source":"job.wasm","stays_out":null,"steered":null,"term":7,"version":""}}"#
        );
        assert_eq!(standby.encode(), json, "as hosts write it that know neither an address nor priorities");
        let admin = "https://web-3.example:7070".to_owned();
        let listens = Some(Listens { to: "web-2".to_owned(), since: "2026-11-21T12:00:00Z".to_owned() });
        let peer = Some(PeerWord { address: "web-3.example:7072".to_owned(), certificate: digest.to_string() });
        let more = Announcement { admin, priority: Some(50), leads_enough: true, listens, peer, ..standby };
        assert_eq!(Announcement::decode(&more.encode()), Some(more));
    }

    #[tokio::test]
    async fn announcements_of_dead_nodes_are_withdrawn_unless_they_alone_name_a_term() {
        let hour = Arc::new(AtomicU64::new(0));
        let now = Arc::clone(&hour);
        let store = MemoryStore::new(Arc::new(move || Duration::from_secs(now.load(Ordering::Relaxed) * 3600)));
        let job = ElectionName::new("job").unwrap();
        let record = Record {
            term: 5,
            node: None,
            incarnation: "i".to_owned(),
            since: Duration::ZERO,
            lease: Duration::from_secs(15),
            module: None,
            outcome: None,
            failures: 0,
            released: true,
            rests_until: None,
        };
        store.request(&job, Op::Create { record }).await.unwrap();
        for (node, term, at) in [("known", 6, 0), ("gone", 5, 0), ("none", 0, 0), ("slow", 0, 2), ("fresh", 1, 25)] {
            hour.store(at, Ordering::Relaxed);
            // The node's own clock does not count.
            let said = Announcement { term, ..Announcement::now(node, "i", "", Vec::new(), None) };
            store.announce(&job, node, said.encode()).await.unwrap();
        }
        assert_eq!(withdraw_gone(&store, &store, &job).await, Ok(2));
        let left: Vec<_> = store.announcements(&job).await.unwrap().into_iter().map(|(node, _)| node).collect();
        assert_eq!(left, ["fresh", "known", "slow"]);
        assert_eq!(withdraw_gone(&store, &store, &job).await, Ok(0));
    }

    #[test]
    fn a_later_node_may_say_more_and_what_is_none_is_left_alone() {
        let more = br#"{"node":"n","incarnation":"i","at":"x","holds":[],"runs":null,"more":1}"#;
        let said = Announcement::decode(more).unwrap();
        assert_eq!((said.node.as_str(), said.source.as_str(), said.when(), said.term), ("n", "", None, 0));
        assert_eq!((said.admin.as_str(), said.priority, said.leads_enough), ("", None, false));
        for none in
            [&b""[..], b"{}", b"null", b"\xff", br#"{"node":"n","incarnation":"i","at":"x","holds":["sha256:0"]}"#]
        {
            assert_eq!(Announcement::decode(none), None);
        }
    }
}
