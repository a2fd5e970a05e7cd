//! Tests whose host is this process: what instances of real guests may do and how they end (`instances`), and how a module is
//! verified, compiled and cached (`prepare`). Runners and compilers are processes of the real binary.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]
#![allow(clippy::disallowed_methods, reason = "a guard against hangs need not count suspends")]

mod instances;
mod prepare;
