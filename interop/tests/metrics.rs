//! The metrics of a running server: they rise by exactly what hosts did.

use interop::raw::patience;
use interop::scsi::{designator, extended_copy, pattern, read10, reserve_out, write10};
use interop::tool::{self, Tool};
use interop::{Login, Server, TARGET};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const PROMTOOL: Tool = Tool { program: "promtool", package: "prometheus" };
/// LOGICAL BLOCK ADDRESS OUT OF RANGE.
const OUT_OF_RANGE: u32 = 0x05_21_00;
/// Authorization failure (RFC 7143 section 11.13.5).
const NOT_ALLOWED: u16 = 0x0202;
const ADMITTED: &str = "iqn.2026-11.org.example:admitted";

fn server() -> Server {
    Server::start(&format!(
        "[server]\nmetrics = \"127.0.0.1:0\"\n[session]\nnop_interval_s = 0\n\
         [[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\nalias = \"a \\\"quoted\\\" \\\\ name\"\n\
         [[target.access]]\ninitiators = [\"{ADMITTED}\"]\n\
         [[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"8MiB\"\n\
         [[target.lun]]\nlun = 7\nbackend = \"memory\"\nsize = \"8MiB\"\n"
    ))
}

/// The address of the metrics, from the log.
fn address(server: &Server) -> SocketAddr {
    let log = server.log();
    let at = log.split("metrics: http://").nth(1).unwrap_or_else(|| panic!("no metrics: {log}"));
    at.split('/').next().and_then(|address| address.parse().ok()).expect("an address")
}

/// The body of a response to GET.
fn get(mut stream: impl Read + Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a request is sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 "), "{text}");
    body.to_owned()
}

fn scrape(server: &Server) -> String {
    get(TcpStream::connect(address(server)).expect("metrics"), "/metrics")
}

/// The value of a series; 0 without it.
fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap_or_else(|_| panic!("{series}: {value}")))
}

