//! Resolves layers into a checked [`Config`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use baton_election::{ElectionName, OnDone, Schedule, Timing, TimingError};

use super::file::{self, DEFAULT_FILE, FileLayers};
use super::layer::SourcedText;
use super::misspelt::misspelt;
use super::table::SettingRow;
use super::value::OFF;
use super::{Config, ConfigError, Coordinator, Environment, Key, Layer, Origin, folders, secrets, value};
use baton_admin::{AdminPlace, AdminSettings, AdminUrl, TlsFiles};
use baton_modules::ModuleSource;
use baton_node::links::{PeerAddr, PeerSettings, is_of_one_machine};
use baton_node::maintenance::ScheduledEvents;
use baton_node::node::{NodeChoice, NodeId};
use baton_runtime::{Folder, Secret, SecretSource};
use baton_store::state::Limits;
use baton_store::{Labels, MOST_LABELS, StoreUrl};

/// Merges the command line, the environment variables, the file and the defaults, and checks the result.
///
/// # Errors
/// [`ConfigError`] for the first error.
pub fn resolve(flags: &Layer, around: &Environment) -> Result<Config, ConfigError> {
    let sources = Sources::read(flags, around)?;
    let mut rows = vec![sources.file_row()];
    let mut host = Resolver::new(vec![flags, &sources.variables, &sources.file.global], &mut rows);

    let store = store(&mut host, around)?;
    let create = create(&mut host)?;
    let allow_weaker_isolation = switch(&mut host, Key::AllowWeakerIsolation)?;
    let node = node(&mut host, around)?;
    let log_format = host.get(Key::LogFormat, value::log_format, value::show_log_format)?.0;

    let admin = admin(&mut host)?;
    let events = |text: &str| ScheduledEvents::new(text).map_err(|error| error.to_string());
    let (scheduled_events, _) = host.get(Key::ScheduledEvents, events, ScheduledEvents::to_string)?;
    let witness = switch(&mut host, Key::Reclaim)?;
    let links = switch(&mut host, Key::Links)?;
    let peer = peer(&mut host)?;
    let labels = labels(&mut host)?;
    let (max_leading, _) = host.optional(Key::MaxLeaderships, value::most, usize::to_string)?;
    let cache = cache(&mut host, around)?;

    let mut coordinators = Vec::new();
    for layers in sources.coordinators(flags)? {
        let mut own = Vec::new();
        let (coordinator, origin) = coordinator(layers, &store, around, &mut own)?;
        for row in &mut own {
            row.election = Some(coordinator.election.to_string());
        }
        if coordinators.iter().any(|other: &Coordinator| other.election == coordinator.election) {
            let problem = format!("two coordinators have the election `{}`: give each its own", coordinator.election);
            return Err(ConfigError::at(Key::Election, &origin, problem));
        }
        coordinators.push(coordinator);
        rows.append(&mut own);
    }
    let layers =
        [flags, &sources.variables, &sources.file.global].into_iter().chain(sources.file.coordinators.values());
    let misspelt = misspelt(around, layers);
    let (cache_key, file) = (around.cache_key(), around.path(sources.file_name.as_deref().unwrap_or(DEFAULT_FILE)));
    Ok(Config {
        store,
        create,
        allow_weaker_isolation,
        node,
        log_format,
        admin,
        scheduled_events,
        witness,
        state: around.state_folder(),
        links,
        peer,
        labels,
        max_leading,
        cache,
        cache_key,
        file,
        coordinators,
        misspelt,
        rows,
        given: (flags.clone(), around.clone()),
    })
}

fn admin(host: &mut Resolver<'_>) -> Result<AdminSettings, ConfigError> {
    let place = host.get_or(Key::Admin, value::admin, ToString::to_string, || Ok(AdminPlace::Free))?.0;
    let mut file = |key| host.optional(key, value::path, value::show_path);
    let (token_file, _) = file(Key::AdminTokenFile)?;
    let (certificate, of_certificate) = file(Key::AdminTlsCert)?;
    let (key, of_key) = file(Key::AdminTlsKey)?;
    let tls = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
        (Some(_), None) => {
            let problem = "needs a private key: set --admin-tls-key as well";
            return Err(ConfigError::at(Key::AdminTlsCert, &of_certificate, problem));
        }
        (None, Some(_)) => {
            let problem = "needs a certificate: set --admin-tls-cert as well";
            return Err(ConfigError::at(Key::AdminTlsKey, &of_key, problem));
        }
    };
    let advertise = host.optional(Key::AdminAdvertise, value::admin_url, AdminUrl::to_string)?.0;
    Ok(AdminSettings { place, token_file, tls, advertise })
}

