//! Injects random faults into a fleet and checks its effects from outside: `make faults MINUTES=30`.
//!
//! Three real hosts (five with `NODES=5`) run a coordinator that causes effects as fast as it can: requests to a
//! receiver, and lines of output. The seed determines whether the coordinator saves state. The faults are:
//!
//! - hosts and their child processes, alone or together, are stopped, killed, aborted or terminated
//! - another client breaks, frees or takes the lease, or deletes or overwrites the record
//! - the store, or the links between nodes (sockets with SQLite, the network with Azure), are slow or unreachable
//! - nothing reads a node's output
//! - an operator pushes another version
//!
//! The faults come in bursts, which the test generates from a seed. The test prints the seed. To inject the same faults
//! again, pass it as `SEED=`; only the machine's timing then differs. The test orders all effects by the kernel's
//! timestamps (`kernel.rs`) and checks them as they arrive (`judge.rs`):
//!
//! - No effect of a lower term arrives after an effect of a higher term. The only exception is a write that a SIGSTOP
//!   interrupted.
//! - Each term is served by one instance, and each effect carries the number of the term that caused it.
//! - No acknowledged commit is lost: every later term starts from it, and the store still has it after the run.
//! - No host panics, and no host exits unless the test ends it. Without `FAULTS_MINUTES`, other tests keep the machine
//!   busy, so a host's watchdog may end the host.
//! - After each burst, a node leads within a time limit.
//! - After the run, another version can be pushed, and the leader runs it.
//!
//! Without `FAULTS_MINUTES` the test takes about half a minute and injects the same faults each time. `ONLY=stop,kill`
//! restricts the kinds of faults, but not their number. With `OLD=PROGRAM` every second node runs that program, an
//! earlier version of the host.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine during a test")]

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

/// The faults to inject if `FAULTS_MINUTES` is not set.
struct Fixed {
    seed: u64,
    bursts: usize,
}

/// The longest interval at which a standby reads the record: 1 s, plus jitter.
const POLL: Duration = Duration::from_millis(1250);
/// The longest wait for a lease of unknown length to expire.
const UNKNOWN_LEASE: Duration = Duration::from_secs(60);
/// The longest interval at which a standby retries a store that does not answer: 15 s, plus jitter.
const BACK_OFF: Duration = Duration::from_secs(19);
/// An upper bound on the time that a host takes to shut down cleanly, whatever its store does.
const ENDING: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(10);

fn nodes() -> usize {
    let nodes = variable("FAULTS_NODES").unwrap_or(3);
    assert!((2..=NAMES.len()).contains(&nodes), "2 to {} nodes, not {nodes}", NAMES.len());
    nodes
}

/// The earlier version of the host that every second node runs, if any.
fn old_program() -> Option<PathBuf> {
    variable("FAULTS_OLD")
}

