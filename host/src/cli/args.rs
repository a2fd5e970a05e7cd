//! The command line as clap reads it. Values stay text: `config` parses the values of all sources.

use std::path::PathBuf;

use baton_runtime::LogLevel;
use clap::{Args, Parser, ValueEnum};
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;

use super::doctor::DoctorArguments;
use super::flags::{Flags, Selection};
use super::generate::Completions;
use crate::config::Key;

/// Runs the one job of a fleet that must run in exactly one place at a time
///
/// Every node runs the same host. The hosts elect a leader with a lease in a store. The leader runs the coordinator, a
/// WebAssembly component. When the lease is lost or at risk, the host stops and drops the coordinator.
#[derive(Parser, Debug)]
#[command(
    name = "baton",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  baton new heartbeat                  write a coordinator to start from
  baton dev                            build it, run it, and swap it for each new build
  baton run coordinator.wasm           run it on one of the hosts of this machine
  baton status                         show the leader

`baton COMMAND --help` has more about a command."
)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub command: Subcommand,
}

/// The format of a command's output.
#[derive(Args, Debug)]
pub(super) struct Output {
    /// Format of the output
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum, default_value_t = OutputFormat::Text)]
    format: OutputFormat,
}

impl Output {
    /// True if the command should print JSON.
    pub fn is_json(&self) -> bool {
        self.format == OutputFormat::Json
    }
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum OutputFormat {
    /// Tables and sentences
    Text,
    /// One JSON document; `events` and `logs` print one object per line
    Json,
}

#[derive(clap::Subcommand, Debug)]
pub(super) enum Subcommand {
    Run(Box<Run>),
    Dev(Box<Dev>),
    /// Write a new coordinator project
    ///
    /// Prints the commands that test, build and run the project.
    #[command(after_help = "\
Example:
  baton new nightly-report --lang python")]
    New {
        /// Name of the folder and the election: 1 to 63 characters (a-z, 0-9, hyphen), starting with a letter
        name: String,
        /// Language of the project
        #[arg(long, value_enum, default_value_t = Lang::Rust)]
        lang: Lang,
    },
    /// Report whether a component would run here, and if not, why
    ///
    /// Compiles it as a node does: in a process of its own, with bounded memory and time. Exits with 0 if it would run,
    /// else with 1.
    #[command(after_help = "\
Example:
  baton check coordinator.wasm")]
    Check {
        /// File of the component
        #[arg(value_hint = clap::ValueHint::FilePath)]
        module: PathBuf,
        #[command(flatten)]
        flags: Flags<CheckFlags>,
        #[command(flatten)]
        output: Output,
    },
    Doctor(Box<DoctorArguments>),
    /// Show the leader, the start of its term and its module
    ///
    /// Works on any machine that reaches the store. On the leader's machine it also shows the instance's usage. Exits
    /// with 3 if the named election has no leader or, without a name, if any election has none.
    #[command(after_help = "\
Example:
  baton status nightly-report --store azure://myaccount/leases -o json")]
    Status {
        /// Only this election [default: all]
        election: Option<String>,
        #[command(flatten)]
        store: Store,
        #[command(flatten)]
        output: Output,
        /// Refresh until Ctrl-C, at this interval [default: 2]
        #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
        watch: Option<String>,
    },
    /// List the nodes of an election
    ///
    /// Shows role, version, whether the module is ready, which module runs, and why a node is ineligible.
    #[command(after_help = "\
Example:
  baton nodes nightly-report")]
    Nodes {
        /// Election
        election: String,
        #[command(flatten)]
        store: Store,
        #[command(flatten)]
        output: Output,
    },
    /// List an election's last terms, the newest first
    ///
    /// Shows which node led, from when to when, and why the term ended. A node reports a term a few seconds after it
    /// begins and after it ends. The times are those of the nodes' clocks.
    #[command(after_help = "\
Example:
  baton history nightly-report -n 100 --store azure://myaccount/leases")]
    History {
        /// Election
        election: String,
        /// Maximum number of terms to print; the store keeps 1000
        #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20)]
        limit: usize,
        #[command(flatten)]
        store: Store,
        #[command(flatten)]
        output: Output,
    },
    /// Show the events of the leader's host
    ///
    /// Queries the leader's host: through a local socket if the host runs on this machine as your user, otherwise
    /// through the admin endpoint that the host announces in the store. With --follow, continues with the next leader
    /// when leadership moves. Reading the messages of a coordinator that runs
    /// on another machine or as another user requires the token.
    #[command(after_help = "\
Example:
  baton events nightly-report -f --store azure://myaccount/leases")]
    Events {
        /// Only this election [default: all]
        election: Option<String>,
        #[command(flatten)]
        told: StreamArgs,
    },
    /// Show what the coordinator prints and logs
    ///
    /// Queries the leader's host, as `baton events` does. Reading the logs of another machine or user requires the
    /// token.
    #[command(after_help = "\
Example:
  baton logs nightly-report -f --level warn --token-file /etc/baton/token")]
    Logs {
        /// Election
        election: String,
        #[command(flatten)]
        told: StreamArgs,
    },
    /// Publish a module as the current version of an election
    ///
    /// Checks the module as `baton check` does, stores it under its digest, together with its minisign signature if
    /// there is one, and makes it the current version in one step. The nodes that run store://ELECTION notice within 5
    /// s and swap. Exits with 1 if the module would not run; then nothing is stored.
    #[command(after_help = "\
Example:
  baton push report.wasm nightly-report --store azure://myaccount/leases")]
    Push {
        /// File of the component
        #[arg(value_hint = clap::ValueHint::FilePath)]
        module: PathBuf,
        /// Election
        election: String,
        #[command(flatten)]
        flags: Flags<PushFlags>,
        /// The module's minisign signature [default: MODULE.minisig, if it exists]
        #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        signature: Option<PathBuf>,
    },
    /// List the versions of an election's module, the newest first
    ///
    /// Shows for each version whether it is current, who pushed it, whether it was accepted or rejected, and which
    /// nodes run or hold it.
    #[command(after_help = "\
Example:
  baton modules nightly-report --store azure://myaccount/leases -o json")]
    Modules {
        /// Election
        election: String,
        #[command(flatten)]
        store: Store,
        #[command(flatten)]
        output: Output,
    },
    /// Make an earlier version of an election's module the current one
    ///
    /// A rejected version is tried again if you name it.
    #[command(after_help = "\
Examples:
  baton rollback nightly-report
  baton rollback nightly-report sha256:91f3a0c2")]
    Rollback {
        /// Election
        election: String,
        /// 8 or more digits of the version's digest [default: the newest version that is neither current nor rejected]
        digest: Option<String>,
        #[command(flatten)]
        store: Store,
    },
    /// Remove old versions, and modules that no version needs
    ///
    /// Keeps the current version, its fallback, and each version that a node runs. Keeps every module for an hour after
    /// it was stored, since a push may be in progress.
    #[command(after_help = "\
Example:
  baton prune --keep 3 --dry-run")]
    Prune {
        /// Only versions of these elections [default: all]
        #[arg(value_name = "ELECTION")]
        elections: Vec<String>,
        /// Number of newest versions to keep for each election
        #[arg(long, value_name = "NUMBER", default_value_t = 5)]
        keep: usize,
        /// Only print what would be removed
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        store: Store,
    },
    /// Show or change a coordinator's state
    ///
    /// Values are bytes: `get` prints them unchanged, and `put` also reads them from standard input. While a
    /// coordinator leads, changes need --force.
    #[command(subcommand)]
    State(StateCommand),
    #[command(flatten)]
    Steer(SteerCommand),
    /// Let a finished election run again
    ///
    /// With `--restart on-failure`, an election is finished once its module is done. No node runs the module again
    /// until you run this command or push a new version.
    #[command(after_help = "\
Example:
  baton rerun nightly-report --store azure://myaccount/leases")]
    Rerun {
        /// Election
        election: String,
        #[command(flatten)]
        store: Store,
    },
    /// Make a token for the hosts' admin endpoints
    ///
    /// Writes it to a new file that only this user can read, and prints the settings that use the file.
    /// Without FILE, prints a token.
    #[command(after_help = "\
Example:
  baton token /etc/baton/token")]
    Token {
        /// File to create
        #[arg(value_hint = clap::ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Print the JSON Schema of baton.toml, for completion and checks in editors
    ///
    /// Editors find the schema if the first line of baton.toml is `#:schema ./baton.schema.json`.
    #[command(after_help = "\
Example:
  baton schema > baton.schema.json")]
    Schema,
    Completions(Completions),
    /// Print the manual page, or write those of all commands into a folder
    #[command(after_help = "\
Examples:
  baton man | man -l -
  baton man ~/.local/share/man/man1")]
    Man {
        /// Folder to create for the pages baton.1, baton-run.1 and so on
        #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
        folder: Option<PathBuf>,
    },
    /// Compile the module on standard input (started by a host)
    #[command(name = baton_modules::COMPILE_MODULE, hide = true)]
    CompileModule {
        /// Size of the module in bytes
        #[arg(long)]
        size: u64,
        /// CPU time that it may take
        #[arg(long, value_parser = humantime::parse_duration)]
        cpu: std::time::Duration,
        /// Describe the module under this name instead of writing code
        #[arg(long)]
        inspect: Option<String>,
    },
    /// Fork the runners of a version (started by a host)
    #[command(name = baton_runtime::MAKE_RUNNERS, hide = true)]
    MakeRunners {
        /// Process id of the host
        #[arg(long)]
        parent: u32,
    },
}

/// The languages that `baton new` knows.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lang {
    /// Rust, with baton-sdk
    Rust,
    /// JavaScript, with componentize-js
    Js,
    /// Python, with componentize-py
    Python,
}

/// Contend for leadership, and run the coordinator while leading
///
/// Each flag is also a variable and a key in baton.toml: --stall-after, BATON_STALL_AFTER, stall-after. The flag wins
/// over the variable, and the variable over the file. In a variable, separate repeated values with line breaks
/// (--allow-http and --pin: with spaces). In the file, use lists and tables. Without MODULE, the host runs every
/// coordinator that a table [coordinators.NAME] in the file defines. NAME is the name of its election. A table needs a
/// `module`, whose path is relative to the file, and may override the settings marked with a *.
#[derive(Args, Debug)]
#[command(after_help = "\
Durations are written like 15s, 1m30s or 500ms, sizes like 256MiB or 1GiB. `--help` shows all settings.

Examples:
  baton run coordinator.wasm
  baton run store://nightly-report --store azure://myaccount/leases --lease 30s
  baton run --config /etc/baton.toml --print-config")]
pub(super) struct Run {
    #[command(flatten)]
    pub flags: Flags<AllFlags>,
    /// Print each setting and its origin, with secrets hidden, and exit
    #[arg(long)]
    pub print_config: bool,
}

#[derive(Debug)]
pub(super) struct AllFlags;

impl Selection for AllFlags {
    const RUNS: bool = true;

