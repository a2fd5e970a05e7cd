//! Access to files. A guest reaches only the granted folders, and an instance does not end while one of its file calls
//! hangs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use time::OffsetDateTime;

use crate::fleet::Fleet;
use crate::fuse::Fuse;
use crate::guests::Guest;
use crate::node::{Finished, Node, baton, finish};
use crate::store::Store;

fn fleet() -> Fleet {
    Fleet::new(Store::sqlite()).with(Guest::UsesFiles)
}

/// The guest sees `folder` at the path `place`.
fn start(fleet: &Fleet, folder: &Path, place: &str, script: &[&str]) -> Node {
    start_with_lease(fleet, fleet.lease(), folder, place, script)
}

fn start_with_lease(fleet: &Fleet, lease: Duration, folder: &Path, place: &str, script: &[&str]) -> Node {
    let flags = [
        ("--lease", format!("{}s", lease.as_secs())),
        ("--dir", format!("{}::{place}", folder.display())),
        ("--env", format!("SCRIPT={}", script.join(";"))),
    ];
    let flags = flags.each_ref().map(|(flag, value)| (*flag, value.as_str()));
    fleet.launch_with("alpha", &flags).start()
}

/// `calls` pairs each call with the text that its answer must begin with.
#[track_caller]
fn check_answers(fleet: &Fleet, calls: &[(&str, &str)]) {
    for (call, expected) in calls {
        let answer = format!("{call}: ");
        let line = fleet.beat(call, |event| event.text("line").starts_with(&answer));
        let answer = line.text("line").strip_prefix(&answer).expect("the prefix");
        assert!(answer.starts_with(expected), "`{call}` should answer `{expected}`: {answer}");
    }
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("granted")).expect("a folder in it");
    fs::write(folder.path().join("granted/a"), "first").expect("a file");
    fs::write(folder.path().join("outside"), "not for guests").expect("a file");
    folder
}

const REFUSED: &str = "error: Operation not permitted";

#[test]
fn granted_folder_is_readable_and_writable() {
    let (fleet, folder) = (fleet(), folder());
    let granted = folder.path().join("granted");
    let calls = [
        ("read /data/a", "first"),
        ("write /data/b one,", "ok"),
        ("append /data/b  two", "ok"),
        ("read /data/b", "one, two"),
        ("mkdir /data/in", "ok"),
        ("rename /data/b /data/in/c", "ok"),
        ("list /data", "a in"),
        ("remove /data/a", "ok"),
    ];
    let mut node = start(&fleet, &granted, "/data", &calls.map(|(call, _)| call));
    check_answers(&fleet, &calls);
    assert_eq!(fs::read_to_string(granted.join("in/c")).expect("the file"), "one, two");
    assert!(!granted.join("a").exists());
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
}

#[test]
fn file_times_are_set_only_inside_granted_folder() {
    let (fleet, folder) = (fleet(), folder());
    let granted = folder.path().join("granted");
    symlink("a", granted.join("inside")).expect("a link");
    symlink("../outside", granted.join("outside")).expect("a link");
    let modified = |path: &Path| fs::metadata(path).and_then(|of| of.modified()).expect("a time");
    let before = modified(&folder.path().join("outside"));
    let calls = [
        ("set-own-times /data/a 1000", "ok"),
        ("set-times /data/inside 2000", "ok"),
        ("set-own-times /data/inside 3000", "error: Not supported"),
        ("set-times /data/outside 4000", "error: "),
        ("set-times /data/../outside 4000", "error: "),
        ("set-times /data/none 4000", "error: No such file"),
        ("set-times /data 5000", "ok"),
        ("list /data", "a inside outside"),
    ];
    let mut node = start(&fleet, &granted, "/data", &calls.map(|(call, _)| call));
    check_answers(&fleet, &calls);
    let at = |seconds| std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    assert_eq!(modified(&granted.join("a")), at(2000));
    assert_eq!(modified(&granted), at(5000));
    assert_eq!(modified(&folder.path().join("outside")), before);
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
}

#[test]
fn large_folder_is_listed_completely() {
    let (fleet, folder) = (fleet(), tempfile::tempdir().expect("a folder"));
    // The folder contains more names than a single read of the folder returns.
    let mut names: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
    names.iter().for_each(|name| fs::write(folder.path().join(name), "").expect("a file"));
    names.sort();
    let mut node = start(&fleet, folder.path(), "/data", &["list /data", "list /data"]);
    check_answers(&fleet, &[("list /data", &names.join(" "))]);
    assert_eq!(node.terminate().code(), Some(0));
    let ended = node.event("the end of the instance", |event| event.name == "ended");
    assert_eq!(ended.fields["usage"]["files"], 2, "at most the folder and one listing at a time: {ended:?}");
    fleet.check_promises();
}

