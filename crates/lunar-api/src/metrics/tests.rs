//! The metrics of a server with made-up counters.

use super::MetricsServer;
use lunar_admin::gateway::SharedUnitPhase;
use lunar_admin::metrics::{
    FunctionCount, InitiatorMetrics, LatencyBuckets, LoginCount, LunMetrics, MetricsReport, OpMetrics,
    StageLatencies, TargetMetrics,
};
use lunar_admin::router::{Failover, PathReport, PathTraffic, UpstreamReport};
use lunar_admin::{
    Asker, ConfigSnapshot, GroupReport, ReloadOutcome, Request, Response, RouterReport, ServerControl,
    SessionReport, SharedUnitReport,
};
use lunar_config::Diagnostic;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A name from a peer, as a hostile one chooses it.
const HOSTILE: &str = "iqn.x:\"}\\ 1\nlunar_lun_ready 0";

/// A server. `routers`: its reports; None: the main thread fails.
struct Fake {
    routers: Option<Vec<RouterReport>>,
}

fn latency(counts: [u64; 3], sum_s: f64) -> LatencyBuckets {
    LatencyBuckets { counts: counts.to_vec(), sum_s }
}

fn lun(number: u16, own_histograms: bool, reads: u64) -> LunMetrics {
    let stages = StageLatencies {
        whole: latency([reads, 0, 0], 0.25),
        queue: latency([reads, 0, 0], 0.0),
        backend: latency([0, reads, 0], 0.25),
        send: latency([reads, 0, 0], 0.0),
    };
    LunMetrics {
        target: "iqn.t".into(),
        lun: number,
        own_histograms,
        ready: true,
        read_bytes: reads * 512,
        copied_bytes: reads * 512,
        registrants: 2,
        reserved: true,
        ops: vec![OpMetrics { op: "read".into(), commands: reads, latency: Some(stages) }],
        failures: [("busy".to_owned(), 2)].into(),
        ..LunMetrics::default()
    }
}

impl ServerControl for Fake {
    fn sessions(&self) -> Vec<SessionReport> {
        Vec::new()
    }

    fn config(&self) -> Arc<ConfigSnapshot> {
        let last_reload = Some(ReloadOutcome { is_success: false, at: 77 });
        Arc::new(ConfigSnapshot { version: "abc-5".into(), last_reload, ..ConfigSnapshot::default() })
    }

    fn metrics(&self) -> MetricsReport {
        MetricsReport {
            bounds_s: vec![0.5, 1.0],
            luns: vec![lun(0, true, 3), lun(1, false, 4), lun(2, false, 5)],
            targets: vec![
                TargetMetrics { target: "iqn.t".into(), open: true, ..TargetMetrics::default() },
                TargetMetrics { target: "nqn.s".into(), controllers: Some(2), ..TargetMetrics::default() },
            ],
            initiators: vec![InitiatorMetrics {
                target: "iqn.t".into(),
                initiator: HOSTILE.into(),
                sessions: 1,
                ..InitiatorMetrics::default()
            }],
            started_at: 1e9 + 0.25,
            functions: vec![FunctionCount {
                target: "iqn.t".into(),
                function: "lun_reset".into(),
                response: "complete".into(),
                count: 2,
            }],
            logins: vec![LoginCount { target: None, status: "0203".into(), count: 6 }],
            ..MetricsReport::default()
        }
    }

    fn group(&self) -> GroupReport {
        let unit = |image: &str, phase, watch_age_s| SharedUnitReport {
            image: image.into(),
            phase,
            version: 17,
            watch_age_s,
            gateways: vec![1, 4],
            joins: 3,
            losses: 2,
            publishes: 5,
            ..SharedUnitReport::default()
        };
        let units =
            vec![unit("p/a", SharedUnitPhase::Serving, Some(0.5)), unit("p/b", SharedUnitPhase::Stale, None)];
        GroupReport { gateways: Vec::new(), units }
    }

    fn ask(&self, request: Request, _: &Asker) -> Response {
        assert_eq!(request, Request::Routers);
        let failure = || Diagnostic::new("the server is shutting down", "wait").into();
        self.routers.clone().map_or_else(failure, Response::Routers)
    }
}

/// A server whose main thread is busy while the lock is held.
struct Busy(Arc<Mutex<()>>);

impl ServerControl for Busy {
    fn sessions(&self) -> Vec<SessionReport> {
        Vec::new()
    }

    fn config(&self) -> Arc<ConfigSnapshot> {
        Arc::default()
    }

    fn ask(&self, _: Request, _: &Asker) -> Response {
        drop(self.0.lock());
        Response::Routers(Vec::new())
    }
}

