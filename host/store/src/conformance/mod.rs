//! The conformance suite that every store passes, for authors of stores (feature `conformance`).
//!
//! A backend implements [`LeaseStore`](crate::LeaseStore), [`ObjectStore`](crate::ObjectStore) and
//! [`OperatorStore`](crate::OperatorStore). Its tests run three functions: [`suite::run`] tests leases, records and
//! terms; [`versioned::run`] tests the objects that are written conditionally; [`modules::run`] tests modules and
//! announcements. A [`suite::Backend`] defines how an operator breaks a lease and how time passes. Each case checks a
//! guarantee on which the elector or a coordinator depends. If a case fails, the function panics. See
//! `examples/own_backend.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a case that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while a store is tested")]

mod leases;
pub mod modules;
pub mod suite;
mod terms;
pub mod versioned;
