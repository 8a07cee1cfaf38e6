//! The configuration that the target runs: plain values, checked by the code that builds them. A reload replaces it as
//! a whole.

mod tls_key;
mod transports;

use lunar_scsi::{TargetPort, TransportProtocol};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub use crate::nvme::identifiers::{GivenNamespaceIds, NamespaceIds};
use crate::{Instance, LogicalUnit, LoginError};
use lunar_proto::chap::Algorithm;
pub use lunar_proto::nvme::auth::DhChapSecret;
use lunar_proto::nvme::auth::{AuthSecrets, DhGroup};
pub use lunar_proto::nvme::tls::TlsKey;
pub use lunar_proto::parameters::AllowedDigests;
use lunar_proto::parameters::Offer;
/// The name of every NVMe discovery service.
pub use lunar_wire::nvme::DISCOVERY_NQN;
pub use tls_key::{NvmeTlsKey, TlsIdentities};
pub use transports::{PortalProtocol, RdmaProvider, Transports};
use zeroize::Zeroizing;

/// All that the target serves, the initiators that may use it, and the limits.
pub struct TargetConfig {
    /// Bounds on the resources that peers can use.
    pub limits: TargetLimits,
    /// How long an event loop looks for work before it sleeps: [`Cores::set_busy_poll`](lunar_runtime::Cores). A reload
    /// does not change it.
    pub busy_poll: Duration,
    /// Parameters that the target offers and accepts in negotiation.
    pub session: SessionConfig,
    /// Access to discovery.
    pub discovery: DiscoveryConfig,
    /// The portals that accept connections.
    pub portal_groups: Vec<PortalGroup>,
    /// The targets, by iSCSI name.
    pub targets: BTreeMap<String, TargetNode>,
    /// Tags of portal groups for which more targets are still being opened. A login there to an unknown target fails
    /// with 03/01 (out of service), so that the initiator tries again.
    pub awaited: BTreeSet<u16>,
    /// SCSI routing instances by portal group tag, for portal groups that serve one instance only. Failed logins at
    /// such a group count for its instance.
    pub instances: BTreeMap<u16, Arc<Instance>>,
    /// Answers to the X-org.lunar. keys in Text Requests.
    pub text_keys: TextKeyHandler,
    /// The hosts with keys of TLS, which follow from the targets.
    pub tls_identities: TlsIdentities,
}

impl TargetConfig {
    /// Counts a login that was rejected at a portal group.
    pub(crate) fn refused(&self, group: u16, target: &str, error: LoginError) {
        let own = || self.targets.get(target)?.instance.as_ref();
        if let Some(instance) = self.instances.get(&group).or_else(own) {
            instance.refused(error);
        }
    }
}

/// The handler of X-org.lunar. keys (RFC 7143 section 13.26) in Text Requests of normal and Discovery sessions.
/// Without a handler such keys are unknown keys.
#[derive(Clone, Default)]
pub struct TextKeyHandler(Option<Arc<TextKeyFn>>);

/// Arguments: the target of the session (None in discovery), the key and its value. Result: the value to send,
/// without NUL. None answers NotUnderstood, which a Discovery session rejects.
///
/// It runs on the cores that serve commands, so it must not block.
type TextKeyFn = dyn Fn(Option<&str>, &str, &str) -> Option<String> + Send + Sync;

impl TextKeyHandler {
    /// A handler that calls this function.
    pub fn new(
        answer: impl Fn(Option<&str>, &str, &str) -> Option<String> + Send + Sync + 'static,
    ) -> TextKeyHandler {
        TextKeyHandler(Some(Arc::new(answer)))
    }

    /// The value with which to answer a key; None if there is no handler, or it does not understand the key.
    pub(crate) fn ask(&self, target: Option<&str>, key: &str, value: &str) -> Option<String> {
        self.0.as_ref()?(target, key, value)
    }
}

/// Bounds on the resources that peers can use.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetLimits {
    /// Maximum number of TCP connections.
    pub connections: usize,
    /// Maximum number of connections that have not completed their login.
    pub connections_before_login: usize,
    /// Time within which a login must complete.
    pub login_timeout: Duration,
    /// Maximum number of normal sessions.
    pub sessions: usize,
    /// Maximum number of normal sessions of one initiator name. They are counted by CHAP account, or by address
    /// without CHAP, because any initiator can claim a name.
    pub sessions_per_initiator: usize,
    /// Maximum number of Discovery sessions.
    pub discovery_sessions: usize,
    /// Time after which an idle Discovery session ends.
    pub discovery_timeout: Duration,
    /// Size of the CmdSN window.
    pub commands_per_session: u32,
    /// Maximum number of bytes of key text in one negotiation.
    pub text_bytes: usize,
    /// Maximum number of bytes of buffers for commands in flight.
    pub memory: usize,
}