/// Head and body of a response.
fn get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The metrics, and what else the listener serves.
fn metrics(routers: Option<Vec<RouterReport>>) -> String {
    let any = "127.0.0.1:0".parse().unwrap();
    let server = MetricsServer::start(any, Arc::new(Fake { routers })).unwrap();
    let (head, text) = get(server.address(), "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert_eq!(get(server.address(), "/").1, "Lunar: metrics are at /metrics\n");
    assert!(get(server.address(), "/v1/sessions").0.starts_with("HTTP/1.1 404 "));
    text
}

fn assert_lines(text: &str, lines: &[&str]) {
    lines
        .iter()
        .for_each(|line| assert!(text.lines().any(|one| one == *line), "{line} is missing in {text}"));
}

#[test]
fn metrics_show_counters_of_luns_and_logins() {
    let text = metrics(Some(Vec::new()));
    assert_lines(
        &text,
        &[
            "lunar_lun_reads_completed_total{target=\"iqn.t\",lun=\"2\"} 5",
            "lunar_lun_read_bytes_total{target=\"iqn.t\",lun=\"0\"} 1536",
            "lunar_lun_read_time_seconds_total{target=\"iqn.t\",lun=\"1\"} 0.25",
            "lunar_lun_status_total{target=\"iqn.t\",lun=\"0\",status=\"busy\"} 2",
            "lunar_task_management_total{target=\"iqn.t\",function=\"lun_reset\",response=\"complete\"} 2",
            "lunar_lun_copied_bytes_total{target=\"iqn.t\",lun=\"0\"} 1536",
            "lunar_lun_registrants{target=\"iqn.t\",lun=\"0\"} 2",
            "lunar_lun_reserved{target=\"iqn.t\",lun=\"0\"} 1",
            "lunar_login_total{target=\"\",status=\"0203\"} 6",
            "lunar_target_open{target=\"iqn.t\"} 1",
            "lunar_sessions{target=\"iqn.t\",transport=\"TCP\"} 0",
            "lunar_sessions{target=\"nqn.s\",transport=\"NVMe/TCP\"} 0",
            "lunar_nvme_controllers{target=\"nqn.s\"} 2",
            "lunar_start_time_seconds 1000000000.25",
            "process_start_time_seconds 1000000000.25",
            "lunar_config_version 5",
            "lunar_config_last_reload_success 0",
            "lunar_scrape_incomplete 0",
        ],
    );
}

#[test]
fn shared_units_have_metrics() {
    let text = metrics(Some(Vec::new()));
    assert_lines(
        &text,
        &[
            "lunar_gateway_unit_up{image=\"p/a\"} 1",
            "lunar_gateway_unit_up{image=\"p/b\"} 0",
            "lunar_gateway_unit_gateways{image=\"p/a\"} 2",
            "lunar_gateway_unit_version{image=\"p/a\"} 17",
            "lunar_gateway_unit_watch_age_seconds{image=\"p/a\"} 0.5",
            "lunar_gateway_unit_joins_total{image=\"p/b\"} 3",
            "lunar_gateway_unit_losses_total{image=\"p/b\"} 2",
            "lunar_gateway_unit_publishes_total{image=\"p/b\"} 5",
        ],
    );
    assert!(!text.contains("watch_age_seconds{image=\"p/b\"}"), "no watch has no age");
}

#[test]
fn luns_without_own_histograms_share_one() {
    let text = metrics(Some(Vec::new()));
    let whole = "lunar_lun_command_duration_seconds";
    assert_lines(
        &text,
        &[
            &format!("{whole}_count{{target=\"iqn.t\",lun=\"0\",op=\"read\"}} 3"),
            &format!("{whole}_count{{target=\"iqn.t\",lun=\"other\",op=\"read\"}} 9"),
            &format!("{whole}_sum{{target=\"iqn.t\",lun=\"other\",op=\"read\"}} 0.5"),
            "lunar_lun_stage_duration_seconds_bucket\
                {target=\"iqn.t\",lun=\"other\",op=\"read\",stage=\"backend\",le=\"0.5\"} 0",
            "lunar_lun_stage_duration_seconds_bucket\
                {target=\"iqn.t\",lun=\"other\",op=\"read\",stage=\"backend\",le=\"1\"} 9",
        ],
    );
    assert!(!text.contains("lun=\"1\",op="), "{text}");
}

#[test]
fn hostile_initiator_name_stays_a_label() {
    let text = metrics(Some(Vec::new()));
    let line = "lunar_initiator_sessions{target=\"iqn.t\",\
        initiator=\"iqn.x:\\\"}\\\\ 1\\nlunar_lun_ready 0\"} 1";
    assert_lines(&text, &[line]);
    assert!(!text.lines().any(|line| line == "lunar_lun_ready 0"), "{text}");
}

#[test]
fn paths_of_all_cores_are_one_series() {
    let path = |state: &str, in_flight| PathReport {
        lun: "t/0".into(),
        url: "iscsi://h/t/0".into(),
        state: state.into(),
        in_flight: Some(in_flight),
        recoveries: Some(1),
        total: Some(PathTraffic {
            reads: 3,
            writes: 2,
            read_bytes: 30,
            written_bytes: 20,
            errors: 1,
            time_us: 750_000,
        }),
        ..PathReport::default()
    };
    let unused = PathReport { url: "iscsi://i/t/0".into(), ..path("unused", 0) };
    let uncounted = PathReport { url: "iscsi://j/t/0".into(), total: None, ..path("up", 0) };
    let upstream = UpstreamReport {
        name: "a".into(),
        luns: 1,
        obstacle: Some("no route".into()),
        paths: vec![path("down", 1), path("optimized", 2), unused, uncounted],
        ..UpstreamReport::default()
    };
    let router = RouterReport {
        name: "r1".into(),
        state: "active".into(),
        upstreams: vec![upstream],
        failover: Some(Failover::default()),
        ..RouterReport::default()
    };
    let text = metrics(Some(vec![router]));
    let of = "{router=\"r1\",upstream=\"a\",lun=\"t/0\",path=\"iscsi://h/t/0\"}";
    assert_lines(
        &text,
        &[
            &format!("lunar_path_up{of} 1"),
            &format!("lunar_path_commands_in_flight{of} 3"),
            &format!("lunar_path_reconnects_total{of} 2"),
            &format!("lunar_path_reads_completed_total{of} 6"),
            &format!("lunar_path_writes_completed_total{of} 4"),
            &format!("lunar_path_read_bytes_total{of} 60"),
            &format!("lunar_path_written_bytes_total{of} 40"),
            &format!("lunar_path_errors_total{of} 2"),
            &format!("lunar_path_time_seconds_total{of} 1.5"),
            "lunar_upstream_up{router=\"r1\",upstream=\"a\"} 0",
            "lunar_router_pair_peer_up{router=\"r1\"} 0",
            "lunar_router_state{router=\"r1\",state=\"active\"} 1",
            "lunar_router_state{router=\"r1\",state=\"no_path\"} 0",
        ],
    );
    assert!(!text.contains("iscsi://i/t/0"), "an unused path has no state");
    let counts = |line: &str| line.contains("iscsi://j/t/0") && line.starts_with("lunar_path_errors_total");
    assert!(text.contains("iscsi://j/t/0") && !text.lines().any(counts), "not counted is not 0");
}

#[test]
fn silent_main_thread_makes_scrape_incomplete() {
    let text = metrics(None);
    assert_lines(&text, &["lunar_scrape_incomplete 1", "lunar_lun_ready{target=\"iqn.t\",lun=\"0\"} 1"]);
}

#[test]
fn busy_main_thread_stops_no_scrape() {
    let gate = Arc::new(Mutex::new(()));
    let busy = gate.lock().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let server = MetricsServer::start(any, Arc::new(Busy(gate.clone()))).unwrap();
    let address = server.address();
    // The question of the first one still waits during the second one.
    for _ in 0..2 {
        assert_lines(&get(address, "/metrics").1, &["lunar_scrape_incomplete 1"]);
    }
    drop(busy);
    assert_lines(&get(address, "/metrics").1, &["lunar_scrape_incomplete 0"]);
}

/// A connection from this address of the host.
fn connect_from(source: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.into()
}

#[test]
fn silent_host_stops_no_scrape_of_another() {
    let any = "127.0.0.1:0".parse().unwrap();
    let server = MetricsServer::start(any, Arc::new(Fake { routers: None })).unwrap();
    let mut silent: Vec<_> = (0..40).map(|_| connect_from([127, 0, 0, 2], server.address())).collect();
    assert!(get(server.address(), "/metrics").0.starts_with("HTTP/1.1 200 "));
    // Not even the first ones stay.
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
}

#[test]
fn address_in_use_is_an_error_with_hint() {
    let any = "127.0.0.1:0".parse().unwrap();
    let server = MetricsServer::start(any, Arc::new(Fake { routers: None })).unwrap();
    let address = server.address();
    let again = MetricsServer::start(address, Arc::new(Fake { routers: None })).err().unwrap();
    let expected = format!(
        "cannot serve metrics on {address}: address already in use\n  \
         hint: set metrics of [server] to another port, or stop the program that uses it"
    );
    assert_eq!(again.to_string(), expected);
}