/// Scrapes until a series has this value. A latency counts a moment after its response is sent, and a session ends a
/// moment after its connection.
fn until(server: &Server, series: &str, expected: f64) {
    let end = Instant::now() + patience();
    loop {
        let text = scrape(server);
        if value(&text, series) == expected {
            return;
        }
        assert!(Instant::now() < end, "{series} is not {expected}\n{text}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The series of a LUN of the target.
fn of_lun(name: &str, lun: u16, more: &str) -> String {
    format!("{name}{{target=\"{TARGET}\",lun=\"{lun}\"{more}}}")
}

#[test]
fn counters_rise_by_what_a_client_did() {
    let server = server();
    let mut raw = Login::new().initiator(ADMITTED).on(server.portal());
    raw.clear_attentions(0);
    let before = scrape(&server);
    for block in 0..5 {
        raw.write_blocks(0, block, &pattern(512, 3)).good();
    }
    for _ in 0..3 {
        raw.read_blocks(0, 0, 4);
    }
    raw.read(0, &read10(u32::MAX, 1), 512).check(OUT_OF_RANGE);
    let after = scrape(&server);
    let rise = |series: &str| value(&after, series) - value(&before, series);
    for (name, more, expected) in [
        ("lunar_lun_writes_completed_total", "", 5.0),
        ("lunar_lun_reads_completed_total", "", 4.0),
        ("lunar_lun_others_completed_total", "", 0.0),
        ("lunar_lun_written_bytes_total", "", 2560.0),
        ("lunar_lun_read_bytes_total", "", 6144.0),
        ("lunar_lun_status_total", ",status=\"check_condition\"", 1.0),
        ("lunar_lun_sense_total", ",key=\"illegal_request\"", 1.0),
    ] {
        assert_eq!(rise(&of_lun(name, 0, more)), expected, "{name}{more}\n{after}");
    }
    for (op, expected) in [("write", 5.0), ("read", 4.0)] {
        let of_op = format!(",op=\"{op}\"");
        until(&server, &of_lun("lunar_lun_command_duration_seconds_count", 0, &of_op), expected);
        for stage in ["queue", "backend", "send"] {
            let of_stage = format!("{of_op},stage=\"{stage}\"");
            until(&server, &of_lun("lunar_lun_stage_duration_seconds_count", 0, &of_stage), expected);
        }
    }
    assert_eq!(value(&after, &of_lun("lunar_lun_reads_completed_total", 7, "")), 0.0);
    assert_eq!(value(&after, &of_lun("lunar_lun_commands_in_flight", 0, "")), 0.0);
    let of_initiator = |name: &str| format!("{name}{{target=\"{TARGET}\",initiator=\"{ADMITTED}\"}}");
    assert_eq!(rise(&of_initiator("lunar_initiator_written_bytes_total")), 2560.0);
    assert_eq!(rise(&of_initiator("lunar_initiator_errors_total")), 1.0);
    assert_eq!(value(&after, &of_initiator("lunar_initiator_sessions")), 1.0);
}

#[test]
fn copies_functions_and_reservations_are_counted() {
    let server = server();
    let mut raw = Login::new().initiator(ADMITTED).on(server.portal());
    [0, 7].iter().for_each(|lun| raw.clear_attentions(*lun));
    let (from, to) = (designator(&mut raw, 7), designator(&mut raw, 0));
    let (cdb, list) = extended_copy(&from, &to, 3);
    raw.write(0, &cdb, &list).good();
    reserve_out(&mut raw, 0, 0, 0, 0, 7, 0).good();
    reserve_out(&mut raw, 0, 1, 1, 7, 0, 0).good();
    // LOGICAL UNIT RESET.
    assert_eq!([raw.manage(5, 0), raw.manage(5, 9)], [0, 2]);
    let text = scrape(&server);
    for (name, values) in [
        ("lunar_lun_copied_bytes_total", [1536.0, 0.0]),
        ("lunar_lun_registrants", [1.0, 0.0]),
        ("lunar_lun_reserved", [1.0, 0.0]),
    ] {
        assert_eq!([0, 7].map(|lun| value(&text, &of_lun(name, lun, ""))), values, "{name}\n{text}");
    }
    for response in ["complete", "no_such_lun"] {
        let labels = format!("target=\"{TARGET}\",function=\"lun_reset\",response=\"{response}\"");
        assert_eq!(value(&text, &format!("lunar_task_management_total{{{labels}}}")), 1.0, "{text}");
    }
}

#[test]
fn tasks_are_in_flight_until_their_data_arrive() {
    let server = server();
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let mut raw = Login::new().initiator(ADMITTED).with(&keys).on(server.portal());
    raw.clear_attentions(7);
    let write = raw.command(7, 0xa0, &write10(0, 1), 512);
    raw.send(&write);
    let r2t = raw.recv_op(0x31);
    let in_flight = of_lun("lunar_lun_commands_in_flight", 7, "");
    assert_eq!(value(&scrape(&server), &in_flight), 1.0);
    raw.answer(&r2t, &pattern(512, 1));
    raw.recv_op(0x21);
    let after = scrape(&server);
    assert_eq!(value(&after, &in_flight), 0.0);
    let queue = of_lun("lunar_lun_stage_duration_seconds_count", 7, ",op=\"write\",stage=\"queue\"");
    until(&server, &queue, 1.0);
}

#[test]
fn logins_and_session_ends_are_counted_by_result() {
    let server = server();
    let refused = Login::new().try_on(server.portal()).err();
    assert_eq!(refused, Some(NOT_ALLOWED));
    let mut raw = Login::new().initiator(ADMITTED).on(server.portal());
    let logins = |status: &str| format!("lunar_login_total{{target=\"{TARGET}\",status=\"{status}\"}}");
    // The server counts a login after its response.
    until(&server, &logins("0000"), 1.0);
    let during = scrape(&server);
    assert_eq!([value(&during, &logins("0000")), value(&during, &logins("0202"))], [1.0, 1.0]);
    let sessions = format!("lunar_sessions{{target=\"{TARGET}\",transport=\"TCP\"}}");
    assert_eq!(value(&during, &sessions), 1.0);
    raw.logout(0, 0);
    raw.expect_close();
    let ended = format!("lunar_sessions_ended_total{{target=\"{TARGET}\",reason=\"logout\"}}");
    until(&server, &ended, 1.0);
    assert_eq!(value(&scrape(&server), &sessions), 0.0);
}

#[test]
fn admin_socket_has_the_same_metrics_and_labels_are_escaped() {
    let server = server();
    let socket = UnixStream::connect(server.dir().join("admin.sock")).expect("a server");
    let (by_socket, by_tcp) = (get(socket, "/metrics"), scrape(&server));
    let info = format!(
        "lunar_target_info{{target=\"{TARGET}\",alias=\"a \\\"quoted\\\" \\\\ name\",router=\"\"}} 1"
    );
    for text in [&by_socket, &by_tcp] {
        assert!(text.lines().any(|line| line == info), "{text}");
    }
    let names = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("# TYPE")).map(str::to_owned).collect()
    };
    assert_eq!(names(&by_socket), names(&by_tcp));
    let json = get(UnixStream::connect(server.dir().join("admin.sock")).expect("a server"), "/v1/metrics");
    assert!(json.contains("\"lun\":7"), "{json}");
}

#[test]
fn ten_clients_scrape_while_commands_run() {
    let server = server();
    let (address, reads) = (address(&server), of_lun("lunar_lun_reads_completed_total", 0, ""));
    let is_over = AtomicBool::new(false);
    let mut raw = Login::new().initiator(ADMITTED).on(server.portal());
    raw.clear_attentions(0);
    let data = pattern(4096, 9);
    raw.write_blocks(0, 0, &data).good();
    thread::scope(|scope| {
        let client = || {
            let (mut scrapes, mut last) = (0, 0.0);
            while !is_over.load(Relaxed) || scrapes < 5 {
                let text = get(TcpStream::connect(address).expect("metrics"), "/metrics");
                let now = value(&text, &reads);
                assert!(now >= last && text.ends_with("lunar_scrape_incomplete 0\n"), "{text}");
                (scrapes, last) = (scrapes + 1, now);
            }
        };
        let clients: Vec<_> = (0..10).map(|_| scope.spawn(client)).collect();
        for _ in 0..500 {
            assert_eq!(raw.read_blocks(0, 0, 8), data);
        }
        is_over.store(true, Relaxed);
        clients.into_iter().for_each(|client| client.join().expect("a client"));
    });
    assert_eq!(value(&scrape(&server), &reads), 500.0);
}

#[test]
fn capacity_is_that_of_the_medium_in_force() {
    let lun = "[[target.lun]]\nlun = 9\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"8MiB\"\n";
    let target = format!("{TARGET}2");
    let more = format!("[server]\nmetrics = \"127.0.0.1:0\"\n[[target]]\nname = \"{target}\"\n{lun}");
    let server = Server::start(&interop::config::with("", "", &more));
    let capacity = format!("lunar_lun_capacity_bytes{{target=\"{target}\",lun=\"9\"}}");
    assert_eq!(value(&scrape(&server), &capacity), f64::from(8 << 20));
    let file = std::fs::File::options().write(true).open(server.dir().join("disk.img")).expect("a file");
    file.set_len(16 << 20).expect("it grows");
    until(&server, &capacity, f64::from(16 << 20));
}

#[test]
fn luns_of_a_disk_are_one_unit() {
    let disk = "[[disk]]\nname = \"d\"\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let lun = |number: u8| format!("[[target.lun]]\nlun = {number}\ndisk = \"d\"\n");
    let other = format!("[[target]]\nname = \"{TARGET}2\"\n{}", lun(7));
    let server = Server::start(&interop::config::with("", "", &format!("{}{other}{disk}", lun(3))));
    let socket = UnixStream::connect(server.dir().join("admin.sock")).expect("a server");
    let report: serde_json::Value = serde_json::from_str(&get(socket, "/v1/metrics")).expect("JSON");
    let luns = report["luns"].as_array().expect("LUNs");
    let unit_of = |number: u8| luns.iter().find(|lun| lun["lun"] == number).expect("a LUN")["unit"].as_u64();
    assert!(unit_of(3).is_some() && unit_of(3) == unit_of(7) && unit_of(0) != unit_of(3), "{report}");
}

#[test]
fn promtool_accepts_the_metrics() {
    if !tool::have(&[PROMTOOL]) {
        return;
    }
    let server = server();
    let mut raw = Login::new().initiator(ADMITTED).on(server.portal());
    raw.clear_attentions(0);
    raw.read_blocks(0, 0, 1);
    let file = server.dir().join("metrics.txt");
    std::fs::write(&file, scrape(&server)).expect("a file");
    let command = format!("promtool check metrics < {}", file.display());
    let ran =
        tool::run(Command::new("sh").args(["-c", &command]).stdin(Stdio::null()), Duration::from_secs(60));
    assert!(ran.ok() && ran.said.is_empty(), "{}", ran.said);
}

#[test]
fn metrics_address_in_use_stops_the_start() {
    let server = server();
    let dir = interop::Folder::fresh();
    let toml = format!("[server]\nmetrics = \"{}\"\n{}", address(&server), interop::config::standard());
    let said = Server::refused(&dir, &toml);
    assert!(
        said.contains("cannot serve metrics on 127.0.0.1:") && said.contains("hint: set metrics of [server]"),
        "{said}"
    );
}
