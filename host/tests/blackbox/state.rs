//! A coordinator's state, which must survive crashes of the leader and outages of the store.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::endpoint::{Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Event, baton, finish, finish_with_input};
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_both_stores: [
        history_is_kept_when_leader_loses_the_store_in_a_commit,
    ],
    on_sqlite: [
        operator_reads_and_changes_the_state,
        state_that_exceeds_a_limit_is_refused_with_its_name,
    ],
    with_crashes: [
        commits_outlive_sigkill,
    ],
}

/// Kills the leaders of several terms while their instances make 10,000 commits. Checks that no acknowledged commit is
/// lost.
fn commits_outlive_sigkill(fleet: Fleet) {
    let fleet = fleet.with(Guest::KeepsHistory);
    // If successors must wait until the lease of 15 s expires, takeovers are slow. In that case, the test kills fewer
    // leaders.
    let (enough, kills) = (10_000, if fleet.sees_deaths() { 8 } else { 2 });
    let mut nodes: Vec<_> = ["alpha", "beta"].map(|name| fleet.node(name)).into_iter().collect();
    let mut term = 0;
    for kill in 1..=kills {
        let first = fleet.beat("a commit of a new term", |event| event.term > term && saved(event).is_some());
        let goal = enough * kill / kills;
        // On a busy machine, the term may also end for a reason other than the kill. So commits of later terms count,
        // too.
        let is_enough = |count| count >= goal || count > saved_count(&first) + enough / kills;
        let last = fleet.journal.wait_for_the_last("enough commits of this term or the next ones", |events| {
            let mut lines = events.iter().filter(|event| event.term >= first.term && event.name == "output");
            let progress = lines.clone().filter_map(saved).max().unwrap_or(0);
            lines.find(|event| saved(event).is_some_and(is_enough)).cloned().ok_or(progress)
        });
        term = last.term;
        let position = nodes.iter().position(|node| node.name == last.from).expect("a node of ours leads");
        let killed = nodes.remove(position);
        killed.signal(Signal::KILL);
        drop(killed);
        nodes.push(fleet.node(&format!("{}-{kill}", last.from)));
    }
    fleet.beat("commits after the last kill", |event| {
        event.term > term && saved(event).is_some_and(|count| count >= enough)
    });
    for node in &mut nodes {
        // A process that has just been created does not handle SIGTERM yet. So the test first waits for the event
        // `starting`.
        node.event("to contend", |event| event.name == "starting");
        assert!(node.terminate().success());
    }
    one_history(&fleet);
    fleet.check_promises();
}

fn history_is_kept_when_leader_loses_the_store_in_a_commit(fleet: Fleet) {
    let fleet = fleet.with(Guest::KeepsHistory);
    let mut alpha = fleet.node("alpha");
    let term = fleet.beat("commits", |event| saved(event).is_some_and(|count| count >= 20)).term;
    // On Azurite, beta's URL bypasses the proxy, so the outage does not affect beta. On the embedded store, the outage
    // affects both nodes.
    let around = fleet.store.url_around_the_proxy();
    let mut beta = fleet.launch_with("beta", &[("--store", &around)]).start();
    beta.event("to follow alpha", |event| event.name == "standby" && event.text("reason").contains("alpha"));
    let outage = fleet.store.cut_all();
    alpha.event("ended", |event| event.name == "ended" && event.term == term);
    if around != fleet.store.url() {
        beta.event("a commit in a higher term", |event| event.term > term && saved(event).is_some());
    }
    drop(outage);
    fleet.beat("commits of a higher term", |event| event.term > term && saved(event).is_some_and(|count| count >= 40));
    assert!(alpha.terminate().success() && beta.terminate().success());
    one_history(&fleet);
    fleet.check_promises();
}

