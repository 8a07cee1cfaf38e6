//! `/v1/caller`: the sender of the request.

use super::ApiState;
use crate::caller;
use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The sender of a request, as the server sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallerReport {
    /// Its name in the log.
    pub name: String,
    /// Whether it may change something.
    pub may_write: bool,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(show))
}

/// Shows the sender of this request and its rights.
#[utoipa::path(get, path = "/v1/caller", operation_id = "show caller", responses((status = 200, body = CallerReport)))]
async fn show() -> Json<CallerReport> {
    Json(CallerReport { name: caller::name(), may_write: caller::check_write().is_ok() })
}
