//! What is under way in an election, until it is a span. It is told by the events of the log and by the answers of the
//! store, so that log, metrics and traces tell one story.
//!
//! Each thing that is done is a trace of its own, since a term may last for weeks: an *acquisition*, from the request for
//! the lease until the instance runs; a *renewal*; a *swap*, from the stop of one version until another runs; a *hand-off*,
//! from the stop of an instance until the lease is given up or lost. The requests to the store that belong to one, and the
//! stop and the start of an instance, are its parts.

use std::time::Duration;

use baton_election::Term;
use baton_runtime::Requested;

use super::Event;
use super::counts::{Answered, Asked};
use super::spans::{Attributes, Place, Span};

/// The requests that are kept as parts of one thing: a node that settles, or cannot write, asks again and again.
const MOST_PARTS: usize = 16;

/// The longest reason of a failure, in characters.
const LONGEST_ERROR: usize = 1000;

/// The methods by which spans of requests are named.
const METHODS: [&str; 8] = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// The name of what a node does until it leads.
pub const ACQUIRE: &str = "baton.acquire";
/// The name of a renewal.
pub const RENEW: &str = "baton.renew";
/// The name of the start of an instance.
pub const START: &str = "baton.start";
/// The name of the stop of an instance, until it is gone.
pub const STOP: &str = "baton.stop";
/// The name of the change from one version to another.
pub const SWAP: &str = "baton.swap";
/// The name of what a node does until it leads no more.
pub const HAND_OFF: &str = "baton.hand_off";
/// What the names of requests to the store begin with.
pub const STORE: &str = "baton.store.";

/// Where the outcome of something is.
pub const RESULT: &str = "baton.result";
/// Where the reason of a stop is.
pub const REASON: &str = "baton.reason";
/// Where the digest of the version that ran before is.
pub const PREVIOUS: &str = "baton.module.previous";

/// What is under way in one election.
#[derive(Default, Debug)]
pub(super) struct Tracks {
    served: Served,
    acquiring: Option<Track>,
    /// A swap or a hand-off.
    leaving: Option<Track>,
    /// Since when the instance is asked to stop, or killed.
    stopping: Option<Duration>,
    /// An instance runs.
    runs: bool,
    /// Why the lease is lost, while the instance is not gone yet.
    lost: Option<String>,
}

/// What a node serves under its lease.
#[derive(Clone, Default, Debug)]
struct Served {
    term: Option<Term>,
    module: Option<String>,
}

impl Served {
    fn span(&self, place: Option<Place>, name: impl Into<String>, begin: Duration, end: Duration) -> Option<Span> {
        Some(Span {
            place: place?,
            parent: None,
            name: name.into(),
            is_request: false,
            begin,
            // The clock may have been set back meanwhile.
            end: end.max(begin),
            term: self.term,
            module: self.module.clone(),
            attributes: Attributes::new(),
            error: None,
        })
    }
}

/// Something that has begun.
#[derive(Debug)]
struct Track {
    name: &'static str,
    place: Place,
    begin: Duration,
    attributes: Attributes,
    parts: Vec<Span>,
}

impl Track {
    fn begin(name: &'static str, begin: Duration, attributes: Attributes) -> Option<Self> {
        Some(Self { name, place: Place::new()?, begin, attributes, parts: Vec::new() })
    }

    fn add(&mut self, part: Option<Span>) {
        let (trace, span) = (self.place.trace, self.place.span);
        let part = part.filter(|_| self.parts.len() < MOST_PARTS);
        let inside = |part: Span| Span { parent: Some(span), place: Place { trace, ..part.place }, ..part };
        self.parts.extend(part.map(inside));
    }
}