fn operator_reads_and_changes_the_state(fleet: Fleet) {
    let fleet = fleet.with(Guest::KeepsHistory);
    let state = |args: &[&str]| fleet.command(&[&["state"], args].concat());
    let (mut alpha, _) = (fleet.node("alpha"), ());
    let first = fleet.beat("commits", |event| saved(event).is_some_and(|count| count >= 10));

    let listed = state(&["list", ELECTION]);
    assert!(
        listed.code == Some(0) && listed.stdout.starts_with("KEY") && listed.stdout.contains("count"),
        "{listed:?}"
    );
    for change in [&["put", ELECTION, "count", "1"][..], &["delete", ELECTION, "count"]] {
        let refused = state(change);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let leader = format!("alpha in term {}", first.term);
        assert!(refused.stderr.contains(&leader) && refused.stderr.contains("--force"), "{refused:?}");
    }
    // A forced change ends the term, and the next term continues from the new value.
    let forced = state(&["put", ELECTION, "count", "1000000", "--force"]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    let ended = alpha.event("ended", |event| event.name == "ended" && event.text("outcome") == "superseded");
    assert_eq!(ended.term, first.term);
    assert_eq!(ended.text("message"), "an operator changed the state");
    let page = Endpoint::of(&alpha).ask("/metrics").body;
    let ends = format!("baton_instance_ends_total{{election=\"{ELECTION}\",outcome=\"superseded\"}}");
    assert_eq!(sample(&page, &ends), 1.0, "{page}");
    let resumed =
        fleet.beat("the next term", |event| event.term > first.term && event.text("line").starts_with("resumed"));
    assert_eq!(resumed.text("line"), "resumed 1000000");
    fleet.beat("its commits", |event| event.term > first.term && saved(event).is_some());
    assert!(alpha.terminate().success());

    let exported = state(&["export", ELECTION]);
    assert_eq!(exported.json()["entries"]["count"], Value::from(read(&fleet, "count")), "{exported:?}");
    assert_eq!(state(&["put", ELECTION, "note", "of an operator"]).code, Some(0));
    assert_eq!(read(&fleet, "note"), "of an operator");
    assert_eq!(state(&["delete", ELECTION, "note"]).code, Some(0));
    let missing = state(&["get", ELECTION, "note"]);
    assert!(missing.code == Some(1) && missing.stdout.is_empty() && missing.stderr.contains("note"), "{missing:?}");
    let bytes = b"\x00\xff\n";
    let put = finish_with_input(fleet.baton(&["state", "put", ELECTION, "bytes"]), bytes);
    assert_eq!(put.code, Some(0), "{put:?}");
    let whole = state(&["export", ELECTION]);
    assert_eq!(whole.json()["entries"]["bytes"]["base64"], "AP8K");

    // An import restores all entries, including binary ones, and removes entries that are not in the imported data.
    assert_eq!(state(&["put", ELECTION, "later", "x"]).code, Some(0));
    let import = finish_with_input(fleet.baton(&["state", "import", ELECTION]), whole.stdout.as_bytes());
    assert_eq!(import.code, Some(0), "{import:?}");
    assert_eq!(state(&["export", ELECTION]).stdout, whole.stdout);
    let last = br#"{"format": "baton state 1", "election": "job", "term": 18446744073709551615, "entries": {}}"#;
    let refused = finish_with_input(fleet.baton(&["state", "import", ELECTION]), last);
    assert!(refused.code == Some(1) && refused.stderr.contains("too high for a later term"), "{refused:?}");
    let broken = finish_with_input(fleet.baton(&["state", "import", ELECTION]), b"{}");
    assert!(broken.code == Some(1) && broken.stderr.contains("baton state export"), "{broken:?}");
    let endless = state(&["import", ELECTION, "/dev/zero"]);
    assert!(endless.code == Some(1) && endless.stderr.contains("/dev/zero has more than 385 MiB"), "{endless:?}");
    assert_eq!(state(&["export", ELECTION]).stdout, whole.stdout);

    let misspelt = state(&["list", "nobody"]);
    assert!(misspelt.code == Some(1) && misspelt.stderr.contains("nobody has no state"), "{misspelt:?}");
    let missing = state(&["delete", ELECTION, "count", "nothing"]);
    assert!(missing.code == Some(1) && missing.stderr.contains(r#"no key "nothing""#), "{missing:?}");
    let huge = finish_with_input(fleet.baton(&["state", "put", ELECTION, "huge"]), &vec![b'x'; 64 << 20]);
    assert!(huge.code == Some(1) && huge.stderr.contains("67108864"), "{huge:?}");
    assert_eq!(state(&["export", ELECTION]).stdout, whole.stdout);
}

#[test]
fn values_are_escaped_on_a_terminal_only() {
    let fleet = Fleet::new(Store::sqlite());
    let value = "a\u{1b}[2Jb\u{9b}2J\u{202e}\nc";
    let escaped = "a\\u{1b}[2Jb\\u{9b}2J\\u{202e}";
    let entries = serde_json::json!({ "key": value, "key\u{1b}]0;x\u{7}\u{9b}": "x" });
    let import = serde_json::json!({ "format": "baton state 1", "election": ELECTION, "term": 1, "entries": entries })
        .to_string();
    // Starts a node and stops it again, because only a node creates the store.
    let mut node = fleet.node("alpha");
    node.after(0, "elected");
    assert!(node.terminate().success());
    let imported = finish_with_input(fleet.baton(&["state", "import", ELECTION, "--force"]), import.as_bytes());
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert_eq!(read(&fleet, "key"), value, "without a terminal, the value is not escaped");
    assert_eq!(on_a_terminal(&fleet.baton(&["state", "get", ELECTION, "key"])), format!("{escaped}\r\nc"));
    let mut check = baton(fleet.home.path());
    check.args(["check", "\u{1b}[2J\u{9b}.wasm"]);
    for command in [
        fleet.baton(&["state", "list", ELECTION]),
        fleet.baton(&["state", "list", ELECTION, "--output=json"]),
        fleet.baton(&["state", "export", ELECTION]),
        fleet.baton(&["state", "get", ELECTION, "\u{1b}[2J"]),
        fleet.baton(&["status", "--js\u{1b}[2J"]),
        check,
    ] {
        let shown = on_a_terminal(&command);
        // The output may contain the argument parser's color codes, but not these control sequences.
        assert!(!shown.contains("\u{1b}[2J") && !shown.contains(['\u{9b}', '\u{7}']), "{command:?}: {shown:?}");
        assert!(shown.contains("\\u{1b}") || shown.contains("\\u001b"), "{command:?}: {shown:?}");
    }
    // The JSON output contains JSON escapes, which a parser turns back into the original values.
    let exported = fleet.command(&["state", "export", ELECTION]);
    assert_eq!(exported.json()["entries"], entries);
    assert!(exported.stdout.contains("\\u009b") && !exported.stdout.contains('\u{9b}'), "{exported:?}");
}

fn on_a_terminal(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted: Vec<String> =
        words.map(|word| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))).collect();
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &quoted.join(" "), "/dev/null"]).env("SHELL", "/bin/sh");
    finish(script).stdout
}

