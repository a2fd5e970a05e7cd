//! Which file systems are this machine's own: on others, locks and syncs are not what they seem.

use std::io;
use std::path::Path;

use rustix::fs::StatFs;

/// The name of the file system that a file or folder is on, if others may write to that from elsewhere.
///
/// # Errors
/// What the system says.
pub fn network_file_system(path: &Path) -> io::Result<Option<&'static str>> {
    Ok(network(&rustix::fs::statfs(path)?))
}

/// The name of that file system, if others may write to it from elsewhere.
pub(crate) fn network(found: &StatFs) -> Option<&'static str> {
    // The field's type differs between machines; the numbers have 32 bits everywhere.
    named(found.f_type as u32)
}

/// The same, by its magic number.
fn named(magic: u32) -> Option<&'static str> {
    NETWORK.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// Numbers from the kernel's `magic.h` and the file systems' own sources.
const NETWORK: &[(u32, &str)] = &[
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
    use super::*;

    #[test]
    fn a_network_file_system_is_told_from_a_local_one() {
        for (magic, name) in [
            (0x6969, "NFS"),
            (0x517b, "SMB"),
            (0xff53_4d42, "CIFS"),
            (0xfe53_4d42, "SMB2"),
            (0x6573_5546, "FUSE"),
            (0x0102_1997, "9P"),
            (0x00c3_6400, "Ceph"),
            (0x786f_4256, "VirtualBox shared folder"),
        ] {
            assert_eq!(named(magic), Some(name));
        }
        let local = [
            ("ext4", 0xef53),
            ("xfs", 0x5846_5342),
            ("btrfs", 0x9123_683e),
            ("tmpfs", 0x0102_1994),
            ("overlayfs", 0x794c_7630),
            ("zfs", 0x2fc1_2fc1),
            ("f2fs", 0xf2f5_2010),
            ("bcachefs", 0xca45_1a4e),
            ("vfat", 0x4d44),
        ];
        for (name, magic) in local {
            assert_eq!(named(magic), None, "{name}");
        }
    }
}
