//! The status of this node's elections, and of the nodes in them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use baton_election::{ElectionName, Progress, StoreError, Term};
use baton_store::{AnnouncedLink, Announcement, Labels, ModuleStore as _, ObjectStore};
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use super::AdminUrl;
use super::access::{MaySeeStatus, Withheld};
use super::routes::{AdminState, NoPart, text};
use crate::watched::Watched;
use baton_base::clock::{rfc3339_seconds, wall};
use baton_node::node_announcement::NodeAnnouncement;
use baton_node::schedule::next_run;
use baton_node::telemetry::ElectionTracker;
use baton_runtime::InstanceUsage;

/// Minimum interval between two reads of the nodes' announcements. Each node announces itself after each change, and at
/// least once a minute.
const NODES_EVERY: Duration = Duration::from_secs(5);

const NODES_WITHIN: Duration = Duration::from_secs(10);

/// An election as one node sees it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct ElectionStatus {
    /// Name of the election.
    election: String,
    /// The node that sends this response.
    node: String,
    /// Labels of this node.
    #[schema(value_type = BTreeMap<String, String>)]
    labels: Labels,
    /// The current leader, as far as this node knows; null if it knows of none.
    leader: Option<String>,
    /// True if this node leads.
    leads: bool,
    /// True if an instance runs on this node and the gate lets its effects pass.
    serves: bool,
    /// The highest term that this node has seen; 0 if it has seen none.
    term: u64,
    /// Length of the lease, in seconds.
    lease_s: f64,
    /// Time until the deadline, in seconds; null if this node does not lead.
    remaining_s: Option<f64>,
    /// Digest of the module that this node would run; null if it has none.
    module: Option<String>,
    /// Due time of the next scheduled run (RFC 3339), also of one that is under way or missed; null if there is none.
    next_run: Option<String>,
    /// Due time of the last completed run (RFC 3339), on any node; null if no run has been completed.
    last_completed_run: Option<String>,
    /// True once this node has been ready to take over.
    ready: bool,
    /// Total time without a leader, in seconds, as observed by this node.
    leaderless_s: f64,
    /// Reason why this node may not lead, with the user who gave the command, if any; null if the node may lead.
    ineligible: Option<String>,
    /// The node to which this node is linked, and since when; null if this node only polls the store.
    #[schema(value_type = Option<Object>)]
    link: Option<AnnouncedLink>,
    /// Number of nodes that have a link to this node.
    listeners: u32,
    /// Resource usage of the election's instance on this node, as in `baton status -o json`; null if no instance runs.
    #[schema(value_type = Option<Object>)]
    usage: Option<InstanceUsage>,
}

impl ElectionStatus {
    fn of(watched: &Watched, tracker: &ElectionTracker, in_use: &[(ElectionName, Term, InstanceUsage)]) -> Self {
        let (now, view, links) = (watched.clock.now(), tracker.view(), tracker.links());
        let leads = view.leads(now);
        let scheduled = view.scheduled();
        let in_use = in_use.iter().rfind(|(election, ..)| *election == tracker.election);
        Self {
            election: tracker.election.to_string(),
            node: watched.node.clone(),
            labels: watched.labels.clone(),
            leads: leads.is_some(),
            serves: tracker.serves(&view, now),
            term: view.term,
            lease_s: tracker.lease.as_secs_f64(),
            remaining_s: leads.map(|(_, left)| left.as_secs_f64()),
            module: view.module.map(|digest| digest.to_string()),
            next_run: scheduled.and_then(|progress| next_run(progress, wall())).map(rfc3339_seconds),
            last_completed_run: scheduled.and_then(Progress::last_completed).map(rfc3339_seconds),
            ready: tracker.is_ready(),
            leaderless_s: tracker.vacant(now).as_secs_f64(),
            usage: in_use.map(|(_, _, in_use)| in_use.clone()),
            listeners: links.listeners,
            ineligible: view.command,
            link: links.link,
            leader: view.leader,
        }
    }
}

