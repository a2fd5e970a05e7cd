//! The table that holds the coordinators' state.

use async_trait::async_trait;
use baton_election::{ElectionName, Refusal, Version};
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};

use super::database::Access;
use super::{SqliteStore, versioned};
use crate::Reading;
use crate::state::{HEAD, StateStore};

/// Made once, by `create`.
pub(super) const SCHEMA: &str = versioned::schema!("state");

/// As much of an election's state as names its term.
pub(super) fn head(db: &Connection, election: &ElectionName) -> rusqlite::Result<Option<Vec<u8>>> {
    db.prepare_cached("SELECT substr(content, 1, ?2) FROM state WHERE election = ?1")?
        .query_row(params![election.as_str(), i64::try_from(HEAD).unwrap_or(i64::MAX)], |row| {
            // What is left of nothing is NULL.
            Ok(row.get::<_, Option<Vec<u8>>>(0)?.unwrap_or_default())
        })
        .optional()
}

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
