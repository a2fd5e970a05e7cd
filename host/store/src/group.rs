//! The object of a group of shards (`GROUP/group`): the number of shards.
//!
//! All nodes must divide the work into the same number of shards. The first node that acquires a shard writes the
//! object. A node acquires a shard only if the object names the node's own number, and checks this again after the
//! acquire, before the shard's first instance starts.

use std::sync::Arc;

use async_trait::async_trait;
use baton_election::{ElectionName, Op, Reply, Snapshot, StoreError};
use serde::{Deserialize, Serialize};

use crate::{LeaseStore, ObjectStore, Reading, VersionedObject};

/// The format that this version reads and writes. Raise this number with each new field.
const FORMAT: u64 = 1;

#[derive(Serialize, Deserialize)]
struct Group {
    format: u64,
    shards: u16,
}

/// A lease store for one node in one group, or in one election without shards. It refuses requests that could begin a
/// term if the store names another number of shards. All other requests pass.
pub struct GroupGuard {
    /// The leases.
    pub leases: Arc<dyn LeaseStore>,
    /// The store of the group's object.
    pub objects: Arc<dyn ObjectStore>,
    /// This node's number of shards; 1 for an election without shards.
    pub shards: u16,
}

impl GroupGuard {
    /// Compares the number of shards in the store with this node's. Writes the object if it does not exist.
    async fn check(&self, election: &ElectionName) -> Result<(), StoreError> {
        let (object, own) = (VersionedObject::Group, self.shards);
        loop {
            let content = match self.objects.read(object, election, None).await? {
                Reading::Found(_, content) => content,
                Reading::Nothing | Reading::Unchanged if own == 1 => return Ok(()),
                Reading::Nothing | Reading::Unchanged => {
                    let whole = election.without_shard();
                    if self.leases.request(&whole, Op::Read).await? != Reply::Read(Snapshot::Nothing) {
                        return Err(StoreError::Misconfigured(format!(
                            "{whole} is an election without shards: use another name for the group"
                        )));
                    }
                    let content = serde_json::json!(Group { format: FORMAT, shards: own }).to_string();
                    match self.objects.write(object, election, None, content.into()).await {
                        Ok(_) => return Ok(()),
                        // Another node was faster.
                        Err(StoreError::Conflict) => continue,
                        Err(error) => return Err(error),
                    }
                }
            };
            let group = election.group();
            return match serde_json::from_slice(&content) {
                Ok(Group { format: FORMAT, shards }) if shards == own => Ok(()),
                Ok(Group { format: FORMAT, shards }) => Err(StoreError::Misconfigured(format!(
                    "{group} has {shards} shards, but this node is set to {own}: set `shards` to {shards}"
                ))),
                Ok(Group { format, .. }) => Err(StoreError::Misconfigured(format!(
                    "the number of shards of {group} has format {format}, but this version of Baton reads {FORMAT}: \
                     update this host"
                ))),
                Err(error) => Err(StoreError::Misconfigured(format!(
                    "the number of shards of {group} cannot be read: {error}; delete its object to start over"
                ))),
            };
        }
    }
}

#[async_trait]
impl LeaseStore for GroupGuard {
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
        let begins_term = match &op {
            // Check before the acquire, too: a node with a wrong number must not keep a lease from other nodes.
            Op::Create { .. } => true,
            // A group is refused if the record of an election exists. So an election without shards checks only before
            // it creates its record.
            _ if self.shards == 1 => false,
            Op::Acquire { .. } | Op::Reclaim { .. } => true,
            // A node writes a term under the lease, before the term's instance starts.
            Op::Write { record, .. } => !record.released,
            Op::Read | Op::Recall | Op::Survey | Op::Renew { .. } | Op::Release { .. } => false,
        };
        if begins_term {
            self.check(election).await?;
        }
        self.leases.request(election, op).await
    }

    async fn break_now(&self, election: &ElectionName) -> Result<(), StoreError> {
        self.leases.break_now(election).await
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, StoreError> {
        self.leases.elections().await
    }

    async fn create(&self) -> Result<(), StoreError> {
        self.leases.create().await
    }

    fn lease_range(&self) -> (std::time::Duration, std::time::Duration) {
        self.leases.lease_range()
    }

    fn slow_step(&self) -> Option<String> {
        self.leases.slow_step()
    }

    async fn hint(&self, election: &ElectionName) {
        self.leases.hint(election).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::time::Duration;

    use baton_election::{LeaseId, Record};

    use super::*;
    use crate::MemoryStore;

    fn record(released: bool) -> Record {
        Record {
            term: 1,
            node: Some("a".to_owned()),
            incarnation: "i".to_owned(),
            since: Duration::ZERO,
            lease: Duration::from_secs(15),
            module: None,
            outcome: None,
            failures: 0,
            released,
            paused_until: None,
            progress: None,
        }
    }

    #[tokio::test]
    async fn node_with_another_number_of_shards_begins_no_term() {
        let store = Arc::new(MemoryStore::new(Arc::new(|| Duration::ZERO)));
        let guard = |shards| GroupGuard { leases: Arc::clone(&store) as _, objects: Arc::clone(&store) as _, shards };
        let (right, wrong, shard) = (guard(16), guard(12), ElectionName::new("crawl/3").unwrap());
        right.request(&shard, Op::Create { record: record(true) }).await.unwrap();
        let id = LeaseId::from_random(7);
        let version = async || match store.request(&shard, Op::Read).await {
            Ok(Reply::Read(Snapshot::Object { version, .. })) => version,
            other => panic!("{other:?}"),
        };
        let length = Duration::from_secs(15);
        let acquire = Op::Acquire { id, length, version: version().await, instead_of: None };
        assert_eq!(right.request(&shard, acquire.clone()).await, Ok(Reply::Done), "the first node sets the number");
        for op in [acquire, Op::Write { id, version: version().await, record: record(false) }] {
            assert!(matches!(wrong.request(&shard, op).await, Err(StoreError::Misconfigured(_))));
        }
        // The node can still give up a lease.
        let mark = Op::Write { id, version: version().await, record: record(true) };
        assert!(matches!(wrong.request(&shard, mark).await, Ok(Reply::Version(_))));
        assert_eq!(wrong.request(&shard, Op::Release { id }).await, Ok(Reply::Done));
    }

    #[tokio::test]
    async fn damaged_number_of_shards_begins_no_term() {
        let store = Arc::new(MemoryStore::new(Arc::new(|| Duration::ZERO)));
        let guard = GroupGuard { leases: Arc::clone(&store) as _, objects: Arc::clone(&store) as _, shards: 4 };
        let group = ElectionName::new("crawl").unwrap();
        let mut version = None;
        for content in ["", "{}", "{\"format\":2,\"shards\":4}", "{\"format\":1,\"shards\":70000}"] {
            version =
                Some(store.write(VersionedObject::Group, &group, version.as_ref(), content.into()).await.unwrap());
            let checked = guard.check(&group.with_shard(0)).await;
            assert!(matches!(checked, Err(StoreError::Misconfigured(_))), "{content}: {checked:?}");
        }
    }
}
