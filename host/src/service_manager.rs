//! Notifications to the service manager that started this process: systemd, through the `sd_notify` protocol.
//!
//! The notifications report the host's phases, the host's state for `systemctl status`, and watchdog pings. The host
//! sends no pings while something is stuck ([`Watched::is_stuck`], as in `/livez`). A separate thread sends the
//! notifications, so that a manager that does not read them cannot delay anything else.

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

use baton_admin::watched::{SECOND_LOOK, Watched};
use baton_base::escape::escape;
use baton_node::telemetry::{ElectionTracker, Event, Log};

const SOCKET: &str = "NOTIFY_SOCKET";

/// The environment variables that contain the watchdog interval (µs) and the id of the process that must send the
/// pings.
const WATCHDOG: (&str, &str) = ("WATCHDOG_USEC", "WATCHDOG_PID");

const PATIENCE: Duration = Duration::from_secs(1);

/// Maximum number of elections that the status names, and maximum length of a node name in the status, in characters.
const MOST_NAMED: usize = 8;
const LONGEST_NAME: usize = 64;

/// Maximum interval between watchdog pings and between updates of the status.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);

/// Minimum interval between watchdog pings, even if the manager requests a shorter one.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// A phase of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The configuration has been read and the host's tasks are running.
    Ready,
    /// The host is reading its files again, and reports [`Phase::Ready`] afterwards.
    Reloading,
    /// The host is shutting down.
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

/// The reason why the manager cannot be notified.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// The manager's socket has an unsupported address.
    #[error("cannot notify the service manager: {SOCKET}={0} is neither a path nor an abstract socket's name")]
    Unknown(String),
    /// The system cannot provide a socket.
    #[error("cannot notify the service manager: {0}")]
    System(#[from] io::Error),
}

/// A service manager that expects notifications.
#[derive(Debug)]
pub struct ServiceManager {
    address: SocketAddr,
    socket: UnixDatagram,
    /// The interval at which the manager expects watchdog pings, if it expects any.
    watchdog_interval: Option<Duration>,
}

impl ServiceManager {
    /// Returns the manager that started this process, if it expects notifications.
    ///
    /// # Errors
    /// [`NotifyError`] if the manager cannot be notified.
    pub fn of_process() -> Result<Option<Self>, NotifyError> {
        let Some(place) = env::var_os(SOCKET).filter(|place| !place.is_empty()) else { return Ok(None) };
        let number = |name| env::var(name).ok()?.parse::<u64>().ok();
        // The manager may expect the pings from another process, such as a script that started this one.
        let is_meant = number(WATCHDOG.1).is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog_interval = number(WATCHDOG.0).filter(|every| is_meant && *every > 0).map(Duration::from_micros);
        Self::at(&place, watchdog_interval).map(Some)
    }

