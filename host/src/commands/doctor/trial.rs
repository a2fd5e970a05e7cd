//! Runs the checks of a store in order, and makes a finding from the outcome of each check.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{Op, Reply, Snapshot, StoreError};
use baton_store::conformance::{Bench, CHECKS, Case, Check, Finding as StoreFinding, LeaseEnd, Run, Running, Verdict};
use tokio::sync::mpsc::UnboundedSender;

use super::latency;
use super::scratch::Scratch;
use crate::cli::{Finding, Latency};
use baton_base::clock::Clock;
use baton_store::StoreUrl;
use baton_store::azure::MAY_NOT;

/// Maximum number of times that the trial runs a test case, if this machine is too slow for a verdict.
const TRIES: u32 = 3;
/// Maximum time for which the store may keep a lease after its expiry. Beyond this time, the check reports a warning,
/// because each takeover is delayed.
const LATE: Duration = Duration::from_secs(1);

pub(super) struct Plan {
    /// True to create the store's folder or container first.
    pub create: bool,
    pub advice: &'static Advice,
    pub lease: Duration,
    /// True to skip the checks that wait for a lease to expire.
    pub quick: bool,
}

/// Advice for findings about a store that does not respond, is too slow, or does not behave as Baton requires.
#[derive(Debug)]
pub(super) struct Advice {
    silent: &'static str,
    quicker: &'static str,
    other: &'static str,
    /// True for a store that grants rights to credentials. The advice for a refused request can then name the missing
    /// right.
    grants_rights: bool,
    /// Remark about expired leases, for a store that treats expired leases differently than Azure does.
    expired: &'static str,
}

impl Advice {
    const AZURE: Self = Self {
        silent: "check the network, any firewall or private endpoint on the way, and the account's state; then run \
                 `baton doctor` again",
        quicker: "move the nodes nearer to the store",
        other: "do not run hosts on this store: it is not Azure Storage, or a proxy answers for it; if it is Azure \
                itself, report this as a Baton bug",
        grants_rights: true,
        expired: "",
    };
    const AZURITE: Self = Self {
        expired: "; the emulator renews an expired lease for its last holder, whatever id the request has, and Baton \
                  treats that answer as a lost lease",
        ..Self::AZURE
    };
    const SQLITE: Self = Self {
        silent: "find any process that is stopped in the middle of a request (state T in `ps`), and check whether the \
                 disk is full or failing; then run `baton doctor` again",
        quicker: "use a faster or less busy disk",
        other: "do not run hosts on this store: its file system loses writes or locks; use a folder on another file \
                system, and if this one is on a local disk, report this as a Baton bug",
        grants_rights: false,
        expired: "",
    };

    pub fn on(place: &StoreUrl) -> &'static Self {
        match place {
            StoreUrl::Azure { .. } => &Self::AZURE,
            StoreUrl::Azurite { .. } => &Self::AZURITE,
            StoreUrl::Sqlite(_) | StoreUrl::Memory => &Self::SQLITE,
        }
    }
}

pub(super) enum News {
    Trying(&'static str),
    /// True if the test elections may exist from now on, so that the command must remove them at the end; false if the
    /// store refused to create an election.
    Making(bool),
    Found(Finding),
    Renewed(Latency, Option<Duration>),
    /// Upper bound on the delay between a lease's expiry and its next acquisition.
    FreeAfter(Duration),
}

enum Outcome {
    Kept(String),
    /// The store behaves correctly, but delays takeovers.
    Costs(String),
    Broken(String),
    /// The store does not respond, or refuses the request.
    NoAnswer(StoreError),
    /// The lease may have expired during the check, by the holder's clock. The check therefore proves nothing.
    Slow,
}

impl From<StoreFinding> for Outcome {
    fn from(StoreFinding { found, no_answer, .. }: StoreFinding) -> Self {
        no_answer.map_or(Self::Broken(found), Self::NoAnswer)
    }
}

type CaseRun = fn(Arc<Bench>) -> Running;

fn at_once(case: &Case) -> Option<CaseRun> {
    if let Run::AtOnce(run) = case.run { Some(run) } else { None }
}

fn after_expiry(case: &Case) -> Option<CaseRun> {
    if let Run::AfterExpiry(run) = case.run { Some(run) } else { None }
}

fn checks_with(kind: fn(&Case) -> Option<CaseRun>) -> impl Iterator<Item = &'static Check> {
    CHECKS.iter().filter(move |check| check.cases.iter().any(|case| kind(case).is_some()))
}

