//! The tables that hold the leases, and which of their records are marked as released.
//!
//! Hosts of before there were marks write the whole row by position, so the table `lease` keeps its columns. A mark is
//! in a table of its own, made with the first one: it names the version of the record that it is about, so
//! an older host that writes a record voids it.

use std::time::Duration;

use baton_election::{ElectionName, LeaseId, Outcome, Record, Version};
use rusqlite::{Connection, OptionalExtension, named_params};

use crate::lease::{Lease, LeaseObject};

/// Made once, by `create`. Times are nanoseconds.
pub(super) const SCHEMA: &str = "
CREATE TABLE lease (
  election TEXT PRIMARY KEY, version TEXT NOT NULL,
  term INTEGER, node TEXT, incarnation TEXT, since INTEGER, lease INTEGER, module TEXT, outcome TEXT, failures INTEGER,
  holder BLOB, length INTEGER, broken_after INTEGER, changes INTEGER NOT NULL,
  changed INTEGER NOT NULL, boot TEXT NOT NULL, time_namespace TEXT NOT NULL
) STRICT, WITHOUT ROWID;";

/// Made with the first mark, also in a file that an older host has made, or that an operator has put back.
const RELEASED: &str = "
CREATE TABLE IF NOT EXISTS released (election TEXT PRIMARY KEY, version TEXT NOT NULL) STRICT, WITHOUT ROWID;";

/// When, and on which boot clock, a lease last changed.
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
    Ok(())
}

/// Removes an election with its lease, record and mark.
pub(super) fn delete(db: &Connection, election: &ElectionName) -> rusqlite::Result<()> {
    db.execute("DELETE FROM lease WHERE election = ?1", [election.as_str()])?;
    if has_marks(db)? {
        db.execute("DELETE FROM released WHERE election = ?1", [election.as_str()])?;
    }
    Ok(())
}

fn has_marks(db: &Connection) -> rusqlite::Result<bool> {
    db.prepare_cached("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'released')")?
        .query_row([], |row| row.get(0))
}

/// Whether there is a mark, and it is about this version of the record.
fn is_released(db: &Connection, election: &ElectionName, version: &Version) -> rusqlite::Result<bool> {
    if !has_marks(db)? {
        return Ok(false);
    }
    db.prepare_cached("SELECT EXISTS (SELECT 1 FROM released WHERE election = ?1 AND version = ?2)")?
        .query_row([election.as_str(), &version.0], |row| row.get(0))
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
            // In the other table.
            released: false,
        }),
    };
    let lease = Lease {
        holder: row.get::<_, Option<[u8; 16]>>("holder")?.map(|id| LeaseId::from_random(u128::from_be_bytes(id))),
        length: row.get::<_, Option<i64>>("length")?.map(duration),
        broken_after: row.get::<_, Option<i64>>("broken_after")?.map(duration),
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
