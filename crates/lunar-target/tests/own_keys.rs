//! The server and our own initiator over the loopback interface: X-org.lunar. keys, and CDBs longer than a header can
//! hold.
#![forbid(unsafe_code)]

use lunar_initiator::{Command, Direction, Discovery, Options, Session};
use lunar_runtime::{Buf, Cores};
use lunar_scsi::{Lu, LuIdentity, LuSettings};
use lunar_target::config::{
    AllowedDigests, DiscoveryConfig, Portal, PortalGroup, TargetConfig, TargetLimits, TargetNode,
    TextKeyHandler,
};
use lunar_target::{LogicalUnit, TargetServer};
use lunar_wire::scsi::cdb;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "iqn.2026-11.org.example:disk";
/// Limit for a test that hangs.
const LIMIT: Duration = Duration::from_secs(30);

fn limits() -> TargetLimits {
    TargetLimits {
        connections: 16,
        connections_before_login: 16,
        login_timeout: LIMIT,
        sessions: 16,
        sessions_per_initiator: 16,
        discovery_sessions: 16,
        discovery_timeout: Duration::from_secs(60),
        commands_per_session: 32,
        text_bytes: 64 << 10,
        memory: 64 << 20,
    }
}

fn session() -> lunar_target::config::SessionConfig {
    let digests = AllowedDigests { none: true, crc32c: true };
    lunar_target::config::SessionConfig {
        initial_r2t: false,
        immediate_data: true,
        max_recv_data_segment_length: 65536,
        max_burst_length: 262_144,
        first_burst_length: 65536,
        max_outstanding_r2t: 1,
        default_time2wait: 2,
        default_time2retain: 0,
        header_digest: digests,
        data_digest: digests,
        nop_interval: None,
        nop_timeout: LIMIT,
        data_out_timeout: LIMIT,
        chap_algorithms: lunar_proto::chap::Algorithm::ALL.to_vec(),
    }
}

/// A memory disk of 1 MiB.
fn unit() -> LogicalUnit {
    const CAPACITY: u64 = 1 << 20;
    let identity = LuIdentity {
        vendor: "LUNAR".into(),
        product: "disk".into(),
        revision: "1".into(),
        serial: "1".into(),
        naa: vec![0x30, 0, 0, 0, 0, 0, 0, 1],
        designators: None,
    };
    let settings = LuSettings {
        device_type: lunar_scsi::PeripheralDeviceType::Disk,
        identity,
        block_size: 512,
        physical_block_size: 512,
        capacity: CAPACITY,
        read_only: false,
        removable: false,
        write_cache: true,
        thin: false,
        max_registrants: 4,
        reservable: true,
        passthrough: lunar_scsi::PassthroughMode::None,
        max_atomic: 1 << 20,
        medium_compares: false,
        explicit_access: true,
        shared: false,
    };
    let medium =
        lunar_block::open(&lunar_block::BackendSpec::sized(lunar_block::BackendKind::Memory, CAPACITY))
            .expect("memory");
    LogicalUnit::new(Arc::new(Lu::new(settings, None).expect("settings")), medium, None)
}

fn serve(answers: TextKeyHandler) -> TargetServer {
    let target = TargetNode {
        name: NAME.into(),
        alias: None,
        portal_groups: vec![1],
        relative_ports: BTreeMap::new(),
        redirects: Vec::new(),
        offline: false,
        mutual: None,
        luns: BTreeMap::from([(0, Arc::new(unit()))]),
        access: Vec::new(),
        instance: None,
        routed_by: Vec::new(),
        depth: None,
        subsystem: None,
    };
    let portal = Portal::tcp(([127, 0, 0, 1], 0).into());
    let config = TargetConfig {
        limits: limits(),
        busy_poll: Default::default(),
        session: session(),
        discovery: DiscoveryConfig::default(),
        portal_groups: vec![PortalGroup { tag: 1, portals: vec![portal] }],
        targets: BTreeMap::from([(NAME.into(), target)]),
        awaited: Default::default(),
        instances: Default::default(),
        text_keys: answers,
        tls_identities: Default::default(),
    };
    TargetServer::start(config, &[0]).expect("a server")
}

/// Runs `work` on an event loop of its own, with the portal of the server.
fn beside<T: Send + 'static, W: Future<Output = T> + 'static>(
    server: TargetServer,
    work: impl FnOnce(lunar_initiator::Portal, Options) -> W + Send + 'static,
) -> T {
    let portal = server.portals()[0].address.to_string().parse().expect("a portal");
    let options = Options::new("iqn.2026-11.org.example:host");
    let limited =
        move || async move { compio::time::timeout(LIMIT, work(portal, options)).await.expect("timeout") };
    let came = Cores::one().expect("an event loop").wait(0, limited).expect("an event loop");
    server.stop(|| {}).expect("a stop");
    came
}

