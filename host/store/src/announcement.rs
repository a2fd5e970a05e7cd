//! Announcements: information that a node writes to the store about itself (`ELECTION/nodes/NODE`), for people and for
//! other nodes. Announcements also contain terms. If the lease's record was deleted, or replaced by an older copy, a
//! node learns the highest term from the announcements.

use std::collections::BTreeMap;

use baton_election::{ElectionName, Op, Progress, Recalled, Reply, StoreError, Term};
use bytes::Bytes;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::Digest;
use crate::{LeaseStore, Listed, Listing, ModuleStore as _, ObjectStore, PlainObject};
use baton_base::clock::{rfc3339, wall};

/// Age beyond which an announcement no longer shows that its node is alive: three times the announcement interval.
pub const SILENT: time::Duration = time::Duration::minutes(3);

/// A node's labels (names and values), for people to read.
pub type Labels = BTreeMap<String, String>;

/// The maximum number of labels of a node.
pub const MOST_LABELS: usize = 16;

/// The maximum length of a label's name and of its value, in bytes.
pub const LONGEST_LABEL: usize = 63;

/// A node's modules, state and highest term. The node announces itself at each change and once a minute.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// The node's id.
    pub node: String,
    /// The incarnation: the id of this run of the node.
    pub incarnation: String,
    /// Time of the announcement, in RFC 3339.
    pub at: String,
    /// The source of the node's modules. Empty if not announced.
    #[serde(default)]
    pub source: String,
    /// The modules that the node could start immediately: the current version and the version to fall back to.
    pub holds: Vec<Digest>,
    /// The module that the node's instance runs. `None` on a standby.
    pub runs: Option<Digest>,
    /// The node's labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The highest term that the node has seen in the election, in this run or an earlier one. 0 if the node has seen
    /// or announced no term.
    #[serde(default)]
    pub term: Term,
    /// The progress of the election's scheduled runs, as far as the node knows, in the text form of [`Progress`]. Empty
    /// if the election has never had a schedule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub progress: String,
    /// The shards of the group, by index, as far as the node knows them. Empty in an election without shards.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shards: BTreeMap<u8, AnnouncedShard>,
    /// The number of shards to which the node is set. `None` in an election without shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_count: Option<u16>,
    /// The Baton version of the node's host. Empty if not announced.
    #[serde(default)]
    pub version: String,
    /// The [mark](crate::steering::Steering::mark) of the steering object as the node last read it. `None` if the node
    /// has not read the object yet, or if its host does not support steering.
    #[serde(default)]
    pub steered: Option<String>,
    /// The reason why the node is ineligible now: `maintenance` (of its machine), `suspended`, `stepped-down`,
    /// `transferring` or `cooling-off`. `None` if the node is eligible, or has not announced a reason.
    #[serde(default)]
    pub ineligible: Option<String>,
    /// The node's priority for taking a free lease, from 0 to 100. At 100, the node never lets other nodes go first.
    /// `None` if not announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// True if the host already leads its maximum number of elections. The host then takes this election's lease only
    /// if no other node does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_leadership_limit: bool,
    /// Maximum number of elections and shards that the host leads at the same time. `None` for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_leaderships: Option<usize>,
    /// The incarnation of another host with the same node id, if such a host has announced itself since this node's
    /// first announcement.
    #[serde(default)]
    pub duplicate: Option<String>,
    /// The address of the node's admin endpoint. Empty if the node has no endpoint, if other machines cannot use the
    /// endpoint, or if the address was not announced. An older host drops this field when it announces the node again.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub admin: String,
    /// The leader to which the node listens over a link. `None` if the node only polls the store, or has not announced
    /// a leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<AnnouncedLink>,
    /// The address and the certificate with which nodes on other machines connect to this node. `None` if the node has
    /// no links to other machines, or has not announced an address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<AnnouncedPeer>,
}

/// The address at which nodes on other machines reach a node, and the certificate that identifies the node. Unknown
/// fields are ignored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AnnouncedPeer {
    /// Host and port.
    #[serde(default)]
    pub address: String,
    /// The fingerprint of the certificate that the node presents at this address.
    #[serde(default)]
    pub certificate: String,
}

/// One shard in a node's announcement. Unknown fields are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AnnouncedShard {
    /// The highest term that the node has seen in the shard, in this run or an earlier one.
    #[serde(default)]
    pub term: Term,
    /// True if the node leads the shard.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leads: bool,
    /// True if the node cannot take the shard now, for example after a step-down.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refuses: bool,
}

/// The leader that a node listens to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AnnouncedLink {
    /// The leading node.
    pub to: String,
    /// Time at which the node began to listen, in RFC 3339.
    pub since: String,
}

