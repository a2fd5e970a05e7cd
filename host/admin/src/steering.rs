//! The routes that steer an election's nodes, as the steering commands do.
//!
//! Each call requires the token, and refuses requests from any web page other than the endpoint's own.

use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Path, Request, State};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use axum::{Json, Router};
use baton_election::ElectionName;
use baton_modules::RollbackError;
use baton_store::DigestPrefix;
use baton_store::steering::{EditError, LONGEST_STEP_DOWN, SteeringError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use utoipa::{IntoResponses, ToSchema};

use super::access::{MayChange, Withheld};
use super::routes::{AdminState, NoPart, text};
use baton_node::steering::operator::{HintTarget, NoEffect, Operator, SteeringCommand, check_reason};
use baton_node::steering::rollback;
use baton_node::telemetry::Event;

/// Maximum size of a body, in bytes.
const LONGEST: usize = 4 << 10;

const BODY: Duration = Duration::from_secs(5);

/// Maximum number of calls in progress.
pub(super) const AT_ONCE: usize = 8;

/// Default time to wait for the effect of a call, in seconds.
const DEFAULT_TIMEOUT_S: u64 = 30;
/// Maximum time to wait, in seconds: less than a minute, which is the maximum lifetime of a connection.
const LONGEST_TIMEOUT_S: u64 = 50;

/// Makes the leader release the lease.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StepDownCall {
    /// Time for which the former leader is ineligible, in seconds, from 1 to 86400; 60 by default.
    for_s: Option<u64>,
    /// Reason to log; at most 500 bytes.
    reason: Option<String>,
    /// Time to wait for the effect, in seconds; 30 by default, at most 50.
    timeout_s: Option<u64>,
}

/// Prevents all nodes from leading.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SuspendCall {
    /// Reason to log; at most 500 bytes.
    reason: Option<String>,
    /// Time to wait for the effect, in seconds; 30 by default, at most 50.
    timeout_s: Option<u64>,
}

/// Ends a suspension.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ResumeCall {
    /// Time to wait for the effect, in seconds; 30 by default, at most 50.
    timeout_s: Option<u64>,
}

/// Makes the named node lead.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TransferCall {
    /// Id of the node.
    to: String,
    /// Reason to log; at most 500 bytes.
    #[serde(default)]
    reason: Option<String>,
    /// Time to wait for the effect, in seconds; 30 by default, at most 50.
    #[serde(default)]
    timeout_s: Option<u64>,
}

/// Makes an earlier version of the module the current one.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RollbackCall {
    /// Digest of the version, or at least its first 8 digits; by default, the newest version that is neither current
    /// nor rejected.
    digest: Option<String>,
    /// Reason to log on this node; at most 500 bytes.
    reason: Option<String>,
}

/// Result of a call.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CallResult {
    /// True if the call has taken effect.
    done: bool,
    /// Describes what has happened, or what is missing.
    result: String,
}

/// The responses to a steering call.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only describes responses")]
enum Effect {
    /// the call has taken effect
    #[response(status = 200)]
    Done(CallResult),
    /// the call does not apply now, and nothing was requested
    #[response(status = 409)]
    NotApplicable(CallResult),
    /// the request was stored, or may have been stored, but the store showed no effect in time
    #[response(status = 504)]
    NotYet(CallResult),
}

/// The responses to any call that changed nothing.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only describes responses")]
enum Refusal {
    /// the store does not respond, too many other calls are in progress, or (as plain text) the token file cannot be
    /// read
    #[response(status = 503)]
    Unavailable(CallResult),
    /// the body is invalid
    #[response(status = 400)]
    Body(CallResult),
    /// this node is not in the election, or no host has contended for it yet
    #[response(status = 404)]
    NoSuch(CallResult),
    /// the body did not arrive in time
    #[response(status = 408)]
    Late(CallResult),
    /// the body is too long or incomplete
    #[response(status = 413)]
    TooLong(CallResult),
    /// the content type of the body is not JSON
    #[response(status = 415)]
    NotJson(CallResult),
}

pub(super) struct Unusable(StatusCode, String);

impl IntoResponse for Unusable {
    fn into_response(self) -> Response {
        steered(self.0, false, self.1)
    }
}

impl Unusable {
    fn because(why: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, why.into())
    }
}

pub(super) fn routes() -> Router<Arc<AdminState>> {
    let path = |what: &str| format!("/v1/elections/{{election}}/{what}");
    let changes = |route: MethodRouter<Arc<AdminState>>| route.fallback(only_posts);
    Router::new()
        .route(&path("step-down"), changes(post(step_down)))
        .route(&path("suspend"), changes(post(suspend)))
        .route(&path("resume"), changes(post(resume)))
        .route(&path("transfer"), changes(post(transfer)))
        .route(&path("rollback"), changes(post(roll_back)))
}