fn peer(host: &mut Resolver<'_>) -> Result<Option<PeerSettings>, ConfigError> {
    let (listen, of_listen) = host.optional(Key::Peer, value::peer, SocketAddr::to_string)?;
    let (advertise, of_advertise) = host.optional(Key::PeerAdvertise, value::advertise, PeerAddr::to_string)?;
    match (listen, &advertise) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            let problem = "needs an address to listen on: set --peer as well";
            Err(ConfigError::at(Key::PeerAdvertise, &of_advertise, problem))
        }
        (Some(listen), None) if !is_of_one_machine(listen.ip()) => {
            let problem = format!(
                "other nodes cannot connect to {listen}: name an address that they can reach, with --peer-advertise \
                 HOST:PORT"
            );
            Err(ConfigError::at(Key::Peer, &of_listen, problem))
        }
        (Some(listen), _) => Ok(Some(PeerSettings { listen, advertise })),
    }
}

fn labels(host: &mut Resolver<'_>) -> Result<Labels, ConfigError> {
    let labels = host.many(Key::Label, &mut BTreeSet::new(), value::label, |(_, value)| value.clone())?;
    if labels.len() > MOST_LABELS {
        let problem = format!("there are {} labels, but the limit is {MOST_LABELS}", labels.len());
        return Err(ConfigError::new(Key::Label.flag(), problem));
    }
    Ok(labels.into_iter().collect())
}

/// Resolves the lease store and no other setting, for commands that use an existing store.
///
/// # Errors
/// [`ConfigError`] if the setting or the file is invalid, or if the default store is needed and there is no home
/// folder.
pub fn resolve_store(flags: &Layer, around: &Environment) -> Result<StoreUrl, ConfigError> {
    let sources = Sources::read(flags, around)?;
    let layers = vec![flags, &sources.variables, &sources.file.global];
    store(&mut Resolver::new(layers, &mut Vec::new()), around)
}

/// Resolves the store and the file of the admin token, for commands that query nodes.
///
/// # Errors
/// As for [`resolve_store`].
pub fn resolve_store_and_token(
    flags: &Layer,
    around: &Environment,
) -> Result<(StoreUrl, Option<PathBuf>), ConfigError> {
    let sources = Sources::read(flags, around)?;
    let mut rows = Vec::new();
    let mut host = Resolver::new(vec![flags, &sources.variables, &sources.file.global], &mut rows);
    let token_file = host.optional(Key::AdminTokenFile, value::path, value::show_path)?.0;
    Ok((store(&mut host, around)?, token_file))
}

/// Resolves the store and the setting `create`, for commands that may be the first to write to a store.
///
/// # Errors
/// As for [`resolve_store`].
pub fn resolve_store_to_fill(flags: &Layer, around: &Environment) -> Result<(StoreUrl, bool), ConfigError> {
    let sources = Sources::read(flags, around)?;
    let mut rows = Vec::new();
    let mut host = Resolver::new(vec![flags, &sources.variables, &sources.file.global], &mut rows);
    Ok((store(&mut host, around)?, create(&mut host)?))
}

/// Resolves the maximum CPU time for compiling a module, for commands that compile one.
///
/// # Errors
/// [`ConfigError`] if the setting or the file is invalid.
pub fn resolve_compile_timeout(flags: &Layer, around: &Environment) -> Result<Duration, ConfigError> {
    let sources = Sources::read(flags, around)?;
    compile_timeout(&mut Resolver::new(vec![flags, &sources.variables, &sources.file.global], &mut Vec::new()))
}

/// The settings of `baton check`.
#[derive(Clone, Debug)]
pub struct CheckSettings {
    /// Maximum CPU time for compiling a module.
    pub compile_timeout: Duration,
    /// The schedule whose next runs `baton check` shows, if any.
    pub schedule: Option<Schedule>,
}

/// Resolves the settings of `baton check`.
///
/// # Errors
/// [`ConfigError`] for the first error.
pub fn resolve_check(flags: &Layer, around: &Environment) -> Result<CheckSettings, ConfigError> {
    let sources = Sources::read(flags, around)?;
    let mut rows = Vec::new();
    let mut own = Resolver::new(vec![flags, &sources.variables, &sources.file.global], &mut rows);
    let schedule = schedule(&mut own)?;
    Ok(CheckSettings { compile_timeout: compile_timeout(&mut own)?, schedule })
}

