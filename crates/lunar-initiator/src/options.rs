//! Where to connect, as whom, and how long to wait.

use crate::SessionHooks;
pub use crate::portal::Portal;
use lunar_proto::initiator::login::Credentials;
use lunar_proto::login::SEGMENT_LEN;
use lunar_proto::parameters::{Digests, Offer, TaskReporting};
use lunar_wire::srp::PortId;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait for what. The defaults are those that users of Open-iSCSI know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Connecting and login, each try.
    pub login: Duration,
    /// The answer to a logout.
    pub logout: Duration,
    /// Silence after which a NOP-Out is sent; zero is never.
    pub noop_interval: Duration,
    /// The answer to the NOP-Out.
    pub noop: Duration,
    /// A command, until it is aborted and tried again.
    pub command: Duration,
    /// ABORT TASK, until the logical unit is reset.
    pub abort: Duration,
    /// LOGICAL UNIT RESET, until the target is reset.
    pub lun_reset: Duration,
    /// TARGET WARM RESET, until the connection is given up and the session recovers.
    pub target_reset: Duration,
    /// A lost session, until its commands fail: Open-iSCSI's replacement_timeout.
    pub recovery: Duration,
    /// Writes of a lost session, until LOGICAL UNIT RESET ends them through another path, or at another portal group:
    /// fast_io_fail_tmo of dm-multipath.
    pub fast_io_fail: Duration,
    /// The longest pause between two tries to reconnect.
    pub pause: Duration,
    /// A logical unit that is busy or becoming ready, until its commands fail.
    pub busy: Duration,
    /// The same of one that is between two access states (ALUA); None is as long. Where there are other paths it is
    /// zero: they are not taken before the command has failed.
    pub transition: Option<Duration>,
    /// Any one command with all its tries and recoveries, and the pauses between them.
    pub operation: Duration,
    /// Tries of the first login while the target cannot be reached.
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

/// The transport of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// TCP (RFC 7143).
    #[default]
    Tcp,
    /// RDMA (RFC 7145).
    Iser,
    /// The SCSI RDMA Protocol, where there are no PDUs: no key text, no digests, no CHAP.
    Srp,
}

/// A provider of RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// Software iWARP, over TCP.
    #[default]
    Iwarp,
    /// The RDMA device that leads there, by rdma-core.
    Verbs,
}

impl Provider {
    /// Names in URLs.
    pub(crate) const NAMES: [(&str, Provider); 2] = [("iwarp", Provider::Iwarp), ("verbs", Provider::Verbs)];
}

impl Transport {
    /// Its name in output and records.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Iser => "iser",
            Transport::Srp => "srp",
        }
    }

    /// The scheme of its URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Transport::Tcp => "iscsi",
            Transport::Iser | Transport::Srp => self.name(),
        }
    }

    /// What is offered where this carries the session: over RDMA the target asks for data, and there are no digests.
    pub(crate) fn offer(self, offer: &Offer) -> Offer {
        let none = Digests { none: true, crc32c: false };
        match self {
            Transport::Tcp | Transport::Srp => offer.clone(),
            Transport::Iser => Offer {
                rdma_extensions: true,
                initial_r2t: true,
                max_outstanding_r2t: 1,
                // What a message holds; Discovery sessions declare it.
                max_recv_data_segment_length: SEGMENT_LEN as u32,
                target_recv_data_segment_length: SEGMENT_LEN as u32,
                initiator_recv_data_segment_length: SEGMENT_LEN as u32,
                header_digest: none,
                data_digest: none,
                ..offer.clone()
            },
        }
    }
}

/// The treatment of a command that changes the medium and whose connection is lost. The target may still carry it out,
/// also after newer ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LateWrites {
    /// It waits, whatever the time-outs: it is not sent again and does not end before the target can no longer carry it
    /// out. That is so once the session has logged in again, or the logical unit was reset. Right for owners that go on.
    #[default]
    Wait,
    /// It is sent again or ends as the time-outs say. Right for a program that reports the failure and ends.
    Risk,
}

impl LateWrites {
    /// Names in URLs and configurations.
    pub const NAMES: [(&str, LateWrites); 2] = [("wait", LateWrites::Wait), ("risk", LateWrites::Risk)];
}

/// Options of a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// Our iSCSI name. Over SRP our port has its GUID of it.
    pub initiator: String,
    /// User and secret for CHAP, in both directions.
    pub credentials: Option<Credentials>,
    /// The transport.
    pub transport: Transport,
    /// The provider of RDMA.
    pub provider: Provider,
    /// The keys that are offered in negotiation.
    pub offer: Offer,
    /// Where CRC32C and no digest both will do, CRC32C is preferred.
    pub crc32c_first: bool,
    /// Time-outs.
    pub timeouts: Timeouts,
    /// The treatment of a write whose connection is lost.
    pub late_writes: LateWrites,
    /// Commands in flight at most, 1 to 4096.
    pub commands: u16,
    /// Receive and send buffer of the socket in bytes; None leaves them to the kernel.
    pub window: Option<u32>,
    /// Our part of the session's identifier; None is a new one for each session. Persistent reservations
    /// belong to it and our name together: a later session needs the same ISID to own them.
    pub isid: Option<[u8; 6]>,
    /// The first half of our port over SRP; None is the ISID. A target ends the session that such a port had when it
    /// logs in again.
    pub initiator_ext: Option<u64>,
    /// The second half; None is made of our name.
    pub initiator_guid: Option<u64>,
    /// Channels of a session over SRP: commands are dealt out over them.
    pub channels: u16,
    /// Callbacks for its logins and its end.
    pub hooks: Option<Arc<dyn SessionHooks>>,
}

impl Options {
    /// Connections are made by an RDMA device, and not by TCP.
    pub fn by_device(&self) -> bool {
        self.transport != Transport::Tcp && self.provider == Provider::Verbs
    }

    /// The defaults, under this name.
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

    /// Our port over SRP, in a session of this ISID.
    pub fn srp_port(&self, isid: [u8; 6]) -> PortId {
        crate::srp::initiator_port(&self.initiator, isid, (self.initiator_ext, self.initiator_guid))
    }
}

/// The default offer: Open-iSCSI's values, several R2Ts, no digests.
fn offer() -> Offer {
    let digests = Digests { none: true, crc32c: false };
    Offer {
        max_burst_length: 16_776_192,
        // Level 0 leaves nothing behind that a new session would have to wait for; a target may want it longer.
        default_time2wait: 0,
        default_time2retain: 0,
        header_digest: digests,
        data_digest: digests,
        // FastAbort is not offered: R2Ts of tasks that are being aborted are answered.
        task_reporting: TaskReporting::ResponseFence,
        ..Offer::default()
    }
}