fn state_that_exceeds_a_limit_is_refused_with_its_name(fleet: Fleet) {
    let fleet = fleet.with(Guest::SavesTooMuch);
    let mut alpha = fleet.node("alpha");
    fleet.beat("the last line", |event| event.text("line").starts_with("keys: [\"large/"));
    let lines: Vec<String> = fleet.journal.events().iter().map(|event| event.text("line").to_owned()).collect();
    for (what, result) in [
        (
            "one value of 5 MiB",
            "too-large: the state would have 5242885 bytes; the limit is 4194304, and `--max-state` raises",
        ),
        ("five values of 1 MiB", "too-large: the state would have"),
        ("an empty key", "invalid-key: a key must have 1 to 512 bytes, not 0"),
        ("a key of 513 bytes", "invalid-key: a key must have 1 to 512 bytes, not 513"),
        ("keys", "[]"),
        ("three values of 1 MiB", "saved"),
        (
            "two more of 1 MiB",
            "too-large: the state would have 5242915 bytes; the limit is 4194304, and `--max-state` raises",
        ),
        ("keys", "[\"large/0\", \"large/1\", \"large/2\"]"),
    ] {
        let line = format!("{what}: {result}");
        assert!(lines.iter().any(|other| other.starts_with(&line)), "{line} is missing in {lines:#?}");
    }
    assert!(alpha.terminate().success());
    fleet.check_promises();
}

fn saved(event: &Event) -> Option<u64> {
    event.text("line").strip_prefix("saved ")?.parse().ok()
}

fn saved_count(event: &Event) -> u64 {
    saved(event).unwrap_or_default()
}

fn read(fleet: &Fleet, key: &str) -> String {
    let got = fleet.command(&["state", "get", ELECTION, key]);
    assert_eq!(got.code, Some(0), "{got:?}");
    got.stdout
}

/// Checks that the commits of all terms form one history, and that no acknowledged commit is lost.
fn one_history(fleet: &Fleet) {
    let exported = fleet.command(&["state", "export", ELECTION]).json();
    let entries = exported["entries"].as_object().expect("entries");
    let text = |key: &str| entries[key].as_str().expect("text");
    let count: u64 = text("count").parse().expect("a number");
    let mut parts: BTreeMap<u64, RangeInclusive<u64>> = BTreeMap::new();
    for key in entries.keys().filter(|key| key.starts_with("terms/")) {
        let term = key["terms/".len()..].parse().expect("a term");
        let (from, to) = text(key).split_once("..").expect("a part");
        parts.insert(term, from.parse().expect("a number")..=to.parse().expect("a number"));
    }
    let mut next = 1;
    for (term, part) in &parts {
        assert_eq!(*part.start(), next, "term {term} does not continue the previous term's count: {parts:?}");
        next = part.end() + 1;
    }
    assert_eq!(next, count + 1, "the count is not the sum of the terms: {parts:?}");
    for event in fleet.journal.events() {
        if let Some(commit) = saved(&event).filter(|commit| *commit > 0) {
            // An instance that ended before its first commit prints the count that it found at its start.
            let is_its_own = parts.get(&event.term).is_none_or(|part| part.contains(&commit) || commit < *part.start());
            assert!(is_its_own, "{event:?} is not in {parts:?}");
            assert!(commit <= count, "{event:?} was lost: the count is {count}");
        }
    }
}
