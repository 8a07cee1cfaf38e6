//! The values that a negotiation offers, and its result (RFC 7143 section 13).

/// TaskReporting: how a target reports tasks that a task management function ended (RFC 7143 section 13.23), weakest
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskReporting {
    /// As RFC 3720 defines it.
    #[default]
    Rfc3720,
    /// Responses are fenced.
    ResponseFence,
    /// Responses are fenced, and aborted tasks end at once (RFC 7143 section 4.2.3.4).
    FastAbort,
}

impl TaskReporting {
    /// The values in key text.
    pub const NAMES: [(&str, Self); 3] =
        [("RFC3720", Self::Rfc3720), ("ResponseFence", Self::ResponseFence), ("FastAbort", Self::FastAbort)];
}

/// The values in force on a connection and its session. The default values are those of RFC 7143.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// InitialR2T: every write waits for an R2T.
    pub initial_r2t: bool,
    /// ImmediateData: a SCSI Command may carry data.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength of this side, in bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxRecvDataSegmentLength of the peer, in bytes.
    pub max_xmit_data_segment_length: u32,
    /// MaxBurstLength: maximum data of one solicited sequence or Data-In sequence, in bytes.
    pub max_burst_length: u32,
    /// FirstBurstLength: maximum unsolicited data of one command, in bytes.
    pub first_burst_length: u32,
    /// DefaultTime2Wait: seconds to wait before a reconnect.
    pub default_time2wait: u16,
    /// DefaultTime2Retain: seconds for which a target keeps the state of a broken connection.
    pub default_time2retain: u16,
    /// MaxOutstandingR2T of one task.
    pub max_outstanding_r2t: u16,
    /// DataPDUInOrder: the data PDUs of a sequence arrive in order of their offset.
    pub data_pdu_in_order: bool,
    /// DataSequenceInOrder: the sequences arrive in order of their offset.
    pub data_sequence_in_order: bool,
    /// ErrorRecoveryLevel, 0 to 2.
    pub error_recovery_level: u8,
    /// MaxConnections of the session.
    pub max_connections: u16,
    /// A CRC32C digest follows each header.
    pub header_digest: bool,
    /// A CRC32C digest follows each data segment.
    pub data_digest: bool,
    /// TaskReporting.
    pub task_reporting: TaskReporting,
    /// iSCSIProtocolLevel.
    pub protocol_level: u8,
    /// RDMAExtensions: data moves by RDMA (RFC 7145 section 6.3).
    pub rdma_extensions: bool,
    /// TargetRecvDataSegmentLength: the longest data segment that the target receives over RDMA, in bytes.
    pub target_recv_data_segment_length: u32,
    /// InitiatorRecvDataSegmentLength: the same for the initiator.
    pub initiator_recv_data_segment_length: u32,
    /// TaggedBufferForSolicitedDataOnly: the buffer that a write advertises begins after its unsolicited data, which
    /// is what Linux does by default. If false, it begins at the first byte (RFC 7145 section 6.9).
    pub tagged_buffer_for_solicited_data_only: bool,
}

impl Parameters {
    /// Keys and values as logins and `lunar session show` print them. Keys of iSER are included if RDMAExtensions is Yes.
    pub fn listing(&self) -> Vec<(&'static str, String)> {
        let yes = |flag: bool| String::from(if flag { "Yes" } else { "No" });
        let digest = |on: bool| String::from(if on { "CRC32C" } else { "None" });
        let mut listing = vec![
            ("InitialR2T", yes(self.initial_r2t)),
            ("ImmediateData", yes(self.immediate_data)),
            ("MaxConnections", self.max_connections.to_string()),
            ("MaxRecvDataSegmentLength", self.max_recv_data_segment_length.to_string()),
            ("MaxXmitDataSegmentLength", self.max_xmit_data_segment_length.to_string()),
            ("MaxBurstLength", self.max_burst_length.to_string()),
            ("FirstBurstLength", self.first_burst_length.to_string()),
            ("DefaultTime2Wait", self.default_time2wait.to_string()),
            ("DefaultTime2Retain", self.default_time2retain.to_string()),
            ("MaxOutstandingR2T", self.max_outstanding_r2t.to_string()),
            ("DataPDUInOrder", yes(self.data_pdu_in_order)),
            ("DataSequenceInOrder", yes(self.data_sequence_in_order)),
            ("ErrorRecoveryLevel", self.error_recovery_level.to_string()),
            ("HeaderDigest", digest(self.header_digest)),
            ("DataDigest", digest(self.data_digest)),
            // RFC 7143 section 13.25 made markers obsolete: they are always refused.
            ("OFMarker", yes(false)),
            ("IFMarker", yes(false)),
            ("OFMarkInt", "Reject".into()),
            ("IFMarkInt", "Reject".into()),
        ];
        if self.rdma_extensions {
            let solicited_only = self.tagged_buffer_for_solicited_data_only;
            listing.extend([
                ("RDMAExtensions", yes(true)),
                ("TargetRecvDataSegmentLength", self.target_recv_data_segment_length.to_string()),
                ("InitiatorRecvDataSegmentLength", self.initiator_recv_data_segment_length.to_string()),
                ("TaggedBufferForSolicitedDataOnly", yes(solicited_only)),
            ]);
        }
        listing
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            initial_r2t: true,
            immediate_data: true,
            max_recv_data_segment_length: 8192,
            max_xmit_data_segment_length: 8192,
            max_burst_length: 262144,
            first_burst_length: 65536,
            default_time2wait: 2,
            default_time2retain: 20,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            max_connections: 1,
            header_digest: false,
            data_digest: false,
            task_reporting: TaskReporting::Rfc3720,
            protocol_level: 1,
            rdma_extensions: false,
            target_recv_data_segment_length: 8192,
            initiator_recv_data_segment_length: 8192,
            tagged_buffer_for_solicited_data_only: true,
        }
    }
}