    fn takes(_: Key) -> bool {
        true
    }
}

/// Build and run a coordinator, and swap in each new build
///
/// Builds the project in the folder, and again whenever one of its files changes. Runs the result on this machine
/// alone, with a store in memory: state outlives each swap, but not this command. If a build or a module fails, the
/// running version stays. `baton dev` takes the settings of `baton run` from the same sources. Paths are relative to
/// the project's folder.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  baton dev --env LEVEL=debug
  baton dev --build 'make job.wasm' --module job.wasm
  baton dev --build off --module job.wasm    # something else builds it")]
pub(super) struct Dev {
    /// Folder of the project [default: the current folder]
    #[arg(value_hint = clap::ValueHint::DirPath)]
    pub path: Option<PathBuf>,
    /// Command that builds the project, or off [default: chosen from Cargo.toml, package.json or requirements.txt]
    #[arg(long, value_name = "COMMAND")]
    pub build: Option<String>,
    /// Output of the build [default: from Cargo.toml, else `module` in baton.toml]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub module: Option<PathBuf>,
    #[command(flatten)]
    pub flags: Flags<DevFlags>,
}

/// The settings of a coordinator, and those of the host that matter while it is developed.
#[derive(Debug)]
pub(super) struct DevFlags;

impl Selection for DevFlags {
    const RUNS: bool = true;

