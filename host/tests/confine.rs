//! What a confined process can still do: this program starts itself, confined, and tries to reach whatever is outside.
//! First it does so free, since an attempt that never succeeds shows nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Output, Stdio, exit};

use baton::confine::{Code, missing, to_computing};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    Pid, PidfdFlags, Resource, Signal, getrlimit, kill_process, pidfd_open, setpriority_process, test_kill_process,
};

/// The variable that says how this program was started by itself.
const AS: &str = "CONFINE_TEST_AS";

/// What a confined process is set on, as its arguments.
struct Targets {
    /// A process of the same user.
    victim: Pid,
    /// A TCP port of this machine where somebody listens.
    port: u16,
    /// The name of an abstract socket where somebody listens.
    name: String,
    /// A folder that the user may write.
    folder: String,
}

/// Something that a process tries, by a name.
type Attempt = (&'static str, fn(&Targets) -> io::Result<()>);

/// What one that loads code can do all the same.
const LOADS: &str = "makes memory run";

/// What no confined process can do, and any other can.
const OUTSIDE: &[Attempt] = &[
    ("reads a file", |_| File::open("/etc/passwd").map(drop)),
    ("looks at a file", |_| fs::metadata("/etc/passwd").map(drop)),
    ("lists a folder", |_| fs::read_dir("/").map(drop)),
    ("writes a file", |targets| fs::write(format!("{}/written", targets.folder), "x")),
    ("reads what is known of itself", |_| fs::read("/proc/self/maps").map(drop)),
    ("reads another's environment", |targets| {
        fs::read(format!("/proc/{}/environ", targets.victim.as_raw_nonzero())).map(drop)
    }),
    ("changes its folder", |_| std::env::set_current_dir("/")),
    ("connects by TCP", |targets| TcpStream::connect(("127.0.0.1", targets.port)).map(drop)),
    ("listens by TCP", |_| TcpListener::bind("127.0.0.1:0").map(drop)),
    ("sends by UDP", |targets| UdpSocket::bind("127.0.0.1:0")?.send_to(b"x", ("127.0.0.1", targets.port)).map(drop)),
    ("makes a pair of sockets", |_| UnixStream::pair().map(drop)),
    ("connects to an abstract socket", |targets| {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(&targets.name)?).map(drop)
    }),
    ("starts a program", |_| Command::new("/bin/true").status().map(drop)),
    ("asks whether another can be signalled", |targets| Ok(test_kill_process(targets.victim)?)),
    ("signals another", |targets| Ok(kill_process(targets.victim, Signal::URG)?)),
    ("signals its parent", |_| {
        let parent = rustix::process::getppid().ok_or(io::ErrorKind::NotFound)?;
        Ok(kill_process(parent, Signal::URG)?)
    }),
    ("holds another", |targets| Ok(pidfd_open(targets.victim, PidfdFlags::empty()).map(drop)?)),
    ("slows another down", |targets| Ok(setpriority_process(Some(targets.victim), 19)?)),
    ("makes a pipe", |_| io::pipe().map(drop)),
    ("makes a file in memory", |_| Ok(memfd_create("x", MemfdFlags::CLOEXEC).map(drop)?)),
    ("makes memory that runs", |_| map(libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE, 0)),
    (LOADS, |_| map(libc::PROT_READ, libc::MAP_PRIVATE, libc::PROT_READ | libc::PROT_EXEC)),
    ("makes memory that is shared", |_| map(libc::PROT_READ, libc::MAP_SHARED, 0)),
    ("uses a descriptor that it inherited by mistake", |_| {
        // SAFETY: it is only asked about, and not closed.
        let inherited = unsafe { BorrowedFd::borrow_raw(INHERITED) };
        Ok(rustix::io::fcntl_getfd(inherited).map(drop)?)
    }),
];

/// What a confined process can do as before.
const INSIDE: &[Attempt] = &[
    ("has threads", |_| {
        let threads: Vec<_> = (0..8).map(|n| std::thread::spawn(move || n)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map(drop)).map_err(|_| io::Error::other("a panic"))
    }),
    ("has memory", |_| {
        std::hint::black_box(vec![1_u8; 256 << 20]);
        Ok(())
    }),
    ("knows the time", |_| {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        if used.tv_nsec > 0 { Ok(()) } else { Err(io::ErrorKind::Other.into()) }
    }),
    ("sleeps", |_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        Ok(())
    }),
    ("is unpredictable", |_| getrandom::fill(&mut [0; 8]).map_err(io::Error::other)),
    ("reads its limits", |_| getrlimit(Resource::Nofile).current.map(drop).ok_or(io::ErrorKind::NotFound.into())),
    ("copies a descriptor", |_| io::stdout().as_fd().try_clone_to_owned().map(drop)),
    ("reads what it was given", |_| io::stdin().read(&mut [0]).map(drop)),
];

/// A descriptor that whoever starts this program leaves open.
const INHERITED: i32 = 9;