impl Parameters {
    /// The values of a new connection of a session that negotiated `session`. Only values of connection scope (RFC
    /// 7143 section 13) are taken from `self`.
    pub fn joining(&self, session: &Parameters) -> Parameters {
        Parameters {
            max_recv_data_segment_length: self.max_recv_data_segment_length,
            max_xmit_data_segment_length: self.max_xmit_data_segment_length,
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            ..session.clone()
        }
    }

    /// Applies the dependencies between keys, once all are settled (RFC 7143 sections 13.14 and 13.19).
    pub(crate) fn bind(&mut self) {
        self.first_burst_length = self.first_burst_length.min(self.max_burst_length);
        if self.error_recovery_level > 0 && self.data_sequence_in_order {
            self.max_outstanding_r2t = 1;
        }
    }
}

/// The allowed values of a digest key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedDigests {
    /// None: the connection may run without the digest.
    pub none: bool,
    /// CRC32C.
    pub crc32c: bool,
}

/// The values that this side supports and prefers, from the configuration. They are the inputs of the result
/// functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// InitialR2T: Yes requires an R2T for all data.
    pub initial_r2t: bool,
    /// ImmediateData: Yes accepts immediate data.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength that this side declares, in bytes: 512 to 16777215.
    pub max_recv_data_segment_length: u32,
    /// Upper bound of MaxBurstLength, in bytes.
    pub max_burst_length: u32,
    /// Upper bound of FirstBurstLength, in bytes.
    pub first_burst_length: u32,
    /// Lower bound of DefaultTime2Wait, in seconds.
    pub default_time2wait: u16,
    /// Upper bound of DefaultTime2Retain, in seconds.
    pub default_time2retain: u16,
    /// Upper bound of MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
    /// DataPDUInOrder: Yes requires order.
    pub data_pdu_in_order: bool,
    /// DataSequenceInOrder: Yes requires order.
    pub data_sequence_in_order: bool,
    /// Upper bound of ErrorRecoveryLevel: the highest level that is fully supported.
    pub error_recovery_level: u8,
    /// Upper bound of MaxConnections.
    pub max_connections: u16,
    /// Allowed values of HeaderDigest.
    pub header_digest: AllowedDigests,
    /// Allowed values of DataDigest.
    pub data_digest: AllowedDigests,
    /// The strongest TaskReporting that is supported; weaker ones are supported too.
    pub task_reporting: TaskReporting,
    /// Upper bound of iSCSIProtocolLevel: 1, or 2 with RFC 7144.
    pub protocol_level: u8,
    /// RDMAExtensions: Yes moves data by RDMA if the peer agrees.
    pub rdma_extensions: bool,
    /// Upper bound of TargetRecvDataSegmentLength, in bytes.
    pub target_recv_data_segment_length: u32,
    /// Upper bound of InitiatorRecvDataSegmentLength, in bytes.
    pub initiator_recv_data_segment_length: u32,
    /// TaggedBufferForSolicitedDataOnly: Yes makes advertised buffers begin after unsolicited data if the peer
    /// agrees.
    pub tagged_buffer_for_solicited_data_only: bool,
}

impl Default for Offer {
    fn default() -> Self {
        let digests = AllowedDigests { none: true, crc32c: true };
        Offer {
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: 262144,
            max_burst_length: 1048576,
            first_burst_length: 262144,
            default_time2wait: 2,
            default_time2retain: 20,
            max_outstanding_r2t: 8,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            max_connections: 1,
            header_digest: digests,
            data_digest: digests,
            task_reporting: TaskReporting::FastAbort,
            protocol_level: 1,
            rdma_extensions: false,
            target_recv_data_segment_length: 8192,
            initiator_recv_data_segment_length: 8192,
            tagged_buffer_for_solicited_data_only: true,
        }
    }
}

impl Offer {
    /// The default values of RFC 7143 section 13, which apply where nothing is negotiated, as an offer.
    pub(crate) fn rfc() -> Self {
        let now = Parameters::default();
        let none = AllowedDigests { none: true, crc32c: false };
        Offer {
            initial_r2t: now.initial_r2t,
            immediate_data: now.immediate_data,
            max_recv_data_segment_length: now.max_recv_data_segment_length,
            max_burst_length: now.max_burst_length,
            first_burst_length: now.first_burst_length,
            default_time2wait: now.default_time2wait,
            default_time2retain: now.default_time2retain,
            max_outstanding_r2t: now.max_outstanding_r2t,
            data_pdu_in_order: now.data_pdu_in_order,
            data_sequence_in_order: now.data_sequence_in_order,
            error_recovery_level: now.error_recovery_level,
            max_connections: now.max_connections,
            header_digest: none,
            data_digest: none,
            task_reporting: now.task_reporting,
            protocol_level: now.protocol_level,
            rdma_extensions: now.rdma_extensions,
            target_recv_data_segment_length: now.target_recv_data_segment_length,
            initiator_recv_data_segment_length: now.initiator_recv_data_segment_length,
            tagged_buffer_for_solicited_data_only: now.tagged_buffer_for_solicited_data_only,
        }
    }
}
