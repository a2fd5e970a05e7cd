//! Wakes a thread that waits for several things.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// It is readable once it was rung, until that was heard. Says not what there is to see; who rings waits for nobody
/// (eventfd(2)). Clones are the same one.
#[derive(Clone, Debug)]
pub struct Doorbell(Arc<OwnedFd>);

impl Doorbell {
    /// # Errors
    /// Where the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Wakes who waits at it, now or later.
    pub fn ring(&self) {
        // It fails where nobody has heard it for 2^64 times.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Whether it was rung since this was asked last. What was done before it was rung is seen from here on.
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
    fn however_often_it_is_rung_it_is_heard_once() {
        let bell = Doorbell::new().unwrap();
        let outside = bell.clone();
        assert!(!bell.has_rung());
        outside.ring();
        outside.ring();
        assert_eq!([bell.has_rung(), bell.has_rung()], [true, false]);
    }
}
