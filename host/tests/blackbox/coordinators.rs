//! Several coordinators in one host, which must not disturb each other.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, setxattr};

use crate::endpoint::{Endpoint, sample};
use crate::guests::Guest;
use crate::node::{Event, Journal, Launch, baton, finish, until};
use crate::skipped::skipped;
use crate::store::Store;

/// The number of lines that a coordinator must print while the other coordinator runs.
const BEATS: usize = 150;

pub fn table(name: &str, guest: Guest) -> String {
    let env = guest.env().map(|(key, value)| format!("{key} = {value:?}")).join(", ");
    format!("[coordinators.{name}]\nmodule = {:?}\nenv = {{ {env} }}\n", guest.module())
}

fn beats_beside(other: Guest) {
    beats_beside_table(&table("other", other), |launch| launch, |event| event.name == "started");
}

/// Runs two coordinators in one host: `beats`, and the one that the TOML table `other` configures. Checks that `beats`
/// prints at least `BEATS` lines in one term. Waits for an event of the other coordinator that passes `did`.
fn beats_beside_table(other: &str, starts: impl FnOnce(Launch) -> Launch, did: impl Fn(&Event) -> bool) -> Journal {
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
    let other = journal.event("the start of the other", |e| e.name == "started" && e.text("election") == "other");
    let first = journal.event("a beat", |e| e.name == "output" && e.text("election") == "beats" && e.ts > other.ts);
    // The lease is long, so that the term does not end on a busy machine.
    let beats = journal.wait_for_the_last("many beats while the other runs", |events| {
        let beats = events.iter().filter(|e| e.name == "output" && e.text("election") == "beats" && e.ts >= first.ts);
        let beats: Vec<_> = beats.cloned().collect();
        let are_enough = beats.len() >= BEATS && events.iter().any(|e| e.text("election") == "other" && did(e));
        if are_enough { Ok(beats) } else { Err(beats.len().min(BEATS) as u64) }
    });
    for pair in beats.windows(2) {
        assert_eq!(pair[0].term, pair[1].term, "the term of the beating guest ended: {:?}", pair[1]);
    }
    assert_eq!(node.terminate().code(), Some(0));
    for election in ["beats", "other"] {
        let ended = journal.events().iter().any(|e| e.name == "released" && e.text("election") == election);
        assert!(ended, "{election} was not released");
    }
    journal
}

