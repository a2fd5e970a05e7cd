//! Commands that exit on their own: `status`, `check`, `rerun`, `run --print-config`.

use baton_store::Digest;
use rusqlite::Connection;
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::modules;
use crate::node::{Journal, Launch, baton, finish, until};
use crate::store::Store;

/// All keys are always present in an election's row of `baton status --output=json`.
const KEYS: [&str; 12] = [
    "election",
    "lease",
    "term",
    "node",
    "since",
    "module",
    "outcome",
    "failures",
    "schedule",
    "suspended",
    "labels",
    "usage",
];

#[track_caller]
fn has_the_shape(status: &Value) {
    let mut keys: Vec<&str> = status.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut promised = KEYS;
    promised.sort_unstable();
    assert_eq!(keys, promised, "{status}");
    assert_eq!(status["election"], ELECTION);
}

#[test]
fn unreadable_election_does_not_hide_others() {
    let fleet = Fleet::new(Store::sqlite());
    let mut one = fleet.node("alpha");
    let mut other = fleet.launch_with("beta", &[("--election", "other")]).start();
    for node in [&mut one, &mut other] {
        node.after(0, "started");
        assert!(node.terminate().success());
    }
    let connection = Connection::open(fleet.store.folder().join("lease.db")).expect("the file");
    let spoilt = connection.execute("UPDATE lease SET outcome = 'what' WHERE election = 'fleet'", ());
    assert_eq!(spoilt, Ok(1));
    let all = fleet.command(&["status", "--output=json"]);
    assert_eq!((all.code, all.json().as_array().map(Vec::len)), (Some(1), Some(1)), "{all:?}");
    assert_eq!(all.json()[0]["election"], "other");
    assert!(all.stderr.starts_with("error: cannot read the election fleet"), "{all:?}");
    let own = fleet.command(&["status", "fleet"]);
    assert!(own.code == Some(1) && own.stderr.contains("cannot read the election fleet"), "{own:?}");
}

fn status_follows_the_lease(fleet: &Fleet) {
    let began = OffsetDateTime::now_utc();
    let (a, term) = fleet.leader("alpha");
    let held = fleet.status();
    has_the_shape(&held);
    assert_eq!((&held["lease"], &held["node"]), (&"held".into(), &"alpha".into()), "{held}");
    assert_eq!(held["term"], term);
    let since = OffsetDateTime::parse(held["since"].as_str().expect("a time"), &Rfc3339).expect("RFC 3339");
    assert!(since >= began - std::time::Duration::from_secs(1) && since <= OffsetDateTime::now_utc(), "{held}");
    let module = held["module"].as_str().expect("a digest");
    assert!(module.starts_with("sha256:") && module.len() == 7 + 64, "{held}");
    assert_eq!(held["outcome"], Value::Null);

    drop(a);
    let expired = fleet.status_until("an expired lease", |status| status["lease"] == "expired");
    has_the_shape(&expired);
    assert_eq!((&expired["node"], &expired["term"]), (&"alpha".into(), &term.into()), "the last leader: {expired}");

    let mut b = fleet.node("beta");
    fleet.beat_above(term);
    assert_eq!(b.terminate().code(), Some(0));
    let free = fleet.status_until("a free lease", |status| status["lease"] == "free");
    has_the_shape(&free);

    let all = fleet.command(&["status", "--output=json"]).json();
    assert_eq!(all, Value::Array(vec![free]), "without a name, all elections");
    let text = fleet.command(&["status"]);
    for word in [ELECTION, "free", "beta"] {
        assert!(text.stdout.contains(word), "`{word}` is missing in the text: {text:?}");
    }
}

#[test]
fn status_on_sqlite() {
    status_follows_the_lease(&Fleet::new(Store::sqlite()));
}

#[test]
fn status_on_azurite() {
    let fleet = Fleet::new(Store::azurite());
    let none = fleet.command(&["status", "--output=json"]);
    assert_eq!((none.code, none.stdout.trim()), (Some(0), "[]"), "{none:?}");
    status_follows_the_lease(&fleet);
}

