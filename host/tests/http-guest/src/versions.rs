//! A guest of which the tests make many versions. Its component contains a name, which the tests replace in the
//! compiled component. The first word of the name selects the behavior.

#![allow(clippy::disallowed_methods, reason = "a guest has no other clock")]

#[expect(dead_code, reason = "the HTTP guest uses all of it")]
mod client;

use std::hint::black_box;
use std::time::Duration;

use baton_sdk::{Failure, Term};
use wasip2::http::types::Fields;

baton_sdk::coordinator!(run);

static NAME: [u8; 64] = *b"the name of this version, which the tests replace by another one";

fn run(term: &Term) -> baton_sdk::Result {
    // Keep the compiler from using the name at compile time, because the tests replace it in the compiled component.
    let name = std::str::from_utf8(black_box(&NAME))?.trim_end();
    let mut words = name.split(' ');
    let behaviour = words.next().unwrap_or_default();
    let mut seconds = || words.next().unwrap_or_default().parse().map(Duration::from_secs);
    match behaviour {
        "works" => work(term, name),
        "lingers" => {
            work(term, name)?;
            std::thread::sleep(seconds()?);
            println!("{name}: has stopped");
            Ok(())
        }
        _ => fail(term, name, behaviour),
    }
}

fn fail(term: &Term, name: &str, behaviour: &str) -> baton_sdk::Result {
    println!("{name}: begins in term {}", term.number());
    match behaviour {
        "traps" => panic!("{name} panics"),
        "fatal" => Err(Failure::fatal(format!("{name} is not for here"))),
        "fails" => Err(Failure::retryable(format!("{name} fails"))),
        "stalls" => loop {
            std::thread::sleep(Duration::from_secs(1_000));
        },
        _ => Err(Failure::fatal(format!("`{name}` begins with nothing that this guest does"))),
    }
}

/// Saves a growing count and reports each count, until it receives a stop request.
fn work(term: &Term, name: &str) -> baton_sdk::Result {
    let state = term.state();
    let mut count: u64 = match state.get_bytes("count") {
        Some(count) => String::from_utf8(count)?.parse()?,
        None => 0,
    };
    println!("{name}: resumed {count} in term {}", term.number());
    let (url, every) = (variable("URL"), Duration::from_millis(variable("BEAT_MS").parse()?));
    loop {
        count += 1;
        state.put_bytes("count", count.to_string())?;
        println!("{name}: saved {count}");
        if !url.is_empty() {
            client::get(&format!("{url}/{count}"), Fields::new())?;
        }
        term.progress();
        if let Err(stop) = term.sleep(every) {
            println!("{name}: stopped with {count}, {:?}", stop.reason());
            return Ok(());
        }
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
