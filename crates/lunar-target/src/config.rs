//! A whole configuration as the target runs it: plain values, checked by whoever makes them. It is replaced
//! as a whole when the configuration is read again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::{Instance, LogicalUnit};
use lunar_proto::chap::Algorithm;
pub use lunar_proto::parameters::Digests;
use lunar_proto::parameters::Offer;
use lunar_wire::iscsi::status::LoginStatus;
use zeroize::Zeroizing;

/// Everything that is served, to whom, and within which limits.
pub struct TargetConfig {
    /// Bounds on what peers can make the process hold.
    pub limits: TargetLimits,
    /// What is offered and accepted in negotiation.
    pub session: SessionConfig,
    /// Who may discover.
    pub discovery: DiscoveryConfig,
    /// Where connections arrive.
    pub portal_groups: Vec<PortalGroup>,
    /// What is served, by iSCSI name.
    pub targets: BTreeMap<String, TargetNode>,
    /// Tags of portal groups at which more targets are to come: logins to others than those that are there are refused with
    /// 03/01 there, so that initiators try again.
    pub awaited: BTreeSet<u16>,
    /// The SCSI routing instance whose targets alone are found at a portal group, by its tag: who asks for any other there
    /// has asked it.
    pub instances: BTreeMap<u16, Arc<Instance>>,
    /// What keys of our own mean in Text Requests.
    pub text_keys: TextKeyHandler,
}

impl TargetConfig {
    /// Counts a login to a target that was refused at a portal group.
    pub(crate) fn refused(&self, group: u16, target: &str, status: LoginStatus) {
        let own = || self.targets.get(target)?.instance.as_ref();
        if let Some(instance) = self.instances.get(&group).or_else(own) {
            instance.refused(status);
        }
    }
}

/// Who answers the keys whose names begin with X-org.lunar. (RFC 7143 section 13.26) in Text Requests, of normal
/// and of Discovery sessions. By default nobody does, and they are keys like any other that is not known.
#[derive(Clone, Default)]
pub struct TextKeyHandler(Option<Arc<TextKeyFn>>);

/// From the target of the session (None in discovery), a key and its value to the value of the answer, without NUL;
/// None is NotUnderstood, which a Discovery session rejects. It is called on the cores that serve, so it must not wait.
type TextKeyFn = dyn Fn(Option<&str>, &str, &str) -> Option<String> + Send + Sync;

impl TextKeyHandler {
    /// They are answered so.
    pub fn new(
        answer: impl Fn(Option<&str>, &str, &str) -> Option<String> + Send + Sync + 'static,
    ) -> TextKeyHandler {
        TextKeyHandler(Some(Arc::new(answer)))
    }

    /// The answer to a key.
    pub(crate) fn ask(&self, target: Option<&str>, key: &str, value: &str) -> Option<String> {
        self.0.as_ref()?(target, key, value)
    }
}

/// Bounds on what peers can make the process hold.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetLimits {
    /// TCP connections in all.
    pub connections: usize,
    /// Connections that have not logged in.
    pub connections_before_login: usize,
    /// A login that takes longer is cut.
    pub login_timeout: Duration,
    /// Normal sessions in all.
    pub sessions: usize,
    /// Normal sessions of one initiator name: of a CHAP user, or of an address where there is no user. A name that was
    /// only claimed proves nothing.
    pub sessions_per_initiator: usize,
    /// Discovery sessions in all.
    pub discovery_sessions: usize,
    /// A discovery session that is silent for longer is ended.
    pub discovery_timeout: Duration,
    /// The CmdSN window.
    pub commands_per_session: u32,
    /// Bytes of key text in one negotiation.
    pub text_bytes: usize,
    /// Bytes of buffers of commands in flight.
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
    /// May no header digest be chosen, may CRC32C be.
    pub header_digest: Digests,
    /// The same for data.
    pub data_digest: Digests,
    /// Ping an initiator after so much silence; None: never.
    pub nop_interval: Option<Duration>,
    /// End the connection when a ping stays unanswered so long.
    pub nop_timeout: Duration,
    /// End the connection when data of a write that was announced does not come for so long.
    pub data_out_timeout: Duration,
    /// CHAP algorithms that an initiator may choose.
    pub chap_algorithms: Vec<Algorithm>,
}

