//! Two gateways of a Ceph cluster show their group, their shared images and their metrics.

use interop::ceph::CephCluster;
use interop::login::Login;
use interop::raw::Raw;
use interop::routed::until;
use interop::scsi::reserve_out;
use interop::{Server, TARGET};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Service actions of PERSISTENT RESERVE OUT.
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const WRITE_EXCLUSIVE: u8 = 1;
const HOST: &str = "iqn.2026-11.org.example:a";

/// A gateway of the group, before it has joined.
fn gateway(cluster: &CephCluster, id: u8) -> Server {
    let of_image = cluster.configuration("shared", "");
    Server::start(&format!("[gateway]\ngroup = \"gw\"\nid = {id}\n\n{of_image}"))
}

/// A session of the host, as soon as the gateway has joined.
fn session(server: &Server) -> Raw {
    let mut raw = until("a login", || Login::new().initiator(HOST).try_on(server.portal()).ok());
    raw.clear_attentions(0);
    raw
}

fn json(server: &Server, words: &[&str]) -> Value {
    serde_json::from_str(&server.said(&[words, &["--json"]].concat())).expect("JSON")
}

/// The numbers and states of the gateways that a server lists.
fn states(server: &Server) -> Vec<(u64, String)> {
    let list = json(server, &["gateway", "list"]);
    let rows = list["items"].as_array().expect("a list");
    let state = |row: &Value| row["state"].as_str().expect("a state").to_owned();
    rows.iter().map(|row| (row["id"].as_u64().expect("a number"), state(row))).collect()
}

/// The shared image of a server.
fn shown(server: &Server) -> Value {
    json(server, &["gateway", "show", "rbd/shared"])["items"][0].take()
}

