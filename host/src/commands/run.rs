//! `baton run`: contends for elections until a signal ends the host.
//!
//! The host's threads:
//!
//! - **control**, two threads, or one for a single election: run the supervisors, module followers and historians, send
//!   store requests, and handle signals. These threads never write to a descriptor that may block. The requests of one
//!   election never delay those of another election.
//! - **keepers**, two threads: handle messages from runners, commit coordinators' state, and look up host names.
//!   These threads decide nothing about leadership.
//! - **starter**: starts template processes, adopts the runners that these processes fork, and reaps runners for which
//!   no other thread waits. When this thread ends, all template processes and runners die.
//! - **admin**: serves probes, load balancers, scrapers and users, and writes operators' commands to the store. This
//!   thread has a lower priority than the others.
//! - **links**: exchanges hints with other hosts. See [`links`].
//! - **manager**: reports the host's state to the machine's service manager, if there is one.
//! - **watchdog** and **last words**: see [`Watchdog`].
//! - **log writer**: writes lines to stderr without blocking other threads; see [`telemetry`](baton_node::telemetry).
//! - **blocking threads** of the runtimes: run SQLite's calls, look up host names, verify modules, and read secrets.
//!
//! No thread that renews leases, kills instances or gates effects waits for a guest. Every task and thread has an owner
//! that awaits or joins it.

use std::convert::Infallible;
use std::mem::ManuallyDrop;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use baton_election::eligibility::longest_deferral;
use baton_election::{ElectionName, StoreError};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::dev::{Workshop, hint_at_busy_instances};
use super::{WrongConfiguration, descriptors, open_store};
use crate::config::{Config, Coordinator, Misspelt, TrustedPath};
use crate::reload::Reload;
use crate::service_manager::{Notifier, Phase, Phases, ServiceManager};
use crate::signals::{Ask, Signals};
use baton_admin::local_socket;
use baton_admin::watched::Watched;
use baton_admin::{Admin, AdminError, AdminPlace, AdminSettings, AdminUrl, BoundEndpoint};
use baton_base::clock::Clock;
use baton_base::gate::Watchdog;
use baton_base::jitter::Moments;
use baton_modules::{
    Cache, CacheError, Compiler, FileSource, Follower, FollowerConfig, FollowerReport, FollowerReportSink,
    ModuleSource, OciSource, Pace, Preparer, RegistryCredentials, Source, Trust,
};
use baton_node::announcer::NodeProperties;
use baton_node::links::{self, Links, MAX_LINKS, PeerSettings};
use baton_node::maintenance::Maintenance;
use baton_node::node::{ElectionConfig, ModuleFollower, Node, NodeConfig, NodeId, ShardConfig, Stores};
use baton_node::random::incarnation;
use baton_node::steering::NodeIncarnation;
use baton_node::supervisor::Shutdown;
use baton_node::telemetry::{ElectionTracker, Event, FollowerLog, Heartbeat, LAST_LINES, Log};
use baton_runtime::confine;
use baton_runtime::memory;
use baton_runtime::{
    CLAIM_AHEAD, ControlGroups, Engine, HttpPolicy, Launcher, Policy, Processes, Runners, RunningInstances, Templates,
};
use baton_runtime::{Folder, Secret};
use baton_store::sqlite::Exposure;
use baton_store::state::{Handover, ReadAhead};
use baton_store::{Digest, LockFile, ObjectStore, no_file_events, witness};
use baton_store::{LeaseStore, MemoryStore, SqliteStore, StoreUrl};

/// Timeout for creating the lock file at startup. If the timeout expires, the host runs without a lock file.
const LOCKED_WITHIN: Duration = Duration::from_secs(2);

/// Maximum time that elections wait at startup for the first attempt to create the store.
const MADE_WITHIN: Duration = Duration::from_secs(1);

/// Environment variables that name files which the clients of stores and registries read. Coordinators must not be able
/// to replace these files.
const FILES: [(&str, &str); 2] =
    [("AZURE_FEDERATED_TOKEN_FILE", "the workload's token file"), ("SSL_CERT_FILE", "the certificate file")];

