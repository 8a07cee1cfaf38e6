//! Several gateways serve one image of Ceph RBD, on a cluster that the test starts.

use interop::ceph::CephCluster;
use interop::gateways::{IMAGE, configuration, create_image, fenced, joins, session};
use interop::login::Login;
use interop::reserve::RESERVATION_CONFLICT;
use interop::reserve::action::{CLEAR, PREEMPT_AND_ABORT, REGISTER, RESERVE};
use interop::reserve::attention::{ACCESS_STATE_CHANGED, REGISTRATIONS_PREEMPTED, RESERVATIONS_PREEMPTED};
use interop::reserve::flag::ALL_TG_PT;
use interop::reserve::kind::WRITE_EXCLUSIVE;
use interop::routed::until;
use interop::scsi::{pattern, read_keys, read10, reserve_out};
use interop::tool::{self, Tool};
use interop::{Server, TARGET};
use std::process::Command;
use std::time::Duration;

const TEST_CU: Tool = Tool { program: "iscsi-test-cu", package: "libiscsi-bin" };

const LOGICAL_UNIT_RESET: u8 = 5;

/// Hosts, as initiators.
const A: &str = "iqn.2026-11.org.example:a";
const B: &str = "iqn.2026-11.org.example:b";

/// Two gateways that have joined.
fn gateways(cluster: &CephCluster) -> [Server; 2] {
    interop::gateways::start(cluster)
}

fn url(server: &Server) -> String {
    format!("iscsi://{}/{TARGET}/0", server.portal())
}

#[test]
fn gateways_decide_as_one_server() {
    let Some(cluster) = CephCluster::start() else { return };
    // A change waits for a gateway that does not acknowledge it, and then fences it.
    interop::raw::choose_patience(Duration::from_secs(30));
    create_image(&cluster);
    let [mut one, two] = gateways(&cluster);
    each_gateway_reports_the_ports_of_both(&one, &two);
    registrations_are_those_of_both(&one, &two);
    reset_by_one_host_is_seen_on_both(&one, &two);
    new_size_is_reported_by_both(&cluster, &one, &two);
    reload_with_another_id_is_rejected(&cluster, &mut one);
    second_gateway_with_the_same_id_is_refused(&cluster, &one);
    libiscsi_passes_with_a_path_to_each(&one, &two);
    drop([one, two]);
    paused_gateway_overwrites_nothing(&cluster);
    killed_gateway_is_fenced_and_comes_back(&cluster);
    only_gateway_keeps_registrations_over_a_pause(&cluster);
}

fn each_gateway_reports_the_ports_of_both(one: &Server, two: &Server) {
    for server in [one, two] {
        let said = tool::must(
            interop::server::lunar_bin().to_str().expect("text"),
            &["discover", &server.portal().to_string()],
        );
        for (other, tag) in [(one, 257), (two, 513)] {
            assert!(said.contains(&format!("{},{tag} {TARGET}", other.portal())), "{said}");
        }
    }
}

fn registrations_are_those_of_both(one: &Server, two: &Server) {
    let (mut a, mut b) = (session(one, A), session(two, B));
    reserve_out(&mut a, 0, REGISTER, 0, 0, 0xa, ALL_TG_PT).good();
    reserve_out(&mut b, 0, REGISTER, 0, 0, 0xb, 0).good();
    assert_eq!(
        read_keys(&mut a, 0),
        [0xa, 0xa, 0xb],
        "one for the port of each gateway, and that of the other host"
    );
    assert_eq!(read_keys(&mut b, 0), [0xa, 0xa, 0xb]);
    reserve_out(&mut b, 0, RESERVE, WRITE_EXCLUSIVE, 0xb, 0, 0).good();
    assert_eq!(a.write_blocks(0, 0, &pattern(512, 1)).status, RESERVATION_CONFLICT);
    b.write_blocks(0, 0, &pattern(512, 2)).good();
    assert_eq!(a.read_blocks(0, 0, 1), pattern(512, 2));
    reserve_out(&mut a, 0, PREEMPT_AND_ABORT, WRITE_EXCLUSIVE, 0xa, 0xb, 0).good();
    let attention = b.simple(0, &[0; 6]).sense();
    assert!([RESERVATIONS_PREEMPTED, REGISTRATIONS_PREEMPTED].contains(&attention), "{attention:06x}");
    assert_eq!(b.write_blocks(0, 0, &pattern(512, 3)).status, RESERVATION_CONFLICT);
    assert_eq!(read_keys(&mut b, 0), [0xa, 0xa]);
    reserve_out(&mut a, 0, CLEAR, 0, 0xa, 0, 0).good();
    assert!(read_keys(&mut b, 0).is_empty(), "CLEAR");
}

