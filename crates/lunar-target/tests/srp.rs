//! The server's SRP portals, over iWARP on the loopback interface: an initiator writes and reads a block.
#![forbid(unsafe_code)]

use lunar_rdma::{ConnParam, ConnectError, Endpoint, EndpointEvent, EndpointEvents, MemoryRegion, iwarp};
use lunar_runtime::send_queue::Payload;
use lunar_runtime::{Buf, Cores, Stream};
use lunar_scsi::{Lu, LuIdentity, LuSettings};
use lunar_target::config::{
    AllowedDigests, DiscoveryConfig, Portal, PortalGroup, TargetConfig, TargetLimits, TargetNode,
    TextKeyHandler, Transports,
};
use lunar_target::{LogicalUnit, TargetServer};
use lunar_wire::scsi::cdb;
use lunar_wire::srp::{
    DataBuffer, LoginFormat, LoginReject, LoginRequest, LoginResponse, MemoryDescriptor, PortId, SrpCommand,
    SrpTaskAttribute,
};
use lunar_wire::srp::{LoginRejectReason, SrpResponse};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
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

fn serve() -> TargetServer {
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
    let portal = Portal { transports: Transports::SRP, ..Portal::tcp(([127, 0, 0, 1], 0).into()) };
    let config = TargetConfig {
        limits: limits(),
        busy_poll: Default::default(),
        session: session(),
        discovery: DiscoveryConfig::default(),
        portal_groups: vec![PortalGroup { tag: 1, portals: vec![portal] }],
        targets: BTreeMap::from([(NAME.into(), target)]),
        awaited: Default::default(),
        instances: Default::default(),
        text_keys: TextKeyHandler::default(),
        tls_identities: Default::default(),
    };
    TargetServer::start(config, &[0]).expect("a server")
}

/// Runs `work` on its own event loop, with the address of the server's portal.
fn beside<W: Future<Output = ()> + 'static>(work: impl FnOnce(SocketAddr) -> W + Send + 'static) {
    let server = serve();
    let portal = server.portals()[0].address;
    let limited = move || async move { compio::time::timeout(LIMIT, work(portal)).await.expect("timeout") };
    Cores::one().expect("an event loop").wait(0, limited).expect("an event loop");
    server.stop(|| {}).expect("a stop");
}

fn login(target: PortId) -> Vec<u8> {
    let request = LoginRequest {
        tag: 0,
        it_iu_len: 8260,
        formats: 6,
        keep_channels: false,
        notifications: 0,
        immediate_offset: Some(68),
        initiator: PortId::new(1, 2),
        target,
    };
    request.encode(LoginFormat::RdmaCm)
}

async fn connect(portal: SocketAddr, target: PortId) -> Result<Rc<dyn Endpoint>, ConnectError> {
    let stream = Stream::new(TcpStream::connect(portal)?)?;
    let terms = ConnParam { ord: 1, ird: 8, receives: (8, 512) };
    let how = iwarp::Options::default();
    let (endpoint, private) = iwarp::connect(stream, portal, &login(target), terms, &how).await?;
    let welcome = LoginResponse::decode(&private).expect("a login response");
    assert_eq!((welcome.credits, welcome.it_iu_len, welcome.immediate), (33, 8260, true));
    Ok(endpoint)
}

/// Executes a command. Returns its status.
async fn does(host: &dyn Endpoint, cdb: &[u8; 16], [data_out, data_in]: [DataBuffer<'_>; 2]) -> u8 {
    let (attribute, mut unit) = (SrpTaskAttribute::Simple, Vec::new());
    let command = SrpCommand {
        notifications: 0,
        tag: 5,
        lun: 0,
        attribute,
        cdb,
        additional_cdb: &[],
        data_out,
        data_in,
    };
    command.encode(Some(68), &mut unit).expect("a command");
    host.send(&unit, Payload::Empty, None);
    while !host.flush().expect("a connection") {
        host.writable().await.expect("a connection");
    }
    let mut events = EndpointEvents::default();
    while events.is_empty() {
        host.readable().await.expect("a connection");
        host.poll(&mut events);
    }
    let EndpointEvent::Message(range, _) = events.list.remove(0) else { panic!("no message") };
    host.receives(1, 512);
    SrpResponse::decode(&events.bytes[range]).expect("a response").status
}

fn memory(host: &dyn Endpoint, exposed: MemoryRegion, len: u32) -> DataBuffer<'static> {
    let at = host.expose(exposed).expect("memory");
    DataBuffer::Direct(MemoryDescriptor { address: at.offset, key: at.stag, len })
}

#[test]
fn block_is_written_and_read_over_iwarp() {
    beside(|portal| async move {
        let host = connect(portal, lunar_target::srp::port_id(NAME)).await.expect("a login");
        // The unit attention of a new nexus.
        assert_eq!(does(&*host, &cdb::test_unit_ready(), [DataBuffer::None; 2]).await, 2);
        let bytes: Vec<u8> = (0..1024).map(|i| (i / 3) as u8).collect();
        let buf = Buf::copy_of(&bytes[..512]);
        let out = memory(&*host, MemoryRegion::Source(Rc::new(buf)), 512);
        assert_eq!(does(&*host, &cdb::write_10(0, 1, false), [out, DataBuffer::None]).await, 0);
        let with = DataBuffer::Immediate(&bytes[512..]);
        assert_eq!(does(&*host, &cdb::write_10(1, 1, false), [with, DataBuffer::None]).await, 0);
        let into = memory(&*host, MemoryRegion::Sink(Buf::zeroed(1024)), 1024);
        assert_eq!(does(&*host, &cdb::read_10(0, 2), [DataBuffer::None, into]).await, 0);
        let DataBuffer::Direct(at) = into else { unreachable!("it is one piece") };
        match host.revoke(at.key) {
            Some(MemoryRegion::Sink(buf)) => assert_eq!(buf[..], bytes),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn rejected_login_over_iwarp_has_reason() {
    beside(|portal| async move {
        match connect(portal, PortId::new(1, 2)).await {
            Err(ConnectError::Rejected(private)) => {
                let refused = LoginReject::decode(&private).expect("a rejection");
                assert_eq!(refused.reason, LoginRejectReason::NOT_ASSOCIATED);
            }
            other => panic!("{:?}", other.err()),
        }
    });
}
