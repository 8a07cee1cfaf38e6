//! `/v1/metrics`: what the server counts.

use super::ApiState;
use axum::Json;
use axum::extract::State;
use lunar_admin::metrics::MetricsReport;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(show))
}

/// Shows the counters of the server. `/metrics` has them as text for Prometheus.
#[utoipa::path(get, path = "/v1/metrics", responses((status = 200, body = MetricsReport)))]
async fn show(State(api): State<ApiState>) -> Json<MetricsReport> {
    Json(api.control.metrics())
}
