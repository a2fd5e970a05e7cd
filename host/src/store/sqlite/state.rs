//! The table that holds the coordinators' state.

use async_trait::async_trait;
use baton_election::{ElectionName, Refusal, Version};
use bytes::Bytes;
use rusqlite::{OptionalExtension, params};

use super::database::Access;
use super::{SqliteStore, new_version};
use crate::state::StateStore;

/// Made once, by `create`.
pub(super) const SCHEMA: &str = "
CREATE TABLE state (election TEXT PRIMARY KEY, version TEXT NOT NULL, content BLOB NOT NULL) STRICT;";

#[async_trait]
impl StateStore for SqliteStore {
    async fn read(&self, election: &ElectionName) -> Result<Option<(Version, Bytes)>, Refusal> {
        let name = election.clone();
        self.in_lane(election, move |shared| {
            shared.states.transact(Access::Read, |db| {
                db.prepare_cached("SELECT version, content FROM state WHERE election = ?1")?
                    .query_row([name.as_str()], |row| Ok((Version(row.get(0)?), row.get::<_, Vec<u8>>(1)?.into())))
                    .optional()
                    .map(Ok)
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
            let next = new_version()?;
            shared.states.transact(Access::Write, |db| {
                let changed =
                    match &version {
                        Some(version) => db
                            .prepare_cached(
                                "UPDATE state SET version = ?2, content = ?3 WHERE election = ?1 AND version = ?4",
                            )?
                            .execute(params![name.as_str(), next.0, &content[..], version.0])?,
                        None => db
                            .prepare_cached("INSERT OR IGNORE INTO state VALUES (?1, ?2, ?3)")?
                            .execute(params![name.as_str(), next.0, &content[..]])?,
                    };
                Ok(if changed == 0 { Err(Refusal::Conflict) } else { Ok(next) })
            })
        })
        .await
    }
}
