//! Sessions as text and JSON.

use super::parameters::Parameters;
use super::rows::{self, duration, shown};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionReport {
    /// Target session identifying handle.
    pub tsih: u16,
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// Address and port of the initiator.
    pub initiator_address: String,
    /// iSCSI name of the target; None in a discovery session.
    pub target: Option<String>,
    /// Address and port of the portal that accepted the connection.
    pub portal: String,
    /// Portal group tag.
    pub portal_group: u16,
    /// Initiator's part of the session identifier, twelve hexadecimal digits.
    pub isid: String,
    /// Transport: `TCP`, `iSER` or `SRP`.
    #[serde(default)]
    pub transport: String,
    /// RDMA provider: `iwarp` or `verbs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// SRP properties; None for other protocols.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub srp: Option<Srp>,
    /// NVMe properties; None for other protocols.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<NvmeReport>,
    /// `Normal` or `Discovery`.
    pub session_type: String,
    /// Negotiated parameters; None for SRP and NVMe, which have none of these keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Parameters>,
    /// Command counters.
    pub counters: Counters,
    /// Seconds since its login.
    pub connected_s: u64,
}

/// An SRP session: a channel between two ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Srp {
    /// Port of the initiator: 0x and 32 hexadecimal digits.
    pub initiator_port: String,
    /// Port of the target, likewise.
    pub target_port: String,
    /// The number of this channel between the two ports, from 1.
    pub channel: usize,
    /// The number of channels between the two ports.
    pub channels: usize,
}

/// A session of NVMe: a queue of a controller. `initiator` is the name of its host (HOSTNQN).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NvmeReport {
    /// Identifier of the host (HOSTID), a UUID.
    pub host_id: String,
    /// Identifier of the controller (CNTLID).
    pub controller: u16,
    /// The number of the queue; 0 is the admin queue.
    pub queue: u16,
    /// Entries of the queue. One less can be in flight.
    pub queue_len: u32,
    /// The number of I/O queues of the controller that are connected.
    pub io_queues: usize,
    /// Keep Alive Timeout that the host has asked for in milliseconds; 0: none. I/O queues have none.
    pub keep_alive_ms: u32,
    /// TLS of the connection; None: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsReport>,
}

/// TLS 1.3 of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TlsReport {
    /// Cipher suite, such as `TLS_AES_128_GCM_SHA256`.
    pub cipher: String,
    /// Identity of the PSK: version and hash, host, and subsystem.
    pub identity: String,
}

/// Activity of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    /// Commands that ended with a status other than GOOD.
    pub errors: u64,
    /// Commands that wait for data, for their turn or for the medium.
    #[serde(default)]
    pub in_flight: u64,
    /// Reads and writes whose latency is in `time_us`.
    #[serde(default)]
    pub timed: u64,
    /// The sum of the latencies of reads and writes in microseconds.
    #[serde(default)]
    pub time_us: u64,
}

impl fmt::Display for Srp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "InitiatorPort={}", self.initiator_port)?;
        writeln!(f, "TargetPort={}", self.target_port)?;
        writeln!(f, "Channel={} of {}", self.channel, self.channels)
    }
}

impl fmt::Display for NvmeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "HostID={}", self.host_id)?;
        writeln!(f, "Controller={}", self.controller)?;
        writeln!(f, "Queue={}", self.queue)?;
        writeln!(f, "QueueLen={}", self.queue_len)?;
        writeln!(f, "IOQueues={}", self.io_queues)?;
        writeln!(f, "KeepAliveMs={}", self.keep_alive_ms)?;
        match &self.tls {
            Some(TlsReport { cipher, identity }) => {
                writeln!(f, "TLSCipher={cipher}\nTLSIdentity={}", shown(identity))
            }
            None => Ok(()),
        }
    }
}

impl SessionReport {
    /// Whether it is the admin queue of an NVMe controller, which stands for the controller.
    pub fn is_controller(&self) -> bool {
        self.nvme.as_ref().is_some_and(|nvme| nvme.queue == 0)
    }
}

/// The identity as `key=value` lines, then the parameters, then the counters.
impl fmt::Display for SessionReport {
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
        if let Some(nvme) = &self.nvme {
            nvme.fmt(f)?;
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
        writeln!(f, "Errors={}", c.errors)?;
        writeln!(f, "InFlight={}", c.in_flight)?;
        writeln!(f, "MeanLatencyUs={}", c.time_us.checked_div(c.timed).unwrap_or_default())
    }
}

/// The TARGET column of a discovery session.
const DISCOVERY: &str = "(discovery)";

