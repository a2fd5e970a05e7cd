//! From layers to a checked [`Config`].

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use baton_election::OnDone;
use baton_election::{Timing, TimingError};

use super::file::{self, DEFAULT_FILE, FileLayers};
use super::layer::Given;
use super::misspelt::misspelt;
use super::table::SettingRow;
use super::{Config, ConfigError, Coordinator, Environment, Key, Layer, Origin, folders, secrets, value};
use crate::admin::{AdminPlace, AdminSettings, TlsFiles};
use crate::links::{PeerSettings, is_of_one_machine};
use crate::maintenance::ScheduledEvents;
use crate::node::{NodeChoice, NodeId};
use crate::supervisor::HIGHEST_PRIORITY;
use crate::telemetry::Format;
use baton_modules::ModuleSource;
use baton_runtime::Grants;
use baton_runtime::{Folder, Secret, SecretSource};
use baton_store::state::Limits;
use baton_store::{Labels, MOST_LABELS, StoreUrl};

/// Brings together what the command line says, the variables, the file and the defaults, and checks all
/// of it.
///
/// # Errors
/// [`ConfigError`] for the first thing that is wrong.
pub fn resolve(flags: &Layer, around: &Environment) -> Result<Config, ConfigError> {
    let sources = Sources::read(flags, around)?;
    let mut rows = vec![sources.file_row()];
    let mut host = Resolver::new(vec![flags, &sources.variables, &sources.file.global], &mut rows);

    let store = store(&mut host, around)?;
    let create = create(&mut host)?;
    let allow_weaker_isolation = switch(&mut host, Key::AllowWeakerIsolation)?;
    let node = node(&mut host, around)?;
    let log_format = host.get(Key::LogFormat, value::log_format, value::show_log_format, || Ok(Format::Text))?.0;

    let admin = admin(&mut host)?;
    let events = |text: &str| ScheduledEvents::new(text).map_err(|error| error.to_string());
    let (scheduled_events, _) =
        host.get(Key::ScheduledEvents, events, ScheduledEvents::to_string, || Ok(ScheduledEvents::Auto))?;
    let (witness, _) = host.get(Key::Reclaim, value::switch, bool::to_string, || Ok(true))?;
    let (links, _) = host.get(Key::Links, value::switch, bool::to_string, || Ok(true))?;
    let peer = peer(&mut host)?;
    let labels = labels(&mut host)?;
    let (max_leading, _) = host.get(Key::MaxLeaderships, value::most, value::show_most, || Ok(None))?;
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
        let profile = coordinator.profile.as_ref();
        if profile.is_some() && coordinators.iter().any(|other: &Coordinator| other.profile.as_ref() == profile) {
            let problem = "two coordinators would write to the same file: name a file for each in its table";
            let given = own.iter().find(|row| row.key == Key::Profile);
            return Err(ConfigError::at(Key::Profile, given.map_or(&Origin::Default, |row| &row.origin), problem));
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
    let place = host.get(Key::Admin, value::admin, ToString::to_string, || Ok(AdminPlace::Free))?.0;
    let mut file = |key| host.get(key, value::file, value::show_file, || Ok(None));
    let (token_file, _) = file(Key::AdminTokenFile)?;
    let (certificate, of_certificate) = file(Key::AdminTlsCert)?;
    let (key, of_key) = file(Key::AdminTlsKey)?;
    let tls = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
        (Some(_), None) => {
            let problem = "needs a private key: set --admin-tls-key, too";
            return Err(ConfigError::at(Key::AdminTlsCert, &of_certificate, problem));
        }
        (None, Some(_)) => {
            let problem = "needs a certificate: set --admin-tls-cert, too";
            return Err(ConfigError::at(Key::AdminTlsKey, &of_key, problem));
        }
    };
    let advertise = host.get(Key::AdminAdvertise, value::admin_url, value::show_admin_url, || Ok(None))?.0;
    Ok(AdminSettings { place, token_file, tls, advertise })
}

