//! Permissions of a store's folder and files. Other users of the machine must not have access. Even a user who can only
//! read a database can lock it, so that nobody can write to it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use baton_election::StoreError;
use rustix::fs::{CWD, FileType, Gid, Mode, Stat, Uid, chmod, chown, fchmod, fchown, mkdir, mknodat, stat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use super::database::files_in;
use super::file::misconfigured;

const OWN: Mode = Mode::RUSR.union(Mode::WUSR);
const OF_GROUP: Mode = Mode::RGRP.union(Mode::WGRP);

/// Refuses a folder to which all users can write, because any user could replace the store's files.
pub(super) fn refuse_open_folder(dir: &Path) -> Result<(), StoreError> {
    let found = stat(dir).map_err(|error| misconfigured(dir, format!("its permissions cannot be read ({error})")))?;
    let mode = Mode::from_raw_mode(found.st_mode);
    if !mode.contains(Mode::WOTH) {
        return Ok(());
    }
    let (mode, remedy) = (mode.bits(), remedy(dir, &found));
    Err(misconfigured(dir, format!("all users of this machine may write to this folder (mode {mode:04o}): {remedy}")))
}

/// Creates an empty file that only its owner can access. In a [shared](is_shared) folder, the file's group can access
/// it as well. If the file already exists, it stays as it is.
pub(super) fn make_file(path: &Path) -> io::Result<()> {
    let mode = path.parent().map_or(OWN, mode_of_files);
    // Create the file without opening it. If it were opened, closing it would drop any locks that SQLite already holds
    // on it in this process.
    match mknodat(CWD, path, FileType::RegularFile, mode, 0) {
        // The umask may have removed the group's permissions.
        Ok(()) => Ok(chmod(path, mode)?),
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn mode_of_files(dir: &Path) -> Mode {
    let is_shared = stat(dir).is_ok_and(|found| is_shared(&found));
    if is_shared { OWN | OF_GROUP } else { OWN }
}

/// Sets the mode of a new file to the mode for files in the folder `dir`. If root creates the file, also gives the file
/// to the folder's owner, who must be able to read it.
pub(super) fn give(file: &OwnedFd, dir: &Path) -> io::Result<()> {
    // The umask may have removed the group's permissions.
    fchmod(file, mode_of_files(dir))?;
    if let Some((user, group)) = owner_for_root(dir)? {
        let _ = fchown(file, Some(user), Some(group));
    }
    Ok(())
}

/// Returns the user and the group to which root should give its files in this folder. `None` if this process does not
/// run as root. The callers ignore errors, because root may not be permitted to change the owner.
fn owner_for_root(dir: &Path) -> io::Result<Option<(Uid, Gid)>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let found = stat(dir)?;
    Ok(Some((Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid))))
}

/// Creates a folder that only its owner can access. In a [shared](is_shared) folder, the new folder's group can access
/// it as well. If the folder already exists, it stays as it is. The folder survives a power failure. The parent folder
/// must exist. If root creates the folder, the parent's owner owns the folder.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    let above = path.parent().unwrap_or(path);
    let of_files = mode_of_files(above);
    let mut mode = of_files | Mode::XUSR;
    if of_files.contains(Mode::RGRP) {
        mode |= Mode::XGRP | Mode::SGID;
    }
    match mkdir(path, mode) {
        Ok(()) => {
            chmod(path, mode)?;
            if let Some((user, group)) = owner_for_root(above)? {
                let _ = chown(path, Some(user), Some(group));
            }
        }
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // Sync even if the folder exists: the process that created it may have been killed before the sync.
    File::open(above)?.sync_all()
}

/// True if several users share the folder: its group can write to it, and either new files inherit this group or the
/// group is not this process's own.
fn is_shared(dir: &Stat) -> bool {
    let mode = Mode::from_raw_mode(dir.st_mode);
    mode.contains(Mode::WGRP) && (mode.contains(Mode::SGID) || dir.st_gid != getegid().as_raw())
}

/// Returns advice on how to keep other users out. Does not suggest changing a folder that belongs to another user or
/// that all users share (sticky bit).
fn remedy(dir: &Path, found: &Stat) -> String {
    let is_own = found.st_uid == geteuid().as_raw();
    if is_own && !Mode::from_raw_mode(found.st_mode).contains(Mode::SVTX) {
        format!("`chmod o-rwx '{}'`", dir.display().to_string().replace('\'', r"'\''"))
    } else {
        "name a subfolder, which Baton creates".to_owned()
    }
}

/// The part of a store that other users of the machine can access.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exposure {
    /// The problem and the advice, for the operator.
    pub text: String,
    /// True if other users can open a file of the store; false if they can only enter the folder.
    pub opens_files: bool,
}