async fn only_posts() -> Response {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "This path accepts only POST.\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    response
}

/// Makes the leader release the lease, so that another node acquires it.
#[utoipa::path(
    post,
    path = "/v1/elections/{election}/step-down",
    params(("election" = String, Path)),
    request_body = StepDownCall,
    responses(Withheld, Effect, Refusal)
)]
pub(super) async fn step_down(
    _: MayChange,
    State(asked): State<Arc<AdminState>>,
    Path(election): Path<String>,
    request: Request,
) -> Result<Response, Unusable> {
    let election = known(&asked, &election)?;
    let StepDownCall { for_s, reason, timeout_s } = body(request).await?;
    let period = Duration::from_secs(for_s.unwrap_or(60));
    if period.is_zero() || period > LONGEST_STEP_DOWN {
        return Err(Unusable::because("for_s must be from 1 to 86400"));
    }
    let call = Call::new(&asked, election, reason, timeout_s)?;
    Ok(call.answer(&SteeringCommand::StepDown(period)).await)
}

/// Prevents all nodes from leading until the election is resumed.
#[utoipa::path(
    post,
    path = "/v1/elections/{election}/suspend",
    params(("election" = String, Path)),
    request_body = SuspendCall,
    responses(Withheld, Effect, Refusal)
)]
pub(super) async fn suspend(
    _: MayChange,
    State(asked): State<Arc<AdminState>>,
    Path(election): Path<String>,
    request: Request,
) -> Result<Response, Unusable> {
    let election = known(&asked, &election)?;
    let SuspendCall { reason, timeout_s } = body(request).await?;
    let call = Call::new(&asked, election, reason, timeout_s)?;
    Ok(call.answer(&SteeringCommand::Suspend).await)
}

/// Ends a suspension.
#[utoipa::path(
    post,
    path = "/v1/elections/{election}/resume",
    params(("election" = String, Path)),
    request_body = ResumeCall,
    responses(Withheld, Effect, Refusal)
)]
pub(super) async fn resume(
    _: MayChange,
    State(asked): State<Arc<AdminState>>,
    Path(election): Path<String>,
    request: Request,
) -> Result<Response, Unusable> {
    let election = known(&asked, &election)?;
    let ResumeCall { timeout_s } = body(request).await?;
    let call = Call::new(&asked, election, None, timeout_s)?;
    Ok(call.answer(&SteeringCommand::Resume { skip_missed: false }).await)
}

/// Makes the named node lead. If that node does not acquire the lease soon, the previous leader may continue.
#[utoipa::path(
    post,
    path = "/v1/elections/{election}/transfer",
    params(("election" = String, Path)),
    request_body = TransferCall,
    responses(Withheld, Effect, Refusal)
)]
pub(super) async fn transfer(
    _: MayChange,
    State(asked): State<Arc<AdminState>>,
    Path(election): Path<String>,
    request: Request,
) -> Result<Response, Unusable> {
    let election = known(&asked, &election)?;
    let TransferCall { to, reason, timeout_s } = body(request).await?;
    let call = Call::new(&asked, election, reason, timeout_s)?;
    Ok(call.answer(&SteeringCommand::Transfer(to)).await)
}

/// Makes an earlier version of the module the current one.
#[utoipa::path(
    post,
    path = "/v1/elections/{election}/rollback",
    params(("election" = String, Path)),
    request_body = RollbackCall,
    responses(
        Withheld,
        (status = 200, body = CallResult),
        (status = 409, body = CallResult, description = "there is no such version"),
        Refusal
    )
)]
pub(super) async fn roll_back(
    _: MayChange,
    State(asked): State<Arc<AdminState>>,
    Path(election): Path<String>,
    request: Request,
) -> Result<Response, Unusable> {
    let name = known(&asked, &election)?;
    let RollbackCall { digest, reason } = body(request).await?;
    let digest = digest.as_deref().map(str::parse::<DigestPrefix>).transpose();
    let digest = digest.map_err(|error| Unusable::because(format!("digest: {error}")))?;
    let call = Call::new(&asked, name, reason, None)?;
    let Ok(_permit) = asked.changes.try_acquire() else { return Ok(too_many()) };
    match rollback::roll_back(&*asked.store, &call.election, digest.as_ref()).await {
        Ok(rolled_back) => {
            if let Some(tracker) = asked.watched.first_tracker(&call.election) {
                tracker.notifier.look();
            }
            let result = rollback::told(&rolled_back, &call.election);
            asked
                .watched
                .says(&call.election, Event::RolledBack { by: call.by, reason: call.reason, result: result.clone() });
            Ok(steered(StatusCode::OK, true, result))
        }
        Err(error) if error.is::<RollbackError>() => Ok(steered(StatusCode::CONFLICT, false, format!("{error:#}"))),
        Err(error) => Ok(steered(StatusCode::SERVICE_UNAVAILABLE, false, format!("{error:#}"))),
    }
}

