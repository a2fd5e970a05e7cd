//! The scheduler from `examples/scheduler`, in each language. The tests run it on the real binary, through a crash and
//! a hand-off.
//!
//! `make examples` builds the components. The test's process runs the workers, which record each offer.
mod swaps;
mod workers;

use baton_test_support::{azurite, node};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use azurite::Azurite;
use node::{Event, Journal, Launch, Node, baton, finish};
use rustix::process::Signal;
use serde::Deserialize;
use tempfile::TempDir;
use workers::{Offer, Workers};

const ELECTION: &str = "partitions";
const PARTITIONS: u64 = 12;
/// The grace is longer than a clean shutdown takes on any machine.
const GRACE: Duration = Duration::from_secs(60);

/// A partition that a worker takes just before the leader crashes. The worker does not answer the offer.
const LOST_IN_THE_CRASH: u64 = 4;
/// A partition that a worker takes just before the leader is asked to stop. The worker does not answer the offer.
const CUT_OFF_BY_THE_STOP: u64 = 8;

macro_rules! languages {
    ($($language:ident),+) => {
        $(#[test]
        fn $language() {
            survives_a_crash_and_a_hand_off(stringify!($language), &Fleet::on_sqlite(stringify!($language)));
        })+
    };
}
languages!(rust, js, python, c, go);

#[test]
fn rust_without_witness() {
    survives_a_crash_and_a_hand_off("rust", &Fleet::on_sqlite("rust").without_witness());
}

#[test]
#[ignore = "STORES=all"]
fn on_azurite() {
    survives_a_crash_and_a_hand_off("rust", &Fleet::on_azurite("rust"));
}

/// The value that the coordinator saves in its state under `partitions/N`.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Acknowledgement {
    worker: String,
    term: u64,
}

fn survives_a_crash_and_a_hand_off(language: &str, fleet: &Fleet) {
    let mut nodes: Vec<Node> = ["node-1", "node-2", "node-3"].map(|name| fleet.launch(name).start()).into();

    // Once the other nodes are standbys, the first term ends with a crash, during an offer.
    let first = fleet.started(0);
    for node in nodes.iter().filter(|node| node.name != first.from) {
        let follows = |event: &Event| event.from == node.name && event.name == "standby";
        fleet.journal.wait(&format!("{} to follow", node.name), |events| {
            events.iter().any(|event| follows(event) && event.text("reason").contains(&first.from)).then_some(())
        });
    }
    fleet.workers.held(LOST_IN_THE_CRASH);
    drop(take(&mut nodes, &first.from));

    // The second term ends with a clean shutdown, during an offer.
    let second = fleet.started(first.term);
    fleet.workers.held(CUT_OFF_BY_THE_STOP);
    let mut leader = take(&mut nodes, &second.from);
    leader.signal(Signal::TERM);
    assert!(leader.wait().success());
    fleet.obeyed_within_the_grace(&second);

    // The third term ends when all partitions are acknowledged.
    let third = fleet.started(second.term);
    let mut leader = take(&mut nodes, &third.from);
    leader.event("to finish", |event| event.name == "finished");
    assert!(leader.terminate().success());

    let terms = [&first, &second, &third];
    let took = terms.map(|event| event.fields["took_s"].as_f64().expect("a number"));
    println!("{language}: started after {took:?} s");
    terms.iter().for_each(|started| fleet.was_compiled_before(started));
    let offers = fleet.workers.offers();
    each_is_offered_until_it_is_acknowledged(&offers, &terms);
    no_lower_term_after_a_higher(&offers);
    each_is_acknowledged_as_it_was_taken(&fleet.saved(), &offers, &fleet.workers);
}

