//! Write coordinators for Baton: the one job of a fleet that must run in exactly one place at a time.
//!
//! A coordinator is a function that gets a [`Term`] and returns when its work is done. Baton calls it on
//! the node that leads, and ends it there before any other node can start it.
//!
//! ```
//! use std::time::Duration;
//!
//! use baton_sdk::Term;
//!
//! baton_sdk::coordinator!(run);
//!
//! fn run(term: &Term) -> baton_sdk::Result {
//!     let state = term.state();
//!     let mut beats: u64 = state.get("beats")?.unwrap_or(0);
//!     println!("term {} continues from beat {beats}", term.number());
//!     // The sleep ends early, with an error, when the host asks this instance to stop.
//!     while term.sleep(Duration::from_secs(1)).is_ok() {
//!         beats += 1;
//!         state.put("beats", &beats)?;
//!         println!("beat {beats}");
//!         term.progress();
//!     }
//!     Ok(())
//! }
//! # let test = baton_sdk::testing::Harness::new();
//! # test.stop_after(Duration::from_secs(10), baton_sdk::StopReason::Shutdown);
//! # test.run(run).unwrap();
//! # assert_eq!(test.commit_count(), 9);
//! ```
//!
//! Build it as a library of type `cdylib` with `cargo build --release --target wasm32-wasip2`, and run it
//! with `baton run target/wasm32-wasip2/release/NAME.wasm`. `baton new NAME` writes a project to start from.
//!
//! # Ending
//! [`Term::sleep`] returns early with the [`Stop`] once the instance is asked to stop; what is left of the
//! [grace](Stop::grace) is then the time to finish. A loop that never sleeps asks with [`Term::check`]. A
//! coordinator that ignores the stop is killed.
//!
//! # Failing
//! `?` works on any error, and makes it [`Failure::retryable`]: this node tries again. [`Failure::fatal`] makes the
//! node step down. Both name the line of code in the host's log. A [`Stop`] that is returned with `?` is no failure.
//!
//! # State
//! An instance starts with fresh memory. What it saves in [`Term::state`] is there for the next term, on
//! whichever node, and for `baton state get ELECTION KEY`. Values are JSON of whatever serde knows, or bytes;
//! several changes are saved together with [`State::commit`], all or none. Saving returns once the store has
//! confirmed it, and from the moment at which another term may begin nothing of this one is saved any more.
//!
//! Save what was done after doing it, and make doing it twice harmless: an instance can be ended between the
//! two.
//!
//! # Waiting
//! For the stop and a time, [`Term::sleep`] is enough. With the feature `async`, a coordinator is an async
//! function that waits for any number of things at once, on the runtime of the crate [`wstd`]:
//! [`AsyncTerm::sleep`] and [`AsyncTerm::stopped`] are futures, [`AsyncTerm::until_stop`] goes on with another
//! one until the stop, and those of other crates (`futures-lite` here) put them together.
//!
#![cfg_attr(feature = "async", doc = "```")]
#![cfg_attr(not(feature = "async"), doc = "```ignore")]
//! use std::time::Duration;
//!
//! use baton_sdk::{AsyncTerm, Stop};
//! use futures_lite::future;
//!
//! baton_sdk::coordinator!(async run);
//!
//! async fn run(term: &AsyncTerm) -> baton_sdk::Result {
//!     // Each at its own pace, until the first of them fails or is asked to stop.
//!     future::try_zip(sweep(term), report(term)).await?;
//!     Ok(())
//! }
//!
//! async fn sweep(term: &AsyncTerm) -> baton_sdk::Result {
//!     loop {
//!         println!("swept");
//!         term.sleep(Duration::from_secs(10)).await?;
//!     }
//! }
//!
//! async fn report(term: &AsyncTerm) -> baton_sdk::Result {
//!     loop {
//!         term.sleep(Duration::from_secs(60)).await?;
//!         println!("a report");
//!         term.progress();
//!     }
//! }
//! # let test = baton_sdk::testing::Harness::new();
//! # test.stop_after(Duration::from_secs(601), baton_sdk::StopReason::Shutdown);
//! # test.run_async(run).unwrap();
//! # assert_eq!(test.progress_count(), 10);
//! ```
//!
//! # HTTP
//! An async coordinator sends requests with [`AsyncTerm::http`], to whom the host allows with `--allow-http`.
//! The host adds election, term and node as headers: have the receiver refuse a term lower than the highest
//! that it has seen, and nothing of a former leader can reach it late.
//!
#![cfg_attr(feature = "async", doc = "```")]
#![cfg_attr(not(feature = "async"), doc = "```ignore")]
//! use baton_sdk::http::{Body, Request, Response};
//! use baton_sdk::{AsyncTerm, Failure};
//!
//! baton_sdk::coordinator!(async run);
//!
//! async fn run(term: &AsyncTerm) -> baton_sdk::Result {
//!     let state = term.state();
//!     for partition in state.get("done")?.unwrap_or(0)..8_u32 {
//!         let request = Request::post(format!("http://worker:8080/partitions/{partition}"))
//!             .body(Body::from_json(&term.number())?)?;
//!         // A request that hangs is cut off by the stop.
//!         let response = term.until_stop(term.http().send(request)).await??;
//!         if !response.status().is_success() {
//!             return Err(Failure::retryable(format!("partition {partition}: {}", response.status())));
//!         }
//!         state.put("done", &(partition + 1))?;
//!     }
//!     Ok(())
//! }
//! # let test = baton_sdk::testing::Harness::new();
//! # test.answer(|_| Ok(Response::new(Vec::new())));
//! # test.run_async(run).unwrap();
//! # assert_eq!(test.state().get("done").unwrap(), Some(8));
//! ```
//!
//! # Testing
#![cfg_attr(not(target_family = "wasm"), doc = "[`testing::Harness`] runs a coordinator in a test of `cargo test`,")]
#![cfg_attr(target_family = "wasm", doc = "`testing::Harness` runs a coordinator in a test of `cargo test`,")]
//! sync or async, without a host: the clock moves on while it sleeps, so that ten minutes take no time; the test
//! says when the stop comes, which commit fails and what a request is answered, and sees the state. For that,
//! ask [`Term::now`] for the time instead of the system, and let what is read from the environment be arguments
//! of a function of its own.
//!
#![cfg_attr(not(target_family = "wasm"), doc = "The module [`testing`] has an example.")]
//!
//! # Features
//! `json`, on by default, is the typed access to the state; `async` brings [`AsyncTerm`] and `http`. A
//! component that uses neither has 70 KB, with values in the state it has 190 KB (115 KB with the release profile that
//! `baton new` writes), and with HTTP 370 KB.

