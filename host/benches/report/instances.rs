//! Measures how long it takes to start and to kill an instance. This process is the host. The yardsticks are bare
//! wasmtime and native processes.

use std::hint::black_box;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use baton_base::clock::Clock;
use baton_base::gate::Watchdog;
use baton_election::ElectionName;
use baton_runtime::{
    CLAIM_AHEAD, Engine, HttpPolicy, Instance, InstanceEvent, InstanceHandle as _, Launcher, Limits, Module, Notice,
    Output, Policy, Processes, Runners, RunningInstances, Templates,
};
use baton_store::MemoryStore;
use baton_store::state;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use wasmtime::ensure;
use wasmtime::error::Context as _;

use crate::baseline::{Baseline, milliseconds};
use crate::compute;
use crate::guest::Guests;
use crate::samples::Samples;
use crate::table::{Bar, Row, Unit};
use crate::turning;
use crate::warm::{LARGE, example};

pub struct Effort {
    pub starts: usize,
    pub kills: usize,
    pub large: usize,
}

/// Memory that a large instance touches, in MiB.
const TOUCHED: u64 = 512;

/// Upper limit of the search for primes. The same search also runs natively in this process, as the yardstick.
const PRIMES_BELOW: usize = 5_000_000;

const TURNS: u64 = 30_000_000;

/// Number of instances that run a busy loop at the same time. The benchmark kills one of them.
const CROWD: usize = 20;

/// Delay between an instance's line and the kill of the instance. The instance prints this line just before it starts
/// the behavior that the benchmark interrupts.
const SAID: Duration = Duration::from_millis(1);

/// Like [`SAID`], but for one of [`CROWD`] busy instances. The delay is longer, because the scheduler initially gives a
/// new process more than its share of CPU time.
const CROWDED: Duration = Duration::from_millis(50);

/// Pause before each start. A host creates the next runner 20 ms after a start, so a runner is ready after this pause.
const REST: Duration = Duration::from_millis(30);

const DONE: &[(&str, &str)] = &[("BEHAVIOUR", "done")];
const BUSY: &[(&str, &str)] = &[("BEHAVIOUR", "busy")];

pub async fn measure(guests: &Guests, effort: &Effort) -> wasmtime::Result<Vec<Row>> {
    let module = &*guests.fixtures;
    let (bare, unchecked) = (Baseline::compile(module, true)?, Baseline::compile(module, false)?);
    let baton = Baton::new(module)?;

    let (mut bare_starts, mut starts, mut at_once) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..effort.starts {
        bare_starts.push(bare.instantiate().await?);
        starts.push(baton.start_when_ready().await?);
        at_once.push(baton.start_to_first_line().await?);
    }
    let interpreter = Baton::new(&example(LARGE).map_err(|error| wasmtime::format_err!("{error:#}"))?)?;
    let (mut native_starts, mut interpreter_starts) = (Samples::default(), Samples::default());
    for _ in 0..effort.kills {
        native_starts.push(native_start(REST)?);
        interpreter_starts.push(interpreter.start_when_ready().await?);
    }
    let (mut bare_kills, mut kills) = (Samples::default(), Samples::default());
    for _ in 0..effort.kills {
        bare_kills.push(bare.end(BUSY, "busy").await?);
        kills.push(baton.kill(BUSY, "busy", SAID).await?);
    }
    let (native_crowded, crowded) = kills_in_a_crowd(&baton, effort.kills / 2).await?;
    let (mut native_exits, mut large) = (Samples::default(), Samples::default());
    let touched = TOUCHED.to_string();
    let touch = [("BEHAVIOUR", "touch"), ("TOUCH_MIB", touched.as_str())];
    for _ in 0..effort.large {
        native_exits.push(native_exit(TOUCH, SAID)?);
        large.push(baton.kill(&touch, "touched", SAID).await?);
    }

    let computing = compute(&baton, &guests.program, effort.large).await?;
    let tight = tight(&baton, &unchecked, effort.large).await?;

    let bare_instantiation = bare_starts.median();
    let rows = vec![
        Row::new("wasmtime's bare instantiation", Unit::Ms, bare_starts),
        Row::new("start of an instance, its runner ready → its first instruction", Unit::Ms, starts)
            .beside("bare instantiation", bare_instantiation),
        Row::new("  of an interpreter of 12 MB", Unit::Ms, interpreter_starts)
            .bar(Bar::P99Ratio(2.5))
            .against(NATIVE_START, &native_starts),
        Row::new("  right after another, when none is ready", Unit::Ms, at_once),
        Row::new("kill of a busy loop → gone", Unit::Ms, kills)
            .bar(Bar::P99(5.0))
            .beside("bare epoch trap", bare_kills.median()),
        Row::new(format!("  of one of {CROWD} busy ones"), Unit::Ms, crowded)
            .bar(Bar::P99Ratio(1.2))
            .against("a native process in its place", &native_crowded),
        Row::new(format!("kill with {TOUCHED} MiB touched → gone"), Unit::Ms, large)
            .bar(Bar::Ratio(1.5))
            .beside("a native process", native_exits.median()),
    ];
    Ok(rows.into_iter().chain(computing).chain([tight]).collect())
}

