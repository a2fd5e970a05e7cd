//! Swaps from one version of a coordinator to the next, failures during swaps, and rollbacks of bad versions.

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

/// A lease that is long enough not to be lost on a busy machine.
const LONG_LEASE: (&str, &str) = ("--lease", "60s");
/// A grace that is long enough for an instance to stop on a busy machine.
const LONG_GRACE: (&str, &str) = ("--grace", "10s");

impl Fleet {
    fn launch_pushed(&self, name: &str, flags: &[(&str, &str)]) -> Launch {
        self.launch_from(name, format!("store://{ELECTION}"), flags)
    }

    fn push(&self, version: &Version) {
        let finished = finish(self.push_command(version));
        assert_eq!(finished.code, Some(0), "{finished:?}");
    }

    fn push_command(&self, version: &Version) -> Command {
        self.baton(&["push", version.path.to_str().expect("a path"), ELECTION])
    }

    /// Pushes a version in a way that also works during an outage of the store.
    fn push_around(&self, version: &Version) {
        if self.store.is_sqlite() {
            // An outage locks the file that contains the leases. `baton push` would also open that file.
            return self.publish(&version.digest, version.bytes(), None);
        }
        let mut command = baton(self.home.path());
        command.arg("push").arg(&version.path).args([ELECTION, "--store", &self.store.url_around_the_proxy()]);
        let finished = finish(command);
        assert_eq!(finished.code, Some(0), "{finished:?}");
    }

    /// Makes the module with this digest the current version, as any client with write access to the store could. The
    /// bytes need not match the digest.
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

    fn runs(&self, version: &Version, above: u64) -> Event {
        let what = format!("`{}` to run above term {above}", version.name);
        self.beat(&what, |event| event.term > above && version.printed(event.text("line")))
    }

    fn is_ready(&self, node: &Node, version: &Version) {
        node.event(&format!("`{}` to be ready", version.name), |event| is(event, "module_ready", version));
    }

    fn rejected(&self, node: &Node, version: &Version) -> Event {
        node.event(&format!("`{}` to be rejected", version.name), |event| is(event, "version_rejected", version))
    }

    fn events(&self, name: &str) -> Vec<Event> {
        self.journal.events().into_iter().filter(|event| event.name == name).collect()
    }

    /// Returns the number of instances that ended in the terms between `earlier` and `later`. Some terms end before
    /// their instance starts, so this number may be lower than the number of terms.
    fn between(&self, earlier: u64, later: u64) -> usize {
        self.events("ended").iter().filter(|event| event.term > earlier && event.term < later).count()
    }

    /// Returns the number of the version's instances that ended with an outcome other than `done`. On a busy machine,
    /// an instance of a working version may fail, too. The host then starts another instance of the version.
    fn failures(&self, version: &Version) -> usize {
        let events = self.journal.events();
        let ran = |term| events.iter().any(|event| is(event, "started", version) && event.term == term);
        let is_failure = |event: &&Event| event.name == "ended" && event.text("outcome") != "done" && ran(event.term);
        events.iter().filter(is_failure).count()
    }

    fn starts(&self, version: &Version) -> usize {
        self.journal.events().iter().filter(|event| is(event, "started", version)).count()
    }

    fn row_until(&self, version: &Version, what: &str, test: impl Fn(&Value) -> bool) -> Value {
        until(&format!("`{}` {what}", version.name), || {
            let finished = self.command(&["modules", ELECTION, "--output=json"]);
            if finished.code != Some(0) {
                return Err(finished.stderr);
            }
            let rows = finished.json();
            let own = rows.as_array().and_then(|rows| rows.iter().find(|row| row["digest"] == version.digest));
            own.filter(|row| test(row)).cloned().ok_or(finished.stdout)
        })
    }

    fn check_swaps(&self) {
        self.check_promises();
        let events = self.journal.events();
        for check in [one_instance_of_a_node, every_effect_has_a_term] {
            if let Err(broken) = check(&events) {
                self.journal.fail(&broken);
            }
        }
    }

    /// Checks that each instance continues from exactly the count that the previous instance saved last.
    fn check_the_count(&self) {
        self.check_count(|before, resumed| before == resumed);
    }

    /// Like [`Self::check_the_count`], but an instance may also continue from a higher count: the previous instance may
    /// have been killed between saving that count and printing it.
    fn check_the_count_after_crashes(&self) {
        self.check_count(|before, resumed| before <= resumed);
    }

    fn check_count(&self, fits: impl Fn(u64, u64) -> bool) {
        let mut output = self.events("output");
        output.sort_by_key(|event| event.ts);
        let mut count = 0;
        for event in output {
            let (_, line) = event.text("line").split_once(": ").unwrap_or_default();
            let words: Vec<&str> = line.split([' ', ',']).collect();
            let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
            match (words[0], number(1), number(2)) {
                ("resumed", Some(resumed), _) if fits(count, resumed) => count = resumed,
                ("saved", Some(saved), _) if saved > count => count = saved,
                // The journal drops some lines of a burst, so the last `saved` line may be missing.
                ("stopped", _, Some(saved)) if saved >= count => count = saved,
                ("resumed" | "saved" | "stopped", ..) => {
                    self.journal.fail(&format!("the count was {count} already: {event:?}"));
                }
                _ => {}
            }
        }
    }

    fn check_that_it_led_throughout(&self, leader: &Node) {
        let given_up = ["released", "release_failed", "leadership_lost", "ineligible", "shutting_down"];
        let broken = self.journal.events().into_iter().find(|event| {
            given_up.contains(&event.name.as_str()) || (event.name == "elected" && event.from != leader.name)
        });
        if let Some(broken) = broken {
            self.journal.fail(&format!("leadership was given up: {broken:?}"));
        }
    }
}

fn is(event: &Event, name: &str, version: &Version) -> bool {
    event.name == name && event.text("module") == version.digest
}

/// Checks that each node starts an instance only after the node's previous instance has ended.
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
            // An earlier host with the same name may have been killed before it could log the event `ended`.
            "ended" | "starting" => running.retain(|other| other.from != event.from),
            _ => {}
        }
    }
    Ok(())
}

fn every_effect_has_a_term(events: &[Event]) -> Result<(), String> {
    match events.iter().find(|event| event.name == "output" && event.term == 0) {
        Some(event) => Err(format!("an effect without a term: {event:?}")),
        None => Ok(()),
    }
}

fn runs_on(row: &Value, node: &str) -> bool {
    let nodes = row["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    nodes.iter().any(|of| of["node"] == node && of["runs"] == true)
}
