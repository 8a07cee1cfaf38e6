//! Errors of the extractors of axum, in the form of all other errors.

use crate::problem::Problem;
use axum::body::to_bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};

/// Maximum length of the text of an error.
const MAX_TEXT_BYTES: usize = 4096;

/// Makes a [`Problem`] of an error in plain text, such as that of an invalid query.
pub async fn as_problem(response: Response) -> Response {
    let status = response.status();
    let is_text = |value: &header::HeaderValue| value.as_bytes().starts_with(b"text/plain");
    let has_text = response.headers().get(header::CONTENT_TYPE).is_some_and(is_text);
    if !(status.is_client_error() || status.is_server_error()) || !has_text {
        return response;
    }
    let text = to_bytes(response.into_body(), MAX_TEXT_BYTES).await.unwrap_or_default();
    let text = lunar_config::plain(&String::from_utf8_lossy(&text));
    Problem::new(status, text, "GET /v1/openapi.json describes the requests").into_response()
}
