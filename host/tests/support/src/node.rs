//! The real `baton` binary as a fixture: a host process whose log is read into a [`Journal`].
//!
//! All nodes of a scenario share one journal, so that a test can wait for what the fleet does and not
//! only for what one node says. Whatever is waited for is a state that stays true once it is reached; it is
//! waited for with [`Patience`], which says nothing about how long things may take. A node's process ends with
//! its [`Node`], by its own pid.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::kernel::{self, Lacks};
use crate::patience::{Patience, QUIET};

/// Guards against a hang. Nothing is measured by it. Where it can be, it is [`Patience`] that waits.
pub const GUARD: Duration = QUIET;

/// One line of a host's log.
#[derive(Clone)]
pub struct Event {
    /// The node that wrote it, as the fixture knows it.
    pub from: String,
    /// When the host says that it happened.
    pub ts: OffsetDateTime,
    /// The event's name; [`Event::RAW`] for a line that is not one of the log's.
    pub name: String,
    /// The term that it belongs to; 0 for none.
    pub term: u64,
    /// The line as it was written.
    pub raw: String,
    /// All of its fields.
    pub fields: Value,
}

impl Event {
    /// The name given to lines that are not JSON, such as those of a panic.
    pub const RAW: &'static str = "(raw)";

    fn parse(from: &str, raw: String) -> Self {
        let fields: Value = serde_json::from_str(&raw).unwrap_or(Value::Null);
        let ts = fields["ts"].as_str().and_then(|ts| OffsetDateTime::parse(ts, &Rfc3339).ok());
        let name = match (&ts, fields["event"].as_str()) {
            (Some(_), Some(name)) => name.to_string(),
            _ => Self::RAW.to_string(),
        };
        Self {
            from: from.to_string(),
            ts: ts.unwrap_or(OffsetDateTime::UNIX_EPOCH),
            name,
            term: fields["term"].as_u64().unwrap_or(0),
            fields,
            raw,
        }
    }

    /// A field as text; empty if it is missing or something else.
    pub fn text(&self, field: &str) -> &str {
        self.fields[field].as_str().unwrap_or_default()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.from, self.raw)
    }
}

/// The events of all nodes of a scenario, in the order in which they were read.
#[derive(Clone, Default)]
pub struct Journal {
    shared: Arc<(Mutex<Vec<Event>>, Condvar)>,
}

impl Journal {
    /// Waits until `test` finds in all events so far what it looks for.
    ///
    /// # Panics
    /// With the whole log, if [`Patience`] ends before.
    pub fn wait<T>(&self, what: &str, mut test: impl FnMut(&[Event]) -> Option<T>) -> T {
        self.wait_for_the_last(what, |events| test(events).ok_or(0))
    }

