//! Write coordinators for Baton: programs that must run on only one node of a fleet at a time.
//!
//! A coordinator is a function that takes a [`Term`] and returns when its work is done. Baton calls the function on the
//! leader, and ends that call before another node can call the function.
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
//! Build the coordinator as a library of type `cdylib` with `cargo build --release --target wasm32-wasip2`, and run it
//! with `baton run target/wasm32-wasip2/release/NAME.wasm`. `baton new NAME` writes a project to start from.
//!
//! # Ending
//! When the host asks the instance to stop, [`Term::sleep`] returns early with a [`Stop`]. The coordinator then has the
//! rest of the [grace period](Stop::grace) to finish. A loop that never sleeps should call [`Term::check`]. The host
//! kills a coordinator that ignores the stop.
//!
//! # Failing
//! `?` converts any error into a [`Failure::retryable`]: this node runs the coordinator again. [`Failure::fatal`] makes
//! the node step down. In both cases, the host logs the line of code where the failure occurred. Returning a [`Stop`]
//! with `?` is not a failure.
//!
//! # State
//! An instance starts with fresh memory. The next term, on any node, can read what an instance saved in
//! [`Term::state`], and `baton state get ELECTION KEY` prints it. A value is either bytes or any serde type, which is
//! saved as JSON. [`State::commit`] saves several changes atomically. A save returns once the store has confirmed the
//! change. Once another term can begin, this term can no longer save.
//!
//! Do the work first, then save the fact that it is done. Make the work safe to repeat: the instance can end between
//! the two steps.
//!
//! # Waiting
//! To wait for a time or the stop, [`Term::sleep`] is enough. With the feature `async`, a coordinator is an async
//! function that can wait for several things at once. Its futures run on the runtime of the crate [`wstd`].
//! [`AsyncTerm::sleep`] and [`AsyncTerm::stopped`] return futures. [`AsyncTerm::until_stop`] runs a future until it
//! completes or the stop comes. You can combine these methods with other crates, such as `futures-lite` in this
//! example:
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
//!     // Runs both loops, each at its own pace, until one of them fails or the host asks this instance to stop.
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
//! An async coordinator sends requests with [`AsyncTerm::http`], to servers that `--allow-http` permits. The host adds
//! the election, term and node as headers. The server should refuse any term below the highest that it has seen, so
//! that a late request from a former leader has no effect.
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
//!         // A stop cancels a request that hangs.
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
//! sync or async, without a host. The test's clock advances when the coordinator sleeps, so that ten minutes pass
//! instantly. The test decides when the stop comes, which commits fail and how a server responds, and it can read the
//! state. The test controls only what the coordinator gets from its term. So read the time from [`Term::now`], not from
//! the system, and read environment variables outside the function that the test calls.
//!
#![cfg_attr(not(target_family = "wasm"), doc = "The module [`testing`] has an example.")]
//!
//! # Features
//! - `json`, on by default: typed values in the state.
//! - `async`: [`AsyncTerm`] and the module `http`.
//!
//! A component without these features is 70 KB in size. With `json`, it is 190 KB, or 115 KB with the release profile
//! that `baton new` writes. With HTTP, it is 370 KB.

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
pub use term::{Shard, Stop, StopReason, Term};

/// The result of a coordinator's function.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// Declares a function as this component's coordinator.
///
/// The function takes a [`&Term`](Term) and returns [`Result`]. With the feature `async`, write
/// `coordinator!(async run)` for an async function that takes an [`&AsyncTerm`](AsyncTerm).
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

/// The native form of the macro `coordinator`, for tests. Exports nothing. Checks the function's type, and uses the
/// function once, so that the compiler does not report it as unused.
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

/// Runs a coordinator's function as the function `run` of the WIT contract.
#[doc(hidden)]
pub mod served {
    use super::*;
    use bindings::exports::baton::host::task::Failure as TaskFailure;

    #[cfg(target_family = "wasm")]
    pub fn at_once(run: impl FnOnce(&Term) -> Result) -> Result<(), TaskFailure> {
        reported(run(&Term::new(host::Host)))
    }

    #[cfg(all(target_family = "wasm", feature = "async"))]
    pub fn asynchronously(run: impl AsyncFnOnce(&AsyncTerm) -> Result) -> Result<(), TaskFailure> {
        reported(wstd::runtime::block_on(async { run(&AsyncTerm::new(Term::new(host::Host))).await }))
    }

    #[cfg(target_family = "wasm")]
    fn reported(result: Result) -> Result<(), TaskFailure> {
        use failure::Kind;

        let Err(failure) = result else { return Ok(()) };
        match failure.kind() {
            Kind::Stopped(_) => Ok(()),
            Kind::Retryable(text) => Err(TaskFailure::Retryable(failure.located(text))),
            Kind::Fatal(text) => Err(TaskFailure::Fatal(failure.located(text))),
        }
    }

    #[cfg(not(target_family = "wasm"))]
    pub fn at_once(_: impl FnOnce(&Term) -> Result) -> Result<(), TaskFailure> {
        Ok(())
    }

    #[cfg(all(not(target_family = "wasm"), feature = "async"))]
    pub fn asynchronously(_: impl AsyncFnOnce(&AsyncTerm) -> Result) -> Result<(), TaskFailure> {
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
