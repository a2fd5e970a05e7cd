//! What is left when an instance dies: the backtrace in the log, a core dump and a profile.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use wasmparser::{KnownCustom, Parser, Payload};

use crate::fleet::Fleet;
use crate::guests::{self, Guest};
use crate::node::{Event, Launch, baton, finish, until};
use crate::store::Store;

/// A fleet on the embedded store with that guest, and a folder.
fn fleet(guest: Guest) -> (Fleet, PathBuf) {
    let fleet = Fleet::new(Store::sqlite()).with(guest);
    let folder = fleet.home.path().join("kept");
    fs::create_dir(&folder).expect("the folder is made");
    (fleet, folder)
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// Waits until something was written, or was not.
fn told(fleet: &Fleet, name: &str, what: &str) -> Event {
    fleet.journal.event(name, |event| event.name == name && event.text("what") == what)
}

#[test]
fn a_recursion_is_told_by_its_functions_name_and_once() {
    let (fleet, _) = fleet(Guest::Recurses);
    // The compiler does not see it, and its code must be right for this host all the same.
    let node = fleet.launch("alpha").env("WASMTIME_BACKTRACE_DETAILS", "1").start();
    let gone = node.after(0, "ended");
    let message = gone.text("message");
    assert_eq!(message.matches("fixtures::recurse").count(), 1, "{message}");
    assert!(message.contains("more of the same") && !message.contains("WASMTIME"), "{message}");
}

#[test]
fn a_trap_leaves_a_core_dump_that_can_be_read_by_its_owner_alone() {
    let (fleet, folder) = fleet(Guest::Traps);
    let _node = fleet.launch("alpha").flag("--coredump", &folder).start();
    let saved = told(&fleet, "dump_written", "core dump");
    let path = folder.join(format!("fleet-{}.coredump", saved.term));
    assert_eq!(Path::new(saved.text("path")), path);
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);

    let dump = fs::read(&path).expect("it can be read");
    let (mut name, mut frames, mut memory) = (String::new(), 0, 0);
    for payload in Parser::new(0).parse_all(&dump) {
        match payload.expect("a core dump is a module by its form") {
            Payload::CustomSection(section) => match section.as_known() {
                KnownCustom::CoreDump(of) => name = of.name.to_owned(),
                KnownCustom::CoreDumpStack(stack) => frames = stack.frames.len(),
                _ => {}
            },
            Payload::DataSection(data) => {
                memory = data.into_iter().map(|part| part.expect("data").data.len()).sum();
            }
            _ => {}
        }
    }
    assert_eq!(name, "fleet");
    assert!(frames > 1, "{frames} frames of a panic");
    assert!(memory > 1000, "{memory} bytes of memory");
    // What the guest had in its hands is in the dump, for a person who looks for the cause.
    let text = b"this guest panics";
    assert!(dump.windows(text.len()).any(|window| window == text));
    fleet.check_promises();
}

/// All that it may have: the buffers of the dump are beside that.
#[test]
fn a_large_memory_leaves_a_core_dump_too() {
    let (fleet, folder) = fleet(Guest::Allocates);
    let flags = [("--max-memory", "200MiB"), ("--lease", "60s")];
    let _node = fleet.launch_with("alpha", &flags).flag("--coredump", &folder).start();
    let saved = told(&fleet, "dump_written", "core dump");
    let size = fs::metadata(saved.text("path")).expect("it is there").len();
    assert!(size > 150 << 20, "{size} bytes");
    let gone = fleet.journal.event("its end", |event| event.name == "ended" && event.term == saved.term);
    assert_eq!(gone.text("outcome"), "failed", "{gone:?}");
    assert!(gone.text("message").contains("wasm backtrace"), "{gone:?}");
}

#[test]
fn only_the_newest_core_dumps_of_an_election_are_kept() {
    let (fleet, folder) = fleet(Guest::Traps);
    let others = ["fleet-2-7.coredump", "fleet-x.coredump", "fleet-700", "other-7.coredump"];
    for name in others {
        fs::write(folder.join(name), "of someone else").expect("written");
    }
    for term in 701..708 {
        fs::write(folder.join(format!("fleet-{term}.coredump")), "from an earlier store").expect("written");
    }
    let _node = fleet.launch("alpha").flag("--coredump", &folder).start();
    let saved = told(&fleet, "dump_written", "core dump");
    let saved = format!("fleet-{}.coredump", saved.term);
    // It goes on failing: while another one is written, there is one more.
    until("five of its own", || {
        let left = names(&folder);
        assert!(others.iter().all(|name| left.contains(*name)), "{left:?}");
        let own = left.iter().filter(|name| !others.contains(&name.as_str())).count();
        if own == 5 && left.contains(&saved) { Ok(()) } else { Err(left) }
    });
}

