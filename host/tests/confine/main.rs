//! Tests that each kind of confined process reaches only what it is allowed to reach. This program starts copies of
//! itself. Each copy except the first confines itself, and then attempts to reach the outside. In the first copy, all
//! attempts must succeed. This shows that the attempts themselves work, so if they fail in another copy, the
//! confinement is the cause.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]

mod computing;
mod running;

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr as TcpAddr, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio, exit};

use baton_runtime::confine::{Code, RunnerReach, missing, to_computing, to_forking, to_loading, to_running};
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, Signal};

use computing::{CONNECTS, HAS_THREADS, INHERITS, INSIDE, KEEPS_IN_MEMORY, LOADS, LOOKS, OUTSIDE, PAIRS};
use running::{ALWAYS, FILES, LOADING, Made, NETWORK, NEVER, RUNS, UNKNOWN};

/// The variable that selects the [`Confinement`] of a child process.
const AS: &str = "CONFINE_TEST_AS";
/// The variable that selects what a child process does once it is confined. Without the variable, the process makes all
/// attempts.
const DOES: &str = "CONFINE_TEST_DOES";

/// Two descriptors that each child process inherits from the test, as if by mistake: the reading end of a pipe, and a
/// socket.
const INHERITED: i32 = 90;
const INHERITED_SOCKET: i32 = 91;

struct Targets {
    victim: Pid,
    parent: Pid,
    /// The address of an echo server on this machine.
    address: TcpAddr,
    /// The name of an abstract socket that accepts connections.
    name: String,
    /// A folder to which the user may write, but no runner may.
    folder: PathBuf,
    /// Folders to which some runners may write.
    granted: PathBuf,
    other: PathBuf,
    /// A folder that runners with access to `granted` may read but not write.
    read: PathBuf,
    /// The objects that a runner creates before its last confinement.
    made: Option<Made>,
}

type Attempt = (&'static str, fn(&Targets) -> io::Result<()>);

#[derive(Clone, Copy)]
enum Confinement {
    Free,
    Computing(Code),
    Loading { granted: bool },
    Running { granted: bool },
}

/// All confinements, with the values of [`AS`] that select them.
const WAYS: &[(&str, Confinement)] = &[
    ("free", Confinement::Free),
    ("confined", Confinement::Computing(Code::HandsOver)),
    ("loads", Confinement::Computing(Code::Loads)),
    ("a runner that loads", Confinement::Loading { granted: true }),
    ("a runner", Confinement::Running { granted: true }),
    ("a runner that loads and has nothing", Confinement::Loading { granted: false }),
    ("a runner that has nothing", Confinement::Running { granted: false }),
];

impl Confinement {
    fn has_a_guest(self) -> bool {
        !matches!(self, Self::Computing(_))
    }

    fn is_runner(self) -> bool {
        matches!(self, Self::Loading { .. } | Self::Running { .. })
    }

    /// The attempts that a process with this confinement makes, except for the system calls in [`UNKNOWN`] and for
    /// [`RUNS`].
    fn tables(self) -> &'static [&'static [Attempt]] {
        const ALL: &[&[Attempt]] = &[OUTSIDE, INSIDE, LOADING, ALWAYS, FILES, NETWORK, NEVER];
        if self.has_a_guest() { ALL } else { &ALL[..2] }
    }

    fn attempts(self) -> Vec<&'static str> {
        let calls = UNKNOWN.iter().map(|(name, _)| *name).chain([RUNS]);
        let calls = self.has_a_guest().then_some(calls);
        self.tables().iter().copied().flatten().map(|(name, _)| *name).chain(calls.into_iter().flatten()).collect()
    }

    /// The names of the attempts that must succeed.
    fn allowed(self) -> Vec<&'static str> {
        let names = |attempts: &[Attempt]| attempts.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let (granted, loads) = match self {
            Self::Free => return self.attempts(),
            Self::Computing(Code::HandsOver) => return names(INSIDE),
            Self::Computing(Code::Loads) => return [names(INSIDE), vec![LOADS]].concat(),
            Self::Loading { granted } => (granted, true),
            Self::Running { granted } => (granted, false),
        };
        let mut allowed = [names(INSIDE), names(ALWAYS), vec![INHERITS]].concat();
        match loads {
            true => allowed.extend(names(LOADING).into_iter().chain([LOADS, LOOKS, PAIRS, KEEPS_IN_MEMORY])),
            false => allowed.retain(|name| *name != HAS_THREADS),
        }
        if granted {
            allowed.extend(names(FILES).into_iter().chain(names(NETWORK)).chain([LOOKS, CONNECTS]));
        }
        allowed
    }

    fn confine(self, targets: &mut Targets) {
        match self {
            Self::Free => targets.made = Some(Made::new().expect("a runtime")),
            Self::Computing(code) => to_computing(code).expect("it is confined"),
            Self::Loading { granted } | Self::Running { granted } => {
                let open = |path: &Path| running::folder(path).expect("a folder");
                let folders = [(&targets.granted, false), (&targets.other, false), (&targets.read, true)];
                let folders = folders.map(|(path, read_only)| (open(path), read_only));
                let folders = folders.each_ref().map(|(folder, read_only)| (folder.as_fd(), *read_only));
                // A runner starts with the confinement of the process that forks it, so apply that confinement first.
                to_forking().expect("it is confined");
                let folders: &[_] = if granted { &folders } else { &[] };
                let reach = RunnerReach { folders, files: granted, network: granted, holds: None };
                to_loading(&reach).expect("it is confined");
                targets.made = Some(Made::new().expect("a runtime"));
                if let Self::Running { .. } = self {
                    to_running(&reach).expect("it is confined finally");
                }
            }
        }
    }
}

