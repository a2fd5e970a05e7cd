//! `--preempt`: a node that leads hands over to one of a higher priority.
//!
//! The leader's flag counts. It looks every few seconds, only while it leads, through a handle of the store of its own, and
//! asks for a transfer as an operator would: so no promise depends on it, and where the other does not take the lease soon,
//! this node goes on. It never has two nodes play ping-pong. A lease only goes to a higher priority, and whoever was asked
//! to take it, and leaves it to this node after all, is not asked again for a while, each time for twice as long.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use baton_election::{ElectionName, Time, Timing};
use baton_store::clock::Clock;
use baton_store::jitter::between;
use baton_store::steering::{Ask, Order, Steering};
use baton_store::{Announcement, Digest, Store};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::helm::{Itself, transfer_takes};
use super::operator::{Called, NoEffect, Operator, now, unheard};
use crate::telemetry::Standing;

/// From one look to the next, at least and at most.
const LOOK: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

/// How long it is waited for a transfer, beyond what the nodes keep to.
const PATIENCE: Duration = Duration::from_secs(5);

/// From the end of one of a host's hand-overs to the next: by then the node that leads has said whether it leads enough.
const APART: Duration = Duration::from_secs(5);

/// After a hand-over the next waits for so long, after each further one twice as long, up to that; and again for as long
/// as at first where the next would have been due for the longest wait.
const AGAIN: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(60 * 60));

/// A host's hand-overs, of which there is one at a time. Clones are of the same host.
#[derive(Clone, Default)]
pub struct HandOvers(Arc<Mutex<()>>);

/// What has one node prefer others, in one election.
pub struct Preemption {
    /// The election.
    pub election: ElectionName,
    /// This node.
    pub itself: Itself,
    /// Its priority.
    pub priority: u8,
    /// Of the election's lease.
    pub timing: Timing,
    /// Where it looks, and asks. No renewal goes through this handle.
    pub store: Arc<dyn Store>,
    /// What it knows of the election.
    pub standing: Arc<Standing>,
    /// The host's clock.
    pub clock: Clock,
    /// Those of its host.
    pub hand_overs: HandOvers,
}

impl Preemption {
    /// Looks again and again for a node to hand over to, until it is dropped.
    pub async fn watch(self) {
        let mut pace = HandOverPace::default();
        // Who was asked last. If there are others, they come first when it has left the lease to this node.
        let mut asked_last: Option<String> = None;
        loop {
            sleep(between(LOOK.0, LOOK.1)).await;
            if self.leads_with().is_none() || !pace.is_due(self.clock.now()) {
                continue;
            }
            let _turn = self.hand_overs.0.lock().await;
            if let Some(asked) = self.look(asked_last.as_deref()).await {
                asked_last = Some(asked);
                pace.handed_over(self.clock.now());
                sleep(APART).await;
            }
        }
    }

    /// What this node would run, if it leads and nothing has it lead no more.
    fn leads_with(&self) -> Option<Digest> {
        let known = self.standing.known();
        known.leads(self.clock.now())?;
        known.module.filter(|_| known.stays_out.is_none())
    }

    /// Looks once, hands over if there is whom to, and returns whom it has asked then. What the store does not tell is no
    /// reason to do anything.
    async fn look(&self, asked_last: Option<&str>) -> Option<String> {
        let Self { election, itself, priority, store, .. } = self;
        let mut operator = Operator {
            store: &**store,
            election,
            by: Order::by_preference(&itself.node),
            reason: None,
            patience: transfer_takes(&self.timing) + PATIENCE,
            called: Called::Node(&self.standing.tidings),
        };
        let (asked, nodes) = (operator.known().await.ok()?, operator.nodes().await.ok()?);
        let leading = Leading { itself, priority: *priority, module: self.leads_with()? };
        let heir = leading.heir(&asked, &nodes, asked_last, now())?;
        let theirs = heir.priority.unwrap_or_default();
        operator.reason = Some(format!("{} has priority {theirs}, and {} {priority}", heir.node, itself.node));
        match operator.hand_over(itself, heir, &asked).await {
            // Nothing was asked.
            Err(NoEffect::Refused(_)) => None,
            // It leads, or has not taken the lease, or nobody knows.
            Ok(_) | Err(_) => Some(heir.incarnation.clone()),
        }
    }
}

/// A node that leads, and prefers others.
struct Leading<'a> {
    itself: &'a Itself,
    priority: u8,
    /// What it would run.
    module: Digest,
}

impl Leading<'_> {
    /// The node that it hands over to: the highest above it of those that could take the lease at once.
    fn heir<'a>(
        &self,
        asked: &Steering,
        nodes: &'a [Announcement],
        asked_last: Option<&str>,
        now: OffsetDateTime,
    ) -> Option<&'a Announcement> {
        // What operators ask comes first, also where not all nodes have heard of it yet.
        if asked.suspended.is_some() || self.is_kept(asked) || !unheard(now, nodes, &asked.mark(), &[]).is_empty() {
            return None;
        }
        let preferred = nodes.iter().filter(|said| said.priority.is_some_and(|theirs| theirs > self.priority));
        let able = preferred.filter(|said| {
            let is_out = said.stays_out.is_some() || said.leads_enough || said.rival.is_some();
            said.is_fresh(now) && !is_out && said.holds.contains(&self.module) && said.node != self.itself.node
        });
        able.max_by_key(|said| (asked_last != Some(&said.incarnation), said.priority, Reverse(&said.node)))
    }

    /// Whether an operator has had this node lead, and asked for nothing else since.
    fn is_kept(&self, asked: &Steering) -> bool {
        asked.request.as_ref().is_some_and(|request| {
            let Ask::Transfer { node, incarnation } = &request.ask else { return false };
            !request.order.is_preference() && self.itself.is(node, incarnation)
        })
    }
}