#[test]
fn coordinators_start_together_on_a_new_store() {
    const MANY: usize = 8;
    // A coordinator that does not wait until the store is complete fails in about half of the starts. In 6 starts, the
    // test is very likely to notice such a failure.
    for _ in 0..6 {
        let store = Store::sqlite();
        let home = tempfile::tempdir().expect("a folder");
        let tables: String = (0..MANY).map(|number| table(&format!("e{number}"), Guest::Beats)).collect();
        fs::write(home.path().join("baton.toml"), format!("store = {:?}\n\n{tables}", store.url()))
            .expect("the file is written");
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
fn looping_guest_does_not_disturb_another() {
    beats_beside(Guest::Loops);
}

#[test]
fn trapping_guest_does_not_disturb_another() {
    beats_beside(Guest::Traps);
}

#[test]
fn flooding_guest_does_not_disturb_another() {
    beats_beside(Guest::Floods);
}

#[test]
fn flood_displaces_no_lines_of_another_when_log_is_unread() {
    let store = Store::sqlite();
    let home = tempfile::tempdir().expect("a folder");
    let config = format!(
        "store = {:?}\nlease = \"20s\"\ngrace = \"300ms\"\nmax-memory = \"64MiB\"\n\n{}\n{}",
        store.url(),
        // The flood stays below this limit, so lines are dropped only because the log is full.
        table("floods", Guest::Floods) + "max-output = 1000000\n",
        table("logs", Guest::Logs).replace(&format!("{:?}", Guest::Logs.module()), "\"store://logs\""),
    );
    fs::write(home.path().join("baton.toml"), config).expect("the file is written");
    let journal = Journal::default();
    // A node reports a port of its own choice only in its log. Here, the log must stay unread, so the test chooses the
    // port.
    let at = Endpoint::free();
    let mut node = Launch::run("alpha", home.path(), &journal).flag("--admin", at.0.to_string()).start_unread();
    let scraped = |name: &str, least: f64| {
        until(name, || {
            let value = at.send(b"GET /metrics HTTP/1.0\r\n\r\n").map_or(0.0, |page| sample(&page.body, name));
            if value >= least { Ok(()) } else { Err(value) }
        });
    };
    scraped("baton_output_lines_dropped_total{election=\"floods\"}", 1.0);
    // The coordinator `logs` starts only after this push of its module. It prints nine lines.
    let mut push = baton(home.path());
    push.arg("push").arg(Guest::Logs.module()).arg("logs").arg("--store").arg(store.url());
    let pushed = finish(push);
    assert_eq!(pushed.code, Some(0), "{pushed:?}");
    scraped("baton_effects_total{election=\"logs\",kind=\"output\",result=\"passed\"}", 9.0);
    node.read();
    let is_event_of =
        |event: &Event, name: &str, election: &str| event.name == name && event.text("election") == election;
    let is_log = |event: &&Event| is_event_of(event, "output", "logs") && event.text("stream") == "log";
    journal.wait("eight lines of the log", |events| (events.iter().filter(is_log).count() >= 8).then_some(()));
    journal.event("the lost lines of the flood", |event| is_event_of(event, "output_dropped", "floods"));
    assert_eq!(node.terminate().code(), Some(0));
    // When the host exits, it writes its queued lines for at most another half second. The last lines of `logs` are
    // queued behind the flood, so they may be lost. The host reports that loss with a different reason, and the check
    // below ignores such reports.
    let is_displaced =
        |event: &Event| is_event_of(event, "output_dropped", "logs") && event.text("reason").contains("faster");
    let lost = journal.events().into_iter().find(is_displaced);
    assert!(lost.is_none(), "a line of the other coordinator was lost: {lost:?}");
}

#[test]
fn oom_killed_guest_does_not_disturb_another() {
    let Some(group) = ControlGroup::with_memory(256 << 20) else { return };
    let other = table("other", Guest::Allocates) + "max-memory = \"2GiB\"\n";
    let is_oom_killed =
        |event: &Event| event.name == "ended" && event.text("message").contains("the system ran out of memory");
    let journal = beats_beside_table(&other, |launch| launch.after(&group.enter()), is_oom_killed);
    let ends: Vec<_> =
        journal.events().into_iter().filter(|e| e.name == "ended" && e.text("outcome") == "failed").collect();
    assert!(ends.iter().all(|e| e.text("election") == "other"), "{ends:?}");
    assert!(group.kills() > 0, "the system killed nothing");
}

/// A host divides the control group that was delegated to it. It makes one group for its own processes, and one group
/// with a memory limit for each runner.
#[test]
fn each_runner_has_memory_limit_in_delegated_control_group() {
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
    assert_eq!(read(&group.0.join("cgroup.procs")), "", "a divided group contains no processes");
    assert!(read(&group.0.join("host/cgroup.procs")).lines().any(|pid| *pid == node.pid().to_string()));
    let runners = group.0.join("runners");
    // Returns the group of the current runner and, once the next term's runner is ready, that runner's group, too.
    let limited = || -> Vec<PathBuf> {
        let groups = fs::read_dir(&runners).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
        let has_limit = |group: &Path| read(&group.join("memory.max")).trim().parse::<u64>().is_ok();
        groups.filter(|group| has_limit(group) && !read(&group.join("cgroup.procs")).is_empty()).collect()
    };
    until("two groups with a limit", || if limited().len() >= 2 { Ok(()) } else { Err(limited()) });
    for group in limited() {
        let most: u64 = read(&group.join("memory.max")).trim().parse().expect("a number");
        assert!(
            (128 << 20..256 << 20).contains(&most),
            "{most} bytes, not 64 MiB of the guest, 64 MiB of the process and a reserve"
        );
        assert_eq!(read(&group.join("cgroup.procs")).trim(), group.file_name().and_then(|name| name.to_str()).unwrap());
    }
    // Sets limits below the runners' memory use, so that the kernel kills the runners. The event `ended` must report
    // the cause.
    for group in limited() {
        let _ = fs::write(group.join("memory.max"), "0");
    }
    let ended = journal.event("the end of the instance", |event| event.name == "ended" && event.term == term);
    assert!(
        ended.text("message").contains("control group") && ended.text("message").contains("--max-memory"),
        "{ended:?}"
    );
    journal.event("a beat of the next instance", |event| event.name == "output" && event.term > term);
    assert_eq!(node.terminate().code(), Some(0));
}

struct ControlGroup(PathBuf);

impl ControlGroup {
    /// Creates a group with a memory limit in bytes. If this process lacks the permission, reports the test as skipped
    /// and returns `None`.
    fn with_memory(bytes: u64) -> Option<Self> {
        // Version 1 of control groups, then version 2.
        for (root, limit) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let group = Self(Path::new(root).join(format!("baton-{}", std::process::id())));
            // Removes the group of an earlier test process that had the same id and was killed.
            let _ = fs::remove_dir(&group.0);
            if fs::create_dir(&group.0).is_ok() {
                // Disables swap, which would delay the kill.
                for (file, most) in [("memory.swappiness", "0"), ("memory.swap.max", "0")] {
                    let _ = fs::write(group.0.join(file), most);
                }
                if group.0.join(limit).exists() && fs::write(group.0.join(limit), bytes.to_string()).is_ok() {
                    return Some(group);
                }
                drop(group);
            }
        }
        skipped("the required control group cannot be created");
        None
    }

    /// Creates a group of version 2 and delegates it to the host that runs in it, as systemd does. If this process
    /// lacks the permission, reports the test as skipped and returns `None`.
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
        skipped("a control group of version 2 that limits memory cannot be created");
        None
    }

    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.0.display())
    }

    fn kills(&self) -> u64 {
        let events = ["memory.oom_control", "memory.events"].map(|file| fs::read_to_string(self.0.join(file)));
        let text: String = events.into_iter().flatten().collect();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|number| number.parse().ok()).expect("a count of kills")
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Retries, because a process that has just ended may still be in the group. Also removes the subgroups, because
        // the host leaves them to systemd.
        let removed = || {
            let groups = fs::read_dir(self.0.join("runners")).into_iter().flatten().filter_map(Result::ok);
            let groups = groups.map(|group| group.path()).chain(["runners", "host"].map(|name| self.0.join(name)));
            groups.for_each(|group| drop(fs::remove_dir(group)));
            fs::remove_dir(&self.0)
        };
        if !std::thread::panicking() {
            until("an empty control group", removed);
        } else {
            let _ = removed();
        }
    }
}
