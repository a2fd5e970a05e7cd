#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use std::time::Duration;

use baton_election::ElectionName;
use baton_test_support::fuse::Fuse;
use baton_test_support::patience::Patience;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::*;

/// A process that only holds a descriptor. Dropping this value kills the process.
pub(crate) struct Runner(Child);

impl Runner {
    pub(crate) fn holding(descriptor: OwnedFd) -> Self {
        Self(Command::new("sleep").arg("1000").stdin(Stdio::from(descriptor)).spawn().unwrap())
    }

    pub(crate) fn stop(&self) {
        kill_process(Pid::from_child(&self.0), Signal::STOP).unwrap();
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Waits until the incarnation is dead. This may take a moment: if another test starts a program at this time, the
/// program briefly inherits all descriptors, and with them the locks.
fn is_seen_gone(place: &LockFileId, holders: &Path) {
    Patience::poll(Duration::from_millis(1), || place.is_gone(holders).then_some(())).expect("it is gone");
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let holders = folder.path().join("holders");
    (folder, holders)
}

#[test]
fn host_is_dead_once_it_and_all_runners_have_exited() {
    let (_folder, holders) = folder();
    for host_first in [true, false] {
        let incarnation = if host_first { "a" } else { "b" };
        let host = LockFile::make(&holders, incarnation).unwrap();
        let place = host.place().clone();
        let runners = [(); 2].map(|()| Runner::holding(host.for_runner().unwrap()));
        assert!(!place.is_gone(&holders));
        let [one, other] = runners;
        drop(one);
        let (mut host, mut other) = (Some(host), Some(other));
        if host_first {
            host = None;
            // A stopped runner can be resumed, so the host counts as alive.
            other.as_ref().unwrap().stop();
        } else {
            other = None;
        }
        assert!(!place.is_gone(&holders), "{host:?} is there, or {:?}", other.is_some());
        drop((host, other));
        is_seen_gone(&place, &holders);
    }
}

/// Locks on a shared file system may be local to each machine. Such locks do not show whether processes on other
/// machines are dead.
#[test]
fn locks_on_a_shared_file_system_do_not_count() {
    let Some(fuse) = Fuse::mount("a") else { return };
    match LockFile::make(fuse.path(), "a") {
        Err(error @ LockFileError::Foreign { .. }) => {
            let said = error.to_string();
            for word in [fuse.path().to_str().unwrap(), "FUSE"] {
                assert!(said.contains(word), "`{word}` is not said: {said}");
            }
        }
        made => panic!("{made:?}"),
    }
    let (file, found) = open_lock_file(&open_folder(fuse.path()).unwrap(), "a").unwrap();
    assert!(is_unlocked(file.as_fd()).unwrap());
    let place = LockFileId { incarnation: "a".to_owned(), device: found.st_dev, inode: found.st_ino };
    assert!(!place.is_gone(fuse.path()));
}

#[test]
fn lock_file_counts_only_if_it_is_the_locked_one() {
    let (_folder, holders) = folder();
    let host = LockFile::make(&holders, "a").unwrap();
    let (place, path) = (host.place().clone(), holders.join("a"));
    // The folder is copied while the host runs. The copy contains a lock file that nobody has locked. This does not
    // prove that the host is dead.
    let (_other, copy) = folder_with(|copy| fs_copy(&path, &copy.join("a")));
    assert!(!place.is_gone(&copy));
    // The lock file is removed, and something else is created under its name.
    std::fs::remove_file(&path).unwrap();
    assert!(!place.is_gone(&holders));
    for make in [
        (|path: &Path| std::fs::write(path, "").unwrap()) as fn(&Path),
        |path| symlink("/dev/null", path).unwrap(),
        |path| std::fs::create_dir(path).unwrap(),
        // Nobody writes to this pipe, so opening it for reading would block.
        |path| rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
    ] {
        make(&path);
        assert!(!place.is_gone(&holders));
        let _either = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
    }
    // The lock file was removed. So other hosts cannot detect that the host and its runner have exited.
    let runner = Runner::holding(host.for_runner().unwrap());
    drop((host, runner));
    assert!(!place.is_gone(&holders), "it has no name any more");
    for incarnation in ["", ".", "../a", "A", "a/b", &"a".repeat(65)] {
        assert!(
            !LockFileId { incarnation: incarnation.to_owned(), ..place.clone() }.is_gone(&holders),
            "{incarnation:?}"
        );
    }
}

#[test]
fn links_to_the_file_or_folder_are_not_followed() {
    let (_folder, holders) = folder();
    let place = LockFile::make(&holders, "a").unwrap().place().clone();
    is_seen_gone(&place, &holders);
    let link = holders.with_file_name("link");
    symlink(&holders, &link).unwrap();
    assert!(!place.is_gone(&link));
    std::fs::rename(holders.join("a"), holders.join("b")).unwrap();
    symlink("b", holders.join("a")).unwrap();
    assert!(!place.is_gone(&holders));
}

#[test]
fn check_blocks_no_other_check_and_foreign_lock_means_alive() {
    let (_folder, holders) = folder();
    let host = LockFile::make(&holders, "a").unwrap();
    let place = host.place().clone();
    let looks = File::open(holders.join("a")).unwrap();
    assert!(!is_unlocked(looks.as_fd()).unwrap());
    drop(host);
    is_seen_gone(&place, &holders);
    // The first checker still holds a shared lock on the file. Other checks nevertheless succeed.
    assert!(is_unlocked(looks.as_fd()).unwrap());
    assert!(place.is_gone(&holders));
    drop(looks);
    let locks = File::options().write(true).open(holders.join("a")).unwrap();
    assert!(lock(locks.as_fd(), libc::F_WRLCK, 1 << 40, 1).unwrap());
    assert!(!place.is_gone(&holders), "somebody holds some of it, whoever that is");
}

#[test]
fn runner_gets_a_byte_that_no_process_holds() {
    let (_folder, holders) = folder();
    let host = LockFile::make(&holders, "a").unwrap();
    let meddler = File::options().write(true).open(holders.join("a")).unwrap();
    assert!(lock(meddler.as_fd(), libc::F_WRLCK, 1, 3).unwrap());
    let runner = host.for_runner().unwrap();
    let place = host.place().clone();
    drop((meddler, host));
    assert!(!place.is_gone(&holders));
    drop(runner);
    is_seen_gone(&place, &holders);
}

#[test]
fn tidying_removes_only_unneeded_lock_files() {
    let (_folder, holders) = folder();
    let alive = LockFile::make(&holders, "alive").unwrap();
    for gone in ["gone", "needed"] {
        let place = LockFile::make(&holders, gone).unwrap().place().clone();
        is_seen_gone(&place, &holders);
    }
    std::fs::write(holders.join("Nobodys-file"), "").unwrap();
    tidy_up(&holders, |incarnation| incarnation == "needed").unwrap();
    let mut left: Vec<_> =
        std::fs::read_dir(&holders).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, ["Nobodys-file", "alive", "needed"]);
    assert!(!alive.place().is_gone(&holders));
}

#[test]
fn death_is_reported_once() {
    let (_folder, holders) = folder();
    let host = LockFile::make(&holders, "a").unwrap();
    let runner = Runner::holding(host.for_runner().unwrap());
    let (election, place) = (ElectionName::new("job").unwrap(), host.place().clone());
    let deaths = Deaths::new(holders.clone(), std::sync::Arc::default());
    deaths.holds(&election, Some(place.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut heard = std::pin::pin!(deaths.next(&election));
        for ends in [Box::new(move || drop(host)) as Box<dyn FnOnce()>, Box::new(move || drop(runner))] {
            for _ in 0..100 {
                assert!(futures::poll!(&mut heard).is_pending());
                tokio::task::yield_now().await;
            }
            ends();
        }
        Patience::of_future(heard).await.expect("it is heard");
        assert!(place.is_gone(&holders));
        for _ in 0..100 {
            assert!(futures::poll!(std::pin::pin!(deaths.next(&election))).is_pending());
        }
    });
}

fn folder_with(make: impl FnOnce(&Path)) -> (TempDir, PathBuf) {
    let (folder, path) = folder();
    std::fs::create_dir(&path).unwrap();
    make(&path);
    (folder, path)
}

fn fs_copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
}
