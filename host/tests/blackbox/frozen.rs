//! Single threads of a host or a runner that are stopped, as a debugger stops them, while the others run on.

use std::fs;
use std::ptr::null_mut;
use std::sync::mpsc;

use crate::node::{Node, until};

/// Stops every thread of the host of that name, until the host's process ends.
pub fn freeze(node: &Node, name: &str) {
    freeze_in(node.pid(), name);
}

/// The same in that process of a node, once it has one. Each waits for something to do then: one that is stopped in the
/// middle of its work may keep a lock that others wait for.
pub fn freeze_in(process: u32, name: &str) {
    let begun = || Some(named(process, name)).filter(|threads| !threads.is_empty()).ok_or(process);
    let mut threads = until(&format!("a thread `{name}`"), begun);
    let (ready, stopped) = mpsc::channel();
    // All calls for a stopped thread must come from the one thread that has stopped it. That one ends with the process,
    // which ends with its node at the latest; so the caller, which holds the node, must not wait for it.
    std::thread::spawn(move || {
        // Of those that wait for work, some end when there has been none for a while.
        threads.retain(|&thread| seize(thread));
        until("threads that wait for something to do", || {
            threads.retain(|&thread| stop(thread));
            let calls: Vec<String> = threads.iter().map(|&thread| call_of(process, thread)).collect();
            // `futex`, `epoll_wait`, `epoll_pwait`, `clock_nanosleep` and `ppoll` on x86-64; those of AArch64, which has one
            // of the second and the third.
            // A wait with an end that was interrupted goes on as `restart_syscall`.
            let waits = ["202", "232", "281", "230", "271", "219", "98", "22", "115", "73", "128"];
            if calls.iter().all(|call| waits.contains(&call.as_str())) {
                return Ok(());
            }
            threads.iter().for_each(|&thread| assert!(ask(libc::PTRACE_CONT, thread), "{thread} is stopped"));
            Err(calls)
        });
        ready.send(()).expect("somebody waits");
        // A stopped thread that ends must be seen to end, or its process never does.
        for thread in threads {
            while let Some(status) = wait(thread)
                && !libc::WIFEXITED(status)
                && !libc::WIFSIGNALED(status)
            {}
        }
    });
    stopped.recv().expect("threads can be stopped: is ptrace allowed here?");
}

/// Traces the node's runners, as a debugger does, and does not look when they end: until this is dropped, nobody can reap
/// them.
pub fn hold(node: &Node) -> mpsc::Sender<()> {
    let runners = node.runners();
    assert!(!runners.is_empty(), "{} has no runner", node.name);
    let (release, released) = mpsc::channel::<()>();
    let (ready, held) = mpsc::channel();
    // What is traced is let go of when the thread that traces it ends.
    std::thread::spawn(move || {
        for runner in runners {
            assert!(seize(runner.as_raw_nonzero().get()), "{runner:?} runs");
        }
        ready.send(()).expect("somebody waits");
        let _ = released.recv();
    });
    held.recv().expect("processes can be traced: is ptrace allowed here?");
    release
}

/// Waits until the thread of that name, which writes to the host's stderr, waits for somebody to read.
pub fn writes_in_vain(node: &Node, name: &str) {
    until("a full pipe", || {
        let calls: Vec<String> = named(node.pid(), name).iter().map(|&thread| call_of(node.pid(), thread)).collect();
        // `poll` on x86-64, and `ppoll` there and on AArch64. It waits for nothing else that way.
        if calls.iter().any(|call| ["7", "271", "73"].contains(&call.as_str())) { Ok(()) } else { Err(calls) }
    });
}

/// The number of the system call that a thread is in, or `running`.
fn call_of(process: u32, thread: i32) -> String {
    let call = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall")).unwrap_or_default();
    call.split_whitespace().next().unwrap_or_default().to_owned()
}

/// The ids of the process' threads of that name; none where it has ended.
fn named(process: u32, name: &str) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    tasks
        .into_iter()
        .flatten()
        .filter_map(|task| {
            let path = task.ok()?.path();
            let comm = fs::read_to_string(path.join("comm")).ok()?;
            (comm.trim_end() == name).then(|| path.file_name()?.to_str()?.parse().ok())?
        })
        .collect()
}

/// Whether the thread is there to be stopped.
fn seize(thread: i32) -> bool {
    ask(libc::PTRACE_SEIZE, thread)
}

/// Stops a thread; not if it has ended.
fn stop(thread: i32) -> bool {
    ask(libc::PTRACE_INTERRUPT, thread) && wait(thread).is_some_and(|status| libc::WIFSTOPPED(status))
}

/// Not of a thread that has ended.
fn ask(request: libc::c_uint, thread: i32) -> bool {
    // SAFETY: the requests here read and write no memory of this process: address and data are unused.
    let result = unsafe { libc::ptrace(request, thread, null_mut::<libc::c_void>(), null_mut::<libc::c_void>()) };
    let error = std::io::Error::last_os_error();
    assert!(result == 0 || error.raw_os_error() == Some(libc::ESRCH), "{error}");
    result == 0
}

/// The next change of a stopped thread; none if there is no such thread any more.
fn wait(thread: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is this function's own and outlives the call.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    (waited == thread).then_some(status)
}
