//! The report of the doctor, as text and JSON.

use super::namespace_report::{
    ControllerSummary, ExaminedPath, NamespaceSummary, write_controller, write_paths,
};
use crate::output;
use lunar_admin::Parameters;
use lunar_initiator::options::{SessionTransport, Transport};
use lunar_initiator::{ErrorCode, Probe};
use lunar_proto::size;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;
use utoipa::ToSchema;

/// The report.
#[derive(Default, Serialize, ToSchema)]
pub struct DoctorReport {
    pub url: String,
    /// The iSCSI name of this initiator, or the NQN of this host.
    pub initiator: String,
    /// Whether the URL is one of NVMe.
    #[serde(skip)]
    pub is_nvme: bool,
    /// `tcp`, `iser` or `srp`.
    #[serde(serialize_with = "transport_name")]
    #[schema(value_type = String)]
    pub transport: Transport,
    /// Whether the URL selects RDMA devices (`provider=verbs`) instead of software.
    pub by_device: bool,
    /// RDMA ports of this host; None for TCP, or if the RDMA libraries are not installed.
    pub devices: Option<Vec<Port>>,
    /// Transport and provider of the connection: `tcp`, `iser/iwarp`, `srp/verbs:rxe0`.
    #[serde(serialize_with = "carrier_name")]
    #[schema(value_type = Option<String>)]
    pub carrier: Option<SessionTransport>,
    pub portals: Vec<String>,
    pub addresses: Vec<String>,
    pub resolved_in_us: u64,
    pub connections: Vec<ConnectAttempt>,
    pub path: NetworkPath,
    pub login: Vec<LoginExchange>,
    pub session: Option<SessionSummary>,
    pub lun: Option<LunProperties>,
    /// The controller of an NVMe namespace.
    pub controller: Option<ControllerSummary>,
    pub namespace: Option<NamespaceSummary>,
    /// The paths of the URL, if it has several. The other fields are about the best one.
    pub paths: Vec<ExaminedPath>,
    pub round_trip: Option<RoundTrip>,
    pub reads: Option<ReadStats>,
    pub findings: Vec<Finding>,
    pub usable: bool,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = DoctorPort)]
pub struct Port {
    pub device: String,
    pub port: u32,
    /// State as in the kernel: `ACTIVE`, `DOWN`.
    pub state: String,
    pub addresses: Vec<String>,
    /// Whether the libraries have a driver for the device.
    pub usable: bool,
}

/// An attempt to connect.
#[derive(Serialize, ToSchema)]
pub struct ConnectAttempt {
    pub address: String,
    pub took_us: Option<u64>,
    pub error: Option<String>,
}

/// Properties of the TCP connection.
#[derive(Default, Serialize, ToSchema)]
pub struct NetworkPath {
    pub local: Option<String>,
    pub mtu_bytes: Option<u32>,
    pub mss_bytes: Option<u32>,
    pub congestion_control: Option<String>,
    pub receive_buffer_bytes: Option<usize>,
    pub send_buffer_bytes: Option<usize>,
}

/// A request of the login and its response.
#[derive(Serialize, ToSchema)]
pub struct LoginExchange {
    pub stage: &'static str,
    #[schema(value_type = Vec<Vec<String>>)]
    pub offered: Vec<(String, String)>,
    #[schema(value_type = Vec<Vec<String>>)]
    pub answered: Vec<(String, String)>,
    pub status: Option<String>,
    /// None: no response.
    pub took_us: Option<u64>,
}

/// The session.
#[derive(Serialize, ToSchema)]
#[schema(as = DoctorSession)]
pub struct SessionSummary {
    pub target: String,
    pub target_alias: Option<String>,
    pub portal_group: Option<u16>,
    pub chap: Option<&'static str>,
    pub parameters: Parameters,
    /// The last command window of the target.
    pub window: u32,
    /// Maximum number of commands that this initiator has in flight.
    pub commands: u16,
    /// LUNs that the target reports.
    pub luns: Vec<u16>,
}

/// The examined logical unit.
#[derive(Serialize, ToSchema)]
#[schema(as = DoctorLun)]
pub struct LunProperties {
    pub lun: u16,
    pub vendor: String,
    pub product: String,
    pub identity: Option<String>,
    pub capacity_bytes: u64,
    pub block_size_bytes: u32,
    pub physical_block_size_bytes: u32,
    pub read_only: bool,
    pub write_cache: bool,
    pub thin: bool,
}

/// Round trips of TEST UNIT READY or Get Features, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct RoundTrip {
    pub count: usize,
    pub min_us: u64,
    pub median_us: u64,
    pub max_us: u64,
}

