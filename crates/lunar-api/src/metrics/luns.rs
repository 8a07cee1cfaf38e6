//! Metrics of LUNs.

use super::text::MetricType::{Counter, Gauge, Histogram};
use super::text::{MetricType, MetricsText};
use lunar_admin::metrics::{LatencyBuckets, LunMetrics, MetricsReport, OpMetrics, StageLatencies};
use std::collections::BTreeMap;

/// The name for the LUNs of a target without histograms of their own.
const OTHER_LUNS: &str = "other";

/// A metric of LUNs: its name, its type, its help and its value.
type LunColumn = (&'static str, MetricType, &'static str, fn(&LunMetrics) -> f64);

const COLUMNS: [LunColumn; 17] = [
    ("lunar_lun_capacity_bytes", Gauge, "Size of the medium.", |lun| lun.capacity_bytes as f64),
    ("lunar_lun_ready", Gauge, "Whether the medium is at its path.", |lun| f64::from(u8::from(lun.ready))),
    ("lunar_lun_reads_completed_total", Counter, "Reads.", |lun| commands(lun, "read")),
    ("lunar_lun_writes_completed_total", Counter, "Writes.", |lun| commands(lun, "write")),
    ("lunar_lun_flushes_completed_total", Counter, "Flushes.", |lun| commands(lun, "flush")),
    ("lunar_lun_unmaps_completed_total", Counter, "UNMAP commands.", |lun| commands(lun, "unmap")),
    ("lunar_lun_others_completed_total", Counter, "Other commands.", |lun| commands(lun, "other")),
    ("lunar_lun_read_bytes_total", Counter, "Bytes read.", |lun| lun.read_bytes as f64),
    ("lunar_lun_written_bytes_total", Counter, "Bytes written.", |lun| lun.written_bytes as f64),
    ("lunar_lun_read_time_seconds_total", Counter, "Sum of the latencies of reads.", |lun| time(lun, "read")),
    ("lunar_lun_write_time_seconds_total", Counter, "Sum of the latencies of writes.", |lun| {
        time(lun, "write")
    }),
    ("lunar_lun_flush_time_seconds_total", Counter, "Sum of the latencies of flushes.", |lun| {
        time(lun, "flush")
    }),
    ("lunar_lun_copied_bytes_total", Counter, "Bytes copied by EXTENDED COPY commands to the LUN.", |lun| {
        lun.copied_bytes as f64
    }),
    ("lunar_lun_registrants", Gauge, "Registrations of persistent reservations.", |lun| {
        lun.registrants as f64
    }),
    ("lunar_lun_reserved", Gauge, "Whether a host holds a persistent reservation.", |lun| {
        f64::from(u8::from(lun.reserved))
    }),
    (
        "lunar_lun_commands_in_flight",
        Gauge,
        "Commands that wait for data, for their turn or for the medium.",
        |lun| lun.in_flight as f64,
    ),
    (
        "lunar_lun_io_time_weighted_seconds_total",
        Counter,
        "Sum of the latencies of all commands; its rate is the mean depth.",
        |lun| lun.ops.iter().map(whole_s).sum(),
    ),
];

fn op<'a>(lun: &'a LunMetrics, op: &str) -> Option<&'a OpMetrics> {
    lun.ops.iter().find(|one| one.op == op)
}

fn commands(lun: &LunMetrics, name: &str) -> f64 {
    op(lun, name).map_or(0.0, |op| op.commands as f64)
}

fn time(lun: &LunMetrics, name: &str) -> f64 {
    op(lun, name).map_or(0.0, whole_s)
}

fn whole_s(op: &OpMetrics) -> f64 {
    op.latency.as_ref().map_or(0.0, |latency| latency.whole.sum_s)
}

pub fn add(text: &mut MetricsText, report: &MetricsReport) {
    let luns: Vec<(&LunMetrics, String)> = report.luns.iter().map(|lun| (lun, lun.lun.to_string())).collect();
    let mut info = text.metric("lunar_lun_info", Gauge, "A LUN, with its medium and its identity.");
    for (lun, number) in &luns {
        let labels = [
            ("target", &*lun.target),
            ("lun", number),
            ("backend", &lun.backend),
            ("kind", &lun.kind),
            ("vendor", &lun.vendor),
            ("product", &lun.product),
            ("serial", &lun.serial),
            ("naa", &lun.naa),
        ];
        info.add(&labels, 1);
    }
    for (name, metric_type, help, value) in COLUMNS {
        let mut metric = text.metric(name, metric_type, help);
        for (lun, number) in &luns {
            metric.add(&[("target", &lun.target), ("lun", number)], value(lun));
        }
    }
    let mut failures = text.metric("lunar_lun_status_total", Counter, "Commands that ended without GOOD.");
    for (lun, number) in &luns {
        for (status, count) in &lun.failures {
            failures.add(&[("target", &lun.target), ("lun", number), ("status", status)], count);
        }
    }
    let mut senses = text.metric("lunar_lun_sense_total", Counter, "Commands that ended with sense data.");
    for (lun, number) in &luns {
        for (key, count) in &lun.senses {
            senses.add(&[("target", &lun.target), ("lun", number), ("key", key)], count);
        }
    }
    histograms(text, report);
}

/// Histograms by target, LUN and kind of command. The LUNs of a target without histograms of their own share one.
type Histograms<'a> = BTreeMap<(&'a str, String, &'a str), StageLatencies>;

fn histograms(text: &mut MetricsText, report: &MetricsReport) {
    let mut all = Histograms::new();
    for lun in &report.luns {
        let number = if lun.own_histograms { lun.lun.to_string() } else { OTHER_LUNS.to_owned() };
        for op in &lun.ops {
            let Some(latency) = &op.latency else { continue };
            all.entry((&lun.target, number.clone(), &op.op)).or_default().add(latency);
        }
    }
    for removed in &report.removed_luns {
        for op in &removed.ops {
            let Some(latency) = &op.latency else { continue };
            all.entry((&removed.target, OTHER_LUNS.to_owned(), &op.op)).or_default().add(latency);
        }
    }
    let help = "From the arrival of a command until its response is handed to the network.";
    let mut whole = text.metric("lunar_lun_command_duration_seconds", Histogram, help);
    for ((target, lun, op), latency) in &all {
        let labels = [("target", *target), ("lun", lun), ("op", op)];
        let LatencyBuckets { counts, sum_s } = &latency.whole;
        whole.add_histogram(&labels, &report.bounds_s, counts, *sum_s);
    }
    let help = "The same by stage: queue (for data, its turn or memory), backend, send.";
    let mut stages = text.metric("lunar_lun_stage_duration_seconds", Histogram, help);
    for ((target, lun, op), latency) in &all {
        let of_stage = [("queue", &latency.queue), ("backend", &latency.backend), ("send", &latency.send)];
        for (stage, LatencyBuckets { counts, sum_s }) in of_stage {
            let labels = [("target", *target), ("lun", lun), ("op", op), ("stage", stage)];
            stages.add_histogram(&labels, &report.bounds_s, counts, *sum_s);
        }
    }
}