/// Environment variables that name folders with certificates or with programs that the host runs. Coordinators must not
/// be able to write to these folders.
const FOLDERS: [(&str, &str); 2] = [("SSL_CERT_DIR", "the certificate folder"), ("PATH", "the program folder")];

pub(super) fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let stores = Stores {
        leases: open_store(&config.store)?,
        modules: open_store(&config.store)?,
        status: open_store(&config.store)?,
    };
    // Open the store separately for coordinators' state, so that renewals do not wait for coordinators' commits.
    let states: Arc<dyn ObjectStore> = open_store(&config.store)?;
    host(config, stores, states, None)
}

/// Runs a host for `baton dev`: one node with a store in memory, and a workshop that builds the module.
pub(super) fn develop(config: &Config, workshop: &Workshop) -> anyhow::Result<ExitCode> {
    let clock = Clock::default();
    let store = Arc::new(MemoryStore::new(Arc::new(move || clock.now().0)));
    let stores =
        Stores { leases: Arc::clone(&store) as _, modules: Arc::clone(&store) as _, status: Arc::clone(&store) as _ };
    host(config, stores, store, Some(workshop))
}

/// Number of threads that must be available at startup. A host with one coordinator uses about this many, including the
/// threads of its child processes.
const THREADS: usize = 20;

/// Fails if too few threads are available. If a thread could not be started later, the host would exit, or would blame
/// a module for the failure.
fn has_room_for_threads() -> anyhow::Result<()> {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let spawned: std::io::Result<Vec<_>> = (0..THREADS)
        .map(|_| {
            let held = Arc::clone(&held);
            std::thread::Builder::new().spawn(move || drop(held.lock().map(|held| held.recv())))
        })
        .collect();
    drop(release);
    for thread in spawned.with_context(|| {
        format!(
            "a host needs room for {THREADS} threads: raise the number of processes (`ulimit -u`, TasksMax= of a unit, \
             --pids-limit of a container), or the size of the address space (`ulimit -v`)"
        )
    })? {
        let _ = thread.join();
    }
    Ok(())
}

fn host(
    config: &Config,
    stores: Stores,
    states: Arc<dyn ObjectStore>,
    workshop: Option<&Workshop>,
) -> anyhow::Result<ExitCode> {
    memory::keep_one_heap();
    has_room_for_threads()?;
    config.check_path_isolation(implicit_paths(config, workshop)).map_err(WrongConfiguration::new)?;
    keeps_to_folders(config).map_err(WrongConfiguration::new)?;
    let checked = check(&config.coordinators)?;
    let links = if config.links && workshop.is_none() { MAX_LINKS } else { 0 };
    let policies = checked.iter().map(|checked| (&checked.policy, checked.coordinator.shards));
    let max_links = descriptors::grant(policies, links).map_err(WrongConfiguration::new)?;
    let node = config.node.claim().map_err(WrongConfiguration::new)?;
    // `baton dev` serves the status page on loopback, without a token.
    let page = AdminSettings { place: AdminPlace::Free, token_file: None, tls: None, advertise: None };
    let settings = if workshop.is_none() { &config.admin } else { &page };
    let (listening, no_endpoint) = match BoundEndpoint::with(settings) {
        Ok(listening) => (listening, None),
        // The endpoint at the default address is optional, so this error is not fatal.
        Err(error @ AdminError::NoLoopback(_)) => (None, Some(error)),
        // Exit with a status that makes service managers restart the host: the port may become free, or the interface
        // may come up.
        Err(error) if error.may_pass() => return Err(error.into()),
        Err(error) => return Err(WrongConfiguration::new(error).into()),
    };
    // `baton dev` has no peers.
    let peers = config.peer.as_ref().filter(|_| config.links && workshop.is_none());
    let peers = match peers.map(PeerSettings::listen).transpose() {
        Ok(peers) => peers,
        Err(error) if error.may_pass() => return Err(error.into()),
        Err(error) => return Err(WrongConfiguration::new(error).into()),
    };
    let (log, writer) = Log::to_stderr(config.log_format, node.id())?;
    if let Some(error) = no_endpoint {
        log.emit(None, Event::Error { error: format!("{:#}", anyhow::Error::new(error)) });
    }
    for missing in confine::missing() {
        log.emit(None, Event::WeakerIsolation { missing });
    }
    if max_links < links {
        let error = format!(
            "the system allows too few file descriptors for {links} links, so this node accepts {max_links}: raise the \
             limit (LimitNOFILE= in systemd, `ulimit -Hn`)"
        );
        log.emit(None, Event::Error { error });
    }
    if let Some(links::PeerListener { address, advertised, .. }) = &peers {
        log.emit(
            None,
            Event::Listening {
                purpose: "peers",
                address: address.to_string(),
                advertised: Some(advertised.to_string()),
            },
        );
    }
    for Misspelt { variable, meant: suggestion } in config.misspelt.iter().cloned() {
        log.emit(None, Event::UnknownVariable { variable, suggestion });
    }
    let host = Host { config, workshop, checked: &checked, node: node.id(), log: &log, states };
    let ended = host.run(stores, Ends { listening, peers, max_links });
    writer.shutdown(LAST_LINES);
    ended.map(|()| ExitCode::SUCCESS)
}