#[test]
fn what_did_not_trap_leaves_no_core_dump() {
    for guest in [Guest::Exits, Guest::FailsRetryable, Guest::Loops] {
        let (fleet, folder) = fleet(guest);
        let mut node = fleet.launch("alpha").flag("--coredump", &folder).start();
        let started = node.after(0, "started");
        if guest != Guest::Loops {
            node.after(started.term, "started");
        }
        assert_eq!(node.terminate().code(), Some(0));
        assert!(names(&folder).is_empty(), "{guest:?}: {:?}", names(&folder));
        let told = fleet.journal.events().iter().any(|event| event.name.starts_with("dump_"));
        assert!(!told, "{guest:?}: {:?}", fleet.journal.events());
    }
}

#[test]
fn a_core_dump_that_may_take_longer_than_there_is_time_is_not_made() {
    let (fleet, folder) = fleet(Guest::Allocates);
    // For so short a lease, that is much.
    let flags = [("--max-memory", "384MiB"), ("--lease", "6s")];
    let node = fleet.launch_with("alpha", &flags).flag("--coredump", &folder).start();
    let not_saved = told(&fleet, "dump_failed", "core dump");
    assert!(not_saved.text("error").contains("until the deadline"), "{not_saved:?}");
    node.after(not_saved.term, "started");
    assert!(names(&folder).is_empty(), "{:?}", names(&folder));
    fleet.check_promises();
}

#[test]
fn a_full_disk_costs_the_core_dump_and_nothing_else() {
    let (fleet, folder) = fleet(Guest::Traps);
    let folder = folder.display().to_string();
    // Room for the beginning of a dump.
    let full = format!("mount -t tmpfs -o size=8k tmpfs {folder}");
    let node = fleet.launch("alpha").flag("--coredump", &folder).with_mounts(&full).start();
    let not_saved = told(&fleet, "dump_failed", "core dump");
    assert!(not_saved.text("error").contains("No space left"), "{not_saved:?}");
    let gone = node.after(0, "ended");
    assert_eq!(gone.text("outcome"), "failed", "{gone:?}");
    node.after(gone.term, "started");
    let inside = PathBuf::from(format!("/proc/{}/root/{folder}", node.pid()));
    // Between two attempts nothing is left of either.
    until("an empty folder", || Some(names(&inside)).filter(BTreeSet::is_empty).ok_or_else(|| names(&inside)));
    fleet.check_promises();
}

/// The functions on the stack of any sample of a profile, in the form that Firefox's profiler opens.
fn sampled_functions(profile: &Value) -> BTreeSet<String> {
    let thread = &profile["threads"][0];
    let column = |table: &str, name: &str, at: u64| thread[table][name][usize::try_from(at).expect("an index")].clone();
    let mut functions = BTreeSet::new();
    for stack in thread["samples"]["stack"].as_array().expect("samples") {
        let mut stack = stack.as_u64();
        while let Some(at) = stack {
            let frame = column("stackTable", "frame", at).as_u64().expect("a frame");
            let function = column("frameTable", "func", frame).as_u64().expect("a function");
            let name = column("funcTable", "name", function).as_u64().expect("a name");
            let name = &thread["stringArray"][usize::try_from(name).expect("an index")];
            functions.insert(name.as_str().expect("a text").to_owned());
            stack = column("stackTable", "prefix", at).as_u64();
        }
    }
    functions
}

fn profile(file: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(file).expect("it is there")).expect("it is JSON")
}

