//! Hosts that are killed and started again on a store that other machines reach, too. The lease is a minute long, so that
//! who leads before three quarters of it have passed cannot have waited for it to run out.

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
fn a_host_that_is_started_again_leads_again_at_once_and_not_again_and_again() {
    let fleet = Fleet::new(Store::azurite());
    let elsewhere = tempfile::tempdir().expect("a folder");
    let (mut alpha, term, _, first) = leader(&fleet);
    // It is of another machine, as far as it can tell.
    let far = fleet.launch_with("far", &MINUTE);
    let elsewhere = elsewhere.path().to_str().expect("a path");
    // With a key of its own it needs a cache of its own.
    let far = far.env("XDG_STATE_HOME", elsewhere).env("BATON_CACHE", &format!("{elsewhere}/cache")).start();
    follows(&far, "alpha");
    let killed = OffsetDateTime::now_utc();
    alpha.signal(Signal::KILL);
    alpha.wait();
    // Both find the same note, and one of them goes on.
    let mut again = ["beta", "gamma"].map(|name| fleet.launch_with(name, &MINUTE).start());
    let next = fleet.beat_above(term);
    assert!(next.ts < killed + Duration::from_secs(45), "{next:?} after {killed}");
    let took = fleet.journal.event("who took over", |event| event.name == "reclaimed");
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
    // The second time in a row it gives way, and others take what is free.
    for node in [&mut follower, &mut leader] {
        node.signal(Signal::KILL);
        node.wait();
    }
    let alpha = fleet.launch_with("delta", &MINUTE).start();
    let killed = OffsetDateTime::now_utc();
    for name in ["reclaimed", "cool_off", "released"] {
        alpha.event(name, |event| event.name == name);
    }
    let last = fleet.beat_above(next.term);
    assert!(last.from == "far" && last.ts < killed + Duration::from_secs(45), "{last:?} after {killed}");
    fleet.check_promises();
}

#[test]
fn whoever_may_still_act_is_waited_for_and_what_is_no_note_is_none() {
    let fleet = Fleet::new(Store::azurite());
    let (mut alpha, term, note, incarnation) = leader(&fleet);
    let lock_file = note.with_file_name(incarnation);
    // It is stopped, and may go on.
    alpha.signal(Signal::STOP);
    let beta = fleet.launch_with("beta", &MINUTE).start();
    follows(&beta, "alpha");
    // As a runner would that a debugger keeps from ending.
    let holds = fs::File::options().write(true).open(&lock_file).expect("its lock file");
    let wanted = libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: 1 << 40, l_len: 1, l_pid: 0 };
    // SAFETY: the descriptor is open, and `wanted` lives until the call returns, which reads it.
    assert_eq!(unsafe { libc::fcntl(holds.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) }, 0);
    alpha.signal(Signal::KILL);
    alpha.wait();
    let gamma = fleet.launch_with("gamma", &MINUTE).start();
    follows(&gamma, "alpha");
    let kept = fs::read(&note).expect("its note");
    drop((beta, gamma));
    // Whatever is there in its place, a host starts and follows.
    fs::remove_file(&note).expect("it is there");
    mknodat(CWD, &note, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    drop(holds);
    let delta = fleet.launch_with("delta", &MINUTE).start();
    follows(&delta, "alpha");
    drop(delta);
    fs::remove_file(&note).expect("it is there");
    fs::write(&note, kept).expect("it can be written");
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

/// A machine is cloned with its boot id and its state folder, and each side takes the other for dead.
#[test]
fn leader_that_only_seemed_dead_is_fenced_off_by_a_reclaim() {
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
    fs::write(leases.join(note.file_name().expect("a name")), cloned).expect("it can be written");
    let clone = clone.to_str().expect("a path");
    let beta = fleet.launch_with("beta", &MINUTE).env("XDG_STATE_HOME", clone);
    let beta = beta.env("BATON_CACHE", &format!("{clone}/cache")).start();
    let took = beta.event("to take over", |event| event.name == "reclaimed");
    assert_eq!((took.text("from"), took.text("incarnation")), ("alpha", incarnation.as_str()), "{took:?}");
    // The store refuses the old holder's next renewal, within D/6.
    let lost = alpha.event("to lose its lease", |event| event.name == "leadership_lost");
    assert_eq!(lost.term, term, "{lost:?}");
    let gone = alpha.event("its end", |event| event.name == "ended" && event.term == term);
    assert!(gone.ts < took.ts + Duration::from_secs(30), "{gone:?} after {took:?}");
    follows(&alpha, "beta");
    let next = fleet.beat_above(term);
    fleet.beat("a beat of beta alone", |event| event.term == next.term && event.ts > gone.ts);
    let late = fleet
        .journal
        .events()
        .into_iter()
        .find(|event| event.term == term && event.ts > gone.ts && event.name == "output");
    assert!(late.is_none(), "{late:?} after {gone:?}");
}

fn follows(node: &Node, leader: &str) {
    node.event(&format!("to follow {leader}"), |event| event.name == "standby" && event.text("leader") == leader);
}

/// A leader and its term, its note and its incarnation. A host leads without a note where its disk is too slow.
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

/// The only note that there is, and whose it is.
fn noted(fleet: &Fleet) -> Option<(PathBuf, String)> {
    let folder = fs::read_dir(fleet.home.path().join(".local/state/baton/leases")).ok()?;
    let notes = folder.map(|entry| entry.expect("it can be listed").path());
    let of = |note: &PathBuf| Some(note.file_name()?.to_str()?.strip_suffix("-fleet")?.to_owned());
    let mut notes: Vec<_> = notes.filter_map(|note| Some((note.clone(), of(&note)?))).collect();
    assert!(notes.len() <= 1, "{notes:?}");
    notes.pop()
}
