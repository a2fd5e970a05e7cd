//! Single threads of a host that are stopped, as a debugger stops them, while the others run on.

use std::fs;
use std::ptr::null_mut;
use std::sync::mpsc;

use crate::node::{Node, until};

/// Stops every thread of that name, until the host's process ends.
pub fn freeze(node: &Node, name: &str) {
    let threads: Vec<i32> = named(node, name);
    assert!(!threads.is_empty(), "{} has no thread `{name}`", node.name);
    let (ready, stopped) = mpsc::channel();
    // All calls for a stopped thread must come from the one thread that has stopped it. That one ends with the host's
    // process, which ends with its node at the latest; so the caller, which holds the node, must not wait for it.
    std::thread::spawn(move || {
        for thread in &threads {
            stop(*thread);
        }
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
            seize(runner.as_raw_nonzero().get());
        }
        ready.send(()).expect("somebody waits");
        let _ = released.recv();
    });
    held.recv().expect("processes can be traced: is ptrace allowed here?");
    release
}

/// Waits until the thread of that name, which writes to the host's stderr, waits for somebody to read.
pub fn writes_in_vain(node: &Node, name: &str) {
    // `poll` on x86-64, and `ppoll` there and on AArch64, by their numbers. It waits for nothing else that way.
    let is_poll = |call: &str| ["7 ", "271 ", "73 "].iter().any(|number| call.starts_with(number));
    until("a full pipe", || {
        let calls: Vec<String> = named(node, name)
            .iter()
            .map(|thread| fs::read_to_string(format!("/proc/{}/task/{thread}/syscall", node.pid())).unwrap_or_default())
            .collect();
        if calls.iter().any(|call| is_poll(call)) { Ok(()) } else { Err(calls) }
    });
}

/// The ids of the host's threads of that name.
fn named(node: &Node, name: &str) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", node.pid())).expect("the host runs");
    tasks
        .filter_map(|task| {
            let path = task.ok()?.path();
            let comm = fs::read_to_string(path.join("comm")).ok()?;
            (comm.trim_end() == name).then(|| path.file_name()?.to_str()?.parse().ok())?
        })
        .collect()
}

fn seize(thread: i32) {
    ask(libc::PTRACE_SEIZE, thread);
}

fn ask(request: libc::c_uint, thread: i32) {
    // SAFETY: the requests here read and write no memory of this process: address and data are unused.
    let result = unsafe { libc::ptrace(request, thread, null_mut::<libc::c_void>(), null_mut::<libc::c_void>()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn stop(thread: i32) {
    seize(thread);
    ask(libc::PTRACE_INTERRUPT, thread);
    let status = wait(thread).expect("a stopped thread says so");
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
}

/// The next change of a stopped thread; none if there is no such thread any more.
fn wait(thread: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is this function's own and outlives the call.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    (waited == thread).then_some(status)
}
