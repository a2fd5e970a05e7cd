//! Back from a version that turns out to be bad, and not back from one that did well.

use super::versions::Version;
use super::{LONG_LEASE, is, runs_on};
use crate::fleet::Fleet;
use crate::http::server::{Reply, Server};
use crate::modules::component;
use crate::node::Event;
use crate::scenarios;

scenarios! {
    on_sqlite: [
        a_version_that_traps_is_undone_for_all_nodes,
        whatever_a_new_version_fails_with_it_is_undone,
        a_version_that_stalls_is_undone,
        a_version_that_did_well_is_not_undone,
        the_first_version_has_nothing_to_fall_back_on,
        version_is_kept_if_its_node_lacks_a_secret_or_a_folder_for_a_moment,
    ],
}

fn a_version_that_traps_is_undone_for_all_nodes(fleet: Fleet) {
    let (good, bad, next) = (fleet.version("works 1"), fleet.version("traps 2"), fleet.version("works 3"));
    fleet.push(&good);
    let mut alpha = fleet.launch_pushed("alpha", &[LONG_LEASE]).start();
    fleet.runs(&good, 0);
    let beta = fleet.launch_pushed("beta", &[LONG_LEASE]).start();
    fleet.is_ready(&beta, &good);
    fleet.push(&bad);
    let tried = alpha.event("the bad version", |event| is(event, "started", &bad));
    let rejected = fleet.rejected(&alpha, &bad);
    assert_eq!((rejected.term, rejected.text("fallback")), (tried.term, &*good.digest), "{rejected:?}");
    assert!(rejected.text("reason").contains("unreachable"), "{rejected:?}");
    let back = fleet.runs(&good, tried.term);
    assert_eq!(back.from, "alpha", "{back:?}");
    assert!(fleet.between(tried.term, back.term) <= fleet.failures(&good), "{back:?}");
    fleet.check_that_it_led_throughout(&alpha);

    // Why is written down, and everybody else is told.
    let row = fleet.row_until(&bad, "to be rejected in the store", |row| row["verdict"] == "rejected");
    assert_eq!((&row["rejected_by"], &row["current"]), (&"alpha".into(), &false.into()), "{row}");
    assert!(row["reason"].as_str().is_some_and(|reason| reason.contains("unreachable")), "{row}");
    fleet.row_until(&good, "to be current and to run", |row| row["current"] == true && runs_on(row, "alpha"));
    let heard = fleet.rejected(&beta, &bad);
    assert_eq!(heard.text("fallback"), good.digest, "{heard:?}");

    // Neither the next leader tries it nor a node that is started anew, which says so.
    assert_eq!(alpha.terminate().code(), Some(0));
    let on_beta = fleet.runs(&good, back.term);
    assert_eq!(on_beta.from, "beta");
    let gamma = fleet.launch_pushed("gamma", &[LONG_LEASE]).start();
    fleet.rejected(&gamma, &bad);
    assert_eq!(fleet.starts(&bad), 1);
    assert_eq!(fleet.rejections(&bad), 3, "each node says it once");

    // Until something is pushed: it, too, if somebody thinks so.
    fleet.push(&next);
    let on_next = fleet.runs(&next, on_beta.term);
    fleet.push(&bad);
    let again = beta.event("another try", |event| is(event, "started", &bad) && event.term > on_next.term);
    let back = fleet.runs(&next, again.term);
    assert_eq!(back.from, "beta", "{back:?}");
    assert!(fleet.between(again.term, back.term) <= fleet.failures(&next), "{back:?}");
    fleet.row_until(&bad, "to be rejected again", |row| row["verdict"] == "rejected");
    assert_eq!(fleet.starts(&bad), 2);
    fleet.check_swaps();
    fleet.check_the_count_after_crashes();
}

fn whatever_a_new_version_fails_with_it_is_undone(fleet: Fleet) {
    let made = |name: &str, more: &str| Version::of(&fleet, name, &component(more, "wasi:cli/run@0.2.0"));
    let bad = [
        (fleet.version("fatal 2"), "is not for here", 1),
        (fleet.version("fails 3"), "3 failures within its probation, the last: fails 3 fails", 3),
        (made("starts with a trap", "(func $trap unreachable) (start $trap)"), "unreachable", 1),
        // What is allowed is 64 MiB.
        (made("wants 128 MiB", "(memory 2048)"), "memory", 1),
    ];
    are_undone(&fleet, &[], &bad);
}

/// The limit is longer than a version that works pauses on a busy machine.
fn a_version_that_stalls_is_undone(fleet: Fleet) {
    let bad = [(fleet.version("stalls 4"), "no progress", 1)];
    are_undone(&fleet, &[("--stall-after", "30s")], &bad);
}

