//! Rules that detect faults and bottlenecks: a table with one row per rule.

use super::devices;
use super::report::{DoctorReport, Finding, Severity};
use lunar_initiator::options::Transport;

/// A command window below this leaves the network idle.
const WINDOW: u32 = 16;
/// Data segments below this cost more than they need, in bytes.
const SEGMENT: u32 = 64 << 10;
/// A receive buffer below this stalls large reads, in bytes.
const RECEIVE_BUFFER: usize = 64 << 10;
/// Limit of a 1 Gbit/s link, in bytes per second.
const GIGABIT: u64 = 125_000_000;
/// Name resolution above this is slow, in microseconds.
const SLOW_NAME_US: u64 = 100_000;
/// Round trips above this are slow, in microseconds.
const SLOW_ROUND_TRIP_US: u64 = 5000;
/// Round trips below this are those of a local network, in microseconds.
const NEAR_US: u64 = 1000;

/// Reads above this are slow on any network, in microseconds.
const SLOW_READ_US: u64 = 100_000;
/// A read that takes more round trips than this is slow because of the disk, not the network.
const SLOW_READ_TRIPS: u64 = 10;
/// Responses to a login request above this are slow, in microseconds.
const SLOW_LOGIN_US: u64 = 1_000_000;

/// Input of the rules.
struct Evidence<'a> {
    report: &'a DoctorReport,
    /// Whether the URL or the environment contains a user name and a password.
    has_password: bool,
    /// Whether the URL contains no LUN.
    any_lun: bool,
}

