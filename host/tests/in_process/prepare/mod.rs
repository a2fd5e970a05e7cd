//! Tests that prepare modules with the real compiler.

mod caching;
mod compiling;
mod trusting;
mod waiting;

use baton_test_support::{minisign, modules, patience};

use std::path::PathBuf;
use std::time::Duration;

use baton_modules::{Compiler, Offer, Preparer, Trust};
use baton_runtime::{Engine, Policy, Processes, Runners, Templates};
use tokio::runtime::Handle;

/// The program under test, which contains the compiler.
fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_baton").into()
}

/// A preparer that trusts all modules and has no cache.
fn preparer() -> Preparer {
    Preparer {
        engine: Engine::new().unwrap(),
        trust: Trust::default(),
        compiler: Compiler::in_program(program()),
        compile_timeout: Duration::from_secs(60),
        cache: None,
        runners: Runners::new(
            Policy::default(),
            &Templates::new(program(), &Processes::new().unwrap()),
            &Handle::current(),
        ),
    }
}

fn offer(bytes: Vec<u8>) -> Offer {
    Offer { bytes: bytes.into(), signature: None }
}