/// Runs a fleet under faults. Without `FAULTS_MINUTES`, the test injects the faults that `fixed` describes, which are
/// always the same ones. The test therefore does not fail by chance.
fn run(name: &str, store: Store, fixed: Fixed) {
    let minutes: Option<f64> = variable("FAULTS_MINUTES");
    let length = minutes.map_or(Duration::MAX, |minutes| Duration::from_secs_f64(minutes * 60.0));
    let bursts = if minutes.is_some() { usize::MAX } else { fixed.bursts };
    let fresh = || if minutes.is_some() { kernel::now() % 1_000_000_007 } else { fixed.seed };
    let seed = variable("FAULTS_SEED").unwrap_or_else(fresh);
    let lease = store.lease();
    // In half of the runs, the coordinator saves no state. If another client then deletes the record or replaces it
    // with an older one, only the nodes' announcements show this.
    let keeps_state = variable("FAULTS_STATE").unwrap_or(seed.is_multiple_of(2));
    let with = if keeps_state { "that saves" } else { "without a state" };
    let nodes = nodes();
    say(&format!(
        "{name}: {} of faults on {nodes} nodes and a coordinator {with} from SEED={seed}, lease {lease:?}",
        minutes.map_or(format!("{bursts} bursts"), |minutes| format!("{minutes} minutes"))
    ));
    // Without `FAULTS_MINUTES`, the test shares the machine with many other tests, so the coordinator pauses after each
    // effect.
    let pace = if minutes.is_some() { "0" } else { "2000" };
    let only = variable::<String>("FAULTS_ONLY");
    let is_wanted = |fault: &Fault| only.as_ref().is_none_or(|only| only.split(',').any(|kind| kind == fault.kind()));
    let mut run = Run::new(name, store, nodes, pace, keeps_state, minutes.is_some());
    let began = Instant::now();
    let plan = Plan::new(seed, nodes, lease, is_wanted).take(bursts);
    let result = run.inject_bursts(plan, length).and_then(|()| run.recover());
    let count = run.judge().count.clone();
    let kinds = run.kinds.iter().map(|(kind, (done, refused))| match refused {
        0 => format!("{kind} {done}"),
        _ => format!("{kind} {done} (not done: {refused})"),
    });
    let kinds: Vec<String> = kinds.collect();
    let log = run.log();
    let summary = format!(
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
    say(&summary);
    if let Err(broken) = result {
        let (tail, path) = (log.tail(), log.path.display().to_string());
        drop(log);
        let minutes = minutes.map_or(String::new(), |minutes| format!(" MINUTES={minutes}"));
        let only = only.map_or(String::new(), |only| format!(" ONLY='{only}'"));
        let old = old_program().map_or(String::new(), |old| format!(" OLD='{}'", old.display()));
        panic!(
            "{broken}\n  again: make faults SEED={seed} STATE={keeps_state} NODES={nodes}{minutes}{only}{old}\n  all of the log: {path}; its last lines:\n{tail}"
        );
    }
}

struct Run {
    nodes: Vec<Node>,
    store: Store,
    links: Links,
    operator: Operator,
    due: Vec<(Instant, FollowUp)>,
    /// One entry per node. While a node shuts down, its entry holds two values: how long the node stays down
    /// afterwards, and the timeout for the shutdown.
    ending: Vec<Option<(Duration, Patience)>>,
    /// The number of injected faults, and the number of faults that could not be injected, for each kind of fault.
    kinds: BTreeMap<&'static str, (usize, usize)>,
    bursts: usize,
    /// The number of faults that hit a leader, and the number of faults that were meant for a leader. The numbers
    /// differ if no node leads when the test injects such a fault.
    met_leader: (usize, usize),
    keeps_state: bool,
    /// True if the machine runs nothing else, so that time limits can be checked.
    is_strict: bool,
    judge: Arc<Mutex<Judge>>,
    log: Arc<Mutex<Log>>,
    clock: kernel::Clock,
    receiver: Option<Receiver>,
    _home: tempfile::TempDir,
}

enum FollowUp {
    Continue(usize),
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
        let (links, old_program) = (Links::on(&store, nodes), old_program());
        let old_program = |node: usize| old_program.as_ref().filter(|_| node % 2 == 1);
        let arguments = |node| {
            let (url, store) = (receiver.url(), store.url(node));
            // An earlier version may not know the flags for links.
            let links = if old_program(node).is_none() { links.flags(node) } else { Vec::new() };
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
            let program = old_program(node).cloned().unwrap_or_else(baton_binary);
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

    fn inject_bursts(&mut self, bursts: impl Iterator<Item = Vec<(Duration, Fault)>>, length: Duration) -> Done {
        self.until("a first leader", node::GUARD, |run| run.judge().latest().is_some())?;
        let begin = Instant::now();
        for burst in bursts {
            for (after, fault) in burst {
                let since = Instant::now();
                while since.elapsed() < after {
                    self.step()?;
                }
                self.inject(fault);
            }
            self.bursts += 1;
            if begin.elapsed() >= length {
                break;
            }
            self.settle()?;
        }
        Ok(())
    }

    fn inject(&mut self, fault: Fault) {
        // Save the record for a later fault, which writes it back. This simulates another client that writes back a
        // record that it has read earlier.
        let _ = self.store.remember();
        let leader = self.judge().leader_at(kernel::now());
        let target = match fault.who() {
            Some(Who::Leader(_)) => {
                self.met_leader.0 += usize::from(leader.is_some());
                self.met_leader.1 += 1;
                leader.map(|leader| format!(": {}", NAMES[leader])).unwrap_or_default()
            }
            _ => String::new(),
        };
        let done = self.try_inject(fault);
        let (count, refused) = self.kinds.entry(fault.kind()).or_default();
        *if done.is_ok() { count } else { refused } += 1;
        let done = done.err().map(|why| format!(": not done, {why}")).unwrap_or_default();
        self.log().note(&format!("{fault}{target}{done}"));
    }

    fn try_inject(&mut self, fault: Fault) -> Done {
        let node = |who| match who {
            Who::Leader(otherwise) => self.judge().leader_at(kernel::now()).unwrap_or(otherwise),
            Who::Node(node) => node,
        };
        let now = Instant::now();
        match fault {
            Fault::Stop(who, parts, length) => {
                let node = node(who);
                self.require_state(node, &[State::Up])?;
                self.nodes[node].stop(parts);
                self.due.push((now + length, FollowUp::Continue(node)));
            }
            Fault::End(who, parts, death, down) => {
                let node = node(who);
                self.require_state(node, &[State::Up, State::Stopped])?;
                self.nodes[node].end(parts, death);
                if parts.has_host() {
                    self.due.push((now + down, FollowUp::Start(node)));
                }
            }
            Fault::Terminate(who, down) => {
                let node = node(who);
                self.require_state(node, &[State::Up])?;
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
                self.due.push((now + length, FollowUp::Release(taken)));
            }
            Fault::TakeAndLeave => self.store.take().map(|_| ())?,
            Fault::Delete => self.store.delete()?,
            Fault::Push => self.operator.push(),
            Fault::Store(who, trouble, length) => {
                let node = node(who);
                self.store.trouble(node, trouble)?;
                self.due.push((now + length, FollowUp::Heal(node)));
            }
            Fault::Links(who, trouble, length) => {
                let node = node(who);
                match &self.links {
                    Links::Sockets => return self.try_inject(Fault::Stop(Who::Node(node), Parts::LINKS, length)),
                    Links::Network(_) => self.links.trouble(node, trouble)?,
                }
                self.due.push((now + length, FollowUp::HealLinks(node)));
            }
            Fault::Unread(who, length) => {
                let node = node(who);
                self.require_state(node, &[State::Up, State::Stopped])?;
                self.nodes[node].leave_unread(true);
                self.due.push((now + length, FollowUp::Read(node)));
            }
        }
        Ok(())
    }

    fn require_state(&self, node: usize, states: &[State]) -> Done {
        let state = self.nodes[node].state();
        if states.contains(&state) { Ok(()) } else { Err(format!("{} is {state:?}", NAMES[node])) }
    }

    /// Waits until all faults are over and a node leads.
    fn settle(&mut self) -> Done {
        let is_over = |run: &Self| run.due.is_empty() && run.ending.iter().all(Option::is_none);
        self.until("hosts to go on, to end and to start", ENDING * 2, is_over)?;
        // Wait for the store first: pauses of the emulator must not count toward the time limit below.
        self.until("the store to answer", ENDING * 5, |run| run.store.answers())?;
        let (lease, healed, healed_at) = (self.store.lease(), Instant::now(), kernel::now());
        let mut patience = Patience::default();
        self.log().note("the faults are over");
        // Within one lease length after the last fault, a leader may still lose its lease because of that fault. Only a
        // later effect shows that a node keeps leading.
        let leads_after = healed_at + u64::try_from(lease.as_nanos()).expect("a lease is short");
        loop {
            self.step()?;
            let settling = self.log().settled.map_or(Duration::ZERO, |until| until.saturating_duration_since(healed));
            let bound = lease + POLL + lease.max(settling.min(UNKNOWN_LEASE)) + BACK_OFF;
            if self.judge().latest().is_some_and(|effect| effect.at > leads_after) {
                self.log().note(&format!("somebody led after {:.1?} of {bound:.1?}", healed.elapsed()));
                return Ok(());
            }
            // Without `FAULTS_MINUTES`, other tests keep the machine busy, so a missed time limit alone is not a
            // failure.
            if healed.elapsed() > bound && (self.is_strict || !patience.lasts()) {
                return Err(format!("the host survives: nobody leads {:.1?} after the last fault", healed.elapsed()));
            }
        }
    }

    /// Ends all faults, waits for a leader, pushes a last version, and shuts the hosts down. Then checks the whole run.
    fn recover(&mut self) -> Done {
        for (_, follow_up) in std::mem::take(&mut self.due) {
            self.follow_up(follow_up);
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
        // The hosts have exited, so all of their output has been read. Dropping the receiver waits until it has read
        // all requests.
        drop(self.receiver.take());
        let read = kernel::now() + 60_000_000_000;
        self.judge().judge(read)?;
        let saved = self.operator.saved()?;
        self.judge().judge_saved(saved)?;
        self.check_coverage()
    }

    /// Fails if too few faults or effects occurred for the run to prove anything.
    fn check_coverage(&self) -> Done {
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

    /// Waits for one tick, ends the faults that are due to end, and checks the hosts and their effects.
    fn step(&mut self) -> Done {
        std::thread::sleep(TICK);
        let now = Instant::now();
        while let Some(at) = self.due.iter().position(|(due, _)| *due <= now) {
            let (_, follow_up) = self.due.swap_remove(at);
            self.follow_up(follow_up);
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
                        self.due.push((up, FollowUp::Start(node)));
                    }
                }
                // By design, a host aborts if it gets no CPU for more than 0.93 D (D is the length of the lease). The
                // test then restarts it, as a service manager would.
                (Some(_), _) if !self.is_strict && self.log().aborted.remove(&node) => {
                    self.log().note(&format!("{name} had no processor, and its watchdog ended it"));
                    self.ending[node] = None;
                    self.due.push((now, FollowUp::Start(node)));
                }
                (Some(status), _) => {
                    return Err(format!("the host survives: {name} has ended by itself, {status}"));
                }
            }
        }
        for message in self.operator.ended() {
            self.log().note(&message);
        }
        if let Some(line) = self.log().panicked.clone() {
            return Err(format!("the host survives: {line}"));
        }
        self.clock.watch()?;
        self.judge().judge(kernel::now())
    }

    fn follow_up(&mut self, follow_up: FollowUp) {
        let note = match follow_up {
            FollowUp::Continue(node) if self.nodes[node].state() == State::Stopped => {
                self.nodes[node].go_on();
                format!("{} goes on", NAMES[node])
            }
            // The node was killed while it was stopped, so there is no process to continue.
            FollowUp::Continue(_) => return,
            FollowUp::Start(node) => {
                self.nodes[node].start();
                format!("{} starts", NAMES[node])
            }
            FollowUp::Heal(node) => {
                self.store.heal(node);
                format!("the store heals ({})", NAMES[node])
            }
            FollowUp::HealLinks(node) => {
                self.links.heal(node);
                format!("the way to {} heals", NAMES[node])
            }
            FollowUp::Read(node) => {
                self.nodes[node].leave_unread(false);
                format!("what {} writes is read", NAMES[node])
            }
            FollowUp::Release(taken) => format!("the outside client releases: {:?}", self.store.release(taken)),
        };
        self.log().note(&note);
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        self.judge.lock().expect("no thread panics while it holds the lock")
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("no thread panics while it holds the lock")
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} cannot be read")))
}

/// Writes to stderr directly, because the test harness captures `eprintln!`.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "faults: {line}");
}
