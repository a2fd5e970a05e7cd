//! `baton new`, and the commands that it prints as the next steps. The tests read these commands from the output of
//! `baton new`, and run them.
//!
//! To save time between runs, npm and pip keep their downloads in `.cache`, and cargo keeps its builds in the target
//! folder.

use baton_test_support::node;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::http::server::{Reply, Server};
use node::{Event, Finished, Journal, Launch, Node, baton, finish};
use tempfile::TempDir;

#[test]
fn rust_project_tests_builds_and_runs() {
    let project = Project::new("fn", &["--lang", "rust"]);
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new");
    fs::create_dir_all(&built).unwrap();
    // Removes the module that an earlier run of this test built. So this run must build the module again, at the path
    // in `baton.toml`.
    let _ = fs::remove_file(built.join("wasm32-wasip2/release/coordinator.wasm"));
    std::os::unix::fs::symlink(&built, project.folder().join("target")).unwrap();
    let output = project.tests_builds_and_runs();
    assert!(output.contains("test tests::terms_continue_the_count_and_keep_the_answer ... ok"), "{output}");
    let (refused, line) = project.fetches_json("src/lib.rs", "get_json(");
    assert!(refused.contains("--allow-http http://127.0.0.1:") && refused.ends_with(&line), "{refused}");
    project.is_developed();
}

#[test]
fn javascript_project_tests_builds_and_runs() {
    needs("npm", "Node.js 20 or newer, with npm");
    let project = Project::new("web-2", &["--lang", "js"]);
    let output = project.tests_builds_and_runs();
    assert!(output.contains("# pass 1\n"), "{output}");
    // Only the event `request_refused` contains the reason for the refusal. The failure's message does not, because
    // `fetch` does not pass the reason on.
    let (refused, line) = project.fetches_json("coordinator.js", "await fetchJson(");
    assert!(refused.ends_with(&line), "{refused}");
}

#[test]
fn python_project_tests_builds_and_runs() {
    needs("python3", "Python 3.10 or newer, with venv (Debian: python3-venv)");
    let project = Project::new("nightly-report", &["--lang", "python"]);
    let output = project.tests_builds_and_runs();
    assert!(output.contains("Ran 1 test "), "{output}");
    let (refused, line) = project.fetches_json("coordinator.py", "host.fetch(");
    assert!(refused.contains("--allow-http http://127.0.0.1:") && refused.ends_with(&line), "{refused}");
}

#[test]
fn rust_is_the_default_and_includes_the_whole_sdk() {
    let project = Project::new("job", &[]);
    let manifest: toml::Table = project.read("Cargo.toml").parse().unwrap();
    assert_eq!(manifest["dependencies"]["baton-sdk"]["path"].as_str(), Some("baton-sdk"));
    let (original, copy) = (repository().join("guest-sdk"), project.folder().join("baton-sdk"));
    for folder in ["src", "wit", "wit/deps"] {
        let files = |sdk: &Path| -> BTreeMap<_, _> {
            let entries = fs::read_dir(sdk.join(folder)).unwrap().map(|entry| entry.unwrap());
            let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
            files.map(|file| (file.file_name(), fs::read_to_string(file.path()).unwrap())).collect()
        };
        assert_eq!(files(&copy), files(&original), "add them to `SDK` in host/src/commands/new.rs");
    }
}

#[test]
fn docs_show_the_template_of_baton_new() {
    let read = |file: &str| fs::read_to_string(repository().join(file)).unwrap();
    let written = Project::new("job", &[]).read("src/lib.rs");
    assert!(
        read("docs/coordinators.md").contains(&format!("```rust\n{written}```\n")),
        "copy host/templates/rust/lib.rs into docs/coordinators.md"
    );
    let (program, _) = written.split_once("\n#[cfg(test)]").unwrap();
    let (_, functions) = program.split_once("\nasync fn run").unwrap();
    assert!(read("docs/tutorial.md").contains(functions), "copy its functions into docs/tutorial.md");

    // The README contains a smaller example. The same code is the first example in the SDK's documentation, where
    // doctests compile it.
    let readme = read("README.md");
    let (_, rust) = readme.split_once("```rust\n").unwrap();
    let (example, _) = rust.split_once("```\n").unwrap();
    let commented: String = example.lines().map(|line| format!("//! {line}").trim_end().to_owned() + "\n").collect();
    assert!(read("guest-sdk/src/lib.rs").contains(&commented), "copy the README's example into guest-sdk/src/lib.rs");
}

