//! Components that do not use Baton's interfaces, and core modules. Each runs as a coordinator, and can use only what
//! it was granted.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use time::OffsetDateTime;

use crate::fleet::Fleet;
use crate::guests::{self, Guest};
use crate::modules;
use crate::node::{Event, Finished, Launch, baton, finish};
use crate::store::Store;

/// Returns a program that does not use Baton's interfaces, built as a component and as a core module for WASI preview
/// 1.
fn programs() -> [PathBuf; 2] {
    [guests::program(), guests::program_for_preview1()]
}

fn launch(fleet: &Fleet, module: &Path, behaviour: &str) -> Launch {
    Launch::run("alpha", fleet.home.path(), &fleet.journal)
        .arg(module)
        .flag("--election", "fleet")
        .flag("--store", fleet.store.url())
        .flag("--lease", format!("{}s", fleet.lease().as_secs()))
        .flag("--restart-delay", "100ms")
        .flag("--env", format!("BEHAVIOUR={behaviour}"))
}

/// Returns the fleet, the printed lines and the `ended` event of the first instance.
fn first_run(module: &Path, behaviour: &str) -> (Fleet, Vec<String>, Event) {
    let fleet = Fleet::new(Store::sqlite());
    let mut node = launch(&fleet, module, behaviour).flag("--env", "BATON_TERM=77").flag("--grace", "300ms").start();
    let ended = node.after(0, "ended");
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
    let printed = fleet.journal.events();
    let printed = printed.iter().filter(|event| event.name == "output" && event.term == ended.term);
    let lines = printed.map(|event| event.text("line").to_owned()).collect();
    (fleet, lines, ended)
}

#[test]
fn command_knows_its_term_and_is_done_when_it_exits_with_0() {
    for module in programs() {
        let (_, lines, ended) = first_run(&module, "tell");
        assert_eq!(ended.text("outcome"), "done", "{ended:?}");
        let term = format!("BATON_TERM={}", ended.term);
        for line in [&term, "BATON_ELECTION=fleet", "BATON_NODE=alpha", "input: Ok(0)"] {
            assert_eq!(lines.iter().filter(|other| *other == line).count(), 1, "{line} in {lines:?}");
        }
        assert!(!lines.iter().any(|line| line.contains("77")), "`--env` does not set the term: {lines:?}");
        assert_eq!(lines.len(), 6, "no other variables: {lines:?}");
    }
}

#[test]
fn command_gets_its_arguments_after_election_name() {
    for module in programs() {
        let fleet = Fleet::new(Store::sqlite());
        let arguments = ["--verbose", "two words", "", "a\nb", "\u{1b}[31m"];
        let mut node = launch(&fleet, &module, "tell");
        for argument in arguments {
            node = node.arg(format!("--arg={argument}"));
        }
        let mut node = node.start();
        let ended = node.after(0, "ended");
        assert_eq!(node.terminate().code(), Some(0));
        let printed = fleet.journal.events();
        let printed = printed.iter().filter(|event| event.name == "output" && event.term == ended.term);
        let lines: Vec<_> = printed.map(|event| event.text("line").to_owned()).collect();
        let printed_arguments: Vec<_> = lines.iter().filter_map(|line| line.strip_prefix("argument ")).collect();
        let expected: Vec<_> = ["fleet"].iter().chain(&arguments).map(|argument| format!("{argument:?}")).collect();
        assert_eq!(printed_arguments, expected, "{lines:?}");
    }
}

#[test]
fn command_is_restarted_when_it_exits_with_status_or_panics() {
    for module in programs() {
        for (behaviour, says) in
            [("exit", "the coordinator exited with an error status"), ("panic", "program::the_last_straw")]
        {
            let fleet = Fleet::new(Store::sqlite());
            let node = launch(&fleet, &module, behaviour).start();
            let ended = node.after(0, "ended");
            assert_eq!(ended.text("outcome"), "failed", "{ended:?}");
            assert!(ended.text("message").contains(says), "no `{says}` in {ended:?}");
            let next = node.after(ended.term, "started").term;
            let released = fleet.journal.events().iter().any(|event| event.name == "released" && event.term < next);
            assert!(!released, "a failure does not cost the lease: {:?}", fleet.journal.events());
            fleet.check_promises();
        }
    }
}

