//! Creates and opens a database file, and detects when it is moved away.

use std::fmt::Display;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use baton_election::StoreError;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use rustix::fs::{FileType, Mode, OFlags, StatVfs, StatVfsMountFlags};
use rustix::io::Errno;

use super::{lock_holders, rights};
use crate::LOCKED;
use crate::file_events::{WatchFlags, Watches};
use crate::file_system::{foreign, foreign_file_system};

/// Version of the table layout, stored in the file's `user_version`.
const FORMAT: i64 = 1;
/// Number that marks a file as Baton's (`Batn`), stored in the file's `application_id`.
const APPLICATION: i64 = 0x4261_746e;
/// Interval between attempts to get the lock while another client holds it.
const BUSY_LOOK: Duration = Duration::from_millis(1);
/// Timeout for the lock while the file is created. Long enough for all hosts on a machine to start at the same time.
const BUSY_CREATING: Duration = Duration::from_secs(5);
/// Size to which a kept journal is truncated, in bytes.
const JOURNAL_KEPT: i64 = 64 << 10;
/// Number of pages that are reserved in the database (as free pages) and in its journal. A takeover changes fewer
/// pages.
const RESERVED: u32 = 8;
/// SQLite's default page size, in bytes.
const PAGE: u32 = 4096;
/// SQLite's error code for a database file that is no longer at its path.
const MOVED: i32 = rusqlite::ffi::SQLITE_READONLY_DBMOVED;

/// A database file, identified by its inode and not by its path, and the idle connections to the file.
pub(super) struct File {
    path: PathBuf,
    /// Descriptor that keeps the inode from being reused for another file. The descriptor is opened with `O_PATH`,
    /// because closing a normal descriptor would drop the locks that SQLite holds on the file in this process.
    pin: OwnedFd,
    busy: Duration,
    idle: Mutex<Vec<Connection>>,
}

