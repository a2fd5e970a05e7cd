//! Black-box tests: the real `baton` binary, real guests, real stores.
//!
//! Each scenario starts hosts as a user would, harms them or their store from the outside, and reads
//! their logs. What it waits for are states; what it measures are the moments that the hosts and the
//! guests wrote down themselves, on the one clock of this machine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]
#![allow(dead_code, reason = "the support modules serve several test targets")]

#[path = "../support/azurite.rs"]
mod azurite;
#[path = "../support/fuse.rs"]
mod fuse;
#[path = "../support/minisign.rs"]
mod minisign;
#[path = "../prepare/modules.rs"]
mod modules;
#[path = "../support/node.rs"]
mod node;
#[path = "../support/patience.rs"]
mod patience;
#[path = "../support/publisher.rs"]
mod publisher;
#[path = "../support/registry.rs"]
mod registry;
#[path = "../support/share.rs"]
mod share;
#[path = "../support/skipped.rs"]
mod skipped;

mod any_component;
mod azure_access;
mod bad_input;
mod commands;
mod configuration;
mod coordinators;
mod dev;
mod files;
mod frozen;
mod guests;
mod guests_that_misbehave;
mod hoards;
mod http;
mod leadership;
mod limits;
mod outage;
mod output;
mod outside;
mod planted;
mod proxy;
mod publish;
mod self_abort;
mod sources;
mod stage;
mod start;
mod state;
mod store;
mod swaps;
mod templates;
mod trust;
mod when_it_dies;

/// Runs each scenario on the embedded store and on Azurite.
macro_rules! on_both_stores {
    ($($scenario:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[test]
            fn $scenario() {
                super::$scenario($crate::stage::Stage::new($crate::store::Store::sqlite()));
            })+
        }
        mod on_azurite {
            $(#[test]
            fn $scenario() {
                super::$scenario($crate::stage::Stage::new($crate::store::Store::azurite()));
            })+
        }
    };
}
use on_both_stores;