impl Tracks {
    /// What has come to its end with this event.
    pub(super) fn event(&mut self, at: Duration, term: Option<Term>, event: &Event) -> Vec<Span> {
        match event {
            Event::Elected { module, .. } => {
                self.served = Served { term, module: Some(module.clone()) };
                // Another term under the same lease: nothing is handed off, and what was stopped stays told.
                let track = self.leaving.take_if(|track| track.name == HAND_OFF);
                let parts = track.into_iter().flat_map(|track| track.parts).filter(|part| part.name == STOP);
                parts.map(|part| Span { parent: None, ..part }).collect()
            }
            Event::Started { took_s, .. } => self.started(at, took_s.0),
            Event::Swapped { previous, .. } => {
                let swap = self.leaving.take_if(|track| track.name == SWAP);
                self.end(swap, at, (PREVIOUS, previous), None)
            }
            Event::Stopping { reason, .. } => {
                self.leave(if reason == "replaced" { SWAP } else { HAND_OFF }, at, reason);
                self.stopping = Some(at);
                Vec::new()
            }
            Event::Killed { .. } => {
                self.leave_unless_it_does(at, "killed");
                self.stopping.get_or_insert(at);
                Vec::new()
            }
            Event::Ended { outcome, .. } => self.gone(at, outcome),
            Event::Released {} => self.left(at, "released", None),
            Event::ReleaseFailed { reason } => self.left(at, "not-released", Some(reason)),
            Event::LeadershipLost { reason, .. } if self.runs => {
                self.leave_unless_it_does(at, "lease-lost");
                self.lost = Some(reason.clone());
                Vec::new()
            }
            Event::LeadershipLost { reason, .. } => self.left(at, "lost", Some(reason)),
            Event::Standby { reason, .. } => {
                let acquiring = self.acquiring.take();
                let mut ended = self.end(acquiring, at, (RESULT, "not-elected"), Some(reason));
                ended.extend(self.left(at, "released", None));
                ended
            }
            _ => Vec::new(),
        }
    }

    /// What has come to its end with this answer of the store.
    pub(super) fn asked(&mut self, at: Duration, what: Asked, how: Answered, took: Duration) -> Option<Span> {
        let begin = at.saturating_sub(took);
        if matches!(what, Asked::Acquire | Asked::Reclaim) && how == Answered::Ok {
            self.acquiring = Track::begin(ACQUIRE, begin, Attributes::new());
        }
        let request = |place: Option<Place>, name: String| {
            let span = self.served.span(place, name, begin, at)?;
            let attributes = vec![(RESULT, how.word().into())];
            let error = (how != Answered::Ok).then(|| how.word().to_owned());
            Some(Span { is_request: true, attributes, error, ..span })
        };
        if what == Asked::Renew {
            return request(Place::new(), RENEW.to_owned());
        }
        // A node that has nothing running reads, and asks for what its next term needs.
        let is_of = |track: &&mut Track| track.name == SWAP || matches!(what, Asked::Write | Asked::Release);
        if let Some(track) = self.leaving.as_mut().filter(is_of).or(self.acquiring.as_mut()) {
            track.add(request(track.place.beside(), format!("{STORE}{}", what.word())));
        }
        None
    }

    /// A guest's request has come to its end.
    pub(super) fn requested(at: Duration, term: Term, module: String, requested: &Requested) -> Option<Span> {
        let Requested { trace, span, method, host, port, took, status, error } = requested;
        // As <https://opentelemetry.io/docs/specs/semconv/http/http-spans/> has them. The path may have secrets, and a guest
        // may think of methods without an end.
        let known = METHODS.contains(&method.as_str());
        let name = if known { method.as_str() } else { "HTTP" };
        let mut attributes: Attributes = vec![
            ("http.request.method", if known { name } else { "_OTHER" }.into()),
            ("server.address", host.as_str().into()),
            ("server.port", i64::from(*port).into()),
        ];
        attributes.extend(status.map(|status| ("http.response.status_code", i64::from(status).into())));
        let refused = status.filter(|status| *status >= 400).map(|status| status.to_string());
        let error = error.clone().or(refused);
        attributes.extend(error.iter().map(|kind| ("error.type", kind.as_str().into())));
        let place = Place { trace: *trace, span: *span };
        let served = Served { term: Some(term), module: Some(module) };
        let span = served.span(Some(place), name, at.saturating_sub(*took), at)?;
        Some(Span { is_request: true, attributes, error, ..span })
    }

