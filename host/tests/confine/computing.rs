//! The attempts that every process of the test makes. In a process that only computes, all attempts in [`OUTSIDE`]
//! fail, except for [`LOADS`] if the process may load code. In a runner, most attempts in [`OUTSIDE`] fail.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::Command;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{
    PidfdFlags, Resource, Signal, getrlimit, kill_process, pidfd_open, setpriority_process, test_kill_process,
};

use super::{Attempt, INHERITED};

// Names of attempts that succeed in some confined processes and fail in others.
pub const LOADS: &str = "makes memory run";
pub const LOOKS: &str = "looks at a file";
pub const CONNECTS: &str = "connects by TCP";
pub const PAIRS: &str = "makes a pair of sockets";
pub const KEEPS_IN_MEMORY: &str = "makes a file in memory";
pub const INHERITS: &str = "uses a descriptor that it inherited by mistake";
pub const HAS_THREADS: &str = "has threads";

/// Attempts that succeed in an unconfined process, and fail in confined processes. The exceptions are among the
/// constants above: they succeed in some confined processes.
pub const OUTSIDE: &[Attempt] = &[
    ("reads a file", |_| File::open("/etc/passwd").map(drop)),
    (LOOKS, |_| fs::metadata("/etc/passwd").map(drop)),
    ("lists a folder", |_| fs::read_dir("/").map(drop)),
    ("writes a file", |targets| fs::write(targets.folder.join("written"), "x")),
    ("reads what is known of itself", |_| fs::read("/proc/self/maps").map(drop)),
    ("reads another's environment", |targets| {
        fs::read(format!("/proc/{}/environ", targets.victim.as_raw_nonzero())).map(drop)
    }),
    ("changes its folder", |_| std::env::set_current_dir("/")),
    (CONNECTS, |targets| TcpStream::connect(targets.address).map(drop)),
    ("listens by TCP", |_| TcpListener::bind("127.0.0.1:0").map(drop)),
    ("sends by UDP", |targets| UdpSocket::bind("127.0.0.1:0")?.send_to(b"x", targets.address).map(drop)),
    (PAIRS, |_| UnixStream::pair().map(drop)),
    ("connects to an abstract socket", |targets| {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(&targets.name)?).map(drop)
    }),
    ("starts a program", |_| Command::new("/bin/true").status().map(drop)),
    ("asks whether another can be signalled", |targets| Ok(test_kill_process(targets.victim)?)),
    ("signals another", |targets| Ok(kill_process(targets.victim, Signal::URG)?)),
    ("signals its parent", |targets| Ok(kill_process(targets.parent, Signal::URG)?)),
    ("holds another", |targets| Ok(pidfd_open(targets.victim, PidfdFlags::empty()).map(drop)?)),
    ("slows another down", |targets| Ok(setpriority_process(Some(targets.victim), 19)?)),
    ("makes a pipe", |_| io::pipe().map(drop)),
    (KEEPS_IN_MEMORY, |_| Ok(memfd_create("x", MemfdFlags::CLOEXEC).map(drop)?)),
    ("makes memory that runs", |_| map(libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE, 0)),
    (LOADS, |_| map(libc::PROT_READ, libc::MAP_PRIVATE, libc::PROT_READ | libc::PROT_EXEC)),
    ("makes memory that is shared", |_| map(libc::PROT_READ, libc::MAP_SHARED, 0)),
    (INHERITS, |_| {
        // SAFETY: `fcntl` only queries the descriptor, and fails if it is not open. Nothing closes it meanwhile.
        let inherited = unsafe { BorrowedFd::borrow_raw(INHERITED) };
        Ok(rustix::io::fcntl_getfd(inherited).map(drop)?)
    }),
];

/// Attempts that also succeed in a confined process. The only exception is [`HAS_THREADS`], which fails in a runner
/// after its last confinement.
pub const INSIDE: &[Attempt] = &[
    (HAS_THREADS, |_| {
        let start = |n| std::thread::Builder::new().spawn(move || n);
        let threads = (0..8).map(start).collect::<io::Result<Vec<_>>>()?;
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

/// Maps a page of memory, and unmaps it. In between, changes the page's protection to `then`, unless `then` is 0.
fn map(protection: i32, flags: i32, then: i32) -> io::Result<()> {
    let done = |answer: i32| if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: the kernel chooses free memory. Nothing accesses it before it is unmapped here.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), 4096, protection, flags | libc::MAP_ANONYMOUS, -1, 0);
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let protected = if then == 0 { Ok(()) } else { done(libc::mprotect(memory, 4096, then)) };
        done(libc::munmap(memory, 4096)).and(protected)
    }
}
