//! The command line: from arguments to a [`Command`] whose settings are checked, and from results to
//! what is printed. Results go to stdout; everything else goes to stderr.

mod args;
mod check;
mod doctor;
mod generate;
mod history;
mod modules;
mod nodes;
mod print;
mod progress;
mod status;
mod steering;
mod told;
mod tone;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use baton_election::ElectionName;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser};

pub use args::Lang;
pub use check::print_inspection;
pub use doctor::{Diagnosis, Finding, Latency, Level, print_diagnosis};
pub use generate::{complete, completions, manual, schema, write_manuals};
pub use history::{TermRow, print_history};
pub use modules::{ModuleRow, NodeRow, print_modules};
pub use nodes::{NodeStatusRow, print_nodes};
pub use print::{columns, print, print_bytes, print_json, print_on, print_value, say, say_error};
pub use progress::Progress;
pub use status::{LeaseWord, StatusRow, SuspendedRow, print_again, print_status};
pub use steering::Steer;
pub use told::print_told;
pub use tone::{Tone, print_styled, table};

use crate::config::{self, Config, ConfigError, Environment, Examined, Key, Layer, renamed};
use args::{Arguments, Subcommand};
use baton_modules::{Assignment, is_path};
use baton_runtime::LogLevel;
use baton_runtime::escape::{escape, escape_lines};
use baton_store::StoreUrl;
use baton_store::address::without_user;
use baton_store::{DigestPrefix, InvalidPrefix};

/// The exit status of a wrong configuration or usage. Success is 0, every other failure 1.
pub const WRONG_CONFIGURATION: u8 = 2;

/// What to do.
#[derive(Debug)]
pub enum Command {
    /// Contend for elections and run coordinators.
    Run(Box<Config>),
    /// Build a coordinator, run it, and swap it for each new build.
    Dev(Box<Development>),
    /// Show the settings and where they came from: print this table.
    PrintConfig(String),
    /// Show who leads.
    Status {
        /// Only in this election; none for all.
        election: Option<ElectionName>,
        /// Where the lease store is.
        store: StoreUrl,
        /// As JSON.
        json: bool,
        /// How often to look again; none for once.
        watch: Option<Duration>,
    },
    /// Show the last terms of an election.
    History {
        /// The election.
        election: ElectionName,
        /// Where the store is.
        store: StoreUrl,
        /// So many at the most.
        limit: usize,
        /// As JSON.
        json: bool,
    },
    /// Show what the leader's host has to tell, and perhaps go on with what comes.
    Told(Told),
    /// Say whether a component would run here.
    Check {
        /// The component's file.
        module: PathBuf,
        /// How long compiling it may take.
        compile_timeout: Duration,
        /// As JSON.
        json: bool,
    },
    /// Find out whether store and machine keep what Baton rests on.
    Doctor(Box<Doctor>),
    /// Publish a module.
    Push(Push),
    /// List the versions of an election's module.
    Modules {
        /// The election.
        election: ElectionName,
        /// Where the store is.
        store: StoreUrl,
        /// As JSON.
        json: bool,
    },
    /// Make an earlier version the current one.
    Rollback {
        /// The election.
        election: ElectionName,
        /// Which; none for the newest other that is not rejected.
        digest: Option<DigestPrefix>,
        /// Where the store is.
        store: StoreUrl,
    },
    /// Remove old versions and modules.
    Prune {
        /// Of these elections; none for all.
        elections: Vec<ElectionName>,
        /// How many of the newest versions stay.
        keep: usize,
        /// Only say what would be removed.
        dry_run: bool,
        /// Where the store is.
        store: StoreUrl,
    },
    /// Look at a coordinator's state, or change it.
    State {
        /// Whose it is.
        election: ElectionName,
        /// Where the store is.
        store: StoreUrl,
        /// What to do.
        action: StateAction,
    },
    /// Make a token.
    Token {
        /// The file to write it to; none to print it.
        file: Option<PathBuf>,
    },
    /// Let a finished election run again.
    Rerun {
        /// The election.
        election: ElectionName,
        /// Where the lease store is.
        store: StoreUrl,
    },
    /// Ask an election's nodes for something.
    Steer(Steer),
    /// List the nodes of an election.
    Nodes {
        /// The election.
        election: ElectionName,
        /// Where the store is.
        store: StoreUrl,
        /// As JSON.
        json: bool,
    },
    /// Compile a module for the host that started this process.
    CompileModule(Assignment),
    /// Fork the processes that run instances, for the host that started this process.
    MakeRunners {
        /// The number of its process.
        parent: u32,
    },
    /// Carry what the host that started this process and others tell each other.
    CarryLinks {
        /// The number of its process.
        parent: u32,
        /// The folder of the sockets, where there is one.
        folder: Option<PathBuf>,
    },
    /// Print the schema of `baton.toml`.
    Schema,
    /// Print what completes the command line.
    Completions(clap_complete::Shell),
    /// Print the manual page, or write all of them into a folder.
    Manual(Option<PathBuf>),
    /// Write a project to start from.
    New {
        /// Its folder and its election.
        name: ElectionName,
        /// What it is written in.
        lang: Lang,
    },
}

