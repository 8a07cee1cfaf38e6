//! Bodies of requests.

use crate::problem::Problem;
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use lunar_admin::Keys;
use serde::de::DeserializeOwned;

/// A body that must be a JSON object.
pub type KeysBody = Result<Json<Keys>, JsonRejection>;

/// The keys of a body.
pub fn keys(body: KeysBody) -> Result<Keys, Box<Problem>> {
    body.map(|Json(keys)| keys).map_err(|e| invalid(e.status(), &e.body_text()))
}

/// The value of a body. It is read by its keys, because a structure could be read from a list too.
pub fn object<T: DeserializeOwned>(body: KeysBody) -> Result<T, Box<Problem>> {
    let value = serde_json::from_value(keys(body)?.into());
    value.map_err(|e| invalid(StatusCode::UNPROCESSABLE_ENTITY, &e.to_string()))
}

fn invalid(status: StatusCode, why: &str) -> Box<Problem> {
    let hint = "GET /v1/openapi.json describes the bodies of requests";
    Problem::new(status, format!("the body is invalid: {}", lunar_config::plain(why)), hint)
}