/// The error returned when the kernel cannot confine a coordinator to its folders. Without this confinement, the
/// WebAssembly sandbox would be the only barrier.
#[derive(Debug, thiserror::Error)]
#[error(
    "--dir {folder}: this kernel has no Landlock (Linux 5.13, listed in /sys/kernel/security/lsm), so only the \
     WebAssembly sandbox would keep the coordinator of {election} to this folder; use a kernel with Landlock, or \
     accept the risk with `--allow-weaker-isolation`"
)]
struct FoldersNotConfined {
    folder: Folder,
    election: ElectionName,
}

fn keeps_to_folders(config: &Config) -> Result<(), FoldersNotConfined> {
    if config.allow_weaker_isolation || confine::keeps_to_folders() {
        return Ok(());
    }
    let granted = config.coordinators.iter().find_map(|one| Some((one.folders.first()?, &one.election)));
    granted.map_or(Ok(()), |(folder, election)| {
        Err(FoldersNotConfined { folder: folder.clone(), election: election.clone() })
    })
}

/// Returns the paths that the host trusts although they do not come from its configuration.
fn implicit_paths(config: &Config, workshop: Option<&Workshop>) -> Vec<TrustedPath> {
    let mut found = Vec::new();
    let mut add = |place: &str, what: &str, path: PathBuf, is_folder| {
        found.push(TrustedPath { place: place.to_owned(), what: what.to_owned(), path, is_folder });
    };
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    for (name, what) in FILES {
        if let Some(path) = variable(name) {
            add(name, what, path.into(), false);
        }
    }
    for (name, what) in FOLDERS {
        for folder in variable(name).iter().flat_map(std::env::split_paths) {
            // An empty entry means the working directory.
            add(name, what, Path::new(".").join(folder), true);
        }
    }
    if let Ok(program) = std::env::current_exe() {
        add("the host", "its program", program, false);
    }
    for folder in workshop.into_iter().flat_map(Workshop::folders) {
        add("the project", "the build folder", folder.clone(), true);
    }
    if config.coordinators.iter().any(|coordinator| matches!(coordinator.module, ModuleSource::Oci(_))) {
        for file in RegistryCredentials::of_process().files() {
            add("registries", "the credentials file", file.clone(), false);
        }
    }
    found
}

struct Checked<'a> {
    coordinator: &'a Coordinator,
    trust: Trust,
    policy: Policy,
}

fn check<'a>(coordinators: &'a [Coordinator]) -> anyhow::Result<Vec<Checked<'a>>> {
    let mut checked = Vec::new();
    for coordinator in coordinators {
        let Coordinator { pins, trust, allow_http, max_requests, http_ca, .. } = coordinator;
        let http = HttpPolicy::new(allow_http.clone(), *max_requests, http_ca.as_deref());
        let trust = Trust::new(pins.clone(), trust).map_err(WrongConfiguration::new)?;
        checked.push(Checked {
            coordinator,
            trust: trust.in_election(&coordinator.election),
            policy: Policy {
                limits: coordinator.limits,
                state_limits: coordinator.state_limits,
                folders: coordinator.folders.clone(),
                http: http.map_err(WrongConfiguration::new)?,
                lease: coordinator.timing.lease(),
            },
        });
    }
    Ok(checked)
}

