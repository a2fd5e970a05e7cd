//! The announcements of nodes: `DIR/nodes/ELECTION/NODE.json`.
//!
//! Each announcement is a file that a rename replaces atomically, so readers need no lock. If the announcements were in
//! a database, a host that froze while it announced itself would keep a lock. Other nodes could then not read the
//! highest announced term, and could not take over.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_election::{ElectionName, StoreError};
use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use rustix::path::Arg;

use super::database::missing;
use super::file::{misconfigured, out_of_reach};
use super::{new_version, rights};
use baton_base::clock::wall;

pub(super) const FOLDER: &str = "nodes";
/// Description of the folder's content, for error messages.
const KEEPS: &str = "the terms that nodes have announced";
const SUFFIX: &str = ".json";
/// Suffix of an incomplete file's name, after the node's id and a random number.
const UNFINISHED: &str = ".new";
/// Maximum length of a node's id, in bytes. Even with the longest suffix, the file name stays within the limit of 255
/// bytes.
const LONGEST_NODE: usize = 200;

/// Age after which an incomplete file may be removed, because its writer must have been killed.
const LEFT: Duration = Duration::from_secs(60);
/// Size of the buffer for file names, in bytes. It holds the names of 1000 nodes, so that one system call, which locks
/// the folder, can read all of them.
const NAMES: usize = 256 << 10;

/// The announcements of all elections. Each method may block for as long as the file system does.
pub(super) struct Announcements {
    folder: PathBuf,
}

impl Announcements {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub fn create(&self) -> Result<(), StoreError> {
        let made = rights::make_folder(&self.folder);
        made.map_err(|error| failed(&self.folder, "the folder cannot be created", &error))?;
        let folder = open_folder(CWD, &self.folder).map_err(|error| match error {
            Errno::NOENT => no_folder(&self.folder),
            error => self.unreadable(error),
        })?;
        rights::refuse_open_folder(&self.folder)?;
        // Ignore errors, since leftover files do no harm.
        let _ = tidy_up(&folder);
        Ok(())
    }