type Row = (Severity, fn(&Evidence<'_>) -> Option<String>, &'static str);

/// The rules: severity, condition that returns the finding, and hint.
const TABLE: &[Row] = &[
    (
        Severity::Warning,
        window,
        "raise the queue depth on the target (LIO: default_cmdsn_depth; STGT: MaxQueueCmd)",
    ),
    (Severity::Warning, segment, "raise MaxRecvDataSegmentLength on the target to 262144 or more"),
    (
        Severity::Warning,
        |s| {
            session(s)
                .filter(|p| p.immediate_data == "No" && !is_srp(s))
                .map(|_| "ImmediateData=No: every write takes an extra round trip".into())
        },
        "set ImmediateData=Yes on the target, and immediate_data=yes in the URL",
    ),
    (
        Severity::Note,
        |s| {
            session(s)
                .filter(|p| p.immediate_data == "No" && is_srp(s))
                .map(|_| "no immediate data: every write waits for the target to fetch its data".into())
        },
        "remove immediate_data=no from the URL; the target must support immediate data too (Linux 5.0 and later)",
    ),
    (Severity::Warning, credits, "raise the queue depth on the target, or use several sessions"),
    (
        Severity::Note,
        |s| {
            session(s)
                // iSER requires InitialR2T=Yes (RFC 7145).
                .filter(|p| p.initial_r2t == "Yes" && !is_rdma(s))
                .map(|_| "InitialR2T=Yes: writes larger than the immediate data wait for an R2T".into())
        },
        "set InitialR2T=No on the target if writes are slow",
    ),
    (
        Severity::Warning,
        mtu,
        "use an MTU of 9000 on both hosts and on all switches between them, if they support it",
    ),
    (
        Severity::Warning,
        |s| {
            let bytes = s.report.path.receive_buffer_bytes.filter(|n| *n < RECEIVE_BUFFER)?;
            Some(format!("the receive buffer of the socket has only {bytes} bytes"))
        },
        "raise net.ipv4.tcp_rmem (sysctl)",
    ),
    (
        Severity::Warning,
        |s| {
            let session = s.report.session.as_ref()?;
            (s.has_password && session.chap.is_none())
                .then(|| "a password is set, but the target requires no authentication".into())
        },
        "any initiator can log in: require CHAP on the target, or remove the password",
    ),
    (
        Severity::Note,
        pacing,
        "on a fast network, net.ipv4.tcp_congestion_control=cubic (sysctl) uses less CPU time; the target's host has \
         its own setting",
    ),
    (
        Severity::Warning,
        dead_address,
        "remove this address from the name service, or use a working address in the URL",
    ),
    (
        Severity::Warning,
        |s| {
            let us = s.report.resolved_in_us;
            (us > SLOW_NAME_US).then(|| format!("name resolution took {} ms", us / 1000))
        },
        "use an address instead of a name, or add the name to /etc/hosts",
    ),
    (
        Severity::Note,
        |s| s.report.portals.get(1).map(|there| format!("the portal redirects to {there}")),
        "some targets distribute load in this way; use that portal in the URL to save one login",
    ),
    (
        Severity::Warning,
        slow_login,
        "check the log and the load of the target: its name service or its authentication server may be slow",
    ),
    (
        Severity::Warning,
        slow_reads,
        "the network is not the cause: on the target, check the disk behind the LUN, its errors and its load",
    ),
    (Severity::Warning, round_trip, "check the network latency (ping), and the load of the target"),
    (
        Severity::Note,
        |s| lun(s).filter(|lun| lun.read_only).map(|lun| format!("LUN {} is read-only", lun.lun)),
        "to write to the LUN, change its setting on the target",
    ),
    (
        Severity::Warning,
        |s| {
            lun(s)
                .filter(|lun| lun.identity.is_none())
                .map(|lun| format!("LUN {} has no identity (VPD page 83h)", lun.lun))
        },
        "do not use this LUN through several paths: nothing shows that they lead to the same logical unit",
    ),
    (
        Severity::Note,
        |s| {
            let lun = lun(s).filter(|lun| lun.physical_block_size_bytes > lun.block_size_bytes)?;
            Some(format!(
                "physical blocks have {} bytes, logical blocks {}",
                lun.physical_block_size_bytes, lun.block_size_bytes
            ))
        },
        "align partitions, and write whole physical blocks: a partial block is read before it is written",
    ),
    (
        Severity::Note,
        |s| {
            let n = s.report.session.as_ref()?.luns.len();
            (s.any_lun && n > 1).then(|| format!("the target has {n} LUNs, and only the first was examined"))
        },
        "add the number of another LUN to the URL",
    ),
];

fn session<'a>(s: &'a Evidence<'_>) -> Option<&'a lunar_admin::Parameters> {
    s.report.session.as_ref().map(|session| &session.parameters)
}

fn lun<'a>(s: &'a Evidence<'_>) -> Option<&'a super::report::LunProperties> {
    s.report.lun.as_ref()
}

fn is_srp(s: &Evidence<'_>) -> bool {
    s.report.transport == Transport::Srp
}

fn is_rdma(s: &Evidence<'_>) -> bool {
    is_srp(s) || s.report.transport == Transport::Iser
}

fn window(s: &Evidence<'_>) -> Option<String> {
    let window = s.report.session.as_ref().filter(|_| !is_srp(s))?.window;
    (window < WINDOW).then(|| format!("the command window of the target is only {window}"))
}

/// The credits of SRP, without the one for task management.
fn credits(s: &Evidence<'_>) -> Option<String> {
    let window = s.report.session.as_ref().filter(|_| is_srp(s))?.window;
    (window < WINDOW).then(|| format!("the target grants only {window} credits for commands"))
}

fn segment(s: &Evidence<'_>) -> Option<String> {
    // Over RDMA, data are not transferred in data segments.
    let bytes = session(s).filter(|_| !is_rdma(s))?.max_xmit_data_segment_length;
    (bytes < SEGMENT)
        .then(|| format!("MaxRecvDataSegmentLength of the target is {bytes}: large writes are slow"))
}

fn mtu(s: &Evidence<'_>) -> Option<String> {
    let mtu = s.report.path.mtu_bytes.filter(|mtu| *mtu <= 1500)?;
    let speed = s.report.reads.filter(|reads| reads.large_bytes_per_s > GIGABIT)?.large_bytes_per_s;
    Some(format!("the MTU is {mtu} on a link that carries at least {} MB/s", speed / 1_000_000))
}

/// BBR on a local network. On paths with long round trips its pacing is worth the cost of the timers.
fn pacing(s: &Evidence<'_>) -> Option<String> {
    let control = s.report.path.congestion_control.as_ref().filter(|name| name.starts_with("bbr"))?;
    let is_near = s.report.round_trip.is_some_and(|trip| trip.median_us < NEAR_US);
    is_near.then(|| {
        format!("{control} paces sent data with a timer for each burst, which is slow in virtual machines")
    })
}

fn dead_address(s: &Evidence<'_>) -> Option<String> {
    let dead = s.report.connections.iter().find(|c| c.error.is_some())?;
    // If no address responds, the login has already failed.
    s.report
        .connections
        .iter()
        .any(|c| c.error.is_none())
        .then(|| format!("{} does not answer: {}", dead.address, dead.error.as_deref().unwrap_or_default()))
}

fn slow_login(s: &Evidence<'_>) -> Option<String> {
    let took = |step: &super::report::LoginExchange| step.took_us.filter(|us| *us > SLOW_LOGIN_US);
    let (n, us) = s.report.login.iter().enumerate().find_map(|(n, step)| Some((n + 1, took(step)?)))?;
    Some(format!("the target took {:.1} s to answer login request {n}", us as f64 / 1e6))
}

fn slow_reads(s: &Evidence<'_>) -> Option<String> {
    let (reads, trip) = (s.report.reads?, s.report.round_trip?.median_us);
    let us = reads.small_median_us;
    (us > SLOW_READ_US && us > trip.saturating_mul(SLOW_READ_TRIPS)).then(|| {
        let ms = |us: u64| us as f64 / 1e3;
        format!(
            "a read of {} bytes takes {:.1} ms, and a round trip {:.1} ms",
            reads.small_bytes,
            ms(us),
            ms(trip)
        )
    })
}

fn round_trip(s: &Evidence<'_>) -> Option<String> {
    let median = s.report.round_trip?.median_us;
    (median > SLOW_ROUND_TRIP_US).then(|| format!("a round trip takes {:.1} ms", median as f64 / 1e3))
}

/// All findings about a report.
pub fn of(report: &DoctorReport, has_password: bool, any_lun: bool) -> Vec<Finding> {
    let seen = Evidence { report, has_password, any_lun };
    let finding = |(weight, find, hint): &Row| {
        find(&seen).map(|what| Finding { weight: *weight, code: None, what, hint: (*hint).into() })
    };
    TABLE.iter().filter_map(finding).chain(devices::findings(report)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::report::{
        ConnectAttempt, LoginExchange, LunProperties, ReadStats, RoundTrip, SessionSummary,
    };
    use super::*;
    use lunar_proto::parameters::Parameters;

    fn healthy() -> DoctorReport {
        let parameters =
            Parameters { initial_r2t: false, max_xmit_data_segment_length: 262144, ..Parameters::default() };
        let session = SessionSummary {
            target: "iqn.2026-11.org.example:a".into(),
            target_alias: None,
            portal_group: Some(1),
            chap: None,
            parameters: (&parameters).into(),
            window: 128,
            commands: 128,
            luns: vec![0],
        };
        let lun = LunProperties {
            lun: 0,
            vendor: "LUNAR".into(),
            product: "DISK".into(),
            identity: Some("naa.3".into()),
            capacity_bytes: 1 << 30,
            block_size_bytes: 512,
            physical_block_size_bytes: 512,
            read_only: false,
            write_cache: true,
            thin: false,
        };
        let mut report = DoctorReport { session: Some(session), lun: Some(lun), ..DoctorReport::default() };
        report.path.mtu_bytes = Some(1500);
        report.path.receive_buffer_bytes = Some(131072);
        report
    }

    #[test]
    fn healthy_lun_has_no_findings() {
        assert_eq!(of(&healthy(), false, false), []);
        assert_eq!(of(&DoctorReport::default(), true, true), [], "no finding without evidence");
    }

    /// Over RDMA, some negotiated values have another meaning.
    #[test]
    fn rdma_values_are_no_faults() {
        let mut report = healthy();
        report.transport = Transport::Iser;
        let parameters = &mut report.session.as_mut().unwrap().parameters;
        (parameters.max_xmit_data_segment_length, parameters.initial_r2t) = (8192, "Yes".into());
        assert_eq!(of(&report, false, false), []);
        report.transport = Transport::Srp;
        report.session.as_mut().unwrap().parameters.immediate_data = "No".into();
        report.session.as_mut().unwrap().window = 3;
        let found: Vec<_> = of(&report, false, false).into_iter().map(|found| found.what).collect();
        assert!(found.len() == 2 && found[0].contains("fetch its data"), "{found:?}");
        assert!(found[1].contains("only 3 credits for commands"), "{found:?}");
    }

    /// Sets the median of small reads and the round-trip time, in microseconds.
    fn slow(report: &mut DoctorReport, small_median_us: u64, trip: u64) {
        let (small_bytes, large_bytes, large_depth) = (4096, 262144, 16);
        report.reads = Some(ReadStats {
            small_bytes,
            small_median_us,
            large_bytes,
            large_depth,
            large_bytes_per_s: 1_000_000,
        });
        report.round_trip = Some(RoundTrip { count: 20, min_us: trip, median_us: trip, max_us: trip });
    }

    #[test]
    fn slow_network_is_not_reported_as_slow_disk() {
        for (read, trip) in [(99_000, 50), (40_000, 4_500), (49_000, 4_900)] {
            assert!(found(|r| slow(r, read, trip)).is_empty(), "{read} us, {trip} us");
        }
        let far = found(|r| slow(r, 150_000, 140_000));
        assert!(far.len() == 1 && far[0].starts_with("a round trip takes"), "{far:?}");
    }

    fn found(change: impl FnOnce(&mut DoctorReport)) -> Vec<String> {
        let mut report = healthy();
        change(&mut report);
        of(&report, false, false).into_iter().map(|found| found.what).collect()
    }

    #[test]
    fn slow_target_response_is_reported() {
        let step = |took_us| {
            let (stage, offered, answered, status) = ("security", Vec::new(), Vec::new(), None);
            LoginExchange { stage, offered, answered, status, took_us }
        };
        let login = [Some(900_000), Some(1_200_000), None].map(step);
        assert_eq!(found(|r| r.login = login.into()), ["the target took 1.2 s to answer login request 2"]);
        let reads = found(|r| slow(r, 3_000_400, 90));
        assert_eq!(reads, ["a read of 4096 bytes takes 3000.4 ms, and a round trip 0.1 ms"]);
    }

    type Change = (fn(&mut DoctorReport), &'static str);

    /// Each row: the change of a healthy report, and the expected finding.
    #[test]
    fn each_row_matches_its_fault() {
        let changes: [Change; 14] = [
            (|r| r.session.as_mut().unwrap().window = 1, "target is only 1"),
            (|r| r.session.as_mut().unwrap().parameters.max_xmit_data_segment_length = 8192, "is 8192"),
            (|r| r.session.as_mut().unwrap().parameters.immediate_data = "No".into(), "ImmediateData=No"),
            (|r| r.session.as_mut().unwrap().parameters.initial_r2t = "Yes".into(), "InitialR2T=Yes"),
            (
                |r| {
                    let (small_bytes, large_bytes, large_depth) = (4096, 262144, 16);
                    r.reads = Some(ReadStats {
                        small_bytes,
                        small_median_us: 1,
                        large_bytes,
                        large_depth,
                        large_bytes_per_s: 300_000_000,
                    });
                },
                "300 MB/s",
            ),
            (|r| r.path.receive_buffer_bytes = Some(4096), "4096 bytes"),
            (|r| r.resolved_in_us = 2_000_000, "2000 ms"),
            (|r| r.portals = vec!["a:1".into(), "b:2".into()], "redirects to b:2"),
            (
                |r| r.round_trip = Some(RoundTrip { count: 20, min_us: 1, median_us: 9000, max_us: 9000 }),
                "9.0 ms",
            ),
            (
                |r| {
                    r.path.congestion_control = Some("bbr".into());
                    r.round_trip = Some(RoundTrip { count: 20, min_us: 1, median_us: 300, max_us: 900 });
                },
                "bbr paces",
            ),
            (|r| r.lun.as_mut().unwrap().read_only = true, "is read-only"),
            (|r| r.lun.as_mut().unwrap().identity = None, "no identity"),
            (|r| r.lun.as_mut().unwrap().physical_block_size_bytes = 4096, "4096 bytes, logical blocks 512"),
            (
                |r| {
                    let one = |error: Option<String>| ConnectAttempt {
                        address: "[::1]:1".into(),
                        took_us: None,
                        error,
                    };
                    r.connections = vec![one(Some("refused".into())), one(None)];
                },
                "does not answer: refused",
            ),
        ];
        for (change, part) in changes {
            let mut report = healthy();
            change(&mut report);
            let found = of(&report, false, false);
            assert!(found.len() == 1 && found[0].what.contains(part), "{part}: {found:?}");
        }
        assert!(of(&healthy(), true, false)[0].what.contains("a password is set"));
        let mut several = healthy();
        several.session.as_mut().unwrap().luns = vec![0, 1];
        assert!(of(&several, false, true)[0].what.contains("2 LUNs"));
    }
}
