//! Publishes modules as operators and their pipelines do. Pushes run concurrently, and may be killed at any moment.

#![allow(clippy::disallowed_methods, reason = "the duration of a push only spreads the moments at which it is killed")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use azure_core::base64;
use baton_election::ElectionName;
use baton_modules::{VersionList, read_versions};
use baton_store::{Announcement, Digest, ModuleStore as _, ObjectStore};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Finished, Launch, Node, finish, until};
use crate::scenarios;
use crate::store::Store;
use baton_test_support::modules::numbered;

scenarios! {
    on_both_stores: [
        pushed_version_is_listed_and_rolled_back,
    ],
    on_sqlite: [
        module_that_cannot_run_is_not_pushed,
        signature_is_pushed_with_its_module,
        concurrent_pushes_are_all_kept_and_one_is_current,
        killed_push_lists_no_version_without_bytes,
        push_replaces_a_damaged_module_in_the_store,
        modules_lists_the_nodes_of_each_version,
        push_warns_of_nodes_that_follow_another_source,
        prune_removes_old_versions,
        nodes_run_and_announce_the_pushed_version,
    ],
}

fn pushed_version_is_listed_and_rolled_back(fleet: Fleet) {
    let versions: Vec<Version> = (0..3).map(|n| Version::new(&fleet, n)).collect();
    for version in &versions {
        let pushed = version.push();
        assert_eq!(pushed.code, Some(0), "{pushed:?}");
        assert!(
            pushed.stdout.starts_with(&format!("{} is now the current version of {ELECTION} on ", version.digest)),
            "{pushed:?}"
        );
        assert!(pushed.stdout.contains(&format!("baton modules {ELECTION}")), "{pushed:?}");
    }
    let [oldest, old, new] = &versions[..] else { unreachable!() };
    assert_eq!(listed(&fleet), [(new.digest, true), (old.digest, false), (oldest.digest, false)]);
    let rows = rows(&fleet);
    let mut keys: Vec<&str> = rows[0].as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    let promised = [
        "at",
        "by",
        "current",
        "digest",
        "nodes",
        "pushed",
        "reason",
        "rejected_at",
        "rejected_by",
        "signed",
        "size",
        "verdict",
    ];
    assert_eq!(keys, promised, "{rows:?}");
    assert_eq!((&rows[0]["size"], &rows[0]["verdict"]), (&new.size.into(), &"on-probation".into()), "{rows:?}");
    assert!(rows[0]["by"].as_str().is_some_and(|by| by.starts_with("ann@")), "{rows:?}");
    let text = fleet.command(&["modules", ELECTION]);
    for word in ["current", &new.digest.to_string()[..19], "on probation", "ann@"] {
        assert!(text.stdout.contains(word), "`{word}` is missing: {text:?}");
    }

    let again = new.push();
    assert!(again.code == Some(0) && again.stdout.contains(": nothing changed\n"), "{again:?}");
    assert_eq!(self::rows(&fleet), rows);

    let back = fleet.command(&["rollback", ELECTION]);
    assert!(back.code == Some(0) && back.stdout.contains(&old.digest.to_string()), "{back:?}");
    assert_eq!(listed(&fleet), [(old.digest, true), (new.digest, false), (oldest.digest, false)]);
    let named = fleet.command(&["rollback", ELECTION, &oldest.digest.hex()[..8]]);
    assert!(named.code == Some(0) && named.stdout.contains(&oldest.digest.to_string()), "{named:?}");
    let named = fleet.command(&["rollback", ELECTION, &oldest.digest.to_string()]);
    assert!(named.code == Some(0) && named.stdout.contains("was already the current version"), "{named:?}");
    assert_eq!(listed(&fleet), [(oldest.digest, true), (old.digest, false), (new.digest, false)]);

    for (args, error) in [
        (&["rollback", ELECTION, "12345678"][..], "there is no version sha256:12345678"),
        (&["rollback", "nobody"], "no module was pushed for this election"),
        (&["modules", "nobody"], "there is no election nobody"),
        (&["prune", "nobody"], "there is no election nobody"),
    ] {
        let refused = fleet.command(args);
        assert!(refused.code == Some(1) && refused.stdout.is_empty() && refused.stderr.contains(error), "{refused:?}");
    }
    let refused = fleet.command(&["rollback", ELECTION, "1234567"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("8 or more"), "{refused:?}");
    assert_eq!(listed(&fleet)[0], (oldest.digest, true));
}

fn module_that_cannot_run_is_not_pushed(fleet: Fleet) {
    let path = fleet.home.path().join("other.wasm");
    let other = r#"(component (import "acme:rocket/launch" (func)))"#;
    std::fs::write(&path, wat::parse_str(other).expect("the text is right")).expect("written");
    let module = path.to_str().expect("text");
    let mut check = crate::node::baton(fleet.home.path());
    check.args(["check", module]);
    let (checked, pushed) = (finish(check), fleet.command(&["push", module, ELECTION]));
    let without_time = |finished: &Finished| {
        finished.stdout.lines().filter(|line| !line.contains("compiled in")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(checked.stdout.contains("acme:rocket/launch"), "{checked:?}");
    assert_eq!((pushed.code, without_time(&pushed)), (Some(1), without_time(&checked)), "{pushed:?}");

    std::fs::write(&path, "no module").expect("written");
    for refused in [
        fleet.command(&["push", module, ELECTION]),
        fleet.command(&["push", "missing.wasm", ELECTION]),
        fleet.command(&["push", ".", ELECTION]),
    ] {
        assert!(refused.code == Some(1) && refused.stdout.is_empty() && !refused.stderr.is_empty(), "{refused:?}");
    }
    let refused = fleet.command(&["modules", ELECTION]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
}

fn signature_is_pushed_with_its_module(fleet: Fleet) {
    let version = Version::new(&fleet, 1);
    let signature_file = version.path.with_extension("wasm.minisig");
    std::fs::write(&signature_file, "untrusted comment: no signature\nat all\n").expect("written");
    let refused = version.push();
    assert!(refused.code == Some(1) && refused.stderr.contains("not a minisign signature"), "{refused:?}");
    let missing = fleet.command(&["push", version.path(), ELECTION, "--signature", "missing"]);
    assert!(missing.code == Some(1) && missing.stderr.contains("cannot read missing"), "{missing:?}");

    std::fs::write(&signature_file, signature("election:another")).expect("written");
    let refused = fleet.command(&["push", version.path(), ELECTION]);
    assert!(refused.code == Some(1) && refused.stderr.contains("for other elections (another)"), "{refused:?}");
    std::fs::write(&signature_file, signature("one")).expect("written");
    assert_eq!(version.push().code, Some(0));
    let before = control(&fleet).pushed.remove(0);
    assert_eq!(before.signature.as_deref(), Some(&*signature("one")));
    assert_eq!(rows(&fleet)[0]["signed"], true);
    let other = fleet.home.path().join("other");
    std::fs::write(&other, signature("two")).expect("written");
    let signed = fleet.command(&["push", version.path(), ELECTION, "--signature", other.to_str().expect("text")]);
    assert!(signed.code == Some(0) && signed.stdout.contains("only its signature is new"), "{signed:?}");
    let entry = &control(&fleet).pushed[0];
    assert_eq!((entry.serial, entry.signature.as_deref()), (before.serial, Some(&*signature("two"))));
}

fn concurrent_pushes_are_all_kept_and_one_is_current(fleet: Fleet) {
    let versions: Vec<Version> = (0..8).map(|n| Version::new(&fleet, n)).collect();
    let finished: Vec<Finished> = std::thread::scope(|scope| {
        let pushes: Vec<_> = versions.iter().map(|version| scope.spawn(|| version.push())).collect();
        pushes.into_iter().map(|push| push.join().expect("no panic")).collect()
    });
    for (version, finished) in versions.iter().zip(&finished) {
        let current = format!("{} is now the current version", version.digest);
        assert!(finished.code == Some(0) && finished.stdout.starts_with(&current), "{finished:?}");
    }
    let listed = listed(&fleet);
    assert_eq!(listed.iter().filter(|(_, is_current)| *is_current).count(), 1, "{listed:?}");
    assert!(listed[0].1, "the newest is current: {listed:?}");
    let mut digests: Vec<Digest> = listed.iter().map(|(digest, _)| *digest).collect();
    digests.sort();
    let mut pushed: Vec<Digest> = versions.iter().map(|version| version.digest).collect();
    pushed.sort();
    assert_eq!(digests, pushed);
    check_listed_modules(&fleet);
}

fn killed_push_lists_no_version_without_bytes(fleet: Fleet) {
    let began = Instant::now();
    let first = Version::new(&fleet, 51);
    assert_eq!(first.push().code, Some(0));
    let (mut whole, first) = (began.elapsed(), first.digest);
    let (mut current, mut before, mut killed, mut completed) = (first, first, 0, 0);
    for n in 0..50 {
        let version = Version::new(&fleet, n);
        let mut pusher = version.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process");
        // Kills each push at a different moment. The fractional parts of the multiples of the golden ratio spread these
        // moments evenly over the duration of a push.
        std::thread::sleep(whole.mul_f64((f64::from(n) * 0.618_034).fract()));
        let pid = Pid::from_raw(pusher.id().cast_signed()).expect("a pid is never 0");
        kill_process(pid, Signal::KILL).expect("a child that is not reaped");
        let status = pusher.wait().expect("a child");
        killed += u32::from(!status.success());
        // Adapts the estimate of a push's duration, so that about half of the pushes are killed before they end.
        whole = whole.mul_f64(if status.success() { 0.85 } else { 1.15 });
        let newest = check_listed_modules(&fleet);
        // If the previous push was killed, its last request may have reached the store only after the previous check.
        // So the previous push's version may be the current one, too.
        assert!([current, before, version.digest].contains(&newest), "neither the old nor the new one is current");
        assert!(!status.success() || newest == version.digest, "the push succeeded and is not current");
        completed += u32::from(newest == version.digest);
        (current, before) = (newest, version.digest);
    }
    println!("a push takes {whole:?}; of 50, {killed} were killed and {completed} became current");
    let last = Version::new(&fleet, 50);
    assert_eq!(last.push().code, Some(0));
    assert_eq!(check_listed_modules(&fleet), last.digest);
}

fn push_replaces_a_damaged_module_in_the_store(fleet: Fleet) {
    let version = Version::new(&fleet, 1);
    let created = fleet.command(&["push", Version::new(&fleet, 2).path(), ELECTION]);
    assert_eq!(created.code, Some(0), "{created:?}");
    with_modules(&fleet, async |modules| modules.put_module(&version.digest, "damaged".into()).await.expect("stored"));
    let pushed = version.push();
    assert_eq!(pushed.code, Some(0), "{pushed:?}");
    assert_eq!(check_listed_modules(&fleet), version.digest);
}

fn modules_lists_the_nodes_of_each_version(fleet: Fleet) {
    let (old, new) = (Version::new(&fleet, 1), Version::new(&fleet, 2));
    assert_eq!((old.push().code, new.push().code), (Some(0), Some(0)));
    let from_a_file = Digest::of(b"of a file");
    with_modules(&fleet, async |modules| {
        let alpha = Announcement::now("alpha", "a", "", vec![new.digest, old.digest], Some(new.digest));
        let beta = Announcement::now("beta", "b", "", vec![new.digest], Some(from_a_file));
        let gamma = Announcement {
            at: "2026-01-01T00:00:00Z".to_owned(),
            ..Announcement::now("gamma", "c", "", vec![old.digest], None)
        };
        for announcement in [alpha, beta, gamma] {
            modules.announce(&election(), &announcement.node, announcement.encode()).await.expect("written");
        }
        modules.announce(&election(), "delta", "no announcement".into()).await.expect("written");
    });
    let rows = rows(&fleet);
    let nodes = |row: &Value| -> Vec<(String, bool)> {
        let nodes = row["nodes"].as_array().expect("nodes").iter();
        nodes.map(|node| (node["node"].as_str().expect("text").to_owned(), node["runs"] == true)).collect()
    };
    let named = |name: &str, runs| (name.to_owned(), runs);
    assert_eq!(nodes(&rows[0]), [named("alpha", true), named("beta", false)], "{rows:?}");
    assert_eq!(nodes(&rows[1]), [named("alpha", false), named("gamma", false)], "{rows:?}");
    assert_eq!((&rows[2]["digest"], &rows[2]["pushed"]), (&from_a_file.to_string().into(), &false.into()), "{rows:?}");
    let text = fleet.command(&["modules", ELECTION]).stdout;
    for word in ["alpha (runs), beta", "alpha, gamma (", "ago)", "unpushed", "beta (runs)"] {
        assert!(text.contains(word), "`{word}` is missing:\n{text}");
    }
}

fn push_warns_of_nodes_that_follow_another_source(fleet: Fleet) {
    let _alpha = fleet.node("alpha");
    let _beta = follows_the_store(&fleet, "beta");
    until("alpha to announce its version", || {
        let modules = fleet.command(&["modules", ELECTION]);
        if modules.stdout.contains("alpha (runs)") { Ok(()) } else { Err(modules) }
    });
    with_modules(&fleet, async |modules| {
        let old = Announcement::now("gamma", "c", "oci://ghcr.io/acme/job:1", vec![], None);
        let old = Announcement { at: "2026-01-01T00:00:00Z".to_owned(), ..old };
        modules.announce(&election(), "gamma", old.encode()).await.expect("written");
    });
    let pushed = Version::new(&fleet, 1).push();
    assert!(pushed.code == Some(0) && pushed.stdout.contains("is now the current version of"), "{pushed:?}");
    let file = Guest::Beats.module();
    for word in ["warning: ", &format!("alpha ({})", file.display()), &format!("baton run store://{ELECTION}")] {
        assert!(pushed.stderr.contains(word), "`{word}` is missing: {pushed:?}");
    }
    assert!(!pushed.stderr.contains("beta") && !pushed.stderr.contains("gamma"), "{pushed:?}");
}

fn nodes_run_and_announce_the_pushed_version(fleet: Fleet) {
    let beats = std::fs::read(Guest::Beats.module()).expect("the guest");
    let [old, new] = [1, 2].map(|n| Version::of(&fleet, beats.clone(), n));
    let until_runs = |version: &Version| {
        until("the version to run on one node and be held by both", || {
            let rows = rows(&fleet);
            let row = rows.iter().find(|row| row["digest"] == version.digest.to_string());
            let nodes = row.map(|row| row["nodes"].as_array().expect("nodes").clone()).unwrap_or_default();
            let running = nodes.iter().filter(|node| node["runs"] == true).count();
            if nodes.len() == 2 && running == 1 { Ok(()) } else { Err(rows) }
        });
    };
    let mut nodes: Vec<Node> = ["alpha", "beta"].map(|name| follows_the_store(&fleet, name)).into_iter().collect();
    assert_eq!(old.push().code, Some(0));
    until_runs(&old);
    assert_eq!(new.push().code, Some(0));
    until_runs(&new);
    assert_eq!(listed(&fleet), [(new.digest, true), (old.digest, false)]);
    let back = fleet.command(&["rollback", ELECTION]);
    assert_eq!(back.code, Some(0), "{back:?}");
    until_runs(&old);
    // A node that exits withdraws its announcement only if the store answers in time. Otherwise, the test tries again.
    until("no node to be announced", || {
        for node in &mut nodes {
            assert!(node.terminate().success());
        }
        let rows = rows(&fleet);
        if rows.iter().all(|row| row["nodes"] == Value::Array(vec![])) {
            return Ok(());
        }
        nodes = ["alpha", "beta"].map(|name| follows_the_store(&fleet, name)).into_iter().collect();
        for node in &nodes {
            node.event("to be ready", |event| event.name == "module_ready");
        }
        Err(rows)
    });
    fleet.check_promises();
}

fn follows_the_store(fleet: &Fleet, name: &str) -> Node {
    let lease = format!("{}s", fleet.lease().as_secs());
    Launch::run(name, fleet.home.path(), &fleet.journal)
        .arg(format!("store://{ELECTION}"))
        .flag("--store", fleet.store.url())
        .flag("--lease", lease)
        .flag("--grace", "300ms")
        .flag("--max-memory", "64MiB")
        .flag("--env", "BEHAVIOUR=beat")
        .flag("--env", "BEAT_MS=20")
        .start()
}

fn prune_removes_old_versions(fleet: Fleet) {
    let versions: Vec<Version> = (0..6).map(|n| Version::new(&fleet, n)).collect();
    for version in &versions {
        assert_eq!(version.push().code, Some(0));
    }
    with_modules(&fleet, async |modules| {
        let announcement = Announcement::now("alpha", "a", "", vec![], Some(versions[1].digest));
        modules.announce(&election(), "alpha", announcement.encode()).await.expect("written");
    });
    let before = listed(&fleet);
    let nothing = fleet.command(&["prune", "--keep", "6"]);
    assert!(nothing.code == Some(0) && nothing.stdout.contains("removed in total: versions 0,"), "{nothing:?}");
    let rehearsed = fleet.command(&["prune", "--keep", "3", "--dry-run"]);
    assert!(rehearsed.stdout.contains("would remove in total: versions 2, modules 0, bytes 0"), "{rehearsed:?}");
    assert_eq!(listed(&fleet), before);
    let pruned = fleet.command(&["prune", ELECTION, "--keep", "3"]);
    assert!(pruned.code == Some(0) && pruned.stdout.contains("removed in total: versions 2"), "{pruned:?}");
    for removed in [&versions[0], &versions[2]] {
        assert!(pruned.stdout.contains(&removed.digest.to_string()), "{pruned:?}");
    }
    let left: Vec<Digest> = listed(&fleet).iter().map(|(digest, _)| *digest).collect();
    assert_eq!(left, [5, 4, 3, 1].map(|n: usize| versions[n].digest));

    // `prune` keeps the bytes of a removed version for at least an hour after they were stored. The test sets the
    // timestamps back by more than an hour, which it can do only in SQLite.
    let Store::Sqlite(folder) = &fleet.store else { return };
    let db = rusqlite::Connection::open(folder.path().join("modules.db")).expect("the file");
    db.execute("UPDATE module SET stored = stored - 3601", []).expect("an hour");
    let pruned = fleet.command(&["prune"]);
    let bytes = versions[0].size + versions[2].size;
    assert!(pruned.stdout.contains(&format!("versions 0, modules 2, bytes {bytes}")), "{pruned:?}");
    check_listed_modules(&fleet);
    assert_eq!(versions[0].push().code, Some(0));
    assert_eq!(check_listed_modules(&fleet), versions[0].digest);
}

#[test]
fn missing_container_is_reported_and_created_on_demand() {
    let fleet = Fleet::new(Store::bare_azurite());
    let version = Version::new(&fleet, 1);
    let refused = version.push();
    assert!(refused.code == Some(1) && refused.stderr.contains("--create"), "{refused:?}");
    let created = fleet.command(&["push", version.path(), ELECTION, "--create"]);
    assert_eq!(created.code, Some(0), "{created:?}");
    assert_eq!(listed(&fleet), [(version.digest, true)]);
}

#[test]
fn push_fails_when_store_is_away() {
    let fleet = Fleet::new(Store::azurite());
    let version = Version::new(&fleet, 1);
    let outage = fleet.store.cut();
    let failed = version.push();
    assert!(failed.code == Some(1) && failed.stderr.contains("cannot store sha256:"), "{failed:?}");
    drop(outage);
    assert_eq!(version.push().code, Some(0));
}

#[test]
fn modules_of_election_without_pushes_are_listed_as_unpushed() {
    let fleet = Fleet::new(Store::sqlite());
    let _leader = fleet.leader("alpha");
    fleet.status_until("the record", |status| status["term"] != Value::Null);
    let listed = fleet.command(&["modules", ELECTION, "--output=json"]);
    assert_eq!(listed.code, Some(0), "{listed:?}");
    // The table may also contain the version that the node runs, although that version was never pushed.
    let rows = listed.json();
    assert!(rows.as_array().is_some_and(|rows| rows.iter().all(|row| row["pushed"] == false)), "{listed:?}");
}

struct Version<'a> {
    fleet: &'a Fleet,
    path: PathBuf,
    digest: Digest,
    size: u64,
}

impl<'a> Version<'a> {
    fn new(fleet: &'a Fleet, n: u8) -> Self {
        Self::of(fleet, wat::parse_str(DONE).expect("the text is right"), n)
    }

    /// All variants of a module have the same code, but different digests.
    fn of(fleet: &'a Fleet, module: Vec<u8>, n: u8) -> Self {
        let module = numbered(module, n);
        let path = fleet.home.path().join(format!("version-{n}.wasm"));
        std::fs::write(&path, &module).expect("written");
        Self { fleet, path, digest: Digest::of(&module), size: module.len() as u64 }
    }

    fn path(&self) -> &str {
        self.path.to_str().expect("text")
    }

    fn command(&self) -> Command {
        let mut command = self.fleet.baton(&["push", self.path(), ELECTION]);
        command.env("USER", "ann");
        command
    }

    fn push(&self) -> Finished {
        finish(self.command())
    }
}

const DONE: &str = r#"(component
  (core module $m (func (export "run") (result i32) i32.const 0))
  (core instance $i (instantiate $m))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $exported (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $exported))
)"#;

/// Text in the format of a minisign signature. The signature itself is invalid.
fn signature(comment: &str) -> String {
    let signature = [b"ED".as_slice(), &[7; 8 + 64]].concat();
    let (signature, global) = (base64::encode(signature), base64::encode([7; 64]));
    format!("untrusted comment: x\n{signature}\ntrusted comment: {comment}\n{global}\n")
}

fn rows(fleet: &Fleet) -> Vec<Value> {
    // The command fails if the store is busy for too long. In that case, the test runs the command again.
    until("a list", || {
        let listed = fleet.command(&["modules", ELECTION, "--output=json"]);
        if listed.code == Some(0) { Ok(listed.json().as_array().expect("an array").clone()) } else { Err(listed) }
    })
}

/// Returns the listed versions. The version that was pushed or restored last comes first. The boolean is true for the
/// current version.
fn listed(fleet: &Fleet) -> Vec<(Digest, bool)> {
    let digest = |row: &Value| row["digest"].as_str().expect("text").parse().expect("a digest");
    rows(fleet).iter().map(|row| (digest(row), row["current"] == true)).collect()
}

/// Checks that the store has the bytes of each listed version. Returns the digest of the current version.
fn check_listed_modules(fleet: &Fleet) -> Digest {
    let control = control(fleet);
    for entry in &control.pushed {
        let module = with_modules(fleet, async |modules| {
            modules.get_module(&entry.digest, u64::MAX).await.expect("an answer").expect("the module")
        });
        assert_eq!((Digest::of(&module), module.len() as u64), (entry.digest, entry.size));
    }
    control.current().expect("a current version").digest
}

fn control(fleet: &Fleet) -> VersionList {
    with_modules(fleet, async |modules| {
        read_versions(modules, &election()).await.expect("an answer").expect("a pushed version")
    })
}

pub fn with_modules<T>(fleet: &Fleet, act: impl AsyncFnOnce(&dyn ObjectStore) -> T) -> T {
    let store = baton_store::open(&fleet.store.url().parse().expect("a URL")).expect("a store");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(act(&*store))
}

fn election() -> ElectionName {
    ElectionName::new(ELECTION).expect("a name")
}
