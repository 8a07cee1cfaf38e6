//! Metrics of logical units that several gateways share.

use super::text::MetricType::{self, Counter, Gauge};
use super::text::MetricsText;
use lunar_admin::SharedUnitReport;
use lunar_admin::gateway::SharedUnitPhase;

/// Name, type, help and value of a metric of a shared logical unit. None: it has no value now.
type UnitMetric = (&'static str, MetricType, &'static str, fn(&SharedUnitReport) -> Option<f64>);

const UNIT_METRICS: [UnitMetric; 7] = [
    ("lunar_gateway_unit_up", Gauge, "Whether this gateway serves a shared image.", |unit| {
        Some(u8::from(unit.phase == SharedUnitPhase::Serving).into())
    }),
    ("lunar_gateway_unit_gateways", Gauge, "Gateways that serve a shared image.", |unit| {
        Some(unit.gateways.len() as f64)
    }),
    ("lunar_gateway_unit_version", Gauge, "Version of the shared state that this gateway has.", |unit| {
        Some(unit.version as f64)
    }),
    (
        "lunar_gateway_unit_watch_age_seconds",
        Gauge,
        "Time since the cluster confirmed the watch of this gateway.",
        |unit| unit.watch_age_s,
    ),
    ("lunar_gateway_unit_joins_total", Counter, "Times that this gateway began to serve an image.", |unit| {
        Some(unit.joins as f64)
    }),
    (
        "lunar_gateway_unit_losses_total",
        Counter,
        "Times that this gateway was fenced, or lost the cluster.",
        |unit| Some(unit.losses as f64),
    ),
    (
        "lunar_gateway_unit_publishes_total",
        Counter,
        "Changes of the shared state that this gateway made.",
        |unit| Some(unit.publishes as f64),
    ),
];

pub fn add(text: &mut MetricsText, units: &[SharedUnitReport]) {
    for (name, metric_type, help, value) in UNIT_METRICS {
        let mut metric = text.metric(name, metric_type, help);
        for unit in units {
            if let Some(value) = value(unit) {
                metric.add(&[("image", &unit.image)], value);
            }
        }
    }
}
