//! Options of a session: names, credentials, transport, negotiation and timeouts.
//!
//! ```
//! use lunar_initiator::options::{Credentials, Options};
//!
//! let mut options = Options::new("iqn.2026-11.org.example:host");
//! options.credentials = Some(Credentials::new("alice", b"a secret of 96 bits"));
//! options.offer.header_digest.crc32c = true;
//! ```

use crate::SessionHooks;
pub use crate::portal::Portal;
#[doc(inline)]
pub use crate::transport::{SessionTransport, Transport};
#[doc(inline)]
pub use lunar_proto::chap::{Algorithm, Secret};
#[doc(inline)]
pub use lunar_proto::initiator::login::Credentials;
#[doc(inline)]
pub use lunar_proto::parameters::{AllowedDigests, Offer, TaskReporting};
#[doc(inline)]
pub use lunar_wire::srp::PortId;
use std::sync::Arc;
use std::time::Duration;

/// Timeouts of a session. The defaults follow Open-iSCSI.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timeouts {
    /// The limit for each attempt to connect and log in.
    pub login: Duration,
    /// The wait for the Logout Response.
    pub logout: Duration,
    /// The idle time after which a NOP-Out is sent. Zero disables it.
    pub noop_interval: Duration,
    /// The wait for the answer to the NOP-Out.
    pub noop: Duration,
    /// The wait for the response to a command. Afterwards the command is aborted and retried.
    pub command: Duration,
    /// The wait for the response to ABORT TASK. Afterwards the logical unit is reset.
    pub abort: Duration,
    /// The wait for the response to LOGICAL UNIT RESET. Afterwards the target is reset.
    pub lun_reset: Duration,
    /// The wait for the response to TARGET WARM RESET. Afterwards the connection is dropped and the session recovers.
    pub target_reset: Duration,
    /// The time to recover a lost session before its commands fail (Open-iSCSI: `replacement_timeout`).
    pub recovery: Duration,
    /// The time to recover a lost session before LOGICAL UNIT RESET ends its writes, through another path or at another
    /// portal group (dm-multipath: `fast_io_fail_tmo`).
    pub fast_io_fail: Duration,
    /// The longest pause between two attempts to reconnect.
    pub pause: Duration,
    /// The time that a logical unit may be busy or becoming ready before its commands fail.
    pub busy: Duration,
    /// The same for a transition between two ALUA access states. None means the same time as `busy`. Multipath sets
    /// zero: a command must fail before another path is tried.
    pub transition: Option<Duration>,
    /// The total time of one operation, including all attempts, recoveries and pauses.
    pub operation: Duration,
    /// The number of attempts of the first login while the target is unreachable.
    pub login_tries: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        let s = Duration::from_secs;
        Timeouts {
            login: s(15),
            logout: s(15),
            noop_interval: s(5),
            noop: s(5),
            command: s(30),
            abort: s(15),
            lun_reset: s(30),
            target_reset: s(30),
            recovery: s(120),
            fast_io_fail: s(5),
            pause: s(8),
            busy: s(120),
            transition: None,
            operation: s(180),
            login_tries: 8,
        }
    }
}

/// An RDMA provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Provider {
    /// Software iWARP, over TCP.
    #[default]
    Iwarp,
    /// The RDMA device with a route to the portal, through rdma-core.
    Verbs,
}

impl Provider {
    /// The names in URLs.
    pub(crate) const NAMES: [(&str, Provider); 2] = [("iwarp", Provider::Iwarp), ("verbs", Provider::Verbs)];
}

/// The treatment of a write whose connection is lost. The target may still execute it, even after newer commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LateWrites {
    /// The write waits, whatever the timeouts. It is neither sent again nor failed while the target may still execute
    /// it. A new login of the session or a reset of the logical unit ends the wait. For programs that continue after
    /// an error.
    #[default]
    Wait,
    /// The timeouts apply: the write is sent again or fails. For programs that report the failure and exit.
    Risk,
}

impl LateWrites {
    /// The names in URLs and configurations.
    pub const NAMES: [(&str, LateWrites); 2] = [("wait", LateWrites::Wait), ("risk", LateWrites::Risk)];
}

/// Options of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The iSCSI name of this initiator. Over SRP, the GUID of the initiator port is derived from it.
    pub initiator: String,
    /// User and secret for CHAP, in both directions: see [`Credentials::new`].
    pub credentials: Option<Credentials>,
    /// The transport.
    pub transport: Transport,
    /// The RDMA provider.
    pub provider: Provider,
    /// The keys to negotiate.
    pub offer: Offer,
    /// Whether CRC32C is preferred over no digest where both are acceptable.
    pub crc32c_first: bool,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// The treatment of a write whose connection is lost.
    pub late_writes: LateWrites,
    /// The maximum number of commands in flight, 1 to 4096.
    pub commands: u16,
    /// The size of the socket's receive and send buffers in bytes. None leaves it to the kernel.
    pub window: Option<u32>,
    /// The ISID. None creates a new one for each session. A persistent reservation belongs to the initiator name and
    /// the ISID: a later session needs both to own it.
    pub isid: Option<[u8; 6]>,
    /// The first half of the SRP initiator port identifier. None derives it from the ISID. A login of the same port
    /// ends its earlier session.
    pub initiator_ext: Option<u64>,
    /// The second half. None derives it from the initiator name.
    pub initiator_guid: Option<u64>,
    /// The number of RDMA channels of an SRP session. Commands are distributed over them.
    pub channels: u16,
    /// Callbacks for the logins and the end of the session.
    pub hooks: Option<Arc<dyn SessionHooks>>,
}

impl Options {
    /// Whether connections go through an RDMA device instead of TCP.
    pub fn by_device(&self) -> bool {
        self.transport != Transport::Tcp && self.provider == Provider::Verbs
    }

    /// The default options with this initiator name.
    pub fn new(initiator: impl Into<String>) -> Options {
        Options {
            initiator: initiator.into(),
            credentials: None,
            transport: Transport::default(),
            provider: Provider::default(),
            offer: offer(),
            crc32c_first: false,
            timeouts: Timeouts::default(),
            late_writes: LateWrites::default(),
            commands: 128,
            window: None,
            isid: None,
            initiator_ext: None,
            initiator_guid: None,
            channels: 1,
            hooks: None,
        }
    }

    /// These options with this [`Options::isid`].
    pub fn with_isid(self, isid: [u8; 6]) -> Options {
        Options { isid: Some(isid), ..self }
    }

    /// The SRP initiator port of a session with this ISID.
    pub fn srp_port(&self, isid: [u8; 6]) -> PortId {
        crate::srp::initiator_port(&self.initiator, isid, (self.initiator_ext, self.initiator_guid))
    }
}

/// The default offer: Open-iSCSI's values, except for several R2Ts and no digests.
fn offer() -> Offer {
    let digests = AllowedDigests { none: true, crc32c: false };
    Offer {
        max_burst_length: 16_776_192,
        // At ErrorRecoveryLevel 0, a new session need not wait. The target may choose a longer time.
        default_time2wait: 0,
        default_time2retain: 0,
        header_digest: digests,
        data_digest: digests,
        // FastAbort is not offered: this initiator answers R2Ts of tasks that are being aborted.
        task_reporting: TaskReporting::ResponseFence,
        ..Offer::default()
    }
}
