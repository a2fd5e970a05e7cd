//! A program that does not use Baton's interfaces. The variable `BEHAVIOUR` selects what it does.

#![allow(clippy::disallowed_methods, reason = "a guest has no other clock")]

#[path = "../compute.rs"]
mod primes;

use std::hash::{BuildHasher as _, RandomState};
use std::hint::black_box;
use std::io::Read;
use std::net::{TcpStream, UdpSocket};
use std::process;
use std::time::{Duration, Instant};

fn main() {
    let behaviour = std::env::var("BEHAVIOUR").unwrap_or_default();
    say(&format!("{behaviour} begins"));
    match behaviour.as_str() {
        "tell" => tell(),
        "exit" => process::exit(3),
        "panic" => the_last_straw(black_box(7)),
        "beat" => beat(),
        "beat-then-silence" => {
            (0..60).for_each(|_| println!("beat {}", nap()));
            println!("from here on, silence");
            std::thread::sleep(Duration::from_secs(1_000_000));
        }
        "reach-out" => reach_out(),
        "primes" => {
            let limit = std::env::var("LIMIT").ok().and_then(|limit| limit.parse().ok()).unwrap_or(1);
            let begin = Instant::now();
            let mixed = primes::primes(black_box(limit));
            println!("{} {mixed}", begin.elapsed().as_nanos());
        }
        "random" => say(&format!("by chance {}", RandomState::new().hash_one(()))),
        "compute" => compute_something(Duration::from_millis(700)),
        _ => process::exit(9),
    }
}

fn tell() {
    for (name, value) in std::env::vars().filter(|(name, _)| name != "BEHAVIOUR") {
        say(&format!("{name}={value}"));
    }
    for argument in std::env::args() {
        say(&format!("argument {argument:?}"));
    }
    let mut input = Vec::new();
    let read = std::io::stdin().read_to_end(&mut input);
    say(&format!("input: {read:?}"));
}

/// Tries to use several resources, each of them twice. None of them is granted.
fn reach_out() {
    for _ in 0..2 {
        say(&format!("file: {}", outcome(std::fs::read("/etc/hostname"))));
        say(&format!("created: {}", outcome(std::fs::write("created.txt", "by the guest"))));
        say(&format!("tcp: {}", outcome(TcpStream::connect("127.0.0.1:9"))));
        say(&format!("udp: {}", outcome(UdpSocket::bind("127.0.0.1:0"))));
        say(&format!("name: {}", outcome(TcpStream::connect("example.com:80"))));
    }
}

/// Prints a line, then pauses, because the tests' journal drops similar lines that are less than 10 ms apart.
fn say(line: &str) {
    println!("{line}");
    std::thread::sleep(Duration::from_millis(15));
}

fn outcome<T>(result: std::io::Result<T>) -> String {
    result.map_or_else(|error| format!("{:?}: {error}", error.kind()), |_| "it worked".to_owned())
}

fn beat() {
    loop {
        println!("beat after {}", nap());
    }
}

fn nap() -> u128 {
    let began = Instant::now();
    std::thread::sleep(Duration::from_millis(50));
    began.elapsed().as_millis()
}

#[inline(never)]
fn compute_something(length: Duration) {
    let began = Instant::now();
    let mut sum = 0_u64;
    while began.elapsed() < length {
        for i in 0..1_000_000_u64 {
            sum = black_box(sum.wrapping_mul(31).wrapping_add(i));
        }
    }
    println!("computed {sum}");
}

#[inline(never)]
fn the_last_straw(straws: u32) {
    assert!(straws < black_box(5), "{straws} straws are too many");
}
