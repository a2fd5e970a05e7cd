//! The operator's side of steering: writes a command for an election's nodes, and waits until it has taken effect.
//!
//! The effect is visible in the lease record or in the nodes' announcements. Commands, the admin endpoint and
//! `--preempt` wait for the effect. A node's supervisor never waits for the effect.

mod transfer;

use std::fmt::Write as _;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_base::clock::{rfc3339_seconds, wall};
use baton_base::escape::escape;
use baton_election::{
    ElectionName, LeaseState, Op, Outcome, Progress, Record, Reply, Snapshot, StoreError, Term, Version,
};
use baton_store::steering::{
    self, Ask, CommandOrigin, EditError, LONGEST_REASON, Request, SetProgress, Steering, SteeringError, Trigger,
};
use baton_store::{Announcement, ChangeNotifier, LeaseStore, ModuleStore as _, ObjectStore, Store, StoreUrl};
use time::OffsetDateTime;
use tokio::time::{Instant, sleep, timeout};

use crate::links;

const ANNOUNCEMENT_INTERVAL: time::Duration = time::Duration::MINUTE;
const POLL: Duration = Duration::from_millis(200);
const RESPONSE_WITHIN: Duration = Duration::from_secs(4);
/// Shortest time during which requests to a busy store are retried, even if `patience` is shorter.
const SHORTEST_PATIENCE: Duration = Duration::from_secs(2);
/// Upper bound on the time that a live node needs to read a command and confirm it.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(6);

/// Longest time by which a triggered run's due time may be ahead of this machine's clock.
const TRIGGERED_AHEAD: Duration = Duration::from_secs(60);

/// Checks whether a string is valid as the reason for a command.
///
/// # Errors
/// Returns a human-readable cause.
pub fn check_reason(reason: &str) -> Result<(), String> {
    if reason.trim().is_empty() {
        return Err("it is empty: leave it out, or give a reason".to_owned());
    }
    if reason.len() > LONGEST_REASON {
        return Err(format!("it has {} bytes, but the limit is {LONGEST_REASON}: write a shorter one", reason.len()));
    }
    Ok(())
}

/// A steering command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SteeringCommand {
    /// The leader releases the lease and is ineligible for this long.
    StepDown(Duration),
    /// No node leads until the election is resumed.
    Suspend,
    /// Ends a suspension. If `skip_missed` is true, the due times of scheduled runs up to now do not run.
    Resume {
        /// True to skip missed runs.
        skip_missed: bool,
    },
    /// The next scheduled run is the first one that is due after this time since the Unix epoch.
    ScheduleFrom(Duration),
    /// The leader runs a coordinator with a schedule once more, now.
    Trigger,
    /// The named node acquires the lease.
    Transfer(String),
    /// Breaks the lease of a client other than Baton.
    Break,
}

/// An operator who steers an election.
pub struct Operator<'a> {
    /// The store that contains the election.
    pub store: &'a dyn Store,
    /// The name of the election.
    pub election: &'a ElectionName,
    /// The operator, as `USER@HOST`.
    pub by: String,
    /// Human-readable reason.
    pub reason: Option<String>,
    /// Maximum time to wait for the effect.
    pub patience: Duration,
    /// The recipients of hints. A hint makes a node read the command before its next poll.
    pub called: HintTarget<'a>,
}

