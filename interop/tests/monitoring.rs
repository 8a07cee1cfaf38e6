//! The dashboard and the alerts of `dist`: their syntax, and the names of the metrics in them.

use interop::tool::{self, Tool};
use interop::{Login, Server, TARGET};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PROMTOOL: Tool = Tool { program: "promtool", package: "prometheus" };
const LIMIT: Duration = Duration::from_secs(60);
/// Metrics that a server without routers, gateways, failures and reloads does not have. Unit tests of the metrics check them.
const ABSENT: [&str; 12] = [
    "lunar_api_certificate_not_after_seconds",
    "lunar_config_last_reload_success",
    "lunar_gateway_unit_up",
    "lunar_path_up",
    "lunar_router_hop_commands_total",
    "lunar_router_hop_time_seconds_total",
    "lunar_router_lun_up",
    "lunar_router_pair_peer_up",
    "lunar_router_state",
    "lunar_upstream_up",
    "lunar_router_draining",
    "lunar_router_without_path",
];

fn dist(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the project").join("dist").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(dist(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn dashboard() -> Value {
    serde_json::from_str(&read("grafana/lunar.json")).expect("JSON")
}

/// The queries of the dashboard.
fn queries(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().expect("a query").to_owned()).collect()
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let base = |word: &str| {
        let suffixes = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix));
        suffixes.unwrap_or(word).to_owned()
    };
    words.filter(|word| word.starts_with("lunar_")).map(base).collect()
}

fn scrape(server: &Server) -> String {
    let mut stream = UnixStream::connect(server.dir().join("admin.sock")).expect("a server");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("metrics");
    text
}

/// The series of scrapes, one a minute, as promtool reads them. The last values stay.
fn series(scrapes: &[String]) -> Vec<Value> {
    let used = names(&read("prometheus/lunar.rules.yml"));
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (n, text) in scrapes.iter().enumerate() {
        let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
        for (series, value) in lines.filter(|(series, _)| names(series).is_subset(&used)) {
            let values = all.entry(series).or_insert_with(|| vec!["_"; n]);
            values.push(value);
        }
    }
    let one = |(series, values): (&str, Vec<&str>)| {
        let (values, last) = (values.join(" "), values.last().expect("a value"));
        serde_json::json!({ "series": series, "values": format!("{values} {last}x20") })
    };
    all.into_iter().filter(|(series, _)| series.starts_with("lunar_")).map(one).collect()
}

/// A test that this many alerts of a name fire after five minutes.
fn firing(alert: &str, count: u32) -> Value {
    let expr = format!("count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}) or vector(0)");
    serde_json::json!({ "expr": expr, "eval_time": "5m", "exp_samples": [{ "labels": "{}", "value": count }] })
}

fn promtool(arguments: &[&str]) {
    let ran = tool::run(Command::new("promtool").args(arguments).current_dir(dist("prometheus")), LIMIT);
    assert!(ran.ok(), "promtool {}: {}", arguments.join(" "), ran.said);
}

#[test]
fn alerts_pass_their_tests() {
    if tool::have(&[PROMTOOL]) {
        promtool(&["check", "rules", "lunar.rules.yml"]);
        promtool(&["test", "rules", "lunar.rules.test.yml"]);
    }
}

#[test]
fn alerts_see_the_first_event_of_a_server() {
    if !tool::have(&[PROMTOOL]) {
        return;
    }
    let limit = "[limits]\nconnections = 1\nconnections_before_login = 1\n";
    let server = Server::start(&interop::config::with("", "", limit));
    let mut scrapes: Vec<String> = (0..4).map(|_| scrape(&server)).collect();
    let _only = Login::new().on(server.portal());
    let mut refused = TcpStream::connect(server.portal()).expect("a connection");
    assert_eq!(refused.read(&mut [0]).expect("a close"), 0);
    scrapes.push(scrape(&server));
    let tests = serde_json::json!({
        "rule_files": [dist("prometheus/lunar.rules.yml")],
        "evaluation_interval": "1m",
        "tests": [{
            "interval": "1m",
            "input_series": series(&scrapes),
            "promql_expr_test": [firing("LunarConnectionsRefused", 1), firing("LunarRestarted", 0)],
        }],
    });
    let file = server.dir().join("alerts.yml");
    std::fs::write(&file, tests.to_string()).expect("a file");
    promtool(&["test", "rules", &file.display().to_string()]);
}