fn peer(host: &mut Resolver<'_>) -> Result<Option<PeerSettings>, ConfigError> {
    let (listen, of_listen) = host.get(Key::Peer, value::peer, value::show_peer, || Ok(None))?;
    let (advertise, of_advertise) =
        host.get(Key::PeerAdvertise, value::advertise, value::show_advertise, || Ok(None))?;
    match (listen, &advertise) {
        (None, None) => Ok(None),
        (None, Some(_)) => {
            let problem = "needs an address to listen on: set --peer, too";
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
        let problem = format!("{} labels are too many: give at most {MOST_LABELS}", labels.len());
        return Err(ConfigError::new(Key::Label.flag(), problem));
    }
    Ok(labels.into_iter().collect())
}

/// The store alone, for the commands that ask it: from a flag, a variable, the file or the default.
///
/// # Errors
/// [`ConfigError`] if the file is wrong, or there is no place for a default.
pub fn resolve_store(flags: &Layer, around: &Environment) -> Result<StoreUrl, ConfigError> {
    let sources = Sources::read(flags, around)?;
    let layers = vec![flags, &sources.variables, &sources.file.global];
    store(&mut Resolver::new(layers, &mut Vec::new()), around)
}

/// The same, and the file of the nodes' token, for the commands that ask nodes.
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
    let token_file = host.get(Key::AdminTokenFile, value::file, value::show_file, || Ok(None))?.0;
    Ok((store(&mut host, around)?, token_file))
}

/// The same, and whether to make what the store needs, for the commands that may be the first to write there.
///
/// # Errors
/// As for [`resolve_store`].
pub fn resolve_store_to_fill(flags: &Layer, around: &Environment) -> Result<(StoreUrl, bool), ConfigError> {
    let sources = Sources::read(flags, around)?;
    let mut rows = Vec::new();
    let mut host = Resolver::new(vec![flags, &sources.variables, &sources.file.global], &mut rows);
    Ok((store(&mut host, around)?, create(&mut host)?))
}

/// How long compiling a module may take, for the commands that do so for themselves.
///
/// # Errors
/// [`ConfigError`] if it or the file is wrong.
pub fn resolve_compile_timeout(flags: &Layer, around: &Environment) -> Result<Duration, ConfigError> {
    let sources = Sources::read(flags, around)?;
    compile_timeout(&mut Resolver::new(vec![flags, &sources.variables, &sources.file.global], &mut Vec::new()))
}

/// What `baton doctor` looks at.
#[derive(Clone, Debug)]
pub struct Examined {
    /// The store.
    pub store: StoreUrl,
    /// Make what it needs.
    pub create: bool,
    /// The lease that hosts are to have.
    pub lease: Duration,
    /// How long compiling a module may take.
    pub compile_timeout: Duration,
    /// What outlives a run on this machine; none where there is no home.
    pub state: Option<PathBuf>,
    /// Where compiled modules are kept; none for nowhere.
    pub cache: Option<PathBuf>,
    /// The file of the cache's key; none where there is no folder for it.
    pub cache_key: Option<PathBuf>,
}

/// What a host would have with such settings, for who looks at it beforehand.
///
/// # Errors
/// [`ConfigError`] for the first setting that is wrong.
pub fn resolve_examined(flags: &Layer, around: &Environment) -> Result<Examined, ConfigError> {
    let sources = Sources::read(flags, around)?;
    let mut rows = Vec::new();
    let mut host = Resolver::new(vec![flags, &sources.variables, &sources.file.global], &mut rows);
    Ok(Examined {
        store: store(&mut host, around)?,
        create: create(&mut host)?,
        lease: lease(&mut host)?.0,
        compile_timeout: compile_timeout(&mut host)?,
        state: around.state_folder(),
        cache: cache(&mut host, around)?,
        cache_key: around.cache_key(),
    })
}

/// What the environment and the file say.
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

    /// The layers of each coordinator that is to run: the one that was named, else those of the file.
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
    Ok(host.get(Key::Store, value::store, StoreUrl::to_string, default)?.0)
}

fn switch(host: &mut Resolver<'_>, key: Key) -> Result<bool, ConfigError> {
    Ok(host.get(key, value::switch, bool::to_string, || Ok(false))?.0)
}

