//! The attempts of runners, in addition to the attempts in `computing.rs`. The process that does not confine itself
//! makes these attempts, too. Some runners are granted folders and the network, others are not.

use std::ffi::CString;
use std::fs::{File, FileTimes};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::mem::size_of_val;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, SystemTime};

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::fs::{
    Advice, AtFlags, CWD, Dir, FlockOperation, MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags, Timestamps,
};
use rustix::io::ReadWriteFlags;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use wasmtime::component::{Component, Linker};
use wasmtime::{Config, Engine, Store, Trap};

use super::{Attempt, INHERITED, INHERITED_SOCKET, Targets};

/// The number of threads that a runner has for file operations.
const THREADS: usize = 4;

/// The objects that a runner creates after `to_loading` and before `to_running`.
pub struct Made {
    runtime: Runtime,
    epoll: OwnedFd,
    event: OwnedFd,
    engine: Engine,
    component: Component,
}

/// A guest with two functions. `reads` grows the memory and reads from it. `traps` accesses memory out of bounds.
const GUEST: &str = r#"(component
    (core module $module
        (memory 1)
        (data (i32.const 0) "text")
        (func (export "reads") (result i32) (drop (memory.grow (i32.const 100))) (i32.load (i32.const 0)))
        (func (export "traps") (drop (i32.load (i32.const -8)))))
    (core instance $instance (instantiate $module))
    (func (export "reads") (result u32) (canon lift (core func $instance "reads")))
    (func (export "traps") (canon lift (core func $instance "traps"))))"#;

impl Made {
    pub fn new() -> io::Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).max_blocking_threads(THREADS).enable_all();
        let runtime = runtime.thread_keep_alive(Duration::from_secs(1 << 30)).build()?;
        // The tasks wait for one another. This makes the runtime start a thread for each of them.
        let all = Arc::new(Barrier::new(THREADS + 1));
        for _ in 0..THREADS {
            let all = Arc::clone(&all);
            runtime.spawn_blocking(move || all.wait());
        }
        all.wait();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(7), epoll::EventFlags::IN)?;
        let (engine, component) = load().map_err(io::Error::other)?;
        Ok(Self { runtime, epoll, event, engine, component })
    }
}

/// Loads the guest's code as hosts do, from a file in memory.
fn load() -> wasmtime::Result<(Engine, Component)> {
    let engine = Engine::new(Config::new().parallel_compilation(false))?;
    let code = engine.precompile_component(&wat::parse_str(GUEST)?)?;
    let mut file = File::from(rustix::fs::memfd_create("code", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(&code)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK)?;
    // SAFETY: this engine has compiled the code, and the file is sealed, so the code cannot change.
    let component = unsafe { Component::deserialize_file(&engine, format!("/proc/self/fd/{}", file.as_raw_fd())) }?;
    Ok((engine, component))
}

/// Runs the guest with an asynchronous call, so the guest has a stack of its own.
async fn run_guest(engine: &Engine, component: &Component) -> wasmtime::Result<()> {
    let mut store = Store::new(engine, ());
    let instance = Linker::new(engine).instantiate_async(&mut store, component).await?;
    let reads = instance.get_typed_func::<(), (u32,)>(&mut store, "reads")?;
    let (read,) = reads.call_async(&mut store, ()).await?;
    ensure(read.to_le_bytes() == *b"text")?;
    let traps = instance.get_typed_func::<(), ()>(&mut store, "traps")?;
    let trap = traps.call_async(&mut store, ()).await.err();
    let trap = trap.as_ref().and_then(|error| error.downcast_ref::<Trap>());
    Ok(ensure(trap == Some(&Trap::MemoryOutOfBounds))?)
}

/// System calls that fail with `ENOSYS` in a runner. The test makes these calls with invalid arguments. Any other error
/// shows that the call is permitted.
pub const UNKNOWN: &[(&str, libc::c_long)] = &[
    ("accept4", libc::SYS_accept4),
    ("bind", libc::SYS_bind),
    ("chroot", libc::SYS_chroot),
    ("execveat", libc::SYS_execveat),
    ("fchmodat", libc::SYS_fchmodat),
    ("fchownat", libc::SYS_fchownat),
    ("fsetxattr", libc::SYS_fsetxattr),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("ioprio_set", libc::SYS_ioprio_set),
    ("mount", libc::SYS_mount),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
    ("process_madvise", libc::SYS_process_madvise),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("recvmsg", libc::SYS_recvmsg),
    ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo),
    ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo),
    ("sched_setaffinity", libc::SYS_sched_setaffinity),
    ("sched_setscheduler", libc::SYS_sched_setscheduler),
    ("sendmmsg", libc::SYS_sendmmsg),
    ("setns", libc::SYS_setns),
    ("splice", libc::SYS_splice),
    ("timer_create", libc::SYS_timer_create),
    ("tkill", libc::SYS_tkill),
    ("unshare", libc::SYS_unshare),
];