/// All sessions as a table.
pub fn table(sessions: &[SessionReport]) -> String {
    const HEAD: [&str; 8] =
        [">ID", "INITIATOR", "ADDRESS", "TRANSPORT", "TARGET", ">PORTAL GROUP", ">COMMANDS", ">CONNECTED"];
    rows::table(HEAD, sessions.iter().map(row))
}

/// The transport. Each channel of SRP and each queue of NVMe is a session here.
fn carried(session: &SessionReport) -> String {
    match (&session.srp, &session.nvme) {
        (Some(Srp { channel, channels, .. }), _) if *channels > 1 => {
            format!("{}, channel {channel} of {channels}", session.transport)
        }
        (_, Some(NvmeReport { controller, queue, .. })) => {
            format!("{}, controller {controller} queue {queue}", session.transport)
        }
        _ => session.transport.clone(),
    }
}

fn row(session: &SessionReport) -> [String; 8] {
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

    pub(crate) fn session(tsih: u16) -> SessionReport {
        let parameters = lunar_proto::parameters::Parameters {
            initial_r2t: false,
            max_xmit_data_segment_length: 131072,
            ..Default::default()
        };
        SessionReport {
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
            nvme: None,
            session_type: "Normal".into(),
            parameters: Some(Parameters::from(&parameters)),
            counters: Counters { commands: 3, reads: 1, read_bytes: 4096, ..Counters::default() },
            connected_s: 61,
        }
    }

    #[test]
    fn srp_channel_shows_its_ports() {
        let srp = Srp { initiator_port: "0x1".into(), target_port: "0x2".into(), channel: 2, channels: 3 };
        let one = SessionReport {
            transport: "SRP".into(),
            provider: Some("iwarp".into()),
            srp: Some(srp),
            parameters: None,
            ..session(1)
        };
        let expected = "\nPortal=127.0.0.1:3260,1\nTransport=SRP\nProvider=iwarp\nInitiatorPort=0x1\nTargetPort=0x2\n\
            Channel=2 of 3\nCommands=3\n";
        assert!(one.to_string().contains(expected), "{one}");
        let text = table(std::slice::from_ref(&one));
        assert!(text.contains("  SRP, channel 2 of 3  iqn."), "{text}");
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<SessionReport>(&text).unwrap(), one);
        let text = serde_json::to_string(&session(1)).unwrap();
        assert!(!text.contains("srp") && serde_json::from_str::<SessionReport>(&text).is_ok());
    }

    #[test]
    fn nvme_queue_shows_its_controller() {
        let nvme = NvmeReport {
            host_id: "01010101-0101-0101-0101-010101010101".into(),
            controller: 33,
            queue: 0,
            queue_len: 32,
            io_queues: 2,
            keep_alive_ms: 5000,
            tls: Some(TlsReport {
                cipher: "TLS_AES_128_GCM_SHA256".into(),
                identity: "NVMe0R01 nqn.2026-11.org.example:h nqn.2026-11.org.example:s".into(),
            }),
        };
        let one = SessionReport {
            transport: "NVMe/TCP".into(),
            nvme: Some(nvme.clone()),
            parameters: None,
            ..session(1)
        };
        let expected = "\nTransport=NVMe/TCP\nHostID=01010101-0101-0101-0101-010101010101\nController=33\nQueue=0\n\
            QueueLen=32\nIOQueues=2\nKeepAliveMs=5000\nTLSCipher=TLS_AES_128_GCM_SHA256\n\
            TLSIdentity=NVMe0R01 nqn.2026-11.org.example:h nqn.2026-11.org.example:s\nCommands=3\n";
        assert!(one.to_string().contains(expected), "{one}");
        let text = table(std::slice::from_ref(&one));
        assert!(text.contains("  NVMe/TCP, controller 33 queue 0  iqn."), "{text}");
        let io = SessionReport { nvme: Some(NvmeReport { queue: 1, ..nvme }), ..one.clone() };
        assert_eq!(
            (one.is_controller(), io.is_controller(), session(1).is_controller()),
            (true, false, false)
        );
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<SessionReport>(&text).unwrap(), one);
    }

    #[test]
    fn names_cannot_write_lines_of_their_own() {
        let strange = SessionReport { initiator: "iqn\nTSIH=9\u{1b}".into(), target: None, ..session(1) };
        let text = strange.to_string();
        assert!(text.starts_with("Initiator=iqn\\nTSIH=9\\u{1b}\nInitiatorAddress="), "{text}");
        assert!(text.contains("\nTarget=(discovery)\nTSIH=1\n"));
    }

    #[test]
    fn table_has_a_line_for_each() {
        let strange = SessionReport { initiator: "iqn\u{1b}[2J".into(), target: None, ..session(20) };
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
