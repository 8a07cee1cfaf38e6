//! Schemas of the objects of the configuration, for the OpenAPI document. The keys are those of `lunar.toml`; the
//! server checks them by the same rules as its files.

use lunar_admin::{ObjectSource, TargetState};
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
    pub alias: Option<String>,
    /// Tags of its portal groups; all if absent.
    pub portal_groups: Option<Vec<u16>>,
    /// Relative target port identifiers by tag; the tag if absent.
    pub relative_ports: Option<BTreeMap<String, u16>>,
    /// The CHAP user as which it authenticates itself.
    pub mutual: Option<String>,
    /// Redirections of logins.
    pub redirect: Option<Vec<RedirectKeys>>,
    /// Whether logins are rejected with 03/01.
    pub offline: Option<bool>,
    /// Whether the target has its media only while it is promoted.
    pub standby: Option<bool>,
    /// Folder of the state of its LUNs, on a volume that moves with its media; that of the server if absent.
    pub state_dir: Option<String>,
}

/// A redirection of logins.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RedirectKeys {
    /// Tag of the portal group.
    pub portal_group: Option<u16>,
    /// Address of the other portal.
    pub to: Option<String>,
    /// Whether the redirection is permanent.
    pub permanent: Option<bool>,
}

/// Defines the keys of a medium, and those after them that it has on its own. `$size`: the type of a size, and `$filter`
/// that of a filter.
macro_rules! medium_keys {
    ($(#[$of:meta])* $name:ident, $size:ty, $filter:ty { $($(#[$of_key:meta])* $key:ident: $type:ty,)* }) => {
        $(#[$of])*
        #[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            /// `null`, `memory`, `file`, `device` or `rbd`.
            #[schema(pattern = "^(null|memory|file|device|rbd)$")]
            pub backend: Option<String>,
            /// Path of the file or device.
            pub path: Option<String>,
            /// Pool of the image of RBD.
            pub pool: Option<String>,
            /// Namespace of the pool.
            pub namespace: Option<String>,
            /// Image of RBD.
            pub image: Option<String>,
            /// Snapshot of the image.
            pub snapshot: Option<String>,
            /// Name of the cluster.
            pub cluster: Option<String>,
            /// User of the cluster, without `client.`.
            pub user: Option<String>,
            /// Configuration file of Ceph.
            pub ceph_conf: Option<String>,
            /// File with the key of the user.
            pub keyring: Option<String>,
            /// Size; a missing file is created with it.
            pub size: Option<$size>,
            /// `disk` or `cdrom`.
            #[schema(pattern = "^(disk|cdrom)$")]
            pub kind: Option<String>,
            /// Logical block size: 512 or 4096.
            pub block_size: Option<$size>,
            /// Physical block size.
            pub physical_block_size: Option<$size>,
            /// Whether hosts cannot write.
            pub read_only: Option<bool>,
            /// Whether the medium is removable.
            pub removable: Option<bool>,
            /// Whether writes are stable only after a flush.
            pub write_cache: Option<bool>,
            /// Whether the page cache is bypassed.
            pub direct: Option<bool>,
            /// Whether cached data is sent without a copy.
            pub zero_copy: Option<bool>,
            /// `raw`: serve the bytes of an image format.
            #[schema(pattern = "^raw$")]
            pub format: Option<String>,
            /// `continue`, `read-only` or `not-ready`.
            #[schema(pattern = "^(continue|read-only|not-ready)$")]
            pub on_missing_file: Option<String>,
            /// Whether UNMAP frees space.
            pub thin: Option<bool>,
            /// Unit serial number.
            pub serial: Option<String>,
            /// Vendor identification, 8 characters.
            pub vendor: Option<String>,
            /// Product identification, 16 characters.
            pub product: Option<String>,
            /// Product revision, 4 characters.
            pub revision: Option<String>,
            /// NAA designator, hexadecimal.
            pub naa: Option<String>,
            /// EUI-64 designator, hexadecimal.
            pub eui64: Option<String>,
            /// SCSI name string.
            pub scsi_name: Option<String>,
            /// T10 vendor identification without the vendor.
            pub t10_id: Option<String>,
            /// All designators, hexadecimal, instead of the four above.
            pub designators: Option<Vec<String>>,
            /// Filters; the first is next to the disk.
            pub filters: Option<Vec<$filter>>,
            $($(#[$of_key])* pub $key: Option<$type>,)*
        }
    };
}

medium_keys! {
    /// The keys of a LUN: those of a disk, or `disk` alone.
    LunKeys, SizeValue, FilterKeys {
        /// Name of a disk that the LUN shows.
        disk: String,
    }
}

medium_keys! {
    /// The keys of a LUN in a response: sizes are bytes.
    LunConfig, u64, FilterConfig {
        /// Name of a disk that the LUN shows.
        disk: String,
    }
}

medium_keys! {
    /// The keys of a disk.
    DiskKeys, SizeValue, FilterKeys {}
}

medium_keys! {
    /// The keys of a disk in a response: sizes are bytes.
    DiskConfig, u64, FilterConfig {}
}

/// Defines the keys of a filter. `$size`: the type of a size.
macro_rules! filter_keys {
    ($(#[$of:meta])* $name:ident, $size:ty) => {
        $(#[$of])*
        #[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            /// `stats`, `delay`, `rate` or `error`.
            #[schema(pattern = "^(stats|delay|rate|error)$")]
            pub kind: Option<String>,
            /// Delay of a read in microseconds.
            pub read_us: Option<u64>,
            /// Delay of a write in microseconds.
            pub write_us: Option<u64>,
            /// Operations a second; 0 is no limit.
            pub iops: Option<u64>,
            /// Bytes a second; 0 is no limit.
            pub bytes_per_s: Option<$size>,
            /// Fraction of the operations that fail.
            pub rate: Option<f64>,
            /// The operations that fail: `read`, `write` or `flush`.
            #[schema(pattern = "^(read|write|flush)$")]
            pub op: Option<String>,
        }
    };
}

filter_keys! {
    /// A filter of a LUN.
    FilterKeys, SizeValue
}

filter_keys! {
    /// A filter of a LUN in a response: sizes are bytes.
    FilterConfig, u64
}

/// The keys of an access entry.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AccessKeys {
    /// Patterns of initiator names; all if absent.
    pub initiators: Option<Vec<String>>,
    /// Networks of initiators; all if absent.
    pub networks: Option<Vec<String>>,
    /// Addresses of the server to which the initiators connect; all if absent.
    pub portals: Option<Vec<String>>,
    /// Whether the initiators cannot log in.
    pub deny: Option<bool>,
    /// CHAP users, one of which the initiator must be.
    pub chap: Option<Vec<String>>,
    /// The CHAP user as which the target authenticates itself.
    pub mutual: Option<String>,
    /// The LUNs that the initiators see; all if absent.
    pub luns: Option<LunMap>,
    /// Whether the initiators cannot write.
    pub read_only: Option<ReadOnly>,
    /// Whether asynchronous SCSI events are sent.
    pub aen: Option<bool>,
}

/// The keys of a CHAP user.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChapUserKeys {
    /// CHAP name; the identifier if absent.
    pub name: Option<String>,
    /// File with the secret, which only the user of the server can access.
    pub secret_file: Option<String>,
    /// The secret, which the server writes to a file. No response has it.
    #[schema(write_only)]
    pub secret: Option<String>,
}

/// The keys of a portal group.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PortalGroupKeys {
    /// Its portals.
    pub portals: Option<Vec<PortalValue>>,
}

/// The keys of a portal.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PortalKeys {
    /// Address and port.
    pub listen: Option<String>,
    /// The address that SendTargets returns.
    pub advertise: Option<String>,
    /// `tcp`, `iser`, `srp`, `nvme-tcp` or `nvme-discovery`.
    pub transport: Option<Vec<String>>,
    /// RDMA provider: `iwarp` or `verbs`.
    #[schema(pattern = "^(iwarp|verbs)$")]
    pub provider: Option<String>,
    /// `required`: NVMe hosts must begin with TLS 1.3.
    #[schema(pattern = "^required$")]
    pub tls: Option<String>,
}

