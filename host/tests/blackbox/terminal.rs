//! What people see on a terminal, and programs do not: colours, what is under way, and a status that is drawn anew.

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

/// The same command on a terminal of its own: `script` makes one, and its output is what a person would see.
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

fn seen(fleet: &Fleet, args: &[&str], variables: &[(&str, &str)]) -> Finished {
    let mut command = on_terminal(&fleet.baton(args));
    command.envs(variables.iter().copied());
    finish(command)
}

#[test]
fn tables_have_colours_on_a_terminal_and_nowhere_else() {
    let fleet = Fleet::new(Store::sqlite());
    let (_alpha, _) = fleet.leader("alpha");
    let shown = seen(&fleet, &["status"], &[]);
    assert!(shown.code == Some(0) && shown.stdout.contains(BOLD), "{shown:?}");
    assert!(shown.stdout.contains("\u{1b}[32mheld"), "{shown:?}");
    for variables in [[("NO_COLOR", "1")], [("CLICOLOR", "0")]] {
        let plain = seen(&fleet, &["status"], &variables);
        assert!(plain.stdout.contains("held") && !plain.stdout.contains('\u{1b}'), "{variables:?}: {plain:?}");
    }
    assert!(!fleet.command(&["status"]).stdout.contains('\u{1b}'));
    let mut forced = fleet.baton(&["status"]);
    forced.env("CLICOLOR_FORCE", "1");
    assert!(finish(forced).stdout.contains(BOLD));
}

#[test]
fn what_takes_longer_is_shown_to_people_alone() {
    let fleet = Fleet::new(Store::sqlite());
    let file = fleet.home.path().join("slow.wasm");
    std::fs::write(&file, modules::slow()).expect("written");
    let mut command = crate::node::baton(fleet.home.path());
    command.args(["check", "slow.wasm", "--compile-timeout", "4s"]);
    let shown = finish(on_terminal(&command));
    assert!(shown.stdout.contains("compiling slow.wasm, 1 s"), "{shown:?}");
    // It is gone before the answer.
    assert!(shown.stdout.contains("\r\u{1b}[Kerror: ") || shown.stdout.contains("\r\u{1b}[Kslow.wasm"), "{shown:?}");
    let piped = finish(command);
    assert!(!piped.stderr.contains("compiling slow.wasm") && !piped.stderr.contains('\u{1b}'), "{piped:?}");

    let doctor = seen(&fleet, &["doctor", "--quick"], &[]);
    assert!(doctor.stdout.contains("whether the store answers"), "{doctor:?}");
    assert!(!fleet.command(&["doctor", "--quick"]).stderr.contains('\u{1b}'));
}

/// It runs until this is dropped.
struct Watching(Child);

impl Watching {
    fn start(mut command: Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    fn end(mut self) -> Option<i32> {
        let status = wait_for_end(&mut self.0).expect("it ends");
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
fn a_status_is_watched_until_ctrl_c() {
    let fleet = Fleet::new(Store::sqlite());
    let (mut alpha, _) = fleet.leader("alpha");
    let mut watching = Watching::start(fleet.baton(&["status", ELECTION, "--watch", "0.1"]));
    let stdout = BufReader::new(watching.0.stdout.take().expect("it is piped"));
    let mut lines = stdout.lines().map(|line| line.expect("text"));
    let mut until = |word: &str| assert!(lines.by_ref().any(|line| line.contains(word)), "no {word}");
    until("held");
    until("held");
    assert_eq!(alpha.terminate().code(), Some(0));
    until("free");
    // An outage is said, and outlived.
    let outage = fleet.store.cut();
    until("error: ");
    drop(outage);
    until("free");
    kill_process(Pid::from_child(&watching.0), Signal::INT).expect("it gets the signal");
    assert_eq!(watching.end(), Some(0));

    let mut watching = Watching::start(fleet.baton(&["status", "--output=json", "--watch=0.1"]));
    let mut values = serde_json::Deserializer::from_reader(watching.0.stdout.take().expect("it is piped")).into_iter();
    for _ in 0..3 {
        let value: Value = values.next().expect("one more").expect("JSON");
        assert_eq!(value[0]["election"], ELECTION);
    }
    // Who reads no more of it ends it, too.
    drop(values);
    assert_eq!(watching.end(), Some(0));
}

#[test]
fn on_a_terminal_a_status_is_drawn_in_its_place() {
    let fleet = Fleet::new(Store::sqlite());
    let (_alpha, _) = fleet.leader("alpha");
    let mut watching = Watching::start(on_terminal(&fleet.baton(&["status", "--watch", "0.1"])));
    let mut stdout = watching.0.stdout.take().expect("it is piped");
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while text.matches(HOME).count() < 3 {
        let length = stdout.read(&mut bytes).expect("it is read");
        assert!(length > 0, "it has ended: {text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }
    assert!(text.contains("held") && text.contains(BOLD), "{text:?}");
    let baton = crate::node::children_of(watching.0.id());
    let [baton] = baton[..] else { panic!("script runs one command: {baton:?}") };
    kill_process(Pid::from_raw(baton).expect("a number"), Signal::INT).expect("it gets the signal");
    assert_eq!(watching.end(), Some(0));
}

#[test]
fn a_time_that_is_none_is_refused() {
    let fleet = Fleet::new(Store::sqlite());
    for text in ["0", "-1", "nan", "1e9", ELECTION] {
        let refused = fleet.command(&["status", &format!("--watch={text}")]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("--watch") && refused.stderr.contains("0.1 to 3600"), "{refused:?}");
    }
}
