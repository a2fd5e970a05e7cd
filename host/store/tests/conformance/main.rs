//! Runs the conformance suite on every store. Also tests problems that only one of the stores can have.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while it is tested")]

mod azure;
mod azure_modules;
mod file_systems;
mod memory;
mod processes;
mod recovery;
mod sqlite;

use baton_election::{Reply, StoreError, Version};
use baton_store::conformance::suite;
use baton_test_support::{azurite, fuse, patience, proxy, skipped};

#[track_caller]
fn version_of(answer: Result<Reply, StoreError>) -> Version {
    match answer {
        Ok(Reply::Version(version)) => version,
        other => panic!("a version was expected: {other:?}"),
    }
}

#[track_caller]
fn assert_lost(answer: &Result<Reply, StoreError>) {
    assert!(matches!(answer, Err(StoreError::Lost(_))), "Lost was expected: {answer:?}");
}
