//! Outages of the store, tested with both kinds of stores.

use std::time::Duration;

use time::OffsetDateTime;

use crate::endpoint::{Endpoint, sample};
use crate::fleet::Fleet;
use crate::node::until;
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_both_stores: [
        leader_keeps_its_term_when_outage_is_short,
        instance_ends_in_time_when_outage_is_long,
        host_leads_again_when_its_deleted_store_is_recreated,
    ],
}

fn leader_keeps_its_term_when_outage_is_short(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    let _b = fleet.standby("beta", &a);
    let outage = fleet.store.hang();
    a.after(0, "renewal_failed");
    let at = Endpoint::of(&a);
    let name = "baton_store_requests_total{election=\"fleet\",operation=\"renew\",result=\"ok\"}";
    let renewals = || sample(&at.ask("/metrics").body, name);
    let before = renewals();
    drop(outage);
    // After two renewals, the instance's deadline no longer depends on renewals from before the outage.
    until("two renewals", || Some(renewals()).filter(|now| *now >= before + 2.0).ok_or(before));
    let renewed = OffsetDateTime::now_utc();
    let beat = fleet.beat("a beat after two renewals", |event| event.ts > renewed);
    assert_eq!(beat.term, term, "the term outlives an outage of less than 0.7 D less D/6: {beat:?}");
    fleet.check_promises();
}

fn instance_ends_in_time_when_outage_is_long(fleet: Fleet) {
    let (mut a, term) = fleet.leader("alpha");
    let mut b = fleet.standby("beta", &a);
    let outage = fleet.store.cut();
    // The last successful renewal may have come just before the outage began. The lease lasts for D from that renewal,
    // so the test measures D from here.
    let began = OffsetDateTime::now_utc();
    let stopping = a.after(0, "stopping");
    assert_eq!(stopping.text("reason"), "lease-at-risk", "{stopping:?}");
    let ended = a.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(ended.ts < began + fleet.lease(), "{ended:?} later than D after the outage began at {began}");
    a.event("lost or standby", |event| {
        event.ts >= ended.ts && ["leadership_lost", "standby"].contains(&event.name.as_str())
    });
    assert!(a.is_running() && b.is_running(), "a host survives an outage of any length");
    drop(outage);
    fleet.beat_above(term);
    fleet.check_promises();
}

fn host_leads_again_when_its_deleted_store_is_recreated(fleet: Fleet) {
    let (mut node, term) = fleet.leader("alpha");
    fleet.store.delete();
    let lost = OffsetDateTime::now_utc();
    let ended = node.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(ended.ts < lost + fleet.lease(), "{ended:?} later than D after everything was deleted at {lost}");
    node.event("the report", |event| event.name == "misconfigured" && event.ts > ended.ts);
    assert!(node.is_running(), "a host survives the loss of its store");
    fleet.store.make_anew();
    // The new store contains no terms. Only the host remembers the earlier terms, and the host's next term must be
    // higher.
    fleet.beat_above(term);
    assert!(node.is_running());
    fleet.check_promises();
}

#[test]
fn leader_stops_at_once_when_its_store_is_removed() {
    // A busy machine may delay one of the stops, but is unlikely to delay all three.
    assert!((0..3).any(|_| stops_at_once()), "three leaders in a row did not stop within seconds");
}

/// True if the leader stops within 5 s after its store is removed. The test removes the store right after a renewal.
/// With a lease of 60 s, the next renewal is due 10 s later, so a failed renewal cannot cause the stop.
fn stops_at_once() -> bool {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = fleet.launch_with("alpha", &[("--lease", "60s")]).start();
    let term = fleet.beat_above(0).term;
    fleet.store.renewed();
    let removed = OffsetDateTime::now_utc();
    fleet.store.delete();
    let ended = alpha.event("ended", |event| event.name == "ended" && event.term == term);
    ended.ts < removed + Duration::from_secs(5)
}
