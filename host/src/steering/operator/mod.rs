//! An operator's side: asks an election's nodes for something, and waits until it has taken effect.
//!
//! Whether it has is read in the record, and where that says nothing, in what nodes announce. Only commands and the admin
//! endpoint wait here; no node ever does.

mod transfer;

use std::fmt::Write as _;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_election::{ElectionName, LeaseState, Op, Outcome, Record, Reply, Snapshot, StoreError, Term, Version};
use baton_runtime::escape::escape;
use baton_store::clock::wall;
use baton_store::steering::{self, Ask, EditError, LONGEST_REASON, Order, Request, Steering, SteeringError};
use baton_store::{Announcement, LeaseStore, ModuleStore as _, ObjectStore, Store, StoreUrl, Tidings};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, timeout};

use crate::links;

/// So often a node says what it has.
const EACH_MINUTE: time::Duration = time::Duration::MINUTE;
/// From one look to the next, while something is waited for.
const LOOK: Duration = Duration::from_millis(200);
/// How long one answer of the store may take.
const ANSWER: Duration = Duration::from_secs(4);
/// So long the store is asked again where it is busy, also by who would wait for nothing.
const LEAST: Duration = Duration::from_secs(2);
/// By then every node that is there has read what it is asked, and said so.
const HEARD_WITHIN: Duration = Duration::from_secs(6);

/// Whether that can be a reason.
///
/// # Errors
/// Why not.
pub fn check_reason(reason: &str) -> Result<(), String> {
    if reason.trim().is_empty() {
        return Err("it is empty: leave it out, or give a reason".to_owned());
    }
    if reason.len() > LONGEST_REASON {
        return Err(format!("it has {} bytes, and the limit is {LONGEST_REASON}: write a shorter one", reason.len()));
    }
    Ok(())
}

/// What can be asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Steered {
    /// That the leader gives the lease up, and stays out for so long.
    StepDown(Duration),
    /// That nobody leads.
    Suspend,
    /// That a suspension is over.
    Resume,
    /// That this node leads.
    Transfer(String),
    /// That an outside client's lease is broken.
    Break,
}

/// Who asks, and whom.
pub struct Operator<'a> {
    /// Where the election is.
    pub store: &'a dyn Store,
    /// Its name.
    pub election: &'a ElectionName,
    /// Who asks: `USER@HOST`.
    pub by: String,
    /// Why, for people.
    pub reason: Option<String>,
    /// How long it is waited for.
    pub patience: Duration,
    /// Who hears that something is asked, so that it need not wait for a poll.
    pub called: Called<'a>,
}

/// Who hears that there is something to read.
#[derive(Clone, Copy)]
pub enum Called<'a> {
    /// Nobody.
    Nobody,
    /// The hosts of this machine, over their sockets in the store's folder.
    Hosts(&'a StoreUrl),
    /// This node, which tells the others.
    Node(&'a Tidings),
}

/// Why something that was asked has no effect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoEffect {
    /// There is no such election.
    #[error("there is no election {0} in this store: no host has contended for it yet; check `--store`")]
    Unknown(ElectionName),
    /// It would make no sense, and nothing was asked.
    #[error("{0}")]
    Refused(String),
    /// It was asked, and has not taken effect in time, or came to something else.
    #[error("{0}")]
    NotYet(String),
    /// The store cannot be asked.
    #[error(transparent)]
    Steering(#[from] EditError),
    /// The store does not answer.
    #[error("cannot read the leader from the store, so nothing was requested: {0}")]
    Store(StoreError),
}

impl From<StoreError> for NoEffect {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What happened, in lines for people.
pub type Told = Result<String, NoEffect>;

/// One look at the record.
#[derive(Clone, Debug)]
struct Seen {
    lease: Option<LeaseState>,
    version: Option<Version>,
    record: Option<Record>,
}

/// Who leads.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Leader {
    node: String,
    incarnation: String,
    term: Term,
}

impl Seen {
    /// The host that leads as far as the record says.
    fn leader(&self) -> Option<Leader> {
        let record = self.record.as_ref().filter(|record| !record.released)?;
        let is_held = matches!(self.lease, Some(LeaseState::Held | LeaseState::Breaking));
        let node = record.node.clone().filter(|_| is_held)?;
        Some(Leader { node, incarnation: record.incarnation.clone(), term: record.term })
    }

    /// The same, unless that term had begun before. Who has taken a lease that ran out has not written so yet for a moment:
    /// the record still names the last holder then.
    fn leader_above(&self, term: Term) -> Option<Leader> {
        self.leader().filter(|leader| leader.term > term)
    }

    fn term(&self) -> Term {
        self.record.as_ref().map_or(0, |record| record.term)
    }

    fn is_held(&self) -> bool {
        self.lease.is_some_and(LeaseState::is_held)
    }

    fn is_over(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.outcome == Some(Outcome::Done))
    }
}