impl Announcement {
    /// Creates the announcement of a node that has not seen a term yet, with the current time.
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
            progress: String::new(),
            shards: BTreeMap::new(),
            shard_count: None,
            version: String::new(),
            steered: None,
            ineligible: None,
            priority: None,
            at_leadership_limit: false,
            max_leaderships: None,
            duplicate: None,
            admin: String::new(),
            link: None,
            peer: None,
        }
    }

    /// Returns the election's term and progress in this announcement. Other nodes need both if the record is deleted.
    #[must_use]
    pub fn recalled(&self, election: &ElectionName) -> Recalled {
        let Some(shard) = election.shard() else {
            return Recalled { term: self.term, progress: self.progress.parse::<Progress>().ok().map(Box::new) };
        };
        Recalled { term: self.shards.get(&shard).map_or(0, |shard| shard.term), progress: None }
    }

    /// Sets the election's term and progress.
    pub fn set_recalled(&mut self, election: &ElectionName, recalled: &Recalled) {
        match election.shard() {
            None => {
                self.term = recalled.term;
                self.progress = recalled.progress.as_deref().map(Progress::to_string).unwrap_or_default();
            }
            Some(shard) => self.shards.entry(shard).or_default().term = recalled.term,
        }
    }

    /// Returns the announced terms and progress of each election: of the election itself or, for a group, of each
    /// shard.
    #[must_use]
    pub fn all_recalled(&self, election: &ElectionName) -> BTreeMap<ElectionName, Recalled> {
        let own = std::iter::once(election.without_shard());
        let all = own.chain(self.shards.keys().map(|index| election.with_shard(*index)));
        all.map(|election| (election.clone(), self.recalled(&election))).collect()
    }

    /// Encodes the announcement for the store.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        serde_json::json!(self).to_string().into()
    }

    /// Decodes an announcement. Returns `None` if the bytes were not written by a Baton node.
    #[must_use]
    pub fn decode(content: &[u8]) -> Option<Self> {
        serde_json::from_slice(content).ok()
    }

    /// Returns the time of the announcement. `None` if it contains no valid time.
    #[must_use]
    pub fn when(&self) -> Option<OffsetDateTime> {
        OffsetDateTime::parse(&self.at, &Rfc3339).ok()
    }

    /// True if the node may still be alive at `now`.
    #[must_use]
    pub fn is_fresh(&self, now: OffsetDateTime) -> bool {
        self.when().is_some_and(|at| now - at <= SILENT)
    }
}

/// Withdraws a node's announcement, unless the announcement may be the only object that contains a term and the
/// progress in `known`, for each election. Keeps the announcement if a record cannot be read, does not exist, or
/// contains a lower term or less progress. If `known` contains neither, always withdraws the announcement. Returns true
/// if the announcement was withdrawn.
///
/// # Errors
/// Returns the errors of the store. If the outcome is unknown, the announcement may have been withdrawn.
pub async fn withdraw(
    leases: &dyn LeaseStore,
    modules: &dyn ObjectStore,
    election: &ElectionName,
    node: &str,
    known: &BTreeMap<ElectionName, Recalled>,
) -> Result<bool, StoreError> {
    if !may_withdraw(leases, known).await {
        return Ok(false);
    }
    modules.withdraw(election, node).await?;
    Ok(true)
}

/// Age of an announcement beyond which its node counts as permanently dead. A live node announces itself every minute.
pub const GONE: time::Duration = time::Duration::hours(24);

/// Withdraws the announcements of dead nodes, under the same condition as [`withdraw`]. Without this call,
/// announcements would accumulate as nodes come and go, and each takeover would have to read all of them. Returns the
/// number of withdrawn announcements.
///
/// The age of an announcement is relative to the newest announcement, so this machine's clock does not matter. The
/// caller must announce its own node just before this call, so that the newest announcement is recent. If the store
/// does not record when announcements are written, this call uses the times in the announcements. Such a store serves
/// only one machine, so all these times come from the same clock.
///
/// # Errors
/// Returns the errors of the store.
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
        let announcement = content.and_then(|content| Announcement::decode(&content));
        announced.extend(
            announcement
                .and_then(|announcement| Some((announcement.when()?, listed, announcement.all_recalled(election)))),
        );
    }
    let newest_said = announced.iter().map(|(at, ..)| *at).max();
    let mut withdrawn = 0;
    for (at, Listed { object, put, .. }, known) in announced {
        let is_gone = put.is_some() || newest_said.is_some_and(|newest| newest - at > GONE);
        if is_gone && may_withdraw(leases, &known).await {
            // If the node has announced itself again in the meantime, the new announcement was written after `put`, and
            // the store keeps it.
            withdrawn += usize::from(modules.remove(&object, put).await?);
        }
    }
    Ok(withdrawn)
}

