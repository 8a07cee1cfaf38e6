//! The transport of a session.

use lunar_proto::login::SEGMENT_LEN;
use lunar_proto::parameters::{AllowedDigests, Offer};
use std::fmt;

/// The transport of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// TCP (RFC 7143).
    #[default]
    Tcp,
    /// iSER: iSCSI over RDMA (RFC 7145).
    Iser,
    /// SRP, the SCSI RDMA Protocol. It has no iSCSI PDUs and thus no text keys, digests or CHAP.
    Srp,
}

impl Transport {
    /// The name in output and records.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Iser => "iser",
            Transport::Srp => "srp",
        }
    }

    /// The URL scheme.
    pub fn scheme(self) -> &'static str {
        match self {
            Transport::Tcp => "iscsi",
            Transport::Iser | Transport::Srp => self.name(),
        }
    }

    /// Adapts the offer to this transport. Over iSER, the target requests all data by R2T, and there are no digests.
    pub(crate) fn offer(self, offer: &Offer) -> Offer {
        let none = AllowedDigests { none: true, crc32c: false };
        match self {
            Transport::Tcp | Transport::Srp => offer.clone(),
            Transport::Iser => Offer {
                rdma_extensions: true,
                initial_r2t: true,
                max_outstanding_r2t: 1,
                // The size of one message. Discovery sessions declare it.
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

/// The transport of a session and its provider. As text: `tcp`, `iser/iwarp`, `srp/verbs:rxe0`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionTransport {
    /// The transport.
    pub transport: Transport,
    /// The RDMA provider and its device, as `verbs:rxe0`. None: TCP.
    pub provider: Option<String>,
}

impl fmt::Display for SessionTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.provider {
            Some(provider) => write!(f, "{}/{provider}", self.transport.name()),
            None => f.write_str(self.transport.name()),
        }
    }
}
