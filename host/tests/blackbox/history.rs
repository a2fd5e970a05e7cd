//! What is told of terms afterwards, whatever has become of their nodes and of the store.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use baton_election::ElectionName;
use baton_store::{History, KEPT_TERMS, ObjectStore, PastTerm, Reading, VersionedObject, tell_terms};
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
        terms_in_a_row_are_told_as_the_log_has_them,
        a_term_that_an_outage_ended_is_told_after_it,
        what_is_no_history_is_begun_anew_and_what_is_newer_is_left_alone,
        many_write_at_once_and_the_last_thousand_terms_are_kept,
    ],
    with_crashes: [
        a_killed_leader_is_closed_by_its_successor,
    ],
}

/// The history, the newest term first, as soon as it passes the test.
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

/// The term of that number.
fn term(rows: &[Value], number: u64) -> Option<&Value> {
    rows.iter().find(|row| row["term"] == number)
}

fn has_ended(rows: &[Value], number: u64) -> bool {
    term(rows, number).is_some_and(|row| row["ended"].is_string())
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or_default()
}

/// Whether a host says that it has ended without telling of its last term: it waits for no store longer than it says.
fn could_not_tell(event: &Event) -> bool {
    event.name == "error" && event.text("error").contains("the next leader closes that term")
}

/// Checks that the row has a time that is not before that one and not after the event, and returns it.
#[track_caller]
fn assert_between(before: OffsetDateTime, row: &Value, field: &str, event: &Event) -> OffsetDateTime {
    let told = OffsetDateTime::parse(text(row, field), &Rfc3339).unwrap_or_else(|_| panic!("no time: {row}"));
    // The log's time is read a moment after, which may be a long one. Either may be rounded.
    let rounded = Duration::from_millis(1);
    assert!(before <= told + rounded && told <= event.ts + rounded, "{field} of {row}: {before}, {event:?}");
    told
}

fn terms_in_a_row_are_told_as_the_log_has_them(fleet: Fleet) {
    let fleet = fleet.with(Guest::Done);
    let mut last = OffsetDateTime::now_utc();
    let mut alpha = fleet.node("alpha");
    let third = alpha.after(2, "ended").term;
    let at = Endpoint::of(&alpha);
    let rows = history(&fleet, "three terms", |rows| has_ended(rows, third));
    let terms: Vec<u64> = rows.iter().filter_map(|row| row["term"].as_u64()).collect();
    assert!(terms.is_sorted_by(|later, earlier| later > earlier), "the newest first, each once: {terms:?}");
    for number in 1..=third {
        let row = term(&rows, number).unwrap_or_else(|| panic!("term {number} is missing: {rows:#?}"));
        let of_term = |name: &str| alpha.event(name, |event| event.name == name && event.term == number);
        last = assert_between(last, row, "began", &of_term("elected"));
        last = assert_between(last, row, "ended", &of_term("ended"));
        assert_eq!((text(row, "node"), text(row, "outcome")), ("alpha", "done"), "{row}");
        assert_eq!((&row["reason"], &row["closed_by"]), (&Value::Null, &Value::Null), "{row}");
        assert_eq!(row["leaderless_s"].is_number(), number == 1, "somebody leads between two terms of a lease: {row}");
        assert!(text(row, "module").starts_with("sha256:") && !text(row, "incarnation").is_empty(), "{row}");
    }
    // Each node's endpoint tells the same.
    let path = format!("/v1/elections/{ELECTION}/history?limit=1000");
    until("the endpoint to tell", || {
        let answer = at.ask_as("localhost", &path);
        let told: Vec<Value> = serde_json::from_str(&answer.body).unwrap_or_default();
        if rows.iter().filter(|row| row["ended"].is_string()).all(|row| told.contains(row)) {
            Ok(())
        } else {
            Err(answer)
        }
    });
    // The last one is told before the host has ended.
    assert_eq!(alpha.terminate().code(), Some(0));
    let events = fleet.journal.events();
    let gone = events.iter().rev().find(|event| event.name == "ended").expect("the last");
    let newest = fleet.command(&["history", ELECTION, "--output=json", "--limit", "1"]).json();
    // The record may name a next one, which was given up before its instance began.
    let last = newest[0]["term"].as_u64().expect("a number");
    let was_given_up = last > gone.term && text(&newest[0], "reason").starts_with("ended cleanly");
    let is_told = newest[0]["ended"].is_string() || was_given_up || events.iter().any(could_not_tell);
    assert!(last >= gone.term && is_told, "{newest} and {gone:?}");
    let table = fleet.command(&["history", ELECTION]);
    for word in ["TERM", "LEADERLESS", "alpha", "done"] {
        assert!(table.stdout.contains(word), "`{word}` is missing: {table:?}");
    }
    let none = fleet.command(&["history", "nobody"]);
    assert!(none.code == Some(1) && none.stderr.contains("there is no election nobody"), "{none:?}");
    fleet.check_promises();
}

