//! The command line: parses arguments into a [`Command`] with checked settings, and prints results. Results go to
//! stdout, everything else to stderr.

mod args;
mod check;
mod doctor;
mod entries;
mod flags;
mod generate;
mod history;
mod modules;
mod nodes;
mod print;
mod progress;
mod status;
mod steering;
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
pub use entries::print_entry;
pub use generate::{complete, completions, manual, schema, write_manuals};
pub use history::print_history;
pub use modules::print_modules;
pub use nodes::{NodeStatusRow, print_nodes};
pub use print::{columns, print, print_bytes, print_error, print_json, print_on, print_value, say};
pub use progress::Progress;
pub use status::{LeaseLabel, ScheduleRow, StatusRow, SuspendedRow, print_again, print_status};
pub use steering::Steer;
pub use tone::{Tone, print_styled, table};

use crate::config::{
    self, CheckSettings, Config, ConfigError, DoctorSettings, Environment, Key, Layer, removed, renamed,
};
use args::{Arguments, Subcommand};
use baton_base::address::without_user;
use baton_base::escape::{escape, escape_lines};
use baton_modules::{Assignment, is_path};
use baton_runtime::LogLevel;
use baton_store::StoreUrl;
use baton_store::{DigestPrefix, InvalidPrefix};

/// The exit status for invalid configuration or usage. The status for success is 0, and for any other failure 1.
pub const WRONG_CONFIGURATION: u8 = 2;

/// A parsed command line.
#[derive(Debug)]
pub enum Command {
    /// Contend for elections and run coordinators.
    Run(Box<Config>),
    /// Build a coordinator, run it, and swap in each new build.
    Dev(Box<Development>),
    /// Print the settings and their origins. Holds the formatted table.
    PrintConfig(String),
    /// Show the leaders.
    Status {
        /// The only election to show; `None` for all.
        election: Option<ElectionName>,
        /// The lease store.
        store: StoreUrl,
        /// Print JSON.
        json: bool,
        /// Refresh interval; `None` to print once.
        watch: Option<Duration>,
    },
    /// Show the last terms of an election.
    History {
        /// The election.
        election: ElectionName,
        /// The lease store.
        store: StoreUrl,
        /// Maximum number of terms.
        limit: usize,
        /// Print JSON.
        json: bool,
    },
    /// Print events or logs from the leader's host, and optionally follow new entries.
    Stream(StreamArgs),
    /// Report whether a component would run on this machine.
    Check {
        /// The component's file.
        module: PathBuf,
        /// The settings of the check.
        settings: CheckSettings,
        /// Print JSON.
        json: bool,
    },
    /// Check whether the store and the machine behave as Baton requires.
    Doctor(Box<Doctor>),
    /// Publish a module.
    Push(Push),
    /// List the versions of an election's module.
    Modules {
        /// The election.
        election: ElectionName,
        /// The lease store.
        store: StoreUrl,
        /// Print JSON.
        json: bool,
    },
    /// Make an earlier version the current one.
    Rollback {
        /// The election.
        election: ElectionName,
        /// The version; `None` for the newest version that is neither current nor rejected.
        digest: Option<DigestPrefix>,
        /// The lease store.
        store: StoreUrl,
    },
    /// Remove old versions and the modules that no version references.
    Prune {
        /// The elections whose old versions are removed; empty for all.
        elections: Vec<ElectionName>,
        /// Number of newest versions to keep per election.
        keep: usize,
        /// Only print what would be removed.
        dry_run: bool,
        /// The lease store.
        store: StoreUrl,
    },
    /// Show or change a coordinator's state.
    State {
        /// The coordinator's election.
        election: ElectionName,
        /// The lease store.
        store: StoreUrl,
        /// The action.
        action: StateAction,
    },
    /// Create a token.
    Token {
        /// The file to which to write the token; `None` to print it.
        file: Option<PathBuf>,
    },
    /// Let a finished election run again.
    Rerun {
        /// The election.
        election: ElectionName,
        /// The lease store.
        store: StoreUrl,
    },
    /// Send a steering command to an election's nodes.
    Steer(Steer),
    /// List the nodes of an election.
    Nodes {
        /// The election.
        election: ElectionName,
        /// The lease store.
        store: StoreUrl,
        /// Print JSON.
        json: bool,
    },
    /// Compile a module for the host that started this process.
    CompileModule(Assignment),
    /// Fork processes that run instances, for the host that started this process.
    MakeRunners {
        /// The host's process id.
        parent: u32,
    },
    /// Print the schema of `baton.toml`.
    Schema,
    /// Print the completion script for a shell.
    Completions(clap_complete::Shell),
    /// Print the manual page, or write all manual pages to a folder.
    Manual(Option<PathBuf>),
    /// Create a new coordinator project.
    New {
        /// Name of the folder and of the election.
        name: ElectionName,
        /// Language of the project.
        lang: Lang,
    },
}

