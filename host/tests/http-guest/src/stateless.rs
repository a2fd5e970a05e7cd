//! A guest that causes effects as fast as it can, and keeps no state: nothing in the store says which term is served but
//! the record, and what nodes announce.

#![allow(clippy::disallowed_methods, reason = "a guest has no other clock")]

mod causes;
#[expect(dead_code, reason = "the other guest has use for all of it")]
mod client;

use baton_sdk::Term;
use causes::Saved;

baton_sdk::coordinator!(run);

fn run(term: &Term) -> baton_sdk::Result {
    causes::cause(term, Saved::default(), |_| false)
}
