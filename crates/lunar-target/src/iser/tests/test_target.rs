//! A target with memory disks, without a listening port.

use super::host::Host;
use crate::LogicalUnit;
use crate::config::*;
use crate::server_state::{BoundPortal, ConnectionGuard, ServerState};
use lunar_rdma::mem::{Faults, request_with};
use lunar_rdma::{ConnParam, ConnectRequest};
use lunar_runtime::cores::CorePlacement;
use lunar_runtime::{Buf, Cores};
use lunar_scsi::{Lu, LuIdentity};
use lunar_wire::iser::{IserCapabilities, LOGIN_LEN};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The name of the target.
pub const NAME: &str = "iqn.2026-11.org.example:disk";
/// Bytes of each of its disks.
pub const CAPACITY: u64 = 4 << 20;
/// Commands that a session may have in flight.
pub const DEPTH: u32 = 32;
/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Connections that a test may make.
const CONNECTIONS: usize = 64;

/// A running target.
pub struct TestTarget {
    /// The state that its connections share.
    pub shared: Arc<ServerState>,
    places: RefCell<Vec<CorePlacement>>,
}

/// Runs a test with a target on an event loop of its own.
pub fn run_test<W: Future<Output = ()> + 'static>(work: impl FnOnce(TestTarget) -> W + Send + 'static) {
    run_test_with(|_| (), work);
}

/// The same, with a changed configuration.
pub fn run_test_with<W: Future<Output = ()> + 'static>(
    change: impl FnOnce(&mut TargetConfig),
    work: impl FnOnce(TestTarget) -> W + Send + 'static,
) {
    let mut config = config();
    change(&mut config);
    let transports = Transports { tcp: false, iser: true, ..Transports::TCP };
    let bound = BoundPortal { address: ([127, 0, 0, 1], 3260).into(), tag: 1, advertise: None, transports };
    let shared = Arc::new(ServerState::new(config, vec![bound]));
    let cores = Cores::one().expect("an event loop");
    let places: Vec<CorePlacement> = (0..CONNECTIONS).map(|_| cores.place(None)).collect();
    let limited = move || async move {
        let target = TestTarget { shared, places: RefCell::new(places) };
        compio::time::timeout(LIMIT, work(target)).await.expect("timeout");
    };
    let came = cores.wait(0, limited);
    cores.stop();
    came.expect("the test passes");
}

/// Runs all tasks that are ready: all that can happen without I/O has happened.
pub async fn run_ready() {
    for _ in 0..100 {
        lunar_runtime::yield_now().await;
    }
}

impl TestTarget {
    /// A connection on which both sides support Send with Invalidate.
    pub async fn connect(&self) -> Host {
        self.connect_with(
            &IserCapabilities { zero_based: false, invalidate: true }.encode(),
            [Rc::default(), Rc::default()],
        )
        .await
    }

    /// A connection with this private data. `faults`: those of the initiator and of the target.
    pub async fn connect_with(&self, private: &[u8], faults: [Rc<Faults>; 2]) -> Host {
        self.connect_wrapped(private, faults, |request| request).await
    }

    /// The same, with a wrapper around the request that the target gets.
    pub async fn connect_wrapped(
        &self,
        private: &[u8],
        faults: [Rc<Faults>; 2],
        through: impl FnOnce(Box<dyn ConnectRequest>) -> Box<dyn ConnectRequest>,
    ) -> Host {
        let terms = ConnParam { ord: 1, ird: 16, receives: (1, LOGIN_LEN) };
        let (asked, outcome) = request_with(private, terms, faults.clone());
        let count = self.count(asked.addresses().1);
        let served =
            compio::runtime::spawn(super::super::serve(self.shared.clone(), through(asked), 0, count));
        let (end, private) = outcome.await.expect("the connection is accepted");
        Host::new(end, private, faults, served)
    }

