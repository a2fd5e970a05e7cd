//! How the tests wait, which all of them rely on.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::patience::{InVain, Patience};

const PACE: Duration = Duration::from_millis(100);

/// How long it takes until this patience is over.
fn lasts(patience: &mut Patience) -> Duration {
    let began = Instant::now();
    while patience.lasts() {
        std::thread::sleep(PACE);
    }
    began.elapsed()
}

#[test]
fn a_wait_for_what_never_comes_ends_and_is_renewed_by_what_does() {
    let mut patience = Patience::of(Duration::from_secs(3));
    assert!(lasts(&mut patience) >= Duration::from_secs(2));
    assert!(!patience.lasts());
    patience.renew();
    assert!(patience.lasts());
    assert_eq!(Patience::poll(PACE, || Some(1)), Ok(1));
}

#[tokio::test]
async fn what_has_come_is_returned() {
    assert_eq!(Patience::of_future(async { 1 }).await, Ok::<_, InVain>(1));
}

#[test]
fn a_build_that_gets_on_is_waited_for() {
    // What a process has started that this one has started, as a host starts a compiler.
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
        std::thread::sleep(PACE);
    }
    let builder = rustix::process::Pid::from_raw(line.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(builder, rustix::process::Signal::KILL).unwrap();
    host.wait().unwrap();
    lasts(&mut patience);
}