    /// [`Journal::wait`] for the last of many things, however many they are: until it is there, `test` says how far
    /// they are, and as long as that grows it is waited for.
    ///
    /// # Panics
    /// As [`Journal::wait`].
    pub fn wait_for_the_last<T>(&self, what: &str, mut test: impl FnMut(&[Event]) -> Result<T, u64>) -> T {
        let (mut patience, mut furthest) = (Patience::default(), 0);
        let mut events = self.lock();
        loop {
            match test(&events) {
                Ok(found) => return found,
                Err(far) if far > furthest => {
                    furthest = far;
                    patience.renew();
                }
                Err(_) => {}
            }
            if !patience.lasts() {
                drop(events);
                self.fail(&format!("waited in vain for {what}"));
            }
            // A line that replaced another wakes nobody.
            let nap = Duration::from_millis(100);
            events = self.shared.1.wait_timeout(events, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the first event that passes `test`.
    pub fn event(&self, what: &str, mut test: impl FnMut(&Event) -> bool) -> Event {
        self.wait(what, |events| events.iter().find(|event| test(event)).cloned())
    }

    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        self.lock().clone()
    }

    /// Fails with the whole log.
    pub fn fail(&self, why: &str) -> ! {
        let mut log = String::new();
        let mut repeated = 0;
        let events = self.events();
        for (i, event) in events.iter().enumerate() {
            // A guest's beats are many; the first and the last of a row tell enough.
            let beat = |e: Option<&Event>| e.is_some_and(|e| e.name == "output" && e.from == event.from);
            if beat(Some(event)) && i > 0 && beat(events.get(i - 1)) && beat(events.get(i + 1)) {
                repeated += 1;
                continue;
            }
            if std::mem::take(&mut repeated) > 0 {
                log.push_str("    …\n");
            }
            let _ = writeln!(log, "    {event:?}");
        }
        panic!("{why}; the log:\n{log}");
    }

    /// Adds an event. Of a flood of lines that differ in their numbers alone, the first and the last of each ten
    /// milliseconds are kept: how many come together says how busy the machine is, and any other may be waited for.
    fn push(&self, event: Event) {
        let mut events = self.lock();
        let says = |event: &Event| event.text("line").replace(|c: char| c.is_ascii_digit(), "");
        let alike = |other: &Event| {
            other.name == "output"
                && other.from == event.from
                && other.term == event.term
                && says(other) == says(&event)
        };
        if let [.., before, last] = events.as_mut_slice()
            && event.name == "output"
            && alike(before)
            && alike(last)
            && event.ts - before.ts < Duration::from_millis(10)
        {
            *last = event;
        } else {
            events.push(event);
            self.shared.1.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A host that is about to start.
pub struct Launch {
    name: String,
    journal: Journal,
    command: Command,
}

impl Launch {
    /// `baton run` under the name `name`, with nothing of this process's environment but the path, and
    /// with `home` as its home and working folder. Its admin endpoint has a free port of [`crate::loopback`].
    pub fn run(name: &str, home: &Path, journal: &Journal) -> Self {
        let mut command = baton(home);
        command.args(["run", "--node", name, "--log-format", "json"]);
        command.env("BATON_ADMIN", format!("{}:0", crate::loopback()));
        // The hosts of all tests run the same few modules, and compile each once. So they have one key, too.
        command.env("BATON_CACHE", crate::scratch().join("compiled"));
        make_cache_key(home);
        // With `false` all that passes shows that it needs nothing of what hosts tell each other.
        command.envs(std::env::var_os("BATON_LINKS").map(|links| ("BATON_LINKS", links)));
        Self { name: name.to_string(), journal: journal.clone(), command }
    }

    /// A host that some other command becomes.
    pub fn of(name: &str, command: Command, journal: &Journal) -> Self {
        Self { name: name.to_string(), journal: journal.clone(), command }
    }

    /// Adds a flag and its value.
    #[must_use]
    pub fn flag(mut self, flag: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.arg(flag).arg(value);
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Sets a variable of the host's environment.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.command.env(key, value);
        self
    }

    /// Starts it inside a mount namespace of its own, after the shell commands `setup` have run there.
    #[must_use]
    pub fn with_mounts(mut self, setup: &str) -> Self {
        self.command = with_mounts(&self.command, setup);
        self
    }

    /// The same with a network of its own, in which only the loopback interface is there, and down.
    #[must_use]
    pub fn with_network(mut self, setup: &str) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "--net", "sh"]);
        self.command = after(unshare, &self.command, setup);
        self
    }

    /// Starts it with no more descriptors than this, as `ulimit` takes it.
    #[must_use]
    pub fn with_descriptors(self, limit: &str) -> Self {
        self.after(&format!("ulimit {limit}"))
    }

    /// Starts it after a shell has run `setup`, in the same process.
    #[must_use]
    pub fn after(mut self, setup: &str) -> Self {
        self.command = after(Command::new("sh"), &self.command, setup);
        self
    }

    /// Has that program become it: the host's command line follows its own arguments. The process keeps its pid.
    #[must_use]
    pub fn beginning_as(mut self, program: &str, args: &[&str]) -> Self {
        let mut inside = Command::new(program);
        inside.args(args).arg(self.command.get_program()).args(self.command.get_args()).env_clear();
        inside.envs(self.command.get_envs().filter_map(|(key, value)| Some((key, value?))));
        if let Some(folder) = self.command.get_current_dir() {
            inside.current_dir(folder);
        }
        self.command = inside;
        self
    }

    /// Starts it on a kernel that lacks this.
    #[must_use]
    pub fn without(mut self, lacks: Lacks) -> Self {
        kernel::without(&mut self.command, lacks);
        self
    }

    /// Starts it where no terminal controls it, as a service manager does.
    #[must_use]
    pub fn without_terminal(self) -> Self {
        self.beginning(|| rustix::process::setsid().map(drop))
    }

    /// Starts it under the control of this terminal.
    #[must_use]
    pub fn with_terminal(self, terminal: File) -> Self {
        self.beginning(move || {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(&terminal)
        })
    }

    /// Has the new process do this first: a system call or two.
    fn beginning(mut self, begin: impl Fn() -> rustix::io::Result<()> + Send + Sync + 'static) -> Self {
        let begin = move || {
            // Those who run the tests may ignore it, and what is ignored stays so.
            // SAFETY: nothing else of this process, which has one thread, handles signals.
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
            Ok(begin()?)
        };
        // SAFETY: system calls are all that is made there, and they allocate nothing.
        unsafe { self.command.pre_exec(begin) };
        self
    }

    /// Starts the host and reads its log.
    pub fn start(self) -> Node {
        let mut node = self.start_unread();
        node.read();
        node
    }

    /// Starts the host and leaves its stderr, a pipe, unread until [`Node::read`].
    pub fn start_unread(mut self) -> Node {
        self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.command.spawn().expect("the binary starts");
        let stderr = child.stderr.take();
        Node { name: self.name, journal: self.journal, child, stderr, reader: None }
    }
}

/// A running host.
pub struct Node {
    /// Its id.
    pub name: String,
    journal: Journal,
    child: Child,
    stderr: Option<ChildStderr>,
    reader: Option<JoinHandle<()>>,
}

impl Node {
    /// Begins to read the log.
    pub fn read(&mut self) {
        let Some(stderr) = self.stderr.take() else { return };
        let (name, journal) = (self.name.clone(), self.journal.clone());
        self.reader = Some(std::thread::spawn(move || {
            let mut lines = BufReader::new(stderr);
            let mut line = Vec::new();
            while matches!(lines.read_until(b'\n', &mut line), Ok(n) if n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end().to_string();
                journal.push(Event::parse(&name, text));
                line.clear();
            }
        }));
    }

    /// What the kernel has by now of a log that is not read yet: all that the host has written of it.
    pub fn written(&mut self) -> Vec<String> {
        let stderr = self.stderr.as_mut().expect("nobody reads it yet");
        let bytes = rustix::io::ioctl_fionread(&*stderr).expect("a pipe says how much is in it");
        let mut text = vec![0; usize::try_from(bytes).expect("not more than a pipe holds")];
        stderr.read_exact(&mut text).expect("what is there can be read");
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// Sends a signal to the host's process.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process can be signalled");
    }

    /// Stops all processes of the node, as a machine that is paused does.
    pub fn pause(&self) {
        self.pause_host();
        self.children("").into_iter().for_each(|child| kill_process(child, Signal::STOP).expect("it can be stopped"));
    }

    /// Lets all processes of the node go on.
    pub fn resume(&self) {
        self.children("").into_iter().for_each(|child| kill_process(child, Signal::CONT).expect("it can go on"));
        self.signal(Signal::CONT);
    }

    /// The processes in which instances of this host run, or wait to.
    pub fn runners(&self) -> Vec<Pid> {
        self.children("baton-runner")
    }

    /// The process that carries what the host and others tell each other.
    pub fn link_carriers(&self) -> Vec<Pid> {
        self.children("baton-links")
    }

    /// The processes of which each has a version linked, and forks the runners of it.
    pub fn templates(&self) -> Vec<Pid> {
        self.children("baton-template")
    }

    /// The processes that this host has started and that have not ended, of those that have this in their names.
    fn children(&self, name: &str) -> Vec<Pid> {
        let comm = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let named = children_of(self.pid()).into_iter().filter(|pid| comm(pid).contains(name));
        named.filter_map(Pid::from_raw).collect()
    }

    /// Stops the host's process, but not in the middle of a request to the embedded store: it would keep SQLite's
    /// lock, and nobody could take over.
    pub fn pause_host(&self) {
        until(&format!("a moment in which {} has locked no file", self.name), || {
            self.signal(Signal::STOP);
            // Only when the last of its threads stands still is it known what it holds.
            waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED).expect("it stops");
            let locks = self.record_locks();
            if locks.is_empty() {
                return Ok(());
            }
            self.signal(Signal::CONT);
            // A request takes a few milliseconds; stopped again at once, it would get nowhere.
            std::thread::sleep(Duration::from_millis(20));
            Err(locks)
        });
    }

    /// The process's locks of the kind that SQLite takes and nothing else here does.
    fn record_locks(&self) -> Vec<String> {
        let locks = std::fs::read_to_string("/proc/locks").expect("the system lists its locks");
        let pid = self.pid().to_string();
        let is_own = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            // `1: POSIX  ADVISORY  WRITE 4711 fe:00:1234 1073741824 1073741824`.
            words.next() == Some("POSIX") && words.nth(2) == Some(&pid)
        };
        locks.lines().filter(is_own).map(str::to_owned).collect()
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the first event of this node that passes `test`.
    pub fn event(&self, what: &str, mut test: impl FnMut(&Event) -> bool) -> Event {
        self.journal.event(&format!("{what} of {}", self.name), |event| event.from == self.name && test(event))
    }

    /// Waits for this node's first event of that name in a term above `above`.
    pub fn after(&self, above: u64, name: &str) -> Event {
        self.event(&format!("`{name}` above term {above}"), |event| event.name == name && event.term > above)
    }

    /// Whether the host still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Waits for the host's end, and for the end of its log.
    pub fn wait(&mut self) -> ExitStatus {
        let Some(status) = wait_for_end(&mut self.child) else {
            self.journal.fail(&format!("{} does not end", self.name));
        };
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader does not panic");
        }
        status
    }

