//! A guest that causes effects as fast as it can, or with a rest of `EVERY_US`: a request to `URL` and a line in turn, and
//! now and then many lines, more than are written at once. In every other term it saves how often it has saved.
//!
//! Each effect is `INSTANCE/N/RESUMED/SAVED_IN/SAVED/TERM`: a name that no other instance has, which effect of it this is,
//! how often had been saved when it began, in which term that was saved last, how often it knows that it is saved by now,
//! and its term. In two terms of four it ignores the stop.

#![allow(clippy::disallowed_methods, reason = "a guest has no other clock")]

#[expect(dead_code, reason = "the other guest has use for all of it")]
mod client;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::time::Duration;

use baton_sdk::Term;
use wasip2::http::types::Fields;

baton_sdk::coordinator!(run);

/// From one commit to the next, in effects.
const SAVES_EVERY: u64 = 16;

fn run(term: &Term) -> baton_sdk::Result {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (url, every) = (variable("URL"), Duration::from_micros(variable("EVERY_US").parse()?));
    let name = RandomState::new().build_hasher().finish();
    let state = term.state();
    let number = term.number();
    let (resumed, saved_in): (u64, u64) = match state.get_bytes("saved") {
        Some(saved) => {
            let saved = String::from_utf8(saved)?;
            let (count, term) = saved.split_once(' ').ok_or("not a count and a term")?;
            (count.parse()?, term.parse()?)
        }
        None => (0, 0),
    };
    let mut saved = resumed;
    for n in 1_u64.. {
        if number % 4 < 2 {
            term.check()?;
        }
        // What is refused or lost is no reason to end: who does not notice is the worse guest.
        if !number.is_multiple_of(2)
            && n.is_multiple_of(SAVES_EVERY)
            && state.put_bytes("saved", format!("{} {number}", saved + 1)).is_ok()
        {
            saved += 1;
        }
        let effect = format!("{name:016x}/{n}/{resumed}/{saved_in}/{saved}/{number}");
        let _ = client::get(&format!("{url}/{effect}"), Fields::new());
        for _ in 0..if n.is_multiple_of(8) { 32 } else { 1 } {
            let _ = writeln!(std::io::stdout(), "{effect}");
        }
        std::thread::sleep(every);
    }
    Ok(())
}
