//! `baton dev`, tested on a project whose build does not compile anything: it appends a section to a prebuilt guest.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::endpoint::Endpoint;
use crate::guests::Guest;
use crate::node::{Event, Journal, Launch, Node, baton, finish, until};
use baton_test_support::modules::section;

/// Build command that makes `job.wasm` from a prebuilt guest and the file `section`. It fails if a file named `broken`
/// exists.
const BUILD: &str =
    "if [ -e broken ]; then echo 'broken is in the way' >&2; exit 7; fi; cat ../guest.wasm section >job.wasm";

struct Project {
    home: TempDir,
    journal: Journal,
}

impl Project {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a folder");
        symlink(Guest::Beats.module(), home.path().join("guest.wasm")).expect("a link");
        let project = Self { home, journal: Journal::default() };
        fs::create_dir(project.path("")).expect("a folder");
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join("project").join(name)
    }

    /// Makes the next build produce a different module: the same guest with a different custom section.
    fn write(&self, version: &str) {
        // Writes another file and renames it. The rename is atomic, so no build can read a half-written section.
        let hidden = self.home.path().join("section");
        fs::write(&hidden, section(version)).expect("the file is written");
        fs::rename(hidden, self.path("section")).expect("the file is renamed");
    }

    fn dev(&self, flags: &[&str]) -> Node {
        let mut command = baton(self.home.path());
        command.args(["dev", "project", "--module", "job.wasm", "--max-memory", "64MiB"]);
        for (name, value) in Guest::Beats.env() {
            command.args(["--env", &format!("{name}={value}")]);
        }
        command.args(flags);
        Launch::of("dev", command, &self.journal).start()
    }

    fn event(&self, name: &str, count: usize) -> Event {
        let found = |events: &[Event]| events.iter().filter(|event| event.name == name).nth(count - 1).cloned();
        self.journal.wait(&format!("event {count} called {name}"), found)
    }

    fn beat_after(&self, event: &Event) -> Event {
        let later =
            |other: &Event| other.name == "output" && other.ts > event.ts && other.text("line").contains("beat");
        self.journal.event("a beat after that", later)
    }
}

const JSON: [&str; 2] = ["--log-format", "json"];

#[test]
fn each_build_is_swapped_in_and_failed_builds_are_not() {
    let project = Project::new();
    project.write("one");
    // This is the result of an earlier build. `baton dev` must not run it.
    fs::write(project.path("job.wasm"), "old").unwrap();
    let mut node = project.dev(&[&JSON[..], &["--build", BUILD]].concat());
    let started = project.event("started", 1);
    project.event("built", 1);
    let first = project.beat_after(&started);
    assert_eq!(first.text("election"), "job");

    project.write("two");
    let swapped = project.event("started", 2);
    assert_eq!(swapped.text("replaces"), started.text("module"));
    assert!(swapped.fields["gap_s"].as_f64().is_some(), "{swapped:?}");
    let second = project.beat_after(&swapped);
    assert!(second.term > first.term, "{second:?} after {first:?}");

    fs::write(project.path("broken"), "").unwrap();
    let failed = project.event("built", 3);
    assert!(failed.text("error").contains("exit status: 7"), "{failed:?}");
    project.journal.event("the compiler's output", |event| event.raw == "broken is in the way");
    assert_eq!(project.beat_after(&failed).term, second.term, "the instance keeps running");

    // The next build succeeds, but its module cannot run.
    fs::write(project.path("section"), [0, 50]).unwrap();
    fs::remove_file(project.path("broken")).unwrap();
    let refused = project.event("module_refused", 1);
    assert_eq!(project.beat_after(&refused).term, second.term, "the instance keeps running");

    project.write("three");
    let swapped = project.event("started", 3);
    assert_eq!(swapped.text("replaces"), first_swapped_module(&project), "nothing else ran in between");
    assert!(project.beat_after(&swapped).term > second.term);

    node.signal(Signal::INT);
    assert_eq!(node.wait().code(), Some(0));
    assert_eq!(project.event("shutting_down", 1).text("signal"), "SIGINT");
    if project.journal.events().iter().any(|event| event.name == "error") {
        project.journal.fail("something went wrong");
    }
}

