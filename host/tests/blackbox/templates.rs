//! Template processes. A template links one version of a module and forks the runners of that version. Coordinators
//! with the same version share a template, and the host replaces a template that fails.

use rustix::process::{Pid, Signal, kill_process};
use time::OffsetDateTime;

use crate::coordinators::table;
use crate::fleet::Fleet;
use crate::guests::Guest;
use crate::node::{Event, Journal, Launch, Node, until};
use crate::store::Store;

/// Returns the only template of a host that runs only one version.
fn template(node: &Node) -> Pid {
    until("a template", || <[Pid; 1]>::try_from(node.templates()).map(|[pid]| pid))
}

/// Waits until the host has two runners: one that runs the instance, and one for the next term.
fn both_runners(node: &Node) -> [Pid; 2] {
    until("a runner for the next term", || <[Pid; 2]>::try_from(node.runners()))
}

fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).expect("a running process");
}

#[test]
fn coordinators_of_one_version_share_its_template() {
    let store = Store::sqlite();
    let home = tempfile::tempdir().expect("a folder");
    let [one, other] = ["one", "other"].map(|name| table(name, Guest::Beats));
    let config = format!("store = {:?}\nmax-memory = \"64MiB\"\n\n{one}\n{other}", store.url());
    std::fs::write(home.path().join("baton.toml"), config).expect("the file is written");
    let journal = Journal::default();
    let node = Launch::run("alpha", home.path(), &journal).start();
    for election in ["one", "other"] {
        journal.event("a beat", |event| event.name == "output" && event.text("election") == election);
    }
    until("a runner for the next term of each", || <[Pid; 4]>::try_from(node.runners()));
    template(&node);
}

#[test]
fn instance_keeps_running_when_its_template_dies() {
    let fleet = Fleet::new(Store::sqlite());
    let node = fleet.node("alpha");
    let term = node.after(0, "started").term;
    let (first, runners) = (template(&node), both_runners(&node));
    kill(first);
    let killed = OffsetDateTime::now_utc();
    assert_eq!(fleet.beat("the instance to continue", |event| event.ts > killed).term, term);
    // Kills the instance's runner and the waiting runner, so that the next runners need a new template.
    for runner in runners {
        kill(runner);
    }
    fleet.journal.event("a later term", |event| event.name == "output" && event.term > term);
    assert_ne!(template(&node), first);
    both_runners(&node);
    fleet.check_promises();
}

#[test]
fn template_that_does_not_answer_is_replaced() {
    let fleet = Fleet::new(Store::sqlite());
    // A long lease is not lost while the host waits for the template.
    let node = fleet.launch_with("alpha", &[("--lease", "30s")]).start();
    let term = node.after(0, "started").term;
    let (first, runners) = (template(&node), both_runners(&node));
    kill_process(first, Signal::STOP).expect("a running process");
    for runner in runners {
        kill(runner);
    }
    let next = fleet.journal.event("a later term", |event| event.name == "output" && event.term > term);
    // The later term may have run in the waiting runner just before the test killed that runner. In that case, the host
    // replaces the template only now.
    until("another template", || match template(&node) {
        other if other == first => Err(other),
        _ => Ok(()),
    });
    // On a busy machine, renewals may fail, but the host must not lose the lease.
    let is_loss = |event: &Event| event.name == "leadership_lost" || event.text("reason") == "lease-at-risk";
    let lost = fleet.journal.events().into_iter().find(is_loss);
    assert!(lost.is_none(), "{lost:?} before {next:?}");
    fleet.check_promises();
}
