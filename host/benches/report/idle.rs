//! Measures the resources that hosts use while nothing changes: memory, CPU time, and requests to the store.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::azurite::Azurite;
use crate::counter::Counter;
use crate::hosts::{SILENCE, Site, follows};
use crate::node::{Event, Launch, Node};
use crate::samples::Samples;
use crate::table::{Bar, Row, Unit};
use crate::usage::{Cpu, memory};

/// Time after which a host's start no longer affects the measured values.
pub const SETTLE: Duration = Duration::from_secs(5);
/// Default lease duration, in seconds.
const LEASE: f64 = 15.0;
/// Usual number of reads per second: the host reads the control object and the steering object every 3 s.
const LOOKS: f64 = 2.0 / 3.0;
/// Maximum number of requests about modules and steering per second. A host reads the control object and the steering
/// object at most once every 2 s. Every minute, the host reads its last announcement and writes a new one.
const MOST_FOR_MODULES: f64 = 1.0 + 2.0 / 60.0;
/// Maximum number of requests per second from a standby with a link to its leader. Such a standby reads the lease every
/// 10 s, the control object and the steering object every 30 s, and announces itself every minute. At the edges of the
/// measured window, up to two more requests may be counted.
const LISTENING: f64 = 0.2;
const COUNTS: [usize; 3] = [1, 10, 100];
const PAIRS: usize = 3;

/// Measures memory and CPU time on the embedded store. Runs only one group of hosts at a time: several groups would
/// compete for the CPU caches, and work takes twice as long with cold caches.
pub fn at_rest(module: &Path, window: Duration) -> anyhow::Result<Vec<Row>> {
    let mut rows = pairs_at_rest(module, window)?;
    let crowds = COUNTS.iter().map(|count| Crowd::start(module, *count, None)?.at_rest(window));
    let crowds = crowds.collect::<anyhow::Result<Vec<_>>>()?;
    let memory: Vec<f64> = crowds.iter().map(|used| used.memory).collect();
    let cpu: Vec<f64> = crowds.iter().map(|used| used.cpu).collect();
    let each = (memory[2] - memory[0]) / (COUNTS[2] - COUNTS[0]) as f64;
    let row = |what: &str, unit, value| Row::new(what, unit, Samples::from_iter([value]));
    let further = [
        row("  of it each further election", Unit::MiB, each).bar(Bar::P99(4.0)),
        row("a hundred leaders in one host, their guests asleep: CPU", Unit::Percent, cpu[2]).bar(Bar::P99(3.0)),
    ];
    rows.extend(growth("memory", Unit::MiB, memory).into_iter().chain(further));
    rows.extend(growth("CPU", Unit::Percent, cpu));
    Ok(rows)
}

fn pairs_at_rest(module: &Path, window: Duration) -> anyhow::Result<Vec<Row>> {
    let pairs: Vec<Pair> = (0..PAIRS).map(|_| Pair::start(module)).collect();
    thread::sleep(SETTLE);
    let leaders: Vec<Watch> = pairs.iter().map(|pair| Watch::begin(&pair.leader, None)).collect();
    let standbys: Vec<Watch> = pairs.iter().map(|pair| Watch::begin(&pair.standby, None)).collect();
    thread::sleep(window);
    Ok(small(&all(&leaders)?, &all(&standbys)?))
}

/// Counts the requests to a store that hosts reach over the network. The hosts send them through a proxy.
pub fn requests(module: &Path, window: Duration) -> anyhow::Result<Vec<Row>> {
    let azurite = Azurite::start();
    let pair = Remote::start(module, azurite.address().port(), "pair", &[])?;
    let linked = Remote::start(module, azurite.address().port(), "linked", &[("--peer", "127.0.0.1:0")])?;
    linked.standby.0.event("to hear of the leader", Event::is_linked);
    let start = |count: &usize| Crowd::start(module, *count, Some(azurite.address().port()));
    let crowds = COUNTS.iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    thread::sleep(SETTLE);
    let leader = Watch::begin(&pair.leader.0, Some(&pair.leader.1));
    let standby = Watch::begin(&pair.standby.0, Some(&pair.standby.1));
    let listening = Watch::begin(&linked.standby.0, Some(&linked.standby.1));
    let crowds: Vec<Watch> = crowds.iter().map(Crowd::watch).collect();
    thread::sleep(window);
    let mut rows = counted(&leader.end()?, &standby.end()?, &listening.end()?);
    rows.extend(growth("requests", Unit::PerSecond, all(&crowds)?.iter().map(|used| used.requests).collect()));
    Ok(rows)
}

