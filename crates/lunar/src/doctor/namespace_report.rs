//! The parts of the report about an NVMe controller and its namespace.

use super::report::{DoctorReport, ReadStats, RoundTrip};
use crate::info::namespace::{MISSING, version};
use crate::output;
use lunar_initiator::multipath::PathState;
use lunar_initiator::nvme::{ControllerInfo, NvmeNamespace};
use lunar_proto::size;
use serde::Serialize;
use std::fmt::Write;
use utoipa::ToSchema;

/// Bytes of the entry in a capsule.
const ENTRY: u64 = 64;
/// The most namespaces that the text lists.
const LISTED: usize = 16;

/// The controller.
#[derive(Clone, Serialize, ToSchema)]
#[schema(as = DoctorController)]
pub struct ControllerSummary {
    pub subsystem: String,
    pub id: u16,
    pub model: String,
    pub serial: String,
    pub firmware: String,
    pub version: String,
    /// Whether it demanded authentication (DH-HMAC-CHAP).
    pub authenticated: bool,
    pub header_digest: bool,
    pub data_digest: bool,
    /// The time from the connection to the end of its initialization.
    pub connected_in_us: u64,
    /// I/O queues, each with a connection.
    pub io_queues: u16,
    /// Entries of an I/O queue.
    pub queue_entries: u32,
    /// The most data of a command; null without a limit.
    pub max_transfer_bytes: Option<u64>,
    /// The most data that travels with its write command.
    pub capsule_data_bytes: u64,
    /// Numbers of its namespaces.
    pub namespaces: Vec<u32>,
}

/// The examined namespace.
#[derive(Clone, Serialize, ToSchema)]
#[schema(as = DoctorNamespace)]
pub struct NamespaceSummary {
    pub id: u32,
    pub identity: Option<String>,
    pub capacity_bytes: u64,
    pub block_size_bytes: u32,
    pub read_only: bool,
    /// Whether writes may complete before they are on stable storage. Flush and FUA put them there.
    pub write_cache: bool,
    /// The access state (ANA): `optimized`, `non-optimized`, `transitioning`, `standby` (inaccessible) or `down`.
    #[serde(serialize_with = "state_name")]
    #[schema(value_type = String)]
    pub access: PathState,
}

/// One of several paths.
#[derive(Clone, Serialize, ToSchema)]
#[schema(as = DoctorPath)]
pub struct ExaminedPath {
    pub portal: String,
    /// The access state; `missing` if the namespace was not found.
    pub state: String,
    /// The identifier of the controller (CNTLID).
    pub controller: Option<u16>,
    pub namespace: Option<u32>,
    pub identity: Option<String>,
    pub round_trip: Option<RoundTrip>,
    pub reads: Option<ReadStats>,
    pub usable: bool,
}

fn state_name<S: serde::Serializer>(state: &PathState, out: S) -> Result<S::Ok, S::Error> {
    state.to_string().serialize(out)
}

impl ControllerSummary {
    /// The summary of a controller with these namespaces.
    pub fn of(info: &ControllerInfo, namespaces: Vec<u32>, connected_in_us: u64) -> ControllerSummary {
        ControllerSummary {
            subsystem: info.subsystem.to_string(),
            id: info.controller,
            model: info.model(),
            serial: info.serial(),
            firmware: info.firmware(),
            version: version(info.version),
            authenticated: info.authenticated,
            header_digest: info.digests.0,
            data_digest: info.digests.1,
            connected_in_us,
            io_queues: info.io_queues,
            queue_entries: info.queue_len,
            max_transfer_bytes: info.max_transfer,
            capsule_data_bytes: (u64::from(info.identify.command_capsule) * 16).saturating_sub(ENTRY),
            namespaces,
        }
    }
}

