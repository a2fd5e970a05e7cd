//! Swaps from one version of a JavaScript coordinator to the next, while the coordinator is working.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Fleet, no_lower_term_after_a_higher};
use baton_store::Digest;
use baton_test_support::modules::numbered;

const SWAPS: usize = 15;
/// More partitions than the coordinator can offer during the test.
const PARTITIONS: u64 = 100_000;

#[test]
fn js_versions_take_over_from_one_another() {
    take_over_from_one_another(Fleet::on_sqlite("js"));
}

#[test]
#[ignore = "STORES=all"]
fn on_azurite() {
    take_over_from_one_another(Fleet::on_azurite("js"));
}

fn take_over_from_one_another(mut fleet: Fleet) {
    // The lease is long, so that renewals are not late on a busy machine. If an instance stops because of a late
    // renewal, the next version starts without a swap.
    fleet.lease = "60s";
    let file = fleet.home.path().join("current.wasm");
    let put = |label: usize| {
        let version = relabelled(&fleet.component, label);
        std::fs::write(file.with_extension("new"), &version).expect("written");
        std::fs::rename(file.with_extension("new"), &file).expect("renamed");
        Digest::of(&version).to_string()
    };
    let first = put(0);
    let cache = tempfile::tempdir().expect("a folder");
    let leader = fleet.launch_from("node-1", &file, PARTITIONS).flag("--cache", cache.path());
    let mut leader = leader.start();
    // On a busy machine, an instance may fail. The host then starts another instance of the same version.
    let runs = |version: &str, above: u64| {
        let term = fleet.started_of(version, above).term;
        fleet.workers.offered_since(term);
        term
    };
    let mut last = runs(&first, 0);
    for swap in 1..=SWAPS {
        last = runs(&put(swap % 2), last);
    }
    assert!(leader.terminate().success());

    let events = fleet.journal.events();
    let named = |name: &'static str| events.iter().filter(move |event| event.name == name);
    let swapped = events.iter().filter(|event| event.is_swap()).count();
    // If an instance failed, the next version may have started without a swap.
    let failed = named("ended").filter(|ended| ended.text("outcome") != "done").count();
    if !(SWAPS.saturating_sub(failed)..=SWAPS).contains(&swapped) {
        fleet.journal.fail(&format!("{swapped} of {SWAPS} versions took over from one that ran, and {failed} failed"));
    }
    assert_eq!(
        (named("released").count(), named("leadership_lost").count()),
        (1, 0),
        "the lease is released once, at the end"
    );
    assert_eq!(named("killed").count(), 0, "each instance obeys the stop request");

    let offers = fleet.workers.offers();
    no_lower_term_after_a_higher(&offers);
    // The coordinator offers a partition twice in only two cases. After a swap, it repeats an offer whose
    // acknowledgement was not saved. Within a term, if a worker's answer is late, it offers the partition to the other
    // worker.
    let mut taken: BTreeMap<String, BTreeMap<&str, u64>> = BTreeMap::new();
    for offer in &offers {
        let terms = taken.entry(format!("partitions/{}", offer.partition)).or_default();
        terms.entry(fleet.workers.url(offer.worker)).or_insert(offer.term);
    }
    let saved = fleet.saved();
    let unsaved: Vec<&String> = taken.keys().filter(|key| !saved.contains_key(*key)).collect();
    assert!(unsaved.len() <= 1, "only the last one may be on its way: {unsaved:?}");
    for (key, by) in &saved {
        let was_taken = taken.get(key).and_then(|terms| terms.get(&*by.worker)) == Some(&by.term);
        assert!(was_taken, "{key} is saved as {by:?} and was taken as {:?}", taken.get(key));
    }
    let again = offers.windows(2).filter(|pair| pair[0].partition == pair[1].partition);
    let (by_the_next, late): (Vec<_>, Vec<_>) = again.partition(|pair| pair[0].term < pair[1].term);
    assert!(late.iter().all(|pair| pair[0].worker != pair[1].worker), "offered twice in one term: {late:?}");
    assert!(by_the_next.len() <= SWAPS + failed, "offered again without need: {by_the_next:?}");
    let all = saved.len() + unsaved.len() + by_the_next.len() + late.len();
    assert_eq!(offers.len(), all, "a saved partition is not offered again");
}

/// The code is the same for all labels, but the digest differs.
fn relabelled(component: &Path, label: usize) -> Vec<u8> {
    numbered(std::fs::read(component).expect("the component is there"), label)
}