/// The arguments of `baton doctor`.
#[derive(Debug)]
pub struct Doctor {
    /// The settings of the store and the machine.
    pub examined: DoctorSettings,
    /// Component file to check, if any.
    pub module: Option<PathBuf>,
    /// True to skip the checks that wait for a lease to expire.
    pub quick: bool,
    /// Print JSON.
    pub json: bool,
}

/// The arguments of `baton events` and `baton logs`.
#[derive(Debug)]
pub struct StreamArgs {
    /// True for the coordinator's output (`logs`), false for the host's events (`events`).
    pub is_output: bool,
    /// The only election to read; `None` for all.
    pub election: Option<ElectionName>,
    /// The lease store.
    pub store: StoreUrl,
    /// True to follow new entries.
    pub follow: bool,
    /// Number of past entries to print first.
    pub tail: usize,
    /// Lowest level to print.
    pub level: LogLevel,
    /// File with the nodes' admin token.
    pub token_file: Option<PathBuf>,
    /// CA certificates used to verify nodes; `None` for the system's.
    pub ca: Option<PathBuf>,
    /// True to print one JSON object per line.
    pub json: bool,
}

/// The arguments of `baton push`.
#[derive(Debug)]
pub struct Push {
    /// The component's file.
    pub module: PathBuf,
    /// Maximum CPU time for compiling the component.
    pub compile_timeout: Duration,
    /// The election.
    pub election: ElectionName,
    /// The lease store.
    pub store: StoreUrl,
    /// True to create the store's container if it is missing.
    pub create: bool,
    /// The signature file; `None` for the file next to the module, if there is one.
    pub signature: Option<PathBuf>,
    /// The user who pushes the module, as `USER@HOST`.
    pub by: String,
}

/// The arguments of `baton dev`. The command resolves the settings later, because some of them come from files in the
/// project's folder.
pub struct Development {
    /// The project's folder.
    pub folder: PathBuf,
    /// The build command, or `off`; `None` to detect it from the project's files.
    pub build: Option<String>,
    /// The file that the build writes, relative to the folder; `None` to determine it from the project's files or the
    /// settings.
    pub module: Option<PathBuf>,
    /// The settings on the command line.
    pub settings: Layer,
    /// The environment of this process, except that the working folder is the project's folder, so that relative paths
    /// start there.
    pub around: Environment,
}

impl fmt::Debug for Development {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, build, module, .. } = self;
        // Omit the other fields, which may contain secrets.
        let mut shown = f.debug_struct("Development");
        shown.field("folder", folder).field("build", build).field("module", module).finish_non_exhaustive()
    }
}

/// An action on a coordinator's state. If `force` is true, the command changes the state even while a node leads.
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
    /// Reads the value from standard input if `value` is `None`.
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
    /// Reads the state from standard input if `from` is `None`.
    Import {
        from: Option<PathBuf>,
        force: bool,
    },
}

/// The reason why the command line did not result in a [`Command`].
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The arguments are invalid, or ask for help or the version.
    #[error(transparent)]
    Usage(#[from] clap::Error),
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Stop {
    /// Prints the error, the help or the version, and returns the exit status.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        match self {
            // `--help` succeeds even if stdout is closed.
            Self::Usage(error) => {
                let _ = report_usage(error);
                u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
            }
            Self::Config(error) => {
                print_error(&format!("wrong configuration: {error}"));
                ExitCode::from(WRONG_CONFIGURATION)
            }
        }
    }
}

/// Prints an error from the parser. If the error quotes an argument that contains control characters, escapes the error
/// and drops its colors. Such an argument may be a file name that another user chose.
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
        harmful.iter().fold(error.render().ansi().to_string(), |rendered, text| rendered.replace(*text, &escape(text)));
    // The quoted arguments have been escaped, so all remaining escape sequences are the parser's own colors. Drop them.
    let mut parts = styled.split('\u{1b}');
    let first = parts.next().unwrap_or_default();
    let plain: String = parts.map(|part| part.split_once('m').map_or(part, |(_, text)| text)).collect();
    std::io::stderr().write_all(escape_lines(&format!("{first}{plain}")).as_bytes())
}