/// Measures the time to kill one of many busy instances. The yardstick is the time to kill a native process that runs
/// instead of that instance. The instance or the process can exit only when the scheduler gives it a CPU.
async fn kills_in_a_crowd(baton: &Baton, times: usize) -> wasmtime::Result<(Samples, Samples)> {
    let mut others = Vec::new();
    for _ in 1..CROWD {
        let (instance, mut lines) = baton.start(BUSY);
        lines.recv().await.context("the guest printed nothing")?;
        others.push(instance);
    }
    let (mut native, mut took) = (Samples::default(), Samples::default());
    for _ in 0..times {
        native.push(native_exit(SPIN, CROWDED)?);
        took.push(baton.kill(BUSY, "busy", CROWDED).await?);
    }
    for mut instance in others {
        instance.kill();
        gone(&mut instance).await;
    }
    Ok((native, took))
}

/// Argument that makes this program touch as much memory as a large instance does, and then wait to be killed.
const TOUCH: &str = "touch";

/// Argument that makes this program compute until it is killed.
const SPIN: &str = "spin";

/// Turns this process into the native process that `word` selects. Returns if `word` is neither `TOUCH` nor `SPIN`.
pub fn native_process(word: &str) {
    match word {
        TOUCH => {
            let memory = vec![1_u8; usize::try_from(TOUCHED).unwrap_or(usize::MAX) << 20];
            println!("touched {} bytes", black_box(&memory).len());
            loop {
                std::thread::park();
            }
        }
        SPIN => {
            // Start a new session, as a runner does: the scheduler gives each session a share of the CPU time
            // (sched(7), autogroup).
            let _own = rustix::process::setsid();
            println!("busy");
            loop {
                black_box(());
            }
        }
        _ => {}
    }
}

pub const NATIVE_START: &str = "a native program's start → its first line";

/// Pauses for `rest`, then measures the time from the start of a native program to its first line, in milliseconds.
pub fn native_start(rest: Duration) -> std::io::Result<f64> {
    std::thread::sleep(rest);
    let begin = Instant::now();
    let mut process = Command::new("echo").arg("a line").stdout(Stdio::piped()).spawn()?;
    if let Some(stdout) = process.stdout.take() {
        BufReader::new(stdout).read_line(&mut String::new())?;
    }
    let took = begin.elapsed();
    process.wait()?;
    Ok(milliseconds(took))
}

/// Starts a native process, and kills it `after` its first line. Returns the time from the kill until this process has
/// reaped it, in milliseconds.
fn native_exit(word: &str, after: Duration) -> std::io::Result<f64> {
    let mut process = Command::new(std::env::current_exe()?).arg(word).stdout(Stdio::piped()).spawn()?;
    if let Some(stdout) = process.stdout.take() {
        BufReader::new(stdout).read_line(&mut String::new())?;
    }
    std::thread::sleep(after);
    let begin = Instant::now();
    process.kill()?;
    process.wait()?;
    Ok(milliseconds(begin.elapsed()))
}

