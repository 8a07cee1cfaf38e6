//! The objects of the configuration: targets, LUNs, access entries, disks, CHAP users, portal groups, and NVMe subsystems
//! with their namespaces and hosts.

mod new_entry;

use super::body::{KeysBody, keys, object};
use super::condition::{is_new, required_version};
use super::sessions::{Outcome, outcome};
use super::{ApiState, unexpected};
use crate::problem::Problem;
use crate::schema;
use crate::sizes::in_bytes;
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use lunar_admin::{
    Capacities, ConfigObject, ConfigSnapshot, Difference, ObjectAction, ObjectChange, ObjectId, Request,
    Response, SessionReport, TargetAction,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The result of a change.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ChangeReport {
    /// The version of the configuration after the change.
    pub version: String,
    /// The changes.
    pub changes: Vec<Difference>,
    /// Whether nothing was changed, because the request asked for the effects only.
    pub dry_run: bool,
    /// Effects that the user may not expect: new faults that do not prevent the change, such as an access entry that can never
    /// match, and objects that the configuration leaves out.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Options of a change.
#[derive(Clone, Copy, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(default, deny_unknown_fields)]
pub struct ChangeOptions {
    /// Report the effects without changing anything.
    dry_run: bool,
    /// Keep the object until the next start of the server only.
    transient: bool,
    /// Delete or move an object that hosts use, or replace its medium.
    force: bool,
}

type PathValues = Path<Vec<(String, String)>>;

/// The configuration, and the facts about its objects that change without it.
pub(super) struct ObjectViews<'a> {
    api: &'a ApiState,
    config: Arc<ConfigSnapshot>,
    capacities: Capacities,
    /// The number of controllers by subsystem. Few requests need it.
    controllers: OnceCell<BTreeMap<String, usize>>,
}

impl ObjectViews<'_> {
    pub(super) fn of(api: &ApiState) -> ObjectViews<'_> {
        let (config, capacities) = (api.control.config(), api.control.capacities());
        ObjectViews { api, config, capacities, controllers: OnceCell::new() }
    }

    pub(super) fn config(&self) -> &ConfigSnapshot {
        &self.config
    }

    /// An object as JSON: its identity, the state of a target, the size of a LUN, its keys, and their place.
    pub(super) fn json(&self, id: &ObjectId, object: &ConfigObject) -> Value {
        let mut view = id.keys();
        match id {
            ObjectId::Target(name) => {
                view.insert("state".into(), json!(self.config.target_state(name, object)));
            }
            ObjectId::Subsystem(nqn) => {
                view.insert("state".into(), json!(self.config.subsystem_state(nqn, object)));
                view.insert("controllers".into(), self.controllers(nqn).into());
            }
            ObjectId::Access(_, at) => _ = view.insert("index".into(), (*at).into()),
            ObjectId::Lun(name, number) | ObjectId::Namespace(name, number) => {
                let capacity = self.capacities.get(&(name.clone(), *number)).copied();
                view.insert("capacity_bytes".into(), capacity.into());
            }
            _ => {}
        }
        view.insert("config".into(), Value::Object(in_bytes(object.keys.clone())));
        view.insert("source".into(), json!(object.source));
        Value::Object(view)
    }

    fn controllers(&self, nqn: &str) -> usize {
        let counted = || {
            let mut counts = BTreeMap::new();
            for session in self.api.control.sessions().into_iter().filter(SessionReport::is_controller) {
                *counts.entry(session.target.unwrap_or_default()).or_default() += 1;
            }
            counts
        };
        self.controllers.get_or_init(counted).get(nqn).copied().unwrap_or_default()
    }
}

/// The version of the configuration, as the entity tag of all its objects.
pub(super) fn etag(version: &str) -> [(HeaderName, String); 1] {
    [(header::ETAG, format!("\"{version}\""))]
}

