//! The balance of a group's shards: which node hands a shard to which other node.
//!
//! Every node computes the same [`moves`] from the same counts, and carries out only its own. So two nodes with
//! more shards than others do not both fill the same gap. No promise depends on the balance: a move is a hand-off like
//! any other, and the counts may be late or wrong.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use crate::timing::Time;

/// A node that gives a shard away does not request the shard's lease for this time after the release. If the heir does
/// not take the lease within this time, any node may take it, including the node that gave the shard away.
pub const HEIR_HAS: Duration = Duration::from_secs(5);

/// Time without a change of leaders before a node gives shards away. It is longer than the longest interval between two
/// reads of a record, so that the node knows where the shards are.
pub const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Time for which a node that did not take a shard gets none: the initial and the maximum time. A node that has died no
/// longer counts as living after the initial time.
const FAILED_FOR: (Duration, Duration) = (Duration::from_secs(180), Duration::from_secs(1800));

/// Initial time for which a node gets no shard after another node has taken one that was given to it.
const OVERTAKEN_FOR: Duration = Duration::from_secs(5);

/// Time after which a node forgets a move that has not ended, for example because the instance is still running, or
/// because no node has taken the shard.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// A node of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member<'a> {
    /// The node's id.
    pub node: &'a str,
    /// The number of shards that the node leads.
    pub shards: usize,
    /// The number of shards that the node can take in addition. 0 for a node that is not ready or not eligible.
    pub room: usize,
}

/// Returns the nodes to which `node` hands one shard each, in order. A node occurs more than once if it gets more than
/// one shard. Afterwards, the numbers of shards differ by at most one, as far as the members have room.
///
/// ```
/// use baton_election::balance::{Member, moves};
///
/// let member = |node, shards| Member { node, shards, room: 16 };
/// let members = [member("web-1", 5), member("web-2", 4), member("web-3", 0)];
/// assert_eq!(moves(&members, "web-1"), ["web-3", "web-3"]);
/// assert_eq!(moves(&members, "web-2"), ["web-3"]);
/// ```
#[must_use]
pub fn moves<'a>(members: &[Member<'a>], node: &str) -> Vec<&'a str> {
    let mut members = members.to_vec();
    // The order of the members, which decides between equal counts, must not depend on the caller.
    members.sort_by_key(|member| member.node);
    let mut own = Vec::new();
    loop {
        // Of equal counts, `max_by_key` returns the last member, and `min_by_key` the first one.
        let giver = (0..members.len()).max_by_key(|at| members[*at].shards);
        let heir = (0..members.len()).filter(|at| members[*at].room > 0).min_by_key(|at| members[*at].shards);
        let Some((giver, heir)) = giver.zip(heir) else { return own };
        if members[giver].shards < members[heir].shards + 2 {
            return own;
        }
        if members[giver].node == node {
            own.push(members[heir].node);
        }
        members[giver].shards -= 1;
        members[heir].shards += 1;
        members[heir].room -= 1;
    }
}

/// Another node of the group, as it has last announced itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The node's id.
    pub node: String,
    /// The incarnation of the node's host.
    pub incarnation: String,
    /// Identifies the announcement. Each announcement has another mark.
    pub mark: String,
    /// The shards that the node leads, by its own account.
    pub leads: BTreeSet<u8>,
    /// The shards that the node cannot take now, for example after a step-down.
    pub refuses: BTreeSet<u8>,
    /// The number of shards that the node can take in addition. 0 for a node that is not ready or not eligible.
    pub room: usize,
}

/// The result of [`Balancer::decide`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decision {
    /// The shards to hand over now, each with its heir.
    pub gives: Vec<(u8, String)>,
    /// True if another node has room and leads fewer shards. This node then lets other nodes take a released shard
    /// first: see [`Eligibility::yields`](crate::Eligibility::yields).
    pub yields: bool,
}