/// What is looked at, and how.
#[derive(Debug)]
pub struct Doctor {
    /// The store and the machine.
    pub examined: Examined,
    /// A component's file; none for no module.
    pub module: Option<PathBuf>,
    /// Leave out what waits for a lease to run out.
    pub quick: bool,
    /// As JSON.
    pub json: bool,
}

/// What the leader's host has to tell.
#[derive(Debug)]
pub struct Told {
    /// Whether it is what the coordinator prints, or what the host says.
    pub is_output: bool,
    /// Of this election; none for all.
    pub election: Option<ElectionName>,
    /// Where the store is.
    pub store: StoreUrl,
    /// Go on with what comes.
    pub follow: bool,
    /// How many of those that are there to begin with.
    pub tail: usize,
    /// Only this level and above.
    pub level: LogLevel,
    /// The file of the nodes' token.
    pub token_file: Option<PathBuf>,
    /// Whom the nodes must be certified by; none for whom the system trusts.
    pub ca: Option<PathBuf>,
    /// As lines of JSON.
    pub json: bool,
}

/// A module on its way into the store.
#[derive(Debug)]
pub struct Push {
    /// The component's file.
    pub module: PathBuf,
    /// How long compiling it may take.
    pub compile_timeout: Duration,
    /// The election.
    pub election: ElectionName,
    /// Where the store is.
    pub store: StoreUrl,
    /// Make what the store needs, such as its container.
    pub create: bool,
    /// The file of its signature; none for the one beside it, if there is one.
    pub signature: Option<PathBuf>,
    /// Who pushes it, `USER@HOST`.
    pub by: String,
}

/// What is developed. Settings follow from what is found there.
pub struct Development {
    /// The project's folder.
    pub folder: PathBuf,
    /// The command line that builds it, or `off`; none where the project tells.
    pub build: Option<String>,
    /// What that makes, as seen from the folder; none where the project or the settings tell.
    pub module: Option<PathBuf>,
    /// What the command line says otherwise.
    pub settings: Layer,
    /// What else there is to find settings in.
    pub around: Environment,
}

impl fmt::Debug for Development {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, build, module, .. } = self;
        // The rest may hold secrets.
        let mut shown = f.debug_struct("Development");
        shown.field("folder", folder).field("build", build).field("module", module).finish_non_exhaustive()
    }
}

/// What to do with a coordinator's state. `force`: also while a coordinator leads.
#[derive(Debug)]
#[expect(missing_docs, reason = "the arguments of the commands of these names")]
pub enum StateAction {
    List {
        prefix: String,
        json: bool,
    },
    Get {
        key: String,
    },
    /// Without a value, it is read from standard input.
    Put {
        key: String,
        value: Option<String>,
        force: bool,
    },
    Delete {
        keys: Vec<String>,
        force: bool,
    },
    Export,
    /// Without a file, the state is read from standard input.
    Import {
        from: Option<PathBuf>,
        force: bool,
    },
}

/// Why there is no command to carry out.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The arguments do not make one, or ask for help or the version.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Stop {
    /// Says it where it belongs and gives the exit status.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        match self {
            // Help that nobody reads is no failure.
            Self::Usage(error) => {
                let _ = report_usage(error);
                u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
            }
            Self::Config(error) => {
                say_error(&format!("wrong configuration: {error}"));
                ExitCode::from(WRONG_CONFIGURATION)
            }
        }
    }
}

