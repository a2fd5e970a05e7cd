//! The tables for leases: the leases, the marks of released records, the pauses, the progress of scheduled runs, and
//! the notes about lease holders.
//!
//! The columns of the table `lease` cannot change: old hosts do not know marks, and write whole rows by column
//! position. So marks have their own table. A mark contains the version of its record, so it does not apply to a record
//! that an old host writes later. Pauses, progress and notes work in the same way. Notes also contain the lease's id,
//! because an old host that acquires the lease chooses a new id.

use std::time::Duration;

use baton_election::{ElectionName, LeaseId, Outcome, Progress, Record, Version};
use rusqlite::{Connection, OptionalExtension, named_params};

use crate::lease::{Lease, LeaseObject};
use crate::witness::LockFileId;

/// The table of leases, which `create` creates. Times are in nanoseconds.
pub(super) const SCHEMA: &str = "
CREATE TABLE lease (
  election TEXT PRIMARY KEY, version TEXT NOT NULL,
  term INTEGER, node TEXT, incarnation TEXT, since INTEGER, lease INTEGER, module TEXT, outcome TEXT, failures INTEGER,
  holder BLOB, length INTEGER, broken_after INTEGER, changes INTEGER NOT NULL,
  changed INTEGER NOT NULL, boot TEXT NOT NULL, time_namespace TEXT NOT NULL
) STRICT, WITHOUT ROWID;";

/// The table of marks. The first mark creates this table, because the file may lack the table: an older host may have
/// created the file, or an operator may have restored an old file.
const RELEASED: &str = "
CREATE TABLE IF NOT EXISTS released (election TEXT PRIMARY KEY, version TEXT NOT NULL) STRICT, WITHOUT ROWID;";

/// The table of pauses. The first pause creates this table, for the same reasons as [`RELEASED`].
const REST: &str = "
CREATE TABLE IF NOT EXISTS rest (election TEXT PRIMARY KEY, version TEXT NOT NULL, until INTEGER NOT NULL) STRICT, WITHOUT ROWID;";

/// The table of the progress of scheduled runs. The first write creates this table, for the same reasons as
/// [`RELEASED`].
const PROGRESS: &str = "
CREATE TABLE IF NOT EXISTS progress (election TEXT PRIMARY KEY, version TEXT NOT NULL, text TEXT NOT NULL) STRICT, WITHOUT ROWID;";

/// The table of notes. The first note creates this table, for the same reasons as [`RELEASED`].
pub(super) const HOLDER: &str = "
CREATE TABLE IF NOT EXISTS holder (
  election TEXT PRIMARY KEY, version TEXT NOT NULL, id BLOB NOT NULL,
  incarnation TEXT NOT NULL, device INTEGER NOT NULL, inode INTEGER NOT NULL, boot TEXT NOT NULL
) STRICT, WITHOUT ROWID;";

/// The time of a lease's last change, and the boot clock on which it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    pub at: Duration,
    pub boot: String,
    pub time_namespace: String,
}

pub(super) fn load(db: &Connection, election: &ElectionName) -> rusqlite::Result<Option<(LeaseObject, Stamp)>> {
    let found = db
        .prepare_cached("SELECT * FROM lease WHERE election = ?1")?
        .query_row([election.as_str()], read)
        .optional()?;
    let Some((mut row, stamp)) = found else { return Ok(None) };
    if let Some(record) = &mut row.record {
        record.released = is_released(db, election, &row.version)?;
        record.paused_until = paused_until(db, election, &row.version)?;
        record.progress = progress(db, election, &row.version)?;
    }
    Ok(Some((row, stamp)))
}