/// Recipient of a hint that there is something new to read.
#[derive(Clone, Copy)]
pub enum HintTarget<'a> {
    /// No hint is sent.
    Nobody,
    /// The hosts on this machine, through their sockets in the store's folder.
    Hosts(&'a StoreUrl),
    /// This node, which forwards hints to the other nodes.
    Node(&'a ChangeNotifier),
}

/// The reason why a command has no effect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoEffect {
    /// The election does not exist.
    #[error("there is no election {0} in this store: no host has contended for it yet; check `--store`")]
    Unknown(ElectionName),
    /// The command makes no sense in the current state of the election, so it was not sent.
    #[error("{0}")]
    Refused(String),
    /// The command was sent, but was superseded or has not taken effect in time.
    #[error("{0}")]
    NotYet(String),
    /// The steering object cannot be read or written.
    #[error(transparent)]
    Steering(#[from] EditError),
    /// The leader cannot be read.
    #[error("cannot read the leader from the store, so nothing was requested: {0}")]
    Store(StoreError),
}

impl From<StoreError> for NoEffect {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The result of a command, as human-readable lines.
pub type SteerResult = Result<String, NoEffect>;

#[derive(Clone, Debug)]
struct LeaseView {
    lease: Option<LeaseState>,
    version: Option<Version>,
    record: Option<Record>,
    /// True if this is the lease of a shard, and the command is for the whole group.
    is_of_shard: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Leader {
    node: String,
    incarnation: String,
    term: Term,
}

impl LeaseView {
    /// Returns the leader that the record names, if the lease is held and was not released.
    fn leader(&self) -> Option<Leader> {
        let record = self.record.as_ref().filter(|record| !record.released)?;
        let is_held = matches!(self.lease, Some(LeaseState::Held | LeaseState::Breaking));
        let node = record.node.clone().filter(|_| is_held)?;
        Some(Leader { node, incarnation: record.incarnation.clone(), term: record.term })
    }

    /// Returns the leader if its term is higher than `term`. A record with a lower or equal term may be out of date:
    /// after a node has acquired an expired lease, the record still names the previous holder for a while.
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
    /// Sends a command, and waits for up to `patience` until the command takes effect. Retries requests to a busy store
    /// for at least 2 s.
    ///
    /// # Errors
    /// [`NoEffect`].
    pub async fn steer(&self, what: &SteeringCommand) -> SteerResult {
        let command = self.begin();
        let is_for_group = matches!(what, SteeringCommand::Suspend | SteeringCommand::Resume { .. });
        if self.election.shard().is_some() && is_for_group {
            let (election, group) = (self.election, self.election.group());
            return Err(NoEffect::Refused(format!(
                "{election} is a shard: suspend or resume the whole group, {group}"
            )));
        }
        let result = match what {
            SteeringCommand::StepDown(period) => command.step_down(*period).await,
            SteeringCommand::Suspend => command.suspend().await,
            SteeringCommand::Resume { skip_missed } => command.resume(*skip_missed).await,
            SteeringCommand::ScheduleFrom(from) => command.schedule_from(*from).await,
            SteeringCommand::Trigger => command.trigger().await,
            SteeringCommand::Transfer(to) => command.transfer(to).await,
            SteeringCommand::Break => command.break_lease().await,
        };
        command.conclude(result)
    }

    pub(super) async fn known(&self) -> Result<Steering, NoEffect> {
        self.begin().known().await
    }

    /// Returns the nodes' announcements, including those of nodes that have exited.
    pub(super) async fn nodes(&self) -> Result<Vec<Announcement>, NoEffect> {
        self.begin().nodes().await
    }

    fn begin(&self) -> CommandRun<'_> {
        CommandRun { operator: self, deadline: Instant::now() + self.patience, asked: AtomicBool::new(false) }
    }
}

struct CommandRun<'a> {
    operator: &'a Operator<'a>,
    deadline: Instant,
    /// True once the command has been written to the store, or once the request to break the lease is being sent. After
    /// that, an error of the store does not mean that the command has no effect.
    asked: AtomicBool,
}

impl<'a> Deref for CommandRun<'a> {
    type Target = Operator<'a>;

    fn deref(&self) -> &Operator<'a> {
        self.operator
    }
}

