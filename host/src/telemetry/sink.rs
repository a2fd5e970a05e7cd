//! What lines are written to: in pieces that a system call takes whole or not at all, wherever there is a way to that.
//!
//! What a system call holds while it waits for the reader cannot be taken back any more. So the writer waits here
//! first, without anything in its hands, and decides then what may still be written.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags};

/// So much a pipe takes whole, and at once where it takes anything (POSIX's `PIPE_BUF` on Linux), in bytes.
const PIECE: usize = 4096;

/// At the file's own position, for a call that could be told another.
const HERE: u64 = u64::MAX;

pub(super) struct Sink {
    fd: Box<dyn AsFd + Send>,
    kind: FileType,
    /// Whether a write may be asked not to wait.
    never_waits: bool,
}

impl Sink {
    pub fn new(fd: Box<dyn AsFd + Send>) -> Self {
        let kind = fstat(&*fd).map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode));
        Self { fd, kind, never_waits: kind == FileType::Fifo }
    }

    /// Waits until it takes a piece.
    pub fn wait(&self) -> io::Result<()> {
        loop {
            match poll(&mut [PollFd::new(&self.fd(), PollFlags::OUT)], None) {
                Err(Errno::INTR) => {}
                // What is wrong with it the write will say.
                waited => return Ok(waited.map(drop)?),
            }
        }
    }

    /// Writes a piece of `bytes`, and returns how much that was. That is nothing where another process that writes to
    /// the same pipe was quicker.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A file takes all at once, so that lines of several processes in one file do not mix.
        let piece = if self.kind == FileType::RegularFile { bytes } else { &bytes[..bytes.len().min(PIECE)] };
        if self.never_waits {
            match rustix::io::pwritev2(self.fd(), &[IoSlice::new(piece)], HERE, ReadWriteFlags::NOWAIT) {
                Ok(written) => return Ok(written),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(0),
                Err(Errno::PIPE) => return Err(Errno::PIPE.into()),
                // Pipes with names, and systems that are not quite Linux, know no such call.
                Err(_) => self.never_waits = false,
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
