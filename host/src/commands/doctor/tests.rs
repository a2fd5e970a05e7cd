//! Runs the trial on stores that each have one fault. The trial must find the fault, and report it under the right
//! check.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, LeaseId, LeaseState, Op, Reply, Snapshot, StoreError, Version};
use tokio::sync::mpsc;

use super::scratch::Scratch;
use super::trial::{self, Advice, News, Plan};
use crate::cli::{Finding, Level};
use baton_base::clock::Clock;
use baton_store::azure::MAY_NOT;
use baton_store::conformance::{CHECKS, Run};
use baton_store::{
    Intercept, Interceptor, LeaseStore, Listing, MemoryStore, ObjectStore, Reading, StoreAnswer, StoreCall,
};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    Nothing,
    ForgetsLeases,
    LetsTwoHold,
    RefusesHolder,
    ReleasesForAnyId,
    IgnoresReleases,
    KeepsPreviousId,
    RenewsBrokenLeases,
    CreatesTwice,
    AcquiresAnyVersion,
    WritesWithoutLease,
    WritesUnderAnyId,
    IgnoresIfMatch,
    OverwritesObjects,
    ListsNothing,
    KeepsObjects,
    IsSlow,
    Denies(&'static str),
    Hangs,
    /// The store's clock runs at this percentage of its correct speed.
    ClockRuns(u32),
    IgnoresRenewals,
    RenewsForFormerHolder,
    WritesUnderExpiredLeases,
    RenewsExpiredForAnyId,
    /// The store carries out the first request of this kind, but the response is lost.
    LosesAnswer(&'static str),
    /// The store is correct, but this machine pauses when the store first refuses it a lease.
    PausesMachine(Duration),
}

struct Faults {
    fault: Fault,
    held: Mutex<HashSet<LeaseId>>,
    /// True once a fault that occurs only once has occurred.
    once: AtomicBool,
}

type FaultyStore = Intercept<MemoryStore, Faults>;

fn faulty(fault: Fault) -> Arc<FaultyStore> {
    let clock = Clock::default();
    let percent = match fault {
        Fault::ClockRuns(percent) => percent,
        _ => 100,
    };
    let store = Arc::new(MemoryStore::new(Arc::new(move || clock.now().0 * percent / 100)));
    Arc::new(Intercept { store, interceptor: Faults { fault, held: Mutex::default(), once: AtomicBool::default() } })
}

#[async_trait]
impl Interceptor<MemoryStore> for Faults {
    async fn intercept(&self, call: StoreCall, store: &MemoryStore) -> Result<StoreAnswer, StoreError> {
        self.check_right(&call)?;
        match (self.fault, call) {
            (_, StoreCall::Request(election, op)) => self.request(&election, op, store).await.map(StoreAnswer::Reply),
            (Fault::OverwritesObjects, StoreCall::Write { object, election, version: Some(_), content }) => {
                let version = match store.read(object, &election, None).await? {
                    Reading::Found(version, _) => Some(version),
                    _ => None,
                };
                StoreCall::Write { object, election, version, content }.send(store).await
            }
            (Fault::ListsNothing, StoreCall::List(_)) => Ok(StoreAnswer::Listed(Vec::new())),
            (Fault::KeepsObjects, StoreCall::Remove(..)) => Ok(StoreAnswer::IsAbsent(false)),
            (Fault::WritesWithoutLease, call @ StoreCall::Overwrite(..)) => match call.send(store).await {
                Err(StoreError::Lost(_)) => Ok(StoreAnswer::Version(Version("any".to_owned()))),
                answer => answer,
            },
            (_, call) => call.send(store).await,
        }
    }
}

impl Faults {
    fn check_right(&self, call: &StoreCall) -> Result<(), StoreError> {
        let needed = match call {
            StoreCall::Request(_, Op::Read | Op::Recall | Op::Survey) => "read",
            StoreCall::Request(_, Op::Create { .. }) => "create",
            StoreCall::Request(..) => "write",
            StoreCall::Elections | StoreCall::List(_) => "list",
            StoreCall::Remove(..) | StoreCall::Delete { .. } | StoreCall::RemoveElection(_) => "remove",
            _ => "",
        };
        match self.fault {
            Fault::Denies(right) if right == needed => {
                Err(StoreError::Misconfigured(format!("{MAY_NOT} leases (403)")))
            }
            _ => Ok(()),
        }
    }

    async fn request(&self, election: &ElectionName, op: Op, store: &MemoryStore) -> Result<Reply, StoreError> {
        let before = match store.request(election, Op::Read).await {
            Ok(Reply::Read(Snapshot::Object { lease, version, .. })) => Some((lease, version)),
            _ => None,
        };
        let state = before.as_ref().map(|(lease, _)| *lease);
        let any_version = || before.as_ref().map(|(_, version)| version.clone()).expect("the record exists");
        let op = match (self.fault, op) {
            (Fault::Hangs, Op::Renew { .. }) => std::future::pending().await,
            (Fault::IsSlow, op @ Op::Renew { .. }) => {
                tokio::time::sleep(Duration::from_millis(400)).await;
                op
            }
            (Fault::RefusesHolder, Op::Acquire { .. }) if state == Some(LeaseState::Held) => {
                return Err(StoreError::Held);
            }
            (Fault::IgnoresReleases, Op::Release { .. }) => return Ok(Reply::Done),
            (Fault::KeepsPreviousId, Op::Reclaim { from, .. }) => Op::Renew { id: from },
            (Fault::IgnoresRenewals, Op::Renew { id }) if state == Some(LeaseState::Held) && self.knows(id) => {
                return Ok(Reply::Done);
            }
            (Fault::AcquiresAnyVersion, Op::Acquire { id, length, instead_of, .. }) => {
                Op::Acquire { id, length, version: any_version(), instead_of }
            }
            (Fault::IgnoresIfMatch, Op::Write { id, record, .. }) => Op::Write { id, version: any_version(), record },
            (_, op) => op,
        };
        let answer = store.request(election, op.clone()).await;
        match (self.fault, &op, &answer) {
            (Fault::LosesAnswer(what), _, _) if op.to_string() == what && self.is_first() => {
                return Err(StoreError::Unknown("the connection was cut".to_owned()));
            }
            (Fault::PausesMachine(time), Op::Acquire { .. }, Err(StoreError::Held)) if self.is_first() => {
                std::thread::sleep(time);
            }
            (_, Op::Acquire { id, .. }, Ok(_)) => {
                self.held.lock().unwrap().insert(*id);
                if self.fault == Fault::ForgetsLeases {
                    store.request(election, Op::Release { id: *id }).await?;
                }
            }
            (Fault::LetsTwoHold, Op::Acquire { .. }, Err(StoreError::Held)) => return Ok(Reply::Done),
            (Fault::ReleasesForAnyId, Op::Release { .. }, Err(StoreError::Lost(_))) => {
                let _ = store.break_lease(election, Duration::ZERO);
            }
            (Fault::RenewsBrokenLeases, Op::Renew { .. }, Err(_)) if state == Some(LeaseState::Broken) => {
                return Ok(Reply::Done);
            }
            (Fault::RenewsForFormerHolder, Op::Renew { id }, Err(_))
                if state == Some(LeaseState::Held) && self.knows(*id) =>
            {
                return Ok(Reply::Done);
            }
            (Fault::RenewsExpiredForAnyId, Op::Renew { .. }, Err(_)) if state == Some(LeaseState::Expired) => {
                return Ok(Reply::Done);
            }
            (Fault::CreatesTwice, Op::Create { .. }, Err(StoreError::Conflict)) => {
                return Ok(Reply::Version(any_version()));
            }
            (Fault::WritesUnderAnyId, Op::Write { .. }, Err(StoreError::Lost(_))) => {
                return Ok(Reply::Version(any_version()));
            }
            (Fault::WritesUnderExpiredLeases, Op::Write { .. }, Err(_)) if state == Some(LeaseState::Expired) => {
                return Ok(Reply::Version(any_version()));
            }
            _ => {}
        }
        answer
    }

    fn is_first(&self) -> bool {
        !self.once.swap(true, Ordering::Relaxed)
    }

    fn knows(&self, id: LeaseId) -> bool {
        self.held.lock().unwrap().contains(&id)
    }
}

/// Runs the trial on a store with this fault, as if the store were the Azure emulator. Checks that the trial leaves
/// nothing behind.
async fn found(fault: Fault, quick: bool) -> Vec<Finding> {
    found_on("azurite", fault, quick).await
}

async fn found_on(place: &str, fault: Fault, quick: bool) -> Vec<Finding> {
    let store = faulty(fault);
    let scratch = Scratch::new(Arc::clone(&store) as _, trial::elections()).unwrap();
    let advice = Advice::on(&place.parse().unwrap());
    let plan = Plan { create: true, advice, lease: Duration::from_secs(3), quick };
    let (news, mut news_receiver) = mpsc::unbounded_channel();
    trial::try_store(scratch.clone(), plan, news).await;
    let mut findings = Vec::new();
    while let Some(news) = news_receiver.recv().await {
        if let News::Found(finding) = news {
            findings.push(finding);
        }
    }
    if !matches!(fault, Fault::Denies("remove") | Fault::KeepsObjects) {
        scratch.remove().await.unwrap();
        assert_eq!(store.store.elections().await, Ok(Vec::new()));
        assert!(store.store.list(&Listing::Announcements(scratch.elections[0].clone())).await.unwrap().is_empty());
    }
    findings
}

#[track_caller]
fn of<'a>(findings: &'a [Finding], check: &str, level: Level) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.check == check);
    found.filter(|finding| finding.level == level).unwrap_or_else(|| panic!("no {level:?} of {check}: {findings:#?}"))
}

