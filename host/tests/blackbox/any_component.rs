//! Components that know nothing of Baton, and core modules: each runs as a coordinator, and what it reaches
//! out for without a grant it does not get.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;

use crate::fleet::Fleet;
use crate::guests::{self, Guest};
use crate::modules;
use crate::node::{Event, Finished, Launch, baton, finish};
use crate::store::Store;

/// The program that knows nothing of Baton, as each toolchain leaves it.
fn programs() -> [PathBuf; 2] {
    [guests::program(), guests::program_for_preview1()]
}

/// A node that is about to run `module` with that behaviour.
fn launch(fleet: &Fleet, module: &Path, behaviour: &str) -> Launch {
    Launch::run("alpha", fleet.home.path(), &fleet.journal)
        .arg(module)
        .flag("--election", "fleet")
        .flag("--store", fleet.store.url())
        .flag("--lease", format!("{}s", fleet.lease().as_secs()))
        .flag("--restart-delay", "100ms")
        .flag("--env", format!("BEHAVIOUR={behaviour}"))
}

/// Runs it until its first instance is gone; what it printed, and its end.
fn first_run(module: &Path, behaviour: &str) -> (Fleet, Vec<String>, Event) {
    let fleet = Fleet::new(Store::sqlite());
    let mut node = launch(&fleet, module, behaviour).flag("--env", "BATON_TERM=77").flag("--grace", "300ms").start();
    let gone = node.after(0, "ended");
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
    let printed = fleet.journal.events();
    let printed = printed.iter().filter(|event| event.name == "output" && event.term == gone.term);
    let lines = printed.map(|event| event.text("line").to_owned()).collect();
    (fleet, lines, gone)
}

#[test]
fn a_command_is_done_when_it_exits_with_0_and_knows_its_term() {
    for module in programs() {
        let (_, lines, gone) = first_run(&module, "tell");
        assert_eq!(gone.text("outcome"), "done", "{gone:?}");
        let term = format!("BATON_TERM={}", gone.term);
        for line in [&term, "BATON_ELECTION=fleet", "BATON_NODE=alpha", "input: Ok(0)"] {
            assert_eq!(lines.iter().filter(|other| *other == line).count(), 1, "{line} in {lines:?}");
        }
        assert!(!lines.iter().any(|line| line.contains("77")), "nobody else sets its term: {lines:?}");
        assert_eq!(lines.len(), 6, "no other variables: {lines:?}");
    }
}

#[test]
fn a_command_has_the_arguments_that_it_is_given_after_its_election() {
    for module in programs() {
        let fleet = Fleet::new(Store::sqlite());
        let arguments = ["--verbose", "two words", "", "a\nb", "\u{1b}[31m"];
        let mut node = launch(&fleet, &module, "tell");
        for argument in arguments {
            node = node.arg(format!("--arg={argument}"));
        }
        let mut node = node.start();
        let gone = node.after(0, "ended");
        assert_eq!(node.terminate().code(), Some(0));
        let printed = fleet.journal.events();
        let printed = printed.iter().filter(|event| event.name == "output" && event.term == gone.term);
        let lines: Vec<_> = printed.map(|event| event.text("line").to_owned()).collect();
        let seen: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("argument ")).collect();
        let expected: Vec<_> = ["fleet"].iter().chain(&arguments).map(|argument| format!("{argument:?}")).collect();
        assert_eq!(seen, expected, "{lines:?}");
    }
}

#[test]
fn a_command_that_exits_with_a_status_or_panics_has_failed_and_is_started_again() {
    for module in programs() {
        for (behaviour, says) in
            [("exit", "the coordinator exited with an error status"), ("panic", "program::the_last_straw")]
        {
            let fleet = Fleet::new(Store::sqlite());
            let node = launch(&fleet, &module, behaviour).start();
            let gone = node.after(0, "ended");
            assert_eq!(gone.text("outcome"), "failed", "{gone:?}");
            assert!(gone.text("message").contains(says), "`{says}` is not said: {gone:?}");
            let next = node.after(gone.term, "started").term;
            let released = fleet.journal.events().iter().any(|event| event.name == "released" && event.term < next);
            assert!(!released, "one failure does not cost the lease: {:?}", fleet.journal.events());
            fleet.check_promises();
        }
    }
}

