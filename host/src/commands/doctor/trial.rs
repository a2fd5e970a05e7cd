//! The order of the store's checks, and the consequences if a check fails.

use std::pin::Pin;
use std::time::Duration;

use baton_election::{Op, Reply, Snapshot, StoreError};
use tokio::sync::mpsc::UnboundedSender;

use super::latency::{self, Renewed};
use super::scratch::{Answer, NoVerdict, Scratch, describe};
use super::verdict::{Outcome, Verdict, broken, kept, may_not_list};
use super::{expiry, leases, objects};
use crate::cli::{Finding, Latency};
use baton_store::StoreUrl;
use baton_store::azure::MAY_NOT;

const LISTED_WITHIN: Duration = Duration::from_secs(60);
/// Number of attempts at a check if this machine is too slow for a verdict.
const TRIES: u32 = 3;

pub(super) struct Plan {
    /// True to create the store's folder or container first.
    pub create: bool,
    pub advice: &'static Advice,
    pub lease: Duration,
    /// True to skip the checks that wait for a lease to expire.
    pub quick: bool,
}

/// Advice for findings about a store that does not respond, is too slow, or breaks a promise.
#[derive(Debug)]
pub(super) struct Advice {
    silent: &'static str,
    quicker: &'static str,
    other: &'static str,
    /// True if a request is refused only for lack of rights that can be granted.
    grants_rights: bool,
}

impl Advice {
    const AZURE: Self = Self {
        silent: "check the network, any firewall or private endpoint on the way, and the account's state; then run \
                 `baton doctor` again",
        quicker: "move the nodes nearer to the store",
        other: "do not run hosts on this store: it is not Azure Storage, or a proxy answers for it; if it is Azure \
                itself, report this as a Baton bug",
        grants_rights: true,
    };
    const SQLITE: Self = Self {
        silent: "find any process that is stopped in the middle of a request (state T in `ps`), and check whether the \
                 disk is full or failing; then run `baton doctor` again",
        quicker: "use a faster or less busy disk",
        other: "do not run hosts on this store: its file system loses writes or locks; use a folder on another file \
                system, and if this one is on a local disk, report this as a Baton bug",
        grants_rights: false,
    };

    pub fn on(place: &StoreUrl) -> &'static Self {
        match place {
            StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => &Self::AZURE,
            StoreUrl::Sqlite(_) | StoreUrl::Memory => &Self::SQLITE,
        }
    }
}

