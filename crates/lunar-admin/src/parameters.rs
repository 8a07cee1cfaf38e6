//! Negotiated parameters of a session as text and JSON.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Negotiated keys and their values, in the order of `iscsi-scst-adm --op show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct Parameters {
    #[serde(rename = "InitialR2T")]
    pub initial_r2t: String,
    pub immediate_data: String,
    pub max_connections: u16,
    pub max_recv_data_segment_length: u32,
    pub max_xmit_data_segment_length: u32,
    pub max_burst_length: u32,
    pub first_burst_length: u32,
    #[serde(rename = "DefaultTime2Wait")]
    pub default_time2wait: u16,
    #[serde(rename = "DefaultTime2Retain")]
    pub default_time2retain: u16,
    #[serde(rename = "MaxOutstandingR2T")]
    pub max_outstanding_r2t: u16,
    #[serde(rename = "DataPDUInOrder")]
    pub data_pdu_in_order: String,
    pub data_sequence_in_order: String,
    pub error_recovery_level: u8,
    pub header_digest: String,
    pub data_digest: String,
    #[serde(rename = "OFMarker")]
    pub of_marker: String,
    #[serde(rename = "IFMarker")]
    pub if_marker: String,
    #[serde(rename = "OFMarkInt")]
    pub of_mark_int: String,
    #[serde(rename = "IFMarkInt")]
    pub if_mark_int: String,
    #[serde(flatten)]
    pub iser: Option<IserParameters>,
}

/// Additional keys of iSER (RFC 7145 section 6). A session without iSER has none of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "PascalCase")]
#[allow(missing_docs)]
pub struct IserParameters {
    #[serde(rename = "RDMAExtensions")]
    #[schema(required = false)]
    pub rdma_extensions: String,
    #[schema(required = false)]
    pub target_recv_data_segment_length: u32,
    #[schema(required = false)]
    pub initiator_recv_data_segment_length: u32,
    #[schema(required = false)]
    pub tagged_buffer_for_solicited_data_only: String,
}

fn yes(flag: bool) -> String {
    if flag { "Yes" } else { "No" }.into()
}

impl From<&lunar_proto::parameters::Parameters> for Parameters {
    fn from(p: &lunar_proto::parameters::Parameters) -> Parameters {
        let digest = |on: bool| if on { "CRC32C" } else { "None" }.to_string();
        Parameters {
            initial_r2t: yes(p.initial_r2t),
            immediate_data: yes(p.immediate_data),
            max_connections: p.max_connections,
            max_recv_data_segment_length: p.max_recv_data_segment_length,
            max_xmit_data_segment_length: p.max_xmit_data_segment_length,
            max_burst_length: p.max_burst_length,
            first_burst_length: p.first_burst_length,
            default_time2wait: p.default_time2wait,
            default_time2retain: p.default_time2retain,
            max_outstanding_r2t: p.max_outstanding_r2t,
            data_pdu_in_order: yes(p.data_pdu_in_order),
            data_sequence_in_order: yes(p.data_sequence_in_order),
            error_recovery_level: p.error_recovery_level,
            header_digest: digest(p.header_digest),
            data_digest: digest(p.data_digest),
            // Markers are obsolete (RFC 7143 section 13.25) and always rejected.
            of_marker: yes(false),
            if_marker: yes(false),
            of_mark_int: "Reject".into(),
            if_mark_int: "Reject".into(),
            iser: p.rdma_extensions.then(|| IserParameters {
                rdma_extensions: yes(true),
                target_recv_data_segment_length: p.target_recv_data_segment_length,
                initiator_recv_data_segment_length: p.initiator_recv_data_segment_length,
                tagged_buffer_for_solicited_data_only: yes(p.tagged_buffer_for_solicited_data_only),
            }),
        }
    }
}

/// The keys and values of the listing, one a line.
impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "InitialR2T={}", self.initial_r2t)?;
        writeln!(f, "ImmediateData={}", self.immediate_data)?;
        writeln!(f, "MaxConnections={}", self.max_connections)?;
        writeln!(f, "MaxRecvDataSegmentLength={}", self.max_recv_data_segment_length)?;
        writeln!(f, "MaxXmitDataSegmentLength={}", self.max_xmit_data_segment_length)?;
        writeln!(f, "MaxBurstLength={}", self.max_burst_length)?;
        writeln!(f, "FirstBurstLength={}", self.first_burst_length)?;
        writeln!(f, "DefaultTime2Wait={}", self.default_time2wait)?;
        writeln!(f, "DefaultTime2Retain={}", self.default_time2retain)?;
        writeln!(f, "MaxOutstandingR2T={}", self.max_outstanding_r2t)?;
        writeln!(f, "DataPDUInOrder={}", self.data_pdu_in_order)?;
        writeln!(f, "DataSequenceInOrder={}", self.data_sequence_in_order)?;
        writeln!(f, "ErrorRecoveryLevel={}", self.error_recovery_level)?;
        writeln!(f, "HeaderDigest={}", self.header_digest)?;
        writeln!(f, "DataDigest={}", self.data_digest)?;
        writeln!(f, "OFMarker={}", self.of_marker)?;
        writeln!(f, "IFMarker={}", self.if_marker)?;
        writeln!(f, "OFMarkInt={}", self.of_mark_int)?;
        writeln!(f, "IFMarkInt={}", self.if_mark_int)?;
        self.iser.as_ref().map_or(Ok(()), |iser| iser.fmt(f))
    }
}

