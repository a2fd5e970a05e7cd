//! What the outside asks of the process: SIGINT (Ctrl-C) and SIGTERM.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// The orderly end. The signal's name is for the log.
    Shutdown(&'static str),
    /// The same without waiting for instances to finish: it came a second time.
    SkipGrace(&'static str),
}

/// The signals of this process, from [`Signals::listen`] on.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    asked: bool,
}

impl Signals {
    /// Takes the signals over: they no longer end the process. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// What the system says where it refuses the handlers.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            asked: false,
        })
    }

    /// Waits for the next one. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Ask {
        let name = tokio::select! {
            Some(()) = self.interrupt.recv() => "SIGINT",
            Some(()) = self.terminate.recv() => "SIGTERM",
            // Streams of signals do not end while the process lives.
            else => std::future::pending().await,
        };
        if std::mem::replace(&mut self.asked, true) { Ask::SkipGrace(name) } else { Ask::Shutdown(name) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};

    #[tokio::test]
    async fn the_second_signal_skips_the_grace() {
        let mut signals = Signals::listen().unwrap();
        kill_process(getpid(), Signal::TERM).unwrap();
        assert_eq!(signals.next().await, Ask::Shutdown("SIGTERM"));
        kill_process(getpid(), Signal::INT).unwrap();
        assert_eq!(signals.next().await, Ask::SkipGrace("SIGINT"));
        kill_process(getpid(), Signal::INT).unwrap();
        assert_eq!(signals.next().await, Ask::SkipGrace("SIGINT"));
    }
}