/// Checks that each partition is offered once, except for the 2 partitions whose acknowledgements were lost. These 2
/// must be offered twice, both times to the same worker.
fn each_is_offered_until_it_is_acknowledged(offers: &[Offer], terms: &[&Event]) {
    let [first, second, third] = *terms else { panic!("there are three terms") };
    for partition in 0..PARTITIONS {
        let expected: &[&Event] = match partition {
            LOST_IN_THE_CRASH => &[first, second],
            CUT_OFF_BY_THE_STOP => &[second, third],
            _ if partition < LOST_IN_THE_CRASH => &[first],
            _ if partition < CUT_OFF_BY_THE_STOP => &[second],
            _ => &[third],
        };
        let of_partition = offers.iter().filter(|offer| offer.partition == partition);
        let offered: Vec<_> = of_partition.map(|offer| (offer.term, offer.node.as_str(), offer.worker)).collect();
        let expected: Vec<_> =
            expected.iter().map(|event| (event.term, event.from.as_str(), usize::from(partition % 2 == 1))).collect();
        assert_eq!(offered, expected, "the offers of partition {partition} in {offers:?}");
    }
    assert!(offers.iter().all(|offer| offer.election == ELECTION), "{offers:?}");
}

fn no_lower_term_after_a_higher(offers: &[Offer]) {
    assert!(offers.is_sorted_by_key(|offer| offer.term), "a lower term came after a higher one: {offers:?}");
    assert!(offers.iter().all(|offer| !offer.was_refused), "a worker refused a lower term: {offers:?}");
}

/// Checks that the final state contains each partition once. Each entry must name the worker that took the partition,
/// and the term in which that worker first took it.
fn each_is_acknowledged_as_it_was_taken(
    saved: &BTreeMap<String, Acknowledgement>,
    offers: &[Offer],
    workers: &Workers,
) {
    let mut expected = BTreeMap::new();
    for offer in offers {
        let taken = Acknowledgement { worker: workers.url(offer.worker).to_owned(), term: offer.term };
        expected.entry(format!("partitions/{}", offer.partition)).or_insert(taken);
    }
    assert_eq!(expected.len() as u64, PARTITIONS);
    assert_eq!(*saved, expected);
}

struct Fleet {
    component: PathBuf,
    home: TempDir,
    store: String,
    lease: &'static str,
    /// True if the nodes learn of each other's deaths from the kernel. If false, they behave as if each ran on its own
    /// machine.
    has_witness: bool,
    /// Keeps the emulator running while nodes use it.
    azurite: Option<Azurite>,
    journal: Journal,
    workers: Workers,
}

impl Fleet {
    fn on_sqlite(language: &str) -> Self {
        let mut fleet = Self::new(language);
        fleet.store = format!("sqlite:{}", fleet.home.path().join("store").display());
        // The kernel reports the crash, so no node waits for this lease to expire.
        fleet.lease = "60s";
        fleet
    }

    fn without_witness(mut self) -> Self {
        self.lease = "15s";
        self.has_witness = false;
        self
    }

    fn on_azurite(language: &str) -> Self {
        let (mut fleet, azurite) = (Self::new(language), Azurite::start());
        fleet.store = format!("azurite://{}/fleet", azurite.address());
        fleet.azurite = Some(azurite);
        fleet
    }

    fn new(language: &str) -> Self {
        // Cargo sets `CARGO_TARGET_TMPDIR` to `tmp` in the target folder. The examples are in the target folder, too.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
        let component = target.join(format!("examples/scheduler-{language}.wasm"));
        assert!(component.is_file(), "{} is not there: `make examples` builds it", component.display());
        let home = tempfile::tempdir().expect("a folder");
        let journal = Journal::default();
        let workers = Workers::start(2, [LOST_IN_THE_CRASH, CUT_OFF_BY_THE_STOP], journal.clone());
        Self { component, home, store: String::new(), lease: "15s", has_witness: true, azurite: None, journal, workers }
    }

    fn launch(&self, name: &str) -> Launch {
        self.launch_from(name, &self.component, PARTITIONS)
    }

