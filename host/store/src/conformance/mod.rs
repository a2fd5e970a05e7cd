//! The one suite that every store passes, for the authors of others (feature `conformance`).
//!
//! A backend of your own implements [`LeaseStore`](crate::LeaseStore) and [`ObjectStore`](crate::ObjectStore), and its tests
//! run three functions: [`suite::run`] on leases, records and what the store says of terms, for which it says as a
//! [`suite::Backend`] how an operator breaks a lease and how time passes; [`versioned::run`] on the objects that are
//! written on a condition; and [`modules::run`] on modules and announcements. Each case stands for a promise that the
//! elector or a coordinator depends on; a case that fails panics and is named. `examples/own_backend.rs` shows all three.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a case that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while a store is tested")]

mod leases;
pub mod modules;
pub mod suite;
mod terms;
pub mod versioned;
