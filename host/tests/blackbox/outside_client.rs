//! Leases that an outside client frees while the holder's instance still runs.
//!
//! The tests stop the control threads of the leader's host, so the host does not notice that the lease is free. The
//! host's instance runs until the deadline. The node that acquires the lease must wait until the deadline has passed.

use time::OffsetDateTime;

use crate::fleet::Fleet;
use crate::frozen::freeze;
use crate::node::Node;
use crate::scenarios;

scenarios! {
    on_both_stores: [
        next_leader_waits_when_a_write_frees_a_broken_lease,
    ],
    on_sqlite: [
        next_leader_waits_when_an_outside_client_held_the_lease,
    ],
}

fn next_leader_waits_when_a_write_frees_a_broken_lease(fleet: Fleet) {
    is_waited_out(&fleet, |_| fleet.store.free_by_a_write());
}

fn next_leader_waits_when_an_outside_client_held_the_lease(fleet: Fleet) {
    is_waited_out(&fleet, |standby| {
        // The standby is paused while the outside client holds the lease, so the standby sees only the result: a free
        // lease and an unchanged record.
        standby.pause();
        fleet.store.take_and_release();
        standby.resume();
    });
}

/// Frees the lease with `free` while its holder's instance runs. Checks that the next leader waits for at least D, the
/// lease duration.
fn is_waited_out(fleet: &Fleet, free: impl FnOnce(&Node)) {
    let (a, term) = fleet.leader("alpha");
    let b = fleet.standby("beta", &a);
    freeze(&a, "control");
    let freed = OffsetDateTime::now_utc();
    free(&b);
    let next = b.after(term, "elected");
    fleet.beat_above(term);
    fleet.check_promises();
    assert!(next.ts > freed + fleet.lease(), "{next:?} earlier than D after {freed}");
    let settling = b.event("to wait", |event| event.name == "waiting_for_previous_lease");
    assert!(settling.ts > freed && settling.ts < next.ts, "{settling:?}, then {next:?}");
}
