#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::ffi::OsString;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::cli::{self, Command};
use baton_admin::TlsFiles;
use baton_election::Missed;
use baton_modules::ModuleSource;

struct Case {
    folder: TempDir,
}

impl Case {
    fn new(file: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if !file.is_empty() {
            std::fs::write(folder.path().join("baton.toml"), file).unwrap();
        }
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Result<Config, String> {
        let around = Environment::artificial(variables, self.path());
        let arguments = ["baton", "run"].iter().chain(arguments).map(OsString::from);
        match cli::parse(arguments, &around) {
            Ok(Command::Run(config)) => Ok(*config),
            Ok(other) => panic!("{other:?}"),
            Err(stop) => Err(stop.to_string()),
        }
    }

    fn error(&self, variables: &[(&str, &str)], arguments: &[&str]) -> String {
        self.run(variables, arguments).unwrap_err()
    }
}

fn shown(config: &Config, key: Key) -> (String, String) {
    let row = config.rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no row for {}", key.name()));
    (row.value.clone(), row.origin.show(key).to_string())
}

const PINS: [&str; 4] = [
    "sha256:000000000000000000000000000000000000000000000000000000000000000f",
    "sha256:000000000000000000000000000000000000000000000000000000000000000e",
    "sha256:000000000000000000000000000000000000000000000000000000000000000d \
     sha256:000000000000000000000000000000000000000000000000000000000000000c",
    "sha256:000000000000000000000000000000000000000000000000000000000000000b",
];

/// The settings that one test can check in the same way. Each entry has one value for each place that can set the
/// setting: the flag, the environment variable, the coordinator's table, and the top of the file. An empty string
/// stands for a place that the test skips. The last element is the setting's default.
const SETTINGS: [(Key, [&str; 4], &str); 37] = [
    (Key::Store, ["sqlite:/f", "sqlite:/v", "", "sqlite:/g"], "sqlite:HOME/.local/state/baton"),
    (Key::Create, ["true", "false", "", "true"], "false"),
    (Key::AllowWeakerIsolation, ["true", "false", "", "true"], "false"),
    (Key::Node, ["f", "v", "", "g"], "MACHINE-N (N: the first free slot)"),
    (Key::LogFormat, ["json", "text", "", "json"], "text"),
    (Key::Election, ["f", "v", "t", ""], "job"),
    (Key::Priority, ["1", "2", "3", "4"], "100"),
    (Key::Preempt, ["true", "false", "true", "true"], "false"),
    (Key::MaxLeaderships, ["1", "off", "", "4"], "off"),
    (Key::Lease, ["11s", "12s", "13s", "14s"], "15s"),
    (Key::Grace, ["1s", "2s", "3s", "4s"], "5s"),
    (Key::RestartDelay, ["1s", "2s", "3s", "1m30s"], "1m"),
    (Key::Restart, ["on-failure", "always", "on-failure", "on-failure"], "always"),
    (Key::StallAfter, ["1m", "off", "2m", "3m"], "off"),
    (Key::Probation, ["1s", "2s", "3s", "4s"], "30s"),
    (Key::Admin, ["127.0.0.1:1", "[::1]:2", "", "none"], "127.0.0.1:7070 (or the next free port)"),
    (Key::AdminTokenFile, ["f", "v", "", "HOME/g"], "none"),
    (Key::AdminAdvertise, ["http://f:1", "https://v", "", "https://g/x"], "own"),
    (Key::ScheduledEvents, ["off", "http://127.0.0.1:1", "", "http://127.0.0.1:2"], "auto"),
    (Key::Reclaim, ["false", "true", "", "false"], "true"),
    (Key::Links, ["false", "true", "", "false"], "true"),
    (Key::Peer, ["127.0.0.1:1", "[::1]:2", "", "10.0.0.3:0"], "off"),
    (Key::Cache, ["f", "v", "", "off"], "HOME/.cache/baton"),
    (Key::Pin, [PINS[0], PINS[1], PINS[2], PINS[3]], "none"),
    (Key::Trust, ["f.pub", "v.pub", "/t.pub", "/g.pub"], "none"),
    (Key::CompileTimeout, ["11s", "12s", "13s", "14s"], "1m"),
    (Key::AllowHttp, ["http://a http://b", "https://c", "http://d", "http://*.e.f"], "none"),
    (Key::HttpCa, ["f.pem", "v.pem", "", "HOME/g.pem"], "none"),
    (Key::MaxRequests, ["1", "2", "3", "4"], "64"),
    (Key::MaxMemory, ["1MiB", "2MiB", "3MiB", "1GiB"], "256MiB"),
    (Key::MaxOutput, ["1", "2", "3", "4"], "500"),
    (Key::MaxState, ["1MiB", "2MiB", "3MiB", "16KiB"], "4MiB"),
    (Key::Schedule, ["@daily", "@hourly", "@weekly", "0 2 * * *"], "none"),
    (Key::TimeZone, ["Asia/Tokyo", "Europe/Paris", "UTC", "Europe/Berlin"], "UTC"),
    (Key::Shards, ["2", "3", "4", "256"], "1"),
    (Key::Missed, ["skip", "run-once", "skip", "run-once"], "run-once"),
    (Key::Module, ["f.wasm", "v.wasm", "", "HOME/g.wasm"], ""),
];

#[test]
fn setting_comes_from_strongest_layer_that_has_it() {
    let plain = Case::new("");
    let machine = rustix::system::uname();
    let machine = machine.nodename().to_string_lossy().into_owned();
    for (key, [flag, variable, table, global], default) in SETTINGS {
        let home = |text: &str, case: &Case| text.replace("HOME", case.path().to_str().unwrap());
        let quote = |text: &str| {
            if matches!(key, Key::Create | Key::AllowWeakerIsolation | Key::Preempt | Key::Reclaim | Key::Links) {
                text.to_string()
            } else {
                format!("{text:?}")
            }
        };
        let name = key.name();
        let module = if key == Key::Module { "" } else { "job.wasm" };

        // Add one layer after another, starting with the weakest: each one overrides the layers before it.
        if !default.is_empty() {
            let config = plain.run(&[], &[module]).unwrap();
            let default = home(default, &plain).replace("MACHINE", &machine);
            assert_eq!(shown(&config, key), (default, "default".to_string()), "{name}");
        }
        let mut file = String::new();
        if !global.is_empty() {
            let text = global.trim_start_matches("HOME/").to_string();
            file = format!("{name} = {}\n", quote(&text));
            let case = Case::new(&file);
            let config = case.run(&[], &[module][..usize::from(!module.is_empty())]).unwrap();
            let expected = (home(global, &case), format!("file baton.toml:{name}"));
            assert_eq!(shown(&config, key), expected, "{name}");
        }
        if key != Key::Module {
            file += "[coordinators.job]\nmodule = \"job.wasm\"\n";
        }
        if !table.is_empty() {
            file += &format!("{name} = {}\n", quote(table));
            let config = Case::new(&file).run(&[], &[]).unwrap();
            let expected = (table.to_string(), format!("file baton.toml:coordinators.job.{name}"));
            assert_eq!(shown(&config, key), expected, "{name}");
        }
        let case = Case::new(&file);
        let from_env = (key.variable(), variable);
        let variables = [(from_env.0.as_str(), from_env.1)];
        let config = case.run(&variables, &[]).unwrap();
        let expected = (variable.to_string(), format!("env {}", key.variable()));
        assert_eq!(shown(&config, key), expected, "{name}");

        let flag_text = if key == Key::Module { flag.to_string() } else { format!("--{name}={flag}") };
        let config = case.run(&variables, &[&flag_text]).unwrap();
        let expected = (flag.to_string(), format!("flag {}", key.flag()));
        assert_eq!(shown(&config, key), expected, "{name}");
    }
    // SETTINGS omits these settings and the multi-value settings, because they have tests of their own.
    const ELSEWHERE: [Key; 5] = [Key::Config, Key::Arg, Key::AdminTlsCert, Key::AdminTlsKey, Key::PeerAdvertise];
    let named = Key::ALL.iter().copied().filter(|key| key.is_named());
    let tested: Vec<Key> = SETTINGS.iter().map(|setting| setting.0).chain(ELSEWHERE).chain(named).collect();
    assert!(Key::ALL.iter().all(|key| tested.contains(key)));
}

#[test]
fn peer_advertise_is_required_for_an_unspecified_address() {
    let case = Case::new("peer = '0.0.0.0:7072'\n");
    let error = case.error(&[], &["x.wasm"]);
    assert!(error.contains("baton.toml:1: peer") && error.contains("--peer-advertise HOST:PORT"), "{error}");
    let config = case.run(&[("BATON_PEER_ADVERTISE", "web-3.example:7072")], &["x.wasm"]).unwrap();
    let peer = config.peer.clone().unwrap();
    assert_eq!(peer.advertise.unwrap().to_string(), "web-3.example:7072");
    assert_eq!(
        shown(&config, Key::PeerAdvertise),
        ("web-3.example:7072".to_string(), "env BATON_PEER_ADVERTISE".to_string())
    );
    let error = case.error(&[("BATON_PEER_ADVERTISE", "web-3.example")], &["x.wasm"]);
    assert!(error.contains("HOST:PORT"), "{error}");
    let plain = Case::new("");
    assert!(plain.error(&[], &["x.wasm", "--peer-advertise=web-3:1"]).contains("--peer"));
    assert_eq!(plain.run(&[], &["x.wasm", "--peer-advertise=own"]).unwrap().peer, None);
}

#[test]
fn arguments_keep_order_and_special_characters() {
    let arguments = |case: &Case, variables: &[(&str, &str)], flags: &[&str]| {
        case.run(variables, flags).map(|config| {
            let shown = shown(&config, Key::Arg);
            (config.coordinators[0].arguments.clone(), shown.0, shown.1)
        })
    };
    let none = (Vec::<String>::new(), "none".to_string(), "default".to_string());
    assert_eq!(arguments(&Case::new(""), &[], &["x.wasm"]).unwrap(), none);
    let given = ["--arg=-v", "--arg", "--out", "--arg", "two words", "--arg=", "--arg=a\nb", "--arg=-v"];
    let (all, shown, origin) = arguments(&Case::new("arg = ['f']"), &[], &[&["x.wasm"], &given[..]].concat()).unwrap();
    assert_eq!(all, ["-v", "--out", "two words", "", "a\nb", "-v"]);
    assert_eq!(shown, r"-v --out 'two words' '' $'a\012b' -v");
    assert_eq!(origin, "flag --arg");
    let (all, _, origin) = arguments(&Case::new(""), &[("BATON_ARG", "-v\n\ntwo words\n")], &["x.wasm"]).unwrap();
    assert_eq!((all.as_slice(), origin.as_str()), (&["-v", "", "two words"].map(str::to_owned)[..], "env BATON_ARG"));
    let file = "arg = ['-v', \"a\\nb\", '']\n[coordinators.job]\nmodule = 'x.wasm'\n";
    let (all, _, origin) = arguments(&Case::new(file), &[], &[]).unwrap();
    assert_eq!((all.as_slice(), origin.as_str()), (&["-v", "a\nb", ""].map(str::to_owned)[..], "file baton.toml:arg"));
    // If the coordinator's table contains an empty list, this list overrides the one at the top of the file.
    let (all, shown, _) = arguments(&Case::new(&format!("{file}arg = []\n")), &[], &[]).unwrap();
    assert_eq!((all.len(), shown.as_str()), (0, "none"));
    let form = "baton.toml:1: arg: write a list of quoted strings: arg = [\"--verbose\", \"report.csv\"]";
    assert_eq!(Case::new("arg = '-v'").error(&[], &["x.wasm"]), form);
    assert_eq!(Case::new("arg = [1]").error(&[], &["x.wasm"]), form);
    assert_eq!(
        Case::new("arg = [\"a\\u0000b\"]").error(&[], &["x.wasm"]),
        "baton.toml:1: arg: an argument cannot contain NUL"
    );
}

#[test]
fn environment_is_merged_by_name_and_hidden() {
    let case = Case::new(
        "[env]\nA = 'global'\nB = 'global'\nC = 'global'\nD = 'global'\n\
         [coordinators.job]\nmodule = 'x.wasm'\nenv = { B = 'table', C = 'table', D = 'table' }\n",
    );
    let variables = [("BATON_ENV", "C=variable, with=more\n\nD=variable\n")];
    let config = case.run(&variables, &["--env", "D=", "--env", "E=x=y"]).unwrap();
    let env: Vec<String> = config.coordinators[0].env.iter().map(|(k, v)| format!("{k}={}", v.expose())).collect();
    assert_eq!(env, ["A=global", "B=table", "C=variable, with=more", "D=", "E=x=y"]);
    let table = config.table();
    assert!(!table.contains("global\n") && !table.contains("with=more") && !table.contains("x=y"), "{table}");
    assert!(table.contains("env.E"), "{table}");
    assert!(!format!("{:?}{config:?}", config.coordinators).contains("with=more"));
}

#[test]
fn old_name_is_refused_with_the_new_name() {
    for (old, new) in [("pause", "restart-delay"), ("on-done", "restart"), ("max-leading", "max-leaderships")] {
        let error = Case::new(&format!("{old} = 'x'\n")).error(&[], &["x.wasm"]);
        assert!(error.starts_with(&format!("baton.toml:1: {old}: ")) && error.contains(&format!("`{new}`")), "{error}");
    }
    for (old, new) in
        [("BATON_FILE", "BATON_CONFIG"), ("BATON_PAUSE", "BATON_RESTART_DELAY"), ("BATON_ARGS", "BATON_ARG")]
    {
        let error = Case::new("").error(&[(old, "x")], &["x.wasm"]);
        assert!(error.starts_with(&format!("{old}: ")) && error.ends_with(&format!(" is now called {new}")), "{error}");
    }
    // Before 0.1.0, `--config` took NAME=VALUE. The value may therefore contain a secret, which the error must not
    // repeat.
    for (variable, flag) in [("BATON_CONFIG", "token=s3cr3t"), ("", "--config=token=s3cr3t")] {
        let variables: &[(&str, &str)] = if variable.is_empty() { &[] } else { &[(variable, flag)] };
        let arguments: &[&str] = if variable.is_empty() { &["x.wasm", flag] } else { &["x.wasm"] };
        let error = Case::new("").error(variables, arguments);
        assert!(error.contains("--config-var") && !error.contains("s3cr3t"), "{error}");
    }
    let error = Case::new("config = { a = 'b' }\n").error(&[], &["x.wasm"]);
    assert!(error.contains("`config-var`"), "{error}");
}

#[test]
fn number_and_characters_of_labels_are_limited() {
    let case = Case::new("label = { zone = 'west', rack = '7' }\n");
    let config = case.run(&[("BATON_LABEL", "rack=8")], &["x.wasm", "--label", "os=linux/arm64"]).unwrap();
    let labels: Vec<String> = config.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(labels, ["os=linux/arm64", "rack=8", "zone=west"]);
    let long = format!("zone={}", "x".repeat(64));
    for (wrong, what) in
        [("zone", "there is no `=`"), ("zone=", "is not a label"), ("a b=c", "is not a label"), (&long, "1 to 63")]
    {
        let error = case.error(&[], &["x.wasm", "--label", wrong]);
        assert!(error.starts_with("--label: ") && error.contains(what), "{error}");
    }
    let many: Vec<String> = (0..17).map(|n| format!("--label=l{n}=x")).collect();
    let arguments: Vec<&str> = ["x.wasm"].into_iter().chain(many.iter().map(String::as_str)).collect();
    assert!(Case::new("").error(&[], &arguments).contains("there are 17 labels, but the limit is 16"));
    for wrong in ["--priority=101", "--priority=-1", "--priority=high"] {
        assert!(case.error(&[], &["x.wasm", wrong]).contains("is not a number from 0 to 100"));
    }
    assert!(case.error(&[], &["x.wasm", "--max-leaderships=0"]).contains("write at least 1"));
}

#[test]
fn file_is_the_named_one_or_baton_toml() {
    let case = Case::new("lease = '20s'");
    assert_eq!(shown(&case.run(&[], &["x.wasm"]).unwrap(), Key::Config).1, "default");
    std::fs::create_dir(case.path().join("sub")).unwrap();
    std::fs::write(case.path().join("sub/other.toml"), "module = 'm/x.wasm'\nlease = '30s'\nstore = 'sqlite:leases'")
        .unwrap();
    let config = case.run(&[("BATON_CONFIG", "sub/other.toml")], &[]).unwrap();
    assert_eq!(shown(&config, Key::Lease).0, "30s");
    // Paths in the file are relative to the file's folder, not to the working folder.
    assert_eq!(config.coordinators[0].module, ModuleSource::File(case.path().join("sub/m/x.wasm")));
    assert_eq!(config.store, StoreUrl::Sqlite(case.path().join("sub/leases")));
    let config = case.run(&[("BATON_CONFIG", "sub/other.toml")], &["--config=baton.toml", "x.wasm"]).unwrap();
    assert_eq!(shown(&config, Key::Lease).0, "20s");
    assert_eq!(shown(&config, Key::Config), ("baton.toml".to_string(), "flag --config".to_string()));
    // The path of a module on the command line is relative to the working folder.
    assert_eq!(config.coordinators[0].module, ModuleSource::File("x.wasm".into()));

    assert_eq!(case.error(&[], &["--config=no.toml"]), r#"--config: "no.toml": there is no such file"#);
    assert_eq!(case.error(&[("BATON_CONFIG", "sub")], &[]), r#"BATON_CONFIG: "sub": is not a regular file"#);
    assert_eq!(shown(&Case::new("").run(&[], &["x.wasm"]).unwrap(), Key::Config).0, "none");
}

#[test]
fn file_that_is_too_long_or_not_utf_8_is_refused() {
    let case = Case::new("");
    std::fs::write(case.path().join("baton.toml"), b"lease = \"\xff\"").unwrap();
    assert!(case.error(&[], &["x.wasm"]).starts_with("baton.toml: cannot be read: "));
    std::fs::write(case.path().join("baton.toml"), vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(case.error(&[], &["x.wasm"]).contains("longer than 1 MiB"));
}

#[test]
fn several_coordinators_run_from_one_file() {
    let file = "lease = '20s'\n[coordinators.a]\nmodule = 'a.wasm'\n[coordinators.b]\nmodule = '/b.wasm'\n\
                election = 'other'\nlease = '30s'\n";
    let case = Case::new(file);
    let config = case.run(&[], &["--grace=7s"]).unwrap();
    let settings: Vec<_> = config
        .coordinators
        .iter()
        .map(|one| (one.election.as_str(), one.timing.lease().as_secs(), one.timing.grace().as_secs()))
        .collect();
    assert_eq!(settings, [("a", 20, 7), ("other", 30, 7)]);
    assert_eq!(config.coordinators[1].module, ModuleSource::File("/b.wasm".into()));

    // If a module is given on the command line, only that module runs, with the settings at the top of the file.
    let config = case.run(&[], &["c.wasm"]).unwrap();
    assert_eq!(config.coordinators.len(), 1);
    assert_eq!(config.coordinators[0].election.as_str(), "c");
    assert_eq!(config.coordinators[0].timing.lease().as_secs(), 20);

    assert_eq!(
        case.error(&[("BATON_ELECTION", "x")], &[]),
        "BATON_ELECTION: names one election, but the file has 2 coordinators: leave it out, or name the MODULE to run"
    );
    assert_eq!(
        Case::new(&file.replace("other", "a")).error(&[], &[]),
        "baton.toml:6: coordinators.b.election: two coordinators have the election `a`: give each its own"
    );
}

#[test]
fn error_in_file_names_place_and_fix() {
    let keys: Vec<&str> = Key::ALL.iter().copied().filter(|key| *key != Key::Config).map(Key::name).collect();
    let keys = keys.join(", ");
    for (file, error) in [
        ("# x\nleese = '15s'", "baton.toml:2: leese: there is no such key: did you mean `lease`?"),
        ("coordinator.x.module = 'a'", "baton.toml:1: coordinator: there is no such key: did you mean `coordinators`?"),
        (
            "colour-scheme = 'dark'",
            &format!("baton.toml:1: colour-scheme: there is no such key; the keys are {keys}, coordinators"),
        ),
        ("file = 'x'", "baton.toml:1: file: is now called `config`"),
        ("lease = 15", "baton.toml:1: lease: write a quoted string, such as \"15s\""),
        ("max-memory = 15", "baton.toml:1: max-memory: write a quoted string, such as \"256MiB\""),
        ("max-files = 7", "baton.toml:1: max-files: no longer exists: remove it; the limit is 256"),
        ("max-output = true", "baton.toml:1: max-output: write a quoted string, or a number, such as 1000"),
        ("max-output = 0\nmodule = 'x.wasm'", "baton.toml:1: max-output: 0 is too few: write at least 1"),
        ("create = 'yes'", "baton.toml:1: create: write true or false, without quotes"),
        ("env = ['A=B']", "baton.toml:1: env: write a table: env = { NAME = \"VALUE\" }"),
        ("[env]\nPORT = 80", "baton.toml:2: env.PORT: write the value as a quoted string"),
        (
            "[env]\n'A=B' = 'c'",
            "baton.toml:2: env.A=B: a name must not be empty or contain `=` or NUL, and a value must not contain NUL",
        ),
        (
            "\n[coordinators.x]\nmodul = 'a'",
            "baton.toml:3: coordinators.x.modul: there is no such key: did you mean `module`?",
        ),
        (
            "[coordinators.x]\nmodule = 'a'\nstore = 'y'",
            "baton.toml:3: coordinators.x.store: applies to the whole host: move it to the top of the file, above the \
             first table",
        ),
        ("[coordinators.x]\nlease = '15s'", "baton.toml:1: coordinators.x: has no module: write module = \"PATH\""),
        ("coordinators = 'x'", "baton.toml:1: coordinators: write a table [coordinators.NAME] for each coordinator"),
        (
            "module = 'a'\n[coordinators.x]\nmodule = 'b'",
            "baton.toml:1: module: is outside of the [coordinators.NAME] tables: move it into its \
             coordinator's table",
        ),
        (
            "[coordinators.Bad_Name]\nmodule = 'b'",
            "baton.toml:1: coordinators.Bad_Name: \"Bad_Name\" is not an election's name: use 1 to 63 characters: \
             a-z, 0-9 and hyphens, starting with a letter",
        ),
        (
            "[coordinators.x]\nmodule = 'a'\nlease = '15x'",
            "baton.toml:3: coordinators.x.lease: \"15x\" is not a duration: write it like 15s, 1m30s or 500ms",
        ),
        (
            "\"zz\\u001b\\n\" = 'x'",
            &format!("baton.toml:1: zz\\u{{1b}}\\n: there is no such key; the keys are {keys}, coordinators"),
        ),
    ] {
        assert_eq!(Case::new(file).error(&[], &[]), error, "{file}");
    }
    for (file, start) in [("lease = \n", "baton.toml:1: "), ("\na = 'x'\na = 'y'", "baton.toml:3: ")] {
        let error = Case::new(file).error(&[], &[]);
        assert!(error.starts_with(start) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn error_in_value_names_place_and_fix() {
    let case = Case::new("");
    for (variables, arguments, error) in [
        (
            &[][..],
            &["x.wasm", "--lease=15x"][..],
            "--lease: \"15x\" is not a duration: write it like 15s, 1m30s or 500ms",
        ),
        (
            &[("BATON_RESTART_DELAY", "15")],
            &["x.wasm"],
            "BATON_RESTART_DELAY: \"15\" is not a duration: write it like 15s, 1m30s or 500ms",
        ),
        (&[], &["x.wasm", "--max-memory=256"], "--max-memory: \"256\" is not a size: write it like 256MiB or 1GiB"),
        (&[("BATON_RESTART", "stop")], &["x.wasm"], "BATON_RESTART: \"stop\" is neither always nor on-failure"),
        (&[("BATON_LOG_FORMAT", "xml")], &["x.wasm"], "BATON_LOG_FORMAT: \"xml\" is neither text nor json"),
        (&[], &["x.wasm", "--create=maybe"], "--create: \"maybe\" is neither true nor false"),
        (
            &[],
            &["x.wasm", "--stall-after=0s"],
            "--stall-after: 0 would stop every instance at once: write off, or a duration",
        ),
        (
            &[],
            &["x.wasm", "--election=My Job"],
            "--election: \"My Job\" is not an election's name: use 1 to 63 characters: a-z, 0-9 and hyphens, \
             starting with a letter",
        ),
        (
            &[],
            &["x.wasm", "--node=a b"],
            "--node: \"a b\" is not a node's id: use 1 to 128 printable ASCII characters without spaces",
        ),
        (
            &[],
            &["1.wasm"],
            "MODULE: the module's name \"1\" cannot be an election's name: set another name with --election, using 1 \
             to 63 characters: a-z, 0-9 and hyphens, starting with a letter",
        ),
        (&[], &[""], "MODULE: is empty: name the component's file"),
        (
            &[],
            &["oci://user:s3cr3t@ghcr.io/acme/billing:1"],
            "MODULE: `oci://***@ghcr.io/acme/billing:1` is not a reference to a module: its registry is neither \
             a host nor HOST:PORT; write `oci://REGISTRY/REPOSITORY:TAG` or `…@sha256:DIGEST`",
        ),
        (
            &[],
            &["x.wasm", "--admin-advertise=https://user:s3cr3t@web-3:7070"],
            "--admin-advertise: \"https://***@web-3:7070\" is not the address of an admin endpoint: it has a user or a \
             password in it; write it like https://web-3.example:7070",
        ),
        (
            &[],
            &["x.wasm", "--peer=user:s3cr3t@10.0.0.3:7072"],
            "--peer: \"***@10.0.0.3:7072\" is not an address: write one with its port, as in 10.0.0.3:7072 or [::]:7072 \
             (with a zone by its number, as in [fe80::1%2]:7072), or off",
        ),
        (
            &[("BATON_STORE", "azure://acct/box?sig=s3cr3t")],
            &["x.wasm"],
            "BATON_STORE: `azure://acct/box?***` is not a store: credentials come from the environment, never from the URL; \
             write sqlite:DIR, azure://ACCOUNT/CONTAINER or azurite",
        ),
        (&[], &["x.wasm", "--store="], "--store: is empty: write sqlite:DIR, azure://ACCOUNT/CONTAINER or azurite"),
        (&[], &["x.wasm", "--env=SECRET"], "--env: there is no `=`: write NAME=VALUE, and repeat --env to set more"),
        (
            &[("BATON_ENV", "A=B\nSECRET")],
            &["x.wasm"],
            "BATON_ENV: a line has no `=`: write one NAME=VALUE on each line",
        ),
        (&[], &["x.wasm", "--lease=1s"], "--lease: a lease of 1s is not possible on this store: choose 2s to 60s"),
        (
            &[],
            &["x.wasm", "--lease=5s", "--store=azure://account/box"],
            "--lease: a lease of 5s is not possible on this store: choose 15s to 60s",
        ),
        (
            &[("BATON_MAX_MEMORY", "16GiB")],
            &["x.wasm"],
            "BATON_MAX_MEMORY: freeing 16384 MiB of guest memory may take 3.35s, but a lease of 15s leaves 1.95s \
             before the host ends itself: raise `--lease` or lower `--max-memory`",
        ),
        (
            &[],
            &[],
            "MODULE: there is nothing to run: name a component, as in `baton run coordinator.wasm`, or define \
             some as [coordinators.NAME] in baton.toml",
        ),
    ] {
        assert_eq!(case.error(variables, arguments), error);
    }
}

#[test]
fn module_in_store_must_belong_to_its_election() {
    let file = "[coordinators.a]\nmodule = 'store://a'\n[coordinators.b]\nmodule = 'oci://localhost:5000/x/job:1'\n\
                [coordinators.c]\nmodule = 'c.wasm'\n";
    let case = Case::new(file);
    let config = case.run(&[], &[]).unwrap();
    let elections = config.coordinators.iter().map(|coordinator| coordinator.election.as_str());
    assert_eq!(elections.collect::<Vec<_>>(), ["a", "b", "c"]);
    let sources: Vec<String> = config.coordinators.iter().map(|coordinator| coordinator.module.to_string()).collect();
    assert_eq!(sources[..2], ["store://a", "oci://localhost:5000/x/job:1"]);
    assert_eq!(sources[2], case.path().join("c.wasm").display().to_string());

    let election = |source: &str| case.run(&[], &[source]).unwrap().coordinators[0].election.to_string();
    assert_eq!(election("store://nightly-report"), "nightly-report");
    assert_eq!(election("oci://ghcr.io/acme/nightly_report:1.2"), "nightly-report");
    assert_eq!(shown(&case.run(&[], &["store://a", "--election=a"]).unwrap(), Key::Module).0, "store://a");

    let other = "store://a is the module of the election `a`, but this election is `b`: give both the same name";
    assert_eq!(case.error(&[], &["store://a", "--election=b"]), format!("--election: {other}"));
    let file = Case::new("[coordinators.b]\nmodule = 'store://a'\n");
    assert_eq!(file.error(&[], &[]), format!("baton.toml:1: coordinators.b: {other}"));
    for (source, says) in [("store://Bad", "store://ELECTION"), ("oci://x", "oci://REGISTRY"), ("s3://x/y", "a path")] {
        let error = case.error(&[], &[source]);
        assert!(error.starts_with("MODULE: ") && error.contains(says), "{error}");
    }
}

#[test]
fn empty_and_unknown_variables_are_ignored() {
    let case = Case::new("lease = '20s'");
    let config = case.run(&[("BATON_LEASE", ""), ("BATON_PORT", "tcp://10.0.0.1:80")], &["x.wasm"]).unwrap();
    assert_eq!(shown(&config, Key::Lease).0, "20s");
}

#[test]
fn state_folder_follows_xdg_state_home() {
    let case = Case::new("");
    let store = |value| shown(&case.run(&[("XDG_STATE_HOME", value)], &["x.wasm"]).unwrap(), Key::Store).0;
    assert_eq!(store("/xdg"), "sqlite:/xdg/baton");
    // The XDG Base Directory Specification says that programs must ignore relative paths.
    assert_eq!(store("xdg"), format!("sqlite:{}/.local/state/baton", case.path().display()));

    let nowhere = Environment::default();
    let run = |arguments: &[&str]| {
        let arguments = ["baton", "run", "x.wasm"].iter().chain(arguments).map(OsString::from);
        cli::parse(arguments, &nowhere).map(|_| ()).map_err(|stop| stop.to_string())
    };
    assert!(run(&[]).unwrap_err().contains("--store sqlite:DIR"));
    assert!(run(&["--store=sqlite:/x"]).unwrap_err().contains("--node"));
    assert_eq!(run(&["--store=sqlite:/x", "--node=me"]), Ok(()));
}

#[test]
fn docs_list_every_setting_once() {
    let section = include_str!("../../../docs/settings.md");
    let of_row = |row: &str| {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        [cells[1].split(' ').next().unwrap(), cells[2], cells[3]].map(str::to_owned)
    };
    let mut in_docs: Vec<[String; 3]> = section.lines().filter(|line| line.starts_with("| `")).map(of_row).collect();
    let of_key = |key: Key| [key.flag(), key.variable(), (if key == Key::Config { "" } else { key.name() }).to_owned()];
    let mut in_code = Key::ALL.iter().map(|key| of_key(*key)).collect::<Vec<_>>();
    in_docs.sort_unstable();
    in_code.sort_unstable();
    assert_eq!(in_docs, in_code);
}

#[test]
fn docs_state_the_bounds_of_settings() {
    let section = include_str!("../../../docs/settings.md");
    let rows = section.lines().filter(|line| line.starts_with("| `--"));
    let bounds: Vec<(&str, &str)> = rows
        .filter_map(|row| {
            let (_, most) = row.split_once("at most ")?;
            Some((row.split('`').nth(1)?, most.trim_start_matches('`').split(['`', ' ']).next()?))
        })
        .collect();
    assert_eq!(bounds.len(), 2, "{bounds:?}");
    for (flag, most) in bounds {
        let digits = most.find(|c: char| !c.is_ascii_digit()).unwrap_or(most.len());
        let more = format!("{}{}", most[..digits].parse::<u64>().unwrap() + 1, &most[digits..]);
        assert!(Case::new("").run(&[], &["x.wasm", flag, most]).is_ok(), "{flag} {most}");
        assert!(Case::new("").run(&[], &["x.wasm", flag, &more]).is_err(), "{flag} {more}");
    }
}

#[test]
fn certificate_without_key_is_refused() {
    let both = ["x.wasm", "--admin-tls-cert=a.pem", "--admin-tls-key=b.pem"];
    let config = Case::new("").run(&[], &both).unwrap();
    assert_eq!(config.admin.tls, Some(TlsFiles { certificate: "a.pem".into(), key: "b.pem".into() }));
    for (alone, other) in [(both[1], "--admin-tls-key"), (both[2], "--admin-tls-cert")] {
        let error = Case::new("").run(&[], &["x.wasm", alone]).unwrap_err().to_string();
        let flag = alone.split('=').next().unwrap();
        assert!(error.starts_with(flag) && error.contains(other), "{error}");
    }
    let of_file = Case::new("admin-tls-cert = 'a.pem'\nadmin-tls-key = 'b.pem'\n");
    let config = of_file.run(&[], &["x.wasm"]).unwrap();
    let here = |name| of_file.path().join(name);
    assert_eq!(config.admin.tls, Some(TlsFiles { certificate: here("a.pem"), key: here("b.pem") }));
}

#[test]
fn docs_state_the_defaults_of_settings() {
    // The docs describe these defaults in words, because the defaults depend on the machine or on the module.
    const ELSEWHERE: [Key; 6] = [Key::Module, Key::Election, Key::Store, Key::Node, Key::Cache, Key::Config];
    let config = Case::new("").run(&[], &["x.wasm"]).unwrap();
    let section = include_str!("../../../docs/settings.md");
    for key in Key::ALL.iter().copied().filter(|key| !ELSEWHERE.contains(key)) {
        let of_key = |row: &&str| row.split('|').nth(3).is_some_and(|cell| cell.trim() == format!("`{}`", key.name()));
        let row = section.lines().find(of_key).unwrap();
        let said = row.split('|').nth(4).unwrap().trim().trim_matches('`');
        let is = &config.rows.iter().find(|row| row.key == key).unwrap().value;
        let durations = [said, is].map(|text| humantime::parse_duration(text).ok());
        assert!(
            said == is || durations[0].is_some() && durations[0] == durations[1],
            "{key:?}: {said}, and it is {is}"
        );
    }
}

#[test]
fn schedule_is_checked_and_replaces_other_ways_to_run_again() {
    let read = |flags: &[&str]| Case::new("").run(&[], &[&["job.wasm"], flags].concat());
    let schedule = |flags: &[&str]| read(flags).unwrap().coordinators[0].schedule.clone();
    assert!(schedule(&[]).is_none());
    let berlin = schedule(&["--schedule=0  2 * * *", "--time-zone=Europe/Berlin", "--missed=skip"]).unwrap();
    assert_eq!((berlin.text.as_str(), berlin.missed), ("0 2 * * * Europe/Berlin", Missed::Skip));
    assert_eq!(read(&["--schedule=@daily"]).unwrap().coordinators[0].pause, Duration::ZERO);
    for (flags, wrong) in [
        (["--schedule=often", ""], Key::Schedule),
        (["--schedule=0 0 30 2 *", ""], Key::Schedule),
        (["--time-zone=Mars", ""], Key::TimeZone),
        (["--missed=never", ""], Key::Missed),
        (["--schedule=@daily", "--restart=on-failure"], Key::Restart),
        (["--schedule=@daily", "--restart-delay=5s"], Key::RestartDelay),
    ] {
        let flags: Vec<_> = flags.into_iter().filter(|flag| !flag.is_empty()).collect();
        assert!(read(&flags).unwrap_err().contains(&wrong.flag()), "{flags:?}");
    }
}

#[test]
fn shards_are_checked_and_exclude_schedule_and_preemption() {
    let read = |flags: &[&str]| Case::new("").run(&[], &[&["job.wasm"], flags].concat());
    assert_eq!(read(&[]).unwrap().coordinators[0].shards, 1);
    assert_eq!(read(&["--shards=16"]).unwrap().coordinators[0].shards, 16);
    for flags in
        [&["--shards=0"][..], &["--shards=257"], &["--shards=2", "--schedule=@daily"], &["--shards=2", "--preempt"]]
    {
        assert!(read(flags).unwrap_err().contains("--shards"), "{flags:?}");
    }
    assert!(read(&["--election=crawl/3"]).unwrap_err().contains("name the whole group"));
}