    pub fn put(&self, election: &ElectionName, node: &str, content: &[u8]) -> Result<(), StoreError> {
        let path = self.path(election, node)?;
        let nodes = self.open()?;
        let of_election = self.folder.join(election.group());
        let unfinished = format!("{}.{}{UNFINISHED}", stem_of(node), new_version()?.0);
        let write = || -> io::Result<()> {
            rights::make_folder(&of_election)?;
            let folder = open_folder(&nodes, election.group())?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&folder, &unfinished, flags, Mode::RUSR | Mode::WUSR)?;
            let written = || -> io::Result<()> {
                rights::give(&file, &of_election)?;
                let mut file = File::from(file);
                file.write_all(content)?;
                // The announced term, and the folders that contain the file, must survive a power failure.
                file.sync_all()?;
                rustix::fs::renameat(&folder, &unfinished, &folder, file_name_of(node))?;
                rustix::fs::fsync(&folder)?;
                Ok(rustix::fs::fsync(&nodes)?)
            };
            written().inspect_err(|_| drop(remove(&folder, &unfinished)))
        };
        write().map_err(|error| failed(&path, "cannot be written", &error))
    }

    pub fn get(&self, election: &ElectionName, node: &str, limit: u64) -> Result<Option<Bytes>, StoreError> {
        let path = self.path(election, node)?;
        let Some(folder) = self.open_election(election)? else { return Ok(None) };
        read(&folder, node, limit).map_err(|error| failed(&path, "cannot be read", &error))
    }

    pub fn all(&self, election: &ElectionName, limit: u64) -> Result<Vec<Bytes>, StoreError> {
        let Some(folder) = self.open_election(election)? else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for node in self.nodes(&folder, election)? {
            let content = read(&folder, &node, limit);
            all.extend(content.map_err(|error| failed(&self.file(election, &node), "cannot be read", &error))?);
        }
        Ok(all)
    }

    pub fn list(&self, election: &ElectionName) -> Result<Vec<(String, u64)>, StoreError> {
        let Some(folder) = self.open_election(election)? else { return Ok(Vec::new()) };
        let mut listed = Vec::new();
        for node in self.nodes(&folder, election)? {
            // The size is `None` if the node has withdrawn the announcement since, or if the name belongs to a folder
            // or a symbolic link.
            let size = open_file(&folder, &node).and_then(|file| file.map(|file| size_of(&file)).transpose());
            let size = size.map_err(|error| failed(&self.file(election, &node), "cannot be read", &error))?;
            listed.extend(size.map(|size| (node, size)));
        }
        Ok(listed)
    }

    pub fn remove(&self, election: &ElectionName, node: &str) -> Result<(), StoreError> {
        let path = self.path(election, node)?;
        let Some(folder) = self.open_election(election)? else { return Ok(()) };
        remove(&folder, &file_name_of(node)).map_err(|error| failed(&path, "cannot be removed", &error))
    }

    /// Returns the nodes whose announcements are in an election's folder, sorted by name.
    ///
    /// On some file systems (tmpfs), a listing can miss a file while a rename replaces it. So this method lists the
    /// folder again until it finds no new name.
    fn nodes(&self, folder: &OwnedFd, election: &ElectionName) -> Result<BTreeSet<String>, StoreError> {
        let cannot = |error: io::Error| failed(&self.folder.join(election.group()), "cannot be read", &error);
        let mut found = BTreeSet::new();
        for pass in 0.. {
            let before = found.len();
            found.extend(names(folder).map_err(cannot)?.iter().filter_map(|name| node_of(name)));
            if pass > 0 && found.len() == before {
                break;
            }
        }
        Ok(found)
    }

    fn file(&self, election: &ElectionName, node: &str) -> PathBuf {
        self.folder.join(election.group()).join(file_name_of(node))
    }

    fn path(&self, election: &ElectionName, node: &str) -> Result<PathBuf, StoreError> {
        if is_id(node) {
            return Ok(self.file(election, node));
        }
        Err(misconfigured(
            &self.folder.join(election.group()),
            format!(
                "{node:?} cannot name a file: a node's id has at most {LONGEST_NODE} bytes and no control characters"
            ),
        ))
    }

    /// Returns `None` if no node has announced itself yet.
    fn open_election(&self, election: &ElectionName) -> Result<Option<OwnedFd>, StoreError> {
        let nodes = self.open()?;
        let of_election = self.folder.join(election.group());
        match open_folder(&nodes, election.group()) {
            Ok(folder) => {
                rights::refuse_open_folder(&of_election)?;
                Ok(Some(folder))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR) => Err(no_folder(&of_election)),
            Err(error) => Err(failed(&of_election, "cannot be read", &error.into())),
        }
    }

    /// Fails if the folder does not exist, because the lost folder may have contained an announced term.
    fn open(&self) -> Result<OwnedFd, StoreError> {
        let folder = open_folder(CWD, &self.folder).map_err(|error| self.unreadable(error))?;
        rights::refuse_open_folder(&self.folder)?;
        Ok(folder)
    }

    fn unreadable(&self, error: Errno) -> StoreError {
        match error {
            Errno::NOENT => missing(&self.folder, KEEPS, false),
            Errno::NOTDIR => no_folder(&self.folder),
            error => failed(&self.folder, "cannot be read", &error.into()),
        }
    }
}

fn no_folder(path: &Path) -> StoreError {
    misconfigured(path, "is not a folder: move it out of the way and start a host, which will create the folder")
}

fn failed(path: &Path, what: &str, error: &io::Error) -> StoreError {
    use Errno as E;
    match E::from_io_error(error) {
        why @ Some(E::ACCESS | E::PERM | E::ROFS | E::NOSPC | E::DQUOT | E::NOTDIR | E::ISDIR | E::LOOP) => {
            out_of_reach(path, what, error, why)
        }
        _ => StoreError::Unknown(format!("{}: {what} ({error})", path.display())),
    }
}

fn open_folder(at: impl AsFd, path: impl Arg) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns `None` if there is no regular file with this name. Never blocks on a pipe.
fn open_file(folder: &OwnedFd, node: &str) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(folder, file_name_of(node), flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let is_file = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::RegularFile;
    Ok(is_file.then_some(file))
}

fn size_of(file: &OwnedFd) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or_default())
}

fn read(folder: &OwnedFd, node: &str, limit: u64) -> io::Result<Option<Bytes>> {
    let Some(file) = open_file(folder, node)? else { return Ok(None) };
    let mut content = Vec::new();
    File::from(file).take(limit).read_to_end(&mut content)?;
    Ok(Some(content.into()))
}

