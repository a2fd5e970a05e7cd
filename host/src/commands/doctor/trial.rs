//! The order in which a store is tried, and what each check would mean if it failed.

use std::pin::Pin;
use std::time::Duration;

use baton_election::{Op, Reply, Snapshot, StoreError};
use tokio::sync::mpsc::UnboundedSender;

use super::latency::{self, Renewed};
use super::scratch::{Answer, Scratch, Untold, said};
use super::verdict::{Seen, Verdict, broken, kept, may_not_list};
use super::{expiry, leases, objects};
use crate::cli::{Finding, Latency};
use baton_store::StoreUrl;
use baton_store::azure::MAY_NOT;

/// How long a store may take to list all that it has.
const LISTED_WITHIN: Duration = Duration::from_secs(60);
/// How often a check is begun anew where it was too slow to tell anything.
const ANEW: u32 = 3;

/// How the store is tried.
pub(super) struct Plan {
    /// Make what it needs first.
    pub create: bool,
    /// What to do about it.
    pub advice: &'static Advice,
    /// The lease that hosts are to have.
    pub lease: Duration,
    /// Do not wait for leases to run out.
    pub quick: bool,
}

/// What to do about a store of its kind.
#[derive(Debug)]
pub(super) struct Advice {
    /// Where it does not answer.
    silent: &'static str,
    /// What would make it answer sooner.
    quicker: &'static str,
    /// Where it is not what it should be.
    other: &'static str,
    /// Whether what it refuses are rights that one can be given.
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

    /// That for the store with this URL.
    pub fn on(place: &StoreUrl) -> &'static Self {
        match place {
            StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => &Self::AZURE,
            StoreUrl::Sqlite(_) | StoreUrl::Memory => &Self::SQLITE,
        }
    }
}

/// What is heard of a trial.
pub(super) enum News {
    /// What is being tried.
    Trying(&'static str),
    /// Whether from here on there may be something to be removed.
    Making(bool),
    Found(Finding),
    /// How long renewals take, and which lease goes with that.
    Renewed(Latency, Option<Duration>),
    /// How long after a lease had run out it was free.
    FreeAfter(Duration),
}

type Running = Pin<Box<dyn Future<Output = Verdict>>>;

/// One thing to be tried.
struct Check {
    name: &'static str,
    run: fn(Scratch) -> Running,
    /// What it would mean if the store did otherwise.
    means: &'static str,
}

macro_rules! checks {
    ($($name:literal, $run:path, $means:literal);* $(;)?) => {
        &[$(Check { name: $name, run: |scratch| Box::pin($run(scratch)), means: $means }),*]
    };
}

const TWO: &str = "two nodes could lead at once";
const LEADERLESS: &str = "a lease would become free late or never, and no node would lead";

/// What is tried on a record that is there. Each begins anew.
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

/// Tries the store, and tells each finding.
pub(super) async fn try_store(scratch: Scratch, plan: Plan, news: UnboundedSender<News>) {
    // Nobody hears it any more where the command ends; then so does this.
    let trial = Trial { scratch, plan, news };
    let _ = trial.run().await;
}

/// The store does not answer any more, or nobody wants to know.
struct Over;

struct Trial {
    scratch: Scratch,
    plan: Plan,
    news: UnboundedSender<News>,
}

impl Trial {
    async fn run(&self) -> Result<(), Over> {
        self.tell(News::Trying("whether the store answers"))?;
        self.reach().await?;
        self.tell(News::Trying("what the credentials may do"))?;
        self.list().await?;
        self.create().await?;
        for check in CHECKS {
            self.tell(News::Trying(check.name))?;
            let verdict = self.concluded(async || (check.run)(self.scratch.clone()).await).await;
            self.conclude(check.name, check.means, verdict)?;
        }
        self.over_time().await
    }

    async fn reach(&self) -> Result<(), Over> {
        const NAME: &str = "reachable";
        const MEANS: &str = "no node can lead";
        let store = &self.scratch.store;
        if self.plan.create {
            let created = self.scratch.tried(2, async || store.create().await).await;
            if let Err(untold) = created {
                return self.conclude(NAME, MEANS, Err(untold)).and(Err(Over));
            }
        }
        let verdict = match self.scratch.ask(Op::Read).await {
            Ok(Answer { result: Ok(Reply::Read(Snapshot::Nothing)), sent, answered }) => {
                kept(format!("the store responds; its first response took {:.0?}", answered.since(sent)))
            }
            Ok(Answer { result, .. }) => {
                broken(format!("the store did not report a new, random election name as unknown: {}", said(&result)))
            }
            Err(untold) => Err(untold),
        };
        let is_reached = matches!(verdict, Ok(Seen::Kept(_)));
        self.conclude(NAME, MEANS, verdict)?;
        if is_reached { Ok(()) } else { Err(Over) }
    }

    async fn list(&self) -> Result<(), Over> {
        let store = &self.scratch.store;
        let verdict = match self.scratch.tried_within(LISTED_WITHIN, 1, async || store.elections().await).await {
            Ok(Answer { result: Ok(elections), .. }) => {
                kept(format!("the store lists its elections: {}", elections.len()))
            }
            Ok(Answer { result, .. }) => broken(format!("cannot list the elections: {}", said(&result))),
            Err(Untold::Store(StoreError::Misconfigured(found))) => may_not_list(found),
            Err(untold) => Err(untold),
        };
        self.conclude("list", "nodes could not read earlier terms", verdict)
    }

