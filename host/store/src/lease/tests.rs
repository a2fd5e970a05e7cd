#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use super::*;

const A: u128 = 1;
const B: u128 = 2;
const D: Duration = Duration::from_secs(15);

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn id(n: u128) -> LeaseId {
    LeaseId::from_random(n)
}

fn version(v: &str) -> Version {
    Version(v.to_owned())
}

fn record(term: u64) -> Record {
    Record {
        term,
        node: Some("n".to_owned()),
        incarnation: "i".to_owned(),
        since: s(1),
        lease: D,
        module: None,
        outcome: None,
        failures: 0,
        released: false,
        paused_until: None,
        progress: None,
    }
}

struct LeaseBench {
    object: Option<LeaseObject>,
    now: Duration,
    changed: Duration,
    writes: u32,
}

impl LeaseBench {
    fn created() -> Self {
        let mut bench = Self { object: None, now: s(100), changed: s(100), writes: 0 };
        bench.ask(Op::Create { record: record(0) }).unwrap();
        bench
    }

    fn held() -> Self {
        let mut bench = Self::created();
        bench.acquire(A).unwrap();
        bench
    }

    fn ask(&mut self, op: Op) -> Result<Reply, StoreError> {
        self.writes += 1;
        let next = version(&format!("v{}", self.writes));
        let before = self.object.clone();
        let elapsed = self.now - self.changed;
        let answer = apply(&mut self.object, op, elapsed, next);
        if answer.is_err() {
            assert_eq!(self.object, before, "a refused request changed the object");
        }
        self.note(before.as_ref());
        answer
    }

    fn note(&mut self, before: Option<&LeaseObject>) {
        if before.map(|row| row.lease.changes) != self.object.as_ref().map(|row| row.lease.changes) {
            self.changed = self.now;
        }
    }

    fn version(&self) -> Version {
        self.object.as_ref().unwrap().version.clone()
    }

    fn acquire(&mut self, n: u128) -> Result<Reply, StoreError> {
        let version = self.version();
        self.ask(Op::Acquire { id: id(n), length: D, version, instead_of: None })
    }

    fn renew(&mut self, n: u128) -> Result<Reply, StoreError> {
        self.ask(Op::Renew { id: id(n) })
    }

    fn release(&mut self, n: u128) -> Result<Reply, StoreError> {
        self.ask(Op::Release { id: id(n) })
    }

    fn write(&mut self, n: u128) -> Result<Reply, StoreError> {
        let version = self.version();
        self.ask(Op::Write { id: id(n), version, record: record(1) })
    }

    fn break_after(&mut self, period: Duration) -> Result<(), StoreError> {
        let before = self.object.clone();
        let elapsed = self.now - self.changed;
        let answer = self.object.as_mut().unwrap().lease.break_after(period, elapsed);
        self.note(before.as_ref());
        answer
    }

    fn state(&self) -> LeaseState {
        self.object.as_ref().unwrap().lease.state(self.now - self.changed)
    }
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    assert!(matches!(answer, Err(StoreError::Lost(_))), "{answer:?}");
}

#[test]
fn missing_object_is_created_once_and_refuses_lease_requests() {
    let mut bench = LeaseBench { object: None, now: s(1), changed: s(1), writes: 0 };
    assert_eq!(bench.ask(Op::Read), Ok(Reply::Read(Snapshot::Nothing)));
    assert_lost(bench.ask(Op::Acquire { id: id(A), length: D, version: version("v"), instead_of: None }));
    assert_lost(bench.renew(A));
    assert_lost(bench.release(A));
    assert_lost(bench.ask(Op::Write { id: id(A), version: version("v"), record: record(1) }));
    assert!(matches!(bench.ask(Op::Create { record: record(0) }), Ok(Reply::Version(_))));
    assert_eq!(bench.ask(Op::Create { record: record(0) }), Err(StoreError::Conflict));
    assert_eq!(bench.state(), LeaseState::Free);
}

#[test]
fn repeated_acquire_succeeds_and_restarts_the_lease() {
    let mut bench = LeaseBench::held();
    bench.now += s(10);
    assert_eq!(bench.acquire(A), Ok(Reply::Done));
    bench.now += s(14);
    assert_eq!(bench.state(), LeaseState::Held);
    assert_eq!(bench.acquire(B), Err(StoreError::Held));
    bench.now += s(1);
    assert_eq!(bench.state(), LeaseState::Expired);
    assert_eq!(bench.acquire(B), Ok(Reply::Done));
}

