//! `/v1/sessions`: the sessions of hosts.

use super::{ApiState, unexpected};
use crate::problem::Problem;
use axum::Json;
use axum::extract::{Path, State};
use lunar_admin::{Request, Response, SessionReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// All sessions.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// The sessions, by TSIH.
    pub items: Vec<SessionReport>,
}

/// The result of a request that changes no configuration.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Outcome {
    /// The result in words.
    pub result: String,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show, end))
}

/// Lists the sessions.
#[utoipa::path(get, path = "/v1/sessions", responses((status = 200, body = SessionList)))]
async fn list(State(api): State<ApiState>) -> Json<SessionList> {
    Json(SessionList { items: api.control.sessions() })
}

/// Shows a session.
#[utoipa::path(get, path = "/v1/sessions/{tsih}", params(("tsih" = u16, Path, description = "Session identifying handle")),
    responses((status = 200, body = SessionReport), (status = 404, body = Problem)))]
async fn show(
    State(api): State<ApiState>,
    Path(tsih): Path<String>,
) -> Result<Json<SessionReport>, Box<Problem>> {
    let found = api.control.sessions().into_iter().find(|session| session.tsih.to_string() == tsih);
    found.map(Json).ok_or_else(|| absent(&tsih))
}

/// Ends a session: the server asks the host to log out, and then closes the connection.
#[utoipa::path(delete, path = "/v1/sessions/{tsih}", params(("tsih" = u16, Path, description = "Session identifying handle")),
    responses((status = 200, body = Outcome), (status = 404, body = Problem), (status = 503, body = Problem)))]
async fn end(State(api): State<ApiState>, Path(tsih): Path<String>) -> Result<Json<Outcome>, Box<Problem>> {
    let tsih = tsih.parse().map_err(|_| absent(&tsih))?;
    outcome(api.ask(Request::EndSession { tsih }).await?)
}

/// The result of a request that changes no configuration.
pub(super) fn outcome(response: Response) -> Result<Json<Outcome>, Box<Problem>> {
    match response {
        Response::Done(result) => Ok(Json(Outcome { result })),
        _ => Err(unexpected()),
    }
}

fn absent(tsih: &str) -> Box<Problem> {
    Problem::not_found(format!("session {}", tsih.escape_debug()), "lunar session list shows the sessions")
}