#[test]
fn read_only_folder_is_not_written() {
    let (fleet, folder) = (fleet(), folder());
    let granted = folder.path().join("granted");
    let calls = [
        ("read /data/a", "first"),
        ("list /data", "a"),
        ("write /data/a x", REFUSED),
        ("append /data/a x", REFUSED),
        ("write /data/b x", REFUSED),
        ("mkdir /data/in", REFUSED),
        ("rename /data/a /data/b", REFUSED),
        ("remove /data/a", REFUSED),
        ("set-times /data/a 1000", REFUSED),
    ];
    let _node = start(&fleet, &granted, "/data:ro", &calls.map(|(call, _)| call));
    check_answers(&fleet, &calls);
    let denied = fleet.journal.events().into_iter().filter(|event| event.name == "capability_denied");
    let remedies: Vec<String> = denied.map(|event| event.text("remedy").to_owned()).collect();
    assert!(matches!(&remedies[..], [remedy] if remedy.contains(":ro")), "{remedies:?}");
    assert_eq!(fs::read_to_string(granted.join("a")).expect("the file"), "first");
    assert_eq!(fs::read_dir(&granted).expect("the folder").count(), 1);
}

#[test]
fn nothing_outside_granted_folder_is_reached() {
    let (fleet, folder) = (fleet(), folder());
    let granted = folder.path().join("granted");
    let outside = folder.path().join("outside");
    symlink(&outside, granted.join("absolute")).expect("a link");
    symlink("../outside", granted.join("relative")).expect("a link");
    symlink("..", granted.join("up")).expect("a link");
    let script = [
        "read /data/../outside",
        "read /data/absolute",
        "read /data/relative",
        "read /data/up/outside",
        "write /data/relative x",
        "write /data/absolute x",
        "list /data/..",
        "list /data/up",
        "rename /data/a /data/../b",
        "read /etc/passwd",
        &format!("read {}", outside.display()),
        "read /data/a",
    ];
    let _node = start(&fleet, &granted, "/data", &script);
    let (last, refused) = script.split_last().expect("some");
    check_answers(&fleet, &refused.iter().map(|call| (*call, "error: ")).collect::<Vec<_>>());
    check_answers(&fleet, &[(last, "first")]);
    assert_eq!(fs::read_to_string(&outside).expect("the file"), "not for guests");
    let there = |path: &Path| fs::read_dir(path).expect("the folder").count();
    assert_eq!((there(folder.path()), there(&granted)), (2, 4), "no file was created");
}

#[test]
fn no_file_is_reached_without_a_grant() {
    let fleet = fleet();
    let _node = fleet.launch_with("alpha", &[("--env", "SCRIPT=read /etc/passwd;list /;write /x y")]).start();
    check_answers(&fleet, &[("read /etc/passwd", "error: "), ("list /", "error: "), ("write /x y", "error: ")]);
}

#[test]
fn folder_is_opened_again_for_each_term() {
    let (fleet, folder) = (fleet(), folder());
    let granted = folder.path().join("granted");
    let node = start(&fleet, &granted, "/data", &["read /data/a"]);
    check_answers(&fleet, &[("read /data/a", "first")]);
    // While the granted folder is missing, no instance can start.
    fs::rename(&granted, folder.path().join("old")).expect("the folder is moved");
    fleet.store.break_lease();
    let ended =
        node.event("a term that cannot start", |event| event.name == "ended" && event.text("outcome") == "unable");
    for word in [&granted.display().to_string(), "--dir", "cannot open the folder", "No such file"] {
        assert!(ended.raw.contains(word), "no `{word}` in {ended:?}");
    }
    let term = ended.term;
    fs::rename(folder.path().join("old"), &granted).expect("the folder is moved back");
    fleet.beat("the file in a later term", |event| event.term > term && event.text("line") == "read /data/a: first");
    fleet.check_promises();
}

// ---- calls that hang ----

/// The pipe has no reader, so a guest that opens the pipe for writing blocks.
fn folder_with_pipe() -> TempDir {
    let folder = folder();
    let made = Command::new("mkfifo").arg(folder.path().join("granted/pipe")).status().expect("mkfifo runs");
    assert!(made.success());
    folder
}