pub(super) fn save(db: &Connection, election: &ElectionName, row: &LeaseObject, stamp: &Stamp) -> rusqlite::Result<()> {
    let record = row.record.as_ref();
    db.prepare_cached(
        "INSERT OR REPLACE INTO lease VALUES (:election, :version,
           :term, :node, :incarnation, :since, :lease, :module, :outcome, :failures,
           :holder, :length, :broken_after, :changes, :changed, :boot, :time_namespace)",
    )?
    .execute(named_params! {
        ":election": election.as_str(),
        ":version": row.version.0,
        ":term": record.map(|r| r.term.cast_signed()),
        ":node": record.and_then(|r| r.node.as_deref()),
        ":incarnation": record.map(|r| r.incarnation.as_str()),
        ":since": record.map(|r| nanoseconds(r.since)),
        ":lease": record.map(|r| nanoseconds(r.lease)),
        ":module": record.and_then(|r| r.module.as_deref()),
        ":outcome": record.and_then(|r| r.outcome).map(|Outcome::Done| "done"),
        ":failures": record.map(|r| r.failures),
        ":holder": row.lease.holder.map(|id| id.as_u128().to_be_bytes()),
        ":length": row.lease.length.map(nanoseconds),
        ":broken_after": row.lease.broken_after.map(nanoseconds),
        ":changes": row.lease.changes.cast_signed(),
        ":changed": nanoseconds(stamp.at),
        ":boot": stamp.boot,
        ":time_namespace": stamp.time_namespace,
    })?;
    if record.is_some_and(|record| record.released) {
        db.execute_batch(RELEASED)?;
        db.prepare_cached("INSERT OR REPLACE INTO released VALUES (?1, ?2)")?
            .execute([election.as_str(), &row.version.0])?;
    }
    if let Some(until) = record.and_then(|record| record.paused_until) {
        db.execute_batch(REST)?;
        db.prepare_cached("INSERT OR REPLACE INTO rest VALUES (?1, ?2, ?3)")?.execute(rusqlite::params![
            election.as_str(),
            &row.version.0,
            nanoseconds(until)
        ])?;
    }
    if let Some(progress) = record.and_then(|record| record.progress.as_ref()) {
        db.execute_batch(PROGRESS)?;
        db.prepare_cached("INSERT OR REPLACE INTO progress VALUES (?1, ?2, ?3)")?.execute([
            election.as_str(),
            &row.version.0,
            &progress.to_string(),
        ])?;
    }
    Ok(())
}

pub(super) fn delete(db: &Connection, election: &ElectionName) -> rusqlite::Result<()> {
    db.execute("DELETE FROM lease WHERE election = ?1", [election.as_str()])?;
    for table in ["released", "rest", "progress", "holder"] {
        if has(db, table)? {
            db.execute(&format!("DELETE FROM {table} WHERE election = ?1"), [election.as_str()])?;
        }
    }
    Ok(())
}

fn has(db: &Connection, table: &str) -> rusqlite::Result<bool> {
    db.prepare_cached("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1)")?
        .query_row([table], |row| row.get(0))
}

/// Writes a note: the incarnation of the lock file `place` holds the lease under `id`, and began its term with this
/// `version` of the record.
pub(super) fn note_holder(
    db: &Connection,
    election: &ElectionName,
    id: LeaseId,
    version: &Version,
    place: &LockFileId,
    boot: &str,
) -> rusqlite::Result<()> {
    db.execute_batch(HOLDER)?;
    db.prepare_cached(
        "INSERT OR REPLACE INTO holder VALUES (:election, :version, :id, :incarnation, :device, :inode, :boot)",
    )?
    .execute(named_params! {
        ":election": election.as_str(),
        ":version": version.0,
        ":id": id.as_u128().to_be_bytes(),
        ":incarnation": place.incarnation,
        ":device": place.device.cast_signed(),
        ":inode": place.inode.cast_signed(),
        ":boot": boot,
    })?;
    Ok(())
}

