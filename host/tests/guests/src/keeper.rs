//! A guest with state. The variable `BEHAVIOUR` selects what it does.

#![allow(clippy::disallowed_methods, reason = "a guest has one clock")]

use std::time::{Duration, Instant};

use baton_sdk::bindings::baton::host::state::{Change, Error, commit, get, keys};
use baton_sdk::{Failure, Term};

baton_sdk::coordinator!(run);

fn run(term: &Term) -> baton_sdk::Result {
    match std::env::var("BEHAVIOUR").as_deref() {
        Ok("history") => history(term),
        Ok("rest") => rest(term),
        Ok("too-much") => too_much(term),
        Ok("time-commits") => time(|| save(&[put("progress", vec![7; 100])])),
        Ok("time-reads") => {
            save(&[put("progress", vec![7; 100])])?;
            time(|| {
                get("progress");
                Ok(())
            })
        }
        other => Err(Failure::fatal(format!("no behaviour is called {other:?}"))),
    }
}

/// Saves a growing count. Each term also saves the range of counts that it has saved, so that a test can check
/// afterwards that all commits form one history.
fn history(term: &Term) -> baton_sdk::Result {
    let mut count: u64 = match get("count") {
        Some(count) => String::from_utf8(count)?.parse()?,
        None => 0,
    };
    println!("resumed {count}");
    let first = count + 1;
    while term.check().is_ok() {
        count += 1;
        let part = format!("{first}..{count}");
        save(&[
            put("count", count.to_string()),
            put(&format!("terms/{:06}", term.number()), part),
            Change::Delete("padding".to_owned()),
        ])?;
        // The host only accepts a few hundred lines per second.
        if count.is_multiple_of(5) {
            println!("saved {count}");
        }
    }
    println!("saved {count}");
    Ok(())
}

fn rest(term: &Term) -> baton_sdk::Result {
    println!("resting in term {}", term.number());
    while term.sleep(Duration::from_secs(1 << 20)).is_ok() {}
    println!("stopped");
    Ok(())
}

fn too_much(term: &Term) -> baton_sdk::Result {
    let mib = |count: usize| vec![1_u8; count << 20];
    let say = |line: String| {
        println!("{line}");
        // The tests' journal drops similar lines that come within 10 ms.
        let _ = term.sleep(Duration::from_millis(20));
    };
    let attempt = |what: &str, changes: &[Change]| {
        say(match commit(changes) {
            Ok(()) => format!("{what}: saved"),
            Err(Error::TooLarge(why)) => format!("{what}: too-large: {why}"),
            Err(Error::InvalidKey(why)) => format!("{what}: invalid-key: {why}"),
            Err(other) => format!("{what}: {other:?}"),
        });
    };
    attempt("one value of 5 MiB", &[put("large", mib(5))]);
    let five: Vec<Change> = (0..5).map(|n| put(&format!("large/{n}"), mib(1))).collect();
    attempt("five values of 1 MiB", &five);
    attempt("an empty key", &[put("", "x")]);
    attempt("a key of 513 bytes", &[put(&"k".repeat(513), "x")]);
    say(format!("keys: {:?}", keys("")));
    attempt("three values of 1 MiB", &five[..3]);
    attempt("two more of 1 MiB", &five[3..]);
    say(format!("keys: {:?}", keys("large/")));
    while term.sleep(Duration::from_secs(1)).is_ok() {}
    Ok(())
}

/// Calls `what` `TIMES` times, and prints the durations, in nanoseconds, in one line.
fn time(mut what: impl FnMut() -> baton_sdk::Result) -> baton_sdk::Result {
    let times: usize = std::env::var("TIMES")?.parse()?;
    let mut took = Vec::with_capacity(times);
    for _ in 0..times {
        let begin = Instant::now();
        what()?;
        took.push(begin.elapsed().as_nanos().to_string());
    }
    println!("{}", took.join(" "));
    Ok(())
}

fn put(key: &str, value: impl Into<Vec<u8>>) -> Change {
    Change::Put((key.to_owned(), value.into()))
}

fn save(changes: &[Change]) -> baton_sdk::Result {
    commit(changes).map_err(|error| Failure::retryable(format!("{error:?}")))
}
