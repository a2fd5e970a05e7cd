//! One death at any point of a term, each in an election of its own: `make deaths COUNT=1000`.
//!
//! On one machine a death is seen and nobody waits for the lease, so nothing but the order of the deaths keeps a dead
//! leader's last effects before its successor's first ones: of its host, of its runner, and of both in either order. The
//! receiver refuses nothing, and the kernel's stamps are judged as everywhere here.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::fleet::{Log, NAMES, Node};
use crate::judge::{Effect, Judge};
use crate::kernel::{Clock, Nanos, now};
use crate::patience::Patience;
use crate::plan::{Death, Parts, Rng};
use crate::receiver::Receiver;
use crate::store::Store;
use crate::{baton_binary, guests, say, variable};
use baton_test_support::modules::numbered;

/// The gate's number of deaths, and its seed: the same in each run.
const FIXED: (u64, u64) = (8, 1);

/// The lease, as long as it can be. Nobody waits for it: who has had to wait for most of it has not seen the death.
const LEASE: Duration = Duration::from_secs(60);

/// How many effects of a successor are waited for: something that is late comes among them.
const EFFECTS: u64 = 20;

/// How often is looked what has arrived. It also says how far apart deaths can be told.
const LOOK: Duration = Duration::from_millis(1);

#[test]
fn after_a_death_nothing_of_its_term_arrives() {
    let searched = variable("DEATHS");
    let fresh = || if searched.is_some() { now() % 1_000_000_007 } else { FIXED.1 };
    let (count, seed) = (searched.unwrap_or(FIXED.0), variable("DEATHS_SEED").unwrap_or_else(fresh));
    let workers = std::thread::available_parallelism().map_or(2, |all| 2 * all.get() as u64).min(count);
    say(&format!("{count} deaths from DEATHS_SEED={seed}, {workers} at a time, lease {LEASE:?}"));
    let clock = Clock::new();
    let (next, seen) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (next, seen) = (&next, &seen);
            scope.spawn(move || {
                let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("deaths-{worker}.log"));
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let case = Case::of(&mut Rng::of(seed.wrapping_add(number)));
                    match Fleet::new(&path).meets(case) {
                        Ok(leaderless) => seen.lock().expect("nobody panics with it").push((case, leaderless)),
                        Err(broken) => {
                            // The others end with what they are at.
                            next.store(count, Ordering::Relaxed);
                            let again = format!("DEATHS_SEED={} DEATHS=1", seed.wrapping_add(number));
                            panic!("{case}: {broken}\n  again: {again}; its log: {}", path.display());
                        }
                    }
                }
            });
        }
    });
    clock.watch().expect("the stamps can be compared");
    let seen = seen.into_inner().expect("nobody panicked with it");
    assert_eq!(seen.len() as u64, count);
    for who in Dies::ALL {
        let mut times: Vec<Duration> =
            seen.iter().filter(|(case, _)| case.dies == who).map(|(_, time)| *time).collect();
        times.sort_unstable();
        let at = |part: usize| times.get(times.len().saturating_sub(1) * part / 100).copied().unwrap_or_default();
        say(&format!("{who}, {} times: p50 {:.1?}, p99 {:.1?} until the next effect", times.len(), at(50), at(99)));
    }
}

/// Who dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dies {
    Host,
    Runner,
    HostThenRunner,
    RunnerThenHost,
}

impl Dies {
    const ALL: [Self; 4] = [Self::Host, Self::Runner, Self::HostThenRunner, Self::RunnerThenHost];
}

impl fmt::Display for Dies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "the host dies",
            Self::Runner => "the runner dies",
            Self::HostThenRunner => "the host dies, then the runner",
            Self::RunnerThenHost => "the runner dies, then the host",
        })
    }
}

/// What a death comes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Point {
    /// The leader is elected.
    Elected,
    /// Its first effect has arrived.
    FirstEffect,
    /// The module has another version since.
    Swap,
    /// It is told to end.
    Stop,
    /// It leads until about its next renewal.
    Renewal,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Elected => "it was elected",
            Self::FirstEffect => "its first effect",
            Self::Swap => "there is another version",
            Self::Stop => "it was told to end",
            Self::Renewal => "all but a renewal's time of its term",
        })
    }
}

/// A death.
#[derive(Clone, Copy, Debug)]
struct Case {
    dies: Dies,
    point: Point,
    /// Whether the standby was there before the leader.
    is_awaited: bool,
    /// So long after that.
    after: Duration,
    /// So long after the other, where two die.
    apart: Duration,
}

impl Case {
    fn of(rng: &mut Rng) -> Self {
        let dies = Dies::ALL[rng.below(4) as usize];
        // Around the first effect there is the most that can go wrong: the record is new, a state is claimed.
        let (point, most) = match rng.below(16) {
            0..3 => (Point::Elected, 0.01),
            3..7 => (Point::FirstEffect, 0.005),
            7..10 => (Point::FirstEffect, 0.3),
            10..13 => (Point::Swap, 0.1),
            13..15 => (Point::Stop, 0.02),
            _ => (Point::Renewal, 0.3),
        };
        let after = rng.upto(most);
        let apart = if rng.below(2) == 0 { 0.0 } else { rng.upto(0.02) };
        let [after, apart] = [after, apart].map(Duration::from_secs_f64);
        Self { dies, point, is_awaited: rng.below(4) > 0, after, apart }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dies, point, is_awaited, after, apart } = self;
        let standby = if *is_awaited { "with a standby" } else { "with a standby that comes after it" };
        write!(f, "{dies} {after:.1?} after {point}, {apart:.1?} apart, {standby}")
    }
}