    fn takes(key: Key) -> bool {
        key != Key::Module && (key.is_per_coordinator() || [Key::Config, Key::Cache, Key::LogFormat].contains(&key))
    }

    fn shown_default(key: Key) -> Option<&'static str> {
        match key {
            Key::LogFormat => Some("text, only important events"),
            key => AllFlags::shown_default(key),
        }
    }
}

/// Show or change a coordinator's state.
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  baton state list scheduler
  baton state get scheduler partitions/7
  baton state export scheduler >scheduler.json")]
pub(super) enum StateCommand {
    /// List the keys and the sizes of their values
    List {
        #[command(flatten)]
        of: StateOf,
        /// Only keys with this prefix
        #[arg(default_value = "")]
        prefix: String,
        #[command(flatten)]
        output: Output,
    },
    /// Print the value of a key, unchanged
    Get {
        #[command(flatten)]
        of: StateOf,
        /// Key
        key: String,
    },
    /// Set the value of a key
    Put {
        #[command(flatten)]
        of: StateOf,
        /// Key: 1 to 512 bytes
        key: String,
        /// Value [default: standard input]
        value: Option<String>,
        #[command(flatten)]
        force: Force,
    },
    /// Remove keys in one commit
    Delete {
        #[command(flatten)]
        of: StateOf,
        /// Keys
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
        #[command(flatten)]
        force: Force,
    },
    /// Print the whole state as a JSON object for `import`
    Export {
        #[command(flatten)]
        of: StateOf,
    },
    /// Replace the whole state with an exported one
    Import {
        #[command(flatten)]
        of: StateOf,
        /// File [default: standard input]
        #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        from: Option<PathBuf>,
        #[command(flatten)]
        force: Force,
    },
}

/// The election whose state a command concerns.
#[derive(Args, Debug)]
pub(super) struct StateOf {
    /// Election
    pub election: String,
    #[command(flatten)]
    pub store: Store,
}

