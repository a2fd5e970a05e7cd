//! The store goes away and comes back, on both stores.

use std::time::Duration;

use time::OffsetDateTime;

use crate::fleet::Fleet;
use crate::on_both_stores;
use crate::store::Store;

on_both_stores! {
    a_short_outage_costs_nothing,
    a_long_outage_ends_the_instance_in_time_and_the_world_heals,
    a_host_that_lost_everything_leads_again_without_a_restart,
}

fn a_short_outage_costs_nothing(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    let _b = fleet.standby("beta", &a);
    let outage = fleet.store.hang();
    let failed = a.after(0, "renew_failed");
    drop(outage);
    // For longer than D the instance goes on, so it is the renewals after the outage that carry it.
    let later = failed.ts + fleet.lease() * 3 / 2;
    let beat = fleet.beat("a beat D and a half later", |event| event.ts > later);
    assert_eq!(beat.term, term, "the term outlives an outage of less than 0.7 D less D/6: {beat:?}");
    fleet.check_promises();
}

fn a_long_outage_ends_the_instance_in_time_and_the_world_heals(fleet: Fleet) {
    let (mut a, term) = fleet.leader("alpha");
    let mut b = fleet.standby("beta", &a);
    let outage = fleet.store.cut();
    // Until here a renewal may have succeeded.
    let began = OffsetDateTime::now_utc();
    let stopping = a.after(0, "stopping");
    assert_eq!(stopping.text("reason"), "lease-at-risk", "{stopping:?}");
    let gone = a.event("gone", |event| event.name == "gone" && event.term == term);
    assert!(gone.ts < began + fleet.lease(), "{gone:?} later than D after the outage began at {began}");
    a.event("lost or standby", |event| event.ts >= gone.ts && ["lost", "standby"].contains(&event.name.as_str()));
    assert!(a.is_running() && b.is_running(), "a host survives an outage of any length");
    drop(outage);
    fleet.beat_above(term);
    fleet.check_promises();
}

fn a_host_that_lost_everything_leads_again_without_a_restart(fleet: Fleet) {
    let (mut node, term) = fleet.leader("alpha");
    fleet.store.delete();
    let lost = OffsetDateTime::now_utc();
    let gone = node.event("gone", |event| event.name == "gone" && event.term == term);
    assert!(gone.ts < lost + fleet.lease(), "{gone:?} later than D after everything was deleted at {lost}");
    node.event("word of it", |event| event.name == "misconfigured" && event.ts > gone.ts);
    assert!(node.is_running(), "a host survives the loss of its store");
    fleet.store.make_anew();
    // What it has seen is the only trace of the terms before.
    fleet.beat_above(term);
    assert!(node.is_running());
    fleet.check_promises();
}

/// The lease is a minute long, so that who stops within seconds after a renewal has not learned it from the next.
#[test]
fn a_leader_whose_store_is_removed_stops_at_once() {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = fleet.launch_with("alpha", &[("--lease", "60s")]).start();
    let term = fleet.beat_above(0).term;
    fleet.store.renewed();
    let removed = OffsetDateTime::now_utc();
    fleet.store.delete();
    let gone = alpha.event("gone", |event| event.name == "gone" && event.term == term);
    assert!(gone.ts < removed + Duration::from_secs(5), "{gone:?} after {removed}");
}
