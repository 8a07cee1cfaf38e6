//! The association with a controller: the admin queue, and what the controller reports about itself.

use super::authenticate::{authenticate, unproved};
use super::command::NvmeCommand;
use super::host_queue::HostQueue;
use super::initialize::initialize;
use super::options::NvmeOptions;
use super::queue_state::ADMIN_CAPSULE_DATA;
use super::status::{error_of, refused};
use crate::io_error::lost;
use crate::{Direction, Error, ErrorCode, Portal, addresses, time_limit};
use lunar_runtime::Buf;
use lunar_wire::nvme::{
    ConnectCommand, ConnectData, Cqe, IdentifyController, Nqn, PropertyAccess, Sqe, admin_opcode, property,
};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Entries of the admin queue, as Linux has them.
const ADMIN_ENTRIES: u32 = 32;
/// CAP, bit 43: the controller has several command sets, of which CC selects all.
const SEVERAL_SETS: u64 = 1 << 43;
/// CC: all command sets (CSS 110b).
const ALL_SETS: u32 = 6 << 4;
/// CC: sizes of queue entries, as powers of 2: IOSQES 6, IOCQES 4.
const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
/// CC: enabled.
const ENABLE: u32 = 1;
/// CC: a normal shutdown (SHN 01b).
const SHUTDOWN: u32 = 1 << 14;
/// CSTS: ready.
const READY: u32 = 1;
/// CSTS: fatal status.
const FATAL: u32 = 2;
/// CSTS: the state of a shutdown, and its end (SHST 10b).
const SHUTDOWN_STATE: u32 = 3 << 2;
const SHUTDOWN_DONE: u32 = 2 << 2;
/// The pause between two reads of CSTS.
const STATUS_PAUSE: Duration = Duration::from_millis(10);
/// Feature: number of queues.
const NUMBER_OF_QUEUES: u32 = 0x07;
/// The smallest capsules over fabrics, in units of 16 bytes: the entries alone.
const MIN_CAPSULES: (u32, u32) = (4, 1);

/// The place of a controller: a portal and a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemAddress {
    /// The portal.
    pub portal: Portal,
    /// The subsystem.
    pub subsystem: Nqn,
}

/// Receives the end of an attempt to connect an I/O queue.
pub type QueueAttempt = flume::Receiver<Result<(), Error>>;

/// An enabled controller. Its connection ends when this is dropped.
pub struct Association {
    /// The admin queue.
    pub admin: Rc<HostQueue>,
    /// The identifier of the controller (CNTLID).
    pub id: u16,
    /// Whether the controller demanded authentication.
    pub is_authenticated: bool,
    /// Identify Controller.
    pub identify: IdentifyController,
    /// The version (VS).
    pub version: u32,
    /// The most entries of a queue (CAP.MQES).
    pub max_entries: u32,
    /// The address of the admin queue. I/O queues use it too: a name may have addresses of several controllers.
    pub peer: SocketAddr,
    /// I/O queues that the controller has granted.
    pub granted_queues: u16,
    /// The attempt to connect an I/O queue that has not ended yet, if there is one.
    pub late_queue: Option<QueueAttempt>,
    /// Carries the reason when an I/O queue that is in use loses its connection.
    pub io_ended: (flume::Sender<Error>, flume::Receiver<Error>),
    /// The binary logarithm of the page size in which MDTS counts (CAP.MPSMIN).
    pub page_shift: u32,
    configuration: u32,
}

impl Drop for Association {
    fn drop(&mut self) {
        self.admin.reset(Error::new(ErrorCode::SessionClosed, "the initiator closed the connection"));
    }
}

/// Connects to a controller, and enables it. The options have an identifier of the host.
///
/// # Errors
/// When the controller is unreachable, refuses this host, or does not become ready.
pub async fn associate(address: &SubsystemAddress, options: &NvmeOptions) -> Result<Association, Error> {
    let connection = initialize(&addresses::resolve(&address.portal).await?, options).await?;
    let peer = connection.stream.peer().map_err(lost)?;
    let admin = HostQueue::new(ADMIN_ENTRIES, ADMIN_CAPSULE_DATA);
    admin.state.borrow_mut().ends_with_connection = true;
    admin.attach(connection);
    // From here on, an error ends the connection: the association is dropped.
    let mut association = Association {
        admin: admin.clone(),
        id: 0,
        is_authenticated: false,
        identify: IdentifyController::zeroed(),
        version: 0,
        max_entries: 0,
        peer,
        granted_queues: 0,
        late_queue: None,
        io_ended: flume::unbounded(),
        page_shift: 12,
        configuration: ENTRY_SIZES,
    };
    let keep_alive_ms = u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX);
    let command =
        ConnectCommand { queue: 0, queue_len: ADMIN_ENTRIES, disables_flow_control: false, keep_alive_ms };
    (association.id, association.is_authenticated) =
        connect_queue(&admin, command, None, address, options).await?;
    admin.state.borrow_mut().admit();
    association.enable().await?;
    association.identify = identify_controller(&admin).await?;
    association.check()?;
    Ok(association)
}

