#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod fleet;

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::*;
use crate::RecordedVerdict;
use baton_store::Reading;
use fleet::{File, Fleet, component, name, rejected, version};

#[tokio::test]
async fn push_is_ready_on_all_nodes_with_a_fallback_until_good() {
    let fleet = Fleet::new();
    let mut node = fleet.node("a");
    node.says("baton push MODULE fleet").await;
    assert!(node.supply.borrow().current.is_none());

    let first = fleet.push(1).await;
    node.supplied(Some((first, 1)), None).await;
    node.judge(first, 1, Verdict::Good);
    let second = fleet.push(2).await;
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    let mut other = fleet.node("b");
    other.supplied(Some((second, 2)), Some((first, 1))).await;

    node.judge(second, 2, Verdict::Good);
    node.supplied(Some((second, 2)), None).await;
    other.supplied(Some((second, 2)), None).await;
    fleet.control(|control| control.pushed.iter().all(|entry| entry.verdict == Some(RecordedVerdict::Good))).await;
    assert_eq!(node.says("Ready {").await.matches("Ready {").count(), 2);
    // If a version that is already prepared is pushed again, the node does not report it as ready again.
    fleet.push(2).await;
    fleet.push(1).await;
    node.supplied(Some((first, 3)), None).await;
}

#[tokio::test]
async fn rejection_applies_at_once_and_is_recorded_after_an_outage() {
    let fleet = Fleet::new();
    let (first, second) = (fleet.push(1).await, fleet.push(2).await);
    let mut node = fleet.node("a");
    let mut other = fleet.node("b");
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    other.supplied(Some((second, 2)), Some((first, 1))).await;

    fleet.store.interceptor.is_down.store(true, Ordering::Relaxed);
    node.says("Unreachable").await;
    node.judge(second, 2, rejected("it trapped"));
    node.supplied(Some((first, 1)), None).await;
    node.says("cannot record a verdict").await;
    node.judge(first, 1, Verdict::Good);
    fleet.store.interceptor.is_down.store(false, Ordering::Relaxed);
    other.supplied(Some((first, 1)), None).await;
    let said = other.says("it trapped").await;
    assert!(said.contains(&format!("instead: Some({first})")), "{said}");
    fleet.control(|control| control.current().is_some_and(|it| it.verdict == Some(RecordedVerdict::Good))).await;
    node.says("Reachable").await;

    // A version that is pushed again counts as new, and has no verdict.
    fleet.push(1).await;
    fleet.push(2).await;
    for node in [&mut node, &mut other] {
        node.supplied(Some((second, 3)), Some((first, 1))).await;
    }
    // This judgement is about the earlier push, so it does not apply to the later push.
    node.judge(second, 2, rejected("late"));
    fleet.push(3).await;
    let log = node.end().await;
    assert_eq!(log.matches("Unreachable").count(), 1, "{log}");
    assert_eq!(log.matches("cannot record a verdict").count(), 1, "{log}");
    assert!(!log.contains("Rejected"), "who judges says so itself: {log}");
    fleet.control(|control| control.pushed.iter().all(|entry| entry.rejection().is_none())).await;
}

#[tokio::test]
async fn failed_preparation_is_reported_once_and_keeps_the_supply() {
    let fleet = Fleet::new();
    let first = fleet.push(1).await;
    let mut node = fleet.node("a");
    node.supplied(Some((first, 1)), None).await;

    let not_wasm = fleet.push_bytes(Bytes::from_static(b"not wasm")).await;
    let said = node.says("Refused").await;
    assert!(said.contains(&not_wasm.to_string()) && said.contains("not WebAssembly"), "{said}");
    assert!(said.contains(&format!("instead: Some({first})")), "{said}");
    let missing = Digest::of(&component(7));
    fleet.name(missing, 1).await;
    node.says("the store does not have the module").await;
    let damaged = Digest::of(&component(8));
    fleet.store.store.put_module(&damaged, component(9)).await.unwrap();
    fleet.name(damaged, 1).await;
    node.says("has different content").await;
    // A node does not wait for the damaged version, even if no other version is ready.
    let mut fresh = fleet.node("b");
    let said = fresh.says("Refused").await;
    assert!(said.contains(&damaged.to_string()) && said.contains("instead: None"), "{said}");
    fresh.supplied(Some((first, 1)), None).await;
    assert_eq!(node.supply.borrow().current.as_ref().unwrap().version(), version(first, 1));

    fleet.store.store.put_module(&missing, component(7)).await.unwrap();
    for node in [&mut node, &mut fresh] {
        node.supplied(Some((missing, 3)), Some((first, 1))).await;
    }
    let log = node.end().await;
    assert_eq!(log.matches("Refused").count(), 3, "{log}");
}

