//! `/v1/config`: the configuration as a whole.

use super::body::{KeysBody, object};
use super::sessions::{Outcome, outcome};
use super::{ApiState, unexpected};
use crate::handlers::objects::ChangeReport;
use crate::problem::Problem;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use lunar_admin::{ApplyOptions, Difference, HistoryPoint, InvalidHistoryPoint, Request, Response};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// A configuration to compare with the one in force.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct DiffRequest {
    /// The absolute path of the file; by default the file that the server was started with.
    #[param(pattern = "^/")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// A number or a time (RFC 3339, UTC) of the history instead of a file: the changes since that tree are reported.
    #[param(pattern = r"^([0-9]{1,18}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)$")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// A configuration to apply.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// The absolute path of the file; null: the file that the server was started with.
    #[serde(default)]
    #[schema(pattern = "^/")]
    pub file: Option<String>,
    /// Seconds after which an unconfirmed configuration is rolled back; null: never.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86400)]
    pub confirm_within_s: Option<u64>,
    /// Remove targets and LUNs that hosts use, or show another disk in their place.
    #[serde(default)]
    pub force: bool,
    /// Report the effects without changing anything.
    #[serde(default)]
    pub dry_run: bool,
}

/// Differences between two configurations.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DifferenceList {
    /// The differences.
    pub items: Vec<Difference>,
}

/// The configuration in force.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ConfigText {
    /// Its version; null for files that no server has read.
    pub version: Option<String>,
    /// The first of its files; null without a file.
    pub file: Option<String>,
    /// All objects in one TOML text, each after a comment with its file and line. It has no secrets, only the names of
    /// their files.
    pub toml: String,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(show))
        .routes(routes!(diff))
        .routes(routes!(apply))
        .routes(routes!(confirm))
        .routes(routes!(rollback))
}

/// The file of a request, whose path must be absolute: the server has a working folder of its own.
fn path(file: Option<String>) -> Result<Option<PathBuf>, Box<Problem>> {
    let file = file.map(PathBuf::from);
    if let Some(relative) = file.as_ref().filter(|file| !file.is_absolute()) {
        let what = format!("the path {:?} is not absolute", relative.display().to_string());
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, what, "write a path that begins with /"));
    }
    Ok(file)
}

/// Shows the configuration in force as one text.
#[utoipa::path(get, path = "/v1/config", operation_id = "show config",
    responses((status = 200, body = ConfigText), (status = 503, body = Problem)))]
async fn show(State(api): State<ApiState>) -> Result<Json<ConfigText>, Box<Problem>> {
    let file = api.control.config().file.as_ref().map(|file| file.display().to_string());
    match api.ask(Request::ShowConfig).await? {
        Response::Config { version, text } => {
            Ok(Json(ConfigText { version: Some(version), file, toml: text }))
        }
        _ => Err(unexpected()),
    }
}

/// The point of the history in a request.
fn point(since: &str) -> Result<HistoryPoint, Box<Problem>> {
    since.parse().map_err(|e: InvalidHistoryPoint| {
        let what = format!("`since` is no entry of the history: {since:?}");
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, what, e.to_string())
    })
}

/// Checks the time of a trial.
pub(super) fn check_time(confirm_within_s: Option<u64>) -> Result<(), Box<Problem>> {
    match confirm_within_s {
        Some(s @ (0 | 86401..)) => {
            let what = format!("`confirm_within_s` is out of range: {s}");
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, what, "use 1 to 86400"))
        }
        _ => Ok(()),
    }
}

/// Compares a configuration file, or a tree of the history, with the configuration in force.
#[utoipa::path(get, path = "/v1/config/diff", params(DiffRequest),
    responses((status = 200, body = DifferenceList), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 422, body = Problem), (status = 503, body = Problem)))]
async fn diff(
    State(api): State<ApiState>,
    Query(request): Query<DiffRequest>,
) -> Result<Json<DifferenceList>, Box<Problem>> {
    let file = path(request.file)?;
    if file.is_some() {
        // The faults of a file show parts of it.
        crate::caller::check_write()?;
    }
    let request = match request.since {
        Some(_) if file.is_some() => {
            let what = "the request has both `file` and `since`";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, what, "send one of them"));
        }
        Some(since) => Request::DiffSince(point(&since)?),
        None => Request::Diff { file },
    };
    match api.ask(request).await? {
        Response::Differences(items) => Ok(Json(DifferenceList { items })),
        _ => Err(unexpected()),
    }
}

/// Applies a configuration file. Without `file`, it reads the server's own files again.
#[utoipa::path(post, path = "/v1/config/apply", request_body = ApplyRequest,
    responses((status = 200, body = ChangeReport), (status = 400, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem), (status = 415, body = Problem), (status = 422, body = Problem),
        (status = 503, body = Problem)))]
async fn apply(State(api): State<ApiState>, request: KeysBody) -> Result<Json<ChangeReport>, Box<Problem>> {
    let ApplyRequest { file, confirm_within_s, force, dry_run } = object(request)?;
    check_time(confirm_within_s)?;
    let options = ApplyOptions { file: path(file)?, confirm_within_s, force, dry_run };
    match api.ask(Request::Apply(options)).await? {
        Response::Changed { version, changes, warnings } => {
            Ok(Json(ChangeReport { version, changes, warnings, dry_run }))
        }
        _ => Err(unexpected()),
    }
}

/// Keeps the configuration on trial.
#[utoipa::path(post, path = "/v1/config/confirm",
    responses((status = 200, body = Outcome), (status = 409, body = Problem), (status = 503, body = Problem)))]
async fn confirm(State(api): State<ApiState>) -> Result<Json<Outcome>, Box<Problem>> {
    outcome(api.ask(Request::Confirm).await?)
}

/// Rolls back the configuration on trial.
#[utoipa::path(post, path = "/v1/config/rollback",
    responses((status = 200, body = Outcome), (status = 409, body = Problem), (status = 503, body = Problem)))]
async fn rollback(State(api): State<ApiState>) -> Result<Json<Outcome>, Box<Problem>> {
    outcome(api.ask(Request::Rollback).await?)
}
