//! Black-box tests: the real `baton` binary, real guests, real stores.
//!
//! Each scenario starts hosts as a user would, disturbs the hosts or their store from the outside, and reads the hosts'
//! logs. Scenarios wait for conditions instead of fixed periods. They calculate durations from the timestamps in the
//! logs of the hosts and guests.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]

mod admin;
mod any_component;
mod azure_access;
mod backtraces;
mod bad_input;
mod cli;
mod commands;
mod configuration;
mod coordinators;
mod dev;
mod doctor;
mod events;
mod files;
mod fleet;
mod frozen;
mod history;
mod hoards;
mod http;
mod isolation;
mod languages;
mod leadership;
mod limits;
mod links;
mod maintenance;
mod misbehaving_guests;
mod new;
mod outage;
mod output;
mod outside_client;
mod packages;
mod page;
mod peers;
mod planted;
mod preference;
mod proxy;
mod publish;
mod reclaim;
mod rerun;
mod schedules;
mod sdk;
mod self_abort;
mod service_manager;
mod shards;
mod sources;
mod state;
mod steering;
mod store;
mod swaps;
mod tasks;
mod templates;
mod terminal;
mod trust;
mod witness;

use baton_test_support::{
    azurite, endpoint, fuse, guests, kernel, minisign, modules, node, patience, publisher, registry, skipped,
};

/// Generates tests from scenarios. A scenario is a function that takes a [`fleet::Fleet`]. The conformance suite
/// already tests the stores themselves. By default, a scenario therefore runs on Azurite only if it tests something
/// that differs between Azurite and SQLite. `STORES=all make test` runs all scenarios on both stores.
///
/// - `on_both_stores`: on SQLite and on Azurite.
/// - `on_sqlite`: on SQLite.
/// - `with_crashes`: twice on SQLite, with and without the kernel's reports that a process has died. Without these
///   reports, a successor waits until the lease has expired, as it would on another machine.
macro_rules! scenarios {
    (
        $(on_both_stores: [$($both:ident),+ $(,)?],)?
        $(on_sqlite: [$($sqlite:ident),+ $(,)?],)?
        $(with_crashes: [$($crashes:ident),+ $(,)?],)?
    ) => {
        mod on_sqlite {
            use crate::{fleet::Fleet, store::Store};
            $($(#[test] fn $both() { super::$both(Fleet::new(Store::sqlite())); })+)?
            $($(#[test] fn $sqlite() { super::$sqlite(Fleet::new(Store::sqlite())); })+)?
            $($(#[test] fn $crashes() { super::$crashes(Fleet::new(Store::sqlite())); })+)?
        }
        $(mod on_sqlite_without_witness {
            use crate::{fleet::Fleet, store::Store};
            $(#[test] fn $crashes() { super::$crashes(Fleet::new(Store::sqlite()).without_witness()); })+
        })?
        mod on_azurite {
            use crate::{fleet::Fleet, store::Store};
            $($(#[test] fn $both() { super::$both(Fleet::new(Store::azurite())); })+)?
            $($(#[test] #[ignore = "STORES=all"] fn $sqlite() { super::$sqlite(Fleet::new(Store::azurite())); })+)?
            $($(#[test] #[ignore = "STORES=all"] fn $crashes() { super::$crashes(Fleet::new(Store::azurite())); })+)?
        }
    };
}
use scenarios;
