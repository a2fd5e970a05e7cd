//! Faults from a seed, and what a fleet's effects look like from outside meanwhile: `make faults MINUTES=30`.
//!
//! Three real hosts run a coordinator that causes effects as fast as it can: requests to a receiver, and lines of
//! output; and that saves. Versions are pushed. Hosts are stopped, killed and ended, and so are the processes that they have started, each alone and several
//! at once; the lease is broken, freed and taken by an outside client; the record
//! is deleted and written by others; the store is slow or away. All of that is a schedule that follows from a seed,
//! which is printed; with `SEED=` it is the same again, and only the machine's own timing differs. Everything that
//! arrives is put in the kernel's order (`kernel.rs`) and judged at once (`judge.rs`):
//!
//! - no effect of a lower term arrives after one of a higher term, but for the write that a SIGSTOP caught;
//! - no term is served by two instances;
//! - no commit that was acknowledged is lost: a later term begins with it, and it is there in the end;
//! - no host ends that was not told to, or panics;
//! - when the faults are over, somebody leads within a bound that is printed.
//!
//! Without `FAULTS_MINUTES` this is a test of half a minute. With `ONLY=stop,kill` there are no others, as many of these.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while it is tested")]
#![allow(dead_code, reason = "the support modules serve several test targets")]

#[path = "../support/azurite.rs"]
mod azurite;
mod fleet;
#[path = "../blackbox/guests.rs"]
mod guests;
mod judge;
mod kernel;
#[path = "../support/node.rs"]
mod node;
mod operator;
#[path = "../support/patience.rs"]
mod patience;
mod plan;
#[path = "../support/proxy.rs"]
mod proxy;
mod receiver;
mod store;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fleet::{Log, NAMES, Node, State};
use judge::Judge;
use operator::Operator;
use plan::{Fault, Who};
use receiver::Receiver;
use store::{Done, ELECTION, Store, Taken};

#[test]
fn on_sqlite() {
    run("sqlite", Store::sqlite());
}

#[test]
fn on_azurite() {
    run("azurite", Store::azurite());
}

/// How long faults come where nobody says.
const SHORT: Duration = Duration::from_secs(25);
/// A standby whose store does not answer asks again after so long at most: 15 s and a quarter.
const BACK_OFF: Duration = Duration::from_secs(19);
/// Longer than a host takes to end in order, whatever its store does.
const ENDING: Duration = Duration::from_secs(120);
/// From one look to the next.
const TICK: Duration = Duration::from_millis(10);

fn run(name: &str, store: Store) {
    let minutes: Option<f64> = variable("FAULTS_MINUTES");
    let length = minutes.map_or(SHORT, |minutes| Duration::from_secs_f64(minutes * 60.0));
    let seed = variable("FAULTS_SEED").unwrap_or_else(|| kernel::now() % 1_000_000_007);
    let lease = store.lease();
    say(&format!("{name}: {length:.0?} of faults from SEED={seed}, lease {lease:?}"));
    // Without a word about how long, it is one of many tests, which share the machine.
    let pace = if minutes.is_some() { "0" } else { "2000" };
    let only = variable::<String>("FAULTS_ONLY");
    let is_wanted = |fault: &Fault| only.as_ref().is_none_or(|only| only.split(',').any(|kind| kind == fault.kind()));
    let faults = plan::draw(seed, lease, length, is_wanted);
    let mut run = Run::new(name, store, pace);
    let began = Instant::now();
    let ended = run.harm(&faults).and_then(|()| run.recover(minutes.is_some()));
    let count = run.judge().count.clone();
    let kinds: Vec<String> = run.kinds.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let log = run.log();
    let told = format!(
        "{name}: {:.0?}, faults: {}; {} requests, {} lines and {} commits in {} terms; {} stops of a leader caught \
         {} late writes; {:.1?} at most without a leader",
        began.elapsed(),
        kinds.join(", "),
        count.requests,
        count.lines,
        count.saved,
        count.terms,
        count.stops,
        count.caught,
        count.silence,
    );
    say(&told);
    if let Err(broken) = ended {
        let (tail, path) = (log.tail(), log.path.display().to_string());
        drop(log);
        panic!("{broken}\n  again: make faults SEED={seed}\n  all of the log: {path}; its last lines:\n{tail}");
    }
}

