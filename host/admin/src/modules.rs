//! The versions of an election's module, as recorded in the store: the rows of `baton modules`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use baton_election::ElectionName;
use baton_modules::read_versions;
use baton_store::{Announcement, ModuleStore as _, ObjectStore};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::access::{MayReadOutput, Withheld};
use super::routes::{AdminState, in_pieces, text};
use crate::rows::ModuleRow;

/// Minimum interval between two reads of an election's versions. Nodes announce a new version within seconds.
const EVERY: Duration = Duration::from_secs(5);

const WITHIN: Duration = Duration::from_secs(10);

/// Maximum number of concurrent responses. A response counts toward this number until its client has read it.
const ANSWERS: usize = 8;

type LastRead = (Instant, Arc<Vec<ModuleRow>>);

/// A cache of the elections' versions. For each election, many requests cause only one read of the store per [`EVERY`].
pub(super) struct Versions {
    store: Arc<dyn ObjectStore>,
    /// Locked while a request reads the store, so that other requests wait for the result.
    last: Mutex<BTreeMap<ElectionName, LastRead>>,
    answers: Arc<Semaphore>,
}

impl Versions {
    pub(super) fn of(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, last: Mutex::default(), answers: Arc::new(Semaphore::new(ANSWERS)) }
    }

    async fn now(&self, election: &ElectionName) -> Result<Arc<Vec<ModuleRow>>, String> {
        let mut last = self.last.lock().await;
        last.retain(|_, (at, _)| at.elapsed() < EVERY);
        if let Some((_, rows)) = last.get(election) {
            return Ok(Arc::clone(rows));
        }
        let read = timeout(WITHIN, self.read(election)).await;
        let rows = read.map_err(|_| format!("no response within {WITHIN:?}")).flatten()?;
        let rows = Arc::new(rows);
        last.insert(election.clone(), (Instant::now(), Arc::clone(&rows)));
        Ok(rows)
    }

    async fn read(&self, election: &ElectionName) -> Result<Vec<ModuleRow>, String> {
        let versions = read_versions(&*self.store, election).await.map_err(|error| error.to_string())?;
        let announced = self.store.announcements(election).await.map_err(|error| error.to_string())?;
        let announced: Vec<Announcement> =
            announced.iter().filter_map(|(_, content)| Announcement::decode(content)).collect();
        Ok(ModuleRow::of(&versions.unwrap_or_default(), &announced))
    }
}

/// A version of the module.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it describes the JSON of `ModuleRow`")]
pub(super) struct Version {
    /// Digest of the module.
    digest: String,
    /// Size in bytes; null if the version is known only from nodes' announcements.
    size: Option<u64>,
    /// True if every node should run this version.
    current: bool,
    /// True if the version was pushed; false if it comes from a file or a registry.
    pushed: bool,
    /// The user who pushed the version, as `USER@HOST`.
    by: Option<String>,
    /// Time of the push (RFC 3339).
    at: Option<String>,
    /// True if the version is signed.
    signed: bool,
    /// `on-probation`, `good` or `rejected`; null if the version has not run long enough.
    verdict: Option<String>,
    /// Reason for the rejection; null without the token, because the reason may quote the coordinator.
    reason: Option<String>,
    /// The node that rejected the version.
    rejected_by: Option<String>,
    /// Time of the rejection (RFC 3339).
    rejected_at: Option<String>,
    /// The nodes that have the version.
    nodes: Vec<VersionNode>,
}

/// A node that has a version.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it describes the JSON of `NodeRow`")]
pub(super) struct VersionNode {
    /// The node's id.
    node: String,
    /// True if the node's instance runs this version; false if the node could start it immediately.
    runs: bool,
    /// Time of the node's announcement (RFC 3339).
    at: String,
}

/// The versions of the election's module, newest first. Without the token, `reason` is null.
#[utoipa::path(
    get,
    path = "/v1/elections/{election}/modules",
    params(("election" = String, Path)),
    responses(
        Withheld,
        (status = 200, body = Vec<Version>),
        (status = 404, description = "this node is not in this election"),
        (status = 503, description = "the store does not answer, or too many other clients read the versions")
    )
)]
pub(super) async fn modules(
    MayReadOutput { has_token }: MayReadOutput,
    State(asked): State<Arc<AdminState>>,
    Path(election): Path<String>,
) -> Response {
    let tracker = match asked.watched.tracker(&election) {
        Ok(tracker) => tracker,
        Err(no_part) => return no_part.into_response(),
    };
    let versions = &asked.versions;
    let Ok(place) = Arc::clone(&versions.answers).try_acquire_owned() else {
        let why = format!("{ANSWERS} other clients are reading the versions: try again\n");
        return text(StatusCode::SERVICE_UNAVAILABLE, why);
    };
    let rows = match versions.now(&tracker.election).await {
        Ok(rows) => rows,
        Err(error) => {
            return text(StatusCode::SERVICE_UNAVAILABLE, format!("the versions cannot be read: {error}\n"));
        }
    };
    // A rejection's reason may quote the coordinator, whose output requires the token.
    let shown = |row: ModuleRow| if has_token { row } else { ModuleRow { reason: None, ..row } };
    let rows: Vec<ModuleRow> = rows.iter().cloned().map(shown).collect();
    let Ok(body) = serde_json::to_string(&rows) else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    in_pieces("application/json", body, place)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_modules::{EditError, Publication, edit_versions};
    use baton_store::{Digest, MemoryStore};
    use http_body_util::BodyExt as _;
    use serde_json::Value;

    use super::super::access::Access;
    use super::*;
    use crate::watched::Watched;

    #[tokio::test]
    async fn newest_pushed_version_is_first_and_current() {
        let store = Arc::new(MemoryStore::new(Arc::new(|| Duration::ZERO)));
        let [old, new] = [b"old", b"new"].map(|content| Digest::of(content));
        let election = ElectionName::new("job").unwrap();
        for digest in [old, new] {
            let (by, at) = ("ann@desk".to_owned(), "2026-11-21T12:00:00Z".to_owned());
            let push = Publication { digest, size: 3, by, at, signature: None };
            let pushed =
                edit_versions(&*store, &election, |versions| versions.push(push.clone()).map_err(EditError::from));
            pushed.await.unwrap();
        }
        let asked = AdminState::about(Arc::new(Watched::of_nothing()), store, Access::default());
        let (state, path) = (State(asked), Path("job".to_owned()));
        let answer = modules(MayReadOutput { has_token: false }, state, path).await;
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let rows: Vec<Value> = serde_json::from_slice(&body).unwrap();
        let rows: Vec<_> = rows.iter().map(|row| (row["digest"].as_str().unwrap(), row["current"] == true)).collect();
        assert_eq!(rows, [(&*new.to_string(), true), (&*old.to_string(), false)]);
    }
}
