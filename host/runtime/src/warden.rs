//! The warden: a process beside the host that ends each runner at its deadline, even if the host is stopped and the runner
//! has been taken over.
//!
//! It runs nothing of anybody's and holds nothing but pidfds, pages, a doorbell and timers. Its host hands it each runner that
//! it starts. A runner waits for a term, for minutes or days, and the warden with it: the host rings before it lets one begin.
//! The host waits for no answer, and may be stopped as soon as it has rung: from then on the warden looks again and again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use baton_store::clock::{Alarm, towards};
use baton_store::doorbell::Doorbell;
use rustix::process::{Signal, pidfd_send_signal};

use super::page::Watched;
use super::process::{end_with, receive};
use crate::confine;

/// The shortest time from one look to the next where there is no deadline to wait for yet.
const SHORTEST: Duration = Duration::from_millis(250);

/// How late the warden may see that a page was opened, with a lease of that length: D/12, or 250 ms if that is more. An
/// instance that begins with less time left than that has passed its deadline by as much when it is ended, and that is
/// still before 0.93 D.
pub(super) fn lateness(lease: Duration) -> Duration {
    (lease / 12).max(SHORTEST)
}

/// A runner and its deadline.
struct Runner {
    pidfd: OwnedFd,
    page: Watched,
}

impl Runner {
    /// When to look at its page again, at the latest; none while it waits for a term, of which the doorbell tells.
    fn next_look(&self, hears_steps: bool) -> Option<Duration> {
        let lateness = self.page.lateness()?;
        match self.page.remaining() {
            // A step of a clock may have brought it closer.
            Some(left) => Some(if hears_steps { towards(left) } else { left.min(lateness) }),
            None => Some(lateness),
        }
    }
}

/// The whole life of the warden, which ends with its host, the process `parent`.
#[must_use]
pub fn watch_runners(parent: u32) -> ExitCode {
    match watch(parent) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn watch(parent: u32) -> anyhow::Result<()> {
    if !end_with(parent, c"baton-warden")? {
        return Ok(());
    }
    confine::close_others()?;
    // Asked for once, while it can be looked up.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let mut alarm = Alarm::new()?;
    confine::to_watching()?;
    let host = io::stdin();
    let Ok([doorbell]) = <[OwnedFd; 1]>::try_from(receive(host.as_fd())?) else { return Ok(()) };
    let doorbell = Doorbell::from(doorbell);
    let mut runners: Vec<Runner> = Vec::new();
    loop {
        alarm.forget_steps();
        let next = runners.iter().filter_map(|runner| runner.next_look(alarm.hears_steps())).min();
        let others =
            [host.as_fd(), doorbell.as_fd()].into_iter().chain(runners.iter().map(|runner| runner.pidfd.as_fd()));
        let [of_host, _, ended @ ..] = &*alarm.wait(next, others)? else { return Ok(()) };
        // Whoever has rung, all pages are looked at.
        doorbell.has_rung();
        let mut ended = ended.iter();
        runners.retain(|_| ended.next() == Some(&false));
        for Runner { pidfd, page } in &runners {
            if page.remaining() == Some(Duration::ZERO) {
                // It has ended by itself if this fails.
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
            }
        }
        // One that was killed is not waited for without a pause: it may take a while.
        if runners.iter().any(|runner| runner.page.remaining() == Some(Duration::ZERO)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if *of_host {
            let Ok([pidfd, page]) = <[OwnedFd; 2]>::try_from(receive(host.as_fd())?) else { return Ok(()) };
            runners.push(Runner { pidfd, page: Watched::map(page)? });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_election::Timing;

    use super::*;

    #[test]
    fn who_is_seen_late_is_ended_before_another_may_begin() {
        for seconds in 2..=60 {
            let lease = Duration::from_secs(seconds);
            let timing = Timing::new(lease, (lease, lease), Duration::ZERO, 0).unwrap();
            assert!(timing.deadline_after() + lateness(lease) < timing.abort_after(), "D = {lease:?}");
        }
    }
}
