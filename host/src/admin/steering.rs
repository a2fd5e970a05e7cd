//! The calls that change something: what operators ask of an election's nodes, as the commands do.
//!
//! They need the token always, and answer no page in a browser but one of this endpoint's own.

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
use super::routes::{Asked, NoPart, text};
use crate::steering::operator::{Called, NoEffect, Operator, Steered, check_reason};
use crate::steering::rollback;
use crate::telemetry::Event;

/// The longest body, in bytes.
const LONGEST: usize = 4 << 10;

/// How long a body may take.
const BODY: Duration = Duration::from_secs(5);

/// So many calls are waited for at a time.
pub(super) const AT_ONCE: usize = 8;

/// How long a call is waited for unless it says otherwise, and at the most: a connection lasts a minute.
const PATIENCE: u64 = 30;
const LONGEST_PATIENCE: u64 = 50;

/// Has the leader give the lease up.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StepDownCall {
    /// How long that node does not lead again, in seconds, from 1 to 86400; 60 if it is left out.
    for_s: Option<u64>,
    /// Why, for people; at most 500 bytes.
    reason: Option<String>,
    /// How long it is waited for, in seconds; 30 if it is left out, 50 at the most.
    timeout_s: Option<u64>,
}

/// Has nobody lead.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SuspendCall {
    /// Why, for people; at most 500 bytes.
    reason: Option<String>,
    /// How long it is waited for, in seconds; 30 if it is left out, 50 at the most.
    timeout_s: Option<u64>,
}

/// Takes a suspension back.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ResumeCall {
    /// How long it is waited for, in seconds; 30 if it is left out, 50 at the most.
    timeout_s: Option<u64>,
}

/// Has a certain node lead.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TransferCall {
    /// The node.
    to: String,
    /// Why, for people; at most 500 bytes.
    #[serde(default)]
    reason: Option<String>,
    /// How long it is waited for, in seconds; 30 if it is left out, 50 at the most.
    #[serde(default)]
    timeout_s: Option<u64>,
}

/// Makes an earlier version of the module the current one.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RollbackCall {
    /// Which: 8 or more digits of its digest; the newest other that was not rejected if it is left out.
    digest: Option<String>,
    /// Why, for the log of this node; at most 500 bytes.
    reason: Option<String>,
}

/// What came of a call that was let in.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CameOf {
    /// Whether it has taken effect.
    done: bool,
    /// What happened, or what is missing, for people.
    result: String,
}

/// The answers to a call that the nodes follow.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "it describes what others answer")]
enum Effect {
    /// it has taken effect
    #[response(status = 200)]
    Done(CameOf),
    /// it would make no sense, and nothing was asked
    #[response(status = 409)]
    Senseless(CameOf),
    /// it was asked, or may have been, and has not taken effect in time as far as the store tells
    #[response(status = 504)]
    NotYet(CameOf),
}

/// The answers where nothing was changed, to whatever call.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "it describes what others answer")]
enum Refusal {
    /// the store cannot be asked, or too many others are waited for; or, as text, the token cannot be read
    #[response(status = 503)]
    Unavailable(CameOf),
    /// the body is none of these
    #[response(status = 400)]
    Body(CameOf),
    /// this node takes no part in it, or no host has contended for it yet
    #[response(status = 404)]
    NoSuch(CameOf),
    /// the body has not come in time
    #[response(status = 408)]
    Late(CameOf),
    /// the body has too many bytes, or is cut off
    #[response(status = 413)]
    TooLong(CameOf),
    /// the body is not said to be JSON
    #[response(status = 415)]
    NotJson(CameOf),
}

/// What a body is when it is refused.
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

/// All of these paths.
pub(super) fn routes() -> Router<Arc<Asked>> {
    let path = |what: &str| format!("/v1/elections/{{election}}/{what}");
    let changes = |route: MethodRouter<Arc<Asked>>| route.fallback(only_posts);
    Router::new()
        .route(&path("step-down"), changes(post(step_down)))
        .route(&path("suspend"), changes(post(suspend)))
        .route(&path("resume"), changes(post(resume)))
        .route(&path("transfer"), changes(post(transfer)))
        .route(&path("rollback"), changes(post(roll_back)))
}