fn remove(folder: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes incomplete files that killed writers left behind, and the folders of elections without announcements.
fn tidy_up(nodes: &OwnedFd) -> io::Result<()> {
    for election in names(nodes)?.iter().filter(|name| ElectionName::new(name).is_ok()) {
        let Ok(folder) = open_folder(nodes, election.as_str()) else { continue };
        for name in names(&folder)?.iter().filter(|name| name.ends_with(UNFINISHED)) {
            if rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_old) {
                let _ = remove(&folder, name);
            }
        }
        // The kernel removes only an empty folder.
        if rustix::fs::fstat(&folder).is_ok_and(is_old) {
            let _ = rustix::fs::unlinkat(nodes, election, AtFlags::REMOVEDIR);
        }
    }
    Ok(())
}

fn is_old(found: Stat) -> bool {
    u64::try_from(found.st_mtime).is_ok_and(|changed| changed + LEFT.as_secs() < wall().as_secs())
}

/// Skips names that are not UTF-8, because Baton never writes them.
fn names(folder: &OwnedFd) -> io::Result<Vec<String>> {
    // Open the folder again: a new descriptor starts at the first name.
    let folder = open_folder(folder, ".")?;
    let mut room = Vec::with_capacity(NAMES);
    let mut entries = RawDir::new(folder, room.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
    }
    Ok(names)
}

/// True if the id can be part of a file name. The ids of Baton's own nodes always can: they have at most 128 printable
/// ASCII characters.
fn is_id(node: &str) -> bool {
    !node.is_empty() && node.len() <= LONGEST_NODE && !node.contains(char::is_control)
}

/// Replaces each `/` with another single character. With escape sequences, the longest id would not fit into a file
/// name.
fn stem_of(node: &str) -> String {
    node.replace('/', "\u{1}")
}

fn file_name_of(node: &str) -> String {
    stem_of(node) + SUFFIX
}