/// Results of the read measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct ReadStats {
    /// Median latency of small reads, one at a time.
    pub small_bytes: usize,
    pub small_median_us: u64,
    /// Throughput of concurrent large reads.
    pub large_bytes: usize,
    pub large_depth: usize,
    pub large_bytes_per_s: u64,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The LUN is unusable.
    Broken,
    /// The LUN is slow or at risk.
    Warning,
    /// Information only.
    Note,
}

/// A fault or bottleneck, and a hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Finding {
    pub weight: Severity,
    /// Error code of a broken LUN; JSON has its stable name.
    #[serde(serialize_with = "code_name", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub code: Option<ErrorCode>,
    pub what: String,
    pub hint: String,
}

fn transport_name<S: serde::Serializer>(transport: &Transport, out: S) -> Result<S::Ok, S::Error> {
    transport.name().serialize(out)
}

fn carrier_name<S: serde::Serializer>(carrier: &Option<SessionTransport>, out: S) -> Result<S::Ok, S::Error> {
    carrier.as_ref().map(SessionTransport::to_string).serialize(out)
}

fn code_name<S: serde::Serializer>(code: &Option<ErrorCode>, out: S) -> Result<S::Ok, S::Error> {
    code.map(ErrorCode::name).serialize(out)
}

/// A duration in whole microseconds.
pub fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Port {
    /// Whether the port can be used.
    pub fn is_up(&self) -> bool {
        self.usable && self.state == "ACTIVE"
    }
}

impl DoctorReport {
    /// Copies the observations of a probe.
    pub fn take(&mut self, probe: &Probe) {
        self.carrier = probe.transport.clone();
        self.portals = probe.portals.iter().map(ToString::to_string).collect();
        self.addresses = probe.addresses.iter().map(ToString::to_string).collect();
        self.resolved_in_us = us(probe.resolved_in);
        let connection =
            |(address, took): &(std::net::SocketAddr, Result<Duration, String>)| ConnectAttempt {
                address: address.to_string(),
                took_us: took.as_ref().ok().map(|took| us(*took)),
                error: took.as_ref().err().cloned(),
            };
        self.connections = probe.connections.iter().map(connection).collect();
        self.path = NetworkPath {
            local: probe.route.local.map(|local| local.to_string()),
            mtu_bytes: probe.route.mtu,
            mss_bytes: probe.route.mss,
            congestion_control: probe.route.congestion_control.clone(),
            receive_buffer_bytes: probe.route.receive_buffer,
            send_buffer_bytes: probe.route.send_buffer,
        };
        let exchange = |e: &lunar_initiator::Exchange| LoginExchange {
            stage: e.stage,
            offered: e.sent.clone(),
            answered: e.received.clone(),
            status: e.status.map(|(class, detail)| format!("{class:02x}{detail:02x}")),
            took_us: e.took.map(us),
        };
        self.login = probe.exchanges.iter().map(exchange).collect();
    }

    /// The step that the examination waits for, derived from the first missing one, and a hint.
    pub fn waits_for(&self) -> (String, &'static str) {
        let portal = self.portals.last().cloned().unwrap_or_default();
        let is_connected = self.connections.iter().any(|c| c.error.is_none());
        match self.login.last() {
            _ if self.addresses.is_empty() => {
                (format!("the address of {portal}"), "check the name service of this host")
            }
            _ if !is_connected && self.by_device => (
                format!("a connection to {portal} through an RDMA device"),
                "check that the portal has provider verbs; without provider=verbs in the URL, software iWARP is used",
            ),
            _ if !is_connected => (
                format!("a connection to {portal}"),
                "a firewall may drop the packets; check the network path (ping, traceroute)",
            ),
            _ if self.carrier.is_none() && self.transport == Transport::Iser => (
                format!("an RDMA connection to {portal}"),
                "check that the portal accepts iSER; for iSCSI over TCP, use iscsi://",
            ),
            _ if self.carrier.is_none() && self.transport == Transport::Srp => (
                format!("the response of {portal} to the SRP login"),
                "check that the portal accepts SRP, and check its log and load; for iSCSI over TCP, use iscsi://",
            ),
            _ if self.is_nvme && self.controller.is_none() => (
                format!("the answer of {portal} to the connection of this host"),
                "check that an NVMe/TCP controller listens at this portal, and check its log and load",
            ),
            Some(last) if last.took_us.is_none() => (
                format!("the response of {portal} to login request {}", self.login.len()),
                "check that an iSCSI target listens at this portal, and check its log and load",
            ),
            _ => (
                format!("{portal}, after a successful login"),
                "check the log of the target, and the disk behind the LUN",
            ),
        }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n  as {}\n", self.url, self.initiator);
        write_paths(self, &mut text);
        self.write_network(&mut text);
        self.steps(&mut text);
        self.session(&mut text);
        write_controller(self, &mut text);
        self.write_speed(&mut text);
        text += "\n";
        if self.findings.is_empty() {
            text += "no problems found\n";
        }
        for finding in &self.findings {
            let weight = match finding.weight {
                Severity::Broken => "broken",
                Severity::Warning => "warning",
                Severity::Note => "note",
            };
            _ = writeln!(text, "{weight}: {}\n  hint: {}", finding.what, finding.hint);
        }
        text
    }

