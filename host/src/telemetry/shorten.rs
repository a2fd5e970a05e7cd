//! Bounds on the texts of an event, which may come from a guest, a store or a registry. They bound a line's length and
//! the queue's memory.

use super::Event;
use baton_runtime::LONGEST_LINE;

/// Upper bound on a guest's logging context, in bytes.
const LONGEST_CONTEXT: usize = 256;

impl Event {
    /// Cuts each text to the bound of its kind, and appends the number of bytes that were cut.
    pub(super) fn shortened(mut self) -> Self {
        match &mut self {
            Self::Output { context, line, .. } => {
                if let Some(context) = context {
                    cut(context, LONGEST_CONTEXT);
                }
                cut(line, LONGEST_LINE);
            }
            Self::Maintenance { reason, id, status, not_before, description } => {
                let texts = [Some(reason), Some(id), Some(status), not_before.as_mut(), description.as_mut()];
                texts.into_iter().flatten().for_each(|text| cut(text, LONGEST_CONTEXT));
            }
            Self::Reclaimed { from, incarnation } => {
                [from, incarnation].into_iter().for_each(|text| cut(text, LONGEST_CONTEXT));
            }
            Self::CapabilityDenied { what, remedy } => {
                [what, remedy].into_iter().for_each(|text| cut(text, LONGEST_LINE))
            }
            Self::RequestRefused { origin, reason, setting, flag } => {
                [origin, reason].into_iter().for_each(|text| cut(text, LONGEST_LINE));
                // Half of a command would be of no use.
                for proposal in [setting, flag] {
                    proposal.take_if(|text| text.len() > LONGEST_LINE);
                }
            }
            Self::Ended { message: Some(text), .. }
            | Self::Stopping { message: text, .. }
            | Self::Killed { reason: text }
            | Self::Standby { reason: text, .. }
            | Self::HeldByOtherClient { reason: text }
            | Self::WaitingForPreviousLease { reason: text, .. }
            | Self::ReleaseFailed { reason: text }
            | Self::LeadershipLost { reason: text, .. }
            | Self::Retrying { reason: text, .. }
            | Self::CoolOff { reason: text, .. }
            | Self::Finished { reason: text }
            | Self::Resumed { reason: text }
            | Self::RolledBack { result: text, .. }
            | Self::Suspended { reason: Some(text), .. }
            | Self::SteppingDown { reason: Some(text), .. }
            | Self::Transferring { reason: Some(text), .. }
            | Self::VersionRejected { reason: text, .. }
            | Self::OutputDropped { reason: text, .. }
            | Self::Aborting { reason: text }
            | Self::RenewalFailed { error: text, .. }
            | Self::StateDelayed { error: text }
            | Self::StoreUnreachable { error: text }
            | Self::SourceUnreachable { error: text, .. }
            | Self::ModuleRefused { error: text, .. }
            | Self::Misconfigured { error: text }
            | Self::BuildFailed { error: text, .. }
            | Self::ReloadFailed { error: text }
            | Self::MaintenanceAcknowledged { id: text }
            | Self::MaintenanceOver { reason: text }
            | Self::Error { error: text } => cut(text, LONGEST_LINE),
            // Numbers, and texts of the operator.
            Self::Starting { .. }
            | Self::Endpoint { .. }
            | Self::WeakerIsolation { .. }
            | Self::ListeningForPeers { .. }
            | Self::UnknownVariable { .. }
            | Self::Elected { .. }
            | Self::Started { .. }
            | Self::RenewalRecovered { .. }
            | Self::Ended { message: None, .. }
            | Self::Suspended { reason: None, .. }
            | Self::SteppingDown { reason: None, .. }
            | Self::Transferring { reason: None, .. }
            | Self::Released {}
            | Self::Idle { .. }
            | Self::ModuleDiffers { .. }
            | Self::Linked { .. }
            | Self::LinkEnded { .. }
            | Self::Pulling { .. }
            | Self::Compiling { .. }
            | Self::ModuleReady { .. }
            | Self::Swapped { .. }
            | Self::VersionAccepted { .. }
            | Self::SourceRecovered { .. }
            | Self::StoreRecovered { .. }
            | Self::Reloaded { .. }
            | Self::ShuttingDown { .. }
            | Self::NearLimit { .. }
            | Self::Building { .. }
            | Self::Built { .. } => {}
        }
        self
    }
}

const WITHHELD: &str = "(shown only with the token: the coordinator may have written this text)";

impl Event {
    /// Hides texts that the coordinator may have written: they may be as secret as its output.
    pub(super) fn without_words(&self) -> Self {
        let mut event = self.clone();
        match &mut event {
            Self::Ended { message: Some(text), .. }
            | Self::Retrying { reason: text, .. }
            | Self::CoolOff { reason: text, .. }
            | Self::VersionRejected { reason: text, .. }
            | Self::CapabilityDenied { what: text, .. } => WITHHELD.clone_into(text),
            // The coordinator may have requested the step-down.
            Self::Stopping { reason, message, .. } if reason == "step-down" => WITHHELD.clone_into(message),
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
        text.push_str(&format!(" … and {more} bytes more"));
        // Release the memory of the cut text.
        text.shrink_to_fit();
    }
}
