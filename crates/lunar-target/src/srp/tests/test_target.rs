//! The test target over SRP, and scripted initiators.

pub use crate::test_target::{NAME, TestTarget, on_core, run_ready};

use crate::config::{TargetConfig, TargetNode, Transports};
use crate::{LogicalUnit, PassthroughLu, srp, test_target};
use lunar_block::Backend;
use lunar_rdma::mem::{self, Faults};
use lunar_rdma::{
    ConnParam, ConnectError, Endpoint, EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress,
};
use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
use lunar_scsi::{Lu, LuSettings};
use lunar_wire::scsi::Sense;
use lunar_wire::srp::{
    DataBuffer, LoginFormat, LoginReject, LoginRequest, LoginResponse, MemoryDescriptor, PortId, SrpCommand,
    SrpTaskAttribute,
};
use lunar_wire::srp::{SrpResponse, TargetLogout, TaskManagement};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the disk.
const CAPACITY: u64 = 32 << 20;
/// Offset of immediate data, as Linux requests it.
pub const OFFSET: u16 = 68;

/// A medium of 32 MiB.
pub fn memory() -> Arc<dyn Backend> {
    test_target::memory(CAPACITY)
}

/// A disk, with a state file if `state` is set.
fn unit(medium: Arc<dyn Backend>, write_cache: bool, state: Option<&Path>) -> LogicalUnit {
    let saved = state.and_then(|path| std::fs::read(path).ok());
    let settings = LuSettings { write_cache, ..test_target::settings(1, CAPACITY) };
    let lu = Lu::new(settings, saved.as_deref());
    LogicalUnit::new(Arc::new(lu.expect("settings")), medium, state.map(Path::to_path_buf))
}

fn target() -> TargetNode {
    test_target::target(NAME, BTreeMap::from([(0, Arc::new(unit(memory(), true, None)))]))
}

fn config(target: TargetNode) -> TargetConfig {
    let mut config = test_target::config();
    config.limits.sessions_per_initiator = 3;
    config.limits.commands_per_session = 3;
    config.limits.memory = 256 << 20;
    config.session.max_outstanding_r2t = 1;
    config.targets = BTreeMap::from([(NAME.into(), target)]);
    config
}

impl TestTarget {
    /// A target with three commands per session and three sessions per initiator.
    pub fn new() -> TestTarget {
        TestTarget::with(|_| {})
    }

    /// A target whose disk has this state file.
    pub fn with_state_file(state: &Path) -> TestTarget {
        TestTarget::serving(unit(memory(), true, Some(state)))
    }

    /// A target with a disk on this medium.
    pub fn with_medium(medium: Arc<dyn Backend>, write_cache: bool) -> TestTarget {
        TestTarget::serving(unit(medium, write_cache, None))
    }

    /// A target with disks on these media.
    pub fn with_media(media: impl IntoIterator<Item = Arc<dyn Backend>>) -> TestTarget {
        let units = media.into_iter().map(|medium| Arc::new(unit(medium, true, None)));
        TestTarget::with(|target| target.luns = (0..).zip(units).collect())
    }

    /// A target with a passthrough to this logical unit.
    pub fn with_passthrough(to: Arc<dyn PassthroughLu>) -> TestTarget {
        TestTarget::serving(test_target::passthrough_unit(CAPACITY, to))
    }

    fn serving(unit: LogicalUnit) -> TestTarget {
        TestTarget::with(|target| target.luns = BTreeMap::from([(0, Arc::new(unit))]))
    }

    pub fn with(change: impl FnOnce(&mut TargetNode)) -> TestTarget {
        let mut target = target();
        change(&mut target);
        TestTarget::of(config(target), Transports::SRP)
    }

    /// A target that pings as soon as an initiator is silent, with this timeout.
    pub fn with_ping_timeout(timeout: Duration) -> TestTarget {
        let mut config = config(target());
        (config.session.nop_interval, config.session.nop_timeout) = (Some(Duration::from_millis(1)), timeout);
        TestTarget::of(config, Transports::SRP)
    }