impl CommandRun<'_> {
    /// Converts the store's errors to [`NoEffect::NotYet`] if they occur after the command was sent (see `asked`).
    fn conclude(&self, result: SteerResult) -> SteerResult {
        let error =
            match result {
                Err(
                    NoEffect::Store(error) | NoEffect::Steering(EditError::Store(error) | EditError::Unknown(error)),
                ) if self.asked.load(Ordering::Relaxed) => error,
                result => return result,
            };
        Err(NoEffect::NotYet(format!(
            "the request to {} stays in force, but the store does not show whether it has taken effect: {error}",
            self.election
        )))
    }

    async fn step_down(&self, period: Duration) -> SteerResult {
        let deadline = self.deadline;
        let election = self.election;
        let leader = self.known_leader().await?;
        let nodes = self.nodes().await?;
        self.refuse_unaware_leader(&leader, &nodes)?;
        let (Leader { node, incarnation, term }, for_s) = (leader.clone(), period.as_secs());
        let request = self.request(Ask::StepDown { node: node.clone(), incarnation, for_s }).await?;
        let is_given_up = |seen: &LeaseView| seen.leader().is_none_or(|now| now.incarnation != leader.incarnation);
        if self.wait_until(deadline, is_given_up).await?.is_none() {
            return Err(NoEffect::NotYet(self.still_leads(&leader, Some(&request)).await?));
        }
        let asked = self.known().await?;
        let now = now_by_leader(Some(&leader), &nodes);
        let others =
            nodes.iter().filter(|said| said.incarnation != leader.incarnation && could_lead(now, said)).count();
        let is_led = |seen: &LeaseView| seen.leader_above(term).is_some();
        let next =
            if others > 0 && asked.suspended.is_none() { self.wait_until(deadline, is_led).await? } else { None };
        let next = match next {
            Some(next) => next,
            None => self.read_lease().await?,
        };
        let then = match next.leader_above(term) {
            Some(next) if next.incarnation == leader.incarnation => {
                let why = self.superseded_by(&request).await?.map(|why| format!(": {why}")).unwrap_or_default();
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
                Some(order) => format!("no node leads, because {election} is suspended by {}", escape(&order.told())),
                None if others > 0 => "no node has taken the lease yet".to_owned(),
                None => "no node leads, because no other node has announced that it can".to_owned(),
            },
        };
        let period = humantime::format_duration(Duration::from_secs(for_s));
        Ok(format!("{node} led {election} in term {term}, has stepped down and is ineligible for {period}: {then}\n"))
    }

    async fn suspend(&self) -> SteerResult {
        let deadline = self.deadline;
        let election = self.election;
        let before = self.read_any_lease().await?;
        let nodes = self.nodes().await?;
        self.refuse_unknown_election(&before, &nodes).await?;
        if let Some(leader) = before.leader() {
            self.refuse_unaware_leader(&leader, &nodes)?;
        }
        let order = self.order()?;
        self.edit(|found| Ok(Steering { suspended: Some(order.clone()), ..found? })).await?;
        let confirm_by = Instant::now() + CONFIRMED_WITHIN;
        loop {
            let asked = self.known().await?;
            let Some(suspended) = &asked.suspended else {
                return Err(NoEffect::NotYet(format!(
                    "{election} was suspended, but a later command has resumed it: nodes may lead again"
                )));
            };
            let leader = self.read_any_lease().await?.leader();
            // Wait, for a limited time, until all nodes have confirmed the suspension: a node that has not read the
            // command yet could still acquire the lease.
            let nodes = self.nodes().await?;
            let now = now_by_leader(before.leader().as_ref(), &nodes);
            let unconfirmed = unconfirmed(now, &nodes, &asked.mark(), &[]);
            let is_known = unconfirmed.is_empty() || Instant::now() >= confirm_by.min(deadline);
            // A node may have acquired the lease just before it confirmed the suspension, so read the lease again.
            if is_known && leader.is_none() && self.read_any_lease().await?.leader().is_none() {
                let mut said = format!("{election} is suspended: no node leads until `baton resume {election}`\n");
                if let Some(Leader { node, term, .. }) = before.leader().filter(|_| !before.is_of_shard) {
                    let _ = writeln!(said, "{node} led in term {term}");
                }
                if suspended.id != order.id {
                    let _ =
                        writeln!(said, "{election} has since been suspended again by {}", escape(&suspended.told()));
                }
                for node in unconfirmed {
                    let _ = writeln!(said, "{node} has not confirmed the suspension");
                }
                said.push_str(&unaware_nodes(&nodes));
                return Ok(said);
            }
            if let Some(leader) = leader
                && Instant::now() >= deadline
            {
                return Err(NoEffect::NotYet(self.still_leads(&leader, None).await?));
            }
            sleep(POLL).await;
        }
    }

    async fn resume(&self, skip_missed: bool) -> SteerResult {
        let deadline = self.deadline;
        let election = self.election;
        let set = if skip_missed { Some(self.progress_from(wall()).await?) } else { None };
        let resume = |found: Result<Steering, SteeringError>| match found {
            Ok(found) => {
                let was_suspended = found.suspended.is_some();
                let progress = set.clone().or(found.progress);
                Ok((Steering { suspended: None, progress, ..found }, was_suspended))
            }
            Err(SteeringError::Damaged(_)) => Ok((Steering { progress: set.clone(), ..Steering::default() }, true)),
            Err(error) => Err(EditError::from(error)),
        };
        let before = self.nodes().await?;
        let was_suspended = self.edit_with(resume).await?;
        self.call().await;
        if !was_suspended {
            self.refuse_unknown_election(&self.read_any_lease().await?, &before).await?;
            return Ok(format!("{election} was not suspended: nothing changed\n"));
        }
        let seen = self.read_any_lease().await?;
        // Terms of different shards cannot be compared.
        let last = if seen.leader().is_none() && !seen.is_of_shard { seen.term() } else { 0 };
        loop {
            let asked = self.known().await?;
            if let Some(order) = &asked.suspended {
                return Err(NoEffect::NotYet(format!(
                    "{election} was resumed, but has since been suspended again by {}",
                    escape(&order.told())
                )));
            }
            let seen = self.read_any_lease().await?;
            if let Some(Leader { node, term, .. }) = seen.leader_above(last) {
                return Ok(match seen.is_of_shard {
                    true => format!("{election} is resumed: {node} leads a shard again\n"),
                    false => format!("{election} is resumed: {node} leads in term {term}\n"),
                });
            }
            if seen.is_over() {
                return Ok(format!(
                    "{election} is resumed, but its coordinator is finished: `baton rerun {election}` runs it again\n"
                ));
            }
            let nodes = self.nodes().await?;
            // An announcement from before the command does not confirm the command, even if it has the same mark,
            // because its node may have exited since.
            let now = now();
            let unconfirmed = unconfirmed(now, &nodes, &asked.mark(), &before);
            if !nodes.iter().any(|said| could_lead(now, said)) && unconfirmed.is_empty() {
                return Ok(format!("{election} is resumed; no node has announced that it can lead\n"));
            }
            if Instant::now() >= deadline {
                return match unconfirmed.is_empty() {
                    true => {
                        Ok(format!("{election} is resumed; all live nodes have confirmed this, but none leads yet\n"))
                    }
                    false => Err(NoEffect::NotYet(format!(
                        "{election} is resumed, but no node leads yet, and these nodes have not confirmed it: {}; \
                         check that they are running and can reach the store",
                        unconfirmed.join(", ")
                    ))),
                };
            }
            sleep(POLL).await;
        }
    }

    /// Returns the command after which the next run is the first one that is due after `from`. The command drops a run
    /// that has begun and is not completed.
    async fn progress_from(&self, from: Duration) -> Result<SetProgress, NoEffect> {
        let record = self.read_lease().await?.record;
        let Some(mut progress) = record.and_then(|record| record.progress) else {
            return Err(NoEffect::Refused(format!(
                "{} has never had a schedule: there is no run to skip",
                self.election
            )));
        };
        progress.count_from(Duration::from_secs(from.as_secs()));
        Ok(SetProgress { order: self.order()?, progress: progress.to_string() })
    }

    async fn schedule_from(&self, from: Duration) -> SteerResult {
        let (deadline, election) = (self.deadline, self.election);
        let set = self.progress_from(from).await?;
        let from = rfc3339_seconds(from);
        // An earlier triggered run must not count as missed.
        self.edit(|found| Ok(Steering { progress: Some(set.clone()), trigger: None, ..found? })).await?;
        let epoch = set.progress.parse::<Progress>().map_or(0, |progress| progress.epoch);
        let is_recorded = |seen: &LeaseView| {
            let progress = seen.record.as_ref().and_then(|record| record.progress.as_ref());
            seen.leader().is_none() || progress.is_some_and(|progress| progress.epoch >= epoch)
        };
        match self.wait_until(deadline, is_recorded).await? {
            Some(seen) if seen.leader().is_some() => Ok(format!("the schedule of {election} counts from {from}\n")),
            Some(_) => Ok(format!("the schedule of {election} counts from {from}, as soon as a node leads\n")),
            None => Err(NoEffect::NotYet(format!(
                "the leader of {election} has not recorded the new start yet, because a run is under way; the request \
                 stays in force"
            ))),
        }
    }

    /// Waits until the triggered run has begun.
    async fn trigger(&self) -> SteerResult {
        let (deadline, election) = (self.deadline, self.election);
        let leader = self.known_leader().await?;
        let record = self.read_lease().await?.record;
        let progress = record.and_then(|record| record.progress).filter(|progress| progress.has_schedule());
        let Some(progress) = progress else {
            return Err(NoEffect::Refused(format!(
                "{election} has no schedule: set `schedule`, or use `baton rerun {election}` after it has finished"
            )));
        };
        if let Some(run) = progress.unfinished() {
            return Err(NoEffect::Refused(format!(
                "{} is carrying out the run of {election} that was due at {}: wait until it is completed",
                leader.node,
                rfc3339_seconds(run.due)
            )));
        }
        // Each run needs its own due time, later than the due times of the recorded runs.
        let due = wall().max(progress.base() + Duration::from_secs(1));
        if due > wall() + TRIGGERED_AHEAD {
            return Err(NoEffect::Refused(format!(
                "the store records runs of {election} up to {}: a clock was wrong; `baton schedule {election} --from \
                 now` sets the record back",
                rfc3339_seconds(progress.base())
            )));
        }
        let trigger = Trigger { order: self.order()?, due_s: due.as_secs() };
        self.edit(|found| Ok(Steering { trigger: Some(trigger.clone()), ..found? })).await?;
        let begun = |seen: &LeaseView| {
            let progress = seen.record.as_ref().and_then(|record| record.progress.as_ref());
            progress.is_some_and(|progress| progress.begun.as_secs() >= trigger.due_s)
        };
        match self.wait_until(deadline, begun).await?.and_then(|seen| seen.record) {
            Some(Record { node, term, .. }) => {
                let node = node.unwrap_or(leader.node);
                Ok(format!("{node} has begun a run of {election} in term {term}\n"))
            }
            None => Err(NoEffect::NotYet(format!(
                "no node has begun the run of {election} yet; the request stays in force: `baton status {election}` \
                 shows the leader"
            ))),
        }
    }

    async fn break_lease(&self) -> SteerResult {
        let deadline = self.deadline;
        let election = self.election;
        let seen = self.read_lease().await?;
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
                (_, Some(leader)) => return Err(NoEffect::Refused(held_by_host(election, &leader, &seen))),
                // The record names no leader. Either another client holds the lease, or a host has just acquired it and
                // will soon write the record. So wait until the record changes.
                (Some(record), None) => {
                    let writes = record.lease.max(Duration::from_secs(5));
                    let version = seen.version.clone();
                    let changed = |seen: &LeaseView| !seen.is_held() || seen.version != version;
                    match self.wait_until(deadline.min(Instant::now() + writes), changed).await? {
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
        match self.wait_until(deadline, |now| now.lease != Some(lease)).await? {
            Some(_) => Ok(format!(
                "the lease of {election} is broken; a client other than Baton held it, and the next node waits until \
                 nothing can run under that lease\n"
            )),
            None => Err(NoEffect::NotYet(format!("the lease of {election} was broken, but is still held"))),
        }
    }

    /// Returns an error if the election is a group, for a command that applies to one lease.
    async fn refuse_group(&self) -> Result<(), NoEffect> {
        match self.shards().await?.first() {
            Some(shard) => {
                let election = self.election;
                Err(NoEffect::Refused(format!("{election} has shards: name one of them, such as {shard}")))
            }
            None => Ok(()),
        }
    }

    /// Returns the shards of the election that the store contains, if the election is a group.
    async fn shards(&self) -> Result<Vec<ElectionName>, NoEffect> {
        if self.election.shard().is_some() {
            return Ok(Vec::new());
        }
        let all = self.patiently(|| self.leases().elections()).await?;
        let is_shard = |one: &ElectionName| one.shard().is_some() && one.group() == self.election.as_str();
        Ok(all.into_iter().filter(is_shard).collect())
    }

    async fn known_leader(&self) -> Result<Leader, NoEffect> {
        let election = self.election;
        let seen = self.read_lease().await?;
        if seen.lease.is_none() {
            self.refuse_group().await?;
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

    /// Returns an error if no node has contended for the election and no module was pushed to it.
    async fn refuse_unknown_election(&self, seen: &LeaseView, nodes: &[Announcement]) -> Result<(), NoEffect> {
        let is_there = seen.lease.is_some() || !nodes.is_empty();
        if is_there || self.store.read_control(self.election, None).await? != baton_store::Reading::Nothing {
            return Ok(());
        }
        Err(NoEffect::Unknown(self.election.clone()))
    }

    fn refuse_unaware_leader(&self, leader: &Leader, nodes: &[Announcement]) -> Result<(), NoEffect> {
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

    async fn still_leads(&self, leader: &Leader, request: Option<&Request>) -> Result<String, NoEffect> {
        let (asked, nodes) = (self.known().await?, self.nodes().await?);
        let said = nodes.iter().find(|said| said.incarnation == leader.incarnation);
        let replaced_by = request.and_then(|own| replaced_by(own, &asked));
        let why = match (&replaced_by, said) {
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

    fn order(&self) -> Result<CommandOrigin, NoEffect> {
        CommandOrigin::now(&self.by, self.reason.as_deref())
            .map_err(|error| NoEffect::Refused(format!("the system provides no random numbers: {error}")))
    }

    async fn request(&self, ask: Ask) -> Result<Request, NoEffect> {
        let request = Request { order: self.order()?, ask, shard: self.election.shard() };
        self.edit(|found| Ok(Steering { request: Some(request.clone()), ..found? })).await?;
        Ok(request)
    }

    async fn superseded_by(&self, request: &Request) -> Result<Option<String>, NoEffect> {
        let asked = self.known().await?;
        Ok(match &asked.suspended {
            Some(order) => Some(format!("the election is suspended by {}", escape(&order.told()))),
            None => replaced_by(request, &asked),
        })
    }

    /// Changes the steering object, and then sends hints. Returns the mark that identifies the new commands.
    async fn edit(
        &self,
        change: impl Fn(Result<Steering, SteeringError>) -> Result<Steering, SteeringError>,
    ) -> Result<String, NoEffect> {
        let change = |found| {
            let next = change(found)?;
            let mark = next.mark();
            Ok::<_, EditError>((next, mark))
        };
        let mark = self.edit_with(change).await?;
        self.call().await;
        Ok(mark)
    }

    /// Changes the steering object without sending hints.
    async fn edit_with<T>(
        &self,
        change: impl Fn(Result<Steering, SteeringError>) -> Result<(Steering, T), EditError>,
    ) -> Result<T, NoEffect> {
        let late = |_| EditError::Unknown(StoreError::Unknown("the store did not answer in time".to_owned()));
        let edit = steering::edit(self.objects(), self.election, change);
        let answer = timeout(self.patience().max(SHORTEST_PATIENCE), edit).await.map_err(late).flatten()?;
        self.asked.store(true, Ordering::Relaxed);
        Ok(answer)
    }

    fn patience(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    async fn call(&self) {
        match self.called {
            HintTarget::Nobody => {}
            HintTarget::Hosts(url) => links::call(url, self.election).await,
            HintTarget::Node(notifier) => notifier.look(),
        }
    }

    async fn known(&self) -> Result<Steering, NoEffect> {
        let late = |_| StoreError::Unknown("the store did not answer in time".to_owned());
        let read = steering::read(self.objects(), self.election);
        Ok(timeout(self.patience().max(SHORTEST_PATIENCE), read).await.map_err(late)??)
    }

    async fn nodes(&self) -> Result<Vec<Announcement>, NoEffect> {
        let said = self.patiently(|| self.store.announcements(self.election)).await?;
        Ok(said.iter().filter_map(|(_, content)| Announcement::decode(content)).collect())
    }

    async fn read_lease(&self) -> Result<LeaseView, NoEffect> {
        self.read_lease_of(self.election).await
    }

    /// Reads the lease. For a group, returns a shard that has a leader, if there is one.
    async fn read_any_lease(&self) -> Result<LeaseView, NoEffect> {
        let mut view = self.read_lease().await?;
        if view.lease.is_none() {
            for shard in self.shards().await? {
                view = self.read_lease_of(&shard).await?;
                if view.leader().is_some() {
                    break;
                }
            }
        }
        Ok(view)
    }

    async fn read_lease_of(&self, election: &ElectionName) -> Result<LeaseView, NoEffect> {
        let read = self.patiently(|| self.leases().request(election, Op::Read)).await?;
        let is_of_shard = election != self.election;
        Ok(match read {
            Reply::Read(Snapshot::Object { lease, version, record }) => {
                LeaseView { lease: Some(lease), version: Some(version), record, is_of_shard }
            }
            _ => LeaseView { lease: None, version: None, record: None, is_of_shard },
        })
    }

    /// Reads the lease until it passes the test. Returns `None` if the lease does not pass the test before the
    /// deadline.
    async fn wait_until(
        &self,
        deadline: Instant,
        mut test: impl FnMut(&LeaseView) -> bool,
    ) -> Result<Option<LeaseView>, NoEffect> {
        loop {
            let seen = self.read_lease().await?;
            if test(&seen) {
                return Ok(Some(seen));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            sleep(POLL).await;
        }
    }

    /// Retries the request while the store is busy or does not respond.
    async fn patiently<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        ask: impl Fn() -> F,
    ) -> Result<T, StoreError> {
        let until = self.deadline.max(Instant::now() + SHORTEST_PATIENCE);
        loop {
            let within = RESPONSE_WITHIN.min(until.saturating_duration_since(Instant::now()));
            let late = |_| StoreError::Unknown(format!("no response within {within:.1?}"));
            match timeout(within, ask()).await.map_err(late).flatten() {
                Err(StoreError::Unknown(_)) if Instant::now() + POLL < until => sleep(POLL).await,
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

/// Returns true if a node announces that it could lead. A node that is ineligible because of a transfer also counts,
/// because the next request makes it eligible again.
fn could_lead(now: OffsetDateTime, said: &Announcement) -> bool {
    let is_out = said.ineligible.as_ref().is_some_and(|why| why != "transferring");
    said.is_fresh(now) && !is_out && !said.holds.is_empty()
}

fn replaced_by(request: &Request, asked: &Steering) -> Option<String> {
    let other = asked.request.as_ref().filter(|other| other.order.id != request.order.id)?;
    let what = match &other.ask {
        Ask::StepDown { node, .. } => format!("step-down of {node}"),
        Ask::Transfer { node, .. } => format!("transfer to {node}"),
    };
    Some(format!("a later command replaced the request: {}, by {}", escape(&what), escape(&other.order.told())))
}

/// Returns the live nodes that support steering but have not confirmed the commands with this mark. An announcement
/// that is also in `before` does not count as a confirmation, because its node may have exited since.
pub(super) fn unconfirmed<'a>(
    now: OffsetDateTime,
    nodes: &'a [Announcement],
    mark: &str,
    before: &[Announcement],
) -> Vec<&'a str> {
    let aware = nodes.iter().filter(|said| said.is_fresh(now) && !said.version.is_empty());
    let unconfirmed = aware.filter(|said| said.steered.as_deref() != Some(mark) || before.contains(said));
    unconfirmed.map(|said| said.node.as_str()).collect()
}

fn unaware_nodes(nodes: &[Announcement]) -> String {
    let now = now();
    let unaware = nodes.iter().filter(|said| said.is_fresh(now) && said.version.is_empty());
    unaware.fold(String::new(), |mut lines, said| {
        let _ =
            writeln!(lines, "{} does not support steering and may still lead: update its version of baton", said.node);
        lines
    })
}

fn held_by_host(election: &ElectionName, leader: &Leader, seen: &LeaseView) -> String {
    let Leader { node, term, .. } = leader;
    let lease = seen.record.as_ref().map_or(Duration::ZERO, |record| record.lease);
    format!(
        "{node} holds the lease of {election}, in term {term}, so the lease was not broken: nodes wait longer after a \
         break than for an expiry. The lease expires within {lease:?} unless {node} renews it; `baton step-down \
         {election}` makes {node} release it"
    )
}

/// Returns the time against which to check the age of announcements. If this machine's clock is ahead of the leader's
/// clock, this is the latest time that the leader's clock may show now: one announcement interval after the time of the
/// leader's last announcement.
fn now_by_leader(leader: Option<&Leader>, nodes: &[Announcement]) -> OffsetDateTime {
    let said = leader.and_then(|leader| nodes.iter().find(|said| said.incarnation == leader.incarnation)?.when());
    said.map_or_else(now, |said| now().min(said + ANNOUNCEMENT_INTERVAL))
}

pub(super) fn now() -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + wall()
}

#[cfg(test)]
mod tests;
