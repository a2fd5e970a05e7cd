//! Having a certain node lead: the one that an operator names, or that a leader prefers.

use baton_election::Term;
use baton_runtime::escape::escape;
use baton_store::Announcement;
use baton_store::steering::{Ask, Request, Steering, SteeringError};
use tokio::time::{Instant, sleep};

use super::{Course, HEARD_WITHIN, LOOK, Leader, NoEffect, Operator, Told, may_lead_all_the_same, now_beside};
use crate::steering::Itself;

/// How things were before a node was asked to lead.
struct Before {
    /// The highest term.
    last: Term,
    /// Who led.
    leader: Option<Leader>,
}

impl Operator<'_> {
    /// Has that node lead in the place of another, which leads and prefers it. Nothing is asked where anything else was
    /// since `asked` was read, or where another leads by now.
    pub(in crate::steering) async fn hand_over(&self, from: &Itself, to: &Announcement, asked: &Steering) -> Told {
        let course = self.begin();
        course.concluded(course.hand_over(from, to, asked).await)
    }
}

impl Course<'_> {
    /// Has that node lead. If it does not take the lease soon, whoever did before may go on.
    pub(super) async fn transfer(&self, to: &str) -> Told {
        let deadline = self.deadline;
        let election = self.election;
        let asked = self.known().await?;
        if let Some(order) = &asked.suspended {
            let why = escape(&order.told()).into_owned();
            return Err(NoEffect::Refused(format!(
                "{election} is suspended by {why}: run `baton resume {election}` first"
            )));
        }
        let heard_by = deadline.min(Instant::now() + HEARD_WITHIN);
        let (last, before, nodes, target) = loop {
            let (seen, nodes) = (self.look().await?, self.nodes().await?);
            self.refuse_an_unknown(&seen, &nodes).await?;
            let (last, before) = (seen.term(), seen.leader());
            // It may not have heard yet that it is not suspended any more.
            let named = nodes.iter().find(|said| said.node == to);
            let is_behind = named.is_some_and(|said| said.stays_out.as_deref() == Some("suspended"));
            if !is_behind || Instant::now() >= heard_by {
                let target = self.target(to, before.as_ref(), &nodes)?;
                break (last, before, nodes, target);
            }
            sleep(LOOK).await;
        };
        if let Some(leader) = &before {
            if leader.incarnation == target {
                return Ok(format!("{to} leads {election} already, in term {}\n", leader.term));
            }
            self.refuse_an_unaware(leader, &nodes)?;
        }
        let request = self.request(Ask::Transfer { node: to.to_owned(), incarnation: target.clone() }).await?;
        self.until_taken(deadline, (to, &target), Before { last, leader: before }, &nodes, &request).await
    }

    async fn hand_over(&self, from: &Itself, to: &Announcement, asked: &Steering) -> Told {
        let deadline = self.deadline;
        let seen = self.look().await?;
        let Some(leader) = seen.leader().filter(|leader| leader.incarnation == from.incarnation) else {
            return Err(NoEffect::Refused(format!("{} no longer leads {}", from.node, self.election)));
        };
        let (node, incarnation) = (to.node.clone(), to.incarnation.clone());
        let request = Request { order: self.order()?, ask: Ask::Transfer { node, incarnation } };
        let ask = |found: Result<Steering, SteeringError>| {
            let found = found?;
            // An earlier try may have been written.
            let is_free = found == *asked || found.request.as_ref() == Some(&request);
            Ok(if is_free { Steering { request: Some(request.clone()), ..found } } else { found })
        };
        let mark = self.edit(ask).await?;
        if mark != (Steering { request: Some(request.clone()), ..asked.clone() }).mark() {
            return Err(NoEffect::Refused(format!("a later command has changed the steering of {}", self.election)));
        }
        let before = Before { last: seen.term(), leader: Some(leader) };
        self.until_taken(deadline, (&to.node, &to.incarnation), before, &[], &request).await
    }

    /// Waits until the node that is to lead does, or another.
    async fn until_taken(
        &self,
        deadline: Instant,
        (to, target): (&str, &str),
        Before { last, leader: before }: Before,
        nodes: &[Announcement],
        request: &Request,
    ) -> Told {
        let election = self.election;
        let mut is_given_up = before.is_none();
        let mut came_to_nothing = None;
        let taken = self.until(deadline, |seen| match seen.leader() {
            Some(leader) if leader.incarnation == target => true,
            // A leader that begins another term under its lease has not given that up.
            Some(leader)
                if leader.term > last
                    && (is_given_up || before.as_ref().is_none_or(|one| one.incarnation != leader.incarnation)) =>
            {
                came_to_nothing = Some(leader);
                true
            }
            Some(_) => false,
            None => {
                is_given_up = true;
                false
            }
        });
        let taken = taken.await?;
        if let Some(Leader { node, term, .. }) = came_to_nothing {
            let is_unaware = nodes.iter().any(|said| said.node == node && said.version.is_empty());
            let why = match self.overtaken(request).await? {
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
                Ok(format!("{to} leads {election} in term {}{from}\n{}", leader.term, may_lead_all_the_same(nodes)))
            }
            (None, Some(leader)) if !is_given_up => {
                Err(NoEffect::NotYet(self.still_leads(&leader, Some(request)).await?))
            }
            (None, _) => {
                let why = self.overtaken(request).await?;
                let why = why.unwrap_or_else(|| format!("see `baton nodes {election}`"));
                Err(NoEffect::NotYet(format!(
                    "neither {to} nor another node has taken the lease of {election} within {:?}: {why}",
                    self.patience
                )))
            }
        }
    }

    /// The start of the node of that name that is to lead.
    fn target(&self, to: &str, leader: Option<&Leader>, nodes: &[Announcement]) -> Result<String, NoEffect> {
        let election = self.election;
        let refused = |why: String| Err(NoEffect::Refused(why));
        let Some(said) = nodes.iter().find(|said| said.node == to) else {
            let known: Vec<&str> = nodes.iter().map(|said| said.node.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return refused(format!("no node {to} has announced itself in {election}; announced nodes: {known}"));
        };
        let led = leader.filter(|leader| leader.node == to).map(|leader| &leader.incarnation);
        if let Some(other) = said.rival.as_ref().or(led.filter(|led| **led != said.incarnation)) {
            return refused(format!(
                "two hosts have the node id {to}, as incarnations {} and {other}: give each host its own --node, or \
                 try again in a minute if one of them has just exited",
                said.incarnation
            ));
        }
        if led.is_some() {
            return Ok(said.incarnation.clone());
        }
        if !said.is_fresh(now_beside(leader, nodes)) {
            return refused(format!(
                "{to} has announced nothing since {} by its clock: is it still running, and are both clocks correct?",
                said.at
            ));
        }
        // What else keeps it out is over once it is asked to lead.
        if let Some(why) =
            said.stays_out.as_ref().filter(|why| ["maintenance", "suspended", "cooling-off"].contains(&why.as_str()))
        {
            let why = why.replace('-', " ");
            return refused(format!("{to} is not eligible to lead {election} now: {why}"));
        }
        if said.holds.is_empty() {
            return refused(format!("{to} has no module of {election} ready: see `baton nodes {election}`"));
        }
        Ok(said.incarnation.clone())
    }
}