/// All commands with their arguments, for tests that compare them with the docs.
#[cfg(test)]
pub(crate) fn definition() -> clap::Command {
    <Arguments as clap::CommandFactory>::command()
}

/// Parses the command line. The first argument is the program's name.
///
/// # Errors
/// [`Stop`] if the arguments or the settings are invalid, or if the arguments ask for help or the version.
pub fn parse(arguments: impl IntoIterator<Item = OsString>, around: &Environment) -> Result<Command, Stop> {
    Ok(match Arguments::try_parse_from(with_joined_switches(arguments)).map_err(with_current_name)?.command {
        Subcommand::Run(run) => {
            let print_config = run.print_config;
            let config = config::resolve(&run.flags.layer()?, around)?;
            if print_config { Command::PrintConfig(config.table()) } else { Command::Run(Box::new(config)) }
        }
        Subcommand::Dev(dev) => Command::Dev(Box::new(development(&dev, around)?)),
        Subcommand::Status { election, store, output, watch } => Command::Status {
            election: election.as_deref().map(election_argument).transpose()?,
            store: config::resolve_store(&store.layer()?, around)?,
            json: output.is_json(),
            watch: watch.as_deref().map(status::seconds).transpose()?,
        },
        Subcommand::History { election, limit, store, output } => Command::History {
            election: election_argument(&election)?,
            store: config::resolve_store(&store.layer()?, around)?,
            limit,
            json: output.is_json(),
        },
        Subcommand::Events { election, told } => {
            Command::Stream(told.of(false, election.as_deref().map(election_argument).transpose()?, around)?)
        }
        Subcommand::Logs { election, told } => {
            Command::Stream(told.of(true, Some(election_argument(&election)?), around)?)
        }
        Subcommand::Check { module, flags, output } => Command::Check {
            module: module_argument(module)?,
            settings: config::resolve_check(&flags.layer()?, around)?,
            json: output.is_json(),
        },
        Subcommand::Doctor(doctor) => Command::Doctor(Box::new(doctor.command(around)?)),
        Subcommand::Push { module, election, flags, signature } => {
            Command::Push(push((module, &election), &flags.layer()?, signature, around)?)
        }
        Subcommand::Modules { election, store, output } => Command::Modules {
            election: group_argument(&election)?,
            store: config::resolve_store(&store.layer()?, around)?,
            json: output.is_json(),
        },
        Subcommand::Rollback { election, digest, store } => Command::Rollback {
            election: group_argument(&election)?,
            digest: digest.as_deref().map(digest_argument).transpose()?,
            store: config::resolve_store(&store.layer()?, around)?,
        },
        Subcommand::Prune { elections, keep, dry_run, store } => Command::Prune {
            elections: elections.iter().map(|election| group_argument(election)).collect::<Result<_, _>>()?,
            keep,
            dry_run,
            store: config::resolve_store(&store.layer()?, around)?,
        },
        Subcommand::State(state) => state_command(state, around)?,
        Subcommand::Rerun { election, store } => Command::Rerun {
            election: election_argument(&election)?,
            store: config::resolve_store(&store.layer()?, around)?,
        },
        Subcommand::Steer(asked) => steering::command(asked, around)?,
        Subcommand::Nodes { election, store, output } => Command::Nodes {
            election: election_argument(&election)?,
            store: config::resolve_store(&store.layer()?, around)?,
            json: output.is_json(),
        },
        Subcommand::Token { file } => Command::Token { file },
        Subcommand::Schema => Command::Schema,
        Subcommand::Completions(of) => Command::Completions(of.shell),
        Subcommand::Man { folder } => Command::Manual(folder),
        Subcommand::CompileModule { size, cpu, inspect } => Command::CompileModule(Assignment { size, cpu, inspect }),
        Subcommand::MakeRunners { parent } => Command::MakeRunners { parent },
        Subcommand::New { name, lang } => Command::New {
            name: config::election(&name).map_err(|problem| ConfigError::of_argument("NAME", problem))?,
            lang,
        },
    })
}

