//! A fleet for one scenario: a store that is its own, an election, and what the nodes on it have said.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::guests::Guest;
use crate::node::{Event, Finished, Journal, Launch, Node, baton, finish, until};
use crate::store::Store;

/// The election that every scenario contends for.
pub const ELECTION: &str = "fleet";

/// A scenario's environment.
pub struct Fleet {
    /// The store, and the means to harm it.
    pub store: Store,
    /// What all nodes have said.
    pub journal: Journal,
    /// Home and working folder of all nodes.
    pub home: TempDir,
    guest: Guest,
    /// False if no node learns of another's death from the kernel, as between machines.
    has_witness: bool,
}

impl Fleet {
    /// A fleet on that store, with a guest that prints a beat every few milliseconds.
    pub fn new(store: Store) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        Self { store, journal: Journal::default(), home, guest: Guest::Beats, has_witness: true }
    }

    /// The same fleet, in which a successor waits until a dead leader's lease has expired.
    #[must_use]
    pub fn without_witness(mut self) -> Self {
        self.has_witness = false;
        self
    }

    /// True if the death of a leader ends its lease at once.
    pub fn sees_deaths(&self) -> bool {
        self.has_witness && self.store.is_sqlite()
    }

    /// The same fleet with another guest.
    #[must_use]
    pub fn with(mut self, guest: Guest) -> Self {
        self.guest = guest;
        self
    }

    /// A node that is about to start.
    pub fn launch(&self, name: &str) -> Launch {
        self.launch_with(name, &[])
    }

    /// A node that is about to start, with other values for some flags.
    pub fn launch_with(&self, name: &str, flags: &[(&str, &str)]) -> Launch {
        self.launch_from(name, self.guest.module(), flags)
    }

    /// The same, with modules from that source.
    pub fn launch_from(&self, name: &str, source: impl AsRef<OsStr>, flags: &[(&str, &str)]) -> Launch {
        let (store, lease) = (self.store.url(), format!("{}s", self.store.lease().as_secs()));
        let usual = [
            ("--election", ELECTION),
            ("--store", &store),
            ("--lease", &lease),
            ("--grace", "300ms"),
            ("--restart-delay", "100ms"),
            ("--max-memory", "64MiB"),
        ];
        let usual = usual.iter().filter(|(flag, _)| flags.iter().all(|(other, _)| other != flag));
        let launch = Launch::run(name, self.home.path(), &self.journal).arg(source);
        let env = self.guest.env().map(|(key, value)| format!("{key}={value}"));
        let launch = if self.has_witness { launch } else { launch.arg("--reclaim=false") };
        let launch = env.iter().fold(launch, |launch, pair| launch.flag("--env", pair));
        usual.chain(flags).fold(launch, |launch, (flag, value)| launch.flag(flag, value))
    }

    /// A node that runs.
    pub fn node(&self, name: &str) -> Node {
        self.launch(name).start()
    }

    /// A node whose instance runs, and its term.
    pub fn leader(&self, name: &str) -> (Node, u64) {
        let node = self.node(name);
        let term = self.beat_above(0).term;
        (node, term)
    }

    /// A node that has read the store and knows that `leader` leads.
    pub fn standby(&self, name: &str, leader: &Node) -> Node {
        let node = self.node(name);
        let knows = |event: &Event| event.name == "standby" && event.text("reason").contains(&leader.name);
        node.event(&format!("to follow {}", leader.name), knows);
        node
    }

    /// Waits for an instance's line of output in a term above `above`: somebody leads.
    pub fn beat_above(&self, above: u64) -> Event {
        self.beat(&format!("a beat above term {above}"), |event| event.term > above)
    }

    /// Waits for a line of output that passes `test`.
    pub fn beat(&self, what: &str, mut test: impl FnMut(&Event) -> bool) -> Event {
        self.journal.event(what, |event| event.name == "output" && test(event))
    }

    /// Runs `baton ARGS`, with this fleet's store.
    pub fn command(&self, args: &[&str]) -> Finished {
        finish(self.baton(args))
    }

    /// `baton ARGS`, with this fleet's store.
    pub fn baton(&self, args: &[&str]) -> Command {
        let mut command = baton(self.home.path());
        command.args(args).arg("--store").arg(self.store.url());
        command
    }

    /// What `baton status` says of the election.
    pub fn status(&self) -> Value {
        let finished = self.command(&["status", ELECTION, "--output=json"]);
        row(&finished).unwrap_or_else(|| panic!("one election is there: {finished:?}"))
    }

    /// Asks for the status, before there is one too, until it passes `test`.
    pub fn status_until(&self, what: &str, test: impl Fn(&Value) -> bool) -> Value {
        until(what, || {
            let finished = self.command(&["status", ELECTION, "--output=json"]);
            row(&finished).filter(&test).ok_or(finished)
        })
    }

    /// D.
    pub fn lease(&self) -> Duration {
        self.store.lease()
    }

    /// Checks the promises that every log must keep, whatever happened. A failure names the broken one.
    pub fn check_promises(&self) {
        let events = self.journal.events();
        for check in [one_at_a_time, terms_only_rise, release_last, nothing_panicked] {
            if let Err(broken) = check(&events) {
                self.journal.fail(&broken);
            }
        }
        if !self.has_witness && events.iter().any(|event| event.name == "reclaimed") {
            self.journal.fail("a lease was taken over before it expired, and no node has a witness");
        }
    }
}

