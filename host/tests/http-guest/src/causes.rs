//! Causes effects: alternately a request to `URL` and a line of output, with pauses of `EVERY_US` microseconds, which
//! may be 0. After every eighth request, the guest prints 32 lines, which is more than the host writes at once. If the
//! variable `FILE` is set, the guest also appends each effect to that file.
//!
//! Each effect contains `INSTANCE/N/RESUMED/SAVED_IN/SAVED/TERM`:
//!
//! - a unique name of the instance, and the number of the effect
//! - the number of saves at the start of the term, and the term of the last save
//! - the number of acknowledged saves so far
//! - the term
//!
//! In two of every four terms, the guest ignores stop requests.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::time::Duration;

use baton_sdk::Term;
use wasip2::http::types::Fields;

use super::client;

/// The number of effects between two commits.
const SAVES_EVERY: u64 = 16;

/// The number of saves at the start of a term, and the term in which the last save was made.
#[derive(Clone, Copy, Default)]
pub struct Saved {
    pub times: u64,
    pub term: u64,
}

/// Causes effects until a stop request, or forever in terms that ignore stop requests. `save` stores the number of
/// saves, and returns true on success.
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
        // Ignore refused and lost effects: a guest that does not give up is harder for a host to stop.
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
