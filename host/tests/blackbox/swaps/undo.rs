//! Rollback of a version that fails during its probation.

use super::versions::Version;
use super::{LONG_LEASE, is, runs_on};
use crate::fleet::Fleet;
use crate::http::server::{Reply, Server};
use crate::modules::component;
use crate::node::Event;
use crate::scenarios;

scenarios! {
    on_sqlite: [
        version_that_traps_is_rolled_back_on_all_nodes,
        version_is_rolled_back_for_each_kind_of_failure,
        version_that_stalls_is_rolled_back,
        accepted_version_is_not_rolled_back,
        first_version_is_not_rolled_back,
        version_is_kept_when_a_secret_or_folder_is_briefly_missing,
    ],
}

fn version_that_traps_is_rolled_back_on_all_nodes(fleet: Fleet) {
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

    // The store holds the reason for the rejection, and the other node reports the rejection, too.
    let row = fleet.row_until(&bad, "to be rejected in the store", |row| row["verdict"] == "rejected");
    assert_eq!((&row["rejected_by"], &row["current"]), (&"alpha".into(), &false.into()), "{row}");
    assert!(row["reason"].as_str().is_some_and(|reason| reason.contains("unreachable")), "{row}");
    fleet.row_until(&good, "to be current and to run", |row| row["current"] == true && runs_on(row, "alpha"));
    let on_standby = fleet.rejected(&beta, &bad);
    assert_eq!(on_standby.text("fallback"), good.digest, "{on_standby:?}");

    // Neither the next leader nor a new node runs the bad version. The new node reports that the version is rejected.
    assert_eq!(alpha.terminate().code(), Some(0));
    let on_beta = fleet.runs(&good, back.term);
    assert_eq!(on_beta.from, "beta");
    let gamma = fleet.launch_pushed("gamma", &[LONG_LEASE]).start();
    fleet.rejected(&gamma, &bad);
    assert_eq!(fleet.starts(&bad), 1);
    assert_eq!(fleet.rejections(&bad), 3, "each node reports it once");

    // A different version runs as soon as it is pushed. Nodes try the bad version again only after another push.
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

fn version_is_rolled_back_for_each_kind_of_failure(fleet: Fleet) {
    let made = |name: &str, more: &str| Version::of(&fleet, name, &component(more, "wasi:cli/run@0.2.0"));
    let bad = [
        (fleet.version("fatal 2"), "is not for here", 1),
        (fleet.version("fails 3"), "3 failures within its probation, most recently: fails 3 fails", 3),
        (made("starts with a trap", "(func $trap unreachable) (start $trap)"), "unreachable", 1),
        // The nodes run with `--max-memory 64MiB`, so this version cannot start.
        (made("wants 128 MiB", "(memory 2048)"), "memory", 1),
    ];
    are_rolled_back(&fleet, &[], &bad);
}

/// `--stall-after` is so long that no working version can seem to stall, even on a busy machine.
fn version_that_stalls_is_rolled_back(fleet: Fleet) {
    let bad = [(fleet.version("stalls 4"), "no progress", 1)];
    are_rolled_back(&fleet, &[("--stall-after", "30s")], &bad);
}

/// Checks each `(version, text, terms)` in `bad`: the version is rolled back after `terms` terms, and the reason
/// contains `text`.
fn are_rolled_back(fleet: &Fleet, flags: &[(&str, &str)], bad: &[(Version, &str, usize)]) {
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

fn version_is_kept_when_a_secret_or_folder_is_briefly_missing(fleet: Fleet) {
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
        std::fs::rename(lacks, &away).expect("a renamed file or folder");
        fleet.push(version);
        let is_unable = |event: &Event| event.name == "ended" && event.text("outcome") == "unable" && event.term > term;
        let unable = alpha.event("not to be able to start it", is_unable);
        std::fs::rename(&away, lacks).expect("a renamed file or folder");
        assert!(unable.text("message").contains(&*lacks.to_string_lossy()), "{unable:?}");
        term = fleet.runs(version, unable.term).term;
        assert_eq!(fleet.rejections(version), 0);
    }
    fleet.check_swaps();
}

fn accepted_version_is_not_rolled_back(fleet: Fleet) {
    let (first, next) = (fleet.version("works 1"), fleet.version("works 2"));
    fleet.push(&first);
    // Working versions send requests to this server, and fail without it.
    let server = Server::start(|_| Reply::ok(""));
    let url = server.url();
    let leader = fleet.launch_pushed("alpha", &[LONG_LEASE, ("--probation", "2s"), ("--allow-http", &url)]);
    let leader = leader.flag("--env", format!("URL={url}")).start();
    fleet.runs(&first, 0);
    fleet.push(&next);
    let accepted = leader.event("its probation to end", |event| is(event, "version_accepted", &next));
    drop(server);
    // A failure after the probation does not roll the version back.
    let retried = leader.event("another try", |event| event.name == "next_term" && event.ts > accepted.ts);
    fleet.runs(&next, retried.term);
    assert!(fleet.events("version_rejected").is_empty(), "an accepted version is not rejected");
    fleet.row_until(&next, "to be good", |row| row["verdict"] == "good");
    assert!(fleet.starts(&first) <= 1 + fleet.failures(&first), "the first version does not run again");
    fleet.check_swaps();
}

fn first_version_is_not_rolled_back(fleet: Fleet) {
    let (bad, good) = (fleet.version("traps 1"), fleet.version("works 2"));
    fleet.push(&bad);
    let leader = fleet.launch_pushed("alpha", &[LONG_LEASE]).start();
    leader.event("another try", |event| event.name == "next_term" && event.fields["failures"] == 2);
    fleet.push(&good);
    let runs = fleet.runs(&good, 0);
    assert!(fleet.events("version_rejected").is_empty(), "the first version is not rejected");
    assert!(fleet.starts(&bad) >= 2 && runs.term >= 3, "{runs:?}");
    fleet.row_until(&good, "to be current", |row| row["current"] == true);
    fleet.check_swaps();
}

impl Fleet {
    fn rejections(&self, version: &Version) -> usize {
        self.journal.events().iter().filter(|event| is(event, "version_rejected", version)).count()
    }
}
