//! The history of terms, after crashes of nodes and outages of the store.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use baton_election::ElectionName;
use baton_store::{History, KEPT_TERMS, ObjectStore, PastTerm, Reading, VersionedObject, report_terms};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::endpoint::Endpoint;
use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Event, until};
use crate::patience::Patience;
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_sqlite: [
        history_matches_log_over_successive_terms,
        concurrent_writers_keep_the_last_thousand_terms,
    ],
}

/// Returns the newest term first.
fn history(fleet: &Fleet, what: &str, test: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    until(what, || {
        let finished = fleet.command(&["history", ELECTION, "--output=json", "--limit", "2000"]);
        match finished.code {
            Some(0) => {
                let rows = finished.json().as_array().expect("a list").clone();
                if test(&rows) { Ok(rows) } else { Err(format!("{rows:#?}")) }
            }
            _ => Err(format!("{finished:?}")),
        }
    })
}

fn term(rows: &[Value], number: u64) -> Option<&Value> {
    rows.iter().find(|row| row["term"] == number)
}

fn has_ended(rows: &[Value], number: u64) -> bool {
    term(rows, number).is_some_and(|row| row["ended"].is_string())
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or_default()
}

fn could_not_record(event: &Event) -> bool {
    event.name == "error" && event.text("error").contains("the next leader closes that term")
}

#[track_caller]
fn assert_between(before: OffsetDateTime, row: &Value, field: &str, event: &Event) -> OffsetDateTime {
    let time = OffsetDateTime::parse(text(row, field), &Rfc3339).unwrap_or_else(|_| panic!("no time: {row}"));
    // The host reads the clock for the row first, and for the log line later, sometimes much later. Both times may be
    // rounded.
    let rounded = Duration::from_millis(1);
    assert!(before <= time + rounded && time <= event.ts + rounded, "{field} of {row}: {before}, {event:?}");
    time
}

fn history_matches_log_over_successive_terms(fleet: Fleet) {
    let fleet = fleet.with(Guest::Done);
    let mut last = OffsetDateTime::now_utc();
    let mut alpha = fleet.node("alpha");
    let third = alpha.after(2, "ended").term;
    let at = Endpoint::of(&alpha);
    let rows = history(&fleet, "three terms", |rows| has_ended(rows, third));
    let terms: Vec<u64> = rows.iter().filter_map(|row| row["term"].as_u64()).collect();
    assert!(terms.is_sorted_by(|later, earlier| later > earlier), "the newest term first, each once: {terms:?}");
    for number in 1..=third {
        let row = term(&rows, number).unwrap_or_else(|| panic!("term {number} is missing: {rows:#?}"));
        let of_term = |name: &str| alpha.event(name, |event| event.name == name && event.term == number);
        last = assert_between(last, row, "began", &of_term("elected"));
        last = assert_between(last, row, "ended", &of_term("ended"));
        assert_eq!((text(row, "node"), text(row, "outcome")), ("alpha", "done"), "{row}");
        assert_eq!((&row["reason"], &row["closed_by"]), (&Value::Null, &Value::Null), "{row}");
        assert_eq!(
            row["leaderless_s"].is_number(),
            number == 1,
            "no leaderless time between two terms of a lease: {row}"
        );
        assert!(text(row, "module").starts_with("sha256:") && !text(row, "incarnation").is_empty(), "{row}");
    }
    let path = format!("/v1/elections/{ELECTION}/history?limit=1000");
    until("the same history at the endpoint", || {
        let answer = at.ask_as("localhost", &path);
        let served: Vec<Value> = serde_json::from_str(&answer.body).unwrap_or_default();
        if rows.iter().filter(|row| row["ended"].is_string()).all(|row| served.contains(row)) {
            Ok(())
        } else {
            Err(answer)
        }
    });
    // The host records its last term before it exits.
    assert_eq!(alpha.terminate().code(), Some(0));
    let events = fleet.journal.events();
    let ended = events.iter().rev().find(|event| event.name == "ended").expect("the last");
    let newest = fleet.command(&["history", ELECTION, "--output=json", "--limit", "1"]).json();
    // After the last logged `ended`, another term may have begun, and may have ended before its instance started. Such
    // a term has a row, but no event `ended`.
    let last = newest[0]["term"].as_u64().expect("a number");
    let was_abandoned = last > ended.term && text(&newest[0], "reason").starts_with("ended cleanly");
    let is_recorded = newest[0]["ended"].is_string() || was_abandoned || events.iter().any(could_not_record);
    assert!(last >= ended.term && is_recorded, "{newest} and {ended:?}");
    let table = fleet.command(&["history", ELECTION]);
    for word in ["TERM", "LEADERLESS", "alpha", "done"] {
        assert!(table.stdout.contains(word), "`{word}` is missing: {table:?}");
    }
    let none = fleet.command(&["history", "nobody"]);
    assert!(none.code == Some(1) && none.stderr.contains("there is no election nobody"), "{none:?}");
    fleet.check_promises();
}