/// Negotiation and keepalive (RFC 7143 section 13).
#[derive(Clone, Debug, PartialEq)]
pub struct SessionConfig {
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength of the target in bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxBurstLength in bytes.
    pub max_burst_length: u32,
    /// FirstBurstLength in bytes.
    pub first_burst_length: u32,
    /// MaxOutstandingR2T, 1 to 32.
    pub max_outstanding_r2t: u16,
    /// DefaultTime2Wait in seconds.
    pub default_time2wait: u16,
    /// DefaultTime2Retain in seconds.
    pub default_time2retain: u16,
    /// Whether the target accepts no header digest, and whether it accepts CRC32C.
    pub header_digest: AllowedDigests,
    /// The same for data digests.
    pub data_digest: AllowedDigests,
    /// Silence of an initiator after which the target pings it. None: it never does.
    pub nop_interval: Option<Duration>,
    /// Time that an initiator has to answer a ping before the target closes the connection.
    pub nop_timeout: Duration,
    /// Time that requested or announced data of a write may be outstanding before the session ends.
    pub data_out_timeout: Duration,
    /// CHAP algorithms that an initiator may choose.
    pub chap_algorithms: Vec<Algorithm>,
}

impl SessionConfig {
    /// The same values as an offer for the negotiation.
    pub(crate) fn offer(&self) -> Offer {
        Offer {
            initial_r2t: self.initial_r2t,
            immediate_data: self.immediate_data,
            max_recv_data_segment_length: self.max_recv_data_segment_length,
            max_burst_length: self.max_burst_length,
            first_burst_length: self.first_burst_length,
            default_time2wait: self.default_time2wait,
            default_time2retain: self.default_time2retain,
            max_outstanding_r2t: self.max_outstanding_r2t,
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            ..Offer::default()
        }
    }
}

/// Access to discovery.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryConfig {
    /// Discovery sessions are rejected with 02/09 (session type not supported).
    pub disabled: bool,
    /// Accounts that may discover; None: all initiators may, without CHAP.
    pub chap: Option<Vec<ChapAccount>>,
    /// The account with which the target answers a challenge (mutual CHAP).
    pub mutual: Option<ChapAccount>,
    /// Other NVMe discovery services that hosts are referred to: `host[:port]`.
    pub nvme_referrals: Vec<String>,
}

/// A CHAP name and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ChapAccount {
    /// CHAP_N.
    pub name: String,
    /// The secret. It is never printed, and its memory is cleared when it is dropped.
    pub secret: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for ChapAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "User({:?}, secret withheld)", self.name)
    }
}

/// Portals that share a tag.
#[derive(Clone, Debug, PartialEq)]
pub struct PortalGroup {
    /// Target portal group tag.
    pub tag: u16,
    /// Its portals.
    pub portals: Vec<Portal>,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq)]
pub struct Portal {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The address that SendTargets reports instead: `host[:port]`.
    pub advertise: Option<String>,
    /// The protocols that it accepts.
    pub transports: Transports,
}

impl Portal {
    /// A portal for iSCSI over TCP that advertises its own address.
    pub fn tcp(listen: SocketAddr) -> Portal {
        Portal { listen, advertise: None, transports: Transports::TCP }
    }
}

/// A target node.
pub struct TargetNode {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Tags of the portal groups that offer it.
    pub portal_groups: Vec<u16>,
    /// Relative target port identifiers by portal group tag, where they are not the tag.
    pub relative_ports: BTreeMap<u16, u16>,
    /// Redirects of logins, by portal group.
    pub redirects: Vec<LoginRedirect>,
    /// Logins fail with 03/01 (out of service).
    pub offline: bool,
    /// The account with which the target answers a challenge (mutual CHAP).
    pub mutual: Option<ChapAccount>,
    /// Its logical units.
    pub luns: BTreeMap<u16, Arc<LogicalUnit>>,
    /// The access list: the first rule that matches applies. Empty: every initiator may use all LUNs.
    pub access: Vec<AccessRule>,
    /// The SCSI routing instance that it belongs to.
    pub instance: Option<Arc<Instance>>,
    /// The SCSI routing instances whose LUNs are its namespaces, if it is an NVMe subsystem. While one of them rejects logins,
    /// the subsystem accepts no hosts.
    pub routed_by: Vec<Arc<Instance>>,
    /// Set if it is an NVMe subsystem: its name is the NQN, and its LUNs are the namespaces.
    pub subsystem: Option<SubsystemSettings>,
    /// Maximum number of commands that a session may have in flight, if the logical units behind the target accept
    /// fewer than [`TargetLimits::commands_per_session`].
    pub depth: Option<u32>,
}

/// The groups of DH-HMAC-CHAP that controllers choose from, the preferred one first. Hosts cannot make a controller compute in
/// the largest ones, which take long. Without a group, a recorded exchange allows guesses of the secret.
const AUTH_GROUPS: [DhGroup; 4] = [DhGroup::Ffdhe2048, DhGroup::Ffdhe3072, DhGroup::Ffdhe4096, DhGroup::Null];

