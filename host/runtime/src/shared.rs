//! Memory that two processes share: one value in a sealed file in memory, which each of them maps.

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

/// What two processes may share.
///
/// # Safety
/// It consists of atomic numbers only, so that any bytes are a value of it, even while another process writes them; and it has
/// room in one page.
pub(super) unsafe trait Sharable: Send + Sync {}

/// What a process may do with what is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mapped {
    /// It reads; an attempt to write would end it.
    Reads,
    /// It reads and writes.
    Writes,
}

/// Who else may write to what was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Others {
    /// Nobody: the kernel refuses further mappings to write.
    Read,
    /// A process that has the file.
    Write,
}

/// A value that is shared with another process. It begins as zeros. Clones are the same.
pub(super) struct SharedMemory<T: Sharable>(Arc<Mapping<T>>);

impl<T: Sharable> Clone for SharedMemory<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Sharable> SharedMemory<T> {
    /// Makes one, and the file by which another process maps it.
    ///
    /// # Errors
    /// Where the system has no more of them.
    pub(super) fn make(name: &str, others: Others) -> io::Result<(Self, OwnedFd)> {
        let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        file.set_len(size_of::<T>() as u64)?;
        let mapped = Self::map(&file, Mapped::Writes)?;
        // A process that has the file cannot take the memory from under a mapping.
        let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let sealed = match others {
            Others::Write => fcntl_add_seals(&file, size),
            Others::Read => match fcntl_add_seals(&file, size | SealFlags::FUTURE_WRITE) {
                // Linux before 5.1.
                Err(Errno::INVAL) => fcntl_add_seals(&file, size),
                sealed => sealed,
            },
        };
        sealed?;
        Ok((mapped, file.into()))
    }

    /// Maps what another process has made.
    ///
    /// # Errors
    /// Where the system cannot, or the file is none of those.
    pub(super) fn map(file: impl AsFd, access: Mapped) -> io::Result<Self> {
        let length = rustix::fs::fstat(&file)?.st_size;
        if u64::try_from(length).ok() != Some(size_of::<T>() as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let protection = match access {
            Mapped::Reads => ProtFlags::READ,
            Mapped::Writes => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel chooses the place, so nothing that is there is replaced; the file has a whole value and is
        // sealed by the process that made it, so that the memory stays there.
        let memory = unsafe { mmap(std::ptr::null_mut(), size_of::<T>(), protection, MapFlags::SHARED, &file, 0)? };
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self(Arc::new(Mapping { memory, value: PhantomData })))
    }

    /// One that nobody shares.
    #[cfg(test)]
    pub(super) fn alone() -> Self {
        Self::make("baton-test", Others::Read).map(|(shared, _)| shared).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl<T: Sharable> Deref for SharedMemory<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping is there for as long as this is, begins at a page and has room for a value, and whatever
        // is in it is one, as `Sharable` promises. Others change it through atomics only, as we do.
        unsafe { self.0.memory.as_ref() }
    }
}

struct Mapping<T> {
    memory: NonNull<T>,
    value: PhantomData<T>,
}

// SAFETY: it gives nothing but `&T`, and `T` may be used from everywhere at once.
unsafe impl<T: Sharable> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Sharable> Sync for Mapping<T> {}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and nobody has a reference into it any more: all borrow from this.
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

    // SAFETY: an atomic number.
    unsafe impl Sharable for Number {}

    #[test]
    fn what_one_writes_the_other_reads_and_nobody_else_can_write_or_shrink_it() {
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
    fn what_the_other_may_write_keeps_its_size() {
        let (mine, file) = SharedMemory::<Number>::make("test", Others::Write).unwrap();
        SharedMemory::<Number>::map(&file, Mapped::Writes).unwrap().is.store(8, Ordering::Relaxed);
        assert_eq!(mine.is.load(Ordering::Relaxed), 8);
        let file = File::from(file);
        assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
        let other = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        assert!(SharedMemory::<Number>::map(&other, Mapped::Reads).is_err(), "it is too short");
    }
}