fn create(host: &mut Resolver<'_>) -> Result<bool, ConfigError> {
    switch(host, Key::Create)
}

fn cache(host: &mut Resolver<'_>, around: &Environment) -> Result<Option<PathBuf>, ConfigError> {
    Ok(host.get(Key::Cache, value::place, value::show_place, || Ok(around.cache_folder()))?.0)
}

fn lease(own: &mut Resolver<'_>) -> Result<(Duration, Origin), ConfigError> {
    own.get(Key::Lease, value::duration, value::show_duration, || Ok(Duration::from_secs(15)))
}

fn compile_timeout(own: &mut Resolver<'_>) -> Result<Duration, ConfigError> {
    let minute = || Ok(Duration::from_secs(60));
    Ok(own.get(Key::CompileTimeout, value::timeout, value::show_duration, minute)?.0)
}

fn node(host: &mut Resolver<'_>, around: &Environment) -> Result<NodeChoice, ConfigError> {
    let given = |text: &str| NodeId::new(text).map(NodeChoice::Given).map_err(|error| error.to_string());
    let default = || match around.state_folder() {
        Some(folder) => {
            NodeChoice::slot(&folder.join("nodes")).map_err(|error| format!("{error}; name the node with --node"))
        }
        None => Err("there is no home folder for the node's lock file: set --node, HOME or XDG_STATE_HOME".to_string()),
    };
    Ok(host.get(Key::Node, given, NodeChoice::to_string, default)?.0)
}

/// What a coordinator may use of the host; also says where its memory came from.
fn limits(own: &mut Resolver<'_>) -> Result<(baton_runtime::Limits, Origin), ConfigError> {
    let usual = baton_runtime::Limits::default();
    let (memory, memory_origin) = own.get(Key::MaxMemory, value::size, value::show_size, || Ok(usual.memory))?;
    let mut count = |key, most, usual| own.get(key, |text| value::count(text, most), u64::to_string, || Ok(usual));
    let (table_elements, _) = count(Key::MaxTableElements, 100_000_000, usual.table_elements)?;
    let (instances, _) = count(Key::MaxInstances, 1_000_000, usual.instances)?;
    let (handles, _) = count(Key::MaxHandles, 1_000_000, usual.handles)?;
    let (files, _) = count(Key::MaxFiles, 100_000, usual.files)?;
    let (output, _) = count(Key::MaxOutput, 1_000_000, usual.output.into())?;
    let output = u32::try_from(output).unwrap_or(u32::MAX);
    Ok((baton_runtime::Limits { memory, table_elements, instances, handles, files, output }, memory_origin))
}

/// The state that a coordinator may keep. One value of it is no larger than all of it.
fn state_limits(own: &mut Resolver<'_>) -> Result<Limits, ConfigError> {
    let usual = Limits::default();
    let (total, _) = own.get(Key::MaxState, value::state_size, value::show_size, || Ok(usual.total))?;
    let most = || Ok(usual.value.min(total));
    let (value, origin) = own.get(Key::MaxStateValue, value::state_size, value::show_size, most)?;
    if value > total {
        let (value, total) = (value::show_size(&value), value::show_size(&total));
        let problem = format!(
            "{value} is more than max-state, which is {total}: increase max-state, or decrease max-state-value"
        );
        return Err(ConfigError::at(Key::MaxStateValue, &origin, problem));
    }
    Ok(Limits { total, value })
}

