//! Several coordinators in one host: what one does is not felt by another.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, setxattr};

use crate::endpoint::{Endpoint, sample};
use crate::guests::Guest;
use crate::node::{Event, Journal, Launch, baton, finish, until};
use crate::skipped::skipped;
use crate::store::Store;

/// So many times it beats beside the other.
const BEATS: usize = 150;

/// A coordinator of that name, as a file of settings has it.
pub fn table(name: &str, guest: Guest) -> String {
    let env = guest.env().map(|(key, value)| format!("{key} = {value:?}")).join(", ");
    format!("[coordinators.{name}]\nmodule = {:?}\nenv = {{ {env} }}\n", guest.module())
}

/// One host with a coordinator that beats and one that is given.
fn beats_beside(other: Guest) {
    beats_beside_one_of(&table("other", other), |launch| launch, |event| event.name == "started");
}

/// The same with that table for the other, in a host that starts in another way. The beats go on until an event of the
/// other passes `did`. Returns its log.
fn beats_beside_one_of(other: &str, starts: impl FnOnce(Launch) -> Launch, did: impl Fn(&Event) -> bool) -> Journal {
    let store = Store::sqlite();
    let home = tempfile::tempdir().expect("a folder");
    let config = format!(
        "store = {:?}\nlease = \"60s\"\ngrace = \"300ms\"\nrestart-delay = \"100ms\"\nmax-memory = \"64MiB\"\n\n{}\n{other}",
        store.url(),
        table("beats", Guest::Beats),
    );
    fs::write(home.path().join("baton.toml"), config).expect("the file is written");
    let journal = Journal::default();
    let mut node = starts(Launch::run("alpha", home.path(), &journal)).start();
    let other = journal.event("the other starts", |e| e.name == "started" && e.text("election") == "other");
    let first = journal.event("a beat", |e| e.name == "output" && e.text("election") == "beats" && e.ts > other.ts);
    // The beats go on, in one term. The lease outlasts what a busy machine does.
    let beats = journal.wait_for_the_last("many beats beside the other", |events| {
        let beats = events.iter().filter(|e| e.name == "output" && e.text("election") == "beats" && e.ts >= first.ts);
        let beats: Vec<_> = beats.cloned().collect();
        let are_enough = beats.len() >= BEATS && events.iter().any(|e| e.text("election") == "other" && did(e));
        if are_enough { Ok(beats) } else { Err(beats.len().min(BEATS) as u64) }
    });
    for pair in beats.windows(2) {
        assert_eq!(pair[0].term, pair[1].term, "the term of the one that beats ended: {:?}", pair[1]);
    }
    assert_eq!(node.terminate().code(), Some(0));
    for election in ["beats", "other"] {
        let ended = journal.events().iter().any(|e| e.name == "released" && e.text("election") == election);
        assert!(ended, "{election} was not released");
    }
    journal
}

#[test]
fn none_looks_for_a_store_that_is_just_being_made() {
    const MANY: usize = 8;
    // Without a wait one of so many looks too early in about every second start.
    for _ in 0..6 {
        let store = Store::sqlite();
        let home = tempfile::tempdir().expect("a folder");
        let tables: String = (0..MANY).map(|number| table(&format!("e{number}"), Guest::Beats)).collect();
        fs::write(home.path().join("baton.toml"), format!("store = {:?}\n\n{tables}", store.url()))
            .expect("it is written");
        let journal = Journal::default();
        let mut node = Launch::run("alpha", home.path(), &journal).start();
        journal.wait_for_the_last("all of them lead", |events| {
            let started = events.iter().filter(|e| e.name == "started").count();
            if started == MANY { Ok(()) } else { Err(started as u64) }
        });
        let wrong = journal.events().into_iter().find(|e| e.name == "misconfigured" || e.name == "error");
        assert!(wrong.is_none(), "{wrong:?}");
        assert_eq!(node.terminate().code(), Some(0));
    }
}

#[test]
fn one_that_loops_does_not_disturb_another() {
    beats_beside(Guest::Loops);
}

#[test]
fn one_that_traps_does_not_disturb_another() {
    beats_beside(Guest::Traps);
}

#[test]
fn one_that_floods_does_not_disturb_another() {
    beats_beside(Guest::Floods);
}