fn state_command(state: args::StateCommand, around: &Environment) -> Result<Command, ConfigError> {
    let (of, action) = state.action();
    let store = config::resolve_store(&of.store.layer()?, around)?;
    Ok(Command::State { election: election_argument(&of.election)?, store, action })
}

fn push(
    (module, election): (PathBuf, &str),
    flags: &Layer,
    signature: Option<PathBuf>,
    around: &Environment,
) -> Result<Push, ConfigError> {
    if election.ends_with(".wasm") {
        let problem = format!("`{election}` looks like a module: name the module first, then the election");
        return Err(ConfigError::of_argument("ELECTION", problem));
    }
    let (module, election) = (module_argument(module)?, group_argument(election)?);
    let (store, create) = config::resolve_store_to_fill(flags, around)?;
    let compile_timeout = config::resolve_compile_timeout(flags, around)?;
    Ok(Push { module, compile_timeout, election, store, create, signature, by: around.user_at_host() })
}

fn development(dev: &args::Dev, around: &Environment) -> Result<Development, ConfigError> {
    let (build, module) = (dev.build.clone(), dev.module.clone().map(module_argument).transpose()?);
    let folder = dev.path.clone().unwrap_or_else(|| PathBuf::from("."));
    let around = around.within(&folder);
    Ok(Development { folder, build, module, settings: dev.flags.layer()?, around })
}

/// Joins a switch and its value, so that `--preempt false` means `--preempt=false`. Clap is configured to accept the
/// value of a switch only after `=`, because it would otherwise take MODULE in `--preempt MODULE` for the value of the
/// switch.
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

/// Other names for commands, and their current names. The other names are from before 0.1.0 or from similar tools.
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

/// Adds the current name to an error about a flag or a command that Baton has under another name.
fn with_current_name(mut error: clap::Error) -> clap::Error {
    let given = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let tip = match error.kind() {
        ErrorKind::UnknownArgument => given(ContextKind::InvalidArg).and_then(|flag| {
            if flag == "--json" {
                return Some("use `-o json`".to_owned());
            }
            let name = flag.strip_prefix("--")?;
            if let Some(advice) = removed(name) {
                return Some(format!("remove `{flag}`, which no longer exists; {advice}"));
            }
            Some(format!("`{flag}` is now called `{}`", renamed(name)?.flag()))
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
    config::election_or_shard(text).map_err(|problem| ConfigError::of_argument("ELECTION", problem))
}

/// Parses the name of an election or a whole group, for commands about what the shards of a group share.
fn group_argument(text: &str) -> Result<ElectionName, ConfigError> {
    config::election(text).map_err(|problem| ConfigError::of_argument("ELECTION", problem))
}

/// Rejects URLs such as `oci://…`. Only hosts fetch modules; commands read them from files.
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

impl args::StreamArgs {
    fn of(
        self,
        is_output: bool,
        election: Option<ElectionName>,
        around: &Environment,
    ) -> Result<StreamArgs, ConfigError> {
        let Self { store, follow, tail, level, token_file, ca, output } = self;
        let flags = store.layer()?.flag(Key::AdminTokenFile, token_file);
        let (store, token_file) = config::resolve_store_and_token(&flags, around)?;
        Ok(StreamArgs { is_output, election, store, follow, tail, level, token_file, ca, json: output.is_json() })
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Command, Stop> {
        let arguments = ["baton"].iter().chain(arguments).map(OsString::from);
        parse(arguments, &Environment::artificial(&[], std::path::Path::new("/")))
    }

    #[test]
    fn unknown_name_error_suggests_the_current_name() {
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
    fn short_flag_means_the_same_in_all_commands() {
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
    fn switch_takes_its_value_with_or_without_equals_sign() {
        let joined = |arguments: &[&str]| {
            let joined = with_joined_switches(arguments.iter().map(OsString::from));
            joined.into_iter().map(|argument| argument.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(joined(&["baton", "run", "--reclaim", "false", "x.wasm"]), "baton run --reclaim=false x.wasm");
        assert_eq!(
            joined(&["baton", "push", "x.wasm", "job", "--create", "yes"]),
            "baton push x.wasm job --create=yes"
        );
        // A switch is not joined with a MODULE that follows it. A flag that is not a switch is not joined with its
        // value.
        assert_eq!(joined(&["baton", "run", "--preempt", "x.wasm"]), "baton run --preempt x.wasm");
        assert_eq!(joined(&["baton", "run", "--node", "on", "x.wasm"]), "baton run --node on x.wasm");
    }
}
