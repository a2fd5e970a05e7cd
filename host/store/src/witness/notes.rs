//! Notes with the ids under which a host holds its leases. If the host is killed, another host can reclaim the leases
//! with these ids.
//!
//! Lease ids are secret, so a host needs a dead holder's note to reclaim the lease. The note is untrusted: the store
//! checks the id, and the kernel checks that the holder is dead. Before a host reclaims a lease, it adds the new id to
//! the note. So if this host dies before its term is written, the next host knows all possible ids. Notes are valid
//! only until the machine restarts, so they are never synced.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use baton_election::{ElectionName, LeaseId};
use rustix::fs::{AtFlags, Dir, OFlags, fstat, ftruncate, unlinkat};
use rustix::io::Errno;

use super::{
    LockFile, LockFileId, TIDIED, is_incarnation, is_lockable, is_same, is_unlocked, lock, open_folder, open_lock_file,
    open_plain, tidy_up,
};

/// The maximum length of a note, in bytes.
const LONGEST: u64 = 4096;

/// The maximum number of ids in a note. If failed reclaims have filled a note, hosts wait for the lease to expire
/// instead.
const MOST_IDS: usize = 16;

const TITLE: &str = "a lease of baton, format 1";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub(crate) boot: String,
    pub(crate) store: String,
    pub(crate) election: ElectionName,
    /// The incarnation that holds the lease, and its lock file.
    pub(crate) place: LockFileId,
    /// The ids under which the lease may be held: the holder's own id, and one id for each host that has tried to
    /// reclaim the lease.
    pub(crate) ids: Vec<LeaseId>,
}

impl Note {
    pub(crate) fn encode(&self) -> String {
        let Self { boot, store, election, place: LockFileId { incarnation, device, inode }, ids } = self;
        let ids: String = ids.iter().map(|id| id_line(*id)).collect();
        format!(
            "{TITLE}\nboot={boot}\nstore={store}\nelection={election}\nincarnation={incarnation}\ndevice={device}\n\
             inode={inode}\n{ids}"
        )
    }

    /// Returns the id that was added last. The lease is most likely held under this id.
    pub(crate) fn newest_id(&self) -> Option<LeaseId> {
        self.ids.last().copied()
    }

    /// Returns `None` unless the bytes are exactly one note.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split('\n');
        if lines.next() != Some(TITLE) {
            return None;
        }
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix('=');
        let note = Self {
            boot: value("boot")?.to_owned(),
            store: value("store")?.to_owned(),
            election: ElectionName::new(value("election")?).ok()?,
            place: LockFileId {
                incarnation: value("incarnation").filter(|text| is_incarnation(text))?.to_owned(),
                device: value("device")?.parse().ok()?,
                inode: value("inode")?.parse().ok()?,
            },
            ids: std::iter::from_fn(|| value("id"))
                .map_while(|id| Some(LeaseId::from_random(u128::from_str_radix(id, 16).ok()?)))
                .collect(),
        };
        (note.encode() == text && (1..=MOST_IDS).contains(&note.ids.len())).then_some(note)
    }
}

fn id_line(id: LeaseId) -> String {
    format!("id={:032x}\n", id.as_u128())
}

/// The notes of this user's hosts. Each operation may block for as long as the file system does.
#[derive(Debug)]
pub(crate) struct Notes {
    own: Arc<LockFile>,
    boot: String,
    store: String,
}

/// A note with which this host reclaims a lease. No other host can take the note while this value exists.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) note: Note,
    _file: OwnedFd,
}

impl Notes {
    /// `store` is the URL of the store.
    pub(crate) fn new(own: Arc<LockFile>, boot: String, store: String) -> Self {
        Self { own, boot, store }
    }

    fn folder(&self) -> &Path {
        self.own.folder()
    }

    pub(crate) fn is_own(&self, incarnation: &str) -> bool {
        self.own.place().incarnation == incarnation
    }

    /// Writes a note with the id under which this host requests a lease.
    pub(crate) fn write(&self, election: &ElectionName, id: LeaseId) -> io::Result<()> {
        let note = Note {
            boot: self.boot.clone(),
            store: self.store.clone(),
            election: election.clone(),
            place: self.own.place().clone(),
            ids: vec![id],
        };
        let folder = open_folder(self.folder())?;
        let (file, _) = open_plain(&folder, &name(&note.place.incarnation, election), OFlags::RDWR | OFlags::CREATE)?;
        ftruncate(&file, 0)?;
        File::from(file).write_all(note.encode().as_bytes())
    }

    pub(crate) fn remove(&self, election: &ElectionName) -> io::Result<()> {
        unlink(&open_folder(self.folder())?, &name(&self.own.place().incarnation, election))
    }

    /// Finds an incarnation's note, if the note was written for this store and since the machine last booted.
    pub(crate) fn find(&self, incarnation: &str, election: &ElectionName) -> Option<Note> {
        let folder = open_folder(self.folder()).ok()?;
        let (_, note) = self.open(&folder, incarnation, election, OFlags::RDONLY).ok()?;
        note
    }

    /// True if the note's host and all its runners are dead, and no other host has taken the note.
    pub(crate) fn can_be_taken(&self, note: &Note) -> bool {
        let look = || -> io::Result<bool> {
            let folder = open_folder(self.folder())?;
            let (file, found) = self.open(&folder, &note.place.incarnation, &note.election, OFlags::RDONLY)?;
            Ok(found.as_ref() == Some(note) && is_lockable(file.as_fd())?)
        };
        look().unwrap_or(false) && note.place.is_gone(self.folder())
    }