#[test]
fn ungranted_capability_is_refused_and_reported_once() {
    let (fleet, lines, ended) = first_run(&guests::program(), "reach-out");
    assert_eq!(ended.text("outcome"), "done", "the program handles the refusals: {ended:?}");
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
        .filter(|event| (&*event.name, event.term) == ("capability_denied", ended.term))
        .collect();
    let asked: Vec<_> = denied.iter().map(|event| (event.term, event.text("what"))).collect();
    let each = ["files", "a TCP socket", "a UDP socket", "a DNS lookup (example.com)"];
    assert_eq!(asked, each.map(|what| (ended.term, what)), "each once");
    for (event, remedy) in denied.iter().zip(["--dir", "no flag", "no flag", "no flag"]) {
        assert!(event.text("remedy").contains(remedy), "{event:?}");
    }
    assert!(!fleet.home.path().join("created.txt").exists());
}

#[test]
fn preview_1_module_without_file_access_is_not_reported() {
    let (fleet, ..) = first_run(&guests::program_for_preview1(), "tell");
    assert!(
        !fleet.journal.events().iter().any(|event| event.name == "capability_denied"),
        "{:?}",
        fleet.journal.events()
    );
}

#[test]
fn command_output_counts_as_progress_and_silence_as_stall() {
    let fleet = Fleet::new(Store::sqlite());
    let node = launch(&fleet, &guests::program(), "beat-then-silence")
        .flag("--stall-after", "2s")
        .flag("--grace", "300ms")
        .start();
    // Before this last line, the program prints other lines for longer than `--stall-after`.
    let last = fleet.beat("the last line", |event| event.text("line") == "from here on, silence");
    let stopping = node.after(last.term - 1, "stopping");
    assert_eq!((stopping.text("reason"), stopping.term), ("step-down", last.term), "{stopping:?}");
    assert!(stopping.text("message").contains("no progress"), "{stopping:?}");
    fleet.check_promises();
}

