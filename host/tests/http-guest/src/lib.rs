//! A guest that sends HTTP requests to `URL`. The variable `BEHAVIOUR` selects what it does.

#![allow(clippy::disallowed_methods, reason = "a guest has no other clock")]

mod client;
mod hoard;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use baton_sdk::{Failure, Term};
use wasip2::cli::stdout::get_stdout;
use wasip2::clocks::monotonic_clock::subscribe_duration;
use wasip2::http::types::{Fields, RequestOptions};
use wasip2::io::poll::{Pollable, poll};

baton_sdk::coordinator!(run);

thread_local! {
    /// Strings that [`rest`] prints on one line, because the tests' journal drops similar lines that come within 10 ms.
    static TEXTS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

macro_rules! say {
    ($($line:tt)*) => { TEXTS.with_borrow_mut(|texts| texts.push(format!($($line)*))) };
}

fn run(term: &Term) -> baton_sdk::Result {
    let url = variable("URL");
    match variable("BEHAVIOUR").as_str() {
        "get" => get(term, &url),
        "forge" => forge(term, &url),
        "follow" => follow(term, &url),
        "many" => many(term, &url),
        "crowd" => crowd(term, &url),
        "upload" => upload(term, &url),
        "flood" => flood(term, &url),
        "linger" => linger(term, &url),
        "hang" => hang(term, &url),
        "report" => report(term, &url),
        "measure" => measure(&url),
        "never-wait" => never_wait(term, &url),
        "hoard" => {
            let hoarded = hoard::hoard(&variable("HOARD"), &url)?;
            if variable("THEN") == "done" {
                return Ok(());
            }
            say!("{hoarded}");
            rest(term)
        }
        unknown => Err(Failure::fatal(format!("no behaviour is called `{unknown}`"))),
    }
}

fn get(term: &Term, urls: &str) -> baton_sdk::Result {
    for url in urls.split(' ') {
        match client::get(url, Fields::new()) {
            Ok(answer) if answer.body.len() > 100 => say!("{url}: {} and {} bytes", answer.status, answer.body.len()),
            Ok(answer) => say!("{url}: {} {}", answer.status, answer.body),
            Err(why) => say!("{url}: {why}"),
        }
    }
    rest(term)
}

/// Tries in many ways to send headers that only a host may send.
fn forge(term: &Term, url: &str) -> baton_sdk::Result {
    let names = [
        "Baton-Term",
        "baton-term",
        "BATON-TERM",
        "bAtOn-TeRm",
        "Baton_Term",
        "Baton.Term",
        "baton-election",
        "Baton-Node",
        "Host",
        "Connection",
        "Transfer-Encoding",
        "Transfer_Encoding",
        "Content_Length",
        "Upgrade",
        "Baton-Term ",
        " Baton-Term",
        "Baton-Term:",
        "X\r\nBaton-Term",
        "Baton-Term\0",
    ];
    let values = [b"invented".to_vec(), b"1\r\nBaton-Term: invented".to_vec(), b"1\nBaton-Term: invented".to_vec()];
    let headers = Fields::new();
    let trailers = Fields::new();
    for name in names {
        for value in &values {
            for fields in [&headers, &trailers] {
                let tries = [fields.set(name, std::slice::from_ref(value)).is_ok(), fields.append(name, value).is_ok()];
                let listed = Fields::from_list(&[(name.to_owned(), value.clone())]).is_ok();
                if tries.contains(&true) || listed {
                    say!("forged {name:?}: {tries:?} {listed}");
                }
            }
        }
    }
    for value in &values[1..] {
        if headers.append("x-split", value).is_ok() || trailers.append("x-split", value).is_ok() {
            say!("forged a second line in a value");
        }
    }
    headers.append("x-honest", b"yes").map_err(|error| format!("{error}"))?;
    headers.append("trailer", b"x-honest, baton-term").map_err(|error| format!("{error}"))?;
    trailers.append("x-honest", b"trailing").map_err(|error| format!("{error}"))?;
    let authorities = ["evil@", "x:y@", "a\r\nBaton-Term: invented@"];
    for evil in authorities {
        let forged = url.replacen("://", &format!("://{evil}"), 1);
        say!("authority: {:?}", client::get(&forged, Fields::new()).map(|answer| answer.status));
    }
    for path in ["/x HTTP/1.1\r\nBaton-Term: invented\r\nX: ", "/x\r\nBaton-Term: invented"] {
        say!("path: {:?}", client::get(&format!("{url}{path}"), Fields::new()).map(|answer| answer.status));
    }
    let answer = client::post(&format!("{url}/honest"), headers, b"body", Some(trailers))?;
    say!("sent: {}", answer.status);
    rest(term)
}

fn follow(term: &Term, url: &str) -> baton_sdk::Result {
    let mut next = url.to_owned();
    for _ in 0..5 {
        match client::get(&next, Fields::new()) {
            Ok(client::Answer { status: 300..=399, location: Some(location), .. }) => {
                say!("redirected to {location}");
                next = location;
            }
            Ok(answer) => {
                say!("arrived: {} {}", answer.status, answer.body);
                break;
            }
            Err(why) => {
                say!("not arrived: {why}");
                break;
            }
        }
    }
    rest(term)
}

/// Starts 10,000 requests that the server never answers, and then one that it answers.
fn many(term: &Term, url: &str) -> baton_sdk::Result {
    let mut kept = Vec::new();
    let mut refused = Vec::new();
    for _ in 0..10_000 {
        match client::begin(&format!("{url}/hang"), Fields::new(), None) {
            Ok(answer) => kept.push(answer),
            Err(reason) => refused.push(reason),
        }
    }
    refused.dedup();
    say!("kept {}, refused with {refused:?}", kept.iter().filter(|answer| answer.get().is_none()).count());
    drop(kept);
    // The dropped requests still count against the host's limit until their tasks have ended, so retry.
    let answer = loop {
        match client::get(&format!("{url}/answer"), Fields::new()) {
            Ok(answer) => break answer,
            Err(_) => term.sleep(Duration::from_millis(10))?,
        }
    };
    say!("and then {}", answer.status);
    rest(term)
}

/// Starts 64 requests, and waits until the host kills the instance.
fn crowd(term: &Term, url: &str) -> baton_sdk::Result {
    let begun: Result<Vec<_>, String> = (0..64).map(|_| client::begin(url, Fields::new(), None)).collect();
    let begun = begun?;
    println!("{} in flight", begun.len());
    let _ = client::head(&begun[0]);
    rest(term)
}

/// Writes an endless body, one line every 5 ms, even after a stop request.
fn upload(term: &Term, url: &str) -> baton_sdk::Result {
    let upload = client::upload(url, Fields::new())?;
    for line in 1_u64.. {
        let line = format!("line {line} of term {}\n", term.number());
        if let Err(error) = upload.out.blocking_write_and_flush(line.as_bytes()) {
            println!("the upload ended: {error:?}");
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    rest(term)
}

fn flood(term: &Term, url: &str) -> baton_sdk::Result {
    let upload = client::upload(url, Fields::new())?;
    let part = [b'x'; 4096];
    while upload.out.blocking_write_and_flush(&part).is_ok() {}
    println!("the flood ended");
    rest(term)
}

/// Starts requests with endless bodies until the host refuses one. The server answers each request before its body
/// ends.
fn linger(term: &Term, url: &str) -> baton_sdk::Result {
    let mut kept = Vec::new();
    let refused = loop {
        let upload = match client::upload(url, Fields::new()) {
            Ok(upload) if kept.len() < 10 => upload,
            Ok(_) => break "nothing".to_owned(),
            Err(reason) => break reason,
        };
        let response = client::head(&upload.answer).map_err(|code| code.to_string())?;
        kept.push((upload, response));
    };
    say!("kept {}, refused with {refused}", kept.len());
    drop(kept);
    rest(term)
}

/// Waits for an answer that does not come. `TIMEOUT_MS` overrides the host's timeout.
fn hang(term: &Term, url: &str) -> baton_sdk::Result {
    let options = RequestOptions::new();
    if let Ok(timeout) = variable("TIMEOUT_MS").parse::<u64>() {
        let _ = options.set_first_byte_timeout(Some(timeout * 1_000_000));
    }
    let begin = Instant::now();
    println!("asking");
    let answer = client::begin(url, Fields::new(), Some(options))?;
    let result = client::head(&answer).map(|response| response.status());
    println!("after {} ms: {result:?}", begin.elapsed().as_millis());
    rest(term)
}

/// Sends two requests and returns ok, even if the server refuses the term. The host logs such a refusal, but does not
/// end the instance.
fn report(term: &Term, url: &str) -> baton_sdk::Result {
    for _ in 0..2 {
        match client::get(url, Fields::new()) {
            Ok(answer) => println!("reported: {}", answer.status),
            Err(why) => println!("not reported: {why}"),
        }
    }
    term.check()?;
    Ok(())
}

/// Sends `REQUESTS` requests, one after the other, and prints the duration of each in nanoseconds.
fn measure(url: &str) -> baton_sdk::Result {
    let requests: usize = variable("REQUESTS").parse()?;
    let mut took = Vec::with_capacity(requests);
    for _ in 0..requests {
        let begin = Instant::now();
        let answer = client::get(url, Fields::new())?;
        took.push(begin.elapsed().as_nanos().to_string());
        if answer.status != 200 {
            return Err(Failure::fatal(format!("status {}", answer.status)));
        }
    }
    for some in took.chunks(200) {
        println!("took {}", some.join(" "));
    }
    Ok(())
}

/// Waits for timers and requests each of the URLs, but polls instead of blocking.
fn never_wait(term: &Term, urls: &str) -> baton_sdk::Result {
    let is_there = |pollable: &Pollable| {
        std::hint::black_box((0..1000).map(std::hint::black_box).sum::<u64>());
        pollable.ready()
    };
    let (alone, beside, stdout) = (subscribe_duration(50_000_000), subscribe_duration(100_000_000), get_stdout());
    while !is_there(&alone) {}
    // Also poll stdout. It is always ready, so `poll` never blocks.
    let room = stdout.subscribe();
    while !poll(&[&beside, &room]).contains(&0) {}
    say!("timers");
    for url in urls.split(' ') {
        let answer = client::begin(url, Fields::new(), None)?;
        let has_come = answer.subscribe();
        while !is_there(&has_come) {}
        drop(has_come);
        let response = client::head(&answer).map_err(|code| code.to_string())?;
        let body = client::read_without_waiting(&response.consume().map_err(|()| "no body")?)?;
        say!("{url}: {} {}", response.status(), body.len());
    }
    rest(term)
}

fn rest(term: &Term) -> baton_sdk::Result {
    println!("{}", TEXTS.take().join("\t"));
    println!("rests");
    while term.sleep(Duration::from_secs(60)).is_ok() {}
    Ok(())
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