fn list(
    api: &ApiState,
    parent: Option<ObjectId>,
    is: fn(&ObjectId) -> bool,
) -> Result<HttpResponse, Box<Problem>> {
    let view = ObjectViews::of(api);
    let config = view.config();
    if let Some(parent) = parent.as_ref().filter(|parent| !config.objects.contains_key(parent)) {
        return Err(absent(parent));
    }
    let objects = config.objects.iter().filter(|(id, _)| is(id) && id.parent() == parent);
    let items: Vec<Value> = objects.map(|(id, object)| view.json(id, object)).collect();
    Ok((etag(&config.version), Json(json!({ "items": items }))).into_response())
}

fn show(api: &ApiState, id: &ObjectId) -> Result<HttpResponse, Box<Problem>> {
    let view = ObjectViews::of(api);
    let object = view.config().objects.get(id).ok_or_else(|| absent(id))?;
    Ok((etag(&view.config().version), Json(view.json(id, object))).into_response())
}

/// The hint for a target whose name is that of an NVMe subsystem.
const OF_SUBSYSTEM: &str = "an NQN names a subsystem: lunar subsystem and lunar namespace change it; allowed_hosts or \
    lunar host admits hosts to it";

fn absent(id: &ObjectId) -> Box<Problem> {
    let list = match id {
        ObjectId::Target(_) => "lunar target list",
        ObjectId::Lun(..) => "lunar lun list",
        ObjectId::Access(..) => "lunar access list",
        ObjectId::ChapUser(_) => "lunar chap list",
        ObjectId::PortalGroup(_) => "lunar portal list",
        ObjectId::Disk(_) => "lunar disk list",
        ObjectId::Subsystem(_) => "lunar subsystem list",
        ObjectId::Namespace(..) => "lunar namespace list",
        ObjectId::Host(..) => "lunar host list",
    };
    let (ObjectId::Target(name) | ObjectId::Lun(name, _) | ObjectId::Access(name, _)) = id else {
        return Problem::not_found(id, &format!("{list} shows those that exist"));
    };
    match name.starts_with("nqn.") {
        true => Problem::not_found(id, OF_SUBSYSTEM),
        false => Problem::not_found(id, &format!("{list} shows those that exist")),
    }
}

/// Creates an object, or replaces an existing one.
async fn put(
    api: &ApiState,
    id: ObjectId,
    headers: HeaderMap,
    options: ChangeOptions,
    body: KeysBody,
) -> Result<HttpResponse, Box<Problem>> {
    let keys = keys(body)?;
    let config = api.control.config();
    let exists = config.objects.contains_key(&id);
    if is_new(&headers)? || (!exists && headers.get(header::IF_MATCH).is_none()) {
        return change(api, id, ObjectAction::Create(keys), None, options).await;
    }
    let version = required_version(&headers, &config.version)?;
    change(api, id, ObjectAction::Replace(keys), version, options).await
}

async fn patch(
    api: &ApiState,
    id: ObjectId,
    headers: HeaderMap,
    options: ChangeOptions,
    body: KeysBody,
) -> Result<HttpResponse, Box<Problem>> {
    let keys = keys(body)?;
    let version = required_version(&headers, &api.control.config().version)?;
    change(api, id, ObjectAction::Merge(keys), version, options).await
}

async fn delete(
    api: &ApiState,
    id: ObjectId,
    headers: HeaderMap,
    options: ChangeOptions,
) -> Result<HttpResponse, Box<Problem>> {
    let version = required_version(&headers, &api.control.config().version)?;
    change(api, id, ObjectAction::Delete, version, options).await
}