async fn only_posts() -> Response {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "This changes something: POST.\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
    response
}

/// Has the leader give the lease up, and another node take it.
#[utoipa::path(
    post,
    path = "/v1/elections/{election}/step-down",
    params(("election" = String, Path)),
    request_body = StepDownCall,
    responses(Withheld, Effect, Refusal)
)]
pub(super) async fn step_down(
    _: MayChange,
    State(asked): State<Arc<Asked>>,
    Path(election): Path<String>,
    request: Request,
) -> Result<Response, Unusable> {
    let election = known(&asked, &election)?;
    let StepDownCall { for_s, reason, timeout_s } = body(request).await?;
    let stays_out = Duration::from_secs(for_s.unwrap_or(60));
    if stays_out.is_zero() || stays_out > LONGEST_STEP_DOWN {
        return Err(Unusable::because("for_s is from 1 to 86400"));
    }
    let call = Call::new(&asked, election, reason, timeout_s)?;
    Ok(call.answer(&Steered::StepDown(stays_out)).await)
}

/// Has nobody lead until it is resumed.
#[utoipa::path(
    post,
    path = "/v1/elections/{election}/suspend",
    params(("election" = String, Path)),
    request_body = SuspendCall,
    responses(Withheld, Effect, Refusal)
)]
pub(super) async fn suspend(
    _: MayChange,
    State(asked): State<Arc<Asked>>,
    Path(election): Path<String>,
    request: Request,
) -> Result<Response, Unusable> {
    let election = known(&asked, &election)?;
    let SuspendCall { reason, timeout_s } = body(request).await?;
    let call = Call::new(&asked, election, reason, timeout_s)?;
    Ok(call.answer(&Steered::Suspend).await)
}

/// Takes a suspension back.
#[utoipa::path(
    post,
    path = "/v1/elections/{election}/resume",
    params(("election" = String, Path)),
    request_body = ResumeCall,
    responses(Withheld, Effect, Refusal)
)]
pub(super) async fn resume(
    _: MayChange,
    State(asked): State<Arc<Asked>>,
    Path(election): Path<String>,
    request: Request,
) -> Result<Response, Unusable> {
    let election = known(&asked, &election)?;
    let ResumeCall { timeout_s } = body(request).await?;
    let call = Call::new(&asked, election, None, timeout_s)?;
    Ok(call.answer(&Steered::Resume).await)
}

/// Has a certain node lead; if it does not take the lease soon, whoever did before may go on.
#[utoipa::path(
    post,
    path = "/v1/elections/{election}/transfer",
    params(("election" = String, Path)),
    request_body = TransferCall,
    responses(Withheld, Effect, Refusal)
)]
pub(super) async fn transfer(
    _: MayChange,
    State(asked): State<Arc<Asked>>,
    Path(election): Path<String>,
    request: Request,
) -> Result<Response, Unusable> {
    let election = known(&asked, &election)?;
    let TransferCall { to, reason, timeout_s } = body(request).await?;
    let call = Call::new(&asked, election, reason, timeout_s)?;
    Ok(call.answer(&Steered::Transfer(to)).await)
}

/// Makes an earlier version of the module the current one.
#[utoipa::path(
    post,
    path = "/v1/elections/{election}/rollback",
    params(("election" = String, Path)),
    request_body = RollbackCall,
    responses(
        Withheld,
        (status = 200, body = CameOf),
        (status = 409, body = CameOf, description = "there is no such version"),
        Refusal
    )
)]
pub(super) async fn roll_back(
    _: MayChange,
    State(asked): State<Arc<Asked>>,
    Path(election): Path<String>,
    request: Request,
) -> Result<Response, Unusable> {
    let name = known(&asked, &election)?;
    let RollbackCall { digest, reason } = body(request).await?;
    let digest = digest.as_deref().map(str::parse::<DigestPrefix>).transpose();
    let digest = digest.map_err(|error| Unusable::because(format!("digest: {error}")))?;
    let call = Call::new(&asked, name, reason, None)?;
    match rollback::roll_back(&*asked.store, &call.election, digest.as_ref()).await {
        Ok(rolled_back) => {
            if let Ok(standing) = asked.watched.standing(call.election.as_str()) {
                standing.tidings.look();
            }
            let told = rollback::told(&rolled_back, &call.election);
            asked
                .watched
                .says(&call.election, Event::RolledBack { by: call.by, reason: call.reason, result: told.clone() });
            Ok(steered(StatusCode::OK, true, told))
        }
        Err(error) if error.is::<RollbackError>() => Ok(steered(StatusCode::CONFLICT, false, format!("{error:#}"))),
        Err(error) => Ok(steered(StatusCode::SERVICE_UNAVAILABLE, false, format!("{error:#}"))),
    }
}

