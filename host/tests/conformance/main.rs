//! The one suite that every lease store passes, and what only one of them can meet.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while it is tested")]
#![allow(dead_code, reason = "the support modules serve several test targets")]

#[path = "../support/azurite.rs"]
mod azurite;
#[path = "../support/fuse.rs"]
mod fuse;
#[path = "../support/patience.rs"]
mod patience;
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/publisher.rs"]
mod publisher;
#[path = "../support/registry.rs"]
mod registry;
#[path = "../support/skipped.rs"]
mod skipped;

mod azure;
mod azure_modules;
mod credentials;
mod file_systems;
mod identities;
mod leases;
mod memory;
mod modules;
mod oci;
mod processes;
mod recovery;
mod sqlite;
mod states;
mod suite;
mod terms;