    fn at(place: &OsStr, watchdog_interval: Option<Duration>) -> Result<Self, NotifyError> {
        let address = match place.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            [b'/', ..] => SocketAddr::from_pathname(place),
            _ => return Err(NotifyError::Unknown(escape(&place.to_string_lossy()).into_owned())),
        }?;
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { address, socket, watchdog_interval })
    }

    /// Starts the thread that notifies the manager.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn tell_of(self, watched: Arc<Watched>, log: Log) -> io::Result<Notifier> {
        let (phases, received) = mpsc::channel();
        let thread =
            std::thread::Builder::new().name("manager".into()).spawn(move || self.tell(&watched, &received, &log))?;
        Ok(Notifier { phases: Phases(Some(phases)), thread: Some(thread) })
    }

    fn tell(self, watched: &Watched, phases: &Receiver<Option<Phase>>, log: &Log) {
        let interval = self
            .watchdog_interval
            .map_or(STATUS_INTERVAL, |every| (every / 2).clamp(SHORTEST_INTERVAL, STATUS_INTERVAL));
        let (mut unsent, mut status, mut wait, mut has_complained) = (VecDeque::new(), String::new(), interval, false);
        loop {
            let received = phases.recv_timeout(wait);
            if let Ok(Some(phase)) = received {
                unsent.push_back(phase.message());
            }
            let stuck = watched.is_stuck();
            wait = if stuck.is_empty() { interval } else { interval.min(SECOND_LOOK) };
            let result = self.say(&mut unsent, &mut status, status_of(watched), &stuck);
            if let Err(error) = result
                && !std::mem::replace(&mut has_complained, true)
            {
                let error = format!("cannot notify the service manager at {SOCKET}: {error}");
                log.emit(None, Event::Error { error });
            }
            if received == Ok(None) {
                return;
            }
        }
    }

    /// Sends the `unsent` messages, and then a message with the status, if it has changed, and a watchdog ping. If
    /// parts of the host are stuck, omits the ping, and sends a status that lists these parts instead of `now`. If
    /// sending a message fails, that message and all later ones stay in `unsent` for the next call.
    fn say(&self, unsent: &mut VecDeque<String>, status: &mut String, now: String, stuck: &[String]) -> io::Result<()> {
        while let Some(message) = unsent.front() {
            self.send(message)?;
            unsent.pop_front();
        }
        let is = if stuck.is_empty() { now } else { stuck.join("; ") };
        let mut message = String::new();
        if is != *status {
            let _ = writeln!(message, "STATUS={is}");
        }
        if stuck.is_empty() && self.watchdog_interval.is_some() {
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

fn status_of(watched: &Watched) -> String {
    let now = watched.clock.now();
    let role = |tracker: &Arc<ElectionTracker>| {
        let (view, election) = (tracker.view(), &tracker.election);
        match (view.leads(now), view.leader) {
            (Some((term, _)), _) => format!("leads {election} in term {term}"),
            (None, Some(leader)) => {
                let leader: String = escape(&leader).chars().take(LONGEST_NAME).collect();
                format!("standby of {leader} in {election}, term {}", view.term)
            }
            (None, None) => format!("standby in {election}, which has no leader"),
        }
    };
    let mut roles: Vec<String> = watched.trackers.iter().take(MOST_NAMED).map(role).collect();
    if let more @ 1.. = watched.trackers.len().saturating_sub(MOST_NAMED) {
        roles.push(format!("and {more} more"));
    }
    roles.join("; ")
}

/// Reports the host's phases. Does nothing if there is no manager.
#[derive(Clone, Debug, Default)]
pub struct Phases(Option<mpsc::Sender<Option<Phase>>>);

impl Phases {
    /// Reports that the host has entered a phase. Never blocks.
    pub fn are_at(&self, phase: Phase) {
        self.tell(Some(phase));
    }

    fn tell(&self, phase: Option<Phase>) {
        if let Some(sender) = &self.0 {
            // Ignore the error: at shutdown, the receiver may already have been dropped.
            let _ = sender.send(phase);
        }
    }
}

/// The running thread that sends notifications to the manager.
#[derive(Debug, Default)]
pub struct Notifier {
    phases: Phases,
    thread: Option<JoinHandle<()>>,
}

impl Notifier {
    /// Returns a handle for reporting phases.
    #[must_use]
    pub fn phases(&self) -> Phases {
        self.phases.clone()
    }

    /// Sends the messages that are left, waiting at most 1 s for each, and ends the thread.
    pub fn end(self) {
        self.phases.tell(None);
        if let Some(thread) = self.thread {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn received(listener: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let length = listener.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn manager_is_reached_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let name = format!("@baton-test/{}", std::process::id());
        let by_name = SocketAddr::from_abstract_name(&name[1..]).unwrap();
        for (place, listener) in [
            (path.as_os_str(), UnixDatagram::bind(&path).unwrap()),
            (name.as_ref(), UnixDatagram::bind_addr(&by_name).unwrap()),
        ] {
            ServiceManager::at(place, None).unwrap().send("READY=1\n").unwrap();
            assert_eq!(received(&listener), "READY=1\n");
        }
        for strange in ["vsock:2:1234", "relative", "unix\n:/x"] {
            let error = ServiceManager::at(strange.as_ref(), None).unwrap_err().to_string();
            assert!(error.contains("neither a path nor an abstract") && !error.contains('\n'), "{error}");
        }
        let long = format!("/{}", "x".repeat(200));
        assert!(matches!(ServiceManager::at(long.as_ref(), None), Err(NotifyError::System(_))));
    }

    #[test]
    fn unsent_messages_are_retried_and_stuck_hosts_send_no_ping() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let manager = ServiceManager::at(path.as_os_str(), Some(Duration::from_secs(30))).unwrap();
        let standby = "standby in job, which has no leader";
        let mut unsent: VecDeque<String> = [Phase::Reloading, Phase::Ready].map(Phase::message).into();
        let mut status = String::new();
        let mut say = |stuck: &[String]| manager.say(&mut unsent, &mut status, standby.to_owned(), stuck);
        say(&[]).unwrap_err();
        let listener = UnixDatagram::bind(&path).unwrap();
        say(&[]).unwrap();
        let reloading = received(&listener);
        let since = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{reloading}"));
        assert!(since.trim_end().parse::<u64>().unwrap() > 0);
        assert_eq!(received(&listener), "READY=1\n");
        assert_eq!(received(&listener), "STATUS=standby in job, which has no leader\nWATCHDOG=1\n");
        say(&[]).unwrap();
        assert_eq!(received(&listener), "WATCHDOG=1\n", "the status is no news");
        let stuck = ["the control runtime has made no progress for 16 s".to_owned()];
        say(&stuck).unwrap();
        assert_eq!(received(&listener), format!("STATUS={}\n", stuck[0]));
        say(&stuck).unwrap();
        say(&[]).unwrap();
        assert_eq!(received(&listener), "STATUS=standby in job, which has no leader\nWATCHDOG=1\n");
    }
}
