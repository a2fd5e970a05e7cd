//! Control groups, version 2 (cgroups(7)): one for each runner, if a group is delegated to this host.
//!
//! If systemd or another manager delegates a group (attribute `user.delegate`, systemd's `CGROUP_DELEGATION.md`), the
//! host creates two groups in it. `host` contains the host and its other processes. `runners` contains a group for each
//! runner, named after the runner's process id. If all processes compete for the CPU, the kernel divides the CPU time
//! equally between `host` and `runners`, so that many busy runners cannot starve the host. The kernel also limits a
//! runner's total memory. Unlike a process limit, this limit includes cached files, page tables and socket buffers.
//!
//! A runner's CPU time is not limited, since a process that has used up its quota would have to wait before it could
//! exit.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{getxattr, statfs};
use rustix::process::Pid;

const ROOT: &str = "/sys/fs/cgroup";

/// Type of the file system at [`ROOT`]: `CGROUP2_SUPER_MAGIC` in linux/magic.h.
const CGROUP2: u64 = 0x6367_7270;

/// The attribute with which a manager marks a group as delegated.
const DELEGATED: &str = "user.delegate";

const HOST: &str = "host";

const CONTROLLERS: [&str; 2] = ["memory", "cpu"];

/// The control groups of a host's runners. Clones share the groups.
#[derive(Clone)]
pub struct ControlGroups(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    /// True if the memory controller is available.
    bounds_memory: bool,
    /// Reports the first error to the operator. `None` after the first report.
    tell: Mutex<Option<Tell>>,
}

type Tell = Box<dyn FnOnce(String) + Send>;

/// The reason a delegated group cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot use the control group {}, which is delegated to this host ({what}: {source}): only per-process limits \
     bound the memory of instances. With systemd, turn ProtectControlGroups= off, and run nothing else in that service",
    group.display()
)]
pub struct ControlGroupsError {
    group: PathBuf,
    what: &'static str,
    source: io::Error,
}

impl ControlGroups {
    /// Splits the control group that is delegated to this process, and moves the process into the host's part. Returns
    /// `None` if no control group is delegated.
    ///
    /// If the host later cannot use a runner's group, only the process limits apply to the runner. `tell` gets the
    /// first such error.
    ///
    /// # Errors
    /// [`ControlGroupsError`] if the delegated group cannot be used.
    pub fn delegated(tell: impl FnOnce(String) + Send + 'static) -> Result<Option<Self>, ControlGroupsError> {
        let is_there = statfs(ROOT).is_ok_and(|found| u64::try_from(found.f_type) == Ok(CGROUP2));
        let own = fs::read_to_string("/proc/self/cgroup").ok().filter(|_| is_there);
        let Some(own) = own.as_deref().and_then(own_group) else { return Ok(None) };
        let found = if is_delegated(&own) {
            Self::divide(&own, true)
        } else {
            // systemd may already have moved this process into the host's part (`DelegateSubgroup=`).
            match own.parent().filter(|above| own.ends_with(HOST) && is_delegated(above)) {
                Some(above) => Self::divide(above, false),
                None => return Ok(None),
            }
        };
        let (folder, bounds_memory) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            // In a container, the root group is delegated to the container's manager, not to this host. So an error
            // here does not mean that the operator has set up a group incorrectly.
            Err(error) if own == Path::new(ROOT) && is_anothers(&error.source) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(Self(Arc::new(Inner { folder, bounds_memory, tell: Mutex::new(Some(Box::new(tell))) }))))
    }

    /// Splits `group` into `host` and `runners`. If `moves` is true, also moves this process into the host's part.
    /// Returns the folder for the runners' groups, and true if the memory controller is available. Returns `None` if no
    /// controller is available.
    fn divide(group: &Path, moves: bool) -> Result<Option<(PathBuf, bool)>, ControlGroupsError> {
        let failed = |what| move |source| ControlGroupsError { group: group.to_owned(), what, source };
        let has = fs::read_to_string(group.join("cgroup.controllers")).map_err(failed("reading its controllers"))?;
        let has: Vec<_> =
            CONTROLLERS.into_iter().filter(|controller| has.split_whitespace().any(|one| one == *controller)).collect();
        if has.is_empty() {
            return Ok(None);
        }
        if moves {
            let (host, own) = (group.join(HOST), std::process::id().to_string());
            make(&host).map_err(failed("creating a group in it"))?;
            let all = fs::read_to_string(group.join("cgroup.procs")).map_err(failed("listing its processes"))?;
            if all.lines().any(|process| process != own) {
                return Err(failed("other processes run in it")(io::ErrorKind::ResourceBusy.into()));
            }
            write(host.join("cgroup.procs"), own).map_err(failed("moving this process into it"))?;
        }
        // A group that contains processes cannot have limited subgroups, so the runners get a group next to `host`.
        let folder = group.join("runners");
        make(&folder).map_err(failed("creating a group in it"))?;
        let all: Vec<_> = has.iter().map(|controller| format!("+{controller}")).collect();
        for group in [group, &folder] {
            write(group.join("cgroup.subtree_control"), all.join(" ")).map_err(failed("enabling its controllers"))?;
        }
        // Remove the groups that a killed host left behind. Removal fails for files and for groups that still contain
        // processes, which is intended.
        for left in fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            let _ = fs::remove_dir(left.path());
        }
        Ok(Some((folder, has.contains(&"memory"))))
    }

    /// Moves a runner into a group of its own. Returns `None` if the move fails. The runner must not have been reaped
    /// yet. Blocks.
    pub(crate) fn enter(&self, runner: Pid) -> Option<ControlGroup> {
        let Inner { folder, bounds_memory, .. } = &*self.0;
        let runner = runner.as_raw_nonzero().to_string();
        let group = ControlGroup { folder: folder.join(&runner), bounds_memory: *bounds_memory };
        let entered = make(&group.folder).and_then(|()| write(group.folder.join("cgroup.procs"), runner));
        if let Err(error) = entered {
            self.tell(&group, &error);
            group.remove();
            return None;
        }
        Some(group)
    }

    /// Makes the kernel kill the group's process once the group's memory has grown by more than `more` bytes. Blocks.
    pub(crate) fn limit_memory(&self, group: &ControlGroup, more: u64) {
        if let Err(error) = group.limit_memory(more) {
            self.tell(group, &error);
        }
    }

    fn tell(&self, group: &ControlGroup, error: &io::Error) {
        if let Some(tell) = self.0.tell.lock().unwrap_or_else(PoisonError::into_inner).take() {
            tell(format!(
                "cannot use the control group {}: {error}; only per-process limits bound the memory of instances",
                group.folder.display()
            ));
        }
    }
}