impl NamespaceSummary {
    /// The summary of a namespace in this state.
    pub fn of(namespace: &NvmeNamespace, access: PathState) -> NamespaceSummary {
        let properties = namespace.properties();
        NamespaceSummary {
            id: namespace.id(),
            identity: Some(properties.identity.to_string()).filter(|text| !text.is_empty()),
            capacity_bytes: properties.capacity,
            block_size_bytes: namespace.block_size(),
            read_only: properties.is_read_only(),
            write_cache: namespace.controller().info().identify.write_cache & 1 != 0,
            access,
        }
    }
}

impl ExaminedPath {
    /// The path that a report is about.
    pub fn of(portal: String, report: &DoctorReport) -> ExaminedPath {
        let namespace = report.namespace.as_ref();
        ExaminedPath {
            portal,
            state: namespace.map_or(MISSING.to_owned(), |namespace| namespace.access.to_string()),
            controller: report.controller.as_ref().map(|controller| controller.id),
            namespace: namespace.map(|namespace| namespace.id),
            identity: namespace.and_then(|namespace| namespace.identity.clone()),
            round_trip: report.round_trip,
            reads: report.reads,
            usable: report.usable,
        }
    }
}

/// Writes the paths, if there are several.
pub fn write_paths(report: &DoctorReport, text: &mut String) {
    if report.paths.is_empty() {
        return;
    }
    text.push_str("\npaths\n");
    for path in &report.paths {
        let parts = [
            path.controller.map(|id| format!("controller {id}")),
            path.round_trip.map(|time| format!("round trip {} µs", time.median_us)),
            path.reads.map(|reads| format!("{:.1} MB/s", reads.large_bytes_per_s as f64 / 1e6)),
        ];
        let parts: String = parts.into_iter().flatten().map(|part| format!(", {part}")).collect();
        _ = writeln!(text, "  {}: {}{parts}", path.portal, path.state);
    }
    _ = writeln!(text, "\nthe path through {}", report.portals.join(" -> "));
}

/// Writes the controller and the namespace, as far as they are known.
pub fn write_controller(report: &DoctorReport, text: &mut String) {
    let Some(c) = &report.controller else { return };
    let digest = |on: bool| if on { "CRC32C" } else { "none" };
    let authentication = if c.authenticated { "DH-HMAC-CHAP" } else { "none" };
    let transfer =
        c.max_transfer_bytes.map_or("any size".to_owned(), |bytes| format!("up to {}", size::show(bytes)));
    _ = writeln!(text, "\ncontroller {}, connected in {:.1} ms", c.id, c.connected_in_us as f64 / 1e3);
    _ = writeln!(text, "  {}", c.subsystem);
    _ = writeln!(text, "  {} {}, serial {}, NVMe {}", c.model, c.firmware, c.serial, c.version);
    _ = writeln!(text, "  authentication: {authentication}");
    _ = writeln!(text, "  digests: header {}, data {}", digest(c.header_digest), digest(c.data_digest));
    let queues = output::count(c.io_queues.into(), "I/O queue");
    _ = writeln!(text, "  {queues} of {} entries; commands of {transfer}", c.queue_entries);
    _ = writeln!(text, "  writes of up to {} travel with their command", size::show(c.capsule_data_bytes));
    let numbers: Vec<String> = c.namespaces.iter().take(LISTED).map(ToString::to_string).collect();
    let more = if c.namespaces.len() > LISTED { ", ..." } else { "" };
    _ = match c.namespaces.len() {
        0 => writeln!(text, "  no namespace"),
        count => writeln!(text, "  {}: {}{more}", output::count(count, "namespace"), numbers.join(", ")),
    };
    let Some(n) = &report.namespace else { return };
    let identity = n.identity.as_deref().unwrap_or("no identity");
    let cache = if n.write_cache { "has" } else { "has no" };
    let size = size::show(n.capacity_bytes);
    _ = writeln!(text, "  namespace {}: {size}, {identity}, {}", n.id, n.access);
    _ = writeln!(
        text,
        "  blocks of {} bytes; the controller {cache} volatile write cache",
        n.block_size_bytes
    );
}
