//! Transfers of the lease to a node that an operator has named, or to which the leader hands over.

use baton_base::escape::escape;
use baton_election::Term;
use baton_store::Announcement;
use baton_store::steering::{Ask, Request, Steering, SteeringError};
use tokio::time::{Instant, sleep};

use super::{
    CONFIRMED_WITHIN, CommandRun, Leader, NoEffect, Operator, POLL, SteerResult, now_by_leader, unaware_nodes,
};
use crate::steering::NodeIncarnation;

struct Before {
    last: Term,
    leader: Option<Leader>,
}

impl Operator<'_> {
    /// Hands over from the leader `from` to the node `to`. Does nothing if the steering object differs from `asked`, or
    /// if another node leads now.
    pub(in crate::steering) async fn hand_over(
        &self,
        from: &NodeIncarnation,
        to: &Announcement,
        asked: &Steering,
    ) -> SteerResult {
        let command = self.begin();
        command.conclude(command.hand_over(from, to, asked).await)
    }
}

impl CommandRun<'_> {
    /// Hands the lease to a node. If that node does not acquire the lease soon, the previous leader may lead again.
    pub(super) async fn transfer(&self, to: &str) -> SteerResult {
        let deadline = self.deadline;
        let election = self.election;
        let asked = self.known().await?;
        if let Some(order) = &asked.suspended {
            let why = escape(&order.told()).into_owned();
            return Err(NoEffect::Refused(format!(
                "{election} is suspended by {why}: run `baton resume {election}` first"
            )));
        }
        let confirm_by = deadline.min(Instant::now() + CONFIRMED_WITHIN);
        let (last, before, nodes, target) = loop {
            let (seen, nodes) = (self.read_lease().await?, self.nodes().await?);
            if seen.lease.is_none() {
                self.refuse_group().await?;
            }
            self.refuse_unknown_election(&seen, &nodes).await?;
            let (last, before) = (seen.term(), seen.leader());
            // If the target's announcement still says `suspended`, wait: the target may not have read yet that the
            // election was resumed.
            let named = nodes.iter().find(|announcement| announcement.node == to);
            let is_behind = named.is_some_and(|announcement| announcement.ineligible.as_deref() == Some("suspended"));
            if !is_behind || Instant::now() >= confirm_by {
                let target = self.target(to, before.as_ref(), &nodes)?;
                break (last, before, nodes, target);
            }
            sleep(POLL).await;
        };
        if let Some(leader) = &before {
            if leader.incarnation == target {
                return Ok(format!("{to} already leads {election}, in term {}\n", leader.term));
            }
            self.refuse_unaware_leader(leader, &nodes)?;
        }
        let request = self.request(Ask::Transfer { node: to.to_owned(), incarnation: target.clone() }).await?;
        self.wait_until_taken(deadline, (to, &target), Before { last, leader: before }, &nodes, &request).await
    }

    async fn hand_over(&self, from: &NodeIncarnation, to: &Announcement, asked: &Steering) -> SteerResult {
        let deadline = self.deadline;
        let seen = self.read_lease().await?;
        let Some(leader) = seen.leader().filter(|leader| leader.incarnation == from.incarnation) else {
            return Err(NoEffect::Refused(format!("{} no longer leads {}", from.node, self.election)));
        };
        let (node, incarnation) = (to.node.clone(), to.incarnation.clone());
        let request =
            Request { order: self.order()?, ask: Ask::Transfer { node, incarnation }, shard: self.election.shard() };
        let ask = |found: Result<Steering, SteeringError>| {
            let found = found?;
            // An earlier attempt to write this request may have succeeded.
            let is_free = found == *asked || found.request.as_ref() == Some(&request);
            Ok(if is_free { Steering { request: Some(request.clone()), ..found } } else { found })
        };
        let mark = self.edit(ask).await?;
        if mark != (Steering { request: Some(request.clone()), ..asked.clone() }).mark() {
            return Err(NoEffect::Refused(format!("a later command has changed the steering of {}", self.election)));
        }
        let before = Before { last: seen.term(), leader: Some(leader) };
        self.wait_until_taken(deadline, (&to.node, &to.incarnation), before, &[], &request).await
    }

    async fn wait_until_taken(
        &self,
        deadline: Instant,
        (to, target): (&str, &str),
        Before { last, leader: before }: Before,
        nodes: &[Announcement],
        request: &Request,
    ) -> SteerResult {
        let election = self.election;
        let mut is_given_up = before.is_none();
        let mut other_leader = None;
        let taken = self.wait_until(deadline, |seen| match seen.leader() {
            Some(leader) if leader.incarnation == target => true,
            // The previous leader counts as a new leader only if it gave up the lease in between. A higher term alone
            // proves nothing, because a leader can begin another term under the same lease.
            Some(leader)
                if leader.term > last
                    && (is_given_up || before.as_ref().is_none_or(|one| one.incarnation != leader.incarnation)) =>
            {
                other_leader = Some(leader);
                true
            }
            Some(_) => false,
            None => {
                is_given_up = true;
                false
            }
        });
        let taken = taken.await?;
        if let Some(Leader { node, term, .. }) = other_leader {
            let is_unaware =
                nodes.iter().any(|announcement| announcement.node == node && announcement.version.is_empty());
            let why = match self.superseded_by(request).await? {
                _ if is_unaware => " and does not support steering: update it".to_owned(),
                Some(why) => format!("; {why}"),
                None => String::new(),
            };
            return Err(NoEffect::NotYet(format!(
                "{to} has not taken the lease of {election} in time: {node} leads in term {term}{why}"
            )));
        }
        match (taken.and_then(|seen| seen.leader()), before) {
            (Some(leader), before) => {
                let from = before.map(|before| format!(", after {}", before.node)).unwrap_or_default();
                Ok(format!("{to} leads {election} in term {}{from}\n{}", leader.term, unaware_nodes(nodes)))
            }
            (None, Some(leader)) if !is_given_up => {
                Err(NoEffect::NotYet(self.still_leads(&leader, Some(request)).await?))
            }
            (None, _) => {
                let why = self.superseded_by(request).await?;
                let why = why.unwrap_or_else(|| format!("see `baton nodes {election}`"));
                Err(NoEffect::NotYet(format!(
                    "neither {to} nor another node has taken the lease of {election} within {:?}: {why}",
                    self.patience
                )))
            }
        }
    }

    /// Returns the target's incarnation. Fails if the target cannot lead.
    fn target(&self, to: &str, leader: Option<&Leader>, nodes: &[Announcement]) -> Result<String, NoEffect> {
        let election = self.election;
        let refused = |why: String| Err(NoEffect::Refused(why));
        let Some(announcement) = nodes.iter().find(|announcement| announcement.node == to) else {
            let known: Vec<&str> = nodes.iter().map(|announcement| announcement.node.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return refused(format!("no node {to} has announced itself in {election}; announced nodes: {known}"));
        };
        let led = leader.filter(|leader| leader.node == to).map(|leader| &leader.incarnation);
        if let Some(other) = announcement.duplicate.as_ref().or(led.filter(|led| **led != announcement.incarnation)) {
            return refused(format!(
                "two hosts have the node id {to}, as incarnations {} and {other}: give each host its own --node, or \
                 try again in a minute if one of them has just exited",
                announcement.incarnation
            ));
        }
        if led.is_some() {
            return Ok(announcement.incarnation.clone());
        }
        if !announcement.is_fresh(now_by_leader(leader, nodes)) {
            return refused(format!(
                "{to} has announced nothing since {} by its clock: is it still running, and are both clocks correct?",
                announcement.at
            ));
        }
        // Refuse only for these reasons. All other reasons (a step-down, an earlier transfer) end when the target reads
        // this request.
        if let Some(why) = announcement
            .ineligible
            .as_ref()
            .filter(|why| ["maintenance", "suspended", "cooling-off"].contains(&why.as_str()))
        {
            let why = why.replace('-', " ");
            return refused(format!("{to} is not eligible to lead {election} now: {why}"));
        }
        if announcement.holds.is_empty() {
            return refused(format!("{to} has no module of {election} ready: see `baton nodes {election}`"));
        }
        Ok(announcement.incarnation.clone())
    }
}
