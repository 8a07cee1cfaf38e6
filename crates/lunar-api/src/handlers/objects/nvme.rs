//! NVMe subsystems, their namespaces and their hosts.

use super::*;

object_resource!(
    subsystems,
    "subsystems",
    "/v1/subsystems",
    "/v1/subsystems/{subsystem}",
    (),
    (("subsystem" = String, Path, description = "NQN of the subsystem")),
    schema::SubsystemKeys,
    schema::SubsystemView,
    schema::SubsystemList,
    |_| None,
    |id| matches!(id, ObjectId::Subsystem(_)),
    |path| Ok(ObjectId::Subsystem(value(path, "subsystem").into()))
);
object_resource!(
    namespaces,
    "namespaces",
    "/v1/subsystems/{subsystem}/namespaces",
    "/v1/subsystems/{subsystem}/namespaces/{nsid}",
    (("subsystem" = String, Path, description = "NQN of the subsystem")),
    (
        ("subsystem" = String, Path, description = "NQN of the subsystem"),
        ("nsid" = u16, Path, description = "NSID")
    ),
    schema::NamespaceKeys,
    schema::NamespaceItem,
    schema::NamespaceList,
    |path| Some(ObjectId::Subsystem(value(path, "subsystem").into())),
    |id| matches!(id, ObjectId::Namespace(..)),
    |path| Ok(ObjectId::Namespace(value(path, "subsystem").into(), number(path, "nsid")?))
);
object_resource!(
    hosts,
    "hosts",
    "/v1/subsystems/{subsystem}/hosts",
    "/v1/subsystems/{subsystem}/hosts/{host}",
    (("subsystem" = String, Path, description = "NQN of the subsystem")),
    (
        ("subsystem" = String, Path, description = "NQN of the subsystem"),
        ("host" = String, Path, description = "NQN of the host")
    ),
    schema::HostKeys,
    schema::HostView,
    schema::HostList,
    |path| Some(ObjectId::Subsystem(value(path, "subsystem").into())),
    |id| matches!(id, ObjectId::Host(..)),
    |path| Ok(ObjectId::Host(value(path, "subsystem").into(), value(path, "host").into()))
);

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().merge(subsystems::routes()).merge(namespaces::routes()).merge(hosts::routes())
}
