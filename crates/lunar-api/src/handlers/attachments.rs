//! `/v1/attachments`: the disks that this host attached.

use super::ApiState;
use super::sessions::{Outcome, outcome};
use crate::problem::Problem;
use axum::Json;
use axum::extract::{Path, Query, State};
use lunar_admin::{AttachmentReport, DetachRequest, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// All attachments.
#[derive(Debug, Serialize, ToSchema)]
pub struct AttachmentList {
    /// The attachments, by name.
    pub items: Vec<AttachmentReport>,
}

/// How to end an attachment.
#[derive(Debug, Default, Deserialize, IntoParams)]
struct DetachOptions {
    /// Ends the attachment even if it is in use. I/O that waits for an unreachable target fails.
    #[serde(default)]
    force: bool,
}

/// The hint of a method that would attach a disk.
pub const CREATE_HINT: &str = "run lunar attach on the host, as root for a block device: the server has no right to make \
    devices";

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(show, detach))
}

/// Lists the attachments of the host that the user of the server can see.
#[utoipa::path(get, path = "/v1/attachments", responses((status = 200, body = AttachmentList), (status = 503, body = Problem)))]
async fn list(State(api): State<ApiState>) -> Result<Json<AttachmentList>, Box<Problem>> {
    Ok(Json(AttachmentList { items: attachments(&api, None).await? }))
}

/// Shows an attachment.
#[utoipa::path(get, path = "/v1/attachments/{name}", params(("name" = String, Path, description = "Name of the attachment")),
    responses((status = 200, body = AttachmentReport), (status = 404, body = Problem), (status = 503, body = Problem)))]
async fn show(
    State(api): State<ApiState>,
    Path(name): Path<String>,
) -> Result<Json<AttachmentReport>, Box<Problem>> {
    let found = attachments(&api, Some(name.clone())).await?.into_iter().next();
    found.map(Json).ok_or_else(|| {
        let what = format!("attachment {}", name.escape_debug());
        Problem::not_found(what, "lunar attach list shows the attachments")
    })
}

/// Detaches a disk: flushes it, and ends its process.
#[utoipa::path(delete, path = "/v1/attachments/{name}",
    params(("name" = String, Path, description = "Name of the attachment"), DetachOptions),
    responses((status = 200, body = Outcome), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 503, body = Problem)))]
async fn detach(
    State(api): State<ApiState>,
    Path(name): Path<String>,
    Query(DetachOptions { force }): Query<DetachOptions>,
) -> Result<Json<Outcome>, Box<Problem>> {
    let asker = crate::caller::name();
    let request = DetachRequest { name, force };
    match api.blocking(move |control| control.detach(&request, &asker)).await? {
        Response::Failed(error) => Err(error.into()),
        response => outcome(response),
    }
}

async fn attachments(api: &ApiState, name: Option<String>) -> Result<Vec<AttachmentReport>, Box<Problem>> {
    let all = api.blocking(move |control| control.attachments(name.as_deref())).await?;
    all.map_err(Into::into)
}
