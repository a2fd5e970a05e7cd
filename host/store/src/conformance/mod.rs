//! The conformance suite that every store passes, for authors of stores (feature `conformance`).
//!
//! A backend implements [`LeaseStore`](crate::LeaseStore), [`ObjectStore`](crate::ObjectStore) and
//! [`OperatorStore`](crate::OperatorStore). Its tests run three functions: [`suite::run`] tests leases, records and
//! terms, [`versioned::run`] the objects that are written conditionally, and [`modules::run`] modules and
//! announcements. A [`suite::Backend`] says how an operator breaks a lease and how time passes. Each case stands for a
//! promise that the elector or a coordinator depends on. A failed case panics and is named. See
//! `examples/own_backend.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a case that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while a store is tested")]

mod leases;
pub mod modules;
pub mod suite;
mod terms;
pub mod versioned;