struct Ends {
    listening: Option<BoundEndpoint>,
    peers: Option<links::PeerListener>,
    max_links: usize,
}

struct Host<'a> {
    config: &'a Config,
    workshop: Option<&'a Workshop>,
    checked: &'a [Checked<'a>],
    node: &'a NodeId,
    log: &'a Log,
    states: Arc<dyn ObjectStore>,
}

struct Shared {
    clock: Clock,
    watchdog: Arc<Watchdog>,
    templates: Templates,
    /// The runtime for the tasks that handle runners' messages. These tasks have a separate runtime, so that they do
    /// not delay supervisors.
    keepers: Handle,
    running: RunningInstances,
    /// The trackers of each coordinator: one for each shard.
    trackers: Vec<Vec<Arc<ElectionTracker>>>,
    incarnation: String,
}

impl Host<'_> {
    fn run(&self, mut stores: Stores, ends: Ends) -> anyhow::Result<()> {
        let Self { config, workshop, checked, node, log, .. } = self;
        let clock = Clock::default();
        let last_words_log = (*log).clone();
        let watchdog =
            Arc::new(Watchdog::start(clock.clone(), move |why, longest| last_words_log.last_words(why, longest))?);
        let keepers = runtime("keeper", 2)?;
        // With only one thread, a slow system call for one election would delay another election's deadlines.
        let control = runtime("control", checked.len().clamp(1, 2))?;
        let incarnation = incarnation(node.as_str())?;
        let lock_file = control.block_on(lock_file(config, *workshop, &incarnation, log));
        // Never drop this handle, because other hosts take an unlocked lock file as proof that this host has exited.
        // The file must therefore stay locked until the process has exited.
        let _held = ManuallyDrop::new(lock_file.clone());
        if lock_file.is_some() {
            stores.leases =
                baton_store::open_leases(&config.store, lock_file.clone()).map_err(WrongConfiguration::new)?;
        }
        let moments = Moments::default();
        let shared = Shared {
            templates: self.templates(lock_file)?,
            keepers: keepers.handle().clone(),
            running: RunningInstances::default(),
            trackers: checked.iter().map(|checked| self.trackers(checked, moments)).collect(),
            clock,
            watchdog,
            incarnation,
        };
        let heartbeat = Heartbeat::default();
        let address = ends.listening.as_ref().map(BoundEndpoint::address).transpose()?;
        let advertised = address.and_then(|address| config.admin.advertised(address, &config.store));
        if let Some(address) = address {
            log.emit(None, Event::Listening { purpose: "admin", address: address.to_string(), advertised: None });
        }
        let watched = Arc::new(self.watched(&shared, heartbeat.clone()));
        let reload = Reload {
            config: (*config).clone(),
            trusts: checked.iter().map(|checked| checked.trust.clone()).collect(),
            certificate: ends.listening.as_ref().and_then(BoundEndpoint::certificate),
        };
        let telling = tell_manager(&watched, log)?;
        let admin = Admin::start(ends.listening, self.local_socket(&shared), watched, Arc::clone(&stores.status))?;
        let network = Network { advertised, peers: ends.peers, max_links: ends.max_links };
        let result = control.block_on(async {
            let mut aside = JoinSet::new();
            aside.spawn(heartbeat.clone().of_runtime(shared.clock.clone(), moments));
            let result = self.run_node(&shared, stores, network, (reload, telling.phases()), &mut aside).await;
            aside.shutdown().await;
            heartbeat.end();
            result
        });
        if let Some(admin) = admin {
            admin.shutdown();
        }
        telling.end();
        // Do not wait without a limit for the threads of these runtimes: if the store hangs, one of the threads may be
        // blocked forever.
        control.shutdown_background();
        keepers.shutdown_timeout(Duration::from_secs(1));
        result
    }

    /// Creates the templates, which are the processes that fork runners. Moves this process into its control group
    /// first, because child processes inherit the group.
    fn templates(&self, lock_file: Option<Arc<LockFile>>) -> anyhow::Result<Templates> {
        let report_log = self.log.clone();
        let report = move |error: String| report_log.emit(None, Event::Error { error });
        let groups = ControlGroups::delegated(report.clone()).unwrap_or_else(|error| {
            report(error.to_string());
            None
        });
        // Runners must run the same program as this process, even if the program's file has been replaced since this
        // process started. `/proc/self/exe` always refers to this process's program.
        Ok(Templates::with_lock_file("/proc/self/exe".into(), &Processes::in_groups(groups)?, lock_file))
    }

    fn trackers(&self, Checked { coordinator, .. }: &Checked<'_>, moments: Moments) -> Vec<Arc<ElectionTracker>> {
        let Coordinator { election, timing, .. } = coordinator;
        let all = self.checked.iter().map(|checked| usize::from(checked.coordinator.shards)).sum();
        // SQLite can answer many reads in one transaction, so all elections poll at the same time. Over a network,
        // elections poll at different times, because concurrent reads would each need a connection.
        let asks_at_once = matches!(self.config.store, StoreUrl::Sqlite(_));
        let tracker = |election: ElectionName| {
            let tracker = ElectionTracker::one_of(all, election, timing.lease());
            Arc::new(if asks_at_once { tracker.reading_at(moments) } else { tracker })
        };
        match coordinator.shards {
            1 => vec![tracker(election.clone())],
            shards => (0..=u8::MAX).take(shards.into()).map(|index| tracker(election.with_shard(index))).collect(),
        }
    }

    fn watched(&self, shared: &Shared, heartbeat: Heartbeat) -> Watched {
        Watched {
            node: self.node.to_string(),
            labels: self.config.labels.clone(),
            incarnation: shared.incarnation.clone(),
            events: self.log.events(),
            trackers: shared.trackers.concat(),
            running: shared.running.clone(),
            clock: shared.clock.clone(),
            watchdog: Arc::clone(&shared.watchdog),
            heartbeat,
            log: Some(self.log.clone()),
        }
    }

    /// Opens the socket for commands on this machine. These commands cannot read the in-memory store of `baton dev`, so
    /// `baton dev` needs no socket.
    fn local_socket(&self, shared: &Shared) -> Option<UnixListener> {
        let is_wanted = self.workshop.is_none();
        is_wanted.then(|| local_socket::open(&shared.incarnation)).transpose().unwrap_or_else(|error| {
            let error = format!(
                "cannot open the local socket, so logs and usage need the admin endpoint even on this machine: {error}"
            );
            self.log.emit(None, Event::Error { error });
            None
        })
    }

    /// Runs the node until a signal ends it. Tasks that do not end by themselves are spawned on `aside`.
    async fn run_node(
        &self,
        shared: &Shared,
        stores: Stores,
        network: Network,
        (reload, phases): (Reload, Phases),
        aside: &mut JoinSet<()>,
    ) -> anyhow::Result<()> {
        let Self { config, workshop, log, .. } = self;
        let mut signals = Signals::listen()?;
        let elections = tokio::select! {
            elections = self.elections(shared, &stores, aside) => elections?,
            // Preparing a large module takes a while, so handle signals here, too. So far, nothing has been started
            // that a shutdown would have to stop.
            asked = signals.next() => {
                begin_shutdown(asked, log, &phases);
                return Ok(());
            }
        };
        let node = Node::start(self.node_config(shared, stores, network, elections));
        if let Some(asked) = signals.take_reloads() {
            aside.spawn(reload.whenever(asked, phases.clone(), (*log).clone()));
        }
        // `baton dev` has no other node that could take over during maintenance.
        if let Some(endpoint) = config.scheduled_events.endpoint().filter(|_| workshop.is_none()) {
            let (trackers, drained) = (shared.trackers.concat(), node.drained());
            aside.spawn(Maintenance { endpoint, trackers, drained, log: (*log).clone() }.watch());
        }
        let shutdown = node.shutdown();
        if let Some(workshop) = *workshop {
            aside.spawn(workshop.clone().run((*log).clone(), shutdown.subscribe()));
            aside.spawn(hint_at_busy_instances(shared.running.clone()));
        }
        phases.are_at(Phase::Ready);
        let mut finished = pin!(node.finished());
        loop {
            tokio::select! {
                asked = signals.next() => {
                    shutdown.send_replace(begin_shutdown(asked, log, &phases));
                }
                ended = &mut finished => return Ok(ended?),
            }
        }
    }

    async fn elections(
        &self,
        shared: &Shared,
        stores: &Stores,
        aside: &mut JoinSet<()>,
    ) -> anyhow::Result<Vec<ElectionConfig>> {
        let Self { config, log, .. } = self;
        let followers = Followers::new(self, stores);
        let mut elections = Vec::new();
        for (checked, trackers) in self.checked.iter().zip(&shared.trackers) {
            let runners = Runners::new(checked.policy.clone(), &shared.templates, &shared.keepers);
            let (modules, module) = followers.follower(checked, &runners, trackers).await?;
            elections.push((self.election(checked, shared, &runners, modules, trackers), module));
        }
        // The host always creates a local folder, but creates a shared store only with `--create`.
        if config.create || matches!(config.store, StoreUrl::Sqlite(_)) {
            let (tries, tried) = oneshot::channel();
            aside.spawn(create(Arc::clone(&stores.leases), config.store.clone(), (*log).clone(), tries));
            // Wait for the first attempt: an election that polled earlier would find no store, and would log that.
            let _ = tokio::time::timeout(MADE_WITHIN, tried).await;
        }
        let all: usize = shared.trackers.iter().map(Vec::len).sum();
        let has_quota = config.max_leading.is_some_and(|most| most < all);
        for ((election, module), Checked { coordinator, .. }) in elections.iter().zip(self.checked) {
            let waits = longest_deferral(election.priority, has_quota);
            let (source, timing) = (coordinator.module.to_string(), &election.timing);
            let starting = Event::starting(self.node.as_str(), &config.store, source, *module, timing, waits);
            let Some(first) = election.shards.first() else { continue };
            log.for_election(&first.tracker).emit(None, starting);
        }
        Ok(elections.into_iter().map(|(election, _)| election).collect())
    }

    fn election(
        &self,
        Checked { coordinator, .. }: &Checked<'_>,
        shared: &Shared,
        runners: &Runners,
        modules: ModuleFollower,
        trackers: &[Arc<ElectionTracker>],
    ) -> ElectionConfig {
        let launcher = |tracker: &ElectionTracker| Launcher {
            election: tracker.election.clone(),
            shards: coordinator.shards,
            node: self.node.to_string(),
            runners: runners.clone(),
            states: Arc::clone(&self.states),
            handover: Handover::default(),
            read_ahead: ReadAhead::default(),
            claim_ahead: CLAIM_AHEAD,
            arguments: coordinator.arguments.clone(),
            env: reveal(&coordinator.env),
            config: coordinator.config.clone(),
            secrets: coordinator.secrets.clone(),
            running: shared.running.clone(),
            clock: shared.clock.clone(),
            watchdog: Arc::clone(&shared.watchdog),
        };
        let shards = trackers
            .iter()
            .map(|tracker| ShardConfig { launcher: Arc::new(launcher(tracker)), tracker: Arc::clone(tracker) });
        ElectionConfig {
            election: coordinator.election.clone(),
            shards: shards.collect(),
            timing: coordinator.timing,
            pause: coordinator.pause,
            on_done: coordinator.on_done,
            probation: coordinator.probation,
            schedule: coordinator.schedule.clone(),
            stall_after: coordinator.stall_after,
            priority: coordinator.priority,
            // `baton dev` has no other node to hand over to.
            preempt: coordinator.preempt && self.workshop.is_none(),
            one_module: matches!(coordinator.module, ModuleSource::File(_)),
            modules,
        }
    }

    fn node_config(
        &self,
        shared: &Shared,
        stores: Stores,
        network: Network,
        elections: Vec<ElectionConfig>,
    ) -> NodeConfig {
        let Self { config, workshop, node, log, .. } = self;
        let sockets = links::folder(&config.store).filter(|_| config.links && workshop.is_none());
        let properties = NodeProperties {
            labels: config.labels.clone(),
            admin: network.advertised.as_ref().map(ToString::to_string).unwrap_or_default(),
            peer: network.peers.as_ref().map(links::PeerListener::announced),
            max_leaderships: config.max_leading,
        };
        let peers = network.peers.map(|listening| (listening, Arc::clone(&stores.status) as Arc<dyn ObjectStore>));
        NodeConfig {
            properties,
            itself: NodeIncarnation { node: node.to_string(), incarnation: shared.incarnation.clone() },
            links: Links::new((node.as_str(), &shared.incarnation), sockets, peers, network.max_links),
            stores,
            clock: shared.clock.clone(),
            log: (*log).clone(),
            elections,
        }
    }
}

