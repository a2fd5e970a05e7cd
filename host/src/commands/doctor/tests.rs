//! Stores that lie, each in one way: the lie is found, and named by the check that it breaks.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, LeaseId, LeaseState, Op, Record, Reply, Snapshot, StoreError, Version};
use bytes::Bytes;
use time::OffsetDateTime;
use tokio::sync::mpsc;

use super::expiry;
use super::scratch::Scratch;
use super::trial::{self, Advice, News, Plan};
use super::verdict::Seen;
use crate::cli::{Finding, Level};
use baton_store::azure::MAY_NOT;
use baton_store::clock::Clock;
use baton_store::{
    LeaseStore, Listed, Listing, MemoryStore, ObjectStore, OperatorStore, PlainObject, Reading, VersionedObject,
};

/// What a store does otherwise.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lie {
    Nothing,
    ForgetsLeases,
    LetsTwoHold,
    RefusesTheHolder,
    ReleasesForAnybody,
    KeepsWhatIsReleased,
    KeepsTheIdBefore,
    RenewsWhatIsBroken,
    CreatesTwice,
    AcquiresAnyVersion,
    WritesWithoutLease,
    WritesUnderAnyId,
    IgnoresIfMatch,
    OverwritesObjects,
    ListsNothing,
    KeepsObjects,
    IsSlow,
    MayNot(&'static str),
    Hangs,
    /// Its clock goes so many percent as fast as it should.
    Counts(u32),
    IgnoresRenewals,
    RenewsWhatAnotherHolds,
    WritesUnderExpired,
    RenewsExpiredForAnybody,
    /// It carries the first such request out, and its answer is lost.
    LosesAnswer(&'static str),
    /// It is as it should be, and the machine of who asks stands still for so long as a lease that it waits for is refused.
    StandsStill(Duration),
}

struct Liar {
    lie: Lie,
    inner: MemoryStore,
    /// The ids that have ever held the lease.
    held: Mutex<HashSet<LeaseId>>,
    /// Whether something was done that is done once.
    once: AtomicBool,
}

impl Liar {
    fn new(lie: Lie) -> Arc<Self> {
        let clock = Clock::default();
        let percent = match lie {
            Lie::Counts(percent) => percent,
            _ => 100,
        };
        let inner = MemoryStore::new(Arc::new(move || clock.now().0 * percent / 100));
        Arc::new(Self { lie, inner, held: Mutex::default(), once: AtomicBool::default() })
    }

    async fn lease(&self, election: &ElectionName) -> Option<(LeaseState, Version)> {
        match self.inner.request(election, Op::Read).await {
            Ok(Reply::Read(Snapshot::Object { lease, version, .. })) => Some((lease, version)),
            _ => None,
        }
    }

    fn may_not(&self, what: &str) -> Result<(), StoreError> {
        match self.lie {
            Lie::MayNot(right) if right == what => Err(StoreError::Misconfigured(format!("{MAY_NOT} leases (403)"))),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl LeaseStore for Liar {
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
        let before = self.lease(election).await;
        let state = before.as_ref().map(|(lease, _)| *lease);
        let any_version = || before.as_ref().map(|(_, version)| version.clone()).expect("it is there");
        self.may_not(match op {
            Op::Read | Op::Recall | Op::Survey => "read",
            Op::Create { .. } => "create",
            Op::Acquire { .. } | Op::Reclaim { .. } | Op::Renew { .. } | Op::Write { .. } | Op::Release { .. } => {
                "write"
            }
        })?;
        let op = match (self.lie, op) {
            (Lie::Hangs, Op::Renew { .. }) => std::future::pending().await,
            (Lie::IsSlow, op @ Op::Renew { .. }) => {
                tokio::time::sleep(Duration::from_millis(400)).await;
                op
            }
            (Lie::RefusesTheHolder, Op::Acquire { .. }) if state == Some(LeaseState::Held) => {
                return Err(StoreError::Held);
            }
            (Lie::KeepsWhatIsReleased, Op::Release { .. }) => return Ok(Reply::Done),
            (Lie::KeepsTheIdBefore, Op::Reclaim { from, .. }) => Op::Renew { id: from },
            (Lie::IgnoresRenewals, Op::Renew { id }) if state == Some(LeaseState::Held) && self.knows(id) => {
                return Ok(Reply::Done);
            }
            (Lie::AcquiresAnyVersion, Op::Acquire { id, length, instead_of, .. }) => {
                Op::Acquire { id, length, version: any_version(), instead_of }
            }
            (Lie::IgnoresIfMatch, Op::Write { id, record, .. }) => Op::Write { id, version: any_version(), record },
            (_, op) => op,
        };
        let answer = self.inner.request(election, op.clone()).await;
        match (self.lie, &op, &answer) {
            (Lie::LosesAnswer(what), _, _) if op.to_string() == what && self.is_first() => {
                return Err(StoreError::Unknown("the connection was cut".to_owned()));
            }
            (Lie::StandsStill(time), Op::Acquire { .. }, Err(StoreError::Held)) if self.is_first() => {
                std::thread::sleep(time);
            }
            (_, Op::Acquire { id, .. }, Ok(_)) => {
                self.held.lock().unwrap().insert(*id);
                if self.lie == Lie::ForgetsLeases {
                    self.inner.request(election, Op::Release { id: *id }).await?;
                }
            }
            (Lie::LetsTwoHold, Op::Acquire { .. }, Err(StoreError::Held)) => return Ok(Reply::Done),
            (Lie::ReleasesForAnybody, Op::Release { .. }, Err(StoreError::Lost(_))) => {
                let _ = self.inner.break_lease(election, Duration::ZERO);
            }
            (Lie::RenewsWhatIsBroken, Op::Renew { .. }, Err(_)) if state == Some(LeaseState::Broken) => {
                return Ok(Reply::Done);
            }
            (Lie::RenewsWhatAnotherHolds, Op::Renew { id }, Err(_))
                if state == Some(LeaseState::Held) && self.knows(*id) =>
            {
                return Ok(Reply::Done);
            }
            (Lie::RenewsExpiredForAnybody, Op::Renew { .. }, Err(_)) if state == Some(LeaseState::Expired) => {
                return Ok(Reply::Done);
            }
            (Lie::CreatesTwice, Op::Create { .. }, Err(StoreError::Conflict)) => {
                return Ok(Reply::Version(any_version()));
            }
            (Lie::WritesUnderAnyId, Op::Write { .. }, Err(StoreError::Lost(_))) => {
                return Ok(Reply::Version(any_version()));
            }
            (Lie::WritesUnderExpired, Op::Write { .. }, Err(_)) if state == Some(LeaseState::Expired) => {
                return Ok(Reply::Version(any_version()));
            }
            _ => {}
        }
        answer
    }

    async fn break_now(&self, election: &ElectionName) -> Result<(), StoreError> {
        self.inner.break_now(election).await
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, StoreError> {
        self.may_not("list")?;
        self.inner.elections().await
    }

    async fn create(&self) -> Result<(), StoreError> {
        LeaseStore::create(&self.inner).await
    }

    fn lease_range(&self) -> (Duration, Duration) {
        self.inner.lease_range()
    }
}

impl Liar {
    fn is_first(&self) -> bool {
        !self.once.swap(true, Ordering::Relaxed)
    }

    fn knows(&self, id: LeaseId) -> bool {
        self.held.lock().unwrap().contains(&id)
    }
}

#[async_trait]
impl ObjectStore for Liar {
    async fn read(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        known: Option<&Version>,
    ) -> Result<Reading, StoreError> {
        self.inner.read(object, election, known).await
    }

    async fn write(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, StoreError> {
        let found = self.inner.read(object, election, None).await?;
        let version = match (&found, self.lie) {
            (Reading::Found(current, _), Lie::OverwritesObjects) if version.is_some() => Some(current),
            _ => version,
        };
        self.inner.write(object, election, version, content).await
    }

    async fn delete(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: &Version,
    ) -> Result<(), StoreError> {
        ObjectStore::delete(&self.inner, object, election, version).await
    }

    async fn elections_with(&self, object: VersionedObject) -> Result<Vec<ElectionName>, StoreError> {
        self.inner.elections_with(object).await
    }

    async fn put(&self, object: &PlainObject, content: Bytes) -> Result<(), StoreError> {
        self.inner.put(object, content).await
    }

    async fn get(&self, object: &PlainObject, limit: u64) -> Result<Option<Bytes>, StoreError> {
        self.inner.get(object, limit).await
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Listed>, StoreError> {
        self.may_not("list")?;
        if self.lie == Lie::ListsNothing { Ok(Vec::new()) } else { self.inner.list(listing).await }
    }

    async fn remove(&self, object: &PlainObject, put_until: Option<OffsetDateTime>) -> Result<bool, StoreError> {
        self.may_not("remove")?;
        if self.lie == Lie::KeepsObjects { Ok(false) } else { self.inner.remove(object, put_until).await }
    }
}

#[async_trait]
impl OperatorStore for Liar {
    async fn overwrite(&self, election: &ElectionName, record: Record) -> Result<Version, StoreError> {
        match self.inner.overwrite(election, record).await {
            Err(StoreError::Lost(_)) if self.lie == Lie::WritesWithoutLease => Ok(Version("any".to_owned())),
            answer => answer,
        }
    }

    async fn remove_election(&self, election: &ElectionName) -> Result<(), StoreError> {
        self.inner.remove_election(election).await
    }
}

/// What is found out about such a store on Azure, which has nothing afterwards.
async fn found(lie: Lie, quick: bool) -> Vec<Finding> {
    found_on("azurite", lie, quick).await
}

/// The same about one with that URL.
async fn found_on(place: &str, lie: Lie, quick: bool) -> Vec<Finding> {
    let liar = Liar::new(lie);
    let scratch = Scratch::new(Arc::clone(&liar) as _).unwrap();
    let advice = Advice::on(&place.parse().unwrap());
    let plan = Plan { create: true, advice, lease: Duration::from_secs(3), quick };
    let (news, mut heard) = mpsc::unbounded_channel();
    trial::try_store(scratch.clone(), plan, news).await;
    let mut findings = Vec::new();
    while let Some(news) = heard.recv().await {
        if let News::Found(finding) = news {
            findings.push(finding);
        }
    }
    if !matches!(lie, Lie::MayNot("remove") | Lie::KeepsObjects) {
        scratch.remove().await.unwrap();
        assert_eq!(liar.inner.elections().await, Ok(Vec::new()));
        assert!(liar.inner.list(&Listing::Announcements(scratch.election.clone())).await.unwrap().is_empty());
    }
    findings
}

/// The finding of that check, which must be of that level.
#[track_caller]
fn of<'a>(findings: &'a [Finding], check: &str, level: Level) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.check == check);
    found.filter(|finding| finding.level == level).unwrap_or_else(|| panic!("no {level:?} of {check}: {findings:#?}"))
}

#[tokio::test]
async fn nothing_is_found_of_a_store_that_is_as_it_should_be() {
    let findings = found(Lie::Nothing, false).await;
    let names: Vec<_> = findings.iter().map(|finding| finding.check).collect();
    let all = trial::names().into_iter().filter(|name| *name != "removed");
    assert_eq!(names.iter().copied().collect::<HashSet<_>>(), all.collect());
    // A machine that is busy is slow, which is not the store's fault.
    let others = findings.iter().filter(|finding| finding.check != "latency" && finding.check != "lease-length");
    for finding in others {
        assert_eq!(finding.level, Level::Ok, "{finding:?}");
    }
}

#[tokio::test]
async fn each_lie_that_shows_at_once_is_found_and_named() {
    let lies = [
        (Lie::ForgetsLeases, "lease-kept", "just taken is Free"),
        (Lie::LetsTwoHold, "lease-exclusive", "two ids hold the lease"),
        (Lie::RefusesTheHolder, "lease-own-id", "held by another"),
        (Lie::ReleasesForAnybody, "lease-wrong-id", "a wrong id ended the lease"),
        (Lie::KeepsWhatIsReleased, "lease-release", "was released is Held"),
        (Lie::KeepsTheIdBefore, "lease-reclaim", "under its previous id"),
        (Lie::RenewsWhatIsBroken, "lease-break", "renewing a broken lease"),
        (Lie::CreatesTwice, "create-once", "If-None-Match"),
        (Lie::AcquiresAnyVersion, "acquire-version", "If-Match"),
        (Lie::WritesWithoutLease, "write-lease", "without the lease"),
        (Lie::WritesUnderAnyId, "write-lease", "does not hold the lease"),
        (Lie::IgnoresIfMatch, "write-version", "If-Match"),
        (Lie::OverwritesObjects, "object-version", "If-Match"),
        (Lie::ListsNothing, "announcements", "not listed"),
        (Lie::KeepsObjects, "removal", "did not remove"),
        (Lie::IsSlow, "latency", "renewals"),
        (Lie::Hangs, "lease-kept", "no response"),
    ];
    let tried = lies.map(|(lie, check, said)| async move { (found(lie, true).await, check, said) });
    for (findings, check, said) in futures::future::join_all(tried).await {
        let finding = of(&findings, check, Level::Problem);
        assert!(finding.found.contains(said), "{finding:?}");
        assert!(finding.means.is_some() && finding.remedy.is_some(), "{finding:?}");
        // Of a store that hangs nothing more is asked.
        assert!(said != "no response" || findings.last() == Some(finding), "{findings:?}");
    }
}

/// That a store loses an answer is no fault of its, and what was asked may have been done.
#[tokio::test]
async fn an_answer_that_is_lost_is_asked_for_again() {
    let tried = ["read", "acquire", "renew", "write", "release"].map(|op| found(Lie::LosesAnswer(op), true));
    for findings in futures::future::join_all(tried).await {
        let others = findings.iter().filter(|finding| finding.check != "latency");
        assert!(others.clone().all(|finding| finding.level == Level::Ok), "{findings:#?}");
        assert!(others.count() > 10, "{findings:#?}");
    }
    let findings = found(Lie::LosesAnswer("create"), true).await;
    let finding = of(&findings, "create", Level::Problem);
    assert!(finding.found.contains("could not run"), "{finding:?}");
}

/// A machine that stands still while it waits for a lease to run out hears late of what it was refused.
#[tokio::test]
async fn a_store_is_not_blamed_for_a_pause_of_the_machine() {
    let length = Duration::from_secs(3);
    let liar = Liar::new(Lie::StandsStill(length * 3 / 2));
    let mut scratch = Scratch::new(Arc::clone(&liar) as _).unwrap();
    scratch.length = length;
    scratch.ask(Op::Create { record: scratch.record(0) }).await.unwrap();
    let held = scratch.held().await.unwrap();
    let ended = expiry::lease_length(&scratch, held).await;
    assert!(matches!(ended.verdict, Ok(Seen::Kept(_))), "{:?}", ended.verdict);
    assert!(!ended.is_late && ended.taken_over.is_some_and(|taken_over| taken_over.free_after.is_none()));
}

#[tokio::test]
async fn each_lie_that_takes_its_time_is_found_and_named() {
    let lies = [
        (Lie::Counts(130), "lease-length", Level::Problem, "another id acquired"),
        (Lie::IgnoresRenewals, "lease-length", Level::Problem, "another id acquired"),
        (Lie::Counts(60), "lease-length", Level::Warning, "after it expired"),
        (Lie::Counts(1), "lease-length", Level::Problem, "still held"),
        (Lie::RenewsWhatAnotherHolds, "lease-taken-over", Level::Problem, "a renew by the former holder"),
        (Lie::WritesUnderExpired, "lease-expired", Level::Problem, "under an expired lease"),
        (Lie::RenewsExpiredForAnybody, "lease-expired", Level::Problem, "an id that never held it"),
    ];
    let tried = lies.map(|(lie, check, level, said)| async move { (found(lie, false).await, check, level, said) });
    for (findings, check, level, said) in futures::future::join_all(tried).await {
        let finding = of(&findings, check, level);
        assert!(finding.found.contains(said), "{finding:?}");
    }
}

#[tokio::test]
async fn what_the_credentials_may_not_is_named_with_the_right_that_is_lacking() {
    for (right, check, level, letter) in [
        ("read", "reachable", Level::Problem, "(r)"),
        ("list", "list", Level::Warning, "(l)"),
        ("create", "create", Level::Problem, "(c)"),
        ("write", "lease-kept", Level::Problem, "(w)"),
        ("remove", "removal", Level::Warning, "(d)"),
    ] {
        let findings = found(Lie::MayNot(right), true).await;
        // How quick this machine is, is another matter.
        let mut others = findings.iter().filter(|finding| finding.check != "latency");
        let is_problem = others.any(|finding| finding.level == Level::Problem);
        assert_eq!(is_problem, level == Level::Problem, "{findings:#?}");
        let remedy = of(&findings, check, level).remedy.clone().unwrap();
        assert!(remedy.contains(letter) && remedy.contains("Storage Blob Data Contributor"), "{remedy}");
    }
}

#[tokio::test]
async fn where_the_store_is_a_folder_nothing_is_said_of_clouds() {
    for (lie, check, level) in [
        (Lie::Hangs, "lease-kept", Level::Problem),
        (Lie::LetsTwoHold, "lease-exclusive", Level::Problem),
        (Lie::IsSlow, "latency", Level::Problem),
        (Lie::MayNot("read"), "reachable", Level::Problem),
        (Lie::MayNot("list"), "list", Level::Warning),
        (Lie::MayNot("remove"), "removal", Level::Warning),
    ] {
        let findings = found_on("sqlite:/var/lib/baton", lie, true).await;
        let remedy = of(&findings, check, level).remedy.as_deref().unwrap();
        for word in ["Azure", "network", "firewall", "account", "Storage", "the right", "nearer", "signature"] {
            assert!(!remedy.contains(word), "{remedy}");
        }
    }
}

#[tokio::test]
async fn who_is_told_to_end_asks_nothing_more() {
    let liar = Liar::new(Lie::Nothing);
    let scratch = Scratch::new(Arc::clone(&liar) as _).unwrap();
    scratch.end();
    let (news, mut heard) = mpsc::unbounded_channel();
    let advice = Advice::on(&"sqlite:here".parse().unwrap());
    let plan = Plan { create: true, advice, lease: Duration::from_secs(3), quick: false };
    trial::try_store(scratch.clone(), plan, news).await;
    while let Some(news) = heard.recv().await {
        assert!(matches!(news, News::Trying(_)));
    }
    assert_eq!(liar.inner.elections().await, Ok(Vec::new()));
}

/// What people look a finding up by.
#[test]
fn the_docs_have_each_check_of_a_store() {
    let docs = include_str!("../../../../docs/troubleshooting.md");
    for name in trial::names() {
        assert!(docs.contains(&format!("`{name}`")), "docs/troubleshooting.md lacks `{name}`");
    }
}