/// Prints what the parser says: in colours, unless an argument is quoted that could do something to the terminal. Names
/// of files, which others may have given, come as arguments too.
fn report_usage(error: &clap::Error) -> std::io::Result<()> {
    let quoted = error.context().flat_map(|(_, value)| match value {
        ContextValue::String(text) => std::slice::from_ref(text),
        ContextValue::Strings(texts) => texts,
        _ => &[],
    });
    let harmful: Vec<&String> = quoted.filter(|text| matches!(escape(text), Cow::Owned(_))).collect();
    if harmful.is_empty() {
        return error.print();
    }
    let styled =
        harmful.iter().fold(error.render().ansi().to_string(), |said, text| said.replace(*text, &escape(text)));
    // The parser's own styles are left.
    let mut parts = styled.split('\u{1b}');
    let first = parts.next().unwrap_or_default();
    let plain: String = parts.map(|part| part.split_once('m').map_or(part, |(_, text)| text)).collect();
    std::io::stderr().write_all(escape_lines(&format!("{first}{plain}")).as_bytes())
}

/// All commands with their arguments, for what is compared with them.
#[cfg(test)]
pub(crate) fn definition() -> clap::Command {
    <Arguments as clap::CommandFactory>::command()
}

/// Finds out what to do. `arguments` begin with the program's name.
///
/// # Errors
/// [`Stop`] where there is nothing to do, or not like that.
pub fn parse(arguments: impl IntoIterator<Item = OsString>, around: &Environment) -> Result<Command, Stop> {
    Ok(match Arguments::try_parse_from(with_joined_switches(arguments)).map_err(with_todays_name)?.command {
        Subcommand::Run(run) => {
            let print_config = run.print_config;
            let config = config::resolve(&run.layer()?, around)?;
            if print_config { Command::PrintConfig(config.table()) } else { Command::Run(Box::new(config)) }
        }
        Subcommand::Dev(dev) => {
            let (build, module) = (dev.build.clone(), dev.module.clone().map(module_argument).transpose()?);
            let folder = dev.path.clone().unwrap_or_else(|| PathBuf::from("."));
            let around = around.within(&folder);
            Command::Dev(Box::new(Development { folder, build, module, settings: dev.layer()?, around }))
        }
        Subcommand::Status { election, store, output, watch } => Command::Status {
            election: election.as_deref().map(election_argument).transpose()?,
            store: config::resolve_store(&store.layer(), around)?,
            json: output.is_json(),
            watch: watch.as_deref().map(status::seconds).transpose()?,
        },
        Subcommand::History { election, limit, store, output } => Command::History {
            election: election_argument(&election)?,
            store: config::resolve_store(&store.layer(), around)?,
            limit,
            json: output.is_json(),
        },
        Subcommand::Events { election, told } => {
            let election = election.as_deref().map(election_argument).transpose()?;
            Command::Told(told.of(false, election, around)?)
        }
        Subcommand::Logs { election, told } => {
            Command::Told(told.of(true, Some(election_argument(&election)?), around)?)
        }
        Subcommand::Check { module, compile_timeout, config, output } => {
            let flags = Layer::new().flag(Key::CompileTimeout, compile_timeout).flag(Key::Config, config);
            let module = module_argument(module)?;
            Command::Check {
                module,
                compile_timeout: config::resolve_compile_timeout(&flags, around)?,
                json: output.is_json(),
            }
        }
        Subcommand::Doctor(doctor) => Command::Doctor(Box::new(doctor.command(around)?)),
        Subcommand::Push { module, election, store, create, signature, compile_timeout } => {
            if election.ends_with(".wasm") {
                let problem = format!("`{election}` looks like a module: name the module first, then the election");
                return Err(ConfigError::of_argument("ELECTION", problem).into());
            }
            let (module, election) = (module_argument(module)?, election_argument(&election)?);
            let flags = store.layer().flag(Key::Create, create).flag(Key::CompileTimeout, compile_timeout);
            let (store, create) = config::resolve_store_to_fill(&flags, around)?;
            let compile_timeout = config::resolve_compile_timeout(&flags, around)?;
            let by = around.user_at_host();
            Command::Push(Push { module, compile_timeout, election, store, create, signature, by })
        }
        Subcommand::Modules { election, store, output } => Command::Modules {
            election: election_argument(&election)?,
            store: config::resolve_store(&store.layer(), around)?,
            json: output.is_json(),
        },
        Subcommand::Rollback { election, digest, store } => Command::Rollback {
            election: election_argument(&election)?,
            digest: digest.as_deref().map(digest_argument).transpose()?,
            store: config::resolve_store(&store.layer(), around)?,
        },
        Subcommand::Prune { elections, keep, dry_run, store } => Command::Prune {
            elections: elections.iter().map(|election| election_argument(election)).collect::<Result<_, _>>()?,
            keep,
            dry_run,
            store: config::resolve_store(&store.layer(), around)?,
        },
        Subcommand::State(state) => {
            let (of, action) = state.action();
            Command::State {
                election: election_argument(&of.election)?,
                store: config::resolve_store(&of.store.layer(), around)?,
                action,
            }
        }
        Subcommand::Rerun { election, store } => Command::Rerun {
            election: election_argument(&election)?,
            store: config::resolve_store(&store.layer(), around)?,
        },
        Subcommand::Steer(asked) => steering::command(asked, around)?,
        Subcommand::Nodes { election, store, output } => Command::Nodes {
            election: election_argument(&election)?,
            store: config::resolve_store(&store.layer(), around)?,
            json: output.is_json(),
        },
        Subcommand::Token { file } => Command::Token { file },
        Subcommand::Schema => Command::Schema,
        Subcommand::Completions(of) => Command::Completions(of.shell),
        Subcommand::Man { folder } => Command::Manual(folder),
        Subcommand::CompileModule { size, cpu, profile, inspect } => {
            Command::CompileModule(Assignment { size, cpu, profile, inspect })
        }
        Subcommand::MakeRunners { parent } => Command::MakeRunners { parent },
        Subcommand::CarryLinks { parent, folder } => Command::CarryLinks { parent, folder },
        Subcommand::New { name, lang } => {
            let name = config::election(&name).map_err(|problem| ConfigError::of_argument("NAME", problem))?;
            Command::New { name, lang }
        }
    })
}

