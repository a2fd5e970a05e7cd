//! The commands that end by themselves: `status`, `check`, `start`, `run --print-config`.

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

/// The keys of one election in `baton status --json`, all of them, always.
const KEYS: [&str; 11] =
    ["election", "lease", "term", "node", "since", "module", "outcome", "failures", "suspended", "labels", "usage"];

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
fn what_cannot_be_read_of_one_election_hides_no_other() {
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

/// Status of an election that is held, expired, held again and free.
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
    assert_eq!((&expired["node"], &expired["term"]), (&"alpha".into(), &term.into()), "who led last: {expired}");

    let mut b = fleet.node("beta");
    fleet.beat_above(term);
    assert_eq!(b.terminate().code(), Some(0));
    let free = fleet.status_until("a free lease", |status| status["lease"] == "free");
    has_the_shape(&free);

    let all = fleet.command(&["status", "--output=json"]).json();
    assert_eq!(all, Value::Array(vec![free]), "without a name, all elections");
    let text = fleet.command(&["status"]);
    for word in [ELECTION, "free", "beta"] {
        assert!(text.stdout.contains(word), "`{word}` is missing in what people read: {text:?}");
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
fn status_of_a_store_that_is_not_there() {
    let fleet = Fleet::new(Store::sqlite());
    let status = fleet.command(&["status", "--output=json"]);
    assert_eq!((status.code, status.stdout.as_str()), (Some(1), ""), "{status:?}");
    assert!(status.stderr.contains("lease.db") && status.stderr.contains("correct `--store`"), "{status:?}");
}

/// As a host leaves it that is stopped in the middle of a request.
#[test]
fn commands_say_that_another_process_has_locked_the_store_and_what_to_do() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::KeepsHistory);
    let (mut node, _) = fleet.leader("alpha");
    assert!(node.terminate().success());
    let module = Guest::KeepsHistory.module().display().to_string();
    let pushed = fleet.command(&["push", &module, ELECTION]);
    assert_eq!(pushed.code, Some(0), "{pushed:?}");
    let (home, url, folder) = (fleet.home.path(), fleet.store.url(), fleet.store.folder());
    // Each waits for as long as it has patience, so that they wait together.
    let say_so = |locked: &[&str], commands: &[(&[&str], &str)]| {
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
            let asked: Vec<_> =
                commands.iter().map(|(args, file)| (scope.spawn(move || run(args)), args, file)).collect();
            for (asked, args, file) in asked {
                let mut finished = asked.join().expect("its answer");
                // On a busy machine a command may give up before SQLite has told it of the lock.
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
    say_so(
        &["history.db", "control.db", "state.db"],
        &[
            (&["history", ELECTION], "history.db"),
            (&["modules", ELECTION], "control.db"),
            (&["rollback", ELECTION], "control.db"),
            (&["prune", ELECTION, "--keep", "1"], "control.db"),
            (&["state", "list", ELECTION], "state.db"),
        ],
    );
    say_so(&["modules.db"], &[(&["push", &module, ELECTION], "modules.db")]);
}

#[test]
fn status_of_a_broken_lease_and_of_one_held_outside() {
    let fleet = Fleet::new(Store::azurite());
    let (a, _) = fleet.leader("alpha");
    drop(a);
    fleet.store.break_lease();
    assert_eq!(fleet.status()["lease"], "broken");
    fleet.store.hold_for_ever();
    assert_eq!(fleet.status()["lease"], "outside");
}

#[test]
fn a_finished_election_runs_again_only_when_it_is_started() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Done);
    let mut a = fleet.launch_with("alpha", &[("--restart", "on-failure")]).start();
    let first = a.after(0, "started");
    a.event("released", |event| event.name == "released");
    let finished = fleet.status();
    has_the_shape(&finished);
    assert_eq!((&finished["lease"], &finished["outcome"]), (&"free".into(), &"done".into()), "{finished}");

    // A node that starts now says that there is nothing to do, and does nothing.
    let _b = fleet.launch_with("beta", &[("--restart", "on-failure")]).start();
    fleet.journal.event("b says that it is over", |event| event.from == "beta" && event.name == "finished");
    let again = fleet.journal.events().iter().filter(|event| event.name == "started").count();
    assert_eq!(again, 1, "{:?}", fleet.journal.events());

    let start = fleet.command(&["rerun", ELECTION]);
    assert_eq!(start.code, Some(0), "{start:?}");
    fleet.journal.event("the next term", |event| event.name == "started" && event.term > first.term);
    assert!(a.is_running(), "a host outlives its election");
    fleet.check_promises();
}

