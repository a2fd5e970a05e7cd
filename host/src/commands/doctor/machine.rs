//! Checks of this machine: its clocks, the hosts' folders, the limit of file descriptors, and the kernel's support for
//! confining runners.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use rustix::time::ClockId;

use crate::cli::Finding;
use crate::commands::descriptors;
use crate::config::DoctorSettings;
use baton_base::clock::nanoseconds_on;
use baton_modules::{Cache, CacheError};
use baton_runtime::{Grants, HttpPolicy, Policy, confine};
use baton_store::{SqliteStore, foreign_file_system, no_file_events};

/// Threshold for reporting that the wall clock has jumped: the difference between the times by which the wall clock and
/// the boot clock have advanced. Slewing causes smaller differences.
const STEP: Duration = Duration::from_millis(50);
/// Slew rate, in ppm, from which the check reports a warning. Time daemons routinely slew at lower rates.
const SLEW: f64 = 1000.0;
/// Number of times that the clocks are read. Only the fastest reading counts, because it was probably not interrupted.
const READINGS: usize = 10;

/// A reading of the clocks, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    boot: i128,
    raw: i128,
    wall: i128,
    /// Duration of the reading. The clocks are read one after another, so a difference between clocks proves nothing if
    /// it is smaller than this duration.
    took: i128,
}

impl Clocks {
    pub fn read() -> Self {
        let read = |id| i128::from(nanoseconds_on(id));
        let all = || {
            let (boot, raw, wall) = (read(ClockId::Boottime), read(ClockId::MonotonicRaw), read(ClockId::Realtime));
            Self { boot, raw, wall, took: read(ClockId::Boottime) - boot }
        };
        (0..READINGS).map(|_| all()).min_by_key(|clocks| clocks.took).unwrap_or_else(all)
    }

    pub fn since(self, before: Self) -> Finding {
        const CHECK: &str = "clocks";
        let [boot, raw, wall] = [self.boot - before.boot, self.raw - before.raw, self.wall - before.wall];
        let blur = self.took + before.took;
        let stepped = ((wall - boot).abs() - blur).max(0);
        let stepped = Duration::from_nanos(u64::try_from(stepped).unwrap_or(u64::MAX));
        let over = Duration::from_nanos(u64::try_from(raw).unwrap_or(0));
        if stepped >= STEP {
            return Finding::warning(
                CHECK,
                format!("the wall clock jumped by {stepped:.1?} within {over:.0?}"),
                "a leader counts a forward jump as elapsed time, and steps down if it is 0.7 of the lease or more",
                "let a daemon (chrony, systemd-timesyncd) slew the clock, and find out what else sets the clock",
            );
        }
        let slewed = ((boot - raw).abs() - blur).max(0);
        let millionths = slewed as f64 / (raw.max(1) as f64) * 1e6;
        let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        let source = source.map_or("unknown".to_owned(), |source| source.trim().to_owned());
        let found = format!(
            "over {over:.1?}, the boot and raw clocks diverged by {millionths:.0} ppm, the boot and wall clocks by \
             {stepped:.1?}; the clock source is {source}"
        );
        if millionths >= SLEW {
            return Finding::warning(
                CHECK,
                found,
                "the clock is being slewed, or the machine slept: leaders have less time to renew, but no promise is \
                 broken",
                "check this machine's time service (`chronyc tracking`, `timedatectl`), then run `baton doctor` again",
            );
        }
        Finding::ok(CHECK, found)
    }
}

/// Checks whether this process is in a time namespace that shifts its clocks. Takeovers between hosts that share a
/// `sqlite:` store are slower if the hosts read different boot clocks.
pub(super) fn time_namespace() -> Finding {
    const CHECK: &str = "time-namespace";
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let is_shifted = |line: &str| line.split_whitespace().skip(1).any(|number| number != "0");
    match offsets.lines().find(|line| is_shifted(line)) {
        None => Finding::ok(CHECK, "this process uses the machine's boot clock"),
        Some(line) => Finding::warning(
            CHECK,
            format!(
                "this process has a time namespace that shifts its clocks: {}",
                line.split_whitespace().collect::<Vec<_>>().join(" ")
            ),
            "if hosts in different time namespaces share a `sqlite:` store, a takeover between them waits for one full \
             lease duration",
            "run all hosts that share a store in the same time namespace",
        ),
    }
}

