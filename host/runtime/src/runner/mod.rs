//! The process of one instance: a copy of its [`template`], which gives up all that the instance does not need before
//! anything of a stranger's runs.
//!
//! Its host has it forked before there is a term to serve ([`Runners`](super::runners::Runners)). It makes itself ready,
//! rehearses an instance's start without running any function of it, and waits; the message that begins an instance finds
//! everything there. It runs one instance, and ends with it. However it ends, and whenever, the kernel leaves nothing of
//! it behind.
//!
//! The thread that was there first runs the guest. One more does what the guest has begun (requests) while it computes, up
//! to four make its calls on files, one hears what the host says, and one ends the process at the deadline.

mod instance;
mod runtime;
mod template;
mod wire;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{ClockId, NanosleepRelativeResult, Timespec, clock_nanosleep_relative};

use super::http::Client;
use super::limits::Tally;
use super::module::Linked;
use super::page::Gate;
use super::policy::Policy;
use super::process::end_with;
use super::protocol::{self, FromRunner, LONGEST_TO_RUNNER, Setup, ToRunner};
use super::shared::{Mapped, SharedMemory};
use crate::confine::{self, Reach};

use instance::{Instance, Rehearsal};
use runtime::GuestRuntime;
pub(super) use runtime::{Begun, Looks};
pub use template::{Forked, make_runners};
pub(super) use wire::{KeptState, Lookups, Wire};

/// What it is handed over, in this order.
struct Descriptors {
    /// What the host says.
    from_host: File,
    /// What it says itself.
    to_host: File,
    page: OwnedFd,
    tally: OwnedFd,
    /// By what others know that it is there, if they are to: its lock is held as long as this process is.
    lock: Option<OwnedFd>,
    /// Where it leaves what is kept of its instance, if anything is.
    remains: Option<File>,
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
            remains: next().ok().map(File::from),
        })
    }

    /// Of the last two either may be there alone.
    fn are_for(&mut self, setup: &Setup) {
        if !setup.is_witnessed {
            self.remains = self.lock.take().map(File::from);
        }
    }
}

/// The whole life of a runner: makes itself ready, waits for an instance to run, runs it.
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

/// What is there from the beginning.
struct Runner {
    setup: Setup,
    linked: Linked,
    descriptors: Descriptors,
    wire: Wire,
}

/// None where the host is gone already.
fn begin(Forked { linked, host, descriptors }: Forked) -> anyhow::Result<Option<Runner>> {
    if !end_with(host, c"baton-runner")? {
        return Ok(None);
    }
    let mut descriptors = Descriptors::among(descriptors)?;
    let wire = Wire::new(descriptors.to_host.try_clone()?);
    wire.tells_of_panics();
    let Some(ToRunner::Prepare(setup)) = protocol::read(&mut descriptors.from_host, LONGEST_TO_RUNNER)? else {
        return Ok(None);
    };
    descriptors.are_for(&setup);
    Ok(Some(Runner { setup: *setup, linked, descriptors, wire }))
}

/// All that is ready before there is a term.
struct Prepared {
    setup: Setup,
    linked: Linked,
    runtime: GuestRuntime,
    gate: Arc<Gate>,
    tally: SharedMemory<Tally>,
    client: Client,
    lookups: Lookups,
    wire: Wire,
    remains: Option<File>,
}

