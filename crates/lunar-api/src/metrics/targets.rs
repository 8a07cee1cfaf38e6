//! Metrics of targets and initiators.

use super::text::MetricType::{Counter, Gauge};
use super::text::MetricsText;
use lunar_admin::metrics::{FunctionCount, InitiatorMetrics, MetricsReport};

pub fn add(text: &mut MetricsText, report: &MetricsReport) {
    let targets = &report.targets;
    let mut info = text.metric("lunar_target_info", Gauge, "A target, with its alias and its router.");
    for target in targets {
        let (alias, router) = (target.alias.as_deref(), target.router.as_deref());
        let labels = [
            ("target", &*target.target),
            ("alias", alias.unwrap_or_default()),
            ("router", router.unwrap_or_default()),
        ];
        info.add(&labels, 1);
    }
    let mut offline = text.metric("lunar_target_offline", Gauge, "Whether a target rejects logins.");
    targets.iter().for_each(|target| offline.add(&[("target", &target.target)], u8::from(target.offline)));
    let mut open = text.metric("lunar_target_open", Gauge, "Whether a target admits each initiator.");
    targets.iter().for_each(|target| open.add(&[("target", &target.target)], u8::from(target.open)));
    let mut sessions = text.metric("lunar_sessions", Gauge, "Sessions.");
    for target in targets {
        let name = ("target", &*target.target);
        if target.sessions.is_empty() {
            let usual = if target.controllers.is_some() { "NVMe/TCP" } else { "TCP" };
            sessions.add(&[name, ("transport", usual)], 0);
        }
        for (transport, count) in &target.sessions {
            sessions.add(&[name, ("transport", transport)], count);
        }
    }
    let help = "Controllers of an NVMe subsystem; their queues are sessions.";
    let mut controllers = text.metric("lunar_nvme_controllers", Gauge, help);
    for target in targets {
        target.controllers.iter().for_each(|count| controllers.add(&[("target", &target.target)], count));
    }
    let mut ended = text.metric("lunar_sessions_ended_total", Counter, "Sessions that ended.");
    for target in targets {
        let name = ("target", &*target.target);
        target.ended.iter().for_each(|(reason, count)| ended.add(&[name, ("reason", reason)], count));
    }
    let help = "Task management functions, such as aborts and resets, by response.";
    let mut functions = text.metric("lunar_task_management_total", Counter, help);
    for FunctionCount { target, function, response, count } in &report.functions {
        let labels = [("target", &**target), ("function", function), ("response", response)];
        functions.add(&labels, count);
    }
    initiators(text, &report.initiators);
}

/// A metric of initiators: its name, its type, its help and its value.
type InitiatorColumn = (&'static str, super::text::MetricType, &'static str, fn(&InitiatorMetrics) -> u64);

const INITIATORS: [InitiatorColumn; 6] = [
    ("lunar_initiator_sessions", Gauge, "Sessions of an initiator.", |of| of.sessions),
    ("lunar_initiator_reads_completed_total", Counter, "Reads of an initiator.", |of| of.reads),
    ("lunar_initiator_writes_completed_total", Counter, "Writes of an initiator.", |of| of.writes),
    ("lunar_initiator_read_bytes_total", Counter, "Bytes that an initiator read.", |of| of.read_bytes),
    ("lunar_initiator_written_bytes_total", Counter, "Bytes that an initiator wrote.", |of| of.written_bytes),
    ("lunar_initiator_errors_total", Counter, "Commands of an initiator that ended without GOOD.", |of| {
        of.errors
    }),
];

fn initiators(text: &mut MetricsText, all: &[InitiatorMetrics]) {
    for (name, metric_type, help, value) in INITIATORS {
        let mut metric = text.metric(name, metric_type, help);
        for of in all {
            metric.add(&[("target", &of.target), ("initiator", &of.initiator)], value(of));
        }
    }
}
