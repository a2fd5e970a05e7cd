//! The outside receiver of the instances' effects. It refuses an effect whose term is lower than one that it has
//! already seen. It has no other way to recognize a late effect.

use baton_election::Term;

use crate::invariants::{Checked, broken};
use crate::plan::Key;

#[derive(Default)]
pub struct Receiver {
    /// The highest term seen, and its instance.
    highest: Option<(Term, Key)>,
    /// The number of times that terms started again from a lower number.
    restarts: u32,
}

/// An effect on its way to the receiver.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    term: Term,
    by: Key,
    restarts: u32,
}

impl Receiver {
    /// Returns an effect that an instance has just sent through its gate.
    pub fn on_its_way(&self, term: Term, by: Key) -> Sent {
        Sent { term, by, restarts: self.restarts }
    }

    /// Forgets all terms, because the hosts may have forgotten them, too. Effects that were sent earlier are not
    /// checked.
    pub fn begins_anew(&mut self) {
        *self = Self { highest: None, restarts: self.restarts + 1 };
    }

    /// Takes an effect. Returns true if it is refused.
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

    /// Takes an effect that arrives at once, from an instance whose gate is open.
    pub fn takes_at_once(&mut self, sent: Sent) -> Checked {
        if self.takes(sent)? {
            return broken("terms_only_rise", format!("{sent:?} is refused, after {:?}", self.highest));
        }
        Ok(())
    }
}
