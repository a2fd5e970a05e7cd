//! Faults from a seed, and what a fleet's effects look like from outside meanwhile: `make faults MINUTES=30`.
//!
//! Three real hosts, or `NODES=5`, run a coordinator that causes effects as fast as it can: requests to a receiver, and lines of
//! output; and that saves, or has no state, as the seed has it. Versions are pushed. Hosts are stopped, killed and ended,
//! and so are the processes that they have started, each alone and several at once; the lease is broken, freed and
//! taken by an outside client; the record is deleted and written by others; the store is slow or away, and so are the
//! nodes for each other: on one machine they are linked by sockets, and on Azure over the network; what a node writes is
//! left unread. These faults
//! come in bursts, which follow from a seed that is printed; with `SEED=` they are the same again, and only the
//! machine's own timing differs. Everything that arrives is put in the kernel's order (`kernel.rs`) and judged at once
//! (`judge.rs`):
//!
//! - no effect of a lower term arrives after one of a higher term, but for the write that a SIGSTOP caught;
//! - no term is served by two instances, and each effect carries its own;
//! - no commit that was acknowledged is lost: a later term begins with it, and it is there in the end;
//! - no host ends that was not told to, or panics; in the gate, which shares its machine, a host's watchdog may end it;
//! - when the faults of a burst are over, somebody leads within a bound;
//! - in the end a version can be pushed, and is served.
//!
//! Without `FAULTS_MINUTES` this is a test of half a minute and the last burst's traces, with the same faults every time. With
//! `ONLY=stop,kill` there are no other faults, and as many of these. With `OLD=PROGRAM` every second node runs that one, an earlier version's.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while it is tested")]

mod deaths;
mod fleet;
mod judge;
mod kernel;
mod links;
mod operator;
mod plan;
mod receiver;
mod store;

use baton_test_support::{azurite, baton_binary, guests, node, patience, proxy};

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fleet::{Log, NAMES, Node, State};
use judge::Judge;
use links::Links;
use operator::Operator;
use patience::Patience;
use plan::{Fault, Parts, Plan, Who};
use receiver::Receiver;
use store::{Done, ELECTION, Store, Taken};

#[test]
fn on_sqlite() {
    run("sqlite", Store::sqlite(), Fixed { seed: 8, bursts: 4 });
}

#[test]
fn on_azurite() {
    run("azurite", Store::azurite(nodes()), Fixed { seed: 3, bursts: 1 });
}

/// The gate's faults: their seed, and the number of bursts.
struct Fixed {
    seed: u64,
    bursts: usize,
}

/// From one reading of a standby to the next, at most: a second and a quarter.
const POLL: Duration = Duration::from_millis(1250);
/// No unclear lease is waited out for longer.
const UNKNOWN_LEASE: Duration = Duration::from_secs(60);
/// A standby whose store does not answer asks again after so long at most: 15 s and a quarter.
const BACK_OFF: Duration = Duration::from_secs(19);
/// Longer than a host takes to end in order, whatever its store does.
const ENDING: Duration = Duration::from_secs(120);
/// From one look to the next.
const TICK: Duration = Duration::from_millis(10);

/// How many nodes there are.
fn nodes() -> usize {
    let nodes = variable("FAULTS_NODES").unwrap_or(3);
    assert!((2..=NAMES.len()).contains(&nodes), "2 to {} nodes, not {nodes}", NAMES.len());
    nodes
}

/// What every second node runs, if another version.
fn old() -> Option<PathBuf> {
    variable("FAULTS_OLD")
}

