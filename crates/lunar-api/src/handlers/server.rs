//! `/v1/server`: the process.

use super::ApiState;
use super::sessions::{Outcome, outcome};
use crate::problem::Problem;
use axum::Json;
use axum::extract::State;
use lunar_admin::{Request, rows};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// A running server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerReport {
    /// The version of Lunar.
    pub version: String,
    /// Its process.
    pub process: u32,
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
        uptime_s: api.started_at.elapsed().as_secs(),
        config_file: config.file.as_ref().map(|file| file.display().to_string()),
        config_version: config.version.clone(),
        confirm_by: config.confirm_by.map(rows::utc),
        targets: config.targets,
        luns: config.luns,
        sessions: api.control.sessions().len(),
        warnings: api.control.warnings(),
    })
}

/// Stops the server: it finishes commands, asks hosts to log out, and flushes every medium.
#[utoipa::path(post, path = "/v1/server/stop", responses((status = 200, body = Outcome), (status = 503, body = Problem)))]
async fn stop(State(api): State<ApiState>) -> Result<Json<Outcome>, Box<Problem>> {
    outcome(api.ask(Request::Stop).await?)
}