/// The settings that `baton doctor` examines.
#[derive(Clone, Debug)]
pub struct DoctorSettings {
    /// The lease store.
    pub store: StoreUrl,
    /// True to create the store's container if it does not exist.
    pub create: bool,
    /// The lease duration.
    pub lease: Duration,
    /// Maximum CPU time for compiling a module.
    pub compile_timeout: Duration,
    /// Folder for the persistent files of this user's hosts; `None` without a home folder.
    pub state: Option<PathBuf>,
    /// Folder for compiled modules; `None` for no cache.
    pub cache: Option<PathBuf>,
    /// Path of the key that authenticates cached modules; `None` without a home folder.
    pub cache_key: Option<PathBuf>,
}

/// Resolves the settings that `baton doctor` examines, in the same way as a host does.
///
/// # Errors
/// [`ConfigError`] for the first error.
pub fn resolve_examined(flags: &Layer, around: &Environment) -> Result<DoctorSettings, ConfigError> {
    let sources = Sources::read(flags, around)?;
    let mut rows = Vec::new();
    let mut host = Resolver::new(vec![flags, &sources.variables, &sources.file.global], &mut rows);
    Ok(DoctorSettings {
        store: store(&mut host, around)?,
        create: create(&mut host)?,
        lease: lease(&mut host)?.0,
        compile_timeout: compile_timeout(&mut host)?,
        state: around.state_folder(),
        cache: cache(&mut host, around)?,
        cache_key: around.cache_key(),
    })
}

/// The layers from all sources except the command line.
struct Sources {
    variables: Layer,
    file: FileLayers,
    file_name: Option<String>,
    file_origin: Origin,
}

impl Sources {
    fn read(flags: &Layer, around: &Environment) -> Result<Self, ConfigError> {
        let variables = Layer::of_variables(around)?;
        let named = flags.get(Key::Config).or_else(|| variables.get(Key::Config));
        let file_origin = named.map_or(Origin::Default, |given| given.origin.clone());
        let (file_name, file) = file::read(named, around)?.unzip();
        Ok(Self { file: file.unwrap_or_default(), file_name, file_origin, variables })
    }

    fn file_row(&self) -> SettingRow {
        SettingRow {
            election: None,
            key: Key::Config,
            part: None,
            value: self.file_name.clone().unwrap_or("none".to_string()),
            origin: self.file_origin.clone(),
        }
    }

    /// Returns the layers of each coordinator to run. If the command line or a variable sets the module, the only
    /// coordinator is the one that runs this module. Otherwise, the coordinators are those in the file.
    fn coordinators<'a>(&'a self, flags: &'a Layer) -> Result<Vec<Vec<&'a Layer>>, ConfigError> {
        let named = flags.get(Key::Module).or_else(|| self.variables.get(Key::Module));
        if named.is_some() || self.file.coordinators.is_empty() {
            return Ok(vec![vec![flags, &self.variables, &self.file.global]]);
        }
        if self.file.coordinators.len() > 1
            && let Some(given) = flags.get(Key::Election).or_else(|| self.variables.get(Key::Election))
        {
            let problem = format!(
                "names one election, but the file has {} coordinators: leave it out, or name the MODULE to run",
                self.file.coordinators.len()
            );
            return Err(ConfigError::at(Key::Election, &given.origin, problem));
        }
        let layers = |table| vec![flags, &self.variables, table, &self.file.global];
        Ok(self.file.coordinators.values().map(layers).collect())
    }
}

fn store(host: &mut Resolver<'_>, around: &Environment) -> Result<StoreUrl, ConfigError> {
    let default = || match around.state_folder() {
        Some(folder) => Ok(StoreUrl::Sqlite(folder)),
        None => {
            Err("there is no home folder for the store: set --store sqlite:DIR, HOME or XDG_STATE_HOME".to_string())
        }
    };
    Ok(host.get_or(Key::Store, value::store, StoreUrl::to_string, default)?.0)
}

fn switch(host: &mut Resolver<'_>, key: Key) -> Result<bool, ConfigError> {
    Ok(host.get(key, value::switch, bool::to_string)?.0)
}

fn create(host: &mut Resolver<'_>) -> Result<bool, ConfigError> {
    switch(host, Key::Create)
}

