//! The task that Baton and `etcdctl lock` run, one source for both: an ordinary program that appends a line to a file
//! every 10 ms until it is ended. It knows no stop: natively SIGTERM ends it, unless the process that starts it has
//! that signal ignored.
//!
//! `TASK_FILE` is the file. A line is the node, the term or token it was given, and the time.

use std::env::var;
use std::fs::OpenOptions;
use std::io::Write;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = var("BATON_NODE").or_else(|_| var("NODE"))?;
    let token = var("BATON_TERM").or_else(|_| var("ETCD_LOCK_REV")).unwrap_or_else(|_| "-".into());
    let mut file = OpenOptions::new().append(true).create(true).open(var("TASK_FILE")?)?;
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        // In one write, which the kernel puts at the end of the file whole.
        file.write_all(format!("{node} {token} {now:.6}\n").as_bytes())?;
        sleep(Duration::from_millis(10));
    }
}
