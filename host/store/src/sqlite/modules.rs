//! The tables that hold modules, what elections are told about them, and what nodes say that they have.
//!
//! Modules have a file of their own: who writes one of many megabytes keeps readers out for as long as the disk
//! takes, and what elections are told is read by every node every few seconds.

use async_trait::async_trait;
use baton_election::{ElectionName, Refusal, Version};
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use time::OffsetDateTime;

use super::database::Access;
use super::{SqliteStore, elections, versioned};
use crate::{Digest, ModuleStore, Reading, StoredModule};

/// Of `control.db`; made once, by `create`.
pub(super) const CONTROL_SCHEMA: &str = concat!(
    versioned::schema!("control"),
    "CREATE TABLE node (election TEXT, node TEXT, content BLOB NOT NULL, PRIMARY KEY (election, node)) STRICT;"
);

/// Of `modules.db`; made once, by `create`. `stored` is in seconds since 1970.
pub(super) const MODULES_SCHEMA: &str =
    "CREATE TABLE module (digest TEXT PRIMARY KEY, stored INTEGER NOT NULL, content BLOB NOT NULL) STRICT;";

#[async_trait]
impl ModuleStore for SqliteStore {
    async fn read_control(&self, election: &ElectionName, known: Option<&Version>) -> Result<Reading, Refusal> {
        let (name, known) = (election.clone(), known.cloned());
        self.in_lane(election, move |shared| {
            shared.control.transact(Access::Read, |db| versioned::read(db, "control", &name, known.as_ref()).map(Ok))
        })
        .await
    }

    async fn write_control(
        &self,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, Refusal> {
        let (name, version) = (election.clone(), version.cloned());
        self.in_lane(election, move |shared| {
            shared
                .control
                .transact(Access::Write, |db| versioned::write(db, "control", &name, version.as_ref(), &content))
        })
        .await
    }

    async fn controlled(&self) -> Result<Vec<ElectionName>, Refusal> {
        self.blocking(|shared| {
            shared.control.transact(Access::Read, |db| {
                let mut names = db.prepare_cached("SELECT election FROM control ORDER BY election")?;
                elections(names.query_map([], |row| row.get(0))?).map(Ok)
            })
        })
        .await
    }

    async fn put_module(&self, digest: &Digest, content: Bytes) -> Result<(), Refusal> {
        let digest = digest.to_string();
        self.in_turn(self.module_lane(), move |shared| {
            shared.modules.transact(Access::Write, |db| {
                let known = db
                    .prepare_cached("UPDATE module SET stored = unixepoch() WHERE digest = ?1")?
                    .execute([&digest])?;
                if known == 0 {
                    db.prepare_cached("INSERT INTO module VALUES (?1, unixepoch(), ?2)")?
                        .execute(params![digest, &content[..]])?;
                }
                Ok(Ok(()))
            })
        })
        .await
    }

    async fn get_module(&self, digest: &Digest, limit: u64) -> Result<Option<Bytes>, Refusal> {
        let digest = digest.to_string();
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.in_turn(self.module_lane(), move |shared| {
            shared.modules.transact(Access::Read, |db| {
                // What is left of nothing would be NULL.
                db.prepare_cached(
                    "SELECT CASE WHEN length(content) > ?2 THEN substr(content, 1, ?2) ELSE content END
                       FROM module WHERE digest = ?1",
                )?
                .query_row(params![digest, limit], |row| row.get::<_, Vec<u8>>(0).map(Bytes::from))
                .optional()
                .map(Ok)
            })
        })
        .await
    }

    async fn modules(&self) -> Result<Vec<StoredModule>, Refusal> {
        self.in_turn(self.module_lane(), |shared| {
            shared.modules.transact(Access::Read, |db| {
                let mut modules =
                    db.prepare_cached("SELECT digest, length(content), stored FROM module ORDER BY digest")?;
                let modules = modules.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?, row.get(2)?)))?;
                // Rows that Baton could not have written are nobody's modules.
                modules
                    .filter_map(|module| {
                        module.map(|(digest, size, stored)| stored_module(&digest, size, stored)).transpose()
                    })
                    .collect::<Result<_, _>>()
                    .map(Ok)
            })
        })
        .await
    }

    async fn remove_module(&self, digest: &Digest, stored_until: Option<OffsetDateTime>) -> Result<bool, Refusal> {
        let digest = digest.to_string();
        let until = stored_until.map_or(i64::MAX, OffsetDateTime::unix_timestamp);
        self.in_turn(self.module_lane(), move |shared| {
            shared.modules.transact(Access::Write, |db| {
                db.execute("DELETE FROM module WHERE digest = ?1 AND stored <= ?2", params![digest, until])?;
                db.query_row("SELECT NOT EXISTS (SELECT 1 FROM module WHERE digest = ?1)", [digest], |row| row.get(0))
                    .map(Ok)
            })
        })
        .await
    }

    async fn announce(&self, election: &ElectionName, node: &str, content: Bytes) -> Result<(), Refusal> {
        let (name, node) = (election.clone(), node.to_owned());
        self.in_lane(election, move |shared| {
            shared.control.transact(Access::Write, |db| {
                db.prepare_cached("INSERT OR REPLACE INTO node VALUES (?1, ?2, ?3)")?
                    .execute(params![name.as_str(), node, &content[..]])
                    .map(|_| Ok(()))
            })
        })
        .await
    }

    async fn announcements(&self, election: &ElectionName) -> Result<Vec<(String, Bytes)>, Refusal> {
        let name = election.clone();
        self.in_lane(election, move |shared| {
            shared.control.transact(Access::Read, |db| announcements(db, &name).map(Ok))
        })
        .await
    }

    async fn announced(&self, election: &ElectionName, node: &str) -> Result<Option<Bytes>, Refusal> {
        let (name, node) = (election.clone(), node.to_owned());
        self.in_lane(election, move |shared| {
            shared.control.transact(Access::Read, |db| {
                db.prepare_cached("SELECT content FROM node WHERE election = ?1 AND node = ?2")?
                    .query_row([name.as_str(), &node], |row| row.get::<_, Vec<u8>>(0).map(Bytes::from))
                    .optional()
                    .map(Ok)
            })
        })
        .await
    }

    async fn withdraw(&self, election: &ElectionName, node: &str) -> Result<(), Refusal> {
        let (name, node) = (election.clone(), node.to_owned());
        self.in_lane(election, move |shared| {
            shared.control.transact(Access::Write, |db| {
                db.execute("DELETE FROM node WHERE election = ?1 AND node = ?2", [name.as_str(), &node]).map(|_| Ok(()))
            })
        })
        .await
    }
}

/// What the nodes of an election have said, by node.
pub(super) fn announcements(db: &Connection, election: &ElectionName) -> rusqlite::Result<Vec<(String, Bytes)>> {
    let mut nodes = db.prepare_cached("SELECT node, content FROM node WHERE election = ?1 ORDER BY node")?;
    let nodes = nodes.query_map([election.as_str()], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?.into())))?;
    nodes.collect()
}

fn stored_module(digest: &str, size: i64, stored: i64) -> Option<StoredModule> {
    Some(StoredModule {
        digest: digest.parse().ok()?,
        size: u64::try_from(size).ok()?,
        stored: OffsetDateTime::from_unix_timestamp(stored).ok()?,
    })
}