fn too_many() -> Response {
    let why = format!("{AT_ONCE} other calls are in progress: try again");
    steered(StatusCode::SERVICE_UNAVAILABLE, false, why)
}

struct Call<'a> {
    asked: &'a AdminState,
    election: ElectionName,
    by: String,
    reason: Option<String>,
    patience: Duration,
}

impl<'a> Call<'a> {
    fn new(
        asked: &'a AdminState,
        election: ElectionName,
        reason: Option<String>,
        timeout_s: Option<u64>,
    ) -> Result<Self, Unusable> {
        if let Some(reason) = &reason {
            check_reason(reason).map_err(|why| Unusable::because(format!("reason: {why}")))?;
        }
        let patience = timeout_s.unwrap_or(DEFAULT_TIMEOUT_S);
        if patience > LONGEST_TIMEOUT_S {
            let why = format!("timeout_s must be at most {LONGEST_TIMEOUT_S}: a connection does not last longer");
            return Err(Unusable::because(why));
        }
        let by = format!("the endpoint of {}", asked.watched.node);
        Ok(Self { asked, election, by, reason, patience: Duration::from_secs(patience) })
    }

    async fn answer(self, what: &SteeringCommand) -> Response {
        let Ok(_permit) = self.asked.changes.try_acquire() else { return too_many() };
        let Self { asked, election, by, reason, patience } = self;
        let tracker = asked.watched.first_tracker(&election);
        let called = tracker.map_or(HintTarget::Nobody, |tracker| HintTarget::Node(&tracker.notifier));
        let operator = Operator { store: &*asked.store, election: &election, by, reason, patience, called };
        match operator.steer(what).await {
            Ok(result) => steered(StatusCode::OK, true, result),
            Err(error) => {
                let status = match &error {
                    NoEffect::Unknown(_) => StatusCode::NOT_FOUND,
                    NoEffect::Refused(_) | NoEffect::Steering(EditError::Unusable(SteeringError::Damaged(_))) => {
                        StatusCode::CONFLICT
                    }
                    NoEffect::NotYet(_) | NoEffect::Steering(EditError::Unknown(_)) => StatusCode::GATEWAY_TIMEOUT,
                    NoEffect::Steering(_) | NoEffect::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
                };
                steered(status, false, error.to_string())
            }
        }
    }
}

fn steered(status: StatusCode, done: bool, result: String) -> Response {
    (status, Json(CallResult { done, result: result.trim_end().to_owned() })).into_response()
}

fn known(asked: &AdminState, election: &str) -> Result<ElectionName, Unusable> {
    match asked.watched.tracker(election) {
        Ok(tracker) => Ok(tracker.election.clone()),
        // Commands can also apply to a whole group of shards.
        Err(NoPart(why)) => {
            let group = asked.watched.trackers.iter().find(|tracker| tracker.election.group() == election);
            group.map(|shard| shard.election.without_shard()).ok_or(Unusable(StatusCode::NOT_FOUND, why))
        }
    }
}

/// Parses the body of a call. Treats an empty body as an empty object.
async fn body<T: DeserializeOwned>(request: Request) -> Result<T, Unusable> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    // Accept only JSON: for some other content types, a browser would let a page on another site send the request
    // without a preflight.
    if !kind.eq_ignore_ascii_case("application/json") {
        let why = "send JSON, with the header Content-Type: application/json".to_owned();
        return Err(Unusable(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    let bytes = match timeout(BODY, to_bytes(request.into_body(), LONGEST)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let why = format!("the body is incomplete, or has more than {LONGEST} bytes");
            return Err(Unusable(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        Err(_) => {
            return Err(Unusable(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {BODY:?}")));
        }
    };
    let json = if bytes.is_empty() { "{}".into() } else { bytes };
    // Accept only an object: serde would also accept an array that contains the fields' values in order.
    if !json.trim_ascii_start().starts_with(b"{") {
        return Err(Unusable::because("the body is not a JSON object"));
    }
    serde_json::from_slice(&json).map_err(|error| Unusable::because(format!("the body is invalid: {error}")))
}