fn concurrent_writers_keep_the_last_thousand_terms(fleet: Fleet) {
    // Starts a node and stops it again, because only a node creates the store's objects.
    drop(fleet.node("maker").after(0, "elected"));
    // The two writers stay concurrent: after every 50 terms, each waits for the other.
    let in_step = Arc::new(Barrier::new(2));
    let writers = ["one", "two"].map(|node| {
        let in_step = Arc::clone(&in_step);
        let url = fleet.store.url().parse().expect("a store");
        std::thread::spawn(move || {
            let store = baton_store::open(&url).expect("the store opens");
            let ended = Some("2026-01-01T00:00:01Z".to_owned());
            let terms: Vec<PastTerm> = (0..KEPT_TERMS as u64)
                .map(|n| PastTerm {
                    term: 1000 + 2 * n + u64::from(node == "two"),
                    node: node.to_owned(),
                    incarnation: node.to_owned(),
                    begun: "2026-01-01T00:00:00Z".to_owned(),
                    ended: ended.clone(),
                    ..PastTerm::default()
                })
                .collect();
            let mut patience = Patience::default();
            block_on(async {
                for some in terms.chunks(50) {
                    while record(&*store, some).await != Ok(None) {
                        assert!(patience.lasts(), "the terms cannot be recorded");
                    }
                    in_step.wait();
                }
            });
        })
    });
    writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    let kept = || History::decode(stored(&fleet).1.as_bytes()).expect("a history").terms;
    let numbers: Vec<u64> = kept().iter().map(|term| term.term).collect();
    assert_eq!(numbers, (2000..3000).collect::<Vec<u64>>());
    // The host's new term becomes the last row, although its number is lower than the numbers of the earlier rows. In
    // practice, this happens after a store is restored from a backup.
    let alpha = fleet.node("alpha");
    let term = alpha.after(0, "elected").term;
    let last = until("the new term", || kept().pop().filter(|last| last.node == "alpha").ok_or("not recorded yet"));
    assert_eq!((kept().len(), last.term), (KEPT_TERMS, term));
    fleet.check_promises();
}

async fn record(store: &dyn ObjectStore, terms: &[PastTerm]) -> Result<Option<String>, String> {
    let result = report_terms(store, &election(), terms).await;
    result.map(|problem| problem.map(|problem| problem.to_string())).map_err(|error| error.to_string())
}

fn stored(fleet: &Fleet) -> (Option<baton_election::Version>, String) {
    let store = open(fleet);
    match until("an answer", || block_on(store.read(VersionedObject::History, &election(), None))) {
        Reading::Found(version, content) => (Some(version), String::from_utf8_lossy(&content).into_owned()),
        Reading::Nothing | Reading::Unchanged => {
            (None, String::from_utf8_lossy(&History::default().encode()).into_owned())
        }
    }
}

fn open(fleet: &Fleet) -> Arc<dyn baton_store::Store> {
    baton_store::open(&fleet.store.url().parse().expect("a store")).expect("the store opens")
}

fn election() -> ElectionName {
    ElectionName::new(ELECTION).expect("a name")
}

fn block_on<T>(act: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(act)
}

#[test]
fn folder_without_history_gets_one() {
    let fleet = Fleet::new(Store::sqlite());
    let (mut alpha, _) = fleet.leader("alpha");
    assert_eq!(alpha.terminate().code(), Some(0));
    for name in ["history.db", "history.db-journal"] {
        let _ = std::fs::remove_file(fleet.store.folder().join(name));
    }
    let old = fleet.command(&["history", ELECTION]);
    assert!(old.code == Some(1) && old.stderr.contains("history.db"), "{old:?}");
    let beta = fleet.node("beta");
    let term = beta.after(0, "started").term;
    history(&fleet, "the term", |rows| term_of(rows, "beta") == Some(term));
    fleet.check_promises();
}

fn term_of(rows: &[Value], node: &str) -> Option<u64> {
    rows.iter().find(|row| text(row, "node") == node)?["term"].as_u64()
}