/// One node's part in the balance of a group.
#[derive(Clone, Debug)]
pub struct Balancer {
    node: String,
    /// The shards that this node is giving away, or has given away and has not seen with another leader.
    given: BTreeMap<u8, Gift>,
    /// The nodes that did not take a shard that was given to them.
    failed: BTreeMap<String, FailedGift>,
    /// The shards that this node leads, each with the time since which it does.
    own: BTreeMap<u8, Time>,
    /// The leaders at the last decision.
    seen: Vec<Option<String>>,
    /// The time of the last change of a leader that was no move of this node.
    changed: Time,
}

/// A node that did not take a shard gets none for a while. The wait doubles with each further failure.
#[derive(Clone, Debug)]
struct FailedGift {
    incarnation: String,
    /// The mark of the node's last announcement, if another node has taken the shard. That node may only have been
    /// faster, so a new announcement ends the failure after `wait`.
    mark: Option<String>,
    at: Time,
    wait: Duration,
}

impl FailedGift {
    fn is_over(&self, now: Time, peer: &Peer) -> bool {
        let lives = self.mark.as_ref().is_some_and(|mark| *mark != peer.mark);
        now >= self.at + if lives { self.wait } else { self.wait.max(FAILED_FOR.0) }
    }
}

#[derive(Clone, Debug)]
struct Gift {
    heir: String,
    /// The incarnation of the heir's host.
    incarnation: String,
    /// The mark of the heir's announcement when this node decided on the move.
    mark: String,
    at: Time,
    is_released: bool,
}