/// Measures a tight loop in a guest, compared with the same loop in wasmtime without epoch checks.
async fn tight(baton: &Baton, unchecked: &Baseline, times: usize) -> wasmtime::Result<Row> {
    let (mut guests, mut bare) = (Samples::default(), Samples::default());
    let turns = TURNS.to_string();
    let env = [("BEHAVIOUR", "tight"), ("TIMES", turns.as_str())];
    let expected = turning::turn_over(black_box(TURNS));
    let took = |line: &str| -> wasmtime::Result<f64> {
        let (took, result) = computed(line).with_context(|| line.to_owned())?;
        ensure!(result == expected, "the guest and the host disagree");
        Ok(took)
    };
    for _ in 0..times {
        bare.push(took(&unchecked.last_line(&env).await?)?);
        guests.push(took(&baton.last_line(&env).await?)?);
    }
    let row = Row::new("a tight loop, in a guest", Unit::Ms, guests);
    Ok(row.bar(Bar::Ratio(1.1)).beside("in wasmtime without checks", bare.median()))
}

/// Measures a computation in this process and in a guest. If the command `wasmtime` is installed, also measures the
/// computation in that command.
async fn compute(baton: &Baton, program: &Path, times: usize) -> wasmtime::Result<Vec<Row>> {
    let (mut natives, mut guests, mut commands) = (Samples::default(), Samples::default(), Samples::default());
    let limit = PRIMES_BELOW.to_string();
    let wasmtime = Command::new("wasmtime").arg("--version").output().ok().filter(|output| output.status.success());
    for _ in 0..times {
        let begin = Instant::now();
        let native = compute::primes(black_box(PRIMES_BELOW));
        natives.push(milliseconds(begin.elapsed()));
        let agreed = |line: &str| -> wasmtime::Result<f64> {
            let (took, result) = computed(line).with_context(|| line.to_owned())?;
            ensure!(result == native, "the guest and the host disagree");
            Ok(took)
        };
        guests.push(agreed(&baton.last_line(&[("BEHAVIOUR", "compute"), ("LIMIT", &limit)]).await?)?);
        if wasmtime.is_some() {
            let mut command = Command::new("wasmtime");
            command.args(["run", "--env", "BEHAVIOUR=primes", "--env", &format!("LIMIT={limit}")]).arg(program);
            let said = command.output()?.stdout;
            commands.push(agreed(String::from_utf8_lossy(&said).lines().last().unwrap_or_default())?);
        }
    }
    let beside = guests.median();
    let mut rows =
        vec![Row::new("a job for the processor, in a guest", Unit::Ms, guests).beside("native", natives.median())];
    if let Some(version) = wasmtime {
        let version = String::from_utf8_lossy(&version.stdout);
        let name = format!("the same in the command {}", version.split('(').next().unwrap_or_default().trim());
        rows.push(Row::new(name, Unit::Ms, commands).beside("a guest's", beside));
    }
    Ok(rows)
}

/// Parses a line with the duration of a computation, in nanoseconds, and its result. Returns the duration in
/// milliseconds, and the result.
fn computed(line: &str) -> Option<(f64, u64)> {
    let (took, result) = line.split_once(' ')?;
    Some((took.parse::<f64>().ok()? / 1e6, result.parse().ok()?))
}

/// The host's runtime, without a lease or a supervisor.
pub struct Baton {
    pub launcher: Launcher,
    module: Module,
    terms: AtomicU64,
}

impl Baton {
    pub fn new(module: &Path) -> wasmtime::Result<Self> {
        let clock = Clock::default();
        let watchdog = Watchdog::start(clock.clone(), |why, _| eprintln!("the watchdog ends this process: {why}"))?;
        let launcher = Launcher {
            election: ElectionName::new("bench")?,
            shards: 1,
            node: "bench".to_string(),
            runners: runners(HttpPolicy::default())?,
            states: Arc::new(MemoryStore::new(Arc::new(|| Duration::ZERO))),
            handover: state::Handover::default(),
            read_ahead: state::ReadAhead::default(),
            claim_ahead: CLAIM_AHEAD,
            arguments: Vec::new(),
            env: Vec::new(),
            config: Vec::new(),
            secrets: Vec::new(),
            running: RunningInstances::default(),
            clock,
            watchdog: Arc::new(watchdog),
        };
        let module = Module::load(&Engine::new()?, module)?;
        Ok(Self { launcher, module, terms: AtomicU64::new(0) })
    }