/// Each of these is rejected for a reason that contains the text, after so many terms.
fn are_undone(fleet: &Fleet, flags: &[(&str, &str)], bad: &[(Version, &str, usize)]) {
    let good = fleet.version("works 1");
    fleet.push(&good);
    let flags = [&[LONG_LEASE, ("--probation", "10m")][..], flags].concat();
    let leader = fleet.launch_pushed("alpha", &flags).start();
    let mut term = fleet.runs(&good, 0).term;
    for (version, why, terms) in bad {
        fleet.push(version);
        let rejected = fleet.rejected(&leader, version);
        assert!(rejected.text("reason").contains(why), "{rejected:?}");
        assert_eq!(rejected.text("fallback"), good.digest, "{rejected:?}");
        let back = fleet.runs(&good, rejected.term);
        let most = terms + fleet.failures(&good);
        assert!((*terms..=most).contains(&fleet.between(term, back.term)), "{back:?}");
        term = back.term;
        fleet.row_until(version, "to be rejected in the store", |row| row["verdict"] == "rejected");
    }
    fleet.check_that_it_led_throughout(&leader);
    fleet.check_swaps();
    fleet.check_the_count_after_crashes();
}

fn version_is_kept_if_its_node_lacks_a_secret_or_a_folder_for_a_moment(fleet: Fleet) {
    let (first, next, last) = (fleet.version("works 1"), fleet.version("works 2"), fleet.version("works 3"));
    let (secret, folder) = (fleet.home.path().join("token"), fleet.home.path().join("data"));
    std::fs::write(&secret, "s").expect("a secret");
    std::fs::create_dir(&folder).expect("a folder");
    let (from, to) = (format!("token=file:{}", secret.display()), format!("{}::/data", folder.display()));
    fleet.push(&first);
    let flags = [LONG_LEASE, ("--probation", "10m"), ("--secret", &from), ("--dir", &to)];
    let alpha = fleet.launch_pushed("alpha", &flags).start();
    let mut term = fleet.runs(&first, 0).term;
    for (version, lacks) in [(&next, &secret), (&last, &folder)] {
        let away = lacks.with_extension("away");
        std::fs::rename(lacks, &away).expect("it is there");
        fleet.push(version);
        let is_unable = |event: &Event| event.name == "ended" && event.text("outcome") == "unable" && event.term > term;
        let unable = alpha.event("not to be able to start it", is_unable);
        std::fs::rename(&away, lacks).expect("it was there");
        assert!(unable.text("message").contains(&*lacks.to_string_lossy()), "{unable:?}");
        term = fleet.runs(version, unable.term).term;
        assert_eq!(fleet.rejections(version), 0);
    }
    fleet.check_swaps();
}

fn a_version_that_did_well_is_not_undone(fleet: Fleet) {
    let (first, next) = (fleet.version("works 1"), fleet.version("works 2"));
    fleet.push(&first);
    // What works asks a server, and fails where there is none.
    let server = Server::start(|_| Reply::ok(""));
    let url = server.url();
    let leader = fleet.launch_pushed("alpha", &[LONG_LEASE, ("--probation", "2s"), ("--allow-http", &url)]);
    let leader = leader.flag("--env", format!("URL={url}")).start();
    fleet.runs(&first, 0);
    fleet.push(&next);
    let proven = leader.event("its probation to end", |event| is(event, "version_accepted", &next));
    drop(server);
    // That it fails later says nothing against it.
    let retried = leader.event("another try", |event| event.name == "retrying" && event.ts > proven.ts);
    fleet.runs(&next, retried.term);
    assert!(fleet.events("version_rejected").is_empty(), "it was good");
    fleet.row_until(&next, "to be good", |row| row["verdict"] == "good");
    assert!(fleet.starts(&first) <= 1 + fleet.failures(&first), "it does not run again");
    fleet.check_swaps();
}

fn the_first_version_has_nothing_to_fall_back_on(fleet: Fleet) {
    let (bad, good) = (fleet.version("traps 1"), fleet.version("works 2"));
    fleet.push(&bad);
    let leader = fleet.launch_pushed("alpha", &[LONG_LEASE]).start();
    leader.event("another try", |event| event.name == "retrying" && event.fields["failures"] == 2);
    fleet.push(&good);
    let runs = fleet.runs(&good, 0);
    assert!(fleet.events("version_rejected").is_empty(), "there was nothing to run instead");
    assert!(fleet.starts(&bad) >= 2 && runs.term >= 3, "{runs:?}");
    fleet.row_until(&good, "to be current", |row| row["current"] == true);
    fleet.check_swaps();
}

impl Fleet {
    /// How often any node said that this version is rejected.
    fn rejections(&self, version: &Version) -> usize {
        self.journal.events().iter().filter(|event| is(event, "version_rejected", version)).count()
    }
}
