//! The store goes away and comes back, on both stores.

use std::time::Duration;

use time::OffsetDateTime;

use crate::endpoint::{Endpoint, sample};
use crate::fleet::Fleet;
use crate::node::until;
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_both_stores: [
        a_short_outage_costs_nothing,
        a_long_outage_ends_the_instance_in_time_and_the_world_heals,
        a_host_that_lost_everything_leads_again_without_a_restart,
    ],
}

fn a_short_outage_costs_nothing(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    let _b = fleet.standby("beta", &a);
    let outage = fleet.store.hang();
    a.after(0, "renewal_failed");
    let at = Endpoint::of(&a);
    let name = "baton_store_requests_total{election=\"fleet\",operation=\"renew\",result=\"ok\"}";
    let renewals = || sample(&at.ask("/metrics").body, name);
    let before = renewals();
    drop(outage);
    // The renewals after the outage carry the instance.
    until("two renewals", || Some(renewals()).filter(|now| *now >= before + 2.0).ok_or(before));
    let renewed = OffsetDateTime::now_utc();
    let beat = fleet.beat("a beat after two renewals", |event| event.ts > renewed);
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
    let gone = a.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(gone.ts < began + fleet.lease(), "{gone:?} later than D after the outage began at {began}");
    a.event("lost or standby", |event| {
        event.ts >= gone.ts && ["leadership_lost", "standby"].contains(&event.name.as_str())
    });
    assert!(a.is_running() && b.is_running(), "a host survives an outage of any length");
    drop(outage);
    fleet.beat_above(term);
    fleet.check_promises();
}

fn a_host_that_lost_everything_leads_again_without_a_restart(fleet: Fleet) {
    let (mut node, term) = fleet.leader("alpha");
    fleet.store.delete();
    let lost = OffsetDateTime::now_utc();
    let gone = node.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(gone.ts < lost + fleet.lease(), "{gone:?} later than D after everything was deleted at {lost}");
    node.event("word of it", |event| event.name == "misconfigured" && event.ts > gone.ts);
    assert!(node.is_running(), "a host survives the loss of its store");
    fleet.store.make_anew();
    // What it has seen is the only trace of the terms before.
    fleet.beat_above(term);
    assert!(node.is_running());
    fleet.check_promises();
}

#[test]
fn a_leader_whose_store_is_removed_stops_at_once() {
    // A busy machine may delay a stop, but not each of three.
    assert!((0..3).any(|_| stops_at_once()), "three leaders in a row did not stop within seconds");
}

/// The lease is a minute long, so that who stops within seconds after a renewal has not learned it from the next.
fn stops_at_once() -> bool {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = fleet.launch_with("alpha", &[("--lease", "60s")]).start();
    let term = fleet.beat_above(0).term;
    fleet.store.renewed();
    let removed = OffsetDateTime::now_utc();
    fleet.store.delete();
    let gone = alpha.event("ended", |event| event.name == "ended" && event.term == term);
    gone.ts < removed + Duration::from_secs(5)
}
