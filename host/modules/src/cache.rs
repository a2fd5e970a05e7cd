//! A cache of compiled code on disk, in a folder to which only one user can write.
//!
//! Wasmtime runs the code without verifying it, so each entry begins with a tag that only this user's hosts can make:
//! see [`CacheKey`]. The cache removes entries with any other tag, and does not use a folder to which other users can
//! write. The cache is optional: a module without an entry is compiled.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::artifact::{Artifact, ArtifactKey, LARGEST_ARTIFACT};
use super::cache_key::{CacheKey, KeyError, TAG};

/// Upper bound on the size of the cache, in bytes. The least recently used entries are removed first.
const LARGEST_CACHE: u64 = 1 << 30;

const ENTRY: &str = ".code";

/// Suffix of a file's name while the cache writes an entry to the file. Once the entry is complete, the cache renames
/// the file.
const UNFINISHED: &str = ".new";

/// A folder with compiled code. Several processes may share it.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
    key: CacheKey,
    largest: u64,
}

/// The reason why a folder cannot be used as a cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The folder cannot be created or opened.
    #[error(
        "cannot use the cache of compiled modules in {path}: {why}; the host compiles modules at each start unless \
         `--cache` names another folder"
    )]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// The underlying I/O error.
        why: io::Error,
    },
    /// The path is not a folder, or other users can write to the folder.
    #[error(
        "cannot use the cache of compiled modules: {0} must be a folder that this user owns and to \
         which no other user can write (`chmod 700`); name another folder with `--cache`, or use `--cache off`"
    )]
    NotPrivate(PathBuf),
    /// The key cannot be read, and cannot be created.
    #[error(
        "cannot use the cache of compiled modules: cannot read or create its key {path}: {why}; the host compiles \
         modules at each start unless XDG_STATE_HOME or HOME names a folder to which this user can write"
    )]
    NoKey {
        /// Path of the key's file.
        path: PathBuf,
        /// The underlying I/O error.
        why: io::Error,
    },
    /// There is no home folder in which the host could keep the key.
    #[error(
        "cannot use the cache of compiled modules: there is no home folder for its key; set HOME or XDG_STATE_HOME, or \
         use `--cache off`"
    )]
    NoPlaceForKey,
    /// The file is not a key, or other users can read it.
    #[error(
        "cannot use the cache of compiled modules: its key {0} must be a file of 32 bytes that this user owns \
         and no other user can read; remove the key: the host then creates a new key and compiles modules again"
    )]
    KeyNotPrivate(PathBuf),
}

impl Cache {
    /// Opens the cache in `folder`, with the key in the file `key`. Creates the folder and the file if they are
    /// missing.
    ///
    /// # Errors
    /// [`CacheError`] if the cache cannot be used. The caller then works without a cache.
    pub fn open(folder: &Path, key: &Path) -> Result<Self, CacheError> {
        let key = CacheKey::open(key).map_err(|error| match error {
            KeyError::Unusable(why) => CacheError::NoKey { path: key.to_owned(), why },
            KeyError::NotPrivate => CacheError::KeyNotPrivate(key.to_owned()),
        })?;
        let cache = Self { folder: folder.to_owned(), key, largest: LARGEST_CACHE };
        let made = std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
            .create(folder)
            .and_then(|()| cache.opened());
        match made {
            Ok(Some(_)) => Ok(cache),
            Ok(None) => Err(CacheError::NotPrivate(cache.folder)),
            Err(why) => Err(CacheError::Unusable { path: cache.folder, why }),
        }
    }

