//! The routes of the admin endpoint, and its OpenAPI document.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::handler::Handler;
use axum::http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, get, on};
use axum::{Json, Router};
use baton_election::ElectionName;
use baton_store::{ObjectStore, Store};
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::openapi::OpenApi;
use utoipa::{OpenApi as _, ToSchema};

use super::access::Access;
use super::events::{self, EVENT_STREAMS, LOG_STREAMS};
use super::history::{self, Histories};
use super::modules::{self, Versions};
use super::status::{self, Nodes};
use super::streams::Streams;
use super::{metrics, page, steering};
use crate::watched::{SECOND_LOOK, Watched};
use baton_base::escape::escape;
use baton_node::telemetry::ElectionTracker;

const PATHS: &str =
    "The paths are: / (the page), /livez, /readyz, /leader/ELECTION, /metrics, and those in /v1/openapi.json.\n";

/// Maximum number of concurrent metrics pages. A page counts toward this number until its client has read it, which may
/// never happen. With 1000 elections, a page is 10 MB long.
const PAGES: usize = 8;

/// Size of a piece of a page, in bytes. The endpoint sends the next piece when the client has read most of the previous
/// one.
const PIECE: usize = 16 << 10;

pub(super) struct AdminState {
    pub(super) watched: Arc<Watched>,
    pub(super) access: Access,
    pub(super) nodes: Nodes,
    pub(super) store: Arc<dyn Store>,
    pub(super) changes: Semaphore,
    pub(super) histories: Histories,
    pub(super) versions: Versions,
    /// Event streams and log streams have separate limits, because a new stream beyond a limit ends the oldest stream.
    /// Local clients can open event streams without a token, but must not be able to end log streams.
    pub(super) event_streams: Streams,
    pub(super) log_streams: Streams,
    /// True once the host is shutting down and logs nothing more.
    pub(super) ends: Arc<AtomicBool>,
    pages: Arc<Semaphore>,
}

impl AdminState {
    pub(super) fn about(watched: Arc<Watched>, store: Arc<dyn Store>, access: Access) -> Arc<Self> {
        let objects = || Arc::clone(&store) as Arc<dyn ObjectStore>;
        Arc::new(Self {
            watched,
            access,
            nodes: Nodes::of(objects()),
            histories: Histories::of(objects()),
            versions: Versions::of(objects()),
            store,
            changes: Semaphore::new(steering::AT_ONCE),
            event_streams: Streams::at_most(EVENT_STREAMS),
            log_streams: Streams::at_most(LOG_STREAMS),
            ends: Arc::default(),
            pages: Arc::new(Semaphore::new(PAGES)),
        })
    }
}

/// Handles a path for probes. Accepts GET, and OPTIONS, which HAProxy sends by default.
fn probed<H: Handler<T, Arc<AdminState>>, T: 'static>(handler: H) -> MethodRouter<Arc<AdminState>> {
    on(MethodFilter::GET.or(MethodFilter::OPTIONS), handler)
}

pub(super) fn all(asked: Arc<AdminState>) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/livez", probed(live))
        .route("/readyz", probed(ready))
        .route("/leader/{election}", probed(leader))
        .route("/metrics", probed(scraped))
        .route("/v1/elections", get(status::elections))
        .route("/v1/elections/{election}", get(status::election))
        .route("/v1/elections/{election}/history", get(history::history))
        .route("/v1/elections/{election}/modules", get(modules::modules))
        .route("/v1/nodes", get(status::nodes))
        .route("/v1/events", get(events::events))
        .route("/v1/elections/{election}/logs", get(events::logs))
        .route("/v1/openapi.json", get(described))
        .merge(steering::routes())
        .fallback(nothing)
        .method_not_allowed_fallback(only_reads)
        .with_state(asked)
}

/// Builds a response that must not be cached.
pub(super) fn answer(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")];
    (status, headers, body.into()).into_response()
}