pub(super) fn file_events() -> Finding {
    const CHECK: &str = "file-events";
    match no_file_events() {
        None => Finding::ok(CHECK, "the kernel can report file changes (inotify)"),
        Some(found) => Finding::warning(
            CHECK,
            found,
            "hosts notice a takeover, a push or a new file later; no promise depends on inotify",
            "fix the cause that the finding names",
        ),
    }
}

pub(super) fn store_folder(folder: &Path) -> Finding {
    const CHECK: &str = "store-folder";
    match SqliteStore::reached_by_others(folder) {
        None => Finding::ok(CHECK, format!("other users of this machine cannot reach {}", folder.display())),
        Some(reached) => Finding::warning(
            CHECK,
            reached.text,
            "a user who can open the store's files can read all state, and can block all elections with one lock",
            "fix the cause that the finding names; the hosts need no restart",
        ),
    }
}

/// Checks that hosts can write to the state folder, and that the folder is on a local file system.
pub(super) fn state_folder(folder: Option<&Path>) -> Finding {
    const CHECK: &str = "state-folder";
    const MEANS: &str = "hosts need `--store` and `--node`, and do not cache compiled modules";
    let Some(folder) = folder else {
        return Finding::warning(CHECK, "this user has no home folder", MEANS, "set HOME or XDG_STATE_HOME");
    };
    match try_folder(folder) {
        Ok(None) => Finding::ok(CHECK, format!("{} is writable and local", folder.display())),
        Ok(Some(kind)) => Finding::warning(
            CHECK,
            format!("the file system of {} is not known to be local: {kind}", folder.display()),
            "file locks may fail on it: two hosts may get the same node id, and hosts refuse a store on it",
            "set XDG_STATE_HOME to a folder on a local disk, or set `--store` and `--node`",
        ),
        Err(error) => Finding::warning(
            CHECK,
            format!("{} cannot be written: {error}", folder.display()),
            MEANS,
            "let this user write to the folder, free disk space, or set XDG_STATE_HOME to another folder",
        ),
    }
}

/// Writes a file into the folder and removes it. If the file system is not known to be local, returns its type.
fn try_folder(folder: &Path) -> io::Result<Option<String>> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let path = folder.join(format!("doctor-{}", getpid().as_raw_nonzero()));
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).and_then(|mut file| {
        let written = file.write_all(b"baton doctor\n").and_then(|()| file.sync_all());
        std::fs::remove_file(&path)?;
        written
    });
    written?;
    foreign_file_system(folder)
}

pub(super) fn cache(examined: &DoctorSettings) -> Finding {
    const CHECK: &str = "cache";
    const MEANS: &str = "the host compiles all modules again at each start";
    const REMEDY: &str = "fix the cause that the finding names; no promise depends on the cache";
    let Some(folder) = examined.cache.as_deref() else {
        return Finding::ok(CHECK, "no cache is configured: the host compiles modules at each start");
    };
    let key = examined.cache_key.as_deref().ok_or(CacheError::NoPlaceForKey);
    match key.and_then(|key| Cache::open(folder, key)) {
        Ok(_) => match foreign_file_system(folder) {
            Ok(Some(kind)) => Finding::warning(
                CHECK,
                format!("the file system of {} is not known to be local: {kind}", folder.display()),
                "if the file server does not respond, hosts cannot start",
                "set `--cache` to a folder on a local disk",
            ),
            Ok(None) => Finding::ok(CHECK, format!("{} is writable, private and local", folder.display())),
            Err(error) => Finding::warning(CHECK, format!("{}: {error}", folder.display()), MEANS, REMEDY),
        },
        Err(error) => Finding::warning(CHECK, error.to_string(), MEANS, REMEDY),
    }
}

