//! Output that appears only on terminals: colors, progress, and a status that is redrawn.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fleet::{ELECTION, Fleet};
use crate::modules;
use crate::node::{Finished, finish, wait_for_end};
use crate::store::Store;

const BOLD: &str = "\u{1b}[1m";
const HOME: &str = "\u{1b}[H";

/// Wraps a command in `script`, which runs it on a new terminal and copies the terminal's output to stdout.
fn on_terminal(command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().expect("a text"))).collect();
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &format!("exec {}", words.join(" ")), "/dev/null"]);
    script.env_clear().envs(command.get_envs().filter_map(|(key, value)| Some((key, value?)))).env("TERM", "xterm");
    if let Some(folder) = command.get_current_dir() {
        script.current_dir(folder);
    }
    script
}

fn run_on_terminal(fleet: &Fleet, args: &[&str], variables: &[(&str, &str)]) -> Finished {
    let mut command = on_terminal(&fleet.baton(args));
    command.envs(variables.iter().copied());
    finish(command)
}

#[test]
fn tables_have_colors_on_a_terminal_only() {
    let fleet = Fleet::new(Store::sqlite());
    let (_alpha, _) = fleet.leader("alpha");
    let shown = run_on_terminal(&fleet, &["status"], &[]);
    assert!(shown.code == Some(0) && shown.stdout.contains(BOLD), "{shown:?}");
    assert!(shown.stdout.contains("\u{1b}[32mheld"), "{shown:?}");
    for variables in [[("NO_COLOR", "1")], [("CLICOLOR", "0")]] {
        let plain = run_on_terminal(&fleet, &["status"], &variables);
        assert!(plain.stdout.contains("held") && !plain.stdout.contains('\u{1b}'), "{variables:?}: {plain:?}");
    }
    assert!(!fleet.command(&["status"]).stdout.contains('\u{1b}'));
    let mut forced = fleet.baton(&["status"]);
    forced.env("CLICOLOR_FORCE", "1");
    assert!(finish(forced).stdout.contains(BOLD));
}

#[test]
fn progress_is_shown_on_a_terminal_only() {
    let fleet = Fleet::new(Store::sqlite());
    let file = fleet.home.path().join("slow.wasm");
    std::fs::write(&file, modules::slow()).expect("written");
    let mut command = crate::node::baton(fleet.home.path());
    command.args(["check", "slow.wasm", "--compile-timeout", "4s"]);
    let shown = finish(on_terminal(&command));
    assert!(shown.stdout.contains("compiling slow.wasm, 1 s"), "{shown:?}");
    // The progress line is erased before the result is printed.
    assert!(shown.stdout.contains("\r\u{1b}[Kerror: ") || shown.stdout.contains("\r\u{1b}[Kslow.wasm"), "{shown:?}");
    let piped = finish(command);
    assert!(!piped.stderr.contains("compiling slow.wasm") && !piped.stderr.contains('\u{1b}'), "{piped:?}");

    let doctor = run_on_terminal(&fleet, &["doctor", "--quick"], &[]);
    assert!(doctor.stdout.contains("whether the store answers"), "{doctor:?}");
    assert!(!fleet.command(&["doctor", "--quick"]).stderr.contains('\u{1b}'));
}

/// Dropping this value kills the command.
struct Watching(Child);

impl Watching {
    fn start(mut command: Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process"))
    }

    fn end(mut self) -> Option<i32> {
        let status = wait_for_end(&mut self.0).expect("an exit");
        assert_eq!(status.signal(), None);
        status.code()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn status_watch_ends_on_ctrl_c_or_a_closed_pipe() {
    let fleet = Fleet::new(Store::sqlite());
    let (mut alpha, _) = fleet.leader("alpha");
    let mut watching = Watching::start(fleet.baton(&["status", ELECTION, "--watch", "0.1"]));
    let stdout = BufReader::new(watching.0.stdout.take().expect("piped"));
    let mut lines = stdout.lines().map(|line| line.expect("text"));
    let mut until = |word: &str| assert!(lines.by_ref().any(|line| line.contains(word)), "no {word}");
    until("held");
    until("held");
    assert_eq!(alpha.terminate().code(), Some(0));
    until("free");
    let outage = fleet.store.cut();
    until("error: ");
    drop(outage);
    until("free");
    kill_process(Pid::from_child(&watching.0), Signal::INT).expect("a running process");
    assert_eq!(watching.end(), Some(0));

    let mut watching = Watching::start(fleet.baton(&["status", "--output=json", "--watch=0.1"]));
    let mut values = serde_json::Deserializer::from_reader(watching.0.stdout.take().expect("piped")).into_iter();
    for _ in 0..3 {
        let value: Value = values.next().expect("one more").expect("JSON");
        assert_eq!(value[0]["election"], ELECTION);
    }
    // The command also ends when its reader closes the pipe.
    drop(values);
    assert_eq!(watching.end(), Some(0));
}

#[test]
fn status_watch_redraws_in_place_on_a_terminal() {
    let fleet = Fleet::new(Store::sqlite());
    let (_alpha, _) = fleet.leader("alpha");
    let mut watching = Watching::start(on_terminal(&fleet.baton(&["status", "--watch", "0.1"])));
    let mut stdout = watching.0.stdout.take().expect("piped");
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while text.matches(HOME).count() < 3 {
        let length = stdout.read(&mut bytes).expect("some output");
        assert!(length > 0, "the command has ended: {text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    assert!(text.contains("held") && text.contains(BOLD), "{text:?}");
    let baton = crate::node::children_of(watching.0.id());
    let [baton] = baton[..] else { panic!("script runs one command: {baton:?}") };
    kill_process(Pid::from_raw(baton).expect("a number"), Signal::INT).expect("a running process");
    assert_eq!(watching.end(), Some(0));
}

#[test]
fn invalid_watch_interval_is_refused() {
    let fleet = Fleet::new(Store::sqlite());
    for text in ["0", "-1", "nan", "1e9", ELECTION] {
        let refused = fleet.command(&["status", &format!("--watch={text}")]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("--watch") && refused.stderr.contains("0.1 to 3600"), "{refused:?}");
    }
}