    /// SIGTERM, and the wait for the orderly end.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Also ends a stopped process. Both fail only where it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// What became of a command that ends by itself.
pub struct Finished {
    /// Its exit status.
    pub code: Option<i32>,
    /// Its result.
    pub stdout: String,
    /// Its log and errors.
    pub stderr: String,
}

impl Finished {
    /// Its result as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON: {error}\n{self:?}"))
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {:?}\nstdout: {}\nstderr: {}", self.code, self.stdout, self.stderr)
    }
}

/// Makes the key that the hosts at `home` find there.
fn make_cache_key(home: &Path) {
    let folder = home.join(".local/state/baton");
    std::fs::create_dir_all(&folder).expect("a folder");
    match std::fs::File::options().write(true).create_new(true).mode(0o600).open(folder.join("cache.key")) {
        Ok(mut key) => key.write_all(&[7; 32]).expect("the key is written"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}"),
    }
}

/// The binary with nothing of this process's environment but the path.
pub fn baton(home: &Path) -> Command {
    at_home(&crate::baton_binary(), home)
}

/// That program, as `baton` is run.
pub fn at_home(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("HOME", home).current_dir(home);
    command
}

/// The processes that this one has started and that have not ended.
pub fn children_of(parent: u32) -> Vec<i32> {
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Its state and its parent are the third and the fourth field, behind a name that is ours.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let has_ended = fields.next() == Some("Z");
        !has_ended && fields.next().and_then(|field| field.parse().ok()) == Some(parent)
    };
    let all = std::fs::read_dir("/proc").expect("the system lists its processes");
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// The same command inside a mount namespace of its own, after the shell commands `setup` have run there.
/// The process keeps its pid.
pub fn with_mounts(command: &Command, setup: &str) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh"]);
    after(unshare, command, setup)
}