/// Makes a page of memory, protects it in another way if that is not 0, and gives it back.
fn map(protection: i32, flags: i32, then: i32) -> io::Result<()> {
    let done = |answer: i32| if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the memory is made here, nothing of it is used, and it is given back.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), 4096, protection, flags | libc::MAP_ANONYMOUS, -1, 0);
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let protected = if then == 0 { Ok(()) } else { done(libc::mprotect(memory, 4096, then)) };
        done(libc::munmap(memory, 4096)).and(protected)
    }
}

fn main() {
    match std::env::var(AS).as_deref() {
        Ok("free") => attempt(),
        Ok("confined") => {
            to_computing(Code::HandsOver).expect("it is confined");
            attempt();
        }
        Ok("loads") => {
            to_computing(Code::Loads).expect("it is confined");
            attempt();
        }
        Ok("waits") => {
            to_computing(Code::HandsOver).expect("it is confined");
            println!("ready");
            let _ = io::stdin().read(&mut [0]);
        }
        Ok("aborts") => {
            to_computing(Code::HandsOver).expect("it is confined");
            std::process::abort();
        }
        _ => test(),
    }
}

/// Tries everything, and says what became of it.
fn attempt() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [victim, port, name, folder] = &arguments[..] else { panic!("{arguments:?}") };
    let targets = Targets {
        victim: Pid::from_raw(victim.parse().expect("a number")).expect("a process"),
        port: port.parse().expect("a port"),
        name: name.clone(),
        folder: folder.clone(),
    };
    for (name, what) in OUTSIDE.iter().chain(INSIDE) {
        match what(&targets) {
            Ok(()) => println!("{name}: done"),
            Err(error) => println!("{name}: {error}"),
        }
    }
    exit(0)
}

fn test() {
    assert!(missing().is_empty(), "this kernel lacks what is tested here: {:?}", missing());
    let mut victim = Command::new("sleep");
    let victim = victim.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut victim = Ended(victim.spawn().expect("a process"));
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let name = format!("confine-{}", std::process::id());
    let unix = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).expect("a name")).expect("a socket");
    let folder = tempfile::tempdir().expect("a folder");
    let port = tcp.local_addr().expect("its port").port();
    let targets = [victim.0.id().to_string(), port.to_string(), name, folder.path().display().to_string()];

    let free = said(&started("free", &targets));
    for (name, _) in OUTSIDE.iter().chain(INSIDE) {
        assert!(free.contains(&format!("{name}: done")), "nothing keeps it from it, and yet: {name}\n{free}");
    }
    let _ = fs::remove_file(folder.path().join("written"));
    for (way, exception) in [("confined", ""), ("loads", LOADS)] {
        let confined = said(&started(way, &targets));
        for (name, _) in OUTSIDE.iter().filter(|(name, _)| *name != exception) {
            assert!(!confined.contains(&format!("{name}: done")), "a confined process {name}\n{confined}");
            assert!(confined.contains(&format!("{name}: ")), "nothing is said: {name}\n{confined}");
        }
        for name in INSIDE.iter().map(|(name, _)| *name).chain([exception].into_iter().filter(|name| !name.is_empty()))
        {
            assert!(confined.contains(&format!("{name}: done")), "a confined process no longer {name}\n{confined}");
        }
    }
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0);
    assert!(victim.0.try_wait().expect("it is ours").is_none(), "the other process lives");
    let aborted = started("aborts", &targets);
    assert_eq!(aborted.status.signal(), Some(Signal::ABORT.as_raw()), "{aborted:?}");
    has_nothing_left();
    drop(unix);
    println!("{} ways out are closed, {} ways to compute are open", OUTSIDE.len(), INSIDE.len());
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Starts this program in that way, with a descriptor too many.
fn started(way: &str, targets: &[String]) -> Output {
    let (read, _write) = io::pipe().expect("a pipe");
    let inherited = inherit(&read.into());
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(targets)
        .env_clear()
        .env(AS, way)
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    drop(inherited);
    output
}

/// The same descriptor as one that programs inherit.
fn inherit(of: &OwnedFd) -> OwnedFd {
    // SAFETY: the number is free in this program, which opens a handful, and belongs to what is returned.
    unsafe {
        assert_eq!(libc::dup2(of.as_raw_fd(), INHERITED), INHERITED, "{}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(INHERITED)
    }
}

/// What the kernel says of a confined process.
fn has_nothing_left() {
    let mut waits = Command::new(std::env::current_exe().expect("this program"));
    let waits = waits.env_clear().env(AS, "waits").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut waits = Ended(waits.spawn().expect("it starts"));
    let mut said = [0; 6];
    waits.0.stdout.take().expect("a pipe").read_exact(&mut said).expect("it says so");
    let status = fs::read_to_string(format!("/proc/{}/status", waits.0.id())).expect("it runs");
    for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line} is not there: {status}");
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
