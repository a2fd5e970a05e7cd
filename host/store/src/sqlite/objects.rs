//! The tables for state, control objects, steering objects, modules and history.
//!
//! State has its own file, so that no commit delays a renewal. Modules have their own file, because a client that
//! writes a large module locks out all readers of the file, and every node reads control objects every few seconds.
//! History has its own file, so that nothing more important has to wait for it.

use async_trait::async_trait;
use baton_election::{ElectionName, StoreError, Version};
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, params};
use time::OffsetDateTime;

use super::database::{Database, Intent, Step};
use super::{Databases, SqliteStore, elections, new_version};
use crate::state::HEAD;
use crate::{Listed, Listing, ObjectStore, PlainObject, Reading, VersionedObject};

pub(super) const STATES_SCHEMA: &str =
    "CREATE TABLE state (election TEXT PRIMARY KEY, version TEXT NOT NULL, content BLOB NOT NULL) STRICT;\n";

pub(super) const CONTROL_SCHEMA: &str =
    "CREATE TABLE control (election TEXT PRIMARY KEY, version TEXT NOT NULL, content BLOB NOT NULL) STRICT;";

pub(super) const HISTORY_SCHEMA: &str =
    "CREATE TABLE history (election TEXT PRIMARY KEY, version TEXT NOT NULL, content BLOB NOT NULL) STRICT;";

/// The table of modules. The column `stored` is in seconds since 1970.
pub(super) const MODULES_SCHEMA: &str =
    "CREATE TABLE module (digest TEXT PRIMARY KEY, stored INTEGER NOT NULL, content BLOB NOT NULL) STRICT;";

pub(super) const CONTROL: &str = "control";

#[async_trait]
impl ObjectStore for SqliteStore {
    async fn read(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        known: Option<&Version>,
    ) -> Result<Reading, StoreError> {
        if matches!(object, VersionedObject::Control | VersionedObject::Steering | VersionedObject::Group) {
            return self.read_shared(object, election, known).await;
        }
        let (key, known) = (key(object, election), known.cloned());
        self.in_lane(election, move |shared| {
            let (database, table) = shared.place(object);
            database.transact(Intent::Read, |db| read(db, table, &key, known.as_ref()).map(Ok))
        })
        .await
    }

    async fn write(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, StoreError> {
        let (key, version) = (key(object, election), version.cloned());
        self.in_lane(election, move |shared| {
            let (database, table) = shared.place(object);
            database.transact(Intent::Write, |db| write(db, table, &key, version.as_ref(), &content))
        })
        .await
    }

    async fn delete(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: &Version,
    ) -> Result<(), StoreError> {
        let (key, version) = (key(object, election), version.clone());
        self.in_lane(election, move |shared| {
            let (database, table) = shared.place(object);
            database.transact(Intent::Write, |db| {
                let deleted = format!("DELETE FROM {table} WHERE election = ?1 AND version = ?2");
                db.execute(&deleted, [key.as_str(), &version.0])?;
                let is_left = format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE election = ?1)");
                let is_left: bool = db.query_row(&is_left, [&key], |row| row.get(0))?;
                Ok(if is_left { Err(StoreError::Conflict) } else { Ok(()) })
            })
        })
        .await
    }

    async fn elections_with(&self, object: VersionedObject) -> Result<Vec<ElectionName>, StoreError> {
        self.blocking(move |shared| {
            let (database, table) = shared.place(object);
            database.transact(Intent::Read, |db| {
                let mut names = db.prepare_cached(&format!("SELECT election FROM {table}"))?;
                let names = names.query_map([], |row| row.get::<_, String>(0))?;
                let own = names.filter_map(|name| {
                    name.map(|name| name.strip_suffix(suffix(object)).map(str::to_owned)).transpose()
                });
                let mut found = elections(own)?;
                found.sort_unstable();
                Ok(Ok(found))
            })
        })
        .await
    }