    fn launch_from(&self, name: &str, component: &Path, partitions: u64) -> Launch {
        let urls: Vec<&str> = (0..2).map(|worker| self.workers.url(worker)).collect();
        let launch = Launch::run(name, self.home.path(), &self.journal).arg(component).arg("--create");
        let launch = if self.has_witness { launch } else { launch.arg("--reclaim=false") };
        let launch = launch.flag("--env", format!("WORKERS={}", urls.join(",")));
        // The timeout is so long that the scheduler waits for a silent worker until the node is killed or asked to
        // stop.
        let settings = [("PARTITIONS", partitions), ("PAUSE_MS", 100), ("TIMEOUT_MS", 100_000)];
        let launch =
            settings.iter().fold(launch, |launch, (key, value)| launch.flag("--env", format!("{key}={value}")));
        let launch = urls.iter().fold(launch, |launch, url| launch.flag("--allow-http", url));
        let flags = [
            ("--election", ELECTION),
            ("--store", &self.store),
            ("--lease", self.lease),
            ("--grace", &format!("{}s", GRACE.as_secs())),
            ("--restart", "on-failure"),
        ];
        flags.iter().fold(launch, |launch, (flag, value)| launch.flag(flag, value))
    }

    fn started(&self, above: u64) -> Event {
        let is_it = |event: &&Event| event.name == "started" && event.term > above;
        self.journal.wait(&format!("an instance above term {above}"), |events| events.iter().find(is_it).cloned())
    }

    fn started_of(&self, version: &str, above: u64) -> Event {
        let is_it = |event: &&Event| event.name == "started" && event.term > above && event.text("module") == version;
        let what = format!("an instance of {version} above term {above}");
        self.journal.wait(&what, |events| events.iter().find(is_it).cloned())
    }

    /// Checks that the node compiled the module while the node was a standby. Compilation takes seconds, and no
    /// takeover may wait for a compilation.
    fn was_compiled_before(&self, started: &Event) {
        let (mut is_ready, mut is_elected) = (false, false);
        for event in self.journal.events().iter().filter(|event| event.from == started.from) {
            match event.name.as_str() {
                "module_ready" if !is_elected => is_ready = true,
                "elected" if event.term == started.term => is_elected = true,
                "started" if event.term == started.term => break,
                "preparing" | "module_ready" if is_elected => is_ready = false,
                _ => {}
            }
        }
        if !is_ready || !is_elected {
            self.journal.fail(&format!("a takeover waited for the compiler: {started:?}"));
        }
    }

    fn obeyed_within_the_grace(&self, started: &Event) {
        let find = |name: &str| {
            let is_it = |event: &&Event| event.name == name && event.term == started.term;
            self.journal.events().into_iter().find(|event| is_it(&event))
        };
        let (stopping, ended) = (find("stopping").expect("a stop request"), find("ended").expect("an ended instance"));
        if ended.text("outcome") != "done" || find("killed").is_some() || ended.ts < stopping.ts {
            self.journal.fail("the stop was not obeyed within the grace");
        }
    }

    fn saved(&self) -> BTreeMap<String, Acknowledgement> {
        #[derive(Deserialize)]
        struct Exported {
            entries: BTreeMap<String, String>,
        }
        let mut command = baton(self.home.path());
        command.args(["state", "export", ELECTION, "--store", &self.store]);
        let finished = finish(command);
        let exported: Exported =
            serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
        let read = |(key, value): (String, String)| {
            let read = serde_json::from_str(&value).unwrap_or_else(|error| panic!("{key} is {value}: {error}"));
            (key, read)
        };
        exported.entries.into_iter().map(read).collect()
    }
}

/// Dropping the returned node kills it with SIGKILL.
fn take(nodes: &mut Vec<Node>, name: &str) -> Node {
    let index = nodes.iter().position(|node| node.name == name).expect("a node of that name");
    nodes.remove(index)
}