/// Returns the lock file of the incarnation that holds the lease, if there is a valid note. The note must be from this
/// boot, and contain the lease's current id and the record's current version.
pub(super) fn holder(
    db: &Connection,
    election: &ElectionName,
    row: &LeaseObject,
    boot: &str,
) -> rusqlite::Result<Option<LockFileId>> {
    let (Some(id), Some(Record { node: Some(_), incarnation, .. })) = (row.lease.holder, &row.record) else {
        return Ok(None);
    };
    if !has(db, "holder")? {
        return Ok(None);
    }
    db.prepare_cached(
        "SELECT incarnation, device, inode FROM holder
         WHERE election = ?1 AND version = ?2 AND id = ?3 AND incarnation = ?4 AND boot = ?5",
    )?
    .query_row((election.as_str(), &row.version.0, id.as_u128().to_be_bytes(), incarnation, boot), |row| {
        let (device, inode): (i64, i64) = (row.get(1)?, row.get(2)?);
        Ok(LockFileId { incarnation: row.get(0)?, device: device.cast_unsigned(), inode: inode.cast_unsigned() })
    })
    .optional()
}

pub(super) fn holders(db: &Connection) -> rusqlite::Result<Vec<String>> {
    if !has(db, "holder")? {
        return Ok(Vec::new());
    }
    db.prepare_cached("SELECT incarnation FROM holder")?.query_map([], |row| row.get(0))?.collect()
}

fn is_released(db: &Connection, election: &ElectionName, version: &Version) -> rusqlite::Result<bool> {
    if !has(db, "released")? {
        return Ok(false);
    }
    db.prepare_cached("SELECT EXISTS (SELECT 1 FROM released WHERE election = ?1 AND version = ?2)")?
        .query_row([election.as_str(), &version.0], |row| row.get(0))
}

fn paused_until(db: &Connection, election: &ElectionName, version: &Version) -> rusqlite::Result<Option<Duration>> {
    if !has(db, "rest")? {
        return Ok(None);
    }
    let until = db
        .prepare_cached("SELECT until FROM rest WHERE election = ?1 AND version = ?2")?
        .query_row([election.as_str(), &version.0], |row| row.get(0))
        .optional()?;
    Ok(until.map(duration))
}

fn progress(db: &Connection, election: &ElectionName, version: &Version) -> rusqlite::Result<Option<Box<Progress>>> {
    if !has(db, "progress")? {
        return Ok(None);
    }
    let text: Option<String> = db
        .prepare_cached("SELECT text FROM progress WHERE election = ?1 AND version = ?2")?
        .query_row([election.as_str(), &version.0], |row| row.get(0))
        .optional()?;
    Ok(text.and_then(|text| text.parse().ok()).map(Box::new))
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<(LeaseObject, Stamp)> {
    let record = match row.get::<_, Option<i64>>("term")? {
        None => None,
        Some(term) => Some(Record {
            term: term.cast_unsigned(),
            node: row.get("node")?,
            incarnation: row.get("incarnation")?,
            since: duration(row.get("since")?),
            lease: duration(row.get("lease")?),
            module: row.get("module")?,
            outcome: row.get::<_, Option<String>>("outcome")?.map(|text| outcome(&text)).transpose()?,
            failures: row.get("failures")?,
            // `load` reads these fields from their own tables.
            released: false,
            paused_until: None,
            progress: None,
        }),
    };
    let lease = Lease {
        holder: row.get::<_, Option<[u8; 16]>>("holder")?.map(|id| LeaseId::from_random(u128::from_be_bytes(id))),
        length: row.get::<_, Option<i64>>("length")?.map(duration),
        broken_after: row.get::<_, Option<i64>>("broken_after")?.map(duration),
        // Determined at each read, and never saved.
        is_abandoned: false,
        changes: row.get::<_, i64>("changes")?.cast_unsigned(),
    };
    let stamp =
        Stamp { at: duration(row.get("changed")?), boot: row.get("boot")?, time_namespace: row.get("time_namespace")? };
    Ok((LeaseObject { version: Version(row.get("version")?), record, lease }, stamp))
}

fn outcome(text: &str) -> rusqlite::Result<Outcome> {
    match text {
        "done" => Ok(Outcome::Done),
        _ => Err(rusqlite::Error::InvalidColumnName(format!("outcome `{text}`"))),
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn duration(nanoseconds: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}
