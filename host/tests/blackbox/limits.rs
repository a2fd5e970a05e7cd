//! Limits on a coordinator's resources. The event `near_limit` warns before an instance reaches a limit. If a limit
//! makes an instance fail, the message of the event `ended` names the limit, and the flag, if any, that raises the
//! limit. The event `ended` also reports the usage.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Event, Finished, Launch, Node, baton, finish, until, with_descriptors};
use crate::store::Store;

fn start(fleet: &Fleet, module: &Path, flags: &[(&str, &str)]) -> Node {
    let store = fleet.store.url();
    let usual = [("--election", ELECTION), ("--store", &store), ("--lease", "15s"), ("--restart-delay", "100ms")];
    let launch = Launch::run("alpha", fleet.home.path(), &fleet.journal).arg(module);
    usual.iter().chain(flags).fold(launch, |launch, (flag, value)| launch.flag(flag, value)).start()
}

fn wait_for_end(node: &Node) -> Event {
    node.event("its end", |event| event.name == "ended")
}

#[track_caller]
fn failed_with(ended: &Event, text: &str) {
    assert_eq!(ended.text("outcome"), "failed", "{ended:?}");
    assert!(ended.text("message").contains(text), "the message does not contain `{text}`: {ended:?}");
}

#[track_caller]
fn used(ended: &Event, resource: &str) -> u64 {
    ended.fields["usage"][resource].as_u64().unwrap_or_else(|| panic!("no number `{resource}`: {ended:?}"))
}

/// Checks that the host warned exactly once that the term's instance was close to the limit.
#[track_caller]
fn was_near(fleet: &Fleet, term: u64, limit: &str, of: u64, flag: &str) {
    let warnings: Vec<Event> = fleet.journal.events().into_iter().filter(|event| event.name == "near_limit").collect();
    let near: Vec<&Event> =
        warnings.iter().filter(|event| event.term == term && event.text("limit") == limit).collect();
    let [near] = near[..] else { panic!("{} warnings about {limit}: {warnings:?}", near.len()) };
    let reported = near.fields["flag"].as_str().unwrap_or_default();
    assert_eq!((near.text("level"), reported), ("warn", flag), "{near:?}");
    let used = near.fields["used"].as_u64().expect("a number");
    assert!(near.fields["max"] == of && (of / 5 * 4..=of).contains(&used), "{near:?}");
}

/// Writes a module that grows its 2 tables to `elements` elements in total, and then returns.
fn grows_a_table(folder: &Path, elements: u32) -> PathBuf {
    let module = folder.join("table.wat.wasm");
    let text = format!(
        r#"(module (import "wasi_snapshot_preview1" "sched_yield" (func (result i32))) (memory (export "memory") 1) (table 10 funcref) (table 10 funcref)
            (func (export "_start")
                (drop (table.grow 0 (ref.null func) (i32.const {0})))
                (drop (table.grow 1 (ref.null func) (i32.const {0})))))"#,
        elements / 2 - 10
    );
    fs::write(&module, wat::parse_str(text).expect("WebAssembly text")).expect("a written module");
    module
}

#[test]
fn memory_limit_fails_the_instance_that_exceeds_it() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Allocates);
    let node = fleet.node("alpha");
    let ended = wait_for_end(&node);
    failed_with(&ended, "needs 65 MiB of memory, but its limit is 64 MiB; raise `--max-memory`");
    assert!((60 << 20..=64 << 20).contains(&used(&ended, "memory")), "{ended:?}");
    was_near(&fleet, ended.term, "memory", 64 << 20, "--max-memory");
    fleet.check_promises();
}

/// Writes a component with 2 nested components of `number` core instances each, and 1 core instance at the top level.
fn has_instances(folder: &Path, number: usize) -> PathBuf {
    let module = folder.join("instances.wasm");
    let instances = "(core instance (instantiate $empty))".repeat(number);
    let text = format!(
        r#"(component
            (component $inner (core module $empty) {instances})
            (instance (instantiate $inner))
            (instance (instantiate $inner))
            (core module $command (func (export "run") (result i32) (i32.const 0)))
            (core instance $instance (instantiate $command))
            (func $run (result (result)) (canon lift (core func $instance "run")))
            (instance $command (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $command)))"#
    );
    fs::write(&module, wat::parse_str(text).expect("it is WebAssembly")).expect("it is written");
    module
}

#[test]
fn table_elements_of_all_tables_share_one_limit() {
    let fleet = Fleet::new(Store::sqlite());
    let module = grows_a_table(fleet.home.path(), 1_100_000);
    let node = start(&fleet, &module, &[]);
    failed_with(&wait_for_end(&node), " table elements, but the limit is 1000000");
    drop(node);

    let fleet = Fleet::new(Store::sqlite());
    let module = grows_a_table(fleet.home.path(), 900_000);
    let node = start(&fleet, &module, &[]);
    let ended = wait_for_end(&node);
    assert_eq!(ended.text("outcome"), "done", "{ended:?}");
    assert!((900_000..=1_000_000).contains(&used(&ended, "table_elements")), "{ended:?}");
    was_near(&fleet, ended.term, "table elements", 1_000_000, "");
}

#[test]
fn core_instances_are_limited_to_1000() {
    for (number, is_enough) in [(499, true), (500, false)] {
        let fleet = Fleet::new(Store::sqlite());
        let module = has_instances(fleet.home.path(), number);
        let node = start(&fleet, &module, &[]);
        let ended = wait_for_end(&node);
        if is_enough {
            assert_eq!(ended.text("outcome"), "done", "{ended:?}");
            assert_eq!(used(&ended, "instances"), 999, "{ended:?}");
        } else {
            failed_with(&ended, "the instance needs more core instances, memories or tables (");
            failed_with(&ended, ") than the limit of 1000");
        }
    }
}

