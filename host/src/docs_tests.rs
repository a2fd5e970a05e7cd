//! Compares the times and tables in the docs with the code. The tables of events and of settings are checked elsewhere,
//! by the tests of the modules that define them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

use baton_election::Timing;
use clap::Command;
use serde::Serialize;

use baton_admin::{ModuleRow, NodeRow, TermRow};

use crate::cli::{
    self, Diagnosis, Finding, Latency, LeaseLabel, NodeStatusRow, ScheduleRow, StatusRow, SuspendedRow,
    WRONG_CONFIGURATION,
};
use crate::config::{Environment, Key};
use baton_modules::Pace;
use baton_node::node_announcement::NodeAnnouncement;
use baton_runtime::{Import, Inspection, InstanceUsage, Usage};
use baton_store::{Digest, Labels, PastTerm};
use baton_store::{azure, sqlite};

const TIMING: &str = include_str!("../../docs/limits-and-timing.md");

const COMMANDS: &str = include_str!("../../docs/commands.md");
const LOGS: &str = include_str!("../../docs/logs.md");
const SETTINGS: &str = include_str!("../../docs/settings.md");

const MODULES: &str = include_str!("../../docs/modules.md");

fn timing(lease: Duration) -> Timing {
    Timing::new(lease, (lease, lease), Duration::ZERO, 256 << 20).unwrap()
}

#[test]
fn docs_state_the_moments_of_a_lease() {
    let table = TIMING.split("\n## When the store is away\n").nth(1).unwrap();
    for (moment, at) in [
        ("D/6", Timing::renew_after as fn(&Timing) -> Duration),
        ("0.7 D", Timing::at_risk_after),
        ("0.8 D", Timing::deadline_after),
        ("0.93 D", Timing::abort_after),
        ("D", Timing::lease),
    ] {
        let [short, long] = [15, 60].map(|seconds| at(&timing(Duration::from_secs(seconds))).as_secs_f64());
        let row = format!("| {moment} | {short} s | {long} s |");
        assert!(table.contains(&row), "the table has no {row}");
    }
}

/// D is the lease duration. The docs state that the host has finished dropping an instance by 0.85 D. This holds even
/// if the instance uses all the memory that the default `--max-memory` allows.
#[test]
fn instance_is_dropped_by_0_85_d() {
    assert!(TIMING.contains("\n| 0.85 D | 12.75 s | 51 s |"));
    let lease = Duration::from_secs(15);
    let drop = Duration::from_millis(150) + Duration::from_millis(200) / 4;
    assert!(timing(lease).deadline_after() + drop <= lease * 85 / 100);
}

#[test]
fn docs_state_the_poll_interval_for_versions() {
    let (least, most) = Pace::default().poll;
    let cell = format!("nodes poll every {} to {} s |", least.as_secs(), most.as_secs());
    assert!(MODULES.lines().any(|line| line.starts_with('|') && line.ends_with(&cell)), "no table has: {cell}");
}

#[test]
fn docs_state_the_lease_range_of_each_store() {
    let rows = table(SETTINGS, "| flag | variable | key | default | |");
    let row = rows.iter().find(|row| code(row[0]).first() == Some(&"--lease")).unwrap();
    for (store, (least, most)) in [("Azure", azure::LEASE_RANGE), ("SQLite", sqlite::LEASE_RANGE)] {
        let range = format!("{} to {} s on {store}", least.as_secs(), most.as_secs());
        assert!(row[4].contains(&range), "{range}: {row:?}");
    }
}

fn table<'a>(page: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let body = page.split(head).nth(1).unwrap_or_else(|| panic!("there is no table with {head}"));
    let rows = body.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Returns the texts in backticks in a table cell.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// Returns the visible commands. The subcommands of `baton state` count as separate commands.
fn commands() -> Vec<(String, Command)> {
    let shown = cli::definition().get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let with_parts = |command: Command| match command.get_name() {
        "state" => command.get_subcommands().map(|part| (format!("state {}", part.get_name()), part.clone())).collect(),
        name => vec![(name.to_owned(), command)],
    };
    Vec::into_iter(shown).flat_map(with_parts).collect()
}

/// Returns the value of `what` in an argument's help. For example, `default` has the value `15s` in `[default: 15s]`.
fn in_help(argument: &clap::Arg, what: &str) -> Option<String> {
    let help = argument.get_help()?.to_string();
    Some(help.split(&format!("[{what}: ")).nth(1)?.split(']').next()?.to_owned())
}