    /// A slot for one more connection.
    pub fn count(&self, peer: SocketAddr) -> ConnectionGuard {
        let place = self.places.borrow_mut().pop().expect("a free slot");
        ConnectionGuard::new(&self.shared, peer, place).expect("room for a connection")
    }

    /// The first byte of a block of the first disk, on the medium.
    pub fn on_medium(&self, lba: u32) -> u8 {
        let mut block = Buf::zeroed(512);
        let read = self.disk().backend().try_read(u64::from(lba) * 512, &mut block);
        assert!(matches!(read, lunar_block::TryIo::Done(Ok(()))), "memory never blocks");
        block[0]
    }

    /// The first disk.
    pub fn disk(&self) -> Arc<LogicalUnit> {
        self.shared.config().targets[NAME].luns[&0].clone()
    }

    /// A session that has received its unit attentions.
    pub async fn session(&self, isid: u8) -> Host {
        let mut host = self.connect().await;
        host.log_in(isid).await;
        host.receive_attentions().await;
        host
    }

    /// Sessions of the target.
    pub fn sessions(&self) -> usize {
        self.shared.registry.list().len()
    }
}

/// A disk in memory.
pub fn unit(number: u8) -> Arc<LogicalUnit> {
    unit_of(
        number,
        lunar_block::open(&lunar_block::BackendSpec::sized(lunar_block::BackendKind::Memory, CAPACITY))
            .expect("memory"),
    )
}

/// A disk with this medium.
pub fn unit_of(number: u8, medium: Arc<dyn lunar_block::Backend>) -> Arc<LogicalUnit> {
    let identity = LuIdentity {
        vendor: "LUNAR".into(),
        product: "disk".into(),
        revision: "1".into(),
        serial: number.to_string(),
        naa: vec![0x30, 0, 0, 0, 0, 0, 0, number],
        designators: None,
    };
    let settings = lunar_scsi::LuSettings {
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
        explicit_access: true,
    };
    Arc::new(LogicalUnit::new(Arc::new(Lu::new(settings, None).expect("settings")), medium, None))
}

/// A target of this name.
pub fn target(name: &str, luns: BTreeMap<u16, Arc<LogicalUnit>>) -> TargetNode {
    TargetNode {
        name: name.into(),
        alias: None,
        portal_groups: vec![1],
        redirects: Vec::new(),
        offline: false,
        mutual: None,
        luns,
        access: Vec::new(),
        instance: None,
        depth: None,
    }
}

fn config() -> TargetConfig {
    let digests = Digests { none: true, crc32c: true };
    let portal = Portal::tcp(([127, 0, 0, 1], 3260).into());
    TargetConfig {
        limits: TargetLimits {
            connections: CONNECTIONS,
            connections_before_login: CONNECTIONS,
            login_timeout: LIMIT,
            sessions: CONNECTIONS,
            sessions_per_initiator: CONNECTIONS,
            discovery_sessions: 16,
            discovery_timeout: Duration::from_secs(60),
            commands_per_session: DEPTH,
            text_bytes: 64 << 10,
            memory: 64 << 20,
        },
        session: SessionConfig {
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: 65536,
            max_burst_length: 262_144,
            first_burst_length: 65536,
            max_outstanding_r2t: 8,
            default_time2wait: 2,
            default_time2retain: 0,
            header_digest: digests,
            data_digest: digests,
            nop_interval: None,
            nop_timeout: LIMIT,
            data_out_timeout: LIMIT,
            chap_algorithms: lunar_proto::chap::Algorithm::ALL.to_vec(),
        },
        discovery: DiscoveryConfig::default(),
        portal_groups: vec![PortalGroup { tag: 1, portals: vec![portal] }],
        targets: BTreeMap::from([(NAME.into(), target(NAME, BTreeMap::from([(0, unit(1)), (1, unit(2))])))]),
        awaited: Default::default(),
        instances: Default::default(),
        text_keys: TextKeyHandler::default(),
    }
}
