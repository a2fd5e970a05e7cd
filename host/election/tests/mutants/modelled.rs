//! The model must be able to fail: the ways to two leaders that were once found by readers, or that a design warns of,
//! are found by it, each from a start of its own, where their mends are taken out. It runs the very code of `../model`,
//! against the copy of the elector's sources with the mutants of `table.rs` in it. `BATON_MUTANT=all` hunts every
//! mutant from every start, for a while each, and says which are found, `BATON_MUTANT=hint` those with that in their
//! names: rules that only time, chance or people know of are not the model's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may end by a panic")]
#![allow(clippy::disallowed_methods, reason = "how long it tries is a plain clock's")]
#![allow(missing_docs, dead_code, reason = "nobody links against a test, and not all of the model is used here")]

extern crate baton_election_mutants as baton_election;

#[path = "../model/actions.rs"]
mod actions;
#[path = "../model/checker.rs"]
mod checker;
#[path = "../model/starts.rs"]
mod starts;
#[path = "../model/state.rs"]
mod state;
#[path = "../simulation/store.rs"]
mod store;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use checker::Bound;
use starts::{STARTS, Start};

include!("table.rs");

/// The states in which a mutant must be found. The one that hides longest is found after 181,000.
const STATES: usize = 1_000_000;

/// What was found by reading or is warned of, and the start from which it is found here.
const FOUND: [(&str, &str); 7] = [
    ("one of two leads, and outsiders meddle", "a lease that is free without the mark is taken at once"),
    ("one of two leads, and outsiders meddle", "a record that is made anew looks as if nobody had ever led"),
    (
        "a term is claimed ahead, and its host was paused until shortly before the lease ends",
        "a term that was written before the lease was in doubt is served",
    ),
    (
        "one of two of a machine waits a broken lease out",
        "the end of a holder that was itself waiting lets its lease be reclaimed",
    ),
    ("one of two leads, and is lied about", "a hint raises a term"),
    ("one of two leads, and is lied about", "a leader that is heard is never read again"),
    ("one of two leads, and is lied about", "a leader says that it renews when it hears of it"),
];

static CHOSEN: AtomicUsize = AtomicUsize::new(0);

#[test]
fn what_readers_found_is_found_without_its_mend() {
    let wanted = std::env::var("BATON_MUTANT").unwrap_or_default();
    if !wanted.is_empty() {
        return hunt_all(&wanted);
    }
    for (start, mutant) in FOUND {
        let start = STARTS.iter().find(|one| one.name == start).unwrap();
        let number = MUTANTS.iter().position(|one| one.name == mutant).unwrap();
        let found = hunt(start, number, Bound::States(STATES));
        println!("{:>8} states until {mutant}: {:#?}", found.states, found.broken);
        assert!(found.broken.is_some(), "not found: {mutant}");
    }
}

fn hunt_all(wanted: &str) {
    let is_wanted = |mutant: &Mutant| wanted == "all" || mutant.name.contains(wanted);
    for (number, mutant) in MUTANTS.iter().enumerate().filter(|(_, mutant)| is_wanted(mutant)) {
        // A start that a mutant keeps from being reached ends in a panic.
        let hunt = |start| std::panic::catch_unwind(|| hunt(start, number, Bound::Time(Duration::from_secs(5)))).ok();
        let hunts = STARTS.iter().map(|start| (start.name, hunt(start)));
        let found = hunts.filter_map(|(start, found)| Some((start, found?.broken?.0))).next();
        println!("{:<60} {found:?}", mutant.name);
    }
}

fn hunt(start: &Start, number: usize, bound: Bound) -> checker::Found {
    CHOSEN.store(number, Ordering::Relaxed);
    checker::check(start, bound, || baton_election::choose(Some(CHOSEN.load(Ordering::Relaxed))))
}
