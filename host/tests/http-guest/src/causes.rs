//! Effects as fast as can be, or with a rest of `EVERY_US`: a request to `URL` and a line in turn, and now and then many
//! lines, more than are written at once. Where there is a `FILE`, each is appended to it as well.
//!
//! Each effect is `INSTANCE/N/RESUMED/SAVED_IN/SAVED/TERM`: a name that no other instance has, which effect of it this is,
//! how often had been saved when it began, in which term that was saved last, how often it knows that it is saved by now,
//! and its term. In two terms of four the stop is ignored.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::time::Duration;

use baton_sdk::Term;
use wasip2::http::types::Fields;

use super::client;

/// From one commit to the next, in effects.
const SAVES_EVERY: u64 = 16;

/// What had been saved when a term began: how often, and in which term last.
#[derive(Clone, Copy, Default)]
pub struct Saved {
    pub times: u64,
    pub term: u64,
}

/// Causes effects until the stop, or for ever. Now and then saves, which says whether it did: so many times, then.
pub fn cause(term: &Term, before: Saved, save: impl Fn(u64) -> bool) -> baton_sdk::Result {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let (url, every) = (variable("URL"), Duration::from_micros(variable("EVERY_US").parse()?));
    let mut file = match variable("FILE") {
        path if path.is_empty() => None,
        path => Some(File::options().append(true).create(true).open(path)?),
    };
    let name = RandomState::new().build_hasher().finish();
    let number = term.number();
    let Saved { times: resumed, term: saved_in } = before;
    let mut saved = resumed;
    for n in 1_u64.. {
        if number % 4 < 2 {
            term.check()?;
        }
        // What is refused or lost is no reason to end: who does not notice is the worse guest.
        if n.is_multiple_of(SAVES_EVERY) && save(saved + 1) {
            saved += 1;
        }
        let effect = format!("{name:016x}/{n}/{resumed}/{saved_in}/{saved}/{number}");
        let _ = client::get(&format!("{url}/{effect}"), Fields::new());
        if let Some(file) = &mut file {
            let _ = writeln!(file, "{effect}");
        }
        for _ in 0..if n.is_multiple_of(8) { 32 } else { 1 } {
            let _ = writeln!(std::io::stdout(), "{effect}");
        }
        std::thread::sleep(every);
    }
    Ok(())
}
