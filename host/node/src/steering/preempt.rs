//! `--preempt`: a leader with this flag hands over to a node with a higher priority.
//!
//! While the node leads, it checks every few seconds for a node with a higher priority. The leader then requests a
//! transfer as an operator would. For these requests, the node has a separate handle to the store. None of Baton's
//! promises depends on a hand-off: if the other node does not acquire the lease soon, this node continues to lead. Two
//! nodes cannot pass the lease back and forth rapidly. The lease moves only to a node with a higher priority. Each time
//! the lease comes back, this node waits twice as long before the next hand-off.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use baton_base::clock::Clock;
use baton_base::jitter::between;
use baton_election::{ElectionName, Time, Timing};
use baton_store::steering::{Ask, CommandOrigin, Steering};
use baton_store::{Announcement, Digest, Store};
use time::OffsetDateTime;
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::operator::{HintTarget, NoEffect, Operator, now, unconfirmed};
use super::watch::{NodeIncarnation, longest_transfer};
use crate::telemetry::ElectionTracker;

/// Shortest and longest interval between checks.
const POLL: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(10));

/// Additional time to wait for the outcome of a transfer, after the maximum duration of the transfer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Wait after each hand-off, before the host may hand over another election. During this wait, the new leader can
/// announce that it has reached its leadership limit.
const HAND_OVER_INTERVAL: Duration = Duration::from_secs(5);

/// Wait after a hand-off, before the same election may be handed over again: the initial and the maximum wait. Each
/// further hand-off doubles the wait. If a wait ends and no hand-off follows within the maximum wait, the next wait is
/// the initial one again.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(60 * 60));

/// Allows a host one hand-off at a time. Clones share the lock.
#[derive(Clone, Default)]
pub struct HandOvers(Arc<Mutex<()>>);

/// Hands over the leadership of one election if a node with a higher priority is ready to lead.
pub struct Preemption {
    /// The election.
    pub election: ElectionName,
    /// This node.
    pub itself: NodeIncarnation,
    /// The node's priority.
    pub priority: u8,
    /// The timing of the election's lease.
    pub timing: Timing,
    /// Handle to the store for reads and requests. Renewals use another handle, so they do not wait for these requests.
    pub store: Arc<dyn Store>,
    /// The node's state in the election.
    pub tracker: Arc<ElectionTracker>,
    /// The host's clock.
    pub clock: Clock,
    /// The lock that this host holds during a hand-off.
    pub hand_overs: HandOvers,
}

impl Preemption {
    /// Periodically looks for a node to hand over to, until the future is dropped.
    pub async fn watch(self) {
        let mut pace = HandOverPace::default();
        // The incarnation of the last target. If the lease came back from that target, the next hand-off prefers other
        // nodes.
        let mut asked_last: Option<String> = None;
        loop {
            sleep(between(POLL.0, POLL.1)).await;
            if self.leads_with().is_none() || !pace.is_due(self.clock.now()) {
                continue;
            }
            let _turn = self.hand_overs.0.lock().await;
            if let Some(steering) = self.try_hand_over(asked_last.as_deref()).await {
                asked_last = Some(steering);
                pace.handed_over(self.clock.now());
                sleep(HAND_OVER_INTERVAL).await;
            }
        }
    }

    /// Returns this node's module, if the node leads and is eligible.
    fn leads_with(&self) -> Option<Digest> {
        let view = self.tracker.view();
        view.leads(self.clock.now())?;
        view.module.filter(|_| view.command.is_none())
    }

