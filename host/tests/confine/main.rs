//! What a confined process can still do: this program starts itself, confined, and tries to reach whatever is outside.
//! First it does so free, since an attempt that never succeeds shows nothing.
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

use baton_runtime::confine::{
    Code, Reach, close_others, missing, to_computing, to_forking, to_linking, to_loading, to_running,
};
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, Signal};

use computing::{CONNECTS, HAS_THREADS, INHERITS, INSIDE, KEEPS_IN_MEMORY, LOADS, LOOKS, OUTSIDE, PAIRS};
use running::{ALWAYS, FILES, LOADING, Made, NETWORK, NEVER, RUNS, UNKNOWN};

/// The variable that says how this program was started by itself.
const AS: &str = "CONFINE_TEST_AS";
/// The variable that says what it does then. Without one it attempts everything.
const DOES: &str = "CONFINE_TEST_DOES";

/// Descriptors that the process that starts this program leaves open: a pipe to read from, and a socket.
const INHERITED: i32 = 90;
const INHERITED_SOCKET: i32 = 91;

/// What a confined process is set on, and what it has.
struct Targets {
    /// A process of the same user.
    victim: Pid,
    /// Who started it.
    parent: Pid,
    /// Where somebody listens on this machine, and says back what is said.
    address: TcpAddr,
    /// The name of an abstract socket where somebody listens.
    name: String,
    /// A folder that the user may write.
    folder: PathBuf,
    /// Folders that a runner may use, the last of them to read.
    granted: PathBuf,
    other: PathBuf,
    read: PathBuf,
    /// What a runner makes for itself.
    made: Option<Made>,
}

/// Something that a process tries, by a name.
type Attempt = (&'static str, fn(&Targets) -> io::Result<()>);

/// How a process is confined.
#[derive(Clone, Copy)]
enum Way {
    Free,
    Computing(Code),
    Loading { granted: bool },
    Running { granted: bool },
    Linking { network: bool },
}

/// All of them, by the names that they are started with.
const WAYS: &[(&str, Way)] = &[
    ("free", Way::Free),
    ("confined", Way::Computing(Code::HandsOver)),
    ("loads", Way::Computing(Code::Loads)),
    ("a runner that loads", Way::Loading { granted: true }),
    ("a runner", Way::Running { granted: true }),
    ("a runner that loads and has nothing", Way::Loading { granted: false }),
    ("a runner that has nothing", Way::Running { granted: false }),
    ("links", Way::Linking { network: false }),
    ("links across machines", Way::Linking { network: true }),
];

impl Way {
    /// Whether what it tries is what a guest could.
    fn has_a_guest(self) -> bool {
        !matches!(self, Self::Computing(_) | Self::Linking { .. })
    }

    fn is_runner(self) -> bool {
        matches!(self, Self::Loading { .. } | Self::Running { .. })
    }

    /// What is attempted in this way: all that a process tries that only computes, and more.
    fn tables(self) -> &'static [&'static [Attempt]] {
        const ALL: &[&[Attempt]] = &[OUTSIDE, INSIDE, LOADING, ALWAYS, FILES, NETWORK, NEVER];
        if self.has_a_guest() { ALL } else { &ALL[..2] }
    }

    /// The names of what is attempted.
    fn attempts(self) -> Vec<&'static str> {
        let calls = UNKNOWN.iter().map(|(name, _)| *name).chain([RUNS]);
        let calls = self.has_a_guest().then_some(calls);
        self.tables().iter().copied().flatten().map(|(name, _)| *name).chain(calls.into_iter().flatten()).collect()
    }

    /// The names of those attempts that succeed.
    fn does(self) -> Vec<&'static str> {
        let names = |attempts: &[Attempt]| attempts.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let (granted, loads) = match self {
            Self::Free => return self.attempts(),
            Self::Computing(Code::HandsOver) => return names(INSIDE),
            Self::Computing(Code::Loads) => return [names(INSIDE), vec![LOADS]].concat(),
            Self::Linking { network } => {
                let mut does = names(INSIDE);
                does.retain(|name| *name != HAS_THREADS);
                does.extend(network.then_some(CONNECTS));
                return does;
            }
            Self::Loading { granted } => (granted, true),
            Self::Running { granted } => (granted, false),
        };
        let mut does = [names(INSIDE), names(ALWAYS), vec![INHERITS]].concat();
        match loads {
            true => does.extend(names(LOADING).into_iter().chain([LOADS, LOOKS, PAIRS, KEEPS_IN_MEMORY])),
            false => does.retain(|name| *name != HAS_THREADS),
        }
        if granted {
            does.extend(names(FILES).into_iter().chain(names(NETWORK)).chain([LOOKS, CONNECTS]));
        }
        does
    }

    /// Confines this process so.
    fn take(self, targets: &mut Targets) {
        match self {
            Self::Free => targets.made = Some(Made::new().expect("a runtime")),
            Self::Computing(code) => to_computing(code).expect("it is confined"),
            Self::Linking { network } => {
                close_others().expect("it has its standard streams");
                to_linking(network).expect("it is confined");
            }
            Self::Loading { granted } | Self::Running { granted } => {
                let open = |path: &Path| running::folder(path).expect("a folder");
                let folders = [(&targets.granted, false), (&targets.other, false), (&targets.read, true)];
                let folders = folders.map(|(path, read_only)| (open(path), read_only));
                let folders = folders.each_ref().map(|(folder, read_only)| (folder.as_fd(), *read_only));
                // As the process is that runners are forked by.
                to_forking().expect("it is confined");
                let folders: &[_] = if granted { &folders } else { &[] };
                let reach = Reach { folders, files: granted, network: granted, holds: None };
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
        self.made.as_ref().expect("a runner makes it")
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
            way.take(&mut targets);
            match does.as_str() {
                "waits" => wait(),
                "aborts" => std::process::abort(),
                _ => attempt(*way, &targets),
            }
        }
    }
}

