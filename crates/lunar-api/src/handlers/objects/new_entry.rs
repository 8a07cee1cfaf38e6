//! New access entries, at any place of the list.

use super::*;

/// Options of a new access entry.
#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct NewEntryOptions {
    /// The index of the entry before which the new one is inserted. If absent, the new entry follows the last one.
    #[param(maximum = 1000000)]
    at: Option<usize>,
    /// Report the effects without changing anything.
    dry_run: bool,
    /// Keep the object until the next start of the server only.
    transient: bool,
    /// As for other changes; a new entry needs no force.
    force: bool,
}

/// Adds an access entry to the list of a target: before the entry `at`, or after the last one.
#[utoipa::path(post, path = "/v1/targets/{target}/access", operation_id = "append access entry",
    params(("target" = String, Path, description = "Name of the target"), NewEntryOptions),
    request_body = schema::AccessKeys, responses((status = 200, body = ChangeReport), (status = 201, body = ChangeReport),
    (status = 400, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
    (status = 415, body = Problem), (status = 422, body = Problem),
    (status = 503, body = Problem)))]
async fn add_access(
    State(api): State<ApiState>,
    path: PathValues,
    Query(options): Query<NewEntryOptions>,
    body: KeysBody,
) -> Result<HttpResponse, Box<Problem>> {
    let keys = keys(body)?;
    let target = value(&path, "target").to_owned();
    let NewEntryOptions { at, dry_run, transient, force } = options;
    let options = ChangeOptions { dry_run, transient, force };
    if let Some(at) = at {
        let id = ObjectId::Access(target, at);
        return change(&api, id, ObjectAction::Insert(keys), None, options).await;
    }
    let entries = |id: &&ObjectId| matches!(id, ObjectId::Access(of, _) if *of == target);
    let next = api.control.config().objects.keys().filter(entries).count();
    change(&api, ObjectId::Access(target, next), ObjectAction::Create(keys), None, options).await
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(add_access))
}