/// When the next hand-over may be.
#[derive(Debug, Default)]
struct HandOverPace {
    /// When the last one was, and how long the next waits from then on.
    last: Option<(Time, Duration)>,
}

impl HandOverPace {
    fn is_due(&self, now: Time) -> bool {
        self.last.is_none_or(|(at, wait)| now >= at + wait)
    }

    fn handed_over(&mut self, now: Time) {
        // Where the other has led for long, all is well again.
        let before = self.last.filter(|(at, wait)| now < *at + *wait + AGAIN.1);
        self.last = Some((now, before.map_or(AGAIN.0, |(_, wait)| (2 * wait).min(AGAIN.1))));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_store::steering::Request;

    use super::*;

    fn itself() -> Itself {
        Itself { node: "web-1".to_owned(), incarnation: "1".to_owned() }
    }

    fn module() -> Digest {
        Digest::of(b"one")
    }

    /// A node that could lead, and has heard of nothing that was asked.
    fn said(node: &str, priority: u8) -> Announcement {
        Announcement {
            version: "0.1.0".to_owned(),
            steered: Some(Steering::default().mark()),
            priority: Some(priority),
            ..Announcement::now(node, node, "", vec![Digest::of(b"old"), module()], None)
        }
    }

    fn heir_of(asked: &Steering, nodes: &[Announcement], asked_last: Option<&str>) -> Option<String> {
        let leading = Leading { itself: &itself(), priority: 50, module: module() };
        leading.heir(asked, nodes, asked_last, now()).map(|heir| heir.node.clone())
    }

    fn heir(nodes: &[Announcement]) -> Option<String> {
        heir_of(&Steering::default(), nodes, None)
    }

    #[test]
    fn it_hands_over_to_the_highest_above_it() {
        let own = said("web-1", 50);
        assert_eq!(heir(std::slice::from_ref(&own)), None);
        assert_eq!(heir(&[own.clone(), said("web-2", 50), said("web-3", 49)]), None, "none is preferred");
        let nodes = [own, said("web-2", 51), said("web-4", 100), said("web-3", 100)];
        assert_eq!(heir(&nodes).unwrap(), "web-3");
        let again = |last| heir_of(&Steering::default(), &nodes, Some(last)).unwrap();
        assert_eq!((again("web-3").as_str(), again("web-2").as_str()), ("web-4", "web-3"));
        assert_eq!(heir_of(&Steering::default(), &nodes[..2], Some("web-2")).unwrap(), "web-2", "there is no other");
    }

    #[test]
    fn it_hands_over_to_none_that_could_not_lead_at_once() {
        assert!(heir(&[said("web-2", 100)]).is_some());
        let mut cannot: Vec<Announcement> =
            ["suspended", "stepped-down", "transferring", "cooling-off", "maintenance", "?"]
                .map(|why| Announcement { stays_out: Some(why.to_owned()), ..said("web-2", 100) })
                .into();
        cannot.extend([
            Announcement { at: "2026-01-01T00:00:00Z".to_owned(), ..said("web-2", 100) },
            Announcement { at: "soon".to_owned(), ..said("web-2", 100) },
            Announcement { holds: vec![Digest::of(b"old")], ..said("web-2", 100) },
            Announcement { leads_enough: true, ..said("web-2", 100) },
            Announcement { rival: Some("3".to_owned()), ..said("web-2", 100) },
            Announcement { priority: None, ..said("web-2", 100) },
            // Another host of the same id, or itself before it was started anew.
            said("web-1", 100),
        ]);
        for node in cannot {
            assert_eq!(heir(std::slice::from_ref(&node)), None, "{node:?}");
        }
    }

    #[test]
    fn what_operators_ask_comes_first() {
        let Itself { node, incarnation } = itself();
        let transfer = |by: &str, incarnation: &str| {
            let ask = Ask::Transfer { node: node.clone(), incarnation: incarnation.to_owned() };
            Steering { suspended: None, request: Some(Request { order: Order::now(by, None).unwrap(), ask }) }
        };
        let by_preference = Order::by_preference("web-9");
        let suspended = Some(Order::now("ann@desk", None).unwrap());
        for (asked, hands_over) in [
            (transfer("ann@desk", &incarnation), false),
            (transfer("ann@desk", "another start"), true),
            (transfer(&by_preference, &incarnation), true),
            (Steering { suspended, request: None }, false),
        ] {
            let heard = Announcement { steered: Some(asked.mark()), ..said("web-2", 100) };
            assert_eq!(heir_of(&asked, std::slice::from_ref(&heard), None).is_some(), hands_over, "{asked:?}");
            let nodes = [heard, said("web-3", 0)];
            assert_eq!(heir_of(&asked, &nodes, None), None, "web-3 has not heard of it");
        }
    }

    #[test]
    fn a_hand_over_that_comes_back_is_tried_later_and_later() {
        let mut pace = HandOverPace::default();
        let mut now = Time(Duration::from_secs(1000));
        assert!(pace.is_due(now));
        let mut waits = Vec::new();
        for _ in 0..8 {
            pace.handed_over(now);
            let wait = (0_u32..).map(|seconds| Duration::from_secs(seconds.into()));
            let wait = wait.clone().find(|wait| pace.is_due(now + *wait)).unwrap();
            waits.push(wait.as_secs());
            now = now + wait;
        }
        assert_eq!(waits, [60, 120, 240, 480, 960, 1920, 3600, 3600]);
        now = now + 2 * AGAIN.1;
        pace.handed_over(now);
        assert!(pace.is_due(now + AGAIN.0), "the other has led for long");
    }
}