pub(super) fn descriptors() -> Finding {
    const CHECK: &str = "descriptors";
    let http = HttpPolicy::new(Grants::default(), 64, None).unwrap_or_default();
    let usual = Policy { http, ..Policy::default() };
    match descriptors::grant(std::iter::once((&usual, 1)), 0) {
        Ok(_) => {
            let most = getrlimit(Resource::Nofile).maximum.map_or("any number of".to_owned(), |most| most.to_string());
            Finding::ok(CHECK, format!("a process may open {most} descriptors: enough for the default limits"))
        }
        Err(error) => Finding::problem(
            CHECK,
            error.to_string(),
            "hosts cannot start with the default limits",
            "raise LimitNOFILE= in systemd, `ulimit -Hn`, or the container's limit",
        ),
    }
}

pub(super) fn isolation() -> Finding {
    const CHECK: &str = "isolation";
    if let Err(error) = pidfd_open(getpid(), PidfdFlags::empty()) {
        return Finding::problem(
            CHECK,
            format!("this kernel refuses pidfds (pidfd_open: {error})"),
            "hosts cannot start an instance",
            "use Linux 5.4 or newer; in a container, use a seccomp profile that allows pidfd_open",
        );
    }
    let missing = confine::missing();
    if missing.is_empty() {
        return Finding::ok(CHECK, "Landlock, seccomp filters and pidfds are available");
    }
    Finding::warning(
        CHECK,
        format!("this kernel, or the container's profile, does not provide {}", missing.join(" or ")),
        "a coordinator that escapes its sandbox could reach more than it was granted; hosts refuse `--dir` without \
         Landlock",
        "use a newer kernel with both (see /sys/kernel/security/lsm), use a profile that allows both, or set \
         `--allow-weaker-isolation`",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;
    use crate::cli::Level;

    const SECOND: i128 = 1_000_000_000;

    #[test]
    fn clocks_that_diverge_are_reported() {
        let before = Clocks { boot: 10 * SECOND, raw: 9 * SECOND, wall: 1_000 * SECOND, took: 0 };
        let after = |boot: i128, raw: i128, wall: i128| {
            let (boot, raw, wall) = (before.boot + boot, before.raw + raw, before.wall + wall);
            Clocks { boot, raw, wall, took: 0 }.since(before)
        };
        assert_eq!(after(30 * SECOND, 30 * SECOND, 30 * SECOND).level, Level::Ok);
        assert_eq!(after(30 * SECOND + SECOND / 1000, 30 * SECOND, 30 * SECOND).level, Level::Ok);
        for (finding, text) in [
            (after(30 * SECOND, 30 * SECOND, 40 * SECOND), "jumped by 10"),
            (after(30 * SECOND, 30 * SECOND, 0), "jumped by 30"),
            (after(31 * SECOND, 30 * SECOND, 31 * SECOND), "ppm"),
        ] {
            assert!(finding.level == Level::Warning && finding.found.contains(text), "{finding:?}");
        }
    }

    /// A busy machine may preempt this process for milliseconds between reading one clock and the next.
    #[test]
    fn clocks_read_slowly_are_not_reported_as_diverging() {
        let before = Clocks { boot: 0, raw: 0, wall: 0, took: SECOND / 1_000 };
        let (boot, late) = (SECOND / 50, SECOND / 10);
        let preempted = Clocks { boot, raw: boot + SECOND / 5_000, wall: boot + late, took: late };
        assert_eq!(preempted.since(before).level, Level::Ok, "{:?}", preempted.since(before));
        let after = Clocks { took: SECOND / 1_000, ..preempted };
        assert_eq!(after.since(before).level, Level::Warning);
        let read = Clocks::read();
        assert!(read.took >= 0, "{read:?}");
    }

    #[test]
    fn unwritable_state_folder_is_reported() {
        assert_eq!(state_folder(None).level, Level::Warning);
        let finding = state_folder(Some(Path::new("/proc/self/nowhere")));
        assert!(finding.level == Level::Warning && finding.found.contains("cannot be written"), "{finding:?}");
        let own = tempfile::tempdir().unwrap();
        let finding = state_folder(Some(&own.path().join("a/b")));
        assert!(finding.level == Level::Ok, "{finding:?}");
        assert_eq!(std::fs::read_dir(own.path().join("a/b")).unwrap().count(), 0);
    }
}