pub(crate) struct ControlGroup {
    folder: PathBuf,
    bounds_memory: bool,
}

impl ControlGroup {
    fn limit_memory(&self, more: u64) -> io::Result<()> {
        if !self.bounds_memory {
            return Ok(());
        }
        let most = self.number("memory.current")?.saturating_add(more);
        // Forbid swapping, since swapped memory would not count toward the limit. This file does not exist if the
        // kernel has no swap support.
        match write(self.folder.join("memory.swap.max"), "0") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        write(self.folder.join("memory.max"), most.to_string())
    }

    /// Returns the memory limit, in bytes, if the kernel has killed the process for exceeding it.
    pub(crate) fn ran_out_of_memory(&self) -> Option<u64> {
        let events = fs::read_to_string(self.folder.join("memory.events")).ok()?;
        if ran_out(&events) { self.number("memory.max").ok() } else { None }
    }

    /// The group's process must have been reaped. Blocks.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_dir(&self.folder);
    }

    fn number(&self, file: &str) -> io::Result<u64> {
        let text = fs::read_to_string(self.folder.join(file))?;
        text.trim_end().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{file}: {error}")))
    }
}

/// Writes to an existing file of the kernel. Never creates a file.
fn write(file: impl AsRef<Path>, text: impl AsRef<[u8]>) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(text.as_ref())
}

fn make(group: &Path) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Returns the group of a process, given the content of its `/proc/PID/cgroup`.
fn own_group(groups: &str) -> Option<PathBuf> {
    // The line for version 2 has hierarchy number 0 and no controllers. A group outside this namespace begins with
    // `/..`.
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    (!own.starts_with("..")).then(|| Path::new(ROOT).join(own))
}

/// Returns true if the kernel killed a process because this group reached its own memory limit, not because a group
/// above it did. `events` is the content of the group's `memory.events`.
fn ran_out(events: &str) -> bool {
    let has = |event: &str| {
        events.lines().any(|line| line.split_once(' ').is_some_and(|(name, count)| name == event && count != "0"))
    };
    has("oom") && has("oom_kill")
}

fn is_anothers(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

fn is_delegated(group: &Path) -> bool {
    let mut value = [0; 8];
    getxattr(group, DELEGATED, &mut value).is_ok_and(|length| &value[..length] == b"1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_group_is_that_of_version_2_in_this_namespace() {
        let both = "9:name=systemd:/old\n4:memory:/older\n0::/system.slice/baton.service\n";
        let own = own_group(both);
        assert_eq!(own.as_deref(), Some(Path::new("/sys/fs/cgroup/system.slice/baton.service")));
        assert_eq!(own_group("0::/\n").as_deref(), Some(Path::new(ROOT)));
        for none in ["", "4:memory:/older\n", "0::/../other\n"] {
            assert_eq!(own_group(none), None, "{none}");
        }
    }

    #[test]
    fn group_ran_out_only_when_it_lacked_memory_itself() {
        let events =
            |oom: u32, kills: u32| format!("low 0\nhigh 0\nmax 12\noom {oom}\noom_kill {kills}\noom_group_kill 1\n");
        assert!(ran_out(&events(1, 1)) && ran_out(&events(10, 2)));
        assert!(!ran_out(&events(0, 1)), "a group above had too little");
        assert!(!ran_out(&events(1, 0)) && !ran_out(""));
    }
}