#[test]
fn a_profile_names_the_functions_that_computed() {
    for module in [guests::program(), guests::program_for_preview1()] {
        let (fleet, folder) = fleet(Guest::Beats);
        let file = folder.join("profile.json");
        let mut node = Launch::run("alpha", fleet.home.path(), &fleet.journal)
            .arg(module)
            .flag("--store", fleet.store.url())
            .flag("--env", "BEHAVIOUR=compute")
            .flag("--profile", &file)
            .start();
        let saved = told(&fleet, "dump_written", "profile");
        assert_eq!(Path::new(saved.text("path")), file);
        // At the end of the host the next instance's profile takes the place of this one.
        let first = profile(&file);
        assert_eq!(node.terminate().code(), Some(0));
        let functions = sampled_functions(&first);
        assert!(functions.iter().any(|name| name.contains("program::compute_something")), "{functions:?}");
        for field in ["meta", "libs", "threads"] {
            assert!(!first[field].is_null(), "{field} is missing");
        }
        assert_eq!(names(&folder), BTreeSet::from(["profile.json".to_owned()]), "nothing half-written is left");
    }
}

#[test]
fn a_profile_has_an_end_however_deep_the_guest_computes() {
    let (fleet, folder) = fleet(Guest::Wanders);
    let file = folder.join("profile.json");
    let _node = fleet.launch("alpha").flag("--profile", &file).start();
    let rest = told(&fleet, "dump_failed", "rest of the profile");
    assert!(rest.text("error").contains("MiB of memory"), "{rest:?}");
    told(&fleet, "dump_written", "profile");
    let profile = profile(&file);
    let stacks = profile["threads"][0]["stackTable"]["length"].as_u64().expect("a number");
    // What it keeps of each takes 50 bytes and more.
    assert!(50 * stacks < 64 << 20, "{stacks}");
    assert!(fs::metadata(&file).expect("it is there").len() < 64 << 20);
    assert!(sampled_functions(&profile).iter().any(|name| name.contains("fixtures::wander")));
    fleet.check_promises();
}

#[test]
fn what_it_fails_with_is_cut_as_output_is() {
    let (fleet, _) = fleet(Guest::FailsAtLength);
    let node = fleet.node("alpha");
    let gone = node.after(0, "ended");
    assert!(gone.text("message").ends_with("x … and 1040384 bytes more"), "{} bytes", gone.raw.len());
    node.event("`cool_off`", |event| event.name == "cool_off");
    for event in fleet.journal.events() {
        assert!(event.raw.len() < 10_000, "{} has {} bytes", event.name, event.raw.len());
    }
}

#[test]
fn an_instance_that_is_killed_leaves_its_profile_before_the_host_ends() {
    let (fleet, folder) = fleet(Guest::Loops);
    let file = folder.join("profile.json");
    // It ends itself before its grace does, for which a busy machine needs time.
    let node = fleet.launch_with("alpha", &[("--grace", "20s"), ("--lease", "60s")]);
    let mut node = node.flag("--profile", &file).start();
    node.after(0, "started");
    assert_eq!(node.terminate().code(), Some(0));
    let saved = told(&fleet, "dump_written", "profile");
    let gone = fleet.journal.event("ended", |event| event.name == "ended" && event.term == saved.term);
    assert_eq!(gone.text("outcome"), "killed", "{gone:?}");
    let functions = sampled_functions(&profile(&file));
    assert!(functions.iter().any(|name| name.contains("fixtures::")), "{functions:?}");
    fleet.check_promises();
}

/// Checks that a place that cannot be written is a wrong configuration, told by the flag.
fn refused(flag: &str, place: &str, says: &str) {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = baton(home.path());
    command.arg("run").arg(Guest::Beats.module()).args([flag, place]);
    let finished = finish(command);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    for word in [flag, place, says] {
        assert!(finished.stderr.contains(word), "`{word}` is not said: {finished:?}");
    }
}

#[test]
fn places_that_cannot_be_written_are_refused_at_the_start() {
    refused("--coredump", "/nowhere/dumps", "No such file");
    refused("--coredump", "/etc/hostname", "not a directory");
    refused("--profile", "/nowhere/profile.json", "No such file");
    refused("--profile", "/etc", "not a regular file");
    refused("--profile", "/dev/null", "not a regular file");
    refused("--profile", "", "is empty");
}

#[test]
fn a_read_only_folder_is_refused_at_the_start() {
    let (fleet, folder) = fleet(Guest::Beats);
    let folder = folder.display().to_string();
    let read_only = format!("mount -t tmpfs -o ro tmpfs {folder}");
    let mut node = fleet.launch("alpha").flag("--coredump", &folder).with_mounts(&read_only).start();
    assert_eq!(node.wait().code(), Some(2));
    let said =
        fleet.journal.events().iter().any(|event| event.raw.contains("Read-only") && event.raw.contains(&folder));
    assert!(said, "{:?}", fleet.journal.events());
}
