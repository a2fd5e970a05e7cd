//! From one version of the coordinator to the next: the change-over on the leader, across what can go wrong
//! meanwhile, and back from a bad version.

mod bad_modules;
mod failovers;
mod files;
mod in_a_row;
mod random;
mod undo;
mod versions;

use std::process::Command;

use baton_election::ElectionName;
use baton_modules::{EditError, Publication, edit_versions};
use baton_store::Digest;
use baton_store::ModuleStore as _;
use serde_json::Value;

use crate::fleet::{ELECTION, Fleet};
use crate::node::{Event, Launch, Node, baton, finish, until};
use crate::publish::with_modules;
use versions::Version;

/// Long enough that a busy machine does not cost the lease, where it must be kept.
const LONG_LEASE: (&str, &str) = ("--lease", "60s");
/// Long enough that no instance is killed that is about to stop.
const LONG_GRACE: (&str, &str) = ("--grace", "10s");

impl Fleet {
    /// A node that is about to start, and runs what is pushed.
    fn launch_pushed(&self, name: &str, flags: &[(&str, &str)]) -> Launch {
        self.launch_from(name, format!("store://{ELECTION}"), flags)
    }

    /// Pushes a version.
    fn push(&self, version: &Version) {
        let finished = finish(self.pushing(version));
        assert_eq!(finished.code, Some(0), "{finished:?}");
    }

    /// `baton push VERSION`.
    fn pushing(&self, version: &Version) -> Command {
        self.baton(&["push", version.path.to_str().expect("a path"), ELECTION])
    }

    /// Pushes a version on a way that no outage meets.
    fn push_around(&self, version: &Version) {
        if self.store.is_sqlite() {
            // `baton push` makes sure of the leases' file, too.
            return self.publish(&version.digest, version.bytes(), None);
        }
        let mut command = baton(self.home.path());
        command.arg("push").arg(&version.path).args([ELECTION, "--store", &self.store.url_around_the_proxy()]);
        let finished = finish(command);
        assert_eq!(finished.code, Some(0), "{finished:?}");
    }

    /// Names the module of this digest the current one, as any client can that may write to the store. The bytes need
    /// not be that module's.
    fn publish(&self, digest: &str, bytes: Vec<u8>, signature: Option<String>) {
        let digest: Digest = digest.parse().expect("a digest");
        let (size, by, at) = (bytes.len() as u64, "somebody".to_owned(), "2026-11-21T12:00:00Z".to_owned());
        let new = Publication { digest, size, by, at, signature };
        with_modules(self, async |modules| {
            modules.put_module(&digest, bytes.into()).await.expect("stored");
            let election = ElectionName::new(ELECTION).expect("a name");
            let pushed =
                edit_versions(modules, &election, |control| control.push(new.clone()).map_err(EditError::from));
            pushed.await.expect("named");
        });
    }

    /// Waits for a line of this version in a term above `above`.
    fn runs(&self, version: &Version, above: u64) -> Event {
        let what = format!("`{}` to run above term {above}", version.name);
        self.beat(&what, |event| event.term > above && version.said(event.text("line")))
    }

    /// Waits until the node could start this version.
    fn is_ready(&self, node: &Node, version: &Version) {
        node.event(&format!("`{}` to be ready", version.name), |event| is(event, "module_ready", version));
    }

    /// Waits until the node has rejected this version, or heard of it.
    fn rejected(&self, node: &Node, version: &Version) -> Event {
        node.event(&format!("`{}` to be rejected", version.name), |event| is(event, "version_rejected", version))
    }

    /// Events of a name, so far.
    fn events(&self, name: &str) -> Vec<Event> {
        self.journal.events().into_iter().filter(|event| event.name == name).collect()
    }

    /// How many instances have come and gone between those of two terms. A term may be given up before it has one: numbers
    /// say nothing.
    fn between(&self, earlier: u64, later: u64) -> usize {
        self.events("ended").iter().filter(|event| event.term > earlier && event.term < later).count()
    }

    /// How many instances of this version have failed so far. One may fail on a busy machine, and then another follows.
    fn failures(&self, version: &Version) -> usize {
        let events = self.journal.events();
        let ran = |term| events.iter().any(|event| is(event, "started", version) && event.term == term);
        events.iter().filter(|gone| gone.name == "ended" && gone.text("outcome") != "done" && ran(gone.term)).count()
    }

