//! What can be asked, and the answers.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;

use super::{Watched, metrics};
use baton_runtime::escape::escape;

/// What has not beaten for so long does not turn.
const FRESH: Duration = Duration::from_secs(15);

/// Something that is late may have waited for the machine to wake up, as this thread has: it is looked at again after
/// so long.
const SECOND_LOOK: Duration = Duration::from_secs(1);

const PATHS: &str = "There are: /livez, /readyz, /leader/ELECTION and /metrics.\n";

/// All paths.
pub(super) fn all(watched: Arc<Watched>) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/leader/{election}", get(leader))
        .route("/metrics", get(scraped))
        .fallback(nothing)
        .method_not_allowed_fallback(only_reads)
        .with_state(watched)
}

/// An answer that nobody keeps, since the next may be another.
fn answer(status: StatusCode, kind: &'static str, body: String) -> Response {
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")];
    (status, headers, body).into_response()
}

fn text(status: StatusCode, body: impl Into<String>) -> Response {
    answer(status, "text/plain; charset=utf-8", body.into())
}

/// What is well, or all that is not, a line each.
fn verdict(problems: &[String]) -> Response {
    if problems.is_empty() {
        return text(StatusCode::OK, "ok\n");
    }
    text(StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n")
}

/// Whether all that must turn turns.
async fn live(State(watched): State<Arc<Watched>>) -> Response {
    if watched.is_stuck().is_empty() {
        return verdict(&[]);
    }
    tokio::time::sleep(SECOND_LOOK).await;
    verdict(&watched.is_stuck())
}

/// Whether this node could take over what it contends for.
async fn ready(State(watched): State<Arc<Watched>>) -> Response {
    verdict(&watched.lacks())
}

/// Who leads an election.
#[derive(Serialize)]
struct Leader {
    election: String,
    /// Whether it is this node, and its instance runs.
    here: bool,
    /// The node that leads as far as this one knows.
    leader: Option<String>,
    /// The highest term that it has seen.
    term: u64,
}

async fn leader(State(watched): State<Arc<Watched>>, Path(election): Path<String>) -> Response {
    let Some(standing) = watched.standings.iter().find(|one| one.election.to_string() == election) else {
        let mut known = format!("{} does not take part in {}; it does in:", watched.node, escape(&election));
        for standing in &watched.standings {
            // Writing to a text does not fail.
            let _ = write!(known, " {}", standing.election);
        }
        return text(StatusCode::NOT_FOUND, known + "\n");
    };
    let known = standing.known();
    let here = known.serves(watched.clock.now());
    let status = if here { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let leader = Leader { election, here, leader: known.leader, term: known.term };
    let Ok(body) = serde_json::to_string(&leader) else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    answer(status, "application/json", body + "\n")
}

async fn scraped(State(watched): State<Arc<Watched>>, headers: HeaderMap) -> Response {
    let Ok(page) = metrics::open_metrics(&watched) else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    if accepts.into_iter().any(|accept| accept.contains("application/openmetrics-text")) {
        answer(StatusCode::OK, metrics::OPEN_METRICS, page)
    } else {
        answer(StatusCode::OK, metrics::PROMETHEUS, metrics::as_prometheus(&page))
    }
}

async fn nothing() -> Response {
    text(StatusCode::NOT_FOUND, format!("There is nothing at this path. {PATHS}"))
}

async fn only_reads() -> Response {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "This can only be read: GET or HEAD.\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

impl Watched {
    /// What has not turned for too long.
    fn is_stuck(&self) -> Vec<String> {
        let now = self.clock.now();
        let supervisors = self
            .standings
            .iter()
            .map(|standing| (format!("the supervisor of {}", standing.election), standing.heartbeat.since(now)));
        let beats = [("the control runtime".to_owned(), self.heartbeat.since(now))];
        let mut stuck: Vec<String> = beats
            .into_iter()
            .chain(supervisors)
            .filter_map(|(what, since)| Some((what, since.filter(|since| *since > FRESH)?)))
            .map(|(what, since)| format!("{what} has not turned for {} s", since.as_secs()))
            .collect();
        let late = self.watchdog.late(now);
        if late > FRESH {
            stuck.push(format!("the watchdog is {} s late", late.as_secs()));
        }
        stuck
    }

    /// What is missing before this node could take over.
    fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        for standing in &self.standings {
            let known = standing.known();
            let election = &standing.election;
            if !known.has_store {
                lacks.push(format!("{election}: the store has not answered yet"));
            }
            if !known.has_module {
                lacks.push(format!("{election}: no module is ready yet"));
            }
        }
        lacks
    }
}
