//! The warden: a process beside the host that ends each runner at its deadline, even if the host is stopped and the runner
//! has been taken over.
//!
//! It runs nothing of anybody's and holds nothing but pidfds and pages. Its host hands it each runner that it starts. A
//! runner waits for a term, for minutes or days; nobody tells the warden when one begins, so that no instance's start
//! waits for another process to be woken: it looks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};

use super::page::Watched;
use super::process::{end_with, receive};
use crate::confine;

/// How often it looks at least. A page may be opened with little time left, and then its deadline is passed by as much.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A runner and its deadline.
struct Runner {
    pidfd: OwnedFd,
    page: Watched,
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
    confine::to_watching()?;
    let host = io::stdin();
    let mut runners: Vec<Runner> = Vec::new();
    loop {
        let left = runners.iter().filter_map(|runner| runner.page.remaining());
        let wait = left.fold(LOOK_EVERY, Duration::min);
        let mut asked = vec![PollFd::new(&host, PollFlags::IN)];
        asked.extend(runners.iter().map(|runner| PollFd::new(&runner.pidfd, PollFlags::IN)));
        poll(&mut asked, Some(&Timespec::try_from(wait)?))?;
        let news: Vec<bool> = asked.iter().map(|asked| !asked.revents().is_empty()).collect();
        drop(asked);
        // Those that have ended.
        let mut ended = news.iter().skip(1);
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
        if news[0] {
            let Ok([pidfd, page]) = <[OwnedFd; 2]>::try_from(receive(host.as_fd())?) else { return Ok(()) };
            runners.push(Runner { pidfd, page: Watched::map(page)? });
        }
    }
}
