//! Starts, stops and kills hosts, and reads every line of their output with its timestamp.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal, waitid,
};
use serde_json::Value;

use crate::judge::{Channel, Effect, Judge};
use crate::kernel::{Nanos, message_pipe, now, receive};
use crate::node::{at_home, children_of};
use crate::plan::{Death, Parts};

/// A fleet of N nodes uses the first N names.
pub const NAMES: [&str; 5] = ["alpha", "beta", "gamma", "delta", "epsilon"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Up,
    /// Stopped by SIGSTOP.
    Stopped,
    /// Shutting down after SIGTERM.
    Ending,
    Down,
}

pub struct Node {
    at: usize,
    program: PathBuf,
    arguments: Vec<String>,
    home: PathBuf,
    state: State,
    process: Option<(Child, JoinHandle<()>)>,
    /// True once the host has logged `starting`, which it does after setting its signal handlers.
    has_begun: Arc<AtomicBool>,
    is_unread: Arc<AtomicBool>,
    /// The host's child processes that [`Self::stop`] has stopped.
    stopped: Vec<(Pid, OwnedFd)>,
    judge: Arc<Mutex<Judge>>,
    log: Arc<Mutex<Log>>,
}

impl Node {
    /// Creates a node without starting its host.
    pub fn new(
        at: usize,
        program: PathBuf,
        arguments: Vec<String>,
        home: &Path,
        judge: &Arc<Mutex<Judge>>,
        log: &Arc<Mutex<Log>>,
    ) -> Self {
        let (judge, log) = (Arc::clone(judge), Arc::clone(log));
        Self {
            at,
            program,
            arguments,
            home: home.to_owned(),
            state: State::Down,
            process: None,
            has_begun: Arc::default(),
            is_unread: Arc::default(),
            stopped: Vec::new(),
            judge,
            log,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Starts the host, and reads its stderr with the kernel's timestamps.
    pub fn start(&mut self) {
        let (reads, writes) = message_pipe();
        let mut command: Command = at_home(&self.program, &self.home);
        command.args(["run", "--node", NAMES[self.at], "--log-format", "json"]).args(&self.arguments);
        command.env("BATON_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/compiled"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writes);
        let child = command.spawn().expect("the binary starts");
        self.has_begun = Arc::default();
        let (at, begun, unread) = (self.at, Arc::clone(&self.has_begun), Arc::clone(&self.is_unread));
        let (judge, log) = (Arc::clone(&self.judge), Arc::clone(&self.log));
        let reader = std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 18];
            loop {
                while unread.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let Some((length, written)) = receive(&reads, &mut bytes).expect("the log is read") else { break };
                // The host writes each line with one system call, so no line spans two messages.
                for line in String::from_utf8_lossy(&bytes[..length]).lines() {
                    if read_line(at, written, line, &judge, &log) == "starting" {
                        begun.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
        self.process = Some((child, reader));
        self.state = State::Up;
    }

    /// Sends SIGSTOP to some processes. Returns once all of their threads have stopped.
    pub fn stop(&mut self, parts: Parts) {
        self.stopped = self.others(parts);
        // The stop may interrupt a write on one of these channels: the host writes log lines, and a runner writes
        // requests.
        let mut ways = Vec::new();
        if parts.has_host() {
            ways.push(Channel::Line);
        }
        if parts.has_runner() && !self.others(Parts::RUNNER).is_empty() {
            ways.push(Channel::Request);
        }
        signal(&self.stopped, Signal::STOP);
        if parts.has_host() {
            self.signal(Signal::STOP);
            if let Some((child, _)) = &mut self.process {
                let id = WaitId::Pid(Pid::from_child(child));
                let has_stopped =
                    || waitid(id.clone(), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG).expect("it stops").is_some();
                // A host that has already exited never stops, so do not wait for it. The next call to `ended` reports
                // the exit.
                while !has_stopped() && matches!(child.try_wait(), Ok(None)) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        while !self.stopped.iter().all(|(pid, _)| is_stopped(*pid)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.judge().stopped(self.at, ways, now());
        self.state = State::Stopped;
    }

    pub fn end(&mut self, parts: Parts, death: Death) {
        let by = match death {
            // A stopped process would handle SIGABRT only after SIGCONT, so it receives SIGKILL instead.
            Death::Aborted if self.state != State::Stopped => Signal::ABORT,
            Death::Aborted | Death::Killed => Signal::KILL,
        };
        signal(&self.others(parts), by);
        if parts.has_host() {
            self.signal(by);
            self.reap();
        }
    }

    /// Kills the host and its runners. The processes in `first` die at once. The other processes die after the time
    /// `apart`.
    pub fn end_both(&mut self, first: Parts, apart: Duration) {
        // Find the runners before the host dies, because afterwards they are no longer its children.
        let runners = self.others(Parts::RUNNER);
        if first.has_runner() {
            signal(&runners, Signal::KILL);
            std::thread::sleep(apart);
        }
        self.signal(Signal::KILL);
        if first.has_host() {
            std::thread::sleep(apart);
            signal(&runners, Signal::KILL);
        }
        self.reap();
    }

    fn others(&self, parts: Parts) -> Vec<(Pid, OwnedFd)> {
        let host = self.process.as_ref().map(|(child, _)| child.id());
        let all = host.map(children_of).unwrap_or_default().into_iter().filter_map(Pid::from_raw);
        let opened = all.filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
        // Open the pidfd before reading the name. If another process reuses the pid between the two steps, the pidfd
        // still refers to the old process, so a signal sent through it reaches no process.
        let name = |pid: Pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        opened.filter(|(pid, _)| parts.others().any(|part| name(*pid).contains(part))).collect()
    }

    pub fn go_on(&mut self) {
        self.judge().continued(self.at, now());
        self.signal(Signal::CONT);
        signal(&std::mem::take(&mut self.stopped), Signal::CONT);
        self.state = State::Up;
    }

    pub fn leave_unread(&self, unread: bool) {
        self.is_unread.store(unread, Ordering::Relaxed);
    }

    /// Sends SIGTERM, and does not wait for the exit.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
        self.state = State::Ending;
    }

    /// Reaps the host if it has exited, and returns its exit status.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let (child, _) = self.process.as_mut()?;
        let status = child.try_wait().expect("a child can be waited for")?;
        self.reap();
        Some(status)
    }

    /// True if `status` is acceptable after SIGTERM: success, or death by SIGTERM if the host had not set its signal
    /// handlers yet.
    pub fn is_in_order(&self, status: ExitStatus) -> bool {
        let was_early = !self.has_begun.load(Ordering::Relaxed);
        status.success() || (was_early && status.signal() == Some(Signal::TERM.as_raw()))
    }

    fn reap(&mut self) {
        self.leave_unread(false);
        if let Some((mut child, reader)) = self.process.take() {
            child.wait().expect("it ends");
            // The reader ends once it has read all output.
            reader.join().expect("its reader does not panic");
        }
        self.stopped.clear();
        self.state = State::Down;
    }

    fn signal(&self, signal: Signal) {
        if let Some((child, _)) = &self.process {
            kill_process(Pid::from_child(child), signal).expect("the process can be signalled");
        }
    }

    fn judge(&self) -> std::sync::MutexGuard<'_, Judge> {
        self.judge.lock().expect("no thread panics while it holds the lock")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.leave_unread(false);
        if let Some((child, _)) = &mut self.process {
            let _ = child.kill();
        }
        if let Some((mut child, reader)) = self.process.take() {
            let _ = child.wait();
            let _ = reader.join();
        }
    }
}

/// True if each thread of a process has stopped or exited. Reads `/proc`, because `waitid` only works for children of
/// this process.
fn is_stopped(pid: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let state = |stat: &str| stat.rsplit(") ").next().and_then(|fields| fields.chars().next());
    stats.into_iter().all(|stat| matches!(state(&stat), Some('T' | 'Z' | 'X')))
}

fn signal(processes: &[(Pid, OwnedFd)], signal: Signal) {
    for (_, process) in processes {
        // The signal fails if the process has already exited, which does no harm.
        let _ = pidfd_send_signal(process, signal);
    }
}

/// Passes an effect to the judge and any other line to the log. Returns the event's name.
fn read_line(node: usize, at: Nanos, line: &str, judge: &Mutex<Judge>, log: &Mutex<Log>) -> String {
    judge.lock().expect("no thread panics while it holds the lock").written(node, Channel::Line, at);
    let fields: Value = serde_json::from_str(line).unwrap_or(Value::Null);
    if fields["event"] == "output" && fields["stream"] == "stdout" {
        let name = fields["line"].as_str().unwrap_or_default().to_owned();
        let effect = Effect { at, way: Channel::Line, term: fields["term"].as_u64().unwrap_or(0), node, name };
        judge.lock().expect("no thread panics while it holds the lock").effect(effect);
    } else {
        log.lock().expect("no thread panics while it holds the lock").line(node, at, line, &fields);
    }
    fields["event"].as_str().unwrap_or_default().to_owned()
}

/// The test's log file. It contains the faults and the hosts' events, but not the output of the coordinators.
pub struct Log {
    file: File,
    pub path: PathBuf,
    begin: Nanos,
    last: std::collections::VecDeque<String>,
    /// The time at which the previous lease expires, according to the latest event `waiting_for_previous_lease`.
    pub settled: Option<Instant>,
    /// The most recently elected node, and its term.
    pub elected: Option<(usize, u64)>,
    /// The most recently started version.
    pub served: Option<String>,
    pub linked: usize,
    pub panicked: Option<String>,
    /// The nodes whose watchdogs have aborted them.
    pub aborted: std::collections::BTreeSet<usize>,
}

impl Log {
    pub fn new(path: PathBuf) -> Self {
        let file = File::create(&path).expect("a file for the log");
        Self {
            file,
            path,
            begin: now(),
            last: Default::default(),
            settled: None,
            elected: None,
            served: None,
            linked: 0,
            panicked: None,
            aborted: Default::default(),
        }
    }

    pub fn note(&mut self, what: &str) {
        self.put(now(), &format!("  ---- {what}"));
    }

    pub fn tail(&self) -> String {
        self.last.iter().map(|line| format!("    {line}\n")).collect()
    }

    fn line(&mut self, node: usize, at: Nanos, line: &str, fields: &Value) {
        let seconds =
            |name: &str| Duration::try_from_secs_f64(fields[name].as_f64().unwrap_or(0.0)).unwrap_or_default();
        if fields["event"] == "waiting_for_previous_lease" {
            self.settled = Some(Instant::now() + seconds("wait_s"));
        }
        if fields["event"] == "elected" {
            self.elected = fields["term"].as_u64().map(|term| (node, term));
        }
        if fields["event"] == "started" {
            self.served = fields["module"].as_str().map(str::to_owned);
        }
        self.linked += usize::from(fields["event"] == "link" && fields["up"] == true);
        if fields["event"] == "aborting" {
            self.aborted.insert(node);
        }
        if line.contains("panicked") {
            self.panicked.get_or_insert_with(|| line.to_owned());
        }
        self.put(at, &format!("{:>7} {line}", NAMES[node]));
    }

    fn put(&mut self, at: Nanos, line: &str) {
        let since = Duration::from_nanos(at.saturating_sub(self.begin));
        let line = format!("{:9.3} {line}", since.as_secs_f64());
        writeln!(self.file, "{line}").expect("the log is written");
        self.last.push_back(line);
        if self.last.len() > 120 {
            self.last.pop_front();
        }
    }
}
