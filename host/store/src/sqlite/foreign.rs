//! What is read of a database, for [`crate::foreign`].

use baton_election::ElectionName;
use rusqlite::Connection;
use rusqlite::types::Value;

use super::row;

/// A row of `lease` whose columns are of any type, as no file of Baton's has it. Of each column after the election there
/// is a byte that says its type, and what follows: of numbers eight bytes, of texts and blobs a byte that is their length
/// and they themselves.
pub(crate) fn row(bytes: &[u8]) {
    thread_local! {
        static DB: (Connection, usize) = database().unwrap_or_else(|error| panic!("{error}"));
    }
    DB.with(|(db, columns)| read(db, *columns, bytes)).unwrap_or_else(|error| panic!("{error}"));
}

/// A database that takes such rows, and how many columns they have.
fn database() -> rusqlite::Result<(Connection, usize)> {
    let db = Connection::open_in_memory()?;
    db.execute_batch(row::SCHEMA)?;
    let columns: Vec<String> = db
        .prepare("SELECT name FROM pragma_table_info('lease')")?
        .query_map([], |column| column.get(0))?
        .collect::<Result<_, _>>()?;
    let typeless: Vec<String> = columns[1..].iter().map(|name| format!("{name} ANY")).collect();
    let table = format!("CREATE TABLE lease (election TEXT PRIMARY KEY, {}) STRICT", typeless.join(", "));
    db.execute_batch(&format!("DROP TABLE lease; {table}"))?;
    Ok((db, columns.len()))
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
