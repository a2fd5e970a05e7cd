//! A test that does not end: it is named, and everything ends with it.
//!
//! Waits give up by [`Patience`](crate::patience::Patience). What blocks in another way, or turns in a loop, would keep
//! all of the tests from ending, and nobody would hear which one it was.

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::patience::{had, started};

/// How much time may be there for a test that has its share of the machine: the longest takes a few minutes.
const LONGEST: Duration = Duration::from_secs(20 * 60);

/// How often the tests that are under way are looked at.
const LOOK: Duration = Duration::from_secs(5);

/// The exit status of a program whose test does not end: that of one whose test fails.
const FAILED: i32 = 101;

/// The tests that are under way, each with the time that had been there when it began.
static UNDER_WAY: Mutex<Vec<(ThreadId, String, Duration)>> = Mutex::new(Vec::new());

/// The test of a thread is looked after until this is dropped.
pub struct Overdue(ThreadId);

impl Overdue {
    /// Looks after the test of this thread from now on.
    pub fn watch() -> Self {
        static WATCH: Once = Once::new();
        // It ends with the tests' process: nothing waits for it.
        WATCH.call_once(|| drop(std::thread::spawn(watch)));
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("a test").to_owned();
        under_way().push((thread.id(), test, had()));
        Self(thread.id())
    }
}

impl Drop for Overdue {
    fn drop(&mut self) {
        under_way().retain(|(thread, ..)| *thread != self.0);
    }
}

fn under_way() -> MutexGuard<'static, Vec<(ThreadId, String, Duration)>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch() {
    loop {
        std::thread::sleep(LOOK);
        let now = had();
        let overdue: Vec<String> = under_way()
            .iter()
            .filter(|(_, _, since)| now.saturating_sub(*since) >= LONGEST)
            .map(|(_, test, _)| format!("OVERDUE {test}: it has not ended in {LONGEST:?}\n"))
            .collect();
        if !overdue.is_empty() {
            // Past the capture of the test harness, which would swallow it.
            let _ = std::io::stderr().write_all(overdue.concat().as_bytes());
            started().filter_map(|id| Pid::from_raw(id.cast_signed())).for_each(|process| {
                // What has ended meanwhile needs no signal.
                let _ = kill_process(process, Signal::KILL);
            });
            std::process::exit(FAILED);
        }
    }
}