    /// How often this version was started so far, on any node.
    fn starts(&self, version: &Version) -> usize {
        self.journal.events().iter().filter(|event| is(event, "started", version)).count()
    }

    /// What `baton modules` says of a version, once that passes the test.
    fn row_until(&self, version: &Version, what: &str, test: impl Fn(&Value) -> bool) -> Value {
        until(&format!("`{}` {what}", version.name), || {
            let finished = self.command(&["modules", ELECTION, "--output=json"]);
            if finished.code != Some(0) {
                return Err(finished.stderr);
            }
            let rows = finished.json();
            let of = rows.as_array().and_then(|rows| rows.iter().find(|row| row["digest"] == version.digest));
            of.filter(|row| test(row)).cloned().ok_or(finished.stdout)
        })
    }

    /// Checks the promises, and those that the change-over must keep.
    fn check_swaps(&self) {
        self.check_promises();
        let events = self.journal.events();
        for check in [one_instance_of_a_node, every_effect_has_a_term] {
            if let Err(broken) = check(&events) {
                self.journal.fail(&broken);
            }
        }
    }

    /// Checks that each instance goes on from the very count that the one before it saved last.
    fn check_the_count(&self) {
        self.check_count(|before, resumed| before == resumed);
    }

    /// The same where an instance may have been ended before it said what it had saved.
    fn check_the_count_after_crashes(&self) {
        self.check_count(|before, resumed| before <= resumed);
    }

    fn check_count(&self, fits: impl Fn(u64, u64) -> bool) {
        let mut said = self.events("output");
        said.sort_by_key(|event| event.ts);
        let mut count = 0;
        for event in said {
            let (_, line) = event.text("line").split_once(": ").unwrap_or_default();
            let words: Vec<&str> = line.split([' ', ',']).collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
            match (words[0], number(1), number(2)) {
                ("resumed", Some(resumed), _) if fits(count, resumed) => count = resumed,
                ("saved", Some(saved), _) if saved > count => count = saved,
                // Of lines that come at once, this may have come in the place of the last that was saved.
                ("stopped", _, Some(saved)) if saved >= count => count = saved,
                ("resumed" | "saved" | "stopped", ..) => {
                    self.journal.fail(&format!("the count was {count} already: {event:?}"));
                }
                _ => {}
            }
        }
    }

    /// Checks that nobody but the leader has led, and that it has never given up the lease.
    fn check_that_it_led_throughout(&self, leader: &Node) {
        let given_up = ["released", "release_failed", "leadership_lost", "cool_off", "shutting_down"];
        let broken = self.journal.events().into_iter().find(|event| {
            given_up.contains(&event.name.as_str()) || (event.name == "elected" && event.from != leader.name)
        });
        if let Some(broken) = broken {
            self.journal.fail(&format!("leadership was given up: {broken:?}"));
        }
    }
}

/// Whether the event is of that name and of that version.
fn is(event: &Event, name: &str, version: &Version) -> bool {
    event.name == name && event.text("module") == version.digest
}

/// On a node, the instance before is gone when the next one starts.
fn one_instance_of_a_node(events: &[Event]) -> Result<(), String> {
    let mut running: Vec<&Event> = Vec::new();
    for event in events {
        match event.name.as_str() {
            "started" => {
                if let Some(other) = running.iter().find(|other| other.from == event.from) {
                    return Err(format!("two instances at once: {event:?} before the end of {other:?}"));
                }
                running.push(event);
            }
            // A node of the same name may have been killed before.
            "ended" | "starting" => running.retain(|other| other.from != event.from),
            _ => {}
        }
    }
    Ok(())
}

/// Whatever an instance says is of its term.
fn every_effect_has_a_term(events: &[Event]) -> Result<(), String> {
    match events.iter().find(|event| event.name == "output" && event.term == 0) {
        Some(event) => Err(format!("an effect without a term: {event:?}")),
        None => Ok(()),
    }
}

/// Whether the node's instance is of this version, as `baton modules` says.
fn runs_on(row: &Value, node: &str) -> bool {
    let nodes = row["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    nodes.iter().any(|of| of["node"] == node && of["runs"] == true)
}