    /// Measures the time from the start of an instance to its first instruction, in milliseconds. A runner is already
    /// ready when the measurement starts.
    async fn start_when_ready(&self) -> wasmtime::Result<f64> {
        self.launcher.runners.make_ready(&self.module).await?;
        tokio::time::sleep(REST).await;
        let (sender, mut started) = mpsc::unbounded_channel();
        let begin = Instant::now();
        let mut instance = self.begin(DONE, Arc::new(Starts(sender)));
        let at = started.recv().await.context("it did not start")?;
        instance.kill();
        gone(&mut instance).await;
        Ok(milliseconds(at.saturating_duration_since(begin)))
    }

    async fn start_to_first_line(&self) -> wasmtime::Result<f64> {
        let begin = Instant::now();
        let (mut instance, mut lines) = self.start(DONE);
        let first = lines.recv().await.context("the guest printed nothing")?.at;
        gone(&mut instance).await;
        Ok(milliseconds(first.saturating_duration_since(begin)))
    }

    /// Starts an instance, and kills it `after` its first line that starts with `line`. Returns the time from the kill
    /// until the instance has exited, in milliseconds.
    async fn kill(&self, env: &[(&str, &str)], line: &str, after: Duration) -> wasmtime::Result<f64> {
        let (mut instance, mut lines) = self.start(env);
        let early = || format!("the guest ended before it printed `{line}`");
        while !lines.recv().await.with_context(early)?.text.starts_with(line) {}
        tokio::time::sleep(after).await;
        let begin = Instant::now();
        instance.kill();
        let end = gone(&mut instance).await;
        let took = begin.elapsed();
        ensure!(end == baton_election::End::Killed, "the guest ended by itself: {end:?}");
        Ok(milliseconds(took))
    }

    pub async fn last_line(&self, env: &[(&str, &str)]) -> wasmtime::Result<String> {
        self.lines(env).await?.pop().context("the guest printed nothing")
    }

    pub async fn lines(&self, env: &[(&str, &str)]) -> wasmtime::Result<Vec<String>> {
        let (mut instance, mut lines) = self.start(env);
        let end = gone(&mut instance).await;
        ensure!(end == baton_election::End::Done, "the guest failed: {end:?}");
        let mut texts = Vec::new();
        while let Some(line) = lines.recv().await {
            texts.push(line.text);
        }
        Ok(texts)
    }

    fn start(&self, env: &[(&str, &str)]) -> (Instance, mpsc::UnboundedReceiver<Line>) {
        let (sender, lines) = mpsc::unbounded_channel();
        (self.begin(env, Arc::new(Lines(sender))), lines)
    }

    fn begin(&self, env: &[(&str, &str)], output: Arc<dyn Output>) -> Instance {
        let mut launcher = self.launcher.clone();
        launcher.env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let deadline = launcher.clock.now() + Duration::from_secs(3600);
        // Give each instance a new term: a second instance with the same term could not claim the state.
        let term = self.terms.fetch_add(1, Ordering::Relaxed) + 1;
        launcher.start(&self.module, term, None, deadline, deadline, output)
    }
}

/// Creates runners of the `baton` binary. This process is their host.
pub fn runners(http: HttpPolicy) -> std::io::Result<Runners> {
    let limits = Limits { memory: (TOUCHED + 64) << 20, ..Limits::default() };
    let policy = Policy { limits, http, ..Policy::default() };
    let templates = Templates::new(env!("CARGO_BIN_EXE_baton").into(), &Processes::new()?);
    Ok(Runners::new(policy, &templates, &Handle::current()))
}

async fn gone(instance: &mut Instance) -> baton_election::End {
    loop {
        if let InstanceEvent::Gone(gone) = instance.next_event().await {
            return gone.end;
        }
    }
}

struct Line {
    at: Instant,
    text: String,
}

struct Lines(mpsc::UnboundedSender<Line>);

impl Output for Lines {
    fn notice(&self, notice: Notice<'_>) {
        if let Notice::Line(_, line) = notice {
            let at = Instant::now();
            // Ignore errors, since the receiver is dropped after the measurement.
            let _ = self.0.send(Line { at, text: line.to_string() });
        }
    }
}

struct Starts(mpsc::UnboundedSender<Instant>);

impl Output for Starts {
    fn notice(&self, notice: Notice<'_>) {
        if let Notice::Started(_) = notice {
            let _ = self.0.send(Instant::now());
        }
    }
}