    fn started(&mut self, at: Duration, took: Duration) -> Vec<Span> {
        self.runs = true;
        let start = |place| self.served.span(place, START, at.saturating_sub(took), at);
        match self.acquiring.as_mut().or(self.leaving.as_mut()) {
            Some(track) => track.add(start(track.place.beside())),
            // The next term under the same lease.
            None => return start(Place::new()).into_iter().collect(),
        }
        let acquired = self.acquiring.take();
        self.end(acquired, at, (RESULT, "elected"), None)
    }

    fn gone(&mut self, at: Duration, outcome: &str) -> Vec<Span> {
        self.runs = false;
        // It may have ended by itself: another term follows, or the node gives the lease up.
        self.leave_unless_it_does(at, outcome);
        if let (Some(begin), Some(track)) = (self.stopping.take(), &mut self.leaving) {
            let stop = self.served.span(track.place.beside(), STOP, begin, at);
            let (attributes, error) = (vec![(RESULT, outcome.into())], (outcome != "done").then(|| outcome.to_owned()));
            track.add(stop.map(|stop| Span { attributes, error, ..stop }));
        }
        self.lost.take().map_or_else(Vec::new, |why| self.left(at, "lost", Some(&why)))
    }

    /// The node begins to end what runs.
    fn leave(&mut self, name: &'static str, at: Duration, reason: &str) {
        self.leaving = Track::begin(name, at, vec![(REASON, reason.into())]);
    }

    fn leave_unless_it_does(&mut self, at: Duration, reason: &str) {
        if self.leaving.is_none() {
            self.leave(HAND_OFF, at, reason);
        }
    }

    /// The node leads no more.
    fn left(&mut self, at: Duration, result: &str, error: Option<&str>) -> Vec<Span> {
        let (leaving, acquiring) = (self.leaving.take(), self.acquiring.take());
        let mut ended = self.end(leaving, at, (RESULT, result), error);
        ended.extend(self.end(acquiring, at, (RESULT, "not-elected"), error));
        self.served = Served::default();
        ended
    }

    /// A thing and all of its parts.
    fn end(
        &self,
        track: Option<Track>,
        at: Duration,
        (what, said): (&'static str, &str),
        error: Option<&str>,
    ) -> Vec<Span> {
        let Some(Track { name, place, begin, mut attributes, parts }) = track else { return Vec::new() };
        attributes.push((what, said.into()));
        let whole = self.served.span(Some(place), name, begin, at);
        let error = error.map(|error| error.chars().take(LONGEST_ERROR).collect());
        let whole = whole.map(|span| Span { attributes, error, ..span });
        // What it led to is known by now.
        let Served { term, module } = &self.served;
        let told =
            |part: Span| if part.term.is_some() { part } else { Span { term: *term, module: module.clone(), ..part } };
        whole.into_iter().chain(parts.into_iter().map(told)).collect()
    }
}

#[cfg(test)]
mod tests {
    use baton_runtime::Usage;

    use super::*;
    use crate::telemetry::Seconds;
    use crate::telemetry::spans::Value;

    const ZERO: Seconds = Seconds(Duration::ZERO);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn elected() -> Event {
        Event::Elected { module: "sha256:ab".to_owned(), failures: 0 }
    }

    fn started(took: u64) -> Event {
        Event::Started { module: "sha256:ab".to_owned(), took_s: at(took).into() }
    }

    fn stopping(reason: &str) -> Event {
        Event::Stopping { reason: reason.to_owned(), message: String::new(), grace_s: ZERO }
    }

    fn gone(outcome: &str) -> Event {
        Event::Ended { outcome: outcome.to_owned(), message: None, took_s: ZERO, usage: Usage::default() }
    }

    fn lost() -> Event {
        Event::LeadershipLost { reason: "another has it".to_owned(), since_renewal_s: ZERO }
    }