fn reset_by_one_host_is_seen_on_both(one: &Server, two: &Server) {
    const LUN_RESET_OCCURRED: u32 = 0x06_29_03;
    let (mut a, mut b) = (session(one, A), session(two, B));
    b.simple(0, &[0x16, 0, 0, 0, 0, 0]).good();
    assert_eq!(a.read(0, &read10(0, 1), 512).status, RESERVATION_CONFLICT, "RESERVE of the other host");
    assert_eq!(a.manage(LOGICAL_UNIT_RESET, 0), 0);
    assert_eq!(b.simple(0, &[0; 6]).sense(), LUN_RESET_OCCURRED);
    a.clear_attentions(0);
    a.read(0, &read10(0, 1), 512).good();
    // The RESERVE of a session ends with it.
    b.simple(0, &[0x16, 0, 0, 0, 0, 0]).good();
    b.logout(0, 0);
    a.read(0, &read10(0, 1), 512).good();
}

fn new_size_is_reported_by_both(cluster: &CephCluster, one: &Server, two: &Server) {
    const CAPACITY_DATA_HAS_CHANGED: u32 = 0x06_2a_09;
    let mut sessions = [session(one, A), session(two, B)];
    cluster.rbd(&["resize", "--no-progress", "--size", "80M", &format!("rbd/{IMAGE}")]);
    for session in &mut sessions {
        let reports =
            |response: interop::scsi::Reply| (response.sense() == CAPACITY_DATA_HAS_CHANGED).then_some(());
        until("the unit attention", || reports(session.simple(0, &[0; 6])));
    }
}

fn reload_with_another_id_is_rejected(cluster: &CephCluster, one: &mut Server) {
    const SIGHUP: i32 = 1;
    let other = configuration(cluster, 1).replace("id = 1\n", "id = 3\n");
    one.rewrite(&other);
    one.signal(SIGHUP);
    until("the reason", || one.log().contains("differ from those of the running server").then_some(()));
    drop(session(one, A));
    one.rewrite(&configuration(cluster, 1));
}

fn second_gateway_with_the_same_id_is_refused(cluster: &CephCluster, one: &Server) {
    let before = joins(one);
    let clash = Server::start(&configuration(cluster, 1));
    until("the reason", || clash.log().contains("another gateway has the id 1").then_some(()));
    let refused = Login::new().try_on(clash.portal()).err();
    assert_eq!(refused, Some(0x0301), "out of service");
    drop(session(one, A));
    assert_eq!(joins(one), before);
    // It has used nothing, so that nothing is to be fenced.
    let said = cluster.ceph(&["osd", "blocklist", "ls"]);
    assert!(!said.contains("127.0.0.1"), "{said}");
    other_pool_for_the_state_is_refused(cluster);
}

fn other_pool_for_the_state_is_refused(cluster: &CephCluster) {
    cluster.ceph(&["osd", "pool", "create", "state", "1"]);
    let other = configuration(cluster, 3).replace("id = 3\n", "id = 3\npool = \"state\"\n");
    let other = Server::start(&other);
    let reason = "the shared state of the image is in the pool of the image, not in the pool state";
    until("the reason", || other.log().contains(reason).then_some(()));
    assert_eq!(Login::new().try_on(other.portal()).err(), Some(0x0301));
}

fn libiscsi_passes_with_a_path_to_each(one: &Server, two: &Server) {
    if !tool::have(&[TEST_CU]) {
        return;
    }
    for suite in ["SCSI.PrinReadKeys", "SCSI.PrinServiceactionRange", "SCSI.PrinReportCapabilities"]
        .into_iter()
        .chain(["SCSI.ProutRegister", "SCSI.ProutReserve", "SCSI.ProutClear", "SCSI.ProutPreempt"])
        .chain(["SCSI.Reserve6", "SCSI.CompareAndWrite"])
    {
        let mut command = Command::new(TEST_CU.program);
        command.args(["-d", "-s", "-t", suite, &url(one), &url(two)]);
        let ran = tool::run(&mut command, Duration::from_secs(60));
        let tests = ran.said.lines().find(|line| line.trim_start().starts_with("tests ")).unwrap_or_default();
        // Columns: total, ran, passed, failed, inactive.
        let counts: Vec<&str> = tests.split_whitespace().skip(1).collect();
        assert!(
            ran.ok() && counts.len() == 5 && counts[1] != "0" && counts[3] == "0",
            "{suite}: {}",
            ran.said
        );
    }
}

