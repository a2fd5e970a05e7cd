//! Memory shared by two processes: one value in a sealed memory file that both map.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A type that two processes may share.
///
/// # Safety
/// The type must consist of atomic integers only, so that any bytes are a valid value, even while another process
/// writes them. The type must fit in one page.
pub(crate) unsafe trait Sharable: Send + Sync {}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mapped {
    /// Read only: a write would kill the process.
    Reads,
    Writes,
}

/// The access that the other processes have to the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Others {
    /// Read only: the kernel refuses further writable mappings.
    Read,
    /// Writable: a process that has the file may map it for writing.
    Write,
}

/// A value shared with another process, initially all zeros. Clones share the mapping.
pub(crate) struct SharedMemory<T: Sharable>(Arc<Mapping<T>>);

impl<T: Sharable> Clone for SharedMemory<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Sharable> SharedMemory<T> {
    /// Creates a value. Also returns the file from which another process maps the value.
    pub(crate) fn make(name: &str, others: Others) -> io::Result<(Self, OwnedFd)> {
        let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len(size_of::<T>() as u64)?;
        let mapped = Self::map(&file, Mapped::Writes)?;
        // Seal the size. Otherwise, a process that has the file could truncate it. The kernel then kills any process
        // that accesses the missing part of its mapping.
        let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let sealed = match others {
            Others::Write => fcntl_add_seals(&file, size),
            Others::Read => match fcntl_add_seals(&file, size | SealFlags::FUTURE_WRITE) {
                // Linux before 5.1 has no `F_SEAL_FUTURE_WRITE`.
                Err(Errno::INVAL) => fcntl_add_seals(&file, size),
                sealed => sealed,
            },
        };
        sealed?;
        Ok((mapped, file.into()))
    }

    /// Maps a value that another process has created.
    ///
    /// # Errors
    /// Returns an error if the file does not have the size of a `T`, or cannot be mapped.
    pub(crate) fn map(file: impl AsFd, access: Mapped) -> io::Result<Self> {
        let length = rustix::fs::fstat(&file)?.st_size;
        if u64::try_from(length).ok() != Some(size_of::<T>() as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let protection = match access {
            Mapped::Reads => ProtFlags::READ,
            Mapped::Writes => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced. The file holds a whole `T`. The
        // process that made the file sealed its size before it shared the file, so the file cannot shrink below the
        // mapping.
        let memory = unsafe { mmap(std::ptr::null_mut(), size_of::<T>(), protection, MapFlags::SHARED, &file, 0)? };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Arc::new(Mapping { memory, value: PhantomData })))
    }

    #[cfg(test)]
    pub(crate) fn alone() -> Self {
        Self::make("baton-test", Others::Read).map(|(shared, _)| shared).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl<T: Sharable> Deref for SharedMemory<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping lives as long as `self`, begins at a page boundary and has room for a `T`. Any bytes in
        // it are a valid `T`, as `Sharable` promises. Every process changes them through atomics only.
        unsafe { self.0.memory.as_ref() }
    }
}

struct Mapping<T> {
    memory: NonNull<T>,
    value: PhantomData<T>,
}

// SAFETY: a mapping gives out only `&T`, and every `Sharable` type is `Send` and `Sync`.
unsafe impl<T: Sharable> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Sharable> Sync for Mapping<T> {}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this size, and no reference into it is left: all of them borrow from
        // `self`.
        let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), size_of::<T>()) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Number {
        is: AtomicU64,
    }

    // SAFETY: the struct consists of one atomic integer.
    unsafe impl Sharable for Number {}

    #[test]
    fn read_only_memory_is_shared_and_cannot_be_written_or_shrunk() {
        let (mine, file) = SharedMemory::<Number>::make("test", Others::Read).unwrap();
        let theirs = SharedMemory::<Number>::map(&file, Mapped::Reads).unwrap();
        mine.is.store(7, Ordering::Relaxed);
        assert_eq!(theirs.is.load(Ordering::Relaxed), 7);
        assert!(SharedMemory::<Number>::map(&file, Mapped::Writes).is_err(), "the host alone writes");
        let file = File::from(file);
        assert!(file.set_len(0).is_err());
        assert!(rustix::io::write(&file, b"x").is_err());
    }

    #[test]
    fn writable_memory_keeps_its_size() {
        let (mine, file) = SharedMemory::<Number>::make("test", Others::Write).unwrap();
        SharedMemory::<Number>::map(&file, Mapped::Writes).unwrap().is.store(8, Ordering::Relaxed);
        assert_eq!(mine.is.load(Ordering::Relaxed), 8);
        let file = File::from(file);
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        let other = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        assert!(SharedMemory::<Number>::map(&other, Mapped::Reads).is_err(), "it is too short");
    }
}