fn all(watches: &[Watch]) -> anyhow::Result<Vec<Used>> {
    watches.iter().map(Watch::end).collect()
}

fn small(leaders: &[Used], standbys: &[Used]) -> Vec<Row> {
    let of = |used: &[Used], what: fn(&Used) -> f64| used.iter().map(what).collect::<Samples>();
    let leader_memory = of(leaders, |used| used.memory);
    let leader_cpu = of(leaders, |used| used.cpu);
    let row = |what: &str, unit, samples| Row::new(what, unit, samples);
    vec![
        row("a standby's memory", Unit::MiB, of(standbys, |used| used.memory))
            .bar(Bar::P99(35.0))
            .beside("a leader's", leader_memory.median()),
        row("  of it not backed by the binary", Unit::MiB, of(standbys, |used| used.anonymous))
            .beside("a leader's", of(leaders, |used| used.anonymous).median()),
        row("a standby's CPU, of one core", Unit::Percent, of(standbys, |used| used.cpu))
            .bar(Bar::P99(0.2))
            .beside("a leader's", leader_cpu.median()),
        row("a leader's memory, its guest asleep", Unit::MiB, leader_memory)
            .bar(Bar::P99(40.0))
            .beside("a standby's", of(standbys, |used| used.memory).median()),
        row("a leader's CPU, its guest asleep", Unit::Percent, leader_cpu)
            .bar(Bar::P99(0.1))
            .beside("a standby's", of(standbys, |used| used.cpu).median()),
    ]
}

fn counted(leader: &Used, standby: &Used, listening: &Used) -> Vec<Row> {
    // Allow one more request, which may be counted at the edge of the measured window.
    let edge = 1.0 / leader.seconds;
    let row = |what: &str, per_second| Row::new(what, Unit::PerSecond, Samples::from_iter([per_second]));
    let for_modules = |used: &Used| {
        row("  and about modules and steering", used.for_modules)
            .bar(Bar::P99(MOST_FOR_MODULES + edge))
            .beside("two looks in 3 s", LOOKS)
    };
    vec![
        row("a leader's requests about the lease", leader.requests - leader.for_modules)
            .bar(Bar::P99(6.0 / LEASE + edge))
            .beside("one per D/6", 6.0 / LEASE),
        for_modules(leader),
        row("a standby's requests about the lease", standby.requests - standby.for_modules)
            .bar(Bar::P99(1.1))
            .beside("one per poll", 1.0),
        for_modules(standby),
        row("all requests of a standby that hears its leader", listening.requests)
            .bar(Bar::P99(LISTENING + 2.0 * edge))
            .beside("of one that does not", standby.requests),
    ]
}

/// Compares the usage for 1, 10 and 100 elections. The yardstick for 100 elections is a linear extrapolation from the
/// values for 1 and 10.
fn growth(what: &str, unit: Unit, values: Vec<f64>) -> Vec<Row> {
    let [one, ten, hundred] = COUNTS.map(|count| count as f64);
    let in_line = values[0] + (values[1] - values[0]) / (ten - one) * (hundred - one);
    let row = |(count, value): (usize, f64)| {
        let elections = if count == 1 { "election" } else { "elections" };
        let row = Row::new(format!("{count} {elections} led by one host: {what}"), unit, Samples::from_iter([value]));
        if count == COUNTS[2] { row.bar(Bar::Ratio(1.25)).beside("in line with 1 and 10", in_line) } else { row }
    };
    COUNTS.into_iter().zip(values).map(row).collect()
}

struct Pair {
    leader: Node,
    standby: Node,
    _site: Site,
}

impl Pair {
    fn start(module: &Path) -> Self {
        let site = Site::new();
        let leader = site.launch("leader", module, "beat", &site.url()).start();
        leader.after(0, "started");
        let standby = site.launch("standby", module, "beat", &site.url()).start();
        follows(&standby);
        Self { leader, standby, _site: site }
    }
}

/// A leader and a standby on Azurite. Each uses its own proxy, which counts its requests.
struct Remote {
    leader: (Node, Counter),
    standby: (Node, Counter),
    _site: Site,
}

