//! A target with memory disks, without a listening port, for the tests of all front ends. Their tests add the
//! connections of their protocol to [`TestTarget`].

use crate::config::*;
use crate::end_reason::EndReason;
use crate::open_portal::{BoundPortal, OpenPortal};
use crate::registry::{Registry, SessionMessage};
use crate::server_state::{ConnectionGuard, ServerState};
use crate::{LogicalUnit, PassthroughLu};
use lunar_block::{Backend, BackendKind, BackendSpec};
use lunar_runtime::{Buf, Cores};
use lunar_scsi::{Lu, LuIdentity, LuSettings, PassthroughMode, PeripheralDeviceType};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// The name of the target.
pub const NAME: &str = "iqn.2026-11.org.example:disk";
/// Bytes of each of its disks.
pub const CAPACITY: u64 = 4 << 20;
/// Commands that a session may have in flight.
pub const DEPTH: u32 = 32;
/// Limit for a test that hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of connections of a test.
const CONNECTIONS: usize = 64;

/// A running target.
pub struct TestTarget {
    /// The state that its connections share.
    pub shared: Arc<ServerState>,
    /// Counts the connections of its core.
    cores: Cores,
}

/// Observes the registry when it is woken.
struct EndObserver {
    registry: Arc<Registry>,
    was_empty: AtomicBool,
}

impl Wake for EndObserver {
    fn wake(self: Arc<EndObserver>) {
        self.was_empty.store(self.registry.list().is_empty(), SeqCst);
    }
}

/// Runs a test on an event loop of its own.
pub fn on_core<W: Future<Output = ()> + 'static>(test: impl FnOnce() -> W + Send + 'static) {
    let cores = Cores::one().expect("an event loop");
    let limited = move || async move { compio::time::timeout(LIMIT, test()).await.expect("timeout") };
    let came = cores.wait(0, limited);
    cores.stop();
    came.expect("the test passes");
}

/// Runs a test with a target of iSCSI and iSER on an event loop of its own.
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
    on_core(move || work(TestTarget::of(config, transports)));
}

/// Runs all ready tasks, until everything has happened that needs no I/O.
pub async fn run_ready() {
    for _ in 0..200 {
        lunar_runtime::yield_now().await;
    }
}

impl TestTarget {
    /// A target with this configuration and one portal.
    pub fn of(config: TargetConfig, transports: Transports) -> TestTarget {
        let bound =
            BoundPortal { address: ([127, 0, 0, 1], 3260).into(), tag: 1, advertise: None, transports };
        let shared = Arc::new(ServerState::new(config, [bound].into()));
        TestTarget { shared, cores: Cores::one().expect("an event loop") }
    }

    /// Its portal.
    pub fn portal(&self) -> Arc<OpenPortal> {
        OpenPortal::new(self.shared.portals()[0].clone())
    }

    /// A slot for one more connection.
    pub fn count(&self, peer: SocketAddr) -> ConnectionGuard {
        ConnectionGuard::new(&self.shared, peer, self.cores.place(None)).expect("room for a connection")
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

    /// Ends all sessions. Returns whether none was registered any more when the sender was notified of their end.
    pub async fn end_sessions(&self) -> bool {
        let registry = self.shared.registry.clone();
        let observer = Arc::new(EndObserver { registry, was_empty: AtomicBool::new(false) });
        let (done, ended) = flume::bounded(0);
        self.shared.registry.send_each(move |_| {
            Some(SessionMessage::End { reason: EndReason::ServerStop, done: done.clone() })
        });
        let waker = Waker::from(observer.clone());
        let mut ended = pin!(ended.into_recv_async());
        assert!(ended.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        while self.sessions() > 0 {
            run_ready().await;
        }
        observer.was_empty.load(SeqCst)
    }

    /// Sessions of the target.
    pub fn sessions(&self) -> usize {
        self.shared.registry.list().len()
    }
}

/// A medium in memory.
pub fn memory(capacity: u64) -> Arc<dyn Backend> {
    lunar_block::open(&BackendSpec::sized(BackendKind::Memory, capacity)).expect("memory")
}

/// A disk in memory.
pub fn unit(number: u8) -> Arc<LogicalUnit> {
    unit_of(number, memory(CAPACITY))
}

/// A disk with this medium.
pub fn unit_of(number: u8, medium: Arc<dyn Backend>) -> Arc<LogicalUnit> {
    let lu = Lu::new(settings(number, CAPACITY), None).expect("settings");
    Arc::new(LogicalUnit::new(Arc::new(lu), medium, None))
}

/// A disk of which another logical unit executes the commands of each nexus.
pub fn passthrough_unit(capacity: u64, to: Arc<dyn PassthroughLu>) -> LogicalUnit {
    let passthrough = PassthroughMode::PerNexus;
    let lu = Lu::new(LuSettings { passthrough, ..settings(1, capacity) }, None).expect("settings");
    LogicalUnit::new_passthrough(Arc::new(lu), to, None)
}

/// The settings of a disk with a write cache.
pub fn settings(number: u8, capacity: u64) -> LuSettings {
    let identity = LuIdentity {
        vendor: "LUNAR".into(),
        product: "disk".into(),
        revision: "1".into(),
        serial: number.to_string(),
        naa: vec![0x30, 0, 0, 0, 0, 0, 0, number],
        designators: None,
    };
    LuSettings {
        device_type: PeripheralDeviceType::Disk,
        identity,
        block_size: 512,
        physical_block_size: 512,
        capacity,
        read_only: false,
        removable: false,
        write_cache: true,
        thin: false,
        max_registrants: 4,
        reservable: true,
        passthrough: PassthroughMode::None,
        max_atomic: 1 << 20,
        medium_compares: false,
        explicit_access: true,
        shared: false,
    }
}

/// A target of this name.
pub fn target(name: &str, luns: BTreeMap<u16, Arc<LogicalUnit>>) -> TargetNode {
    TargetNode {
        name: name.into(),
        alias: None,
        portal_groups: vec![1],
        relative_ports: Default::default(),
        redirects: Vec::new(),
        offline: false,
        mutual: None,
        luns,
        access: Vec::new(),
        instance: None,
        routed_by: Vec::new(),
        depth: None,
        subsystem: None,
    }
}

/// A configuration with a target of two disks.
pub fn config() -> TargetConfig {
    let digests = AllowedDigests { none: true, crc32c: true };
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
        busy_poll: Duration::ZERO,
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
        tls_identities: Default::default(),
    }
}
