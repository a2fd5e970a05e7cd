//! `baton run`: contends for elections until told to end.
//!
//! The host's threads:
//!
//! - **control**, two threads, or one for a single election: supervisors, followers, historians, requests to the store, signals.
//!   They never write to a descriptor that somebody may not read. One election's try does not wait behind another's.
//! - **keepers**, two threads: hear the runners, commit for them, look up names. They decide nothing.
//! - **starter**: starts templates, takes over the runners that templates have forked, and reaps those that
//!   nobody waits for. All of them die with this thread.
//! - **admin**: answers what probes, load balancers, scrapers and people ask; writes into the store what operators ask of the nodes.
//!   It is less urgent than the others.
//! - **links**: gives the process that carries the [`links`] what to tell, and takes what that has heard.
//! - **manager**: tells the manager of the machine's services what the host does, where one wants to know.
//! - **otlp**, only where the environment names a collector of OpenTelemetry: sends it traces and metrics.
//! - **watchdog** and **last words**: see [`Watchdog`].
//! - **log writer**: writes lines to stderr, and holds nobody up: see [`telemetry`](crate::telemetry).
//! - **postmortem**: writes core dumps and profiles, one instance's at a time; those that come meanwhile are left out, and
//!   that is said.
//! - The runtimes' **blocking threads**: SQLite's calls, verifying modules, reading secrets, lookups of names.
//!
//! No thread that renews, kills or gates waits for a guest. Every task and thread has an owner that awaits or joins it.

use std::convert::Infallible;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use baton_election::{ElectionName, Settings, StoreError};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use super::dev::{Workshop, hint_at_busy_instances};
use super::{WrongConfiguration, descriptors, open_store};
use crate::admin::{Admin, AdminError, AdminPlace, AdminSettings, AdminUrl, Listening};
use crate::config::{Config, Coordinator, Environment, Misspelt, Relied};
use crate::historian::{Historian, HistorianPace};
use crate::links::{self, Linking, Links, PeerSettings};
use crate::local_socket;
use crate::maintenance::Maintenance;
use crate::node::NodeId;
use crate::otel::Exports;
use crate::random::incarnation;
use crate::reload::Reload;
use crate::service_manager::{Phase, Phases, ServiceManager, Telling};
use crate::signals::{Ask, Signals};
use crate::steering::{HandOvers, Helm, Itself, Preemption};
use crate::supervisor::{HIGHEST_PRIORITY, Leads, Preference, Shutdown, Supervisor};
use crate::telemetry::{Event, FollowerLog, Heartbeat, LAST_LINES, Log, Standing};
use crate::watched::Watched;
use baton_modules::{
    Cache, CacheError, Compiler, FileSource, Follower, Following, Judgement, KnownBy, ModuleSource, OciSource, Pace,
    Preparer, Presence, RegistryCredentials, Report, ReportSink, Source, Supply, Trust,
};
use baton_runtime::confine;
use baton_runtime::memory;
use baton_runtime::{
    CLAIM_AHEAD, ControlGroups, Engine, HttpPolicy, Launcher, Policy, Postmortem, PostmortemWriter, Processes, Runners,
    RunningInstances, Templates,
};
use baton_runtime::{Folder, Secret};
use baton_store::clock::Clock;
use baton_store::gate::Watchdog;
use baton_store::jitter::Moments;
use baton_store::sqlite::Reached;
use baton_store::state::{Handover, ReadAhead};
use baton_store::{Digest, Labels, LockFile, ObjectStore, PeerWord, Store, no_file_events, witness};
use baton_store::{LeaseStore, MemoryStore, SqliteStore, StoreUrl};

/// How long the start waits for a disk that nothing depends on yet.
const LOCKED_WITHIN: Duration = Duration::from_secs(2);

/// How long elections wait for the store to be made. Where it is there, or a disk or a server is well, that is a moment.
const MADE_WITHIN: Duration = Duration::from_secs(1);

/// How long the end waits for the last core dump and the last profile.
const LAST_FILES: Duration = Duration::from_secs(5);

