//! Takeovers on the same machine after a host has died. The kernel reports the death, so the successor need not wait
//! for the lease to expire. The lease is 60 s: a node that leads within 45 s has not waited for it to expire.

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

/// Lease duration in tests in which the successor waits until the lease expires.
const SHORT_LEASE: Duration = Duration::from_secs(8);

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
fn standby_takes_over_at_once_when_host_is_killed() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, beta, term) = pair(&fleet, &MINUTE);
    let killed = OffsetDateTime::now_utc();
    alpha.signal(Signal::KILL);
    let next = fleet.beat_above(term);
    assert!(next.from == "beta" && next.ts < killed + Duration::from_secs(45), "{next:?} after {killed}");
    // After the second death in a row, the successor waits for a short time, but not until the lease expires.
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
fn standby_takes_over_at_once_when_runner_died_before_host() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _beta, term) = pair(&fleet, &MINUTE);
    for runner in alpha.runners() {
        kill_process(runner, Signal::KILL).expect("a running process");
    }
    alpha.signal(Signal::KILL);
    let killed = OffsetDateTime::now_utc();
    let next = fleet.beat("beta to lead", |event| event.from == "beta" && event.term > term);
    assert!(next.ts < killed + Duration::from_secs(45), "{next:?} after {killed}");
    fleet.check_promises();
}

#[test]
fn standby_waits_while_a_process_holds_the_lock() {
    let fleet = Fleet::new(Store::sqlite());
    let (mut alpha, beta, term) = pair(&fleet, &MINUTE);
    let lock_file = lock_file_of(&fleet);
    let holds = File::options().write(true).open(&lock_file).expect("the lock file");
    // The test locks a byte of the lock file, like a runner that a debugger keeps from exiting.
    let wanted = libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: 1 << 40, l_len: 1, l_pid: 0 };
    // SAFETY: `holds` keeps the descriptor open, and `wanted` is a valid `flock` that outlives the call. The call only
    // reads it.
    assert_eq!(unsafe { libc::fcntl(holds.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) }, 0);
    alpha.signal(Signal::KILL);
    alpha.wait();
    // The locked byte must keep beta a standby, and the lease must still be alpha's.
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
        // If an older host writes the record, the record's version no longer matches the version that alpha has noted.
        // The test changes the noted version instead, which also makes the two versions differ.
        let connection = Connection::open(fleet.store.folder().join("lease.db")).expect("the file");
        connection.busy_timeout(Duration::from_secs(10)).expect("a timeout");
        assert_eq!(connection.execute("UPDATE holder SET version = 'older'", []), Ok(1));
    });
}

/// Starts a leader and a standby with these arguments, calls `before`, and kills the leader. Checks that the standby
/// waits until the lease expires.
fn successor_waits(leader: &[&str], standby: &[&str], before: impl FnOnce(&Fleet)) {
    let fleet = Fleet::new(Store::sqlite());
    let lease = format!("{}s", SHORT_LEASE.as_secs());
    let start = |name, arguments: &[&str]| {
        let launch = fleet.launch_with(name, &[("--lease", &lease)]);
        arguments.iter().fold(launch, |launch, argument| launch.arg(argument)).start()
    };
    let alpha = start("alpha", leader);
    let term = fleet.beat_above(0).term;
    let beta = start("beta", standby);
    beta.event("to follow alpha", |event| event.name == "standby" && event.text("leader") == "alpha");
    // On a busy machine, renewals may be late. The test kills the leader just after a renewal, so that most of the
    // lease is left.
    fleet.store.renewed();
    before(&fleet);
    let killed = OffsetDateTime::now_utc();
    alpha.signal(Signal::KILL);
    let next = beta.after(term, "elected");
    assert!(next.ts > killed + SHORT_LEASE / 2, "{next:?} after {killed}");
    fleet.check_promises();
}

#[test]
fn copied_store_reports_no_death() {
    let fleet = Fleet::new(Store::sqlite());
    let (alpha, _beta, term) = pair(&fleet, &MINUTE);
    let copy = tempfile::tempdir().expect("a folder");
    alpha.pause_host();
    let copied = Command::new("cp").arg("-a").arg(fleet.store.folder()).arg(copy.path()).status().expect("cp");
    alpha.signal(Signal::CONT);
    assert!(copied.success());
    let copy = copy.path().join(fleet.store.folder().file_name().expect("a name"));
    let store = format!("sqlite:{}", copy.display());
    // The copied store contains a copy of alpha's lock file. No process locks this copy, but gamma and delta must not
    // conclude from it that alpha is dead.
    let gamma = fleet.launch_with("gamma", &[MINUTE[0], ("--store", &store)]).start();
    gamma.event("to follow alpha", |event| event.name == "standby" && event.text("leader") == "alpha");
    alpha.signal(Signal::KILL);
    fleet.beat("beta to lead", |event| event.from == "beta" && event.term > term);
    let delta = fleet.launch_with("delta", &[MINUTE[0], ("--store", &store)]).start();
    delta.event("to follow alpha", |event| event.name == "standby" && event.text("leader") == "alpha");
    let is_of_copy = |event: &&Event| ["gamma", "delta"].contains(&&*event.from) && event.name == "elected";
    assert_eq!(fleet.journal.events().iter().find(is_of_copy).map(|event| event.raw.clone()), None);
}

fn lock_file_of(fleet: &Fleet) -> PathBuf {
    let connection = Connection::open(fleet.store.folder().join("lease.db")).expect("the file");
    let incarnation: String =
        until("the holder's note", || connection.query_row("SELECT incarnation FROM holder", [], |row| row.get(0)));
    folder(fleet).join(incarnation)
}
