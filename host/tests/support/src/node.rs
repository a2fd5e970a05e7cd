//! Runs the real `baton` binary and reads its log into a [`Journal`].
//!
//! All nodes of a test share one journal, so that the test can wait for an event of one node or of any node. Wait only
//! for conditions that stay true, because the check may come late. Waits use [`Patience`], so they cannot measure how
//! long something takes. Dropping a [`Node`] kills its process.

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

/// A timeout that detects hangs, for waits that cannot use [`Patience`]. It is too coarse for measurements.
pub const GUARD: Duration = QUIET;

/// One line of a host's log.
#[derive(Clone)]
pub struct Event {
    /// The name of the node that wrote the line.
    pub from: String,
    /// The event's time according to the host.
    pub ts: OffsetDateTime,
    /// The event's name, or [`Event::RAW`] for a line that is not an event.
    pub name: String,
    /// The event's term, or 0 if it has none.
    pub term: u64,
    /// The line as the host wrote it.
    pub raw: String,
    /// All fields of the event, or null if the line is not JSON.
    pub fields: Value,
}

impl Event {
    /// The name of lines that are not events, such as the lines of a panic message.
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

    /// True if this event reports that the node has established a link to the leader.
    pub fn is_linked(&self) -> bool {
        self.name == "link" && self.fields["up"] == true
    }

    /// True if this event reports the start of an instance that replaces an instance of another version.
    pub fn is_swap(&self) -> bool {
        self.name == "started" && self.fields["replaces"].is_string()
    }

    /// True if this event reports that the node has become ineligible because of `cause`.
    pub fn is_ineligible(&self, cause: &str) -> bool {
        self.name == "ineligible" && self.text("cause") == cause
    }

    /// A field's text, or an empty string if the field is missing or not a string.
    pub fn text(&self, field: &str) -> &str {
        self.fields[field].as_str().unwrap_or_default()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.from, self.raw)
    }
}

/// The events of all nodes of a test, in the order in which they were read.
#[derive(Clone, Default)]
pub struct Journal {
    shared: Arc<(Mutex<Vec<Event>>, Condvar)>,
}

impl Journal {
    /// Waits until `test` returns a value for the events so far. Panics with the whole log if the wait times out.
    pub fn wait<T>(&self, what: &str, mut test: impl FnMut(&[Event]) -> Option<T>) -> T {
        self.wait_for_the_last(what, |events| test(events).ok_or(0))
    }