/// A run.
struct Run {
    nodes: Vec<Node>,
    store: Store,
    operator: Operator,
    /// When to do what is to follow.
    due: Vec<(Instant, Then)>,
    /// How long a node stays down that ends, and since when it does.
    ending: [Option<(Duration, Instant)>; NAMES.len()],
    kinds: BTreeMap<&'static str, usize>,
    judge: Arc<Mutex<Judge>>,
    log: Arc<Mutex<Log>>,
    clock: kernel::Clock,
    _receiver: Receiver,
    _home: tempfile::TempDir,
}

/// What follows a fault.
enum Then {
    GoOn(usize),
    Start(usize),
    Heal(usize),
    Release(Taken),
}

impl Run {
    fn new(name: &str, store: Store, pace: &str) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{name}.log"));
        let (judge, log) = (Arc::<Mutex<Judge>>::default(), Arc::new(Mutex::new(Log::new(path))));
        let receiver = Receiver::start(&judge);
        let mut operator = Operator::new(home.path(), store.safe_url());
        operator.push_first();
        let module = format!("store://{ELECTION}");
        let lease = format!("{}s", store.lease().as_secs());
        let arguments = |node| {
            let (url, store) = (receiver.url(), store.url(node));
            let flags = [
                ("--store", store),
                ("--lease", lease.clone()),
                ("--grace", "300ms".to_owned()),
                ("--pause", "100ms".to_owned()),
                ("--max-memory", "64MiB".to_owned()),
                ("--max-output", "100000".to_owned()),
                ("--allow-http", url.clone()),
                ("--env", format!("URL={url}")),
                ("--env", format!("EVERY_US={pace}")),
            ];
            let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
            std::iter::once(module.clone()).chain(flags).collect()
        };
        let mut nodes: Vec<Node> =
            (0..NAMES.len()).map(|node| Node::new(node, arguments(node), home.path(), &judge, &log)).collect();
        nodes.iter_mut().for_each(Node::start);
        Self {
            nodes,
            store,
            operator,
            due: Vec::new(),
            ending: Default::default(),
            kinds: BTreeMap::new(),
            judge,
            log,
            clock: kernel::Clock::new(),
            _receiver: receiver,
            _home: home,
        }
    }

    /// Lets all faults of a plan happen.
    fn harm(&mut self, faults: &[(Duration, Fault)]) -> Done {
        self.until("a first leader", node::GUARD, |run| run.judge().latest().is_some())?;
        let begin = Instant::now();
        for (at, fault) in faults {
            while begin.elapsed() < *at {
                self.step()?;
            }
            *self.kinds.entry(fault.kind()).or_default() += 1;
            // What is remembered is a reading that an outside client makes before it writes.
            let _ = self.store.remember();
            let done = self.meet(*fault).err().map(|why| format!(": not done, {why}")).unwrap_or_default();
            self.log().note(&format!("{fault}{done}"));
        }
        Ok(())
    }

    fn meet(&mut self, fault: Fault) -> Done {
        let node = |who| match who {
            Who::Leader(otherwise) => self.judge().leader_at(kernel::now()).unwrap_or(otherwise),
            Who::Node(node) => node,
        };
        let now = Instant::now();
        match fault {
            Fault::Stop(who, parts, length) => {
                let node = node(who);
                self.is(node, &[State::Up])?;
                self.nodes[node].stop(parts);
                self.due.push((now + length, Then::GoOn(node)));
            }
            Fault::End(who, parts, death, down) => {
                let node = node(who);
                self.is(node, &[State::Up, State::Stopped])?;
                self.nodes[node].end(parts, death);
                if parts.has_host() {
                    self.due.push((now + down, Then::Start(node)));
                }
            }
            Fault::Terminate(who, down) => {
                let node = node(who);
                self.is(node, &[State::Up])?;
                self.nodes[node].terminate();
                self.ending[node] = Some((down, now));
            }
            Fault::Break(period) => self.store.break_lease(period)?,
            Fault::Free(content) => self.store.free(content)?,
            Fault::Take(length) if length.is_zero() => {
                let taken = self.store.take()?;
                self.store.release(taken)?;
            }
            Fault::Take(length) => {
                let taken = self.store.take()?;
                self.due.push((now + length, Then::Release(taken)));
            }
            Fault::TakeAndLeave => self.store.take().map(|_| ())?,
            Fault::Delete => self.store.delete()?,
            Fault::Push => self.operator.push(),
            Fault::Store(who, trouble, length) => {
                let node = node(who);
                self.store.trouble(node, trouble)?;
                self.due.push((now + length, Then::Heal(node)));
            }
        }
        Ok(())
    }

    fn is(&self, node: usize, states: &[State]) -> Done {
        let state = self.nodes[node].state();
        if states.contains(&state) { Ok(()) } else { Err(format!("{} is {state:?}", NAMES[node])) }
    }

    /// Ends all faults, waits for a leader, and ends the hosts in order.
    fn recover(&mut self, is_strict: bool) -> Done {
        for (_, then) in std::mem::take(&mut self.due) {
            self.follow(then);
        }
        self.until("hosts to end in order", ENDING, |run| run.ending.iter().all(Option::is_none))?;
        for (_, then) in std::mem::take(&mut self.due) {
            self.follow(then);
        }
        self.until("pushes to end", ENDING, |run| run.operator.is_idle())?;
        let (lease, healed, healed_at) = (self.store.lease(), Instant::now(), kernel::now());
        self.log().note("no more faults");
        // Who leads at first may not have noticed yet what was done to it last.
        let leads = healed_at + u64::try_from(lease.as_nanos()).expect("a lease is short");
        loop {
            self.step()?;
            let log = self.log();
            let settling = log.settled.map_or(Duration::ZERO, |until| until.saturating_duration_since(healed));
            let bound = log.takeover + lease.max(settling) + BACK_OFF;
            drop(log);
            // One of many tests waits as any of them: how busy the machine is shows nothing.
            let patience = if is_strict { bound } else { bound + node::GUARD };
            if self.judge().latest().is_some_and(|effect| effect.at > leads) {
                say(&format!(
                    "the last fault's traces were gone, and somebody led, after {:.1?} of {bound:.1?}",
                    healed.elapsed()
                ));
                break;
            }
            if healed.elapsed() > patience {
                return Err(format!("the host survives: nobody leads {:.1?} after the last fault", healed.elapsed()));
            }
        }
        let now = Instant::now();
        for node in 0..NAMES.len() {
            self.nodes[node].terminate();
            self.ending[node] = Some((Duration::MAX, now));
        }
        self.until("hosts to end in order", ENDING, |run| run.ending.iter().all(Option::is_none))?;
        // With the hosts' ends all that they wrote has been read.
        let read = kernel::now() + 60_000_000_000;
        self.judge().judge(read)?;
        let saved = self.operator.saved()?;
        self.judge().judge_saved(saved)
    }

    fn until(&mut self, what: &str, longest: Duration, test: impl Fn(&Self) -> bool) -> Done {
        let begin = Instant::now();
        while !test(self) {
            if begin.elapsed() > longest {
                return Err(format!("waited {longest:?} in vain for {what}"));
            }
            self.step()?;
        }
        Ok(())
    }

    /// Does what is due, and looks whether all is well.
    fn step(&mut self) -> Done {
        std::thread::sleep(TICK);
        let now = Instant::now();
        while let Some(at) = self.due.iter().position(|(due, _)| *due <= now) {
            let (_, then) = self.due.swap_remove(at);
            self.follow(then);
        }
        for (node, name) in NAMES.iter().enumerate() {
            let ended = self.nodes[node].ended();
            match (ended, self.ending[node]) {
                (None, None) => {}
                (None, Some((_, since))) if since.elapsed() < ENDING => {}
                (None, Some(_)) => return Err(format!("{name} does not end when it is told to")),
                (Some(status), Some((down, _))) if self.nodes[node].is_in_order(status) => {
                    self.ending[node] = None;
                    if let Some(up) = now.checked_add(down) {
                        self.due.push((up, Then::Start(node)));
                    }
                }
                (Some(status), _) => {
                    return Err(format!("the host survives: {name} has ended by itself, {status}"));
                }
            }
        }
        for told in self.operator.ended() {
            self.log().note(&told);
        }
        if let Some(line) = self.log().panicked.clone() {
            return Err(format!("the host survives: {line}"));
        }
        self.clock.watch()?;
        self.judge().judge(kernel::now())
    }

    fn follow(&mut self, then: Then) {
        let note = match then {
            Then::GoOn(node) if self.nodes[node].state() == State::Stopped => {
                self.nodes[node].go_on();
                format!("{} goes on", NAMES[node])
            }
            // It was killed meanwhile.
            Then::GoOn(_) => return,
            Then::Start(node) => {
                self.nodes[node].start();
                format!("{} starts", NAMES[node])
            }
            Then::Heal(node) => {
                self.store.heal(node);
                format!("the store heals ({})", NAMES[node])
            }
            Then::Release(taken) => format!("the outside client releases: {:?}", self.store.release(taken)),
        };
        self.log().note(&note);
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        self.judge.lock().expect("nobody panics with it")
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nobody panics with it")
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} cannot be read")))
}

/// Tells also whoever runs all tests.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "faults: {line}");
}