/// Joins a switch and its value, so that `--preempt false` means `--preempt=false`. Clap takes a value of a switch only after
/// `=`, since else `--preempt MODULE` would take the module.
fn with_joined_switches(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let is_value = |argument: &OsString| argument.to_str().is_some_and(|text| config::switch(text).is_ok());
    if !arguments.iter().any(is_value) {
        return arguments;
    }
    let definition = Arguments::command();
    let switches: BTreeSet<String> = definition
        .get_subcommands()
        .flat_map(clap::Command::get_arguments)
        .filter(|argument| argument.is_require_equals_set())
        .filter_map(|argument| Some(format!("--{}", argument.get_long()?)))
        .collect();
    let mut joined: Vec<OsString> = Vec::new();
    for argument in arguments {
        let is_value = is_value(&argument);
        match joined.last_mut().filter(|last| is_value && last.to_str().is_some_and(|last| switches.contains(last))) {
            Some(switch) => {
                switch.push("=");
                switch.push(argument);
            }
            None => joined.push(argument),
        }
    }
    joined
}

/// Other names of commands: those that they had before 0.1.0, and those that people know from other tools.
const COMMANDS_BY_OTHER_NAMES: [(&str, &str); 9] = [
    ("start", "rerun"),
    ("break", "break-lease"),
    ("ls", "status"),
    ("list", "status"),
    ("ps", "nodes"),
    ("publish", "push"),
    ("deploy", "push"),
    ("versions", "modules"),
    ("init", "new"),
];