#[test]
fn docs_list_every_command() {
    let usage = |(name, command): (String, Command)| {
        let mut usage = format!("baton {name}");
        for positional in command.get_positionals() {
            let value = positional.get_value_names().unwrap()[0].as_str();
            let value = if positional.is_required_set() { value.to_owned() } else { format!("[{value}]") };
            let more = if matches!(positional.get_action(), clap::ArgAction::Append) { "…" } else { "" };
            usage.push_str(&format!(" {value}{more}"));
        }
        usage
    };
    let in_code: BTreeSet<String> = commands().into_iter().map(usage).collect();
    let rows = table(COMMANDS, "| command | does | exit status |");
    let in_docs: BTreeSet<String> = rows.iter().map(|row| code(row[0])[0].to_owned()).collect();
    assert_eq!((in_docs, rows.len()), (in_code.clone(), in_code.len()));
}

#[test]
fn docs_list_the_flags_of_commands_with_their_defaults() {
    const SETTING: &str = "[the setting](settings.md)";
    let settings: BTreeSet<String> = Key::ALL.iter().map(|key| key.flag()).collect();
    let mut in_code: BTreeMap<String, (BTreeSet<String>, String)> = BTreeMap::new();
    let mut taken: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, command) in commands() {
        for flag in command.get_arguments().filter(|argument| argument.get_long().is_some()) {
            let long = format!("--{}", flag.get_long().unwrap());
            let is_setting = settings.contains(&long);
            if is_setting && ["run", "dev"].contains(&name.as_str()) {
                taken.entry(name.clone()).or_default().insert(long);
                continue;
            }
            let value =
                flag.get_value_names().filter(|_| flag.get_num_args().is_none() && flag.get_action().takes_values());
            let value = value.map(|names| format!(" {}", names[0])).unwrap_or_default();
            let default = flag.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
            let default =
                if is_setting { Some(SETTING.to_owned()) } else { default.or_else(|| in_help(flag, "default")) };
            let (of, is) = in_code.entry(long + &value).or_default();
            of.insert(name.clone());
            *is = default.filter(|default| default != "false").unwrap_or_default();
        }
    }
    let of_keys = |is: fn(Key) -> bool| {
        Key::ALL.iter().copied().filter(move |key| is(*key) && *key != Key::Module).map(Key::flag)
    };
    assert_eq!(taken["run"], of_keys(|_| true).collect());
    let of_dev = |key: Key| key.is_per_coordinator() || [Key::Config, Key::Cache, Key::LogFormat].contains(&key);
    assert_eq!(taken["dev"], of_keys(of_dev).collect());

    let rows = table(COMMANDS, "| flag | of | default | |");
    let in_docs: BTreeMap<String, _> = rows
        .iter()
        .map(|row| {
            let of: BTreeSet<String> = code(row[1]).into_iter().map(str::to_owned).collect();
            let default = row[2].strip_prefix('`').and_then(|rest| rest.strip_suffix('`')).unwrap_or(row[2]);
            (code(row[0])[0].to_owned(), (of, default.to_owned()))
        })
        .collect();
    assert_eq!((in_docs, rows.len()), (in_code.clone(), in_code.len()));
}

#[test]
fn help_of_run_shows_the_documented_defaults() {
    let (_, run) = commands().into_iter().find(|(name, _)| name == "run").unwrap();
    let rows = table(SETTINGS, "| flag | variable | key | default | |");
    for &key in Key::ALL {
        let of_key = |argument: &&clap::Arg| match argument.get_long() {
            Some(long) => format!("--{long}") == key.flag(),
            None => key == Key::Module,
        };
        let argument = run.get_arguments().find(of_key).unwrap_or_else(|| panic!("{key:?} has no flag"));
        let help = argument.get_help().unwrap().to_string();
        let is_marked = help.ends_with(" *") || help.contains(" * [default: ");
        assert_eq!(is_marked, key.is_per_coordinator(), "{key:?} is one of a table, or is marked with a * in the help");

        let row = rows.iter().find(|row| code(row[1])[0] == key.variable()).unwrap();
        // The docs describe these defaults in words, because they depend on the machine or on the module.
        if ![Key::Module, Key::Election, Key::Store, Key::Node, Key::Cache, Key::Config].contains(&key) {
            let in_docs = row[3].trim_matches('`');
            assert_eq!(in_help(argument, "default").unwrap_or("none".to_owned()), in_docs, "{key:?}");
        }
    }
}