    /// A span as its name, its beginning and its end, its outcome, and whether it failed.
    fn said(span: &Span) -> String {
        let attribute = |name| span.attributes.iter().find(|(one, _)| *one == name).map(|(_, value)| value);
        let outcome = match attribute(RESULT).or(attribute(PREVIOUS)) {
            Some(Value::Text(text)) => format!(" {text}"),
            _ => String::new(),
        };
        let inside = if span.parent.is_some() { "  " } else { "" };
        let failed = if span.error.is_some() { " !" } else { "" };
        format!("{inside}{} {}-{}{outcome}{failed}", span.name, span.begin.as_secs(), span.end.as_secs())
    }

    struct Story {
        tracks: Tracks,
        spans: Vec<Span>,
    }

    impl Story {
        fn of(leads: bool) -> Self {
            let mut story = Self { tracks: Tracks::default(), spans: Vec::new() };
            if leads {
                story.asks(1, Asked::Acquire, Answered::Ok);
                story.says(2, elected());
                story.says(3, started(1));
                story.spans.clear();
            }
            story
        }

        fn says(&mut self, seconds: u64, event: Event) {
            self.spans.extend(self.tracks.event(at(seconds), Some(7), &event));
        }

        fn asks(&mut self, seconds: u64, what: Asked, how: Answered) {
            self.spans.extend(self.tracks.asked(at(seconds), what, how, at(1)));
        }

        fn told(&self) -> Vec<String> {
            // The parts of a thing are in its trace, and under it.
            for span in &self.spans {
                let whole = self.spans.iter().find(|whole| Some(whole.place.span) == span.parent);
                assert_eq!(span.parent.is_some(), whole.is_some());
                assert!(whole.is_none_or(|whole| whole.place.trace == span.place.trace));
                assert_eq!((span.term, span.module.as_deref()), (Some(7), Some("sha256:ab")), "{span:?}");
            }
            self.spans.iter().map(said).collect()
        }
    }

    #[test]
    fn the_docs_have_every_span() {
        let docs = include_str!("../../../docs/monitoring.md").split("\n## OpenTelemetry\n").nth(1).unwrap_or_default();
        let docs = docs.split("\n## ").next().unwrap_or_default();
        for name in [ACQUIRE, RENEW, START, STOP, SWAP, HAND_OFF, RESULT, REASON, PREVIOUS] {
            assert!(docs.contains(&format!("`{name}`")), "{name}");
        }
        assert!(docs.contains(&format!("`{STORE}*`")));
    }

    #[test]
    fn an_acquisition_goes_from_the_request_for_the_lease_until_the_instance_runs() {
        let mut story = Story::of(false);
        story.asks(3, Asked::Read, Answered::Ok);
        story.asks(4, Asked::Acquire, Answered::Refused);
        assert!(story.spans.is_empty(), "whoever follows asks again and again");
        story.asks(6, Asked::Acquire, Answered::Ok);
        story.asks(8, Asked::Write, Answered::Ok);
        story.says(8, elected());
        story.says(10, started(2));
        let parts = ["  baton.store.acquire 5-6 ok", "  baton.store.write 7-8 ok", "  baton.start 8-10"];
        assert_eq!(story.told(), [&["baton.acquire 5-10 elected"][..], &parts].concat());
    }

    #[test]
    fn one_that_came_to_nothing_failed() {
        let mut story = Story::of(false);
        story.asks(6, Asked::Acquire, Answered::Ok);
        for second in 7..99 {
            story.asks(second, Asked::Write, Answered::Unknown);
        }
        story.says(99, Event::Standby { reason: "the host has started".to_owned(), leader: None });
        assert_eq!(said(&story.spans[0]), "baton.acquire 5-99 not-elected !");
        assert_eq!(story.spans.len(), 1 + MOST_PARTS);
        assert!(story.spans.iter().all(|span| span.term.is_none()));
    }

    #[test]
    fn a_renewal_is_told_of_each_time() {
        let mut story = Story::of(true);
        story.asks(5, Asked::Renew, Answered::Ok);
        story.asks(7, Asked::Renew, Answered::Unknown);
        assert_eq!(story.told(), ["baton.renew 4-5 ok", "baton.renew 6-7 unknown !"]);
        assert_ne!(story.spans[0].place.trace, story.spans[1].place.trace);
    }