/// One call, checked.
struct Call<'a> {
    asked: &'a Asked,
    election: ElectionName,
    by: String,
    reason: Option<String>,
    patience: Duration,
}

impl<'a> Call<'a> {
    fn new(
        asked: &'a Asked,
        election: ElectionName,
        reason: Option<String>,
        timeout_s: Option<u64>,
    ) -> Result<Self, Unusable> {
        if let Some(reason) = &reason {
            check_reason(reason).map_err(|why| Unusable::because(format!("reason: {why}")))?;
        }
        let patience = timeout_s.unwrap_or(PATIENCE);
        if patience > LONGEST_PATIENCE {
            let why = format!("timeout_s is {LONGEST_PATIENCE} at the most: a connection lasts no longer");
            return Err(Unusable::because(why));
        }
        let by = format!("the endpoint of {}", asked.watched.node);
        Ok(Self { asked, election, by, reason, patience: Duration::from_secs(patience) })
    }

    async fn answer(self, what: &Steered) -> Response {
        let Ok(_place) = self.asked.changes.try_acquire() else {
            let told = format!("{AT_ONCE} calls are waited for: try again\n");
            return steered(StatusCode::SERVICE_UNAVAILABLE, false, told);
        };
        let Self { asked, election, by, reason, patience } = self;
        let standing = asked.watched.standing(election.as_str()).ok();
        let called = standing.map_or(Called::Nobody, |standing| Called::Node(&standing.tidings));
        let operator = Operator { store: &*asked.store, election: &election, by, reason, patience, called };
        match operator.steer(what).await {
            Ok(told) => steered(StatusCode::OK, true, told),
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

fn steered(status: StatusCode, done: bool, told: String) -> Response {
    (status, Json(CameOf { done, result: told.trim_end().to_owned() })).into_response()
}

/// The election, if this node takes part in it.
fn known(asked: &Asked, election: &str) -> Result<ElectionName, Unusable> {
    let standing = asked.watched.standing(election);
    standing.map(|standing| standing.election.clone()).map_err(|NoPart(why)| Unusable(StatusCode::NOT_FOUND, why))
}

/// What the body says; none is as good as an empty object.
async fn body<T: DeserializeOwned>(request: Request) -> Result<T, Unusable> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    // A page of another site could send other kinds without asking first.
    if !kind.eq_ignore_ascii_case("application/json") {
        let why = "send JSON, and say so: Content-Type: application/json".to_owned();
        return Err(Unusable(StatusCode::UNSUPPORTED_MEDIA_TYPE, why));
    }
    let bytes = match timeout(BODY, to_bytes(request.into_body(), LONGEST)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let why = format!("the body is cut off, or has more than {LONGEST} bytes");
            return Err(Unusable(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        Err(_) => {
            return Err(Unusable(StatusCode::REQUEST_TIMEOUT, format!("the body has not come within {BODY:?}")));
        }
    };
    let json = if bytes.is_empty() { "{}".into() } else { bytes };
    // Serde would take a list for the values of an object's keys, in their order.
    if !json.trim_ascii_start().starts_with(b"{") {
        return Err(Unusable::because("the body: it is no JSON object"));
    }
    serde_json::from_slice(&json).map_err(|error| Unusable::because(format!("the body: {error}")))
}
