//! Rules about an NVMe controller and its namespace, beside those that all transports share.

use super::findings;
use super::namespace_report::{ControllerSummary, NamespaceSummary};
use super::report::{DoctorReport, Finding, Severity};

/// A queue with fewer entries leaves the network idle.
const QUEUE: u32 = 16;
/// A limit of commands below this costs more than it needs, in bytes.
const TRANSFER: u64 = 64 << 10;
/// Connecting above this is slow, in microseconds.
const SLOW_CONNECT_US: u64 = 1_000_000;

/// Input of these rules.
struct NvmeEvidence<'a> {
    controller: &'a ControllerSummary,
    namespace: Option<&'a NamespaceSummary>,
    /// Whether the URL has a secret of this host.
    has_secret: bool,
    /// Whether the URL names no namespace.
    any_namespace: bool,
}

type NvmeRow = (Severity, fn(&NvmeEvidence<'_>) -> Option<String>, &'static str);

/// The rules: severity, condition that returns the finding, and hint.
const TABLE: &[NvmeRow] = &[
    (
        Severity::Warning,
        |s| {
            let n = s.controller.queue_entries;
            (n < QUEUE).then(|| format!("an I/O queue has only {n} entries"))
        },
        "raise queue_len in the URL, and the queue size of the target (nvmet: param_max_queue_size)",
    ),
    (
        Severity::Warning,
        |s| {
            let bytes = s.controller.max_transfer_bytes.filter(|bytes| *bytes < TRANSFER)?;
            Some(format!("a command moves at most {bytes} bytes (MDTS): large reads and writes are slow"))
        },
        "raise the limit on the target (SPDK: max_io_size)",
    ),
    (
        Severity::Note,
        |s| {
            (s.controller.capsule_data_bytes == 0).then(|| {
                "no data travel with their command: every write waits for the target to ask for them".into()
            })
        },
        "raise the limit on the target (nvmet: param_inline_data_size; SPDK: in_capsule_data_size)",
    ),
    (
        Severity::Warning,
        |s| {
            (s.has_secret && !s.controller.authenticated)
                .then(|| "the URL has a secret, but the controller requires no authentication".into())
        },
        "any host with this name can connect: require authentication on the target, or remove secret_file",
    ),
    (
        Severity::Warning,
        |s| {
            let us = s.controller.connected_in_us;
            (us > SLOW_CONNECT_US).then(|| format!("the controller took {:.1} s to connect", us as f64 / 1e6))
        },
        "check the log and the load of the target",
    ),
    (
        Severity::Note,
        |s| s.namespace.filter(|n| n.read_only).map(|n| format!("namespace {} is read-only", n.id)),
        "to write to the namespace, change its setting on the target",
    ),
    (
        Severity::Warning,
        |s| {
            let namespace = s.namespace.filter(|n| n.identity.is_none())?;
            Some(format!("namespace {} has no UUID, NGUID or EUI64", namespace.id))
        },
        "after a reconnection, nothing shows that its number still leads to the same disk: configure an identifier",
    ),
    (
        Severity::Note,
        |s| {
            let n = s.controller.namespaces.len();
            (s.any_namespace && n > 1)
                .then(|| format!("the subsystem has {n} namespaces, and only the first was examined"))
        },
        "add the number of another namespace to the URL",
    ),
];

/// All findings about a report.
pub fn of(report: &DoctorReport, has_secret: bool, any_namespace: bool) -> Vec<Finding> {
    let mut found = findings::of(report, false, false);
    let Some(controller) = &report.controller else { return found };
    let namespace = report.namespace.as_ref();
    let seen = NvmeEvidence { controller, namespace, has_secret, any_namespace };
    let finding = |(weight, find, hint): &NvmeRow| {
        find(&seen).map(|what| Finding { weight: *weight, code: None, what, hint: (*hint).into() })
    };
    found.extend(TABLE.iter().filter_map(finding));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_initiator::multipath::PathState;

    fn healthy() -> DoctorReport {
        let controller = ControllerSummary {
            subsystem: "nqn.2026-11.org.example:a".into(),
            id: 1,
            model: "Lunar".into(),
            serial: "1".into(),
            firmware: "1".into(),
            version: "1.4".into(),
            authenticated: false,
            header_digest: false,
            data_digest: false,
            connected_in_us: 900,
            io_queues: 1,
            queue_entries: 128,
            max_transfer_bytes: None,
            capsule_data_bytes: 8192,
            namespaces: vec![1, 2],
        };
        let namespace = NamespaceSummary {
            id: 1,
            identity: Some("uuid.1".into()),
            capacity_bytes: 1 << 30,
            block_size_bytes: 512,
            read_only: false,
            write_cache: true,
            access: PathState::Optimized,
        };
        DoctorReport {
            is_nvme: true,
            controller: Some(controller),
            namespace: Some(namespace),
            ..DoctorReport::default()
        }
    }

    #[test]
    fn healthy_namespace_has_no_findings() {
        assert_eq!(of(&healthy(), false, false), []);
        assert_eq!(of(&DoctorReport::default(), true, true), [], "no finding without evidence");
    }

    #[test]
    fn each_rule_matches_its_fault() {
        type NvmeChange = (fn(&mut ControllerSummary, &mut NamespaceSummary), &'static str);
        let changes: [NvmeChange; 6] = [
            (|c, _| c.queue_entries = 8, "only 8 entries"),
            (|c, _| c.max_transfer_bytes = Some(8192), "at most 8192 bytes"),
            (|c, _| c.capsule_data_bytes = 0, "no data travel with their command"),
            (|c, _| c.connected_in_us = 1_500_000, "took 1.5 s"),
            (|_, n| n.read_only = true, "is read-only"),
            (|_, n| n.identity = None, "no UUID"),
        ];
        for (change, part) in changes {
            let mut report = healthy();
            let (controller, namespace) = (report.controller.as_mut(), report.namespace.as_mut());
            change(controller.expect("a controller"), namespace.expect("a namespace"));
            let found = of(&report, false, false);
            assert!(found.len() == 1 && found[0].what.contains(part), "{part}: {found:?}");
        }
        assert!(of(&healthy(), true, false)[0].what.contains("requires no authentication"));
        assert!(of(&healthy(), false, true)[0].what.contains("2 namespaces"));
    }
}
