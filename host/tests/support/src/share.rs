//! The processors, shared among the tests that run at once: of this process, and of others of this user.
//!
//! Most tests wait most of the time, and several of them fit on a processor. One that keeps a processor busy takes a
//! whole one, and its hosts need not share it with those of eleven others.

#![allow(dead_code, reason = "the support modules serve several test targets")]

use std::cell::Cell;
use std::fs::File;
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

use crate::overdue::Overdue;

/// So many tests that mostly wait fit on one processor. The Makefile starts as many.
const SHARES: usize = 6;

/// A test's share of the processors, until it is dropped. The locks of a process that dies are gone with it.
pub struct Share {
    slots: Vec<File>,
    _overdue: Option<Overdue>,
}

impl Share {
    /// The share of a test that mostly waits. Waits until there is one.
    pub fn light() -> Self {
        Self::of(1)
    }

    /// The share of a test that keeps a processor busy: a whole processor. Waits until there is one, and meanwhile no
    /// other test begins.
    pub fn heavy() -> Self {
        Self::of(SHARES)
    }

    /// Before this, the test has to give back all that it holds: a test that waits holds nothing.
    fn of(count: usize) -> Self {
        if HOLDS.replace(true) {
            // A test has one share, however many stages it has.
            return Self { slots: Vec::new(), _overdue: None };
        }
        let all = SHARES * available_parallelism().map_or(1, usize::from);
        let turn = lock_file("turn");
        turn.lock().expect("a lock");
        let mut slots = Vec::new();
        loop {
            // Those that it has already are not free: they were opened anew.
            for slot in (0..all).map(|number| lock_file(&number.to_string())) {
                if slot.try_lock().is_ok() {
                    slots.push(slot);
                }
                if slots.len() == count {
                    return Self { slots, _overdue: Some(Overdue::watch()) };
                }
            }
            // Several locks have no condition variable; this only paces the question.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            HOLDS.set(false);
        }
    }
}

thread_local! {
    /// Whether the test of this thread has its share.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

fn lock_file(name: &str) -> File {
    let folder: PathBuf = std::env::temp_dir().join(format!("baton-tests-{}", rustix::process::getuid().as_raw()));
    std::fs::create_dir_all(&folder).expect("a folder for locks");
    File::options().create(true).append(true).open(folder.join(name)).expect("a file to lock")
}