/// The value of a metric of the shared image.
fn metric(server: &Server, name: &str) -> f64 {
    let mut stream = UnixStream::connect(server.dir().join("admin.sock")).expect("a server");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("metrics");
    let series = format!("lunar_gateway_unit_{name}{{image=\"rbd/shared\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok());
    value.unwrap_or_else(|| panic!("{series} is missing: {text}"))
}

#[test]
fn gateways_show_each_other_and_their_images() {
    let Some(cluster) = CephCluster::start() else { return };
    // A change waits for a gateway that does not acknowledge it, and then fences it.
    interop::raw::choose_patience(Duration::from_secs(30));
    cluster.rbd(&["create", "--size", "64M", "--image-feature", "layering", "rbd/shared"]);
    let (mut one, two) = (gateway(&cluster, 1), gateway(&cluster, 2));
    [&one, &two].into_iter().for_each(|server| drop(session(server)));
    each_gateway_lists_both(&one, &two);
    shared_image_is_shown(&two);
    output_has_the_form_of_its_schema(&two);
    unknown_image_is_an_error(&two);
    killed_gateway_is_away(&mut one, &two);
    paused_gateway_counts_its_loss(&one, &two);
    gateway_that_cannot_join_shows_why(&cluster);
}

fn each_gateway_lists_both(one: &Server, two: &Server) {
    let both = [(1, "serving".to_owned()), (2, "serving".to_owned())];
    for server in [one, two] {
        until("both gateways", || (states(server) == both).then_some(()));
    }
    let list = json(two, &["gateway", "list"]);
    for (row, server, tag) in [(0, one, 257), (1, two, 513)] {
        let row = &list["items"][row];
        assert_eq!((&row["group"], &row["this_server"]), (&"gw".into(), &(tag == 513).into()), "{list}");
        assert_eq!((&row["serving_luns"], &row["luns"]), (&1.into(), &1.into()), "{list}");
        let port = &row["ports"][0];
        assert_eq!((&port["portal_group"], &port["relative_port"]), (&tag.into(), &tag.into()), "{list}");
        assert_eq!(
            (&port["protocol"], &port["portals"][0]),
            (&"iscsi".into(), &server.portal().to_string().into())
        );
    }
    let text = two.said(&["gateway", "list"]);
    let row = format!(" 2  yes          serving     1  {},513", two.portal());
    assert!(text.lines().any(|line| line.starts_with(&row)), "{text}");
}

fn shared_image_is_shown(server: &Server) {
    let before = shown(server);
    let mut host = session(server);
    reserve_out(&mut host, 0, REGISTER, 0, 0, 0xa, 0).good();
    reserve_out(&mut host, 0, RESERVE, WRITE_EXCLUSIVE, 0xa, 0, 0).good();
    let unit = shown(server);
    assert_eq!((&unit["phase"], &unit["image"]), (&"serving".into(), &"rbd/shared".into()), "{unit}");
    assert!(unit["object"].as_str().is_some_and(|name| name.starts_with("lunar.lu.")), "{unit}");
    assert_eq!((&unit["luns"][0]["target"], &unit["luns"][0]["lun"]), (&TARGET.into(), &0.into()), "{unit}");
    let number = |unit: &Value, key: &str| unit[key].as_u64().expect("a number");
    assert_eq!(number(&unit, "version"), number(&before, "version") + 2, "{before} {unit}");
    assert_eq!(number(&unit, "publishes"), number(&before, "publishes") + 2, "{before} {unit}");
    assert_eq!((number(&unit, "joins"), number(&unit, "losses")), (1, 0), "{unit}");
    assert!(unit["watch_age_s"].as_f64().is_some_and(|age_s| age_s < 60.0), "{unit}");
    assert_eq!(unit["gateways"], serde_json::json!([1, 2]), "{unit}");
    assert_eq!((&unit["registrations"], &unit["holder"]), (&1.into(), &HOST.into()), "{unit}");
    let text = server.said(&["gateway", "show", "rbd:rbd/shared"]);
    assert!(text.starts_with("image rbd/shared: serving, for "), "{text}");
    assert!(text.contains(&format!("  reservation    held by {HOST}\n")), "{text}");
    for (name, value) in [("up", 1.0), ("gateways", 2.0), ("joins_total", 1.0), ("losses_total", 0.0)] {
        assert_eq!(metric(server, name), value, "{name}");
    }
    assert_eq!(metric(server, "version") as u64, number(&unit, "version"));
    assert_eq!(metric(server, "publishes_total") as u64, number(&unit, "publishes"));
    assert!(metric(server, "watch_age_seconds") >= 0.0);
    reserve_out(&mut host, 0, 3, 0, 0xa, 0, 0).good();
}

fn output_has_the_form_of_its_schema(server: &Server) {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schema.json"));
    let document: Value = serde_json::from_str(&text.expect("the schemas")).expect("JSON");
    for command in ["gateway list", "gateway show", "gateway drain", "gateway resume"] {
        let mut schema = document["commands"][command].clone();
        schema["$defs"] = document["$defs"].clone();
        let words: Vec<&str> = command.split(' ').collect();
        let output = json(server, &words);
        let fault = jsonschema::validate(&schema, &output).err().map(|fault| fault.to_string());
        assert_eq!(fault, None, "{command}: {output}");
    }
}

fn unknown_image_is_an_error(server: &Server) {
    let ran = server.asked(&["gateway", "show", "rbd/other"]);
    assert_eq!(ran.status.and_then(|status| status.code()), Some(21), "{}", ran.said);
    assert!(
        ran.said.contains("the server shares no image rbd/other\n  hint: lunar gateway show"),
        "{}",
        ran.said
    );
}

fn killed_gateway_is_away(one: &mut Server, two: &Server) {
    let mut host = session(two);
    one.kill9();
    // This change waits for the killed gateway, and fences it.
    reserve_out(&mut host, 0, REGISTER, 0, 0, 0xa, 0).good();
    assert_eq!(states(two), [(1, "away".to_owned()), (2, "serving".to_owned())]);
    assert_eq!((shown(two)["gateways"].clone(), metric(two, "gateways")), (serde_json::json!([2]), 1.0));
    let text = two.said(&["gateway", "list"]);
    assert!(text.contains(&format!(" 1  no           away     0 of 1  {},257", one.portal())), "{text}");
    one.restart();
    drop(session(one));
    let both = [(1, "serving".to_owned()), (2, "serving".to_owned())];
    until("the gateway is back", || (states(two) == both).then_some(()));
    host.clear_attentions(0);
    reserve_out(&mut host, 0, 3, 0, 0xa, 0, 0).good();
}

fn paused_gateway_counts_its_loss(one: &Server, server: &Server) {
    let mut host = session(one);
    server.pause();
    // This change fences the paused gateway.
    reserve_out(&mut host, 0, REGISTER, 0, 0, 0xa, 0).good();
    server.resume();
    until("the gateway joins again", || (metric(server, "joins_total") == 2.0).then_some(()));
    let unit = shown(server);
    assert_eq!((&unit["losses"], metric(server, "losses_total")), (&1.into(), 1.0), "{unit}");
    assert!(unit["last_failure"]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{unit}");
    assert!(server.said(&["gateway", "show"]).contains("\n  last failure   20"), "{unit}");
}

fn gateway_that_cannot_join_shows_why(cluster: &CephCluster) {
    let clash = gateway(cluster, 2);
    let reason = "another gateway has the id 2";
    until("the reason", || (shown(&clash)["last_failure"]["reason"] == reason).then_some(()));
    let unit = shown(&clash);
    assert_eq!((&unit["phase"], &unit["joins"], &unit["losses"]), (&"joining".into(), &0.into(), &0.into()));
    assert_eq!(metric(&clash, "up"), 0.0);
    let other = Server::start(&format!(
        "[gateway]\ngroup = \"gw\"\nid = 3\n\n{}",
        cluster.configuration("shared", "block_size = 4096")
    ));
    let reason = "serves it with block_size \"512\", this one has \"4096\"";
    let shows =
        || shown(&other)["last_failure"]["reason"].as_str().is_some_and(|said| said.ends_with(reason));
    until("the other reason", || shows().then_some(()));
    let own: Vec<_> = states(&clash).into_iter().filter(|(id, _)| *id == 2).collect();
    assert_eq!(own, [(2, "away".to_owned())]);
}
