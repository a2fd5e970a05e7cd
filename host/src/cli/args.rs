//! The arguments as clap reads them. Values stay texts: `config` parses them, whatever they came from.

use std::path::PathBuf;

use baton_runtime::LogLevel;
use clap::{Args, Parser};
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;

use super::doctor::DoctorArguments;
use super::generate::Completions;

/// Runs the one job of a fleet that must run in exactly one place at a time.
///
/// Every node runs the same host. The hosts elect a leader with a lease in a store, and the leader runs
/// the coordinator, a WebAssembly component, which is stopped and dropped when the lease is lost.
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
  baton status                         who leads?

A command's own help has more: baton run --help"
)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub command: Subcommand,
}

#[derive(clap::Subcommand, Debug)]
pub(super) enum Subcommand {
    Run(Box<Run>),
    Dev(Box<Dev>),
    /// Show who leads, in which term, since when and with which module
    ///
    /// Works from any machine that reaches the store. On that of the instance it also shows what it uses of its
    /// limits.
    #[command(after_help = "\
Example:
  baton status heartbeat --store azure://myaccount/leases --json")]
    Status {
        /// Only this election [default: all]
        election: Option<String>,
        #[command(flatten)]
        store: Store,
        /// Print a JSON array of objects
        #[arg(long)]
        json: bool,
        /// Look again every so many seconds, until Ctrl-C [default: 2]
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
        watch: Option<String>,
    },
    /// Show an election's last terms, the newest first: which node led, from when to when, and why it ended
    ///
    /// Each node tells of its terms a few seconds after they began and ended. The times are those of the nodes' clocks.
    #[command(after_help = "\
Example:
  baton history nightly-report --limit 100 --store azure://myaccount/leases")]
    History {
        /// The election
        election: String,
        /// How many terms at the most; the store keeps 1000
        #[arg(long, value_name = "NUMBER", default_value_t = 20)]
        limit: usize,
        #[command(flatten)]
        store: Store,
        /// Print a JSON array of objects
        #[arg(long)]
        json: bool,
    },
    /// Show what the leader's host has said, and go on with what comes
    ///
    /// It is asked at its admin endpoint, where its announcement in the store says that this is. With --follow, the
    /// command goes on with the next leader's when leadership moves, and says so. What coordinators said of their ends
    /// is told with the token.
    #[command(after_help = "\
Example:
  baton events nightly-report --follow --store azure://myaccount/leases")]
    Events {
        /// Only of this election [default: all]
        election: Option<String>,
        #[command(flatten)]
        told: Told,
    },
    /// Show what the coordinator prints and logs, and go on with what comes
    ///
    /// The leader's host is asked at its admin endpoint, as for `baton events`. It tells those who have the token.
    #[command(after_help = "\
Example:
  baton logs nightly-report --follow --level warn --token-file /etc/baton/token")]
    Logs {
        /// The election
        election: String,
        #[command(flatten)]
        told: Told,
    },
    /// Say whether a component would run here, and if not, why
    ///
    /// It is compiled as on a node: in a process of its own, with bounded memory and time. Exits with 0 if it would run
    /// and with 1 if not.
    #[command(after_help = "\
Example:
  baton check coordinator.wasm")]
    Check {
        /// The component's file
        module: PathBuf,
        /// The processor time that compiling it may take [env: BATON_COMPILE_TIMEOUT] [default: 60s]
        #[arg(long, value_name = "DURATION")]
        compile_timeout: Option<String>,
        /// The configuration file [env: BATON_FILE] [default: baton.toml, if there is one]
        #[arg(long, value_name = "PATH")]
        file: Option<String>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    Doctor(Box<DoctorArguments>),
    /// Publish a module: make it the current version of an election
    ///
    /// It is checked as by `baton check`, kept in the store under its digest, and then named the current version in one
    /// step: the nodes that run store://ELECTION notice within 5 s and change over. A minisign signature goes along.
    /// Exits with 1 if the module would not run; then nothing is stored.
    #[command(after_help = "\
Example:
  baton push report.wasm nightly-report --store azure://myaccount/leases")]
    Push {
        /// The component's file
        module: PathBuf,
        /// The election
        election: String,
        #[command(flatten)]
        store: Store,
        /// Make the container of an Azure store if it is missing; a folder is always made [env: BATON_CREATE] [default: false]
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        create: Option<String>,
        /// The module's minisign signature [default: MODULE.minisig, if there is one]
        #[arg(long, value_name = "FILE")]
        signature: Option<PathBuf>,
        /// The processor time that compiling it may take, as on the nodes [env: BATON_COMPILE_TIMEOUT] [default: 60s]
        #[arg(long, value_name = "DURATION")]
        compile_timeout: Option<String>,
    },
    /// List the versions of an election's module, the newest first
    ///
    /// Which is current, who pushed them, what has become of them, and which nodes run or hold them.
    #[command(after_help = "\
Example:
  baton modules nightly-report --store azure://myaccount/leases --json")]
    Modules {
        /// The election
        election: String,
        #[command(flatten)]
        store: Store,
        /// Print a JSON array of objects
        #[arg(long)]
        json: bool,
    },
    /// Make an earlier version of an election's module the current one
    ///
    /// One that was rejected is tried again if it is named.
    #[command(after_help = "\
Examples:
  baton rollback nightly-report
  baton rollback nightly-report sha256:91f3a0c2")]
    Rollback {
        /// The election
        election: String,
        /// Which: 8 or more digits of its digest [default: the newest other that was not rejected]
        digest: Option<String>,
        #[command(flatten)]
        store: Store,
    },
    /// Remove old versions, and modules that no version of any election needs
    ///
    /// What is current, what it would fall back on and what a node runs stay. A module, with its bytes, stays
    /// for an hour after it was stored: somebody may be about to name it.
    #[command(after_help = "\
Example:
  baton prune --keep 3 --dry-run")]
    Prune {
        /// Only versions of these elections [default: all]
        #[arg(value_name = "ELECTION")]
        elections: Vec<String>,
        /// How many of the newest versions of each election to keep
        #[arg(long, value_name = "NUMBER", default_value_t = 5)]
        keep: usize,
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        store: Store,
    },
    /// Look at a coordinator's state, or change it
    ///
    /// Values are bytes: `get` prints them as they are, and `put` takes them from standard input, too. While a
    /// coordinator leads, a change is refused unless there is --force.
    #[command(subcommand)]
    State(StateCommand),
    /// Let a finished election run again
    ///
    /// With `--on-done finish` no node starts a module again that is done, until this is said.
    #[command(after_help = "\
Example:
  baton start nightly-report --store azure://myaccount/leases")]
    Start {
        /// The election
        election: String,
        #[command(flatten)]
        store: Store,
    },
    #[command(flatten)]
    Steer(SteerCommand),
    /// List the nodes of an election, as they have announced themselves
    ///
    /// With role, version, whether their module is ready, what they run, and why they stay out if they do.
    #[command(after_help = "\
Example:
  baton nodes nightly-report --json")]
    Nodes {
        /// The election
        election: String,
        #[command(flatten)]
        store: Store,
        /// Print a JSON array of objects
        #[arg(long)]
        json: bool,
    },
    Completions(Completions),
    /// Print the manual page; or write those of all commands into a folder
    #[command(after_help = "\
Examples:
  baton man | man -l -
  baton man ~/.local/share/man/man1")]
    Man {
        /// The folder, which is made: baton.1, baton-run.1 and so on
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
    /// Compile the module on standard input: what a host starts for it
    #[command(name = baton_modules::COMPILE_MODULE, hide = true)]
    CompileModule {
        /// The module's size in bytes
        #[arg(long)]
        size: u64,
        /// The processor time that it may take
        #[arg(long, value_parser = humantime::parse_duration)]
        cpu: std::time::Duration,
        /// Make code for a runner that is profiled
        #[arg(long)]
        profile: bool,
        /// Write no code, but what is known of the module under this name
        #[arg(long)]
        inspect: Option<String>,
    },
    /// Fork the processes that run instances of a version: what a host starts for each version
    #[command(name = baton_runtime::MAKE_RUNNERS, hide = true)]
    MakeRunners {
        /// The number of the host's process
        #[arg(long)]
        parent: u32,
    },
    /// Carry what a host and others tell each other: what a host starts once
    #[command(name = crate::links::CARRY_LINKS, hide = true)]
    CarryLinks {
        /// The number of the host's process
        #[arg(long)]
        parent: u32,
        /// The folder of the sockets, where there is one
        folder: Option<PathBuf>,
    },
    /// Write a coordinator to start from, into a new folder
    ///
    /// It says with which commands the project is tested, built and run.
    #[command(after_help = "\
Example:
  baton new nightly-report --lang python")]
    New {
        /// The folder and the election: 1 to 63 of a-z, 0-9 and hyphens, starting with a letter
        name: String,
        /// The language that it is written in
        #[arg(long, value_enum, default_value_t = Lang::Rust)]
        lang: Lang,
        /// Where baton-sdk is, for Rust: the folder guest-sdk of a checkout of Baton [default: the checkout that this
        /// program was built in, else crates.io]
        #[arg(long, value_name = "PATH")]
        sdk: Option<PathBuf>,
    },
}

/// The languages that a coordinator can be started in.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lang {
    /// Rust, with baton-sdk
    Rust,
    /// JavaScript, with componentize-js
    Js,
    /// Python, with componentize-py
    Python,
}

/// Contend for leadership and run the coordinator while leading
///
/// A setting comes from its flag, else from its variable, else from the file, else it has its default.
/// In the file it is a key of the same name without the dashes. Without MODULE, all the coordinators of
/// the file's tables [coordinators.NAME] run; NAME is the election, and the table needs a `module` (a
/// path is seen from the file), and may override the settings below that are marked with a *.
#[derive(Args, Debug)]
#[command(after_help = "\
Durations are written like 15s, 1m30s or 500ms, sizes like 256MiB or 1GiB.

Examples:
  baton run coordinator.wasm
  baton run store://nightly-report --store azure://myaccount/leases --lease 30s
  baton run --file /etc/baton.toml --print-config")]
pub(super) struct Run {
    /// Where the component to run is: a file, store://ELECTION or oci://REGISTRY/REPOSITORY:TAG * [env: BATON_MODULE]
    pub module: Option<String>,
    /// The election to contend in * [env: BATON_ELECTION] [default: what the module is called]
    #[arg(long, value_name = "NAME")]
    pub election: Option<String>,
    #[command(flatten)]
    pub store: Store,
    /// Make the container of an Azure store if it is missing; a folder is always made [env: BATON_CREATE] [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub create: Option<String>,
    /// Let coordinators have folders though this kernel could not keep them there if they broke out of their sandbox
    /// [env: BATON_ALLOW_WEAKER_ISOLATION] [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_weaker_isolation: Option<String>,
    /// This node's id [env: BATON_NODE] [default: the host's name and a slot number]
    #[arg(long, value_name = "ID")]
    pub node: Option<String>,
    #[command(flatten)]
    pub settings: Settings,
    /// How log lines look: text, json [env: BATON_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Where probes, load balancers and scrapers ask this node; none for nowhere
    /// [env: BATON_ADMIN] [default: 127.0.0.1:7070 (or the next free port)]
    ///
    /// /livez, /readyz, /leader/ELECTION and /metrics are for all who
    /// reach the address.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub admin: Option<String>,
    /// The file of the token that other machines need there for more than that [env: BATON_ADMIN_TOKEN_FILE] [default: none]
    ///
    /// It is read anew whenever somebody asks. They need TLS, too.
    #[arg(long, value_name = "PATH")]
    pub admin_token_file: Option<String>,
    /// The certificates (PEM) by which other machines know it, its own first [env: BATON_ADMIN_TLS_CERT] [default: none]
    #[arg(long, value_name = "PATH")]
    pub admin_tls_cert: Option<String>,
    /// The private key (PEM) of that certificate [env: BATON_ADMIN_TLS_KEY] [default: none]
    #[arg(long, value_name = "PATH")]
    pub admin_tls_key: Option<String>,
    /// Where to ask what is planned for this machine: auto (a machine of Azure asks Azure), off, or http://HOST
    /// [env: BATON_SCHEDULED_EVENTS] [default: auto]
    ///
    /// The node steps down before the machine is frozen, rebooted,
    /// redeployed, preempted or terminated, and acknowledges the event.
    #[arg(long, value_name = "WHERE")]
    pub scheduled_events: Option<String>,
    /// Take the lease of a host of this machine that the kernel says is gone, without waiting for it to run out
    /// [env: BATON_WITNESS] [default: true]
    ///
    /// On Azure it is gone on with, from a note of the host's. Set it to false where processes are checkpointed and restored
    /// (CRIU): the kernel takes one that may come back for gone.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub witness: Option<String>,
    /// Tell the other hosts of this machine what is new, and hear of them, so that a standby need not ask the store again and
    /// again [env: BATON_LINKS] [default: true]
    ///
    /// With an embedded store, through sockets in its folder, and with hosts of other machines where --peer says so.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub links: Option<String>,
    /// Listen here for hosts of other machines, to tell them what is new and hear of them, too; off for not at all
    /// [env: BATON_PEER] [default: off]
    ///
    /// Over TLS, with a key of its own for each start. Who can write to the store can pose as a node there. With port 0 the
    /// system chooses one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub peer: Option<String>,
    /// Where those find it, as they are told in the store; own for that very address [env: BATON_ADVERTISE] [default: own]
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<String>,
    /// Something that people know this node by; repeat it for more [env: BATON_LABEL, one K=V on each line]
    ///
    /// Shown where nodes are, and in the metrics. In the file: the table `labels`, as in `labels = { zone = "west" }`.
    #[arg(long, value_name = "K=V")]
    pub label: Vec<String>,
    /// How many elections this host leads at the most; off for all [env: BATON_MAX_LEADING] [default: off]
    ///
    /// What nobody else takes within 10 s it leads all the same.
    #[arg(long, value_name = "NUMBER")]
    pub max_leading: Option<String>,
    /// Where others find this node's endpoint, as they are told in the store; own for its own address, if that is of use to
    /// them [env: BATON_ADMIN_ADVERTISE] [default: own]
    ///
    /// A loopback address is told only where the store is one of this machine, too.
    #[arg(long, value_name = "URL")]
    pub admin_advertise: Option<String>,
    /// Show each setting and where it came from, with secrets hidden, and exit
    #[arg(long)]
    pub print_config: bool,
}

/// How a coordinator is run.
#[derive(Args, Debug)]
pub(super) struct Settings {
    /// How early it takes a lease that is free: 100 at once, 0 up to 3.25 s later * [env: BATON_PRIORITY] [default: 100]
    #[arg(long, value_name = "NUMBER")]
    pub priority: Option<String>,
    /// While it leads, hand over to a healthy node of a higher priority * [env: BATON_PREEMPT] [default: false]
    ///
    /// Only to one that has the same module ready, and is not asked or bound to stay out. What an operator has transferred
    /// to this node it keeps.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub preempt: Option<String>,
    /// How long the store keeps the lease without a renewal * [env: BATON_LEASE] [default: 15s]
    #[arg(long, value_name = "DURATION")]
    pub lease: Option<String>,
    /// How long the coordinator may take to stop when asked * [env: BATON_GRACE] [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub grace: Option<String>,
    /// From done to the next term, with `--on-done repeat` * [env: BATON_PAUSE] [default: 60s]
    #[arg(long, value_name = "DURATION")]
    pub pause: Option<String>,
    /// What follows when the coordinator is done: repeat, finish * [env: BATON_ON_DONE] [default: repeat]
    #[arg(long, value_name = "WHAT")]
    pub on_done: Option<String>,
    /// Step down after so long without progress; off for never * [env: BATON_STALL_AFTER] [default: off]
    #[arg(long, value_name = "DURATION")]
    pub stall_after: Option<String>,
    /// How long a new version must do well before it is not undone any more * [env: BATON_PROBATION] [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub probation: Option<String>,
    /// Write a core dump of an instance that traps into this folder; off for none * [env: BATON_COREDUMP] [default: off]
    ///
    /// The file is ELECTION-TERM.coredump; the newest 5 of an election are kept.
    #[arg(long, value_name = "DIR")]
    pub coredump: Option<String>,
    /// Write the last instance's profile to this file, for Firefox's profiler; off for none * [env: BATON_PROFILE] [default: off]
    ///
    /// It is full after an hour of computing, or when it takes 32 MiB of memory: then the log says where it ends.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<String>,
    /// Run this module and no other; repeat it for more * [env: BATON_PIN, with spaces between]
    ///
    /// In the file: a list, as in `pin = ["sha256:…"]`. `baton check` prints a module's digest.
    #[arg(long, value_name = "DIGEST")]
    pub pin: Vec<String>,
    /// Run only what a key in this file has signed with minisign; repeat it for more * [env: BATON_TRUST, one on each line]
    ///
    /// A file such as minisign.pub; it may hold several keys. In the file: a list, as in `trust = ["minisign.pub"]`.
    #[arg(long, value_name = "KEYFILE")]
    pub trust: Vec<String>,
    /// The processor time that compiling a module may take * [env: BATON_COMPILE_TIMEOUT] [default: 60s]
    ///
    /// Of all the compiler's threads together. A machine that is so busy that this takes ten times as long, and ten
    /// minutes, is no fault of the module's: it is tried again later.
    #[arg(long, value_name = "DURATION")]
    pub compile_timeout: Option<String>,
    /// The folder for compiled modules, this user's alone; off for none [env: BATON_CACHE] [default: ~/.cache/baton]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<String>,
    /// A server that the coordinator may ask over HTTP; repeat it for more * [env: BATON_ALLOW_HTTP, with spaces between]
    ///
    /// Scheme, host, and if need be port and start of the path: https://api.example.com/v1. https://*.example.com
    /// is all subdomains. A name may have private addresses if #private follows: http://worker:8080#private.
    #[arg(long, value_name = "URL")]
    pub allow_http: Vec<String>,
    /// A file of certificates (PEM) that such servers may be certified by, too * [env: BATON_HTTP_CA] [default: none]
    #[arg(long, value_name = "PATH")]
    pub http_ca: Option<String>,
    /// The requests over HTTP that the coordinator may have in flight * [env: BATON_MAX_REQUESTS] [default: 64]
    #[arg(long, value_name = "NUMBER")]
    pub max_requests: Option<String>,
    /// The memory that the coordinator may use * [env: BATON_MAX_MEMORY] [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub max_memory: Option<String>,
    /// The table elements that it may have, in all its tables * [env: BATON_MAX_TABLE_ELEMENTS] [default: 1000000]
    #[arg(long, value_name = "NUMBER")]
    pub max_table_elements: Option<String>,
    /// The core instances that it may consist of, and as many memories and tables * [env: BATON_MAX_INSTANCES] [default: 1000]
    #[arg(long, value_name = "NUMBER")]
    pub max_instances: Option<String>,
    /// The handles that it may hold: streams, files, timers * [env: BATON_MAX_HANDLES] [default: 10000]
    #[arg(long, value_name = "NUMBER")]
    pub max_handles: Option<String>,
    /// The files, folders and listings that it may have open * [env: BATON_MAX_FILES] [default: 256]
    #[arg(long, value_name = "NUMBER")]
    pub max_files: Option<String>,
    /// The lines that it may print and log a second * [env: BATON_MAX_OUTPUT] [default: 500]
    #[arg(long, value_name = "LINES")]
    pub max_output: Option<String>,
    /// The state that the coordinator may keep, keys and values together * [env: BATON_MAX_STATE] [default: 4MiB]
    #[arg(long, value_name = "SIZE")]
    pub max_state: Option<String>,
    /// One value of its state, at most as much as --max-state * [env: BATON_MAX_STATE_VALUE] [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    pub max_state_value: Option<String>,
    /// An argument for a command; repeat it for more, in their order * [env: BATON_ARGS, one on each line]
    ///
    /// Before them it sees its election, in the place of its own name. In the file: a list, as in
    /// `args = ["--verbose", "report.csv"]`.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub arg: Vec<String>,
    /// A variable for the coordinator; repeat it for more * [env: BATON_ENV, one K=V on each line]
    ///
    /// It sees no other variables. Those of BATON_ENV and of the file's table `env` are added; of a name
    /// that is given in several places, the flag counts, else BATON_ENV, else the file.
    #[arg(long, value_name = "K=V")]
    pub env: Vec<String>,
    /// A value of the coordinator's configuration; repeat it for more * [env: BATON_CONFIG, one K=V on each line]
    ///
    /// It sees them as variables and through wasi:config/store. Merged like --env.
    #[arg(long, value_name = "K=V")]
    pub config: Vec<String>,
    /// Where a secret is: file:PATH or env:VARIABLE; repeat it for more * [env: BATON_SECRET, one on each line]
    ///
    /// The coordinator sees it like a value of --config; it is shown nowhere. In the file: the table
    /// `secrets`, as in `secrets = { token = { file = "PATH" } }`. A file is read anew for each term.
    #[arg(long, value_name = "K=SOURCE")]
    pub secret: Vec<String>,
    /// A folder that the coordinator may use, and where it finds it; repeat it for more * [env: BATON_DIR, one on each line]
    ///
    /// With `:ro` it may only read there. In the file: a list, as in `dirs = ["/srv/data::/data"]`. What the
    /// system was told to do with a file is not taken back when the term ends.
    #[arg(long, value_name = "HOST::GUEST[:ro]")]
    pub dir: Vec<String>,
}

/// Build a coordinator, run it, and swap it for each new build
///
/// In the folder of a project: builds it, again whenever one of its files is changed, and runs what that makes on
/// this machine alone, on a store in memory. What is kept there outlives each swap, but not this command. A build
/// or a module that fails leaves what runs alone. Settings are those of `baton run`, from the same places; paths are
/// seen from the project's folder.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  baton dev --env LEVEL=debug
  baton dev --build 'make job.wasm' --module job.wasm
  baton dev --build off --module job.wasm    # something else builds it")]
pub(super) struct Dev {
    /// The project's folder [default: the working folder]
    pub path: Option<PathBuf>,
    /// The command line that builds it; off for none [default: by its Cargo.toml, package.json or requirements.txt]
    #[arg(long, value_name = "COMMAND")]
    pub build: Option<String>,
    /// What the build makes [default: by its Cargo.toml, else `module` in baton.toml]
    #[arg(long, value_name = "FILE")]
    pub module: Option<PathBuf>,
    /// The election that it takes part in [env: BATON_ELECTION] [default: the module's file name, with hyphens for underscores]
    #[arg(long, value_name = "NAME")]
    pub election: Option<String>,
    /// The configuration file [env: BATON_FILE] [default: baton.toml, if there is one]
    #[arg(long, value_name = "PATH")]
    pub file: Option<String>,
    #[command(flatten)]
    pub settings: Settings,
    /// How log lines look: text, json [env: BATON_LOG_FORMAT] [default: text, with what matters here alone]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

/// What to do with a coordinator's state.
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "\
Examples:
  baton state list scheduler
  baton state get scheduler partitions/7
  baton state export scheduler >scheduler.json")]
pub(super) enum StateCommand {
    /// Print the keys and the sizes of their values
    List {
        #[command(flatten)]
        of: StateOf,
        /// Only keys that begin with this
        #[arg(default_value = "")]
        prefix: String,
        /// Print a JSON array of objects
        #[arg(long)]
        json: bool,
    },
    /// Print the value under a key, as it is
    Get {
        #[command(flatten)]
        of: StateOf,
        /// The key
        key: String,
    },
    /// Save a value under a key
    Put {
        #[command(flatten)]
        of: StateOf,
        /// The key: 1 to 512 bytes
        key: String,
        /// The value [default: what standard input holds]
        value: Option<String>,
        #[command(flatten)]
        force: Force,
    },
    /// Remove keys, all at once
    Delete {
        #[command(flatten)]
        of: StateOf,
        /// The keys
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
        #[command(flatten)]
        force: Force,
    },
    /// Print the whole state as a JSON object, which `import` reads
    Export {
        #[command(flatten)]
        of: StateOf,
    },
    /// Replace the whole state by an exported one
    Import {
        #[command(flatten)]
        of: StateOf,
        /// The file [default: what standard input holds]
        #[arg(value_name = "FILE")]
        from: Option<PathBuf>,
        #[command(flatten)]
        force: Force,
    },
}

/// Whose state.
#[derive(Args, Debug)]
pub(super) struct StateOf {
    /// The election
    pub election: String,
    #[command(flatten)]
    pub store: Store,
}

/// What to ask of an election's nodes.
#[derive(clap::Subcommand, Debug)]
pub(super) enum SteerCommand {
    /// Have the leader give the lease up, and another take it
    ///
    /// The node that leads stops its instance in order and stays out for a while. Where no other node is there, nobody
    /// leads meanwhile. Exits with 1 if it has not given the lease up within --timeout.
    #[command(after_help = "\
Example:
  baton step-down nightly-report --for 10m --reason 'kernel update'")]
    StepDown {
        #[command(flatten)]
        of: SteeringOf,
        /// How long that node does not lead again, from 1s to 24h
        #[arg(long = "for", value_name = "DURATION", default_value = "60s")]
        stays_out: String,
        #[command(flatten)]
        reason: Reason,
    },
    /// Have nobody lead until it is resumed
    ///
    /// Exits with 1 if somebody still leads after --timeout.
    #[command(after_help = "\
Example:
  baton suspend nightly-report --reason 'the database is moved'")]
    Suspend {
        #[command(flatten)]
        of: SteeringOf,
        #[command(flatten)]
        reason: Reason,
    },
    /// Take a suspension back
    ///
    /// Returns when a node leads, or when all know that one may. A steering object that is damaged is made anew.
    #[command(after_help = "\
Example:
  baton resume nightly-report")]
    Resume {
        #[command(flatten)]
        of: SteeringOf,
    },
    /// Have a certain node lead
    ///
    /// All others stay out until it has had its chance. If it does not take the lease soon, whoever did before may go
    /// on; then this exits with 1.
    #[command(after_help = "\
Example:
  baton transfer nightly-report --to web-3")]
    Transfer {
        #[command(flatten)]
        of: SteeringOf,
        /// The node, as `baton nodes` lists it
        #[arg(long, value_name = "NODE")]
        to: String,
        #[command(flatten)]
        reason: Reason,
    },
    /// Break a lease that a client holds which is no host of Baton
    ///
    /// One without an end, too. The lease of a host is not broken, since that would be waited out for longer.
    #[command(after_help = "\
Example:
  baton break nightly-report --store azure://myaccount/leases")]
    Break {
        #[command(flatten)]
        of: SteeringOf,
    },
}

/// Which election's nodes are asked.
#[derive(Args, Debug)]
pub(super) struct SteeringOf {
    /// The election
    pub election: String,
    #[command(flatten)]
    pub store: Store,
    /// How long to wait until it has taken effect
    #[arg(long, value_name = "DURATION", default_value = "90s")]
    pub timeout: String,
}

#[derive(Args, Debug)]
pub(super) struct Reason {
    /// Why, for the log, the coordinator and, of a suspension, `baton status`
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

#[derive(Args, Debug)]
pub(super) struct Force {
    /// Also while a coordinator leads: its term ends at its next commit, and the next term starts from what was changed
    #[arg(long)]
    pub force: bool,
}

/// What of it, and how.
#[derive(Args, Debug)]
pub(super) struct Told {
    #[command(flatten)]
    pub store: Store,
    /// Go on with what comes, whoever leads
    #[arg(long)]
    pub follow: bool,
    /// How many of those that are there to begin with
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    pub tail: usize,
    /// Only this level and above: trace, debug, info, warn, error, critical
    #[arg(long, value_name = "LEVEL", default_value = "trace", value_parser = level)]
    pub level: LogLevel,
    /// The file of the nodes' token [env: BATON_ADMIN_TOKEN_FILE] [default: admin-token-file in baton.toml]
    #[arg(long, value_name = "PATH")]
    pub token_file: Option<String>,
    /// Whom the nodes must be certified by: a file of certificates (PEM) [default: whom the system trusts]
    #[arg(long, value_name = "PATH")]
    pub ca: Option<PathBuf>,
    /// Print each as a line of JSON
    #[arg(long)]
    pub json: bool,
}

fn level(text: &str) -> Result<LogLevel, String> {
    let level = LogLevel::deserialize(text.into_deserializer());
    level.map_err(|_: serde::de::value::Error| "it is trace, debug, info, warn, error or critical".to_owned())
}

#[derive(Args, Debug)]
pub(super) struct Store {
    /// The lease store, the same for all nodes: sqlite:DIR, azure://ACCOUNT/CONTAINER, azurite [env: BATON_STORE]
    /// [default: sqlite: in the user's state folder, for the nodes of one user on one machine]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// The configuration file [env: BATON_FILE] [default: baton.toml, if there is one]
    #[arg(long, value_name = "PATH")]
    pub file: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        super::Arguments::command().debug_assert();
    }
}
