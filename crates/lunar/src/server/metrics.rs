//! The counters of a target server in the form of the API.

use super::histograms::{HistogramPlaces, OpsOf};
use super::transport;
use crate::server::process;
use lunar_admin::history::Traffic;
use lunar_admin::metrics::{
    ConnectionMetrics, CoreMetrics, FunctionCount, InitiatorMetrics, LatencyBuckets, LoginCount, LunMetrics,
    MetricsReport, OpMetrics, ResourceUse, StageLatencies, TargetMetrics,
};
use lunar_target::config::{TargetConfig, TargetNode};
use lunar_target::{
    EventTotals, FAILURES, LATENCY_BUCKETS, LatencyTotals, LogicalUnit, LuTotals, OpClass, StageTotals,
    TargetServer, bucket_bound_s,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Names of the sense keys (SPC-5 table 49), for labels.
const SENSE_KEYS: [&str; 16] = [
    "no_sense",
    "recovered_error",
    "not_ready",
    "medium_error",
    "hardware_error",
    "illegal_request",
    "unit_attention",
    "data_protect",
    "blank_check",
    "vendor_specific",
    "copy_aborted",
    "aborted_command",
    "reserved",
    "volume_overflow",
    "miscompare",
    "completed",
];

// Words that the alerts of `dist/prometheus` count. A server has them from its start, at 0: otherwise Prometheus sees no
// rise in the first ones.
const SENSES_OF_ALERTS: [&str; 2] = ["medium_error", "hardware_error"];
const FAILURES_OF_ALERTS: [&str; 1] = ["task_set_full"];
const ENDS_OF_ALERTS: [&str; 1] = ["reinstated"];
const REFUSALS_OF_ALERTS: [&str; 3] = ["connections", "connections_before_login", "file_descriptors"];
/// Class and detail of the status of a login with a wrong name or secret.
const FAILED_CHAP: (u8, u8) = (2, 1);

/// The state of the metrics of a server.
pub struct ServerMetrics {
    /// The wall clock is read once: for readers, another value is another start.
    start: Start,
    histograms: Mutex<HistogramPlaces>,
}

/// The start of a server.
struct Start {
    at: Instant,
    unix_s: f64,
}

impl Start {
    fn now() -> Start {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Start { at: Instant::now(), unix_s: since.map_or(0.0, |since| since.as_secs_f64()) }
    }
}

impl ServerMetrics {
    /// For a server that starts now.
    pub fn start() -> ServerMetrics {
        ServerMetrics { start: Start::now(), histograms: Mutex::default() }
    }

    /// The counters of the server. Without one, which has stopped, only its start is left.
    pub fn report(&self, server: Option<&TargetServer>) -> MetricsReport {
        let mut report = server.map(report).unwrap_or_default();
        (report.started_at, report.uptime_s) = (self.start.unix_s, self.start.at.elapsed().as_secs_f64());
        let ops_of = |lun: &LunMetrics| {
            let node = server?.config().targets.get(&lun.target)?.luns.get(&lun.lun)?.clone();
            let counters = (node.id() == lun.unit).then(|| node.counters())?;
            Some(Box::new(move || ops(&counters.totals())) as OpsOf)
        };
        let mut places = self.histograms.lock().unwrap_or_else(PoisonError::into_inner);
        report.removed_luns = places.assign(&mut report.luns, ops_of);
        report
    }
}

fn report(server: &TargetServer) -> MetricsReport {
    let (config, events, resources) = (server.config(), server.events(), server.resources());
    let threads = process::threads();
    let busy_s = |core: usize| threads.get(&format!("core {core}")).copied().unwrap_or_default();
    let core = |(core, connections): &(usize, usize)| CoreMetrics {
        core: *core,
        connections: *connections as u64,
        busy_s: busy_s(*core),
    };
    MetricsReport {
        bounds_s: (0..LATENCY_BUCKETS - 1).map(bucket_bound_s).collect(),
        luns: luns(&config),
        targets: targets(server, &config, &events),
        initiators: initiators(server),
        logins: logins(&config, &events),
        functions: functions(&events),
        connections: ConnectionMetrics {
            used: resources.connections as u64,
            before_login: resources.connections_before_login as u64,
            limit: config.limits.connections as u64,
            accepted: events.accepted.clone(),
            refused: words(
                &REFUSALS_OF_ALERTS,
                events.refused.iter().map(|(reason, count)| (*reason, *count)),
            ),
        },
        memory: ResourceUse { used: resources.memory as u64, limit: config.limits.memory as u64 },
        cores: resources.cores.iter().map(core).collect(),
        process: process::metrics(),
        ..MetricsReport::default()
    }
}

/// Counts by word, without those that are zero and not in `alerts`.
fn words<'a>(alerts: &[&str], counts: impl IntoIterator<Item = (&'a str, u64)>) -> BTreeMap<String, u64> {
    let zeros = alerts.iter().map(|word| ((*word).to_owned(), 0));
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    zeros.chain(counts.map(|(word, count)| (word.to_owned(), count))).collect()
}