/// The number of elections that the checks need: one for all checks that run one after another, and one for each check
/// that runs concurrently with others.
pub(super) fn elections() -> usize {
    1 + checks_with(after_expiry).count()
}

pub(super) async fn try_store(scratch: Scratch, plan: Plan, news: UnboundedSender<News>) {
    // Ignore the error: the trial may end early, for example if the command drops the receiver.
    let trial = Trial { scratch, plan, news };
    let _ = trial.run().await;
}

/// The trial ended early: a check on which later checks depend has failed, the store did not respond, the command
/// ended, or the receiver was dropped.
struct TrialEnded;

struct Trial {
    scratch: Scratch,
    plan: Plan,
    news: UnboundedSender<News>,
}

impl Trial {
    async fn run(&self) -> Result<(), TrialEnded> {
        self.send(News::Trying("whether the store answers"))?;
        self.reach().await?;
        self.send(News::Trying("what the credentials may do"))?;
        self.list().await?;
        self.create().await?;
        for check in checks_with(at_once) {
            self.send(News::Trying(check.name))?;
            let outcome = self.run_check(check, at_once, 0).await;
            self.conclude(check.name, check.means, outcome)?;
        }
        self.over_time().await
    }

    async fn reach(&self) -> Result<(), TrialEnded> {
        let Scratch { store, elections, .. } = &self.scratch;
        let created = if self.plan.create { store.create().await } else { Ok(()) };
        let clock = Clock::default();
        let sent = clock.now();
        let outcome = match created {
            Err(error) => Outcome::NoAnswer(error),
            Ok(()) => match store.request(&elections[0], Op::Read).await {
                Ok(Reply::Read(Snapshot::Nothing)) => Outcome::Kept(format!(
                    "the store responds; its first response took {:.0?}",
                    clock.now().since(sent)
                )),
                Err(error @ (StoreError::Unknown(_) | StoreError::Misconfigured(_))) => Outcome::NoAnswer(error),
                other => Outcome::Broken(format!(
                    "the store did not report a new, random election name as unknown: {other:?}"
                )),
            },
        };
        self.require("reachable", "no node can lead", outcome)
    }

    async fn list(&self) -> Result<(), TrialEnded> {
        let outcome = match self.scratch.store.elections().await {
            Ok(elections) => Outcome::Kept(format!("the store lists its elections: {}", elections.len())),
            Err(error) => Outcome::NoAnswer(error),
        };
        self.conclude("list", "nodes could not read earlier terms", outcome)
    }

    async fn create(&self) -> Result<(), TrialEnded> {
        self.send(News::Making(true))?;
        let Scratch { store, elections, .. } = &self.scratch;
        let outcome = match store.request(&elections[0], Op::Create { record: self.scratch.record() }).await {
            Ok(_) => Outcome::Kept("an election can be created".to_owned()),
            Err(error) => {
                // The store refused the request, so there is nothing to remove.
                if !matches!(error, StoreError::Unknown(_)) {
                    self.send(News::Making(false))?;
                }
                Outcome::NoAnswer(error)
            }
        };
        self.require("create", "no election can begin", outcome)
    }

