//! Hosts of one machine that die, and whose leases nobody waits for. The lease is a minute long, so that who leads before
//! three quarters of it have passed cannot have waited for it to run out.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use rustix::process::{Signal, kill_process};
use time::OffsetDateTime;

use crate::fleet::Fleet;
use crate::node::{Event, Node, until};
use crate::store::Store;

const MINUTE: [(&str, &str); 1] = [("--lease", "60s")];

/// D where a successor waits for its end.
const WAITED_FOR: Duration = Duration::from_secs(8);

/// A leader and a standby, and the term.
fn pair(fleet: &Fleet, flags: &[(&str, &str)]) -> (Node, Node, u64) {
    let alpha = fleet.launch_with("alpha", flags).start();
    let term = fleet.beat_above(0).term;
    let beta = fleet.launch_with("beta", flags).start();
    beta.event("to follow alpha", |event| event.name == "standby" && event.text("leader") == "alpha");
    (alpha, beta, term)
}

fn folder(fleet: &Fleet) -> PathBuf {
    fleet.store.folder().join("holders")
}

#[test]
fn nobody_waits_for_a_host_that_is_killed_and_its_end_is_a_failure() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, beta, term) = pair(&fleet, &MINUTE);
    let killed = OffsetDateTime::now_utc();
    alpha.signal(Signal::KILL);
    let next = fleet.beat_above(term);
    assert!(next.from == "beta" && next.ts < killed + Duration::from_secs(45), "{next:?} after {killed}");
    // The next time others wait a little, though not as long as for a lease.
    let _gamma = {
        let gamma = fleet.launch_with("gamma", &MINUTE).start();
        gamma.event("to follow beta", |event| event.name == "standby" && event.text("leader") == "beta");
        gamma
    };
    let killed = OffsetDateTime::now_utc();
    beta.signal(Signal::KILL);
    let elected = fleet.beat_above(next.term);
    let waited = elected.ts - killed;
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(45), "{waited} until {elected:?}");
    fleet.check_promises();
}

#[test]
fn a_host_whose_runner_died_before_it_is_not_waited_for_either() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _beta, term) = pair(&fleet, &MINUTE);
    for runner in alpha.runners() {
        kill_process(runner, Signal::KILL).expect("it is there");
    }
    alpha.signal(Signal::KILL);
    let killed = OffsetDateTime::now_utc();
    let next = fleet.beat("beta to lead", |event| event.from == "beta" && event.term > term);
    assert!(next.ts < killed + Duration::from_secs(45), "{next:?} after {killed}");
    fleet.check_promises();
}

#[test]
fn a_host_is_there_as_long_as_anybody_holds_its_lock() {
    let fleet = Fleet::new(Store::sqlite());
    let (mut alpha, beta, term) = pair(&fleet, &MINUTE);
    let lock_file = lock_file_of(&fleet);
    let holds = File::options().write(true).open(&lock_file).expect("its lock file");
    // As a runner would that a debugger keeps from ending.
    let wanted = libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: 1 << 40, l_len: 1, l_pid: 0 };
    // SAFETY: the descriptor is open, and `wanted` lives until the call returns, which reads it.
    assert_eq!(unsafe { libc::fcntl(holds.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) }, 0);
    alpha.signal(Signal::KILL);
    alpha.wait();
    // It still follows, and has looked since.
    let status = fleet.status_until("the standby's view", |status| status["lease"] == "held");
    assert_eq!(status["term"].as_u64(), Some(term), "{status}");
    let is_news = |event: &Event| event.from == "beta" && event.name == "elected";
    assert!(!fleet.journal.events().iter().any(is_news), "{:?}", fleet.journal.events());
    let released = OffsetDateTime::now_utc();
    drop(holds);
    let elected = beta.after(term, "elected");
    assert!(elected.ts >= released && elected.ts < released + Duration::from_secs(40), "{elected:?} after {released}");
    fleet.check_promises();
}

#[test]
fn standby_waits_when_the_leader_does_not_report_its_death() {
    successor_waits(&["--reclaim=false"], &[], |_| ());
}

#[test]
fn standby_waits_when_it_does_not_watch_for_deaths() {
    successor_waits(&[], &["--reclaim=false"], |_| ());
}

#[test]
fn standby_waits_when_an_older_host_has_written_since() {
    successor_waits(&[], &[], |fleet| {
        // An older host would leave a record of another version than the noted one.
        let connection = Connection::open(fleet.store.folder().join("lease.db")).expect("the file");
        connection.busy_timeout(Duration::from_secs(10)).expect("a timeout");
        assert_eq!(connection.execute("UPDATE holder SET version = 'older'", []), Ok(1));
    });
}

/// A leader with some arguments is killed, and a standby with others waits until its lease has expired.
fn successor_waits(leader: &[&str], standby: &[&str], before: impl FnOnce(&Fleet)) {
    let fleet = Fleet::new(Store::sqlite());
    let lease = format!("{}s", WAITED_FOR.as_secs());
    let start = |name, arguments: &[&str]| {
        let launch = fleet.launch_with(name, &[("--lease", &lease)]);
        arguments.iter().fold(launch, |launch, argument| launch.arg(argument)).start()
    };
    let alpha = start("alpha", leader);
    let term = fleet.beat_above(0).term;
    let beta = start("beta", standby);
    beta.event("to follow alpha", |event| event.name == "standby" && event.text("leader") == "alpha");
    // The next renewals may be late on a busy machine.
    fleet.store.renewed();
    before(&fleet);
    let killed = OffsetDateTime::now_utc();
    alpha.signal(Signal::KILL);
    let next = beta.after(term, "elected");
    assert!(next.ts > killed + WAITED_FOR / 2, "{next:?} after {killed}");
    fleet.check_promises();
}

#[test]
fn a_copy_of_the_folder_says_of_nobody_that_it_is_gone() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _beta, term) = pair(&fleet, &MINUTE);
    let copy = tempfile::tempdir().expect("a folder");
    alpha.pause_host();
    let copied = Command::new("cp").arg("-a").arg(fleet.store.folder()).arg(copy.path()).status().expect("cp");
    alpha.signal(Signal::CONT);
    assert!(copied.success());
    let copy = copy.path().join(fleet.store.folder().file_name().expect("a name"));
    let store = format!("sqlite:{}", copy.display());
    // There nobody has locked the file that is named as alpha's lock file is, neither now nor when alpha has died.
    let gamma = fleet.launch_with("gamma", &[MINUTE[0], ("--store", &store)]).start();
    gamma.event("to follow alpha", |event| event.name == "standby" && event.text("leader") == "alpha");
    alpha.signal(Signal::KILL);
    fleet.beat("beta to lead", |event| event.from == "beta" && event.term > term);
    let delta = fleet.launch_with("delta", &[MINUTE[0], ("--store", &store)]).start();
    delta.event("to follow alpha", |event| event.name == "standby" && event.text("leader") == "alpha");
    let is_of_copy = |event: &&Event| ["gamma", "delta"].contains(&&*event.from) && event.name == "elected";
    assert_eq!(fleet.journal.events().iter().find(is_of_copy).map(|event| event.raw.clone()), None);
}

/// The one lock file that the record's holder has.
fn lock_file_of(fleet: &Fleet) -> PathBuf {
    let connection = Connection::open(fleet.store.folder().join("lease.db")).expect("the file");
    let incarnation: String =
        until("its note", || connection.query_row("SELECT incarnation FROM holder", [], |row| row.get(0)));
    folder(fleet).join(incarnation)
}