/// Variables that name files which are read when a store or a registry is asked.
const FILES: [(&str, &str); 3] = [
    ("AZURE_FEDERATED_TOKEN_FILE", "the token of this workload"),
    ("SSL_CERT_FILE", "the file of certificates"),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "the file of the collector's certificates"),
];

/// Variables that name folders with such files, or with the programs that help with it.
const FOLDERS: [(&str, &str); 2] = [("SSL_CERT_DIR", "the folder of certificates"), ("PATH", "the folder of programs")];

pub(super) fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let stores = Stores {
        leases: open_store(&config.store)?,
        states: open_store(&config.store)?,
        modules: open_store(&config.store)?,
        status: open_store(&config.store)?,
    };
    host(config, &stores, None)
}

/// The same for the developer of a coordinator: alone, on a store in memory, beside what builds the module.
pub(super) fn develop(config: &Config, workshop: &Workshop) -> anyhow::Result<ExitCode> {
    let clock = Clock::default();
    let store = Arc::new(MemoryStore::new(Arc::new(move || clock.now().0)));
    let stores = Stores {
        leases: Arc::clone(&store) as _,
        states: Arc::clone(&store) as _,
        modules: Arc::clone(&store) as _,
        status: store,
    };
    host(config, &stores, Some(workshop))
}

/// Threads that must be available at the start. A host with one coordinator and its processes (runners, their template, the
/// compiler) have about as many.
const THREADS: usize = 20;

/// Fails if the system lets this process have too few threads. Later a missing one would end the host, or look like a fault of
/// a module.
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
        // These threads cannot panic.
        let _ = thread.join();
    }
    Ok(())
}

fn host(config: &Config, stores: &Stores, workshop: Option<&Workshop>) -> anyhow::Result<ExitCode> {
    memory::keep_one_heap();
    has_room_for_threads()?;
    config.check_reach(besides(config, workshop)).map_err(WrongConfiguration::new)?;
    keeps_to_folders(config).map_err(WrongConfiguration::new)?;
    let files = PostmortemWriter::start()?;
    // The developer of a coordinator sees all there is in the terminal.
    let wanted = if workshop.is_none() { Exports::wanted(&Environment::of_process()) } else { Ok(None) };
    let is_traced = matches!(&wanted, Ok(Some(exports)) if exports.spans().is_some());
    let checked = check(&config.coordinators, &files, is_traced)?;
    descriptors::grant(checked.iter().map(|checked| &checked.policy)).map_err(WrongConfiguration::new)?;
    let node = config.node.claim().map_err(WrongConfiguration::new)?;
    // A developer has the page, and needs neither a token nor other machines.
    let page = AdminSettings { place: AdminPlace::Free, token_file: None, tls: None, advertise: None };
    let settings = if workshop.is_none() { &config.admin } else { &page };
    let (listening, no_endpoint) = match Listening::with(settings) {
        Ok(listening) => (listening, None),
        // Nobody has asked for it, and nothing depends on it.
        Err(error @ AdminError::NoLoopback(_)) => (None, Some(error)),
        // Another process may end, and an interface come up: that is worth another start.
        Err(error) if error.may_pass() => return Err(error.into()),
        Err(error) => return Err(WrongConfiguration::new(error).into()),
    };
    // Whoever develops a coordinator is alone.
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
    let exports = wanted.unwrap_or_else(|error| {
        let error = format!("cannot export traces and metrics to a collector: {error:#}");
        log.emit(None, Event::Error { error });
        None
    });
    for missing in confine::missing() {
        log.emit(None, Event::WeakerIsolation { missing });
    }
    if let Some(links::Listening { address, advertised, .. }) = &peers {
        log.emit(None, Event::ListeningForPeers { address: address.to_string(), advertised: advertised.to_string() });
    }
    for Misspelt { variable, meant: suggestion } in config.misspelt.iter().cloned() {
        log.emit(None, Event::UnknownVariable { variable, suggestion });
    }
    let ends = Ends { listening, peers, exports };
    let ended = contend(config, stores, workshop, &checked, ends, node.id(), &log);
    if !files.shutdown(LAST_FILES) {
        let error = format!("gave up on a core dump or profile that was not written within {LAST_FILES:?}");
        log.emit(None, Event::Error { error });
    }
    writer.shutdown(LAST_LINES);
    ended.map(|()| ExitCode::SUCCESS)
}

