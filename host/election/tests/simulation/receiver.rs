//! The receiver of the instances' effects, outside of Baton. The receiver refuses an effect whose term is lower than
//! the highest term that it has seen. The receiver cannot recognize a late effect in any other way.

use baton_election::Term;

use crate::invariants::{Checked, broken};
use crate::plan::Key;

#[derive(Default)]
pub struct Receiver {
    /// The highest term seen, and the instance that sent it.
    highest: Option<(Term, Key)>,
    /// The number of times that the receiver has forgotten all terms.
    restarts: u32,
}

#[derive(Debug, Clone, Copy)]
pub struct Sent {
    term: Term,
    by: Key,
    restarts: u32,
}

impl Receiver {
    pub fn on_its_way(&self, term: Term, by: Key) -> Sent {
        Sent { term, by, restarts: self.restarts }
    }

    /// Forgets all terms, because the hosts may continue from a lower term. Effects that are in transit at that moment
    /// are not checked.
    pub fn begins_anew(&mut self) {
        *self = Self { highest: None, restarts: self.restarts + 1 };
    }

    /// Returns true if the receiver refuses the effect.
    pub fn takes(&mut self, sent: Sent) -> Result<bool, crate::invariants::Violation> {
        if sent.restarts != self.restarts {
            return Ok(false);
        }
        match self.highest {
            Some((highest, _)) if highest > sent.term => return Ok(true),
            Some((highest, by)) if highest == sent.term && by != sent.by => {
                broken("terms_only_rise", format!("{by:?} and {:?} both act as term {highest}", sent.by))?;
            }
            _ => self.highest = Some((sent.term, sent.by)),
        }
        Ok(false)
    }

    /// Receives an effect of an instance whose gate is open. The effect arrives instantly.
    pub fn takes_at_once(&mut self, sent: Sent) -> Checked {
        if self.takes(sent)? {
            return broken("terms_only_rise", format!("{sent:?} is refused, after {:?}", self.highest));
        }
        Ok(())
    }
}
