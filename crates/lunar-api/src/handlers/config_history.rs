//! `/v1/config/history`: the applied trees that the server keeps, and the return to one of them.

use super::body::{KeysBody, object};
use super::condition::optional_version;
use super::objects::{ChangeReport, etag};
use super::{ApiState, unexpected};
use crate::problem::Problem;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response as HttpResponse};
use lunar_admin::{HistoryEntry, HistoryTree, Request, Response, RollbackRequest, ServerControl};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The applied trees that the server keeps.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct HistoryList {
    /// The entries, the newest first.
    pub items: Vec<HistoryEntry>,
}

/// Options of a rollback.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RollbackOptions {
    /// Report the effects without changing anything.
    pub dry_run: bool,
    /// Remove objects that hosts use.
    pub force: bool,
    /// Seconds after which the unconfirmed rollback is undone; null: never.
    #[schema(minimum = 1, maximum = 86400)]
    pub confirm_within_s: Option<u64>,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show)).routes(routes!(roll_back))
}

/// The number of an entry.
fn number(text: &str) -> Result<u64, Box<Problem>> {
    let what = || format!("the entry {} of the history", text.escape_debug());
    text.parse().map_err(|_| Problem::not_found(what(), "lunar history shows the entries"))
}

/// Reads the history, which may wait for a disk.
async fn read<T: Send + 'static>(
    api: &ApiState,
    read: impl FnOnce(Arc<dyn ServerControl>) -> T + Send + 'static,
) -> Result<T, Box<Problem>> {
    let Ok(permit) = api.waiting.clone().try_acquire_owned() else { return Err(super::busy()) };
    let control = api.control.clone();
    let read = move || {
        let result = read(control);
        drop(permit);
        result
    };
    tokio::task::spawn_blocking(read).await.map_err(|_| unexpected())
}

/// Lists the last applied trees of the configuration.
#[utoipa::path(get, path = "/v1/config/history", operation_id = "list history",
    responses((status = 200, body = HistoryList), (status = 503, body = Problem)))]
async fn list(State(api): State<ApiState>) -> Result<HttpResponse, Box<Problem>> {
    // Before the list, so that the version is not newer than the list.
    let version = api.control.config().version.clone();
    let items = read(&api, |control| control.config_history()).await?;
    Ok((etag(&version), Json(HistoryList { items })).into_response())
}

/// Shows an applied tree of the configuration.
#[utoipa::path(get, path = "/v1/config/history/{number}", operation_id = "show history",
    params(("number" = u64, Path, description = "Number of the entry")),
    responses((status = 200, body = HistoryTree), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 503, body = Problem)))]
async fn show(
    State(api): State<ApiState>,
    Path(text): Path<String>,
) -> Result<Json<HistoryTree>, Box<Problem>> {
    let number = number(&text)?;
    let tree = read(&api, move |control| control.config_tree(number)).await?;
    tree.map(Json).map_err(Box::from)
}

/// Returns to an applied tree: changes the files of the API, and applies them. Files of administrators stay.
#[utoipa::path(post, path = "/v1/config/history/{number}/rollback", operation_id = "roll back to history",
    params(("number" = u64, Path, description = "Number of the entry"),
        ("If-Match" = Option<String>, Header, description = "Entity tags, or *",
        pattern = r#"^(\*|(W/)?"[!#-~]*"(, ?(W/)?"[!#-~]*")*)$"#)),
    request_body = RollbackOptions,
    responses((status = 200, body = ChangeReport), (status = 400, body = Problem), (status = 404, body = Problem),
        (status = 409, body = Problem), (status = 412, body = Problem), (status = 415, body = Problem),
        (status = 422, body = Problem), (status = 503, body = Problem)))]
async fn roll_back(
    State(api): State<ApiState>,
    Path(text): Path<String>,
    headers: HeaderMap,
    body: KeysBody,
) -> Result<HttpResponse, Box<Problem>> {
    let to = number(&text)?;
    let RollbackOptions { dry_run, force, confirm_within_s } = object(body)?;
    super::config::check_time(confirm_within_s)?;
    let version = optional_version(&headers, &api.control.config().version)?;
    let request = RollbackRequest { to, version, dry_run, force, confirm_within_s };
    match api.ask(Request::RollBackTo(request)).await? {
        Response::Changed { version, changes, warnings } => {
            let report = ChangeReport { version: version.clone(), changes, warnings, dry_run };
            Ok((StatusCode::OK, etag(&version), Json(report)).into_response())
        }
        _ => Err(unexpected()),
    }
}