/// Sends Connect on a queue, and authenticates if the controller demands it. Returns the identifier of the controller,
/// and whether it has authenticated this host.
///
/// # Errors
/// When the controller refuses the queue, or authentication fails. [`ErrorCode::AuthenticationFailed`] also when the
/// controller must prove itself but demands no authentication.
pub async fn connect_queue(
    queue: &Rc<HostQueue>,
    command: ConnectCommand,
    controller: Option<u16>,
    address: &SubsystemAddress,
    options: &NvmeOptions,
) -> Result<(u16, bool), Error> {
    let data = ConnectData {
        host_id: options.host_id.expect("the owner of the association has chosen an identifier"),
        controller,
        subsystem: address.subsystem.clone(),
        host: options.host.clone(),
    };
    let data = Direction::Out(Buf::copy_of(&data.encode()));
    let (result, _) = queue.call_first(NvmeCommand::new(command.encode(0), data)).await;
    let cqe = result?;
    if !cqe.status.is_success() {
        return Err(refused(cqe.status, cqe.result));
    }
    let (authenticates, concatenates) = (cqe.result >> 17 & 1 != 0, cqe.result >> 18 & 1 != 0);
    if concatenates {
        let what = "the controller demands a secure channel (TLS), which is not supported";
        return Err(Error::new(ErrorCode::NegotiationFailed, what));
    }
    if authenticates {
        // Each queue has a transaction of its own.
        let transaction = command.queue + 1;
        authenticate(queue, &address.subsystem, options, transaction).await?;
    } else if options.secrets.as_ref().is_some_and(|secrets| secrets.subsystem.is_some()) {
        return Err(unproved());
    }
    Ok((cqe.result as u16, authenticates))
}

/// Sends an admin command, and fails unless it succeeds.
///
/// # Errors
/// The status as an error, or the lack of a completion.
pub async fn call(admin: &Rc<HostQueue>, sqe: Sqe, data: Direction) -> Result<(Cqe, Option<Buf>), Error> {
    let (result, buf) = admin.call(NvmeCommand::new(sqe, data).once()).await;
    let cqe = result?;
    if cqe.status.is_success() { Ok((cqe, buf)) } else { Err(error_of(cqe.status)) }
}

/// Identify Controller.
async fn identify_controller(admin: &Rc<HostQueue>) -> Result<IdentifyController, Error> {
    let page = identify(admin, 0x01, 0).await.map_err(|e| e.during("Identify Controller"))?;
    Ok(IdentifyController::decode(page.first_chunk().expect("a page has 4096 bytes")))
}

/// An Identify command: the page of 4096 bytes of this structure (CNS) for a namespace.
///
/// # Errors
/// Those of the command.
pub async fn identify(admin: &Rc<HostQueue>, structure: u32, namespace: u32) -> Result<Buf, Error> {
    let (_, buf) =
        call(admin, identify_entry(structure, namespace), Direction::In(Buf::zeroed(4096))).await?;
    Ok(buf.unwrap_or_else(|| Buf::zeroed(4096)))
}

/// The entry of an Identify command.
pub fn identify_entry(structure: u32, namespace: u32) -> Sqe {
    Sqe::new(admin_opcode::IDENTIFY, 0, namespace).with_dword(10, structure)
}

impl Association {
    async fn get(&self, offset: u32, is_long: bool) -> Result<u64, Error> {
        let access = PropertyAccess { offset, is_long, value: 0 };
        let (cqe, _) = call(&self.admin, access.encode(0, false), Direction::None).await?;
        Ok(if is_long { cqe.result } else { cqe.result & u64::from(u32::MAX) })
    }

    async fn configure(&self, value: u32) -> Result<(), Error> {
        let access = PropertyAccess { offset: property::CC, is_long: false, value: value.into() };
        call(&self.admin, access.encode(0, true), Direction::None).await.map(drop)
    }

