//! The database file: made, opened, and watched for being moved away.

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
use crate::file_events::{WatchFlags, Watches};
use crate::file_system::{foreign, foreign_file_system};

/// The layout of the tables, in the file's `user_version`.
const FORMAT: i64 = 1;
/// Marks the file as Baton's (`Batn`), in the file's `application_id`.
const APPLICATION: i64 = 0x4261_746e;
/// How often a request looks whether another's transaction has ended.
const BUSY_LOOK: Duration = Duration::from_millis(1);
/// How long a request waits for another's transaction, while the file is made, when all hosts of a machine may start at once.
const BUSY_CREATING: Duration = Duration::from_secs(5);
/// So much of a journal is kept, in bytes.
const JOURNAL_KEPT: i64 = 64 << 10;
/// Pages that a new database has free, and its journal has room for. A takeover touches fewer.
const RESERVED: u32 = 8;
/// SQLite's default page size, in bytes.
const PAGE: u32 = 4096;
/// SQLite's own finding that its file is not at its path any more: SQLITE_READONLY_DBMOVED.
const MOVED: i32 = rusqlite::ffi::SQLITE_READONLY_DBMOVED;

/// One database file, wherever its path has gone since, and the connections to it.
pub(super) struct File {
    path: PathBuf,
    /// Keeps the inode from being given to another file. It is opened with O_PATH, because closing any
    /// other descriptor of the file would drop the locks that SQLite holds on it in this process.
    pin: OwnedFd,
    /// How long a request waits for another's transaction.
    busy: Duration,
    idle: Mutex<Vec<Connection>>,
}

impl File {
    /// The file that is at `path` now, if there is one.
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

    /// Whether it is still what its path names.
    pub fn in_place(&self) -> Result<bool, StoreError> {
        let own = rustix::fs::fstat(&self.pin).map_err(|error| self.unreadable(error))?;
        match rustix::fs::stat(&self.path) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    /// Has the kernel tell when its path may name it no more, and says whether that is so by now. Of a folder further up that
    /// is moved nothing is told.
    pub fn watch_moves(&self, watches: &Watches) -> bool {
        self.watch(watches, WatchFlags::empty());
        // Now that what happens from here on is told.
        self.in_place() == Ok(false)
    }

    /// Has the kernel tell of that, and of each write to what is at its path now, and says whether it will.
    pub fn watch_changes(&self, watches: &Watches) -> bool {
        self.watch(watches, WatchFlags::MODIFY)
    }

    /// Whether the kernel will tell.
    fn watch(&self, watches: &Watches, more: WatchFlags) -> bool {
        let moved = WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF;
        let is_folder_watched = self.path.parent().is_none_or(|folder| watches.add(folder, moved).is_ok());
        // A name that is taken from a file is a change of its attributes: it is not deleted while anybody has it open.
        watches.add(&self.path, moved | WatchFlags::ATTRIB | more).is_ok() && is_folder_watched
    }

    /// What becomes of the rollback journal when its transaction ends.
    ///
    /// One that stays, and whose header is cleared, is only written over: that takes half of the processor time and a
    /// quarter of the wait of one that is made and deleted each time. Cleared, it says nothing: if the database is replaced,
    /// it does no harm to the new one. A write-ahead log, which is quicker still, would be taken for the new one's. Hosts of
    /// before delete the journal, and work beside those that do not.
    ///
    /// A journal gets the rights of its database, but the group of who has made it. Where others have rights by their
    /// group, they could not read it, and nothing without it.
    fn journal(&self) -> Result<&'static str, StoreError> {
        let mode = rustix::fs::fstat(&self.pin).map_err(|error| self.unreadable(error))?.st_mode;
        Ok(if keeps_journal(mode) { "PERSIST" } else { "DELETE" })
    }

    fn unreadable(&self, error: Errno) -> StoreError {
        out_of_reach(&self.path, "cannot be inspected", &error, Some(error))
    }