/// Logins by target and status, also those that alerts count.
fn logins(config: &TargetConfig, events: &EventTotals) -> Vec<LoginCount> {
    let targets = std::iter::once(None).chain(config.targets.keys().cloned().map(Some));
    let mut logins: BTreeMap<_, u64> = targets.map(|target| ((target, FAILED_CHAP), 0)).collect();
    logins.extend(events.logins.clone());
    logins.iter().map(login).collect()
}

fn login(((target, (class, detail)), count): (&(Option<String>, (u8, u8)), &u64)) -> LoginCount {
    LoginCount { target: target.clone(), status: format!("{class:02x}{detail:02x}"), count: *count }
}

/// Target, function and response.
type FunctionKey = (String, &'static str, &'static str);

fn functions(events: &EventTotals) -> Vec<FunctionCount> {
    let one = |((target, function, response), count): (&FunctionKey, &u64)| FunctionCount {
        target: target.clone(),
        function: (*function).into(),
        response: (*response).into(),
        count: *count,
    };
    events.managed.iter().map(one).collect()
}

fn luns(config: &TargetConfig) -> Vec<LunMetrics> {
    let all = config.targets.iter().flat_map(|(name, node)| node.luns.iter().map(move |lun| (name, lun)));
    all.map(|(target, (number, unit))| lun(target, *number, unit)).collect()
}

fn lun(target: &str, number: u16, unit: &LogicalUnit) -> LunMetrics {
    let (settings, backend, totals) = (unit.lu.settings(), unit.backend(), unit.totals());
    let described = match unit.passthrough() {
        Some(_) => "passthrough".to_owned(),
        None => {
            let rows = backend.describe();
            let kind = rows.into_iter().find(|(name, _)| name == "backend");
            kind.map_or_else(|| "router".into(), |(_, kind)| kind)
        }
    };
    let identity = &settings.identity;
    let (registrants, reserved) = unit.lu.reservations();
    LunMetrics {
        target: target.to_owned(),
        lun: number,
        unit: unit.id(),
        backend: described,
        kind: format!("{:?}", settings.device_type).to_lowercase(),
        vendor: identity.vendor.clone(),
        product: identity.product.clone(),
        serial: identity.serial.clone(),
        naa: identity.naa.iter().map(|byte| format!("{byte:02x}")).collect(),
        capacity_bytes: unit.lu.capacity(),
        ready: !unit.is_medium_missing(),
        own_histograms: false,
        ops: ops(&totals),
        read_bytes: totals.read_bytes,
        written_bytes: totals.written_bytes,
        in_flight: totals.in_flight,
        copied_bytes: unit.copied_bytes(),
        registrants: registrants as u64,
        reserved,
        failures: words(&FAILURES_OF_ALERTS, FAILURES.into_iter().zip(totals.failures)),
        senses: words(&SENSES_OF_ALERTS, SENSE_KEYS.into_iter().zip(totals.senses)),
    }
}

/// The traffic of each logical unit, by its number: [`of_units`](lunar_admin::history::of_units) without the rest of the
/// report: the sampler needs it every few seconds, also for thousands of LUNs.
pub fn traffic(config: &TargetConfig) -> BTreeMap<u64, Traffic> {
    let units = config.targets.values().flat_map(|node| node.luns.values());
    units.map(|unit| (unit.id(), traffic_of(&unit.totals()))).collect()
}

