//! The events of this node and the output of its coordinators, both past and new.
//!
//! A client that accepts `text/event-stream` receives server-sent events, each with an id. A client that reconnects
//! with the last id that it received (`Last-Event-ID`) receives all later entries that the host still keeps. The client
//! also receives the number of lost entries. A client that does not accept `text/event-stream` receives a JSON array.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONNECTION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use baton_runtime::LogLevel;
use serde::de::IntoDeserializer as _;
use serde::de::value::Error as NoSuchWord;
use serde::{Deserialize as _, Serialize};
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;

use super::access::{HasToken, MayReadOutput, Withheld};
use super::routes::{AdminState, NoPart, answer, text};
use super::streams::{ConnectionState, Streams};
use baton_base::escape::escape;
use baton_node::telemetry::{LogLine, Ring};

/// Maximum numbers of event streams and of log streams. Each is enough for a large host with one stream per election.
pub(super) const EVENT_STREAMS: usize = 64;
pub(super) const LOG_STREAMS: usize = 64;

/// Interval at which an idle stream polls for entries. Threads that log entries do not wake streams, because these
/// threads also renew leases and kill instances.
const POLL: Duration = Duration::from_millis(100);

const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Maximum lifetime of a stream. The client must then reconnect, with the token that is valid at that time.
const LONGEST: Duration = Duration::from_secs(600);

/// Default number of past entries to send.
const TAIL: usize = 100;

/// Size at which a piece of a response counts as full, in bytes. For each client, the host keeps one piece in memory
/// until the client has read it.
const PIECE: usize = 64 << 10;

const LAST_ID: HeaderName = HeaderName::from_static("last-event-id");

/// An event or a line of output, as in the log.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "describes what the log's formatter writes")]
pub(super) struct Entry {
    /// Time (RFC 3339).
    ts: String,
    /// Level: `trace`, `debug`, `info`, `warn`, `error` or `critical`.
    level: String,
    /// Name of the event.
    event: String,
    /// The node that logged the entry.
    node: String,
    /// The election; null for an event of the host.
    election: Option<String>,
    /// The term, if any.
    term: Option<u64>,
    /// The event as text; absent for a line of output.
    text: Option<String>,
    /// The other fields of the event.
    #[serde(flatten)]
    more: BTreeMap<String, serde_json::Value>,
}

/// The events of this node, for all elections or for one.
#[utoipa::path(
    get,
    path = "/v1/events",
    params(
        ("election" = Option<String>, Query, description = "only events of this election and of the host"),
        ("level" = Option<String>, Query, description = "only events of this level and above"),
        ("tail" = Option<usize>, Query, description = "number of past events to send first; 100 by default"),
        ("Last-Event-ID" = Option<String>, Header, description = "continue after the event with this id"),
    ),
    responses(
        Withheld,
        (status = 200, content((Vec<Entry> = "application/json"), (String = "text/event-stream"))),
        (status = 400, description = "a parameter is invalid"),
        (status = 404, description = "this node is not in that election")
    )
)]
pub(super) async fn events(
    MayReadOutput { has_token }: MayReadOutput,
    State(asked): State<Arc<AdminState>>,
    place: Option<Extension<Arc<ConnectionState>>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let parsed = Filter::of(&uri, &["election", "level", "tail"]).and_then(|wanted| {
        if let Some(election) = &wanted.election {
            asked.watched.tracker(election)?;
        }
        Ok(wanted)
    });
    match parsed {
        Ok(wanted) => send(&asked, &asked.event_streams, &asked.watched.events, wanted, has_token, place, &headers),
        Err(wrong) => wrong.into_response(),
    }
}

