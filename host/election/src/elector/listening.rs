//! What a standby has heard of its leader, and when it reads for that: earlier or later, or more
//! at once, and nothing else.

use alloc::string::String;
use core::time::Duration;

use super::Context;
use crate::hint::{Hint, LISTENING_POLL};
use crate::record::{LeaseState, Snapshot, Term};
use crate::timing::Time;

/// So many in the order of succession read as soon as a lease must be free, and others a little later: all of them at once
/// would be in each other's way.
const FIRST: u32 = 3;
/// How often they read then.
const EAGER_POLL: Duration = Duration::from_millis(100);
/// For how long.
const EAGER: Duration = Duration::from_secs(1);

/// What was heard of the leader that the last reading named.
#[derive(Debug, Default, Clone, Hash)]
pub(super) struct Listening {
    leader: Option<Leader>,
}

/// The holder of the lease, as it was read.
#[derive(Debug, Clone, Hash)]
struct Leader {
    incarnation: String,
    term: Term,
    lease: Duration,
    /// When it renewed, as it says.
    renewed: Option<Time>,
    /// Whether it is still heard.
    is_heard: bool,
    /// The place that it gives this node in the order of succession.
    place: Option<u32>,
    /// When it said that it gives the lease up.
    gave_up: Option<Time>,
}

impl Leader {
    /// Whether this node is one of the first in its order of succession.
    fn names_this_node(&self) -> bool {
        self.place.is_some_and(|place| place < FIRST)
    }
}

/// What follows from a hint for the next reading.
pub(super) enum Then {
    /// It comes as soon as hints may have one.
    Soon,
    /// It comes at that time.
    At(Time),
    /// It may be later.
    Nothing,
}

impl Listening {
    /// Who holds the lease is known from a reading, and from nothing else.
    pub(super) fn note(&mut self, snapshot: &Snapshot, is_silent: bool) {
        let leader = match snapshot {
            Snapshot::Object { lease: LeaseState::Held, record: Some(record), .. }
                if record.node.is_some() && !is_silent =>
            {
                record
            }
            _ => return self.leader = None,
        };
        if leader.released {
            // It has not released it yet, and tells when it has.
            let gives_up = |known: &Leader| {
                (&known.incarnation, known.term) == (&leader.incarnation, leader.term) && known.gave_up.is_some()
            };
            self.leader = self.leader.take().filter(gives_up);
            return;
        }
        match &mut self.leader {
            Some(known) if known.incarnation == leader.incarnation => {
                // It has taken the lease once more since it gave that up.
                if known.term != leader.term {
                    known.gave_up = None;
                }
                (known.term, known.lease) = (leader.term, leader.lease);
            }
            known => {
                *known = Some(Leader {
                    incarnation: leader.incarnation.clone(),
                    term: leader.term,
                    lease: leader.lease,
                    renewed: None,
                    is_heard: false,
                    place: None,
                    gave_up: None,
                });
            }
        }
    }

    /// The incarnation that is to be listened to.
    pub(super) fn leader(&self) -> Option<&str> {
        self.leader.as_ref().map(|leader| leader.incarnation.as_str())
    }

    /// Whether it has said, since the reading at `last`, that it gives the lease up, and that this node is among the first to
    /// take it.
    pub(super) fn expects_an_opening(&self, last: Time) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.gave_up > Some(last) && leader.names_this_node())
    }

    /// Whether it said that it gives the lease up.
    pub(super) fn gave_up(&self) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.gave_up.is_some())
    }

    /// Until when the leader's lease is not worth a reading, as it says: that leaves it the time to renew once more.
    pub(super) fn fresh_until(&self) -> Option<Time> {
        let leader = self.leader.as_ref().filter(|leader| leader.is_heard && !self.gave_up())?;
        leader.renewed.map(|renewed| renewed + leader.lease / 3)
    }

    /// When a standby whose place is among the first reads next, which did at `last`; none where no lease is about to be free.
    pub(super) fn eager(&self, last: Time, now: Time) -> Option<Time> {
        let leader = self.leader.as_ref().filter(|leader| leader.names_this_node())?;
        let runs_out = leader.renewed.map(|renewed| renewed + leader.lease);
        let moments = [leader.gave_up, runs_out].into_iter().flatten();
        let reads = moments.filter_map(|from| {
            let at = from.max(last + EAGER_POLL);
            (at.max(now) <= from + EAGER).then_some(at)
        });
        reads.min()
    }
}

impl Context {
    /// Takes what was heard, and says what that means for a standby which read at `last`.
    pub(super) fn hear(&mut self, hint: &Hint, last: Time) -> Then {
        let (now, later) = (self.time(), self.time() + EAGER);
        let is_of_leader = |leader: &&mut Leader| hint.from() == Some(leader.incarnation.as_str());
        let Some(leader) = self.listening.leader.as_mut().filter(is_of_leader) else { return Then::Soon };
        match hint {
            Hint::Look => Then::Soon,
            Hint::Leads { term, age, place, .. } => {
                let renewed = now - *age;
                (leader.renewed, leader.is_heard) = (leader.renewed.max(Some(renewed)), true);
                leader.place = *place;
                if *term == leader.term { Then::Nothing } else { Then::Soon }
            }
            Hint::GivesUp { place, .. } => {
                // Who has begun to ask for the lease hears nothing more, and leaves its place to others, who are too late.
                if leader.gave_up.is_none() {
                    (leader.gave_up, leader.place) = (Some(now), *place);
                }
                if leader.names_this_node() {
                    return Then::Soon;
                }
                // However often that is said, a reading is never further away than it may be for a standby that listens.
                Then::At((later + self.up_to(EAGER)).min(last + LISTENING_POLL))
            }
            Hint::Silent { .. } => {
                leader.is_heard = false;
                Then::Soon
            }
        }
    }
}
