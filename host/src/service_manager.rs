//! What the manager of the machine's services is told, where one has started this process and wants to know: systemd, by
//! the protocol of `sd_notify`.
//!
//! It is told when the host is ready, reads its files anew, or ends; what it does, for `systemctl status`; and, while all
//! turns that must ([`Watched::is_stuck`], as at `/livez`), that it is alive. A thread of its own does that: a manager that
//! does not read keeps nobody else waiting.

use std::collections::VecDeque;
use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::telemetry::{Event, Log, Standing};
use crate::watched::{SECOND_LOOK, Watched};
use baton_runtime::escape::escape;

/// Where it listens.
const SOCKET: &str = "NOTIFY_SOCKET";

/// How long it waits for a sign of life, in microseconds, and whose.
const WATCHDOG: (&str, &str) = ("WATCHDOG_USEC", "WATCHDOG_PID");

/// How long a message may wait for a manager that does not read.
const PATIENCE: Duration = Duration::from_secs(1);

/// So many elections are named in the status, and a node's name is that long, in characters.
const NAMED: usize = 8;
const LONGEST_NAME: usize = 64;

/// Signs of life come so often at the least, and so is said what the host does by then.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// They come no faster, however short the manager's patience is.
const SOONEST: Duration = Duration::from_millis(10);

/// What the host goes through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Its configuration is read and its loops run.
    Ready,
    /// It reads its files anew. [`Phase::Ready`] follows.
    Reloading,
    /// It ends in order.
    Stopping,
}

impl Phase {
    fn message(self) -> String {
        match self {
            Self::Ready => "READY=1\n".to_owned(),
            Self::Reloading => {
                let now = clock_gettime(ClockId::Monotonic);
                format!("RELOADING=1\nMONOTONIC_USEC={}\n", now.tv_sec * 1_000_000 + now.tv_nsec / 1000)
            }
            Self::Stopping => "STOPPING=1\n".to_owned(),
        }
    }
}

/// Why the manager is told nothing, though it wants to be.
#[derive(Debug, thiserror::Error)]
pub enum Untold {
    /// It listens where this host cannot send to.
    #[error("cannot notify the service manager: {SOCKET}={0} is neither a path nor an abstract socket's name")]
    Unknown(String),
    /// The system has no socket to give.
    #[error("cannot notify the service manager: {0}")]
    System(#[from] io::Error),
}

/// A manager that wants to be told.
#[derive(Debug)]
pub struct ServiceManager {
    address: SocketAddr,
    socket: UnixDatagram,
    /// How often it looks for a sign of life, if it does.
    looks_every: Option<Duration>,
}

impl ServiceManager {
    /// The one that has started this process; none if nobody wants to know.
    ///
    /// # Errors
    /// [`Untold`] where it cannot be told.
    pub fn of_process() -> Result<Option<Self>, Untold> {
        let Some(place) = env::var_os(SOCKET).filter(|place| !place.is_empty()) else { return Ok(None) };
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        // Another process, such as a script that has started this one, may be the one that it waits for.
        let is_meant = number(WATCHDOG.1).is_none_or(|pid| pid == u64::from(std::process::id()));
        let looks_every = number(WATCHDOG.0).filter(|every| is_meant && *every > 0).map(Duration::from_micros);
        Self::at(&place, looks_every).map(Some)
    }

    fn at(place: &OsStr, looks_every: Option<Duration>) -> Result<Self, Untold> {
        let address = match place.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            [b'/', ..] => SocketAddr::from_pathname(place),
            _ => return Err(Untold::Unknown(escape(&place.to_string_lossy()).into_owned())),
        }?;
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { address, socket, looks_every })
    }

    /// Tells it of the host from now on.
    ///
    /// # Errors
    /// What the system says where it has no thread to give.
    pub fn tell_of(self, watched: Arc<Watched>, log: Log) -> io::Result<Telling> {
        let (phases, told) = mpsc::channel();
        let thread =
            std::thread::Builder::new().name("manager".into()).spawn(move || self.tell(&watched, &told, &log))?;
        Ok(Telling { phases: Phases(Some(phases)), thread: Some(thread) })
    }

    /// Until the end is told of, by no phase.
    fn tell(self, watched: &Watched, phases: &Receiver<Option<Phase>>, log: &Log) {
        let look_every = self.looks_every.map_or(LOOK_EVERY, |every| (every / 2).clamp(SOONEST, LOOK_EVERY));
        let (mut untold, mut status, mut wait, mut has_complained) =
            (VecDeque::new(), String::new(), look_every, false);
        loop {
            let told = phases.recv_timeout(wait);
            if let Ok(Some(phase)) = told {
                untold.push_back(phase.message());
            }
            let stuck = watched.is_stuck();
            wait = if stuck.is_empty() { look_every } else { look_every.min(SECOND_LOOK) };
            let result = self.say(&mut untold, &mut status, watched, &stuck);
            if let Err(error) = result
                && !std::mem::replace(&mut has_complained, true)
            {
                let error = format!("cannot notify the service manager at {SOCKET}: {error}");
                log.emit(None, Event::Error { error });
            }
            if told == Ok(None) {
                return;
            }
        }
    }

    /// Says what it has not heard so far; what cannot be said now is said the next time.
    fn say(
        &self,
        untold: &mut VecDeque<String>,
        status: &mut String,
        watched: &Watched,
        stuck: &[String],
    ) -> io::Result<()> {
        while let Some(message) = untold.front() {
            self.send(message)?;
            untold.pop_front();
        }
        let is = if stuck.is_empty() { status_of(watched) } else { stuck.join("; ") };
        let mut message = String::new();
        if is != *status {
            // Cannot fail: the target is a string.
            let _ = writeln!(message, "STATUS={is}");
        }
        if stuck.is_empty() && self.looks_every.is_some() {
            message.push_str("WATCHDOG=1\n");
        }
        if !message.is_empty() {
            self.send(&message)?;
            *status = is;
        }
        Ok(())
    }

    fn send(&self, message: &str) -> io::Result<()> {
        self.socket.send_to_addr(message.as_bytes(), &self.address).map(drop)
    }
}