/// Runs a fleet under faults. Without `FAULTS_MINUTES` they are the fixed ones, since the gate may not fail by chance.
fn run(name: &str, store: Store, fixed: Fixed) {
    let minutes: Option<f64> = variable("FAULTS_MINUTES");
    let length = minutes.map_or(Duration::MAX, |minutes| Duration::from_secs_f64(minutes * 60.0));
    let bursts = if minutes.is_some() { usize::MAX } else { fixed.bursts };
    let fresh = || if minutes.is_some() { kernel::now() % 1_000_000_007 } else { fixed.seed };
    let seed = variable("FAULTS_SEED").unwrap_or_else(fresh);
    let lease = store.lease();
    // Where nobody keeps a state, nothing but what nodes announce tells that a record was deleted or set back.
    let keeps_state = variable("FAULTS_STATE").unwrap_or(seed.is_multiple_of(2));
    let with = if keeps_state { "that saves" } else { "without a state" };
    let nodes = nodes();
    say(&format!(
        "{name}: {} of faults on {nodes} nodes and a coordinator {with} from SEED={seed}, lease {lease:?}",
        minutes.map_or(format!("{bursts} bursts"), |minutes| format!("{minutes} minutes"))
    ));
    // Without a word about how long, it is one of many tests, which share the machine.
    let pace = if minutes.is_some() { "0" } else { "2000" };
    let only = variable::<String>("FAULTS_ONLY");
    let is_wanted = |fault: &Fault| only.as_ref().is_none_or(|only| only.split(',').any(|kind| kind == fault.kind()));
    let mut run = Run::new(name, store, nodes, pace, keeps_state, minutes.is_some());
    let began = Instant::now();
    let ended = run.harm(Plan::new(seed, nodes, lease, is_wanted).take(bursts), length).and_then(|()| run.recover());
    let count = run.judge().count.clone();
    let kinds = run.kinds.iter().map(|(kind, (done, refused))| match refused {
        0 => format!("{kind} {done}"),
        _ => format!("{kind} {done} (not done: {refused})"),
    });
    let kinds: Vec<String> = kinds.collect();
    let log = run.log();
    let told = format!(
        "{name}: {:.0?}, faults in {} bursts: {}; {} of {} that were meant for a leader met one; {} requests, {} lines \
         and {} commits in {} terms, {} links; {} stops of a leader caught {} late writes; {:.1?} at most without a \
         leader",
        began.elapsed(),
        run.bursts,
        kinds.join(", "),
        run.met_leader.0,
        run.met_leader.1,
        count.requests,
        count.lines,
        count.saved,
        count.terms,
        log.linked,
        count.stops,
        count.caught,
        count.silence,
    );
    say(&told);
    if let Err(broken) = ended {
        let (tail, path) = (log.tail(), log.path.display().to_string());
        drop(log);
        let minutes = minutes.map_or(String::new(), |minutes| format!(" MINUTES={minutes}"));
        let only = only.map_or(String::new(), |only| format!(" ONLY='{only}'"));
        let old = old().map_or(String::new(), |old| format!(" OLD='{}'", old.display()));
        panic!(
            "{broken}\n  again: make faults SEED={seed} STATE={keeps_state} NODES={nodes}{minutes}{only}{old}\n  all of the log: {path}; its last lines:\n{tail}"
        );
    }
}

/// A run.
struct Run {
    nodes: Vec<Node>,
    store: Store,
    links: Links,
    operator: Operator,
    /// When to do what is to follow.
    due: Vec<(Instant, Then)>,
    /// For each node that is ending: how long it is to stay down, and the patience until it has ended.
    ending: Vec<Option<(Duration, Patience)>>,
    /// How many faults of each kind were done, and how many were not.
    kinds: BTreeMap<&'static str, (usize, usize)>,
    bursts: usize,
    /// How many that were meant for a leader met one, of how many.
    met_leader: (usize, usize),
    /// Whether the coordinators save.
    keeps_state: bool,
    /// Whether this machine has nothing else to do: then a bound is one.
    is_strict: bool,
    judge: Arc<Mutex<Judge>>,
    log: Arc<Mutex<Log>>,
    clock: kernel::Clock,
    receiver: Option<Receiver>,
    _home: tempfile::TempDir,
}

/// What follows a fault.
enum Then {
    GoOn(usize),
    Start(usize),
    Heal(usize),
    HealLinks(usize),
    Read(usize),
    Release(Taken),
}