    /// A target with this timeout for data of writes.
    pub fn with_data_timeout(timeout: Duration) -> TestTarget {
        let mut config = config(target());
        config.session.data_out_timeout = timeout;
        TestTarget::of(config, Transports::SRP)
    }

    /// Connects with this private data, padded with zeros as on InfiniBand.
    pub async fn connect_srp(&self, private: &[u8]) -> Result<Host, LoginReject> {
        let faults: [Rc<Faults>; 2] = Default::default();
        faults.iter().for_each(|end| end.pads.set(true));
        let terms = ConnParam { ord: 1, ird: 8, receives: (0, 0) };
        let (request, outcome) = mem::request_with(private, terms, faults.clone());
        let count = self.count(request.addresses().1);
        lunar_runtime::spawn(srp::serve(self.shared.clone(), request, self.portal(), count));
        match outcome.await {
            Ok((endpoint, private)) => Ok(Host::new(endpoint, &private, faults)),
            Err(ConnectError::Rejected(private)) => Err(LoginReject::decode(&private).expect("a rejection")),
            Err(ConnectError::Io(e)) => panic!("{e}"),
        }
    }

    /// Logs in as the host with this number.
    pub async fn host(&self, number: u64, keep_channels: bool) -> Host {
        let request = LoginRequest { keep_channels, ..login(number) };
        self.connect_srp(&request.encode(LoginFormat::RdmaCm)).await.expect("a login")
    }
}

/// The login request of the host with this number.
pub fn login(number: u64) -> LoginRequest {
    LoginRequest {
        tag: 0,
        it_iu_len: 8260,
        formats: 6,
        keep_channels: false,
        notifications: 0,
        immediate_offset: Some(OFFSET),
        initiator: PortId::new(0xaaaa, number),
        target: srp::port_id(NAME),
    }
}

/// An initiator.
pub struct Host {
    pub endpoint: Rc<dyn Endpoint>,
    pub welcome: LoginResponse,
    /// Faults at the initiator and at the target.
    pub faults: [Rc<Faults>; 2],
    received: VecDeque<Option<Vec<u8>>>,
}

/// A response, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostResponse {
    pub tag: u64,
    pub credits: i32,
    pub status: u8,
    pub sense: Option<(u8, u8, u8)>,
    pub function_status: Option<u8>,
}

impl HostResponse {
    /// GOOD, with one credit.
    pub fn good(tag: u64) -> HostResponse {
        HostResponse { tag, credits: 1, status: 0, sense: None, function_status: None }
    }

    /// The response to a task management function.
    pub fn function_status(tag: u64, credits: i32, how: u8) -> HostResponse {
        HostResponse { credits, function_status: Some(how), ..HostResponse::good(tag) }
    }

    /// CHECK CONDITION with this sense key and additional sense code.
    pub fn check(tag: u64, sense: (u8, u8, u8)) -> HostResponse {
        HostResponse { status: 2, sense: Some(sense), ..HostResponse::good(tag) }
    }

    fn of(unit: &[u8]) -> HostResponse {
        let r = SrpResponse::decode(unit).expect("a response");
        let sense = Sense::decode(r.sense).map(|sense| (sense.key, sense.asc, sense.ascq));
        HostResponse {
            tag: r.tag,
            credits: r.credits,
            status: r.status,
            sense,
            function_status: r.task_status(),
        }
    }
}

impl Host {
    fn new(endpoint: Rc<dyn Endpoint>, private: &[u8], faults: [Rc<Faults>; 2]) -> Host {
        let welcome = LoginResponse::decode(private).expect("a login response");
        // Linux posts them after the connection is established.
        endpoint.receives(1024, welcome.ti_iu_len as usize);
        Host { endpoint, welcome, faults, received: VecDeque::new() }
    }

    /// Sends an information unit.
    pub fn send_unit(&self, unit: &[u8]) {
        self.endpoint.send(unit, Payload::Empty, None);
        self.endpoint.flush().expect("a connection");
    }

