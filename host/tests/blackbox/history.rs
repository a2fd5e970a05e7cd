//! The history of terms, after crashes of nodes and outages of the store.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use baton_election::ElectionName;
use baton_store::{History, KEPT_TERMS, ObjectStore, PastTerm, Reading, VersionedObject, report_terms};
use rusqlite::Connection;
use rustix::process::Signal;
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
        term_ended_by_outage_is_recorded_afterwards,
        damaged_history_is_replaced_and_newer_format_is_kept,
        concurrent_writers_keep_the_last_thousand_terms,
    ],
    with_crashes: [
        term_of_killed_leader_is_closed_by_successor,
    ],
}

/// Polls the history, the newest term first, until it passes the test.
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

/// True if a host reports that it exited without recording its last term, because the store did not answer in time.
fn could_not_record(event: &Event) -> bool {
    event.name == "error" && event.text("error").contains("the next leader closes that term")
}

/// Checks that the row's time in `field` is not before `before` and not after the event, and returns the time.
#[track_caller]
fn assert_between(before: OffsetDateTime, row: &Value, field: &str, event: &Event) -> OffsetDateTime {
    let time = OffsetDateTime::parse(text(row, field), &Rfc3339).unwrap_or_else(|_| panic!("no time: {row}"));
    // The log's time is read later than the row's, possibly much later. Both may be rounded.
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
    // A next term may have begun, and ended before its instance started.
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

fn term_of_killed_leader_is_closed_by_successor(fleet: Fleet) {
    let (alpha, killed) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    let killed_at = OffsetDateTime::now_utc();
    alpha.signal(Signal::KILL);
    let next = fleet.beat_above(killed).term;
    let rows = history(&fleet, "the rows of both terms", |rows| {
        term(rows, killed).is_some_and(|row| row["closed_by"].is_string()) && term(rows, next).is_some()
    });
    let (before, after) = (term(&rows, killed).expect("a row"), term(&rows, next).expect("a row"));
    assert_eq!((text(before, "node"), text(before, "closed_by")), ("alpha", "beta"), "{before}");
    assert!(text(before, "reason").contains("not heard from again") && before["outcome"].is_null(), "{before}");
    assert_eq!(text(before, "ended"), text(after, "began"), "the term ends at the takeover at the latest");
    assert!(after["ended"].is_null(), "{after}");
    let leaderless = until("the leaderless time", || {
        let rows = history(&fleet, "the term", |rows| term(rows, next).is_some());
        term(&rows, next).and_then(|row| row["leaderless_s"].as_f64()).ok_or(rows)
    });
    let since = (OffsetDateTime::now_utc() - killed_at).as_seconds_f64();
    assert!(leaderless <= since, "{leaderless} s, though a node led until {since} s ago");

    // A leader that hands off records the end and the reason itself.
    let mut beta = beta;
    let _gamma = fleet.standby("gamma", &beta);
    assert_eq!(beta.terminate().code(), Some(0));
    let last = fleet.beat_above(next).term;
    let rows = history(&fleet, "the term of the successor", |rows| term(rows, last).is_some());
    let handed_off = term(&rows, next).expect("a row");
    // A row that the leader failed to record in time may still arrive.
    let is_closed = fleet.journal.events().iter().any(could_not_record) && !handed_off["closed_by"].is_null();
    if is_closed {
        assert_eq!(text(handed_off, "closed_by"), "gamma", "{handed_off}");
    } else {
        assert_eq!(text(handed_off, "reason"), "shutdown: the host is shutting down", "{handed_off}");
        assert!(handed_off["closed_by"].is_null() && handed_off["outcome"].is_string(), "{handed_off}");
    }
    fleet.check_promises();
}

fn term_ended_by_outage_is_recorded_afterwards(fleet: Fleet) {
    let (alpha, lost) = fleet.leader("alpha");
    // In the embedded store, the history has its own file.
    let lock = fleet.store.is_sqlite().then(|| {
        let connection = Connection::open(fleet.store.folder().join("history.db")).expect("the file");
        connection.busy_timeout(Duration::from_secs(10)).expect("a timeout");
        connection.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
        connection
    });
    let outage = fleet.store.cut();
    alpha.event("the end of the term", |event| event.name == "ended" && event.term == lost);
    drop(outage);
    // Both terms are recorded, although the history is locked for a while longer.
    let next = fleet.beat_above(lost).term;
    drop(lock);
    let rows = history(&fleet, "both terms", |rows| has_ended(rows, lost) && term(rows, next).is_some());
    let row = term(&rows, lost).expect("the lost term");
    assert!(text(row, "reason").starts_with("lease-at-risk: ") && row["closed_by"].is_null(), "{row}");
    fleet.check_promises();
}

fn damaged_history_is_replaced_and_newer_format_is_kept(fleet: Fleet) {
    let fleet = fleet.with(Guest::Done);
    let (alpha, _) = (fleet.node("alpha"), fleet.journal.event("a term", |event| event.name == "ended"));
    history(&fleet, "a term", |rows| rows.iter().any(|row| row["ended"].is_string()));
    let says = |what: &str| {
        alpha.event(what, |event| {
            event.name == "error" && event.text("error").contains("history") && event.text("error").contains(what)
        })
    };
    overwrite(&fleet, "{\"format\":1,\"terms\":7}");
    let damaged = says("is damaged");
    let later = alpha.after(damaged.term.max(1), "ended").term;
    let rows = history(&fleet, "a new history", |rows| rows.iter().any(|row| row["ended"].is_string()));
    assert!(rows.iter().all(|row| text(row, "node") == "alpha"), "{rows:#?}");
    assert!(later > 0);

    let newer = "{\"format\":2,\"pages\":[]}";
    overwrite(&fleet, newer);
    says("has format 2");
    let again = fleet.journal.events().last().map_or(0, |event| event.term);
    alpha.after(again.max(later), "ended");
    assert_eq!(stored(&fleet).1, newer, "a newer format is kept");
    let refused = fleet.command(&["history", ELECTION]);
    assert!(refused.code == Some(1) && refused.stderr.contains("has format 2"), "{refused:?}");
    for what in ["is damaged", "has format 2"] {
        let is_report = |event: &&Event| event.name == "error" && event.text("error").contains(what);
        assert_eq!(fleet.journal.events().iter().filter(is_report).count(), 1, "`{what}` is reported once");
    }
    fleet.check_promises();
}

fn concurrent_writers_keep_the_last_thousand_terms(fleet: Fleet) {
    // Any node creates the store's objects.
    drop(fleet.node("maker").after(0, "elected"));
    // Keeps the writers within a few terms of each other.
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
    // A host's new term is the last one, although its number is lower, as after a store was restored from a backup.
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

fn overwrite(fleet: &Fleet, content: &str) {
    let store = open(fleet);
    until("a write without a conflict", || {
        let (version, _) = stored(fleet);
        let content = content.as_bytes().to_vec().into();
        block_on(store.write(VersionedObject::History, &election(), version.as_ref(), content))
    });
}

/// The version and the content of the stored history.
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
