//! A guest that causes effects as fast as it can. In every second term, it also saves state repeatedly: the number of
//! saves so far.

#![allow(clippy::disallowed_methods, reason = "a guest has no other clock")]

mod causes;
#[expect(dead_code, reason = "the HTTP guest uses all of it")]
mod client;

use baton_sdk::Term;
use causes::Saved;

baton_sdk::coordinator!(run);

fn run(term: &Term) -> baton_sdk::Result {
    let (state, number) = (term.state(), term.number());
    let before = match state.get_bytes("saved") {
        Some(saved) => {
            let saved = String::from_utf8(saved)?;
            let (times, term) = saved.split_once(' ').ok_or("not a count and a term")?;
            Saved { times: times.parse()?, term: term.parse()? }
        }
        None => Saved::default(),
    };
    causes::cause(term, before, |times| {
        !number.is_multiple_of(2) && state.put_bytes("saved", format!("{times} {number}")).is_ok()
    })
}
