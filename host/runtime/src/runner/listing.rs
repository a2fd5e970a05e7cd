//! Folder listings that are read in parts, so that only one part at a time is in memory. As with `readdir`, entries
//! that are created or removed during a listing may or may not appear.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;
use tokio::task::spawn_blocking;
use wasmtime_wasi::p2::bindings::filesystem::types::{DescriptorType, DirectoryEntry, ErrorCode};
use wasmtime_wasi::p2::{FsError, FsResult};

const PART: usize = 128;

pub(crate) struct Listing {
    read: VecDeque<Result<DirectoryEntry, ErrorCode>>,
    /// `None` once all entries are read.
    rest: Option<Rest>,
}

struct Rest {
    folder: Dir,
    open: Arc<()>,
}

impl Listing {
    /// Starts a listing of a folder, through a new descriptor. Blocks.
    pub(crate) fn new(folder: &File) -> io::Result<Self> {
        // Open the folder again: the given descriptor may be `O_PATH`, which cannot be read.
        let folder = openat(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let rest = Rest { folder: Dir::new(folder)?, open: Arc::new(()) };
        Ok(Self { read: VecDeque::new(), rest: Some(rest) })
    }

    /// Returns a token that lives as long as this listing keeps the folder open. Returns `None` once all entries are
    /// read.
    pub(crate) fn open(&self) -> Option<&Arc<()>> {
        self.rest.as_ref().map(|rest| &rest.open)
    }

    /// Returns the next entry; `None` at the end.
    ///
    /// # Errors
    /// The operating system's error, or [`ErrorCode::IllegalByteSequence`] if the entry's name is not UTF-8. After an
    /// invalid name, the next call returns the following entry.
    pub(crate) async fn next(&mut self) -> FsResult<Option<DirectoryEntry>> {
        if self.read.is_empty()
            && let Some(rest) = self.rest.take()
        {
            (self.read, self.rest) = spawn_blocking(|| rest.part()).await.map_err(FsError::trap)?;
        }
        Ok(self.read.pop_front().transpose()?)
    }
}

impl Rest {
    /// Reads the next part. Returns the part and, if there may be more entries, the rest of the listing.
    fn part(mut self) -> (VecDeque<Result<DirectoryEntry, ErrorCode>>, Option<Self>) {
        let mut part = VecDeque::new();
        while part.len() < PART {
            match self.folder.read() {
                None => return (part, None),
                Some(Err(error)) => {
                    part.push_back(Err(io::Error::from(error).into()));
                    return (part, None);
                }
                Some(Ok(entry)) => part.extend(self.entry(&entry)),
            }
        }
        (part, Some(self))
    }

    /// Converts an entry for the guest. Returns `None` for the folder itself, its parent and removed entries.
    fn entry(&self, entry: &DirEntry) -> Option<Result<DirectoryEntry, ErrorCode>> {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            return None;
        }
        let kind = match self.kind(entry, name) {
            Ok(kind) => kind,
            Err(Errno::NOENT) => return None,
            Err(error) => return Some(Err(io::Error::from(error).into())),
        };
        let entry = |name: &str| DirectoryEntry { type_: kind, name: name.to_owned() };
        Some(name.to_str().map(entry).map_err(|_| ErrorCode::IllegalByteSequence))
    }

    /// Returns the type of an entry. Queries the file itself if the file system does not store the type in the folder.
    fn kind(&self, entry: &DirEntry, name: &CStr) -> rustix::io::Result<DescriptorType> {
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let found = statat(self.folder.fd()?, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(found.st_mode)
            }
            known => known,
        };
        Ok(match kind {
            FileType::RegularFile => DescriptorType::RegularFile,
            FileType::Directory => DescriptorType::Directory,
            FileType::Symlink => DescriptorType::SymbolicLink,
            FileType::BlockDevice => DescriptorType::BlockDevice,
            FileType::CharacterDevice => DescriptorType::CharacterDevice,
            FileType::Fifo => DescriptorType::Fifo,
            FileType::Socket => DescriptorType::Socket,
            FileType::Unknown => DescriptorType::Unknown,
        })
    }
}
