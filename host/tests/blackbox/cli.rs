//! The command line of the real binary.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Runs `baton` in `folder`, which is also its home folder. The command inherits no environment variables from the
/// test.
fn baton(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("HOME", folder)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn folder(file: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    if !file.is_empty() {
        std::fs::write(folder.path().join("baton.toml"), file).unwrap();
    }
    folder
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn assert_wrong(output: &Output, error: &str) {
    assert_eq!(stderr(output), format!("error: wrong configuration: {error}\n"));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(output), "");
}

#[test]
fn print_config_shows_values_with_origins_and_writes_nothing() {
    let folder = folder("restart-delay = '90s'\nenv = { TOKEN = 's3cr3t' }\n");
    let arguments = ["run", "my_job.wasm", "--print-config", "--node=n1", "--store=azure://acct/box"];
    let output = baton(folder.path(), &[("BATON_GRACE", "3s")], &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Collapses the padding between columns, because the column widths depend on the path of the test's temporary
    // folder.
    let table: Vec<String> =
        stdout(&output).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let cache = format!("cache {}/.cache/baton default", folder.path().display());
    let expected = format!(
        "\
SETTING VALUE FROM
config baton.toml default
store azure://acct/box flag --store
create false default
allow-weaker-isolation false default
node n1 flag --node
log-format text default
admin 127.0.0.1:7070 (or the next free port) default
admin-token-file none default
admin-tls-cert none default
admin-tls-key none default
admin-advertise own default
scheduled-events auto default
reclaim true default
links true default
peer off default
peer-advertise own default
label none default
max-leaderships off default
{cache}

[my-job]
module my_job.wasm flag MODULE
election my-job default
priority 100 default
preempt false default
lease 15s default
grace 3s env BATON_GRACE
restart-delay 1m30s file baton.toml:restart-delay
probation 30s default
restart always default
schedule none default
time-zone UTC default
missed run-once default
shards 1 default
stall-after off default
pin none default
trust none default
compile-timeout 1m default
allow-http none default
http-ca none default
max-requests 64 default
max-memory 256MiB default
max-output 500 default
max-state 4MiB default
arg none default
env.TOKEN *** file baton.toml:env.TOKEN
config-var none default
secret none default
dir none default"
    );
    assert_eq!(table.join("\n"), expected);
    assert_eq!(stderr(&output), "");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn misspelled_key_is_reported_with_line_and_suggestion() {
    let folder = folder("\n[coordinators.job]\nmodule = 'x.wasm'\ngrase = '5s'\n");
    assert_wrong(
        &baton(folder.path(), &[], &["run"]),
        "baton.toml:4: coordinators.job.grase: there is no such key: did you mean `grace`?",
    );
}

#[test]
fn invalid_duration_is_reported_with_its_origin() {
    let folder = folder("");
    let wrong = "\"soon\" is not a duration: write it like 15s, 1m30s or 500ms";
    let output = baton(folder.path(), &[], &["run", "x.wasm", "--lease", "soon"]);
    assert_wrong(&output, &format!("--lease: {wrong}"));
    let output = baton(folder.path(), &[("BATON_GRACE", "soon")], &["run", "x.wasm"]);
    assert_wrong(&output, &format!("BATON_GRACE: {wrong}"));
    std::fs::write(folder.path().join("other.toml"), "restart-delay = 'soon'").unwrap();
    let output = baton(folder.path(), &[], &["run", "x.wasm", "--config=other.toml"]);
    assert_wrong(&output, &format!("other.toml:1: restart-delay: {wrong}"));
}

#[test]
fn every_command_reports_invalid_store_with_its_origin() {
    let folder = folder("store = 'azure://acct'\n");
    let wrong = |store: &str, problem: &str| {
        format!("`{store}` is not a store: {problem}; write sqlite:DIR, azure://ACCOUNT/CONTAINER or azurite")
    };
    for command in [
        &["run", "x.wasm"][..],
        &["status"],
        &["rerun", "job"],
        &["push", "x.wasm", "job"],
        &["modules", "job"],
        &["rollback", "job"],
        &["prune"],
    ] {
        let missing = wrong("azure://acct", "the URL contains no container");
        assert_wrong(&baton(folder.path(), &[], command), &format!("baton.toml:1: store: {missing}"));
        let unknown = wrong("s3://box", "it does not begin with a known scheme");
        let output = baton(folder.path(), &[("BATON_STORE", "s3://box")], command);
        assert_wrong(&output, &format!("BATON_STORE: {unknown}"));
        // The error never repeats credentials.
        let arguments = [command, &["--store=azure://acct/box?sig=s3cr3t"]].concat();
        let secret = wrong("azure://acct/box?***", "credentials come from the environment, never from the URL");
        assert_wrong(&baton(folder.path(), &[], &arguments), &format!("--store: {secret}"));
    }
}

#[test]
fn relative_store_in_file_is_resolved_against_file() {
    let folder = folder("");
    std::fs::create_dir(folder.path().join("etc")).unwrap();
    std::fs::write(folder.path().join("etc/other.toml"), "store = 'sqlite:leases'").unwrap();
    let status = |arguments: &[&str]| {
        let output = baton(folder.path(), &[], &[&["status", "--config=etc/other.toml"], arguments].concat());
        assert_eq!(output.status.code(), Some(1));
        stderr(&output).to_string()
    };
    let lease = |store: &str| folder.path().join(store).join("lease.db").display().to_string();
    let (from_file, from_flag) = (status(&[]), status(&["--store=sqlite:leases"]));
    assert!(from_file.contains(&lease("etc/leases")), "{from_file}");
    assert!(from_flag.contains(&lease("leases")), "{from_flag}");
}

#[test]
fn missing_config_file_is_an_error_only_if_named() {
    let folder = folder("");
    let output = baton(folder.path(), &[], &["run", "x.wasm", "--config=no.toml"]);
    assert_wrong(&output, "--config: \"no.toml\": there is no such file");
    let output = baton(folder.path(), &[], &["run", "x.wasm", "--print-config"]);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn usage_errors_exit_with_2_and_help_with_0() {
    let folder = folder("");
    for arguments in [
        &["run", "x.wasm", "--leese=15s"][..],
        &["frobnicate"],
        &["check"],
        &["rerun"],
        &["run", "x.wasm", "y.wasm"],
        &[],
    ] {
        let output = baton(folder.path(), &[], arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(stdout(&output), "");
        assert!(stderr(&output).contains("Usage: baton"), "{}", stderr(&output));
    }
    let output = baton(folder.path(), &[], &["run", "--leese=15s"]);
    assert!(stderr(&output).contains("--lease"), "{}", stderr(&output));
    for command in ["run", "status", "check", "rerun"] {
        let output = baton(folder.path(), &[], &[command, "--help"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(stdout(&output).contains(&format!("baton {command} ")), "{}", stdout(&output));
    }
    let output = baton(folder.path(), &[], &["--version"]);
    assert_eq!(stdout(&output), format!("baton {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_command_refuses_invalid_election_name() {
    let folder = folder("");
    for command in ["status", "rerun"] {
        assert_wrong(
            &baton(folder.path(), &[], &[command, "My\u{1b}Job"]),
            "ELECTION: \"My\\u{1b}Job\" is not an election's name: use 1 to 63 characters: a-z, 0-9 and hyphens, \
             starting with a letter",
        );
    }
}

#[test]
fn closed_stdout_is_not_a_failure() {
    let folder = folder("");
    let (reader, pipe) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(["run", "x.wasm", "--print-config"])
        .current_dir(folder.path())
        .env_clear()
        .env("HOME", folder.path())
        .stdout(pipe)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn completions_and_manual_pages_omit_internal_commands() {
    let folder = folder("");
    for (shell, word) in [("bash", "complete "), ("zsh", "#compdef baton"), ("fish", "complete "), ("elvish", "baton")]
    {
        let output = baton(folder.path(), &[], &["completions", shell]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{shell}");
        let script = stdout(&output);
        assert!(script.contains(word) && script.contains("BATON_COMPLETE"), "{shell}: {script}");
    }
    let output = baton(folder.path(), &[], &["completions", "cmd"]);
    assert_eq!(output.status.code(), Some(2));

    let output = baton(folder.path(), &[], &["schema"]);
    let schema: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(schema["properties"]["lease"]["type"], "string");

    let output = baton(folder.path(), &[], &["man"]);
    assert!(stdout(&output).contains(".TH baton 1") && stdout(&output).contains("rollback"), "{}", stdout(&output));
    let output = baton(folder.path(), &[], &["man", "a/man1"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    let pages = folder.path().join("a/man1");
    for name in ["baton.1", "baton-run.1", "baton-state-list.1", "baton-doctor.1"] {
        assert!(std::fs::read_to_string(pages.join(name)).unwrap().contains(".SH NAME"), "{name}");
    }
    assert!(!pages.join("baton-compile-module.1").exists());
    std::fs::write(folder.path().join("taken"), "").unwrap();
    let output = baton(folder.path(), &[], &["man", "taken"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write the manual pages into taken"), "{}", stderr(&output));
}

#[test]
fn missing_store_is_reported_once_and_not_created() {
    let commands: [&[&str]; 11] = [
        &["status", "job"],
        &["nodes", "job"],
        &["modules", "job"],
        &["history", "job"],
        &["state", "list", "job"],
        &["rollback", "job"],
        &["step-down", "job"],
        &["suspend", "job"],
        &["resume", "job"],
        &["transfer", "job", "--to=web-1"],
        &["break-lease", "job"],
    ];
    for command in commands {
        let folder = folder("");
        let output = baton(folder.path(), &[], &[command, &["--store=sqlite:store"]].concat());
        let error = stderr(&output);
        assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{command:?}: {error}");
        assert_eq!(error.matches("there is no store yet").count(), 1, "{command:?}: {error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{command:?}");
    }
}
