//! The process that runs one instance. The process is a fork of its [`template`]. Before it runs untrusted code, it
//! drops every right that the instance does not need.
//!
//! The runner prepares itself before there is a term to serve ([`Runners`](crate::host::runners::Runners)): it confines
//! itself, starts its threads, and rehearses the start of an instance. So everything is ready when the message that
//! starts an instance arrives. The runner runs one instance, and exits when the instance ends. The kernel then frees
//! everything that the process used, even if the runner crashed or was killed.

mod connection;
pub(crate) mod denied;
pub(crate) mod files;
pub(crate) mod folder;
pub(crate) mod guest;
pub(crate) mod holdings;
pub(crate) mod http;
mod instance;
pub(crate) mod listing;
pub(crate) mod logging;
pub(crate) mod polls;
mod runtime;
pub(crate) mod state;
mod template;
pub(crate) mod weight;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{ClockId, NanosleepRelativeResult, Timespec, clock_nanosleep_relative};

use crate::confine::{self, RunnerReach};
use crate::host::policy::Policy;
use crate::host::process::tie_to_parent;
use crate::module::Linked;
use crate::runner::http::Client;
use crate::wire::limits::Tally;
use crate::wire::page::RunnerGate;
use crate::wire::protocol::{self, FromRunner, LONGEST_TO_RUNNER, Setup, ToRunner};
use crate::wire::shared::{Mapped, SharedMemory};

pub(crate) use connection::{LocalState, Lookups, Wire};
use instance::{Instance, Rehearsal};
use runtime::GuestRuntime;
pub(crate) use runtime::{Begun, PollTracker};
pub use template::{Forked, make_runners};

/// The descriptors that a runner receives, in this order.
struct Descriptors {
    from_host: File,
    to_host: File,
    page: OwnedFd,
    tally: OwnedFd,
    /// The host's lock file, if there is one. While this process has the file open, the file's lock proves to other
    /// nodes that the process still exists.
    lock: Option<OwnedFd>,
}

impl Descriptors {
    fn among(given: Vec<OwnedFd>) -> io::Result<Self> {
        let mut given = given.into_iter();
        let mut next = || given.next().ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof));
        Ok(Self {
            from_host: next()?.into(),
            to_host: next()?.into(),
            page: next()?,
            tally: next()?,
            lock: next().ok(),
        })
    }
}