    /// Like [`Journal::wait`], but for a condition that takes a long time to become true. While the condition is false,
    /// `test` returns its progress as `Err`. The timeout restarts whenever the progress grows.
    pub fn wait_for_the_last<T>(&self, what: &str, mut test: impl FnMut(&[Event]) -> Result<T, u64>) -> T {
        let (mut patience, mut furthest) = (Patience::default(), 0);
        let mut events = self.lock();
        loop {
            match test(&events) {
                Ok(found) => return found,
                Err(progress) if progress > furthest => {
                    furthest = progress;
                    patience.renew();
                }
                Err(_) => {}
            }
            if !patience.lasts() {
                drop(events);
                self.fail(&format!("waited in vain for {what}"));
            }
            // Poll as well, because `push` sends no notification when a line replaces an earlier one.
            let poll_interval = Duration::from_millis(100);
            events = self.shared.1.wait_timeout(events, poll_interval).unwrap_or_else(PoisonError::into_inner).0;
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

    /// Panics with the whole log.
    pub fn fail(&self, why: &str) -> ! {
        let mut log = String::new();
        let mut repeated = 0;
        let events = self.events();
        for (i, event) in events.iter().enumerate() {
            // Guests print many lines, which would hide the other events. From each series of output lines, keep only
            // the first and the last.
            let is_output = |e: Option<&Event>| e.is_some_and(|e| e.name == "output" && e.from == event.from);
            if is_output(Some(event)) && i > 0 && is_output(events.get(i - 1)) && is_output(events.get(i + 1)) {
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

    /// Adds an event. If several output lines within 10 ms differ only in their digits, keeps only the first and the
    /// last, because the number of such lines depends on how busy the machine is. Keeps all other events, because a
    /// test may wait for them.
    fn push(&self, event: Event) {
        let mut events = self.lock();
        let without_digits = |event: &Event| event.text("line").replace(|c: char| c.is_ascii_digit(), "");
        let is_alike = |other: &Event| {
            other.name == "output"
                && other.from == event.from
                && other.term == event.term
                && without_digits(other) == without_digits(&event)
        };
        if let [.., first, last] = events.as_mut_slice()
            && event.name == "output"
            && is_alike(first)
            && is_alike(last)
            && event.ts - first.ts < Duration::from_millis(10)
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
    /// Prepares `baton run` as node `name`, with `home` as its home and working folder. The host inherits only `PATH`
    /// from this process's environment. Its admin endpoint listens on a free port of [`crate::loopback`].
    pub fn run(name: &str, home: &Path, journal: &Journal) -> Self {
        let mut command = baton(home);
        command.args(["run", "--node", name, "--log-format", "json"]);
        command.env("BATON_ADMIN", format!("{}:0", crate::loopback()));
        // All tests run the same few modules. Their hosts share a cache and its key, so that each module is compiled
        // only once.
        command.env("BATON_CACHE", crate::scratch().join("compiled"));
        make_cache_key(home);
        // Pass `BATON_LINKS` on to the host. Running the tests with `BATON_LINKS=false` shows that they pass without
        // links.
        command.envs(std::env::var_os("BATON_LINKS").map(|links| ("BATON_LINKS", links)));
        Self { name: name.to_string(), journal: journal.clone(), command }
    }

    /// Prepares a host that `command` starts.
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

    /// Starts the host in a new mount namespace, after the shell commands `setup` have run there.
    #[must_use]
    pub fn with_mounts(mut self, setup: &str) -> Self {
        self.command = with_mounts(&self.command, setup);
        self
    }

    /// Like [`Launch::with_mounts`], but the host also starts in a new network namespace. That namespace has only a
    /// loopback interface, which is down.
    #[must_use]
    pub fn with_network(mut self, setup: &str) -> Self {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "--net", "sh"]);
        self.command = after(unshare, &self.command, setup);
        self
    }

    /// Limits the number of file descriptors that the host may open. `limit` holds the arguments of `ulimit`, such as
    /// `-Sn 100`.
    #[must_use]
    pub fn with_descriptors(self, limit: &str) -> Self {
        self.after(&format!("ulimit {limit}"))
    }

    /// Runs the shell commands `setup` before the host, in the same process.
    #[must_use]
    pub fn after(mut self, setup: &str) -> Self {
        self.command = after(Command::new("sh"), &self.command, setup);
        self
    }

    /// Starts the host through `program`, whose arguments are `args`, followed by the host's command. `program` must
    /// exec that command, so that the host keeps the pid.
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

    /// Starts the host as if the kernel did not support `lacks`.
    #[must_use]
    pub fn without(mut self, lacks: Lacks) -> Self {
        kernel::without(&mut self.command, lacks);
        self
    }

    /// Starts the host without a controlling terminal, as a service manager does.
    #[must_use]
    pub fn without_terminal(self) -> Self {
        self.before_exec(|| rustix::process::setsid().map(drop))
    }

    /// Starts the host with `terminal` as its controlling terminal.
    #[must_use]
    pub fn with_terminal(self, terminal: File) -> Self {
        self.before_exec(move || {
            rustix::process::setsid()?;
            rustix::process::ioctl_tiocsctty(&terminal)
        })
    }

    /// Calls `setup` in the new process before exec. `setup` may only make system calls.
    fn before_exec(mut self, setup: impl Fn() -> rustix::io::Result<()> + Send + Sync + 'static) -> Self {
        let setup = move || {
            // The process that runs the tests may ignore SIGHUP, and an ignored signal stays ignored after exec.
            // SAFETY: the forked process has only one thread, and `SIG_DFL` installs no handler function.
            unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
            Ok(setup()?)
        };
        // SAFETY: `setup` runs between fork and exec. `setup` makes only system calls, which allocate nothing.
        unsafe { self.command.pre_exec(setup) };
        self
    }

    /// Starts the host and reads its log.
    pub fn start(self) -> Node {
        let mut node = self.start_unread();
        node.read();
        node
    }

    /// Starts the host without reading its log. The host's stderr is a pipe, which fills up until the test calls
    /// [`Node::read`].
    pub fn start_unread(mut self) -> Node {
        self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.command.spawn().expect("the binary starts");
        let stderr = child.stderr.take();
        Node { name: self.name, journal: self.journal, child, stderr, reader: None }
    }
}

/// A running host.
pub struct Node {
    /// The node's name.
    pub name: String,
    journal: Journal,
    child: Child,
    stderr: Option<ChildStderr>,
    reader: Option<JoinHandle<()>>,
}

impl Node {
    /// Starts to read the log.
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

    /// Returns the log lines that are waiting in the pipe, for a host that was started with [`Launch::start_unread`].
    pub fn written(&mut self) -> Vec<String> {
        let stderr = self.stderr.as_mut().expect("`read` has not been called");
        let bytes = rustix::io::ioctl_fionread(&*stderr).expect("a pipe reports its length");
        let mut text = vec![0; usize::try_from(bytes).expect("not more than a pipe holds")];
        stderr.read_exact(&mut text).expect("the pipe can be read");
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// Sends a signal to the host's process.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process can be signalled");
    }

    /// Stops all processes of the node, as if its machine were paused.
    pub fn pause(&self) {
        self.pause_host();
        self.children("").into_iter().for_each(|child| kill_process(child, Signal::STOP).expect("it can be stopped"));
    }

    /// Continues all processes of the node.
    pub fn resume(&self) {
        self.children("").into_iter().for_each(|child| kill_process(child, Signal::CONT).expect("it can be continued"));
        self.signal(Signal::CONT);
    }

    /// The runners, including the runners that wait for the next term.
    pub fn runners(&self) -> Vec<Pid> {
        self.children("baton-runner")
    }

    /// The template processes. Each holds one linked version, and forks the runners of that version.
    pub fn templates(&self) -> Vec<Pid> {
        self.children("baton-template")
    }

    /// The host's running child processes whose names contain `name`.
    fn children(&self, name: &str) -> Vec<Pid> {
        let comm = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let named = children_of(self.pid()).into_iter().filter(|pid| comm(pid).contains(name));
        named.filter_map(Pid::from_raw).collect()
    }

    /// Stops the host's process at a moment when it holds no lock on the embedded store. If the stopped host held
    /// SQLite's lock, no other node could take over.
    pub fn pause_host(&self) {
        until(&format!("a moment in which {} has locked no file", self.name), || {
            self.signal(Signal::STOP);
            // Wait until all threads have stopped, because a thread that still runs may take a lock.
            waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED).expect("it stops");
            let locks = self.record_locks();
            if locks.is_empty() {
                return Ok(());
            }
            self.signal(Signal::CONT);
            // A request to the store takes a few milliseconds. If the host were stopped again at once, the request
            // would make no progress.
            std::thread::sleep(Duration::from_millis(20));
            Err(locks)
        });
    }

    /// Returns the POSIX record locks that the host holds. In a host, only SQLite takes such locks.
    fn record_locks(&self) -> Vec<String> {
        let locks = std::fs::read_to_string("/proc/locks").expect("the system lists its locks");
        let pid = self.pid().to_string();
        let is_own = |line: &&str| {
            let mut words = line.split_whitespace().skip(1);
            // A line looks like this: `1: POSIX  ADVISORY  WRITE 4711 fe:00:1234 1073741824 1073741824`.
            words.next() == Some("POSIX") && words.nth(2) == Some(&pid)
        };
        locks.lines().filter(is_own).map(str::to_owned).collect()
    }

    /// The host's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for this node's first event that passes `test`.
    pub fn event(&self, what: &str, mut test: impl FnMut(&Event) -> bool) -> Event {
        self.journal.event(&format!("{what} of {}", self.name), |event| event.from == self.name && test(event))
    }

    /// Waits for this node's first `name` event in a term higher than `above`.
    pub fn after(&self, above: u64, name: &str) -> Event {
        self.event(&format!("`{name}` above term {above}"), |event| event.name == name && event.term > above)
    }

    /// Returns true if the host still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Waits until the host exits and its log has been read.
    pub fn wait(&mut self) -> ExitStatus {
        let Some(status) = wait_for_end(&mut self.child) else {
            self.journal.fail(&format!("{} does not end", self.name));
        };
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader does not panic");
        }
        status
    }

    /// Sends SIGTERM and waits until the host exits.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process. Both calls fail only if the process has already been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// The result of a command that exits by itself.
pub struct Finished {
    /// The exit status.
    pub code: Option<i32>,
    /// The command's standard output.
    pub stdout: String,
    /// The command's standard error, which contains its log and its errors.
    pub stderr: String,
}

impl Finished {
    /// Parses the standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("not JSON: {error}\n{self:?}"))
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {:?}\nstdout: {}\nstderr: {}", self.code, self.stdout, self.stderr)
    }
}

fn make_cache_key(home: &Path) {
    let folder = home.join(".local/state/baton");
    std::fs::create_dir_all(&folder).expect("a folder");
    match std::fs::File::options().write(true).create_new(true).mode(0o600).open(folder.join("cache.key")) {
        Ok(mut key) => key.write_all(&[7; 32]).expect("the key is written"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}"),
    }
}

/// A command that runs the `baton` binary in the folder `home`. The process inherits only `PATH` from this process's
/// environment.
pub fn baton(home: &Path) -> Command {
    at_home(&crate::baton_binary(), home)
}

/// A command that runs `program` in the folder `home`. The process inherits only `PATH` from this process's
/// environment.
pub fn at_home(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("HOME", home).current_dir(home);
    command
}

/// The running child processes of `parent`.
pub fn children_of(parent: u32) -> Vec<i32> {
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The process's state and its parent are the third and the fourth field. They follow the name, which is in
        // parentheses.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let has_exited = fields.next() == Some("Z");
        !has_exited && fields.next().and_then(|field| field.parse().ok()) == Some(parent)
    };
    let all = std::fs::read_dir("/proc").expect("the system lists its processes");
    all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// Returns a command that runs `command` in a new mount namespace, after the shell commands `setup` have run there. The
/// process keeps its pid.
pub fn with_mounts(command: &Command, setup: &str) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh"]);
    after(unshare, command, setup)
}

/// Returns a command that runs `command` with a limit on its file descriptors. `limit` holds the arguments of `ulimit`,
/// such as `-Sn 100`. The process keeps its pid.
pub fn with_descriptors(command: &Command, limit: &str) -> Command {
    after(Command::new("sh"), command, &format!("ulimit {limit}"))
}

fn after(mut shell: Command, command: &Command, setup: &str) -> Command {
    shell.args(["-ec", &format!("{setup}\nexec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args()).env_clear();
    for (key, value) in command.get_envs() {
        shell.env(key, value.unwrap_or_default());
    }
    if let Some(folder) = command.get_current_dir() {
        shell.current_dir(folder);
    }
    shell
}

/// Runs a command until it exits. Kills it and panics if the wait times out.
pub fn finish(command: Command) -> Finished {
    finish_with_input(command, b"")
}

/// Like [`finish`], with `input` on the command's standard input. If the command neither reads nor closes its input,
/// `input` must fit into a pipe.
pub fn finish_with_input(mut command: Command, input: &[u8]) -> Finished {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    if let Some(mut stdin) = child.stdin.take() {
        // The write fails if the command closes its input without reading it.
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

/// Calls `attempt` until it succeeds. Panics with the last error if the wait times out.
pub fn until<T, E: fmt::Debug>(what: &str, mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let mut patience = Patience::default();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) => assert!(patience.lasts(), "waited in vain for {what}: {error:?}"),
        }
        // Leave the CPU to the processes for which the test waits.
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

/// Waits until a process exits. Returns `None` if the wait times out.
pub fn wait_for_end(child: &mut Child) -> Option<ExitStatus> {
    Patience::poll(Duration::from_millis(10), || child.try_wait().expect("a child can be waited for")).ok()
}