fn wait_for_blocked_call(node: &Node) {
    crate::node::until("a call that blocks", || {
        let tasks = |runner| fs::read_dir(format!("/proc/{runner}/task")).into_iter().flatten().flatten();
        let is_blocked = |task: fs::DirEntry| {
            fs::read_to_string(task.path().join("wchan")).is_ok_and(|call| call.trim() == "wait_for_partner")
        };
        let found = node.runners().into_iter().flat_map(tasks).any(is_blocked);
        found.then_some(()).ok_or("no thread waits for the pipe".to_owned())
    });
}

#[test]
fn instance_is_killed_while_its_file_call_blocks() {
    let (fleet, folder) = (fleet(), folder_with_pipe());
    // The lease is long, so that it does not expire during the test.
    let lease = Duration::from_secs(60);
    let mut node = start_with_lease(&fleet, lease, &folder.path().join("granted"), "/data", &["write /data/pipe x"]);
    let term = node.after(0, "started").term;
    wait_for_blocked_call(&node);
    let standby = fleet.standby("beta", &node);
    node.signal(Signal::TERM);
    let (killed, ended) = (node.after(0, "killed"), node.after(0, "ended"));
    assert!(ended.ts > killed.ts && ended.text("outcome") == "killed", "{ended:?}");
    assert_eq!(node.wait().code(), Some(0));
    assert!(standby.after(term, "started").ts > ended.ts);
    fleet.check_promises();
}

#[test]
fn instance_does_not_end_while_its_write_hangs() {
    let Some(fuse) = Fuse::mount("hung") else { return };
    let fleet = fleet();
    let lease = Duration::from_secs(60);
    let mut node = start_with_lease(&fleet, lease, fuse.path(), "/data", &["append /data/hung x"]);
    let write = fuse.hung_write();
    node.signal(Signal::TERM);
    node.after(0, "killed");
    // Starting a standby takes much longer than ending an instance without a hung call. If the host did not wait for
    // the hung call, the instance would have ended by the time the standby is ready.
    let _standby = fleet.standby("beta", &node);
    let answered = OffsetDateTime::now_utc();
    drop(write);
    let ended = node.after(0, "ended");
    assert!(ended.ts >= answered, "ended at {}, before its write ended at {answered}", ended.ts);
    assert_eq!(node.wait().code(), Some(0));
    fleet.check_promises();
}

#[test]
fn host_exits_and_standby_leads_while_write_hangs() {
    let Some(fuse) = Fuse::mount("hung") else { return };
    let fleet = fleet();
    let mut node = start(&fleet, fuse.path(), "/data", &["append /data/hung x"]);
    let term = node.after(0, "started").term;
    let write = fuse.hung_write();
    let standby = fleet.standby("beta", &node);
    // The store works, so the host can renew its lease for as long as it waits for the hung write. It exits because
    // that wait has a time limit.
    node.signal(Signal::TERM);
    assert_eq!(node.wait().code(), Some(0));
    standby.after(term, "started");
    drop(write);
    fleet.check_promises();
}

#[test]
fn hung_write_costs_the_lease_but_not_the_host() {
    let Some(fuse) = Fuse::mount("hung") else { return };
    let fleet = fleet();
    let lease = Duration::from_secs(15);
    let mut node = start_with_lease(&fleet, lease, fuse.path(), "/data", &["append /data/hung x"]);
    let term = node.after(0, "started").term;
    let write = fuse.hung_write();
    let outage = fleet.store.cut();
    node.event("the loss of leadership", |event| {
        event.name == "leadership_lost" && event.text("reason").contains("does not end")
    });
    drop(outage);
    let events = fleet.journal.events();
    assert!(events.iter().all(|event| event.name != "ended" && event.name != "released"), "{events:?}");
    assert_eq!(fleet.status()["term"], term);
    drop(write);
    // No other node runs, so this node is elected again.
    node.after(term, "started");
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
}

