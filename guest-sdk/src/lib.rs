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
//!     let every: u64 = match std::env::var("EVERY_MS") {
//!         Ok(text) => text.parse()?,
//!         Err(_) => 1_000,
//!     };
//!     while term.sleep(Duration::from_millis(every)).is_ok() {
//!         println!("term {}: still the only one", term.number());
//!         term.progress();
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Build it as a library of type `cdylib` with `cargo build --release --target wasm32-wasip2`, and run it
//! with `baton run target/wasm32-wasip2/release/NAME.wasm`.
//!
//! # Ending
//! [`Term::sleep`] returns early with the [`Stop`] once the instance is asked to stop; what is left of the
//! grace is then the time to finish. A coordinator that ignores the stop is killed.
//!
//! # Failing
//! `?` works on any error: the failure is [`Failure::retryable`], worth another try on this node.
//! [`Failure::fatal`] makes the node step down. A [`Stop`] that is returned with `?` is no failure.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use bindings::baton::host::term as host;
use bindings::wasi::clocks::monotonic_clock::subscribe_duration;
use bindings::wasi::io::poll::{Pollable, poll};

pub use host::StopReason;

/// What a coordinator's function returns.
pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

/// The term that this instance serves.
#[derive(Debug)]
pub struct Term {
    stop: Pollable,
}

impl Term {
    /// The term's number: the fencing token. It rises with every term of this election; hand it to whatever
    /// you write to, and have that refuse a number lower than the highest it has seen.
    pub fn number(&self) -> u64 {
        host::number()
    }

    /// The election's name.
    pub fn election(&self) -> String {
        host::election()
    }

    /// The id of the node that this instance runs on.
    pub fn node(&self) -> String {
        host::node()
    }

    /// The component's digest, as `sha256:` and 64 hexadecimal digits.
    pub fn module(&self) -> String {
        host::module()
    }

    /// The time until this instance's effects are refused, unless the lease is renewed before.
    pub fn remaining(&self) -> Duration {
        Duration::from_millis(host::remaining())
    }

    /// Sleeps, but not past a request to stop.
    ///
    /// # Errors
    /// [`Stop`] once this instance is asked to stop, also when it was before.
    pub fn sleep(&self, length: Duration) -> Result<(), Stop> {
        let nanoseconds = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let timer = subscribe_duration(nanoseconds);
        poll(&[&self.stop, &timer]);
        self.check()
    }

    /// Goes on unless this instance is asked to stop: for loops that have no reason to sleep.
    ///
    /// # Errors
    /// [`Stop`] once this instance is asked to stop.
    pub fn check(&self) -> Result<(), Stop> {
        match host::stop_requested() {
            None => Ok(()),
            Some(reason) => Err(Stop { reason, message: host::stop_message().unwrap_or_default() }),
        }
    }

    /// Tells the host that useful work was done. Where the host runs with `--stall-after`, an instance that
    /// stays silent for longer counts as stalled.
    pub fn progress(&self) {
        host::progress();
    }

    /// Gives up leadership. The stop arrives as for any other step-down, and this node does not contend again
    /// for ten seconds or more.
    pub fn step_down(&self, reason: &str) {
        host::step_down(reason);
    }
}

/// This instance is asked to stop.
#[derive(Debug, Clone)]
pub struct Stop {
    reason: StopReason,
    message: String,
}

impl Stop {
    /// Why.
    pub fn reason(&self) -> StopReason {
        self.reason
    }

    /// The same for a person to read, with what the reason leaves out.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The time until this instance is killed.
    pub fn grace(&self) -> Duration {
        Duration::from_millis(host::grace().unwrap_or(0))
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asked to stop: {}", self.message)
    }
}

impl Error for Stop {}

/// Why a coordinator's work came to nothing.
///
/// Made by `?` from any error, as one that is worth another try. It is no [`Error`] itself, which is what
/// lets every error become one.
#[derive(Debug)]
pub struct Failure(Kind);

#[derive(Debug)]
enum Kind {
    Retryable(String),
    Fatal(String),
    Stopped,
}

impl Failure {
    /// Worth another try on this node, after a while.
    pub fn retryable(error: impl Into<Box<dyn Error>>) -> Self {
        Self(Kind::Retryable(with_causes(error.into().as_ref())))
    }

    /// Not worth another try here: this node steps down.
    pub fn fatal(error: impl Into<Box<dyn Error>>) -> Self {
        Self(Kind::Fatal(with_causes(error.into().as_ref())))
    }
}

impl<E: Into<Box<dyn Error>>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        if error.is::<Stop>() { Self(Kind::Stopped) } else { Self::retryable(error) }
    }
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Makes a function the coordinator of this component.
///
/// The function takes a [`&Term`](Term) and returns [`Result`].
#[macro_export]
macro_rules! coordinator {
    ($run:path) => {
        const _: () = {
            struct Coordinator;

            impl $crate::bindings::exports::baton::host::task::Guest for Coordinator {
                fn run() -> ::std::result::Result<(), $crate::bindings::exports::baton::host::task::Failure> {
                    $crate::serve($run)
                }
            }

    $crate::bindings::export!(Coordinator with_types_in $crate::bindings);
        };
    };
}

/// Runs a coordinator's function as the contract wants it.
#[doc(hidden)]
pub fn serve(
    run: impl FnOnce(&Term) -> Result,
) -> std::result::Result<(), bindings::exports::baton::host::task::Failure> {
    use bindings::exports::baton::host::task::Failure as Told;

    let term = Term { stop: host::subscribe_stop() };
    match run(&term) {
        Ok(()) | Err(Failure(Kind::Stopped)) => Ok(()),
        Err(Failure(Kind::Retryable(why))) => Err(Told::Retryable(why)),
        Err(Failure(Kind::Fatal(why))) => Err(Told::Fatal(why)),
    }
}

#[doc(hidden)]
pub mod bindings {
    #![allow(missing_docs, unsafe_code, clippy::all, reason = "generated from the contract")]
    wit_bindgen::generate!({
        path: "wit",
        inline: "
            package baton:sdk;
            world sdk {
                include baton:host/coordinator@0.1.0;
                import wasi:clocks/monotonic-clock@0.2.0;
            }
        ",
        world: "baton:sdk/sdk",
        pub_export_macro: true,
        generate_all,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(std::fmt::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the report was not written")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_failure_tells_all_causes() {
        let Failure(Kind::Retryable(why)) = Failure::from(Outer(fmt::Error)) else { panic!("it is retryable") };
        assert_eq!(why, format!("the report was not written: {}", fmt::Error));
    }

    #[test]
    fn a_stop_is_no_failure() {
        let stop = Stop { reason: StopReason::Shutdown, message: String::new() };
        assert!(matches!(Failure::from(stop), Failure(Kind::Stopped)));
    }
}