    /// Enables the controller: CAP, CC without and with EN, CSTS until it is ready, VS.
    async fn enable(&mut self) -> Result<(), Error> {
        let doing = |e: Error| e.during("enabling the controller");
        let cap = self.get(property::CAP, true).await.map_err(doing)?;
        self.max_entries = (cap & 0xffff) as u32 + 1;
        let page = (cap >> 48) as u32 & 15;
        self.page_shift = 12 + page;
        let sets = if cap & SEVERAL_SETS != 0 { ALL_SETS } else { 0 };
        self.configuration = ENTRY_SIZES | sets | page << 7;
        self.configure(self.configuration).await.map_err(doing)?;
        self.configure(self.configuration | ENABLE).await.map_err(doing)?;
        // CAP.TO counts in 500 ms. 0 would leave no time at all.
        let limit = Duration::from_millis(500) * ((cap >> 24) as u32 & 0xff).max(1);
        self.wait_for(READY, READY, limit).await.map_err(doing)?;
        self.version = self.get(property::VS, false).await.map_err(doing)? as u32;
        Ok(())
    }

    /// Reads CSTS until these bits have a value.
    async fn wait_for(&self, bits: u32, value: u32, limit: Duration) -> Result<(), Error> {
        let end = Instant::now() + limit;
        loop {
            let status = self.get(property::CSTS, false).await? as u32;
            if status & FATAL != 0 {
                return Err(Error::new(
                    ErrorCode::Refused,
                    "the controller reports a fatal status (CSTS.CFS)",
                ));
            }
            if status & bits == value {
                return Ok(());
            }
            if Instant::now() >= end {
                let what = format!("CSTS is {status:x}h after {} s", limit.as_secs_f32());
                return Err(Error::new(ErrorCode::TimedOut, what));
            }
            time_limit::sleep(STATUS_PAUSE).await;
        }
    }

    /// Checks the demands of a host on an I/O controller over fabrics.
    fn check(&self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::new(ErrorCode::ProtocolError, what));
        if self.identify.controller != self.id {
            let (connected, found) = (self.id, self.identify.controller);
            return wrong(format!("Connect made controller {connected}, but Identify is of {found}"));
        }
        if self.is_discovery() {
            return Ok(());
        }
        let capsules = (self.identify.command_capsule, self.identify.response_capsule);
        if capsules.0 < MIN_CAPSULES.0 || capsules.1 < MIN_CAPSULES.1 {
            return wrong(format!(
                "the capsules of the controller are too small: IOCCSZ and IORCSZ are {capsules:?}"
            ));
        }
        if self.identify.capsule_data_offset != 0 {
            let offset = self.identify.capsule_data_offset;
            return wrong(format!("the controller wants data at offset {offset} of capsules (ICDOFF)"));
        }
        Ok(())
    }

    /// Whether it is a discovery controller.
    pub fn is_discovery(&self) -> bool {
        self.identify.kind == 2
    }

    /// Bytes of data that a capsule of an I/O queue has room for.
    pub fn capsule_data(&self) -> usize {
        let bytes = u64::from(self.identify.command_capsule) * 16 - Sqe::LEN as u64;
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Asks for this many I/O queues. Returns how many the controller grants.
    ///
    /// # Errors
    /// Those of Set Features.
    pub async fn request_queues(&self, count: u16) -> Result<u16, Error> {
        let wanted = u32::from(count.max(1) - 1);
        let sqe = Sqe::new(admin_opcode::SET_FEATURES, 0, 0)
            .with_dword(10, NUMBER_OF_QUEUES)
            .with_dword(11, wanted | wanted << 16);
        let (cqe, _) =
            call(&self.admin, sqe, Direction::None).await.map_err(|e| e.during("asking for I/O queues"))?;
        let granted = (cqe.result as u32 & 0xffff).min(cqe.result as u32 >> 16);
        Ok(u16::try_from(granted + 1).unwrap_or(u16::MAX).min(count))
    }

    /// Shuts the controller down.
    ///
    /// # Errors
    /// When it does not end in time.
    pub async fn shut_down(&self, limit: Duration) -> Result<(), Error> {
        self.configure(self.configuration | ENABLE | SHUTDOWN).await?;
        self.wait_for(SHUTDOWN_STATE, SHUTDOWN_DONE, limit).await
    }
}