/// Why a coordinator with folders could reach others if it broke out of its sandbox.
#[derive(Debug, thiserror::Error)]
#[error(
    "--dir {folder}: this kernel has no Landlock (Linux 5.13, listed in /sys/kernel/security/lsm), so only the \
     WebAssembly sandbox would keep the coordinator of {election} to this folder; use a kernel with Landlock, or \
     accept the risk with `--allow-weaker-isolation`"
)]
struct NothingKeepsToFolders {
    folder: Folder,
    election: ElectionName,
}

fn keeps_to_folders(config: &Config) -> Result<(), NothingKeepsToFolders> {
    if config.allow_weaker_isolation || confine::keeps_to_folders() {
        return Ok(());
    }
    let granted = config.coordinators.iter().find_map(|one| Some((one.folders.first()?, &one.election)));
    granted.map_or(Ok(()), |(folder, election)| {
        Err(NothingKeepsToFolders { folder: folder.clone(), election: election.clone() })
    })
}

/// What the host, or what it is made of, finds by a path that is not in its configuration.
fn besides(config: &Config, workshop: Option<&Workshop>) -> Vec<Relied> {
    let mut found = Vec::new();
    let mut add = |place: &str, what: &str, path: PathBuf, is_folder| {
        found.push(Relied { place: place.to_owned(), what: what.to_owned(), path, is_folder });
    };
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    for (name, what) in FILES {
        if let Some(path) = variable(name) {
            add(name, what, path.into(), false);
        }
    }
    for (name, what) in FOLDERS {
        for folder in variable(name).iter().flat_map(std::env::split_paths) {
            // An empty one is the working folder.
            add(name, what, Path::new(".").join(folder), true);
        }
    }
    if let Ok(program) = std::env::current_exe() {
        add("the host", "its program", program, false);
    }
    for folder in workshop.into_iter().flat_map(Workshop::folders) {
        add("the project", "the folder of its build", folder.clone(), true);
    }
    if config.coordinators.iter().any(|coordinator| matches!(coordinator.module, ModuleSource::Oci(_))) {
        for file in RegistryCredentials::of_process().files() {
            add("registries", "the file of credentials", file.clone(), false);
        }
    }
    found
}

/// Four handles of one store: neither state nor modules are in a renewal's way, nor modules in that of the state; and
/// what people ask is in nobody's.
struct Stores {
    leases: Arc<dyn LeaseStore>,
    states: Arc<dyn ObjectStore>,
    modules: Arc<dyn ObjectStore>,
    status: Arc<dyn Store>,
}

/// A coordinator, and what is made for it before anybody contends.
struct Checked<'a> {
    coordinator: &'a Coordinator,
    trust: Trust,
    policy: Policy,
    postmortem: Postmortem,
}

/// Finds out what is wrong with the coordinators' environment while nothing depends on them yet.
fn check<'a>(
    coordinators: &'a [Coordinator],
    files: &PostmortemWriter,
    is_traced: bool,
) -> anyhow::Result<Vec<Checked<'a>>> {
    let mut checked = Vec::new();
    for coordinator in coordinators {
        let Coordinator { pins, trust, allow_http, max_requests, http_ca, core_dumps, profile, .. } = coordinator;
        let http = HttpPolicy::new(allow_http.clone(), *max_requests, http_ca.as_deref());
        let postmortem = Postmortem::new(core_dumps.clone(), profile.clone(), files);
        let trust = Trust::new(pins.clone(), trust).map_err(WrongConfiguration::new)?;
        checked.push(Checked {
            coordinator,
            trust: trust.in_election(&coordinator.election),
            policy: Policy {
                limits: coordinator.limits,
                state_limits: coordinator.state_limits,
                folders: coordinator.folders.clone(),
                http: http.map_err(WrongConfiguration::new)?.traced(is_traced),
                core_dump: core_dumps.is_some(),
                profile: profile.is_some(),
                lease: coordinator.timing.lease(),
            },
            postmortem: postmortem.map_err(WrongConfiguration::new)?,
        });
    }
    Ok(checked)
}