struct Network {
    advertised: Option<AdminUrl>,
    peers: Option<links::PeerListener>,
    max_links: usize,
}

/// Creates the lock file. Other hosts on this machine use this file to detect that this host has exited, even if they
/// start later.
async fn lock_file(
    config: &Config,
    workshop: Option<&Workshop>,
    incarnation: &str,
    log: &Log,
) -> Option<Arc<LockFile>> {
    // Other hosts take an unlocked lock file as proof that all runners of this host have exited. The proof is valid
    // only if no runner can release the lock.
    let is_wanted = config.witness && workshop.is_none() && confine::keeps_what_it_holds();
    let folder = witness::folder(&config.store, config.state.as_deref()).filter(|_| is_wanted)?;
    let incarnation = incarnation.to_owned();
    let makes = tokio::task::spawn_blocking(move || LockFile::make(&folder, &incarnation));
    let problem = match tokio::time::timeout(LOCKED_WITHIN, makes).await {
        Ok(Ok(Ok(lock_file))) => return Some(Arc::new(lock_file)),
        Ok(Ok(Err(error))) => format!("{:#}", anyhow::Error::new(error)),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the disk did not answer within {LOCKED_WITHIN:?}"),
    };
    let error = match &config.store {
        StoreUrl::Sqlite(_) => {
            format!(
                "cannot create this host's lock file, so this host and the others wait for each other's leases to \
                 expire after a crash: {problem}"
            )
        }
        _ => format!(
            "cannot create this host's lock file, so after a crash and a restart this host waits until its own leases \
             expire: {problem}"
        ),
    };
    log.emit(None, Event::Error { error });
    None
}

