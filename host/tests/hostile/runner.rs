//! A hostile runner. It is confined like a real runner, reports that it is ready, and then runs the attack that the
//! variable [`EVIL`] of its instance names.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use baton_runtime::Forked;
use baton_runtime::confine::{RunnerReach, to_loading, to_running};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

/// The variable that names the attack.
pub const EVIL: &str = "EVIL";
/// The variable that holds the port of a server on this machine.
pub const PORT: &str = "PORT";
/// The variable that holds the pid of another instance's runner.
pub const NEIGHBOUR: &str = "NEIGHBOUR";

/// The grant that selects an attack before the instance starts: a runner that receives it never reports that it is
/// ready.
pub const NEVER_READY: &str = "http://never-ready.test";
pub const BADLY_READY: &str = "http://badly-ready.test";

/// Returns the path of the folder that the host with this pid grants to some of its runners.
pub fn granted(host: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{host}"))
}

/// The numbers that encode the variants of `FromRunner`. Variants are numbered in the order of their declaration.
mod says {
    pub const READY: u8 = 0;
    pub const FAILED: u8 = 1;
    pub const STARTED: u8 = 2;
    pub const LINE: u8 = 3;
    pub const LOG: u8 = 4;
    pub const DROPPED: u8 = 5;
    pub const DENIED: u8 = 6;
    pub const NEAR_LIMIT: u8 = 7;
    pub const STEP_DOWN: u8 = 9;
    pub const COMMIT: u8 = 10;
    pub const RESOLVE: u8 = 11;
    pub const PANICKED: u8 = 12;
    pub const ENDED: u8 = 13;
}

/// The numbers that encode two variants of `How`. Variants are numbered in the order of their declaration.
const DONE: u8 = 0;
const UNABLE: u8 = 4;

struct Runner {
    host: libc::pid_t,
    from_host: File,
    to_host: Option<File>,
    page: OwnedFd,
    tally: OwnedFd,
    /// The lock file. While this runner holds its lock, other hosts know that the runner is alive.
    lock: OwnedFd,
    /// The addresses at which the page and the tally are mapped.
    mapped: [*mut libc::c_void; 2],
    /// The message that starts the instance.
    start: Vec<u8>,
}

/// The `fcntl` command that selects the signal for a descriptor's asynchronous I/O. `libc` does not define this
/// constant.
const F_SETSIG: libc::c_int = 10;

/// The length of a mapping, in bytes. Each mapping holds the whole page or the whole tally.
const PAGE: usize = 4096;

pub fn be_one(forked: Forked) -> ExitCode {
    let host = forked.host();
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    setsid().unwrap();
    let mut descriptors = forked.into_descriptors().into_iter();
    let mut next = || descriptors.next().expect("a descriptor");
    let (mut from_host, mut to_host) = (File::from(next()), File::from(next()));
    let (page, tally, lock) = (next(), next(), next());
    let prepare = message(&mut from_host);
    let mapped = [(&page, libc::PROT_READ), (&tally, libc::PROT_READ | libc::PROT_WRITE)];
    let mapped = mapped.map(|(file, protection)| map(file, protection).unwrap());
    let folder = granted(host);
    let has_folder = has(&prepare, folder.to_str().unwrap());
    let folders: Vec<_> = has_folder
        .then(|| rustix::fs::openat(CWD, &folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()))
        .transpose()
        .unwrap()
        .into_iter()
        .collect();
    let reached: Vec<_> = folders.iter().map(|folder| (folder.as_fd(), false)).collect();
    let reach = RunnerReach { folders: &reached, files: has_folder, network: true, holds: Some(lock.as_fd()) };
    to_loading(&reach).unwrap();
    to_running(&reach).unwrap();
    if has(&prepare, NEVER_READY) {
        stay();
    }
    if has(&prepare, BADLY_READY) {
        let _ = to_host.write_all(&frame(&[says::LINE, 0, 1, b'x']));
        stay();
    }
    to_host.write_all(&frame(&[says::READY, 1])).unwrap();
    let start = message(&mut from_host);
    let host = libc::pid_t::try_from(host).unwrap();
    Runner { host, from_host, to_host: Some(to_host), page, tally, lock, mapped, start }.does_evil()
}

fn message(from: &mut File) -> Vec<u8> {
    let mut length = [0; 4];
    from.read_exact(&mut length).unwrap();
    let mut message = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut message).unwrap();
    message
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&length.to_le_bytes(), message].concat()
}