/// The same command with no more descriptors than this, as `ulimit` takes it: `-Sn 100`. The process keeps its pid.
pub fn with_descriptors(command: &Command, limit: &str) -> Command {
    after(Command::new("sh"), command, &format!("ulimit {limit}"))
}

/// The command that a shell becomes after it has run `setup`.
fn after(mut inside: Command, command: &Command, setup: &str) -> Command {
    inside.args(["-ec", &format!("{setup}\nexec \"$0\" \"$@\"")]);
    inside.arg(command.get_program()).args(command.get_args()).env_clear();
    for (key, value) in command.get_envs() {
        inside.env(key, value.unwrap_or_default());
    }
    if let Some(folder) = command.get_current_dir() {
        inside.current_dir(folder);
    }
    inside
}

/// Runs a command to its end.
///
/// # Panics
/// If it does not end as long as there is [`Patience`]; it is killed then.
pub fn finish(command: Command) -> Finished {
    finish_with_input(command, b"")
}

/// The same, with something on its standard input, less than a pipe holds.
///
/// # Panics
/// As [`finish`].
pub fn finish_with_input(mut command: Command, input: &[u8]) -> Finished {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    if let Some(mut stdin) = child.stdin.take() {
        // A command that reads nothing may have closed it.
        let _ = stdin.write_all(input);
    }
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = wait_for_end(&mut child);
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let text = |reader: JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&reader.join().expect("the reader does not panic")).into_owned()
    };
    let finished = Finished { code: status.and_then(|s| s.code()), stdout: text(stdout), stderr: text(stderr) };
    assert!(status.is_some(), "{command:?} does not end: {finished:?}");
    finished
}

/// Asks until there is an answer.
///
/// # Panics
/// With the last refusal, if [`Patience`] ends before.
pub fn until<T, E: fmt::Debug>(what: &str, mut ask: impl FnMut() -> Result<T, E>) -> T {
    let mut patience = Patience::default();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(refusal) => assert!(patience.lasts(), "waited in vain for {what}: {refusal:?}"),
        }
        // What is waited for needs the processor more than who waits.
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Waits for the end of a process; none if it does not end as long as there is [`Patience`].
pub fn wait_for_end(child: &mut Child) -> Option<ExitStatus> {
    // A process's end has no condition variable; this only paces the question.
    Patience::poll(Duration::from_millis(10), || child.try_wait().expect("a child can be waited for")).ok()
}