    /// Takes a dead holder's note, so that no other host can take it, and adds `id` to the note. Returns `None` if
    /// another host has taken the note, if the holder is alive, or if the note has no room for another id.
    pub(crate) fn take(&self, note: &Note, id: LeaseId) -> Option<Taken> {
        if note.ids.len() >= MOST_IDS {
            return None;
        }
        let take = || -> io::Result<Option<Taken>> {
            let folder = open_folder(self.folder())?;
            let (file, _) = self.open(&folder, &note.place.incarnation, &note.election, OFlags::RDWR)?;
            if !lock(file.as_fd(), libc::F_WRLCK, 0, 0)? {
                return Ok(None);
            }
            // The note may have been removed in the meantime, because another host has reclaimed the lease.
            let (now, found) = self.open(&folder, &note.place.incarnation, &note.election, OFlags::RDONLY)?;
            let is_it = is_same(&fstat(&file)?, &fstat(&now)?) && found.as_ref() == Some(note);
            if !is_it || !note.place.is_gone(self.folder()) {
                return Ok(None);
            }
            let mut taken = note.clone();
            taken.ids.push(id);
            let (line, end) = (id_line(id), note.encode().len() as u64);
            // If only a part of the line was written, for example because the disk is full, remove that part, because
            // an incomplete line would make the note invalid. Without the line, this host must not reclaim the lease.
            if !rustix::io::pwrite(&file, line.as_bytes(), end).is_ok_and(|written| written == line.len()) {
                ftruncate(&file, end)?;
                return Ok(None);
            }
            Ok(Some(Taken { note: taken, _file: file }))
        };
        take().ok().flatten()
    }

    /// Removes a taken note. No host needs the note any more, because this host has begun its term or is about to
    /// release the lease.
    pub(crate) fn remove_taken(&self, Taken { note, .. }: Taken) -> io::Result<()> {
        unlink(&open_folder(self.folder())?, &name(&note.place.incarnation, &note.election))
    }

    /// True if other hosts have left notes about this election's lease.
    pub(crate) fn has_others(&self, election: &ElectionName) -> bool {
        let suffix = name("", election);
        let is_others =
            |name: &str| name.strip_suffix(&suffix).is_some_and(|of| is_incarnation(of) && !self.is_own(of));
        self.names().is_ok_and(|names| names.iter().any(|name| is_others(name)))
    }

    /// Removes the files that dead hosts left behind. Keeps a dead host's note if a host could still use the note to
    /// reclaim a lease: the note must be from this boot, and the dead host must be the current `holder` of this
    /// election's lease, unless the note is about another lease.
    pub(crate) fn tidy_up(&self, election: &ElectionName, holder: &str) -> io::Result<()> {
        let folder = open_folder(self.folder())?;
        for name in self.names()? {
            let Some((incarnation, of)) = name.split_once('-').filter(|(incarnation, _)| is_incarnation(incarnation))
            else {
                continue;
            };
            let Ok(of) = ElectionName::new(&of.replace('.', "/")) else { continue };
            let note = self.read(&folder, incarnation, &of, OFlags::RDONLY).map(|(_, note)| note);
            let is_of_use = |note: &Note| {
                let is_its = (note.store.as_str(), &note.election) == (self.store.as_str(), election);
                note.boot == self.boot && note.place.is_gone(self.folder()) && !(is_its && incarnation != holder)
            };
            let is_there = match open_lock_file(&folder, incarnation) {
                Ok((file, _)) => !is_unlocked(file.as_fd()).unwrap_or(false),
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            };
            if let Ok(note) = note
                && !is_there
                && !self.is_own(incarnation)
                && !note.as_ref().is_some_and(is_of_use)
            {
                let _ = unlink(&folder, &name);
            }
        }
        let left = self.names()?;
        tidy_up(self.folder(), |incarnation| {
            let is_its = |name: &String| name.split_once('-').is_some_and(|(of, _)| of == incarnation);
            left.iter().any(is_its)
        })
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(open_folder(self.folder())?)?.take(TIDIED) {
            names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }

    /// Opens a note. Also decodes it if it was written since the machine last booted, for this store and by this
    /// incarnation.
    fn open(
        &self,
        folder: &OwnedFd,
        incarnation: &str,
        election: &ElectionName,
        how: OFlags,
    ) -> io::Result<(OwnedFd, Option<Note>)> {
        let (file, note) = self.read(folder, incarnation, election, how)?;
        let note = note.filter(|note| (&note.boot, &note.store) == (&self.boot, &self.store));
        Ok((file, note))
    }

    /// Opens a note. Also decodes it if its content matches its name.
    fn read(
        &self,
        folder: &OwnedFd,
        incarnation: &str,
        election: &ElectionName,
        how: OFlags,
    ) -> io::Result<(OwnedFd, Option<Note>)> {
        if !is_incarnation(incarnation) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (file, _) = open_plain(folder, &name(incarnation, election), how)?;
        let mut bytes = Vec::new();
        let file = File::from(file);
        (&file).take(LONGEST).read_to_end(&mut bytes)?;
        let says_so = |note: &Note| note.place.incarnation == incarnation && note.election == *election;
        Ok((file.into(), Note::decode(&bytes).filter(says_so)))
    }
}

fn unlink(folder: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}

/// Incarnations never contain a hyphen, so no two notes have the same file name.
fn name(incarnation: &str, election: &ElectionName) -> String {
    // A name contains no dot, so a dot can stand for the slash in the name of a shard.
    format!("{incarnation}-{}", election.as_str().replace('/', "."))
}