/// What others watch the node by, and what other nodes hear it by.
struct Ends {
    listening: Option<Listening>,
    peers: Option<links::Listening>,
    exports: Option<Exports>,
}

fn contend(
    config: &Config,
    Stores { leases, states, modules, status }: &Stores,
    workshop: Option<&Workshop>,
    checked: &[Checked<'_>],
    Ends { listening, peers, exports }: Ends,
    node: &NodeId,
    log: &Log,
) -> anyhow::Result<()> {
    let clock = Clock::default();
    let words = log.clone();
    let watchdog = Arc::new(Watchdog::start(clock.clone(), move |why, longest| words.last_words(why, longest))?);
    // Who attends to instances keeps no supervisor waiting, whatever their runners say.
    let keepers = runtime("keeper", 2)?;
    // Two threads, so that one that waits for a slow call of the system does not delay another election's deadlines. With one
    // election the second would be woken whenever the first is, and find nothing to do.
    let control = runtime("control", checked.len().clamp(1, 2))?;
    let incarnation = incarnation(node.as_str())?;
    let lock_file = control.block_on(lock_file(config, workshop, &incarnation, log));
    // Until this process has ended, whatever is left of it then.
    let _held = ManuallyDrop::new(lock_file.clone());
    let leases = match &lock_file {
        Some(_) => &baton_store::open_leases(&config.store, lock_file.clone()).map_err(WrongConfiguration::new)?,
        None => leases,
    };
    // Before this host has another process, which begins in the group that it is in.
    let told = log.clone();
    let tell = move |error: String| told.emit(None, Event::Error { error });
    let groups = ControlGroups::delegated(tell.clone()).unwrap_or_else(|error| {
        tell(error.to_string());
        None
    });
    // The same program, whatever is put in its place.
    let templates = Templates::with_lock_file("/proc/self/exe".into(), &Processes::in_groups(groups)?, lock_file);
    let running = RunningInstances::default();
    let spans = exports.as_ref().and_then(Exports::spans);
    let moments = Moments::default();
    let standing = |Checked { coordinator, .. }: &Checked<'_>| {
        let standing = Standing::one_of(checked.len(), coordinator.election.clone(), coordinator.timing.lease());
        // One transaction has what many ask for. Over a network each would want a connection of its own then.
        let asks_at_once = matches!(config.store, StoreUrl::Sqlite(_));
        let standing = if asks_at_once { standing.reading_at(moments) } else { standing };
        Arc::new(standing.traced(spans.clone()))
    };
    let standings: Vec<Arc<Standing>> = checked.iter().map(standing).collect();
    let heartbeat = Heartbeat::default();
    let address = listening.as_ref().map(Listening::address).transpose()?;
    let advertised = address.and_then(|address| config.admin.advertised(address, &config.store));
    if let Some(address) = address {
        log.emit(None, Event::Endpoint { address: address.to_string() });
    }
    let watched = Arc::new(Watched {
        node: node.to_string(),
        labels: config.labels.clone(),
        incarnation: incarnation.clone(),
        events: log.events(),
        standings: standings.clone(),
        running: running.clone(),
        clock: clock.clone(),
        watchdog: Arc::clone(&watchdog),
        heartbeat: heartbeat.clone(),
        log: Some(log.clone()),
    });
    let reload = Reload {
        config: config.clone(),
        trusts: checked.iter().map(|checked| checked.trust.clone()).collect(),
        certificate: listening.as_ref().and_then(Listening::certificate),
    };
    let telling = tell_manager(&watched, log)?;
    let phases = telling.phases();
    let exporter = exports.map(|exports| exports.start(&incarnation, Arc::clone(&watched), log.clone())).transpose()?;
    // Nobody else can read a store in memory, so that nobody asks its host.
    let socket = workshop.is_none().then(|| local_socket::open(&incarnation)).transpose().unwrap_or_else(|error| {
        let error = format!(
            "cannot open the local socket, so logs and usage need the admin endpoint even on this machine: {error}"
        );
        log.emit(None, Event::Error { error });
        None
    });
    let admin = Admin::start(listening, socket, watched, Arc::clone(status))?;
    let result = control.block_on(async {
        let mut signals = Signals::listen()?;
        let mut aside = JoinSet::new();
        let all_runners: Vec<Runners> = checked
            .iter()
            .map(|Checked { policy, .. }| Runners::new(policy.clone(), &templates, keepers.handle()))
            .collect();
        let stores = (Arc::clone(modules), Arc::clone(leases));
        let found = (advertised.as_ref(), peers.as_ref().map(links::Listening::announced));
        let make = Followers::new(config, node, &incarnation, found, stores, workshop, log)?;
        let prepare = async {
            let supplied = make.all(checked, &all_runners, &standings).await?;
            // A folder of one's own costs nobody anything: only what is shared must be asked for.
            if config.create || matches!(config.store, StoreUrl::Sqlite(_)) {
                let (tries, tried) = oneshot::channel();
                aside.spawn(create(Arc::clone(leases), config.store.clone(), log.clone(), tries));
                // An election that looked sooner would find no store, and say so.
                let _ = tokio::time::timeout(MADE_WITHIN, tried).await;
            }
            anyhow::Ok(supplied)
        };
        let supplied = tokio::select! {
            supplied = prepare => supplied?,
            // A large module takes a while, and nothing was begun that has to be ended.
            asked = signals.next() => {
                told_to_end(asked, log, &phases);
                return Ok(());
            }
        };
        let (tell_away, away) = watch::channel(None);
        let (ask, asked) = watch::channel(Shutdown::No);
        let (leads, hand_overs) = (Leads::at_most(config.max_leading), HandOvers::default());
        let (mut supervisors, mut followers, mut historians) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
        let sockets = links::folder(&config.store).filter(|_| config.links && workshop.is_none());
        let peers = peers.map(|listening| (listening, Arc::clone(status) as Arc<dyn ObjectStore>));
        let mut links = Links::new(node.as_str(), &incarnation, sockets, peers);
        let (serving, over) = watch::channel(());
        let supplied = supplied.into_iter().zip(all_runners).zip(&standings);
        for (Checked { coordinator, postmortem, .. }, ((supplied, runners), standing)) in checked.iter().zip(supplied) {
            let log = log.for_election(standing);
            let (source, timing) = (&coordinator.module, &coordinator.timing);
            let (store, module) = (&config.store, supplied.module);
            let waits = Preference::longest_wait(coordinator.priority, config.max_leading, checked.len());
            log.emit(None, Event::starting(node.as_str(), store, source.to_string(), module, timing, waits));
            let launcher = Launcher {
                election: coordinator.election.clone(),
                node: node.to_string(),
                runners,
                states: Arc::clone(states),
                handover: Handover::default(),
                read_ahead: ReadAhead::default(),
                claim_ahead: CLAIM_AHEAD,
                postmortem: postmortem.clone(),
                arguments: coordinator.arguments.clone(),
                env: exposed(&coordinator.env),
                config: coordinator.config.clone(),
                secrets: coordinator.secrets.clone(),
                running: running.clone(),
                clock: clock.clone(),
                watchdog: Arc::clone(&watchdog),
            };
            let itself = Itself { node: node.to_string(), incarnation: incarnation.clone() };
            // Nobody is above the highest, and whoever develops a coordinator is alone.
            if coordinator.preempt && coordinator.priority < HIGHEST_PRIORITY && workshop.is_none() {
                let preemption = Preemption {
                    election: coordinator.election.clone(),
                    itself: itself.clone(),
                    priority: coordinator.priority,
                    timing: coordinator.timing,
                    store: Arc::clone(status),
                    standing: Arc::clone(standing),
                    clock: clock.clone(),
                    hand_overs: hand_overs.clone(),
                };
                aside.spawn(preemption.watch());
            }
            let helm = Arc::new(Helm::new(
                coordinator.election.clone(),
                (itself, coordinator.timing),
                Arc::clone(modules),
                clock.clone(),
                log.clone(),
                standing.tidings.clone(),
            ));
            let line = links.line(coordinator.election.clone(), &standing.tidings, standing, &log);
            aside.spawn(Arc::clone(&helm).watch());
            let historian = Historian {
                election: coordinator.election.clone(),
                node: node.to_string(),
                incarnation: incarnation.clone(),
                store: Arc::clone(modules),
                standing: Arc::clone(standing),
                log: log.clone(),
                pace: HistorianPace::default(),
            };
            let supervisor = Supervisor {
                election: coordinator.election.clone(),
                settings: Settings {
                    node: node.to_string(),
                    incarnation: incarnation.clone(),
                    timing: coordinator.timing,
                    lease_range: leases.lease_range(),
                    pause: coordinator.pause,
                    on_done: coordinator.on_done,
                    probation: coordinator.probation,
                },
                store: Arc::clone(leases),
                launcher,
                supply: supplied.supply,
                one_module: matches!(source, ModuleSource::File(_)),
                away: away.clone(),
                judgements: supplied.judgements,
                helm,
                preference: Preference::new(coordinator.election.clone(), coordinator.priority, leads.clone()),
                presence: supplied.presence,
                stall_after: coordinator.stall_after,
                clock: clock.clone(),
                log,
                line,
                standing: Arc::clone(standing),
            };
            supervisors.spawn(supervisor.run(asked.clone()));
            followers.spawn(supplied.follower.run());
            historians.spawn(historian.run(over.clone()));
        }
        let linking = start_links(links, log);
        aside.spawn(heartbeat.clone().of_runtime(clock.clone(), moments));
        if let Some(asked) = signals.take_reloads() {
            aside.spawn(reload.whenever(asked, phases.clone(), log.clone()));
        }
        // Whoever develops a coordinator is alone: nobody takes over.
        if let Some(endpoint) = config.scheduled_events.endpoint().filter(|_| workshop.is_none()) {
            let standings = standings.clone();
            aside.spawn(Maintenance { endpoint, standings, away: tell_away, log: log.clone() }.watch());
        }
        if let Some(workshop) = workshop {
            aside.spawn(workshop.clone().work(log.clone(), asked.clone()));
            aside.spawn(hint_at_busy_instances(running.clone()));
        }
        phases.are_at(Phase::Ready);
        loop {
            tokio::select! {
                asked = signals.next() => {
                    ask.send_replace(told_to_end(asked, log, &phases));
                }
                ended = supervisors.join_next() => match ended {
                    None => break,
                    Some(ended) => {
                        ended.context("a supervisor failed")?.context("cannot get random numbers from the system")?;
                    }
                },
                // Each ends after its supervisor; one that fails takes nothing with it.
                Some(ended) = followers.join_next() => followed(ended, log),
            }
        }
        // What the last of them had to tell is told.
        if let Some(linking) = linking {
            linking.shutdown().await;
        }
        while let Some(ended) = followers.join_next().await {
            followed(ended, log);
        }
        // They write last, when the store is not busy any more with who takes a lease that was given up. One that fails has
        // nothing more to write, and takes nothing with it.
        drop(serving);
        while historians.join_next().await.is_some() {}
        aside.shutdown().await;
        heartbeat.end();
        Ok(())
    });
    if let Some(exporter) = exporter {
        exporter.shutdown();
    }
    if let Some(admin) = admin {
        admin.shutdown();
    }
    telling.end();
    // A store that hangs may hold one of its threads for ever; nothing depends on it any more.
    control.shutdown_background();
    keepers.shutdown_timeout(Duration::from_secs(1));
    result
}