    /// A connection for one request. `None` if the path has come to name another file meanwhile.
    pub fn connection(&self) -> Result<Option<Connection>, StoreError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(connection) = idle {
            return Ok(Some(connection));
        }
        let connected = connect(&self.path, OpenFlags::empty(), self.busy).and_then(|db| Ok((identity(&db)?, db)));
        let (identity, db) = connected.map_err(|error| store_error(&self.path, &error))?;
        check(&self.path, identity)?;
        // Set after the check only, so that the database of another program keeps its mode.
        let set = db
            .pragma_update(None, "journal_mode", self.journal()?)
            .and_then(|()| db.pragma_update(None, "journal_size_limit", JOURNAL_KEPT));
        set.map_err(|error| store_error(&self.path, &error))?;
        Ok(self.in_place()?.then_some(db))
    }

    /// Keeps a connection for the next request. Not one that SQLite opened for reading only, because the file
    /// could not be written then: it would stay like that when the file can be.
    pub fn put_back(&self, connection: Connection) {
        if connection.is_readonly(rusqlite::MAIN_DB).unwrap_or(true) {
            return;
        }
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

/// Makes the folder, the file and its tables, if they do not exist.
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
    // Without the reserve, all works while the disk has room.
    let _ = reserve(path, &mut db);
    Ok(())
}

/// See [`File::journal`]: true for a file of this mode.
fn keeps_journal(mode: u32) -> bool {
    let (group, others) = (mode >> 3 & 0o7, mode & 0o7);
    group & !others == 0
}

/// Reserves room in the database and in its journal, so that a node can take over while the disk is full. A leader needs none:
/// it writes over what is there.
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
    // Each row takes a page and a bit. The journal gets its room as they are overwritten, and the database as they are dropped.
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
    // SQLite's own waits grow to 100 ms, and would miss the gaps that somebody leaves who writes all the time.
    let looks = i32::try_from(busy.as_millis()).unwrap_or(i32::MAX);
    db.busy_handler(Some(move |count| {
        std::thread::sleep(BUSY_LOOK);
        count < looks
    }))?;
    // A term that was begun must survive a power cut, or it would be begun again. With a journal that is
    // deleted, as it is while the file is made, FULL is not enough: only EXTRA also syncs the folder, without which the
    // journal could come back after the cut and undo the commit.
    db.pragma_update(None, "synchronous", "EXTRA")?;
    Ok(db)
}

/// What the file says that it is.
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
            Err(misconfigured(path, "the file is empty: start a host on this store, which completes it"))
        }
        Identity { application: APPLICATION, format: FORMAT, .. } => Ok(()),
        Identity { application: APPLICATION, format, .. } => Err(misconfigured(
            path,
            format!("has format {format}, this version of Baton reads {FORMAT}: use the version that created it"),
        )),
        Identity { .. } => Err(misconfigured(path, "is a database of another program: name another folder")),
    }
}

/// What an error of SQLite means for the request.
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
                "is locked: {holders}; even a reader blocks all writers: if this persists, resume or end the process"
            ),
            None => {
                "is locked, and the kernel lists no other process that holds the lock: if this persists, look for a \
                 stopped process, also in other containers"
                    .to_owned()
            }
        }),
        Some(DiskFull) => unknown("the disk is full: make room".to_owned()),
        Some(_) => unknown(format!("{error}; if this persists, check the disk")),
        None => misconfigured(path, format!("contains a row that cannot be read ({error}): correct or delete the row")),
    }
}

/// The same, or `None` if the file has been moved or replaced.
pub(super) fn unless_moved(path: &Path, error: &rusqlite::Error) -> Option<StoreError> {
    let moved = error.sqlite_error().is_some_and(|error| error.extended_code == MOVED);
    (!moved).then(|| store_error(path, error))
}

pub(super) fn misconfigured(path: &Path, why: impl Display) -> StoreError {
    StoreError::Misconfigured(format!("{}: {why}", path.display()))
}

/// The system does not let it be reached, or what is needed beside it be made. SQLite does not say why.
pub(super) fn out_of_reach(path: &Path, what: &str, error: &dyn Display, why: Option<Errno>) -> StoreError {
    // Of what is not there, the folder that it is to be in. A file system that counts nothing says that all is taken.
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

/// What is no file would be waited for without an end, or cannot be opened for a reason that nobody understands.
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

/// Refuses a file system that is not known to be local: two hosts could hold one lease.
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
