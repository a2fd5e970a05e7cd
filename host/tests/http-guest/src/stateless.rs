//! A guest that causes effects as fast as it can, without state. The current term is therefore stored only in the
//! record and in the nodes' announcements.

#![allow(clippy::disallowed_methods, reason = "a guest has no other clock")]

mod causes;
#[expect(dead_code, reason = "the HTTP guest uses all of it")]
mod client;

use baton_sdk::Term;
use causes::Saved;

baton_sdk::coordinator!(run);

fn run(term: &Term) -> baton_sdk::Result {
    causes::cause(term, Saved::default(), |_| false)
}