impl Operator<'_> {
    /// Asks for it, and waits until it has taken effect: no longer than it has patience, or for two seconds.
    ///
    /// # Errors
    /// [`NoEffect`].
    pub async fn steer(&self, what: &Steered) -> Told {
        let course = self.begin();
        let told = match what {
            Steered::StepDown(stays_out) => course.step_down(*stays_out).await,
            Steered::Suspend => course.suspend().await,
            Steered::Resume => course.resume().await,
            Steered::Transfer(to) => course.transfer(to).await,
            Steered::Break => course.break_lease().await,
        };
        course.concluded(told)
    }

    /// What is asked now.
    pub(super) async fn known(&self) -> Result<Steering, NoEffect> {
        self.begin().known().await
    }

    /// What the nodes have said last that may still be there, by this machine's clock.
    pub(super) async fn nodes(&self) -> Result<Vec<Announcement>, NoEffect> {
        self.begin().nodes().await
    }

    fn begin(&self) -> Course<'_> {
        Course { operator: self, deadline: Instant::now() + self.patience, asked: AtomicBool::new(false) }
    }
}

/// One thing that is asked, from the first look to what came of it.
struct Course<'a> {
    operator: &'a Operator<'a>,
    /// It is waited for until then.
    deadline: Instant,
    /// Whether it is in the store, where the nodes find it.
    asked: AtomicBool,
}

impl<'a> Deref for Course<'a> {
    type Target = Operator<'a>;

    fn deref(&self) -> &Operator<'a> {
        self.operator
    }
}