fn tell_manager(watched: &Arc<Watched>, log: &Log) -> std::io::Result<Notifier> {
    match ServiceManager::of_process() {
        Ok(Some(manager)) => manager.tell_of(Arc::clone(watched), log.clone()),
        Ok(None) => Ok(Notifier::default()),
        Err(error) => {
            log.emit(None, Event::Error { error: error.to_string() });
            Ok(Notifier::default())
        }
    }
}

fn begin_shutdown(asked: Ask, log: &Log, phases: &Phases) -> Shutdown {
    let (signal, level) = match asked {
        Ask::Shutdown(signal) => (signal, Shutdown::Requested),
        Ask::SkipGrace(signal) => (signal, Shutdown::Impatient),
    };
    phases.are_at(Phase::Stopping);
    log.emit(None, Event::ShuttingDown { signal: signal.to_owned(), grace: level < Shutdown::Impatient });
    level
}

struct Followers<'a> {
    host: &'a Host<'a>,
    stores: &'a Stores,
    compiler: Compiler,
    cache: Option<Cache>,
}

impl<'a> Followers<'a> {
    fn new(host: &'a Host<'a>, stores: &'a Stores) -> Self {
        let cache = host.config.cache.as_deref().and_then(|folder| {
            let key = host.config.cache_key.as_deref().ok_or(CacheError::NoPlaceForKey);
            let opened = key.and_then(|key| Cache::open(folder, key));
            opened.map_err(|error| host.log.emit(None, Event::Error { error: error.to_string() })).ok()
        });
        Self { host, stores, compiler: Compiler::default(), cache }
    }