/// Two nodes in an election that nobody has led before.
struct Fleet {
    nodes: [Node; 2],
    judge: Arc<Mutex<Judge>>,
    log: Arc<Mutex<Log>>,
    receiver: Receiver,
    /// The file that the nodes follow.
    module: PathBuf,
    _store: Store,
    _home: tempfile::TempDir,
}

impl Fleet {
    fn new(log: &Path) -> Self {
        let (home, store) = (tempfile::tempdir().expect("a folder"), Store::sqlite());
        let (judge, log) = (Arc::<Mutex<Judge>>::default(), Arc::new(Mutex::new(Log::new(log.to_owned()))));
        let receiver = Receiver::start(&judge);
        let url = receiver.url();
        let module = home.path().join("effects.wasm");
        std::fs::copy(guests::effects(), &module).expect("a file");
        let flags = [
            ("--election", crate::store::ELECTION.to_owned()),
            ("--store", store.safe_url()),
            ("--lease", format!("{}s", LEASE.as_secs())),
            ("--admin", "none".to_owned()),
            ("--max-output", "100000".to_owned()),
            ("--allow-http", url.clone()),
            ("--env", format!("URL={url}")),
            ("--env", "EVERY_US=200".to_owned()),
        ];
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        let arguments: Vec<String> = std::iter::once(module.display().to_string()).chain(flags).collect();
        let nodes = [0, 1].map(|at| Node::new(at, baton_binary(), arguments.clone(), home.path(), &judge, &log));
        Self { nodes, judge, log, receiver, module, _store: store, _home: home }
    }

    /// Lets the leader die; returns how long nobody had caused an effect then.
    fn meets(mut self, case: Case) -> Result<Duration, String> {
        self.nodes[0].start();
        if case.is_awaited {
            self.nodes[1].start();
        }
        let leader = if case.point == Point::Elected { self.elected()? } else { self.first_above(0)?.node };
        match case.point {
            Point::Elected | Point::FirstEffect => {}
            Point::Swap => self.swap(),
            Point::Stop => self.nodes[leader].terminate(),
            Point::Renewal => std::thread::sleep(LEASE / 6 - Duration::from_millis(150)),
        }
        std::thread::sleep(case.after);
        // A runner that is not there yet cannot die, and the term that has begun goes on.
        let before = if case.dies == Dies::Runner { self.latest() } else { self.latest().max(self.elected_term()) };
        let died = now();
        self.log.lock().expect("nobody panics with it").note(&format!("{case}: {}", NAMES[leader]));
        match case.dies {
            Dies::Host => self.nodes[leader].end(Parts::HOST, Death::Killed),
            Dies::Runner => self.nodes[leader].end(Parts::RUNNER, Death::Killed),
            Dies::HostThenRunner => self.nodes[leader].end_both(Parts::HOST, case.apart),
            Dies::RunnerThenHost => self.nodes[leader].end_both(Parts::RUNNER, case.apart),
        }
        if !case.is_awaited {
            self.nodes[1 - leader].start();
        }
        let next = self.first_above(before)?;
        self.more_of(next.term)?;
        let Self { nodes, judge, receiver, log, .. } = self;
        // With them their readers end, so that all is read that ever arrived.
        drop((nodes, receiver));
        if let Some(line) = &log.lock().expect("nobody panics with it").panicked {
            return Err(format!("the host survives: {line}"));
        }
        judge.lock().expect("nobody panics with it").judge(Nanos::MAX)?;
        let leaderless = Duration::from_nanos(next.at.saturating_sub(died));
        if leaderless > LEASE * 3 / 4 {
            return Err(format!("the lease was waited out: {next} came {leaderless:.1?} later"));
        }
        Ok(leaderless)
    }

    fn elected(&self) -> Result<usize, String> {
        let elected = || self.log.lock().expect("nobody panics with it").elected;
        let (node, _) = Patience::poll(LOOK, elected).map_err(|_| "nobody is elected".to_owned())?;
        Ok(node)
    }

    /// The last term that has begun, whether an effect of it has arrived or not.
    fn elected_term(&self) -> u64 {
        self.log.lock().expect("nobody panics with it").elected.map_or(0, |(_, term)| term)
    }

    /// The term of the last effect that has arrived.
    fn latest(&self) -> u64 {
        self.judge.lock().expect("nobody panics with it").latest().map_or(0, |effect| effect.term)
    }

    /// Another version takes the module's place.
    fn swap(&self) {
        let next = numbered(std::fs::read(&self.module).expect("the module is there"), "");
        let beside = self.module.with_extension("next");
        std::fs::write(&beside, next).expect("a file");
        std::fs::rename(beside, &self.module).expect("it takes its place");
    }

    /// The first effect of a term above that one.
    fn first_above(&self, term: u64) -> Result<Effect, String> {
        let first = || self.judge.lock().expect("nobody panics with it").first_above(term).cloned();
        Patience::poll(LOOK, first).map_err(|_| format!("no effect of a term above {term} arrives"))
    }

    fn more_of(&self, term: u64) -> Result<(), String> {
        let effects = || self.judge.lock().expect("nobody panics with it").count.requests;
        let enough = effects() + EFFECTS;
        Patience::poll(LOOK, || (effects() >= enough).then_some(()))
            .map_err(|_| format!("no more effects arrive after the first of term {term}"))
    }
}
