//! What can be asked, and the answers.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::Semaphore;

use super::{Watched, metrics};
use baton_runtime::escape::escape;

/// What has not beaten for so long does not turn.
const FRESH: Duration = Duration::from_secs(15);

/// Something that is late may have waited for the machine to wake up, as this thread has: it is looked at again after
/// so long.
const SECOND_LOOK: Duration = Duration::from_secs(1);

const PATHS: &str = "There are: /livez, /readyz, /leader/ELECTION and /metrics.\n";

/// So many pages of metrics are there at a time, each until its client has read it: one of a thousand elections takes
/// ten megabytes, and a client may read slowly or not at all.
const PAGES: usize = 8;

/// In bytes. The next piece of a page is handed out when the client has read most of the one before.
const PIECE: usize = 16 << 10;

/// What the answers are made of.
pub(super) struct Asked {
    watched: Arc<Watched>,
    pages: Arc<Semaphore>,
}

impl Asked {
    fn about(watched: Watched) -> Arc<Self> {
        Arc::new(Self { watched: Arc::new(watched), pages: Arc::new(Semaphore::new(PAGES)) })
    }
}

/// All paths.
pub(super) fn all(watched: Watched) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/leader/{election}", get(leader))
        .route("/metrics", get(scraped))
        .fallback(nothing)
        .method_not_allowed_fallback(only_reads)
        .with_state(Asked::about(watched))
}

/// An answer that nobody keeps, since the next may be another.
fn answer(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")];
    (status, headers, body.into()).into_response()
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
async fn live(State(asked): State<Arc<Asked>>) -> Response {
    let watched = &asked.watched;
    if watched.is_stuck().is_empty() {
        return verdict(&[]);
    }
    tokio::time::sleep(SECOND_LOOK).await;
    verdict(&watched.is_stuck())
}

/// Whether this node could take over what it contends for.
async fn ready(State(asked): State<Arc<Asked>>) -> Response {
    verdict(&asked.watched.lacks())
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

async fn leader(State(asked): State<Arc<Asked>>, Path(election): Path<String>) -> Response {
    let watched = &asked.watched;
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

async fn scraped(State(asked): State<Arc<Asked>>, headers: HeaderMap) -> Response {
    let Ok(place) = Arc::clone(&asked.pages).try_acquire_owned() else {
        return text(StatusCode::SERVICE_UNAVAILABLE, format!("{PAGES} others are reading the metrics: try again\n"));
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
    let length = page.len();
    let page = Bytes::from(page);
    let pieces = (0..length).step_by(PIECE).map(move |from| {
        // Until the last of them is handed out.
        let _ = &place;
        Ok::<_, Infallible>(page.slice(from..length.min(from + PIECE)))
    });
    let mut response = answer(StatusCode::OK, kind, Body::from_stream(futures::stream::iter(pieces)));
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    response
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn pages_that_nobody_reads_are_few() {
        let asked = Asked::about(Watched::of_nothing());
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
}
