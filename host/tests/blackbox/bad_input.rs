//! Bad input. Each error must say what is wrong and where, and how to fix it. Bad input must never cause a panic or a
//! hang.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Signal, kill_process};
use tempfile::TempDir;

use crate::fleet::Fleet;
use crate::guests::Guest;
use crate::node::{Finished, Journal, Launch, Node, baton, finish};
use crate::store::Store;
use baton_test_support::server::free_port;

fn file(name: &str, content: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    fs::write(&path, content).expect("the file is written");
    (folder, path)
}

fn run(module: &Path, args: &[&str]) -> Finished {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = baton(home.path());
    command.arg("run").arg(module).args(args);
    finish(command)
}

#[track_caller]
fn refused(finished: &Finished, says: &[&str]) {
    assert_eq!(finished.code, Some(2), "a wrong configuration exits with 2: {finished:?}");
    has_error(finished, says);
}

#[track_caller]
fn has_error(finished: &Finished, says: &[&str]) {
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    for word in says {
        assert!(finished.stderr.contains(word), "no `{word}` in {finished:?}");
    }
}

#[track_caller]
fn unfit(module: &Path, says: &[&str]) {
    refused(&run(module, &[]), says);
    let home = tempfile::tempdir().expect("a folder");
    let mut command = baton(home.path());
    command.arg("check").arg(module);
    let checked = finish(command);
    assert_eq!(checked.code, Some(1), "`check` exits with 1: {checked:?}");
    let text = format!("{}{}", checked.stdout, checked.stderr);
    assert!(!text.contains("panicked"), "{checked:?}");
    for word in says {
        assert!(text.contains(word), "no `{word}` of `check` in {checked:?}");
    }
}

fn stays_and_says(node: &mut Node, says: &[&str]) {
    node.event(&format!("a complaint with {says:?}"), |event| {
        ["WARN", "ERROR"].contains(&event.text("level").to_uppercase().as_str())
            && says.iter().all(|word| event.raw.contains(word))
    });
    assert!(node.is_running(), "a host survives problems of its store");
}

// ---- modules ----

#[test]
fn missing_module_file_is_refused() {
    unfit(
        Path::new("/nowhere/coordinator.wasm"),
        &["there is no module at /nowhere/coordinator.wasm", "build the module"],
    );
}

#[test]
fn folder_instead_of_module_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("folder");
    std::fs::create_dir(&path).expect("a folder");
    unfit(&path, &[&path.display().to_string(), "regular file"]);
}

#[test]
fn text_file_instead_of_module_is_refused() {
    let (_folder, path) = file("notes.wasm", "Dear diary, today I did not compile anything.\n");
    unfit(&path, &["notes.wasm", "component"]);
}

#[test]
fn file_name_that_is_not_utf8_is_reported() {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = baton(home.path());
    command.args(["check", "--output=json"]).arg(OsStr::from_bytes(b"\xff.wasm"));
    let checked = finish(command);
    assert_eq!((checked.code, &checked.json()["runs"]), (Some(1), &false.into()), "{checked:?}");
}

#[test]
fn empty_module_file_is_refused() {
    let (_folder, path) = file("empty.wasm", "");
    unfit(&path, &["empty.wasm", "empty"]);
}

#[test]
fn core_module_is_refused() {
    let (_folder, path) = file("core.wasm", b"\0asm\x01\0\0\0");
    unfit(&path, &["core.wasm", "core module", "component"]);
}

#[test]
fn truncated_component_is_refused() {
    let whole = fs::read(Guest::Beats.module()).expect("the guest");
    let (_folder, path) = file("half.wasm", &whole[..whole.len() / 2]);
    unfit(&path, &["half.wasm"]);
}

#[test]
fn component_of_another_world_is_refused() {
    let (_folder, path) = file("other.wasm", OTHER_WORLD);
    unfit(&path, &["other.wasm", "baton:host/task", "SDK"]);
}

#[test]
fn unknown_import_is_refused() {
    let (_folder, path) = file("import.wasm", UNKNOWN_IMPORT);
    unfit(&path, &["import.wasm", "acme:rocket/launch", "does not support it"]);
}

#[test]
fn other_version_of_draft_interface_is_refused() {
    let text = r#"(component (import "wasi:logging/logging@0.2.0" (instance (export "log" (func)))))"#;
    let (_folder, path) = file("draft.wasm", wat::parse_str(text).expect("the text is valid"));
    unfit(&path, &["wasi:logging/logging@0.2.0", "supports only version 0.1.0-draft"]);
}

#[test]
fn module_file_of_200_mib_is_refused() {
    let (_folder, path) = file("large.wasm", b"\0asm\x0d\0\x01\0");
    File::options().write(true).open(&path).and_then(|file| file.set_len(200 << 20)).expect("a sparse file");
    unfit(&path, &["large.wasm", "limit"]);
}