pub(super) enum News {
    Trying(&'static str),
    /// True if the election may exist from now on and must be removed later.
    Making(bool),
    Found(Finding),
    /// The latency of renewals, and the recommended lease duration, if any.
    Renewed(Latency, Option<Duration>),
    /// The delay between a lease's expiry and its next acquisition.
    FreeAfter(Duration),
}

type CheckFuture = Pin<Box<dyn Future<Output = Verdict>>>;

struct Check {
    name: &'static str,
    run: fn(Scratch) -> CheckFuture,
    /// The consequence if the store fails this check.
    means: &'static str,
}

macro_rules! checks {
    ($($name:literal, $run:path, $means:literal);* $(;)?) => {
        &[$(Check { name: $name, run: |scratch| Box::pin($run(scratch)), means: $means }),*]
    };
}

const TWO: &str = "two nodes could lead at once";
const LEADERLESS: &str = "a lease would become free late or never, and no node would lead";

/// The checks that need an existing record. Each starts with a newly acquired lease.
const CHECKS: &[Check] = checks![
    "lease-kept", leases::lease_kept, "a leader would lose its term although nothing failed, and another node could lead at the same time";
    "lease-exclusive", leases::lease_exclusive, "two nodes could lead at once";
    "lease-own-id", leases::lease_own_id, "a node that did not receive the store's response could not find out that it \
                                           is the leader";
    "lease-wrong-id", leases::lease_wrong_id, "a former leader could renew or end its successor's lease";
    "lease-reclaim", leases::lease_reclaim, "a host that only seems dead would keep leading next to the host that reclaims its lease";
    "lease-release", leases::lease_release, "a hand-off would take one full lease duration, or a former leader could \
                                             lead again";
    "lease-break", leases::lease_break, "an operator could not break a lease, or its holder would keep leading";
    "create-once", leases::create_once, "two nodes could both create one election, and a term number could repeat";
    "acquire-version", leases::acquire_version, "a node could lead on a record that it has not read, and a term number could repeat";
    "write-lease", leases::write_lease, "a node that does not lead could begin a term, and term numbers could fall";
    "write-version", leases::write_version, "a delayed write could undo a newer one, and a term number could repeat";
    "object-version", objects::object_version, "a former leader could overwrite the state of its successor, and a push could undo another";
    "announcements", objects::announcements, "a node that takes over would not learn the highest term that other nodes have seen";
    "removal", objects::removal, "removed objects would come back";
];

pub(super) async fn try_store(scratch: Scratch, plan: Plan, news: UnboundedSender<News>) {
    // The trial ends early if the command drops the receiver.
    let trial = Trial { scratch, plan, news };
    let _ = trial.run().await;
}

/// The trial ended early, because the store did not respond or the receiver was dropped.
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
        for check in CHECKS {
            self.send(News::Trying(check.name))?;
            let verdict = self.run_check(async || (check.run)(self.scratch.clone()).await).await;
            self.conclude(check.name, check.means, verdict)?;
        }
        self.over_time().await
    }

    async fn reach(&self) -> Result<(), TrialEnded> {
        const NAME: &str = "reachable";
        const MEANS: &str = "no node can lead";
        let store = &self.scratch.store;
        if self.plan.create {
            let created = self.scratch.attempt(2, async || store.create().await).await;
            if let Err(no_verdict) = created {
                return self.conclude(NAME, MEANS, Err(no_verdict)).and(Err(TrialEnded));
            }
        }
        let verdict = match self.scratch.ask(Op::Read).await {
            Ok(Answer { result: Ok(Reply::Read(Snapshot::Nothing)), sent, answered }) => {
                kept(format!("the store responds; its first response took {:.0?}", answered.since(sent)))
            }
            Ok(Answer { result, .. }) => broken(format!(
                "the store did not report a new, random election name as unknown: {}",
                describe(&result)
            )),
            Err(no_verdict) => Err(no_verdict),
        };
        let is_reached = matches!(verdict, Ok(Outcome::Kept(_)));
        self.conclude(NAME, MEANS, verdict)?;
        if is_reached { Ok(()) } else { Err(TrialEnded) }
    }

    async fn list(&self) -> Result<(), TrialEnded> {
        let store = &self.scratch.store;
        let verdict = match self.scratch.attempt_within(LISTED_WITHIN, 1, async || store.elections().await).await {
            Ok(Answer { result: Ok(elections), .. }) => {
                kept(format!("the store lists its elections: {}", elections.len()))
            }
            Ok(Answer { result, .. }) => broken(format!("cannot list the elections: {}", describe(&result))),
            Err(NoVerdict::Store(StoreError::Misconfigured(found))) => may_not_list(found),
            Err(no_verdict) => Err(no_verdict),
        };
        self.conclude("list", "nodes could not read earlier terms", verdict)
    }

    async fn create(&self) -> Result<(), TrialEnded> {
        self.send(News::Making(true))?;
        let verdict = match self.scratch.ask(Op::Create { record: self.scratch.record(0) }).await {
            Ok(Answer { result: Ok(Reply::Version(_)), .. }) => kept("an election can be created"),
            Ok(Answer { result, .. }) => broken(format!("cannot create an election: {}", describe(&result))),
            Err(no_verdict) => Err(no_verdict),
        };
        let is_created = matches!(verdict, Ok(Outcome::Kept(_)));
        // The store refused the request, or the request was never sent, so there is nothing to remove.
        if matches!(
            verdict,
            Ok(Outcome::Broken(_)) | Err(NoVerdict::Store(StoreError::Misconfigured(_)) | NoVerdict::Ended)
        ) {
            self.send(News::Making(false))?;
        }
        self.conclude("create", "no election can begin", verdict)?;
        if is_created { Ok(()) } else { Err(TrialEnded) }
    }

    /// Measures renewals, then checks what happens once a lease is no longer renewed.
    async fn over_time(&self) -> Result<(), TrialEnded> {
        let scratch = &self.scratch;
        let (range, advice, quick) = (scratch.store.lease_range(), self.plan.advice, self.plan.quick);
        self.send(News::Trying("how long renewals take"))?;
        let over = if quick { Duration::ZERO } else { scratch.length * 3 / 5 };
        let renewed = self.retry(async || latency::renew(scratch, over).await).await;
        let Renewed { took, held } = match renewed {
            Ok(renewed) => renewed,
            Err(no_verdict) => return self.conclude("latency", "a leader would lose its term", Err(no_verdict)),
        };
        self.send(News::Renewed(latency::latency(&took), latency::recommended(&took, range)))?;
        self.send(News::Found(latency::judge(&took, self.plan.lease, range, advice.quicker)))?;
        if quick {
            return Ok(());
        }
        self.send(News::Trying(
            "when a lease that is not renewed becomes free (this check takes one full lease \
                                duration)",
        ))?;
        let ended = expiry::lease_length(scratch, held).await;
        self.conclude("lease-length", if ended.is_late { LEADERLESS } else { TWO }, ended.verdict)?;
        if let Some(taken_over) = ended.taken_over {
            if let Some(free_after) = taken_over.free_after {
                self.send(News::FreeAfter(free_after))?;
            }
            let verdict = expiry::lease_taken_over(scratch, &taken_over).await;
            self.conclude(
                "lease-taken-over",
                "a former leader could end its successor's term, or overwrite its record",
                verdict,
            )?;
        }
        self.send(News::Trying("what can be done with an expired lease (this check takes one full lease duration)"))?;
        let verdict = self.run_check(async || expiry::lease_expired(scratch).await).await;
        self.conclude("lease-expired", "a delayed leader could begin a term while another leader's term runs", verdict)
    }

    /// Retries a check if this machine was too slow for a verdict, and once if the store did not respond.
    async fn retry<T>(&self, run: impl AsyncFn() -> Result<T, NoVerdict>) -> Result<T, NoVerdict> {
        let mut is_silent = false;
        for _ in 1..TRIES {
            match run().await {
                Err(NoVerdict::Slow) => {}
                Err(NoVerdict::Store(StoreError::Unknown(_))) if !is_silent => is_silent = true,
                end => return end,
            }
        }
        run().await
    }

    async fn run_check(&self, run: impl AsyncFn() -> Verdict) -> Verdict {
        self.retry(run).await
    }

    fn conclude(&self, name: &'static str, means: &'static str, verdict: Verdict) -> Result<(), TrialEnded> {
        const DO_IT: &str = "fix what the finding names, then run `baton doctor` again";
        let (mut is_ended, advice) = (false, self.plan.advice);
        let finding = match verdict {
            Ok(Outcome::Kept(found)) => Finding::ok(name, found),
            Ok(Outcome::Costs { found, means, remedy }) => Finding::warning(name, found, means, remedy),
            Ok(Outcome::Refused { found, means, right }) if advice.grants_rights => {
                let remedy = format!("grant the right {right}, or the role Storage Blob Data Contributor");
                Finding::warning(name, found, means, remedy)
            }
            Ok(Outcome::Refused { found, means, .. }) => Finding::warning(name, found, means, DO_IT),
            Ok(Outcome::Broken(found)) | Err(NoVerdict::Odd(found)) => {
                Finding::problem(name, found, means, advice.other)
            }
            Err(NoVerdict::Store(StoreError::Misconfigured(why))) => {
                let remedy = if advice.grants_rights { missing_right(name, &why) } else { None };
                let remedy = remedy.unwrap_or_else(|| DO_IT.to_owned());
                Finding::problem(name, why, "the store would refuse hosts, too: no node could lead", remedy)
            }
            Err(NoVerdict::Store(error)) => {
                is_ended = true;
                Finding::problem(
                    name,
                    format!("the check could not run: {error}"),
                    "while the store does not answer, no node can lead; the remaining checks were skipped",
                    advice.silent,
                )
            }
            Err(NoVerdict::Slow) => Finding::problem(
                name,
                format!(
                    "the check was inconclusive: a lease of {:?} may have expired in the meantime",
                    self.scratch.length
                ),
                "the store is too slow, or this machine too busy, to keep a lease",
                format!("run `baton doctor` again when the machine is less busy; for the hosts, {}", advice.quicker),
            ),
            Err(NoVerdict::Ended) => return Err(TrialEnded),
        };
        self.send(News::Found(finding))?;
        if is_ended { Err(TrialEnded) } else { Ok(()) }
    }

    fn send(&self, news: News) -> Result<(), TrialEnded> {
        self.news.send(news).map_err(|_| TrialEnded)
    }
}

/// Returns advice for requests that Azure refuses because a right is missing.
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
    let alone =
        ["reachable", "list", "create", "latency", "lease-length", "lease-taken-over", "lease-expired", "removed"];
    CHECKS.iter().map(|check| check.name).chain(alone).collect()
}
