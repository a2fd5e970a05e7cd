//! What a coordinator may use: each limit that is met says which it is and what grants more, coming near it is said
//! before, and the end of an instance says what it used.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Event, Finished, Launch, Node, baton, finish, until, with_descriptors};
use crate::store::Store;

/// A node that runs a module with these flags.
fn start(fleet: &Fleet, module: &Path, flags: &[(&str, &str)]) -> Node {
    let store = fleet.store.url();
    let usual = [("--election", ELECTION), ("--store", &store), ("--lease", "15s"), ("--restart-delay", "100ms")];
    let launch = Launch::run("alpha", fleet.home.path(), &fleet.journal).arg(module);
    usual.iter().chain(flags).fold(launch, |launch, (flag, value)| launch.flag(flag, value)).start()
}

/// Waits for the end of the first instance.
fn gone(node: &Node) -> Event {
    node.event("its end", |event| event.name == "ended")
}

/// Checks that it failed for the limit, and names it and the flag.
#[track_caller]
fn met(gone: &Event, says: &str) {
    assert_eq!(gone.text("outcome"), "failed", "{gone:?}");
    assert!(gone.text("message").contains(says), "`{says}` is not said: {gone:?}");
}

/// What it used, at its end.
#[track_caller]
fn used(gone: &Event, what: &str) -> u64 {
    gone.fields["usage"][what].as_u64().unwrap_or_else(|| panic!("no number `{what}`: {gone:?}"))
}

/// Checks that it was said once that it came near that limit.
#[track_caller]
fn was_near(fleet: &Fleet, term: u64, limit: &str, of: u64, flag: &str) {
    let said: Vec<Event> = fleet.journal.events().into_iter().filter(|event| event.name == "near_limit").collect();
    let near: Vec<&Event> = said.iter().filter(|event| event.term == term && event.text("limit") == limit).collect();
    let [near] = near[..] else { panic!("{limit} is said {} times: {said:?}", near.len()) };
    assert_eq!((near.text("level"), near.text("flag")), ("warn", flag), "{near:?}");
    let used = near.fields["used"].as_u64().expect("a number");
    assert!(near.fields["max"] == of && (of / 5 * 4..=of).contains(&used), "{near:?}");
}

/// A command for WASI preview 1 that grows a table to so many elements, then exits well.
fn grows_a_table(folder: &Path, elements: u32) -> PathBuf {
    let module = folder.join("table.wat.wasm");
    let text = format!(
        r#"(module (import "wasi_snapshot_preview1" "sched_yield" (func (result i32))) (memory (export "memory") 1) (table 10 funcref) (table 10 funcref)
            (func (export "_start")
                (drop (table.grow 0 (ref.null func) (i32.const {0})))
                (drop (table.grow 1 (ref.null func) (i32.const {0})))))"#,
        elements / 2 - 10
    );
    fs::write(&module, wat::parse_str(text).expect("it is WebAssembly")).expect("it is written");
    module
}

#[test]
fn memory() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Allocates);
    let node = fleet.node("alpha");
    let gone = gone(&node);
    met(&gone, "needs 65 MiB of memory, and its limit is 64 MiB; raise `--max-memory`");
    assert!((60 << 20..=64 << 20).contains(&used(&gone, "memory")), "{gone:?}");
    was_near(&fleet, gone.term, "memory", 64 << 20, "--max-memory");
    fleet.check_promises();
}

#[test]
fn table_elements_of_all_tables_together() {
    let fleet = Fleet::new(Store::sqlite());
    let module = grows_a_table(fleet.home.path(), 20_000);
    let node = start(&fleet, &module, &[("--max-table-elements", "19000")]);
    let ended = gone(&node);
    met(&ended, " table elements, and its limit is 19000; raise `--max-table-elements`");
    drop(node);

    let fleet = Fleet::new(Store::sqlite());
    let module = grows_a_table(fleet.home.path(), 20_000);
    let node = start(&fleet, &module, &[("--max-table-elements", "21000")]);
    let ended = gone(&node);
    assert_eq!(ended.text("outcome"), "done", "{ended:?}");
    assert!((20_000..=21_000).contains(&used(&ended, "table_elements")), "{ended:?}");
    was_near(&fleet, ended.term, "table elements", 21_000, "--max-table-elements");
}

