//! The store goes away and comes back, on both stores.

use time::OffsetDateTime;

use crate::on_both_stores;
use crate::stage::Stage;

on_both_stores! {
    a_short_outage_costs_nothing,
    a_long_outage_ends_the_instance_in_time_and_the_world_heals,
    a_host_that_lost_everything_leads_again_without_a_restart,
}

fn a_short_outage_costs_nothing(stage: Stage) {
    let (a, term) = stage.leader("alpha");
    let _b = stage.standby("beta", &a);
    let outage = stage.store.hang();
    let failed = a.after(0, "renew_failed");
    drop(outage);
    // For longer than D the instance goes on, so it is the renewals after the outage that carry it.
    let later = failed.ts + stage.lease() * 3 / 2;
    let beat = stage.beat("a beat D and a half later", |event| event.ts > later);
    assert_eq!(beat.term, term, "the term outlives an outage of less than 0.7 D less D/6: {beat:?}");
    stage.check_promises();
}

fn a_long_outage_ends_the_instance_in_time_and_the_world_heals(stage: Stage) {
    let (mut a, term) = stage.leader("alpha");
    let mut b = stage.standby("beta", &a);
    let began = OffsetDateTime::now_utc();
    let outage = stage.store.cut();
    let stopping = a.after(0, "stopping");
    assert_eq!(stopping.text("reason"), "lease-at-risk", "{stopping:?}");
    let gone = a.event("gone", |event| event.name == "gone" && event.term == term);
    assert!(gone.ts < began + stage.lease(), "{gone:?} later than D after the outage began at {began}");
    a.event("lost or standby", |event| event.ts >= gone.ts && ["lost", "standby"].contains(&event.name.as_str()));
    assert!(a.is_running() && b.is_running(), "a host survives an outage of any length");
    drop(outage);
    stage.beat_above(term);
    stage.check_promises();
}

fn a_host_that_lost_everything_leads_again_without_a_restart(stage: Stage) {
    let (mut node, term) = stage.leader("alpha");
    let lost = OffsetDateTime::now_utc();
    stage.store.delete();
    let gone = node.event("gone", |event| event.name == "gone" && event.term == term);
    assert!(gone.ts < lost + stage.lease(), "{gone:?} later than D after everything was deleted at {lost}");
    node.event("word of it", |event| event.name == "misconfigured" && event.ts > gone.ts);
    assert!(node.is_running(), "a host survives the loss of its store");
    stage.store.make_anew();
    // What it has seen is the only trace of the terms before.
    stage.beat_above(term);
    assert!(node.is_running());
    stage.check_promises();
}
