//! The demo of `make demo`: three nodes, one lease, and one coordinator that moves from node to node.
//!
//! `demo BATON COORDINATOR` starts three hosts on an embedded store in a temporary folder. The demo ends the first
//! leader with SIGKILL and the next two leaders with SIGTERM, and prints the nodes' events and a summary. It checks
//! that each term is higher than the previous one, and that no two instances run at the same time. If a check fails or
//! a step takes too long, the exit status is 1.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Lease duration: the shortest that the embedded store accepts.
const LEASE: Duration = Duration::from_secs(2);
/// Longest wait for one step. Unless the machine is busy, each step takes much less time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of lines that a leader's instance prints before the demo stops the leader.
const BEATS: usize = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> anyhow::Result<()> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(baton), Some(coordinator), None) = (args.next(), args.next(), args.next()) else {
        bail!("usage: demo BATON COORDINATOR");
    };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let folder = tempfile::Builder::new().prefix("baton-demo-").tempdir().context("no temporary folder")?;
    let mut fleet = Fleet::new();
    let shown = tokio::select! {
        shown = show(&mut fleet, &baton, &coordinator, folder.path()) => shown,
        _ = interrupt.recv() => Err(anyhow::anyhow!("interrupted")),
        _ = terminate.recv() => Err(anyhow::anyhow!("terminated")),
    };
    if shown.is_err() {
        fleet.print_log();
    }
    shown
}

async fn show(fleet: &mut Fleet, baton: &Path, coordinator: &Path, folder: &Path) -> anyhow::Result<()> {
    let store = format!("sqlite:{}", folder.display());
    println!("Three nodes contend for one lease of {} s in {store}\n", LEASE.as_secs());
    let mut steps = Vec::new();

    let begin = Instant::now();
    for number in 1..=3 {
        fleet.start(&format!("node-{number}"), baton, coordinator, &store)?;
    }
    let first = fleet.next_leader(0).await.context("waiting for the first leader")?;
    steps.push(("first leader", begin.elapsed(), first.to_string()));
    fleet.beats(&first).await?;

    fleet.say(&format!("SIGKILL {}: it released nothing, but the kernel reports its death to the others", first.node));
    let begin = Instant::now();
    fleet.signal(&first.node, Signal::KILL)?;
    fleet.exited(&first.node).await?;
    let second = fleet.next_leader(first.term).await.context("waiting for the takeover")?;
    steps.push(("takeover after the crash", begin.elapsed(), second.to_string()));
    fleet.beats(&second).await?;

    fleet.say(&format!("SIGTERM {}: an orderly stop, as in a rolling update", second.node));
    let begin = Instant::now();
    fleet.signal(&second.node, Signal::TERM)?;
    let third = fleet.next_leader(second.term).await.context("waiting for the hand-off")?;
    steps.push(("hand-off", begin.elapsed(), third.to_string()));
    ensure!(fleet.exited(&second.node).await? == Some(0), "{} did not exit with 0", second.node);
    fleet.ended_before(&second, &third)?;
    fleet.beats(&third).await?;

    fleet.say(&format!("SIGTERM {}: the last node", third.node));
    let begin = Instant::now();
    fleet.signal(&third.node, Signal::TERM)?;
    ensure!(fleet.exited(&third.node).await? == Some(0), "{} did not exit with 0", third.node);
    ensure!(fleet.time_of(&third, "released").is_some(), "{} did not release the lease", third.node);
    steps.push(("clean stop", begin.elapsed(), third.node.clone()));

    fleet.one_at_a_time()?;
    println!("\nWhat was seen");
    for (step, took, who) in steps {
        println!("  {step:<26}{:>6.2} s   {who}", took.as_secs_f64());
    }
    println!("  Each term had a higher number than the one before, and no two instances ran at the same time.");
    Ok(())
}

struct Leader {
    node: String,
    term: u64,
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, term {}", self.node, self.term)
    }
}

/// A line of a node's log. `line` is `None` at the end of the log.
struct Heard {
    node: String,
    line: Option<String>,
}

struct Fleet {
    begin: Instant,
    nodes: BTreeMap<String, Node>,
    heard: mpsc::UnboundedReceiver<Heard>,
    speaker: mpsc::UnboundedSender<Heard>,
    /// Every event, in order of arrival. The events of one node are in the order of its log.
    events: Vec<Event>,
    /// The highest term that has started.
    term: u64,
    /// The raw log, to print if the demo fails.
    log: Vec<String>,
}

struct Event {
    node: String,
    fields: Value,
}

impl Event {
    fn text(&self, field: &str) -> &str {
        self.fields[field].as_str().unwrap_or_default()
    }

    fn term(&self) -> u64 {
        self.fields["term"].as_u64().unwrap_or_default()
    }

    fn is(&self, leader: &Leader, event: &str) -> bool {
        self.node == leader.node && self.term() == leader.term && self.text("event") == event
    }
}

impl Fleet {
    fn new() -> Self {
        let (speaker, heard) = mpsc::unbounded_channel();
        let (nodes, events, log) = Default::default();
        Self { begin: Instant::now(), nodes, heard, speaker, events, term: 0, log }
    }

