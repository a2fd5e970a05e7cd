//! Wakes a thread that waits for several events.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// A flag that wakes a thread, implemented as an eventfd(2). Once the doorbell has been rung, its descriptor is
/// readable until the next [`has_rung`](Self::has_rung). Ringing never blocks. Clones share the flag.
#[derive(Clone, Debug)]
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// Creates a doorbell.
    ///
    /// # Errors
    /// Fails if the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes the thread that is waiting for the doorbell. If no thread is waiting, the next wait ends at once.
    pub fn ring(&self) {
        // The write fails only after about 2^64 rings without a read.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// True if the doorbell has been rung since the last call. In this case, the caller also sees everything that the
    /// ringing thread wrote to memory before the ring.
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