impl Course<'_> {
    /// A store that does not answer any more says nothing of what it has been given to keep.
    fn concluded(&self, told: Told) -> Told {
        let error =
            match told {
                Err(
                    NoEffect::Store(error) | NoEffect::Steering(EditError::Store(error) | EditError::Unknown(error)),
                ) if self.asked.load(Ordering::Relaxed) => error,
                told => return told,
            };
        Err(NoEffect::NotYet(format!(
            "the request to {} stays in force, but the store does not show whether it has taken effect: {error}",
            self.election
        )))
    }

    /// Has the leader give the lease up and stay out for so long.
    async fn step_down(&self, stays_out: Duration) -> Told {
        let deadline = self.deadline;
        let election = self.election;
        let leader = self.known_leader().await?;
        let nodes = self.nodes().await?;
        self.refuse_an_unaware(&leader, &nodes)?;
        let (Leader { node, incarnation, term }, for_s) = (leader.clone(), stays_out.as_secs());
        let request = self.request(Ask::StepDown { node: node.clone(), incarnation, for_s }).await?;
        let is_given_up = |seen: &Seen| seen.leader().is_none_or(|now| now.incarnation != leader.incarnation);
        if self.until(deadline, is_given_up).await?.is_none() {
            return Err(NoEffect::NotYet(self.still_leads(&leader, Some(&request)).await?));
        }
        let asked = self.known().await?;
        let now = now_beside(Some(&leader), &nodes);
        let others =
            nodes.iter().filter(|said| said.incarnation != leader.incarnation && could_lead(now, said)).count();
        let is_led = |seen: &Seen| seen.leader_above(term).is_some();
        let next = if others > 0 && asked.suspended.is_none() { self.until(deadline, is_led).await? } else { None };
        let next = match next {
            Some(next) => next,
            None => self.look().await?,
        };
        let then = match next.leader_above(term) {
            Some(next) if next.incarnation == leader.incarnation => {
                let why = self.overtaken(&request).await?.map(|why| format!(": {why}")).unwrap_or_default();
                return Err(NoEffect::NotYet(format!(
                    "{node} has stepped down, and leads {election} again in term {}{why}",
                    next.term
                )));
            }
            Some(next) if next.node == node => {
                return Err(NoEffect::NotYet(format!(
                    "{node} exited before it released the lease of {election}, and leads again in term {} after a \
                     restart: repeat the command",
                    next.term
                )));
            }
            Some(next) => format!("{} leads in term {}", next.node, next.term),
            None => match self.known().await?.suspended {
                Some(order) => format!("no node leads, since {election} is suspended by {}", escape(&order.told())),
                None if others > 0 => "no node has taken the lease yet".to_owned(),
                None => "no node leads, since no other node has announced that it can".to_owned(),
            },
        };
        let stays_out = humantime::format_duration(Duration::from_secs(for_s));
        Ok(format!(
            "{node} led {election} in term {term}, has stepped down and is ineligible for {stays_out}: {then}\n"
        ))
    }

    /// Has nobody lead, until [`Self::resume`].
    async fn suspend(&self) -> Told {
        let deadline = self.deadline;
        let election = self.election;
        let before = self.look().await?;
        let nodes = self.nodes().await?;
        self.refuse_an_unknown(&before, &nodes).await?;
        if let Some(leader) = before.leader() {
            self.refuse_an_unaware(&leader, &nodes)?;
        }
        let order = self.order()?;
        self.edit(|found| Ok(Steering { suspended: Some(order.clone()), ..found? })).await?;
        let heard_by = Instant::now() + HEARD_WITHIN;
        loop {
            let asked = self.known().await?;
            let Some(suspended) = &asked.suspended else {
                return Err(NoEffect::NotYet(format!(
                    "{election} was suspended, but a later command has resumed it: nodes may lead again"
                )));
            };
            let leader = self.look().await?.leader();
            // Who has read what is asked before it was, and not again, could take it still.
            let nodes = self.nodes().await?;
            let now = now_beside(before.leader().as_ref(), &nodes);
            let unheard = unheard(now, &nodes, &asked.mark(), &[]);
            let is_known = unheard.is_empty() || Instant::now() >= heard_by.min(deadline);
            // Nobody does still, after all have said what they know.
            if is_known && leader.is_none() && self.look().await?.leader().is_none() {
                let mut said = format!("{election} is suspended: no node leads until `baton resume {election}`\n");
                if let Some(Leader { node, term, .. }) = before.leader() {
                    let _ = writeln!(said, "{node} led in term {term}");
                }
                if suspended.id != order.id {
                    let _ =
                        writeln!(said, "{election} has since been suspended again by {}", escape(&suspended.told()));
                }
                for node in unheard {
                    let _ = writeln!(said, "{node} has not confirmed the suspension");
                }
                said.push_str(&may_lead_all_the_same(&nodes));
                return Ok(said);
            }
            if let Some(leader) = leader
                && Instant::now() >= deadline
            {
                return Err(NoEffect::NotYet(self.still_leads(&leader, None).await?));
            }
            sleep(LOOK).await;
        }
    }

    /// Takes a suspension back.
    async fn resume(&self) -> Told {
        let deadline = self.deadline;
        let election = self.election;
        let resume = |found: Result<Steering, SteeringError>| match found {
            Ok(found) => {
                let was_suspended = found.suspended.is_some();
                Ok((Steering { suspended: None, ..found }, was_suspended))
            }
            Err(SteeringError::Damaged(_)) => Ok((Steering::default(), true)),
            Err(error) => Err(EditError::from(error)),
        };
        let before = self.nodes().await?;
        let was_suspended = self.edited(resume).await?;
        self.call().await;
        if !was_suspended {
            self.refuse_an_unknown(&self.look().await?, &before).await?;
            return Ok(format!("{election} was not suspended: nothing changed\n"));
        }
        let seen = self.look().await?;
        let last = if seen.leader().is_none() { seen.term() } else { 0 };
        loop {
            let asked = self.known().await?;
            if let Some(order) = &asked.suspended {
                return Err(NoEffect::NotYet(format!(
                    "{election} was resumed, but has since been suspended again by {}",
                    escape(&order.told())
                )));
            }
            let seen = self.look().await?;
            if let Some(Leader { node, term, .. }) = seen.leader_above(last) {
                return Ok(format!("{election} is resumed: {node} leads in term {term}\n"));
            }
            if seen.is_over() {
                return Ok(format!(
                    "{election} is resumed, but its coordinator has finished: `baton rerun {election}` runs it again\n"
                ));
            }
            let nodes = self.nodes().await?;
            // What was said before says nothing of it, also where it names the same: that node may be gone.
            let now = now();
            let unheard = unheard(now, &nodes, &asked.mark(), &before);
            if !nodes.iter().any(|said| could_lead(now, said)) && unheard.is_empty() {
                return Ok(format!("{election} is resumed; no node has announced that it can lead\n"));
            }
            if Instant::now() >= deadline {
                return match unheard.is_empty() {
                    true => {
                        Ok(format!("{election} is resumed; all live nodes have confirmed this, but none leads yet\n"))
                    }
                    false => Err(NoEffect::NotYet(format!(
                        "{election} is resumed, but no node leads yet, and these nodes have not confirmed it: {}; \
                         check that they are running and can reach the store",
                        unheard.join(", ")
                    ))),
                };
            }
            sleep(LOOK).await;
        }
    }

    /// Breaks the lease that a client holds which is no host of Baton.
    async fn break_lease(&self) -> Told {
        let deadline = self.deadline;
        let election = self.election;
        let seen = self.look().await?;
        let Some(lease) = seen.lease else { return Err(NoEffect::Unknown(election.clone())) };
        let is_outside = match lease {
            LeaseState::Free | LeaseState::Expired | LeaseState::Abandoned { .. } | LeaseState::Reclaimable { .. } => {
                return Err(NoEffect::Refused(format!(
                    "no client holds the lease of {election}: there is nothing to break"
                )));
            }
            LeaseState::Broken => return Ok(format!("the lease of {election} is already broken\n")),
            LeaseState::Breaking => return Err(NoEffect::Refused(format!("the lease of {election} is being broken"))),
            LeaseState::HeldForever => true,
            LeaseState::Held => match (&seen.record, seen.leader()) {
                (None, _) => true,
                (_, Some(leader)) => return Err(NoEffect::Refused(of_a_host(election, &leader, &seen))),
                // A host that has just taken it writes so at once.
                (Some(record), None) => {
                    let writes = record.lease.max(Duration::from_secs(5));
                    let version = seen.version.clone();
                    let changed = |seen: &Seen| !seen.is_held() || seen.version != version;
                    match self.until(deadline.min(Instant::now() + writes), changed).await? {
                        None if Instant::now() < deadline => true,
                        None => {
                            return Err(NoEffect::NotYet(format!(
                                "a host may just have taken the lease of {election}, so the lease was not broken: \
                                 repeat the command with --timeout {:?} or more",
                                writes + Duration::from_secs(1)
                            )));
                        }
                        Some(_) => false,
                    }
                }
            },
        };
        if !is_outside {
            return Err(NoEffect::Refused(format!(
                "a client other than Baton no longer holds the lease of {election}: see `baton status {election}`"
            )));
        }
        self.asked.store(true, Ordering::Relaxed);
        self.leases().break_now(election).await?;
        match self.until(deadline, |now| now.lease != Some(lease)).await? {
            Some(_) => Ok(format!(
                "the lease of {election} is broken; a client other than Baton held it, and the next node waits until \
                 nothing can run under that lease\n"
            )),
            None => Err(NoEffect::NotYet(format!("the lease of {election} was broken, but is still held"))),
        }
    }

    /// Who leads; nobody is an error.
    async fn known_leader(&self) -> Result<Leader, NoEffect> {
        let election = self.election;
        let seen = self.look().await?;
        if seen.lease.is_none() {
            return Err(NoEffect::Unknown(election.clone()));
        }
        let Some(leader) = seen.leader() else {
            let why = match self.known().await?.suspended {
                Some(order) => format!("it is suspended by {}", escape(&order.told())),
                None if seen.is_over() => "it is finished".to_owned(),
                None if seen.is_held() => "a client other than Baton, or a starting node, holds the lease".to_owned(),
                None => "its lease is free".to_owned(),
            };
            return Err(NoEffect::Refused(format!("no node leads {election}: {why}")));
        };
        Ok(leader)
    }

    /// There is an election if anybody has contended for it, or pushed a module to it.
    async fn refuse_an_unknown(&self, seen: &Seen, nodes: &[Announcement]) -> Result<(), NoEffect> {
        let is_there = seen.lease.is_some() || !nodes.is_empty();
        if is_there || self.store.read_control(self.election, None).await? != baton_store::Reading::Nothing {
            return Ok(());
        }
        Err(NoEffect::Unknown(self.election.clone()))
    }

    fn refuse_an_unaware(&self, leader: &Leader, nodes: &[Announcement]) -> Result<(), NoEffect> {
        let said = nodes.iter().find(|said| said.incarnation == leader.incarnation);
        match said.filter(|said| said.version.is_empty()) {
            None => Ok(()),
            Some(_) => Err(NoEffect::Refused(format!(
                "{} leads {}, and its version of baton does not support steering: update it first, or stop it with \
                 SIGTERM, which hands over the lease",
                leader.node, self.election
            ))),
        }
    }

    /// Why the same node leads still, though it was asked for something else.
    async fn still_leads(&self, leader: &Leader, request: Option<&Request>) -> Result<String, NoEffect> {
        let (asked, nodes) = (self.known().await?, self.nodes().await?);
        let said = nodes.iter().find(|said| said.incarnation == leader.incarnation);
        let replaced = request.and_then(|own| replaced(own, &asked));
        let why = match (&replaced, said) {
            (_, Some(said)) if said.version.is_empty() => "its version of baton does not support steering: update it",
            (Some(why), _) => why,
            (_, Some(said)) if said.steered.as_ref() == Some(&asked.mark()) => {
                "it has confirmed the request, and its instance is still stopping"
            }
            _ => "it has not confirmed the request: is it running, and can it reach the store?",
        };
        let Leader { node, term, .. } = leader;
        Ok(format!("after {:?}, {node} still leads {} in term {term}; {why}", self.patience, self.election))
    }

    fn order(&self) -> Result<Order, NoEffect> {
        Order::now(&self.by, self.reason.as_deref())
            .map_err(|error| NoEffect::Refused(format!("the system has no random numbers: {error}")))
    }

    async fn request(&self, ask: Ask) -> Result<Request, NoEffect> {
        let request = Request { order: self.order()?, ask };
        self.edit(|found| Ok(Steering { request: Some(request.clone()), ..found? })).await?;
        Ok(request)
    }

    /// What others have asked for since, where that is why it does not come about.
    async fn overtaken(&self, request: &Request) -> Result<Option<String>, NoEffect> {
        let asked = self.known().await?;
        Ok(match &asked.suspended {
            Some(order) => Some(format!("the election is suspended by {}", escape(&order.told()))),
            None => replaced(request, &asked),
        })
    }

    /// Changes what is asked, and returns its mark.
    async fn edit(
        &self,
        change: impl Fn(Result<Steering, SteeringError>) -> Result<Steering, SteeringError>,
    ) -> Result<String, NoEffect> {
        let change = |found| {
            let next = change(found)?;
            let mark = next.mark();
            Ok::<_, EditError>((next, mark))
        };
        let mark = self.edited(change).await?;
        self.call().await;
        Ok(mark)
    }

    /// The same, and tells nobody.
    async fn edited<T>(
        &self,
        change: impl Fn(Result<Steering, SteeringError>) -> Result<(Steering, T), EditError>,
    ) -> Result<T, NoEffect> {
        let late = |_| EditError::Unknown(StoreError::Unknown("the store did not answer in time".to_owned()));
        let edit = steering::edit(self.objects(), self.election, change);
        let answer = timeout(self.patience().max(LEAST), edit).await.map_err(late).flatten()?;
        self.asked.store(true, Ordering::Relaxed);
        Ok(answer)
    }

    /// What is left of it.
    fn patience(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    async fn call(&self) {
        match self.called {
            Called::Nobody => {}
            Called::Hosts(url) => links::call(url, self.election).await,
            Called::Node(tidings) => tidings.look(),
        }
    }

    async fn known(&self) -> Result<Steering, NoEffect> {
        let late = |_| StoreError::Unknown("the store did not answer in time".to_owned());
        let read = steering::read(self.objects(), self.election);
        Ok(timeout(self.patience().max(LEAST), read).await.map_err(late)??)
    }

    async fn nodes(&self) -> Result<Vec<Announcement>, NoEffect> {
        let said = self.patiently(|| self.store.announcements(self.election)).await?;
        Ok(said.iter().filter_map(|(_, content)| Announcement::decode(content)).collect())
    }

    async fn look(&self) -> Result<Seen, NoEffect> {
        let read = self.patiently(|| self.leases().request(self.election, Op::Read)).await?;
        Ok(match read {
            Reply::Read(Snapshot::Object { lease, version, record }) => {
                Seen { lease: Some(lease), version: Some(version), record }
            }
            _ => Seen { lease: None, version: None, record: None },
        })
    }

    /// Looks until what is seen passes the test; none if that is not in time.
    async fn until(&self, deadline: Instant, mut test: impl FnMut(&Seen) -> bool) -> Result<Option<Seen>, NoEffect> {
        loop {
            let seen = self.look().await?;
            if test(&seen) {
                return Ok(Some(seen));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            sleep(LOOK).await;
        }
    }

    /// Asks the store, again and again where it is busy or does not answer.
    async fn patiently<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        ask: impl Fn() -> F,
    ) -> Result<T, StoreError> {
        let until = self.deadline.max(Instant::now() + LEAST);
        loop {
            let within = ANSWER.min(until.saturating_duration_since(Instant::now()));
            let late = |_| StoreError::Unknown(format!("no response within {within:.1?}"));
            match timeout(within, ask()).await.map_err(late).flatten() {
                Err(StoreError::Unknown(_)) if Instant::now() + LOOK < until => sleep(LOOK).await,
                answer => return answer,
            }
        }
    }

    fn objects(&self) -> &dyn ObjectStore {
        self.store
    }

    fn leases(&self) -> &dyn LeaseStore {
        self.store
    }
}