    fn start(&mut self, name: &str, baton: &Path, coordinator: &Path, store: &str) -> anyhow::Result<()> {
        let lease = format!("{}s", LEASE.as_secs());
        let mut child = Command::new(baton)
            .arg("run")
            .arg(coordinator)
            .args(["--store", store, "--election", "heartbeat", "--node", name, "--lease", &lease])
            .args(["--log-format", "json", "--env", "HEARTBEAT_MS=500"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", baton.display()))?;
        let stderr = child.stderr.take();
        let (node, speaker) = (name.to_owned(), self.speaker.clone());
        let reader = std::thread::spawn(move || {
            for line in stderr.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()) {
                let Ok(line) = line else { break };
                // The send cannot fail, because the fleet drops the receiver only after this thread has ended.
                let _ = speaker.send(Heard { node: node.clone(), line: Some(line) });
            }
            let _ = speaker.send(Heard { node, line: None });
        });
        self.say(&format!("{name} starts (pid {})", child.id()));
        self.nodes.insert(name.to_owned(), Node { child, signalled: false, reader: Some(reader) });
        Ok(())
    }

    /// Waits until an instance with a term above `term` has started.
    async fn next_leader(&mut self, term: u64) -> anyhow::Result<Leader> {
        self.until(|events| {
            let started = events.iter().find(|e| e.text("event") == "started" && e.term() > term)?;
            Some(Leader { node: started.node.clone(), term: started.term() })
        })
        .await
    }

    async fn beats(&mut self, leader: &Leader) -> anyhow::Result<()> {
        self.until(|events| (events.iter().filter(|e| e.is(leader, "output")).count() >= BEATS).then_some(()))
            .await
            .with_context(|| format!("waiting for {leader} to beat"))
    }

    /// Waits until a node has exited. Returns its exit status, or `None` if a signal killed it.
    async fn exited(&mut self, node: &str) -> anyhow::Result<Option<i32>> {
        let deadline = Instant::now() + PATIENCE;
        while self.nodes.get(node).is_some_and(|n| n.reader.is_some()) {
            self.hear(deadline).await.with_context(|| format!("waiting for {node} to exit"))?;
        }
        let node = self.nodes.get_mut(node).context("no such node")?;
        Ok(node.child.wait()?.code())
    }

    fn signal(&mut self, name: &str, signal: Signal) -> anyhow::Result<()> {
        let node = self.nodes.get_mut(name).context("no such node")?;
        node.signalled = true;
        kill_process(Pid::from_child(&node.child), signal).with_context(|| format!("cannot signal {name}"))
    }

    /// Receives log lines until `seen` returns a value for the events so far. Returns that value.
    async fn until<T>(&mut self, seen: impl Fn(&[Event]) -> Option<T>) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = seen(&self.events) {
                return Ok(found);
            }
            self.hear(deadline).await?;
        }
    }

    /// Receives one log line, and prints it if it is one of the events that the demo shows.
    async fn hear(&mut self, deadline: Instant) -> anyhow::Result<()> {
        let Ok(Some(Heard { node, line })) = timeout_at(deadline, self.heard.recv()).await else {
            bail!("not seen within {} s", PATIENCE.as_secs());
        };
        let Some(line) = line else {
            let ended = self.nodes.get_mut(&node).context("no such node")?;
            if let Some(reader) = ended.reader.take() {
                let _ = reader.join();
            }
            ensure!(ended.signalled, "{node} ended by itself: {}", ended.child.wait()?);
            return Ok(());
        };
        self.log.push(format!("{node}: {line}"));
        let Ok(fields) = serde_json::from_str::<Value>(&line) else {
            return Ok(());
        };
        let event = Event { node, fields };
        let detail = match event.text("event") {
            "output" => format!("| {}", event.text("line")),
            name @ ("elected" | "started") => format!("{name}, term {}", event.term()),
            name @ ("stopping" | "leadership_lost") => format!("{name}: {}", event.text("reason")),
            name @ "ended" => format!("{name}: {}", event.text("outcome")),
            name @ ("standby" | "killed" | "released") => name.to_owned(),
            _ => String::new(),
        };
        if !detail.is_empty() {
            self.say(&format!("{}  {detail}", event.node));
        }
        if event.text("event") == "started" {
            ensure!(event.term() > self.term, "term {} began after term {}", event.term(), self.term);
            self.term = event.term();
        }
        self.events.push(event);
        Ok(())
    }

    fn say(&self, what: &str) {
        println!("{:>6.2}  {what}", self.begin.elapsed().as_secs_f64());
    }

    /// Returns the time of a leader's event. All nodes use the same time format, so the times can be compared as text.
    fn time_of(&self, leader: &Leader, event: &str) -> Option<&str> {
        self.events.iter().find(|e| e.is(leader, event)).map(|e| e.text("ts"))
    }

    /// Checks that the instance of `old` had ended before `new` was elected.
    fn ended_before(&self, old: &Leader, new: &Leader) -> anyhow::Result<()> {
        let gone = self.time_of(old, "ended").with_context(|| format!("{old} never logged its end"))?;
        let elected = self.time_of(new, "elected").with_context(|| format!("{new} was never elected"))?;
        ensure!(gone < elected, "{new} was elected at {elected}, before {old} was gone at {gone}");
        Ok(())
    }

    /// Checks that no instance printed anything after the instance of the next term had started.
    fn one_at_a_time(&self) -> anyhow::Result<()> {
        for started in self.events.iter().filter(|e| e.text("event") == "started") {
            let late = |e: &&Event| e.text("event") == "output" && e.term() < started.term();
            for output in self.events.iter().filter(late) {
                ensure!(
                    output.text("ts") < started.text("ts"),
                    "{} printed in term {} after term {} had begun",
                    output.node,
                    output.term(),
                    started.term()
                );
            }
        }
        Ok(())
    }

    fn print_log(&self) {
        eprintln!("\nWhat the nodes logged last:");
        for line in &self.log[self.log.len().saturating_sub(40)..] {
            eprintln!("  {line}");
        }
    }
}

/// A node's process. Dropping this value kills and reaps the process.
struct Node {
    child: Child,
    signalled: bool,
    reader: Option<JoinHandle<()>>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // Ignore errors, since both calls fail only if the process has already been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
