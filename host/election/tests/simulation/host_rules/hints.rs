//! The rules of what is heard: it moves a standby's next reading, within bounds, or makes a survey of it, and
//! nothing else.

use baton_election::Hint;

use super::*;

/// From one reading to the next, at most, of a standby that hears its leader.
const LONGEST_POLL: Duration = Duration::from_millis(12_500);

/// What was heard of the holder that the last reading named.
#[derive(Debug, Default)]
pub(super) struct Heard {
    of: Option<String>,
    /// The term of it that was read.
    term: Option<Term>,
    renewed: Option<Time>,
    /// It was a successor's, one of the first.
    is_first: bool,
    gave_up: Option<Time>,
    /// Whether it might have read often before the last input, which comes after the time.
    was_eager: bool,
    /// Whether it was one of the first before that.
    was_first: bool,
    /// When it said so to one that is none of the first, the last time.
    last_of_others: Option<Time>,
}

impl Heard {
    /// Another input comes.
    pub(super) fn forget(&mut self) {
        (self.was_eager, self.was_first) = (false, false);
    }
}

impl HostRules {
    /// What was heard of a leader counts for as long as each reading names that; that it gives its lease up counts for
    /// as long as each names the same term.
    pub(super) fn hears_of_whom_it_read(&mut self) {
        let (leader, term) = self.read_leader().map(|record| (record.incarnation.clone(), record.term)).unzip();
        if self.heard.of != leader {
            self.heard = Heard { of: leader, ..Heard::default() };
        }
        if self.heard.term != term {
            (self.heard.term, self.heard.gave_up) = (term, None);
        }
    }

    pub(super) fn hint(&mut self, now: Time, hint: &Hint) {
        let was_eager = self.is_eager(now);
        let leader = self.read_leader().map(|record| (record.incarnation.clone(), record.term));
        // Who asks for the lease, or has it, heeds nothing.
        let is_standby = self.holding.is_none() && !self.is_in_doubt();
        let is_of_leader =
            leader.as_ref().is_some_and(|(incarnation, _)| is_standby && hint.from() == Some(incarnation));
        (self.heard.was_eager, self.heard.was_first) = (was_eager, self.heard.is_first);
        let is_first = |place: &Option<u32>| place.is_some_and(|place| place < 3);
        match hint {
            Hint::Leads { term, age, place, .. } if is_of_leader => {
                self.heard.renewed = self.heard.renewed.max(Some(now - *age));
                self.heard.is_first = is_first(place);
                if leader.is_some_and(|(_, known)| known == *term) {
                    return;
                }
            }
            Hint::GivesUp { place, .. } if is_of_leader => {
                if self.heard.gave_up.is_none() {
                    (self.heard.gave_up, self.heard.is_first) = (Some(now), is_first(place));
                }
                self.heard.last_of_others = (!self.heard.is_first).then_some(now);
            }
            _ => {}
        }
        self.hinted = Some(now);
    }

    /// The record of who leads, as a standby has read it last.
    fn read_leader(&self) -> Option<&Record> {
        match &self.seen.last {
            Some((Snapshot::Object { lease: LeaseState::Held, record: Some(record), .. }, _)) => {
                let is_told = self.seen.as_standby && self.seen.outside_since.is_none();
                let gives_up = self.heard.of.as_ref() == Some(&record.incarnation) && self.heard.gave_up.is_some();
                Some(record).filter(|record| is_told && record.node.is_some() && (!record.released || gives_up))
            }
            _ => None,
        }
    }

    /// Whether a hint of the leader may have moved the next reading.
    pub(super) fn has_heard(&self) -> bool {
        let leader = self.read_leader().map(|record| &record.incarnation);
        leader.is_some() && self.heard.of.as_ref() == leader
    }

    /// Whether it follows, has not read since its leader said that it gives the lease up, and has something to serve.
    pub(super) fn expects_an_opening(&self) -> bool {
        let read = self.last_read.and_then(|id| self.requests.get(&id)).map(|asked| asked.sent);
        // Which was first does not show: the time for a reading, or another place with the same input.
        let is_first = self.heard.is_first || self.heard.was_first;
        let has_heard = self.has_heard() && is_first && self.heard.gave_up > read;
        has_heard && self.holding.is_none() && self.failed_reads.0 == 0 && self.versions.digest().is_some()
    }

    /// Whether it may read often since the lease is about to be free, as it has heard.
    pub(super) fn may_be_eager(&self, now: Time) -> bool {
        self.heard.was_eager || self.is_eager(now)
    }

    fn is_eager(&self, now: Time) -> bool {
        let Some(record) = self.read_leader().filter(|_| self.has_heard() && self.heard.is_first) else { return false };
        let runs_out = self.heard.renewed.map(|renewed| renewed + record.lease);
        let late = SECOND * 2;
        [self.heard.gave_up, runs_out].into_iter().flatten().any(|from| now >= from && now <= from + late)
    }

    /// Whatever it hears, a standby reads again after some ten seconds, and after one as ever where it has not just
    /// heard that its leader has renewed.
    pub(super) fn hints_delay_little(&self, now: Time, wakeup: Option<Time>) -> Checked {
        let is_asked = || self.requests.values().any(|asked| !asked.answered && asked.role == self.role);
        let (Some((_, read)), Some(record)) = (&self.seen.last, self.read_leader()) else { return Ok(()) };
        let is_standby = self.holding.is_none() && !self.is_in_doubt();
        // What else the store names comes after the reading, and the next one is counted from there.
        let has_recalled = self.seen.recalled.is_some() || self.seen.unrecalled_since.is_some();
        if self.finished || !is_standby || has_recalled || self.failed_reads.0 > 0 || is_asked() {
            return Ok(());
        }
        let usual = *read + SECOND * 5 / 4;
        let fresh = self.heard.renewed.filter(|_| self.has_heard()).map(|renewed| renewed + record.lease / 3 + SECOND);
        let others = self.heard.last_of_others.filter(|_| self.has_heard()).map(|heard| heard + SECOND * 2);
        let longest = usual.max(*read + LONGEST_POLL);
        let latest = usual.max(fresh.max(others).unwrap_or_default()).min(longest).max(now);
        match wakeup {
            Some(wakeup) if wakeup <= latest => Ok(()),
            _ => broken(
                "hints_delay_little",
                format!("it wakes at {wakeup:?}, and should at {latest:?}, after {:?}", self.heard),
            ),
        }
    }

    /// A host reports its own last renewal, under a lease that it holds, or the end of its lease.
    pub(super) fn tells_what_is_so(&self, now: Time, word: &Word) -> Checked {
        const RULE: &str = "tells_what_is_so";
        match (word, &self.holding) {
            (Word::Leads { term, renewed }, Some(holding)) => {
                // A term that starts at the moment of an answer starts before the answer counts.
                let is_last = *renewed == holding.renewed || holding.renewed_before == Some((*renewed, now));
                if !is_last || !holding.has_begun || !self.terms.contains_key(term) {
                    return broken(RULE, format!("{word:?}, renewed at {:?}", holding.renewed));
                }
                Ok(())
            }
            (Word::Leads { .. }, None) => broken(RULE, format!("{word:?} without a lease")),
            (Word::GivesUp, Some(_)) => broken(RULE, "a lease is given up that is held".to_string()),
            (Word::GivesUp, None) => Ok(()),
        }
    }
}