/// Makes the system call `call`, which must be one of [`UNKNOWN`]. Returns an error if the call fails with `ENOSYS`.
pub fn knows(call: libc::c_long) -> io::Result<()> {
    const NONE: libc::c_long = -1;
    // SAFETY: -1 is no valid descriptor, process, address or set of flags. Every call of `UNKNOWN` takes one of these,
    // and fails before it has any effect.
    let answer = unsafe { libc::syscall(call, NONE, NONE, NONE, NONE, NONE, NONE) };
    match io::Error::last_os_error() {
        error if answer == -1 && error.raw_os_error() == Some(libc::ENOSYS) => Err(error),
        _ => Ok(()),
    }
}

/// Attempts that fail in every runner, and succeed in an unconfined process.
pub const NEVER: &[Attempt] = &[
    ("lets a descriptor signal", |_| {
        let before = rustix::fs::fcntl_getfl(inherited())?;
        // `rustix` does not define this flag.
        let signals = OFlags::from_bits_retain(libc::O_ASYNC.cast_unsigned());
        rustix::fs::fcntl_setfl(inherited(), before | signals)?;
        Ok(rustix::fs::fcntl_setfl(inherited(), before)?)
    }),
    ("lets a descriptor signal another", |targets| {
        let victim: libc::c_int = targets.victim.as_raw_nonzero().get();
        // SAFETY: the call takes numbers, and only changes which process receives the descriptor's signals.
        done(unsafe { libc::fcntl(INHERITED, libc::F_SETOWN, victim) })?;
        // SAFETY: this call changes the owner back, and takes numbers only.
        done(unsafe { libc::fcntl(INHERITED, libc::F_SETOWN, 0) })
    }),
    // Landlock does not restrict files without a path, such as a pipe. This attempt fails because it needs the right to
    // trace the other process.
    ("takes a descriptor of another", |targets| {
        File::open(format!("/proc/{}/fd/0", targets.victim.as_raw_nonzero())).map(drop)
    }),
    ("limits its parent", |targets| {
        let parent = targets.parent.as_raw_nonzero().get();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` outlives the call, which writes it.
        done(unsafe { libc::prlimit(0, libc::RLIMIT_CORE, std::ptr::null(), &raw mut limit) })?;
        // The parent already has this limit, so a successful call changes nothing.
        // SAFETY: `limit` outlives the call, which only reads it.
        done(unsafe { libc::prlimit(parent, libc::RLIMIT_CORE, &raw const limit, std::ptr::null_mut()) })
    }),
    ("passes a descriptor on", |_| pass_on(INHERITED_SOCKET, INHERITED)),
    ("asks the kernel for its network", |_| socket(libc::AF_NETLINK, libc::SOCK_RAW, 0).map(drop)),
    ("makes a socket for packets", |_| socket(libc::AF_INET6, libc::SOCK_DGRAM, 0).map(drop)),
    ("makes a socket for processes", |_| socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).map(drop)),
    ("listens at any port", |_| {
        let socket = socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
        // SAFETY: the call takes numbers, and the socket stays open until it returns.
        done(unsafe { libc::listen(socket.as_raw_fd(), 1) })
    }),
    ("shares an address", |targets| {
        let connection = TcpStream::connect(targets.address)?;
        option(&connection, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1_i32)
    }),
    ("sends to an address", |targets| {
        let connection = TcpStream::connect(targets.address)?;
        let to = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: targets.address.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
            sin_zero: [0; 8],
        };
        let size = libc::socklen_t::try_from(size_of_val(&to)).map_err(io::Error::other)?;
        // SAFETY: the byte and the address outlive the call, and have the sizes that are passed to it.
        match unsafe { libc::sendto(connection.as_raw_fd(), c"x".as_ptr().cast(), 1, 0, (&raw const to).cast(), size) }
        {
            1 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }),
    ("becomes two", |_| {
        // SAFETY: the child only calls `_exit`, which is safe after a fork.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: `_exit` ends the child without running any code of this process.
            0 => unsafe { libc::_exit(0) },
            // SAFETY: the pointer is null, so the call writes no memory.
            child => done(i32::from(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } != child)),
        }
    }),
    ("can be dumped again", |_| control(libc::PR_SET_DUMPABLE, 1)),
    ("outlives its parent", |_| control(libc::PR_SET_PDEATHSIG, 0)),
    ("goes up from its folder", |targets| {
        let granted = folder(&targets.granted)?;
        Ok(rustix::fs::openat(&granted, "../secret", OFlags::RDONLY, Mode::empty()).map(drop)?)
    }),
    ("writes above its folder", |targets| {
        let granted = folder(&targets.granted)?;
        Ok(rustix::fs::openat(&granted, "../secret", OFlags::WRONLY, Mode::empty()).map(drop)?)
    }),
    ("takes a file into its folder", |targets| {
        let granted = folder(&targets.granted)?;
        let secret = targets.folder.with_file_name("secret");
        rustix::fs::linkat(CWD, &secret, &granted, "stolen", AtFlags::empty())?;
        Ok(rustix::fs::unlinkat(&granted, "stolen", AtFlags::empty())?)
    }),
    ("moves a file out of its folder", |targets| {
        let granted = folder(&targets.granted)?;
        rustix::fs::renameat(&granted, "file", CWD, targets.folder.join("moved"))?;
        Ok(rustix::fs::renameat(CWD, targets.folder.join("moved"), &granted, "file")?)
    }),
    ("removes a file that is not its own", |targets| {
        let secret = targets.folder.with_file_name("secret");
        rustix::fs::unlinkat(CWD, &secret, AtFlags::empty())?;
        std::fs::write(&secret, "x")
    }),
    ("sets times of a file that is not its own", |targets| {
        let secret = targets.folder.with_file_name("secret");
        Ok(rustix::fs::utimensat(CWD, &secret, &now(), AtFlags::empty())?)
    }),
    ("makes a file where it may read", |targets| {
        let read = folder(&targets.read)?;
        rustix::fs::openat(&read, "made", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR)?;
        Ok(rustix::fs::unlinkat(&read, "made", AtFlags::empty())?)
    }),
    ("changes a file where it may read", |targets| {
        Ok(rustix::fs::openat(folder(&targets.read)?, "file", OFlags::WRONLY, Mode::empty()).map(drop)?)
    }),
    ("empties a file where it may read", |targets| {
        let flags = OFlags::RDONLY | OFlags::TRUNC;
        Ok(rustix::fs::openat(folder(&targets.read)?, "empty", flags, Mode::empty()).map(drop)?)
    }),
    ("moves a file to where it may read", |targets| {
        let [granted, read] = [folder(&targets.granted)?, folder(&targets.read)?];
        rustix::fs::renameat(&granted, "file", &read, "moved")?;
        Ok(rustix::fs::renameat(&read, "moved", &granted, "file")?)
    }),
    ("makes a pipe in its folder", |targets| {
        let granted = folder(&targets.granted)?;
        rustix::fs::mknodat(&granted, "pipe", rustix::fs::FileType::Fifo, Mode::RUSR, 0)?;
        Ok(rustix::fs::unlinkat(&granted, "pipe", AtFlags::empty())?)
    }),
    ("lets others run a file", |targets| {
        Ok(rustix::fs::chmodat(folder(&targets.granted)?, "file", Mode::from(0o600), AtFlags::empty())?)
    }),
    ("locks a file", |targets| {
        Ok(rustix::fs::flock(file(&targets.granted, "file", OFlags::RDWR)?, FlockOperation::NonBlockingLockExclusive)?)
    }),
    ("locks a part of a file", |targets| {
        let file = file(&targets.granted, "file", OFlags::RDWR)?;
        Ok(rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)?)
    }),
    ("shares the memory of a file", |targets| {
        let file = file(&targets.granted, "file", OFlags::RDWR)?;
        // SAFETY: the kernel chooses free memory. Nothing accesses it before it is unmapped here.
        unsafe {
            let memory = libc::mmap(std::ptr::null_mut(), 1, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
            if memory == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            done(libc::munmap(memory, 1))
        }
    }),
    // If this attempt succeeds, the victim is traced until this process exits. Therefore, no later attempt may wait for
    // the victim.
    ("traces another", |targets| {
        let victim = targets.victim.as_raw_nonzero().get();
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the call attaches to the other process, and accesses no memory of this one.
        match unsafe { libc::ptrace(libc::PTRACE_SEIZE, victim, none, none) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }),
];

/// Attempts that succeed in a runner until its last confinement, `to_running`.
pub const LOADING: &[Attempt] = &[
    ("names a thread", |_| {
        // SAFETY: the name is a static C string.
        done(unsafe { libc::prctl(libc::PR_SET_NAME, c"named".as_ptr()) })
    }),
    ("sets its limits", |_| Ok(setrlimit(Resource::Core, getrlimit(Resource::Core))?)),
    ("makes something to wait with", |_| Ok(epoll::create(epoll::CreateFlags::CLOEXEC).map(drop)?)),
    ("makes something to wait for", |_| Ok(eventfd(0, EventfdFlags::CLOEXEC).map(drop)?)),
];

pub const ALWAYS: &[Attempt] = &[
    ("waits with what it made", |targets| {
        let made = targets.made();
        rustix::io::write(&made.event, &1_u64.to_ne_bytes())?;
        let mut events = Vec::with_capacity(1);
        epoll::wait(&made.epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        rustix::io::read(&made.event, &mut [0; 8])?;
        ensure(events.iter().map(|event| event.data.u64()).eq([7]))
    }),
    ("polls", |_| {
        let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        Ok(poll(&mut [PollFd::from_borrowed_fd(inherited(), PollFlags::IN)], Some(&moment)).map(drop)?)
    }),
    ("looks at what it was given", |_| Ok(rustix::fs::fstat(inherited()).map(drop)?)),
    ("says whether a descriptor blocks", |_| {
        let before = rustix::fs::fcntl_getfl(inherited())?;
        rustix::fs::fcntl_setfl(inherited(), before | OFlags::NONBLOCK)?;
        rustix::fs::fcntl_setfl(inherited(), before)?;
        Ok(rustix::io::ioctl_fionbio(inherited(), false)?)
    }),
    ("runs a guest", |targets| {
        let Made { runtime, engine, component, .. } = targets.made();
        runtime.block_on(run_guest(engine, component)).map_err(io::Error::other)
    }),
    ("has timers", |targets| {
        let runtime = &targets.made().runtime;
        let sleep = runtime.spawn(async { tokio::time::sleep(Duration::from_millis(2)).await });
        runtime.block_on(sleep).map_err(io::Error::other)
    }),
    ("has threads for files", |targets| {
        let runtime = &targets.made().runtime;
        let all = Arc::new(Barrier::new(THREADS));
        runtime.block_on(async {
            let mut calls = JoinSet::new();
            for _ in 0..THREADS {
                let all = Arc::clone(&all);
                calls.spawn_blocking(move || all.wait());
            }
            while let Some(call) = calls.join_next().await {
                call.map_err(io::Error::other)?;
            }
            Ok(())
        })
    }),
];

/// Attempts that succeed in a runner that has been granted folders.
pub const FILES: &[Attempt] = &[
    ("reads a file of its own", |targets| {
        let mut file = file(&targets.granted, "file", OFlags::RDONLY)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        ensure(text == "text")
    }),
    ("reads a file where it may read", |targets| {
        io::read_to_string(file(&targets.read, "file", OFlags::RDONLY)?).and_then(|text| ensure(text == "text"))
    }),
    ("lists its folder", |targets| {
        let names = |path: &Path| -> io::Result<usize> {
            let open = rustix::fs::openat(folder(path)?, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            Ok(Dir::read_from(open)?.filter_map(Result::ok).filter(|entry| entry.file_name() != c"..").count())
        };
        ensure(names(&targets.granted)? == 3 && names(&targets.read)? == 3)
    }),
    ("looks at its files", |targets| {
        let granted = folder(&targets.granted)?;
        let size = rustix::fs::statat(&granted, "file", AtFlags::SYMLINK_NOFOLLOW)?.st_size;
        ensure(size == 4 && file(&targets.granted, "file", OFlags::RDONLY)?.metadata()?.len() == 4)
    }),
    ("stays in its folder", |targets| {
        let granted = folder(&targets.granted)?;
        let open =
            |path| rustix::fs::openat2(&granted, path, OFlags::RDONLY, Mode::empty(), ResolveFlags::BENEATH).map(drop);
        ensure(open("../granted/file") == Err(rustix::io::Errno::XDEV))?;
        Ok(open("file")?)
    }),
    ("writes a file of its own", |targets| {
        let granted = folder(&targets.granted)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let mut made = File::from(rustix::fs::openat(&granted, "made", flags, Mode::RUSR | Mode::WUSR)?);
        made.write_all(b"0123456789")?;
        rustix::io::pwrite(&made, b"x", 1)?;
        rustix::io::pwritev2(&made, &[io::IoSlice::new(b"y")], 0, ReadWriteFlags::APPEND)?;
        rustix::fs::fcntl_setfl(&made, rustix::fs::fcntl_getfl(&made)? | OFlags::APPEND)?;
        rustix::fs::fadvise(&made, 0, None, Advice::Sequential)?;
        made.sync_data()?;
        made.sync_all()?;
        made.rewind()?;
        ensure(io::read_to_string(&made)? == "0x23456789y")?;
        made.set_len(3)?;
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        made.set_times(FileTimes::new().set_modified(long_ago))?;
        let metadata = made.metadata()?;
        ensure(metadata.len() == 3 && metadata.modified()? == long_ago)?;
        Ok(rustix::fs::unlinkat(&granted, "made", AtFlags::empty())?)
    }),
    ("moves its files", |targets| {
        let [granted, other] = [folder(&targets.granted)?, folder(&targets.other)?];
        rustix::fs::renameat(&granted, "file", &granted, "renamed")?;
        rustix::fs::renameat(&granted, "renamed", &other, "moved")?;
        Ok(rustix::fs::renameat(&other, "moved", &granted, "file")?)
    }),
    ("links its files", |targets| {
        let [granted, other] = [folder(&targets.granted)?, folder(&targets.other)?];
        rustix::fs::linkat(&granted, "file", &granted, "same", AtFlags::empty())?;
        rustix::fs::linkat(&granted, "file", &other, "same", AtFlags::empty())?;
        rustix::fs::symlinkat("file", &granted, "link")?;
        let leads = rustix::fs::readlinkat(&granted, "link", Vec::new())?;
        for (folder, name) in [(&granted, "same"), (&other, "same"), (&granted, "link")] {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
        }
        ensure(leads.as_bytes() == b"file")
    }),
    ("has folders in its folder", |targets| {
        let granted = folder(&targets.granted)?;
        rustix::fs::mkdirat(&granted, "made", Mode::RWXU)?;
        Ok(rustix::fs::unlinkat(&granted, "made", AtFlags::REMOVEDIR)?)
    }),
    ("reads files on its threads", |targets| {
        let path = targets.granted.clone();
        let runtime = &targets.made().runtime;
        let read = runtime.spawn_blocking(move || io::read_to_string(file(&path, "file", OFlags::RDONLY)?));
        ensure(runtime.block_on(read).map_err(io::Error::other)?? == "text")
    }),
];

/// Attempts that succeed in a runner that has been granted the network.
pub const NETWORK: &[Attempt] = &[
    ("exchanges bytes", |targets| {
        let mut connection = TcpStream::connect(targets.address)?;
        connection.set_nodelay(true)?;
        option(&connection, libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 })?;
        connection.write_all(b"text")?;
        let mut text = [0; 4];
        connection.peek(&mut text)?;
        connection.read_exact(&mut text)?;
        ensure(
            text == *b"text"
                && connection.peer_addr()? != connection.local_addr()?
                && connection.take_error()?.is_none(),
        )
    }),
    ("exchanges bytes in its runtime", |targets| {
        let (runtime, address) = (&targets.made().runtime, targets.address);
        let exchange = runtime.spawn(async move {
            let socket = TcpSocket::new_v4()?;
            socket.set_zero_linger()?;
            let mut connection = socket.connect(address).await?;
            connection.set_nodelay(true)?;
            connection.write_all(b"text").await?;
            let mut text = [0; 4];
            connection.read_exact(&mut text).await?;
            connection.shutdown().await?;
            ensure(text == *b"text")
        });
        runtime.block_on(exchange).map_err(io::Error::other)?
    }),
];

/// The name of an attempt that fails in every runner. If it succeeded, another program would replace this process and
/// print its argument.
pub const RUNS: &str = "runs a file of its folder";

pub fn run(targets: &Targets) -> io::Error {
    let text = |bytes: &[u8]| CString::new(bytes).expect("a text without a zero");
    let program = text(targets.granted.join("program").as_os_str().as_bytes());
    let message = text(format!("{RUNS}: done").as_bytes());
    let [arguments, environment] = [&[program.as_ptr(), message.as_ptr(), std::ptr::null()][..], &[std::ptr::null()]];
    // SAFETY: the arguments are C strings and null-terminated lists of them, all of which outlive the call.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

pub fn folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

fn file(path: &Path, name: &str, flags: OFlags) -> io::Result<File> {
    Ok(rustix::fs::openat(folder(path)?, name, flags | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn inherited() -> BorrowedFd<'static> {
    // SAFETY: this process inherits the descriptor and never closes it.
    unsafe { BorrowedFd::borrow_raw(INHERITED) }
}

fn ensure(condition: bool) -> io::Result<()> {
    if condition { Ok(()) } else { Err(io::Error::other("unexpected result")) }
}

fn done(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn now() -> Timestamps {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
}

fn control(what: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the callers only pass options whose value is a number, not an address.
    done(unsafe { libc::prctl(what, value, 0, 0, 0) })
}

fn socket(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    // SAFETY: `socket` returns a new descriptor, which the returned value owns.
    unsafe {
        match libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) {
            -1 => Err(io::Error::last_os_error()),
            socket => Ok(OwnedFd::from_raw_fd(socket)),
        }
    }
}

fn option<T>(of: &TcpStream, level: libc::c_int, option: libc::c_int, value: T) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of_val(&value)).map_err(io::Error::other)?;
    // SAFETY: `value` outlives the call, and `size` is its size.
    done(unsafe { libc::setsockopt(of.as_raw_fd(), level, option, (&raw const value).cast(), size) })
}

fn pass_on(socket: libc::c_int, descriptor: libc::c_int) -> io::Result<()> {
    let mut byte = [0_u8];
    let mut bytes = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // This buffer has room for one control message, and the alignment that control messages need.
    let mut control = [0_u64; 8];
    // SAFETY: `bytes`, `byte` and `control` outlive the call. `control` has room for the header and the descriptor, so
    // `CMSG_FIRSTHDR` is not null, and both are written inside it.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut bytes;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        let size = size_of_val(&descriptor) as libc::c_uint;
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(descriptor);
        if libc::sendmsg(socket, &raw const message, 0) == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