/// Adds the name that a flag or command has today to the error that there is none of the given name.
fn with_todays_name(mut error: clap::Error) -> clap::Error {
    let given = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let tip = match error.kind() {
        ErrorKind::UnknownArgument => given(ContextKind::InvalidArg).and_then(|flag| {
            if flag == "--json" {
                return Some("use `-o json`".to_owned());
            }
            let key = renamed(flag.strip_prefix("--")?)?;
            Some(format!("`{flag}` is `{}` now", key.flag()))
        }),
        ErrorKind::InvalidSubcommand => given(ContextKind::InvalidSubcommand).and_then(|name| {
            let (_, command) = COMMANDS_BY_OTHER_NAMES.iter().find(|(other, _)| *other == name)?;
            Some(format!("use `baton {command}`"))
        }),
        _ => None,
    };
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn election_argument(text: &str) -> Result<ElectionName, ConfigError> {
    config::election(text).map_err(|problem| ConfigError::of_argument("ELECTION", problem))
}

/// The file of a module. What is at an address only a host fetches, which trusts none of it.
fn module_argument(module: PathBuf) -> Result<PathBuf, ConfigError> {
    match module.to_str().filter(|text| !is_path(text)) {
        Some(address) => {
            let problem = format!("`{}` is not a file: name the component's file", without_user(address));
            Err(ConfigError::of_argument("MODULE", problem))
        }
        None => Ok(module),
    }
}

fn digest_argument(text: &str) -> Result<DigestPrefix, ConfigError> {
    text.parse().map_err(|error: InvalidPrefix| ConfigError::of_argument("DIGEST", error.to_string()))
}

impl args::Run {
    fn layer(self) -> Result<Layer, ConfigError> {
        let layer = Layer::new()
            .flag(Key::Module, self.module)
            .flag(Key::Election, self.election)
            .flag(Key::Store, self.store.store)
            .flag(Key::Config, self.store.config)
            .flag(Key::Create, self.create)
            .flag(Key::AllowWeakerIsolation, self.allow_weaker_isolation)
            .flag(Key::Node, self.node)
            .flag(Key::LogFormat, self.log_format)
            .flag(Key::Admin, self.admin)
            .flag(Key::AdminTokenFile, self.admin_token_file)
            .flag(Key::AdminTlsCert, self.admin_tls_cert)
            .flag(Key::AdminTlsKey, self.admin_tls_key)
            .flag(Key::AdminAdvertise, self.admin_advertise)
            .flag(Key::ScheduledEvents, self.scheduled_events)
            .flag(Key::Reclaim, self.reclaim)
            .flag(Key::Links, self.links)
            .flag(Key::Peer, self.peer)
            .flag(Key::PeerAdvertise, self.peer_advertise)
            .flag(Key::MaxLeaderships, self.max_leaderships)
            .flag_pairs(Key::Label, &self.label)?;
        self.settings.add_to(layer)
    }
}

impl args::Dev {
    fn layer(self) -> Result<Layer, ConfigError> {
        let layer = Layer::new()
            .flag(Key::Election, self.election)
            .flag(Key::Config, self.config)
            .flag(Key::LogFormat, self.log_format);
        self.settings.add_to(layer)
    }
}

impl args::Settings {
    fn add_to(self, layer: Layer) -> Result<Layer, ConfigError> {
        layer
            .flag(Key::Priority, self.priority)
            .flag(Key::Preempt, self.preempt)
            .flag(Key::Lease, self.lease)
            .flag(Key::Grace, self.grace)
            .flag(Key::RestartDelay, self.restart_delay)
            .flag(Key::Restart, self.restart)
            .flag(Key::StallAfter, self.stall_after)
            .flag(Key::Probation, self.probation)
            .flag(Key::Coredump, self.coredump)
            .flag(Key::Profile, self.profile)
            .flags(Key::AllowHttp, &self.allow_http)
            .flag(Key::HttpCa, self.http_ca)
            .flag(Key::MaxRequests, self.max_requests)
            .flag(Key::MaxMemory, self.max_memory)
            .flag(Key::MaxTableElements, self.max_table_elements)
            .flag(Key::MaxInstances, self.max_instances)
            .flag(Key::MaxHandles, self.max_handles)
            .flag(Key::MaxFiles, self.max_files)
            .flag(Key::MaxOutput, self.max_output)
            .flag(Key::MaxState, self.max_state)
            .flag(Key::MaxStateValue, self.max_state_value)
            .flags(Key::Pin, &self.pin)
            .flags(Key::Trust, &self.trust)
            .flag(Key::CompileTimeout, self.compile_timeout)
            .flag(Key::Cache, self.cache)
            .flag_arguments(&self.arg)
            .flag_pairs(Key::Env, &self.env)?
            .flag_pairs(Key::ConfigVar, &self.config_var)?
            .flag_pairs(Key::Secret, &self.secret)?
            .flag_pairs(Key::Dir, &self.dir)
    }
}

impl args::Told {
    fn of(self, is_output: bool, election: Option<ElectionName>, around: &Environment) -> Result<Told, ConfigError> {
        let Self { store, follow, tail, level, token_file, ca, output } = self;
        let flags = store.layer().flag(Key::AdminTokenFile, token_file);
        let (store, token_file) = config::resolve_store_and_token(&flags, around)?;
        Ok(Told { is_output, election, store, follow, tail, level, token_file, ca, json: output.is_json() })
    }
}

impl args::StateCommand {
    fn action(self) -> (args::StateOf, StateAction) {
        match self {
            Self::List { of, prefix, output } => (of, StateAction::List { prefix, json: output.is_json() }),
            Self::Get { of, key } => (of, StateAction::Get { key }),
            Self::Put { of, key, value, force } => (of, StateAction::Put { key, value, force: force.force }),
            Self::Delete { of, keys, force } => (of, StateAction::Delete { keys, force: force.force }),
            Self::Export { of } => (of, StateAction::Export),
            Self::Import { of, from, force } => (of, StateAction::Import { from, force: force.force }),
        }
    }
}

impl args::Store {
    fn layer(self) -> Layer {
        Layer::new().flag(Key::Store, self.store).flag(Key::Config, self.config)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Command, Stop> {
        let arguments = ["baton"].iter().chain(arguments).map(OsString::from);
        parse(arguments, &Environment::made_up(&[], std::path::Path::new("/")))
    }

    #[test]
    fn other_names_lead_to_todays() {
        for (arguments, name) in [
            (&["start", "job"][..], "baton rerun"),
            (&["break", "job"], "baton break-lease"),
            (&["ls"], "baton status"),
            (&["deploy", "x.wasm"], "baton push"),
            (&["run", "x.wasm", "--file", "x.toml"], "--config"),
            (&["run", "x.wasm", "--on-done=finish"], "--restart"),
        ] {
            let Err(Stop::Usage(error)) = parsed(arguments) else { panic!("{arguments:?} are taken") };
            let Some(ContextValue::StyledStrs(tips)) = error.get(ContextKind::Suggested) else { panic!("{error}") };
            assert!(tips.iter().any(|tip| tip.to_string().contains(&format!("`{name}`"))), "{error}");
        }
    }

    #[test]
    fn short_flags_mean_the_same_in_all_commands() {
        let arguments = Arguments::command();
        let flags = arguments.get_subcommands().flat_map(clap::Command::get_arguments);
        let short: BTreeSet<_> = flags.filter_map(|flag| Some((flag.get_short()?, flag.get_long()?))).collect();
        let documented = [
            ('c', "config"),
            ('e', "env"),
            ('f', "follow"),
            ('n', "limit"),
            ('n', "tail"),
            ('o', "output"),
            ('s', "store"),
            ('w', "watch"),
        ];
        assert_eq!(short, BTreeSet::from(documented));
    }

    #[test]
    fn switches_take_their_values_with_and_without_an_equals_sign() {
        let joined = |arguments: &[&str]| {
            let joined = with_joined_switches(arguments.iter().map(OsString::from));
            joined.into_iter().map(|argument| argument.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(joined(&["baton", "run", "--reclaim", "false", "x.wasm"]), "baton run --reclaim=false x.wasm");
        assert_eq!(
            joined(&["baton", "push", "x.wasm", "job", "--create", "yes"]),
            "baton push x.wasm job --create=yes"
        );
        // The module stays an argument of its own, and so does the value of another flag.
        assert_eq!(joined(&["baton", "run", "--preempt", "x.wasm"]), "baton run --preempt x.wasm");
        assert_eq!(joined(&["baton", "run", "--node", "on", "x.wasm"]), "baton run --node on x.wasm");
    }
}