pub(super) fn text(status: StatusCode, body: impl Into<String>) -> Response {
    answer(status, "text/plain; charset=utf-8", body.into())
}

/// Returns `ok`, or one line for each problem.
fn verdict(problems: &[String]) -> Response {
    if problems.is_empty() {
        return text(StatusCode::OK, "ok\n");
    }
    text(StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n")
}

/// 200 if all parts of the host make progress.
#[utoipa::path(get, path = "/livez", responses((status = 200, body = String), (status = 503, body = String)))]
async fn live(State(asked): State<Arc<AdminState>>) -> Response {
    let watched = &asked.watched;
    if watched.is_stuck().is_empty() {
        return verdict(&[]);
    }
    tokio::time::sleep(SECOND_LOOK).await;
    verdict(&watched.is_stuck())
}

/// 200 if this node is ready to take over each of its elections.
#[utoipa::path(get, path = "/readyz", responses((status = 200, body = String), (status = 503, body = String)))]
async fn ready(State(asked): State<Arc<AdminState>>) -> Response {
    verdict(&asked.watched.lacks())
}

/// The error returned when the node is not in the election.
pub(super) struct NoPart(pub(super) String);

impl IntoResponse for NoPart {
    fn into_response(self) -> Response {
        text(StatusCode::NOT_FOUND, self.0)
    }
}

/// The leader of an election.
#[derive(Serialize, ToSchema)]
struct Leader {
    election: String,
    /// True if this node leads and its instance runs.
    here: bool,
    /// The current leader, as far as this node knows; null if it knows of none.
    leader: Option<String>,
    /// The highest term that this node has seen.
    term: u64,
}

/// 200 if requests for the election's coordinator should go to this node.
#[utoipa::path(
    get,
    path = "/leader/{election}",
    params(("election" = String, Path)),
    responses(
        (status = 200, body = Leader),
        (status = 503, body = Leader),
        (status = 404, description = "this node is not in this election")
    )
)]
async fn leader(State(asked): State<Arc<AdminState>>, Path(election): Path<String>) -> Response {
    let watched = &asked.watched;
    let tracker = match watched.tracker(&election) {
        Ok(tracker) => tracker,
        Err(no_part) => return no_part.into_response(),
    };
    let view = tracker.view();
    let here = tracker.serves(&view, watched.clock.now());
    let status = if here { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let leader = Leader { election, here, leader: view.leader, term: view.term };
    let Ok(body) = serde_json::to_string(&leader) else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    answer(status, "application/json", body + "\n")
}

/// Metrics for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    responses((status = 200, body = String), (status = 503, description = "too many other clients read the metrics"))
)]
async fn scraped(State(asked): State<Arc<AdminState>>, headers: HeaderMap) -> Response {
    let Ok(permit) = Arc::clone(&asked.pages).try_acquire_owned() else {
        let why = format!("{PAGES} other clients are reading the metrics: try again\n");
        return text(StatusCode::SERVICE_UNAVAILABLE, why);
    };
    let Ok(page) = metrics::open_metrics(&asked.watched) else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    let (kind, page) = if accepts.into_iter().any(|accept| accept.contains("application/openmetrics-text")) {
        (metrics::OPEN_METRICS, page)
    } else {
        (metrics::PROMETHEUS, metrics::as_prometheus(&page))
    };
    in_pieces(kind, page, permit)
}

/// Sends a long response in pieces. Releases the permit when the client has read the response.
pub(super) fn in_pieces(kind: &'static str, page: impl Into<Bytes>, permit: OwnedSemaphorePermit) -> Response {
    let page = page.into();
    let length = page.len();
    let pieces = (0..length).step_by(PIECE).map(move |from| {
        // Mention the permit here, so that the closure holds the permit until the last piece is sent.
        let _ = &permit;
        Ok::<_, Infallible>(page.slice(from..length.min(from + PIECE)))
    });
    let mut response = answer(StatusCode::OK, kind, Body::from_stream(futures::stream::iter(pieces)));
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    response
}

