//! A session as it is told to people and programs.

use super::rows::{self, duration, shown};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Target session identifying handle.
    pub tsih: u16,
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// Address and port of the initiator.
    pub initiator_address: String,
    /// iSCSI name of the target; None in a discovery session.
    pub target: Option<String>,
    /// Address and port of the target that it came to.
    pub portal: String,
    /// Portal group tag.
    pub portal_group: u16,
    /// Initiator's part of the session identifier, twelve hexadecimal digits.
    pub isid: String,
    /// What carries it: `TCP`, `iSER` or `SRP`.
    #[serde(default)]
    pub transport: String,
    /// What carries RDMA: `iwarp` or `verbs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// What there is only over SRP; None: it is one of iSCSI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub srp: Option<Srp>,
    /// `Normal` or `Discovery`.
    pub session_type: String,
    /// What was negotiated; None over SRP, which has none of these keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Parameters>,
    /// What it did.
    pub counters: Counters,
    /// Seconds since its login.
    pub connected_s: u64,
}

/// A session over SRP: a channel between two ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Srp {
    /// Port of the initiator: 0x and 32 hexadecimal digits.
    pub initiator_port: String,
    /// Port of the target, likewise.
    pub target_port: String,
    /// Which of the channels between them it is, from 1 on.
    pub channel: usize,
    /// How many there are.
    pub channels: usize,
}

/// What a session did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// SCSI commands.
    pub commands: u64,
    /// Of these, reads.
    pub reads: u64,
    /// Of these, writes.
    pub writes: u64,
    /// Bytes sent.
    pub read_bytes: u64,
    /// Bytes received.
    pub write_bytes: u64,
    /// Commands that did not end with GOOD.
    pub errors: u64,
}

/// Negotiated parameters as (key, value), in the order in which `iscsi-scst-adm --op show` lists them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl From<&proto::parameters::Parameters> for Parameters {
    fn from(p: &proto::parameters::Parameters) -> Parameters {
        let yes = |flag: bool| if flag { "Yes" } else { "No" }.to_string();
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
            // RFC 7143 section 13.25 made markers obsolete: they are always refused.
            of_marker: yes(false),
            if_marker: yes(false),
            of_mark_int: "Reject".into(),
            if_mark_int: "Reject".into(),
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
        writeln!(f, "IFMarkInt={}", self.if_mark_int)
    }
}

impl fmt::Display for Srp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "InitiatorPort={}", self.initiator_port)?;
        writeln!(f, "TargetPort={}", self.target_port)?;
        writeln!(f, "Channel={} of {}", self.channel, self.channels)
    }
}

/// Who it is, the keys and values of the listing, then the counters; one a line.
impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Initiator={}", shown(&self.initiator))?;
        writeln!(f, "InitiatorAddress={}", self.initiator_address)?;
        writeln!(f, "Target={}", shown(self.target.as_deref().unwrap_or(DISCOVERY)))?;
        writeln!(f, "TSIH={}", self.tsih)?;
        writeln!(f, "Portal={},{}", self.portal, self.portal_group)?;
        writeln!(f, "Transport={}", self.transport)?;
        if let Some(provider) = &self.provider {
            writeln!(f, "Provider={provider}")?;
        }
        if let Some(srp) = &self.srp {
            srp.fmt(f)?;
        }
        if let Some(parameters) = &self.parameters {
            parameters.fmt(f)?;
        }
        let c = &self.counters;
        writeln!(f, "Commands={}", c.commands)?;
        writeln!(f, "Reads={}", c.reads)?;
        writeln!(f, "Writes={}", c.writes)?;
        writeln!(f, "ReadBytes={}", c.read_bytes)?;
        writeln!(f, "WriteBytes={}", c.write_bytes)?;
        writeln!(f, "Errors={}", c.errors)
    }
}

/// Where the target of others stands.
const DISCOVERY: &str = "(discovery)";

/// All sessions as a table.
pub fn table(sessions: &[Session]) -> String {
    const HEAD: [&str; 8] =
        ["ID", "INITIATOR", "ADDRESS", "TRANSPORT", "TARGET", "PORTAL GROUP", "COMMANDS", "CONNECTED"];
    rows::table(HEAD, sessions.iter().map(row))
}

/// What carries it. Each channel of SRP is a session here.
fn carried(session: &Session) -> String {
    match &session.srp {
        Some(Srp { channel, channels, .. }) if *channels > 1 => {
            format!("{}, channel {channel} of {channels}", session.transport)
        }
        _ => session.transport.clone(),
    }
}