#[test]
fn random_values_differ_between_forked_instances() {
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
fn version_is_rejected_when_its_instance_never_starts() {
    let fleet = Fleet::new(Store::sqlite());
    let home = fleet.home.path();
    let (file, next) = (home.join("current.wasm"), home.join("next.wasm"));
    std::fs::copy(Guest::Beats.module(), &file).expect("copied");
    // A version passes its probation only after its instance has started. The start of the next version's instance
    // never finishes, so the host must reject that version.
    let node = fleet.launch_from("alpha", &file, &[("--probation", "2s")]).start();
    fleet.beat_above(0);
    let never = modules::component("(func $never (loop (br 0))) (start $never)", "wasi:cli/run@0.2.0");
    std::fs::write(&next, never).expect("written");
    std::fs::rename(&next, &file).expect("the file is replaced");
    let rejected = node.event("the rejection", |event| event.name == "version_rejected");
    assert!(rejected.text("reason").contains("the instance did not start within 20s"), "{rejected:?}");
    fleet.beat("the previous version to run again", |event| event.ts > rejected.ts);
    fleet.check_promises();
}

#[test]
fn command_is_killed_after_its_grace() {
    let fleet = Fleet::new(Store::sqlite());
    let mut node = launch(&fleet, &guests::program(), "beat").flag("--grace", "300ms").start();
    fleet.beat_above(0);
    let asked = OffsetDateTime::now_utc();
    assert_eq!(node.terminate().code(), Some(0));
    let at = |name| fleet.journal.event(name, |event| event.name == name).ts;
    assert!(at("killed") - asked >= Duration::from_millis(300), "the command had its grace");
    assert!(at("ended") < at("released"));
    fleet.check_promises();
}

fn check(module: &Path, args: &[&str]) -> Finished {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = baton(home.path());
    command.arg("check").arg(module).args(args);
    finish(command)
}

#[test]
fn check_reports_kind_of_module() {
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
        let line = text.stdout.lines().find(|line| line.starts_with("  kind")).expect("a line with the kind");
        assert!(line.contains(kind) && line.contains(says), "{line}");
        // The report must contain the digest of the file itself, even if the file is a core module that Baton wraps in
        // a component.
        let sum = std::process::Command::new("sha256sum").arg(&module).output().expect("sha256sum").stdout;
        let sum = String::from_utf8_lossy(&sum).into_owned();
        let digest = report["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
        assert_eq!(digest, sum.split_whitespace().next(), "{json:?}");
    }
}

#[test]
fn core_module_with_component_types_runs_as_coordinator() {
    let (_, lines, ended) = first_run(&guests::coordinator_for_preview1(), "done");
    assert_eq!(ended.text("outcome"), "done", "{ended:?}");
    assert_eq!(lines, [format!("done in term {}", ended.term)]);
}

#[test]
fn component_with_both_exports_runs_as_coordinator() {
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("both.wasm");
    std::fs::write(&module, wat::parse_str(BOTH).expect("the text is valid")).expect("written");
    assert_eq!(check(&module, &["--output=json"]).json()["kind"], "coordinator");
    let (_, _, ended) = first_run(&module, "");
    assert_eq!(ended.text("outcome"), "fatal", "{ended:?}");
    assert!(ended.text("message").contains("TASK"), "{ended:?}");
}

#[track_caller]
fn refused(text: &str, says: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("core.wasm");
    std::fs::write(&module, wat::parse_str(text).expect("the text is valid")).expect("written");
    let mut run = baton(folder.path());
    run.arg("run").arg(&module);
    for (finished, code) in [(check(&module, &[]), 1), (finish(run), 2)] {
        assert_eq!(finished.code, Some(code), "{finished:?}");
        for word in says.iter().chain(&["core.wasm", "wasm-tools component new"]) {
            assert!(finished.stderr.contains(word), "no `{word}` in {finished:?}");
        }
        assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    }
}

#[test]
fn plain_core_module_is_refused_with_remedy() {
    let text = r#"(module (memory (export "memory") 1) (func (export "run") nop))"#;
    refused(text, &["core module", "component types", "preview 1", "wasm32-wasip2"]);
}

#[test]
fn core_module_with_damaged_component_types_is_refused() {
    refused(
        r#"(module (@custom "component-type:job" "\00asm\0d\00\01\00\07\ff"))"#,
        &["cannot be wrapped", "tools of the same release"],
    );
}

#[test]
fn preview_1_module_with_unknown_import_is_refused() {
    let imported = r#"(import "wasi_snapshot_preview1" "fly" (func))"#;
    refused(&format!(r#"(module {imported} (memory (export "memory") 1) (func (export "_start")))"#), &["fly"]);
}

#[test]
fn command_fails_when_it_returns_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let module = folder.path().join("errs.wasm");
    let text = r#"(component
        (core module $code (func (export "main") (result i32) i32.const 1))
        (core instance $code (instantiate $code))
        (func $main (result (result)) (canon lift (core func $code "main")))
        (instance $main (export "run" (func $main)))
        (export "wasi:cli/run@0.2.9" (instance $main))
    )"#;
    std::fs::write(&module, wat::parse_str(text).expect("the text is valid")).expect("written");
    let (_, _, ended) = first_run(&module, "");
    assert_eq!(ended.text("outcome"), "failed", "{ended:?}");
    assert!(ended.text("message").contains("error status"), "{ended:?}");
}

/// A runner rehearses the start of an instance before the term begins, but does not run the module's start function in
/// the rehearsal. This module's start function never returns. If a rehearsal ran the start function, the host would
/// abandon the rehearsal after 2 s.
#[test]
fn start_function_runs_only_in_a_term() {
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
    // On a busy machine, a rehearsal may be slow, so it is enough if one of 10 is quick.
    let quick = (0..10).any(|_| {
        let fleet = Fleet::new(Store::sqlite());
        let module = fleet.home.path().join("starts.wasm");
        std::fs::write(&module, wat::parse_str(text).expect("the text is valid")).expect("written");
        let mut node = launch(&fleet, &module, "").flag("--grace", "300ms").start();
        let term = node.after(0, "elected").term;
        assert_eq!(node.terminate().code(), Some(0));
        let events = fleet.journal.events();
        let of_term = |name| events.iter().find(|event| event.name == name && event.term == term);
        assert!(of_term("started").is_none(), "the start function never returns: {events:?}");
        assert_eq!(of_term("ended").map(|ended| ended.text("outcome")), Some("killed"), "{events:?}");
        fleet.check_promises();
        let ready = events.iter().find(|event| event.name == "module_ready").expect("the module was ready");
        ready.fields["took_s"].as_f64().expect("a number") < 2.0
    });
    assert!(quick, "the start function ran before the term");
}

/// A short mangled C++ name can demangle to a name of unbounded length. Demangling it would keep the host busy.
#[test]
fn name_is_reported_mangled_when_its_demangled_form_explodes() {
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
    std::fs::write(&module, wat::parse_str(text).expect("the text is valid")).expect("written");
    let (_, _, ended) = first_run(&module, "");
    assert!(ended.text("message").contains(&name), "{ended:?}");
}

/// A component that can run in two ways. As a coordinator, it fails fatally with the message TASK. As a command, it
/// succeeds.
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