/// The steering commands.
#[derive(clap::Subcommand, Debug)]
pub(super) enum SteerCommand {
    /// Make the leader release the lease, so that another node takes it
    ///
    /// The leader stops its instance gracefully, and is ineligible for a while. If there is no other node, no node
    /// leads meanwhile. Exits with 1 if the leader has not released the lease within --timeout.
    #[command(after_help = "\
Example:
  baton step-down nightly-report --for 10m --reason 'kernel update'")]
    StepDown {
        #[command(flatten)]
        of: SteeringOf,
        /// Time for which that node stays ineligible, from 1s to 24h
        #[arg(long = "for", value_name = "DURATION", default_value = "60s")]
        period: String,
        #[command(flatten)]
        reason: Reason,
    },
    /// Make all nodes ineligible until `baton resume`
    ///
    /// Exits with 1 if a node still leads after --timeout.
    #[command(after_help = "\
Example:
  baton suspend nightly-report --reason 'the database is moved'")]
    Suspend {
        #[command(flatten)]
        of: SteeringOf,
        #[command(flatten)]
        reason: Reason,
    },
    /// End a suspension
    ///
    /// Returns when a node leads, or when all nodes have read that the suspension has ended. Replaces a damaged
    /// steering object.
    #[command(after_help = "\
Example:
  baton resume nightly-report")]
    Resume {
        #[command(flatten)]
        of: SteeringOf,
    },
    /// Make a named node the leader
    ///
    /// All other nodes are ineligible until the named node leads or the request times out. If it does not take the
    /// lease in time, the previous leader may continue, and the command exits with 1.
    #[command(after_help = "\
Example:
  baton transfer nightly-report --to web-3")]
    Transfer {
        #[command(flatten)]
        of: SteeringOf,
        /// Node, as `baton nodes` lists it
        #[arg(long, value_name = "NODE")]
        to: String,
        #[command(flatten)]
        reason: Reason,
    },
    /// Break a lease held by a client other than Baton
    ///
    /// Also breaks an infinite lease. Never breaks the lease of a host, since nodes would then wait longer.
    #[command(after_help = "\
Example:
  baton break-lease nightly-report --store azure://myaccount/leases")]
    BreakLease {
        #[command(flatten)]
        of: SteeringOf,
    },
}

/// The election that a steering command concerns.
#[derive(Args, Debug)]
pub(super) struct SteeringOf {
    /// Election
    pub election: String,
    #[command(flatten)]
    pub store: Store,
    /// Maximum time to wait for the command to take effect
    #[arg(long, value_name = "DURATION", default_value = "90s")]
    pub timeout: String,
}

#[derive(Args, Debug)]
pub(super) struct Reason {
    /// Reason to show in the log, in `baton status` and to the coordinator
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

#[derive(Args, Debug)]
pub(super) struct Force {
    /// Change the state even while a coordinator leads: its term ends at its next commit, and the next term sees the
    /// change
    #[arg(long)]
    pub force: bool,
}

/// Selects entries of a host's streams.
#[derive(Args, Debug)]
pub(super) struct StreamArgs {
    #[command(flatten)]
    pub store: Store,
    /// Continue with new entries, whichever node leads
    #[arg(short, long)]
    pub follow: bool,
    /// Number of past entries to print first
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 100)]
    pub tail: usize,
    /// Lowest level: trace, debug, info, warn, error, critical
    #[arg(long, value_name = "LEVEL", default_value = "trace", value_parser = level)]
    pub level: LogLevel,
    /// File with the nodes' admin token [default: admin-token-file in baton.toml]
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub token_file: Option<String>,
    /// CA certificates (PEM) used to verify nodes [default: those of the system]
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub ca: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

fn level(text: &str) -> Result<LogLevel, String> {
    let level = LogLevel::deserialize(text.into_deserializer());
    level.map_err(|_: serde::de::value::Error| "expected trace, debug, info, warn, error or critical".to_owned())
}

/// The flags `--store` and `--config`, for commands that only need the store.
pub(super) type Store = Flags<StoreFlags>;

#[derive(Debug)]
pub(super) struct StoreFlags;

impl Selection for StoreFlags {
    fn takes(key: Key) -> bool {
        [Key::Store, Key::Config].contains(&key)
    }
}

#[derive(Debug)]
pub(super) struct PushFlags;

impl Selection for PushFlags {
    fn takes(key: Key) -> bool {
        StoreFlags::takes(key) || [Key::Create, Key::CompileTimeout].contains(&key)
    }
}

#[derive(Debug)]
pub(super) struct CheckFlags;

impl Selection for CheckFlags {
    fn takes(key: Key) -> bool {
        [Key::Config, Key::CompileTimeout].contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn definition_passes_the_checks_of_clap() {
        super::Arguments::command().debug_assert();
    }
}