fn cache(host: &mut Resolver<'_>, around: &Environment) -> Result<Option<PathBuf>, ConfigError> {
    let show = |folder: &Option<PathBuf>| folder.as_ref().map_or(OFF.to_owned(), value::show_path);
    Ok(host.get_or(Key::Cache, value::folder, show, || Ok(around.cache_folder()))?.0)
}

fn lease(own: &mut Resolver<'_>) -> Result<(Duration, Origin), ConfigError> {
    own.get(Key::Lease, value::duration, value::show_duration)
}

fn compile_timeout(own: &mut Resolver<'_>) -> Result<Duration, ConfigError> {
    Ok(own.get(Key::CompileTimeout, value::timeout, value::show_duration)?.0)
}

fn node(host: &mut Resolver<'_>, around: &Environment) -> Result<NodeChoice, ConfigError> {
    let given = |text: &str| NodeId::new(text).map(NodeChoice::Given).map_err(|error| error.to_string());
    let default = || match around.state_folder() {
        Some(folder) => {
            NodeChoice::slot(&folder.join("nodes")).map_err(|error| format!("{error}; name the node with --node"))
        }
        None => Err("there is no home folder for the node's lock file: set --node, HOME or XDG_STATE_HOME".to_string()),
    };
    Ok(host.get_or(Key::Node, given, NodeChoice::to_string, default)?.0)
}

fn limits(own: &mut Resolver<'_>) -> Result<(baton_runtime::Limits, Origin), ConfigError> {
    let (memory, memory_origin) = own.get(Key::MaxMemory, value::size, value::show_size)?;
    let (output, _) = own.get(Key::MaxOutput, |text| value::count(text, 1_000_000), u64::to_string)?;
    let output = u32::try_from(output).unwrap_or(u32::MAX);
    Ok((baton_runtime::Limits { memory, output, ..baton_runtime::Limits::default() }, memory_origin))
}

/// Resolves the settings of one coordinator. The returned origin is the place that sets the coordinator's election.
fn coordinator(
    layers: Vec<&Layer>,
    store: &StoreUrl,
    around: &Environment,
    rows: &mut Vec<SettingRow>,
) -> Result<(Coordinator, Origin), ConfigError> {
    let mut own = Resolver::new(layers, rows);
    let (module, election, election_origin) = module_and_election(&mut own)?;
    let (priority, _) = own.get(Key::Priority, value::priority, u8::to_string)?;
    let preempt = switch(&mut own, Key::Preempt)?;
    let (lease, lease_origin) = lease(&mut own)?;
    let mut duration = |key| own.get(key, value::duration, value::show_duration);
    let (grace, _) = duration(Key::Grace)?;
    let (pause, pause_origin) = duration(Key::RestartDelay)?;
    let (probation, _) = duration(Key::Probation)?;
    let (on_done, restart_origin) = own.get(Key::Restart, value::restart, value::show_restart)?;
    let schedule = schedule(&mut own)?;
    if schedule.is_some() {
        suits_schedule(on_done, &restart_origin, &pause_origin)?;
    }
    let (shards, shards_origin) = own.get(Key::Shards, value::shards, u16::to_string)?;
    if shards > 1 && (schedule.is_some() || preempt) {
        let other = if preempt { "preempt" } else { "schedule" };
        let problem = format!("a group of shards cannot have `{other}`: remove `{other}`, or remove `shards`");
        return Err(ConfigError::at(Key::Shards, &shards_origin, problem));
    }
    // The restart delay does not apply to a coordinator with a schedule: the schedule alone decides when it runs again.
    let pause = if schedule.is_some() { Duration::ZERO } else { pause };
    let (stall_after, _) = own.optional(Key::StallAfter, value::stall, value::show_duration)?;
    let (pins, _) = own.get(Key::Pin, value::digests, |pins| value::show_digests(pins))?;
    let (trust, _) = own.get(Key::Trust, value::files, |files| value::show_files(files))?;
    let compile_timeout = compile_timeout(&mut own)?;
    let (allow_http, _) = own.get(Key::AllowHttp, value::grants, value::show_grants)?;
    let (http_ca, _) = own.optional(Key::HttpCa, value::path, value::show_path)?;
    let (max_requests, _) = own.get(Key::MaxRequests, value::requests, usize::to_string)?;
    let (limits, memory_origin) = limits(&mut own)?;
    let timing = timing((lease, &lease_origin), store, grace, (limits.memory, &memory_origin))?;
    let (total, _) = own.get(Key::MaxState, value::state_size, value::show_size)?;
    let (arguments, _) = own.get(Key::Arg, value::arguments, |all| value::show_arguments(all))?;
    let mut taken = BTreeSet::new();
    let pair = |name: &str, text: &str| Ok((name.to_string(), text.to_string()));
    let hidden = |name: &str, text: &str| Ok((name.to_string(), Secret::new(text)));
    let secret = |name: &str, text: &str| secrets::find(name, text, around);
    let env = own.many(Key::Env, &mut taken, hidden, |(_, value)| value.to_string())?;
    let config = own.many(Key::ConfigVar, &mut taken, pair, |(_, value)| value.clone())?;
    let secrets = own.many(Key::Secret, &mut taken, secret, SecretSource::to_string)?;
    let folder = |_: &str, text: &str| folders::find(text, around);
    let folders = own.many(Key::Dir, &mut BTreeSet::new(), folder, Folder::to_string)?;

    let coordinator = Coordinator {
        election,
        module,
        priority,
        preempt,
        timing,
        pause,
        on_done,
        schedule,
        shards,
        stall_after,
        probation,
        pins,
        trust,
        compile_timeout,
        limits,
        state_limits: Limits { total },
        arguments,
        env,
        config,
        secrets,
        folders,
        allow_http,
        http_ca,
        max_requests,
    };
    Ok((coordinator, election_origin))
}