/// Whether a node has said that it could take the lease now. One that lets another take it does so until it is asked for
/// something else.
fn could_lead(now: OffsetDateTime, said: &Announcement) -> bool {
    let is_out = said.stays_out.as_ref().is_some_and(|why| why != "transferring");
    said.is_fresh(now) && !is_out && !said.holds.is_empty()
}

/// Which other request has taken the place of that one, whatever else is asked.
fn replaced(request: &Request, asked: &Steering) -> Option<String> {
    let other = asked.request.as_ref().filter(|other| other.order.id != request.order.id)?;
    let what = match &other.ask {
        Ask::StepDown { node, .. } => format!("step-down of {node}"),
        Ask::Transfer { node, .. } => format!("transfer to {node}"),
    };
    Some(format!("a later command replaced the request: {}, by {}", escape(&what), escape(&other.order.told())))
}

/// Those that may be there, know steering, and have not said that they know of this, or only `before`.
pub(super) fn unheard<'a>(
    now: OffsetDateTime,
    nodes: &'a [Announcement],
    mark: &str,
    before: &[Announcement],
) -> Vec<&'a str> {
    let aware = nodes.iter().filter(|said| said.is_fresh(now) && !said.version.is_empty());
    let unheard = aware.filter(|said| said.steered.as_deref() != Some(mark) || before.contains(said));
    unheard.map(|said| said.node.as_str()).collect()
}

