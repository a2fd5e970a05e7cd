//! Write coordinators for Baton: the one job of a fleet that must run in exactly one place at a time.
//!
//! A coordinator is a function that gets a [`Term`] and returns when its work is done. Baton calls it on
//! the node that leads, and ends it there before any other node can start it.

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

        match result.as_ref().map_err(Failure::kind) {
            Ok(()) | Err(Kind::Stopped(_)) => Ok(()),
            Err(Kind::Retryable(why)) => Err(Told::Retryable(why.clone())),
            Err(Kind::Fatal(why)) => Err(Told::Fatal(why.clone())),
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
