//! The command line as clap reads it. Values of settings stay text: `config` parses the values from all sources.

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
/// Every node runs the same host. The hosts use a lease in a shared store to elect a leader. The leader runs the
/// coordinator, a WebAssembly component. If the lease is lost or at risk, the host stops the coordinator.
#[derive(Parser, Debug)]
#[command(
    name = "baton",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  baton new heartbeat                  create a coordinator project
  baton dev                            build it, run it, and swap in each new build
  baton run coordinator.wasm           contend for leadership, and run it while leading
  baton status                         show the leader

For details about a command, run `baton COMMAND --help`."
)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub command: Subcommand,
}

/// The format of a command's output.
#[derive(Args, Debug)]
pub(super) struct Output {
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", value_enum, default_value_t = OutputFormat::Text)]
    format: OutputFormat,
}

impl Output {
    pub fn is_json(&self) -> bool {
        self.format == OutputFormat::Json
    }
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum OutputFormat {
    /// Human-readable tables and sentences
    Text,
    /// A single JSON document or, for `events` and `logs`, one JSON object per line
    Json,
}

#[derive(clap::Subcommand, Debug)]
pub(super) enum Subcommand {
    Run(Box<Run>),
    Dev(Box<Dev>),
    /// Create a new coordinator project
    ///
    /// Prints the commands that test, build and run the project.
    #[command(after_help = "\
Example:
  baton new nightly-report --lang python")]
    New {
        /// Name for the folder and the election: 1 to 63 characters (a-z, 0-9, hyphen), starting with a letter
        name: String,
        /// Programming language of the project
        #[arg(long, value_enum, default_value_t = Lang::Rust)]
        lang: Lang,
    },
    /// Check whether a component would run here and, if not, show why
    ///
    /// Compiles the component as a node does: in a separate process, with limits on memory and time. Exits with 0 if
    /// the component would run, or with 1 if not. With a schedule, also shows the next five runs.
    #[command(after_help = "\
Example:
  baton check coordinator.wasm
  baton check report.wasm --schedule \"0 2 * * *\" --time-zone Europe/Berlin")]
    Check {
        /// Component file
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
    /// Works on any machine that can reach the store. On the leader's machine, the command also shows the resources
    /// that the instance uses. The command exits with 3 if the named election has no leader or, if you name no
    /// election, if any election has no leader.
    #[command(after_help = "\
Example:
  baton status nightly-report --store azure://myaccount/leases -o json")]
    Status {
        /// Election to show [default: all]
        election: Option<String>,
        #[command(flatten)]
        store: Store,
        #[command(flatten)]
        output: Output,
        /// Refresh the output at this interval until you press Ctrl-C [default: 2]
        #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
        watch: Option<String>,
    },
    /// List the nodes of an election
    ///
    /// For each node, shows its role, its version of Baton, whether its module is ready, and which module it runs. If a
    /// node is ineligible, the command also shows why.
    #[command(after_help = "\
Example:
  baton nodes nightly-report")]
    Nodes {
        /// Name of the election
        election: String,
        #[command(flatten)]
        store: Store,
        #[command(flatten)]
        output: Output,
    },
    /// List an election's most recent terms, newest first
    ///
    /// For each term, shows which node led, when the term began and ended, and why it ended. Nodes report the start and
    /// the end of a term with a delay of a few seconds. All times come from the nodes' clocks.
    #[command(after_help = "\
Example:
  baton history nightly-report -n 100 --store azure://myaccount/leases")]
    History {
        /// Name of the election
        election: String,
        /// Maximum number of terms to print; the store keeps the last 1000
        #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20)]
        limit: usize,
        #[command(flatten)]
        store: Store,
        #[command(flatten)]
        output: Output,
    },
    /// Show events from the leader's host
    ///
    /// If the leader's host runs on this machine as your user, the command reads the events through a local socket.
    /// Otherwise, the command uses the admin endpoint that the host announces in the store. With --follow, the command
    /// switches to the new leader's host when leadership moves.
    ///
    /// To read the messages of a coordinator that runs on another machine or as another user, you need the admin token.
    #[command(after_help = "\
Example:
  baton events nightly-report -f --store azure://myaccount/leases")]
    Events {
        /// Election to show [default: all]
        election: Option<String>,
        #[command(flatten)]
        told: StreamArgs,
    },
    /// Show what the coordinator prints and logs
    ///
    /// Gets the lines from the leader's host, as `baton events` does. If the host runs on another machine or as another
    /// user, you need the admin token.
    #[command(after_help = "\
Example:
  baton logs nightly-report -f --level warn --token-file /etc/baton/token")]
    Logs {
        /// Name of the election
        election: String,
        #[command(flatten)]
        told: StreamArgs,
    },
    /// Publish a module as the current version of an election
    ///
    /// First checks the module as `baton check` does. If the module would not run, the command stores nothing and exits
    /// with 1. Otherwise, the command stores the module under its digest, with its minisign signature if there is one,
    /// and atomically makes the module the current version. Nodes that run store://ELECTION notice the new version
    /// within 5 s and swap it in.
    #[command(after_help = "\
Example:
  baton push report.wasm nightly-report --store azure://myaccount/leases")]
    Push {
        /// Component file
        #[arg(value_hint = clap::ValueHint::FilePath)]
        module: PathBuf,
        /// Name of the election
        election: String,
        #[command(flatten)]
        flags: Flags<PushFlags>,
        /// File with the module's minisign signature [default: MODULE.minisig, if it exists]
        #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        signature: Option<PathBuf>,
    },
    /// List the versions of an election's module, newest first
    ///
    /// For each version, shows whether it is current, who pushed it, whether it was accepted or rejected, and which
    /// nodes run it or have it ready.
    #[command(after_help = "\
Example:
  baton modules nightly-report --store azure://myaccount/leases -o json")]
    Modules {
        /// Name of the election
        election: String,
        #[command(flatten)]
        store: Store,
        #[command(flatten)]
        output: Output,
    },
    /// Make an earlier version of an election's module the current one
    ///
    /// If you name a rejected version, the nodes try it again.
    #[command(after_help = "\
Examples:
  baton rollback nightly-report
  baton rollback nightly-report sha256:91f3a0c2")]
    Rollback {
        /// Name of the election
        election: String,
        /// Digest of the version; the first 8 digits are enough [default: the newest version that is neither current
        /// nor rejected]
        digest: Option<String>,
        #[command(flatten)]
        store: Store,
    },
    /// Remove old versions, and modules that no version uses
    ///
    /// Always keeps the current version and every version that a node runs. While the current version is on probation,
    /// the command also keeps the version that a rollback would restore. Every module stays for at least an hour after
    /// it was stored, because a push may still be in progress.
    #[command(after_help = "\
Example:
  baton prune --keep 3 --dry-run")]
    Prune {
        /// Elections to prune [default: all]
        #[arg(value_name = "ELECTION")]
        elections: Vec<String>,
        /// Number of recent versions to keep for each election
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
    /// Values are bytes: `get` prints a value unchanged, and `put` can read a value from standard input. To change the
    /// state while a coordinator is running, use --force.
    #[command(subcommand)]
    State(StateCommand),
    #[command(flatten)]
    Steer(SteerCommand),
    /// Let a finished election run again
    ///
    /// With `--restart on-failure`, an election is finished once its coordinator is done. No node runs the coordinator
    /// again until you run this command or push a new version.
    #[command(after_help = "\
Example:
  baton rerun nightly-report --store azure://myaccount/leases")]
    Rerun {
        /// Name of the election
        election: String,
        #[command(flatten)]
        store: Store,
    },
    /// Create a token for the hosts' admin endpoints
    ///
    /// Writes the token to a new file that only this user can read, and prints the settings to add so that Baton uses
    /// it. Without FILE, the command prints the token instead.
    #[command(after_help = "\
Example:
  baton token /etc/baton/token")]
    Token {
        /// File to create
        #[arg(value_hint = clap::ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Print the JSON Schema for baton.toml, for completion and validation in editors
    ///
    /// Editors find the schema if the first line of baton.toml is `#:schema ./baton.schema.json`.
    #[command(after_help = "\
Example:
  baton schema > baton.schema.json")]
    Schema,
    Completions(Completions),
    /// Print the manual page, or write the manual pages of all commands to a folder
    #[command(after_help = "\
Examples:
  baton man | man -l -
  baton man ~/.local/share/man/man1")]
    Man {
        /// Folder for the pages baton.1, baton-run.1 and so on; created if it does not exist
        #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
        folder: Option<PathBuf>,
    },
    /// Compile the module on standard input (started by a host)
    #[command(name = baton_modules::COMPILE_MODULE, hide = true)]
    CompileModule {
        /// Size of the module in bytes
        #[arg(long)]
        size: u64,
        /// CPU time limit
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

/// The languages that `baton new` supports.
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
/// Each flag can also be set as an environment variable or as a key in baton.toml. For example, --stall-after is
/// BATON_STALL_AFTER in the environment and stall-after in the file. A flag takes precedence over the variable, and the
/// variable over the file.
///
/// If a setting has several values, separate them in the variable with line breaks (for --allow-http and --pin, with
/// spaces). In the file, write them as a list or a table.
///
/// Without MODULE, the host runs every coordinator defined by a [coordinators.NAME] table in the file. NAME is the name
/// of the coordinator's election. Each table must set `module`. A module's path is relative to the file. A table can
/// override the settings marked with a *.
#[derive(Args, Debug)]
#[command(after_help = "\
Write durations like 15s, 1m30s or 500ms, and sizes like 256MiB or 1GiB. `baton run --help` shows all settings.

Examples:
  baton run coordinator.wasm
  baton run store://nightly-report --store azure://myaccount/leases --lease 30s
  baton run --config /etc/baton.toml --print-config")]
pub(super) struct Run {
    #[command(flatten)]
    pub flags: Flags<AllFlags>,
    /// Print each setting and its source, without secrets, and exit
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
/// Builds the project in the folder, and rebuilds it whenever one of its files changes. Runs the result on this machine
/// only, with an in-memory store: the coordinator's state survives each swap, but is lost when this command ends. If a
/// build fails or a module does not run, the current version keeps running.
///
/// `baton dev` reads settings from the same sources as `baton run`. Paths are relative to the project's folder.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  baton dev --env LEVEL=debug
  baton dev --build 'make job.wasm' --module job.wasm
  baton dev --build off --module job.wasm    # something else builds it")]
pub(super) struct Dev {
    /// Project folder [default: the current folder]
    #[arg(value_hint = clap::ValueHint::DirPath)]
    pub path: Option<PathBuf>,
    /// Build command, or off to disable builds [default: detected from Cargo.toml, package.json or requirements.txt]
    #[arg(long, value_name = "COMMAND")]
    pub build: Option<String>,
    /// Module that the build writes [default: derived from Cargo.toml, or else `module` in baton.toml]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub module: Option<PathBuf>,
    #[command(flatten)]
    pub flags: Flags<DevFlags>,
}

/// A coordinator's settings, and the host's settings that matter during development.
#[derive(Debug)]
pub(super) struct DevFlags;

impl Selection for DevFlags {
    const RUNS: bool = true;

    fn takes(key: Key) -> bool {
        key != Key::Module && (key.is_per_coordinator() || [Key::Config, Key::Cache, Key::LogFormat].contains(&key))
    }

    fn shown_default(key: Key) -> Option<&'static str> {
        match key {
            Key::LogFormat => Some("text, important events only"),
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
    /// List each key with the size of its value
    List {
        #[command(flatten)]
        of: StateOf,
        /// List only keys with this prefix
        #[arg(default_value = "")]
        prefix: String,
        #[command(flatten)]
        output: Output,
    },
    /// Print a key's value, unchanged
    Get {
        #[command(flatten)]
        of: StateOf,
        /// Key to read
        key: String,
    },
    /// Set a key's value
    Put {
        #[command(flatten)]
        of: StateOf,
        /// Key to set: 1 to 512 bytes
        key: String,
        /// Value to store [default: read from standard input]
        value: Option<String>,
        #[command(flatten)]
        force: Force,
    },
    /// Remove one or more keys in a single commit
    Delete {
        #[command(flatten)]
        of: StateOf,
        /// Keys to remove
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
        #[command(flatten)]
        force: Force,
    },
    /// Print the whole state as a JSON object that `import` can read
    Export {
        #[command(flatten)]
        of: StateOf,
    },
    /// Replace the whole state with an exported state
    Import {
        #[command(flatten)]
        of: StateOf,
        /// File with the exported state [default: standard input]
        #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        from: Option<PathBuf>,
        #[command(flatten)]
        force: Force,
    },
}

/// The election whose state a command concerns.
#[derive(Args, Debug)]
pub(super) struct StateOf {
    /// Name of the election
    pub election: String,
    #[command(flatten)]
    pub store: Store,
}

/// The steering commands.
#[derive(clap::Subcommand, Debug)]
pub(super) enum SteerCommand {
    /// Make the leader release the lease, so that another node can take it
    ///
    /// The leader stops its instance gracefully and stays ineligible for a while. If no other node can lead, the
    /// election has no leader during that time. The command exits with 1 if the leader has not released the lease
    /// within --timeout.
    #[command(after_help = "\
Example:
  baton step-down nightly-report --for 10m --reason 'kernel update'")]
    StepDown {
        #[command(flatten)]
        of: SteeringOf,
        /// Time for which the node may not lead again, from 1s to 24h
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
  baton suspend nightly-report --reason 'moving the database'")]
    Suspend {
        #[command(flatten)]
        of: SteeringOf,
        #[command(flatten)]
        reason: Reason,
    },
    /// End a suspension
    ///
    /// Waits until a node leads, or until all nodes have noticed that the suspension is over. If the object in the
    /// store that holds the steering commands is damaged, the command replaces it.
    #[command(after_help = "\
Example:
  baton resume nightly-report")]
    Resume {
        #[command(flatten)]
        of: SteeringOf,
        /// Do not run the scheduled runs that became due during the suspension
        #[arg(long)]
        skip_missed: bool,
    },
    /// Set the time from which a schedule counts
    ///
    /// The next run is the first one that is due after this time. With a time in the past, runs after it count as
    /// missed, even if they are completed. A run that has begun and is not completed is not repeated.
    #[command(after_help = "\
Example:
  baton schedule nightly-report --from now")]
    Schedule {
        #[command(flatten)]
        of: SteeringOf,
        /// `now`, or a time such as 2026-11-29T02:00:00+01:00
        #[arg(long, value_name = "TIME")]
        from: String,
    },
    /// Make a specific node the leader
    ///
    /// All other nodes are ineligible until the chosen node leads or the request times out. If the chosen node does not
    /// take the lease in time, the command exits with 1, and the previous leader may lead again.
    #[command(after_help = "\
Example:
  baton transfer nightly-report --to web-3")]
    Transfer {
        #[command(flatten)]
        of: SteeringOf,
        /// ID of the next leader, as shown by `baton nodes`
        #[arg(long, value_name = "NODE")]
        to: String,
        #[command(flatten)]
        reason: Reason,
    },
    /// Run a coordinator with a schedule once more, now
    ///
    /// Waits until the run has begun. The run has a due time of its own, the time of this command, so that it happens
    /// once, even if the leader exits. The command refuses to start a run during another one.
    #[command(after_help = "\
Example:
  baton trigger nightly-report --reason 'the data was late'")]
    Trigger {
        #[command(flatten)]
        of: SteeringOf,
        #[command(flatten)]
        reason: Reason,
    },
    /// Break a lease held by a client other than Baton
    ///
    /// Also breaks an infinite lease. The command refuses to break a lease that a host holds, because the break would
    /// delay the takeover. After a break, nodes wait longer than the lease would take to expire.
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
    /// Name of the election
    pub election: String,
    #[command(flatten)]
    pub store: Store,
    /// Maximum time to wait for the command to take effect
    #[arg(long, value_name = "DURATION", default_value = "90s")]
    pub timeout: String,
}

#[derive(Args, Debug)]
pub(super) struct Reason {
    /// Reason to record in the log, show in `baton status` and pass to the coordinator
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

#[derive(Args, Debug)]
pub(super) struct Force {
    /// Change the state even while a coordinator is running; its term then ends at its next commit, and the next term
    /// sees the change
    #[arg(long)]
    pub force: bool,
}

/// Selects entries from a host's events or logs.
#[derive(Args, Debug)]
pub(super) struct StreamArgs {
    #[command(flatten)]
    pub store: Store,
    /// Keep printing new entries, even when the leader changes
    #[arg(short, long)]
    pub follow: bool,
    /// Number of past entries to print first
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 100)]
    pub tail: usize,
    /// Lowest level to show (trace, debug, info, warn, error, critical)
    #[arg(long, value_name = "LEVEL", default_value = "trace", value_parser = level)]
    pub level: LogLevel,
    /// File with the nodes' admin token [default: admin-token-file in baton.toml]
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::FilePath)]
    pub token_file: Option<String>,
    /// CA certificates (PEM) used to verify nodes [default: the system's]
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
        [Key::Config, Key::CompileTimeout, Key::Schedule, Key::TimeZone].contains(&key)
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
