//! The coordinator that is measured with; `BENCH` tells it what to do. Its first instructions print a line,
//! for the one who waits for them.

#![allow(missing_docs, reason = "the generated bindings")]

use std::hint::black_box;

wit_bindgen::generate!({ path: "../../../wit", world: "baton:host/coordinator", generate_all });

use baton::host::term;
use exports::baton::host::task::{Failure, Guest};

struct Bench;

impl Guest for Bench {
    fn run() -> Result<(), Failure> {
        println!("first");
        let task = std::env::var("BENCH").unwrap_or_default();
        match task.split_once('=') {
            None if task == "sleep" => term::subscribe_stop().block(),
            None if task == "spin" => spin(),
            Some(("touch", mebibytes)) => {
                let memory = vec![1u8; mebibytes.parse::<usize>().unwrap_or(0) << 20];
                black_box(&memory);
                println!("touched");
                spin();
            }
            _ => {}
        }
        Ok(())
    }
}

fn spin() -> ! {
    loop {
        black_box(0);
    }
}

export!(Bench);