async fn described() -> Json<OpenApi> {
    Json(Described::openapi())
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Baton", description = "Status and steering of a node and its elections"),
    paths(
        live,
        ready,
        leader,
        scraped,
        status::elections,
        status::election,
        history::history,
        modules::modules,
        status::nodes,
        steering::step_down,
        steering::suspend,
        steering::resume,
        steering::transfer,
        steering::roll_back,
        events::events,
        events::logs
    )
)]
struct Described;

async fn nothing() -> Response {
    text(StatusCode::NOT_FOUND, format!("There is nothing at this path. {PATHS}"))
}

async fn only_reads() -> Response {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "This path accepts only GET and HEAD.\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

impl Watched {
    /// Returns the tracker of the election or, for a group or a shard, of the group's first shard. The tasks that a
    /// group's shards share use the notifier of this tracker.
    pub(super) fn first_tracker(&self, election: &ElectionName) -> Option<&ElectionTracker> {
        let is_first = |one: &&Arc<ElectionTracker>| {
            one.election.group() == election.group() && one.election.shard().unwrap_or(0) == 0
        };
        self.trackers.iter().find(is_first).map(|tracker| &**tracker)
    }

    pub(super) fn tracker(&self, election: &str) -> Result<&ElectionTracker, NoPart> {
        if let Some(tracker) = self.trackers.iter().find(|one| one.election.as_str() == election) {
            return Ok(tracker);
        }
        let known: Vec<&str> = self.trackers.iter().map(|one| one.election.as_str()).collect();
        let (node, asked, known) = (&self.node, escape(election), known.join(" "));
        Err(NoPart(format!("{node} is not in the election {asked}; its elections: {known}\n")))
    }
}

#[cfg(test)]
impl AdminState {
    pub(super) fn of_nothing() -> Arc<Self> {
        let store = baton_store::MemoryStore::new(Arc::new(|| std::time::Duration::ZERO));
        Self::about(Arc::new(Watched::of_nothing()), Arc::new(store), Access::default())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::collections::BTreeMap;
    use std::time::Duration;

    use baton_election::ElectionName;
    use baton_store::{Announcement, Digest, ModuleStore as _, PastTerm, report_terms};
    use http_body_util::BodyExt as _;
    use serde_json::Value;
    use tower::ServiceExt as _;

    use super::super::access::Caller;
    use super::*;
    use baton_node::node::NodeId;
    use baton_node::telemetry::{Event, Format, Log, Style};

    #[tokio::test]
    async fn number_of_unread_metrics_pages_is_bounded() {
        let asked = AdminState::of_nothing();
        let scrape = || scraped(State(Arc::clone(&asked)), HeaderMap::new());
        let mut unread = Vec::new();
        for _ in 0..PAGES {
            unread.push(scrape().await);
        }
        assert!(unread.iter().all(|answer| answer.status() == StatusCode::OK));
        assert_eq!(scrape().await.status(), StatusCode::SERVICE_UNAVAILABLE);
        let read = unread.pop().unwrap().into_body().collect().await.unwrap().to_bytes();
        assert!(read.starts_with(b"# HELP baton_build_info"));
        assert_eq!(scrape().await.status(), StatusCode::OK, "a page that was read makes room");
        drop(unread);
        assert_eq!(asked.pages.available_permits(), PAGES);
    }

    async fn get(asked: &Arc<AdminState>, path: &str, is_local: bool) -> (StatusCode, Bytes) {
        let address = if is_local { [127, 0, 0, 1] } else { [10, 0, 0, 7] };
        let routes = all(Arc::clone(asked)).layer(axum::Extension(Caller::at(address.into(), false)));
        let request = axum::http::Request::get(path).header("host", "127.0.0.1:7070").body(Body::empty()).unwrap();
        let answer = routes.oneshot(request).await.unwrap();
        (answer.status(), answer.into_body().collect().await.unwrap().to_bytes())
    }

    async fn document(asked: &Arc<AdminState>) -> Value {
        let (status, described) = get(asked, "/v1/openapi.json", false).await;
        assert_eq!(status, StatusCode::OK, "what there is is no secret");
        serde_json::from_slice(&described).unwrap()
    }

    fn resolved<'a>(schema: &'a Value, described: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(name) => described.pointer(name.trim_start_matches('#')).unwrap(),
            None => schema,
        }
    }

    fn properties<'a>(schema: &'a Value, described: &'a Value) -> BTreeMap<&'a String, &'a Value> {
        let schema = resolved(schema, described);
        let parts = schema["allOf"].as_array().into_iter().flatten();
        let own = schema["properties"].as_object().into_iter().flatten();
        own.chain(parts.flat_map(|part| properties(part, described))).collect()
    }

    /// Returns the schema of an object's additional properties, if the object may have any.
    fn extras<'a>(schema: &'a Value, described: &'a Value) -> Option<&'a Value> {
        let schema = resolved(schema, described);
        let mut parts = schema["allOf"].as_array().into_iter().flatten();
        schema.get("additionalProperties").or_else(|| parts.find_map(|part| extras(part, described)))
    }

    fn is_required(schema: &Value, property: &str) -> bool {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|name| name == property))
    }

    /// Checks that a value matches its schema. The value must have all properties in the schema. The value may have
    /// other properties only if the schema allows them.
    fn fits(value: &Value, schema: &Value, described: &Value) {
        let schema = resolved(schema, described);
        match value {
            Value::Array(values) => {
                assert_eq!(schema["type"], "array", "{value}");
                values.iter().for_each(|value| fits(value, &schema["items"], described));
            }
            Value::Object(values) => {
                let (properties, extras) = (properties(schema, described), extras(schema, described));
                for name in properties.keys().filter(|name| extras.is_none() || is_required(schema, name)) {
                    assert!(values.contains_key(*name), "{name} is missing in {value}");
                }
                for (name, value) in values {
                    match properties.get(name) {
                        Some(schema) => fits(value, schema, described),
                        // Additional properties without a type may have any value.
                        None if extras.is_some_and(|schema| schema["type"].is_null()) => {}
                        None => fits(value, extras.unwrap_or_else(|| panic!("{name} is not in {schema}")), described),
                    }
                }
            }
            simple => {
                let kind = match simple {
                    Value::String(_) => "string",
                    Value::Bool(_) => "boolean",
                    Value::Number(number) if number.is_u64() => "integer",
                    Value::Number(_) => "number",
                    _ => "null",
                };
                let kinds = &schema["type"];
                let is_kind = |one: &Value| one == kind;
                assert!(
                    is_kind(kinds) || kinds.as_array().is_some_and(|kinds| kinds.iter().any(is_kind)),
                    "{value}: {kinds}"
                );
            }
        }
    }

    #[tokio::test]
    async fn responses_fit_the_openapi_document() {
        let store = Arc::new(baton_store::MemoryStore::new(Arc::new(|| Duration::ZERO)));
        let election = ElectionName::new("job").unwrap();
        let text = || Some("text".to_owned());
        let whole =
            PastTerm { term: 1, leaderless_ms: Some(1500), ended: text(), reason: text(), ..PastTerm::default() };
        let running = PastTerm { term: 2, ..PastTerm::default() };
        assert_eq!(report_terms(&*store, &election, &[whole, running]).await, Ok(None));
        let said = Announcement::now("web-4", "1", "", vec![Digest::of(b"")], None);
        store.announce(&election, "web-4", said.encode()).await.unwrap();
        let style = Style { format: Format::Json, terminal: false, colours: false };
        let nowhere = std::fs::File::create("/dev/null").unwrap();
        let (log, _writer) = Log::start(style, &NodeId::new("web-3").unwrap(), Box::new(nowhere)).unwrap();
        log.emit(None, Event::Error { error: "why".to_owned() });
        log.written().await;
        let watched = Watched { events: log.events(), ..Watched::of_nothing() };
        let asked = AdminState::about(Arc::new(watched), store, Access::default());
        let described = document(&asked).await;
        let paths = described["paths"].as_object().unwrap();
        let (reads, changes): (Vec<_>, Vec<_>) =
            paths.iter().partition(|(_, operations)| operations.as_object().unwrap().contains_key("get"));
        assert_eq!((reads.len(), changes.len()), (11, 5));
        let docs = include_str!("../../../docs/monitoring.md");
        for (path, operations) in reads {
            let named = path.replace("{election}", "ELECTION");
            assert!(docs.contains(&format!("| `{named}` |")), "{named} is not in the docs");
            assert_eq!(operations.as_object().unwrap().len(), 1, "{path} can only be read");
            let responses = &operations["get"]["responses"];
            let (status, body) = get(&asked, &path.replace("{election}", "job"), true).await;
            let schema = &responses[status.as_str()]["content"]["application/json"]["schema"];
            assert!(!responses[status.as_str()].is_null(), "{path}: {status}");
            for status in ["401", "403"] {
                let is_said = !responses[status].is_null();
                assert_eq!(is_said, path.starts_with("/v1/"), "whether {path} answers {status}");
            }
            if !schema.is_null() {
                let told: Value = serde_json::from_slice(&body).unwrap();
                assert!(told.as_array().is_none_or(|list| !list.is_empty()), "{path}: there is something to tell");
                fits(&told, schema, &described);
            }
            let (elsewhere, _) = get(&asked, &path.replace("{election}", "job"), false).await;
            let expected = if path.starts_with("/v1/") { StatusCode::FORBIDDEN } else { status };
            assert_eq!(elsewhere, expected, "{path} asked from another machine");
            // Without the token, a client must not be able to find out whether the election exists.
            let needs_token = path.ends_with("/logs");
            assert_eq!(status == StatusCode::FORBIDDEN, needs_token, "{path}");
            if path.contains("{election}") && !needs_token {
                let (none, _) = get(&asked, &path.replace("{election}", "none"), true).await;
                assert_eq!((none, responses["404"].is_null()), (StatusCode::NOT_FOUND, false), "{path}");
            }
        }
    }

    const TOKEN: &str = "0123456789abcdef";

    /// Sends a steering call with these headers, either from this machine or, over TLS, from another machine. Unless
    /// the endpoint denies access, checks that the response matches the OpenAPI document.
    async fn change(
        asked: &Arc<AdminState>,
        path: &str,
        is_local: bool,
        headers: &[(&str, &str)],
        body: &str,
    ) -> StatusCode {
        let address = if is_local { [127, 0, 0, 1] } else { [10, 0, 0, 7] };
        let routes = all(Arc::clone(asked)).layer(axum::Extension(Caller::at(address.into(), !is_local)));
        let request = axum::http::Request::post(path).header("host", "127.0.0.1:7070");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = routes.oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let status = answer.status();
        if ![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status) {
            let told = serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap();
            let described = document(asked).await;
            let (start, call) = path.rsplit_once('/').unwrap();
            let (start, _) = start.rsplit_once('/').unwrap();
            let responses = &described["paths"][format!("{start}/{{election}}/{call}")]["post"]["responses"];
            let schema = &responses[status.as_str()]["content"]["application/json"]["schema"];
            assert!(!schema.is_null(), "{path}: {status} is not described");
            fits(&told, schema, &described);
        }
        status
    }

    async fn changing(asked: &Arc<AdminState>) -> Vec<String> {
        let described = document(asked).await;
        let docs = include_str!("../../../docs/monitoring.md");
        let mut paths = Vec::new();
        for (path, operations) in described["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                if method == "get" {
                    continue;
                }
                assert_eq!(method, "post", "{path}");
                for status in ["200", "400", "401", "403", "404", "408", "409", "413", "415", "503"] {
                    assert!(!operation["responses"][status].is_null(), "{path} does not say when it answers {status}");
                }
                let named = path.replace("{election}", "ELECTION");
                assert!(docs.contains(&format!("| `{named}` |")), "{named} is not in the docs");
                paths.push(path.replace("{election}", "job"));
            }
        }
        paths
    }

    #[tokio::test]
    async fn change_without_the_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, TOKEN).unwrap();
        let with = |access| {
            let store = baton_store::MemoryStore::new(Arc::new(|| Duration::ZERO));
            AdminState::about(Arc::new(Watched::of_nothing()), Arc::new(store), access)
        };
        let (none, whole) = (with(Access::default()), with(Access { token_file: Some(file.clone()), has_tls: true }));
        let plain = with(Access { token_file: Some(file), has_tls: false });
        let json = ("content-type", "application/json");
        let right = ("authorization", "Bearer 0123456789abcdef");
        let paths = changing(&whole).await;
        assert_eq!(paths.len(), 5);
        for path in paths {
            let body = if path.ends_with("transfer") { r#"{"to":"web-1"}"# } else { "{}" };
            for is_local in [true, false] {
                assert_eq!(change(&none, &path, is_local, &[json, right], body).await, StatusCode::FORBIDDEN, "{path}");
                for wrong in ["", "Bearer", "Bearer 0123456789abcdeg", "Basic 0123456789abcdef", TOKEN] {
                    let headers = [json, ("authorization", wrong)];
                    let answer = change(&whole, &path, is_local, &headers, body).await;
                    assert_eq!(answer, StatusCode::UNAUTHORIZED, "{path} with {wrong:?}");
                }
                assert_eq!(change(&whole, &path, is_local, &[json], body).await, StatusCode::UNAUTHORIZED, "{path}");
                // Headers that a browser sends if a page on another site makes the request.
                for (name, value) in [
                    ("origin", "https://evil.example"),
                    ("origin", "null"),
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-site", "same-site"),
                ] {
                    let answer = change(&whole, &path, is_local, &[json, right, (name, value)], body).await;
                    assert_eq!(answer, StatusCode::FORBIDDEN, "{path} with {name}: {value}");
                }
            }
            let answer = change(&plain, &path, false, &[json, right], body).await;
            assert_eq!(answer, StatusCode::FORBIDDEN, "{path} from elsewhere without TLS");
            let get = axum::http::Request::get(&path).body(Body::empty()).unwrap();
            let answer = all(Arc::clone(&whole)).oneshot(get).await.unwrap();
            assert_eq!(
                (answer.status(), &answer.headers()[ALLOW]),
                (StatusCode::METHOD_NOT_ALLOWED, &"POST".parse().unwrap())
            );
            // The token is accepted. The call itself may still fail, because the store does not contain the election.
            for (is_local, site) in [(true, "none"), (false, "same-origin")] {
                let headers = [json, right, ("sec-fetch-site", site), ("origin", "http://127.0.0.1:7070")];
                let answer = change(&whole, &path, is_local, &headers, body).await;
                assert!(
                    [StatusCode::OK, StatusCode::NOT_FOUND, StatusCode::CONFLICT].contains(&answer),
                    "{path}: {answer}"
                );
            }
            let bad = change(&whole, &path, true, &[json, right], r#"{"more":1}"#).await;
            assert_eq!(bad, StatusCode::BAD_REQUEST, "{path}");
            let kind = change(&whole, &path, true, &[("content-type", "text/plain"), right], body).await;
            assert_eq!(kind, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path}");
            let long = change(&whole, &path, true, &[json, right], &" ".repeat(5000)).await;
            assert_eq!(long, StatusCode::PAYLOAD_TOO_LARGE, "{path}");
            let other = change(&whole, &path.replace("job", "none"), true, &[json, right], body).await;
            assert_eq!(other, StatusCode::NOT_FOUND, "{path}");
        }
    }
}
