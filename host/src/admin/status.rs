//! What a node tells of the elections that it takes part in, and of the nodes that take part with it.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use baton_election::{ElectionName, StoreError, Term};
use baton_store::{Announcement, Labels, Listens, ModuleStore as _, ObjectStore};
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::AdminUrl;
use super::access::{MaySeeStatus, Withheld};
use super::routes::{Asked, NoPart, text};
use crate::said::Said;
use crate::telemetry::Standing;
use crate::watched::Watched;
use baton_runtime::InUse;

/// The store is not asked for nodes more often: they say something new each minute.
const NODES_EVERY: Duration = Duration::from_secs(5);

/// How long the store may take to tell of all nodes.
const NODES_WITHIN: Duration = Duration::from_secs(10);

/// An election as one node sees it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ElectionStatus {
    /// Its name.
    election: String,
    /// The node that says this.
    node: String,
    /// What people know that node by.
    #[schema(value_type = BTreeMap<String, String>)]
    labels: Labels,
    /// The node that leads as far as this one knows; null where none does.
    leader: Option<String>,
    /// Whether this node leads.
    leads: bool,
    /// Whether an instance runs here whose effects count.
    serves: bool,
    /// The highest term that this node has seen; 0 before the first.
    term: u64,
    /// The lease's length, in seconds.
    lease_s: f64,
    /// Until effects of this node are refused, unless it renews before, in seconds; null where it does not lead.
    remaining_s: Option<f64>,
    /// The digest of what this node would run; null where it has nothing.
    module: Option<String>,
    /// Whether this node was ever ready to take over.
    ready: bool,
    /// How long nobody has led while this node looked, in seconds.
    leaderless_s: f64,
    /// Why this node may not lead, and who decided that; null if it may.
    ineligible: Option<String>,
    /// The node at the other end of this node's link, and since when; null if it only polls the store.
    #[schema(value_type = Option<Object>)]
    link: Option<Listens>,
    /// How many nodes hear from this one.
    listeners: u32,
    /// Usage of its instance on this node, as in `baton status -o json`; null if none runs.
    #[schema(value_type = Option<Object>)]
    usage: Option<InUse>,
}

impl ElectionStatus {
    fn of(watched: &Watched, standing: &Standing, in_use: &[(ElectionName, Term, InUse)]) -> Self {
        let (now, known) = (watched.clock.now(), standing.known());
        let leads = known.leads(now);
        let in_use = in_use.iter().rfind(|(election, ..)| *election == standing.election);
        Self {
            election: standing.election.to_string(),
            node: watched.node.clone(),
            labels: watched.labels.clone(),
            leads: leads.is_some(),
            serves: known.serves(now),
            term: known.term,
            lease_s: standing.lease.as_secs_f64(),
            remaining_s: leads.map(|(_, left)| left.as_secs_f64()),
            module: known.module.map(|digest| digest.to_string()),
            ready: known.is_ready(),
            leaderless_s: known.vacant(now).as_secs_f64(),
            usage: in_use.map(|(_, _, in_use)| in_use.clone()),
            listeners: known.listeners,
            ineligible: known.stays_out,
            link: known.listens,
            leader: known.leader,
        }
    }
}

/// A node of an election.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct NodeStatus {
    /// The election that it takes part in.
    election: String,
    #[serde(flatten)]
    said: Said,
    /// Where its modules come from.
    source: String,
    /// The digests of what it could start at once.
    holds: Vec<String>,
    /// The highest term that it had seen.
    term: u64,
    /// Where its admin endpoint is found; null where it is nowhere that would be of use to others.
    admin: Option<String>,
}

impl NodeStatus {
    fn of(election: &ElectionName, announced: Announcement) -> Self {
        let said = Said::from(&announced);
        let Announcement { source, holds, term, admin, .. } = announced;
        let holds = holds.into_iter().map(|digest| digest.to_string()).collect();
        // Whoever writes to the store could have put anything there.
        let admin = admin.parse::<AdminUrl>().ok().map(|url| url.to_string());
        Self { election: election.to_string(), said, source, holds, term, admin }
    }
}

/// The nodes as the store had them a moment ago.
pub(super) struct Nodes {
    store: Arc<dyn ObjectStore>,
    /// One asks at a time, and the others take what it finds.
    last: Mutex<Option<(Instant, Vec<NodeStatus>)>>,
}

impl Nodes {
    pub(super) fn of(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, last: Mutex::default() }
    }

    async fn now(&self, standings: &[Arc<Standing>]) -> Result<Vec<NodeStatus>, StoreError> {
        let mut last = self.last.lock().await;
        if let Some((at, nodes)) = &*last
            && at.elapsed() < NODES_EVERY
        {
            return Ok(nodes.clone());
        }
        let mut nodes = Vec::new();
        let read = async {
            for standing in standings {
                for (_, said) in self.store.announcements(&standing.election).await? {
                    nodes.extend(Announcement::decode(&said).map(|said| NodeStatus::of(&standing.election, said)));
                }
            }
            Ok(())
        };
        let late = |_| StoreError::Unknown(format!("no answer within {NODES_WITHIN:?}"));
        timeout(NODES_WITHIN, read).await.map_err(late).flatten()?;
        *last = Some((Instant::now(), nodes.clone()));
        Ok(nodes)
    }
}

/// All elections that this node takes part in.
#[utoipa::path(get, path = "/v1/elections", responses(Withheld, (status = 200, body = Vec<ElectionStatus>)))]
pub(super) async fn elections(_: MaySeeStatus, State(asked): State<Arc<Asked>>) -> Json<Vec<ElectionStatus>> {
    let watched = &asked.watched;
    // Once for all: each instance's process is looked at.
    let in_use = watched.running.in_use();
    Json(watched.standings.iter().map(|standing| ElectionStatus::of(watched, standing, &in_use)).collect())
}

/// One of them.
#[utoipa::path(
    get,
    path = "/v1/elections/{election}",
    params(("election" = String, Path)),
    responses(Withheld, (status = 200, body = ElectionStatus), (status = 404, description = "this node takes no part in it"))
)]
pub(super) async fn election(
    _: MaySeeStatus,
    State(asked): State<Arc<Asked>>,
    Path(election): Path<String>,
) -> Result<Json<ElectionStatus>, NoPart> {
    let watched = &asked.watched;
    let standing = watched.standing(&election)?;
    Ok(Json(ElectionStatus::of(watched, standing, &watched.running.in_use())))
}

/// The nodes that take part in these elections, as they have said of themselves in the store.
#[utoipa::path(
    get,
    path = "/v1/nodes",
    responses(Withheld, (status = 200, body = Vec<NodeStatus>), (status = 503, description = "the store does not answer"))
)]
pub(super) async fn nodes(_: MaySeeStatus, State(asked): State<Arc<Asked>>) -> Response {
    match asked.nodes.now(&asked.watched.standings).await {
        Ok(nodes) => Json(nodes).into_response(),
        Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("the nodes cannot be read: {error}\n")),
    }
}