/// The one election in the answer of `baton status ELECTION --json`.
fn row(finished: &Finished) -> Option<Value> {
    // 3 says that no node leads.
    if ![Some(0), Some(3)].contains(&finished.code) {
        return None;
    }
    match finished.json().as_array().map(Vec::as_slice) {
        Some([row]) => {
            assert_eq!(finished.code == Some(0), row["lease"] == "held", "{finished:?}");
            Some(row.clone())
        }
        _ => None,
    }
}

type Checked = Result<(), String>;

/// Promise 1: over all nodes, the output of one term ends before that of the next begins.
fn one_at_a_time(events: &[Event]) -> Checked {
    let mut outputs: Vec<&Event> = events.iter().filter(|event| event.name == "output").collect();
    outputs.sort_by_key(|event| event.ts);
    for pair in outputs.windows(2) {
        let (earlier, later) = (pair[0], pair[1]);
        if earlier.term > later.term {
            return Err(format!("one at a time: {later:?} came after {earlier:?}"));
        }
        if earlier.term == later.term && earlier.from != later.from {
            return Err(format!("one at a time: two nodes serve one term: {earlier:?} and {later:?}"));
        }
    }
    Ok(())
}

/// Promise 3: each term that begins is higher than all before.
fn terms_only_rise(events: &[Event]) -> Checked {
    let mut elected: Vec<&Event> = events.iter().filter(|event| event.name == "elected").collect();
    elected.sort_by_key(|event| event.ts);
    match elected.windows(2).find(|pair| pair[0].term >= pair[1].term) {
        Some(pair) => Err(format!("terms only rise: {:?} came after {:?}", pair[1], pair[0])),
        None => Ok(()),
    }
}

/// Promise 4: a node that has started an instance releases the lease only after that is gone.
fn release_last(events: &[Event]) -> Checked {
    for (i, released) in events.iter().enumerate().filter(|(_, event)| event.name == "released") {
        let own = || events[..i].iter().filter(|event| event.from == released.from);
        let started = own().filter(|event| event.name == "started").count();
        let gone = own().filter(|event| event.name == "ended").count();
        if gone < started {
            return Err(format!("release last: {started} instances were started, {gone} are gone at {released:?}"));
        }
    }
    Ok(())
}

/// No host panics. Guests may, and say so in their output.
fn nothing_panicked(events: &[Event]) -> Checked {
    match events.iter().find(|event| event.name != "output" && event.raw.contains("panicked")) {
        Some(event) => Err(format!("a host panicked: {event:?}")),
        None => Ok(()),
    }
}
