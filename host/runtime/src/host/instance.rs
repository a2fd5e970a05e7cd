//! The host's side of an instance, which is one running copy of a module in its own process.
//!
//! One task of the host supervises each instance. The task reads the runner's messages, does the work that only the
//! host can do, and notices when the instance has ended. A kill does not wait for the task. It first closes the page,
//! the shared memory that holds the runner's deadline, so that further effects are refused. It then sends SIGKILL
//! through a pidfd.
//!
//! An instance is gone once its process has been reaped, all messages from the process have been read, and no commit
//! for it is in progress. If the kernel cannot end the process yet, for example during a write to a disk that hangs,
//! the instance counts as dying. The task then notifies the supervisor.
//!
//! The first step of every kill is to refuse the instance's effects. So if an instance fails because its effects are
//! refused, it counts as killed, not as failed. If the process dies without a kill and before its deadline, the
//! instance has failed, and the reported reason says how the process died. The host and its other instances continue.

use std::future::pending;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use baton_election::{End, StopReason, Term, Time};
use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};

use crate::host::process::Handle;
use crate::wire::limits::{EffectCounts, Tally, Usage};
use crate::wire::page::Page;
use crate::wire::shared::SharedMemory;
use baton_base::clock::Clock;
use baton_base::gate::Gate;

/// Maximum time by which a runner may see its deadline pass before the host does. The two processes can differ because
/// each process reads its clocks one after the other.
const APART: Duration = Duration::from_millis(20);

/// A running instance, held by its supervisor. Dropping this kills the instance.
pub trait InstanceHandle: Send {
    /// Waits for the next event. Cancel safe.
    fn next_event(&mut self) -> BoxFuture<'_, InstanceEvent>;

    /// Asks the instance to stop. Only the first request has an effect. If `next` is set, the next term also runs in
    /// this host. The host then first claims the state for the next term, and afterwards asks the instance to stop. If
    /// the claim takes too long, the host asks the instance to stop before the claim is complete.
    fn stop(&mut self, reason: StopReason, message: String, grace_ends: Time, next: Option<Term>);

    /// Refuses all effects from now on, and kills the instance at once, whatever the instance is doing.
    fn kill(&mut self);

    /// Extends both deadlines after a renewal. After `deadline`, effects are refused. At `abort_at`, the host ends its
    /// own process if the instance is not gone.
    fn extend(&self, deadline: Time, abort_at: Time);

    /// Returns the time until effects are refused.
    fn remaining(&self) -> Duration;

    /// Returns the time of the last progress report, or of the start if there was none.
    fn last_progress(&self) -> Time;

    /// Returns the resources that the instance has used.
    fn usage(&self) -> Usage;

    /// Returns how many effects have passed and how many have been refused so far.
    fn effects(&self) -> EffectCounts;
}

/// The parts of an instance that its supervisor can use without waiting for the instance's task. Clones share these
/// parts.
#[derive(Clone)]
pub(super) struct InstanceControl {
    pub(super) gate: Arc<Gate>,
    pub(super) killed: Arc<watch::Sender<bool>>,
    /// True once a deadline was extended so late that the runner may already have seen the earlier deadline pass.
    pub(super) lapsed: Arc<AtomicBool>,
    /// True once the kernel has accepted a SIGKILL for the process.
    pub(super) dying: Arc<watch::Sender<bool>>,
    pub(super) runner: Arc<OnceLock<RunnerHandle>>,
}

pub(super) struct RunnerHandle {
    pub(super) handle: Handle,
    pub(super) page: Page,
    pub(super) tally: SharedMemory<Tally>,
}

impl InstanceControl {
    /// Copies the gate's deadline to the runner's page.
    pub(super) fn open(&self) {
        // One thread may extend the deadline while another thread sets the runner. Both threads then call this
        // function. With the fence, at least one of them sees both the runner and the new deadline, so the new deadline
        // reaches the page.
        fence(Ordering::SeqCst);
        if let Some(RunnerHandle { page, .. }) = self.runner.get() {
            page.open_for(|| self.gate.remaining());
            // If the gate was closed in the meantime, the page must be closed too.
            if self.gate.remaining().is_zero() {
                page.close();
            }
        }
    }

    pub(super) fn kill(&self) {
        self.gate.close();
        if let Some(RunnerHandle { handle, page, .. }) = self.runner.get() {
            page.close();
            self.end(handle);
        }
    }

    pub(super) fn end(&self, handle: &Handle) {
        if handle.kill() {
            self.gate.set_dying();
            self.dying.send_replace(true);
        }
    }

    pub(super) fn was_killed(&self) -> bool {
        *self.killed.borrow()
    }

    pub(super) fn extend(&self, deadline: Time, abort_at: Time) {
        let before = self.gate.deadline();
        self.gate.extend(deadline, abort_at);
        self.open();
        // Until `open` returned, the runner's page held the previous deadline. If that deadline has passed by now, the
        // runner may have refused effects because of it.
        if self.gate.now() + APART >= before {
            self.lapsed.store(true, Ordering::Release);
        }
    }

