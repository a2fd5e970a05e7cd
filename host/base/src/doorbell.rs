//! Wakes a thread that waits for several events.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// A flag that wakes a thread, as an eventfd(2). Its descriptor is readable after a ring, until a thread has read the
/// flag. Ringing never blocks. Clones share the flag.
#[derive(Clone, Debug)]
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// Creates a doorbell.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes the thread that waits for the doorbell, now or later.
    pub fn ring(&self) {
        // Fails only after 2^64 rings that no thread has read.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// True if the doorbell was rung since the last call. If so, the caller also sees all writes to memory that
    /// happened before the ring.
    pub fn has_rung(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn several_rings_are_heard_once() {
        let bell = Doorbell::new().unwrap();
        let outside = bell.clone();
        assert!(!bell.has_rung());
        outside.ring();
        outside.ring();
        assert_eq!([bell.has_rung(), bell.has_rung()], [true, false]);
    }
}