    async fn create(&self) -> Result<(), Over> {
        self.tell(News::Making(true))?;
        let verdict = match self.scratch.ask(Op::Create { record: self.scratch.record(0) }).await {
            Ok(Answer { result: Ok(Reply::Version(_)), .. }) => kept("an election can be created"),
            Ok(Answer { result, .. }) => broken(format!("cannot create an election: {}", said(&result))),
            Err(untold) => Err(untold),
        };
        let is_created = matches!(verdict, Ok(Seen::Kept(_)));
        // Such a request was not carried out, as surely as one that is refused because something is there.
        if matches!(verdict, Ok(Seen::Broken(_)) | Err(Untold::Store(StoreError::Misconfigured(_)) | Untold::Ended)) {
            self.tell(News::Making(false))?;
        }
        self.conclude("create", "no election can begin", verdict)?;
        if is_created { Ok(()) } else { Err(Over) }
    }

    /// How long renewals take, then what happens when nobody renews any more.
    async fn over_time(&self) -> Result<(), Over> {
        let scratch = &self.scratch;
        let (range, advice, quick) = (scratch.store.lease_range(), self.plan.advice, self.plan.quick);
        self.tell(News::Trying("how long renewals take"))?;
        let over = if quick { Duration::ZERO } else { scratch.length * 3 / 5 };
        let renewed = self.anew(async || latency::renew(scratch, over).await).await;
        let Renewed { took, held } = match renewed {
            Ok(renewed) => renewed,
            Err(untold) => return self.conclude("latency", "a leader would lose its term", Err(untold)),
        };
        self.tell(News::Renewed(latency::latency(&took), latency::recommended(&took, range)))?;
        self.tell(News::Found(latency::judge(&took, self.plan.lease, range, advice.quicker)))?;
        if quick {
            return Ok(());
        }
        self.tell(News::Trying(
            "when a lease that is not renewed becomes free (this check takes one full lease \
                                duration)",
        ))?;
        let ended = expiry::lease_length(scratch, held).await;
        self.conclude("lease-length", if ended.is_late { LEADERLESS } else { TWO }, ended.verdict)?;
        if let Some(taken_over) = ended.taken_over {
            if let Some(free_after) = taken_over.free_after {
                self.tell(News::FreeAfter(free_after))?;
            }
            let verdict = expiry::lease_taken_over(scratch, &taken_over).await;
            self.conclude(
                "lease-taken-over",
                "a former leader could end its successor's term, or overwrite its record",
                verdict,
            )?;
        }
        self.tell(News::Trying("what can be done with an expired lease (this check takes one full lease duration)"))?;
        let verdict = self.concluded(async || expiry::lease_expired(scratch).await).await;
        self.conclude("lease-expired", "a delayed leader could begin a term while another leader's term runs", verdict)
    }

    /// Begins anew where this machine was too slow to tell, and once where the store did not answer.
    async fn anew<T>(&self, run: impl AsyncFn() -> Result<T, Untold>) -> Result<T, Untold> {
        let mut is_silent = false;
        for _ in 1..ANEW {
            match run().await {
                Err(Untold::Slow) => {}
                Err(Untold::Store(StoreError::Unknown(_))) if !is_silent => is_silent = true,
                end => return end,
            }
        }
        run().await
    }

    async fn concluded(&self, run: impl AsyncFn() -> Verdict) -> Verdict {
        self.anew(run).await
    }

    /// Tells what a check has come to.
    fn conclude(&self, name: &'static str, means: &'static str, verdict: Verdict) -> Result<(), Over> {
        const DO_IT: &str = "fix what the finding names, then run `baton doctor` again";
        let (mut is_over, advice) = (false, self.plan.advice);
        let finding = match verdict {
            Ok(Seen::Kept(found)) => Finding::ok(name, found),
            Ok(Seen::Costs { found, means, remedy }) => Finding::warning(name, found, means, remedy),
            Ok(Seen::Refused { found, means, right }) if advice.grants_rights => {
                let remedy = format!("grant the right {right}, or the role Storage Blob Data Contributor");
                Finding::warning(name, found, means, remedy)
            }
            Ok(Seen::Refused { found, means, .. }) => Finding::warning(name, found, means, DO_IT),
            Ok(Seen::Broken(found)) | Err(Untold::Odd(found)) => Finding::problem(name, found, means, advice.other),
            Err(Untold::Store(StoreError::Misconfigured(why))) => {
                let remedy = if advice.grants_rights { lacks(name, &why) } else { None };
                let remedy = remedy.unwrap_or_else(|| DO_IT.to_owned());
                Finding::problem(name, why, "the store would refuse hosts, too: no node could lead", remedy)
            }
            Err(Untold::Store(error)) => {
                is_over = true;
                Finding::problem(
                    name,
                    format!("the check could not run: {error}"),
                    "while the store does not answer, no node can lead; the remaining checks were skipped",
                    advice.silent,
                )
            }
            Err(Untold::Slow) => Finding::problem(
                name,
                format!(
                    "the check was inconclusive: a lease of {:?} may have expired in the meantime",
                    self.scratch.length
                ),
                "the store is too slow, or this machine too busy, to keep a lease",
                format!("run `baton doctor` again when the machine is less busy; for the hosts, {}", advice.quicker),
            ),
            Err(Untold::Ended) => return Err(Over),
        };
        self.tell(News::Found(finding))?;
        if is_over { Err(Over) } else { Ok(()) }
    }

    fn tell(&self, news: News) -> Result<(), Over> {
        self.news.send(news).map_err(|_| Over)
    }
}

/// The right that the credentials lack, if that is why Azure refuses.
fn lacks(name: &str, why: &str) -> Option<String> {
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

/// The names of all findings about a store.
#[cfg(test)]
pub(super) fn names() -> Vec<&'static str> {
    let alone =
        ["reachable", "list", "create", "latency", "lease-length", "lease-taken-over", "lease-expired", "removed"];
    CHECKS.iter().map(|check| check.name).chain(alone).collect()
}
