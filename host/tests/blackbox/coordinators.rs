//! Several coordinators in one host: what one does is not felt by another.

use std::time::Duration;

use crate::guests::Guest;
use crate::node::{Journal, Launch};
use crate::store::Store;

/// So many times it beats beside the other.
const BEATS: usize = 50;

/// A coordinator of that name, as a file of settings has it.
pub fn table(name: &str, guest: Guest) -> String {
    let env = guest.env().map(|(key, value)| format!("{key} = {value:?}")).join(", ");
    format!("[coordinators.{name}]\nmodule = {:?}\nenv = {{ {env} }}\n", guest.module())
}

/// One host with a coordinator that beats and one that is given.
fn beats_beside(other: Guest) {
    let store = Store::sqlite();
    let home = tempfile::tempdir().expect("a folder");
    let config = format!(
        "store = {:?}\nlease = \"10s\"\ngrace = \"300ms\"\npause = \"100ms\"\nmax-memory = \"64MiB\"\n\n{}\n{}",
        store.url(),
        table("beats", Guest::Beats),
        table("other", other)
    );
    std::fs::write(home.path().join("baton.toml"), config).expect("the file is written");
    let journal = Journal::default();
    let mut node = Launch::run("alpha", home.path(), &journal).start();
    let other = journal.event("the other starts", |e| e.name == "started" && e.text("election") == "other");
    let first = journal.event("a beat", |e| e.name == "output" && e.text("election") == "beats" && e.ts > other.ts);
    // For a while the beats go on, in one term. The lease outlasts what a busy machine does.
    let until = first.ts + Duration::from_secs(6);
    let beats = journal.wait_for_the_last("many beats, for a while", |events| {
        let beats = events.iter().filter(|e| e.name == "output" && e.text("election") == "beats" && e.ts >= first.ts);
        let beats: Vec<_> = beats.cloned().collect();
        let are_enough = beats.len() >= BEATS && beats.last().is_some_and(|last| last.ts > until);
        if are_enough { Ok(beats) } else { Err(beats.len() as u64) }
    });
    for pair in beats.windows(2) {
        assert_eq!(pair[0].term, pair[1].term, "the term of the one that beats ended: {:?}", pair[1]);
    }
    assert_eq!(node.terminate().code(), Some(0));
    for election in ["beats", "other"] {
        let ended = journal.events().iter().any(|e| e.name == "released" && e.text("election") == election);
        assert!(ended, "{election} was not released");
    }
}

#[test]
fn one_that_loops_does_not_disturb_another() {
    beats_beside(Guest::Loops);
}

#[test]
fn one_that_traps_does_not_disturb_another() {
    beats_beside(Guest::Traps);
}

#[test]
fn one_that_floods_does_not_disturb_another() {
    beats_beside(Guest::Floods);
}