impl Runner {
    fn serve(self) -> anyhow::Result<()> {
        let Self { setup, linked, descriptors, wire } = self;
        let Descriptors { mut from_host, page, tally, lock, remains, .. } = descriptors;
        // Nothing closes it before the process has ended.
        let lock = std::mem::ManuallyDrop::new(lock);
        let policy = &setup.policy;
        let (files, network) = (!policy.folders.is_empty(), policy.http.grants_anything());
        // Read once more when all is ready, when no file can be opened any more.
        let memory = Memory { statm: File::open("/proc/self/statm")?, page: rustix::param::page_size() as u64 };
        let tally = SharedMemory::map(tally, Mapped::Writes)?;
        let gate = Arc::new(Gate::map(page, &tally)?);
        let rehearsal = setup.rehearses.then(Rehearsal::new).transpose()?;
        let descriptors = Some(policy.descriptors());
        setrlimit(Resource::Nofile, Rlimit { current: descriptors, maximum: descriptors })?;
        let folders: Vec<_> =
            policy.folders.iter().filter_map(|folder| Some((folder.open().ok()?, folder.read_only))).collect();
        let has_folders = folders.len() == policy.folders.len();
        let reached: Vec<_> = folders.iter().map(|(folder, read_only)| (folder.as_fd(), *read_only)).collect();
        let reach = Reach { folders: &reached, files, network, holds: lock.as_ref().map(AsFd::as_fd) };
        confine::to_loading(&reach)?;

        let lookups = Lookups::new(wire.clone());
        let runtime = GuestRuntime::new(files)?;
        let client = Client::new(&policy.http, lookups.clone(), runtime.begun())?;
        let (begin, hears) = mpsc::channel::<instance::Hears>();
        // A thread gives itself its name, which none may do any more that runs for the first time when the guest may.
        let all_have_names = Arc::new(Barrier::new(3));
        let has_name = Arc::clone(&all_have_names);
        // Neither is waited for: both end with the process.
        std::thread::Builder::new().name("host".into()).spawn(move || {
            has_name.wait();
            if let Ok(hears) = hears.recv() {
                hears.until_the_end();
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
        let ticker = policy.profile.then(|| instance::Ticker::start(&linked.engine)).transpose()?;
        all_have_names.wait();
        memory.limit(policy)?;
        confine::to_running(&reach)?;
        let prepared = Prepared { setup, linked, runtime, gate, tally, client, lookups, wire, remains };
        if let Some(rehearsal) = rehearsal {
            rehearsal.hold(&prepared);
        }
        prepared.wire.send(&FromRunner::Ready { has_folders });

        let Some(ToRunner::Start(beginning)) = protocol::read(&mut from_host, LONGEST_TO_RUNNER)? else {
            return Ok(());
        };
        // Before anything of the instance is there: opening its folders may hang.
        let _ = started.send(());
        Instance::new(prepared, *beginning, from_host, ticker).run(|hears| {
            let _ = begin.send(hears);
        });
        Ok(())
    }
}

/// What says how much memory this process has, opened while files can be.
struct Memory {
    statm: File,
    /// The size of a page in bytes.
    page: u64,
}

impl Memory {
    /// Bounds what it may have from now on: the wall behind the accounting of what its guest holds.
    fn limit(mut self, policy: &Policy) -> anyhow::Result<()> {
        let mut text = [0; 256];
        let length = self.statm.read(&mut text)?;
        let text = std::str::from_utf8(&text[..length])?;
        // proc_pid_statm(5): the sixth is data and stack, in pages.
        let pages: u64 = text.split(' ').nth(5).context("/proc/self/statm has no data size")?.parse()?;
        let most = (pages * self.page).saturating_add(policy.memory());
        setrlimit(Resource::Data, Rlimit { current: Some(most), maximum: Some(most) })?;
        Ok(())
    }
}

/// Ends this process at its deadline, whether or not its host does. The host has written a deadline before it sends `Start`.
/// This thread sleeps by the boot clock, which counts the time that the machine sleeps, and reads all clocks of the page at
/// least every D/12: one that is set, as the wall clock may be, can bring the deadline closer. A deadline that is seen that
/// late (0.8 D + D/12) is still before 0.93 D, when the host ends.
fn end_at_the_deadline(gate: &Gate, lease: Duration) -> ! {
    loop {
        match gate.remaining() {
            Duration::ZERO => end(protocol::TIME_IS_OVER),
            left => sleep_by_boot_clock(left.min(lease / 12)),
        }
    }
}

/// Sleeps for that time. A signal may end the sleep early.
fn sleep_by_boot_clock(time: Duration) {
    let slept = Timespec::try_from(time).map(|request| clock_nanosleep_relative(ClockId::Boottime, &request));
    // A sandbox around the host may refuse this clock.
    if !matches!(slept, Ok(NanosleepRelativeResult::Ok | NanosleepRelativeResult::Interrupted(_))) {
        std::thread::sleep(time);
    }
}

/// Ends this process, whichever thread says so, and whatever the others do.
fn end(status: i32) -> ! {
    // SAFETY: nothing of the process is used any more, and nothing in it needs to be put in order.
    unsafe { libc::_exit(status) }
}
