//! Hosts that are killed and restarted, on a store that several machines share. A leader writes the secret id of its
//! lease to a file, its note. With the note, another host on the machine can reclaim the lease. The lease is 60 s: a
//! node that leads within 45 s has reclaimed the lease instead of waiting for it to expire.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use time::OffsetDateTime;

use crate::endpoint::{Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::node::{Event, Node, until};
use crate::store::Store;

const MINUTE: [(&str, &str); 1] = [("--lease", "60s")];

#[test]
fn restarted_host_reclaims_at_once_but_not_repeatedly() {
    let fleet = Fleet::new(Store::azurite());
    let elsewhere = tempfile::tempdir().expect("a folder");
    let (mut alpha, term, _, first) = leader(&fleet);
    // This host has its own state folder, so it appears to run on another machine.
    let far = fleet.launch_with("far", &MINUTE);
    let elsewhere = elsewhere.path().to_str().expect("a path");
    // The cache's key is in the state folder, so this host needs its own cache.
    let far = far.env("XDG_STATE_HOME", elsewhere).env("BATON_CACHE", &format!("{elsewhere}/cache")).start();
    follows(&far, "alpha");
    let killed = OffsetDateTime::now_utc();
    alpha.signal(Signal::KILL);
    alpha.wait();
    // Both new hosts find the killed leader's note, and one of them reclaims the lease.
    let mut again = ["beta", "gamma"].map(|name| fleet.launch_with(name, &MINUTE).start());
    let next = fleet.beat_above(term);
    assert!(next.ts < killed + Duration::from_secs(45), "{next:?} after {killed}");
    let took = fleet.journal.event("the reclaim", |event| event.name == "reclaimed");
    assert_eq!((took.from.as_str(), took.term), (next.from.as_str(), term), "{took:?}");
    assert_eq!((took.text("from"), took.text("incarnation")), ("alpha", first.as_str()), "{took:?}");
    let elected = fleet.journal.event("its election", |event| event.name == "elected" && event.term == next.term);
    assert_eq!(elected.fields["failures"], 1, "{elected:?}");
    let reclaims = format!("baton_store_requests_total{{election=\"{ELECTION}\",operation=\"reclaim\",result=\"ok\"}}");
    let leads = again.iter().find(|node| node.name == next.from).expect("one of the two");
    assert_eq!(sample(&Endpoint::of(leads).ask("/metrics").body, &reclaims), 1.0);
    if again[0].name == next.from {
        again.swap(0, 1);
    }
    let [mut follower, mut leader] = again;
    follows(&follower, &leader.name);
    // `delta` reclaims the lease from a host that had itself reclaimed it. After two reclaims in a row, `delta` must
    // release the lease, and the node `far` then acquires it.
    for node in [&mut follower, &mut leader] {
        node.signal(Signal::KILL);
        node.wait();
    }
    let delta = fleet.launch_with("delta", &MINUTE).start();
    let killed = OffsetDateTime::now_utc();
    for name in ["reclaimed", "ineligible", "released"] {
        delta.event(name, |event| event.name == name);
    }
    let last = fleet.beat_above(next.term);
    assert!(last.from == "far" && last.ts < killed + Duration::from_secs(45), "{last:?} after {killed}");
    fleet.check_promises();
}

#[test]
fn lease_is_not_reclaimed_while_its_holder_may_still_act() {
    let fleet = Fleet::new(Store::azurite());
    let (mut alpha, term, note, incarnation) = leader(&fleet);
    let lock_file = note.with_file_name(incarnation);
    // A host stopped by SIGSTOP may continue later, so no node reclaims its lease.
    alpha.signal(Signal::STOP);
    let beta = fleet.launch_with("beta", &MINUTE).start();
    follows(&beta, "alpha");
    // The test locks a byte of the lock file, like a runner that a debugger keeps from exiting.
    let holds = fs::File::options().write(true).open(&lock_file).expect("the lock file");
    let wanted = libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: 1 << 40, l_len: 1, l_pid: 0 };
    // SAFETY: `holds` keeps the descriptor open, and `wanted` is a valid `flock` that outlives the call. The call only
    // reads it.
    assert_eq!(unsafe { libc::fcntl(holds.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) }, 0);
    alpha.signal(Signal::KILL);
    alpha.wait();
    let gamma = fleet.launch_with("gamma", &MINUTE).start();
    follows(&gamma, "alpha");
    let kept = fs::read(&note).expect("its note");
    drop((beta, gamma));
    // A named pipe replaces the note. A host must not block on the pipe, but become a standby of alpha.
    fs::remove_file(&note).expect("the note");
    mknodat(CWD, &note, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    drop(holds);
    let delta = fleet.launch_with("delta", &MINUTE).start();
    follows(&delta, "alpha");
    drop(delta);
    fs::remove_file(&note).expect("the pipe");
    fs::write(&note, kept).expect("a written note");
    let epsilon = fleet.launch_with("epsilon", &MINUTE).arg("--reclaim=false").start();
    follows(&epsilon, "alpha");
    let is_news = |event: &&Event| event.from != "alpha" && ["elected", "reclaimed"].contains(&event.name.as_str());
    assert_eq!(fleet.journal.events().iter().find(is_news).map(|event| event.raw.clone()), None);
    let killed = OffsetDateTime::now_utc();
    let zeta = fleet.launch_with("zeta", &MINUTE).start();
    let elected = zeta.after(term, "elected");
    assert!(elected.ts < killed + Duration::from_secs(40), "{elected:?} after {killed}");
    fleet.check_promises();
}

/// Simulates a machine that was cloned together with its boot id and its state folder. Each of the two machines then
/// believes that the other's host is dead.
#[test]
fn live_leader_is_fenced_off_when_its_clone_reclaims() {
    let fleet = Fleet::new(Store::azurite());
    let (alpha, term, note, incarnation) = leader(&fleet);
    let clone = fleet.home.path().join("clone");
    let leases = clone.join("baton/leases");
    fs::create_dir_all(&leases).expect("a folder");
    let lock_file = leases.join(&incarnation);
    fs::copy(note.with_file_name(&incarnation), &lock_file).expect("a lock file");
    let noted = fs::read_to_string(&note).expect("a note");
    let inode = fs::metadata(&lock_file).expect("a lock file").ino();
    let lines =
        noted.lines().map(|line| if line.starts_with("inode=") { format!("inode={inode}") } else { line.to_owned() });
    let cloned = lines.map(|line| line + "\n").collect::<String>();
    fs::write(leases.join(note.file_name().expect("a name")), cloned).expect("a written note");
    let clone = clone.to_str().expect("a path");
    let beta = fleet.launch_with("beta", &MINUTE).env("XDG_STATE_HOME", clone);
    let beta = beta.env("BATON_CACHE", &format!("{clone}/cache")).start();
    let took = beta.event("to take over", |event| event.name == "reclaimed");
    assert_eq!((took.text("from"), took.text("incarnation")), ("alpha", incarnation.as_str()), "{took:?}");
    // The old holder tries to renew its lease within a sixth of the lease duration, and the store refuses the renewal.
    let lost = alpha.event("to lose its lease", |event| event.name == "leadership_lost");
    assert_eq!(lost.term, term, "{lost:?}");
    let ended = alpha.event("its end", |event| event.name == "ended" && event.term == term);
    assert!(ended.ts < took.ts + Duration::from_secs(30), "{ended:?} after {took:?}");
    follows(&alpha, "beta");
    let next = fleet.beat_above(term);
    fleet.beat("a beat of beta alone", |event| event.term == next.term && event.ts > ended.ts);
    let late = fleet
        .journal
        .events()
        .into_iter()
        .find(|event| event.term == term && event.ts > ended.ts && event.name == "output");
    assert!(late.is_none(), "{late:?} after {ended:?}");
}

fn follows(node: &Node, leader: &str) {
    node.event(&format!("to follow {leader}"), |event| event.name == "standby" && event.text("leader") == leader);
}

/// Returns the node, its term, the path of its note, and its incarnation. On a slow disk, a leader may fail to write
/// its note. In that case, this function starts another leader.
fn leader(fleet: &Fleet) -> (Node, u64, PathBuf, String) {
    let mut last = 0;
    until("a leader with a note", || {
        let mut alpha = fleet.launch_with("alpha", &MINUTE).start();
        last = fleet.beat_above(last).term;
        match noted(fleet) {
            Some((note, incarnation)) => Ok((alpha, last, note, incarnation)),
            None => Err(alpha.terminate()),
        }
    })
}

fn noted(fleet: &Fleet) -> Option<(PathBuf, String)> {
    let folder = fs::read_dir(fleet.home.path().join(".local/state/baton/leases")).ok()?;
    let notes = folder.map(|entry| entry.expect("an entry").path());
    let incarnation = |note: &PathBuf| Some(note.file_name()?.to_str()?.strip_suffix("-fleet")?.to_owned());
    let mut notes: Vec<_> = notes.filter_map(|note| Some((note.clone(), incarnation(&note)?))).collect();
    assert!(notes.len() <= 1, "{notes:?}");
    notes.pop()
}
