//! Tests of [`Patience`], which all other tests use for their timeouts.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::patience::{InVain, Patience};

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until the timeout has passed. Returns how long that took.
fn exhaust(patience: &mut Patience) -> Duration {
    let began = Instant::now();
    while patience.lasts() {
        std::thread::sleep(POLL_INTERVAL);
    }
    began.elapsed()
}

#[test]
fn patience_ends_and_can_be_renewed() {
    let mut patience = Patience::of(Duration::from_secs(3));
    assert!(exhaust(&mut patience) >= Duration::from_secs(2));
    assert!(!patience.lasts());
    patience.renew();
    assert!(patience.lasts());
    assert_eq!(Patience::poll(POLL_INTERVAL, || Some(1)), Ok(1));
}

#[tokio::test]
async fn completed_future_returns_its_output() {
    assert_eq!(Patience::of_future(async { 1 }).await, Ok::<_, InVain>(1));
}

#[test]
fn patience_lasts_while_a_build_makes_progress() {
    // The inner shell is a grandchild of this process, like a compiler that a host has started. Its CPU time counts as
    // progress.
    let mut host = Command::new("sh")
        .args(["-c", "sh -c 'while :; do :; done' & echo $!; wait"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(host.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut patience = Patience::of(Duration::from_secs(3));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        assert!(patience.lasts(), "after {:?}", began.elapsed());
        std::thread::sleep(POLL_INTERVAL);
    }
    let builder = rustix::process::Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(builder, rustix::process::Signal::KILL).unwrap();
    host.wait().unwrap();
    exhaust(&mut patience);
}