fn node_of(file_name: &str) -> Option<String> {
    let node = file_name.strip_suffix(SUFFIX)?.replace('\u{1}', "/");
    Some(node).filter(|node| is_id(node))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    fn job() -> ElectionName {
        ElectionName::new("job").unwrap()
    }

    fn announcements() -> (TempDir, Announcements) {
        let dir = TempDir::new().unwrap();
        let announcements = Announcements::new(dir.path().join(FOLDER));
        announcements.create().unwrap();
        (dir, announcements)
    }

    #[test]
    fn foreign_files_are_no_announcements() {
        let (_dir, store) = announcements();
        store.put(&job(), "a", b"1").unwrap();
        let folder = store.folder.join("job");
        fs::create_dir(folder.join("folder.json")).unwrap();
        for name in
            ["note.txt".to_owned(), "a\nb.json".to_owned(), "x".repeat(LONGEST_NODE + 1) + SUFFIX, SUFFIX.to_owned()]
        {
            fs::write(folder.join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink(folder.join("a.json"), folder.join("link.json")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, folder.join("pipe.json"), FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(store.list(&job()), Ok(vec![("a".to_owned(), 1)]));
        for node in ["folder", "note", "link", "pipe", "none"] {
            assert_eq!(store.get(&job(), node, 9), Ok(None), "{node}");
        }
        assert_eq!(store.get(&job(), "a", 0), Ok(Some(Bytes::new())));
        // An announcement replaces a pipe that has its file name.
        store.put(&job(), "pipe", b"2").unwrap();
        assert_eq!(store.get(&job(), "pipe", 9), Ok(Some(Bytes::from_static(b"2"))));
        assert!(matches!(
            store.put(&job(), "folder", b"3"),
            Err(StoreError::Misconfigured(_) | StoreError::Unknown(_))
        ));
        for node in ["a\nb", &"x".repeat(LONGEST_NODE + 1)] {
            assert!(matches!(store.put(&job(), node, b"4"), Err(StoreError::Misconfigured(_))), "{node:?}");
        }
        let left = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert!(left.into_iter().all(|name| !name.ends_with(UNFINISHED)));
    }

    #[test]
    fn leftovers_of_killed_writers_are_removed_at_the_next_start() {
        let (_dir, store) = announcements();
        store.put(&job(), "a", b"1").unwrap();
        let (of_job, of_gone) = (store.folder.join("job"), store.folder.join("gone"));
        fs::create_dir(&of_gone).unwrap();
        let old = std::time::UNIX_EPOCH + (wall() - 2 * LEFT);
        for (path, time) in [(of_job.join("a.01.new"), Some(old)), (of_job.join("b.02.new"), None)] {
            fs::write(&path, "half").unwrap();
            time.into_iter().for_each(|time| File::open(&path).unwrap().set_modified(time).unwrap());
        }
        File::open(&of_gone).unwrap().set_modified(old).unwrap();
        assert_eq!(store.list(&job()), Ok(vec![("a".to_owned(), 1)]));
        store.create().unwrap();
        let mut left: Vec<_> = fs::read_dir(&of_job).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort_unstable();
        assert_eq!(left, ["a.json", "b.02.new"]);
        assert!(!of_gone.exists());
    }

    #[test]
    fn announcement_that_is_replaced_all_the_time_is_always_listed() {
        let (_dir, store) = announcements();
        let nodes: Vec<String> = (0..40).map(|number| format!("node-{number}")).collect();
        nodes.iter().for_each(|node| store.put(&job(), node, b"1").unwrap());
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let folder = store.folder.join("job");
                let mut nodes = nodes.iter().cycle();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let node = nodes.next().unwrap();
                    fs::write(folder.join("x"), "2").unwrap();
                    fs::rename(folder.join("x"), folder.join(file_name_of(node))).unwrap();
                }
            });
            let all_listed = (0..500).all(|_| store.list(&job()).unwrap().len() == nodes.len());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(all_listed);
        });
    }

    #[test]
    fn path_that_is_no_folder_is_named_in_the_error() {
        let dir = TempDir::new().unwrap();
        let store = Announcements::new(dir.path().join(FOLDER));
        for make in [|path: &Path| fs::write(path, ""), |path: &Path| std::os::unix::fs::symlink("/nowhere", path)] {
            make(&store.folder).unwrap();
            let Err(StoreError::Misconfigured(why)) = store.create() else { panic!("it is none") };
            assert!(why.contains("move it out of the way"), "{why}");
            fs::remove_file(&store.folder).unwrap();
        }
        store.create().unwrap();
        fs::write(store.folder.join("job"), "").unwrap();
        assert!(matches!(store.put(&job(), "a", b"1"), Err(StoreError::Misconfigured(_))));
        assert!(matches!(store.list(&job()), Err(StoreError::Misconfigured(_))));
    }

    #[test]
    fn missing_folder_is_an_error_and_not_no_announcement() {
        let (_dir, store) = announcements();
        store.put(&job(), "a", b"1").unwrap();
        fs::rename(&store.folder, store.folder.with_extension("away")).unwrap();
        assert!(matches!(store.list(&job()), Err(StoreError::Misconfigured(_))));
        assert!(matches!(store.put(&job(), "a", b"1"), Err(StoreError::Misconfigured(_))));
        assert!(!store.folder.exists(), "only a host that is started makes the folder again");
        store.create().unwrap();
        assert_eq!(store.list(&job()), Ok(vec![]));
    }

    #[test]
    fn announcement_of_root_belongs_to_the_owner_of_the_folder() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = TempDir::new().unwrap();
        let own = fs::metadata(dir.path()).unwrap().uid();
        let owner = if own == 0 { 1234 } else { own };
        std::os::unix::fs::chown(dir.path(), Some(owner), None).unwrap();
        let store = Announcements::new(dir.path().join(FOLDER));
        store.create().unwrap();
        store.put(&job(), "a", b"1").unwrap();
        let of_election = store.folder.join("job");
        for path in [&store.folder, &of_election, &of_election.join("a.json")] {
            assert_eq!(fs::metadata(path).unwrap().uid(), owner, "{}", path.display());
        }
    }

    #[test]
    fn group_of_a_shared_folder_may_write() {
        use std::os::unix::fs::PermissionsExt as _;
        for (of_folder, folders, files) in [(0o700, 0o700, 0o600), (0o755, 0o700, 0o600), (0o2770, 0o2770, 0o660)] {
            let dir = TempDir::new().unwrap();
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(of_folder)).unwrap();
            let store = Announcements::new(dir.path().join(FOLDER));
            store.create().unwrap();
            store.put(&job(), "a", b"1").unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
            let of_election = store.folder.join("job");
            assert_eq!([mode(&store.folder), mode(&of_election)], [folders, folders], "{of_folder:o}");
            assert_eq!(mode(&of_election.join("a.json")), files, "{of_folder:o}");
        }
    }
}