/// True if the record of each election contains the term and the progress in `known`, if there are any.
async fn may_withdraw(leases: &dyn LeaseStore, known: &BTreeMap<ElectionName, Recalled>) -> bool {
    let mut reads = Vec::new();
    for (election, known) in known {
        if *known != Recalled::default() {
            reads.push(async move {
                let read = leases.request(election, Op::Read).await;
                matches!(read, Ok(Reply::Read(read)) if read.covers(known))
            });
        }
    }
    let mut are_covered = futures::stream::iter(reads).buffer_unordered(READS_AT_ONCE);
    while let Some(is_covered) = are_covered.next().await {
        if !is_covered {
            return false;
        }
    }
    true
}

/// Maximum number of records to read at a time. A shutdown waits only briefly for all of them.
const READS_AT_ONCE: usize = 32;

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
    fn announcement_round_trips_through_its_encoding() {
        let digest = Digest::of(b"");
        let announcement = Announcement::now("web-3-0", "abc", "job.wasm", vec![digest], Some(digest));
        assert_eq!(Announcement::decode(&announcement.encode()), Some(announcement.clone()));
        let age = OffsetDateTime::now_utc() - announcement.when().unwrap();
        assert!(age.abs() < time::Duration::minutes(1), "{announcement:?}");
        let later = |minutes| announcement.is_fresh(OffsetDateTime::now_utc() + time::Duration::minutes(minutes));
        assert_eq!((later(0), later(4)), (true, false));
        let standby =
            Announcement { at: "2026-11-21T12:00:00.000000Z".to_owned(), runs: None, term: 7, ..announcement };
        let json = format!(
            r#"{{"at":"2026-11-21T12:00:00.000000Z","duplicate":null,"holds":["{digest}"],"incarnation":"abc","ineligible":null,"node":"web-3-0","runs":null,"source":"job.wasm","steered":null,"term":7,"version":""}}"#
        );
        assert_eq!(standby.encode(), json, "as hosts write it that know neither an address nor priorities");
        let admin = "https://web-3.example:7070".to_owned();
        let link = Some(AnnouncedLink { to: "web-2".to_owned(), since: "2026-11-21T12:00:00Z".to_owned() });
        let peer = Some(AnnouncedPeer { address: "web-3.example:7072".to_owned(), certificate: digest.to_string() });
        let more = Announcement { admin, priority: Some(50), at_leadership_limit: true, link, peer, ..standby };
        assert_eq!(Announcement::decode(&more.encode()), Some(more));
    }

    #[tokio::test]
    async fn dead_announcement_is_kept_if_it_alone_names_a_term() {
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
            paused_until: None,
            progress: None,
        };
        store.request(&job, Op::Create { record }).await.unwrap();
        for (node, term, at) in [("known", 6, 0), ("gone", 5, 0), ("none", 0, 0), ("slow", 0, 2), ("fresh", 1, 25)] {
            hour.store(at, Ordering::Relaxed);
            // The store itself records when each announcement was written. The times in the announcements have no
            // effect.
            let announcement = Announcement { term, ..Announcement::now(node, "i", "", Vec::new(), None) };
            store.announce(&job, node, announcement.encode()).await.unwrap();
        }
        assert_eq!(withdraw_gone(&store, &store, &job).await, Ok(2));
        let left: Vec<_> = store.announcements(&job).await.unwrap().into_iter().map(|(node, _)| node).collect();
        assert_eq!(left, ["fresh", "known", "slow"]);
        assert_eq!(withdraw_gone(&store, &store, &job).await, Ok(0));
    }

    #[test]
    fn decoding_ignores_unknown_fields_and_refuses_damage() {
        let more = br#"{"node":"n","incarnation":"i","at":"x","holds":[],"runs":null,"more":1}"#;
        let announcement = Announcement::decode(more).unwrap();
        assert_eq!(
            (announcement.node.as_str(), announcement.source.as_str(), announcement.when(), announcement.term),
            ("n", "", None, 0)
        );
        assert_eq!(
            (announcement.admin.as_str(), announcement.priority, announcement.at_leadership_limit),
            ("", None, false)
        );
        for none in
            [&b""[..], b"{}", b"null", b"\xff", br#"{"node":"n","incarnation":"i","at":"x","holds":["sha256:0"]}"#]
        {
            assert_eq!(Announcement::decode(none), None);
        }
    }
}