fn a_killed_leader_is_closed_by_its_successor(fleet: Fleet) {
    let (alpha, killed) = fleet.leader("alpha");
    let beta = fleet.standby("beta", &alpha);
    let killed_at = OffsetDateTime::now_utc();
    alpha.signal(Signal::KILL);
    let next = fleet.beat_above(killed).term;
    let rows = history(&fleet, "the successor to tell", |rows| {
        term(rows, killed).is_some_and(|row| row["closed_by"].is_string()) && term(rows, next).is_some()
    });
    let (before, after) = (term(&rows, killed).expect("it"), term(&rows, next).expect("it"));
    assert_eq!((text(before, "node"), text(before, "closed_by")), ("alpha", "beta"), "{before}");
    assert!(text(before, "reason").contains("not heard from again") && before["outcome"].is_null(), "{before}");
    assert_eq!(text(before, "ended"), text(after, "began"), "when it took over is the bound");
    assert!(after["ended"].is_null(), "{after}");
    let leaderless = until("how long nobody led", || {
        let rows = history(&fleet, "its term", |rows| term(rows, next).is_some());
        term(&rows, next).and_then(|row| row["leaderless_s"].as_f64()).ok_or(rows)
    });
    let since = (OffsetDateTime::now_utc() - killed_at).as_seconds_f64();
    assert!(leaderless <= since, "{leaderless} s, though a node led until {since} s ago");

    // A leader that hands off tells itself, and why.
    let mut beta = beta;
    let _gamma = fleet.standby("gamma", &beta);
    assert_eq!(beta.terminate().code(), Some(0));
    let last = fleet.beat_above(next).term;
    let rows = history(&fleet, "its successor to tell", |rows| term(rows, last).is_some());
    let handed_off = term(&rows, next).expect("it");
    // What it has given up to tell may still be told.
    let is_closed = fleet.journal.events().iter().any(could_not_tell) && !handed_off["closed_by"].is_null();
    if is_closed {
        assert_eq!(text(handed_off, "closed_by"), "gamma", "{handed_off}");
    } else {
        assert_eq!(text(handed_off, "reason"), "shutdown: the host is shutting down", "{handed_off}");
        assert!(handed_off["closed_by"].is_null() && handed_off["outcome"].is_string(), "{handed_off}");
    }
    fleet.check_promises();
}

fn a_term_that_an_outage_ended_is_told_after_it(fleet: Fleet) {
    let (alpha, lost) = fleet.leader("alpha");
    // With the embedded store the history has a file of its own.
    let lock = fleet.store.is_sqlite().then(|| {
        let connection = Connection::open(fleet.store.folder().join("history.db")).expect("the file");
        connection.busy_timeout(Duration::from_secs(10)).expect("a timeout");
        connection.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
        connection
    });
    let outage = fleet.store.cut();
    alpha.event("its end", |event| event.name == "ended" && event.term == lost);
    drop(outage);
    // It is caught up with what came later, though nobody could write for a while longer.
    let next = fleet.beat_above(lost).term;
    drop(lock);
    let rows = history(&fleet, "both terms", |rows| has_ended(rows, lost) && term(rows, next).is_some());
    let row = term(&rows, lost).expect("it");
    assert!(text(row, "reason").starts_with("lease-at-risk: ") && row["closed_by"].is_null(), "{row}");
    fleet.check_promises();
}