/// `(component (instance) (export "acme:other/thing" (instance 0)))`, which implements none of Baton's worlds.
const OTHER_WORLD: &[u8] = b"\0asm\x0d\0\x01\0\x05\x03\x01\x01\0\x0b\x16\x01\0\x10acme:other/thing\x05\0\0";

/// `(component (import "acme:rocket/launch" (instance (export "fly" (func)))))`.
const UNKNOWN_IMPORT: &[u8] =
    b"\0asm\x0d\0\x01\0\x07\x10\x01\x42\x02\x01\x40\0\x01\0\x04\0\x03fly\x01\0\x0a\x17\x01\0\x12acme:rocket/launch\x05\0";

// ---- configuration ----

#[test]
fn misspelled_store_url_is_refused() {
    let module = Guest::Beats.module();
    refused(&run(&module, &["--store", "sqllite:/tmp/x"]), &["sqllite:/tmp/x", "sqlite:", "azure://"]);
    refused(&run(&module, &["--store", "azure://account"]), &["azure://account", "azure://ACCOUNT/CONTAINER"]);
}

#[test]
fn no_command_prints_credentials_of_a_url() {
    let address = "oci://me:c2VjcmV0@localhost:5000/job:1";
    for (args, says) in [
        (&["run", address][..], "`oci://***@localhost:5000/job:1` is not a reference to a module"),
        (&["check", address], "`oci://***@localhost:5000/job:1` is not a file: name the component's file"),
        (&["check", "--output=json", address], "`oci://***@localhost:5000/job:1` is not a file"),
        (&["push", address, "job"], "`oci://***@localhost:5000/job:1` is not a file"),
        (&["push", "job.wasm", address], "\"oci://***@localhost:5000/job:1\" is not an election's name"),
        (&["doctor", address], "`oci://***@localhost:5000/job:1` is not a file"),
        (
            &["run", "https://me:c2VjcmV0@example.com/job.wasm"],
            "`https://***@example.com/job.wasm` is an unknown kind of source",
        ),
    ] {
        let home = tempfile::tempdir().expect("a folder");
        let mut command = baton(home.path());
        command.args(args);
        let finished = finish(command);
        refused(&finished, &[says]);
        let printed = format!("{}{}", finished.stdout, finished.stderr);
        assert!(!printed.contains("c2VjcmV0"), "{finished:?}");
    }
}

#[test]
fn invalid_election_name_is_refused() {
    for name in ["", "Nightly", "9to5", "nightly_job", "../../etc/passwd", &"x".repeat(64)] {
        refused(&run(&Guest::Beats.module(), &["--election", name]), &[name, "a-z, 0-9 and hyphens"]);
    }
}

#[test]
fn unsupported_lease_duration_is_refused() {
    let module = Guest::Beats.module();
    refused(&run(&module, &["--lease", "1s"]), &["1s", "2s", "60s"]);
    refused(&run(&module, &["--lease", "5s", "--store", "azurite"]), &["5s", "15s", "60s"]);
    refused(&run(&module, &["--lease", "5s", "--store", "azure://account/container"]), &["5s", "15s", "60s"]);
    refused(&run(&module, &["--lease", "soon"]), &["soon", "--lease"]);
}

#[test]
fn memory_limit_too_large_for_lease_is_refused() {
    refused(&run(&Guest::Beats.module(), &["--lease", "2s", "--max-memory", "1GiB"]), &["--max-memory", "2s"]);
}

#[test]
fn misspelled_key_in_file_is_refused() {
    let (_folder, path) = file("baton.toml", "lease = \"15s\"\ngraze = \"5s\"\n");
    let path = path.to_str().expect("a path");
    refused(&run(&Guest::Beats.module(), &["--config", path]), &["baton.toml", "graze", "grace"]);
}

#[test]
fn misspelled_variable_is_reported_once_and_ignored() {
    let fleet = Fleet::new(Store::sqlite());
    let node = fleet.launch("alpha").env("BATON_PROBATON", "nonsense").env("BATON_PORT", "tcp://10.0.0.1:80").start();
    let warning = node.event("a warning", |event| event.name == "unknown_variable");
    assert_eq!(
        (warning.text("variable"), warning.text("suggestion")),
        ("BATON_PROBATON", "BATON_PROBATION"),
        "{warning:?}"
    );
    fleet.beat_above(0);
    assert_eq!(fleet.journal.events().iter().filter(|event| event.name == "unknown_variable").count(), 1);
}

#[test]
fn missing_or_malformed_config_file_is_refused() {
    refused(&run(&Guest::Beats.module(), &["--config", "/nowhere/baton.toml"]), &["/nowhere/baton.toml"]);
    let (_folder, path) = file("baton.toml", "lease = = 15s\n");
    refused(&run(&Guest::Beats.module(), &["--config", path.to_str().expect("a path")]), &["baton.toml"]);
}