/// The settings that only an NVMe subsystem has.
#[derive(Clone, Debug, PartialEq)]
pub struct SubsystemSettings {
    /// Serial number, at most 20 printable ASCII characters.
    pub serial: String,
    /// Model number, at most 40 printable ASCII characters.
    pub model: String,
    /// The secrets with which hosts authenticate themselves, by NQN. A host without one need not.
    pub hosts: BTreeMap<String, NvmeSecret>,
    /// The secret with which controllers authenticate themselves to hosts that ask for it.
    pub secret: Option<NvmeSecret>,
    /// The keys of hosts that must use TLS, by NQN.
    pub tls_keys: BTreeMap<String, NvmeTlsKey>,
    /// The identifiers that are given to namespaces, by NSID.
    pub given_ids: BTreeMap<u16, GivenNamespaceIds>,
}

/// A secret for DH-HMAC-CHAP.
#[derive(Clone, Debug, PartialEq)]
pub struct NvmeSecret {
    /// The secret.
    pub secret: DhChapSecret,
    /// The file that holds it, for the log.
    pub file: PathBuf,
}

/// The secrets for the authentication of a host, and their files.
pub(crate) struct HostSecrets {
    /// The secrets.
    pub secrets: AuthSecrets,
    /// The file with the secret of the host.
    pub file: PathBuf,
    /// The file with the secret of the subsystem, if it has one.
    pub own_file: Option<PathBuf>,
}

/// The most namespaces of a subsystem, which is also the largest NSID. The access log page must have room for all in one
/// transfer.
pub const MAX_NAMESPACES: u32 = 1024;

/// Checks the name of an NVMe subsystem.
///
/// # Errors
/// The fault of the name.
pub fn check_nqn(text: &str) -> Result<(), lunar_wire::nvme::InvalidNqn> {
    lunar_wire::nvme::Nqn::new(text).map(drop)
}

impl SubsystemSettings {
    /// The model number of subsystems that name none.
    pub const MODEL: &str = "Lunar";

    /// The settings of a subsystem. Without a serial number, it gets one that is made from its NQN.
    pub fn new(nqn: &str, serial: Option<&str>, model: Option<&str>) -> SubsystemSettings {
        let made = || crate::nvme::identifiers::serial_of(nqn);
        SubsystemSettings {
            serial: serial.map_or_else(made, str::to_owned),
            model: model.unwrap_or(SubsystemSettings::MODEL).to_owned(),
            hosts: BTreeMap::new(),
            secret: None,
            tls_keys: BTreeMap::new(),
            given_ids: BTreeMap::new(),
        }
    }

    /// The secrets for the authentication of a host; None: it need not authenticate itself.
    pub(crate) fn secrets_of(&self, host: &str) -> Option<HostSecrets> {
        let (host, own) = (self.hosts.get(host)?.clone(), self.secret.clone());
        let secrets = AuthSecrets::new(host.secret, own.as_ref().map(|own| own.secret.clone()));
        let secrets = AuthSecrets { groups: AUTH_GROUPS.into(), ..secrets };
        Some(HostSecrets { secrets, file: host.file, own_file: own.map(|own| own.file) })
    }
}

impl TargetNode {
    /// Whether a SCSI routing instance of its namespaces rejects logins.
    pub(crate) fn is_draining(&self) -> bool {
        self.routed_by.iter().any(|instance| instance.draining.load(Relaxed))
    }

    /// Its target port for a portal group and a protocol.
    pub(crate) fn port(&self, protocol: TransportProtocol, group: u16) -> TargetPort {
        TargetPort::new(protocol, group, self.relative_ports.get(&group).copied())
    }
}

/// A login redirect.
#[derive(Clone, Debug, PartialEq)]
pub struct LoginRedirect {
    /// The portal group whose logins are redirected.
    pub portal_group_tag: u16,
    /// The new address: `host[:port]`.
    pub to: String,
    /// The redirect is permanent.
    pub permanent: bool,
}

/// A rule of an access list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessRule {
    /// Patterns of initiator names with `*` and `?`; empty: all names.
    pub initiators: Vec<String>,
    /// Networks of initiators; empty: all addresses.
    pub networks: Vec<IpNetwork>,
    /// Addresses of this host to which the initiators connect; empty: all addresses.
    pub portals: Vec<IpNetwork>,
    /// Initiators that match must not log in. The other settings have no effect then.
    pub deny: bool,
    /// The accounts of which the initiator must log in with one. None: no authentication.
    pub chap: Option<Vec<ChapAccount>>,
    /// The account of the target for mutual CHAP with these initiators. None: that of the target.
    pub mutual: Option<ChapAccount>,
    /// Maps the LUN that the initiator uses to the LUN of the target. None: all LUNs, unchanged.
    pub luns: Option<BTreeMap<u16, u16>>,
    /// Writes are rejected.
    pub read_only: bool,
    /// The LUNs, by the numbers that the initiator uses, to which alone writes are rejected.
    pub read_only_luns: BTreeSet<u16>,
    /// The target sends asynchronous SCSI events.
    pub aen: bool,
}

/// An IP network: an address and a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    /// The address.
    pub address: IpAddr,
    /// Prefix length: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub bits: u8,
}
