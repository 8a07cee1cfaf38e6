//! The RDMA devices of this host, and findings about them.

use super::report::{DoctorReport, Finding, Port, Severity};
use lunar_initiator::ErrorCode;

const NO_DRIVER: &str = "install the providers of rdma-core (Debian, Ubuntu: ibverbs-providers)";
const DOWN: &str = "check the cable, and the switch or subnet manager; for a software device, its network device (ip \
                    link set DEVICE up)";
const UNUSED: &str = "add provider=verbs to the URL to use this device, if the device can reach the target";

/// All ports; None if the RDMA libraries are not installed.
pub fn of_this_host() -> Option<Vec<Port>> {
    let devices = lunar_rdma::verbs::devices().ok()?;
    let ports = devices.into_iter().flat_map(|device| {
        let (name, usable) = (device.name, device.is_usable);
        device.ports.into_iter().map(move |port| Port {
            device: name.clone(),
            port: port.number,
            state: port.state,
            addresses: port.addresses.iter().map(ToString::to_string).collect(),
            usable,
        })
    });
    Some(ports.collect())
}

/// Findings about the devices: faults if the URL uses them, and a note if it does not although they are available.
pub fn findings(report: &DoctorReport) -> Vec<Finding> {
    let Some(ports) = &report.devices else { return Vec::new() };
    if !report.by_device {
        let unused = ports.iter().find(|port| port.is_up());
        let what = |port: &Port| format!("software iWARP is used, although this host has {}", port.device);
        return unused.map(|port| finding(Severity::Note, what(port), UNUSED)).into_iter().collect();
    }
    if ports.is_empty() {
        let what = lunar_rdma::NO_DEVICE;
        // A login that needs a device has already reported this.
        let is_reported = report.findings.iter().any(|found| found.code == Some(ErrorCode::Unreachable));
        return if is_reported {
            Vec::new()
        } else {
            vec![finding(Severity::Warning, what.into(), &lunar_rdma::NO_DEVICE_HINT)]
        };
    }
    let wrong = |p: &Port| match (p.usable, p.is_up()) {
        (_, true) => None,
        (false, _) => Some((format!("rdma-core has no provider for {}", p.device), NO_DRIVER)),
        _ => Some((format!("port {} of {} is {}", p.port, p.device, p.state), DOWN)),
    };
    ports.iter().filter_map(wrong).map(|(what, hint)| finding(Severity::Warning, what, hint)).collect()
}

fn finding(weight: Severity, what: String, hint: &str) -> Finding {
    Finding { weight, code: None, what, hint: hint.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(by_device: bool, devices: Option<Vec<Port>>) -> Vec<String> {
        let report = DoctorReport { by_device, devices, ..DoctorReport::default() };
        findings(&report).into_iter().map(|found| found.what).collect()
    }

    fn port(state: &str, usable: bool) -> Port {
        Port { device: "mlx5_0".into(), port: 1, state: state.into(), addresses: Vec::new(), usable }
    }

    #[test]
    fn unusable_device_is_reported_with_reason() {
        let messages = |ports| found(true, Some(ports)).concat();
        assert_eq!(messages(vec![]), "this host has no RDMA device");
        let of_login = |code| {
            let broken = Finding { code: Some(code), ..finding(Severity::Broken, "in any words".into(), "") };
            let findings = vec![broken];
            super::findings(&DoctorReport {
                by_device: true,
                devices: Some(vec![]),
                findings,
                ..DoctorReport::default()
            })
        };
        assert!(of_login(ErrorCode::Unreachable).is_empty(), "reported once");
        assert_eq!(of_login(ErrorCode::TimedOut).len(), 1);
        assert_eq!(messages(vec![port("DOWN", true)]), "port 1 of mlx5_0 is DOWN");
        assert_eq!(messages(vec![port("ACTIVE", false)]), "rdma-core has no provider for mlx5_0");
        assert_eq!(messages(vec![port("ACTIVE", true)]), "");
    }

    #[test]
    fn device_that_is_not_used_though_it_could_be_is_a_note() {
        let messages = |ports| found(false, ports).concat();
        assert_eq!(messages(Some(vec![port("DOWN", true)])), "");
        assert!(messages(Some(vec![port("ACTIVE", true)])).contains("this host has mlx5_0"));
        assert_eq!(messages(None), "", "nothing is known of devices without the libraries");
    }
}
