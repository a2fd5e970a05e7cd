//! The conformance suite on every store, and the tests of what only one of them can meet.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while it is tested")]

mod azure;
mod azure_modules;
mod file_systems;
mod memory;
mod processes;
mod recovery;
mod sqlite;

use baton_store::conformance::{modules, suite, versioned};
use baton_test_support::{azurite, fuse, patience, proxy, skipped};