/// Fails if `restart` is `on-failure`, or if `restart-delay` is set. Both conflict with a schedule, because the
/// schedule alone decides when the coordinator runs again.
fn suits_schedule(on_done: OnDone, restart_origin: &Origin, pause_origin: &Origin) -> Result<(), ConfigError> {
    if on_done == OnDone::Finish {
        let problem = "a coordinator with a schedule runs at each due time: remove `restart`, or remove `schedule`";
        return Err(ConfigError::at(Key::Restart, restart_origin, problem));
    }
    if *pause_origin != Origin::Default {
        let problem = "the schedule alone decides when a coordinator runs again: remove `restart-delay`";
        return Err(ConfigError::at(Key::RestartDelay, pause_origin, problem));
    }
    Ok(())
}

/// Returns the module, the election that it serves, and the origin of the election's name.
fn module_and_election(own: &mut Resolver<'_>) -> Result<(ModuleSource, ElectionName, Origin), ConfigError> {
    let no_module = || {
        Err("there is nothing to run: name a component, as in `baton run coordinator.wasm`, or define some as \
             [coordinators.NAME] in baton.toml"
            .to_string())
    };
    let (module, module_origin) = own.get_or(Key::Module, value::module, ModuleSource::to_string, no_module)?;
    let by_name = || value::election_called(&module.stem());
    let (election, election_origin) =
        own.get_or(Key::Election, value::election, |name| name.to_string(), by_name).map_err(|error| {
            // By default, the election's name is derived from the module's name. If the derived name is invalid, the
            // user must fix the module setting.
            if own.origin(Key::Election) == Origin::Default {
                ConfigError::new(module_origin.place(Key::Module), error.problem)
            } else {
                error
            }
        })?;
    if let ModuleSource::Published(published) = &module
        && *published != election
    {
        let problem = format!(
            "{module} is the module of the election `{published}`, but this election is `{election}`: give both the \
             same name"
        );
        return Err(ConfigError::at(Key::Election, &election_origin, problem));
    }
    Ok((module, election, election_origin))
}

/// Resolves the schedule, if any. Validates `time-zone` and `missed` even if there is no schedule.
fn schedule(own: &mut Resolver<'_>) -> Result<Option<Schedule>, ConfigError> {
    let text = |text: &str| Ok(text.trim().to_string());
    let (pattern, origin) = own.optional(Key::Schedule, text, String::clone)?;
    let (zone, _) = own.get(Key::TimeZone, value::time_zone, String::clone)?;
    let (missed, _) = own.get(Key::Missed, value::missed, value::show_missed)?;
    let Some(pattern) = pattern else { return Ok(None) };
    let schedule = baton_node::schedule::schedule(&pattern, &zone, missed);
    schedule.map(Some).map_err(|error| ConfigError::at(Key::Schedule, &origin, error.to_string()))
}