#[test]
fn instances() {
    let fleet = Fleet::new(Store::sqlite());
    let node = start(&fleet, &Guest::Beats.module(), &[("--max-instances", "1")]);
    let gone = gone(&node);
    met(&gone, "the instance needs more core instances, memories or tables (");
    met(&gone, ") than its limit of 1; raise `--max-instances`");
    assert_eq!(used(&gone, "instances"), 1, "{gone:?}");
    drop(node);

    // As many as are said to be used are enough, and one less is not.
    let fleet = Fleet::new(Store::sqlite());
    let node = start(&fleet, &Guest::Beats.module(), &[]);
    fleet.beat_above(0);
    let status = fleet.status_until("what is used", |status| status["usage"].is_object());
    let needed = status["usage"]["instances"]["used"].as_u64().expect("a number");
    drop(node);
    for (limit, is_enough) in [(needed, true), (needed - 1, false)] {
        let fleet = Fleet::new(Store::sqlite()).with(Guest::Done);
        let node = fleet.launch_with("alpha", &[("--max-instances", &limit.to_string())]).start();
        let gone = self::gone(&node);
        assert_eq!(gone.text("outcome"), if is_enough { "done" } else { "failed" }, "{gone:?}");
        assert_eq!(used(&gone, "instances"), limit, "{gone:?}");
    }
}

#[test]
fn handles() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::UsesFiles);
    // Not the home itself: nothing that the host looks up may be where the guest writes.
    let data = fleet.home.path().join("data");
    fs::create_dir(&data).expect("a folder");
    fs::write(data.join("a"), "").expect("a file");
    let folder = format!("{}::/data", data.display());
    let keep = |script: &'static str| [("--dir", folder.as_str()), ("--max-handles", "100"), ("--env", script)];
    let mut node = fleet.launch_with("alpha", &keep("SCRIPT=keep /data/a 85")).start();
    fleet.beat("the handles", |event| event.text("line") == "keep /data/a 85: ok");
    let said = node.event("a warning", |event| event.name == "near_limit");
    was_near(&fleet, said.term, "handles", 100, "--max-handles");
    assert_eq!(node.terminate().code(), Some(0));
    let ended = gone(&node);
    assert!((85..=100).contains(&used(&ended, "handles")), "{ended:?}");
    drop(node);

    let node = fleet.launch_with("beta", &keep("SCRIPT=keep /data/a 101")).start();
    let gone = node.event("its end", |event| event.name == "ended");
    met(&gone, "more handles than its limit of 100; raise `--max-handles`");
    assert!((90..=100).contains(&used(&gone, "handles")), "{gone:?}");
    fleet.check_promises();
}

#[test]
fn handles_of_its_own_components() {
    let fleet = Fleet::new(Store::sqlite());
    let module = fleet.home.path().join("own.wasm");
    let text = r#"(component
        (type $thing (resource (rep i32)))
        (core func $new (canon resource.new $thing))
        (core module $many
            (import "" "new" (func $new (param i32) (result i32)))
            (func (export "run") (result i32) (local $left i32)
                (local.set $left (i32.const 12000))
                (loop $again
                    (drop (call $new (i32.const 1)))
                    (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
                (i32.const 0)))
        (core instance $instance (instantiate $many (with "" (instance (export "new" (func $new))))))
        (func $run (result (result)) (canon lift (core func $instance "run")))
        (instance $command (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $command)))"#;
    fs::write(&module, wat::parse_str(text).expect("it is WebAssembly")).expect("it is written");
    let node = start(&fleet, &module, &[]);
    met(&gone(&node), "more handles than its limit of 10000; raise `--max-handles`");
    drop(node);
    let node = start(&fleet, &module, &[("--max-handles", "12000")]);
    let done = node.event("a term that is done", |event| event.name == "ended" && event.text("outcome") == "done");
    assert!(done.term > 1, "{done:?}");
}

#[test]
fn an_instance_that_uses_little_is_not_warned_of_and_its_end_says_how_little() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Done);
    let node = fleet.node("alpha");
    let gone = gone(&node);
    assert_eq!(gone.text("outcome"), "done", "{gone:?}");
    assert!((1 << 16..8 << 20).contains(&used(&gone, "memory")), "{gone:?}");
    assert!((1..100_000).contains(&used(&gone, "table_elements")), "{gone:?}");
    assert_eq!((used(&gone, "lines"), used(&gone, "dropped")), (1, 0), "{gone:?}");
    assert!((2..20).contains(&used(&gone, "instances")), "{gone:?}");
    assert!((1..20).contains(&used(&gone, "handles")), "{gone:?}");
    assert_eq!(used(&gone, "files"), 0, "{gone:?}");
    assert!(used(&gone, "kept") < 1 << 20, "{gone:?}");
    drop(node);
    assert!(fleet.journal.events().iter().all(|event| event.name != "near_limit"), "{:?}", fleet.journal.events());
}

