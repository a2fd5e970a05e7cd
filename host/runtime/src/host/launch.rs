//! Starts instances.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use baton_election::{ElectionName, ScheduledRun, Term, Time};
use tokio::sync::{mpsc, watch};

use super::instance::{Instance, InstanceControl, InstanceHandle};
use super::task::InstanceTask;
use crate::SecretSource;
use crate::host::instances::RunningInstances;
use crate::host::runners::Runners;
use crate::module::Module;
use crate::module::judge::ModuleKind;
use crate::wire::output::{Notice, Output};
use baton_base::clock::{Clock, rfc3339_seconds};
use baton_base::gate::{Gate, Watchdog};
use baton_store::ObjectStore;
use baton_store::state::{self, Claimant};

/// Usual value of [`Launcher::claim_ahead`].
pub const CLAIM_AHEAD: Duration = Duration::from_millis(250);

/// Capacity of the event channel. This capacity suffices, since `Begun`, `StepDown` and `Dying` are each sent at most
/// once.
const EVENTS: usize = 3;

/// Starts the instances of one coordinator, for all versions of its module.
#[derive(Clone)]
pub struct Launcher {
    /// The election that the instances serve.
    pub election: ElectionName,
    /// The number of shards in the election's group; 1 for an election without shards.
    pub shards: u16,
    /// The node that the instances run on.
    pub node: String,
    /// The coordinator's runners, and its policy.
    pub runners: Runners,
    /// The store of the coordinator's state.
    pub states: Arc<dyn ObjectStore>,
    /// State that a replaced instance leaves for its successor.
    pub handover: state::Handover,
    /// State that was read in advance, while the lease was being acquired.
    pub read_ahead: state::ReadAhead,
    /// Maximum time by which the host delays a stop request if the next term also runs on this host. During this time,
    /// the host claims the state for the next term. The delay is never longer than a quarter of the grace.
    pub claim_ahead: Duration,
    /// Arguments that the guest gets after the election's name.
    pub arguments: Vec<String>,
    /// Environment variables of the guest.
    pub env: Vec<(String, String)>,
    /// Configuration of the guest. The guest gets it both as environment variables and as the content of
    /// `wasi:config/store`.
    pub config: Vec<(String, String)>,
    /// Secrets in the guest's configuration. The host reads them again for each instance.
    pub secrets: Vec<SecretSource>,
    /// The list of running instances.
    pub running: RunningInstances,
    /// The host's clock.
    pub clock: Clock,
    /// Ends the host's process if an instance is not gone in time.
    pub watchdog: Arc<Watchdog>,
}

/// Starts instances for a supervisor. [`Launcher`] is the implementation that starts real instances.
pub trait Launch: Send + Sync {
    /// Starts an instance of `module` that serves `term`, and carries out `run` if the election has a schedule. The
    /// event [`InstanceEvent::Gone`](crate::InstanceEvent::Gone) reports any failure.
    fn start(
        &self,
        module: &Module,
        term: Term,
        run: Option<ScheduledRun>,
        deadline: Time,
        abort_at: Time,
        output: Arc<dyn Output>,
    ) -> Box<dyn InstanceHandle>;

    /// Keeps a runner ready for each of these versions, and kills the ready runners of all other versions.
    fn keep(&self, modules: &[&Module]);

    /// Prepares for a term of `module`, for example by reading the coordinator's state. The supervisor calls this while
    /// the host is acquiring the lease.
    fn expects(&self, module: &Module);

    /// Discards everything that [`Launch::expects`] has prepared. Called when another node holds the lease.
    fn expects_none(&self);

    /// Discards the state that the last instance has left for its successor. Called when this node no longer holds the
    /// lease.
    fn clear_handover(&self);

    /// Returns a receiver that the watchdog notifies if timers fall behind while an instance runs, for example because
    /// the machine was suspended.
    fn missed_by_timers(&self) -> watch::Receiver<()>;
}

impl Launch for Launcher {
    fn start(
        &self,
        module: &Module,
        term: Term,
        run: Option<ScheduledRun>,
        deadline: Time,
        abort_at: Time,
        output: Arc<dyn Output>,
    ) -> Box<dyn InstanceHandle> {
        Box::new(self.start(module, term, run, deadline, abort_at, output))
    }

