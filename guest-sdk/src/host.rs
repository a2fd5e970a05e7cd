//! The host of this instance, called through the WIT contract.

use std::time::{Duration, SystemTime};

use wasip2::clocks::monotonic_clock::subscribe_duration;
use wasip2::io::poll::{Pollable, poll};

use crate::StateError;
use crate::bindings::baton::host::state::{self, Change};
use crate::bindings::baton::host::term::{self, StopReason};
use crate::bindings::baton::host::{schedule, shard};

/// A handle to the real host. It has no fields, because each call goes through the component's imports.
#[derive(Debug, Clone)]
pub(crate) struct Host;

impl Host {
    pub(crate) fn number(&self) -> u64 {
        term::number()
    }

    pub(crate) fn election(&self) -> String {
        term::election()
    }

    pub(crate) fn node(&self) -> String {
        term::node()
    }

    pub(crate) fn module(&self) -> String {
        term::module()
    }

    pub(crate) fn remaining(&self) -> Duration {
        Duration::from_millis(term::remaining())
    }

    pub(crate) fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    pub(crate) fn shard(&self) -> (u32, u32) {
        (shard::index(), shard::count())
    }

    pub(crate) fn scheduled_for(&self) -> Option<SystemTime> {
        schedule::scheduled_for().and_then(since_epoch)
    }

    pub(crate) fn last_completed(&self) -> Option<SystemTime> {
        schedule::last_completed().and_then(since_epoch)
    }

    /// Does nothing, because time passes by itself on a real host. The simulated host in `fake.rs` advances its clock
    /// here.
    pub(crate) fn check(&self) {}

    pub(crate) fn stop_requested(&self) -> Option<(StopReason, String)> {
        Some((term::stop_requested()?, term::stop_message().unwrap_or_default()))
    }

    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(term::grace().unwrap_or(0))
    }

    pub(crate) fn progress(&self) {
        term::progress();
    }

    pub(crate) fn step_down(&self, reason: &str) {
        term::step_down(reason);
    }

    pub(crate) fn sleep(&self, length: Duration) {
        poll(&[&term::subscribe_stop(), &timer(length)]);
    }

    /// Waits for this time or the stop. Without `length`, waits only for the stop.
    #[cfg(feature = "async")]
    pub(crate) async fn wait(&self, length: Option<Duration>) {
        use wstd::runtime::AsyncPollable;

        let stop = AsyncPollable::new(term::subscribe_stop());
        match length.map(|length| AsyncPollable::new(timer(length))) {
            None => stop.wait_for().await,
            Some(timer) => {
                crate::async_term::either(stop.wait_for(), timer.wait_for()).await;
            }
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        state::get(key)
    }

    pub(crate) fn keys(&self, prefix: &str) -> Vec<String> {
        state::keys(prefix)
    }

    pub(crate) fn commit(&self, changes: Vec<Change>) -> Result<(), StateError> {
        state::commit(&changes).map_err(StateError::from)
    }
}

fn since_epoch(seconds: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn timer(length: Duration) -> Pollable {
    subscribe_duration(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
}