/// Writes a component that defines its own resource type, and creates `number` handles of this type.
fn makes_handles(folder: &Path, number: u32) -> PathBuf {
    let module = folder.join("own.wasm");
    let text = r#"(component
        (type $thing (resource (rep i32)))
        (core func $new (canon resource.new $thing))
        (core module $many
            (import "" "new" (func $new (param i32) (result i32)))
            (func (export "run") (result i32) (local $left i32)
                (local.set $left (i32.const NUMBER))
                (loop $again
                    (drop (call $new (i32.const 1)))
                    (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
                (i32.const 0)))
        (core instance $instance (instantiate $many (with "" (instance (export "new" (func $new))))))
        (func $run (result (result)) (canon lift (core func $instance "run")))
        (instance $command (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $command)))"#;
    let text = text.replace("NUMBER", &number.to_string());
    fs::write(&module, wat::parse_str(text).expect("WebAssembly text")).expect("a written module");
    module
}

#[test]
fn handles_are_limited_to_50000() {
    for (number, is_enough) in [(45_000, true), (55_000, false)] {
        let fleet = Fleet::new(Store::sqlite());
        let module = makes_handles(fleet.home.path(), number);
        let node = start(&fleet, &module, &[]);
        let ended = wait_for_end(&node);
        if is_enough {
            assert_eq!(ended.text("outcome"), "done", "{ended:?}");
        } else {
            failed_with(&ended, "more handles than the limit of 50000");
        }
    }
}

#[test]
fn small_usage_is_reported_without_a_warning() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Done);
    let node = fleet.node("alpha");
    let ended = wait_for_end(&node);
    assert_eq!(ended.text("outcome"), "done", "{ended:?}");
    assert!((1 << 16..8 << 20).contains(&used(&ended, "memory")), "{ended:?}");
    assert!((1..100_000).contains(&used(&ended, "table_elements")), "{ended:?}");
    assert_eq!((used(&ended, "lines"), used(&ended, "dropped")), (1, 0), "{ended:?}");
    assert!((2..20).contains(&used(&ended, "instances")), "{ended:?}");
    assert!((1..20).contains(&used(&ended, "handles")), "{ended:?}");
    assert_eq!(used(&ended, "files"), 0, "{ended:?}");
    assert!(used(&ended, "kept") < 1 << 20, "{ended:?}");
    drop(node);
    assert!(fleet.journal.events().iter().all(|event| event.name != "near_limit"), "{:?}", fleet.journal.events());
}

#[test]
fn status_shows_usage_of_each_limit() {
    let (fleet, other) = (Fleet::new(Store::sqlite()), Fleet::new(Store::sqlite()));
    let flags = [("--max-requests", "5"), ("--max-output", "77")];
    let mut node = fleet.launch_with("alpha", &flags).start();
    let other_node = other.node("alpha");
    let term = fleet.beat_above(0).term;
    assert_eq!(other.beat_above(0).term, term, "the same term of the same election, in another store");
    let status = fleet.status_until("its usage", |status| status["usage"]["lines"].as_u64() > Some(0));
    let usage = &status["usage"];
    let limits = ["memory", "table_elements", "instances", "handles", "files", "requests"];
    let limits = limits.map(|resource| usage[resource]["limit"].as_u64());
    assert_eq!(limits, [Some(64 << 20), Some(1_000_000), Some(1_000), Some(50_000), Some(256), Some(5)], "{usage}");
    let instances = usage["instances"]["used"].as_u64().unwrap();
    assert!((2..1_000).contains(&instances), "{usage}");
    assert_eq!((&usage["lines_per_second"], &usage["dropped"]), (&77.into(), &0.into()), "{usage}");
    assert!((1..64 << 20).contains(&usage["memory"]["used"].as_u64().unwrap()), "{usage}");
    until("a line about it", || {
        let text = fleet.command(&["status"]).stdout;
        let is_shown = ["fleet uses ", " of 64.0 MiB of memory, ", " s of CPU time in process "]
            .iter()
            .all(|part| text.contains(part));
        if is_shown { Ok(()) } else { Err(text) }
    });
    let elsewhere = other.status_until("its usage", |status| status["usage"].is_object());
    assert_eq!(elsewhere["usage"]["requests"]["limit"], 64, "{elsewhere}");
    assert!(node.terminate().success());
    assert_eq!(fleet.status()["usage"], Value::Null);
    drop(other_node);
}

#[test]
fn host_does_not_start_when_descriptor_limit_is_too_low() {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = baton(home.path());
    command.arg("run").arg(Guest::Beats.module()).args(["--max-requests", "1000"]);
    let finished = finish(with_descriptors(&command, "-n 1024"));
    assert_eq!(finished.code, Some(2), "{finished:?}");
    for text in ["up to 1320 file descriptors", "the system allows 1024", "LimitNOFILE", "--max-requests"] {
        assert!(finished.stderr.contains(text), "the error does not contain `{text}`: {finished:?}");
    }
}

#[test]
fn invalid_limits_are_refused() {
    let home = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| -> Finished {
        let mut command = baton(home.path());
        command.arg("run").arg(Guest::Beats.module()).args(arguments);
        finish(command)
    };
    for (arguments, error) in [
        (["--max-output", "0"], "--max-output: 0 is too few: write at least 1"),
        (["--max-output", "many"], "--max-output: \"many\" is not a number: write it like 1000"),
        (["--max-output", "1000001"], "--max-output: 1000001 is too many: write at most 1000000"),
        (["--max-output", "-1"], "unexpected argument"),
    ] {
        let finished = run(&arguments);
        assert_eq!(finished.code, Some(2), "{finished:?}");
        assert!(finished.stderr.contains(error), "no error `{error}`: {finished:?}");
    }
}