/// A line for each node that does not know steering.
fn may_lead_all_the_same(nodes: &[Announcement]) -> String {
    let now = now();
    let unaware = nodes.iter().filter(|said| said.is_fresh(now) && said.version.is_empty());
    unaware.fold(String::new(), |mut lines, said| {
        let _ =
            writeln!(lines, "{} does not support steering and may still lead: update its version of baton", said.node);
        lines
    })
}

fn of_a_host(election: &ElectionName, leader: &Leader, seen: &Seen) -> String {
    let Leader { node, term, .. } = leader;
    let lease = seen.record.as_ref().map_or(Duration::ZERO, |record| record.lease);
    format!(
        "{node} holds the lease of {election}, in term {term}, so the lease was not broken: nodes wait longer after a \
         break than for an expiry. The lease expires within {lease:?} unless {node} renews it; `baton step-down \
         {election}` makes {node} release it"
    )
}

/// The time by which what nodes have said is old: this machine's, unless the leader's says that it is ahead. Who leads says
/// something each minute.
fn now_beside(leader: Option<&Leader>, nodes: &[Announcement]) -> OffsetDateTime {
    let said = leader.and_then(|leader| nodes.iter().find(|said| said.incarnation == leader.incarnation)?.when());
    said.map_or_else(now, |said| now().min(said + EACH_MINUTE))
}

pub(super) fn now() -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + wall()
}

#[cfg(test)]
mod tests;