pub(super) fn reached_by_others(dir: &Path) -> Option<Exposure> {
    let found = stat(dir).ok().filter(|_| is_entered_by_others(dir))?;
    let open: Vec<String> = files_in(dir)
        .filter(|file| mode(file).is_ok_and(|mode| mode.intersects(Mode::RWXO)))
        .filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()))
        .collect();
    let what = match &open[..] {
        [] => "all users of this machine may enter".to_owned(),
        files => {
            format!("all users of this machine may read {}, and block every election with a lock, in", files.join(", "))
        }
    };
    let (mode, remedy) = (Mode::from_raw_mode(found.st_mode).bits(), remedy(dir, &found));
    let text = format!("{what} the store's folder {} (mode {mode:04o}): {remedy}", dir.display());
    Some(Exposure { text, opens_files: !open.is_empty() })
}

/// True if other users can enter the folder and each folder above it.
fn is_entered_by_others(dir: &Path) -> bool {
    let may_enter = |dir: &Path| mode(dir).is_ok_and(|mode| mode.contains(Mode::XOTH));
    dir.canonicalize().is_ok_and(|dir| dir.ancestors().all(may_enter))
}

fn mode(path: &Path) -> rustix::io::Result<Mode> {
    Ok(Mode::from_raw_mode(stat(path)?.st_mode))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn folder(mode: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        folder
    }

    #[test]
    fn files_are_for_owner_and_for_group_of_shared_folder() {
        for (of_folder, of_file) in [(0o700, 0o600), (0o755, 0o600), (0o770, 0o600), (0o2770, 0o660), (0o2750, 0o600)] {
            let folder = folder(of_folder);
            let path = folder.path().join("lease.db");
            make_file(&path).unwrap();
            assert_eq!(mode(&path).unwrap().bits(), of_file, "{of_folder:o}");
            set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            make_file(&path).unwrap();
            assert_eq!(mode(&path).unwrap().bits(), 0o640, "the file was there: {of_folder:o}");
        }
    }

    #[test]
    fn folder_of_another_group_is_shared() {
        let folder = folder(0o770);
        let mut found = stat(folder.path()).unwrap();
        assert!(!is_shared(&found));
        found.st_gid += 1;
        assert!(is_shared(&found));
        found.st_mode &= !0o020;
        assert!(!is_shared(&found));
    }

    #[test]
    fn advice_changes_only_folders_of_this_user() {
        let folder = folder(0o777);
        let mut found = stat(folder.path()).unwrap();
        assert_eq!(remedy(Path::new("/a b/c'd"), &found), r"`chmod o-rwx '/a b/c'\''d'`");
        let below = "name a subfolder, which Baton creates";
        found.st_uid += 1;
        assert_eq!(remedy(folder.path(), &found), below);
        set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(remedy(folder.path(), &stat(folder.path()).unwrap()), below);
    }

    #[test]
    fn folder_is_refused_if_all_may_write_and_named_if_all_enter() {
        // On some machines, other users cannot enter the folder for temporary files. The expected results depend on
        // that.
        let are_named = is_entered_by_others(&std::env::temp_dir());
        for (mode, is_refused, is_named) in [
            (0o700, false, false),
            (0o750, false, false),
            (0o711, false, true),
            (0o744, false, false),
            (0o755, false, true),
            (0o1777, true, true),
        ] {
            let folder = folder(mode);
            assert_eq!(refuse_open_folder(folder.path()).is_err(), is_refused, "{mode:o}");
            assert_eq!(reached_by_others(folder.path()).is_some(), is_named && are_named, "{mode:o}");
        }
        let folder = folder(0o755);
        std::fs::write(folder.path().join("state.db"), "").unwrap();
        set_permissions(folder.path().join("state.db"), Permissions::from_mode(0o644)).unwrap();
        let reached = reached_by_others(folder.path());
        assert_eq!(reached.is_some_and(|reached| reached.opens_files), are_named);
    }

    #[test]
    fn folder_below_one_that_others_may_not_enter_is_not_named() {
        let folder = folder(0o700);
        let store = folder.path().join("store");
        std::fs::create_dir(&store).unwrap();
        set_permissions(&store, Permissions::from_mode(0o755)).unwrap();
        std::fs::write(store.join("state.db"), "").unwrap();
        assert_eq!(reached_by_others(&store), None);
    }
}