/// Runs a runner from start to end: prepares the process, waits for an instance, and runs the instance.
#[must_use]
pub fn run_instance(forked: Forked) -> ExitCode {
    let Ok(Some(runner)) = begin(forked) else { return ExitCode::FAILURE };
    let wire = runner.wire.clone();
    match runner.serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            wire.send(&FromRunner::Failed(format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

struct Runner {
    setup: Setup,
    linked: Linked,
    descriptors: Descriptors,
    wire: Wire,
}

/// Returns `None` if the host has exited already.
fn begin(Forked { linked, host, descriptors }: Forked) -> anyhow::Result<Option<Runner>> {
    if !tie_to_parent(host, c"baton-runner")? {
        return Ok(None);
    }
    let mut descriptors = Descriptors::among(descriptors)?;
    let wire = Wire::new(descriptors.to_host.try_clone()?);
    wire.report_panics();
    let Some(ToRunner::Prepare(setup)) = protocol::read(&mut descriptors.from_host, LONGEST_TO_RUNNER)? else {
        return Ok(None);
    };
    Ok(Some(Runner { setup: *setup, linked, descriptors, wire }))
}

struct PreparedRunner {
    setup: Setup,
    linked: Linked,
    runtime: GuestRuntime,
    gate: Arc<RunnerGate>,
    tally: SharedMemory<Tally>,
    client: Client,
    lookups: Lookups,
    wire: Wire,
}

impl Runner {
    fn serve(self) -> anyhow::Result<()> {
        let Self { setup, linked, descriptors, wire } = self;
        let Descriptors { mut from_host, page, tally, lock, .. } = descriptors;
        // Keep the lock until the process has exited.
        let lock = std::mem::ManuallyDrop::new(lock);
        let policy = &setup.policy;
        let (files, network) = (!policy.folders.is_empty(), policy.http.grants_anything());
        // Open this file now: the runner reads the file later, when the confinement forbids opening files.
        let memory = Memory { statm: File::open("/proc/self/statm")?, page: rustix::param::page_size() as u64 };
        let tally = SharedMemory::map(tally, Mapped::Writes)?;
        let gate = Arc::new(RunnerGate::map(page, &tally)?);
        let rehearsal = setup.rehearses.then(Rehearsal::new).transpose()?;
        let descriptors = Some(policy.descriptors());
        setrlimit(Resource::Nofile, Rlimit { current: descriptors, maximum: descriptors })?;
        let folders: Vec<_> =
            policy.folders.iter().filter_map(|folder| Some((folder.open().ok()?, folder.read_only))).collect();
        let has_folders = folders.len() == policy.folders.len();
        let reached: Vec<_> = folders.iter().map(|(folder, read_only)| (folder.as_fd(), *read_only)).collect();
        let reach = RunnerReach { folders: &reached, files, network, holds: lock.as_ref().map(AsFd::as_fd) };
        confine::to_loading(&reach)?;

        let lookups = Lookups::new(wire.clone());
        let runtime = GuestRuntime::new(files)?;
        let client = Client::new(&policy.http, lookups.clone(), runtime.begun())?;
        let (begin, hears) = mpsc::channel::<instance::HostReader>();
        // Each thread sets its own name when it starts. Wait until both threads have set their names: the confinement
        // below forbids setting names.
        let all_have_names = Arc::new(Barrier::new(3));
        let has_name = Arc::clone(&all_have_names);
        // Do not join these two threads: they run until the process exits.
        std::thread::Builder::new().name("host".into()).spawn(move || {
            has_name.wait();
            if let Ok(hears) = hears.recv() {
                hears.serve();
            }
        })?;
        let (deadline, (started, has_started)) = (Arc::clone(&gate), mpsc::channel::<()>());
        let lease = policy.lease;
        let has_name = Arc::clone(&all_have_names);
        std::thread::Builder::new().name("deadline".into()).spawn(move || {
            has_name.wait();
            if has_started.recv().is_ok() {
                end_at_the_deadline(&deadline, lease);
            }
        })?;
        all_have_names.wait();
        memory.limit(policy)?;
        confine::to_running(&reach)?;
        let prepared = PreparedRunner { setup, linked, runtime, gate, tally, client, lookups, wire };
        if let Some(rehearsal) = rehearsal {
            rehearsal.hold(&prepared);
        }
        prepared.wire.send(&FromRunner::Ready { has_folders });

        let Some(ToRunner::Start(beginning)) = protocol::read(&mut from_host, LONGEST_TO_RUNNER)? else {
            return Ok(());
        };
        // Enforce the deadline from here on, since even opening the instance's folders may hang.
        let _ = started.send(());
        Instance::new(prepared, *beginning, from_host).run(|hears| {
            let _ = begin.send(hears);
        });
        Ok(())
    }
}

struct Memory {
    statm: File,
    /// Size of a memory page (bytes).
    page: u64,
}

impl Memory {
    /// Limits the memory that this process may allocate from now on. [`holdings`] already limits the memory of the
    /// instance. This limit applies even if the accounting there is wrong.
    fn limit(mut self, policy: &Policy) -> anyhow::Result<()> {
        let mut text = [0; 256];
        let length = self.statm.read(&mut text)?;
        let text = std::str::from_utf8(&text[..length])?;
        // proc_pid_statm(5): the sixth field is data plus stack, in pages.
        let pages: u64 = text.split(' ').nth(5).context("/proc/self/statm has no data size")?.parse()?;
        let most = (pages * self.page).saturating_add(policy.memory());
        setrlimit(Resource::Data, Rlimit { current: Some(most), maximum: Some(most) })?;
        Ok(())
    }
}

/// Ends this process at its deadline, even if the host does nothing. The host writes a deadline before it sends
/// `Start`. The calling thread sleeps on the boot clock, which also advances while the machine is suspended. During a
/// sleep, a step of the wall clock can bring the deadline closer. So the thread wakes at least every D/12, where D is
/// the lease duration, and reads all clocks of the page. The deadline is at most 0.8 D after the last renewal. So the
/// thread ends the process after at most 0.8 D + D/12, before the watchdog ends the host at 0.93 D.
fn end_at_the_deadline(gate: &RunnerGate, lease: Duration) -> ! {
    loop {
        match gate.remaining() {
            Duration::ZERO => end(protocol::TIME_IS_OVER),
            left => sleep_by_boot_clock(left.min(lease / 12)),
        }
    }
}

/// Sleeps for `time`, or until a signal interrupts the sleep.
fn sleep_by_boot_clock(time: Duration) {
    let slept = Timespec::try_from(time).map(|request| clock_nanosleep_relative(ClockId::Boottime, &request));
    // A sandbox around the host may forbid this clock.
    if !matches!(slept, Ok(NanosleepRelativeResult::Ok | NanosleepRelativeResult::Interrupted(_))) {
        std::thread::sleep(time);
    }
}

/// Exits at once, without running destructors. Any thread may call this function.
fn end(status: i32) -> ! {
    // SAFETY: `_exit` takes any status and does not return. Nothing in this process needs cleanup.
    unsafe { libc::_exit(status) }
}
