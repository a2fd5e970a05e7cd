//! A coordinator that shows that it is alive: one line a beat, with its term.
//!
//! `HEARTBEAT_MS` sets the milliseconds from one beat to the next; 1000 by default.

use std::time::Duration;

use baton_sdk::Term;

baton_sdk::coordinator!(run);

fn run(term: &Term) -> baton_sdk::Result {
    let every = match std::env::var("HEARTBEAT_MS") {
        Ok(text) => text.parse()?,
        Err(_) => 1_000,
    };
    let mut beat = 0_u64;
    loop {
        beat += 1;
        println!("beat {beat} of term {} on {}", term.number(), term.node());
        term.progress();
        if let Err(stop) = term.sleep(Duration::from_millis(every)) {
            println!("{stop}; the last beat was {beat}");
            return Ok(());
        }
    }
}