/// Tries everything, and says what became of it.
fn attempt(way: Way, targets: &Targets) {
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

/// A process that could be traced where the system asks the traced one.
const VICTIM: &str = "a victim";

fn be_a_victim() {
    // SAFETY: this takes a number, no address. Where the system does not ask, it does not know it either.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    wait();
}

/// Says that it is there, until nobody wants to know.
fn wait() {
    println!("ready");
    let _ = io::stdin().read(&mut [0]);
}

fn test() {
    assert!(missing().is_empty(), "this kernel lacks what is tested here: {:?}", missing());
    let mut victim = waiting(Command::new(std::env::current_exe().expect("this program")).env(AS, VICTIM));
    let port = says_back();
    let name = format!("confine-{}", std::process::id());
    let unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).expect("a name")).expect("a socket");
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path().canonicalize().expect("its path");
    make_folders(&root).expect("folders");
    let targets = [victim.0.id().to_string(), port.to_string(), name, root.display().to_string()];

    let mut closed = 0;
    for (name, way) in WAYS {
        let said = said(&started(name, "", &targets));
        let does = way.does();
        for attempt in way.attempts() {
            let done = said.lines().any(|line| line == format!("{attempt}: done"));
            let tried = said.lines().any(|line| line.starts_with(&format!("{attempt}: ")));
            assert!(tried, "nothing is said by {name}: {attempt}\n{said}");
            assert_eq!(done, does.contains(&attempt), "{name}: {attempt}\n{said}");
            closed += usize::from(!done);
        }
        let _ = fs::remove_file(root.join("folder/written"));
        assert_eq!(found(&root), ALL, "{name} leaves the folders as they were");
        let aborted = started(name, "aborts", &targets);
        assert_eq!(aborted.status.signal(), Some(Signal::ABORT.as_raw()), "{name}: {aborted:?}");
        if !matches!(way, Way::Free) {
            has_nothing_left(name, *way, &targets);
        }
    }
    assert!(victim.0.try_wait().expect("it is ours").is_none(), "the other process lives");
    drop(unix);
    println!("{closed} ways out are closed to {} kinds of processes", WAYS.len() - 1);
}

/// Everything in the folders.
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

/// What is in the folders now.
fn found(root: &Path) -> Vec<String> {
    let names = |path: &Path| -> Vec<PathBuf> {
        fs::read_dir(path).map_or_else(|_| Vec::new(), |entries| entries.flatten().map(|entry| entry.path()).collect())
    };
    let below = names(root);
    let all = below.iter().flat_map(|path| names(path)).chain(below.clone());
    let mut all: Vec<_> = all.map(|path| path.strip_prefix(root).expect("below it").display().to_string()).collect();
    all.sort();
    all
}

/// Listens at a port, and says back to everybody what they say.
fn says_back() -> u16 {
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = tcp.local_addr().expect("its port").port();
    std::thread::spawn(move || {
        for connection in tcp.incoming().flatten() {
            std::thread::spawn(move || io::copy(&mut &connection, &mut &connection));
        }
    });
    port
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Starts this program in that way, with descriptors too many.
fn started(way: &str, does: &str, targets: &[String]) -> Output {
    let (read, _write) = io::pipe().expect("a pipe");
    let (socket, _other) = UnixStream::pair().expect("a pair of sockets");
    let inherited = [inherit(&read.into(), INHERITED), inherit(&socket.into(), INHERITED_SOCKET)];
    let output = this(way, does, targets).stdin(Stdio::null()).output().expect("it starts");
    drop(inherited);
    output
}

fn this(way: &str, does: &str, targets: &[String]) -> Command {
    let mut this = Command::new(std::env::current_exe().expect("this program"));
    this.args(targets).env_clear().env(AS, way).env(DOES, does);
    this
}

/// The same descriptor as one that programs inherit.
fn inherit(of: &OwnedFd, number: i32) -> OwnedFd {
    // SAFETY: the number is free in this program, which opens few, and belongs to what is returned.
    unsafe {
        assert_eq!(libc::dup2(of.as_raw_fd(), number), number, "{}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(number)
    }
}

/// Starts a process that says that it is there.
fn waiting(command: &mut Command) -> Ended {
    let mut waits = Ended(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut said = [0; 6];
    waits.0.stdout.take().expect("a pipe").read_exact(&mut said).expect("it says so");
    waits
}

/// What the kernel says of a confined process, and of each of its threads.
fn has_nothing_left(name: &str, way: Way, targets: &[String]) {
    let waits = waiting(&mut this(name, "waits", targets));
    let filters = match way {
        Way::Free => 0,
        Way::Computing(_) | Way::Linking { .. } => 1,
        Way::Loading { .. } => 2,
        Way::Running { .. } => 3,
    };
    let threads: Vec<_> = fs::read_dir(format!("/proc/{}/task", waits.0.id())).expect("it runs").flatten().collect();
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

/// A child that ends with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
