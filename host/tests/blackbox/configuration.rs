//! Configuration and secrets. The coordinator receives both, and secrets must appear nowhere else.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::fleet::Fleet;
use crate::guests::Guest;
use crate::node::{Event, Finished, baton, finish};
use crate::store::Store;

const SECRET: &str = "s3cr3t-0f-the-c00rdinator";

fn fleet(guest: Guest) -> Fleet {
    Fleet::new(Store::sqlite()).with(guest)
}

fn config_line(fleet: &Fleet, words: &[&str]) -> Event {
    fleet.beat(&format!("a line with {words:?}"), |event| words.iter().all(|word| event.text("line").contains(word)))
}

#[test]
fn config_and_secrets_reach_guest_as_variables_and_config() {
    let fleet = fleet(Guest::TellsConfig);
    fs::write(fleet.home.path().join("token"), format!("{SECRET}\n")).expect("a secret");
    let file = "config-var = { region = 'west', batch = 100, ratio = 0.5, dry-run = true, shown = 'file' }\n\
                secret = { token = { file = 'token' }, password = { env = 'DB_PASSWORD' } }\n";
    fs::write(fleet.home.path().join("baton.toml"), file).expect("a file");
    let launch = fleet.launch_with("alpha", &[("--config-var", "shown=flag"), ("--secret", "other=file:token")]);
    let mut node = launch.env("DB_PASSWORD", "pa ss=word").start();
    for (name, value) in [
        ("region", "west"),
        ("batch", "100"),
        ("ratio", "0.5"),
        ("dry-run", "true"),
        ("shown", "flag"),
        ("token", SECRET),
        ("password", "pa ss=word"),
        ("other", SECRET),
    ] {
        let line = config_line(&fleet, &[&format!("variable {name}={value}; "), &format!("config {name}={value}")]);
        // `--env` sets environment variables, not configuration entries. The guest does not get the host's own
        // variables.
        let line = line.text("line");
        assert!(!line.contains("config BEHAVIOUR") && line.contains("variable BEHAVIOUR=config"), "{line}");
        assert!(!line.contains("DB_PASSWORD") && !line.contains("PATH="), "{line}");
    }
    assert_eq!(node.terminate().code(), Some(0));
}

#[test]
fn secret_file_is_read_again_for_each_term() {
    let fleet = fleet(Guest::TellsConfig);
    let file = fleet.home.path().join("token");
    fs::write(&file, "old").expect("a secret");
    let _node = fleet.launch_with("alpha", &[("--secret", "token=file:token")]).start();
    config_line(&fleet, &["config token=old"]);
    let replace = |text: &str| {
        fs::write(file.with_extension("new"), text).expect("a secret");
        fs::rename(file.with_extension("new"), &file).expect("the file is replaced");
    };
    replace("new\r\n");
    let line = config_line(&fleet, &["config token=new"]);
    assert!(!line.text("line").contains('\r'), "the line ending is not part of the secret: {line:?}");
    // If the secret's file is missing, the term's instance cannot start, and the log says why. A later term reads the
    // file again.
    fs::remove_file(&file).expect("the file is removed");
    let ended = fleet.journal.event("a term that cannot start", |e| e.name == "ended" && e.text("outcome") == "unable");
    for word in ["a secret is missing", "token", "No such file"] {
        assert!(ended.raw.contains(word), "no `{word}` in {ended:?}");
    }
    replace("again");
    config_line(&fleet, &["config token=again"]);
    fleet.check_promises();
}

#[test]
fn rotated_kubernetes_secret_is_followed() {
    let fleet = fleet(Guest::TellsConfig);
    // Uses the layout of a kubelet's volume: the file is a link to `..data/token`, and `..data` is a link to the folder
    // of the current version.
    let mount = fleet.home.path().join("mount");
    let version = |folder: &str, text: &str| {
        fs::create_dir_all(mount.join(folder)).expect("a folder");
        fs::write(mount.join(folder).join("token"), text).expect("a secret");
        symlink(folder, mount.join("..data_tmp")).expect("a link");
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("the link is renamed");
    };
    version("..2026_11_21_1", "old");
    symlink("..data/token", mount.join("token")).expect("a link");
    fs::create_dir(fleet.home.path().join("data")).expect("a folder");
    let flags = [("--secret", "token=file:mount/token"), ("--dir", "data::/data")];
    let _node = fleet.launch_with("alpha", &flags).start();
    config_line(&fleet, &["config token=old"]);
    version("..2026_11_21_2", "new");
    fs::remove_dir_all(mount.join("..2026_11_21_1")).expect("the folder exists");
    config_line(&fleet, &["config token=new"]);
    fleet.check_promises();
}

#[test]
fn secret_is_visible_only_to_guest() {
    let fleet = fleet(Guest::Beats);
    fs::write(fleet.home.path().join("token"), SECRET).expect("a secret");
    let flags = [("--secret", "token=file:token"), ("--config-var", "region=west")];
    let mut node = fleet.launch_with("alpha", &flags).env("BATON_SECRET", "other=env:MINE").env("MINE", SECRET).start();
    fleet.beat_above(0);
    let status = [fleet.command(&["status"]), fleet.command(&["status", "--output=json"])];
    assert_eq!(node.terminate().code(), Some(0));
    let log: String = fleet.journal.events().iter().map(|event| format!("{}\n", event.raw)).collect();
    let cmdline = ["run", "x.wasm", "--print-config", "--secret", "token=file:token", "--secret", "other=env:MINE"];
    let mut command = baton(fleet.home.path());
    command.args(cmdline).args(["--config-var", "region=west"]).env("MINE", SECRET);
    let table = finish(command);
    assert_eq!(table.code, Some(0), "{table:?}");
    let rows: Vec<Vec<&str>> = table.stdout.lines().map(|row| row.split_whitespace().take(2).collect()).collect();
    for row in [["config-var.region", "west"], ["secret.other", "***"], ["secret.token", "***"]] {
        assert!(rows.iter().any(|shown| shown == &row), "{row:?} is missing: {table:?}");
    }
    let visible = format!("{log}{status:?}{table:?}");
    assert!(visible.contains("beat in term 1") && !visible.contains(SECRET), "{visible}");
}

