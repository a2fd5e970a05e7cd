//! Readers of database rows, for fuzzing: see [`baton_base::untrusted`].

use std::time::Duration;

use baton_election::{ElectionName, LeaseId, Record, Version};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::row;
use crate::lease::{Lease, LeaseObject};

/// Reads a row of `lease` whose columns have arbitrary types. Files that Baton wrote never contain such a row. For each
/// column after the election, `bytes` contains a type byte. For a number, 8 bytes follow. For text or a blob, a length
/// byte and the content follow.
pub(crate) fn row(bytes: &[u8]) {
    thread_local! {
        static DB: (Connection, usize) = database().unwrap_or_else(|error| panic!("{error}"));
    }
    DB.with(|(db, columns)| read(db, *columns, bytes)).unwrap_or_else(|error| panic!("{error}"));
}

/// Creates a database whose table `lease` accepts columns of any type.
fn database() -> rusqlite::Result<(Connection, usize)> {
    let db = Connection::open_in_memory()?;
    db.execute_batch(row::SCHEMA)?;
    let columns = make_typeless(&db, "lease")?;
    Ok((db, columns))
}

/// Removes the types of all columns of a table except the first, the election.
fn make_typeless(db: &Connection, table: &str) -> rusqlite::Result<usize> {
    let columns: Vec<String> = db
        .prepare("SELECT name FROM pragma_table_info(?1)")?
        .query_map([table], |column| column.get(0))?
        .collect::<Result<_, _>>()?;
    let typeless: Vec<String> = columns[1..].iter().map(|name| format!("{name} ANY")).collect();
    let made = format!("CREATE TABLE {table} (election TEXT PRIMARY KEY, {}) STRICT", typeless.join(", "));
    db.execute_batch(&format!("DROP TABLE {table}; {made}"))?;
    Ok(columns.len())
}

/// Reads a row of `holder` whose columns have arbitrary types, together with a lease that matches the row as closely as
/// possible.
pub(crate) fn holder(bytes: &[u8]) {
    thread_local! {
        static DB: Connection = holders().unwrap_or_else(|error| panic!("{error}"));
    }
    DB.with(|db| read_holder(db, bytes)).unwrap_or_else(|error| panic!("{error}"));
}

fn holders() -> rusqlite::Result<Connection> {
    let db = Connection::open_in_memory()?;
    db.execute_batch(row::HOLDER)?;
    make_typeless(&db, "holder")?;
    Ok(db)
}

fn read_holder(db: &Connection, bytes: &[u8]) -> rusqlite::Result<()> {
    let Ok(election) = ElectionName::new("stage") else { return Ok(()) };
    let mut rest = bytes;
    let columns: [Value; 6] = std::array::from_fn(|_| value(&mut rest));
    let values = std::iter::once(Value::Text(election.to_string())).chain(columns.iter().cloned());
    db.prepare_cached("INSERT OR REPLACE INTO holder VALUES (?, ?, ?, ?, ?, ?, ?)")?
        .execute(rusqlite::params_from_iter(values))?;
    let _ = row::holders(db);
    let [version, id, incarnation, _, _, boot] = &columns;
    let text = |value: &Value| if let Value::Text(text) = value { text.clone() } else { String::new() };
    let (Value::Blob(id), incarnation, boot) = (id, text(incarnation), text(boot)) else { return Ok(()) };
    let Ok(id) = <[u8; 16]>::try_from(id.as_slice()) else { return Ok(()) };
    let id = LeaseId::from_random(u128::from_be_bytes(id));
    let record = Record {
        term: 1,
        node: Some("node".to_owned()),
        incarnation: incarnation.clone(),
        since: Duration::ZERO,
        lease: Duration::from_secs(15),
        module: None,
        outcome: None,
        failures: 0,
        released: false,
        paused_until: None,
        progress: None,
    };
    let lease = Lease { holder: Some(id), ..Lease::default() };
    let row = LeaseObject { version: Version(text(version)), record: Some(record), lease };
    let Ok(Some(place)) = row::holder(db, &election, &row, &boot) else { return Ok(()) };
    assert_eq!(place.incarnation, incarnation, "it is the holder's");
    row::note_holder(db, &election, id, &row.version, &place, &boot)?;
    assert_eq!(row::holder(db, &election, &row, &boot)?, Some(place), "it is written as it is read");
    Ok(())
}

fn read(db: &Connection, columns: usize, bytes: &[u8]) -> rusqlite::Result<()> {
    let Ok(election) = ElectionName::new("stage") else { return Ok(()) };
    let mut rest = bytes;
    let values = std::iter::once(Value::Text(election.to_string())).chain((1..columns).map(|_| value(&mut rest)));
    let places = vec!["?"; columns].join(", ");
    db.prepare_cached(&format!("INSERT OR REPLACE INTO lease VALUES ({places})"))?
        .execute(rusqlite::params_from_iter(values))?;
    let Ok(Some((read, stamp))) = row::load(db, &election) else { return Ok(()) };
    row::save(db, &election, &read, &stamp)?;
    assert_eq!(row::load(db, &election)?, Some((read, stamp)), "it is written as it is read");
    Ok(())
}

fn value(rest: &mut &[u8]) -> Value {
    let mut take = |length: usize| {
        let (taken, others) = rest.split_at(length.min(rest.len()));
        *rest = others;
        taken
    };
    let number = |bytes: &[u8]| {
        let mut number = [0; 8];
        number[..bytes.len()].copy_from_slice(bytes);
        number
    };
    let kind = take(1).first().copied().unwrap_or_default();
    match kind % 5 {
        0 => Value::Null,
        1 => Value::Integer(i64::from_le_bytes(number(take(8)))),
        2 => Value::Real(f64::from_le_bytes(number(take(8)))),
        kind => {
            let length = take(1).first().copied().unwrap_or_default();
            let content = take(usize::from(length)).to_vec();
            if kind == 3 { Value::Text(String::from_utf8_lossy(&content).into_owned()) } else { Value::Blob(content) }
        }
    }
}
