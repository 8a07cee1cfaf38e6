//! The counters of a server, for its metrics.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The counters of a server. They begin with 0 at its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MetricsReport {
    /// Start of the server (RFC 3339), in seconds since 1970. It never changes, also if the clock is set.
    #[serde(with = "crate::rfc3339::milliseconds")]
    #[schema(value_type = String)]
    pub started_at: f64,
    /// Seconds since the start of the server.
    pub uptime_s: f64,
    /// The upper bounds of the buckets of all histograms, in seconds. A last bucket has no bound.
    pub bounds_s: Vec<f64>,
    /// The LUNs, by target and number.
    pub luns: Vec<LunMetrics>,
    /// The counts of LUNs that are gone, of those that shared a histogram.
    #[serde(default)]
    pub removed_luns: Vec<RemovedLuns>,
    /// The targets, by name.
    pub targets: Vec<TargetMetrics>,
    /// The initiators with sessions now or before, by target and name.
    pub initiators: Vec<InitiatorMetrics>,
    /// Logins.
    pub logins: Vec<LoginCount>,
    /// Task management functions.
    #[serde(default)]
    pub functions: Vec<FunctionCount>,
    /// Connections.
    pub connections: ConnectionMetrics,
    /// Bytes of buffers of commands.
    pub memory: ResourceUse,
    /// The event loops.
    pub cores: Vec<CoreMetrics>,
    /// The process.
    pub process: ProcessMetrics,
}

/// A LUN.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LunMetrics {
    /// Its target.
    pub target: String,
    /// Its number.
    pub lun: u16,
    /// The number of its logical unit in the process. LUNs that show one `[[disk]]` have the same, and the same counters.
    pub unit: u64,
    /// Its medium: `file`, `device`, `memory`, `null`, or another kind.
    pub backend: String,
    /// `disk` or `cdrom`.
    pub kind: String,
    /// T10 vendor identification.
    pub vendor: String,
    /// Product identification.
    pub product: String,
    /// Unit serial number.
    pub serial: String,
    /// NAA designator in hexadecimal digits.
    pub naa: String,
    /// Size of the medium in bytes.
    pub capacity_bytes: u64,
    /// Whether the medium is at its path.
    pub ready: bool,
    /// Whether `/metrics` shows its histograms apart from those of other LUNs.
    pub own_histograms: bool,
    /// Kinds of commands.
    pub ops: Vec<OpMetrics>,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Commands that wait for data, for their turn or for the medium.
    pub in_flight: u64,
    /// Bytes that EXTENDED COPY commands to it copied.
    #[serde(default)]
    pub copied_bytes: u64,
    /// Registrations of persistent reservations.
    #[serde(default)]
    pub registrants: u64,
    /// Whether a host holds a persistent reservation.
    #[serde(default)]
    pub reserved: bool,
    /// Commands that ended without GOOD, by status.
    pub failures: BTreeMap<String, u64>,
    /// Commands that ended with sense data, by sense key.
    pub senses: BTreeMap<String, u64>,
}

/// The counts of LUNs of a target that are gone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RemovedLuns {
    /// The target.
    pub target: String,
    /// Kinds of commands.
    pub ops: Vec<OpMetrics>,
}

impl RemovedLuns {
    /// Those of a target, none yet.
    pub fn of(target: &str) -> RemovedLuns {
        RemovedLuns { target: target.to_owned(), ops: Vec::new() }
    }

    /// Adds the counts of a LUN.
    pub fn add(&mut self, ops: &[OpMetrics]) {
        for op in ops {
            let Some(total) = self.ops.iter_mut().find(|total| total.op == op.op) else {
                self.ops.push(op.clone());
                continue;
            };
            total.commands += op.commands;
            match (&mut total.latency, &op.latency) {
                (Some(total), Some(more)) => total.add(more),
                (total, more) => *total = total.take().or_else(|| more.clone()),
            }
        }
    }
}

/// One kind of command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OpMetrics {
    /// `read`, `write`, `unmap`, `flush` or `other`.
    pub op: String,
    /// Commands that ended.
    pub commands: u64,
    /// From the arrival of a command until its response is handed to the network; null before the first one.
    pub latency: Option<StageLatencies>,
}

/// Latencies of commands as a whole, and by stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageLatencies {
    /// All stages.
    pub whole: LatencyBuckets,
    /// From the arrival to the execution: the command waits for data, for its turn or for memory.
    pub queue: LatencyBuckets,
    /// The execution by the medium or the remote target.
    pub backend: LatencyBuckets,
    /// From the end until the response is handed to the network.
    pub send: LatencyBuckets,
}

impl StageLatencies {
    /// Adds other counts.
    pub fn add(&mut self, more: &StageLatencies) {
        let StageLatencies { whole, queue, backend, send } = self;
        let pairs =
            [(whole, &more.whole), (queue, &more.queue), (backend, &more.backend), (send, &more.send)];
        for (total, more) in pairs {
            total.counts.resize(more.counts.len().max(total.counts.len()), 0);
            total.counts.iter_mut().zip(&more.counts).for_each(|(total, more)| *total += more);
            total.sum_s += more.sum_s;
        }
    }
}

/// A histogram.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyBuckets {
    /// Commands in each bucket alone.
    pub counts: Vec<u64>,
    /// The sum in seconds.
    pub sum_s: f64,
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetMetrics {
    /// Its name.
    pub target: String,
    /// Its alias.
    pub alias: Option<String>,
    /// Its router.
    pub router: Option<String>,
    /// Whether it rejects logins.
    pub offline: bool,
    /// Whether it has no access rule, so that each initiator may log in.
    pub open: bool,
    /// Its sessions, by transport.
    pub sessions: BTreeMap<String, u64>,
    /// Its sessions that ended, by reason.
    pub ended: BTreeMap<String, u64>,
    /// Its controllers, if it is an NVMe subsystem. The queues of a controller are sessions.
    #[serde(default)]
    pub controllers: Option<u64>,
}

/// The sessions of an initiator with a target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InitiatorMetrics {
    /// The target.
    pub target: String,
    /// The name of the initiator. `other`: all initiators beyond the first thousand.
    pub initiator: String,
    /// Its sessions.
    pub sessions: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Commands that ended without GOOD.
    pub errors: u64,
}

/// Logins to a target that ended with one status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginCount {
    /// The target; null for discovery, and for targets that are not served.
    pub target: Option<String>,
    /// Class and detail of the status in hexadecimal digits (RFC 7143 section 11.13.5): `0000` for success.
    pub status: String,
    /// Logins.
    pub count: u64,
}

/// Task management functions of a target with one response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionCount {
    /// The target.
    pub target: String,
    /// The function, such as `abort_task` or `lun_reset`.
    pub function: String,
    /// `complete`, `no_such_task`, `no_such_lun`, `unauthorized` or `rejected`.
    pub response: String,
    /// Functions.
    pub count: u64,
}

/// Connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionMetrics {
    /// Connections now.
    pub used: u64,
    /// Of these, connections before login.
    pub before_login: u64,
    /// `connections` of `[limits]`.
    pub limit: u64,
    /// Accepted connections by portal group tag.
    pub accepted: BTreeMap<u16, u64>,
    /// Connections that were closed at once, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// The use of a limited resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResourceUse {
    /// In use.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

/// An event loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CoreMetrics {
    /// The CPU.
    pub core: usize,
    /// Its connections.
    pub connections: u64,
    /// CPU time of its threads in seconds.
    pub busy_s: f64,
}

/// The process of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessMetrics {
    /// CPU time in seconds.
    pub cpu_s: f64,
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Limit of open file descriptors.
    pub max_fds: u64,
}
