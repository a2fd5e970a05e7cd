//! Tests in which this process is the host. In `nodes`, several nodes run scripted instances, on a simulated clock.
//! `instances` runs real guests, and `prepare` verifies, compiles and caches modules. Runners and compilers are
//! processes of the real binary.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]
#![allow(clippy::disallowed_methods, reason = "a guard against hangs need not count suspends")]

mod instances;
mod nodes;
mod prepare;