    /// Creates the follower of a module source. If the source is a file that `baton run` uses, also loads the module,
    /// and fails if the module is unusable: the user who starts the host can fix the file. Other sources may become
    /// usable later.
    async fn follower(
        &self,
        Checked { coordinator, trust, .. }: &Checked<'_>,
        runners: &Runners,
        trackers: &[Arc<ElectionTracker>],
    ) -> anyhow::Result<(ModuleFollower, Option<Digest>)> {
        let Self { host, stores, .. } = self;
        let tracker = trackers.first().context("an election has at least one shard")?;
        let engine = Engine::new();
        let engine = engine.map_err(|error| anyhow::anyhow!("{error:#}"))?;
        let reports: Arc<dyn FollowerReportSink> = Arc::new(FollowerLog {
            log: host.log.for_election(tracker),
            trackers: trackers.to_vec(),
            source: coordinator.module.to_string(),
        });
        let source: Option<Box<dyn Source>> = match &coordinator.module {
            ModuleSource::File(path) => {
                let file = FileSource::new(path.clone());
                Some(match host.workshop {
                    Some(workshop) => Box::new(workshop.source(file)),
                    None => Box::new(file),
                })
            }
            ModuleSource::Oci(reference) => {
                let (source, reports) =
                    (OciSource::new(reference.clone(), RegistryCredentials::of_process()), Arc::clone(&reports));
                Some(Box::new(source.telling(move |module| reports.report(FollowerReport::Pulling { module }))))
            }
            ModuleSource::Published(_) => None,
        };
        let (mut follower, supply, judgements) = Follower::new(FollowerConfig {
            election: coordinator.election.clone(),
            node: host.node.to_string(),
            name: coordinator.module.to_string(),
            source,
            store: Arc::clone(&stores.modules),
            preparer: Arc::new(Preparer {
                engine,
                trust: trust.clone(),
                compiler: self.compiler.clone(),
                compile_timeout: coordinator.compile_timeout,
                cache: self.cache.clone(),
                runners: runners.clone(),
            }),
            reports,
            pace: Pace::default(),
            notifier: tracker.notifier.clone(),
        });
        let module = match &coordinator.module {
            ModuleSource::File(_) if host.workshop.is_none() => {
                follower.load().await.map_err(WrongConfiguration::new)?
            }
            _ => None,
        };
        Ok((ModuleFollower { follower, supply, judgements, source: coordinator.module.to_string() }, module))
    }
}