#[test]
fn one_that_floods_a_log_that_nobody_reads_pushes_out_no_line_of_another() {
    let store = Store::sqlite();
    let home = tempfile::tempdir().expect("a folder");
    let config = format!(
        "store = {:?}\nlease = \"20s\"\ngrace = \"300ms\"\nmax-memory = \"64MiB\"\n\n{}\n{}",
        store.url(),
        // What is dropped of it found no room.
        table("floods", Guest::Floods) + "max-output = 1000000\n",
        table("logs", Guest::Logs).replace(&format!("{:?}", Guest::Logs.module()), "\"store://logs\""),
    );
    fs::write(home.path().join("baton.toml"), config).expect("the file is written");
    let journal = Journal::default();
    // Nobody reads the log, which would report a port that the node chose.
    let at = Endpoint::free();
    let mut node = Launch::run("alpha", home.path(), &journal).flag("--admin", at.0.to_string()).start_unread();
    let scraped = |name: &str, least: f64| {
        until(name, || {
            let value = at.send(b"GET /metrics HTTP/1.0\r\n\r\n").map_or(0.0, |page| sample(&page.body, name));
            if value >= least { Ok(()) } else { Err(value) }
        });
    };
    scraped("baton_output_lines_dropped_total{election=\"floods\"}", 1.0);
    // Only now the other begins, and says nine things.
    let mut push = baton(home.path());
    push.arg("push").arg(Guest::Logs.module()).arg("logs").arg("--store").arg(store.url());
    let pushed = finish(push);
    assert_eq!(pushed.code, Some(0), "{pushed:?}");
    scraped("baton_effects_total{election=\"logs\",kind=\"output\",result=\"passed\"}", 9.0);
    node.read();
    let of = |event: &Event, name: &str, election: &str| event.name == name && event.text("election") == election;
    let is_log = |event: &&Event| of(event, "output", "logs") && event.text("stream") == "log";
    journal.wait("eight lines of the log", |events| (events.iter().filter(is_log).count() >= 8).then_some(()));
    journal.event("what the flood has lost", |event| of(event, "output_dropped", "floods"));
    assert_eq!(node.terminate().code(), Some(0));
    // The last lines of a host have half a second, and the flood is before them.
    let is_pushed_out = |event: &Event| of(event, "output_dropped", "logs") && event.text("reason").contains("faster");
    let lost = journal.events().into_iter().find(is_pushed_out);
    assert!(lost.is_none(), "a line of the other: {lost:?}");
}

#[test]
fn one_that_the_system_ends_for_its_memory_does_not_disturb_another() {
    let Some(group) = ControlGroup::with_memory(256 << 20) else { return };
    let other = table("other", Guest::Allocates) + "max-memory = \"2GiB\"\n";
    let is_ended =
        |event: &Event| event.name == "ended" && event.text("message").contains("the system ran out of memory");
    let journal = beats_beside_one_of(&other, |launch| launch.after(&group.enter()), is_ended);
    let ends: Vec<_> =
        journal.events().into_iter().filter(|e| e.name == "ended" && e.text("outcome") == "failed").collect();
    assert!(ends.iter().all(|e| e.text("election") == "other"), "{ends:?}");
    assert!(group.kills() > 0, "the system killed nothing");
}