    async fn put(&self, object: &PlainObject, content: Bytes) -> Result<(), StoreError> {
        self.on(object, move |shared, object| match object {
            PlainObject::Announcement(election, node) => shared.announcements.put(election, node, &content),
            PlainObject::Module(digest) => shared.modules.transact(Intent::Write, |db| {
                let digest = digest.to_string();
                let known = db
                    .prepare_cached("UPDATE module SET stored = unixepoch() WHERE digest = ?1")?
                    .execute([&digest])?;
                if known == 0 {
                    db.prepare_cached("INSERT INTO module VALUES (?1, unixepoch(), ?2)")?
                        .execute(params![digest, &content[..]])?;
                }
                Ok(Ok(()))
            }),
        })
        .await
    }

    async fn get(&self, object: &PlainObject, limit: u64) -> Result<Option<Bytes>, StoreError> {
        self.on(object, move |shared, object| match object {
            PlainObject::Announcement(election, node) => shared.announcements.get(election, node, limit),
            PlainObject::Module(digest) => shared.modules.transact(Intent::Read, |db| {
                let limit = i64::try_from(limit).unwrap_or(i64::MAX);
                // `substr` turns empty content into NULL.
                db.prepare_cached(
                    "SELECT CASE WHEN length(content) > ?1 THEN substr(content, 1, ?1) ELSE content END \
                     FROM module WHERE digest = ?2",
                )?
                .query_row(params![limit, digest.to_string()], |row| row.get::<_, Vec<u8>>(0).map(Bytes::from))
                .optional()
                .map(Ok)
            }),
        })
        .await
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Listed>, StoreError> {
        match listing {
            Listing::Announcements(election) => {
                let name = election.clone();
                let list = move |shared: &Databases| shared.announcements.list(&name);
                let listed = self.in_turn(self.announcement_lane(), list).await?;
                let of_node = |(node, size)| {
                    let object = PlainObject::Announcement(election.clone(), node);
                    Listed { object, size, put: None }
                };
                Ok(listed.into_iter().map(of_node).collect())
            }
            Listing::Modules => {
                self.in_turn(self.module_lane(), |shared| {
                    shared.modules.transact(Intent::Read, |db| {
                        let mut modules =
                            db.prepare_cached("SELECT digest, length(content), stored FROM module ORDER BY digest")?;
                        let modules =
                            modules.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?, row.get(2)?)))?;
                        // Skip rows that Baton could not have written.
                        modules
                            .filter_map(|row| {
                                row.map(|(digest, size, stored)| module(&digest, size, stored)).transpose()
                            })
                            .collect::<Result<_, _>>()
                            .map(Ok)
                    })
                })
                .await
            }
        }
    }

    async fn remove(&self, object: &PlainObject, put_until: Option<OffsetDateTime>) -> Result<bool, StoreError> {
        let until = put_until.map_or(i64::MAX, OffsetDateTime::unix_timestamp);
        self.on(object, move |shared, object| match object {
            PlainObject::Announcement(election, node) => shared.announcements.remove(election, node).map(|()| true),
            PlainObject::Module(digest) => shared.modules.transact(Intent::Write, |db| {
                let digest = digest.to_string();
                db.execute("DELETE FROM module WHERE digest = ?1 AND stored <= ?2", params![digest, until])?;
                let is_gone = "SELECT NOT EXISTS (SELECT 1 FROM module WHERE digest = ?1)";
                db.query_row(is_gone, [digest], |row| row.get(0)).map(Ok)
            }),
        })
        .await
    }
}

impl SqliteStore {
    async fn on<T: Send + 'static>(
        &self,
        object: &PlainObject,
        work: impl FnOnce(&Databases, &PlainObject) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let lane = match object {
            PlainObject::Announcement(..) => self.announcement_lane(),
            PlainObject::Module(_) => self.module_lane(),
        };
        let object = object.clone();
        self.in_turn(lane, move |shared| work(shared, &object)).await
    }
}

