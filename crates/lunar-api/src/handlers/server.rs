//! `/v1/server`: the process.

use super::sessions::outcome;
use super::{ApiState, busy, unexpected};
use crate::problem::{Problem, ProblemDetail};
use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response as HttpResponse};
use lunar_admin::{Request, rows};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// A running server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerReport {
    /// The version of Lunar.
    pub version: String,
    /// Its process.
    pub process: u32,
    /// Whether it shuts down.
    #[serde(default)]
    pub stopping: bool,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// The file that it was started with; null without a file.
    pub config_file: Option<String>,
    /// The version of its configuration.
    pub config_version: String,
    /// When the configuration on trial is rolled back (RFC 3339); null if none is on trial.
    pub confirm_by: Option<String>,
    /// Targets that it serves, with those of routers.
    pub targets: usize,
    /// LUNs of these targets.
    pub luns: usize,
    /// NVMe subsystems that it serves.
    #[serde(default)]
    pub subsystems: usize,
    /// Namespaces of these subsystems.
    #[serde(default)]
    pub namespaces: usize,
    /// Sessions.
    pub sessions: usize,
    /// Faults of the configuration that do not prevent its use, and missing media.
    #[serde(default)]
    pub warnings: Vec<String>,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(show)).routes(routes!(stop))
}

/// Shows the server.
#[utoipa::path(get, path = "/v1/server", responses((status = 200, body = ServerReport)))]
async fn show(State(api): State<ApiState>) -> Json<ServerReport> {
    let config = api.control.config();
    Json(ServerReport {
        version: env!("CARGO_PKG_VERSION").into(),
        process: std::process::id(),
        stopping: config.stopping,
        uptime_s: api.started_at.elapsed().as_secs(),
        config_file: config.file.as_ref().map(|file| file.display().to_string()),
        config_version: config.version.clone(),
        confirm_by: config.confirm_by.map(rows::utc),
        targets: config.targets,
        luns: config.luns,
        subsystems: config.subsystems,
        namespaces: config.namespaces,
        sessions: api.control.sessions().len(),
        warnings: api.control.warnings(),
    })
}

/// Options of a stop.
#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct StopOptions {
    /// Respond when the server has ended, with its result.
    wait: bool,
}

/// The result of a stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopReport {
    /// The result in words.
    pub result: String,
    /// The data that are lost; empty if none are, or without `wait`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<ProblemDetail>,
}

/// Stops the server: it finishes commands, asks hosts to log out, and flushes every medium.
#[utoipa::path(post, path = "/v1/server/stop", params(StopOptions),
    responses((status = 200, body = StopReport), (status = 503, body = Problem)))]
async fn stop(
    State(api): State<ApiState>,
    Query(StopOptions { wait }): Query<StopOptions>,
) -> Result<HttpResponse, Box<Problem>> {
    let Ok(permit) = api.waiting.clone().try_acquire_owned() else { return Err(busy()) };
    // Before the request, so that the server does not end without it.
    let waiter = Arc::new(api.control.end().waiter());
    match api.ask(Request::Stop).await {
        // A server that shuts down already takes no requests.
        Err(problem) if !wait || !api.control.config().stopping => return Err(problem),
        Ok(response) if !wait => {
            let result = outcome(response)?.0.result;
            return Ok(Json(StopReport { result, problems: Vec::new() }).into_response());
        }
        _ => {}
    }
    let waits = waiter.clone();
    let ended = move || {
        let problems = waits.problems();
        drop(permit);
        problems
    };
    let problems = tokio::task::spawn_blocking(ended).await.map_err(|_| unexpected())?;
    let result =
        if problems.is_empty() { "the server has ended" } else { "the server has ended, and data is lost" };
    let report =
        StopReport { result: result.into(), problems: problems.iter().map(ProblemDetail::from).collect() };
    let mut response = Json(report).into_response();
    // The server ends when the response is written.
    response.extensions_mut().insert(waiter);
    Ok(response)
}