/// The output and the log of an election's coordinator on this node. Requires the token.
#[utoipa::path(
    get,
    path = "/v1/elections/{election}/logs",
    params(
        ("election" = String, Path),
        ("level" = Option<String>, Query, description = "only lines of this level and above; printed lines have info"),
        ("tail" = Option<usize>, Query, description = "number of past lines to send first; 100 by default"),
        ("Last-Event-ID" = Option<String>, Header, description = "continue after the line with this id"),
    ),
    responses(
        Withheld,
        (status = 200, content((Vec<Entry> = "application/json"), (String = "text/event-stream"))),
        (status = 400, description = "a parameter is invalid"),
        (status = 401, description = "the token is missing or wrong"),
        (status = 403, description = "this node has no token"),
        (status = 404, description = "this node is not in this election")
    )
)]
pub(super) async fn logs(
    _: HasToken,
    State(asked): State<Arc<AdminState>>,
    Path(election): Path<String>,
    place: Option<Extension<Arc<ConnectionState>>>,
    headers: HeaderMap,
    uri: Uri,
) -> Response {
    let parsed = Filter::of(&uri, &["level", "tail"]);
    match parsed.and_then(|wanted| Ok((wanted, asked.watched.tracker(&election)?))) {
        Ok((wanted, tracker)) => send(&asked, &asked.log_streams, &tracker.lines, wanted, true, place, &headers),
        Err(wrong) => wrong.into_response(),
    }
}

enum Refused {
    Parameter(String),
    NoPart(NoPart),
}

impl From<NoPart> for Refused {
    fn from(no_part: NoPart) -> Self {
        Self::NoPart(no_part)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Self::Parameter(why) => text(StatusCode::BAD_REQUEST, why + "\n"),
            Self::NoPart(no_part) => no_part.into_response(),
        }
    }
}

struct Filter {
    election: Option<String>,
    level: LogLevel,
    tail: usize,
}

impl Filter {
    /// Refuses query parameters that are not in `known`.
    fn of(uri: &Uri, known: &[&str]) -> Result<Self, Refused> {
        let mut wanted = Self { election: None, level: LogLevel::Trace, tail: TAIL };
        for (name, value) in url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            if !known.contains(&&*name) {
                let known = known.join(", ");
                return Err(Refused::Parameter(format!("there is no parameter {}; there are: {known}", escape(&name))));
            }
            let value = &*value;
            let wrong = |needs| Refused::Parameter(format!("{name}={} is invalid: expected {needs}", escape(value)));
            match &*name {
                "election" => wanted.election = Some(value.to_owned()),
                "level" => {
                    let level = LogLevel::deserialize(value.into_deserializer());
                    wanted.level =
                        level.map_err(|_: NoSuchWord| wrong("trace, debug, info, warn, error or critical"))?;
                }
                _ => wanted.tail = value.parse().map_err(|_| wrong("a number"))?,
            }
        }
        Ok(wanted)
    }

    fn takes(&self, said: &LogLine) -> bool {
        let is_of = |election: &String| said.election().is_none_or(|of| of.as_str() == election);
        said.level() >= self.level && self.election.as_ref().is_none_or(is_of)
    }
}

fn send(
    asked: &AdminState,
    streams: &Streams,
    ring: &Arc<Ring>,
    wanted: Filter,
    words: bool,
    place: Option<Extension<Arc<ConnectionState>>>,
    headers: &HeaderMap,
) -> Response {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let is_stream = accepts.into_iter().any(|accept| accept.contains("text/event-stream"));
    let Extension(place) = place.unwrap_or_default();
    let incarnation = asked.watched.incarnation.clone();
    // If the id is from another incarnation, send all entries that are still kept.
    let last = headers.get(LAST_ID).and_then(|id| id.to_str().ok()).filter(|id| !id.is_empty());
    let last = last.map(|id| match id.split_once('-') {
        Some((of, number)) if of == incarnation => number.parse().unwrap_or(0_u64),
        _ => 0,
    });
    let next = match last {
        Some(last) => last.saturating_add(1),
        None => ring.tail(wanted.tail, |said| wanted.takes(said)),
    };
    let (ring, now) = (Arc::clone(ring), Instant::now());
    let mut reader = Reader {
        ring,
        wanted,
        words,
        incarnation,
        next,
        place,
        begun: false,
        has_ended: false,
        until: now + LONGEST,
        ends: Arc::clone(&asked.ends),
    };
    if is_stream {
        streams.begin(&reader.place);
        let stream = futures::stream::unfold(reader, |mut reader| async {
            let piece = reader.piece().await?;
            Some((Ok::<_, Infallible>(piece), reader))
        });
        let mut response = answer(StatusCode::OK, "text/event-stream", Body::from_stream(stream));
        // The connection is not reused after the stream.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return response;
    }
    let end = reader.ring.end();
    let pieces = std::iter::from_fn(move || reader.part_of_list(end).map(Ok::<_, Infallible>));
    answer(StatusCode::OK, "application/json", Body::from_stream(futures::stream::iter(pieces)))
}

