//! `lunar info` of an NVMe namespace.

use crate::exit::Failure;
use crate::hex;
use crate::info::pages::Fields;
use crate::tree::Node;
use lunar_block::Backend;
use lunar_initiator::multipath::{LatePath, PathState};
use lunar_initiator::nvme::{
    ControllerInfo, NamespaceIdentity, NvmeDisk, NvmeNamespace, NvmePath, NvmePaths, NvmeUrl, uuid_text,
};
use lunar_proto::size;
use lunar_wire::scsi::fields::utf8;
use std::sync::Arc;

/// The state of a path that is not open.
pub const MISSING: &str = "missing";

/// The properties of a namespace and its controller. Of several paths, the controller is that of the best one.
///
/// # Errors
/// Those of [`NvmeDisk::open`].
pub async fn properties(url: &NvmeUrl) -> Result<Fields, Failure> {
    let disk = NvmeDisk::open(url).await?;
    // A namespace shows its properties also while it is not accessible.
    let best = disk.paths().and_then(NvmePaths::best).unwrap_or(disk.namespace());
    let mut fields = fields(best);
    fields.extend(disk.paths().map(|all| ("paths".to_owned(), paths(all))));
    disk.close().await;
    Ok(fields)
}

fn fields(namespace: &NvmeNamespace) -> Fields {
    let info = namespace.controller().info();
    let fields = [
        ("subsystem", Node::text(utf8(info.subsystem.as_str().as_bytes()))),
        ("portal", Node::text(info.portal.to_string())),
        ("controller", controller(&info)),
        ("namespace", storage(namespace)),
    ];
    fields.map(|(name, node)| (name.to_owned(), node)).into()
}

/// The paths, in the order of the URL.
fn paths(all: &NvmePaths) -> Node {
    let states = all.joined().paths().into_iter().map(|(_, state, _)| state);
    let path = |(at, state): (&Arc<LatePath<NvmePath>>, PathState)| path(at.url(), at.opened(), state);
    Node::List(all.paths().iter().zip(states).map(path).collect())
}

/// A path. One without a controller was never open.
fn path(url: &NvmeUrl, opened: Option<&Arc<NvmeNamespace>>, state: PathState) -> Node {
    let mut fields = vec![("portal".to_owned(), Node::text(url.portal.to_string()))];
    match opened {
        Some(namespace) => {
            let info = namespace.controller().info();
            fields.push(("state".into(), Node::text(state.to_string())));
            fields.push(("controller".into(), Node::number(info.controller)));
            fields.push(("io_queues".into(), Node::number(info.io_queues)));
        }
        None => fields.push(("state".into(), Node::text(MISSING))),
    }
    Node::Map(fields)
}

fn controller(info: &ControllerInfo) -> Node {
    let identify = &info.identify;
    let has = |bit: u16| Node::flag(identify.commands & 1 << bit != 0);
    Node::map([
        ("id", Node::number(info.controller)),
        ("model", Node::text(info.model())),
        ("serial", Node::text(info.serial())),
        ("firmware", Node::text(info.firmware())),
        ("version", Node::text(version(info.version))),
        ("max_transfer_bytes", Node::number(info.max_transfer.unwrap_or(0))),
        ("io_queues", Node::number(info.io_queues)),
        ("queue_entries", Node::number(info.queue_len)),
        ("write_cache", Node::flag(identify.write_cache & 1 != 0)),
        ("compare", has(0)),
        ("dataset_management", has(2)),
        ("write_zeroes", has(3)),
        ("compare_and_write", Node::flag(identify.fused & 1 != 0)),
    ])
}

/// A version as the specification writes it: `1.3`, `2.0.1`.
pub fn version(version: u32) -> String {
    let [tertiary, minor, low, high] = version.to_le_bytes();
    let major = u16::from_le_bytes([low, high]);
    if tertiary == 0 { format!("{major}.{minor}") } else { format!("{major}.{minor}.{tertiary}") }
}

fn storage(namespace: &NvmeNamespace) -> Node {
    let (properties, info) = (namespace.properties(), namespace.info());
    let bytes = info.capacity;
    let mut fields = vec![("id".to_owned(), Node::number(namespace.id()))];
    fields.extend(identifiers(&properties.identity));
    let others = [
        ("bytes", Node::number(bytes)),
        ("size", Node::text(size::show(bytes))),
        ("block_bytes", Node::number(namespace.block_size())),
        ("read_only", Node::flag(info.read_only)),
        ("deallocated_reads_zeros", Node::flag(properties.reads_zeros())),
        ("shared", Node::flag(properties.identify.sharing & 1 != 0)),
        ("reservations", Node::flag(namespace.keeps_reservations())),
    ];
    fields.extend(others.map(|(name, node)| (name.to_owned(), node)));
    Node::Map(fields)
}

/// The identity as in a URL, and each identifier that the namespace has.
fn identifiers(identity: &NamespaceIdentity) -> Fields {
    let NamespaceIdentity { uuid, nguid, eui64, block_shift: _ } = identity;
    let all = [
        ("uuid", uuid.as_ref().map(uuid_text)),
        ("nguid", nguid.as_ref().map(|id| hex::digits(id))),
        ("eui64", eui64.as_ref().map(|id| hex::digits(id))),
    ];
    let given = all.into_iter().filter_map(|(name, id)| Some((name.to_owned(), Node::text(id?))));
    [("identity".to_owned(), Node::text(identity.to_string()))].into_iter().chain(given).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_written_as_in_the_specification() {
        assert_eq!([0x1_0300, 0x2_0000, 0x2_0001].map(version), ["1.3", "2.0", "2.0.1"]);
    }

    #[test]
    fn identifiers_are_listed_beside_the_identity() {
        let all = NamespaceIdentity {
            uuid: Some([0x11; 16]),
            nguid: Some([0x22; 16]),
            eui64: Some([0x33; 8]),
            block_shift: 9,
        };
        let names = |identity: &NamespaceIdentity| {
            identifiers(identity).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(&all), ["identity", "uuid", "nguid", "eui64"]);
        let eui64 = Node::text("3333333333333333");
        assert_eq!(identifiers(&all)[3], ("eui64".to_owned(), eui64));
        assert_eq!(names(&NamespaceIdentity { uuid: None, eui64: None, ..all }), ["identity", "nguid"]);
    }
}