    async fn over_time(&self) -> Result<(), TrialEnded> {
        let scratch = &self.scratch;
        let (range, advice, quick) = (scratch.store.lease_range(), self.plan.advice, self.plan.quick);
        self.send(News::Trying("how long renewals take"))?;
        let over = if quick { Duration::ZERO } else { scratch.length * 3 / 5 };
        let took = match self.attempt(0, async |bench| latency::renew(&bench, scratch, over).await).await {
            Ok((took, _)) => took,
            Err(outcome) => return self.conclude("latency", "a leader would lose its term", outcome),
        };
        self.send(News::Renewed(latency::latency(&took), latency::recommended(&took, range)))?;
        self.send(News::Found(latency::judge(&took, self.plan.lease, range, advice.quicker)))?;
        if quick {
            return Ok(());
        }
        self.send(News::Trying(
            "what happens to leases that are not renewed (these checks take one full lease duration)",
        ))?;
        let waiting = checks_with(after_expiry).zip(1..);
        let run = async |(check, election)| (check, self.run_check(check, after_expiry, election).await);
        for (check, outcome) in futures::future::join_all(waiting.map(run)).await {
            self.conclude(check.name, check.means, outcome)?;
        }
        Ok(())
    }

    /// Runs the cases of a check in one of the elections, one after another, until a case does not pass.
    async fn run_check(&self, check: &Check, kind: fn(&Case) -> Option<CaseRun>, election: usize) -> Outcome {
        let mut proves = Vec::new();
        for case in check.cases {
            let Some(run) = kind(case) else { continue };
            match self.attempt(election, async |bench| run(bench).await).await {
                Ok(((), bench)) => match bench.lease_end() {
                    Some(end) => return self.measured(end),
                    None => proves.push(case.proves),
                },
                Err(outcome) => return outcome,
            }
        }
        Outcome::Kept(proves.join("; "))
    }

    /// Runs a case. Retries the case if this machine was too slow for a verdict. Repeats the case once if the store did
    /// not respond.
    async fn attempt<T>(
        &self,
        election: usize,
        run: impl AsyncFn(Arc<Bench>) -> Verdict<T>,
    ) -> Result<(T, Arc<Bench>), Outcome> {
        let (mut left, mut is_silent) = (TRIES, false);
        loop {
            left -= 1;
            let bench = self.scratch.bench(&self.scratch.elections[election]);
            let bench = Arc::new(bench.map_err(|error| {
                Outcome::NoAnswer(StoreError::Unknown(format!("cannot get random numbers from the system: {error}")))
            })?);
            let verdict = run(Arc::clone(&bench)).await;
            let is_unknown = |error: &StoreError| matches!(error, StoreError::Unknown(_));
            match verdict {
                Err(finding) if finding.no_answer.is_some() => {
                    if is_silent || left == 0 || !finding.no_answer.as_ref().is_some_and(is_unknown) {
                        return Err(finding.into());
                    }
                    is_silent = true;
                }
                // A case that was too slow proves nothing, even if it passed.
                _ if bench.is_late() && left > 0 => {}
                _ if bench.is_late() => return Err(Outcome::Slow),
                verdict => return Ok((verdict?, bench)),
            }
        }
    }

    fn measured(&self, end: &LeaseEnd) -> Outcome {
        if end.is_precise {
            // Ignore the error: if the receiver was dropped, sending the next finding ends the trial.
            let _ = self.send(News::FreeAfter(end.free_within));
        }
        let found = format!(
            "a lease of {:?} is free at most {} ms after it expired, by the holder's clock",
            self.scratch.length,
            end.free_within.as_millis()
        );
        if end.held_for > LATE { Outcome::Costs(found) } else { Outcome::Kept(found) }
    }

    /// Reports the outcome of a check on which later checks depend. Ends the trial if the check failed.
    fn require(&self, name: &'static str, means: &'static str, outcome: Outcome) -> Result<(), TrialEnded> {
        let is_kept = matches!(outcome, Outcome::Kept(_));
        self.conclude(name, means, outcome)?;
        if is_kept { Ok(()) } else { Err(TrialEnded) }
    }

