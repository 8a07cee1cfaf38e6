//! NVMe subsystems, their namespaces and their hosts.

use super::{FilterConfig, FilterKeys, SizeValue};
use lunar_admin::{ObjectSource, TargetState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The keys of a subsystem.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SubsystemKeys {
    /// Serial number, up to 20 characters.
    pub serial: Option<String>,
    /// Model number, up to 40 characters.
    pub model: Option<String>,
    /// Tags of its portal groups; all if absent.
    pub portal_groups: Option<Vec<u16>>,
    /// Patterns of host names (HOSTNQN); every host if absent.
    pub allowed_hosts: Option<Vec<String>>,
    /// Networks of hosts; all if absent.
    pub networks: Option<Vec<String>>,
    /// Whether hosts cannot write.
    pub read_only: Option<bool>,
    /// Whether new connections are refused.
    pub offline: Option<bool>,
    /// File with the secret of the subsystem, which only the user of the server can access.
    pub secret_file: Option<String>,
    /// The secret, which the server writes to a file. No response has it.
    #[schema(write_only)]
    pub secret: Option<String>,
}

medium_keys! {
    /// The keys of a namespace: those of a LUN of a target, `disk`, or those of a disk.
    NamespaceKeys, SizeValue, FilterKeys {
        /// The target whose LUN it is.
        target: String,
        /// The LUN.
        lun: u16,
        /// Name of a disk that it shows.
        disk: String,
        /// UUID; derived from the disk if absent. `eui64` is the EUI64 of the namespace.
        uuid: String,
        /// NGUID, hexadecimal; derived from the disk if absent.
        nguid: String,
    }
}

medium_keys! {
    /// The keys of a namespace in a response: sizes are bytes.
    NamespaceConfig, u64, FilterConfig {
        /// The target whose LUN it is.
        target: String,
        /// The LUN.
        lun: u16,
        /// Name of a disk that it shows.
        disk: String,
        /// UUID; derived from the disk if absent. `eui64` is the EUI64 of the namespace.
        uuid: String,
        /// NGUID, hexadecimal; derived from the disk if absent.
        nguid: String,
    }
}

/// The keys of a host that must prove that it knows a secret, or a key of TLS.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HostKeys {
    /// File with the secret, which only the user of the server can access.
    pub secret_file: Option<String>,
    /// File with the key of TLS, which only the user of the server can access.
    pub tls_key_file: Option<String>,
    /// The secret, which the server writes to a file. No response has it.
    #[schema(write_only)]
    pub secret: Option<String>,
}

object_view! {
    /// An NVMe subsystem.
    SubsystemView, SubsystemList, SubsystemKeys {
        /// Its NQN.
        nqn: String,
        /// Whether hosts can use it.
        state: TargetState,
        /// The number of controllers that hosts have connected.
        controllers: usize,
    }
}

object_view! {
    /// A namespace of a subsystem.
    NamespaceItem, NamespaceList, NamespaceConfig {
        /// NQN of the subsystem.
        subsystem: String,
        /// The NSID.
        nsid: u16,
        /// The size that hosts see; null if the namespace is not served.
        capacity_bytes: Option<u64>,
    }
}

object_view! {
    /// A host with a secret that a subsystem admits.
    HostView, HostList, HostKeys {
        /// NQN of the subsystem.
        subsystem: String,
        /// NQN of the host.
        nqn: String,
    }
}