mod failure;
#[cfg_attr(not(target_family = "wasm"), path = "fake.rs")]
mod host;
mod state;
mod term;

#[cfg(feature = "async")]
mod async_term;
#[cfg(feature = "async")]
pub mod http;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

#[cfg(feature = "async")]
pub use async_term::AsyncTerm;
pub use failure::Failure;
pub use state::{Commit, State, StateError};
pub use term::{Stop, StopReason, Term};

/// What a coordinator's function returns.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// Makes a function the coordinator of this component.
///
/// The function takes a [`&Term`](Term) and returns [`Result`]. With the feature `async`, an async function
/// that takes an [`&AsyncTerm`](AsyncTerm) is made one with `coordinator!(async run)`.
#[macro_export]
macro_rules! coordinator {
    (async $run:path) => {
        $crate::__coordinator!($crate::served::asynchronously($run), $run);
    };
    ($run:path) => {
        $crate::__coordinator!($crate::served::at_once($run), $run);
    };
}

#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[macro_export]
macro_rules! __coordinator {
    ($serve:expr, $run:path) => {
        const _: () = {
            struct Coordinator;

            impl $crate::bindings::exports::baton::host::task::Guest for Coordinator {
                fn run() -> ::std::result::Result<(), $crate::bindings::exports::baton::host::task::Failure> {
                    $serve
                }
            }

    $crate::bindings::export!(Coordinator with_types_in $crate::bindings);
        };
    };
}

/// Natively there is nothing to export, but the function is checked and counts as used.
#[cfg(not(target_family = "wasm"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __coordinator {
    ($serve:expr, $run:path) => {
        const _: fn() = || {
            let _ = $serve;
        };
    };
}

/// Runs a coordinator's function as the contract wants it.
#[doc(hidden)]
pub mod served {
    use super::*;
    use bindings::exports::baton::host::task::Failure as Told;

    #[cfg(target_family = "wasm")]
    pub fn at_once(run: impl FnOnce(&Term) -> Result) -> Result<(), Told> {
        told(run(&Term::new(host::Host)))
    }

    #[cfg(all(target_family = "wasm", feature = "async"))]
    pub fn asynchronously(run: impl AsyncFnOnce(&AsyncTerm) -> Result) -> Result<(), Told> {
        told(wstd::runtime::block_on(async { run(&AsyncTerm::new(Term::new(host::Host))).await }))
    }

    #[cfg(target_family = "wasm")]
    fn told(result: Result) -> Result<(), Told> {
        use failure::Kind;

        let Err(failure) = result else { return Ok(()) };
        match failure.kind() {
            Kind::Stopped(_) => Ok(()),
            Kind::Retryable(text) => Err(Told::Retryable(failure.located(text))),
            Kind::Fatal(text) => Err(Told::Fatal(failure.located(text))),
        }
    }

    #[cfg(not(target_family = "wasm"))]
    pub fn at_once(_: impl FnOnce(&Term) -> Result) -> Result<(), Told> {
        Ok(())
    }

    #[cfg(all(not(target_family = "wasm"), feature = "async"))]
    pub fn asynchronously(_: impl AsyncFnOnce(&AsyncTerm) -> Result) -> Result<(), Told> {
        Ok(())
    }
}

#[doc(hidden)]
pub mod bindings {
    #![allow(missing_docs, unsafe_code, clippy::all, reason = "generated from the contract")]
    wit_bindgen::generate!({
        path: "wit",
        world: "baton:host/coordinator",
        pub_export_macro: true,
        with: { "wasi:io/poll@0.2.0": wasip2::io::poll },
    });
}