    /// True if the deadline has passed or is about to, or if the runner may have seen an earlier deadline pass before
    /// the host extended it.
    pub(super) fn is_late(&self) -> bool {
        self.lapsed.load(Ordering::Acquire) || self.gate.remaining() <= APART
    }

    /// True if an effect was refused because the deadline had passed. After a refusal, the instance's end does not
    /// count as a failure, and the next instance starts at once. The host also checks its own clock, since a runner
    /// could report a false refusal to hide a failure.
    pub(super) fn was_refused(&self) -> bool {
        self.is_late() && self.runner.get().is_some_and(|runner| runner.tally.refused())
    }
}

/// An instance that runs in a runner process. Dropping this kills the instance.
pub struct Instance {
    pub(super) control: InstanceControl,
    pub(super) started: Time,
    pub(super) stop: watch::Sender<Option<StopNotice>>,
    pub(super) succeed: watch::Sender<Option<Successor>>,
    /// A stop request that waits until the host has claimed the state for the successor, and the timer that limits this
    /// wait. When the timer fires, the host sends the request, even if the claim is not complete.
    pub(super) patience: Option<(Pin<Box<Sleep>>, StopNotice)>,
    pub(super) claim_ahead: Duration,
    pub(super) clock: Clock,
    pub(super) events: mpsc::Receiver<InstanceEvent>,
    pub(super) task: JoinHandle<Gone>,
}

#[derive(Clone, Debug)]
pub(super) struct StopNotice {
    pub(super) reason: StopReason,
    pub(super) message: String,
    pub(super) grace_ends: Time,
}

/// An event that an instance reports to its supervisor.
#[derive(Debug)]
pub enum InstanceEvent {
    /// The guest is running.
    Begun,
    /// The guest gives up leadership. Holds the guest's reason.
    StepDown(String),
    /// The process was killed, but had not exited a short time later.
    Dying,
    /// The instance is gone. This is the last event.
    Gone(Gone),
}

/// The end of an instance.
#[derive(Debug)]
pub struct Gone {
    /// The cause of the end, which the elector uses to decide what to do next.
    pub end: End,
    /// The guest's backtrace, if the guest trapped.
    pub backtrace: Option<String>,
}

impl InstanceHandle for Instance {
    fn next_event(&mut self) -> BoxFuture<'_, InstanceEvent> {
        Box::pin(async move {
            loop {
                let patience = async {
                    match &mut self.patience {
                        Some((sleep, _)) => sleep.await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    Some(event) = self.events.recv() => return event,
                    gone = &mut self.task => return InstanceEvent::Gone(gone.unwrap_or_else(|error| {
                        // The async runtime is shutting down with the host.
                        let why = format!("the host failed to supervise the instance: {error}");
                        Gone { end: End::Crashed(why), backtrace: None }
                    })),
                    () = patience => {
                        if let Some((_, notice)) = self.patience.take() {
                            ask_to_stop(&self.stop, notice);
                        }
                    }
                }
            }
        })
    }

    fn stop(&mut self, reason: StopReason, message: String, grace_ends: Time, next: Option<Term>) {
        let notice = StopNotice { reason, message, grace_ends };
        let Some(term) = next else { return ask_to_stop(&self.stop, notice) };
        let patience = self.claim_ahead.min(grace_ends.since(self.clock.now()) / 4);
        self.patience = Some((Box::pin(sleep(patience)), notice.clone()));
        self.succeed.send_replace(Some(Successor { term, notice }));
    }

    fn kill(&mut self) {
        self.control.killed.send_replace(true);
        self.control.kill();
    }

    fn extend(&self, deadline: Time, abort_at: Time) {
        self.control.extend(deadline, abort_at);
    }

    fn remaining(&self) -> Duration {
        self.control.gate.remaining()
    }

    fn last_progress(&self) -> Time {
        let since = self.control.runner.get().and_then(|runner| runner.tally.since_progress());
        since.map_or(self.started, |since| Time(self.clock.now().0.saturating_sub(since)).max(self.started))
    }

    fn usage(&self) -> Usage {
        self.control.runner.get().map(|runner| runner.tally.usage()).unwrap_or_default()
    }

    fn effects(&self) -> EffectCounts {
        self.control.runner.get().map(|runner| runner.tally.effects()).unwrap_or_default()
    }
}

impl Instance {
    /// Returns the time at which the instance was started.
    pub fn started(&self) -> Time {
        self.started
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The next term on this host, and the request that stops the current instance for it.
#[derive(Clone)]
pub(super) struct Successor {
    pub(super) term: Term,
    pub(super) notice: StopNotice,
}

pub(super) fn ask_to_stop(stop: &watch::Sender<Option<StopNotice>>, notice: StopNotice) {
    stop.send_if_modified(|asked| {
        let is_first = asked.is_none();
        asked.get_or_insert(notice);
        is_first
    });
}