    fn keep(&self, modules: &[&Module]) {
        self.runners.keep(modules);
    }

    fn expects(&self, module: &Module) {
        if module.uses_state() {
            self.read_ahead.begin(self.runners.handle(), Arc::clone(&self.states), self.election.clone());
        }
    }

    fn expects_none(&self) {
        self.read_ahead.clear();
    }

    fn clear_handover(&self) {
        self.handover.clear();
    }

    fn missed_by_timers(&self) -> watch::Receiver<()> {
        self.watchdog.missed_by_timers()
    }
}

impl Launcher {
    /// Starts an instance: see [`Launch::start`].
    pub fn start(
        &self,
        module: &Module,
        term: Term,
        run: Option<ScheduledRun>,
        deadline: Time,
        abort_at: Time,
        output: Arc<dyn Output>,
    ) -> Instance {
        let started = self.clock.now();
        let gate = Arc::new(Gate::new(self.clock.clone(), deadline, abort_at));
        let (stop, stopped) = watch::channel(None);
        let (succeed, succeeded) = watch::channel(None);
        let (tell, events) = mpsc::channel(EVENTS);
        let killed = Arc::new(watch::Sender::new(false));
        let (lapsed, dying, runner) = (Arc::default(), Arc::new(watch::Sender::new(false)), Arc::default());
        let control = InstanceControl { gate: Arc::clone(&gate), killed, lapsed, dying, runner };
        let instance_task = InstanceTask {
            launcher: self.clone(),
            module: module.clone(),
            term,
            run,
            control: control.clone(),
            states: self.states_of(module, &output),
            succeeded,
            stop: stop.clone(),
            stopped,
            tell,
            output,
            started,
            dropped: AtomicU64::new(0),
        };
        // The watchdog must know the instance before the instance starts.
        self.watchdog.watch(&gate);
        // If there is nothing to wait for, start the instance on this thread, since waking another thread takes time.
        let begun = instance_task.begin_at_once();
        let task = self.runners.handle().spawn(instance_task.run(begun));
        Instance {
            control,
            started,
            stop,
            succeed,
            patience: None,
            claim_ahead: self.claim_ahead,
            clock: self.clock.clone(),
            events,
            task,
        }
    }

    /// Returns the guest's environment variables. A command gets its term, election and node in variables, since it
    /// usually does not import the contract. Every instance learns its scheduled run from variables. All of these
    /// variables override configured variables of the same names.
    pub(super) fn environment(
        &self,
        module: &Module,
        term: Term,
        run: Option<ScheduledRun>,
        secrets: &[(String, String)],
    ) -> Vec<(String, String)> {
        let given = self.env.iter().chain(&self.config).chain(secrets).cloned();
        let mut own = Vec::new();
        if module.kind() != ModuleKind::Coordinator {
            own.push(("BATON_TERM", term.to_string()));
            own.push(("BATON_ELECTION", self.election.to_string()));
            own.push(("BATON_NODE", self.node.clone()));
            if let Some(shard) = self.election.shard() {
                own.push(("BATON_SHARD", shard.to_string()));
                own.push(("BATON_SHARDS", self.shards.to_string()));
            }
        }
        if let Some(ScheduledRun { due, last_completed }) = run {
            own.push(("BATON_SCHEDULED_FOR", rfc3339_seconds(due)));
            own.extend(last_completed.map(|last| ("BATON_LAST_COMPLETED", rfc3339_seconds(last))));
        }
        let given = given.filter(|(name, _)| own.iter().all(|(other, _)| name != other));
        own.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).chain(given).collect()
    }

    /// Returns a claimant if the module uses state. Otherwise discards any state that was handed over or read in
    /// advance.
    fn states_of(&self, module: &Module, output: &Arc<dyn Output>) -> Option<Claimant> {
        if !module.uses_state() {
            self.handover.clear();
            self.read_ahead.clear();
            return None;
        }
        let output = Arc::clone(output);
        Some(Claimant {
            store: Arc::clone(&self.states),
            election: self.election.clone(),
            limits: self.runners.policy().state_limits,
            handover: self.handover.clone(),
            read_ahead: self.read_ahead.clone(),
            tell: Arc::new(move |refusal| output.notice(Notice::StateDelayed(refusal))),
        })
    }
}