#[tokio::test]
async fn follower_waits_when_the_store_cannot_read_modules() {
    let fleet = Fleet::new();
    let first = fleet.push(1).await;
    fleet.store.interceptor.has_no_modules.store(true, Ordering::Relaxed);
    let mut node = fleet.node("a");
    node.says("Unreachable").await;
    let second = fleet.push(2).await;
    fleet.store.interceptor.has_no_modules.store(false, Ordering::Relaxed);
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    let log = node.end().await;
    assert_eq!((log.matches("Unreachable").count(), log.matches("Reachable").count()), (1, 1), "{log}");
    assert!(!log.contains("Refused"), "{log}");
}

#[tokio::test]
async fn hint_during_a_read_causes_another_read() {
    let fleet = Fleet::new();
    let first = fleet.push(1).await;
    let (mut follower, mut node) = fleet.follower("a", None);
    let (hour, notifier) = (Duration::from_secs(3600), follower.config.notifier.clone());
    follower.config.pace.poll = (hour, hour);
    node.running = Some(tokio::spawn(follower.run()));
    node.supplied(Some((first, 1)), None).await;
    fleet.store.interceptor.answers_late.store(true, Ordering::Relaxed);
    notifier.look();
    while !fleet.store.interceptor.has_read.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let second = fleet.push(2).await;
    notifier.look();
    // The follower runs on this thread. It has received the hint by the end of this loop.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    fleet.store.interceptor.answers_late.store(false, Ordering::Relaxed);
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    node.end().await;
}

#[tokio::test]
async fn module_is_reported_when_it_takes_long_to_fetch() {
    let fleet = Fleet::new();
    fleet.store.interceptor.modules_are_slow.store(true, Ordering::Relaxed);
    let first = fleet.push(1).await;
    let mut node = fleet.node("a");
    let said = node.says("Pulling").await;
    assert!(said.contains(&first.to_string()), "{said}");
    fleet.store.interceptor.modules_are_slow.store(false, Ordering::Relaxed);
    node.supplied(Some((first, 1)), None).await;
    let log = node.end().await;
    assert_eq!(log.matches("Pulling").count(), 1, "{log}");
}

#[tokio::test]
async fn newer_push_does_not_wait_for_a_slow_preparation() {
    let fleet = Fleet::new();
    let first = fleet.push(1).await;
    let mut node = fleet.node("a");
    node.supplied(Some((first, 1)), None).await;
    let slow = fleet.slow(2).await;
    while node.prepares.load(Ordering::Relaxed) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let said = node.says("Compiling").await;
    assert!(said.contains(&slow.to_string()), "{said}");
    let third = fleet.push(3).await;
    // The slow version is next in line as the fallback, but it never becomes ready. The node uses the next ready
    // version instead.
    node.supplied(Some((third, 3)), Some((first, 1))).await;
    assert_ne!(slow, third);
    node.end().await;
}

