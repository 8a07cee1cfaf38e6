//! Metrics of the process, its configuration and its limits.

use super::text::MetricType::{Counter, Gauge};
use super::text::MetricsText;
use lunar_admin::ConfigSnapshot;
use lunar_admin::metrics::MetricsReport;

pub fn add(text: &mut MetricsText, report: &MetricsReport, config: &ConfigSnapshot) {
    text.metric("lunar_build_info", Gauge, "The version of Lunar.")
        .add(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.metric("lunar_start_time_seconds", Gauge, "Start of the server, in seconds since 1970.")
        .add(&[], report.started_at);
    configuration(text, config);
    limits(text, report);
    logins(text, report);
    process(text, report);
}

fn configuration(text: &mut MetricsText, config: &ConfigSnapshot) {
    // The version is the start of the process, and a number that each change increases.
    if let Some((_, number)) = config.version.rsplit_once('-') {
        text.metric(
            "lunar_config_version",
            Gauge,
            "The number of the configuration in force since the start.",
        )
        .add(&[], number);
    }
    if let Some(reload) = config.last_reload {
        text.metric("lunar_config_last_reload_success", Gauge, "Whether the latest reload was applied.")
            .add(&[], u8::from(reload.is_success));
        text.metric(
            "lunar_config_last_reload_time_seconds",
            Gauge,
            "Time of the latest reload, in seconds since 1970.",
        )
        .add(&[], reload.at);
    }
    if let Some(end) = config.certificate_not_after {
        let help = "End of the validity of the certificate of [api], in seconds since 1970.";
        text.metric("lunar_api_certificate_not_after_seconds", Gauge, help).add(&[], end);
    }
    let help = "When a configuration on trial is rolled back, in seconds since 1970; 0 without a trial.";
    let mut deadline = text.metric("lunar_config_confirm_deadline_seconds", Gauge, help);
    deadline.add(&[], config.confirm_by.unwrap_or_default());
}

fn limits(text: &mut MetricsText, report: &MetricsReport) {
    let mut busy =
        text.metric("lunar_core_busy_seconds_total", Counter, "CPU time of the threads of an event loop.");
    report.cores.iter().for_each(|core| busy.add(&[("core", &core.core.to_string())], core.busy_s));
    let mut connections =
        text.metric("lunar_core_connections", Gauge, "Connections that an event loop serves.");
    report
        .cores
        .iter()
        .for_each(|core| connections.add(&[("core", &core.core.to_string())], core.connections));
    text.metric("lunar_memory_used_bytes", Gauge, "Buffers of commands in use.").add(&[], report.memory.used);
    text.metric("lunar_memory_limit_bytes", Gauge, "Limit of the buffers of commands.")
        .add(&[], report.memory.limit);
    let all = &report.connections;
    let mut connections = text.metric("lunar_connections", Gauge, "Connections, before and after login.");
    connections.add(&[("state", "login")], all.before_login);
    connections.add(&[("state", "full")], all.used.saturating_sub(all.before_login));
    text.metric("lunar_connections_limit", Gauge, "Limit of connections.").add(&[], all.limit);
    let mut accepted =
        text.metric("lunar_connections_accepted_total", Counter, "Connections that a portal group accepted.");
    all.accepted.iter().for_each(|(tag, count)| accepted.add(&[("portal_group", &tag.to_string())], count));
    let mut refused =
        text.metric("lunar_connections_refused_total", Counter, "Connections that were closed at once.");
    all.refused.iter().for_each(|(reason, count)| refused.add(&[("reason", reason)], count));
}

fn logins(text: &mut MetricsText, report: &MetricsReport) {
    let help = "Logins by class and detail of their status (RFC 7143 section 11.13.5).";
    let mut logins = text.metric("lunar_login_total", Counter, help);
    for login in &report.logins {
        let target = login.target.as_deref().unwrap_or_default();
        logins.add(&[("target", target), ("status", &login.status)], login.count);
    }
}

fn process(text: &mut MetricsText, report: &MetricsReport) {
    let process = &report.process;
    text.metric("process_cpu_seconds_total", Counter, "CPU time of the process.").add(&[], process.cpu_s);
    text.metric("process_resident_memory_bytes", Gauge, "Resident memory of the process.")
        .add(&[], process.resident_bytes);
    text.metric("process_open_fds", Gauge, "Open file descriptors.").add(&[], process.open_fds);
    text.metric("process_max_fds", Gauge, "Limit of open file descriptors.").add(&[], process.max_fds);
    text.metric("process_start_time_seconds", Gauge, "Start of the process, in seconds since 1970.")
        .add(&[], report.started_at);
}