    fn write_network(&self, text: &mut String) {
        text.push_str("\nnetwork\n");
        if self.portals.len() > 1 {
            _ = writeln!(text, "  redirected: {}", self.portals.join(" -> "));
        }
        if !self.addresses.is_empty() {
            _ = writeln!(text, "  name: {} in {}", self.addresses.join(", "), time(self.resolved_in_us));
        }
        for p in self.devices.iter().flatten().filter(|_| self.by_device) {
            let addresses = p.addresses.join(", ");
            _ = writeln!(text, "  device {}, port {}: {} {addresses}", p.device, p.port, p.state);
        }
        for c in &self.connections {
            let end = c.took_us.map(time).or(c.error.clone()).unwrap_or_default();
            _ = writeln!(text, "  connect {}: {end}", c.address);
        }
        if let (Some(mtu), Some(mss)) = (self.path.mtu_bytes, self.path.mss_bytes) {
            let buffer = self.path.receive_buffer_bytes.unwrap_or(0);
            let control = self.path.congestion_control.as_ref().map_or(String::new(), |c| format!(", {c}"));
            _ = writeln!(text, "  path MTU {mtu}, TCP MSS {mss}, receive buffer {buffer} bytes{control}");
        }
        if let Some(carrier) = self.carrier.as_ref().filter(|carrier| carrier.transport != Transport::Tcp) {
            _ = writeln!(text, "  transport {carrier}");
        }
    }

    fn steps(&self, text: &mut String) {
        for (n, step) in self.login.iter().enumerate() {
            let took = step.took_us.map_or("no response".into(), time);
            _ = writeln!(text, "\nlogin, request {}: {} stage, {took}", n + 1, step.stage);
            for (key, value) in &step.offered {
                let answer = step.answered.iter().find(|(answered, _)| answered == key);
                let answer = answer.map_or(String::new(), |(_, value)| format!("  -> {value}"));
                _ = writeln!(text, "  {key}={value}{answer}");
            }
            let alone = |(key, _): &&(String, String)| step.offered.iter().all(|(offered, _)| offered != key);
            for (key, value) in step.answered.iter().filter(alone) {
                _ = writeln!(text, "  -> {key}={value}");
            }
        }
    }

    fn session(&self, text: &mut String) {
        let Some(s) = &self.session else { return };
        let p = &s.parameters;
        _ = writeln!(text, "\nsession\n  {}", s.target);
        _ = writeln!(text, "  authentication: {}", s.chap.unwrap_or("none"));
        if self.transport == Transport::Tcp {
            _ = writeln!(text, "  digests: header {}, data {}", p.header_digest, p.data_digest);
        }
        _ = writeln!(text, "  window: {} commands; this initiator sends up to {}", s.window, s.commands);
        let numbers: Vec<String> = s.luns.iter().take(16).map(ToString::to_string).collect();
        let more = if s.luns.len() > numbers.len() { ", ..." } else { "" };
        _ = match s.luns.len() {
            0 => writeln!(text, "  no LUN"),
            count => writeln!(text, "  {}: {}{more}", output::count(count, "LUN"), numbers.join(", ")),
        };
        let Some(lun) = &self.lun else { return };
        let size = size::show(lun.capacity_bytes);
        let identity = lun.identity.as_deref().unwrap_or("no identity");
        _ = writeln!(text, "  LUN {}: {size}, {} {}, {identity}", lun.lun, lun.vendor, lun.product);
        let (logical, physical) = (lun.block_size_bytes, lun.physical_block_size_bytes);
        _ = writeln!(text, "  blocks of {logical} bytes, {physical} physical");
    }

    fn write_speed(&self, text: &mut String) {
        let Some(r) = &self.round_trip else { return };
        let (min, median, max) = (time(r.min_us), time(r.median_us), time(r.max_us));
        _ = writeln!(text, "\nspeed\n  round trip: min {min}, median {median}, max {max} of {}", r.count);
        let Some(r) = &self.reads else { return };
        _ = writeln!(
            text,
            "  reads of {} bytes: {}; of {} bytes, {} at once: {:.1} MB/s",
            r.small_bytes,
            time(r.small_median_us),
            r.large_bytes,
            r.large_depth,
            r.large_bytes_per_s as f64 / 1e6
        );
    }
}

fn time(us: u64) -> String {
    if us < 10_000 { format!("{us} µs") } else { format!("{:.1} ms", us as f64 / 1e3) }
}