impl Balancer {
    /// Creates the balancer of the node with this id.
    #[must_use]
    pub fn new(node: &str) -> Self {
        let (given, failed, own, seen) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), Vec::new());
        Self { node: node.to_string(), given, failed, own, seen, changed: Time::default() }
    }

    /// Decides what this node does now. Call this after each change of the arguments.
    ///
    /// - `leaders` contains the leader of each shard, as far as this node knows. This node itself counts as the leader
    ///   until it has released the lease.
    /// - `peers` contains the other nodes that have announced themselves.
    /// - `room` is the number of shards that this node can take in addition.
    pub fn decide(&mut self, now: Time, leaders: &[Option<String>], peers: &[Peer], room: usize) -> Decision {
        if self.has_changed(leaders) {
            self.changed = now;
        }
        self.seen = leaders.to_vec();
        self.note_gifts(now, leaders, peers);
        // Another run of the node may succeed.
        let is_same = |peer: &Peer, node: &str, incarnation: &str| peer.node == node && peer.incarnation == incarnation;
        self.failed.retain(|node, failure| peers.iter().any(|peer| is_same(peer, node, &failure.incarnation)));
        let mut members = Vec::from([Member { node: &self.node, shards: 0, room }]);
        for peer in peers.iter().filter(|peer| peer.node != self.node) {
            let room = if self.trusts(now, peer, leaders) { peer.room } else { 0 };
            members.push(Member { node: &peer.node, shards: 0, room });
        }
        for (index, leader) in (0..=u8::MAX).zip(leaders) {
            // A shard that this node gives away counts for the heir, so that the next decision does not give another.
            let given = self.given.get(&index).map(|gift| gift.heir.as_str());
            let Some(leader) = given.or(leader.as_deref()) else { continue };
            match members.iter_mut().find(|member| member.node == leader) {
                Some(member) => member.shards += 1,
                None => members.push(Member { node: leader, shards: 1, room: 0 }),
            }
        }
        let own = members.first().map_or(0, |member| member.shards);
        let yields = members.iter().skip(1).any(|member| member.room > 0 && member.shards < own);
        let heirs: Vec<String> = moves(&members, &self.node).into_iter().map(str::to_string).collect();
        let mut gives = Vec::new();
        if now >= self.changed + SETTLED_AFTER {
            for heir in heirs {
                gives.extend(self.give(now, leaders, peers, &heir).map(|index| (index, heir)));
            }
        }
        Decision { gives, yields }
    }

    /// True from the decision to give the shard away until the move has ended.
    #[must_use]
    pub fn is_giving(&self, index: u8) -> bool {
        self.given.contains_key(&index)
    }

    /// True if a leader has changed since the last decision, apart from the shards that this node gives away.
    fn has_changed(&self, leaders: &[Option<String>]) -> bool {
        let is_other = |(index, leader): (u8, &Option<String>)| {
            !self.given.contains_key(&index) && self.seen.get(usize::from(index)) != Some(leader)
        };
        (0..=u8::MAX).zip(leaders).any(is_other)
    }

    /// Chooses a shard to give to `heir`: the one that this node has led longest, so that a shard that has just arrived
    /// stays. A node that leads no shard gets only one at first, because it may be unable to lead.
    fn give(&mut self, now: Time, leaders: &[Option<String>], peers: &[Peer], heir: &str) -> Option<u8> {
        let peer = peers.iter().find(|peer| peer.node == heir)?;
        let is_proven = leaders.iter().any(|leader| leader.as_deref() == Some(heir));
        if !is_proven && self.given.values().any(|gift| gift.heir == heir) {
            return None;
        }
        let can_go = |index: &u8| !self.given.contains_key(index) && !peer.refuses.contains(index);
        let own = self.own.iter().filter(|(index, _)| can_go(index));
        let index = own.min_by_key(|(index, since)| (**since, **index)).map(|(index, _)| *index)?;
        let (heir, incarnation) = (heir.to_string(), peer.incarnation.clone());
        let gift = Gift { heir, incarnation, mark: peer.mark.clone(), at: now, is_released: false };
        self.given.insert(index, gift);
        Some(index)
    }

    /// Forgets the moves that have ended, and notes which shards this node leads.
    fn note_gifts(&mut self, now: Time, leaders: &[Option<String>], peers: &[Peer]) {
        let Self { node, given, failed, own, .. } = self;
        let leader = |index: u8| leaders.get(usize::from(index)).and_then(Option::as_deref);
        given.retain(|index, gift| {
            let leader = leader(*index);
            gift.is_released |= leader != Some(node.as_str());
            let is_over = gift.is_released && leader.is_some() || now >= gift.at + FORGOTTEN_AFTER;
            // If the heir has announced itself since, it may have taken the shard and given it to another node.
            let is_silent = || peers.iter().any(|peer| peer.node == gift.heir && peer.mark == gift.mark);
            if is_over && leader == Some(gift.heir.as_str()) {
                failed.remove(&gift.heir);
            } else if is_over && (leader == Some(node.as_str()) || is_silent()) {
                // Another node may have been faster than a living heir.
                let is_overtaken = leader != Some(node.as_str());
                let first = if is_overtaken { OVERTAKEN_FOR } else { FAILED_FOR.0 };
                let doubled = failed.get(&gift.heir).map_or(Duration::ZERO, |failure| failure.wait * 2);
                let (wait, mark) = (doubled.clamp(first, FAILED_FOR.1), is_overtaken.then(|| gift.mark.clone()));
                let failure = FailedGift { incarnation: gift.incarnation.clone(), mark, at: now, wait };
                failed.insert(gift.heir.clone(), failure);
            }
            !is_over
        });
        own.retain(|index, _| leader(*index) == Some(node.as_str()));
        for index in (0..=u8::MAX).take(leaders.len()).filter(|index| leader(*index) == Some(node.as_str())) {
            own.entry(index).or_insert(now);
        }
    }

    /// False if the node may have died: it has not taken a shard that was given to it, or it announces a shard that it
    /// does not lead. A living node soon announces itself again.
    fn trusts(&self, now: Time, peer: &Peer, leaders: &[Option<String>]) -> bool {
        let leads =
            |index: &u8| leaders.get(usize::from(*index)).is_some_and(|leader| leader.as_ref() == Some(&peer.node));
        self.failed.get(&peer.node).is_none_or(|failure| failure.is_over(now, peer)) && peer.leads.iter().all(leads)
    }
}