#[test]
fn wrong_usage_exits_like_wrong_configuration() {
    let parse = |argument: &str| cli::parse(["baton", argument].map(OsString::from), &Environment::default());
    let Err(cli::Stop::Usage(error)) = parse("lead") else { panic!("there is no such command") };
    assert_eq!(error.exit_code(), i32::from(WRONG_CONFIGURATION));
}

fn fields(value: &impl Serialize) -> Vec<String> {
    serde_json::to_value(value).unwrap().as_object().unwrap().keys().cloned().collect()
}

#[test]
fn docs_list_the_fields_of_json() {
    let usage = serde_json::json!({
        "memory": {"used": 1, "limit": 2}, "table_elements": {"used": 1, "limit": 2}, "kept": 3,
        "instances": {"used": 1, "limit": 2}, "handles": {"used": 1, "limit": 2}, "files": {"used": 1, "limit": 2},
        "requests": {"used": 1, "limit": 2}, "lines": 1, "dropped": 1, "lines_per_second": 1, "since_progress_ms": 1,
        "process": {"pid": 1, "memory": 1, "cpu_ms": 1},
    });
    let in_use: InstanceUsage = serde_json::from_value(usage).unwrap();
    let import: Import = serde_json::from_str(r#"{"name": "", "granted": true, "needs": ""}"#).unwrap();
    let status = StatusRow {
        election: String::new(),
        lease: LeaseLabel::Held,
        term: None,
        node: None,
        since: None,
        module: None,
        outcome: None,
        failures: None,
        schedule: None,
        suspended: None,
        labels: Labels::default(),
        in_use: None,
    };
    let version = ModuleRow {
        digest: Digest::of(b""),
        size: None,
        current: false,
        pushed: false,
        by: None,
        at: None,
        signed: false,
        verdict: None,
        reason: None,
        rejected_by: None,
        rejected_at: None,
        nodes: Vec::new(),
    };
    let inspection = Inspection {
        module: String::new(),
        runs: false,
        kind: None,
        wrapped: None,
        world: None,
        digest: Digest::of(b""),
        size: 0,
        compile_ms: 0,
        imports: Vec::new(),
        exports: Vec::new(),
        problems: Vec::new(),
    };
    let schedule = ScheduleRow { schedule: String::new(), next: None, begun: false, last_completed: None };
    let suspended = SuspendedRow { by: String::new(), at: String::new(), reason: None };
    let listed =
        NodeStatusRow { announcement: NodeAnnouncement::default(), role: "leader", ready: None, exited: false };
    let latency = Latency { renewals: 0, median_ms: 0.0, p99_ms: 0.0 };
    let diagnosis = Diagnosis {
        store: String::new(),
        passed: false,
        complete: false,
        latency: None,
        recommended_lease: None,
        free_after_ms: None,
        findings: Vec::new(),
    };
    let node = NodeRow { node: String::new(), runs: false, at: String::new() };
    let in_code = [
        fields(&status),
        fields(&in_use),
        fields(&schedule),
        fields(&suspended),
        fields(&listed),
        fields(&TermRow::from(PastTerm::default())),
        fields(&version),
        fields(&node),
        fields(&inspection),
        fields(&import),
        fields(&crate::commands::KeyRow { key: "", bytes: 0 }),
        fields(&diagnosis),
        fields(&latency),
        fields(&Finding::ok("", "")),
    ];
    let rows = table(COMMANDS, "| what | is an object with |");
    let in_docs: Vec<Vec<&str>> = rows.iter().map(|row| code(row[1])).collect();
    for (in_docs, in_code) in in_docs.iter().zip(&in_code) {
        let sorted = |fields: &[&str]| fields.iter().map(|field| (*field).to_owned()).collect::<BTreeSet<String>>();
        assert_eq!(sorted(in_docs), in_code.iter().cloned().collect());
    }
    assert_eq!(in_docs.len(), in_code.len());

    let in_docs = LOGS.split("The `usage` of `ended` has ").nth(1).unwrap().split('.').next().unwrap();
    let in_docs: BTreeSet<String> = code(in_docs).into_iter().map(str::to_owned).collect();
    assert_eq!(in_docs, fields(&Usage::default()).into_iter().collect());
}
