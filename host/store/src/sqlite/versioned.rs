//! Tables of one versioned object for each election, which only conditional writes change.

use baton_election::{ElectionName, Refusal, Version};
use rusqlite::{Connection, OptionalExtension, params};

use super::database::Step;
use super::new_version;
use crate::Reading;

/// What makes such a table.
macro_rules! schema {
    ($table:literal) => {
        concat!(
            "CREATE TABLE ",
            $table,
            " (election TEXT PRIMARY KEY, version TEXT NOT NULL, content BLOB NOT NULL) STRICT;\n"
        )
    };
}
pub(super) use schema;

/// An election's object. The content is left on the disk where its version is `known`.
pub(super) fn read(
    db: &Connection,
    table: &'static str,
    election: &ElectionName,
    known: Option<&Version>,
) -> rusqlite::Result<Reading> {
    let found = db
        .prepare_cached(&format!(
            "SELECT version, CASE WHEN version = ?2 THEN NULL ELSE content END FROM {table} WHERE election = ?1"
        ))?
        .query_row(params![election.as_str(), known.map(|version| &version.0)], |row| {
            Ok((Version(row.get(0)?), row.get::<_, Option<Vec<u8>>>(1)?))
        })
        .optional()?;
    Ok(match found {
        None => Reading::Nothing,
        Some((_, None)) => Reading::Unchanged,
        Some((version, Some(content))) => Reading::Found(version, content.into()),
    })
}

/// Writes it whole if it has that version; without one, if there is none.
pub(super) fn write(
    db: &Connection,
    table: &'static str,
    election: &ElectionName,
    version: Option<&Version>,
    content: &[u8],
) -> Step<Version> {
    let next = match new_version() {
        Ok(next) => next,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let changed =
        match version {
            Some(version) => db
                .prepare_cached(&format!(
                    "UPDATE {table} SET version = ?2, content = ?3 WHERE election = ?1 AND version = ?4"
                ))?
                .execute(params![election.as_str(), next.0, content, version.0])?,
            None => db
                .prepare_cached(&format!("INSERT OR IGNORE INTO {table} VALUES (?1, ?2, ?3)"))?
                .execute(params![election.as_str(), next.0, content])?,
        };
    Ok(if changed == 0 { Err(Refusal::Conflict) } else { Ok(next) })
}