    /// Returns the code under this key, if the cache has it. Removes an entry that is damaged, or whose tag was not
    /// made by one of this user's hosts, so that a new entry can take its place.
    pub(super) fn get(&self, key: &ArtifactKey) -> Option<Artifact> {
        let folder = self.opened().ok().flatten()?;
        let name = entry(key);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&folder, &name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(rustix::io::Errno::NOENT) => return None,
            Err(_) => return self.discard(&folder, &name),
        };
        let read = self.read(file, key);
        if read.is_none() {
            return self.discard(&folder, &name);
        }
        // Mark the entry as recently used, because `shrink` removes the least recently used entries first.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: omit, last_modification: now };
        let _ = rustix::fs::utimensat(&folder, &name, &times, AtFlags::SYMLINK_NOFOLLOW);
        read
    }

    /// Adds the code to the cache. Ignores errors, because the host can compile the module again.
    pub(super) fn put(&self, key: &ArtifactKey, code: &Artifact) {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let Some(folder) = self.opened().ok().flatten() else { return };
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let unfinished = format!("{}.{}.{number}{UNFINISHED}", key.as_str(), std::process::id());
        let kept = self
            .write(&folder, &unfinished, code)
            .and_then(|()| Ok(rustix::fs::renameat(&folder, &unfinished, &folder, entry(key))?));
        if kept.is_err() {
            self.discard(&folder, &unfinished);
        }
        // If this fails, the cache stays too large until the next call.
        let _ = self.shrink(&folder);
    }

    fn discard(&self, folder: &OwnedFd, name: &str) -> Option<Artifact> {
        // The call fails if another process has already removed the entry. `unlinkat` does not remove folders, but no
        // host creates folders here.
        let _ = rustix::fs::unlinkat(folder, name, AtFlags::empty());
        None
    }

    /// Opens the folder. Returns `None` if other users can write to it. Checks this on each call, because the
    /// permissions may have changed since the last call.
    fn opened(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(&self.folder, flags, Mode::empty()) {
            Ok(folder) => folder,
            // The path is a symbolic link, or not a folder.
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let is_private = is_private(&rustix::fs::fstat(&folder)?);
        Ok(is_private.then_some(folder))
    }

    /// Reads the code from an entry. Returns `None` unless the entry is complete, and one of this user's hosts wrote it
    /// under this key.
    fn read(&self, file: OwnedFd, key: &ArtifactKey) -> Option<Artifact> {
        let stat = rustix::fs::fstat(&file).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || !is_private(&stat) || size(&stat) > LARGEST_ARTIFACT {
            return None;
        }
        let mut file = File::from(file);
        let mut tag = [0; TAG];
        file.read_exact(&mut tag).ok()?;
        // Copy the file into memory, so that later changes to the file and disk errors do not affect running code.
        let mut code = Artifact::blank().ok()?;
        io::copy(&mut io::Read::take(file, LARGEST_ARTIFACT), &mut code).ok()?;
        Artifact::seal(code, key).ok().filter(|code| self.key.knows(code.checksum(), &tag))
    }

    fn write(&self, folder: &OwnedFd, name: &str, code: &Artifact) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(self.key.tag(code.checksum()).as_ref())?;
        code.copy_to(&mut file)
    }

    fn shrink(&self, folder: &OwnedFd) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name.ends_with(ENTRY) || name.ends_with(UNFINISHED) {
                // The call fails if another process has removed the entry in the meantime.
                let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                entries.push(((stat.st_mtime, stat.st_mtime_nsec), name.to_owned(), size(&stat)));
            }
        }
        let mut total: u64 = entries.iter().map(|(.., size)| size).sum();
        entries.sort();
        for (_, name, size) in entries {
            if total <= self.largest {
                break;
            }
            self.discard(folder, &name);
            total -= size;
        }
        Ok(())
    }
}

fn entry(key: &ArtifactKey) -> String {
    format!("{}{ENTRY}", key.as_str())
}

fn is_private(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0
}

fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, UNIX_EPOCH};

    use tempfile::TempDir;

    use super::*;
    use baton_runtime::{Engine, OUTLINE, Outline};
    use baton_store::Digest;

    struct Case {
        engine: Engine,
        base: TempDir,
        cache: Cache,
    }

    impl Case {
        fn open(&self, folder: &Path) -> Result<Cache, CacheError> {
            Cache::open(folder, &self.base.path().join("key"))
        }

        fn new() -> Self {
            let base = tempfile::tempdir().unwrap();
            let cache = Cache::open(&base.path().join("a/cache"), &base.path().join("key")).unwrap();
            Self { engine: Engine::new().unwrap(), base, cache }
        }

        fn key(&self, module: &str) -> ArtifactKey {
            ArtifactKey::new(&self.engine, &Digest::of(module.as_bytes()))
        }

        fn put(&self, module: &str, code: &[u8]) {
            let key = self.key(module);
            let mut file = Artifact::blank().unwrap();
            key.write(code, Outline::from_bytes([0; OUTLINE]), &mut file).unwrap();
            self.cache.put(&key, &Artifact::seal(file, &key).unwrap());
        }

        fn has(&self, module: &str) -> bool {
            self.cache.get(&self.key(module)).is_some()
        }

        fn path(&self, module: &str) -> PathBuf {
            self.cache.folder.join(entry(&self.key(module)))
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.cache.folder).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn entry_is_found_and_is_private_to_its_user() {
        let case = Case::new();
        assert!(!case.has("m"));
        case.put("m", b"code");
        case.put("m", b"code");
        assert!(case.has("m") && !case.has("n"));
        assert_eq!(case.names().len(), 1);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&case.path("m")), mode(&case.cache.folder)), (0o600, 0o700));
        assert!(case.open(&case.cache.folder).is_ok());
    }

    #[test]
    fn damaged_entry_is_not_used_and_is_removed() {
        let case = Case::new();
        let code = b"as good as code can be";
        for at in 0..code.len() + 40 + TAG {
            case.put("m", code);
            let mut damaged = std::fs::read(case.path("m")).unwrap();
            damaged[at] ^= 1;
            std::fs::write(case.path("m"), damaged).unwrap();
            assert!(!case.has("m"), "byte {at}");
            assert_eq!(case.names(), Vec::<String>::new());
        }
        for length in 0..code.len() + 40 + TAG {
            case.put("m", code);
            std::fs::File::options().write(true).open(case.path("m")).unwrap().set_len(length as u64).unwrap();
            assert!(!case.has("m"), "{length} bytes");
        }
        // The entry named `n` is undamaged, but contains another module.
        case.put("m", code);
        std::fs::rename(case.path("m"), case.path("n")).unwrap();
        assert!(!case.has("n"));
    }

    #[test]
    fn entry_is_not_used_when_other_users_can_write_it() {
        let case = Case::new();
        for wrong in [0o620, 0o602, 0o666] {
            case.put("m", b"code");
            mode(&case.path("m"), wrong);
            assert!(!case.has("m"), "{wrong:o}");
        }
        case.put("m", b"code");
        let moved = case.base.path().join("moved");
        std::fs::rename(case.path("m"), &moved).unwrap();
        symlink(&moved, case.path("m")).unwrap();
        assert!(!case.has("m"), "a symbolic link");
        std::fs::create_dir(case.path("m")).unwrap();
        assert!(!case.has("m"), "a folder");

        case.put("n", b"code");
        for wrong in [0o770, 0o707, 0o777] {
            mode(&case.cache.folder, wrong);
            assert!(!case.has("n"), "{wrong:o}");
            let refused = case.open(&case.cache.folder).unwrap_err().to_string();
            assert!(refused.contains("chmod 700") && refused.contains("--cache off"), "{refused}");
        }
        mode(&case.cache.folder, 0o700);
        assert!(case.has("n"));

        let link = case.base.path().join("link");
        symlink(&case.cache.folder, &link).unwrap();
        assert!(matches!(case.open(&link), Err(CacheError::NotPrivate(_))));
        assert!(matches!(case.open(&moved), Err(CacheError::NotPrivate(_) | CacheError::Unusable { .. })));
    }

    #[test]
    fn entry_is_not_used_without_a_tag_of_this_users_key() {
        let case = Case::new();
        case.put("m", b"code");
        // The first entry is undamaged, but has no tag, as in an earlier version of Baton. The second entry's tag was
        // made with another user's key.
        let known = std::fs::read(case.path("m")).unwrap();
        std::fs::write(case.path("m"), &known[TAG..]).unwrap();
        assert!(!case.has("m"));
        let others = Cache::open(&case.cache.folder, &case.base.path().join("others")).unwrap();
        let theirs = Case { cache: others, ..case };
        theirs.put("m", b"code");
        assert!(theirs.has("m"));
        let case = Case { cache: theirs.open(&theirs.cache.folder).unwrap(), ..theirs };
        assert!(!case.has("m"));
        case.put("m", b"code");
        assert!(case.has("m"));
    }

    #[test]
    fn cache_is_refused_without_a_usable_key() {
        let case = Case::new();
        let key = case.base.path().join("key");
        mode(&key, 0o644);
        let refused = case.open(&case.cache.folder).unwrap_err();
        assert!(
            matches!(refused, CacheError::KeyNotPrivate(_)) && refused.to_string().contains("remove the key"),
            "{refused}"
        );
        let refused = Cache::open(&case.cache.folder, &key.join("key")).unwrap_err();
        assert!(matches!(refused, CacheError::NoKey { .. }), "{refused}");
        assert!(refused.to_string().contains("XDG_STATE_HOME"), "{refused}");
    }

    #[test]
    fn entry_is_not_used_when_another_user_owns_it() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give a file to somebody else");
            return;
        }
        let case = Case::new();
        case.put("m", b"code");
        std::os::unix::fs::chown(case.path("m"), Some(1), None).unwrap();
        assert!(!case.has("m"));
        case.put("m", b"code");
        std::os::unix::fs::chown(&case.cache.folder, Some(1), None).unwrap();
        assert!(!case.has("m"));
        assert!(matches!(case.open(&case.cache.folder), Err(CacheError::NotPrivate(_))));
    }

    #[test]
    fn least_recently_used_entry_is_removed_first() {
        let mut case = Case::new();
        let code = [0; 1 << 10];
        for (age, module) in ["a", "b", "c"].into_iter().enumerate() {
            case.put(module, &code);
            let used = UNIX_EPOCH + Duration::from_secs(age as u64);
            std::fs::File::open(case.path(module)).unwrap().set_modified(used).unwrap();
        }
        assert!(case.has("a"));
        // Unfinished entries also count toward the limit. A killed process may leave such entries behind.
        std::fs::write(case.cache.folder.join(format!("x{UNFINISHED}")), code).unwrap();
        std::fs::File::open(case.cache.folder.join(format!("x{UNFINISHED}")))
            .unwrap()
            .set_modified(UNIX_EPOCH)
            .unwrap();
        case.cache.largest = 3 * ((1 << 10) + OUTLINE as u64 + 32 + TAG as u64);
        case.put("d", &code);
        let kept = ["a", "b", "c", "d"].map(|module| case.path(module).exists());
        assert_eq!(kept, [true, false, true, true]);
        assert_eq!(case.names().len(), 3);
    }

    #[test]
    fn cache_has_no_entries_when_its_folder_vanishes() {
        let case = Case::new();
        std::fs::remove_dir_all(case.base.path().join("a")).unwrap();
        case.put("m", b"code");
        assert!(!case.has("m"));
        std::fs::write(case.base.path().join("a"), "").unwrap();
        case.put("m", b"code");
        assert!(!case.has("m"));
        assert!(case.open(&case.cache.folder).is_err());
    }
}
