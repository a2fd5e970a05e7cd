//! What an outside client leaves behind: a lease that is free, though nobody released it.
//!
//! The leader's host is kept from noticing (its control threads are stopped), so that its instance runs on until its
//! deadline. Who takes the lease meanwhile must wait that out.

use time::OffsetDateTime;

use crate::fleet::Fleet;
use crate::frozen::freeze;
use crate::node::Node;
use crate::scenarios;

scenarios! {
    on_both_stores: [
        a_broken_lease_that_a_write_frees_is_waited_out,
    ],
    on_sqlite: [
        a_lease_that_an_outside_client_took_and_released_is_waited_out,
    ],
}

fn a_broken_lease_that_a_write_frees_is_waited_out(fleet: Fleet) {
    is_waited_out(&fleet, |_| fleet.store.free_by_a_write());
}

fn a_lease_that_an_outside_client_took_and_released_is_waited_out(fleet: Fleet) {
    is_waited_out(&fleet, |standby| {
        // All of it between two of its polls: it finds a free lease, and the record as it was.
        standby.pause();
        fleet.store.take_and_release();
        standby.resume();
    });
}

/// Frees the lease under a running instance by `free`: who takes it must not run beside it.
fn is_waited_out(fleet: &Fleet, free: impl FnOnce(&Node)) {
    let (a, term) = fleet.leader("alpha");
    let b = fleet.standby("beta", &a);
    freeze(&a, "control");
    let freed = OffsetDateTime::now_utc();
    free(&b);
    let next = b.after(term, "elected");
    fleet.beat_above(term);
    // `one at a time` is the point here.
    fleet.check_promises();
    assert!(next.ts > freed + fleet.lease(), "{next:?} earlier than D after {freed}");
    let settling = b.event("to wait", |event| event.name == "waiting_for_previous_lease");
    assert!(settling.ts > freed && settling.ts < next.ts, "{settling:?}, then {next:?}");
}
