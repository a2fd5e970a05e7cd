//! The guest of the black-box tests. What it does is said by the variable `BEHAVIOUR`.

use std::hint::black_box;
use std::io::Write;
use std::time::Duration;

wit_bindgen::generate!({ path: "../../../../wit", world: "baton:host/coordinator", generate_all });

use baton::host::term;
use exports::baton::host::task::{Failure, Guest};

/// From one beat to the next.
const BEAT: Duration = Duration::from_millis(20);

struct Coordinator;

export!(Coordinator);

impl Guest for Coordinator {
    fn run() -> Result<(), Failure> {
        match std::env::var("BEHAVIOUR").as_deref() {
            Ok("beats") => beats(),
            Ok("done") => {}
            Ok("loops") => loops(),
            Ok("ignores-stop") => ignores_stop(),
            Ok("waits-for-ever") => std::thread::sleep(Duration::MAX / 4),
            Ok("floods") => floods(),
            Ok("traps") => core::arch::wasm32::unreachable(),
            Ok("recurses") => _ = black_box(recurses(0)),
            Ok("allocates") => allocates(),
            Ok("exits") => std::process::exit(3),
            Ok("steps-down") => steps_down(),
            Ok("fails-retryable") => return Err(Failure::Retryable("the weather is bad".to_string())),
            Ok("fails-fatally") => return Err(Failure::Fatal("the tool is broken".to_string())),
            other => return Err(Failure::Fatal(format!("BEHAVIOUR is {other:?}"))),
        }
        Ok(())
    }
}

/// Each line is begun in one beat and ended in the next, so that whenever this is paused or killed, the
/// host has half a line in its hands.
fn beats() {
    for n in 0.. {
        print!("beat {n} of term {}", term::number());
        _ = std::io::stdout().flush();
        std::thread::sleep(BEAT);
        println!(", and its end");
        if term::stop_requested().is_some() {
            return;
        }
    }
}

fn loops() {
    let mut n = 0_u64;
    loop {
        n = black_box(n.wrapping_add(1));
    }
}

fn ignores_stop() {
    for n in 0.. {
        println!("beat {n}, and nobody stops me");
        std::thread::sleep(BEAT);
    }
}

fn floods() {
    for n in 0.. {
        println!("line {n} of very many");
    }
}

#[expect(unconditional_recursion, reason = "that is what it is for")]
fn recurses(depth: u64) -> u64 {
    black_box(recurses(black_box(depth + 1)) + 1)
}

fn allocates() {
    loop {
        std::mem::forget(black_box(vec![1_u8; 1 << 20]));
    }
}

fn steps_down() {
    term::step_down("it is someone else's turn");
    beats();
}