#[tokio::test]
async fn correct_store_passes_every_check() {
    let findings = found(Fault::Nothing, false).await;
    let names: Vec<_> = findings.iter().map(|finding| finding.check).collect();
    let all = trial::names().into_iter().filter(|name| *name != "removed");
    assert_eq!(names.iter().copied().collect::<HashSet<_>>(), all.collect());
    // Skip the timing checks, which may report problems if the machine is busy.
    let others = findings.iter().filter(|finding| finding.check != "latency" && finding.check != "lease-length");
    for finding in others {
        assert_eq!(finding.level, Level::Ok, "{finding:?}");
    }
}

#[tokio::test]
async fn immediate_faults_are_reported_under_their_check() {
    let faults = [
        (Fault::ForgetsLeases, "lease-kept"),
        (Fault::LetsTwoHold, "lease-exclusive"),
        (Fault::RefusesHolder, "lease-own-id"),
        (Fault::ReleasesForAnyId, "lease-wrong-id"),
        (Fault::IgnoresReleases, "lease-release"),
        (Fault::KeepsPreviousId, "lease-reclaim"),
        (Fault::RenewsBrokenLeases, "lease-break"),
        (Fault::CreatesTwice, "create-once"),
        (Fault::AcquiresAnyVersion, "acquire-version"),
        (Fault::WritesWithoutLease, "write-lease"),
        (Fault::WritesUnderAnyId, "write-lease"),
        (Fault::IgnoresIfMatch, "write-version"),
        (Fault::OverwritesObjects, "object-version"),
        (Fault::ListsNothing, "announcements"),
        (Fault::KeepsObjects, "removal"),
        (Fault::IsSlow, "latency"),
        (Fault::Hangs, "lease-kept"),
    ];
    let tried = faults.map(|(fault, check)| async move { (found(fault, true).await, check, fault) });
    for (findings, check, fault) in futures::future::join_all(tried).await {
        let finding = of(&findings, check, Level::Problem);
        assert!(finding.means.is_some() && finding.remedy.is_some(), "{finding:?}");
        // A trial on a store that hangs must end with the finding about the hang, instead of waiting in each later
        // check.
        assert!(fault != Fault::Hangs || findings.last() == Some(finding), "{findings:?}");
    }
}

