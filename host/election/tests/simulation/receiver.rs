//! The receiver of the effects of instances, somewhere outside: it refuses those whose term is lower than one that it
//! has seen. Nothing else tells it which effects are late.

use baton_election::Term;

use crate::invariants::{Checked, broken};
use crate::plan::Key;

/// The receiver of a run.
#[derive(Default)]
pub struct Receiver {
    /// The highest term that it has seen, and the instance that had it.
    highest: Option<(Term, Key)>,
    /// How often the terms began anew.
    restarts: u32,
}

/// An effect on its way.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    term: Term,
    by: Key,
    restarts: u32,
}

impl Receiver {
    /// An effect of that instance has passed its gate.
    pub fn on_its_way(&self, term: Term, by: Key) -> Sent {
        Sent { term, by, restarts: self.restarts }
    }

    /// Somebody has made the hosts forget terms: what was sent before that says nothing any more.
    pub fn begins_anew(&mut self) {
        *self = Self { highest: None, restarts: self.restarts + 1 };
    }

    /// An effect has come. Says whether it was refused.
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

    /// An effect has come at once, from an instance whose gate is open.
    pub fn takes_at_once(&mut self, sent: Sent) -> Checked {
        if self.takes(sent)? {
            return broken("terms_only_rise", format!("{sent:?} is refused, after {:?}", self.highest));
        }
        Ok(())
    }
}
