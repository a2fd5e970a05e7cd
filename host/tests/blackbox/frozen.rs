//! Stops single threads of a host or a runner with ptrace, while the other threads run.

use std::fs;
use std::ptr::null_mut;
use std::sync::mpsc;

use crate::node::{Node, until};

pub fn freeze(node: &Node, name: &str) {
    freeze_in(node.pid(), name);
}

/// Waits until a process of a node has threads called `name`, and stops them until the process ends. Stops each thread
/// only while it waits for work: a working thread may hold a lock that other threads need.
pub fn freeze_in(process: u32, name: &str) {
    let found = || Some(threads_named(process, name)).filter(|threads| !threads.is_empty()).ok_or(process);
    let mut threads = until(&format!("a thread `{name}`"), found);
    let (ready, stopped) = mpsc::channel();
    // All ptrace calls for a thread must come from the tracing thread that has stopped it. The tracing thread below
    // ends only when the process ends, which happens at the latest when the caller drops the node. So the caller must
    // not join the tracing thread: it could wait forever.
    std::thread::spawn(move || {
        // Drop threads that no longer exist: idle threads may have exited since they were listed.
        threads.retain(|&thread| seize(thread));
        until("threads that wait for work", || {
            threads.retain(|&thread| stop(thread));
            let calls: Vec<String> = threads.iter().map(|&thread| call_of(process, thread)).collect();
            // The numbers of `futex`, `epoll_wait`, `epoll_pwait`, `clock_nanosleep`, `ppoll` and `restart_syscall` on
            // x86-64, then on AArch64, which has no `epoll_wait`. An interrupted wait with a timeout continues as
            // `restart_syscall`.
            let waits = ["202", "232", "281", "230", "271", "219", "98", "22", "115", "73", "128"];
            if calls.iter().all(|call| waits.contains(&call.as_str())) {
                return Ok(());
            }
            threads.iter().for_each(|&thread| assert!(ptrace(libc::PTRACE_CONT, thread), "{thread} is not stopped"));
            Err(calls)
        });
        ready.send(()).expect("the caller waits");
        // The process cannot end until the tracing thread has reaped each traced thread that ends.
        for thread in threads {
            while let Some(status) = wait(thread)
                && !libc::WIFEXITED(status)
                && !libc::WIFSIGNALED(status)
            {}
        }
    });
    stopped.recv().expect("threads can be stopped: is ptrace allowed here?");
}

/// Traces the node's runners with ptrace, so that no process can reap them until the returned value is dropped.
pub fn hold(node: &Node) -> mpsc::Sender<()> {
    let runners = node.runners();
    assert!(!runners.is_empty(), "{} has no runner", node.name);
    let (release, released) = mpsc::channel::<()>();
    let (ready, held) = mpsc::channel();
    // The kernel detaches the traced processes when the tracing thread ends.
    std::thread::spawn(move || {
        for runner in runners {
            assert!(seize(runner.as_raw_nonzero().get()), "{runner:?} does not run");
        }
        ready.send(()).expect("the caller waits");
        let _ = released.recv();
    });
    held.recv().expect("processes can be traced: is ptrace allowed here?");
    release
}

/// Waits until the thread `name`, which writes to the host's stderr, blocks because the pipe is full.
pub fn wait_until_log_blocks(node: &Node, name: &str) {
    until("a full pipe", || {
        let calls: Vec<String> =
            threads_named(node.pid(), name).iter().map(|&thread| call_of(node.pid(), thread)).collect();
        // The numbers of `poll` and `ppoll` on x86-64, and of `ppoll` on AArch64. The thread makes these calls only to
        // wait for the pipe.
        if calls.iter().any(|call| ["7", "271", "73"].contains(&call.as_str())) { Ok(()) } else { Err(calls) }
    });
}

/// The number of the system call in which the thread waits, or `running`.
fn call_of(process: u32, thread: i32) -> String {
    let call = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall")).unwrap_or_default();
    call.split_whitespace().next().unwrap_or_default().to_owned()
}

/// Returns no ids if the process has ended.
fn threads_named(process: u32, name: &str) -> Vec<i32> {
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

/// Returns false if the thread has ended.
fn seize(thread: i32) -> bool {
    ptrace(libc::PTRACE_SEIZE, thread)
}

fn stop(thread: i32) -> bool {
    ptrace(libc::PTRACE_INTERRUPT, thread) && wait(thread).is_some_and(|status| libc::WIFSTOPPED(status))
}

/// Returns false if the thread has ended.
fn ptrace(request: libc::c_uint, thread: i32) -> bool {
    // SAFETY: the requests that this file makes ignore the address and the data or take them as numbers, so the call
    // accesses no memory of this process.
    let result = unsafe { libc::ptrace(request, thread, null_mut::<libc::c_void>(), null_mut::<libc::c_void>()) };
    let error = std::io::Error::last_os_error();
    assert!(result == 0 || error.raw_os_error() == Some(libc::ESRCH), "{error}");
    result == 0
}

/// Returns `None` if the thread no longer exists.
fn wait(thread: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is a valid local variable that outlives the call.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    (waited == thread).then_some(status)
}