#[test]
fn existing_files_are_not_overwritten() {
    for lang in ["rust", "js", "python"] {
        let project = Project::new("job", &["--lang", lang]);
        let again = project.baton(&["new", "job", "--lang", lang]);
        assert_eq!(again.code, Some(1));
        assert!(again.stderr.contains("already exists, so nothing was written: choose another name"), "{again:?}");

        // `baton new` refuses to write any file if one of its files already exists, even if that file is a dangling
        // link.
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("job")).unwrap();
        std::os::unix::fs::symlink("nowhere", home.path().join("job/baton.toml")).unwrap();
        let refused = run(home.path(), &["new", "job", "--lang", lang]);
        assert!(refused.stderr.starts_with("error: job/baton.toml already exists"), "{refused:?}");
        assert_eq!(fs::read_dir(home.path().join("job")).unwrap().count(), 1);
    }
}

#[test]
fn wrong_arguments_are_refused_with_the_fix() {
    let home = tempfile::tempdir().unwrap();
    let wrong = |arguments: &[&str], problem: &str| {
        let refused = run(home.path(), arguments);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(problem), "{refused:?}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "{arguments:?}");
    };
    let long = "n".repeat(64);
    for name in ["Job", "my_job", "7up", "../job", "", "a/b", &long] {
        wrong(&["new", name], "use 1 to 63 characters: a-z, 0-9 and hyphens, starting with a letter");
    }
    wrong(&["new", "job", "--lang", "cobol"], "[possible values: rust, js, python]");
}

#[test]
fn file_that_cannot_be_written_is_named() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("job")).unwrap();
    // Root can write to any folder, so the test makes the write fail by putting a file where `baton new` needs a
    // folder.
    fs::write(home.path().join("job/src"), "mine").unwrap();
    let refused = run(home.path(), &["new", "job"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.starts_with("error: cannot write job/src/lib.rs"), "{refused:?}");
    let left: Vec<_> = fs::read_dir(home.path().join("job")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["src"], "only what was there before");
}

struct Project {
    home: TempDir,
    name: &'static str,
    instructions: String,
}