#[test]
fn what_a_command_was_not_granted_is_refused_and_said_once() {
    let (fleet, lines, gone) = first_run(&guests::program(), "reach-out");
    assert_eq!(gone.text("outcome"), "done", "it could handle the refusals: {gone:?}");
    assert_eq!(lines.len(), 11, "{lines:?}");
    for line in &lines[1..] {
        let refused = match line.split_once(':') {
            Some(("file" | "created", _)) => line.contains("NotFound"),
            _ => line.contains("PermissionDenied"),
        };
        assert!(refused, "{line}");
    }
    let denied: Vec<_> = fleet
        .journal
        .events()
        .into_iter()
        .filter(|event| (&*event.name, event.term) == ("capability_denied", gone.term))
        .collect();
    let asked: Vec<_> = denied.iter().map(|event| (event.term, event.text("what"))).collect();
    let each = ["files", "a TCP socket", "a UDP socket", "a DNS lookup (example.com)"];
    assert_eq!(asked, each.map(|what| (gone.term, what)), "each once");
    for (event, remedy) in denied.iter().zip(["--dir", "no flag", "no flag", "no flag"]) {
        assert!(event.text("remedy").contains(remedy), "{event:?}");
    }
    assert!(!fleet.home.path().join("created.txt").exists());
}

#[test]
fn a_preview_1_module_that_wants_no_files_is_not_told_of() {
    let (fleet, ..) = first_run(&guests::program_for_preview1(), "tell");
    assert!(
        !fleet.journal.events().iter().any(|event| event.name == "capability_denied"),
        "{:?}",
        fleet.journal.events()
    );
}

#[test]
fn output_counts_as_a_commands_progress_and_silence_as_a_stall() {
    let fleet = Fleet::new(Store::sqlite());
    let node = launch(&fleet, &guests::program(), "beat-then-silence")
        .flag("--stall-after", "2s")
        .flag("--grace", "300ms")
        .start();
    // Before them it beats for longer than it may be silent.
    let last = fleet.beat("its last words", |event| event.text("line") == "from here on, silence");
    let stopping = node.after(last.term - 1, "stopping");
    assert_eq!((stopping.text("reason"), stopping.term), ("step-down", last.term), "{stopping:?}");
    assert!(stopping.text("message").contains("no progress"), "{stopping:?}");
    fleet.check_promises();
}

#[test]
fn what_is_random_is_another_in_each_instance_though_all_are_copies_of_one_process() {
    let fleet = Fleet::new(Store::sqlite());
    let _node = launch(&fleet, &guests::program(), "random").start();
    let random = fleet.journal.wait("five instances", |events| {
        let lines = events.iter().filter(|event| event.name == "output").map(|event| event.text("line").to_owned());
        let random: Vec<_> = lines.filter(|line| line.starts_with("by chance ")).collect();
        (random.len() >= 5).then_some(random)
    });
    assert!(BTreeSet::from_iter(&random).len() == random.len(), "{random:?}");
}

#[test]
fn a_version_that_never_begins_is_rejected() {
    let fleet = Fleet::new(Store::sqlite());
    let home = fleet.home.path();
    let (file, next) = (home.join("current.wasm"), home.join("next.wasm"));
    std::fs::copy(Guest::Beats.module(), &file).expect("copied");
    // It is not over before the instance has begun.
    let node = fleet.launch_from("alpha", &file, &[("--probation", "2s")]).start();
    fleet.beat_above(0);
    let never = modules::component("(func $never (loop (br 0))) (start $never)", "wasi:cli/run@0.2.0");
    std::fs::write(&next, never).expect("written");
    std::fs::rename(&next, &file).expect("it takes its place");
    let rejected = node.event("to reject it", |event| event.name == "version_rejected");
    assert!(rejected.text("reason").contains("the instance did not start within 20s"), "{rejected:?}");
    fleet.beat("the one before to run again", |event| event.ts > rejected.ts);
    fleet.check_promises();
}

#[test]
fn a_command_that_knows_no_stop_has_its_grace_and_is_killed() {
    let fleet = Fleet::new(Store::sqlite());
    let mut node = launch(&fleet, &guests::program(), "beat").flag("--grace", "300ms").start();
    fleet.beat_above(0);
    let asked = OffsetDateTime::now_utc();
    assert_eq!(node.terminate().code(), Some(0));
    let at = |name| fleet.journal.event(name, |event| event.name == name).ts;
    assert!(at("killed") - asked >= Duration::from_millis(300), "it had its grace");
    assert!(at("ended") < at("released"));
    fleet.check_promises();
}

