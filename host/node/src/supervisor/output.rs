//! The sink for the output of one instance. The sink logs the lines that the instance prints, which are effects, and
//! the runtime's notices about the instance.

use std::sync::Arc;
use std::time::Duration;

use baton_base::clock::Clock;
use baton_base::gate::Deadline;
use baton_election::{Term, Time};
use baton_runtime::{NearLimit, Notice, Output, RefusedRequest, Stream};
use baton_store::Digest;

use crate::telemetry::{ElectionTracker, Event, GuestStream, Log};

pub(super) struct TermOutput {
    pub log: Log,
    pub tracker: Arc<ElectionTracker>,
    pub term: Term,
    pub module: Digest,
    /// The previous instance, if this instance replaces it with another version.
    pub replaces: Option<Replaced>,
    pub clock: Clock,
    pub lines: Deadline,
}

/// An instance that was stopped so that another version can start.
pub(super) struct Replaced {
    pub module: Digest,
    pub gone: Time,
}

impl Output for TermOutput {
    fn notice(&self, notice: Notice<'_>) {
        let event = match notice {
            Notice::Started(took) => return self.started(took),
            Notice::Line(stream, line) => return self.put_out(Event::printed(stream.into(), line)),
            Notice::Log { level, context, message } => {
                return self.put_out(Event::logged(level, context, message));
            }
            Notice::Denied { what, remedy } => {
                Event::CapabilityDenied { what: what.to_owned(), remedy: remedy.to_owned() }
            }
            Notice::Dropped { lines, limit } => {
                self.tracker.counts.dropped(lines);
                let reason = format!("the coordinator printed more than {limit} lines a second; raise --max-output");
                Event::OutputDropped { lines, reason }
            }
            Notice::NearLimit(NearLimit { what, used, limit }) => {
                Event::NearLimit { limit: what.name(), used, max: limit, flag: what.flag() }
            }
            Notice::StateDelayed(refusal) => Event::StateDelayed { error: refusal.to_string() },
            Notice::RefusedRequest(refused) => {
                let RefusedRequest { origin, reason, allow } = refused.clone();
                let [setting, flag] = allow.map_or([None, None], |lines| lines.map(Some));
                Event::RequestRefused { origin, reason, setting, flag }
            }
        };
        self.log(event);
    }
}

impl TermOutput {
    fn started(&self, took: Duration) {
        self.tracker.has_begun(self.term);
        let gap = self.replaces.as_ref().map(|replaced| self.clock.now().since(replaced.gone));
        gap.into_iter().for_each(|gap| self.tracker.counts.swapped(gap));
        self.log(Event::Started {
            module: self.module.to_string(),
            took_s: took.into(),
            replaces: self.replaces.as_ref().map(|replaced| replaced.module.to_string()),
            gap_s: gap.map(Into::into),
        });
    }

    fn put_out(&self, line: Event) {
        self.log.emit_output(self.term, line, &self.lines);
    }

    fn log(&self, event: Event) {
        self.log.emit(Some(self.term), event);
    }
}

impl From<Stream> for GuestStream {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout,
            Stream::Stderr => Self::Stderr,
        }
    }
}