/// Parses one coordinator; also says where its election's name came from.
fn coordinator(
    layers: Vec<&Layer>,
    store: &StoreUrl,
    around: &Environment,
    rows: &mut Vec<SettingRow>,
) -> Result<(Coordinator, Origin), ConfigError> {
    let mut own = Resolver::new(layers, rows);
    let no_module = || {
        Err("there is nothing to run: name a component, as in `baton run coordinator.wasm`, or list some as \
             [coordinators.NAME] in baton.toml"
            .to_string())
    };
    let (module, module_origin) = own.get(Key::Module, value::module, ModuleSource::to_string, no_module)?;
    let by_name = || value::election_called(&module.stem());
    let (election, election_origin) =
        own.get(Key::Election, value::election, |name| name.to_string(), by_name).map_err(|error| {
            // The default is made of the module's name: that is the place to look at.
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
    let highest = || Ok(HIGHEST_PRIORITY);
    let (priority, _) = own.get(Key::Priority, value::priority, u8::to_string, highest)?;
    let preempt = switch(&mut own, Key::Preempt)?;
    let (lease, lease_origin) = lease(&mut own)?;
    let mut duration =
        |key, seconds| own.get(key, value::duration, value::show_duration, || Ok(Duration::from_secs(seconds)));
    let (grace, _) = duration(Key::Grace, 5)?;
    let (pause, _) = duration(Key::RestartDelay, 60)?;
    let (probation, _) = duration(Key::Probation, 30)?;
    let (on_done, _) = own.get(Key::Restart, value::restart, value::show_restart, || Ok(OnDone::Repeat))?;
    let (stall_after, _) = own.get(Key::StallAfter, value::stall, value::show_stall, || Ok(None))?;
    let mut place = |key| own.get(key, value::place, value::show_place, || Ok(None));
    let (core_dumps, _) = place(Key::Coredump)?;
    let (profile, _) = place(Key::Profile)?;
    let (pins, _) = own.get(Key::Pin, value::digests, |pins| value::show_digests(pins), || Ok(Vec::new()))?;
    let (trust, _) = own.get(Key::Trust, value::files, |files| value::show_files(files), || Ok(Vec::new()))?;
    let compile_timeout = compile_timeout(&mut own)?;
    let (allow_http, _) = own.get(Key::AllowHttp, value::grants, value::show_grants, || Ok(Grants::default()))?;
    let (http_ca, _) = own.get(Key::HttpCa, value::file, value::show_file, || Ok(None))?;
    let (max_requests, _) = own.get(Key::MaxRequests, value::requests, usize::to_string, || Ok(64))?;
    let (limits, memory_origin) = limits(&mut own)?;
    let max_memory = limits.memory;
    let state_limits = state_limits(&mut own)?;
    let (arguments, _) = own.get(Key::Arg, value::arguments, |all| value::show_arguments(all), || Ok(Vec::new()))?;
    let mut taken = BTreeSet::new();
    let pair = |name: &str, text: &str| Ok((name.to_string(), text.to_string()));
    let hidden = |name: &str, text: &str| Ok((name.to_string(), Secret::new(text)));
    let secret = |name: &str, text: &str| secrets::find(name, text, around);
    let env = own.many(Key::Env, &mut taken, hidden, |(_, value)| value.to_string())?;
    let config = own.many(Key::ConfigVar, &mut taken, pair, |(_, value)| value.clone())?;
    let secrets = own.many(Key::Secret, &mut taken, secret, SecretSource::to_string)?;
    let folder = |_: &str, text: &str| folders::find(text, around);
    let folders = own.many(Key::Dir, &mut BTreeSet::new(), folder, Folder::to_string)?;

    let timing = Timing::new(lease, store.lease_range(), grace, max_memory).map_err(|error| {
        let of_memory = matches!(error, TimingError::Memory { .. }) && memory_origin != Origin::Default;
        let (key, origin) = if of_memory { (Key::MaxMemory, &memory_origin) } else { (Key::Lease, &lease_origin) };
        ConfigError::at(key, origin, error.to_string())
    })?;
    let coordinator = Coordinator {
        election,
        module,
        priority,
        preempt,
        timing,
        pause,
        on_done,
        stall_after,
        probation,
        core_dumps,
        profile,
        pins,
        trust,
        compile_timeout,
        limits,
        state_limits,
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

/// Looks settings up in layers, the strongest first, and notes what it found.
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

    fn get<T>(
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

    /// What a setting that has many values says, each value made of its name and text. Those that become
    /// variables of the coordinator share what is `taken`: a name that another such setting has is refused.
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

    /// The values of a setting that has many: all layers together, the strongest one's value for each name.
    fn named(&self, key: Key) -> BTreeMap<&'a String, &'a Given> {
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