/// A client's position in the entries. The host buffers at most one piece for each client.
struct Reader {
    ring: Arc<Ring>,
    wanted: Filter,
    words: bool,
    incarnation: String,
    next: u64,
    place: Arc<ConnectionState>,
    begun: bool,
    has_ended: bool,
    until: Instant,
    /// True once the host is shutting down.
    ends: Arc<AtomicBool>,
}

impl Reader {
    async fn piece(&mut self) -> Option<String> {
        self.place.moves();
        let mut piece = String::new();
        if !std::mem::replace(&mut self.begun, true) {
            // Ask the client to wait 1 s before it reconnects. Also send the id of the current position, so that the
            // client can continue from here even if it has received no entry yet.
            let _ = write!(piece, "retry: 1000\n{}", self.mark());
        }
        let since = Instant::now();
        while Instant::now() < self.until {
            // Read `ends` before the ring. In the other order, this loop could end although the host has logged its
            // last entries between the two reads.
            let ends = self.ends.load(Ordering::Relaxed);
            let (lost, found) = self.take(u64::MAX);
            if lost > 0 {
                let _ = write!(piece, "event: missed\ndata: {{\"missed\":{lost}}}\n\n");
            }
            for (number, json) in &found.entries {
                let _ = write!(piece, "id: {}-{number}\ndata: {json}\n\n", self.incarnation);
            }
            if piece.is_empty() && since.elapsed() >= KEEP_ALIVE {
                piece = self.mark();
            }
            if !piece.is_empty() {
                return Some(piece);
            }
            if found.was_all && ends {
                break;
            }
            if found.was_all {
                sleep(POLL).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
        None
    }

    /// Returns a server-sent event without data. The event only sets the id that the client sends when it reconnects.
    fn mark(&self) -> String {
        format!("id: {}-{}\n\n", self.incarnation, self.next.saturating_sub(1))
    }

    /// Returns the next part of a JSON array of the entries before `end`, or `None` after the last part.
    fn part_of_list(&mut self, end: u64) -> Option<String> {
        if self.has_ended {
            return None;
        }
        let (_, found) = self.take(end);
        let mut part = String::new();
        for (_, json) in found.entries {
            part.push(if std::mem::replace(&mut self.begun, true) { ',' } else { '[' });
            part.push_str(&json);
        }
        if found.was_all {
            part.push_str(if self.begun { "]\n" } else { "[]\n" });
            self.has_ended = true;
        }
        Some(part)
    }

    /// Takes the next entries with numbers below `end`. Also returns the number of entries that were lost.
    fn take(&mut self, end: u64) -> (u64, Batch) {
        let taken = self.ring.since(self.next);
        let (mut found, mut length) = (Batch { entries: Vec::new(), was_all: true }, 0);
        self.next = taken.next;
        for said in taken.said.iter().filter(|said| said.number < end) {
            if length >= PIECE {
                self.next = said.number;
                break;
            }
            found.was_all = false;
            if self.wanted.takes(said) {
                let json = said.json(self.words);
                length += json.len();
                found.entries.push((said.number, json));
            }
        }
        (taken.lost, found)
    }
}

struct Batch {
    /// The entries that match the filter: their numbers and their JSON.
    entries: Vec<(u64, String)>,
    /// True if the ring had no further entries, not even entries that do not match the filter.
    was_all: bool,
}