/// Defines an object with its identity, its keys and its place, and the list of such objects.
macro_rules! object_view {
    ($(#[$of:meta])* $view:ident, $list:ident, $keys:ident { $($(#[$of_id:meta])* $id:ident: $type:ty,)+ }) => {
        $(#[$of])*
        #[derive(Debug, Serialize, Deserialize, ToSchema)]
        pub struct $view {
            $($(#[$of_id])* pub $id: $type,)+
            /// Its keys.
            pub config: $keys,
            /// Its place.
            pub source: ObjectSource,
        }

        /// A list of them.
        #[derive(Debug, Serialize, Deserialize, ToSchema)]
        pub struct $list {
            /// The objects.
            pub items: Vec<$view>,
        }
    };
}

object_view! {
    /// A target.
    TargetView, TargetList, TargetKeys {
        /// Its name.
        name: String,
        /// Whether hosts can use it.
        state: TargetState,
    }
}

object_view! {
    /// A LUN of a target.
    LunView, LunList, LunConfig {
        /// The target.
        target: String,
        /// The LUN.
        lun: u16,
        /// The size that hosts see; null if the LUN is not served.
        capacity_bytes: Option<u64>,
    }
}

object_view! {
    /// An access entry of a target.
    AccessView, AccessEntries, AccessKeys {
        /// The target.
        target: String,
        /// Its place in the list: the first matching entry decides.
        index: usize,
    }
}

object_view! {
    /// A disk that LUNs of several targets may show.
    DiskView, DiskList, DiskConfig {
        /// Its name.
        name: String,
    }
}

object_view! {
    /// A CHAP user.
    ChapUserView, ChapUserList, ChapUserKeys {
        /// Its identifier.
        id: String,
    }
}

object_view! {
    /// A portal group.
    PortalGroupView, PortalGroupList, PortalGroupKeys {
        /// Its tag.
        tag: u16,
    }
}

// After the macros that it uses.
mod subsystem;

pub use subsystem::{
    HostKeys, HostList, HostView, NamespaceItem, NamespaceKeys, NamespaceList, SubsystemKeys, SubsystemList,
    SubsystemView,
};
