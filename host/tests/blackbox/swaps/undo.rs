//! Back from a version that turns out to be bad, and not back from one that did well.

use super::versions::Version;
use super::{LONG_LEASE, is, runs_on};
use crate::modules::component;
use crate::on_both_stores;
use crate::stage::Stage;

on_both_stores! {
    a_version_that_traps_is_undone_for_all_nodes,
    whatever_a_new_version_fails_with_it_is_undone,
    a_version_that_did_well_is_not_undone,
    the_first_version_has_nothing_to_fall_back_on,
}

fn a_version_that_traps_is_undone_for_all_nodes(stage: Stage) {
    let (good, bad, next) = (stage.version("works 1"), stage.version("traps 2"), stage.version("works 3"));
    stage.push(&good);
    let mut alpha = stage.launch_pushed("alpha", &[LONG_LEASE]).start();
    stage.runs(&good, 0);
    let beta = stage.launch_pushed("beta", &[LONG_LEASE]).start();
    stage.is_ready(&beta, &good);
    stage.push(&bad);
    let tried = alpha.event("the bad version", |event| is(event, "started", &bad));
    let rejected = stage.rejected(&alpha, &bad);
    assert_eq!((rejected.term, rejected.text("instead")), (tried.term, &*good.digest), "{rejected:?}");
    assert!(rejected.text("reason").contains("unreachable"), "{rejected:?}");
    let back = stage.runs(&good, tried.term);
    assert_eq!((&*back.from, back.term), ("alpha", tried.term + 1), "{back:?}");
    stage.check_that_it_led_throughout(&alpha);

    // Why is written down, and everybody else is told.
    let row = stage.row_until(&bad, "to be rejected in the store", |row| row["verdict"] == "rejected");
    assert_eq!((&row["rejected_by"], &row["current"]), (&"alpha".into(), &false.into()), "{row}");
    assert!(row["reason"].as_str().is_some_and(|reason| reason.contains("unreachable")), "{row}");
    stage.row_until(&good, "to be current and to run", |row| row["current"] == true && runs_on(row, "alpha"));
    let heard = stage.rejected(&beta, &bad);
    assert_eq!(heard.text("instead"), good.digest, "{heard:?}");

    // Neither the next leader tries it nor a node that is started anew, which says so.
    assert_eq!(alpha.terminate().code(), Some(0));
    let on_beta = stage.runs(&good, back.term);
    assert_eq!(on_beta.from, "beta");
    let gamma = stage.launch_pushed("gamma", &[LONG_LEASE]).start();
    stage.rejected(&gamma, &bad);
    assert_eq!(stage.starts(&bad), 1);
    assert_eq!(stage.rejections(&bad), 3, "each node says it once");

    // Until something is pushed: it, too, if somebody thinks so.
    stage.push(&next);
    let on_next = stage.runs(&next, on_beta.term);
    stage.push(&bad);
    let again = beta.event("another try", |event| is(event, "started", &bad) && event.term > on_next.term);
    let back = stage.runs(&next, again.term);
    assert_eq!((&*back.from, back.term), ("beta", again.term + 1), "{back:?}");
    stage.row_until(&bad, "to be rejected again", |row| row["verdict"] == "rejected");
    assert_eq!(stage.starts(&bad), 2);
    stage.check_swaps();
    stage.check_the_count_after_crashes();
}

fn whatever_a_new_version_fails_with_it_is_undone(stage: Stage) {
    let good = stage.version("works 1");
    stage.push(&good);
    let leader = stage.launch_pushed("alpha", &[LONG_LEASE, ("--stall-after", "6s")]).start();
    let mut term = stage.runs(&good, 0).term;
    let made = |name: &str, more: &str| Version::of(&stage, name, &component(more, "wasi:cli/run@0.2.0"));
    let bad = [
        (stage.version("fatal 2"), "is not for here", 1),
        (stage.version("fails 3"), "3 failures within its probation, the last: fails 3 fails", 3),
        (stage.version("stalls 4"), "no progress", 1),
        (made("starts with a trap", "(func $trap unreachable) (start $trap)"), "unreachable", 1),
        // What is allowed is 64 MiB.
        (made("wants 128 MiB", "(memory 2048)"), "memory", 1),
    ];
    for (version, why, terms) in &bad {
        stage.push(version);
        let rejected = stage.rejected(&leader, version);
        assert!(rejected.text("reason").contains(why), "{rejected:?}");
        assert_eq!(rejected.text("instead"), good.digest, "{rejected:?}");
        let back = stage.runs(&good, term + 1);
        assert_eq!(back.term, term + terms + 1, "{back:?}");
        term = back.term;
        stage.row_until(version, "to be rejected in the store", |row| row["verdict"] == "rejected");
    }
    stage.check_that_it_led_throughout(&leader);
    stage.check_swaps();
    stage.check_the_count_after_crashes();
}

fn a_version_that_did_well_is_not_undone(stage: Stage) {
    let (first, next) = (stage.version("works 1"), stage.version("tires 5"));
    stage.push(&first);
    let leader = stage.launch_pushed("alpha", &[LONG_LEASE, ("--probation", "2s")]).start();
    stage.runs(&first, 0);
    stage.push(&next);
    let proven = leader.event("its probation to end", |event| is(event, "proven", &next));
    // That it fails later says nothing against it.
    let retried = leader.event("another try", |event| event.name == "retrying" && event.ts > proven.ts);
    stage.runs(&next, retried.term);
    assert!(stage.events("rejected").is_empty(), "it was good");
    stage.row_until(&next, "to be good", |row| row["verdict"] == "good");
    assert_eq!(stage.starts(&first), 1);
    stage.check_swaps();
}

fn the_first_version_has_nothing_to_fall_back_on(stage: Stage) {
    let (bad, good) = (stage.version("traps 1"), stage.version("works 2"));
    stage.push(&bad);
    let leader = stage.launch_pushed("alpha", &[LONG_LEASE]).start();
    leader.event("another try", |event| event.name == "retrying" && event.fields["failures"] == 2);
    stage.push(&good);
    let runs = stage.runs(&good, 0);
    assert!(stage.events("rejected").is_empty(), "there was nothing to run instead");
    assert!(stage.starts(&bad) >= 2 && runs.term >= 3, "{runs:?}");
    stage.row_until(&good, "to be current", |row| row["current"] == true);
    stage.check_swaps();
}

impl Stage {
    /// How often any node said that this version is rejected.
    fn rejections(&self, version: &Version) -> usize {
        self.journal.events().iter().filter(|event| is(event, "rejected", version)).count()
    }
}