impl Remote {
    fn start(module: &Path, azurite: u16, container: &str, flags: &[(&str, &str)]) -> anyhow::Result<Self> {
        let site = Site::new();
        let start = |name: &str| {
            let counter = Counter::start(azurite)?;
            let launch = create(site.launch(name, module, "beat", &url(&counter, container)));
            let node = flags.iter().fold(launch, |launch, (flag, value)| launch.flag(flag, value)).start();
            anyhow::Ok((node, counter))
        };
        let leader = start("leader")?;
        leader.0.after(0, "started");
        let standby = start("standby")?;
        follows(&standby.0);
        Ok(Self { leader, standby, _site: site })
    }
}

struct Crowd {
    node: Node,
    counter: Option<Counter>,
    _site: Site,
}

impl Crowd {
    fn start(module: &Path, count: usize, azurite: Option<u16>) -> anyhow::Result<Self> {
        let site = Site::new();
        let counter = azurite.map(Counter::start).transpose()?;
        let store = counter.as_ref().map_or_else(|| site.url(), |counter| url(counter, &format!("crowd-{count}")));
        let mut text =
            format!("store = \"{store}\"\ncreate = true\nenv = {{ BEHAVIOUR = \"beat\", BEAT_MS = \"{SILENCE}\" }}\n");
        for number in 0..count {
            let _ = writeln!(text, "[coordinators.crowd-{number}]\nmodule = '{}'", module.display());
        }
        let file = site.path(&format!("crowd-{count}.toml"));
        fs::write(&file, text)?;
        let node = site.launch_file("crowd", &file).start();
        site.journal.wait(&format!("{count} leaders in one host"), |events| {
            let started = |event: &&Event| event.name == "started";
            (events.iter().filter(started).count() >= count).then_some(())
        });
        Ok(Self { node, counter, _site: site })
    }

    fn at_rest(&self, window: Duration) -> anyhow::Result<Used> {
        thread::sleep(SETTLE);
        let watch = self.watch();
        thread::sleep(window);
        watch.end()
    }

    fn watch(&self) -> Watch<'_> {
        Watch::begin(&self.node, self.counter.as_ref())
    }
}

fn create(launch: Launch) -> Launch {
    launch.arg("--create")
}

fn url(counter: &Counter, container: &str) -> String {
    format!("azurite://127.0.0.1:{}/{container}", counter.port)
}

pub struct Watch<'a> {
    pid: u32,
    begin: Instant,
    cpu: Option<Cpu>,
    counter: Option<&'a Counter>,
    requests: u64,
    for_modules: u64,
}

pub struct Used {
    seconds: f64,
    /// Resident memory, in MiB.
    memory: f64,
    /// The part of the memory that is not backed by a file, in MiB.
    pub anonymous: f64,
    /// CPU time, in percent of a core.
    pub cpu: f64,
    /// Requests to the store per second.
    requests: f64,
    /// Requests about modules and steering per second.
    for_modules: f64,
}

impl<'a> Watch<'a> {
    /// Starts to measure a host. If there is a proxy, also measures the number of requests that pass through the proxy.
    pub fn begin(node: &Node, counter: Option<&'a Counter>) -> Self {
        let (requests, for_modules) = count(counter);
        Self { pid: node.pid(), begin: Instant::now(), cpu: Cpu::read(node.pid()).ok(), counter, requests, for_modules }
    }

    pub fn end(&self) -> anyhow::Result<Used> {
        let ended = |_| anyhow::anyhow!("a host ended while it was watched");
        let before = self.cpu.ok_or_else(|| anyhow::anyhow!("a host ended before it was watched"))?;
        let (cpu, elapsed) = (Cpu::read(self.pid).map_err(ended)?, self.begin.elapsed());
        let memory = memory(self.pid).map_err(ended)?;
        let (requests, for_modules) = count(self.counter);
        let per_second = |count: u64| count as f64 / elapsed.as_secs_f64();
        Ok(Used {
            seconds: elapsed.as_secs_f64(),
            memory: memory.all,
            anonymous: memory.anonymous,
            cpu: cpu.share_since(&before, elapsed),
            requests: per_second(requests - self.requests),
            for_modules: per_second(for_modules - self.for_modules),
        })
    }
}

/// Returns the number of all requests so far, and how many of them were about modules and steering.
fn count(counter: Option<&Counter>) -> (u64, u64) {
    counter.map_or((0, 0), |counter| (counter.requests(), counter.for_modules()))
}