#[tokio::test]
async fn damaged_control_object_is_reported_and_changes_nothing() {
    let fleet = Fleet::new();
    let first = fleet.push(1).await;
    let mut node = fleet.node("a");
    node.supplied(Some((first, 1)), None).await;
    let Reading::Found(version, good) = fleet.store.store.read_control(&fleet.election, None).await.unwrap() else {
        panic!("it was pushed");
    };
    let write = |version, content: Bytes| {
        let store = Arc::clone(&fleet.store.store);
        async move { store.write_control(&name(), Some(&version), content).await.unwrap() }
    };
    let version = write(version, Bytes::from_static(b"{}")).await;
    node.says("damaged").await;
    let version = write(version, Bytes::from_static(br#"{"format":2}"#)).await;
    node.says("format 2").await;
    assert!(node.supply.borrow().current.is_some());
    write(version, good).await;
    let second = fleet.push(2).await;
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    let log = node.end().await;
    assert_eq!(log.matches("Error {").count(), 2, "{log}");
}

#[tokio::test]
async fn file_falls_back_on_its_previous_content() {
    let fleet = Fleet::new();
    let (mut node, file) = fleet.node_with_file("a", component(1)).await;
    let first = Digest::of(&component(1));
    node.supplied(Some((first, 1)), None).await;
    node.judge(first, 1, Verdict::Good);
    let second = file.becomes(component(2));
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    node.judge(second, 2, Verdict::Good);
    node.supplied(Some((second, 2)), None).await;

    file.becomes(Bytes::from_static(b"half a fi"));
    node.says("not WebAssembly").await;
    file.fails(SourceError::Unusable("there is no such file".to_owned()));
    node.says("there is no such file").await;
    assert_eq!(node.supply.borrow().current.as_ref().unwrap().version(), version(second, 2));

    let third = file.becomes(component(3));
    node.supplied(Some((third, 4)), Some((second, 2))).await;
    node.judge(third, 4, rejected("it was fatal"));
    node.supplied(Some((second, 2)), None).await;
    fleet.control(|control| control.unpushed.iter().any(|entry| entry.digest == third && entry.size > 0)).await;

    // Another node has a file with the rejected content. That node runs nothing until a push, which removes the
    // rejections of all modules that were not pushed.
    let (mut other, _file) = fleet.node_with_file("b", component(3)).await;
    let said = other.says("Rejected").await;
    assert!(said.contains("it was fatal") && said.contains("instead: None"), "{said}");
    assert!(other.supply.borrow().current.is_none());
    fleet.push(4).await;
    other.supplied(Some((third, 2)), None).await;
    node.supplied(Some((third, 5)), Some((second, 2))).await;
    let log = other.end().await;
    assert_eq!(log.matches("Rejected").count(), 1, "{log}");
}

#[tokio::test]
async fn load_fails_when_the_file_cannot_run() {
    let fleet = Fleet::new();
    for (bytes, needs) in [(&b"not wasm"[..], "x.wasm: the module"), (b"", "empty")] {
        let file = File::default();
        file.becomes(Bytes::from_static(bytes));
        let (mut follower, ..) = fleet.follower("a", Some(Box::new(file)));
        let error = follower.load().await.unwrap_err().to_string();
        assert!(error.contains(needs), "{error}");
    }
}

#[tokio::test]
async fn load_succeeds_when_the_machine_is_too_busy_to_compile() {
    let fleet = Fleet::new();
    fleet.is_busy.store(true, Ordering::Relaxed);
    let (mut node, _file) = fleet.node_with_file("a", component(1)).await;
    node.says("the machine is too busy").await;
    assert!(node.supply.borrow().current.is_none());
    fleet.is_busy.store(false, Ordering::Relaxed);
    node.supplied(Some((Digest::of(&component(1)), 1)), None).await;
    node.end().await;
}

#[tokio::test]
async fn file_is_supplied_when_the_store_is_down() {
    let fleet = Fleet::new();
    fleet.store.interceptor.is_down.store(true, Ordering::Relaxed);
    let (mut node, _file) = fleet.node_with_file("a", component(1)).await;
    node.supplied(Some((Digest::of(&component(1)), 1)), None).await;
    node.end().await;
}

#[tokio::test]
async fn follower_names_the_modules_that_could_start() {
    let fleet = Fleet::new();
    let (first, second) = (fleet.push(1).await, fleet.push(2).await);
    let mut node = fleet.node("a");
    let mut held = [first, second];
    held.sort_unstable();
    node.holds(&held).await;
    node.judge(second, 2, Verdict::Good);
    node.holds(&[second]).await;
    node.end().await;
}

#[tokio::test]
async fn last_judgement_is_written_unless_the_store_hangs() {
    let fleet = Fleet::new();
    fleet.push(1).await;
    let second = fleet.push(2).await;
    let mut node = fleet.node("a");
    node.supplied_current((second, 2)).await;
    node.judge(second, 2, rejected("at the very end"));
    node.end().await;
    fleet.control(|control| control.pushed.iter().any(|entry| entry.rejection() == Some("at the very end"))).await;

    let mut hung = fleet.node("b");
    hung.supply.changed().await.unwrap();
    fleet.store.interceptor.hangs.store(true, Ordering::Relaxed);
    let current = hung.supply.borrow().current.as_ref().unwrap().version();
    let judgement = Judgement { version: current, term: 1, verdict: Verdict::Good };
    hung.judge.as_ref().unwrap().send(judgement).unwrap();
    hung.end().await;
}