fn what_is_no_history_is_begun_anew_and_what_is_newer_is_left_alone(fleet: Fleet) {
    let fleet = fleet.with(Guest::Done);
    let (alpha, _) = (fleet.node("alpha"), fleet.journal.event("a term", |event| event.name == "ended"));
    history(&fleet, "a term", |rows| rows.iter().any(|row| row["ended"].is_string()));
    let says = |what: &str| {
        alpha.event(what, |event| {
            event.name == "error" && event.text("error").contains("history") && event.text("error").contains(what)
        })
    };
    overwrite(&fleet, "{\"format\":1,\"terms\":7}");
    let said = says("is damaged");
    let later = alpha.after(said.term.max(1), "ended").term;
    let rows = history(&fleet, "it to be begun anew", |rows| rows.iter().any(|row| row["ended"].is_string()));
    assert!(rows.iter().all(|row| text(row, "node") == "alpha"), "{rows:#?}");
    assert!(later > 0);

    let newer = "{\"format\":2,\"pages\":[]}";
    overwrite(&fleet, newer);
    says("has format 2");
    let again = fleet.journal.events().last().map_or(0, |event| event.term);
    alpha.after(again.max(later), "ended");
    assert_eq!(stored(&fleet).1, newer, "it is left alone");
    let refused = fleet.command(&["history", ELECTION]);
    assert!(refused.code == Some(1) && refused.stderr.contains("has format 2"), "{refused:?}");
    for what in ["is damaged", "has format 2"] {
        let said = |event: &&Event| event.name == "error" && event.text("error").contains(what);
        assert_eq!(fleet.journal.events().iter().filter(said).count(), 1, "{what} is said once");
    }
    fleet.check_promises();
}

fn many_write_at_once_and_the_last_thousand_terms_are_kept(fleet: Fleet) {
    // Any node makes what the store needs.
    drop(fleet.node("maker").after(0, "elected"));
    // Neither is later than by a few terms.
    let in_step = Arc::new(Barrier::new(2));
    let writers = ["one", "two"].map(|node| {
        let in_step = Arc::clone(&in_step);
        let url = fleet.store.url().parse().expect("a store");
        std::thread::spawn(move || {
            let store = baton_store::open(&url).expect("it opens");
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
                    while until_told(&*store, some).await != Ok(None) {
                        assert!(patience.lasts(), "nobody is told");
                    }
                    in_step.wait();
                }
            });
        })
    });
    writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
    let kept = || History::decode(stored(&fleet).1.as_bytes()).expect("a history").terms;
    let told: Vec<u64> = kept().iter().map(|term| term.term).collect();
    assert_eq!(told, (2000..3000).collect::<Vec<u64>>());
    // What a host tells later is among the last, though the numbers are lower: this store was set back.
    let alpha = fleet.node("alpha");
    let term = alpha.after(0, "elected").term;
    let last = until("its term", || kept().pop().filter(|last| last.node == "alpha").ok_or("it is not told yet"));
    assert_eq!((kept().len(), last.term), (KEPT_TERMS, term));
    fleet.check_promises();
}

async fn until_told(store: &dyn ObjectStore, terms: &[PastTerm]) -> Result<Option<String>, String> {
    let told = tell_terms(store, &election(), terms).await;
    told.map(|problem| problem.map(|problem| problem.to_string())).map_err(|error| error.to_string())
}

/// Writes something in the place of the history.
fn overwrite(fleet: &Fleet, content: &str) {
    let store = open(fleet);
    until("nobody else to write", || {
        let (version, _) = stored(fleet);
        let content = content.as_bytes().to_vec().into();
        block_on(store.write(VersionedObject::History, &election(), version.as_ref(), content))
    });
}

/// The history as it is stored, and its version.
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
    baton_store::open(&fleet.store.url().parse().expect("a store")).expect("it opens")
}

fn election() -> ElectionName {
    ElectionName::new(ELECTION).expect("a name")
}

fn block_on<T>(act: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(act)
}

#[test]
fn a_folder_of_before_gets_a_history() {
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
    history(&fleet, "its term", |rows| term_of(rows, "beta") == Some(term));
    fleet.check_promises();
}

fn term_of(rows: &[Value], node: &str) -> Option<u64> {
    rows.iter().find(|row| text(row, "node") == node)?["term"].as_u64()
}
