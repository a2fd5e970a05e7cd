//! The table that holds the coordinators' state.

use async_trait::async_trait;
use baton_election::{ElectionName, Refusal, Version};
use bytes::Bytes;

use super::database::Access;
use super::{SqliteStore, versioned};
use crate::modules::Reading;
use crate::state::StateStore;

/// Made once, by `create`.
pub(super) const SCHEMA: &str = versioned::schema!("state");

#[async_trait]
impl StateStore for SqliteStore {
    async fn read(&self, election: &ElectionName) -> Result<Option<(Version, Bytes)>, Refusal> {
        let name = election.clone();
        self.in_lane(election, move |shared| {
            shared.states.transact(Access::Read, |db| {
                Ok(Ok(match versioned::read(db, "state", &name, None)? {
                    Reading::Found(version, content) => Some((version, content)),
                    Reading::Nothing | Reading::Unchanged => None,
                }))
            })
        })
        .await
    }

    async fn write(
        &self,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, Refusal> {
        let (name, version) = (election.clone(), version.cloned());
        self.in_lane(election, move |shared| {
            shared.states.transact(Access::Write, |db| versioned::write(db, "state", &name, version.as_ref(), &content))
        })
        .await
    }
}
