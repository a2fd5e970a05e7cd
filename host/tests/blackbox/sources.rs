//! Sources of modules. Every node gets the source's current version, and a bad version does not disturb any node.

use baton_election::ElectionName;
use baton_modules::{EditError, Publication, VersionList, edit_versions};
use baton_store::{Announcement, Digest, ModuleStore as _, ObjectStore};
use time::OffsetDateTime;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Event, Node, until};
use crate::scenarios;
use crate::store::Store;

const PUSHED: &str = "store://fleet";

scenarios! {
    on_sqlite: [
        every_node_holds_the_pushed_version,
        pushed_version_that_cannot_run_disturbs_no_node,
    ],
}

fn every_node_holds_the_pushed_version(fleet: Fleet) {
    // During a version's probation, nodes also keep the previous version. This probation outlasts the test.
    let probation = [("--probation", "1h")];
    let mut nodes = ["alpha", "beta"].map(|name| fleet.launch_from(name, PUSHED, &probation).start());
    for node in &nodes {
        node.event("how to push", |event| event.text("reason").contains("baton push MODULE fleet"));
    }
    let first = push(&fleet, 1);
    for node in &nodes {
        ready(node, first.digest);
    }
    let started = fleet.journal.event("the first version", |event| event.name == "started");
    assert_eq!(started.text("module"), first.digest.to_string());
    let leader = started.from.clone();
    let standby = if leader == "alpha" { "beta" } else { "alpha" };
    announced(&fleet, &leader, |node| node.holds == [first.digest] && node.runs == Some(first.digest));
    announced(&fleet, standby, |node| node.holds == [first.digest] && node.runs.is_none());

    let second = push(&fleet, 2);
    for node in &nodes {
        ready(node, second.digest);
    }
    let both = |node: &Announcement| [first.digest, second.digest].iter().all(|digest| node.holds.contains(digest));
    announced(&fleet, &leader, |node| both(node) && node.runs == Some(second.digest));
    announced(&fleet, standby, |node| both(node) && node.runs.is_none());
    fleet.beat_above(started.term);
    // If the store answers in time, a node that exits withdraws its announcement. Otherwise, the test tries again.
    until("no node to be announced", || {
        for node in &mut nodes {
            assert!(node.terminate().success());
        }
        let left = on_store(&fleet, async |store| store.announcements(&election()).await);
        if left.is_empty() {
            return Ok(());
        }
        nodes = ["alpha", "beta"].map(|name| fleet.launch_from(name, PUSHED, &probation).start());
        for node in &nodes {
            ready(node, second.digest);
        }
        Err(left)
    });
    fleet.check_promises();
}

fn pushed_version_that_cannot_run_disturbs_no_node(fleet: Fleet) {
    let first = push(&fleet, 1);
    let alpha = fleet.launch_from("alpha", PUSHED, &[]).start();
    let term = fleet.beat_above(0).term;
    let half = Guest::Beats.build(2);
    let half = publish(&fleet, &half[..half.len() / 2]);
    let missing = name(&fleet, &Guest::Beats.build(3));
    // A node that starts now uses the newest version that can run.
    let beta = fleet.launch_from("beta", PUSHED, &[]).start();
    for node in [&alpha, &beta] {
        for bad in [half.digest, missing.digest] {
            let refused = |event: &Event| event.name == "module_refused" && event.text("module") == bad.to_string();
            node.event("to refuse it", refused);
        }
        ready(node, first.digest);
    }
    announced(&fleet, "beta", |node| node.holds == [first.digest]);
    let now = OffsetDateTime::now_utc();
    let beat = fleet.beat("a beat", |event| event.ts > now);
    assert_eq!((beat.from.as_str(), beat.term), ("alpha", term), "the instance keeps running");
    let last = push(&fleet, 4);
    fleet.journal.event("the last version", |e| e.name == "started" && e.text("module") == last.digest.to_string());
    fleet.check_promises();
}

#[test]
fn host_follows_several_sources() {
    let fleet = Fleet::new(Store::sqlite());
    let file = fleet.home.path().join("file.wasm");
    std::fs::write(&file, Guest::Beats.build(1)).expect("the file is written");
    let config = format!(
        "store = {:?}\nlease = \"15s\"\nenv = {{ BEHAVIOUR = \"beat\" }}\n\
         [coordinators.fleet]\nmodule = \"store://fleet\"\n[coordinators.file]\nmodule = \"file.wasm\"\n",
        fleet.store.url()
    );
    std::fs::write(fleet.home.path().join("baton.toml"), config).expect("the file is written");
    let mut node = crate::node::Launch::run("alpha", fleet.home.path(), &fleet.journal).start();
    let of = |election: &'static str, name: &'static str| {
        move |event: &Event| event.name == name && event.text("election") == election
    };
    node.event("the file to run", of("file", "started"));
    let starting = node.event("the source of both", of("fleet", "starting"));
    assert_eq!(starting.text("source"), PUSHED);
    push(&fleet, 2);
    node.event("the pushed version to run", of("fleet", "started"));
    assert!(node.terminate().success());
}

struct Pushed {
    digest: Digest,
}

fn push(fleet: &Fleet, n: u8) -> Pushed {
    let file = fleet.home.path().join(format!("{n}.wasm"));
    std::fs::write(&file, Guest::Beats.build(n)).expect("the file is written");
    let finished = fleet.command(&["push", &file.display().to_string(), ELECTION]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    Pushed { digest: Digest::of(&Guest::Beats.build(n)) }
}

/// Publishes bytes that `baton push` would refuse.
fn publish(fleet: &Fleet, bytes: &[u8]) -> Pushed {
    on_store(fleet, async |store| store.put_module(&Digest::of(bytes), bytes.to_vec().into()).await);
    name(fleet, bytes)
}

/// Makes a module the current version without storing its bytes.
fn name(fleet: &Fleet, bytes: &[u8]) -> Pushed {
    let digest = Digest::of(bytes);
    let (size, by, at) = (bytes.len() as u64, "me".to_owned(), "now".to_owned());
    let new = Publication { digest, size, by, at, signature: None };
    on_store(fleet, async |store| {
        let push = |control: &mut VersionList| control.push(new.clone()).map_err(EditError::from);
        edit_versions(store, &election(), push).await
    });
    Pushed { digest }
}

pub fn announced(fleet: &Fleet, node: &str, test: impl Fn(&Announcement) -> bool) {
    until(&format!("an announcement of {node}"), || {
        let all = on_store(fleet, async |store| store.announcements(&election()).await);
        let own = all.iter().find(|(name, _)| name == node).and_then(|(_, content)| Announcement::decode(content));
        own.filter(&test).ok_or(all)
    });
}

fn ready(node: &Node, digest: Digest) -> Event {
    node.event("a module to be ready", |e| e.name == "module_ready" && e.text("module") == digest.to_string())
}

fn election() -> ElectionName {
    ElectionName::new(ELECTION).expect("a name")
}

/// Repeats the request until the store answers.
fn on_store<T, E: std::fmt::Debug>(fleet: &Fleet, ask: impl AsyncFn(&dyn ObjectStore) -> Result<T, E>) -> T {
    let store = baton_store::open(&fleet.store.url().parse().expect("a URL")).expect("a store");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    until("an answer of the store", || runtime.block_on(ask(&*store)))
}