/// `baton check ARGS`.
fn check(module: &Path, args: &[&str]) -> Finished {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = baton(home.path());
    command.arg("check").arg(module).args(args);
    finish(command)
}

#[test]
fn check_says_which_it_is() {
    for (module, kind, wrapped, says) in [
        (Guest::Beats.module(), "coordinator", None, "coordinator"),
        (guests::program(), "command", None, "command"),
        (guests::coordinator_for_preview1(), "coordinator", Some("component-types"), "that carries component types"),
        (guests::program_for_preview1(), "command", Some("wasi-preview1"), "for WASI preview 1"),
    ] {
        let json = check(&module, &["--output=json"]);
        assert_eq!(json.code, Some(0), "{json:?}");
        let report = json.json();
        assert_eq!((report["kind"].as_str(), report["wrapped"].as_str()), (Some(kind), wrapped), "{json:?}");
        let text = check(&module, &[]);
        let line = text.stdout.lines().find(|line| line.starts_with("  kind")).expect("it says what it is");
        assert!(line.contains(kind) && line.contains(says), "{line}");
        // The digest is that of the file, whatever was made of it.
        let sum = std::process::Command::new("sha256sum").arg(&module).output().expect("sha256sum").stdout;
        let sum = String::from_utf8_lossy(&sum).into_owned();
        let digest = report["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
        assert_eq!(digest, sum.split_whitespace().next(), "{json:?}");
    }
}

#[test]
fn a_core_module_that_carries_component_types_is_a_coordinator_like_others() {
    let (_, lines, gone) = first_run(&guests::coordinator_for_preview1(), "done");
    assert_eq!(gone.text("outcome"), "done", "{gone:?}");
    assert_eq!(lines, [format!("done in term {}", gone.term)]);
}

#[test]
fn a_component_that_is_both_is_run_as_a_coordinator() {
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("both.wasm");
    std::fs::write(&module, wat::parse_str(BOTH).expect("the text is right")).expect("written");
    assert_eq!(check(&module, &["--output=json"]).json()["kind"], "coordinator");
    let (_, _, gone) = first_run(&module, "");
    assert_eq!(gone.text("outcome"), "fatal", "{gone:?}");
    assert!(gone.text("message").contains("TASK"), "{gone:?}");
}

/// Checks that `check` and `run` refuse that core module, with all of `says`.
#[track_caller]
fn refused(text: &str, says: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("core.wasm");
    std::fs::write(&module, wat::parse_str(text).expect("the text is right")).expect("written");
    let mut run = baton(folder.path());
    run.arg("run").arg(&module);
    for (finished, code) in [(check(&module, &[]), 1), (finish(run), 2)] {
        assert_eq!(finished.code, Some(code), "{finished:?}");
        for word in says.iter().chain(&["core.wasm", "wasm-tools component new"]) {
            assert!(finished.stderr.contains(word), "`{word}` is not said: {finished:?}");
        }
        assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    }
}

#[test]
fn a_core_module_that_is_neither_is_told_the_way_out() {
    let text = r#"(module (memory (export "memory") 1) (func (export "run") nop))"#;
    refused(text, &["core module", "component types", "preview 1", "wasm32-wasip2"]);
}

#[test]
fn a_core_module_whose_component_types_are_damaged() {
    refused(
        r#"(module (@custom "component-type:job" "\00asm\0d\00\01\00\07\ff"))"#,
        &["cannot be wrapped", "tools of the same release"],
    );
}

#[test]
fn a_preview_1_module_that_imports_what_there_is_not() {
    let imported = r#"(import "wasi_snapshot_preview1" "fly" (func))"#;
    refused(&format!(r#"(module {imported} (memory (export "memory") 1) (func (export "_start")))"#), &["fly"]);
}

#[test]
fn a_command_that_returns_an_error_has_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("errs.wasm");
    let text = r#"(component
        (core module $code (func (export "main") (result i32) i32.const 1))
        (core instance $code (instantiate $code))
        (func $main (result (result)) (canon lift (core func $code "main")))
        (instance $main (export "run" (func $main)))
        (export "wasi:cli/run@0.2.9" (instance $main))
    )"#;
    std::fs::write(&module, wat::parse_str(text).expect("the text is right")).expect("written");
    let (_, _, gone) = first_run(&module, "");
    assert_eq!(gone.text("outcome"), "failed", "{gone:?}");
    assert!(gone.text("message").contains("error status"), "{gone:?}");
}

/// A runner rehearses the start of an instance before there is a term, without what a module does as soon as it is
/// instantiated. A rehearsal that takes 2 s is given up, and so long all that would take whose first function never returns.
#[test]
fn a_start_function_runs_in_a_term_and_not_before() {
    let text = r#"(component
        (core module $code
            (func $spin (loop $again (br $again)))
            (start $spin)
            (func (export "main") (result i32) i32.const 0))
        (core instance $code (instantiate $code))
        (func $main (result (result)) (canon lift (core func $code "main")))
        (instance $main (export "run" (func $main)))
        (export "wasi:cli/run@0.2.9" (instance $main))
    )"#;
    // A machine may be too busy for one try to show it.
    let quick = (0..10).any(|_| {
        let fleet = Fleet::new(Store::sqlite());
        let module = fleet.home.path().join("starts.wasm");
        std::fs::write(&module, wat::parse_str(text).expect("the text is right")).expect("written");
        let mut node = launch(&fleet, &module, "").flag("--grace", "300ms").start();
        let term = node.after(0, "elected").term;
        assert_eq!(node.terminate().code(), Some(0));
        let events = fleet.journal.events();
        let of_term = |name| events.iter().find(|event| event.name == name && event.term == term);
        assert!(of_term("started").is_none(), "its first function never returns: {events:?}");
        assert_eq!(of_term("ended").map(|gone| gone.text("outcome")), Some("killed"), "{events:?}");
        fleet.check_promises();
        let ready = events.iter().find(|event| event.name == "module_ready").expect("it was ready");
        ready.fields["took_s"].as_f64().expect("a number") < 2.0
    });
    assert!(quick, "it has run before its term");
}

