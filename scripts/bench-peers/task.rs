//! The task that Baton and `etcdctl lock` run: an ordinary program that appends a line to a file every 10 ms until it
//! is killed. It does not handle stop requests. As a native program, it ends on SIGTERM, unless its parent process
//! ignored that signal.
//!
//! `TASK_FILE` names the file. Each line contains the node, the term or fencing token (if there is one), and the time.

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
        // Write each line in one call, because the kernel appends each write as a whole.
        file.write_all(format!("{node} {token} {now:.6}\n").as_bytes())?;
        sleep(Duration::from_millis(10));
    }
}