#[test]
fn status_fails_when_store_is_missing() {
    let fleet = Fleet::new(Store::sqlite());
    let status = fleet.command(&["status", "--output=json"]);
    assert_eq!((status.code, status.stdout.as_str()), (Some(1), ""), "{status:?}");
    assert!(status.stderr.contains("lease.db") && status.stderr.contains("correct `--store`"), "{status:?}");
}

/// A host that is stopped (SIGSTOP) in the middle of a request keeps its store locked. Commands must then name the
/// process that holds the lock. Here, the test process itself holds the locks.
#[test]
fn commands_name_the_process_that_locks_the_store() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::KeepsHistory);
    let (mut node, _) = fleet.leader("alpha");
    assert!(node.terminate().success());
    let module = Guest::KeepsHistory.module().display().to_string();
    let pushed = fleet.command(&["push", &module, ELECTION]);
    assert_eq!(pushed.code, Some(0), "{pushed:?}");
    let (home, url, folder) = (fleet.home.path(), fleet.store.url(), fleet.store.folder());
    // The commands run in parallel, because each of them runs until its timeout.
    let check_holder_is_named = |locked: &[&str], commands: &[(&[&str], &str)]| {
        let locks = locked.iter().map(|name| {
            let connection = Connection::open(folder.join(name)).expect("the file");
            connection.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
            connection
        });
        let locks: Vec<Connection> = locks.collect();
        std::thread::scope(|scope| {
            let run = |args: &[&str]| {
                let mut command = baton(home);
                command.args(args).arg("--store").arg(&url);
                finish(command)
            };
            let runs: Vec<_> =
                commands.iter().map(|(args, file)| (scope.spawn(move || run(args)), args, file)).collect();
            for (started, args, file) in runs {
                let mut finished = started.join().expect("the command does not panic");
                // On a busy machine, a command may time out before SQLite reports the lock. In that case, the test runs
                // the command again.
                until("the lock to be named", || {
                    let holder = format!("process {} (", std::process::id());
                    let is_named = [*file, &holder].iter().all(|word| finished.stderr.contains(word));
                    assert_eq!(finished.code, Some(1), "`{file}`: {finished:?}");
                    if is_named { Ok(()) } else { Err(std::mem::replace(&mut finished, run(args))) }
                });
            }
        });
        drop(locks);
    };
    check_holder_is_named(
        &["history.db", "control.db", "state.db"],
        &[
            (&["history", ELECTION], "history.db"),
            (&["modules", ELECTION], "control.db"),
            (&["rollback", ELECTION], "control.db"),
            (&["prune", ELECTION, "--keep", "1"], "control.db"),
            (&["state", "list", ELECTION], "state.db"),
        ],
    );
    check_holder_is_named(&["modules.db"], &[(&["push", &module, ELECTION], "modules.db")]);
}

#[test]
fn status_shows_broken_lease_and_lease_of_other_client() {
    let fleet = Fleet::new(Store::azurite());
    let (a, _) = fleet.leader("alpha");
    drop(a);
    fleet.store.break_lease();
    assert_eq!(fleet.status()["lease"], "broken");
    fleet.store.hold_for_ever();
    assert_eq!(fleet.status()["lease"], "outside");
}

#[test]
fn finished_election_runs_again_only_after_rerun() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Done);
    let mut a = fleet.launch_with("alpha", &[("--restart", "on-failure")]).start();
    let first = a.after(0, "started");
    a.event("released", |event| event.name == "released");
    let finished = fleet.status();
    has_the_shape(&finished);
    assert_eq!((&finished["lease"], &finished["outcome"]), (&"free".into(), &"done".into()), "{finished}");

    // A node that starts now reports that the election is finished, and starts no instance.
    let _b = fleet.launch_with("beta", &[("--restart", "on-failure")]).start();
    fleet.journal.event("beta to report that the election is finished", |event| {
        event.from == "beta" && event.name == "finished"
    });
    let again = fleet.journal.events().iter().filter(|event| event.name == "started").count();
    assert_eq!(again, 1, "{:?}", fleet.journal.events());

    let start = fleet.command(&["rerun", ELECTION]);
    assert_eq!(start.code, Some(0), "{start:?}");
    fleet.journal.event("the next term", |event| event.name == "started" && event.term > first.term);
    assert!(a.is_running(), "a host keeps running after its election has finished");
    fleet.check_promises();
}

