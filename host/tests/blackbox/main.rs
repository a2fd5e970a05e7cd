//! Black-box tests: the real `baton` binary, real guests, real stores.
//!
//! Each scenario starts hosts as a user would, harms them or their store from the outside, and reads
//! their logs. What it waits for are states; what it measures are the moments that the hosts and the
//! guests wrote down themselves, on the one clock of this machine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]

mod admin;
mod any_component;
mod azure_access;
mod bad_input;
mod commands;
mod configuration;
mod coordinators;
mod dev;
mod doctor;
mod events;
mod files;
mod fleet;
mod frozen;
mod guests_that_misbehave;
mod history;
mod hoards;
mod http;
mod isolation;
mod leadership;
mod limits;
mod links;
mod maintenance;
mod otlp;
mod outage;
mod output;
mod outside;
mod page;
mod peers;
mod planted;
mod preference;
mod proxy;
mod publish;
mod reclaim;
mod self_abort;
mod service_manager;
mod sources;
mod start;
mod state;
mod steering;
mod store;
mod swaps;
mod templates;
mod terminal;
mod trust;
mod when_it_dies;
mod witness;

use baton_test_support::{
    azurite, endpoint, fuse, guests, kernel, minisign, modules, node, patience, publisher, registry, share, skipped,
};

/// Runs each scenario on the embedded store and on Azurite.
macro_rules! on_both_stores {
    ($($scenario:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[test]
            fn $scenario() {
                super::$scenario($crate::fleet::Fleet::new($crate::store::Store::sqlite()));
            })+
        }
        mod on_azurite {
            $(#[test]
            fn $scenario() {
                super::$scenario($crate::fleet::Fleet::new($crate::store::Store::azurite()));
            })+
        }
    };
}
use on_both_stores;
