//! Limits the strings in an event, which may come from a guest, a store or a registry. Without limits, the strings
//! could make lines too long and the queue too large.

use baton_runtime::{LONGEST_LINE, LogLevel, Usage};

use super::event::{GuestStream, Seconds};
use super::{Ended, Event};

/// Maximum length of a guest's log context, and of names that come from outside the host, in bytes.
const LONGEST_CONTEXT: usize = 256;

/// A part of an event, whose strings can be cut to [`LONGEST_LINE`].
pub(super) trait Shorten {
    fn shorten(&mut self);
}

impl Shorten for String {
    fn shorten(&mut self) {
        cut(self, LONGEST_LINE);
    }
}

impl<T: Shorten> Shorten for Option<T> {
    fn shorten(&mut self) {
        self.iter_mut().for_each(T::shorten);
    }
}

impl<T: Shorten> Shorten for Vec<T> {
    fn shorten(&mut self) {
        self.iter_mut().for_each(T::shorten);
    }
}

macro_rules! already_short {
    ($($type:ty),*) => {
        $(impl Shorten for $type {
            fn shorten(&mut self) {}
        })*
    };
}

already_short!(&'static str, bool, u32, u64, f64, Seconds, Usage, LogLevel, GuestStream, Ended);

impl Event {
    /// Cuts each string to the limit for its kind. Appends the number of bytes that were cut.
    pub(super) fn shortened(mut self) -> Self {
        match &mut self {
            Self::Output { context: Some(context), .. } => cut(context, LONGEST_CONTEXT),
            Self::Maintenance { reason, id, not_before, description, .. } => {
                let texts = [Some(reason), id.as_mut(), not_before.as_mut(), description.as_mut()];
                texts.into_iter().flatten().for_each(|text| cut(text, LONGEST_CONTEXT));
            }
            Self::Reclaimed { from, incarnation } => {
                [from, incarnation].into_iter().for_each(|text| cut(text, LONGEST_CONTEXT));
            }
            // Users copy these proposed settings and flags. A shortened proposal would be useless, so remove a proposal
            // that is too long.
            Self::RequestRefused { setting, flag, .. } => {
                [setting, flag].into_iter().for_each(|proposal| {
                    proposal.take_if(|text| text.len() > LONGEST_LINE);
                });
            }
            _ => {}
        }
        self.shorten();
        self
    }
}

const WITHHELD: &str = "(shown only with the token: the coordinator may have written this text)";

impl Event {
    /// Hides strings that the coordinator may have written, because they may be as secret as its output.
    pub(super) fn without_words(&self) -> Self {
        let mut event = self.clone();
        match &mut event {
            Self::Ended { message: Some(text), .. }
            | Self::NextTerm { reason: Some(text), .. }
            | Self::Ineligible { by: None, reason: Some(text), .. }
            | Self::VersionRejected { reason: text, .. }
            | Self::CapabilityDenied { what: text, .. } => WITHHELD.clone_into(text),
            // The coordinator itself may have requested the step-down, and written the message.
            Self::Stopping { reason: "step-down", message, .. } => WITHHELD.clone_into(message),
            Self::RequestRefused { origin, reason, setting, flag } => {
                origin.clear();
                WITHHELD.clone_into(reason);
                (*setting, *flag) = (None, None);
            }
            _ => {}
        }
        event
    }
}

fn cut(text: &mut String, longest: usize) {
    if text.len() > longest {
        let end = text.floor_char_boundary(longest);
        let more = text.len() - end;
        text.truncate(end);
        text.push_str(&format!(" … and {more} more bytes"));
        text.shrink_to_fit();
    }
}