impl Project {
    fn new(name: &'static str, flags: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let written = run(home.path(), &[&["new", name], flags].concat());
        assert_eq!(written.code, Some(0), "{written:?}");
        Self { home, name, instructions: written.stdout }
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join(self.name)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.folder().join(file)).unwrap()
    }

    fn baton(&self, arguments: &[&str]) -> Finished {
        run(self.home.path(), arguments)
    }

    /// Runs the commands that `baton new` printed, line by line. Returns the output of the commands before `baton run`.
    fn tests_builds_and_runs(&self) -> String {
        let commands: Vec<&str> = self.instructions.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        let [change, build @ .., run] = commands.as_slice() else { panic!("no commands:\n{}", self.instructions) };
        assert_eq!(*change, format!("cd {}", self.name));
        assert_eq!(*run, "baton run");
        let readme = self.read("README.md");
        assert!(readme.contains(&[build, &[*run]].concat().join("\n")), "{readme}");

        let mut output = String::new();
        for command in build {
            let Output { status, stdout, stderr } = self.shell(command).output().unwrap();
            output += &format!("$ {command}\n{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
            assert!(status.success(), "{status}\n{output}");
        }
        let journal = Journal::default();
        let first = self.runs(run, &journal, |event| event.text("line") == "beat 2");
        // The guest may have printed more beats before it stopped, so the next run may continue from a higher number
        // than 2.
        let continues = |line: &str| line.split_once(" continues from beat ").and_then(|(_, beat)| beat.parse().ok());
        self.runs(run, &journal, |event| continues(event.text("line")).is_some_and(|beat: u32| beat >= 2));
        assert_eq!(first.text("election"), self.name);
        output
    }

    /// Enables the HTTP settings in `baton.toml`, and checks that the coordinator fetches JSON. Then removes
    /// `allow-http`, and checks that the coordinator fails. Returns the failure's message, and the text with which the
    /// message should end: the position of `call` in `source`.
    fn fetches_json(&self, source: &str, call: &str) -> (String, String) {
        let server = Server::start(|_| Reply::ok("{\"stock\": 7}"));
        let file = self.folder().join("baton.toml");
        let written = self.read("baton.toml");
        let with = written.replace("\n# env", "\nenv").replace("\n# allow-http", "\nallow-http");
        let with = with.replace("http://127.0.0.1:8000", &server.url());
        fs::write(&file, &with).unwrap();
        let journal = Journal::default();
        let answers = format!("{}/stock.json answers ", server.url());
        self.runs("baton run", &journal, |event| event.text("line").starts_with(&answers));

        let (without, _) = with.split_once("allow-http").unwrap();
        fs::write(&file, without).unwrap();
        let ended =
            self.runs_until("baton run", &journal, |event| event.name == "ended" && event.text("outcome") == "failed");
        fs::write(&file, written).unwrap();
        let line = 1 + self.read(source).lines().position(|line| line.contains(call)).expect("a line that calls it");
        (ended.text("message").to_owned(), format!(" ({source}:{line})"))
    }

    /// Checks that `baton dev` builds and runs the project. After a change of the source, `baton dev` must swap to the
    /// new version, which must continue the count.
    fn is_developed(&self) {
        let mut shell = self.shell("exec baton dev");
        shell.env("BATON_LOG_FORMAT", "json");
        let journal = Journal::default();
        let mut node: Node = Launch::of("dev", shell, &journal).start();
        let line = |what: &str, test: &dyn Fn(&str) -> bool| {
            let says = |event: &&Event| event.name == "output" && test(event.text("line"));
            journal.wait(what, |events| events.iter().find(says).cloned())
        };
        let first = line("the guest to beat", &|line| line == "beat 2");
        let source = self.read("src/lib.rs");
        fs::write(self.folder().join("src/lib.rs"), source.replace("\"beat {beats}\"", "\"tick {beats}\"")).unwrap();
        let count = |line: &str| line.strip_prefix("tick ").and_then(|count| count.parse::<u32>().ok());
        let next = line("the changed guest to go on", &|line| count(line).is_some_and(|count| count > 2));
        assert!(next.term > first.term, "{next:?}");
        journal.event("the change-over", Event::is_swap);
        assert!(node.terminate().success());
    }

    fn runs(&self, command: &str, journal: &Journal, says: impl Fn(&Event) -> bool) -> Event {
        self.runs_until(command, journal, |event| event.name == "output" && says(event))
    }

    fn runs_until(&self, command: &str, journal: &Journal, is_it: impl Fn(&Event) -> bool) -> Event {
        let mut shell = self.shell(&format!("exec {command}"));
        let store = format!("sqlite:{}", self.home.path().join("store").display());
        shell.env("BATON_STORE", store).env("BATON_LOG_FORMAT", "json");
        let mut node: Node = Launch::of("node", shell, journal).start();
        let found = journal.wait("the event", |events| {
            let found = events.iter().find(|event| is_it(event)).cloned();
            found.map(Some).or_else(|| (!node.is_running()).then_some(None))
        });
        let Some(found) = found else {
            node.wait();
            journal.fail("the host exited before the event");
        };
        let status = node.terminate();
        if !status.success() {
            journal.fail(&format!("the host ended with {status}"));
        }
        found
    }

    /// The command finds `baton` in `PATH`, as if it were installed.
    fn shell(&self, command: &str) -> Command {
        let baton = Path::new(env!("CARGO_BIN_EXE_baton")).parent().unwrap();
        let path = std::env::join_paths(
            [baton.to_path_buf()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
        );
        let cache = repository().join(".cache");
        let mut shell = Command::new("sh");
        shell.args(["-ec", command]).current_dir(self.folder()).env("PATH", path.unwrap());
        shell.env("npm_config_cache", cache.join("npm")).env("PIP_CACHE_DIR", cache.join("pip"));
        // The project must not see this test run's own settings.
        let ours =
            |name: &std::ffi::OsStr| name == "CARGO_TARGET_DIR" || name.as_encoded_bytes().starts_with(b"BATON_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| ours(name)) {
            shell.env_remove(name);
        }
        shell
    }
}

fn run(home: &Path, arguments: &[&str]) -> Finished {
    let mut command = baton(home);
    command.args(arguments);
    finish(command)
}

fn repository() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap()
}

/// Fails the test if the program is missing. Skipping the test instead would hide that nothing was tested.
fn needs(program: &str, install: &str) {
    let found = Command::new(program).arg("--version").output();
    assert!(
        found.is_ok_and(|found| found.status.success()),
        "{program} is missing: install {install}, then run this again"
    );
}