/// The host A writes through one gateway, which is stopped in the middle. The host B preempts it through the other one,
/// and then writes. When the first gateway continues, no write of A arrives any more.
fn paused_gateway_overwrites_nothing(cluster: &CephCluster) {
    let [one, two] = gateways(cluster);
    let (mut a, mut b) = (session(&one, A), session(&two, B));
    reserve_out(&mut a, 0, REGISTER, 0, 0, 0xa, 0).good();
    reserve_out(&mut b, 0, REGISTER, 0, 0, 0xb, 0).good();
    a.write_blocks(0, 0, &pattern(4096, 1)).good();
    one.pause();
    let request = a.command(0, 0xa0, &interop::scsi::write10(0, 8), 4096);
    a.send(&request);
    reserve_out(&mut b, 0, PREEMPT_AND_ABORT, WRITE_EXCLUSIVE, 0xb, 0xa, 0).good();
    // The ports of the fenced gateway are unavailable.
    assert_eq!(b.simple(0, &[0; 6]).sense(), ACCESS_STATE_CHANGED);
    reserve_out(&mut b, 0, RESERVE, WRITE_EXCLUSIVE, 0xb, 0, 0).good();
    b.write_blocks(0, 0, &pattern(4096, 2)).good();
    one.resume();
    a.expect_close();
    until("the first gateway joins again", || (joins(&one) == 2).then_some(()));
    b.clear_attentions(0);
    let mut a = session(&one, A);
    assert_eq!(a.write_blocks(0, 0, &pattern(4096, 3)).status, RESERVATION_CONFLICT);
    assert_eq!(a.read_blocks(0, 0, 8), pattern(4096, 2), "through the gateway that was fenced");
    assert_eq!(b.read_blocks(0, 0, 8), pattern(4096, 2));
    assert_eq!(read_keys(&mut a, 0), [0xb]);
    reserve_out(&mut b, 0, CLEAR, 0, 0xb, 0, 0).good();
}

fn killed_gateway_is_fenced_and_comes_back(cluster: &CephCluster) {
    let [mut one, two] = gateways(cluster);
    let (mut a, mut b) = (session(&one, A), session(&two, B));
    reserve_out(&mut a, 0, REGISTER, 0, 0, 0xa, 0).good();
    a.write_blocks(0, 0, &pattern(4096, 4)).good();
    let before = fenced(cluster);
    one.kill9();
    b.read_blocks(0, 0, 8);
    // This change waits for the killed gateway, fences it, and takes place.
    reserve_out(&mut b, 0, REGISTER, 0, 0, 0xb, 0).good();
    assert!(fenced(cluster) > before, "the killed gateway is on the blocklist");
    assert_eq!(b.simple(0, &[0; 6]).sense(), ACCESS_STATE_CHANGED);
    assert_eq!(b.read_blocks(0, 0, 8), pattern(4096, 4));
    one.restart();
    let mut a = session(&one, A);
    assert_eq!(read_keys(&mut a, 0), [0xa, 0xb], "without APTPL, a registration ends with the last gateway");
    drop((a, b, one, two));
    let [one, _two] = gateways(cluster);
    assert!(read_keys(&mut session(&one, A), 0).is_empty());
}

/// Its process has not lost its power, so registrations without APTPL stay.
fn only_gateway_keeps_registrations_over_a_pause(cluster: &CephCluster) {
    let one = Server::start(&configuration(cluster, 1));
    let mut a = session(&one, A);
    reserve_out(&mut a, 0, REGISTER, 0, 0, 0xa, 0).good();
    one.pause();
    std::thread::sleep(Duration::from_secs(7));
    one.resume();
    until("the gateway joins again", || (joins(&one) == 2).then_some(()));
    assert_eq!(read_keys(&mut session(&one, A), 0), [0xa]);
}