#[test]
fn start_and_status_of_an_election_that_is_not_there() {
    let fleet = Fleet::new(Store::sqlite());
    let (_alpha, _) = fleet.leader("alpha");
    for command in ["rerun", "status"] {
        let refused = fleet.command(&[command, "nightly"]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
        for word in ["no election nightly", &fleet.store.url(), "--store"] {
            assert!(refused.stderr.contains(word), "`{word}` is not said: {refused:?}");
        }
    }
}

/// A host that is the first process of a container has to listen: nothing else would end it.
#[test]
fn a_host_that_still_compiles_its_module_ends_in_order() {
    let fleet = Fleet::new(Store::sqlite());
    let file = fleet.home.path().join("slow.wasm");
    std::fs::write(&file, modules::slow()).expect("written");
    let mut node = fleet.launch_from("alpha", &file, &[("--compile-timeout", "10m")]).start();
    node.event("to compile it", |event| event.name == "compiling");
    assert_eq!(node.terminate().code(), Some(0));
    node.event("to say why it ends", |event| event.name == "shutting_down");
    fleet.check_promises();
}

/// What a new user types first. What the guest and this test need comes from variables.
#[test]
fn a_run_needs_nothing_but_the_module() {
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
fn a_socket_of_somebody_else_does_not_hold_up_the_status() {
    use std::os::fd::AsRawFd as _;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    let fleet = Fleet::new(Store::sqlite()).with(Guest::Beats);
    let _node = fleet.node("alpha");
    fleet.beat_above(0);
    // Names like those of hosts, the first ones in any order: nobody takes what connects to them, and they are full.
    let user = rustix::process::geteuid().as_raw();
    let full: Vec<_> = (0..20)
        .map(|n| {
            let name = format!("baton/{user}/0-{}-{n}", std::process::id());
            let address = SocketAddr::from_abstract_name(name).expect("a name");
            let listener = UnixListener::bind_addr(&address).expect("a free name");
            // SAFETY: the descriptor is open, and a second call only changes how many may wait.
            assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
            (UnixStream::connect_addr(&address).expect("there is room for one"), listener)
        })
        .collect();
    // What the host says is shown all the same.
    fleet.status_until("its usage", |status| status["usage"]["lines"].as_u64().is_some());
    drop(full);
}

#[test]
fn check_says_yes_with_what_was_found() {
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
        ("world", "baton:host/coordinator@0.1.0".into()),
        ("digest", Digest::of(&bytes).to_string().into()),
        ("size", bytes.len().into()),
        ("problems", Value::Array(vec![])),
    ] {
        assert_eq!(report[key], value, "{key}: {json:?}");
    }
    let imports = report["imports"].as_array().expect("imports");
    assert!(imports.iter().all(|import| keys(import) == "granted name needs"), "{json:?}");
    // What people read names each of them, too.
    let named = imports.iter().chain(report["exports"].as_array().expect("exports"));
    for name in named.filter_map(|one| one["name"].as_str().or(one.as_str())) {
        assert!(text.stdout.contains(name), "{name} is missing: {text:?}");
    }
}

#[test]
fn print_config_says_where_each_value_came_from() {
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
    until("its node to be announced", || {
        let nodes = complete(&["baton", "transfer", ELECTION, "--to", ""]);
        if nodes.lines().any(|node| node == "alpha") { Ok(()) } else { Err(nodes) }
    });
}