impl Databases {
    pub(super) fn version(
        &self,
        object: VersionedObject,
        election: &ElectionName,
    ) -> Result<Option<Version>, StoreError> {
        let (database, table) = self.place(object);
        database.transact(Intent::Read, |db| {
            db.prepare_cached(&format!("SELECT version FROM {table} WHERE election = ?1"))?
                .query_row([key(object, election)], |row| row.get(0).map(Version))
                .optional()
                .map(Ok)
        })
    }

    pub(super) fn place(&self, object: VersionedObject) -> (&Database, &'static str) {
        match object {
            VersionedObject::State => (&self.states, "state"),
            VersionedObject::Control | VersionedObject::Steering | VersionedObject::Group => (&self.control, CONTROL),
            VersionedObject::History => (&self.history, "history"),
        }
    }
}

/// Returns the key of an election's row. Several types of objects share a table, so that a store from an older version
/// of Baton can hold all of them. The key of a steering object or a group is not a valid election name, so older hosts
/// ignore its row.
pub(super) fn key(object: VersionedObject, election: &ElectionName) -> String {
    format!("{}{}", object.owner(election), suffix(object))
}

fn suffix(object: VersionedObject) -> &'static str {
    match object {
        VersionedObject::State | VersionedObject::Control | VersionedObject::History => "",
        VersionedObject::Steering => "/steering",
        VersionedObject::Group => "/group",
    }
}

/// Does not read the content if the object has the version `known`.
pub(super) fn read(
    db: &Connection,
    table: &'static str,
    key: &str,
    known: Option<&Version>,
) -> rusqlite::Result<Reading> {
    let found = db
        .prepare_cached(&format!(
            "SELECT version, CASE WHEN version = ?2 THEN NULL ELSE content END FROM {table} WHERE election = ?1"
        ))?
        .query_row(params![key, known.map(|version| &version.0)], |row| {
            Ok((Version(row.get(0)?), row.get::<_, Option<Vec<u8>>>(1)?))
        })
        .optional()?;
    Ok(match found {
        None => Reading::Nothing,
        Some((_, None)) => Reading::Unchanged,
        Some((version, Some(content))) => Reading::Found(version, content.into()),
    })
}

fn write(db: &Connection, table: &'static str, key: &str, version: Option<&Version>, content: &[u8]) -> Step<Version> {
    let next = match new_version() {
        Ok(next) => next,
        Err(error) => return Ok(Err(error)),
    };
    let changed = match version {
        Some(version) => db
            .prepare_cached(&format!(
                "UPDATE {table} SET version = ?2, content = ?3 WHERE election = ?1 AND version = ?4"
            ))?
            .execute(params![key, next.0, content, version.0])?,
        None => db
            .prepare_cached(&format!("INSERT OR IGNORE INTO {table} VALUES (?1, ?2, ?3)"))?
            .execute(params![key, next.0, content])?,
    };
    Ok(if changed == 0 { Err(StoreError::Conflict) } else { Ok(next) })
}

/// Reads the first bytes of an election's state, which contain its term.
pub(super) fn state_head(db: &Connection, election: &ElectionName) -> rusqlite::Result<Option<Vec<u8>>> {
    db.prepare_cached("SELECT substr(content, 1, ?2) FROM state WHERE election = ?1")?
        .query_row(params![election.as_str(), i64::try_from(HEAD).unwrap_or(i64::MAX)], |row| {
            // `substr` turns empty content into NULL.
            Ok(row.get::<_, Option<Vec<u8>>>(0)?.unwrap_or_default())
        })
        .optional()
}

fn module(digest: &str, size: i64, stored: i64) -> Option<Listed> {
    Some(Listed {
        object: PlainObject::Module(digest.parse().ok()?),
        size: u64::try_from(size).ok()?,
        put: Some(OffsetDateTime::from_unix_timestamp(stored).ok()?),
    })
}