/// What the host does, in a line.
fn status_of(watched: &Watched) -> String {
    let now = watched.clock.now();
    let role = |standing: &Arc<Standing>| {
        let (known, election) = (standing.known(), &standing.election);
        match (known.leads(now), known.leader) {
            (Some((term, _)), _) => format!("leads {election} in term {term}"),
            (None, Some(leader)) => {
                let leader: String = escape(&leader).chars().take(LONGEST_NAME).collect();
                format!("standby of {leader} in {election}, term {}", known.term)
            }
            (None, None) => format!("standby in {election}, which has no leader"),
        }
    };
    let mut roles: Vec<String> = watched.standings.iter().take(NAMED).map(role).collect();
    if let more @ 1.. = watched.standings.len().saturating_sub(NAMED) {
        roles.push(format!("and {more} more"));
    }
    roles.join("; ")
}

/// Where to say what the host goes through. Nobody listens if there is no manager.
#[derive(Clone, Debug, Default)]
pub struct Phases(Option<mpsc::Sender<Option<Phase>>>);

impl Phases {
    /// The host has come to this phase. Never blocks.
    pub fn are_at(&self, phase: Phase) {
        self.tell(Some(phase));
    }

    fn tell(&self, phase: Option<Phase>) {
        if let Some(sender) = &self.0 {
            // Nobody listens any more where the host has all but ended.
            let _ = sender.send(phase);
        }
    }
}

/// The telling at work: the owner of its thread.
#[derive(Debug, Default)]
pub struct Telling {
    phases: Phases,
    thread: Option<JoinHandle<()>>,
}

impl Telling {
    /// Where to say what the host goes through.
    #[must_use]
    pub fn phases(&self) -> Phases {
        self.phases.clone()
    }

    /// Says what was not said yet, waiting a second at the most for each message to be taken, and nothing more.
    pub fn end(self) {
        self.phases.tell(None);
        if let Some(thread) = self.thread {
            // One that panicked has nothing more to say here.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn told(listener: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let length = listener.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_manager_is_found_by_path_and_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let name = format!("@baton-test/{}", std::process::id());
        let by_name = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        for (place, listener) in [
            (path.as_os_str(), UnixDatagram::bind(&path).unwrap()),
            (name.as_ref(), UnixDatagram::bind_addr(&by_name).unwrap()),
        ] {
            ServiceManager::at(place, None).unwrap().send("READY=1\n").unwrap();
            assert_eq!(told(&listener), "READY=1\n");
        }
        for strange in ["vsock:2:1234", "relative", "unix\n:/x"] {
            let error = ServiceManager::at(strange.as_ref(), None).unwrap_err().to_string();
            assert!(error.contains("neither a path nor an abstract") && !error.contains('\n'), "{error}");
        }
        let long = format!("/{}", "x".repeat(200));
        assert!(matches!(ServiceManager::at(long.as_ref(), None), Err(Untold::System(_))));
    }

    #[test]
    fn what_was_not_heard_is_said_again_and_the_stuck_give_no_sign_of_life() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let manager = ServiceManager::at(path.as_os_str(), Some(Duration::from_secs(30))).unwrap();
        let watched = Watched::of_nothing();
        let mut untold: VecDeque<String> = [Phase::Reloading, Phase::Ready].map(Phase::message).into();
        let mut status = String::new();
        let mut say = |stuck: &[String]| manager.say(&mut untold, &mut status, &watched, stuck);
        say(&[]).unwrap_err();
        let listener = UnixDatagram::bind(&path).unwrap();
        say(&[]).unwrap();
        let reloading = told(&listener);
        let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{reloading}"));
        assert!(since.trim_end().parse::<u64>().unwrap() > 0);
        assert_eq!(told(&listener), "READY=1\n");
        assert_eq!(told(&listener), "STATUS=standby in job, which has no leader\nWATCHDOG=1\n");
        say(&[]).unwrap();
        assert_eq!(told(&listener), "WATCHDOG=1\n", "the status is no news");
        let stuck = ["the control runtime has made no progress for 16 s".to_owned()];
        say(&stuck).unwrap();
        assert_eq!(told(&listener), format!("STATUS={}\n", stuck[0]));
        say(&stuck).unwrap();
        say(&[]).unwrap();
        assert_eq!(told(&listener), "STATUS=standby in job, which has no leader\nWATCHDOG=1\n");
    }
}
