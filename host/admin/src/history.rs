//! The past terms of this node's elections, as recorded in the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use baton_election::{ElectionName, StoreError};
use baton_store::{History, HistoryError, KEPT_TERMS, ObjectStore, read_history};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

use super::access::{MayReadOutput, Withheld};
use super::routes::{AdminState, in_pieces, text};
use crate::rows::TermRow;

/// Minimum interval between two reads of an election's history. Nodes report a term a few seconds after it begins, and
/// again after it ends.
const EVERY: Duration = Duration::from_secs(5);

const WITHIN: Duration = Duration::from_secs(10);

/// Maximum number of concurrent responses. A response counts toward this number until its client has read it.
const ANSWERS: usize = 8;

/// Default value of `limit`.
const TERMS: usize = 100;

/// A cache of the elections' histories. For each election, many requests cause only one read of the store per
/// [`EVERY`].
pub(super) struct Histories {
    store: Arc<dyn ObjectStore>,
    /// Locked while a request reads the store, so that other requests wait for the result.
    last: Mutex<BTreeMap<ElectionName, (Instant, Arc<History>)>>,
    answers: Arc<Semaphore>,
}

impl Histories {
    pub(super) fn of(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, last: Mutex::default(), answers: Arc::new(Semaphore::new(ANSWERS)) }
    }

    async fn now(&self, election: &ElectionName) -> Result<Arc<History>, HistoryError> {
        let mut last = self.last.lock().await;
        last.retain(|_, (at, _)| at.elapsed() < EVERY);
        if let Some((_, history)) = last.get(election) {
            return Ok(Arc::clone(history));
        }
        let late = |_| StoreError::Unknown(format!("no response within {WITHIN:?}"));
        let read = timeout(WITHIN, read_history(&*self.store, election)).await.map_err(late)??;
        let history = Arc::new(read.unwrap_or_default());
        last.insert(election.clone(), (Instant::now(), Arc::clone(&history)));
        Ok(history)
    }
}

/// The last terms of an election, newest first. Without the token, `reason` is null.
#[utoipa::path(
    get,
    path = "/v1/elections/{election}/history",
    params(
        ("election" = String, Path),
        ("limit" = Option<usize>, Query, description = "maximum number of terms; 100 by default")
    ),
    responses(
        Withheld,
        (status = 200, body = Vec<TermRow>),
        (status = 400, description = "the limit is not a number above 0"),
        (status = 404, description = "this node is not in this election"),
        (status = 503, description = "the store does not answer, or too many other clients read the history")
    )
)]
pub(super) async fn history(
    MayReadOutput { has_token }: MayReadOutput,
    State(asked): State<Arc<AdminState>>,
    Path(election): Path<String>,
    uri: Uri,
) -> Response {
    let tracker = match asked.watched.tracker(&election) {
        Ok(tracker) => tracker,
        Err(no_part) => return no_part.into_response(),
    };
    let Some(limit) = limit(uri.query()) else {
        return text(StatusCode::BAD_REQUEST, format!("use ?limit=N, with N from 1 to {KEPT_TERMS}\n"));
    };
    let histories = &asked.histories;
    let Ok(permit) = Arc::clone(&histories.answers).try_acquire_owned() else {
        let why = format!("{ANSWERS} other clients are reading the history: try again\n");
        return text(StatusCode::SERVICE_UNAVAILABLE, why);
    };
    let history = match histories.now(&tracker.election).await {
        Ok(history) => history,
        Err(error) => {
            return text(StatusCode::SERVICE_UNAVAILABLE, format!("the history cannot be read: {error}\n"));
        }
    };
    // A reason may quote the coordinator, whose output requires the token.
    let shown = |row: TermRow| if has_token { row } else { TermRow { reason: None, ..row } };
    let rows: Vec<TermRow> = history.terms.iter().rev().take(limit).cloned().map(TermRow::from).map(shown).collect();
    let Ok(body) = serde_json::to_string(&rows) else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    in_pieces("application/json", body, permit)
}

/// Parses `limit=N`. Returns [`TERMS`] if there is no query, and `None` for any other query.
fn limit(query: Option<&str>) -> Option<usize> {
    match query.filter(|query| !query.is_empty()) {
        None => Some(TERMS),
        Some(query) => query.strip_prefix("limit=")?.parse().ok().filter(|limit| *limit > 0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_store::{MemoryStore, PastTerm, report_terms};
    use http_body_util::BodyExt as _;
    use serde_json::Value;

    use super::super::access::Access;
    use super::*;
    use crate::watched::Watched;

    #[tokio::test]
    async fn reason_is_shown_only_with_the_token() {
        let store = Arc::new(MemoryStore::new(Arc::new(|| Duration::ZERO)));
        let [ended, reason] = ["then", "a secret of the coordinator's"].map(|text| Some(text.to_owned()));
        let term = PastTerm { term: 1, ended, reason: reason.clone(), ..PastTerm::default() };
        report_terms(&*store, &ElectionName::new("job").unwrap(), &[term]).await.unwrap();
        let asked = AdminState::about(Arc::new(Watched::of_nothing()), store, Access::default());
        for (has_token, expected) in [(true, reason), (false, None)] {
            let (state, path) = (State(Arc::clone(&asked)), Path("job".to_owned()));
            let answer = history(MayReadOutput { has_token }, state, path, Uri::from_static("/")).await;
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let rows: Vec<Value> = serde_json::from_slice(&body).unwrap();
            assert_eq!((rows.len(), rows[0]["reason"].as_str()), (1, expected.as_deref()));
        }
    }

    #[test]
    fn limit_must_be_a_number_above_zero() {
        let limits = ["", "limit=7", "limit=", "limit=-1", "limit=0", "limit=a", "limit=1&limit=2", "x=1"];
        let expected = [Some(TERMS), Some(7), None, None, None, None, None, None];
        assert_eq!(limits.map(|query| limit(Some(query))), expected);
        assert_eq!(limit(None), Some(TERMS));
    }
}