impl SessionConfig {
    /// The same as negotiation wants it.
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

/// Who may discover.
#[derive(Clone, Debug, Default)]
pub struct DiscoveryConfig {
    /// Discovery sessions are refused (02/09).
    pub disabled: bool,
    /// Users that may; None: everybody, without CHAP.
    pub chap: Option<Vec<ChapAccount>>,
    /// As whom the target answers a challenge.
    pub mutual: Option<ChapAccount>,
}

/// A CHAP name and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct ChapAccount {
    /// CHAP_N.
    pub name: String,
    /// The secret; never printed, and cleared from memory when it goes.
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
    /// Where to listen.
    pub listen: SocketAddr,
    /// What SendTargets tells instead: host[:port].
    pub advertise: Option<String>,
    /// What it carries.
    pub transports: Transports,
}

impl Portal {
    /// One that is what it says, for iSCSI over TCP.
    pub fn tcp(listen: SocketAddr) -> Portal {
        Portal { listen, advertise: None, transports: Transports::TCP }
    }
}

/// What a portal carries. One port may carry iSCSI in both of its forms, told apart by their first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports {
    /// iSCSI over TCP.
    pub tcp: bool,
    /// iSCSI over RDMA (RFC 7145).
    pub iser: bool,
    /// SRP; then it carries nothing else.
    pub srp: bool,
    /// What is RDMA here.
    pub provider: RdmaProvider,
}

/// What carries RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RdmaProvider {
    /// Software iWARP, on the TCP port.
    #[default]
    Iwarp,
    /// The RDMA devices that have the address, by rdma-core.
    Verbs,
}

impl Transports {
    /// iSCSI over TCP alone.
    pub const TCP: Transports =
        Transports { tcp: true, iser: false, srp: false, provider: RdmaProvider::Iwarp };

    /// SRP alone.
    pub const SRP: Transports = Transports { tcp: false, srp: true, ..Transports::TCP };

    /// Something is carried by RDMA.
    pub fn by_rdma(self) -> bool {
        self.iser || self.srp
    }

    /// Connections come by RDMA devices.
    pub fn by_devices(self) -> bool {
        self.by_rdma() && self.provider == RdmaProvider::Verbs
    }

    /// Connections come by TCP.
    pub fn by_tcp(self) -> bool {
        self.tcp || !self.by_devices()
    }
}

/// What is carried, in words: `TCP and iSER`, `SRP by RDMA devices`.
impl fmt::Display for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.srp, self.tcp, self.iser) {
            (true, ..) => "SRP",
            (_, true, true) => "TCP and iSER",
            (_, _, true) => "iSER",
            _ => "TCP",
        })?;
        f.write_str(if self.by_devices() { " by RDMA devices" } else { "" })
    }
}

/// A target node.
pub struct TargetNode {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Tags of the portal groups where it is found.
    pub portal_groups: Vec<u16>,
    /// Where logins to a portal group are sent instead.
    pub redirects: Vec<LoginRedirect>,
    /// Logins are refused with 03/01.
    pub offline: bool,
    /// As whom it answers a challenge (mutual CHAP).
    pub mutual: Option<ChapAccount>,
    /// Its logical units.
    pub luns: BTreeMap<u16, Arc<LogicalUnit>>,
    /// Who may use which of them; the first entry that matches decides. Empty: everybody, all.
    pub access: Vec<AccessRule>,
    /// The SCSI routing instance that it belongs to.
    pub instance: Option<Arc<Instance>>,
    /// Commands that a session may have in flight, where that is less than [`TargetLimits::commands_per_session`]: as
    /// many as the logical units behind it take.
    pub depth: Option<u32>,
}

/// A login redirect.
#[derive(Clone, Debug, PartialEq)]
pub struct LoginRedirect {
    /// For logins to this portal group.
    pub portal_group: u16,
    /// host[:port] of the new place.
    pub to: String,
    /// For good.
    pub permanent: bool,
}

/// An entry of an access list.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(Default))]
pub struct AccessRule {
    /// Patterns of initiator names with * and ?; empty: all.
    pub initiators: Vec<String>,
    /// Networks; empty: all.
    pub networks: Vec<IpNetwork>,
    /// One of these users must log in by CHAP; None: no authentication asked for.
    pub chap: Option<Vec<ChapAccount>>,
    /// Initiator's LUN to target's LUN; None: all, unchanged.
    pub luns: Option<BTreeMap<u16, u16>>,
    /// Writes are refused.
    pub read_only: bool,
    /// Send asynchronous SCSI events.
    pub aen: bool,
}

/// An address with the number of its leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    /// The address.
    pub address: IpAddr,
    /// 0 to 32, or 0 to 128.
    pub bits: u8,
}