// ---- invalid secrets: errors name the source and never repeat its content ----

fn run(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Finished {
    let mut command: Command = baton(folder);
    command.arg("run").arg(Guest::Beats.module()).args(arguments).envs(variables.iter().copied());
    finish(command)
}

#[track_caller]
fn refused(finished: &Finished, error: &str) {
    assert_eq!(finished.stderr, format!("error: wrong configuration: {error}\n"));
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
}

#[test]
fn invalid_secret_is_reported_by_origin_without_its_value() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path();
    let file = |name: &str, content: &[u8]| fs::write(home.join(name), content).expect("a file");
    file("empty", b"\n");
    file("binary", b"\xff\xfe");
    file("nul", b"a\0b");
    File::create(home.join("large")).and_then(|file| file.set_len(100 << 20)).expect("a large file");
    let pipe = Command::new("mkfifo").arg(home.join("pipe")).status().expect("mkfifo runs");
    assert!(pipe.success());

    for (path, problem) in [
        ("missing", "cannot be read: No such file or directory (os error 2)"),
        ("empty", "is empty"),
        ("binary", "is not UTF-8: a secret must be text"),
        ("nul", "contains a NUL character, which a variable cannot contain"),
        ("large", "is larger than 64 KiB: does it contain a secret?"),
        ("pipe", "is not a regular file"),
        (".", "is not a regular file"),
    ] {
        let whole = home.join(path).display().to_string();
        let error =
            |place: &str, whole: &str| format!("{place}: cannot read \"t\" from the file {whole:?}, which {problem}");
        refused(&run(home, &["--secret", &format!("t=file:{path}")], &[]), &error("--secret", path));
        let toml = format!("[secret]\nt = {{ file = {path:?} }}\n");
        file("other.toml", toml.as_bytes());
        refused(&run(home, &[&format!("--config={}/other.toml", home.display())], &[]), &{
            error(&format!("{}/other.toml:2: secret.t", home.display()), &whole)
        });
    }
    let unset = r#"--secret: cannot read "t" from the host's variable "T", which is not set"#;
    refused(&run(home, &["--secret", "t=env:T"], &[]), unset);
    let empty = r#"BATON_SECRET: cannot read "t" from the host's variable "T", which is empty"#;
    refused(&run(home, &[], &[("BATON_SECRET", "t=env:T"), ("T", "")]), empty);

    // An error about a literal secret names the correct form and does not repeat the secret.
    let form = "write NAME=file:PATH or NAME=env:VARIABLE";
    let says = |problem: &str| format!("--secret: {problem}: {form}");
    refused(&run(home, &["--secret", &format!("t={SECRET}")], &[]), &says(r#"does not name the source of "t""#));
    refused(&run(home, &["--secret", "t=file:"], &[]), &says(r#"does not name the source of "t""#));
    let no_pair = format!("--secret: there is no `=`: {form}, and repeat --secret to set more");
    refused(&run(home, &["--secret", SECRET], &[]), &no_pair);
    let table = r#"name the secret's source, not its value: { file = "PATH" } or { env = "VARIABLE" }"#;
    for text in
        [format!("t = {SECRET:?}"), format!("t = {{ value = {SECRET:?} }}"), "t = { file = 'a', env = 'b' }".into()]
    {
        file("baton.toml", format!("[secret]\n{text}\n").as_bytes());
        refused(&run(home, &[], &[]), &format!("baton.toml:2: secret.t: {table}"));
    }
    // An error about malformed TOML does not repeat the secret either.
    for text in
        [format!("secret = {SECRET}"), format!("[secret]\nt = {{ file = {SECRET} }}"), format!("secret = '{SECRET}'")]
    {
        file("baton.toml", text.as_bytes());
        let finished = run(home, &[], &[]);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(!finished.stderr.contains(SECRET), "{finished:?}");
    }
}

#[test]
fn duplicate_name_and_non_text_value_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let twice = r#""token" is set more than once in env, config-var and secret: keep one"#;
    let run = |arguments: &[&str]| run(folder.path(), arguments, &[("T", SECRET)]);
    refused(&run(&["--secret", "token=env:T", "--config-var", "token=x"]), &format!("--secret: {twice}"));
    refused(&run(&["--config-var", "token=x", "--env", "token=y"]), &format!("--config-var: {twice}"));
    let file = "--config-var: there is no `=`: write NAME=VALUE, and repeat the option to set more; to name a \
                configuration file, use --config";
    refused(&run(&["--config-var", "baton.toml"]), file);
    fs::write(folder.path().join("baton.toml"), "[config-var]\nlist = [1, 2]\n").expect("a file");
    refused(&run(&[]), "baton.toml:2: config-var.list: write a quoted string, a number, true or false");
}