fn first_swapped_module(project: &Project) -> String {
    project.event("started", 2).text("module").to_owned()
}

#[test]
fn change_during_build_starts_one_more_build() {
    let project = Project::new();
    project.write("one");
    // `baton dev` does not watch hidden folders, so changes to files in this folder do not trigger a build.
    let control = |name: &str| project.path(".control").join(name);
    fs::create_dir(project.path(".control")).unwrap();
    let build = format!("echo >>.control/begun; while [ ! -e .control/go ]; do sleep 0.05; done; {BUILD}");
    let _node = project.dev(&[&JSON[..], &["--build", &build]].concat());
    let begun = || fs::read(control("begun")).unwrap_or_default().len();
    until("a build to begin", || if begun() == 1 { Ok(()) } else { Err(begun()) });
    project.write("two");
    project.write("three");
    fs::write(control("go"), "").unwrap();
    project.event("built", 2);
    // `baton dev` may skip version two, because version three replaced it before the second build began. It must build
    // and run version three.
    let made = fs::read(project.path("job.wasm")).unwrap();
    assert!(made.ends_with(b"three"));
    project.event("started", 1);
    assert_eq!(begun(), 2, "exactly one build follows");
}

#[test]
fn running_build_ends_with_dev() {
    let project = Project::new();
    // The build closes its output. Otherwise, the test would have to read that output until all of the build's
    // processes have ended.
    let build = "exec >/dev/null 2>&1; trap '' INT TERM; sleep 1000 & echo $! >.child; wait";
    let mut node = project.dev(&[&JSON[..], &["--build", build]].concat());
    let child = until("the build to begin", || {
        fs::read_to_string(project.path(".child")).unwrap_or_default().trim().parse::<u32>()
    });
    assert!(runs(child));
    node.signal(Signal::INT);
    assert_eq!(node.wait().code(), Some(0));
    until("the build's end", || if runs(child) { Err(child) } else { Ok(()) });
}

/// A process that has exited but has not been reaped does not count as running.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn externally_built_module_is_swapped_in() {
    let project = Project::new();
    let mut node = project.dev(&["--build", "off"]);
    // Without `--log-format`, the log is text.
    let line = |words: &[&str]| {
        let has = |event: &Event| words.iter().all(|word| event.raw.contains(word));
        project.journal.event(&format!("a line with {words:?}"), has)
    };
    line(&["ERROR", "module_refused: ", "there is no module at", "job.wasm"]);
    fs::copy(Guest::Beats.module(), project.path("job.wasm")).unwrap();
    line(&["out", "term 1", "| ", "beat"]);
    project.write("two");
    let two = [fs::read(Guest::Beats.module()).unwrap(), fs::read(project.path("section")).unwrap()].concat();
    fs::write(project.path("new"), two).unwrap();
    fs::rename(project.path("new"), project.path("job.wasm")).unwrap();
    line(&["started: ", "without an instance"]);
    line(&["out", "term 2", "| ", "beat"]);
    assert_eq!(node.terminate().code(), Some(0));
    for hidden in ["standby: ", "elected: ", "starting: "] {
        assert!(project.journal.events().iter().all(|event| !event.raw.contains(hidden)), "{hidden}");
    }
}

#[test]
fn wrong_arguments_are_refused_with_remedy() {
    let home = tempfile::tempdir().expect("a folder");
    let wrong = |arguments: &[&str], problem: &str| {
        let mut command = baton(home.path());
        command.arg("dev").args(arguments);
        let refused = finish(command);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(problem), "{refused:?}");
    };
    wrong(&[], "cannot tell how to build");
    wrong(&["nowhere"], "there is no folder nowhere");
    wrong(&["--build", "make"], "--module: there is nothing to run");
    wrong(&["--build", "make", "--module", "job.wasm", "--lease", "1s"], "--lease");
}

#[test]
fn dev_serves_the_page() {
    let project = Project::new();
    project.write("one");
    let node = project.dev(&[&JSON[..], &["--build", BUILD]].concat());
    node.after(0, "started");
    let page = Endpoint::of(&node).ask("/");
    assert!(page.status == 200 && page.body.contains("<title>Baton</title>"), "{page:?}");
}