    #[test]
    fn a_swap_goes_from_the_stop_until_the_next_version_runs() {
        let mut story = Story::of(true);
        story.says(10, stopping("replaced"));
        story.asks(12, Asked::Write, Answered::Ok);
        story.says(13, gone("done"));
        story.says(13, elected());
        story.says(14, started(1));
        story.says(14, Event::Swapped { module: String::new(), previous: "sha256:cd".to_owned(), gap_s: ZERO });
        let parts = ["  baton.store.write 11-12 ok", "  baton.stop 10-13 done", "  baton.start 13-14"];
        assert_eq!(story.told(), [&["baton.swap 10-14 sha256:cd"][..], &parts].concat());
    }

    #[test]
    fn a_hand_off_goes_from_the_stop_until_the_lease_is_given_up() {
        let mut story = Story::of(true);
        story.says(10, stopping("shutdown"));
        story.says(11, Event::Killed { reason: String::new() });
        story.says(12, gone("killed"));
        story.asks(13, Asked::Write, Answered::Ok);
        story.asks(14, Asked::Release, Answered::Ok);
        story.says(14, Event::Released {});
        story.says(14, Event::Standby { reason: String::new(), leader: None });
        let parts = ["  baton.stop 10-12 killed !", "  baton.store.write 12-13 ok", "  baton.store.release 13-14 ok"];
        assert_eq!(story.told(), [&["baton.hand_off 10-14 released"][..], &parts].concat());
    }

    #[test]
    fn a_lease_that_is_lost_ends_with_the_instance() {
        let mut story = Story::of(true);
        story.says(10, lost());
        story.says(11, Event::Killed { reason: String::new() });
        story.says(12, gone("killed"));
        story.says(13, Event::Standby { reason: String::new(), leader: None });
        assert_eq!(story.told(), ["baton.hand_off 10-12 lost !", "  baton.stop 11-12 killed !"]);
        // Between two terms there is no instance.
        let mut story = Story::of(true);
        story.says(10, gone("done"));
        story.says(11, lost());
        assert_eq!(story.told(), ["baton.hand_off 10-11 lost !"]);
    }

    #[test]
    fn the_next_term_of_a_lease_is_no_hand_off() {
        let mut story = Story::of(true);
        story.says(10, gone("done"));
        story.asks(12, Asked::Write, Answered::Ok);
        story.says(12, elected());
        story.says(13, started(1));
        story.says(15, Event::Killed { reason: String::new() });
        story.says(16, gone("killed"));
        story.says(17, elected());
        assert_eq!(story.told(), ["baton.start 12-13", "baton.stop 15-16 killed !"]);
        story.says(18, gone("fatal"));
        story.says(19, Event::ReleaseFailed { reason: "no answer".to_owned() });
        assert_eq!(story.told()[2..], ["baton.hand_off 18-19 not-released !"]);
    }

    #[test]
    fn a_request_says_where_it_went_and_not_what_for() {
        let of = |method: &str, status, error: Option<&str>| {
            let (method, host, error) = (method.to_owned(), "example.com".to_owned(), error.map(str::to_owned));
            let took = at(2);
            let all = Requested { trace: [1; 16], span: [2; 8], method, host, port: 443, took, status, error };
            Tracks::requested(at(9), 7, "sha256:ab".to_owned(), &all).unwrap_or_else(|| panic!("there is one"))
        };
        let requested = |status, error| of("GET", status, error);
        let answered = requested(Some(200), None);
        assert_eq!((answered.name.as_str(), of("OWN", Some(200), None).name.as_str()), ("GET", "HTTP"));
        assert_eq!((answered.begin, answered.end, answered.error), (at(7), at(9), None));
        assert_eq!(answered.place, Place { trace: [1; 16], span: [2; 8] });
        assert_eq!(requested(Some(503), None).error.as_deref(), Some("503"));
        let failed = requested(None, Some("ConnectionRefused"));
        assert!(failed.attributes.contains(&("error.type", "ConnectionRefused".into())), "{failed:?}");
    }
}