/// A lost response does not mean that the store is faulty: the trial must repeat the request. The store may have
/// carried out the request already.
#[tokio::test]
async fn lost_response_is_requested_again() {
    let tried = ["read", "acquire", "renew", "write", "release"].map(|op| found(Fault::LosesAnswer(op), true));
    for findings in futures::future::join_all(tried).await {
        let others = findings.iter().filter(|finding| finding.check != "latency");
        assert!(others.clone().all(|finding| finding.level == Level::Ok), "{findings:#?}");
        assert!(others.count() > 10, "{findings:#?}");
    }
    let findings = found(Fault::LosesAnswer("create"), true).await;
    let finding = of(&findings, "create", Level::Problem);
    assert_eq!(findings.last(), Some(finding), "{findings:#?}");
}

/// The machine may pause while it waits for a lease to expire. The trial then sees the store's refusal too late, and
/// must not blame the store.
#[tokio::test]
async fn store_is_not_blamed_when_the_machine_pauses() {
    let store = faulty(Fault::PausesMachine(Duration::from_millis(4500)));
    let scratch = Scratch::new(store, 1).unwrap();
    let bench = Arc::new(scratch.bench(&scratch.elections[0]).unwrap());
    let cases = CHECKS.iter().filter(|check| check.name == "lease-length").flat_map(|check| check.cases);
    for case in cases {
        if let Run::AfterExpiry(run) = case.run {
            run(Arc::clone(&bench)).await.unwrap();
        }
    }
    assert!(!bench.lease_end().unwrap().is_precise, "{:?}", bench.lease_end());
}