#[test]
fn counters_of_alerts_begin_at_zero() {
    let text = scrape(&Server::start(&interop::config::standard()));
    for series in [
        "lunar_lun_sense_total{target=\"T\",lun=\"1\",key=\"medium_error\"}",
        "lunar_lun_sense_total{target=\"T\",lun=\"1\",key=\"hardware_error\"}",
        "lunar_lun_status_total{target=\"T\",lun=\"1\",status=\"task_set_full\"}",
        "lunar_sessions_ended_total{target=\"T\",reason=\"reinstated\"}",
        "lunar_login_total{target=\"T\",status=\"0201\"}",
        "lunar_login_total{target=\"\",status=\"0201\"}",
        "lunar_connections_refused_total{reason=\"connections\"}",
        "lunar_connections_refused_total{reason=\"connections_before_login\"}",
        "lunar_connections_refused_total{reason=\"file_descriptors\"}",
    ] {
        let line = format!("{} 0", series.replace("\"T\"", &format!("\"{TARGET}\"")));
        assert!(text.lines().any(|one| one == line), "{line} is missing\n{text}");
    }
}

#[test]
fn each_alert_has_a_test_and_a_description() {
    let (rules, tests) = (read("prometheus/lunar.rules.yml"), read("prometheus/lunar.rules.test.yml"));
    let docs = std::fs::read_to_string(dist("../docs/monitoring.md")).expect("the page");
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        // One test that it fires, and one that it does not.
        assert!(tests.contains(&format!("alertname: {alert}\n        exp_alerts:")), "{alert} never fires");
        assert!(tests.contains(&format!("alertname: {alert}}}")), "{alert} always fires");
        assert!(docs.contains(&format!("`{alert}`")), "{alert} is not in docs/monitoring.md");
    }
}

#[test]
fn queries_of_dashboard_are_valid() {
    if !tool::have(&[PROMTOOL]) {
        return;
    }
    let fixed = |query: String| {
        query.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$target", ".*")
    };
    let rules = queries(&dashboard()).into_iter().map(fixed).enumerate();
    let rules: Vec<Value> =
        rules.map(|(n, expr)| serde_json::json!({ "record": format!("query:{n}"), "expr": expr })).collect();
    let folder = interop::Folder::fresh();
    let file = folder.join("queries.yml");
    let groups = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    std::fs::write(&file, groups.to_string()).expect("a file");
    promtool(&["check", "rules", &file.display().to_string()]);
}

#[test]
fn dashboard_and_alerts_use_metrics_that_exist() {
    let server = Server::start(&interop::config::standard());
    let mut raw = Login::new().on(server.portal());
    raw.clear_attentions(0);
    raw.write_blocks(0, 0, &interop::scsi::pattern(512, 1)).good();
    let text = scrape(&server);
    let there = |name: &String| text.contains(&format!("# TYPE {name} ")) || ABSENT.contains(&name.as_str());
    let used = names(&(queries(&dashboard()).join("\n") + &read("prometheus/lunar.rules.yml")));
    let missing: Vec<String> = used.into_iter().filter(|name| !there(name)).collect();
    assert!(missing.is_empty(), "{missing:?}\n{text}");
}

#[test]
fn panels_do_not_overlap() {
    let dashboard = dashboard();
    let place =
        |panel: &Value| ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().expect("a place"));
    let places: Vec<_> = dashboard["panels"].as_array().expect("panels").iter().map(place).collect();
    for (n, [x, y, w, h]) in places.iter().enumerate() {
        assert!(x + w <= 24, "panel {n} is beyond the edge");
        let overlaps =
            |[x2, y2, w2, h2]: &[u64; 4]| x < &(x2 + w2) && x2 < &(x + w) && y < &(y2 + h2) && y2 < &(y + h);
        assert!(!places[n + 1..].iter().any(overlaps), "panel {n} overlaps another");
    }
}
