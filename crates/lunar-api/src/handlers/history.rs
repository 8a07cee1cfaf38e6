//! `/v1/history/rates`: the rates of the past hour, and their sampler.

use super::ApiState;
use crate::problem::Problem;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use lunar_admin::ServerControl;
use lunar_admin::history::{RateSample, SAMPLE};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;
use tokio::time::{MissedTickBehavior, interval};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The samples of the past hour.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RateList {
    /// Seconds from one sample to the next.
    pub interval_s: u64,
    /// The samples, the oldest first.
    pub items: Vec<RateSample>,
}

/// The position of a reader.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
struct RateQuery {
    /// Only samples after this number.
    since: u64,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(rates))
}

/// Lists the rates of the past hour.
#[utoipa::path(get, path = "/v1/history/rates", params(RateQuery),
    responses((status = 200, body = RateList), (status = 400, body = Problem)))]
async fn rates(
    State(api): State<ApiState>,
    query: Result<Query<RateQuery>, QueryRejection>,
) -> Result<Json<RateList>, Box<Problem>> {
    let invalid = |why: &str| {
        let what = format!("the query is invalid: {}", lunar_config::plain(why));
        Problem::new(StatusCode::BAD_REQUEST, what, "send the number of a sample as `since`")
    };
    let Query(RateQuery { since }) = query.map_err(|e| invalid(&e.body_text()))?;
    // The format int64 of OpenAPI ends there.
    if i64::try_from(since).is_err() {
        return Err(invalid("`since` is larger than 2^63 - 1"));
    }
    Ok(Json(RateList { interval_s: SAMPLE.as_secs(), items: api.control.history().after(since) }))
}

/// Records samples until it is dropped.
pub(crate) async fn sample(control: Arc<dyn ServerControl>) {
    let mut ticks = interval(SAMPLE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        control.history().record(Instant::now(), control.traffic());
    }
}