impl Run {
    fn new(name: &str, store: Store, nodes: usize, pace: &str, keeps_state: bool, is_strict: bool) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{name}.log"));
        let (judge, log) = (Arc::<Mutex<Judge>>::default(), Arc::new(Mutex::new(Log::new(path))));
        let receiver = Receiver::start(&judge);
        let mut operator = Operator::new(home.path(), store.safe_url(), keeps_state);
        operator.push_first();
        let module = format!("store://{ELECTION}");
        let lease = format!("{}s", store.lease().as_secs());
        let (links, old) = (Links::on(&store, nodes), old());
        let older = |node: usize| old.as_ref().filter(|_| node % 2 == 1);
        let arguments = |node| {
            let (url, store) = (receiver.url(), store.url(node));
            // An earlier version may not know what it is told of links.
            let links = if older(node).is_none() { links.flags(node) } else { Vec::new() };
            let flags = [
                ("--store", store),
                ("--lease", lease.clone()),
                ("--grace", "300ms".to_owned()),
                ("--restart-delay", "100ms".to_owned()),
                ("--max-memory", "64MiB".to_owned()),
                ("--max-output", "100000".to_owned()),
                ("--allow-http", url.clone()),
                ("--env", format!("URL={url}")),
                ("--env", format!("EVERY_US={pace}")),
            ];
            let flags = flags.into_iter().chain(links).flat_map(|(flag, value)| [flag.to_owned(), value]);
            std::iter::once(module.clone()).chain(flags).collect()
        };
        let node = |node| {
            let program = older(node).cloned().unwrap_or_else(baton_binary);
            Node::new(node, program, arguments(node), home.path(), &judge, &log)
        };
        let mut nodes: Vec<Node> = (0..nodes).map(node).collect();
        nodes.iter_mut().for_each(Node::start);
        let ending = vec![None; nodes.len()];
        Self {
            nodes,
            store,
            links,
            operator,
            due: Vec::new(),
            ending,
            kinds: BTreeMap::new(),
            bursts: 0,
            met_leader: (0, 0),
            keeps_state,
            is_strict,
            judge,
            log,
            clock: kernel::Clock::new(),
            receiver: Some(receiver),
            _home: home,
        }
    }

    /// Lets the faults of a plan happen, burst after burst, for this long at most. Between two of them somebody leads.
    fn harm(&mut self, bursts: impl Iterator<Item = Vec<(Duration, Fault)>>, length: Duration) -> Done {
        self.until("a first leader", node::GUARD, |run| run.judge().latest().is_some())?;
        let begin = Instant::now();
        for burst in bursts {
            for (after, fault) in burst {
                let since = Instant::now();
                while since.elapsed() < after {
                    self.step()?;
                }
                self.let_happen(fault);
            }
            self.bursts += 1;
            if begin.elapsed() >= length {
                break;
            }
            self.settle()?;
        }
        Ok(())
    }

    fn let_happen(&mut self, fault: Fault) {
        // What is remembered is a reading that an outside client makes before it writes.
        let _ = self.store.remember();
        let leader = self.judge().leader_at(kernel::now());
        let whom = match fault.who() {
            Some(Who::Leader(_)) => {
                self.met_leader.0 += usize::from(leader.is_some());
                self.met_leader.1 += 1;
                leader.map(|leader| format!(": {}", NAMES[leader])).unwrap_or_default()
            }
            _ => String::new(),
        };
        let done = self.meet(fault);
        let (count, refused) = self.kinds.entry(fault.kind()).or_default();
        *if done.is_ok() { count } else { refused } += 1;
        let done = done.err().map(|why| format!(": not done, {why}")).unwrap_or_default();
        self.log().note(&format!("{fault}{whom}{done}"));
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
                self.ending[node] = Some((down, Patience::of(ENDING)));
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
            Fault::Links(who, trouble, length) => {
                let node = node(who);
                match &self.links {
                    Links::Sockets => return self.meet(Fault::Stop(Who::Node(node), Parts::LINKS, length)),
                    Links::Network(_) => self.links.trouble(node, trouble)?,
                }
                self.due.push((now + length, Then::HealLinks(node)));
            }
            Fault::Unread(who, length) => {
                let node = node(who);
                self.is(node, &[State::Up, State::Stopped])?;
                self.nodes[node].leave_unread(true);
                self.due.push((now + length, Then::Read(node)));
            }
        }
        Ok(())
    }

    fn is(&self, node: usize, states: &[State]) -> Done {
        let state = self.nodes[node].state();
        if states.contains(&state) { Ok(()) } else { Err(format!("{} is {state:?}", NAMES[node])) }
    }

    /// Waits until the traces of the faults are gone and somebody leads.
    fn settle(&mut self) -> Done {
        let is_over = |run: &Self| run.due.is_empty() && run.ending.iter().all(Option::is_none);
        self.until("hosts to go on, to end and to start", ENDING * 2, is_over)?;
        // The emulator's own standstills are nobody's.
        self.until("the store to answer", ENDING * 5, |run| run.store.answers())?;
        let (lease, healed, healed_at) = (self.store.lease(), Instant::now(), kernel::now());
        let mut patience = Patience::default();
        self.log().note("the faults are over");
        // The node that leads at first may not have noticed yet what was done to it last.
        let leads = healed_at + u64::try_from(lease.as_nanos()).expect("a lease is short");
        loop {
            self.step()?;
            let settling = self.log().settled.map_or(Duration::ZERO, |until| until.saturating_duration_since(healed));
            let bound = lease + POLL + lease.max(settling.min(UNKNOWN_LEASE)) + BACK_OFF;
            if self.judge().latest().is_some_and(|effect| effect.at > leads) {
                self.log().note(&format!("somebody led after {:.1?} of {bound:.1?}", healed.elapsed()));
                return Ok(());
            }
            // In the gate, other tests keep the machine busy: there the bound alone proves nothing.
            if healed.elapsed() > bound && (self.is_strict || !patience.lasts()) {
                return Err(format!("the host survives: nobody leads {:.1?} after the last fault", healed.elapsed()));
            }
        }
    }

    /// Ends all faults, waits for a leader, pushes a last version, and ends the hosts in order.
    fn recover(&mut self) -> Done {
        for (_, then) in std::mem::take(&mut self.due) {
            self.follow(then);
        }
        self.settle()?;
        self.until("pushes to end", ENDING, |run| run.operator.is_idle())?;
        let last = self.operator.push_last()?;
        self.log().note(&format!("{last} is pushed last"));
        self.until("the version that was pushed last", node::GUARD, |run| run.log().served.as_ref() == Some(&last))?;
        for node in 0..self.nodes.len() {
            self.nodes[node].terminate();
            self.ending[node] = Some((Duration::MAX, Patience::of(ENDING)));
        }
        self.until("hosts to end in order", ENDING, |run| run.ending.iter().all(Option::is_none))?;
        // With the hosts' ends all that they wrote has been read, and with its own all that the receiver got.
        drop(self.receiver.take());
        let read = kernel::now() + 60_000_000_000;
        self.judge().judge(read)?;
        let saved = self.operator.saved()?;
        self.judge().judge_saved(saved)?;
        self.has_shown_something()
    }

    /// A run in which nothing happened shows nothing.
    fn has_shown_something(&self) -> Done {
        let count = self.judge().count.clone();
        if count.requests == 0 || count.lines == 0 || (self.is_strict && self.keeps_state && count.saved == 0) {
            return Err(format!("nothing came of the coordinators: {count:?}"));
        }
        if self.is_strict && self.log().linked == 0 {
            return Err("no node has listened to another".to_owned());
        }
        if self.is_strict && self.met_leader.1 >= 20 && self.met_leader.0 * 2 < self.met_leader.1 {
            return Err(format!(
                "of {} faults that were meant for a leader {} met one",
                self.met_leader.1, self.met_leader.0
            ));
        }
        match self.kinds.iter().find(|(_, (done, refused))| *done == 0 && *refused >= 10) {
            Some((kind, (_, refused))) => Err(format!("no fault of the kind `{kind}` was done, of {refused}")),
            None if count.caught > 3 + count.stops / 5 => {
                Err(format!("{} stops of a leader caught {} writes: that is no chance", count.stops, count.caught))
            }
            None => Ok(()),
        }
    }

    fn until(&mut self, what: &str, longest: Duration, test: impl Fn(&Self) -> bool) -> Done {
        let mut patience = Patience::of(longest);
        while !test(self) {
            if !patience.lasts() {
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
        for (node, name) in (0..self.nodes.len()).zip(NAMES) {
            let ended = self.nodes[node].ended();
            match (ended, self.ending[node]) {
                (None, None) => {}
                (None, Some((down, mut patience))) => {
                    if !patience.lasts() {
                        return Err(format!("{name} does not end when it is told to"));
                    }
                    self.ending[node] = Some((down, patience));
                }
                (Some(status), Some((down, _))) if self.nodes[node].is_in_order(status) => {
                    self.ending[node] = None;
                    if let Some(up) = now.checked_add(down) {
                        self.due.push((up, Then::Start(node)));
                    }
                }
                // Without a processor for longer than 0.93 D, a host ends itself, as it promises. A service manager starts
                // it again.
                (Some(_), _) if !self.is_strict && self.log().aborted.remove(&node) => {
                    self.log().note(&format!("{name} had no processor, and its watchdog ended it"));
                    self.ending[node] = None;
                    self.due.push((now, Then::Start(node)));
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
            Then::HealLinks(node) => {
                self.links.heal(node);
                format!("the way to {} heals", NAMES[node])
            }
            Then::Read(node) => {
                self.nodes[node].leave_unread(false);
                format!("what {} writes is read", NAMES[node])
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

/// Also tells a person who runs all tests.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "faults: {line}");
}
