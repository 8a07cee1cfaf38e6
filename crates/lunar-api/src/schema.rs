//! Schemas of the objects of the configuration, for the OpenAPI document. The keys are those of `lunar.toml`; the
//! server checks them by the same rules as its files.

use lunar_admin::ObjectSource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A size: bytes, or a text with a unit.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SizeValue {
    /// Bytes.
    Bytes(u64),
    /// A number with a unit, such as `64MiB`.
    Text(String),
}

/// The LUNs that initiators see.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum LunMap {
    /// The same numbers.
    List(Vec<u16>),
    /// The LUN of the target for each LUN of the initiators.
    Map(BTreeMap<String, u16>),
}

/// Whether initiators cannot write.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ReadOnly {
    /// To all LUNs.
    All(bool),
    /// To these LUNs, by the numbers of the initiators.
    Luns(Vec<u16>),
}

/// A portal.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PortalValue {
    /// Address and port.
    Address(String),
    /// Its keys.
    Keys(Box<PortalKeys>),
}

/// The keys of a target.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TargetKeys {
    /// TargetAlias.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Tags of its portal groups; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portal_groups: Option<Vec<u16>>,
    /// The CHAP user as which it authenticates itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutual: Option<String>,
    /// Redirections of logins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Vec<RedirectKeys>>,
    /// Whether logins are rejected with 03/01.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offline: Option<bool>,
}

/// A redirection of logins.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RedirectKeys {
    /// Tag of the portal group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portal_group: Option<u16>,
    /// Address of the other portal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whether the redirection is permanent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permanent: Option<bool>,
}

/// The keys of a LUN: those of a disk, or `disk` alone.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LunKeys {
    /// `null`, `memory`, `file` or `device`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Path of the file or device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Size; a missing file is created with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<SizeValue>,
    /// `disk` or `cdrom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Logical block size: 512 or 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<SizeValue>,
    /// Physical block size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_block_size: Option<SizeValue>,
    /// Whether hosts cannot write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Whether the medium is removable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removable: Option<bool>,
    /// Whether writes are stable only after a flush.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<bool>,
    /// Whether the page cache is bypassed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<bool>,
    /// Whether cached data is sent without a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_copy: Option<bool>,
    /// `raw`: serve the bytes of an image format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// `continue`, `read-only` or `not-ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_missing_file: Option<String>,
    /// Whether UNMAP frees space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thin: Option<bool>,
    /// Unit serial number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Vendor identification, 8 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Product identification, 16 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Product revision, 4 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// NAA designator, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub naa: Option<String>,
    /// EUI-64 designator, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eui64: Option<String>,
    /// SCSI name string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scsi_name: Option<String>,
    /// T10 vendor identification without the vendor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t10_id: Option<String>,
    /// All designators, hexadecimal, instead of the four above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub designators: Option<Vec<String>>,
    /// Filters; the first is next to the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<FilterKeys>>,
    /// Name of a disk that the LUN shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
}

/// The keys of a disk.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DiskKeys {
    /// `null`, `memory`, `file` or `device`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Path of the file or device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Size; a missing file is created with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<SizeValue>,
    /// `disk` or `cdrom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Logical block size: 512 or 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<SizeValue>,
    /// Physical block size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_block_size: Option<SizeValue>,
    /// Whether hosts cannot write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Whether the medium is removable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removable: Option<bool>,
    /// Whether writes are stable only after a flush.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_cache: Option<bool>,
    /// Whether the page cache is bypassed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<bool>,
    /// Whether cached data is sent without a copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_copy: Option<bool>,
    /// `raw`: serve the bytes of an image format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// `continue`, `read-only` or `not-ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_missing_file: Option<String>,
    /// Whether UNMAP frees space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thin: Option<bool>,
    /// Unit serial number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Vendor identification, 8 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// Product identification, 16 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Product revision, 4 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// NAA designator, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub naa: Option<String>,
    /// EUI-64 designator, hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eui64: Option<String>,
    /// SCSI name string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scsi_name: Option<String>,
    /// T10 vendor identification without the vendor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t10_id: Option<String>,
    /// All designators, hexadecimal, instead of the four above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub designators: Option<Vec<String>>,
    /// Filters; the first is next to the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<Vec<FilterKeys>>,
}

