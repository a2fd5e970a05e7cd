//! The elector's own sources, copied by `build.rs`, in which one rule at a time can be broken.
#![allow(warnings, clippy::all, reason = "the code is generated; its source is linted where it stands")]

std::thread_local! {
    static CHOSEN: core::cell::Cell<Option<usize>> = const { core::cell::Cell::new(None) };
}

/// Chooses the mutant that this thread runs; none is the elector as it is.
pub fn choose(number: Option<usize>) {
    CHOSEN.set(number);
}

fn mutant(number: usize) -> bool {
    CHOSEN.get() == Some(number)
}

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));
