//! The processes that have a version linked and fork its runners: what they are shared by, and what their end costs.

use rustix::process::{Pid, Signal, kill_process};
use time::OffsetDateTime;

use crate::coordinators::table;
use crate::fleet::Fleet;
use crate::guests::Guest;
use crate::node::{Event, Journal, Launch, Node, until};
use crate::store::Store;

/// The one template of a host that has one version.
fn template(node: &Node) -> Pid {
    until("a template", || <[Pid; 1]>::try_from(node.templates()).map(|[pid]| pid))
}

/// Its instance, and the runner that waits for the next one.
fn both_runners(node: &Node) -> [Pid; 2] {
    until("a runner for the next term", || <[Pid; 2]>::try_from(node.runners()))
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("it is there");
}

#[test]
fn coordinators_that_run_one_version_share_its_template() {
    let store = Store::sqlite();
    let home = tempfile::tempdir().expect("a folder");
    let [one, other] = ["one", "other"].map(|name| table(name, Guest::Beats));
    let config = format!("store = {:?}\nmax-memory = \"64MiB\"\n\n{one}\n{other}", store.url());
    std::fs::write(home.path().join("baton.toml"), config).expect("the file is written");
    let journal = Journal::default();
    let node = Launch::run("alpha", home.path(), &journal).start();
    for election in ["one", "other"] {
        journal.event("it beats", |event| event.name == "output" && event.text("election") == election);
    }
    until("a runner for the next term of each", || <[Pid; 4]>::try_from(node.runners()));
    template(&node);
}

#[test]
fn a_template_that_ends_takes_no_instance_with_it_and_is_made_anew() {
    let fleet = Fleet::new(Store::sqlite());
    let node = fleet.node("alpha");
    let term = node.after(0, "started").term;
    let (first, runners) = (template(&node), both_runners(&node));
    kill(first);
    let killed = OffsetDateTime::now_utc();
    assert_eq!(fleet.beat("it goes on", |event| event.ts > killed).term, term);
    // The next term finds the runner that waits; after that there is none until there is a template.
    for runner in runners {
        kill(runner);
    }
    fleet.journal.event("a later term", |event| event.name == "output" && event.term > term);
    assert_ne!(template(&node), first);
    both_runners(&node);
    fleet.check_promises();
}

#[test]
fn a_template_that_does_not_answer_is_replaced() {
    let fleet = Fleet::new(Store::sqlite());
    // A wait for the template must not cost the lease.
    let node = fleet.launch_with("alpha", &[("--lease", "30s")]).start();
    let term = node.after(0, "started").term;
    let (first, runners) = (template(&node), both_runners(&node));
    kill_process(first, Signal::STOP).expect("it is there");
    for runner in runners {
        kill(runner);
    }
    let next = fleet.journal.event("a later term", |event| event.name == "output" && event.term > term);
    // The runner that waited may have served a term before it was killed.
    until("another template", || match template(&node) {
        other if other == first => Err(other),
        _ => Ok(()),
    });
    // A busy machine may cost a renewal, but not the lease.
    let is_loss = |event: &Event| event.name == "leadership_lost" || event.text("reason") == "lease-at-risk";
    let lost = fleet.journal.events().into_iter().find(is_loss);
    assert!(lost.is_none(), "{lost:?} before {next:?}");
    fleet.check_promises();
}