#[test]
fn version_changes_with_a_write_but_not_with_lease_requests() {
    let mut bench = LeaseBench::created();
    let before = bench.version();
    bench.acquire(A).unwrap();
    bench.renew(A).unwrap();
    bench.break_after(s(5)).unwrap();
    bench.release(A).unwrap();
    bench.acquire(B).unwrap();
    assert_eq!(bench.version(), before);
    let Ok(Reply::Version(written)) = bench.write(B) else { panic!("the write was refused") };
    assert_ne!(written, before);
    assert_eq!(bench.version(), written);
    let seen = bench.ask(Op::Read).unwrap();
    let lease = LeaseState::Held;
    assert_eq!(seen, Reply::Read(Snapshot::Object { lease, version: written, record: Some(record(1)) }));
}

#[test]
fn stale_version_conflicts_unless_the_lease_is_lost() {
    let mut bench = LeaseBench::created();
    let other = version("other");
    assert_eq!(
        bench.ask(Op::Acquire { id: id(A), length: D, version: other.clone(), instead_of: None }),
        Err(StoreError::Conflict)
    );
    bench.acquire(A).unwrap();
    let write = |n| Op::Write { id: id(n), version: other.clone(), record: record(1) };
    assert_eq!(bench.ask(write(A)), Err(StoreError::Conflict));
    assert_lost(bench.ask(write(B)));
}

#[test]
fn expired_lease_can_be_renewed_but_not_written_under() {
    let mut bench = LeaseBench::held();
    bench.now += D;
    assert_lost(bench.write(A));
    assert_eq!(bench.renew(A), Ok(Reply::Done));
    assert_eq!(bench.state(), LeaseState::Held);
    assert!(bench.write(A).is_ok());
    bench.now += D;
    bench.acquire(B).unwrap();
    assert_lost(bench.renew(A));
    assert_lost(bench.write(A));
    assert_lost(bench.release(A));
    assert_eq!(bench.state(), LeaseState::Held);
}

#[test]
fn request_with_a_wrong_id_is_lost_while_the_lease_is_held() {
    let mut bench = LeaseBench::held();
    assert_lost(bench.renew(B));
    assert_lost(bench.write(B));
    assert_lost(bench.release(B));
    assert_eq!(bench.renew(A), Ok(Reply::Done));
}

#[test]
fn released_lease_is_free_at_once_and_lost_to_its_holder() {
    let mut bench = LeaseBench::held();
    bench.release(A).unwrap();
    assert_eq!(bench.state(), LeaseState::Free);
    assert_lost(bench.renew(A));
    assert_lost(bench.write(A));
    assert_lost(bench.release(A));
    assert_eq!(bench.acquire(B), Ok(Reply::Done));
}

#[test]
fn break_without_a_period_frees_the_lease_at_once() {
    let mut bench = LeaseBench::held();
    bench.break_after(Duration::ZERO).unwrap();
    assert_eq!(bench.state(), LeaseState::Broken);
    assert_lost(bench.renew(A));
    assert_lost(bench.write(A));
    assert_eq!(bench.acquire(B), Ok(Reply::Done));
    assert_eq!(bench.state(), LeaseState::Held);
}

#[test]
fn break_with_a_period_lets_the_holder_write_until_it_ends() {
    let mut bench = LeaseBench::held();
    bench.break_after(s(5)).unwrap();
    bench.now += s(4);
    assert_eq!(bench.state(), LeaseState::Breaking);
    assert_eq!(bench.acquire(A), Err(StoreError::Held));
    assert_eq!(bench.acquire(B), Err(StoreError::Held));
    assert!(bench.write(A).is_ok());
    assert_lost(bench.write(B));
    assert_lost(bench.renew(A));
    bench.now += s(1);
    assert_eq!(bench.state(), LeaseState::Broken);
    assert_lost(bench.write(A));
    assert_eq!(bench.acquire(B), Ok(Reply::Done));
}

#[test]
fn break_never_extends_a_lease() {
    let mut bench = LeaseBench::held();
    bench.now += s(12);
    bench.break_after(s(60)).unwrap();
    bench.now += s(1);
    bench.break_after(s(60)).unwrap();
    bench.now += s(1);
    assert_eq!(bench.state(), LeaseState::Breaking);
    bench.now += s(1);
    assert_eq!(bench.state(), LeaseState::Broken);
    assert_lost(LeaseBench::created().break_after(s(0)));
}

#[test]
fn lease_without_an_end_ends_only_by_release_or_break() {
    let mut bench = LeaseBench::held();
    bench.object.as_mut().unwrap().lease.length = None;
    bench.now += s(1_000_000);
    assert_eq!(bench.state(), LeaseState::HeldForever);
    assert_eq!(bench.acquire(B), Err(StoreError::Held));
    bench.break_after(s(60)).unwrap();
    bench.now += s(59);
    assert_eq!(bench.state(), LeaseState::Breaking);
    bench.now += s(1);
    assert_eq!(bench.state(), LeaseState::Broken);
}