impl fmt::Display for IserParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "RDMAExtensions={}", self.rdma_extensions)?;
        writeln!(f, "TargetRecvDataSegmentLength={}", self.target_recv_data_segment_length)?;
        writeln!(f, "InitiatorRecvDataSegmentLength={}", self.initiator_recv_data_segment_length)?;
        writeln!(f, "TaggedBufferForSolicitedDataOnly={}", self.tagged_buffer_for_solicited_data_only)
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::tests::session;
    use super::*;

    /// Keys and order of `iscsi-scst-adm --op show`.
    const SEED: &str = "InitialR2T ImmediateData MaxConnections MaxRecvDataSegmentLength MaxXmitDataSegmentLength \
        MaxBurstLength FirstBurstLength DefaultTime2Wait DefaultTime2Retain MaxOutstandingR2T DataPDUInOrder \
        DataSequenceInOrder ErrorRecoveryLevel HeaderDigest DataDigest OFMarker IFMarker OFMarkInt IFMarkInt";

    #[test]
    fn listing_has_the_keys_of_the_seed_in_its_order() {
        let text = session(1).to_string();
        let who = "Initiator=iqn.1993-08.org.debian:01:abc\nInitiatorAddress=127.0.0.1:40000\n\
            Target=iqn.2026-11.org.example:disks\nTSIH=1\nPortal=127.0.0.1:3260,1\nTransport=TCP\n";
        let text = text.strip_prefix(who).unwrap();
        let keys: Vec<&str> = text.lines().map(|line| line.split('=').next().unwrap()).collect();
        assert_eq!(keys[..19].join(" "), SEED);
        assert_eq!(
            keys[19..].join(" "),
            "Commands Reads Writes ReadBytes WriteBytes Errors InFlight MeanLatencyUs"
        );
        assert!(text.starts_with(
            "InitialR2T=No\nImmediateData=Yes\nMaxConnections=1\nMaxRecvDataSegmentLength=8192\n"
        ));
        assert!(
            text.contains(
                "\nHeaderDigest=None\nDataDigest=None\nOFMarker=No\nIFMarker=No\nOFMarkInt=Reject\n"
            )
        );
    }

    #[test]
    fn listing_matches_that_of_the_negotiated_parameters() {
        for rdma_extensions in [false, true] {
            let negotiated = lunar_proto::parameters::Parameters {
                rdma_extensions,
                header_digest: true,
                ..Default::default()
            };
            let lines = negotiated.listing().into_iter().map(|(key, value)| format!("{key}={value}\n"));
            assert_eq!(Parameters::from(&negotiated).to_string(), lines.collect::<String>());
        }
    }

    #[test]
    fn json_has_them_too() {
        let text = serde_json::to_string(&session(1).parameters).unwrap();
        let keys: Vec<&str> =
            text.split('"').filter(|part| SEED.split_whitespace().any(|key| key == *part)).collect();
        assert_eq!(keys.join(" "), SEED);
    }

    #[test]
    fn iser_parameters_are_listed_for_rdma_sessions() {
        let negotiated = lunar_proto::parameters::Parameters {
            rdma_extensions: true,
            target_recv_data_segment_length: 128,
            initiator_recv_data_segment_length: 262144,
            ..Default::default()
        };
        let iser = Parameters::from(&negotiated);
        let expected = "\nRDMAExtensions=Yes\nTargetRecvDataSegmentLength=128\n\
            InitiatorRecvDataSegmentLength=262144\nTaggedBufferForSolicitedDataOnly=Yes\n";
        assert!(iser.to_string().ends_with(expected), "{iser}");
        let text = serde_json::to_string(&iser).unwrap();
        assert!(text.contains("\"RDMAExtensions\":\"Yes\",\"TargetRecvDataSegmentLength\":128,"), "{text}");
        assert_eq!(serde_json::from_str::<Parameters>(&text).unwrap(), iser);
        let tcp = Parameters::from(&Default::default());
        let text = serde_json::to_string(&tcp).unwrap();
        assert!(
            !text.contains("RDMA") && serde_json::from_str::<Parameters>(&text).unwrap() == tcp,
            "{text}"
        );
    }
}
