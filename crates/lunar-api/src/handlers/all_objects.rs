//! `/v1/objects`: all objects of the configuration at once.

use super::ApiState;
use super::objects::{ObjectViews, etag};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// All objects of the configuration.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AllObjects {
    /// The objects in the form of their own resources. `kind` is the array of tables of `lunar.toml`: `portal_group`,
    /// `chap_user`, `disk`, `target`, `lun`, `access`, `subsystem`, `namespace` or `host`.
    #[schema(value_type = Vec<Object>)]
    pub items: Vec<Value>,
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Lists all objects of the configuration.
#[utoipa::path(get, path = "/v1/objects", operation_id = "list objects", responses((status = 200, body = AllObjects)))]
async fn list(State(api): State<ApiState>) -> Response {
    let view = ObjectViews::of(&api);
    let config = view.config();
    let one = |(id, object): (&lunar_admin::ObjectId, &lunar_admin::ConfigObject)| {
        let mut value = view.json(id, object);
        value["kind"] = id.array().into();
        value
    };
    let items = config.objects.iter().map(one).collect();
    (etag(&config.version), Json(AllObjects { items })).into_response()
}
