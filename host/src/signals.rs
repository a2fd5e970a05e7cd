//! Requests by signal: SIGINT (Ctrl-C) and SIGTERM end the process, and SIGHUP reloads its files.
//!
//! In a process with a terminal, SIGHUP requests a shutdown instead, because the signal means that the terminal was
//! closed. The signal's default action would end the process without a clean shutdown. If SIGHUP is ignored, as under
//! `nohup`, it stays ignored.

use std::fs::File;
use std::io;
use std::ptr::null;
use std::time::Duration;

use baton_base::clock::Clock;
use baton_election::Time;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that arrive within this time count as one request. `timeout -s INT` signals the process and then its group,
/// 0.24 ms apart. A user who wants to make two requests cannot press Ctrl-C twice this fast.
const ONE_REQUEST: Duration = Duration::from_millis(500);

/// The request that a signal makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// A clean shutdown. Holds the signal's name, for the log.
    Shutdown(&'static str),
    /// A clean shutdown that does not wait for instances to finish, requested by a second signal. Holds the signal's
    /// name, for the log.
    SkipGrace(&'static str),
}

/// The signals that this process has received since [`Signals::listen`].
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// SIGHUP, if this process has a terminal.
    hangup: Option<Signal>,
    /// SIGHUP, if this process has no terminal.
    reload: Option<Signal>,
    /// The first signal that requested a shutdown, and its time.
    first: Option<(&'static str, Time)>,
    clock: Clock,
}

impl Signals {
    /// Installs the signal handlers. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// If the system refuses the handlers.
    pub fn listen() -> io::Result<Self> {
        let (mut hangup, mut reload) = (None, None);
        if !is_hangup_ignored() {
            let signals = signal(SignalKind::hangup())?;
            *(if has_terminal() { &mut hangup } else { &mut reload }) = Some(signals);
        }
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup,
            reload,
            first: None,
            clock: Clock::default(),
        })
    }

    /// Takes the stream of reload requests. Returns `None` if SIGHUP does not request a reload in this process, or if
    /// the caller has already taken the stream.
    pub fn take_reloads(&mut self) -> Option<Signal> {
        self.reload.take()
    }

    /// Waits for the next request. Dropping the future loses no signal.
    pub async fn next(&mut self) -> Ask {
        loop {
            let name = self.signal().await;
            let now = self.clock.now();
            if let Some(ask) = self.ask(name, now) {
                return ask;
            }
        }
    }

    /// Returns the request that a signal makes, or `None` if the signal repeats the first one within [`ONE_REQUEST`].
    fn ask(&mut self, name: &'static str, now: Time) -> Option<Ask> {
        match self.first {
            None => {
                self.first = Some((name, now));
                Some(Ask::Shutdown(name))
            }
            Some((first, at)) if first == name && now.since(at) < ONE_REQUEST => None,
            Some(_) => Some(Ask::SkipGrace(name)),
        }
    }

    async fn signal(&mut self) -> &'static str {
        let hung_up = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(()) = self.interrupt.recv() => "SIGINT",
            Some(()) = self.terminate.recv() => "SIGTERM",
            Some(()) = hung_up => "SIGHUP",
            // Signal streams do not end while the process runs.
            else => std::future::pending().await,
        }
    }
}

/// Resets the signal settings that `exec` inherits (POSIX). If SIGCHLD were ignored, the exit of child processes would
/// go unnoticed. If signals were blocked, shutdown requests would have no effect. Must run before a second thread
/// exists, because each thread has its own mask.
pub fn reset_inherited_signals() {
    // SAFETY: `SIG_DFL` is a valid disposition. `sigemptyset` initializes the set before `pthread_sigmask` reads it,
    // and the pointer for the previous mask may be null. The calls access no other memory.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut none = std::mem::MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

fn is_hangup_ignored() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with a null pointer as the new action, the call only writes the current action, and `action` has room for
    // it.
    let result = unsafe { libc::sigaction(libc::SIGHUP, null(), action.as_mut_ptr()) };
    // SAFETY: `sigaction` either filled `action` or left it zeroed, and a zeroed `sigaction` is valid.
    result == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};

    #[tokio::test]
    async fn second_signal_skips_the_grace() {
        let mut signals = Signals::listen().unwrap();
        kill_process(getpid(), Signal::TERM).unwrap();
        assert_eq!(signals.next().await, Ask::Shutdown("SIGTERM"));
        kill_process(getpid(), Signal::INT).unwrap();
        assert_eq!(signals.next().await, Ask::SkipGrace("SIGINT"));
        kill_process(getpid(), Signal::INT).unwrap();
        assert_eq!(signals.next().await, Ask::SkipGrace("SIGINT"));
    }

    #[tokio::test]
    async fn signal_sent_twice_at_once_is_one_request() {
        let mut signals = Signals::listen().unwrap();
        let after = |time| Time::default() + time;
        assert_eq!(signals.ask("SIGINT", after(Duration::ZERO)), Some(Ask::Shutdown("SIGINT")));
        assert_eq!(signals.ask("SIGINT", after(Duration::from_micros(240))), None);
        assert_eq!(signals.ask("SIGTERM", after(Duration::from_micros(240))), Some(Ask::SkipGrace("SIGTERM")));
        assert_eq!(signals.ask("SIGINT", after(ONE_REQUEST)), Some(Ask::SkipGrace("SIGINT")));
    }
}
