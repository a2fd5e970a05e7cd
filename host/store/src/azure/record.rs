//! Encodes the record as a blob's metadata.

use std::collections::HashMap;
use std::time::Duration;

use azure_core::prelude::Metadata;
use baton_election::{Outcome, Record};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const FORMAT: &str = "1";

pub(super) fn encode(record: &Record) -> Metadata {
    let mut metadata = Metadata::new();
    let mut put = |key: &str, value: String| {
        metadata.insert(key, value);
    };
    put("format", FORMAT.to_owned());
    put("term", record.term.to_string());
    put("incarnation", record.incarnation.clone());
    put("since", since(record.since));
    put("lease", super::whole_seconds(record.lease).to_string());
    put("failures", record.failures.to_string());
    if let Some(node) = &record.node {
        put("node", node.clone());
    }
    if let Some(module) = &record.module {
        put("module", module.clone());
    }
    if let Some(Outcome::Done) = record.outcome {
        put("outcome", "done".to_owned());
    }
    // Older hosts do not know the following keys. When an older host writes the record, it replaces all metadata, which
    // removes these keys.
    if record.released {
        put("released", "true".to_owned());
    }
    if let Some(until) = record.paused_until {
        put("rest", since(until));
    }
    if let Some(progress) = &record.progress {
        put(super::recall::PROGRESS, progress.to_string());
    }
    metadata
}

/// Decodes the record in a blob's metadata. Returns `None` if Baton did not create the blob.
///
/// # Errors
/// A human-readable message if the metadata comes from Baton, but cannot be read.
pub(super) fn decode(metadata: HashMap<String, String>) -> Result<Option<Record>, String> {
    // Servers may change the case of names.
    let metadata: HashMap<String, String> =
        metadata.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    let Some(format) = metadata.get("format") else { return Ok(None) };
    if format != FORMAT {
        return Err(format!(
            "the record has format {format}, but this version of Baton reads {FORMAT}: run the version that the \
             other hosts run"
        ));
    }
    let text = |key: &str| metadata.get(key).map(String::as_str);
    let number = |key: &str| {
        text(key).and_then(|value| value.parse::<u64>().ok()).ok_or_else(|| format!("the record's `{key}` is damaged"))
    };
    let time = |key: &str| {
        let time = OffsetDateTime::parse(text(key)?, &Rfc3339).ok()?;
        u64::try_from(time.unix_timestamp_nanos() / 1_000).ok().map(Duration::from_micros)
    };
    let since = time("since").ok_or("the record's `since` is damaged")?;
    Ok(Some(Record {
        term: number("term")?,
        node: text("node").map(str::to_owned),
        incarnation: text("incarnation").unwrap_or_default().to_owned(),
        since,
        lease: Duration::from_secs(number("lease")?),
        module: text("module").map(str::to_owned),
        outcome: match text("outcome") {
            None => None,
            Some("done") => Some(Outcome::Done),
            Some(other) => return Err(format!("the record's outcome `{other}` is unknown to this version of Baton")),
        },
        failures: u32::try_from(number("failures")?).unwrap_or(u32::MAX),
        released: text("released") == Some("true"),
        paused_until: time("rest"),
        progress: text(super::recall::PROGRESS).and_then(|text| text.parse().ok()).map(Box::new),
    }))
}

fn since(since_epoch: Duration) -> String {
    i64::try_from(since_epoch.as_secs())
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .and_then(|since| since.replace_microsecond(since_epoch.subsec_micros()).ok())
        .and_then(|since| since.format(&Rfc3339).ok())
        .unwrap_or_else(|| "1970-01-01T00:00:00Z".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trips_through_metadata() {
        let record = Record {
            term: u64::MAX,
            node: Some("web-3-0".to_owned()),
            incarnation: "abc".to_owned(),
            since: Duration::from_micros(1_700_000_000_123_456),
            lease: Duration::from_secs(15),
            module: Some("sha256:00".to_owned()),
            outcome: Some(Outcome::Done),
            failures: 3,
            released: true,
            paused_until: Some(Duration::from_micros(1_700_000_060_000_001)),
            progress: "1 3 1700000000 1700000060 0 0 2 * * * UTC".parse().ok().map(Box::new),
        };
        let metadata = encode(&record)
            .iter()
            .map(|entry| {
                use azure_core::headers::Header;
                let name = entry.name().as_str().trim_start_matches("x-ms-meta-").to_uppercase();
                (name, entry.value().as_str().to_owned())
            })
            .collect();
        assert_eq!(decode(metadata), Ok(Some(record)));
    }

    /// The metadata is from an older version of Baton, which cannot mark a lease as released.
    #[test]
    fn record_of_older_host_has_no_mark() {
        let older = [
            ("format", "1"),
            ("term", "4"),
            ("incarnation", "00c0ffee"),
            ("since", "2023-11-14T22:13:20.123456Z"),
            ("lease", "15"),
            ("failures", "1"),
            ("node", "web-2-0"),
            ("module", "sha256:00"),
        ];
        let mut metadata: HashMap<_, _> = older.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let unmarked = decode(metadata.clone()).unwrap_or_default();
        let is = |record: &Option<Record>| record.as_ref().map(|record| (record.term, record.released));
        assert_eq!(is(&unmarked), Some((4, false)));
        for (value, released) in [("true", true), ("false", false), ("", false), ("1", false)] {
            metadata.insert("Released".to_owned(), value.to_owned());
            assert_eq!(is(&decode(metadata.clone()).unwrap_or_default()), Some((4, released)), "{value}");
        }
        let again = unmarked.iter().flat_map(|record| encode(record).iter().collect::<Vec<_>>()).count();
        assert_eq!(again, older.len());
    }

    #[test]
    fn decoding_tells_foreign_records_from_future_ones() {
        assert_eq!(decode(HashMap::from([("owner".to_owned(), "me".to_owned())])), Ok(None));
        let future = decode(HashMap::from([("format".to_owned(), "2".to_owned())]));
        assert!(future.is_err_and(|problem| problem.contains("format 2")));
    }
}
