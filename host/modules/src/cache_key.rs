//! The secret key of the cache. Each cache entry begins with a tag. A tag made with this key proves that one of this
//! user's hosts wrote the entry.
//!
//! A checksum would not be enough, since anybody can compute one. The key is in a private file outside the cache's
//! folder. Even an attacker who can write files into the cache, for example through one of this user's hosts, cannot
//! create valid tags.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::hmac;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// Length of the key, in bytes.
const KEY: usize = 32;

/// Length of a tag, in bytes.
pub(super) const TAG: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct CacheKey(Arc<hmac::Key>);

#[derive(Debug)]
pub(super) enum KeyError {
    Unusable(io::Error),
    /// The path exists, but is not a file of 32 bytes that only this user can access.
    NotPrivate,
}

impl From<io::Error> for KeyError {
    fn from(error: io::Error) -> Self {
        Self::Unusable(error)
    }
}

impl CacheKey {
    /// Opens the key in a file. Creates the file if it is missing. If several hosts create the file at the same time,
    /// all of them use the key of the host that finishes first.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let key = match read(path) {
            Err(KeyError::Unusable(error)) if error.kind() == io::ErrorKind::NotFound => {
                make(path)?;
                read(path)?
            }
            found => found?,
        };
        Ok(Self(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &key))))
    }

    pub fn tag(&self, checksum: &[u8]) -> hmac::Tag {
        hmac::sign(&self.0, checksum)
    }

    pub fn knows(&self, checksum: &[u8], tag: &[u8]) -> bool {
        hmac::verify(&self.0, checksum, tag).is_ok()
    }
}

fn read(path: &Path) -> Result<[u8; KEY], KeyError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::LOOP) => return Err(KeyError::NotPrivate),
        Err(error) => return Err(KeyError::Unusable(error.into())),
    };
    let stat = rustix::fs::fstat(&file).map_err(io::Error::from)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_private = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0;
    if !is_file || !is_private || u64::try_from(stat.st_size) != Ok(KEY as u64) {
        return Err(KeyError::NotPrivate);
    }
    let mut key = [0; KEY];
    File::from(file).read_exact(&mut key)?;
    Ok(key)
}

/// Creates a key, unless another process creates a key first. The file is hard-linked to its final path only after it
/// is complete, so no process sees a partial key.
fn make(path: &Path) -> io::Result<()> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut key = [0; KEY];
    getrandom::fill(&mut key).map_err(io::Error::other)?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}.{}.new", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
    let unfinished = PathBuf::from(unfinished);
    // Remove a file that a killed process with the same process id may have left behind.
    let _ = std::fs::remove_file(&unfinished);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)
        .and_then(|mut file| file.write_all(&key).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::hard_link(&unfinished, path));
    let _ = std::fs::remove_file(&unfinished);
    match written {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn hosts_that_start_together_share_one_key() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("state/cache.key");
        let (hosts, barrier) = (16, Barrier::new(16));
        let tags: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let open = || {
                barrier.wait();
                CacheKey::open(&path).unwrap().tag(b"entry").as_ref().to_vec()
            };
            let threads: Vec<_> = (0..hosts).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(tags.iter().all(|tag| *tag == tags[0]));
        assert_eq!(std::fs::read_dir(base.path().join("state")).unwrap().count(), 1, "nothing else is left");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&base.path().join("state"))), (0o600, 0o700));

        let key = CacheKey::open(&path).unwrap();
        assert!(key.knows(b"entry", &tags[0]) && !key.knows(b"another", &tags[0]) && !key.knows(b"entry", b""));
        let other = CacheKey::open(&base.path().join("other.key")).unwrap();
        assert!(!other.knows(b"entry", &tags[0]), "each key is another");
    }

    #[test]
    fn key_is_refused_unless_it_is_a_private_file_of_32_bytes() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("cache.key");
        CacheKey::open(&path).unwrap();
        let refused = || matches!(CacheKey::open(&path), Err(KeyError::NotPrivate));
        for mode in [0o640, 0o604, 0o620, 0o610] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(refused(), "{mode:o}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        assert!(CacheKey::open(&path).is_ok());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            assert!(refused(), "somebody else's");
        }
        std::fs::rename(&path, base.path().join("moved")).unwrap();
        symlink("moved", &path).unwrap();
        assert!(refused(), "a link");
        for other in [&[0; KEY - 1][..], &[0; KEY + 1], &[]] {
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, other).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            assert!(refused(), "{} bytes", other.len());
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(refused(), "a folder");
    }
}