/// A node in an election.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct NodeStatus {
    /// Name of the election.
    election: String,
    #[serde(flatten)]
    said: NodeAnnouncement,
    /// Source of the node's modules.
    source: String,
    /// Digests of the modules that the node could start immediately.
    holds: Vec<String>,
    /// The highest term that the node has seen.
    term: u64,
    /// Address of the node's admin endpoint; null if other machines cannot reach it.
    admin: Option<String>,
}

impl NodeStatus {
    fn of(election: &ElectionName, announced: Announcement) -> Self {
        let said = NodeAnnouncement::from(&announced);
        let term = announced.recalled(election).term;
        let Announcement { source, holds, admin, .. } = announced;
        let holds = holds.into_iter().map(|digest| digest.to_string()).collect();
        // Show the address only if it is a valid URL, because the announcement is untrusted: any client that can write
        // to the store can forge one.
        let admin = admin.parse::<AdminUrl>().ok().map(|url| url.to_string());
        Self { election: election.to_string(), said, source, holds, term, admin }
    }
}

pub(super) struct Nodes {
    store: Arc<dyn ObjectStore>,
    /// Locked while a request reads the store, so that other requests wait for the result.
    last: Mutex<Option<(Instant, Vec<NodeStatus>)>>,
}

impl Nodes {
    pub(super) fn of(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, last: Mutex::default() }
    }

    async fn now(&self, trackers: &[Arc<ElectionTracker>]) -> Result<Vec<NodeStatus>, StoreError> {
        let mut last = self.last.lock().await;
        if let Some((at, nodes)) = &*last
            && at.elapsed() < NODES_EVERY
        {
            return Ok(nodes.clone());
        }
        let mut nodes = Vec::new();
        let read = async {
            // The shards of a group share their announcements.
            for shards in trackers.chunk_by(|one, next| one.election.group() == next.election.group()) {
                let Some(first) = shards.first() else { continue };
                let announced = self.store.announcements(&first.election).await?;
                let announced: Vec<_> = announced.iter().filter_map(|(_, said)| Announcement::decode(said)).collect();
                for tracker in shards {
                    nodes.extend(announced.iter().map(|said| NodeStatus::of(&tracker.election, said.clone())));
                }
            }
            Ok(())
        };
        let late = |_| StoreError::Unknown(format!("no response within {NODES_WITHIN:?}"));
        timeout(NODES_WITHIN, read).await.map_err(late).flatten()?;
        *last = Some((Instant::now(), nodes.clone()));
        Ok(nodes)
    }
}

/// All elections of this node.
#[utoipa::path(get, path = "/v1/elections", responses(Withheld, (status = 200, body = Vec<ElectionStatus>)))]
pub(super) async fn elections(_: MaySeeStatus, State(asked): State<Arc<AdminState>>) -> Json<Vec<ElectionStatus>> {
    let watched = &asked.watched;
    // Read the usage of all elections at once, because each read inspects the process of every instance.
    let in_use = watched.running.in_use();
    Json(watched.trackers.iter().map(|tracker| ElectionStatus::of(watched, tracker, &in_use)).collect())
}

/// One election of this node.
#[utoipa::path(
    get,
    path = "/v1/elections/{election}",
    params(("election" = String, Path)),
    responses(
        Withheld,
        (status = 200, body = ElectionStatus),
        (status = 404, description = "this node is not in this election")
    )
)]
pub(super) async fn election(
    _: MaySeeStatus,
    State(asked): State<Arc<AdminState>>,
    Path(election): Path<String>,
) -> Result<Json<ElectionStatus>, NoPart> {
    let watched = &asked.watched;
    let tracker = watched.tracker(&election)?;
    Ok(Json(ElectionStatus::of(watched, tracker, &watched.running.in_use())))
}

/// The nodes in this node's elections, as announced in the store.
#[utoipa::path(
    get,
    path = "/v1/nodes",
    responses(Withheld, (status = 200, body = Vec<NodeStatus>), (status = 503, description = "the store does not answer"))
)]
pub(super) async fn nodes(_: MaySeeStatus, State(asked): State<Arc<AdminState>>) -> Response {
    match asked.nodes.now(&asked.watched.trackers).await {
        Ok(nodes) => Json(nodes).into_response(),
        Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("the nodes cannot be read: {error}\n")),
    }
}