#[test]
fn hung_guests_do_not_delay_others() {
    let folder = folder_with_pipe();
    let store = Store::sqlite();
    let home = tempfile::tempdir().expect("a folder");
    let table = |name: &str, guest: Guest, more: &str| {
        let env = guest.env().map(|(key, value)| format!("{key} = {value:?}")).join(", ");
        format!("[coordinators.{name}]\nmodule = {:?}\nenv = {{ {env}, {more} }}\n", guest.module())
    };
    let hangs: String = (0..8)
        .map(|n| {
            let table = table(&format!("hangs-{n}"), Guest::UsesFiles, "SCRIPT = 'write /data/pipe x'");
            format!("{table}dir = [\"{}/granted::/data\"]\n", folder.path().display())
        })
        .collect();
    let config = format!(
        "store = {:?}\ngrace = \"300ms\"\nlease = \"60s\"\n{}{hangs}",
        store.url(),
        table("beats", Guest::Beats, "")
    );
    fs::write(home.path().join("baton.toml"), config).expect("the file is written");
    let journal = crate::node::Journal::default();
    let mut node = crate::node::Launch::run("alpha", home.path(), &journal).start();
    let started = |n: usize| {
        journal
            .event("the start of a hung guest", |e| e.name == "started" && e.text("election") == format!("hangs-{n}"))
    };
    let last = (0..8).map(started).map(|event| event.ts).max().expect("some");
    let beats = |event: &crate::node::Event| event.name == "output" && event.text("election") == "beats";
    journal.wait_for_the_last("beats go on", |events| {
        let later = events.iter().filter(|event| beats(event) && event.ts > last).count();
        if later >= 100 { Ok(()) } else { Err(later as u64) }
    });
    node.signal(Signal::TERM);
    journal.event("the kill of a hung guest", |event| event.name == "killed");
    assert_eq!(node.wait().code(), Some(0));
}

// ---- wrong folders ----

#[track_caller]
fn refused(finished: &Finished, error: &str) {
    assert_eq!(finished.stderr, format!("error: wrong configuration: {error}\n"));
    assert_eq!(finished.code, Some(2));
}

#[test]
fn invalid_folder_grant_is_refused_with_remedy() {
    let folder = folder();
    let run = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = baton(folder.path());
        command.arg("run").arg(Guest::UsesFiles.module()).args(arguments).envs(variables.iter().copied());
        finish(command)
    };
    let form =
        "does not grant a folder: write HOST::GUEST, or HOST::GUEST:ro for read-only access, as in /srv/data::/data";
    for text in ["/srv", "/srv:/data", "::/data", "granted::data", "granted::/data:rw", "granted::/data/.."] {
        refused(&run(&["--dir", text], &[]), &format!("--dir: {text:?} {form}"));
    }
    let missing = r#"there is no folder "missing": create it, or fix the path"#;
    refused(&run(&["--dir", "missing::/data"], &[]), &format!("--dir: {missing}"));
    refused(&run(&[], &[("BATON_DIR", "granted::/a\nmissing::/data:ro")]), &format!("BATON_DIR: {missing}"));
    let file = r#"--dir: "outside" is not a folder: name the folder that contains it"#;
    refused(&run(&["--dir", "outside::/data"], &[]), file);

    let file = |text: &str| fs::write(folder.path().join("baton.toml"), text).expect("a file");
    file("\ndir = '/srv::/srv'\n");
    refused(&run(&[], &[]), r#"baton.toml:2: dir: write a list: dir = ["HOST::GUEST"]"#);
    file("dir = [\n 'granted::/data',\n 7 ]\n");
    refused(&run(&[], &[]), "baton.toml:3: dir: write each folder as a quoted string");
    file("dir = [\n 'granted::/data', 'here' ]\n");
    refused(&run(&[], &[]), &format!("baton.toml:2: dir: \"here\" {form}"));

    // Two folders must not have the same guest path, because one would hide the other.
    let twice = r#"two folders have the same guest path "/data": give each its own path"#;
    refused(&run(&["--dir", "granted::/data", "--dir", "granted::/data/:ro"], &[]), &format!("--dir: {twice}"));
    file("dir = [\n 'granted::/data',\n 'here::/data' ]\n");
    refused(&run(&[], &[]), &format!("baton.toml:3: dir: {twice}"));

    // Paths in the configuration file are relative to that file. If the file and a flag grant folders with the same
    // guest path, the flag wins.
    fs::create_dir(folder.path().join("etc")).expect("a folder");
    fs::create_dir(folder.path().join("etc/own")).expect("a folder");
    fs::write(folder.path().join("etc/b.toml"), "dir = ['own::/own:ro', 'own::/data/']").expect("a file");
    let shown = run(&["--config", "etc/b.toml", "--dir", "granted::/data", "--print-config"], &[]);
    let rows: Vec<Vec<&str>> = shown.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [
        vec!["dir./own", "etc/own::/own:ro", "file", "etc/b.toml:dir"],
        vec!["dir./data", "granted::/data", "flag", "--dir"],
    ] {
        assert!(rows.contains(&row), "{row:?} is missing: {shown:?}");
    }
}