#[test]
fn env_flag_without_value_is_refused() {
    refused(&run(&Guest::Beats.module(), &["--env", "NOVALUE"]), &["--env", "NAME=VALUE"]);
}

#[test]
fn run_without_module_is_refused() {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = baton(home.path());
    command.arg("run");
    refused(&finish(command), &["MODULE"]);
}

// ---- stores with problems: the host reports them, keeps running and recovers ----

#[test]
fn missing_container_is_reported_once_and_node_waits() {
    let fleet = Fleet::new(Store::bare_azurite());
    let mut node = fleet.node("alpha");
    stays_and_says(&mut node, &["container", "--create"]);
    fleet.store.create_container();
    fleet.beat_above(0);
    let events = fleet.journal.events();
    let named = |name: &str| events.iter().filter(|event| event.name == name).count();
    // The node logs `misconfigured` a second time only if it has logged `unreachable` in between.
    assert!(named("misconfigured") <= 1 + named("unreachable"), "the same problem is reported once: {events:?}");
    fleet.check_promises();
}

#[test]
fn missing_container_is_created_with_create_flag() {
    let fleet = Fleet::new(Store::bare_azurite());
    let _node = fleet.launch("alpha").arg("--create").start();
    fleet.beat_above(0);
    fleet.check_promises();
}

#[test]
fn wrong_account_key_is_reported_and_never_logged() {
    let fleet = Fleet::new(Store::azurite());
    let key = "d3Jvbmcga2V5LCB3cm9uZyBrZXksIHdyb25nIGtleQ==";
    let connection = format!("DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key}");
    let mut node = fleet.launch("alpha").env("AZURE_STORAGE_CONNECTION_STRING", &connection).start();
    stays_and_says(&mut node, &["AuthorizationFailure", "container fleet", "check the key"]);
    let log = format!("{:?}", fleet.journal.events());
    assert!(!log.contains(key), "a key is never logged: {log}");
}

/// A host inherits ignored and blocked signals from its parent, which may be a supervisor, or a shell that runs `trap
/// '' CHLD; exec baton …`. Even if the parent ignores and blocks SIGCHLD, the host must notice that a runner has
/// exited.
#[test]
fn instance_end_is_noticed_when_parent_blocks_signals() {
    let fleet = Fleet::new(Store::sqlite());
    const HIDES: &str = "import os, signal, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
                         signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
                         os.execv(sys.argv[1], sys.argv[1:])";
    let launch = fleet.launch("alpha").arg("--links=false").beginning_as("python3", &["-c", HIDES]);
    let mut alpha = launch.start();
    let term = fleet.beat_above(0).term;
    alpha.runners().into_iter().for_each(|runner| kill_process(runner, Signal::KILL).expect("the runner exists"));
    let ended = alpha.event("the end of the instance", |event| event.name == "ended" && event.term >= term);
    fleet.beat_above(ended.term);
    assert_eq!(alpha.terminate().code(), Some(0));
    alpha.event("the release", |event| event.name == "released");
    fleet.check_promises();
}

#[test]
fn unreachable_store_is_reported_and_host_stays() {
    let home = tempfile::tempdir().expect("a folder");
    let journal = Journal::default();
    let port = free_port();
    let url = format!("azurite://127.0.0.1:{port}/fleet");
    let mut node = Launch::run("alpha", home.path(), &journal).arg(Guest::Beats.module()).flag("--store", url).start();
    stays_and_says(&mut node, &[&format!("127.0.0.1:{port}")]);
    assert_eq!(node.terminate().code(), Some(0), "the shutdown is clean without a store");
}

#[test]
fn read_only_store_folder_is_reported_and_host_stays() {
    let fleet = Fleet::new(Store::sqlite());
    let folder = fleet.store.folder().display().to_string();
    let launch = fleet.launch("alpha").with_mounts(&format!("mount -t tmpfs -o ro,mode=700 tmpfs {folder}"));
    let mut node = launch.start();
    stays_and_says(&mut node, &[&folder]);
}

#[test]
fn full_disk_is_reported_and_host_recovers() {
    let fleet = Fleet::new(Store::sqlite());
    let folder = fleet.store.folder().display().to_string();
    // The disk of the store is full before the host starts. It is mounted only in the host's namespace, so the test
    // later frees space on it through `/proc/PID/root`.
    let fill =
        format!("mount -t tmpfs -o size=1M,mode=700 tmpfs {folder}\ndd if=/dev/zero of={folder}/ballast 2>&- || true");
    let mut node = fleet.launch("alpha").with_mounts(&fill).start();
    stays_and_says(&mut node, &["full"]);
    fs::remove_file(format!("/proc/{}/root/{folder}/ballast", node.pid())).expect("the disk is freed");
    fleet.beat_above(0);
    fleet.check_promises();
}