    fn listen(&mut self) {
        let mut events = EndpointEvents::default();
        self.endpoint.poll(&mut events);
        let bytes = &events.bytes;
        self.received.extend(events.list.into_iter().map(|event| match event {
            EndpointEvent::Message(range, _) => Some(bytes[range].to_vec()),
            EndpointEvent::End(_) => None,
            other => panic!("{other:?}"),
        }));
    }

    /// Receives the next information unit. None: the connection has ended.
    pub async fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            self.listen();
            if let Some(received) = self.received.pop_front() {
                return received;
            }
            if self.endpoint.readable().await.is_err() {
                return None;
            }
        }
    }

    /// Receives the next response.
    pub async fn answer(&mut self) -> HostResponse {
        HostResponse::of(&self.receive().await.expect("an answer"))
    }

    /// Checks that the connection ends without a further message.
    pub async fn expect_close(&mut self) {
        assert_eq!(self.receive().await, None);
    }

    /// Checks that the target logs out with this reason, and closes the connection.
    pub async fn expect_logout(&mut self, reason: u32) {
        let unit = self.receive().await.expect("a logout");
        assert_eq!(TargetLogout::decode(&unit).map(|end| end.reason), Ok(reason));
        self.expect_close().await;
    }

    /// Checks that nothing arrives after all ready tasks have run.
    pub async fn expect_silence(&mut self) {
        run_ready().await;
        self.listen();
        assert_eq!(self.received, [] as [Option<Vec<u8>>; 0]);
    }

    /// Sends a command.
    pub fn send(&self, command: &SrpCommand<'_>) {
        self.send_unit(&encoded(command));
    }

    /// Sends a command, and receives its response.
    pub async fn execute(&mut self, command: &SrpCommand<'_>) -> HostResponse {
        self.send(command);
        self.answer().await
    }

    /// Sends a task management function.
    pub fn manage(&self, tag: u64, function: u8, task_tag: u64) {
        self.send_unit(&TaskManagement { notifications: 0, tag, lun: 0, function, task_tag }.encode());
    }

    /// Exposes memory for RDMA Writes.
    pub fn sink(&self, len: u32) -> MemoryDescriptor {
        described(self.endpoint.expose(MemoryRegion::Sink(Buf::zeroed(len as usize))).unwrap(), len)
    }

    /// Exposes bytes for RDMA Reads.
    pub fn source(&self, bytes: &[u8]) -> MemoryDescriptor {
        let buf = Buf::copy_of(bytes);
        described(self.endpoint.expose(MemoryRegion::Source(Rc::new(buf))).unwrap(), bytes.len() as u32)
    }

    /// Revokes memory for RDMA Writes. Returns its content.
    pub fn written(&self, at: MemoryDescriptor) -> Vec<u8> {
        match self.endpoint.revoke(at.key) {
            Some(MemoryRegion::Sink(buf)) => buf.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// Receives the unit attention of a new nexus.
    pub async fn receive_attentions(mut self) -> Host {
        let ready = lunar_wire::scsi::cdb::test_unit_ready();
        let answer = self.execute(&command(1, &ready)).await;
        assert_eq!(answer, HostResponse::check(1, (6, 0x29, 0)));
        self
    }
}

fn described(at: RemoteAddress, len: u32) -> MemoryDescriptor {
    MemoryDescriptor { address: at.offset, key: at.stag, len }
}

/// A command without data.
pub fn command(tag: u64, cdb: &[u8; 16]) -> SrpCommand<'_> {
    SrpCommand {
        notifications: 0,
        tag,
        lun: 0,
        attribute: SrpTaskAttribute::Simple,
        cdb,
        additional_cdb: &[],
        data_out: DataBuffer::None,
        data_in: DataBuffer::None,
    }
}

/// The encoded information unit of a command.
pub fn encoded(command: &SrpCommand<'_>) -> Vec<u8> {
    let mut unit = Vec::new();
    command.encode(Some(OFFSET), &mut unit).expect("a command");
    unit
}

/// Parses hexadecimal digits, with spaces between groups.
pub fn golden(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte =
        |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).expect("digits"), 16).expect("digits");
    digits.chunks(2).map(byte).collect()
}