/// Derives the times of an election. If the lease is too short for a `max-memory` that the user has set, the error
/// names `max-memory`. Any other error names `lease`.
fn timing(
    (lease, lease_origin): (Duration, &Origin),
    store: &StoreUrl,
    grace: Duration,
    (max_memory, memory_origin): (u64, &Origin),
) -> Result<Timing, ConfigError> {
    Timing::new(lease, store.lease_range(), grace, max_memory).map_err(|error| {
        let of_memory = matches!(error, TimingError::Memory { .. }) && *memory_origin != Origin::Default;
        let (key, origin) = if of_memory { (Key::MaxMemory, memory_origin) } else { (Key::Lease, lease_origin) };
        ConfigError::at(key, origin, error.to_string())
    })
}

/// Reads each setting from the layer with the highest precedence that sets it, and records a row for the table of
/// `--print-config`.
struct Resolver<'a> {
    layers: Vec<&'a Layer>,
    rows: &'a mut Vec<SettingRow>,
}

impl<'a> Resolver<'a> {
    fn new(layers: Vec<&'a Layer>, rows: &'a mut Vec<SettingRow>) -> Self {
        Self { layers, rows }
    }

    fn origin(&self, key: Key) -> Origin {
        let given = self.layers.iter().find_map(|layer| layer.get(key));
        given.map_or(Origin::Default, |given| given.origin.clone())
    }

    /// Returns the value of a setting whose default is in the table of settings.
    fn get<T>(
        &mut self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, String>,
        show: impl FnOnce(&T) -> String,
    ) -> Result<(T, Origin), ConfigError> {
        let default = || parse(key.setting().default.unwrap_or_default());
        self.get_or(key, &parse, show, default)
    }

    /// Returns the value of an optional setting; `None` if the value is the word for the default, such as `none`, `off`
    /// or `own`.
    fn optional<T>(
        &mut self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, String>,
        show: impl FnOnce(&T) -> String,
    ) -> Result<(Option<T>, Origin), ConfigError> {
        let word = key.setting().default.unwrap_or(OFF);
        let parse = |text: &str| if text.trim() == word { Ok(None) } else { parse(text).map(Some) };
        self.get_or(key, parse, |value| value.as_ref().map_or(word.to_owned(), show), || Ok(None))
    }

    /// Returns the value of a setting whose default depends on the machine or the module.
    fn get_or<T>(
        &mut self,
        key: Key,
        parse: impl FnOnce(&str) -> Result<T, String>,
        show: impl FnOnce(&T) -> String,
        default: impl FnOnce() -> Result<T, String>,
    ) -> Result<(T, Origin), ConfigError> {
        let given = self.layers.iter().find_map(|layer| layer.get(key));
        let origin = self.origin(key);
        let parsed = given.map_or_else(default, |given| parse(&given.text));
        let value = parsed.map_err(|problem| ConfigError::at(key, &origin, problem))?;
        self.note(key, None, show(&value), origin.clone());
        Ok((value, origin))
    }

    /// Calls `make` with the name and the text of each value of a multi-value setting, and returns the results. Rejects
    /// a name that is already in `taken`: `env`, `config-var` and `secret` share one set of names.
    fn many<T>(
        &mut self,
        key: Key,
        taken: &mut BTreeSet<String>,
        make: impl Fn(&str, &str) -> Result<T, String>,
        show: impl Fn(&T) -> String,
    ) -> Result<Vec<T>, ConfigError> {
        let mut values = Vec::new();
        let named = self.named(key);
        if named.is_empty() {
            self.note(key, None, "none".to_owned(), Origin::Default);
        }
        for (name, given) in named {
            let value = make(name, &given.text).map_err(|problem| ConfigError::at(key, &given.origin, problem))?;
            if !taken.insert(name.clone()) {
                let problem = format!("{name:?} is set more than once in env, config-var and secret: keep one");
                return Err(ConfigError::at(key, &given.origin, problem));
            }
            self.note(key, Some(name.clone()), show(&value), given.origin.clone());
            values.push(value);
        }
        Ok(values)
    }

    /// Merges the values of a multi-value setting across layers. For each name, the layer with the highest precedence
    /// wins.
    fn named(&self, key: Key) -> BTreeMap<&'a String, &'a SourcedText> {
        let mut values = BTreeMap::new();
        for layer in self.layers.iter().rev() {
            values.extend(layer.named(key));
        }
        values
    }

    fn note(&mut self, key: Key, part: Option<String>, value: String, origin: Origin) {
        self.rows.push(SettingRow { election: None, key, part, value, origin });
    }
}
