//! Limits on the strings in an event, which may come from a guest, a store or a registry. They limit the length of
//! lines and the memory of the queue.

use super::Event;
use baton_runtime::LONGEST_LINE;

/// Maximum length of the context that a guest may log, in bytes.
const LONGEST_CONTEXT: usize = 256;

impl Event {
    /// Cuts each string to the limit for its kind, and appends the number of bytes cut.
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
                // Half a command would be useless.
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
            // These have only numbers and strings from the operator.
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
    /// Hides strings that the coordinator may have written, because they may be as secret as its output.
    pub(super) fn without_words(&self) -> Self {
        let mut event = self.clone();
        match &mut event {
            Self::Ended { message: Some(text), .. }
            | Self::Retrying { reason: text, .. }
            | Self::CoolOff { reason: text, .. }
            | Self::VersionRejected { reason: text, .. }
            | Self::CapabilityDenied { what: text, .. } => WITHHELD.clone_into(text),
            // It may have been the coordinator that requested the step-down.
            Self::Stopping { reason, message, .. } if *reason == "step-down" => WITHHELD.clone_into(message),
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
        // Free the memory of the text that was cut.
        text.shrink_to_fit();
    }
}