impl File {
    /// Returns `None` if there is no file at `path`.
    pub fn open(path: &Path, busy: Duration) -> Result<Option<Self>, StoreError> {
        let pin = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(pin) => pin,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(out_of_reach(path, "cannot be opened", &error, Some(error))),
        };
        let file = Self { path: path.to_owned(), pin, busy, idle: Mutex::default() };
        refuse_other_kinds(path, &rustix::fs::fstat(&file.pin).map_err(|error| file.unreadable(error))?)?;
        refuse_foreign(path, foreign(&file.pin))?;
        rights::refuse_open_folder(path.parent().unwrap_or(path))?;
        Ok(Some(file))
    }

    pub fn in_place(&self) -> Result<bool, StoreError> {
        let own = rustix::fs::fstat(&self.pin).map_err(|error| self.unreadable(error))?;
        match rustix::fs::stat(&self.path) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    /// Asks the kernel to report when the file may have been moved away from its path. Returns true if this has already
    /// happened. The kernel reports moves of the file and its folder, but not of the folders above that.
    pub fn watch_moves(&self, watches: &Watches) -> bool {
        self.watch(watches, WatchFlags::empty());
        // Check after setting the watch, so that no move is missed.
        self.in_place() == Ok(false)
    }

    /// Asks the kernel to report each write to the file, and when the file is moved. Returns false if the kernel cannot
    /// do this.
    pub fn watch_changes(&self, watches: &Watches) -> bool {
        self.watch(watches, WatchFlags::MODIFY)
    }

    fn watch(&self, watches: &Watches, more: WatchFlags) -> bool {
        let moved = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
        let is_folder_watched = self.path.parent().is_none_or(|folder| watches.add(folder, moved).is_ok());
        // If a file is deleted while it is open, the kernel reports a change of its attributes instead of a deletion.
        watches.add(&self.path, moved | WatchFlags::ATTRIB | more).is_ok() && is_folder_watched
    }

    /// Returns the journal mode, which decides whether the rollback journal is kept after a transaction.
    ///
    /// If the journal is kept, SQLite only clears the journal's header, and overwrites the journal in the next
    /// transaction. Compared with creating and deleting a file each time, this needs half the CPU time and a quarter of
    /// the waiting time. If another database replaces this one, a cleared journal does not harm the new database. A
    /// write-ahead log would be even faster, but SQLite would apply it to the new database. Older hosts, which delete
    /// the journal, can share a database with hosts that keep the journal.
    ///
    /// A new journal has the same mode as its database, but the group of the process that created it. So users who have
    /// access only through the database's group might be unable to read the journal, and therefore the database. In
    /// this case, the journal is deleted after each transaction.
    fn journal(&self) -> Result<&'static str, StoreError> {
        let mode = rustix::fs::fstat(&self.pin).map_err(|error| self.unreadable(error))?.st_mode;
        Ok(if keeps_journal(mode) { "PERSIST" } else { "DELETE" })
    }

    fn unreadable(&self, error: Errno) -> StoreError {
        out_of_reach(&self.path, "cannot be inspected", &error, Some(error))
    }

    /// Returns `None` if the path now refers to another file.
    pub fn connection(&self) -> Result<Option<Connection>, StoreError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(connection) = idle {
            return Ok(Some(connection));
        }
        let connected = connect(&self.path, OpenFlags::empty(), self.busy).and_then(|db| Ok((identity(&db)?, db)));
        let (identity, db) = connected.map_err(|error| store_error(&self.path, &error))?;
        check(&self.path, identity)?;
        // Set the journal mode only after the check, so that a database of another program keeps its own mode.
        let set = db
            .pragma_update(None, "journal_mode", self.journal()?)
            .and_then(|()| db.pragma_update(None, "journal_size_limit", JOURNAL_KEPT));
        set.map_err(|error| store_error(&self.path, &error))?;
        Ok(self.in_place()?.then_some(db))
    }

    /// Keeps a connection for the next request, unless the connection is read-only. SQLite opens a connection read-only
    /// if the file is not writable, and the connection stays read-only even after the file becomes writable.
    pub fn put_back(&self, connection: Connection) {
        if connection.is_readonly(rusqlite::MAIN_DB).unwrap_or(true) {
            return;
        }
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

pub(super) fn create(path: &Path, schema: &str) -> Result<(), StoreError> {
    let dir = path.parent().unwrap_or(path);
    let no_folder = |error| out_of_reach(dir, "the folder cannot be created", &error, Errno::from_io_error(&error));
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(no_folder)?;
    refuse_foreign(dir, foreign_file_system(dir))?;
    rights::refuse_open_folder(dir)?;
    if let Ok(found) = rustix::fs::stat(path) {
        refuse_other_kinds(path, &found)?;
    } else {
        let no_file = |error| out_of_reach(path, "cannot be created", &error, Errno::from_io_error(&error));
        rights::make_file(path).map_err(no_file)?;
    }
    let made = connect(path, OpenFlags::SQLITE_OPEN_CREATE, BUSY_CREATING).and_then(|mut db| {
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut found = identity(&transaction)?;
        if found.empty {
            transaction.execute_batch(schema)?;
            transaction.pragma_update(None, "application_id", APPLICATION)?;
            transaction.pragma_update(None, "user_version", FORMAT)?;
            found = identity(&transaction)?;
        }
        transaction.commit()?;
        Ok((found, db))
    });
    let (found, mut db) = made.map_err(|error| store_error(path, &error))?;
    check(path, found)?;
    // Ignore errors: even without the reserve, the store works as long as the disk has room.
    let _ = reserve(path, &mut db);
    Ok(())
}

/// True if a database with this mode keeps its journal; see [`File::journal`].
fn keeps_journal(mode: u32) -> bool {
    let (group, others) = (mode >> 3 & 0o7, mode & 0o7);
    group & !others == 0
}

/// Reserves room in the database and its journal, so that a takeover succeeds even if the disk is full. After the
/// takeover, a leader needs no more room, because it only overwrites existing data.
fn reserve(path: &Path, db: &mut Connection) -> rusqlite::Result<()> {
    let mut journal = path.as_os_str().to_owned();
    journal.push("-journal");
    let free: u32 = db.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
    let has_room = std::fs::metadata(journal).is_ok_and(|found| found.len() >= u64::from(RESERVED * PAGE));
    let is_kept = rustix::fs::stat(path).is_ok_and(|found| keeps_journal(found.st_mode));
    if !is_kept || (free >= RESERVED && has_room) {
        return Ok(());
    }
    db.pragma_update(None, "journal_mode", "PERSIST")?;
    db.pragma_update(None, "journal_size_limit", JOURNAL_KEPT)?;
    let mut step = |sql: &str| {
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(sql)?;
        transaction.commit()
    };
    // Each row takes slightly more than one page. The update makes the journal grow, and dropping the table frees the
    // pages in the database.
    let fill = format!("INSERT INTO reserve SELECT zeroblob({PAGE}) FROM n");
    step(&format!(
        "CREATE TABLE IF NOT EXISTS reserve (page BLOB); DELETE FROM reserve;
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {RESERVED}) {fill};"
    ))?;
    step(&format!("UPDATE reserve SET page = randomblob({PAGE});"))?;
    step("DROP TABLE reserve;")
}

fn connect(path: &Path, extra: OpenFlags, busy: Duration) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | extra;
    let mut db = Connection::open_with_flags(path, flags)?;
    // SQLite's own busy handler waits up to 100 ms between attempts, and would miss the gaps that a continuously
    // writing client leaves.
    let looks = i32::try_from(busy.as_millis()).unwrap_or(i32::MAX);
    db.busy_handler(Some(move |count| {
        std::thread::sleep(BUSY_LOOK);
        count < looks
    }))?;
    // A term that has begun must survive a power failure; otherwise, another host could begin the same term again. FULL
    // is not enough if the journal is deleted, for example while the file is being created: only EXTRA also syncs the
    // folder. Without this sync, the journal could reappear after a power failure and undo the commit.
    db.pragma_update(None, "synchronous", "EXTRA")?;
    Ok(db)
}

struct Identity {
    application: i64,
    format: i64,
    empty: bool,
}