    /// Returns the incarnation of the node that this node has asked to take over, if there is one. Does nothing if the
    /// store cannot be read.
    async fn try_hand_over(&self, asked_last: Option<&str>) -> Option<String> {
        let Self { election, itself, priority, store, .. } = self;
        let mut operator = Operator {
            store: &**store,
            election,
            by: CommandOrigin::by_preference(&itself.node),
            reason: None,
            patience: longest_transfer(&self.timing) + PATIENCE,
            called: HintTarget::Node(&self.tracker.notifier),
        };
        let (steering, nodes) = (operator.known().await.ok()?, operator.nodes().await.ok()?);
        let leading = Leading { itself, priority: *priority, module: self.leads_with()? };
        let heir = leading.heir(&steering, &nodes, asked_last, now())?;
        let theirs = heir.priority.unwrap_or_default();
        operator.reason = Some(format!("{} has priority {theirs}, and {} {priority}", heir.node, itself.node));
        match operator.hand_over(itself, heir, &steering).await {
            Err(NoEffect::Refused(_)) => None,
            // Back off in every case: the target leads, it did not acquire the lease, or the outcome is unknown.
            Ok(_) | Err(_) => Some(heir.incarnation.clone()),
        }
    }
}

struct Leading<'a> {
    itself: &'a NodeIncarnation,
    priority: u8,
    module: Digest,
}

impl Leading<'_> {
    /// Finds the best node to hand over to. Candidates have a higher priority than the leader, and could acquire the
    /// lease at once. Prefers any candidate to `asked_last`, and then the highest priority.
    fn heir<'a>(
        &self,
        steering: &Steering,
        nodes: &'a [Announcement],
        asked_last: Option<&str>,
        now: OffsetDateTime,
    ) -> Option<&'a Announcement> {
        // Operators' commands take precedence. So do not hand over against a command, or while a live node has not
        // confirmed the latest commands.
        if steering.suspended.is_some()
            || self.was_chosen_by_operator(steering)
            || !unconfirmed(now, nodes, &steering.mark(), &[]).is_empty()
        {
            return None;
        }
        let preferred =
            nodes.iter().filter(|announcement| announcement.priority.is_some_and(|theirs| theirs > self.priority));
        let able = preferred.filter(|announcement| {
            let is_out = announcement.ineligible.is_some()
                || announcement.at_leadership_limit
                || announcement.duplicate.is_some();
            announcement.is_fresh(now)
                && !is_out
                && announcement.holds.contains(&self.module)
                && announcement.node != self.itself.node
        });
        able.max_by_key(|announcement| {
            (asked_last != Some(&announcement.incarnation), announcement.priority, Reverse(&announcement.node))
        })
    }

    /// True if the latest request is an operator's transfer to this node.
    fn was_chosen_by_operator(&self, steering: &Steering) -> bool {
        steering.request.as_ref().is_some_and(|request| {
            let Ask::Transfer { node, incarnation } = &request.ask else { return false };
            !request.order.is_preference() && self.itself.is(node, incarnation)
        })
    }
}

#[derive(Debug, Default)]
struct HandOverPace {
    /// The time of the last hand-off, and how long to wait after it.
    last: Option<(Time, Duration)>,
}

impl HandOverPace {
    fn is_due(&self, now: Time) -> bool {
        self.last.is_none_or(|(at, wait)| now >= at + wait)
    }

