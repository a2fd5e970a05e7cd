//! Listings of folders, read a part at a time as they are asked for: however much is in a folder, no more than that part
//! is in memory. As with `readdir`, what is created or removed meanwhile may be in it or not.

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

/// So many entries are read at a time.
const PART: usize = 128;

/// A listing that goes on.
pub(super) struct Listing {
    read: VecDeque<Result<DirectoryEntry, ErrorCode>>,
    /// None once all is read.
    rest: Option<Rest>,
}

/// The folder from which the rest is read. It is open for as long as this is there.
struct Rest {
    folder: Dir,
    open: Arc<()>,
}

impl Listing {
    /// A new listing of a folder, with a descriptor of its own. Blocks.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn new(folder: &File) -> io::Result<Self> {
        // A folder's own descriptor may be good for nothing but looking things up in it.
        let folder = openat(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let rest = Rest { folder: Dir::new(folder)?, open: Arc::new(()) };
        Ok(Self { read: VecDeque::new(), rest: Some(rest) })
    }

    /// What lives for as long as the folder is open for it; none once all is read.
    pub(super) fn open(&self) -> Option<&Arc<()>> {
        self.rest.as_ref().map(|rest| &rest.open)
    }

    /// The next entry; none at the end.
    ///
    /// # Errors
    /// Those of the system, and [`ErrorCode::IllegalByteSequence`] for a name that is no UTF-8; the next call goes on
    /// behind it.
    pub(super) async fn next(&mut self) -> FsResult<Option<DirectoryEntry>> {
        if self.read.is_empty()
            && let Some(rest) = self.rest.take()
        {
            (self.read, self.rest) = spawn_blocking(|| rest.part()).await.map_err(FsError::trap)?;
        }
        Ok(self.read.pop_front().transpose()?)
    }
}

impl Rest {
    /// The next part, and what is left after it.
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

    /// An entry as a guest sees it; none if that is the folder itself or its parent, or if it was removed meanwhile.
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

    /// What the entry is. Not every file system says so in its folders.
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
