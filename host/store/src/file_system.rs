//! Detects file systems that are not local to this machine. Locks on such a file system may not exclude other machines,
//! so two hosts could hold the same lease.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, fstatfs, open, statfs, statx};

/// Returns the type of the file system that contains `path`, or `None` if the file system is known to be local to this
/// machine.
///
/// # Errors
/// The operating system's error if the path cannot be opened or examined.
pub fn foreign_file_system(path: &Path) -> io::Result<Option<String>> {
    foreign(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

pub(crate) fn foreign(file: impl AsFd) -> io::Result<Option<String>> {
    // The field's type differs between architectures, but the numbers have 32 bits everywhere.
    let magic = fstatfs(&file)?.f_type as u32;
    if magic != OVERLAYFS {
        return Ok(unless_local(magic));
    }
    // Writes go to the upper layer of overlayfs. If the path of this layer is not visible, as in most containers,
    // assume that the layer is on a local disk.
    let upper = upper_layer(&file).and_then(|upper| statfs(&upper).ok());
    Ok(upper.and_then(|upper| unless_local(upper.f_type as u32)))
}

/// Returns the folder to which overlayfs writes changes to this file, according to the kernel's mount list.
fn upper_layer(file: impl AsFd) -> Option<PathBuf> {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    upper_of(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, found.stx_mnt_id)
}

/// Finds the upper folder in `/proc/self/mountinfo` (proc_pid_mountinfo(5)). Each line begins with the mount's id. A
/// single hyphen precedes the file system's type, source and options. Returns `None` for a path with octal escapes.
fn upper_of(mounts: &str, mount: u64) -> Option<PathBuf> {
    let id = mount.to_string();
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(&id))?;
    let (_, file_system) = line.split_once(" - ")?;
    let options = file_system.split(' ').nth(2)?;
    let upper = options.split(',').find_map(|option| option.strip_prefix("upperdir="))?;
    (!upper.contains('\\')).then(|| PathBuf::from(upper))
}

/// Returns `None` if the file system with this magic number is known to be local.
fn unless_local(magic: u32) -> Option<String> {
    if LOCAL.contains(&magic) {
        return None;
    }
    let named = FOREIGN.iter().find(|(number, _)| *number == magic).map(|(_, name)| (*name).to_owned());
    Some(named.unwrap_or_else(|| format!("unknown (type {magic:#x})")))
}

/// The magic number of overlayfs. This number and those below come from the kernel's `magic.h` and from the file
/// systems' sources.
const OVERLAYFS: u32 = 0x794c_7630;

/// File systems, on disks or in memory, that only one machine mounts at a time.
const LOCAL: &[u32] = &[
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x2fc1_2fc1, // ZFS
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
    0x3153_464a, // JFS
    0x5265_4973, // ReiserFS
    0x3434,      // NILFS2
    0x2405_1905, // UBIFS
    0x4d44,      // FAT
    0x2011_bab0, // exFAT
    0x7366_746e, // NTFS
    0x482b,      // HFS+
];

/// File systems that other machines can write to, with readable names.
const FOREIGN: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x1983_0326, "BeeGFS"),
    (0x4750_4653, "GPFS"),
    (0x786f_4256, "VirtualBox shared folder"),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn only_known_file_systems_are_local() {
        for magic in [0xef53, 0x5846_5342, 0x0102_1994, 0x4d44] {
            assert_eq!(unless_local(magic), None, "{magic:#x}");
        }
        for (magic, name) in [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0x6573_5546, "FUSE"), (0x1234, "0x1234")] {
            assert!(unless_local(magic).unwrap().contains(name), "{magic:#x}");
        }
        assert_eq!(LOCAL.iter().find(|magic| FOREIGN.iter().any(|(number, _)| number == *magic)), None);
    }

    #[test]
    fn upper_folder_of_overlay_is_found_by_mount_id() {
        let mounts = "21 1 254:1 / / rw - ext4 /dev/vda rw\n\
                      36 21 0:52 / /merged rw shared:1 - overlay overlay rw,lowerdir=/l,upperdir=/srv/u,workdir=/srv/w\n\
                      37 21 0:53 / /other rw - overlay overlay rw,lowerdir=/l,upperdir=/a\\040b,workdir=/srv/w\n\
                      38 21 0:54 / /reads ro - overlay overlay ro,lowerdir=/l\n\
                      what is no line\n";
        let upper = |mount| upper_of(mounts, mount);
        assert_eq!(upper(36), Some(PathBuf::from("/srv/u")));
        assert_eq!((upper(21), upper(37), upper(38), upper(3)), (None, None, None, None));
    }
}