/// What is delegated to a host it divides: its processes share one group, and each runner has another, with a bound to
/// what it takes of memory in any way.
#[test]
fn in_a_group_that_is_delegated_each_runner_has_one_that_bounds_its_memory() {
    let Some(group) = ControlGroup::delegated() else { return };
    let home = tempfile::tempdir().expect("a folder");
    let store = Store::sqlite();
    let config = format!(
        "store = {:?}\nlease = \"20s\"\nmax-memory = \"64MiB\"\n\n{}",
        store.url(),
        table("beats", Guest::Beats)
    );
    fs::write(home.path().join("baton.toml"), config).expect("the file is written");
    let journal = Journal::default();
    let mut node = Launch::run("alpha", home.path(), &journal).after(&group.enter()).start();
    let term = journal.event("a beat", |event| event.name == "output").term;
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    assert_eq!(read(&group.0.join("cgroup.procs")), "", "what is divided has no processes");
    assert!(read(&group.0.join("host/cgroup.procs")).lines().any(|pid| *pid == node.pid().to_string()));
    let runners = group.0.join("runners");
    // The one that runs and the next, once that is ready.
    let bounded = || -> Vec<PathBuf> {
        let groups = fs::read_dir(&runners).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
        let is_bounded = |group: &Path| read(&group.join("memory.max")).trim().parse::<u64>().is_ok();
        groups.filter(|group| is_bounded(group) && !read(&group.join("cgroup.procs")).is_empty()).collect()
    };
    until("two groups with a bound", || if bounded().len() >= 2 { Ok(()) } else { Err(bounded()) });
    for group in bounded() {
        let most: u64 = read(&group.join("memory.max")).trim().parse().expect("a number");
        assert!(
            (128 << 20..256 << 20).contains(&most),
            "{most} bytes: the guest's 64 MiB and 64 of the process', and some"
        );
        assert_eq!(read(&group.join("cgroup.procs")).trim(), group.file_name().and_then(|name| name.to_str()).unwrap());
    }
    // Less than it has: the kernel ends each of them, and the one that runs says why.
    for group in bounded() {
        let _ = fs::write(group.join("memory.max"), "0");
    }
    let gone = journal.event("its end", |event| event.name == "ended" && event.term == term);
    assert!(
        gone.text("message").contains("control group") && gone.text("message").contains("--max-memory"),
        "{gone:?}"
    );
    journal.event("the next one's beat", |event| event.name == "output" && event.term > term);
    assert_eq!(node.terminate().code(), Some(0));
}

/// A control group of this test's: cgroups(7).
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// One that may have so much memory, in bytes. None, aloud, where this process cannot make one.
    fn with_memory(bytes: u64) -> Option<Self> {
        // Of the first version and of the second.
        for (root, limit) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let group = Self(Path::new(root).join(format!("baton-{}", std::process::id())));
            // Of a process that was called the same and was killed.
            let _ = fs::remove_dir(&group.0);
            if fs::create_dir(&group.0).is_ok() {
                // Where there is swap, it must not go there.
                for (file, most) in [("memory.swappiness", "0"), ("memory.swap.max", "0")] {
                    let _ = fs::write(group.0.join(file), most);
                }
                if group.0.join(limit).exists() && fs::write(group.0.join(limit), bytes.to_string()).is_ok() {
                    return Some(group);
                }
                drop(group);
            }
        }
        skipped("the control group that it needs cannot be made");
        None
    }

    /// One of the second version that is for the host in it to divide, as systemd delegates one. None, aloud, where that
    /// cannot be had.
    fn delegated() -> Option<Self> {
        let group = Self(Path::new("/sys/fs/cgroup").join(format!("baton-delegated-{}", std::process::id())));
        let _ = fs::remove_dir(&group.0);
        if fs::create_dir(&group.0).is_ok() {
            let controllers = fs::read_to_string(group.0.join("cgroup.controllers")).unwrap_or_default();
            let is_marked = setxattr(&group.0, "user.delegate", b"1", XattrFlags::empty()).is_ok();
            if is_marked && controllers.split_whitespace().any(|one| one == "memory") {
                return Some(group);
            }
            drop(group);
        }
        skipped("no control group of the second version that limits memory can be made");
        None
    }

    /// What a shell runs to be in it.
    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.0.display())
    }

    /// How many of its processes the system has killed for their memory.
    fn kills(&self) -> u64 {
        let events = ["memory.oom_control", "memory.events"].map(|file| fs::read_to_string(self.0.join(file)));
        let text: String = events.into_iter().flatten().collect();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|number| number.parse().ok()).expect("it counts them")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // What has just ended may still be in it, and what a host has made in it stays, as systemd removes it.
        let removed = || {
            let made = fs::read_dir(self.0.join("runners")).into_iter().flatten().filter_map(Result::ok);
            let made = made.map(|made| made.path()).chain(["runners", "host"].map(|made| self.0.join(made)));
            made.for_each(|made| drop(fs::remove_dir(made)));
            fs::remove_dir(&self.0)
        };
        if !std::thread::panicking() {
            until("an empty control group", removed);
        } else {
            let _ = removed();
        }
    }
}
