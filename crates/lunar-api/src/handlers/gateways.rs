//! `/v1/gateways`: the group of this server, and `/v1/shared-units`: the logical units that it shares.

use super::ApiState;
use super::sessions::Outcome;
use crate::problem::Problem;
use axum::Json;
use axum::extract::{Path, Query, State};
use lunar_admin::gateway::{GatewayAction, GatewayChange};
use lunar_admin::{GatewayReport, SharedUnitReport};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// All gateways.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct GatewayList {
    /// The members of the group of this server, by number; none without `[gateway]`.
    pub items: Vec<GatewayReport>,
}

/// All shared logical units.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SharedUnitList {
    /// The logical units that this server shares, by image.
    pub items: Vec<SharedUnitReport>,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(drain))
        .routes(routes!(resume))
        .routes(routes!(activate))
        .routes(routes!(list_units))
        .routes(routes!(show_unit))
}

/// Lists the gateways of the group of this server.
#[utoipa::path(get, path = "/v1/gateways", operation_id = "list gateways", responses((status = 200, body = GatewayList)))]
async fn list(State(api): State<ApiState>) -> Json<GatewayList> {
    Json(GatewayList { items: api.control.group().gateways })
}

/// Shows a gateway.
#[utoipa::path(get, path = "/v1/gateways/{id}", operation_id = "show gateway",
    params(("id" = u8, Path, description = "Number of the gateway in its group")),
    responses((status = 200, body = GatewayReport), (status = 404, body = Problem)))]
async fn show(
    State(api): State<ApiState>,
    Path(id): Path<String>,
) -> Result<Json<GatewayReport>, Box<Problem>> {
    let found = api.control.group().gateways.into_iter().find(|gateway| gateway.id.to_string() == id);
    found.map(Json).ok_or_else(|| no_gateway(&id))
}

/// Lets the hosts of a gateway use other gateways: its paths are on standby. It stays so until it is resumed.
#[utoipa::path(post, path = "/v1/gateways/{id}/drain", operation_id = "drain gateway",
    params(("id" = u8, Path, description = "Number of the gateway in its group")),
    responses((status = 200, body = Outcome), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 503, body = Problem)))]
async fn drain(State(api): State<ApiState>, Path(id): Path<String>) -> Result<Json<Outcome>, Box<Problem>> {
    change(&api, &id, GatewayAction::Drain, None).await
}

/// Lets hosts use a gateway again.
#[utoipa::path(post, path = "/v1/gateways/{id}/resume", operation_id = "resume gateway",
    params(("id" = u8, Path, description = "Number of the gateway in its group")),
    responses((status = 200, body = Outcome), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 503, body = Problem)))]
async fn resume(State(api): State<ApiState>, Path(id): Path<String>) -> Result<Json<Outcome>, Box<Problem>> {
    change(&api, &id, GatewayAction::Resume, None).await
}

/// Lets a gateway serve the images that one gateway at a time serves.
#[utoipa::path(post, path = "/v1/gateways/{id}/activate", operation_id = "activate gateway",
    params(("id" = u8, Path, description = "Number of the gateway in its group"), ChosenImage),
    responses((status = 200, body = Outcome), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 503, body = Problem)))]
async fn activate(
    State(api): State<ApiState>,
    Path(id): Path<String>,
    Query(ChosenImage { image }): Query<ChosenImage>,
) -> Result<Json<Outcome>, Box<Problem>> {
    change(&api, &id, GatewayAction::Activate, image).await
}

/// The images of a change.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ChosenImage {
    /// One image, POOL/[NAMESPACE/]IMAGE, instead of all.
    image: Option<String>,
}

async fn change(
    api: &ApiState,
    id: &str,
    action: GatewayAction,
    image: Option<String>,
) -> Result<Json<Outcome>, Box<Problem>> {
    let Ok(id) = id.parse() else { return Err(no_gateway(id)) };
    let change = GatewayChange { id, action, image };
    let result = api.blocking(move |control| control.change_gateway(change)).await?;
    result.map(|result| Json(Outcome { result })).map_err(Box::<Problem>::from)
}

fn no_gateway(id: &str) -> Box<Problem> {
    Problem::not_found(format!("gateway {}", id.escape_debug()), "lunar gateway list shows the gateways")
}

/// Lists the logical units that this server shares with other gateways.
#[utoipa::path(get, path = "/v1/shared-units", operation_id = "list shared units",
    responses((status = 200, body = SharedUnitList)))]
async fn list_units(State(api): State<ApiState>) -> Json<SharedUnitList> {
    Json(SharedUnitList { items: api.control.group().units })
}

/// Shows a shared logical unit.
#[utoipa::path(get, path = "/v1/shared-units/{image}", operation_id = "show shared unit",
    params(("image" = String, Path, description = "The image: POOL/[NAMESPACE/]IMAGE")),
    responses((status = 200, body = SharedUnitReport), (status = 404, body = Problem)))]
async fn show_unit(
    State(api): State<ApiState>,
    Path(image): Path<String>,
) -> Result<Json<SharedUnitReport>, Box<Problem>> {
    let found = api.control.group().units.into_iter().find(|unit| unit.has_image(&image));
    let what = || format!("shared image {}", image.escape_debug());
    found.map(Json).ok_or_else(|| Problem::not_found(what(), "lunar gateway show shows the shared images"))
}