fn row(session: &Session) -> [String; 8] {
    [
        session.tsih.to_string(),
        shown(&session.initiator),
        shown(&session.initiator_address),
        carried(session),
        shown(session.target.as_deref().unwrap_or(DISCOVERY)),
        session.portal_group.to_string(),
        session.counters.commands.to_string(),
        duration(session.connected_s),
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn session(tsih: u16) -> Session {
        let parameters = proto::parameters::Parameters {
            initial_r2t: false,
            max_xmit_data_segment_length: 131072,
            ..Default::default()
        };
        Session {
            tsih,
            initiator: "iqn.1993-08.org.debian:01:abc".into(),
            initiator_address: "127.0.0.1:40000".into(),
            target: Some("iqn.2026-11.org.example:disks".into()),
            portal: "127.0.0.1:3260".into(),
            portal_group: 1,
            isid: "00023d000001".into(),
            transport: "TCP".into(),
            provider: None,
            srp: None,
            session_type: "Normal".into(),
            parameters: Some(Parameters::from(&parameters)),
            counters: Counters { commands: 3, reads: 1, read_bytes: 4096, ..Counters::default() },
            connected_s: 61,
        }
    }

    /// The keys and the order of the listing that started it all.
    const SEED: &str = "InitialR2T ImmediateData MaxConnections MaxRecvDataSegmentLength MaxXmitDataSegmentLength \
        MaxBurstLength FirstBurstLength DefaultTime2Wait DefaultTime2Retain MaxOutstandingR2T DataPDUInOrder \
        DataSequenceInOrder ErrorRecoveryLevel HeaderDigest DataDigest OFMarker IFMarker OFMarkInt IFMarkInt";

    #[test]
    fn the_listing_has_the_keys_of_the_seed_in_its_order() {
        let text = session(1).to_string();
        let who = "Initiator=iqn.1993-08.org.debian:01:abc\nInitiatorAddress=127.0.0.1:40000\n\
            Target=iqn.2026-11.org.example:disks\nTSIH=1\nPortal=127.0.0.1:3260,1\nTransport=TCP\n";
        let text = text.strip_prefix(who).unwrap();
        let keys: Vec<&str> = text.lines().map(|line| line.split('=').next().unwrap()).collect();
        assert_eq!(keys[..19].join(" "), SEED);
        assert_eq!(keys[19..].join(" "), "Commands Reads Writes ReadBytes WriteBytes Errors");
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
    fn a_channel_of_srp_tells_its_ports() {
        let srp = Srp { initiator_port: "0x1".into(), target_port: "0x2".into(), channel: 2, channels: 3 };
        let one = Session {
            transport: "SRP".into(),
            provider: Some("iwarp".into()),
            srp: Some(srp),
            parameters: None,
            ..session(1)
        };
        let told = "\nPortal=127.0.0.1:3260,1\nTransport=SRP\nProvider=iwarp\nInitiatorPort=0x1\nTargetPort=0x2\n\
            Channel=2 of 3\nCommands=3\n";
        assert!(one.to_string().contains(told), "{one}");
        let text = table(std::slice::from_ref(&one));
        assert!(text.contains("  SRP, channel 2 of 3  iqn."), "{text}");
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<Session>(&text).unwrap(), one);
        let text = serde_json::to_string(&session(1)).unwrap();
        assert!(!text.contains("srp") && serde_json::from_str::<Session>(&text).is_ok());
    }

    #[test]
    fn names_cannot_write_lines_of_their_own() {
        let strange = Session { initiator: "iqn\nTSIH=9\u{1b}".into(), target: None, ..session(1) };
        let text = strange.to_string();
        assert!(text.starts_with("Initiator=iqn\\nTSIH=9\\u{1b}\nInitiatorAddress="), "{text}");
        assert!(text.contains("\nTarget=(discovery)\nTSIH=1\n"));
    }

    #[test]
    fn json_has_them_too() {
        let text = serde_json::to_string(&session(1).parameters).unwrap();
        let keys: Vec<&str> =
            text.split('"').filter(|part| SEED.split_whitespace().any(|key| key == *part)).collect();
        assert_eq!(keys.join(" "), SEED);
    }

    #[test]
    fn the_table_has_a_line_for_each() {
        let strange = Session { initiator: "iqn\u{1b}[2J".into(), target: None, ..session(20) };
        let text = table(&[session(1), strange]);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split("  ").collect()).collect();
        let words = |row: usize| -> Vec<&str> {
            rows[row].iter().map(|word| word.trim()).filter(|word| !word.is_empty()).collect()
        };
        let head =
            ["ID", "INITIATOR", "ADDRESS", "TRANSPORT", "TARGET", "PORTAL GROUP", "COMMANDS", "CONNECTED"];
        assert_eq!(words(0), head);
        let (name, target) = ("iqn.1993-08.org.debian:01:abc", "iqn.2026-11.org.example:disks");
        assert_eq!(words(1), ["1", name, "127.0.0.1:40000", "TCP", target, "1", "3", "1m 1s"]);
        let escaped = "iqn\\u{1b}[2J";
        assert_eq!(words(2), ["20", escaped, "127.0.0.1:40000", "TCP", "(discovery)", "1", "3", "1m 1s"]);
    }
}