#[tokio::test]
async fn faults_over_time_are_reported_under_their_check() {
    let faults = [
        (Fault::ClockRuns(130), "lease-length", Level::Problem),
        (Fault::IgnoresRenewals, "lease-length", Level::Problem),
        (Fault::ClockRuns(60), "lease-length", Level::Warning),
        (Fault::ClockRuns(1), "lease-length", Level::Problem),
        (Fault::RenewsForFormerHolder, "lease-taken-over", Level::Problem),
        (Fault::WritesUnderExpiredLeases, "lease-expired", Level::Problem),
        (Fault::RenewsExpiredForAnyId, "lease-expired", Level::Problem),
    ];
    let tried = faults.map(|(fault, check, level)| async move { (found(fault, false).await, check, level) });
    for (findings, check, level) in futures::future::join_all(tried).await {
        of(&findings, check, level);
    }
}

#[tokio::test]
async fn missing_right_is_named_in_the_remedy() {
    for (right, check, level, letter) in [
        ("read", "reachable", Level::Problem, "(r)"),
        ("list", "list", Level::Warning, "(l)"),
        ("create", "create", Level::Problem, "(c)"),
        ("write", "lease-kept", Level::Problem, "(w)"),
        ("remove", "removal", Level::Warning, "(d)"),
    ] {
        let findings = found(Fault::Denies(right), true).await;
        // Ignore the latency, which depends on this machine.
        let mut others = findings.iter().filter(|finding| finding.check != "latency");
        let is_problem = others.any(|finding| finding.level == Level::Problem);
        assert_eq!(is_problem, level == Level::Problem, "{findings:#?}");
        let remedy = of(&findings, check, level).remedy.clone().unwrap();
        assert!(remedy.contains(letter) && remedy.contains("Storage Blob Data Contributor"), "{remedy}");
    }
}

#[tokio::test]
async fn sqlite_remedies_do_not_mention_azure() {
    for (fault, check, level) in [
        (Fault::Hangs, "lease-kept", Level::Problem),
        (Fault::LetsTwoHold, "lease-exclusive", Level::Problem),
        (Fault::IsSlow, "latency", Level::Problem),
        (Fault::Denies("read"), "reachable", Level::Problem),
        (Fault::Denies("list"), "list", Level::Warning),
        (Fault::Denies("remove"), "removal", Level::Warning),
    ] {
        let findings = found_on("sqlite:/var/lib/baton", fault, true).await;
        let remedy = of(&findings, check, level).remedy.as_deref().unwrap();
        for word in ["Azure", "network", "firewall", "account", "Storage", "the right", "nearer", "signature"] {
            assert!(!remedy.contains(word), "{remedy}");
        }
    }
}

#[tokio::test]
async fn ended_trial_sends_no_more_requests() {
    let store = faulty(Fault::Nothing);
    let scratch = Scratch::new(Arc::clone(&store) as _, trial::elections()).unwrap();
    scratch.end();
    let (news, mut news_receiver) = mpsc::unbounded_channel();
    let advice = Advice::on(&"sqlite:here".parse().unwrap());
    let plan = Plan { create: true, advice, lease: Duration::from_secs(3), quick: false };
    trial::try_store(scratch.clone(), plan, news).await;
    while let Some(news) = news_receiver.recv().await {
        assert!(matches!(news, News::Trying(_)));
    }
    assert_eq!(store.store.elections().await, Ok(Vec::new()));
}

#[test]
fn docs_describe_every_check_of_a_store() {
    let docs = include_str!("../../../../docs/troubleshooting.md");
    for name in trial::names() {
        assert!(docs.contains(&format!("`{name}`")), "docs/troubleshooting.md lacks `{name}`");
    }
}