fn reveal(values: &[(String, Secret)]) -> Vec<(String, String)> {
    values.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect()
}

fn runtime(name: &str, threads: usize) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build()
}

/// Creates the store, and retries until this succeeds. After the first attempt, drops `tries` to wake the caller.
/// Reports database files that were missing and have been created again.
async fn create(store: Arc<dyn LeaseStore>, place: StoreUrl, log: Log, tries: oneshot::Sender<Infallible>) {
    let mut last_error: Option<StoreError> = None;
    let mut wait = Duration::from_secs(1);
    // If the disk hangs, this blocks only a thread of the blocking pool.
    let lost = match place.clone() {
        StoreUrl::Sqlite(folder) => tokio::task::spawn_blocking(|| SqliteStore::lost(folder)).await.unwrap_or_default(),
        StoreUrl::Memory | StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => Vec::new(),
    };
    let mut tries = Some(tries);
    while let Err(error) = store.create().await {
        tries = None;
        if last_error.as_ref() != Some(&error) {
            log.emit(
                None,
                match &error {
                    StoreError::Unknown(error) => {
                        Event::Error { error: format!("cannot reach the store yet: {error}") }
                    }
                    refused => {
                        let error = format!("cannot create the store's folder or container yet: {refused}");
                        Event::Misconfigured { error }
                    }
                },
            );
            last_error = Some(error);
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(30));
    }
    drop(tries);
    for file in lost {
        let file = file.display();
        let error = format!(
            "{file} was missing and was created again, empty: stop all hosts before you restore the \
                             old file"
        );
        log.emit(None, Event::Error { error });
    }
    if let Some(error) = no_file_events() {
        log.emit(None, Event::Error { error });
    }
    if let StoreUrl::Sqlite(folder) = place {
        let reached = tokio::task::spawn_blocking(|| SqliteStore::reached_by_others(folder)).await;
        if let Ok(Some(Exposure { text, opens_files: true })) = reached {
            log.emit(None, Event::Error { error: text });
        }
    }
}