/// What lets other hosts of this machine know that this one is gone, once it is, the one that is started in its place first
/// of all; none where they are not to, or cannot.
async fn lock_file(
    config: &Config,
    workshop: Option<&Workshop>,
    incarnation: &str,
    log: &Log,
) -> Option<Arc<LockFile>> {
    // A runner that could give its lock up would be taken for gone, and go on.
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

/// Has the nodes of this store tell each other what is new, where that can be had.
fn start_links(links: Links, log: &Log) -> Option<Linking> {
    links.start(log.clone()).unwrap_or_else(|error| {
        let error = format!("cannot start links, so this node exchanges no hints and polls the store: {error}");
        log.emit(None, Event::Error { error });
        None
    })
}

/// Tells the manager of the machine's services what the host does, if there is one that wants to know.
fn tell_manager(watched: &Arc<Watched>, log: &Log) -> std::io::Result<Telling> {
    match ServiceManager::of_process() {
        Ok(Some(manager)) => manager.tell_of(Arc::clone(watched), log.clone()),
        Ok(None) => Ok(Telling::default()),
        Err(error) => {
            log.emit(None, Event::Error { error: error.to_string() });
            Ok(Telling::default())
        }
    }
}

/// Says how the host is told to end.
fn told_to_end(asked: Ask, log: &Log, phases: &Phases) -> Shutdown {
    let (signal, level) = match asked {
        Ask::Shutdown(signal) => (signal, Shutdown::Requested),
        Ask::SkipGrace(signal) => (signal, Shutdown::Impatient),
    };
    phases.are_at(Phase::Stopping);
    log.emit(None, Event::ShuttingDown { signal: signal.to_owned(), grace: level < Shutdown::Impatient });
    level
}

/// Says that a follower has failed, if it has.
fn followed(ended: Result<(), JoinError>, log: &Log) {
    if let Err(error) = ended {
        let error = format!(
            "the follower of a module source failed ({error}): this host runs no new version until its next start"
        );
        log.emit(None, Event::Error { error });
    }
}

/// What makes the followers of all coordinators.
struct Followers<'a> {
    node: &'a NodeId,
    incarnation: &'a str,
    /// Where others find the admin endpoint.
    admin: Option<&'a AdminUrl>,
    /// Where and by what nodes of other machines know this one.
    peer: Option<PeerWord>,
    modules: Arc<dyn ObjectStore>,
    leases: Arc<dyn LeaseStore>,
    workshop: Option<&'a Workshop>,
    log: &'a Log,
    labels: Labels,
    compiler: Compiler,
    cache: Option<Cache>,
}