fn pair(key: &str, value: impl Into<String>) -> (String, String) {
    (key.to_owned(), value.into())
}

#[test]
fn private_keys_are_answered_in_both_session_types() {
    // Longer than one PDU of either side.
    let long = "router,".repeat(10_000);
    let route_value = long.clone();
    let answers = TextKeyHandler::new(move |target, key, value| match key {
        "X-org.lunar.route" if target.is_some_and(|name| name != NAME) => None,
        "X-org.lunar.route" => Some(route_value.clone()),
        "X-org.lunar.pair" => Some(format!("{value} is active")),
        _ => None,
    });
    let want = vec![pair("X-org.lunar.route", long), pair("X-org.lunar.pair", "b is active")];
    let (normal, discovery, again, unknown, other) = beside(serve(answers), |portal, options| async move {
        let asked = [("X-org.lunar.route", "?"), ("X-org.lunar.pair", "b")];
        let session = Session::open(portal.clone(), NAME, options.clone()).await.expect("a session");
        let normal = session.text(&asked).await.expect("an answer");
        let unknown = session.text(&[("X-org.lunar.other", "?"), ("X-org.example.a", "1")]).await;
        let mut discovery = Discovery::open(portal, &options).await.expect("a discovery session");
        let first = discovery.text(&asked).await.expect("an answer");
        let other = discovery.text(&[("X-org.lunar.other", "?")]).await.expect("an answer");
        let again = discovery.text(&[("SendTargets", "All")]).await.expect("the session stays");
        discovery.close().await.expect("a logout");
        (normal, first, again, unknown.expect("an answer"), other)
    });
    assert_eq!((normal, &discovery), (want.clone(), &want));
    assert_eq!(again[0], pair("TargetName", NAME));
    let not = |key| pair(key, "NotUnderstood");
    assert_eq!(unknown, [not("X-org.lunar.other"), not("X-org.example.a")]);
    assert_eq!(other, [not("X-org.lunar.other")]);
}

#[test]
fn private_keys_are_unknown_by_default() {
    let (normal, discovery) = beside(serve(TextKeyHandler::default()), |portal, options| async move {
        let session = Session::open(portal.clone(), NAME, options.clone()).await.expect("a session");
        let normal = session.text(&[("X-org.lunar.route", "?")]).await.expect("an answer");
        let mut discovery = Discovery::open(portal, &options).await.expect("a discovery session");
        (normal, discovery.text(&[("X-org.lunar.route", "?")]).await.expect("an answer"))
    });
    assert_eq!(normal, [pair("X-org.lunar.route", "NotUnderstood")]);
    assert_eq!(discovery, normal);
}

/// RFC 7143 section 11.2.2.3. READ (10) uses the first ten bytes of a longer CDB. If the server misparsed the
/// additional header segments, the rest of the connection would fail.
#[test]
fn long_cdbs_arrive_with_and_without_digests() {
    for crc32c in [false, true] {
        let ends = beside(serve(TextKeyHandler::default()), move |portal, mut options| async move {
            let digests = AllowedDigests { none: !crc32c, crc32c };
            (options.offer.header_digest, options.offer.data_digest) = (digests, digests);
            let session = Session::open(portal, NAME, options).await.expect("a session");
            let command = |cdb: &[u8], data| Command::long(0, cdb, data).expect("a command");
            session
                .submit(command(&cdb::test_unit_ready(), Direction::None))
                .await
                .0
                .expect("unit attention");
            let mut ends = Vec::new();
            for len in [17, 18, 32, 259, lunar_initiator::MAX_CDB_LEN] {
                let mut unknown = vec![0; len];
                (unknown[0], unknown[7]) = (0x7f, (len - 8) as u8);
                let data = Direction::Out(Buf::zeroed(512));
                let completion = session.submit(command(&unknown, data)).await.0.expect("an answer");
                let sense = completion.sense().map(|s| (s.key, s.asc));
                let read = [&cdb::read_10(0, 1)[..], &vec![0; len - 16]].concat();
                let data = Direction::In(Buf::zeroed(512));
                let read = session.submit(command(&read, data)).await.0.expect("an answer");
                ends.push((sense, read.status, read.transferred));
            }
            ends
        });
        // INVALID COMMAND OPERATION CODE, for the code that was sent.
        assert_eq!(ends, [(Some((5, 0x20)), 0, 512); 5], "CRC32C {crc32c}");
    }
}