impl Targets {
    fn from_arguments() -> Self {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [victim, port, name, root] = &arguments[..] else { panic!("{arguments:?}") };
        let root = Path::new(root);
        Self {
            victim: Pid::from_raw(victim.parse().expect("a number")).expect("a process"),
            parent: rustix::process::getppid().expect("a process"),
            address: (Ipv4Addr::LOCALHOST, port.parse().expect("a port")).into(),
            name: name.clone(),
            folder: root.join("folder"),
            granted: root.join("granted"),
            other: root.join("other"),
            read: root.join("read"),
            made: None,
        }
    }

    fn made(&self) -> &Made {
        self.made.as_ref().expect("the process is a runner")
    }
}

fn main() {
    match std::env::var(AS) {
        Err(_) => {
            let trial = Trial::test("each_kind_of_process_reaches_only_what_it_may", || {
                test();
                Ok(())
            });
            libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit()
        }
        Ok(victim) if victim == VICTIM => be_a_victim(),
        Ok(way) => {
            let (_, way) = WAYS.iter().find(|(name, _)| *name == way).expect("a way");
            let mut targets = Targets::from_arguments();
            let does = std::env::var(DOES).unwrap_or_default();
            way.confine(&mut targets);
            match does.as_str() {
                "waits" => wait(),
                "aborts" => std::process::abort(),
                _ => attempt(*way, &targets),
            }
        }
    }
}

fn attempt(way: Confinement, targets: &Targets) {
    let say = |name: &str, outcome: io::Result<()>| match outcome {
        Ok(()) => println!("{name}: done"),
        Err(error) => println!("{name}: {error}"),
    };
    for (name, what) in way.tables().iter().copied().flatten() {
        say(name, what(targets));
    }
    if way.has_a_guest() {
        for (name, call) in UNKNOWN {
            say(name, running::knows(*call));
        }
        io::stdout().flush().expect("its output is read");
        say(RUNS, Err(running::run(targets)));
    }
    exit(0)
}

/// The value of [`AS`] for a process that permits any other process to trace it.
const VICTIM: &str = "a victim";

fn be_a_victim() {
    // SAFETY: all arguments are integers, so the call accesses no memory. On a kernel without Yama, the call fails,
    // which does no harm.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    wait();
}

fn wait() {
    println!("ready");
    let _ = io::stdin().read(&mut [0]);
}

fn test() {
    assert!(missing().is_empty(), "this kernel lacks what is tested here: {:?}", missing());
    let mut victim = waiting(Command::new(std::env::current_exe().expect("this program")).env(AS, VICTIM));
    let port = start_echo_server();
    let name = format!("confine-{}", std::process::id());
    let unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).expect("a name")).expect("a socket");
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path().canonicalize().expect("its path");
    make_folders(&root).expect("folders");
    let targets = [victim.0.id().to_string(), port.to_string(), name, root.display().to_string()];

    let mut closed = 0;
    for (name, way) in WAYS {
        let output = output_of(&run(name, "", &targets));
        let allowed = way.allowed();
        for attempt in way.attempts() {
            let done = output.lines().any(|line| line == format!("{attempt}: done"));
            let tried = output.lines().any(|line| line.starts_with(&format!("{attempt}: ")));
            assert!(tried, "{name} has not attempted: {attempt}\n{output}");
            assert_eq!(done, allowed.contains(&attempt), "{name}: {attempt}\n{output}");
            closed += usize::from(!done);
        }
        let _ = fs::remove_file(root.join("folder/written"));
        assert_eq!(entries(&root), ALL, "{name} has changed the folders");
        let aborted = run(name, "aborts", &targets);
        assert_eq!(aborted.status.signal(), Some(Signal::ABORT.as_raw()), "{name}: {aborted:?}");
        if !matches!(way, Confinement::Free) {
            check_kernel_status(name, *way, &targets);
        }
    }
    assert!(victim.0.try_wait().expect("it is our child").is_none(), "the other process has exited");
    drop(unix);
    println!("{closed} ways out are closed to {} kinds of processes", WAYS.len() - 1);
}

