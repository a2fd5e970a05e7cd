//! A guest that causes effects as fast as it can, without state. Therefore, only the record and the nodes'
//! announcements in the store show which term is being served.

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
