//! `/v1/routers`: the SCSI routing instances.

use super::sessions::{Outcome, outcome};
use super::{ApiState, unexpected};
use crate::problem::Problem;
use axum::Json;
use axum::extract::{Path, State};
use lunar_admin::{Request, Response, RouterAction, RouterReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// All routers.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RouterList {
    /// The routers, in the order of the configuration.
    pub items: Vec<RouterReport>,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)).routes(routes!(control))
}

async fn routers(api: &ApiState) -> Result<Vec<RouterReport>, Box<Problem>> {
    match api.ask(Request::Routers).await? {
        Response::Routers(routers) => Ok(routers),
        _ => Err(unexpected()),
    }
}

/// Lists the routers.
#[utoipa::path(get, path = "/v1/routers", responses((status = 200, body = RouterList), (status = 503, body = Problem)))]
async fn list(State(api): State<ApiState>) -> Result<Json<RouterList>, Box<Problem>> {
    Ok(Json(RouterList { items: routers(&api).await? }))
}

/// Shows a router.
#[utoipa::path(get, path = "/v1/routers/{name}", params(("name" = String, Path, description = "Name of the router")),
    responses((status = 200, body = RouterReport), (status = 404, body = Problem), (status = 503, body = Problem)))]
async fn show(
    State(api): State<ApiState>,
    Path(name): Path<String>,
) -> Result<Json<RouterReport>, Box<Problem>> {
    let found = routers(&api).await?.into_iter().find(|router| router.name == name);
    let absent = || {
        Problem::not_found(format!("router {}", name.escape_debug()), "lunar router list shows the routers")
    };
    found.map(Json).ok_or_else(absent)
}

/// Controls a router.
#[utoipa::path(post, path = "/v1/routers/{name}/{action}",
    params(("name" = String, Path, description = "Name of the router"),
        ("action" = RouterAction, Path, description = "The operation")),
    responses((status = 200, body = Outcome), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 503, body = Problem)))]
async fn control(
    State(api): State<ApiState>,
    Path((name, action)): Path<(String, String)>,
) -> Result<Json<Outcome>, Box<Problem>> {
    let Ok(action) = serde_json::from_value::<RouterAction>(action.clone().into()) else {
        let what = format!("the action {} of a router", action.escape_debug());
        return Err(Problem::not_found(what, "use drain, resume, failover, eligible or ineligible"));
    };
    outcome(api.ask(Request::Router { name, action }).await?)
}