    fn handed_over(&mut self, now: Time) {
        // If the other node has led for a long time, the backoff starts over.
        let before = self.last.filter(|(at, wait)| now < *at + *wait + BACKOFF.1);
        self.last = Some((now, before.map_or(BACKOFF.0, |(_, wait)| (2 * wait).min(BACKOFF.1))));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_store::steering::Request;

    use super::*;

    fn itself() -> NodeIncarnation {
        NodeIncarnation { node: "web-1".to_owned(), incarnation: "1".to_owned() }
    }

    fn module() -> Digest {
        Digest::of(b"one")
    }

    /// Returns the announcement of a node that could lead, and has confirmed that there are no commands.
    fn announcement(node: &str, priority: u8) -> Announcement {
        Announcement {
            version: "0.1.0".to_owned(),
            steered: Some(Steering::default().mark()),
            priority: Some(priority),
            ..Announcement::now(node, node, "", vec![Digest::of(b"old"), module()], None)
        }
    }

    fn heir_of(steering: &Steering, nodes: &[Announcement], asked_last: Option<&str>) -> Option<String> {
        let leading = Leading { itself: &itself(), priority: 50, module: module() };
        leading.heir(steering, nodes, asked_last, now()).map(|heir| heir.node.clone())
    }

    fn heir(nodes: &[Announcement]) -> Option<String> {
        heir_of(&Steering::default(), nodes, None)
    }

    #[test]
    fn hand_over_goes_to_the_highest_priority() {
        let own = announcement("web-1", 50);
        assert_eq!(heir(std::slice::from_ref(&own)), None);
        assert_eq!(
            heir(&[own.clone(), announcement("web-2", 50), announcement("web-3", 49)]),
            None,
            "none is preferred"
        );
        let nodes = [own, announcement("web-2", 51), announcement("web-4", 100), announcement("web-3", 100)];
        assert_eq!(heir(&nodes).unwrap(), "web-3");
        let again = |last| heir_of(&Steering::default(), &nodes, Some(last)).unwrap();
        assert_eq!((again("web-3").as_str(), again("web-2").as_str()), ("web-4", "web-3"));
        assert_eq!(heir_of(&Steering::default(), &nodes[..2], Some("web-2")).unwrap(), "web-2", "there is no other");
    }

    #[test]
    fn hand_over_skips_nodes_that_cannot_lead_at_once() {
        assert!(heir(&[announcement("web-2", 100)]).is_some());
        let mut cannot: Vec<Announcement> =
            ["suspended", "stepped-down", "transferring", "cooling-off", "maintenance", "?"]
                .map(|why| Announcement { ineligible: Some(why.to_owned()), ..announcement("web-2", 100) })
                .into();
        cannot.extend([
            Announcement { at: "2026-01-01T00:00:00Z".to_owned(), ..announcement("web-2", 100) },
            Announcement { at: "soon".to_owned(), ..announcement("web-2", 100) },
            Announcement { holds: vec![Digest::of(b"old")], ..announcement("web-2", 100) },
            Announcement { at_leadership_limit: true, ..announcement("web-2", 100) },
            Announcement { duplicate: Some("3".to_owned()), ..announcement("web-2", 100) },
            Announcement { priority: None, ..announcement("web-2", 100) },
            // A node with the leader's own id. The announcement is from another host that uses the same id, or from
            // this host before it restarted.
            announcement("web-1", 100),
        ]);
        for node in cannot {
            assert_eq!(heir(std::slice::from_ref(&node)), None, "{node:?}");
        }
    }

    #[test]
    fn operator_commands_take_precedence() {
        let NodeIncarnation { node, incarnation } = itself();
        let transfer = |by: &str, incarnation: &str| {
            let ask = Ask::Transfer { node: node.clone(), incarnation: incarnation.to_owned() };
            Steering {
                request: Some(Request { order: CommandOrigin::now(by, None).unwrap(), ask, shard: None }),
                ..Steering::default()
            }
        };
        let by_preference = CommandOrigin::by_preference("web-9");
        let suspended = Some(CommandOrigin::now("ann@desk", None).unwrap());
        for (steering, hands_over) in [
            (transfer("ann@desk", &incarnation), false),
            (transfer("ann@desk", "another start"), true),
            (transfer(&by_preference, &incarnation), true),
            (Steering { suspended, ..Steering::default() }, false),
        ] {
            let heard = Announcement { steered: Some(steering.mark()), ..announcement("web-2", 100) };
            assert_eq!(heir_of(&steering, std::slice::from_ref(&heard), None).is_some(), hands_over, "{steering:?}");
            let nodes = [heard, announcement("web-3", 0)];
            assert_eq!(heir_of(&steering, &nodes, None), None, "web-3 has not heard of it");
        }
    }

    #[test]
    fn repeated_hand_overs_wait_twice_as_long_each_time() {
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
        now = now + 2 * BACKOFF.1;
        pace.handed_over(now);
        assert!(pace.is_due(now + BACKOFF.0), "the other has led for long");
    }
}
