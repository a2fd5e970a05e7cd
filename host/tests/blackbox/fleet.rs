//! The fleet of one scenario: the nodes' store, their election and their logs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::guests::Guest;
use crate::node::{Event, Finished, Journal, Launch, Node, baton, finish, until};
use crate::store::Store;

pub const ELECTION: &str = "fleet";

pub struct Fleet {
    pub store: Store,
    pub journal: Journal,
    /// The home and working folder of all nodes.
    pub home: TempDir,
    guest: Guest,
    /// True if the nodes learn of each other's deaths from the kernel. If false, they behave as if each ran on its own
    /// machine.
    has_witness: bool,
}

impl Fleet {
    /// Makes a fleet whose nodes run a guest that prints a beat every few milliseconds.
    pub fn new(store: Store) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        Self { store, journal: Journal::default(), home, guest: Guest::Beats, has_witness: true }
    }

    /// Starts the nodes with `--reclaim=false`, so each successor waits until a dead leader's lease has expired.
    #[must_use]
    pub fn without_witness(mut self) -> Self {
        self.has_witness = false;
        self
    }

    /// True if a successor need not wait until a dead leader's lease has expired.
    pub fn sees_deaths(&self) -> bool {
        self.has_witness && self.store.is_sqlite()
    }

    #[must_use]
    pub fn with(mut self, guest: Guest) -> Self {
        self.guest = guest;
        self
    }

    pub fn launch(&self, name: &str) -> Launch {
        self.launch_with(name, &[])
    }

    /// The values in `flags` override the defaults.
    pub fn launch_with(&self, name: &str, flags: &[(&str, &str)]) -> Launch {
        self.launch_from(name, self.guest.module(), flags)
    }

    /// `source` is the positional argument of `baton run`: a module file or a URL such as `store://fleet`. The values
    /// in `flags` override the defaults.
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
        let has = |flag: &str| flags.iter().any(|(other, _)| *other == flag);
        // A schedule replaces `--restart-delay`.
        let replaced = |flag: &str| has(flag) || flag == "--restart-delay" && has("--schedule");
        let usual = usual.iter().filter(|(flag, _)| !replaced(flag));
        let launch = Launch::run(name, self.home.path(), &self.journal).arg(source);
        let env = self.guest.env().map(|(key, value)| format!("{key}={value}"));
        let launch = if self.has_witness { launch } else { launch.arg("--reclaim=false") };
        let launch = env.iter().fold(launch, |launch, pair| launch.flag("--env", pair));
        usual.chain(flags).fold(launch, |launch, (flag, value)| launch.flag(flag, value))
    }

    pub fn node(&self, name: &str) -> Node {
        self.launch(name).start()
    }

    /// Waits until the node's instance runs. Returns the node and its term.
    pub fn leader(&self, name: &str) -> (Node, u64) {
        let node = self.node(name);
        let term = self.beat_above(0).term;
        (node, term)
    }

    /// Waits until the node has read from the store that `leader` leads.
    pub fn standby(&self, name: &str, leader: &Node) -> Node {
        self.standby_with(name, leader, &[])
    }

    /// The values in `flags` override the defaults.
    pub fn standby_with(&self, name: &str, leader: &Node, flags: &[(&str, &str)]) -> Node {
        let node = self.launch_with(name, flags).start();
        let knows = |event: &Event| event.name == "standby" && event.text("reason").contains(&leader.name);
        node.event(&format!("to follow {}", leader.name), knows);
        node
    }

    pub fn beat_above(&self, above: u64) -> Event {
        self.beat(&format!("a beat above term {above}"), |event| event.term > above)
    }

    pub fn beat(&self, what: &str, mut test: impl FnMut(&Event) -> bool) -> Event {
        self.journal.event(what, |event| event.name == "output" && test(event))
    }

    pub fn command(&self, args: &[&str]) -> Finished {
        finish(self.baton(args))
    }

    pub fn baton(&self, args: &[&str]) -> Command {
        let mut command = baton(self.home.path());
        command.args(args).arg("--store").arg(self.store.url());
        command
    }

    pub fn status(&self) -> Value {
        let finished = self.command(&["status", ELECTION, "--output=json"]);
        row(&finished).unwrap_or_else(|| panic!("no row of the election: {finished:?}"))
    }

    /// The election need not exist yet.
    pub fn status_until(&self, what: &str, test: impl Fn(&Value) -> bool) -> Value {
        until(what, || {
            let finished = self.command(&["status", ELECTION, "--output=json"]);
            row(&finished).filter(&test).ok_or(finished)
        })
    }

    /// Returns D, the lease duration.
    pub fn lease(&self) -> Duration {
        self.store.lease()
    }

    /// Checks Baton's promises, which must hold in the logs of every test. A failure names the broken promise.
    pub fn check_promises(&self) {
        let events = self.journal.events();
        // Each shard of a group is an election of its own.
        let elections: BTreeSet<&str> = events.iter().map(|event| event.text("election")).collect();
        for election in elections {
            let events: Vec<Event> =
                events.iter().filter(|event| event.text("election") == election).cloned().collect();
            for check in [one_at_a_time, terms_only_rise, release_last, nothing_panicked] {
                if let Err(broken) = check(&events) {
                    self.journal.fail(&broken);
                }
            }
        }
        if !self.has_witness && events.iter().any(|event| event.name == "reclaimed") {
            self.journal.fail("a lease was taken over before it expired, and no node has a witness");
        }
    }
}

fn row(finished: &Finished) -> Option<Value> {
    // Exit status 3 means that no node leads.
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

/// Promise 1: across all nodes, the output of one term ends before the output of the next term begins.
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

/// Promise 3: each new term is higher than all earlier terms.
fn terms_only_rise(events: &[Event]) -> Checked {
    let mut elected: Vec<&Event> = events.iter().filter(|event| event.name == "elected").collect();
    elected.sort_by_key(|event| event.ts);
    match elected.windows(2).find(|pair| pair[0].term >= pair[1].term) {
        Some(pair) => Err(format!("terms only rise: {:?} came after {:?}", pair[1], pair[0])),
        None => Ok(()),
    }
}

/// Promise 4: a node releases the lease only after its instance has ended.
fn release_last(events: &[Event]) -> Checked {
    for (i, released) in events.iter().enumerate().filter(|(_, event)| event.name == "released") {
        let own = || events[..i].iter().filter(|event| event.from == released.from);
        let started = own().filter(|event| event.name == "started").count();
        let ended = own().filter(|event| event.name == "ended").count();
        if ended < started {
            return Err(format!("release last: {started} instances have started, {ended} have ended at {released:?}"));
        }
    }
    Ok(())
}

/// Ignores the guests' output, because a guest is allowed to panic.
fn nothing_panicked(events: &[Event]) -> Checked {
    match events.iter().find(|event| event.name != "output" && event.raw.contains("panicked")) {
        Some(event) => Err(format!("a host panicked: {event:?}")),
        None => Ok(()),
    }
}
