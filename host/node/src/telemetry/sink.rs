//! The log's output. The log's thread writes a line to a regular file in one call, and to any other output in pieces of
//! at most 4096 bytes. If a pipe supports `RWF_NOWAIT`, a write takes the whole piece or nothing.
//!
//! A blocked write can no longer be withdrawn. The writer therefore first waits until the output can accept a piece,
//! and only then decides whether the line may still be written.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags};

/// Maximum number of bytes that a pipe accepts atomically: `PIPE_BUF` on Linux.
const PIECE: usize = 4096;

/// The offset that makes `pwritev2` use the file's current position.
const CURRENT_POSITION: u64 = u64::MAX;

pub(super) struct Sink {
    fd: Box<dyn AsFd + Send>,
    kind: FileType,
    /// True while `RWF_NOWAIT` may work on this output: it is a pipe, and no call has rejected the flag.
    supports_nowait: bool,
}

impl Sink {
    pub fn new(fd: Box<dyn AsFd + Send>) -> Self {
        let kind = fstat(&*fd).map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
        Self { fd, kind, supports_nowait: kind == FileType::Fifo }
    }

    pub fn wait(&self) -> io::Result<()> {
        loop {
            match poll(&mut [PollFd::new(&self.fd(), PollFlags::OUT)], None) {
                Err(Errno::INTR) => {}
                // The next write reports the error.
                waited => return Ok(waited.map(drop)?),
            }
        }
    }

    /// Writes the first piece of `bytes`. Returns the number of bytes written, which is 0 if another process has filled
    /// the pipe since [`Sink::wait`].
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A file accepts a whole line in one call, so lines from different processes are not mixed.
        let piece = if self.kind == FileType::RegularFile { bytes } else { &bytes[..bytes.len().min(PIECE)] };
        if self.supports_nowait {
            match rustix::io::pwritev2(self.fd(), &[IoSlice::new(piece)], CURRENT_POSITION, ReadWriteFlags::NOWAIT) {
                Ok(written) => return Ok(written),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
                Err(Errno::PIPE) => return Err(Errno::PIPE.into()),
                // Named pipes and some systems that imitate Linux do not support the flag.
                Err(_) => self.supports_nowait = false,
            }
        }
        match rustix::io::write(self.fd(), piece) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            written => Ok(written?),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