/// C++ has names whose plain text grows without bound from a few bytes: it takes the host for as long as it is asked for.
#[test]
fn a_name_that_is_short_only_while_it_is_mangled_is_told_as_it_is() {
    let doubled: String = (b'0'..=b'9').chain(b'A'..=b'L').map(char::from).map(|n| format!("S_IS{n}_S{n}_E")).collect();
    let name = format!("_Z1f1AIiiE{doubled}");
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("names.wasm");
    let text = format!(
        r#"(component
        (core module $code (func (@name "{name}") (export "main") (result i32) unreachable))
        (core instance $code (instantiate $code))
        (func $main (result (result)) (canon lift (core func $code "main")))
        (instance $main (export "run" (func $main)))
        (export "wasi:cli/run@0.2.9" (instance $main))
    )"#
    );
    std::fs::write(&module, wat::parse_str(text).expect("the text is right")).expect("written");
    let (_, _, gone) = first_run(&module, "");
    assert!(gone.text("message").contains(&name), "{gone:?}");
}

/// Fails fatally as a coordinator, saying TASK, and succeeds as a command.
const BOTH: &str = r#"
(component
  (core module $code
    (memory (export "memory") 1)
    (data (i32.const 8) "\01\00\00\00" "\01\00\00\00" "\20\00\00\00" "\04\00\00\00" "\00\00\00\00" "\00\00\00\00")
    (data (i32.const 32) "TASK")
    (func (export "task") (result i32) i32.const 8)
    (func (export "main") (result i32) i32.const 0)
  )
  (core instance $code (instantiate $code))
  (alias core export $code "memory" (core memory $memory))
  (type $failure (variant (case "retryable" string) (case "fatal" string)))
  (func $task (result (result (error $failure))) (canon lift (core func $code "task") (memory $memory)))
  (func $main (result (result)) (canon lift (core func $code "main")))
  (component $task-shape
    (type $failure (variant (case "retryable" string) (case "fatal" string)))
    (import "failure" (type $in (eq $failure)))
    (import "run" (func $run (result (result (error $in)))))
    (export $out "failure" (type $failure))
    (export "run" (func $run) (func (result (result (error $out)))))
  )
  (instance $task (instantiate $task-shape (with "failure" (type $failure)) (with "run" (func $task))))
  (instance $main (export "run" (func $main)))
  (export "wasi:cli/run@0.2.0" (instance $main))
  (export "baton:host/task@0.1.0" (instance $task))
)
"#;