async fn change(
    api: &ApiState,
    id: ObjectId,
    action: ObjectAction,
    version: Option<String>,
    options: ChangeOptions,
) -> Result<HttpResponse, Box<Problem>> {
    let ChangeOptions { dry_run, transient, force } = options;
    let is_new = matches!(action, ObjectAction::Create(_) | ObjectAction::Insert(_)) && !dry_run;
    let change = ObjectChange { id, action, version, dry_run, transient, force };
    match api.ask(Request::Change(change)).await? {
        Response::Changed { version, changes, warnings } => {
            let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
            let report = ChangeReport { version: version.clone(), changes, warnings, dry_run };
            Ok((status, etag(&version), Json(report)).into_response())
        }
        _ => Err(unexpected()),
    }
}

/// The value of a path parameter.
fn value<'p>(path: &'p PathValues, name: &str) -> &'p str {
    path.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
}

/// The number in a path parameter.
fn number<T: std::str::FromStr>(path: &PathValues, name: &str) -> Result<T, Box<Problem>> {
    let text = value(path, name);
    let what = || format!("the object with the {name} {}", text.escape_debug());
    text.parse().map_err(|_| Problem::not_found(what(), "write a number"))
}

/// The handlers of a kind of object below `$one`. `$id` makes its identity of the path.
macro_rules! object_resource {
    ($module:ident, $what:literal, $collection:tt, $one:tt, ($($list_params:tt)*), ($($params:tt)*), $keys:ty, $view:ty, $list:ty,
     $parent:expr, $is:expr, $id:expr) => {
        mod $module {
            use super::*;

            pub(super) fn routes() -> OpenApiRouter<ApiState> {
                OpenApiRouter::new().routes(routes!(list_all)).routes(routes!(show_one, put_one, patch_one, delete_one))
            }

            #[utoipa::path(get, path = $collection, operation_id = concat!("list ", $what), summary = concat!("Lists: ", $what),
                params($($list_params)*), responses((status = 200, body = $list), (status = 404, body = Problem)))]
            async fn list_all(State(api): State<ApiState>, path: PathValues) -> Result<HttpResponse, Box<Problem>> {
                let parent: fn(&PathValues) -> Option<ObjectId> = $parent;
                list(&api, parent(&path), $is)
            }

            #[utoipa::path(get, path = $one, operation_id = concat!("show ", $what), summary = concat!("Shows: ", $what),
                params($($params)*), responses((status = 200, body = $view), (status = 404, body = Problem)))]
            async fn show_one(State(api): State<ApiState>, path: PathValues) -> Result<HttpResponse, Box<Problem>> {
                show(&api, &id(&path)?)
            }

            #[utoipa::path(put, path = $one, operation_id = concat!("put ", $what), summary = concat!("Creates or replaces: ", $what),
                params($($params)*, ChangeOptions, ("If-Match" = Option<String>, Header, description = "Entity tags, or *",
                    pattern = r#"^(\*|(W/)?"[!#-~]*"(, ?(W/)?"[!#-~]*")*)$"#),
                    ("If-None-Match" = Option<String>, Header, description = "* to create only", pattern = r"^\*$")),
                request_body = $keys, responses((status = 200, body = ChangeReport), (status = 201, body = ChangeReport),
                (status = 400, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
                (status = 412, body = Problem), (status = 415, body = Problem), (status = 422, body = Problem),
                (status = 428, body = Problem), (status = 503, body = Problem)))]
            async fn put_one(State(api): State<ApiState>, path: PathValues, Query(options): Query<ChangeOptions>,
                headers: HeaderMap, keys: KeysBody) -> Result<HttpResponse, Box<Problem>> {
                put(&api, id(&path)?, headers, options, keys).await
            }

            #[utoipa::path(patch, path = $one, operation_id = concat!("patch ", $what), summary = concat!("Changes keys of: ", $what),
                params($($params)*, ChangeOptions, ("If-Match" = String, Header, description = "Entity tags, or *",
                    pattern = r#"^(\*|(W/)?"[!#-~]*"(, ?(W/)?"[!#-~]*")*)$"#)),
                request_body = $keys, responses((status = 200, body = ChangeReport),
                (status = 400, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
                (status = 412, body = Problem), (status = 415, body = Problem), (status = 422, body = Problem),
                (status = 428, body = Problem), (status = 503, body = Problem)))]
            async fn patch_one(State(api): State<ApiState>, path: PathValues, Query(options): Query<ChangeOptions>,
                headers: HeaderMap, keys: KeysBody) -> Result<HttpResponse, Box<Problem>> {
                patch(&api, id(&path)?, headers, options, keys).await
            }

            #[utoipa::path(delete, path = $one, operation_id = concat!("delete ", $what), summary = concat!("Deletes: ", $what),
                params($($params)*, ChangeOptions, ("If-Match" = String, Header, description = "Entity tags, or *",
                    pattern = r#"^(\*|(W/)?"[!#-~]*"(, ?(W/)?"[!#-~]*")*)$"#)),
                responses((status = 200, body = ChangeReport),
                (status = 400, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
                (status = 412, body = Problem), (status = 422, body = Problem), (status = 428, body = Problem),
                (status = 503, body = Problem)))]
            async fn delete_one(State(api): State<ApiState>, path: PathValues, Query(options): Query<ChangeOptions>,
                headers: HeaderMap) -> Result<HttpResponse, Box<Problem>> {
                delete(&api, id(&path)?, headers, options).await
            }

            fn id(path: &PathValues) -> Result<ObjectId, Box<Problem>> {
                let id: fn(&PathValues) -> Result<ObjectId, Box<Problem>> = $id;
                id(path)
            }
        }
    };
}

