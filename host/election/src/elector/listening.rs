//! Hints about the leader. Hints can only reschedule a standby's reads or turn the reads into surveys.

use alloc::string::String;
use core::time::Duration;

use super::Context;
use crate::hint::{Hint, LISTENING_POLL};
use crate::record::{LeaseState, Snapshot, Term};
use crate::timing::Time;

/// Number of standbys, from the start of the leader's order of succession, that poll at [`EAGER_POLL`] when the lease
/// should be free. The other standbys read a little later, because simultaneous reads would slow each other down.
const FIRST: u32 = 3;
/// Polling interval of the first [`FIRST`] standbys while they expect the lease to become free.
const EAGER_POLL: Duration = Duration::from_millis(100);
/// Time for which the first [`FIRST`] standbys poll at [`EAGER_POLL`].
const EAGER: Duration = Duration::from_secs(1);

#[derive(Debug, Default, Clone, Hash)]
pub(super) struct LeaderHints {
    leader: Option<Leader>,
}

/// The holder of the lease, according to the last read.
#[derive(Debug, Clone, Hash)]
struct Leader {
    incarnation: String,
    term: Term,
    lease: Duration,
    /// The time of the leader's last renewal, according to the leader's announcements.
    renewed: Option<Time>,
    /// True while hints from the leader arrive.
    is_heard: bool,
    place: Option<u32>,
    /// The time at which this node received the leader's announcement that it gives up the lease.
    gave_up: Option<Time>,
}

impl Leader {
    fn names_this_node(&self) -> bool {
        self.place.is_some_and(|place| place < FIRST)
    }
}

pub(super) enum HintEffect {
    /// The next read comes as soon as the rate limit for reads after hints allows.
    Soon,
    At(Time),
    /// The hint contains no news, so the next read may come later.
    Nothing,
}

impl LeaderHints {
    /// Notes which node holds the lease, according to a read. A hint never changes the noted holder.
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
            // The holder has marked the record as released, but still holds the lease. If this node has already
            // received the holder's `GivesUp` hint, keep the holder as the leader, so that the same hint does not
            // trigger another read. Otherwise, forget the holder. When its `GivesUp` hint arrives, the hint then comes
            // from an unknown node, and so triggers a read at once.
            let gives_up = |known: &Leader| {
                (&known.incarnation, known.term) == (&leader.incarnation, leader.term) && known.gave_up.is_some()
            };
            self.leader = self.leader.take().filter(gives_up);
            return;
        }
        match &mut self.leader {
            Some(known) if known.incarnation == leader.incarnation => {
                // If the holder had announced that it gives up the lease, the new term shows that it has acquired the
                // lease again.
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

    pub(super) fn leader(&self) -> Option<&str> {
        self.leader.as_ref().map(|leader| leader.incarnation.as_str())
    }

    /// True if the leader announced after the read at `last` that it gives up the lease, and this node is among the
    /// first successors.
    pub(super) fn expects_an_opening(&self, last: Time) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.gave_up > Some(last) && leader.names_this_node())
    }

    pub(super) fn gave_up(&self) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.gave_up.is_some())
    }

    /// The time until which a read is unnecessary: the leader announces its renewals, and the next renewal is not
    /// overdue before then.
    pub(super) fn fresh_until(&self) -> Option<Time> {
        let leader = self.leader.as_ref().filter(|leader| leader.is_heard && !self.gave_up())?;
        leader.renewed.map(|renewed| renewed + leader.lease / 3)
    }

    /// The time of the next read if this node is among the first successors and the lease is about to be free.
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
    /// Handles a hint. `last` is the time of this standby's last read.
    pub(super) fn hear(&mut self, hint: &Hint, last: Time) -> HintEffect {
        let (now, later) = (self.time(), self.time() + EAGER);
        let is_of_leader = |leader: &&mut Leader| hint.from() == Some(leader.incarnation.as_str());
        let Some(leader) = self.listening.leader.as_mut().filter(is_of_leader) else { return HintEffect::Soon };
        match hint {
            Hint::Look => HintEffect::Soon,
            Hint::Leads { term, age, place, .. } => {
                let renewed = now - *age;
                (leader.renewed, leader.is_heard) = (leader.renewed.max(Some(renewed)), true);
                leader.place = *place;
                if *term == leader.term { HintEffect::Nothing } else { HintEffect::Soon }
            }
            Hint::GivesUp { place, .. } => {
                // Keep the place from the first announcement. A later announcement may change the order of the
                // standbys, but by then, the first standby has already requested the lease.
                if leader.gave_up.is_none() {
                    (leader.gave_up, leader.place) = (Some(now), *place);
                }
                if leader.names_this_node() {
                    return HintEffect::Soon;
                }
                // Even if the leader repeats this announcement, read at least every [`LISTENING_POLL`].
                HintEffect::At((later + self.up_to(EAGER)).min(last + LISTENING_POLL))
            }
            Hint::Silent { .. } => {
                leader.is_heard = false;
                HintEffect::Soon
            }
        }
    }
}