    fn conclude(&self, name: &'static str, means: &'static str, outcome: Outcome) -> Result<(), TrialEnded> {
        if self.scratch.has_ended() {
            return Err(TrialEnded);
        }
        let advice = self.plan.advice;
        let is_ended = matches!(outcome, Outcome::NoAnswer(StoreError::Unknown(_)));
        let finding = match outcome {
            Outcome::Kept(found) if name == "lease-expired" => Finding::ok(name, found + advice.expired),
            Outcome::Kept(found) => Finding::ok(name, found),
            Outcome::Costs(found) => Finding::warning(
                name,
                found,
                "a takeover after a crash takes that much longer",
                "no action is needed if this delay is acceptable; otherwise find out what keeps the store busy or \
                 delays requests to it",
            ),
            Outcome::Broken(found) => Finding::problem(name, found, means, advice.other),
            Outcome::NoAnswer(StoreError::Misconfigured(why)) => refused(name, why, advice),
            Outcome::NoAnswer(error) => Finding::problem(
                name,
                format!("the check could not run: {error}"),
                "while the store does not answer, no node can lead; the remaining checks were skipped",
                advice.silent,
            ),
            Outcome::Slow => Finding::problem(
                name,
                format!(
                    "the check was inconclusive: a lease of {:?} may have expired in the meantime",
                    self.scratch.length
                ),
                "the store is too slow, or this machine too busy, to keep a lease",
                format!("run `baton doctor` again when the machine is less busy; for the hosts, {}", advice.quicker),
            ),
        };
        self.send(News::Found(finding))?;
        if is_ended { Err(TrialEnded) } else { Ok(()) }
    }

    fn send(&self, news: News) -> Result<(), TrialEnded> {
        self.news.send(news).map_err(|_| TrialEnded)
    }
}

fn refused(name: &'static str, why: String, advice: &Advice) -> Finding {
    const DO_IT: &str = "fix the cause that the finding names, then run `baton doctor` again";
    // Hosts can run without the rights that the following checks need, so a refusal is only a warning.
    let optional = match name {
        "list" | "announcements" => Some((
            "a node that takes over cannot read earlier terms, and first waits for the longest possible lease: one \
             minute",
            "to list (l)",
        )),
        "removal" => Some((
            "`baton prune` removes nothing, `baton push` cannot replace a damaged module, stopped nodes stay listed, \
             and the test elections stay in the store",
            "to delete (d)",
        )),
        _ => None,
    };
    if let Some((means, right)) = optional {
        let grant = || format!("grant the right {right}, or the role Storage Blob Data Contributor");
        return Finding::warning(name, why, means, if advice.grants_rights { grant() } else { DO_IT.to_owned() });
    }
    let remedy = if advice.grants_rights { missing_right(name, &why) } else { None };
    let remedy = remedy.unwrap_or_else(|| DO_IT.to_owned());
    Finding::problem(name, why, "the store would refuse hosts, too: no node could lead", remedy)
}

/// Returns advice for a request that Azure refused because a right is missing. Returns `None` for any other refusal.
fn missing_right(name: &str, why: &str) -> Option<String> {
    let right = match name {
        "reachable" => "to read (r)",
        "create" => "to create (c)",
        _ => "to write (w), which leases need too",
    };
    why.contains(MAY_NOT).then(|| {
        format!(
            "give the identity the role Storage Blob Data Contributor (Reader is not enough), or the signature the \
             right {right}; hosts need `rcwdl` in all"
        )
    })
}

#[cfg(test)]
pub(super) fn names() -> Vec<&'static str> {
    let cases = checks_with(at_once).chain(checks_with(after_expiry)).map(|check| check.name);
    cases.chain(["reachable", "list", "create", "latency", "removed"]).collect()
}