// After the macro that it uses.
mod nvme;

object_resource!(
    targets,
    "targets",
    "/v1/targets",
    "/v1/targets/{target}",
    (),
    (("target" = String, Path, description = "Name of the target")),
    schema::TargetKeys,
    schema::TargetView,
    schema::TargetList,
    |_| None,
    |id| matches!(id, ObjectId::Target(_)),
    |path| Ok(ObjectId::Target(value(path, "target").into()))
);
object_resource!(
    luns,
    "LUNs",
    "/v1/targets/{target}/luns",
    "/v1/targets/{target}/luns/{lun}",
    (("target" = String, Path, description = "Name of the target")),
    (("target" = String, Path, description = "Name of the target"), ("lun" = u16, Path, description = "LUN")),
    schema::LunKeys,
    schema::LunView,
    schema::LunList,
    |path| Some(ObjectId::Target(value(path, "target").into())),
    |id| matches!(id, ObjectId::Lun(..)),
    |path| Ok(ObjectId::Lun(value(path, "target").into(), number(path, "lun")?))
);
object_resource!(
    access,
    "access entries",
    "/v1/targets/{target}/access",
    "/v1/targets/{target}/access/{index}",
    (("target" = String, Path, description = "Name of the target")),
    (
        ("target" = String, Path, description = "Name of the target"),
        ("index" = usize, Path, description = "Place in the list")
    ),
    schema::AccessKeys,
    schema::AccessView,
    schema::AccessEntries,
    |path| Some(ObjectId::Target(value(path, "target").into())),
    |id| matches!(id, ObjectId::Access(..)),
    |path| Ok(ObjectId::Access(value(path, "target").into(), number(path, "index")?))
);
object_resource!(
    disks,
    "disks",
    "/v1/disks",
    "/v1/disks/{name}",
    (),
    (("name" = String, Path, description = "Name of the disk")),
    schema::DiskKeys,
    schema::DiskView,
    schema::DiskList,
    |_| None,
    |id| matches!(id, ObjectId::Disk(_)),
    |path| Ok(ObjectId::Disk(value(path, "name").into()))
);
object_resource!(
    chap_users,
    "CHAP users",
    "/v1/chap-users",
    "/v1/chap-users/{id}",
    (),
    (("id" = String, Path, description = "Identifier of the CHAP user; its name, unless it has a key `id`")),
    schema::ChapUserKeys,
    schema::ChapUserView,
    schema::ChapUserList,
    |_| None,
    |id| matches!(id, ObjectId::ChapUser(_)),
    |path| Ok(ObjectId::ChapUser(value(path, "id").into()))
);
object_resource!(
    portal_groups,
    "portal groups",
    "/v1/portal-groups",
    "/v1/portal-groups/{tag}",
    (),
    (("tag" = u16, Path, description = "Portal group tag")),
    schema::PortalGroupKeys,
    schema::PortalGroupView,
    schema::PortalGroupList,
    |_| None,
    |id| matches!(id, ObjectId::PortalGroup(_)),
    |path| Ok(ObjectId::PortalGroup(number(path, "tag")?))
);