#[test]
fn rerun_and_status_fail_for_unknown_election() {
    let fleet = Fleet::new(Store::sqlite());
    let (_alpha, _) = fleet.leader("alpha");
    for command in ["rerun", "status"] {
        let refused = fleet.command(&[command, "nightly"]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
        for word in ["no election nightly", &fleet.store.url(), "--store"] {
            assert!(refused.stderr.contains(word), "no `{word}` in {refused:?}");
        }
    }
}

/// A host may be the first process of a container. SIGTERM does not end that process by default, so the host must
/// handle the signal itself, even while it compiles.
#[test]
fn host_that_compiles_its_module_shuts_down_cleanly() {
    let fleet = Fleet::new(Store::sqlite());
    let file = fleet.home.path().join("slow.wasm");
    std::fs::write(&file, modules::slow()).expect("written");
    let mut node = fleet.launch_from("alpha", &file, &[("--compile-timeout", "10m")]).start();
    node.event("the compilation", |event| event.name == "preparing" && event.text("step") == "compiling");
    assert_eq!(node.terminate().code(), Some(0));
    node.event("the reason of the shutdown", |event| event.name == "shutting_down");
    fleet.check_promises();
}

/// `baton run MODULE` must work without any flag, because it is a new user's first command. The environment variables
/// set only the log format that the test reads, and the guest's behavior.
#[test]
fn run_needs_only_the_module() {
    let home = tempfile::tempdir().expect("a folder");
    let journal = Journal::default();
    let mut run = baton(home.path());
    run.arg("run").arg(Guest::Beats.module());
    run.env("BATON_LOG_FORMAT", "json").env("BATON_ENV", "BEHAVIOUR=beat\nBEAT_MS=20");
    let mut node = Launch::of("first", run, &journal).start();
    let beat = node.event("a beat", |event| event.name == "output");
    let id = format!("{}-0", rustix::system::uname().nodename().to_string_lossy());
    assert_eq!((beat.text("election"), beat.text("node"), beat.term), ("fixtures", &*id, 1), "{beat:?}");
    let status = || {
        let mut status = baton(home.path());
        status.args(["status", "--output=json"]);
        finish(status).json()[0].clone()
    };
    let held = status();
    assert_eq!((&held["lease"], &held["node"], &held["term"]), (&"held".into(), &id.into(), &1.into()), "{held}");
    assert!(home.path().join(".local/state/baton/lease.db").exists(), "the store is in the user's state folder");
    assert_eq!(node.terminate().code(), Some(0));
    assert_eq!(status()["lease"], "free");
}

#[test]
fn sockets_of_other_processes_do_not_delay_status() {
    use std::os::fd::AsRawFd as _;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    let fleet = Fleet::new(Store::sqlite()).with(Guest::Beats);
    let _node = fleet.node("alpha");
    fleet.beat_above(0);
    // These sockets have names like the sockets of hosts, and come first in the sort order. Their backlogs are full,
    // and no process accepts connections on them, so `baton status` must not wait for an answer from them.
    let user = rustix::process::geteuid().as_raw();
    let full: Vec<_> = (0..20)
        .map(|n| {
            let name = format!("baton/{user}/0-{}-{n}", std::process::id());
            let address = SocketAddr::from_abstract_name(name).expect("a name");
            let listener = UnixListener::bind_addr(&address).expect("a free name");
            // SAFETY: `listener` keeps the descriptor open, and a second `listen` only changes the backlog.
            assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
            (UnixStream::connect_addr(&address).expect("the backlog has room for one"), listener)
        })
        .collect();
    fleet.status_until("the usage", |status| status["usage"]["lines"].as_u64().is_some());
    drop(full);
}

#[test]
fn check_accepts_module_and_reports_its_contents() {
    let home = tempfile::tempdir().expect("a folder");
    let check = |args: &[&str]| {
        let mut command = baton(home.path());
        command.arg("check").arg(Guest::Beats.module()).args(args);
        finish(command)
    };
    let text = check(&[]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.stdout.contains("sha256:"), "{text:?}");
    let json = check(&["--output=json"]);
    assert_eq!(json.code, Some(0), "{json:?}");
    let report = json.json();
    let keys = |value: &Value| {
        let mut keys: Vec<String> = value.as_object().expect("an object").keys().cloned().collect();
        keys.sort_unstable();
        keys.join(" ")
    };
    let promised = "compile_ms digest exports imports kind module problems runs size world wrapped";
    assert_eq!(keys(&report), promised, "{json:?}");
    let bytes = std::fs::read(Guest::Beats.module()).expect("the guest");
    for (key, value) in [
        ("runs", Value::from(true)),
        ("kind", "coordinator".into()),
        ("world", "baton:host/coordinator@0.1.1".into()),
        ("digest", Digest::of(&bytes).to_string().into()),
        ("size", bytes.len().into()),
        ("problems", Value::Array(vec![])),
    ] {
        assert_eq!(report[key], value, "{key}: {json:?}");
    }
    let imports = report["imports"].as_array().expect("imports");
    assert!(imports.iter().all(|import| keys(import) == "granted name needs"), "{json:?}");
    let named = imports.iter().chain(report["exports"].as_array().expect("exports"));
    for name in named.filter_map(|one| one["name"].as_str().or(one.as_str())) {
        assert!(text.stdout.contains(name), "{name} is missing: {text:?}");
    }
}

#[test]
fn print_config_shows_origin_of_each_value() {
    let home = tempfile::tempdir().expect("a folder");
    std::fs::write(home.path().join("baton.toml"), "lease = \"20s\"\ngrace = \"2s\"\nrestart-delay = \"7s\"\n")
        .expect("written");
    let mut command = baton(home.path());
    command.env("BATON_LEASE", "30s").env("BATON_GRACE", "3s");
    command.arg("run").arg(Guest::Beats.module()).args(["--lease", "40s", "--env", "TOKEN=hunter2", "--print-config"]);
    let printed = finish(command);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(!format!("{printed:?}").contains("hunter2"), "a guest's environment is secret: {printed:?}");
    for (key, value, origin) in [
        ("lease", "40s", "--lease"),
        ("grace", "3s", "BATON_GRACE"),
        ("restart-delay", "7s", "baton.toml"),
        ("max-memory", "256", "default"),
    ] {
        let row = printed.stdout.lines().find(|line| line.split_whitespace().any(|word| word.trim_matches('"') == key));
        let row = row.unwrap_or_else(|| panic!("no row for {key}: {printed:?}"));
        assert!(row.contains(value) && row.contains(origin), "{key} should be {value} of {origin}: {row}");
    }
}

#[test]
fn completions_offer_elections_and_nodes_of_the_store() {
    let fleet = Fleet::new(Store::sqlite());
    let _alpha = fleet.leader("alpha");
    let complete = |words: &[&str]| {
        let mut command = baton(fleet.home.path());
        command.env("BATON_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command.env("_CLAP_IFS", "\n").env("BATON_STORE", fleet.store.url()).arg("--").args(words);
        finish(command).stdout
    };
    assert_eq!(complete(&["baton", "status", ""]).lines().next(), Some(ELECTION));
    assert!(complete(&["baton", "roll"]).contains("rollback"));
    assert!(!complete(&["baton", "make"]).contains("make-runners"));
    until("the node to be announced", || {
        let nodes = complete(&["baton", "transfer", ELECTION, "--to", ""]);
        if nodes.lines().any(|node| node == "alpha") { Ok(()) } else { Err(nodes) }
    });
}