/// Encodes a number as Postcard does.
fn number(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Encodes text or bytes as Postcard does.
fn text(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [number(text.len() as u64), text.to_vec()].concat()
}

fn map(file: &OwnedFd, protection: libc::c_int) -> io::Result<*mut libc::c_void> {
    // SAFETY: without a fixed address, the kernel chooses free memory, so no other mapping changes.
    match unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) } {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        mapped => Ok(mapped),
    }
}

fn stay() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

fn exit(status: i32) -> ! {
    // SAFETY: `_exit` ends the process at once and touches no memory of ours.
    unsafe { libc::_exit(status) }
}

fn done(answer: libc::c_long) -> io::Result<()> {
    if answer >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Runner {
    /// Returns a variable of the instance. The start message contains the variable's name and value, each preceded by
    /// its length.
    fn variable(&self, name: &str) -> String {
        let name = text(name);
        let at = self.start.windows(name.len()).position(|part| part == name).expect("a variable") + name.len();
        let length = usize::from(self.start[at]);
        String::from_utf8(self.start[at + 1..][..length].to_vec()).unwrap()
    }

    /// Writes these bytes to the host. If the host has closed the pipe, the runner sleeps until it is killed.
    fn write(&self, bytes: &[u8]) {
        if self.to_host.as_ref().is_none_or(|mut to| to.write_all(bytes).is_err()) {
            stay();
        }
    }

    fn say(&self, kind: u8, parts: &[Vec<u8>]) {
        self.write(&frame(&[vec![kind], parts.concat()].concat()));
    }

    fn line(&self, line: &str) {
        self.say(says::LINE, &[vec![0], text(line)]);
    }

    fn floods(&self, kind: u8, parts: &[Vec<u8>]) -> ! {
        let message = frame(&[vec![kind], parts.concat()].concat());
        // Put many short messages into one write.
        let many = message.repeat((65_536 / message.len()).max(1));
        loop {
            self.write(&many);
        }
    }

    /// Reports the end of the instance, without a backtrace.
    fn ends(&self, how: u8) {
        self.say(says::ENDED, &[vec![how, 0]]);
    }

    fn does_evil(mut self) -> ! {
        self.line(&format!("pid {}", std::process::id()));
        match self.variable(EVIL).as_str() {
            "prints nonsense" => {
                let mut state = 0x9e37_79b9_u32;
                let bytes = std::iter::repeat_with(|| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                });
                self.write(&bytes.take(1 << 16).collect::<Vec<_>>());
            }
            "prints ones" => loop {
                self.write(&[0xff; 1 << 16]);
            },
            "announces 4 GiB" => self.write(&u32::MAX.to_le_bytes()),
            "announces nothing" => self.write(&[0; 4]),
            "never finishes a message" => {
                self.write(&(1_u32 << 20).to_le_bytes());
                self.write(&[says::LINE; 1 << 19]);
                self.write(&[0; 1 << 18]);
            }
            "dies in a message" => {
                self.write(&[9, 0]);
                exit(7);
            }
            "says more than a message" => self.say(says::STARTED, &[vec![0]]),
            "says something unknown" => self.say(99, &[]),
            "is ready again" => self.say(says::READY, &[vec![1]]),
            "fails to get ready when it is" => self.say(says::FAILED, &[text("why")]),
            "commits twice at once" => {
                let commit = frame(&[vec![says::COMMIT], text([1, 1, 1, b'k'])].concat());
                self.write(&commit.repeat(2));
            }
            "commits without a state" => self.say(says::COMMIT, &[text([0])]),
            "commits very many changes" => {
                let changes = [number(2 << 20), [1, 1, b'k'].repeat(2 << 20)].concat();
                self.say(says::COMMIT, &[text(changes)]);
            }
            "commits fewer changes than it says" => self.say(says::COMMIT, &[text([9, 1, 1, b'k'])]),
            "commits and does not read" => loop {
                // Commit the same small change again and again, without ever reading the host's answers.
                let change = [vec![0], text("k".repeat(200)), text([0; 64])].concat();
                self.say(says::COMMIT, &[text([vec![1], change].concat())]);
                std::thread::sleep(Duration::from_millis(1));
            },
            "looks up very much" => {
                let lookup =
                    |at: u64| frame(&[vec![says::RESOLVE], number(at), text("localhost"), number(80)].concat());
                self.write(&(0..10_000).flat_map(lookup).collect::<Vec<_>>());
            }
            "looks up what it may not" => self.looks_up(),
            "floods lines" => self.floods(says::LINE, &[vec![1], text("x")]),
            "floods half as much as is taken" => loop {
                (0..15).for_each(|_| self.line("x"));
                std::thread::sleep(Duration::from_millis(10));
            },
            "prints a long line" => self.say(says::LINE, &[vec![0], text([b'x'; 100_000])]),
            "prints no text" => self.say(says::LINE, &[vec![0], text([0xff; 3])]),
            "prints to an unknown stream" => self.say(says::LINE, &[vec![2], text("x")]),
            "floods its log" => self.floods(says::LOG, &[vec![2], text(""), text(vec![b'x'; 8 << 20])]),
            "floods denials" => self.floods(says::DENIED, &[text("what"), text(vec![b'x'; 500_000])]),
            "floods limits" => {
                self.floods(says::NEAR_LIMIT, &[vec![0], number(u64::MAX), number(0)]);
            }
            "drops as much as can be said" => (0..3).for_each(|_| self.say(says::DROPPED, &[number(u64::MAX)])),
            "begins twice" => (0..2).for_each(|_| self.say(says::STARTED, &[])),
            "begins for ever" => self.floods(says::STARTED, &[]),
            "steps down for ever" => self.floods(says::STEP_DOWN, &[text("because")]),
            "panics at length" => self.say(says::PANICKED, &[text(vec![b'x'; 1 << 20])]),
            "ends twice" => (0..2).for_each(|_| self.ends(DONE)),
            "ends and goes on" => {
                self.ends(DONE);
                spin();
            }
            "begins and could not begin" => {
                self.say(says::STARTED, &[]);
                self.say(says::ENDED, &[vec![UNABLE], text("because"), vec![0]]);
            }
            "is late though it is not" => exit(3),
            "says that it was refused" => {
                self.fill_the_tally();
                exit(9);
            }
            "closes its pipe and goes on" => {
                self.to_host = None;
                spin();
            }
            "closes its pipes and stops" => {
                self.to_host = None;
                self.stops();
            }
            "stops itself" => self.stops(),
            "spins" => spin(),
            "does not read" => {}
            "fills the tally" => {
                self.fill_the_tally();
                self.line("filled");
            }
            "attacks the page" => self.attacks_the_page(),
            "attacks others" => self.attacks_others(),
            "gives its lock up" => self.gives_its_lock_up(),
            "connects" => self.connects(),
            "prints after its deadline" => self.prints_after_its_deadline(),
            "prints for ever" => {
                for at in 0_u64.. {
                    self.line(&format!("line {at}"));
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            other => panic!("{other}"),
        }
        stay()
    }

    /// Tries to give up its lock. If that worked, other hosts would consider this runner and its host dead.
    fn gives_its_lock_up(&self) {
        let lock = self.lock.as_raw_fd();
        let other = self.page.as_raw_fd();
        let unlocked = libc::flock { l_type: libc::F_UNLCK as i16, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
        let unlocked = &raw const unlocked;
        // The kernel reads only the lower half of the register that holds a descriptor, so `wide` still refers to the
        // lock.
        let wide = i64::from(lock) | 1 << 32;
        let byte = c"x".as_ptr();
        let part = libc::iovec { iov_base: byte.cast_mut().cast(), iov_len: 1 };
        let parts = &raw const part;
        let system_call = |call, arguments: [i64; 4]| {
            let [one, two, three, four] = arguments;
            // SAFETY: all pointers among the arguments stay valid until the call returns. Nothing uses the descriptor
            // that a call may close.
            done(unsafe { libc::syscall(call, one, two, three, four) })
        };
        let [lock, other, unlocked, byte, parts] =
            [lock.into(), other.into(), unlocked as i64, byte as i64, parts as i64];
        for (name, call, arguments) in [
            ("close", libc::SYS_close, [lock, 0, 0, 0]),
            ("close, wide", libc::SYS_close, [wide, 0, 0, 0]),
            ("close_range", libc::SYS_close_range, [lock, lock, 0, 0]),
            ("dup3", libc::SYS_dup3, [other, lock, 0, 0]),
            ("F_DUPFD", libc::SYS_fcntl, [lock, libc::F_DUPFD.into(), 0, 0]),
            ("F_DUPFD_CLOEXEC", libc::SYS_fcntl, [lock, libc::F_DUPFD_CLOEXEC.into(), 0, 0]),
            ("F_SETFD", libc::SYS_fcntl, [lock, libc::F_SETFD.into(), 0, 0]),
            ("F_SETLK", libc::SYS_fcntl, [lock, libc::F_SETLK.into(), unlocked, 0]),
            ("F_OFD_SETLK", libc::SYS_fcntl, [lock, libc::F_OFD_SETLK.into(), unlocked, 0]),
            ("F_OFD_SETLKW", libc::SYS_fcntl, [lock, libc::F_OFD_SETLKW.into(), unlocked, 0]),
            ("flock", libc::SYS_flock, [lock, libc::LOCK_UN.into(), 0, 0]),
            ("write", libc::SYS_write, [lock, byte, 1, 0]),
            ("writev", libc::SYS_writev, [lock, parts, 1, 0]),
            ("pwrite64", libc::SYS_pwrite64, [lock, byte, 1, 0]),
            ("pwritev", libc::SYS_pwritev, [lock, parts, 1, 0]),
            ("pwritev2", libc::SYS_pwritev2, [lock, parts, 1, 0]),
            ("ftruncate", libc::SYS_ftruncate, [lock, 1 << 40, 0, 0]),
            ("fallocate", libc::SYS_fallocate, [lock, 0, 0, 1 << 20]),
            ("unshare", libc::SYS_unshare, [libc::CLONE_FILES.into(), 0, 0, 0]),
            ("execve", libc::SYS_execve, [c"/bin/true".as_ptr() as i64, 0, 0, 0]),
        ] {
            if system_call(call, arguments).is_ok() {
                self.line(&format!("gives its lock up by {name}"));
                return;
            }
        }
        self.line("its lock is held");
    }

    fn tries(&self, name: &str, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.line(&format!("{name}: done")),
            Err(error) => self.line(&format!("{name}: {error}")),
        }
    }

    fn looks_up(&mut self) {
        let names = ["localhost", "not.granted.test", "LOCALHOST", "localhost\0", "a b.granted.test", "::1"];
        let long = format!("{}.granted.test", "x".repeat(100_000));
        for (at, name) in names.into_iter().chain([&*long]).enumerate() {
            self.say(says::RESOLVE, &[number(at as u64), text(name), number(80)]);
            let answer = message(&mut self.from_host);
            assert_eq!(answer[..2], [4, at as u8]);
            let name = &name[..name.len().min(20)];
            self.tries(name, if answer[2] == 0 { Ok(()) } else { Err(io::Error::other("refused")) });
        }
        self.line("all is tried");
    }

    fn fill_the_tally(&self) {
        // SAFETY: the tally is mapped writable, its 11 numbers fit into the mapping, and no reference points there.
        unsafe { std::ptr::write_bytes(self.mapped[1].cast::<u8>(), 0xff, 11 * 8) };
    }

    fn stops(&self) -> ! {
        let all = [u64::MAX; 16];
        // SAFETY: `all` outlives the call that reads it, and is as long as a signal set. The other calls only take
        // numbers, and the signal goes to this thread.
        unsafe {
            libc::sigprocmask(libc::SIG_BLOCK, all.as_ptr().cast(), std::ptr::null_mut());
            libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), libc::SIGSTOP);
        }
        stay()
    }

    fn attacks_the_page(&self) {
        let writes = libc::PROT_READ | libc::PROT_WRITE;
        for (name, file, mapped) in [("page", &self.page, self.mapped[0]), ("tally", &self.tally, self.mapped[1])] {
            let say = |what: &str, outcome: io::Result<()>| self.tries(&format!("{what} the {name}"), outcome);
            say("maps", map(file, writes).map(drop));
            say("shortens", rustix::fs::ftruncate(file, 0).map_err(Into::into));
            say("lengthens", rustix::fs::ftruncate(file, 1 << 30).map_err(Into::into));
            say("seals", rustix::fs::fcntl_add_seals(file, rustix::fs::SealFlags::WRITE).map_err(Into::into));
            // SAFETY: nothing reads or writes this memory afterwards, whatever the calls do to it.
            unsafe {
                if name == "page" {
                    say("unprotects", done(libc::mprotect(mapped, PAGE, writes).into()));
                    say("empties", done(libc::madvise(mapped, PAGE, libc::MADV_REMOVE).into()));
                    say("poisons", done(libc::madvise(mapped, PAGE, libc::MADV_HWPOISON).into()));
                }
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                say("punches", done(libc::fallocate(file.as_raw_fd(), mode, 0, 4096).into()));
            }
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let again = rustix::fs::openat(CWD, path, OFlags::RDWR, Mode::empty());
            // A runner that has been granted folders may open the file again. Opening the file is harmless.
            let again = again.as_ref().unwrap_or(file);
            say("maps once more", map(again, writes).map(drop));
            say("shortens once more", rustix::fs::ftruncate(again, 0).map_err(Into::into));
            if name == "page" {
                say("writes", rustix::io::pwrite(file, &[0xff; 8], 8).map(drop).map_err(Into::into));
                say("writes once more", rustix::io::pwrite(again, &[0xff; 8], 8).map(drop).map_err(Into::into));
            }
        }
        self.line("all is tried");
    }

    fn attacks_others(&self) {
        let neighbour: libc::pid_t = self.variable(NEIGHBOUR).parse().unwrap();
        let pipe = self.from_host.as_raw_fd();
        for (whom, pid) in [("its host", self.host), ("its neighbour", neighbour)] {
            let say = |what: &str, outcome: io::Result<()>| self.tries(&format!("{what} {whom}"), outcome);
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            let none = std::ptr::null_mut::<libc::c_void>();
            // SAFETY: the calls take numbers, null, and the address of `limit`, which outlives them.
            unsafe {
                // If one of these calls succeeded, the process that it targets would fail visibly.
                say("kills", done(libc::kill(pid, libc::SIGKILL).into()));
                say("stops a thread of", done(libc::syscall(libc::SYS_tgkill, pid, pid, libc::SIGSTOP)));
                say("stops one thread of", done(libc::syscall(libc::SYS_tkill, pid, libc::SIGSTOP)));
                say(
                    "limits",
                    done(libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut()).into()),
                );
                say("slows", done(libc::setpriority(libc::PRIO_PROCESS, pid.cast_unsigned(), 19).into()));
                say("traces", done(libc::ptrace(libc::PTRACE_SEIZE, pid, none, none)));
                say("has signals sent to", done(libc::fcntl(pipe, libc::F_SETOWN, pid).into()));
                say("has others sent to", done(libc::fcntl(pipe, F_SETSIG, libc::SIGKILL).into()));
                say("has them sent at all to", done(libc::fcntl(pipe, libc::F_SETFL, libc::O_ASYNC).into()));
                say("points at", done(libc::syscall(libc::SYS_pidfd_open, pid, 0)));
                say("reads", done(libc::syscall(libc::SYS_process_vm_readv, pid, none, 0, none, 0, 0)));
                say("moves", done(libc::syscall(libc::SYS_sched_setaffinity, pid, 0, none)));
                say("schedules", done(libc::syscall(libc::SYS_sched_setscheduler, pid, 0, none)));
            }
            say("looks into", File::open(format!("/proc/{pid}/mem")).map(drop));
            say("looks at what is given to", File::open(format!("/proc/{pid}/environ")).map(drop));
            say("takes from", File::open(format!("/proc/{pid}/fd/0")).map(drop));
        }
        // SAFETY: a child of `fork` exits at once, and a child of `clone` would continue in its own copy of the memory.
        // The other calls take numbers, null, and the address of `message`, which outlives the call and may be zeroed.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            self.tries("forks", done(child.into()));
            self.tries("clones", done(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)));
            self.tries("clones anew", done(libc::syscall(libc::SYS_clone3, std::ptr::null::<u8>(), 88)));
            self.tries("has a new session", done(libc::setsid().into()));
            self.tries("outlives its host", done(libc::prctl(libc::PR_SET_PDEATHSIG, 0, 0, 0, 0).into()));
            for (name, family, kind) in [
                ("has a socket for processes", libc::AF_UNIX, libc::SOCK_STREAM),
                ("has a socket for packets", libc::AF_INET, libc::SOCK_DGRAM),
                ("has a socket for the kernel", libc::AF_NETLINK, libc::SOCK_RAW),
                ("has a socket for virtual machines", libc::AF_VSOCK, libc::SOCK_STREAM),
            ] {
                self.tries(name, done(libc::socket(family, kind, 0).into()));
            }
            // The runner received its descriptors over a socket, which is still open.
            let message: libc::msghdr = std::mem::zeroed();
            self.tries("sends by its socket", done(libc::sendmsg(0, &raw const message, 0) as libc::c_long));
        }
        self.line("all is tried");
    }

    fn connects(&self) {
        let port: u16 = self.variable(PORT).parse().unwrap();
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let mut connections: Vec<_> = (0..20).map(|_| connect().unwrap()).collect();
        self.line("connected");
        loop {
            for connection in &mut connections {
                let _ = connection.write_all(b"x");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[allow(clippy::disallowed_methods, reason = "it measures nothing")]
    fn prints_after_its_deadline(&self) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            self.line("x");
            std::thread::sleep(Duration::from_millis(2));
        }
        // Messages arrive in order, so the host has handled all printed lines when this message arrives.
        self.say(says::STEP_DOWN, &[text("it is over")]);
    }
}