#[test]
fn the_status_shows_what_is_used_of_each_limit() {
    let (fleet, other) = (Fleet::new(Store::sqlite()), Fleet::new(Store::sqlite()));
    let flags = [
        ("--max-instances", "123"),
        ("--max-handles", "321"),
        ("--max-files", "9"),
        ("--max-requests", "5"),
        ("--max-output", "77"),
    ];
    let mut node = fleet.launch_with("alpha", &flags).start();
    let other_node = other.node("alpha");
    let term = fleet.beat_above(0).term;
    assert_eq!(other.beat_above(0).term, term, "the same term of the same election, in another store");
    let status = fleet.status_until("what is used", |status| status["usage"]["lines"].as_u64() > Some(0));
    let usage = &status["usage"];
    let limits = ["memory", "table_elements", "instances", "handles", "files", "requests"];
    let limits = limits.map(|what| usage[what]["limit"].as_u64());
    assert_eq!(limits, [Some(64 << 20), Some(1_000_000), Some(123), Some(321), Some(9), Some(5)], "{usage}");
    let instances = usage["instances"]["used"].as_u64().unwrap();
    assert!((2..123).contains(&instances), "{usage}");
    assert_eq!((&usage["lines_per_second"], &usage["dropped"]), (&77.into(), &0.into()), "{usage}");
    assert!((1..64 << 20).contains(&usage["memory"]["used"].as_u64().unwrap()), "{usage}");
    until("a line about it", || {
        let text = fleet.command(&["status"]).stdout;
        let is_told = ["fleet uses ", " of 64.0 MiB of memory, ", " s of CPU time in process "]
            .iter()
            .all(|part| text.contains(part));
        if is_told { Ok(()) } else { Err(text) }
    });
    let elsewhere = other.status_until("what is used", |status| status["usage"].is_object());
    assert_eq!(elsewhere["usage"]["handles"]["limit"], 10_000, "{elsewhere}");
    assert!(node.terminate().success());
    assert_eq!(fleet.status()["usage"], Value::Null);
    drop(other_node);
}

#[test]
fn a_host_that_may_not_open_what_its_coordinators_may_does_not_start() {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = baton(home.path());
    command.arg("run").arg(Guest::Beats.module()).args(["--max-files", "1000", "--max-requests", "500"]);
    let finished = finish(with_descriptors(&command, "-n 1024"));
    assert_eq!(finished.code, Some(2), "{finished:?}");
    for said in ["up to 1564 file descriptors", "the system allows 1024", "LimitNOFILE", "--max-files"] {
        assert!(finished.stderr.contains(said), "`{said}` is not said: {finished:?}");
    }
}

#[test]
fn limits_that_are_none() {
    let home = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| -> Finished {
        let mut command = baton(home.path());
        command.arg("run").arg(Guest::Beats.module()).args(arguments);
        finish(command)
    };
    for (arguments, error) in [
        (["--max-table-elements", "0"], "--max-table-elements: 0 is too few: write at least 1"),
        (["--max-instances", "many"], "--max-instances: \"many\" is not a number: write it like 1000"),
        (["--max-handles", "1000001"], "--max-handles: 1000001 is too many: write at most 1000000"),
        (["--max-files", "100001"], "--max-files: 100001 is too many: write at most 100000"),
        (["--max-output", "-1"], "unexpected argument"),
    ] {
        let finished = run(&arguments);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(error), "`{error}` is not said: {finished:?}");
    }
}