/// A filter of a LUN.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FilterKeys {
    /// `stats`, `delay`, `rate` or `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Delay of a read in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_us: Option<u64>,
    /// Delay of a write in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_us: Option<u64>,
    /// Operations a second; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Bytes a second; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<SizeValue>,
    /// Fraction of the operations that fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// The operations that fail: `read`, `write` or `flush`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
}

/// The keys of an access entry.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AccessKeys {
    /// Patterns of initiator names; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiators: Option<Vec<String>>,
    /// Networks of initiators; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<String>>,
    /// Whether the initiators cannot log in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny: Option<bool>,
    /// CHAP users, one of which the initiator must be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chap: Option<Vec<String>>,
    /// The CHAP user as which the target authenticates itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutual: Option<String>,
    /// The LUNs that the initiators see; all if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub luns: Option<LunMap>,
    /// Whether the initiators cannot write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<ReadOnly>,
    /// Whether asynchronous SCSI events are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aen: Option<bool>,
}

/// The keys of a CHAP user.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChapUserKeys {
    /// CHAP name; the identifier if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// File with the secret, which only the user of the server can access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<String>,
    /// The secret, which the server writes to a file. No response has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(write_only)]
    pub secret: Option<String>,
}

/// The keys of a portal group.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PortalGroupKeys {
    /// Its portals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub portals: Option<Vec<PortalValue>>,
}

/// The keys of a portal.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PortalKeys {
    /// Address and port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// The address that SendTargets returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// `tcp`, `iser` or `srp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<Vec<String>>,
    /// RDMA provider: `iwarp` or `verbs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
}

/// A target.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TargetView {
    /// Its name.
    pub name: String,
    /// Its keys.
    pub config: TargetKeys,
    /// Its place.
    pub source: ObjectSource,
}

/// A list of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct TargetList {
    /// The objects.
    pub items: Vec<TargetView>,
}

/// A LUN of a target.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LunView {
    /// The target.
    pub target: String,
    /// The LUN.
    pub lun: u16,
    /// Its keys.
    pub config: LunKeys,
    /// Its place.
    pub source: ObjectSource,
}

/// A list of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LunList {
    /// The objects.
    pub items: Vec<LunView>,
}

/// An access entry of a target.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AccessView {
    /// The target.
    pub target: String,
    /// Its place in the list: the first matching entry decides.
    pub index: usize,
    /// Its keys.
    pub config: AccessKeys,
    /// Its place.
    pub source: ObjectSource,
}

/// A list of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AccessEntries {
    /// The objects.
    pub items: Vec<AccessView>,
}

/// A disk that LUNs of several targets may show.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskView {
    /// Its name.
    pub name: String,
    /// Its keys.
    pub config: DiskKeys,
    /// Its place.
    pub source: ObjectSource,
}

/// A list of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskList {
    /// The objects.
    pub items: Vec<DiskView>,
}

/// A CHAP user.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ChapUserView {
    /// Its identifier.
    pub id: String,
    /// Its keys.
    pub config: ChapUserKeys,
    /// Its place.
    pub source: ObjectSource,
}

/// A list of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ChapUserList {
    /// The objects.
    pub items: Vec<ChapUserView>,
}

/// A portal group.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PortalGroupView {
    /// Its tag.
    pub tag: u16,
    /// Its keys.
    pub config: PortalGroupKeys,
    /// Its place.
    pub source: ObjectSource,
}

/// A list of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PortalGroupList {
    /// The objects.
    pub items: Vec<PortalGroupView>,
}
