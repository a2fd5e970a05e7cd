//! Messages between hosts, which may be lost, late, repeated or false.

use baton_election::{HIGHEST_TERM, Hint, Word};

use super::*;
use crate::plan::Links;

impl World {
    /// Schedules false messages at random times, sometimes many at once.
    pub(super) fn begin_lies(&mut self) {
        if self.plan.links != Links::Lie {
            return;
        }
        let mut rng = Rng::about(&[self.plan.seed, 12]);
        for _ in 0..rng.below(60) {
            let at = rng.between(Duration::ZERO, self.plan.heal_at);
            let host = rng.below(self.hosts.len() as u64) as usize;
            let often = rng.pick(&[1, 1, 1, 30]);
            let lie = rng.number();
            for number in 0..often {
                self.push(at + Duration::from_millis(number * 2), Event::Lie { host, lie });
            }
        }
    }

    pub(super) fn tell_others(&mut self, host: usize, incarnation: u32, word: &Word) {
        if self.plan.links == Links::None {
            return;
        }
        self.coverage.told += 1;
        let Some(process) = &self.hosts[host].process else { return };
        let (now, from) = (process.local(self.now), name(host, incarnation));
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            let mut rng = Rng::about(&[self.plan.seed, 13, other as u64, self.queued]);
            let place = rng.pick(&[Some(0), Some(1), Some(2), Some(7), None]);
            let from = from.clone();
            let hint = match word {
                Word::Leads { term, renewed } => Hint::Leads { from, term: *term, age: now.since(*renewed), place },
                Word::GivesUp => Hint::GivesUp { from, place },
            };
            if self.now < self.plan.heal_at && rng.per_mille(150) {
                continue;
            }
            let late = if rng.per_mille(850) {
                rng.millis(0, 5)
            } else {
                rng.between(Duration::ZERO, self.plan.longest_lease())
            };
            self.hint(other, late, hint.clone());
            if rng.per_mille(100) {
                self.hint(other, late + rng.millis(0, 2000), hint);
            }
        }
    }

    pub(super) fn falls_silent(&mut self, host: usize, incarnation: u32) {
        if self.plan.links != Links::None {
            for other in (0..self.hosts.len()).filter(|other| *other != host) {
                self.hint(other, Duration::from_millis(1), Hint::Silent { from: name(host, incarnation) });
            }
        }
    }

    fn hint(&mut self, host: usize, late: Duration, hint: Hint) {
        let incarnation = self.hosts[host].incarnation;
        self.push(self.now + late, Event::Hint { host, incarnation, hint });
    }

    pub(super) fn lie(&mut self, host: usize, lie: u64) {
        let mut rng = Rng::about(&[self.plan.seed, 14, lie]);
        let liar = rng.below(self.hosts.len() as u64) as usize;
        let from = match rng.below(4) {
            0 => "of another election".to_string(),
            _ => name(liar, self.hosts[liar].incarnation),
        };
        let place = rng.pick(&[Some(0), Some(u32::MAX), None]);
        let known = self.store.record().map_or(0, |record| record.term);
        let hint = match rng.below(4) {
            0 => Hint::GivesUp { from, place },
            1 => Hint::Silent { from },
            _ => {
                let term = rng.pick(&[0, known, known + 1, known + 1000, HIGHEST_TERM, Term::MAX]);
                let age = rng.pick(&[Duration::ZERO, self.plan.longest_lease(), Duration::MAX]);
                Hint::Leads { from, term, age, place }
            }
        };
        self.coverage.lied_to += 1;
        self.hint(host, Duration::ZERO, hint);
    }
}

fn name(host: usize, incarnation: u32) -> String {
    format!("node-{host}/{incarnation}")
}