fn traffic_of(totals: &LuTotals) -> Traffic {
    let whole = |class: OpClass| totals.latency[class as usize].as_ref().map(|stages| &stages.whole);
    let timed = |class| whole(class).map_or(0, |whole| whole.buckets.iter().sum());
    let seconds = |class| whole(class).map_or(0.0, |whole| whole.sum_ns as f64 / 1e9);
    Traffic {
        reads: totals.commands[OpClass::Read as usize],
        writes: totals.commands[OpClass::Write as usize],
        read_bytes: totals.read_bytes,
        written_bytes: totals.written_bytes,
        errors: totals.failures.iter().sum(),
        timed_reads: timed(OpClass::Read),
        timed_writes: timed(OpClass::Write),
        read_s: seconds(OpClass::Read),
        write_s: seconds(OpClass::Write),
    }
}

fn ops(totals: &LuTotals) -> Vec<OpMetrics> {
    let all = OpClass::ALL.into_iter().zip(totals.commands).zip(&totals.latency);
    let op = |((class, commands), latency): ((OpClass, u64), &Option<Box<StageTotals>>)| OpMetrics {
        op: class.name().to_owned(),
        commands,
        latency: latency.as_deref().map(stages),
    };
    all.map(op).collect()
}

fn stages(totals: &StageTotals) -> StageLatencies {
    StageLatencies {
        whole: histogram(&totals.whole),
        queue: histogram(&totals.queue),
        backend: histogram(&totals.backend),
        send: histogram(&totals.send),
    }
}

fn histogram(totals: &LatencyTotals) -> LatencyBuckets {
    LatencyBuckets { counts: totals.buckets.to_vec(), sum_s: totals.sum_ns as f64 / 1e9 }
}

fn targets(server: &TargetServer, config: &TargetConfig, events: &EventTotals) -> Vec<TargetMetrics> {
    let mut sessions: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    let mut controllers: BTreeMap<String, u64> = BTreeMap::new();
    for (_, info) in server.sessions() {
        if let Some(target) = info.target.as_ref().filter(|_| !info.is_discovery()) {
            // Each controller has one admin queue.
            *controllers.entry(target.clone()).or_default() += u64::from(!info.is_io_queue());
            *sessions.entry(target.clone()).or_default().entry(transport(&info).into()).or_default() += 1;
        }
    }
    let ended = |name: &str| {
        let mine = events.ended.iter().filter(|((target, _), _)| target == name);
        words(&ENDS_OF_ALERTS, mine.map(|((_, reason), count)| (*reason, *count)))
    };
    let target = |(name, node): (&String, &TargetNode)| TargetMetrics {
        target: name.clone(),
        alias: node.alias.clone(),
        router: node.instance.as_ref().map(|instance| instance.name.clone()),
        offline: node.offline,
        open: node.access.is_empty(),
        sessions: sessions.remove(name).unwrap_or_default(),
        ended: ended(name),
        controllers: node.subsystem.as_ref().map(|_| controllers.get(name).copied().unwrap_or_default()),
    };
    config.targets.iter().map(target).collect()
}

fn initiators(server: &TargetServer) -> Vec<InitiatorMetrics> {
    let all = server.initiators().into_iter();
    let metrics =
        |((target, initiator), totals): (lunar_target::InitiatorKey, lunar_target::InitiatorTotals)| {
            InitiatorMetrics {
                target,
                initiator,
                sessions: totals.sessions,
                reads: totals.reads,
                writes: totals.writes,
                read_bytes: totals.read_bytes,
                written_bytes: totals.written_bytes,
                errors: totals.errors,
            }
        };
    all.map(metrics).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_that_of_the_report() {
        let mut totals = LuTotals { read_bytes: 512, written_bytes: 1024, ..LuTotals::default() };
        totals.commands = [9, 8, 7, 6, 5];
        totals.failures[..2].copy_from_slice(&[2, 1]);
        for class in [OpClass::Read, OpClass::Flush] {
            let mut stages = StageTotals::default();
            (stages.whole.buckets[3], stages.whole.buckets[21], stages.whole.sum_ns) = (4, 4, 500_000_000);
            totals.latency[class as usize] = Some(Box::new(stages));
        }
        let (read_bytes, written_bytes) = (totals.read_bytes, totals.written_bytes);
        let failures = words(&FAILURES_OF_ALERTS, FAILURES.into_iter().zip(totals.failures));
        let report =
            LunMetrics { ops: ops(&totals), read_bytes, written_bytes, failures, ..LunMetrics::default() };
        let traffic = traffic_of(&totals);
        assert_eq!((traffic.reads, traffic.writes, traffic.errors, traffic.timed_reads), (9, 8, 3, 8));
        assert_eq!(traffic, lunar_admin::history::of_lun(&report));
    }
}