/// The new place of a LUN.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunMove {
    /// The target.
    pub target: String,
    /// The LUN; the same number if absent.
    pub lun: Option<u16>,
}

/// Moves a LUN to another target, or to another number. It keeps its identity, its state and its medium.
#[utoipa::path(post, path = "/v1/targets/{target}/luns/{lun}/move", operation_id = "move LUN",
    params(("target" = String, Path, description = "Name of the target"), ("lun" = u16, Path, description = "LUN"),
        ChangeOptions, ("If-Match" = String, Header, description = "Entity tags, or *",
        pattern = r#"^(\*|(W/)?"[!#-~]*"(, ?(W/)?"[!#-~]*")*)$"#)),
    request_body = LunMove, responses((status = 200, body = ChangeReport), (status = 400, body = Problem),
    (status = 404, body = Problem), (status = 409, body = Problem), (status = 412, body = Problem),
    (status = 415, body = Problem), (status = 422, body = Problem), (status = 428, body = Problem),
    (status = 503, body = Problem)))]
async fn move_lun(
    State(api): State<ApiState>,
    path: PathValues,
    Query(options): Query<ChangeOptions>,
    headers: HeaderMap,
    body: KeysBody,
) -> Result<HttpResponse, Box<Problem>> {
    let number = number(&path, "lun")?;
    let LunMove { target, lun } = object(body)?;
    let version = required_version(&headers, &api.control.config().version)?;
    let to = ObjectId::Lun(target, lun.unwrap_or(number));
    let from = ObjectId::Lun(value(&path, "target").to_owned(), number);
    change(&api, from, ObjectAction::Move(to), version, options).await
}

/// Opens the media of a target on standby, and accepts logins. A target that is promoted already stays so.
#[utoipa::path(post, path = "/v1/targets/{target}/promote", operation_id = "promote target",
    params(("target" = String, Path, description = "Name of the target")),
    responses((status = 200, body = Outcome), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 503, body = Problem)))]
async fn promote(
    State(api): State<ApiState>,
    Path(name): Path<String>,
) -> Result<Json<Outcome>, Box<Problem>> {
    outcome(api.ask(Request::Target { name, action: TargetAction::Promote }).await?)
}

/// Ends the sessions of a target after their commands, flushes its media, and closes them, so that another server can have
/// them. A target that is on standby already stays so.
#[utoipa::path(post, path = "/v1/targets/{target}/demote", operation_id = "demote target",
    params(("target" = String, Path, description = "Name of the target")),
    responses((status = 200, body = Outcome), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 503, body = Problem)))]
async fn demote(
    State(api): State<ApiState>,
    Path(name): Path<String>,
) -> Result<Json<Outcome>, Box<Problem>> {
    outcome(api.ask(Request::Target { name, action: TargetAction::Demote }).await?)
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .merge(targets::routes())
        .routes(routes!(promote))
        .routes(routes!(demote))
        .merge(luns::routes())
        .routes(routes!(move_lun))
        .merge(access::routes())
        .merge(new_entry::routes())
        .merge(disks::routes())
        .merge(chap_users::routes())
        .merge(portal_groups::routes())
        .merge(nvme::routes())
}
