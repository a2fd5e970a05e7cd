//! What the outside asks of the process: to end, by SIGINT (Ctrl-C) and SIGTERM, and to read its files anew, by SIGHUP.
//!
//! SIGHUP also says that the terminal is gone: in a process that has one it asks for the end, which else would come without
//! any order. Where it is ignored, as `nohup` has it, it stays ignored.

use std::fs::File;
use std::io;
use std::ptr::null;
use std::time::Duration;

use baton_election::Time;
use baton_store::clock::Clock;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that comes again within this time is the same request: `timeout -s INT` sends one to the process and one to its
/// group, 0.24 ms apart. Nobody types Ctrl-C twice as fast and means two requests.
const ONE_REQUEST: Duration = Duration::from_millis(500);

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
    /// In a process that has a terminal.
    hangup: Option<Signal>,
    /// In another one.
    reload: Option<Signal>,
    /// The first one that asked for the end, and when.
    first: Option<(&'static str, Time)>,
    clock: Clock,
}

impl Signals {
    /// Takes the signals over: they no longer end the process. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// What the system says where it refuses the handlers.
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

    /// The signals that ask to read files anew, for whoever does so; none where there are no such signals.
    pub fn take_reloads(&mut self) -> Option<Signal> {
        self.reload.take()
    }

    /// Waits for the next one. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Ask {
        loop {
            let name = self.signal().await;
            let now = self.clock.now();
            if let Some(ask) = self.ask(name, now) {
                return ask;
            }
        }
    }

    /// The request that a signal stands for; `None` if it only repeats the first one.
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
            // Streams of signals do not end while the process lives.
            else => std::future::pending().await,
        }
    }
}

/// Takes back what this process has inherited that would keep it from hearing of its own processes and of who asks it to
/// end: a parent that ignores SIGCHLD leaves that to its children (POSIX, `exec`), and the system then tells nobody how they
/// end; and signals that a parent has blocked stay so. Call it before there is another thread: each has a mask of its own.
pub fn undo_inherited() {
    // SAFETY: the calls read and write no memory but the set, which is initialised before it is used.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut none = std::mem::MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Whether a terminal controls this process.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

fn is_hangup_ignored() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without an action to set, the call only writes the present one, for which there is room.
    let asked = unsafe { libc::sigaction(libc::SIGHUP, null(), action.as_mut_ptr()) };
    // SAFETY: all zeros are an action, too, and the call has written one if it has written any.
    asked == 0 && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
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

    #[tokio::test]
    async fn signal_that_is_sent_twice_at_once_is_one_request() {
        let mut signals = Signals::listen().unwrap();
        let after = |time| Time::default() + time;
        assert_eq!(signals.ask("SIGINT", after(Duration::ZERO)), Some(Ask::Shutdown("SIGINT")));
        assert_eq!(signals.ask("SIGINT", after(Duration::from_micros(240))), None);
        assert_eq!(signals.ask("SIGTERM", after(Duration::from_micros(240))), Some(Ask::SkipGrace("SIGTERM")));
        assert_eq!(signals.ask("SIGINT", after(ONE_REQUEST)), Some(Ask::SkipGrace("SIGINT")));
    }
}
