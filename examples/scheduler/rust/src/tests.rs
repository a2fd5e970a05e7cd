#![allow(clippy::unwrap_used, reason = "a failure in a test is a panic")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_sdk::http::Response;
use baton_sdk::testing::Harness;
use baton_sdk::{StateError, StopReason};

use super::*;

/// Simulates workers that answer each request with term 7. Returns the requests that they receive.
fn workers(test: &Harness, mut status: impl FnMut(&str) -> u16 + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let its = Arc::clone(&asked);
    test.answer(move |request| {
        let what = format!("{} {}", request.uri().host().unwrap(), request.uri().path());
        let status = status(&what);
        its.lock().unwrap().push(what);
        Ok(Response::builder().status(status).body(b"7".to_vec())?)
    });
    asked
}

fn settings(partitions: u64) -> Settings {
    let pairs = [("WORKERS", "http://a,http://b".to_owned()), ("PARTITIONS", partitions.to_string())];
    Settings::read(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone())).unwrap()
}

fn run(test: &Harness, partitions: u64) -> baton_sdk::Result {
    test.run_async(async |term| schedule(term, &settings(partitions)).await)
}

#[test]
fn each_partition_is_acknowledged_once() {
    let test = Harness::new();
    let asked = workers(&test, |_| 200);
    run(&test, 3).unwrap();
    // The second run offers nothing, because the first run has saved all acknowledgements.
    run(&test, 3).unwrap();
    assert_eq!(*asked.lock().unwrap(), ["a /partitions/0", "b /partitions/1", "a /partitions/2"]);
    let saved: Acknowledgement = test.state().get("partitions/1").unwrap().unwrap();
    assert_eq!((saved.worker.as_str(), saved.term), ("http://b", 7));
}

#[test]
fn partition_is_offered_again_when_the_commit_fails() {
    let test = Harness::new();
    let asked = workers(&test, |_| 200);
    test.fail_commit(StateError::Unavailable("no answer".into()));
    assert!(run(&test, 1).is_err());
    run(&test, 1).unwrap();
    assert_eq!(*asked.lock().unwrap(), ["a /partitions/0", "a /partitions/0"]);
}

#[test]
fn another_worker_is_asked_after_a_pause() {
    let test = Harness::new();
    let asked = workers(&test, |what| if what.starts_with('a') { 503 } else { 200 });
    let began = test.now();
    run(&test, 1).unwrap();
    assert_eq!(*asked.lock().unwrap(), ["a /partitions/0", "b /partitions/0"]);
    assert_eq!(test.now(), began + Duration::from_secs(1));
}

#[test]
fn stop_interrupts_the_request_and_the_pause() {
    let test = Harness::new();
    let asked = workers(&test, |_| 503);
    test.stop_after(Duration::from_millis(500), StopReason::Shutdown);
    run(&test, 1).unwrap();
    assert_eq!(asked.lock().unwrap().len(), 1);
    test.latency(Duration::from_secs(3600));
    test.stop_after(Duration::from_millis(500), StopReason::Shutdown);
    run(&test, 1).unwrap();
    assert_eq!(test.commit_count(), 0);
}
