//! `lunar info` of an NVMe namespace.

use crate::exit::Failure;
use crate::info::pages::Fields;
use crate::tree::Node;
use lunar_block::Backend;
use lunar_initiator::nvme::{self, ControllerInfo, NvmeNamespace, NvmeUrl};
use lunar_proto::size;
use lunar_wire::scsi::fields::utf8;

/// The properties of a namespace and its controller.
///
/// # Errors
/// Those of [`nvme::open`].
pub async fn properties(url: &NvmeUrl) -> Result<Fields, Failure> {
    let namespace = nvme::open(url).await?;
    let fields = fields(&namespace);
    namespace.controller().close().await;
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
        ("reservations", has(5)),
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
    Node::map([
        ("id", Node::number(namespace.id())),
        ("identity", Node::text(properties.identity.to_string())),
        ("bytes", Node::number(bytes)),
        ("size", Node::text(size::show(bytes))),
        ("block_bytes", Node::number(namespace.block_size())),
        ("read_only", Node::flag(info.read_only)),
        ("deallocated_reads_zeros", Node::flag(properties.reads_zeros())),
        ("shared", Node::flag(properties.identify.sharing & 1 != 0)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_written_as_in_the_specification() {
        assert_eq!([0x1_0300, 0x2_0000, 0x2_0001].map(version), ["1.3", "2.0", "2.0.1"]);
    }
}