fn identity(db: &Connection) -> rusqlite::Result<Identity> {
    let number = |name| db.pragma_query_value(None, name, |row| row.get(0));
    let (application, format) = (number("application_id")?, number("user_version")?);
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(Identity { application, format, empty: (application, format, tables) == (0, 0, 0) })
}

fn check(path: &Path, identity: Identity) -> Result<(), StoreError> {
    match identity {
        Identity { empty: true, .. } => {
            Err(misconfigured(path, "the file is empty: start a host on this store, which initializes it"))
        }
        Identity { application: APPLICATION, format: FORMAT, .. } => Ok(()),
        Identity { application: APPLICATION, format, .. } => Err(misconfigured(
            path,
            format!("has format {format}, but this version of Baton reads {FORMAT}: use the version that created it"),
        )),
        Identity { .. } => Err(misconfigured(path, "is a database of another program: name another folder")),
    }
}

pub(super) fn store_error(path: &Path, error: &rusqlite::Error) -> StoreError {
    use ErrorCode::{CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, NotADatabase};
    use ErrorCode::{PermissionDenied, ReadOnly};
    let unknown = |why: String| StoreError::Unknown(format!("{}: {why}", path.display()));
    match error.sqlite_error_code() {
        Some(NotADatabase | DatabaseCorrupt) => misconfigured(
            path,
            format!(
                "is damaged or not a database ({error}): move it out of the way and start a host, which will create a \
                 new one"
            ),
        ),
        Some(CannotOpen | ReadOnly | PermissionDenied) => out_of_reach(path, "cannot be written", error, None),
        Some(DatabaseBusy | DatabaseLocked) => unknown(match lock_holders::described(path) {
            Some(holders) => format!(
                "{LOCKED}: {holders}; even a reader blocks all writers: if this persists, resume or end the process"
            ),
            None => format!(
                "{LOCKED}, and the kernel lists no other process that holds the lock: if this persists, look for a \
                 stopped process, also in other containers"
            ),
        }),
        Some(DiskFull) => unknown("the disk is full: make room".to_owned()),
        Some(_) => unknown(format!("{error}; if this persists, check the disk")),
        None => misconfigured(path, format!("contains a row that cannot be read ({error}): correct or delete the row")),
    }
}

/// Same as [`store_error`], but returns `None` if the file has been moved or replaced.
pub(super) fn unless_moved(path: &Path, error: &rusqlite::Error) -> Option<StoreError> {
    let moved = error.sqlite_error().is_some_and(|error| error.extended_code == MOVED);
    (!moved).then(|| store_error(path, error))
}

pub(super) fn misconfigured(path: &Path, why: impl Display) -> StoreError {
    StoreError::Misconfigured(format!("{}: {why}", path.display()))
}

/// Returns an error with a remedy. If `why` is `None`, looks for the reason in the file system, because SQLite does not
/// report it.
pub(super) fn out_of_reach(path: &Path, what: &str, error: &dyn Display, why: Option<Errno>) -> StoreError {
    // If the path does not exist, check the folder that should contain it. A file system that does not count its blocks
    // or inodes reports 0 of 0, which does not mean that it is full.
    let is_full = |there: &StatVfs| there.f_blocks > 0 && there.f_bavail == 0;
    let has_no_more_files = |there: &StatVfs| there.f_files > 0 && there.f_favail == 0;
    let there = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok());
    let seen = || match &there {
        Some(there) if there.f_flag.contains(StatVfsMountFlags::RDONLY) => Some(Errno::ROFS),
        Some(there) if is_full(there) || has_no_more_files(there) => Some(Errno::NOSPC),
        _ => None,
    };
    let remedy = match why.or_else(seen) {
        Some(Errno::ROFS) => "its file system is mounted read-only: name a writable folder",
        Some(Errno::NOSPC) if there.as_ref().is_some_and(|there| has_no_more_files(there) && !is_full(there)) => {
            "its file system has no free inodes: remove files"
        }
        Some(Errno::NOSPC | Errno::DQUOT) => "the disk is full: make room",
        _ => "give this user the right to read and write the folder and its files",
    };
    misconfigured(path, format!("{what} ({error}): {remedy}"))
}

/// Refuses anything but a regular file. Opening a pipe would block, and opening a folder would fail with an unclear
/// error.
fn refuse_other_kinds(path: &Path, found: &rustix::fs::Stat) -> Result<(), StoreError> {
    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
        return Ok(());
    }
    Err(misconfigured(
        path,
        "is not a regular file: move it out of the way and start a host, which will create the file, or name another \
         folder",
    ))
}

/// Refuses a file system that is not known to be local: on a network file system, two hosts could hold the same lease.
fn refuse_foreign(path: &Path, found: io::Result<Option<String>>) -> Result<(), StoreError> {
    match found {
        Ok(None) => Ok(()),
        Ok(Some(kind)) => Err(misconfigured(
            path,
            format!(
                "its file system is not known to be local ({kind}), so file locks may not be safe: use a local disk such as \
                 ext4 or XFS, or an azure:// store"
            ),
        )),
        Err(error) => Err(misconfigured(path, format!("its file system cannot be determined ({error})"))),
    }
}
