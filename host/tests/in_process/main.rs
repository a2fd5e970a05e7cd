//! Tests in which this process is the host. `nodes` runs several nodes on a clock that advances by itself, with
//! scripted instances. `instances` runs real guests, and `prepare` verifies, compiles and caches modules. Runners and
//! compilers are processes of the real binary.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]
#![allow(clippy::disallowed_methods, reason = "a guard against hangs need not count suspends")]

mod instances;
mod nodes;
mod prepare;