/// What follows the source of a coordinator, and its supervisor's ends of the channels to it.
struct Supplied {
    follower: Follower,
    supply: watch::Receiver<Supply>,
    judgements: mpsc::UnboundedSender<Judgement>,
    presence: watch::Sender<Presence>,
    /// The module that is ready, if its source must have one from the beginning.
    module: Option<Digest>,
}

impl<'a> Followers<'a> {
    fn new(
        config: &Config,
        node: &'a NodeId,
        incarnation: &'a str,
        (admin, peer): (Option<&'a AdminUrl>, Option<PeerWord>),
        (modules, leases): (Arc<dyn ObjectStore>, Arc<dyn LeaseStore>),
        workshop: Option<&'a Workshop>,
        log: &'a Log,
    ) -> anyhow::Result<Self> {
        let cache = config.cache.as_deref().and_then(|folder| {
            let key = config.cache_key.as_deref().ok_or(CacheError::NoPlaceForKey);
            let opened = key.and_then(|key| Cache::open(folder, key));
            // Nothing depends on it.
            opened.map_err(|error| log.emit(None, Event::Error { error: error.to_string() })).ok()
        });
        let (labels, compiler) = (config.labels.clone(), Compiler::default());
        Ok(Self { node, incarnation, admin, peer, modules, leases, workshop, log, labels, compiler, cache })
    }

    async fn all(
        &self,
        checked: &[Checked<'_>],
        runners: &[Runners],
        standings: &[Arc<Standing>],
    ) -> anyhow::Result<Vec<Supplied>> {
        let mut supplied = Vec::new();
        for ((checked, runners), standing) in checked.iter().zip(runners).zip(standings) {
            supplied.push(self.follower(checked, runners, standing).await?);
        }
        Ok(supplied)
    }

    /// Makes what follows the source of a coordinator. A file must have a module from the beginning: somebody is
    /// there to mend it, and the others can do without.
    async fn follower(
        &self,
        Checked { coordinator, trust, policy, .. }: &Checked<'_>,
        runners: &Runners,
        standing: &Arc<Standing>,
    ) -> anyhow::Result<Supplied> {
        let engine = Engine::new(policy.purpose());
        let engine = engine.map_err(|error| anyhow::anyhow!("{error:#}"))?;
        let (presence, seen) = watch::channel(Presence::default());
        let reports: Arc<dyn ReportSink> = Arc::new(FollowerLog {
            log: self.log.for_election(standing),
            standing: Arc::clone(standing),
            source: coordinator.module.to_string(),
        });
        let source: Option<Box<dyn Source>> = match &coordinator.module {
            ModuleSource::File(path) => {
                let file = FileSource::new(path.clone());
                Some(match self.workshop {
                    Some(workshop) => Box::new(workshop.source(file)),
                    None => Box::new(file),
                })
            }
            ModuleSource::Oci(reference) => {
                let (source, reports) =
                    (OciSource::new(reference.clone(), RegistryCredentials::of_process()), Arc::clone(&reports));
                Some(Box::new(source.telling(move |module| reports.report(Report::Pulling { module }))))
            }
            ModuleSource::Published(_) => None,
        };
        let (mut follower, supply, judgements) = Follower::new(Following {
            election: coordinator.election.clone(),
            node: self.node.to_string(),
            incarnation: self.incarnation.to_owned(),
            name: coordinator.module.to_string(),
            known_by: KnownBy {
                labels: self.labels.clone(),
                priority: coordinator.priority,
                admin: self.admin.map(ToString::to_string).unwrap_or_default(),
                peer: self.peer.clone(),
            },
            source,
            store: Arc::clone(&self.modules),
            leases: Arc::clone(&self.leases),
            preparer: Arc::new(Preparer {
                engine,
                trust: trust.clone(),
                compiler: self.compiler.clone(),
                compile_timeout: coordinator.compile_timeout,
                cache: self.cache.clone(),
                runners: runners.clone(),
            }),
            presence: seen,
            reports,
            pace: Pace::default(),
            tidings: standing.tidings.clone(),
        });
        let module = match &coordinator.module {
            ModuleSource::File(_) if self.workshop.is_none() => {
                follower.load().await.map_err(WrongConfiguration::new)?
            }
            _ => None,
        };
        Ok(Supplied { follower, supply, judgements, presence, module })
    }
}

/// For the coordinator alone.
fn exposed(values: &[(String, Secret)]) -> Vec<(String, String)> {
    values.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect()
}

fn runtime(name: &str, threads: usize) -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(threads).thread_name(name).enable_all().build()
}

/// Makes the store's container, or its folder and files, as soon as the store lets it, and tells what was lost. Drops `tries`
/// when that is done, or has failed once.
async fn create(store: Arc<dyn LeaseStore>, place: StoreUrl, log: Log, tries: oneshot::Sender<Infallible>) {
    let mut said: Option<StoreError> = None;
    let mut wait = Duration::from_secs(1);
    // A disk that hangs holds a thread that nobody waits for.
    let lost = match place.clone() {
        StoreUrl::Sqlite(folder) => tokio::task::spawn_blocking(|| SqliteStore::lost(folder)).await.unwrap_or_default(),
        StoreUrl::Memory | StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => Vec::new(),
    };
    let mut tries = Some(tries);
    while let Err(error) = store.create().await {
        tries = None;
        if said.as_ref() != Some(&error) {
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
            said = Some(error);
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
        if let Ok(Some(Reached { text, opens_files: true })) = reached {
            log.emit(None, Event::Error { error: text });
        }
    }
}