const ALL: &[&str] =
    &["folder", "granted", "granted/file", "granted/program", "other", "read", "read/empty", "read/file", "secret"];

fn make_folders(root: &Path) -> io::Result<()> {
    for name in ["folder", "granted", "other", "read"] {
        fs::create_dir(root.join(name))?;
    }
    for (name, text) in [("granted/file", "text"), ("read/file", "text"), ("read/empty", ""), ("secret", "x")] {
        fs::write(root.join(name), text)?;
    }
    fs::copy("/bin/echo", root.join("granted/program")).map(drop)
}

fn entries(root: &Path) -> Vec<String> {
    let names = |path: &Path| -> Vec<PathBuf> {
        fs::read_dir(path).map_or_else(|_| Vec::new(), |entries| entries.flatten().map(|entry| entry.path()).collect())
    };
    let below = names(root);
    let all = below.iter().flat_map(|path| names(path)).chain(below.clone());
    let mut all: Vec<_> = all.map(|path| path.strip_prefix(root).expect("below it").display().to_string()).collect();
    all.sort();
    all
}

fn start_echo_server() -> u16 {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = tcp.local_addr().expect("its port").port();
    std::thread::spawn(move || {
        for connection in tcp.incoming().flatten() {
            std::thread::spawn(move || io::copy(&mut &connection, &mut &connection));
        }
    });
    port
}

fn output_of(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a copy of this program, which also inherits two descriptors that it should not have.
fn run(way: &str, does: &str, targets: &[String]) -> Output {
    let (read, _write) = io::pipe().expect("a pipe");
    let (socket, _other) = UnixStream::pair().expect("a pair of sockets");
    let inherited = [inherit(&read.into(), INHERITED), inherit(&socket.into(), INHERITED_SOCKET)];
    let output = command(way, does, targets).stdin(Stdio::null()).output().expect("it starts");
    drop(inherited);
    output
}

fn command(way: &str, does: &str, targets: &[String]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(targets).env_clear().env(AS, way).env(DOES, does);
    command
}

/// Copies a descriptor to `number`. Child processes inherit the copy, because `dup2` does not set `FD_CLOEXEC`.
fn inherit(of: &OwnedFd, number: i32) -> OwnedFd {
    // SAFETY: this program opens few descriptors, so the number is free. The returned value owns the new descriptor.
    unsafe {
        assert_eq!(libc::dup2(of.as_raw_fd(), number), number, "{}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(number)
    }
}

/// Starts a process, and returns once the process has called [`wait`].
fn waiting(command: &mut Command) -> KilledOnDrop {
    let mut process = KilledOnDrop(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut ready = [0; 6];
    process.0.stdout.take().expect("a pipe").read_exact(&mut ready).expect("the process reports that it is ready");
    process
}

/// Checks the capabilities and filters of each thread of a confined process.
fn check_kernel_status(name: &str, way: Confinement, targets: &[String]) {
    let process = waiting(&mut command(name, "waits", targets));
    let filters = match way {
        Confinement::Free => 0,
        Confinement::Computing(_) => 1,
        Confinement::Loading { .. } => 2,
        Confinement::Running { .. } => 3,
    };
    let threads: Vec<_> = fs::read_dir(format!("/proc/{}/task", process.0.id())).expect("it runs").flatten().collect();
    assert_eq!(threads.len() > 1, way.is_runner(), "{name} has {} threads", threads.len());
    for thread in threads {
        let status = fs::read_to_string(thread.path().join("status")).expect("it runs");
        let filters = format!("Seccomp_filters:\t{filters}");
        let nothing = ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"];
        for line in nothing.into_iter().chain([filters.as_str()]) {
            assert!(status.contains(line), "{name}: {line} is not there: {status}");
        }
    }
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
