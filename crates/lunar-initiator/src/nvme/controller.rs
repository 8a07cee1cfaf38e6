//! A handle of a controller, for every core.

use super::association::{SubsystemAddress, identify_entry};
use super::command::{NvmeCommand, NvmeResult};
use super::controller_info::ControllerInfo;
use super::io_queues::IoQueues;
use super::lifetime;
use super::local_controller::{LocalController, lock};
use super::namespace_identity::NamespaceIdentity;
use super::options::NvmeOptions;
use super::queue_tasks::CompletionWaiter;
use super::request::{self, ControllerHandle, ControllerRequest, PendingCompletion};
use super::status::{closed, error_of};
use crate::session::Listeners;
use crate::{Direction, Error, ErrorCode, Event, with_retry};
use lunar_runtime::{Buf, CoreHandle, SendPump};
use lunar_wire::nvme::{Sqe, listed_namespaces};
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// Active namespaces (CNS 02h).
const ACTIVE_NAMESPACES: u32 = 0x02;
/// The most namespaces of a list. A full list continues after its last entry.
const LIST: usize = 1024;
/// The most lists that are read.
const MAX_LISTS: usize = 64;

struct ControllerShared {
    handle: ControllerHandle,
    io: Arc<IoQueues>,
    info: Arc<Mutex<ControllerInfo>>,
    listeners: Arc<Listeners>,
    options: NvmeOptions,
}

/// A controller of a subsystem. It is shut down when the last handle is dropped.
#[derive(Clone)]
pub struct NvmeController(Arc<ControllerShared>);

impl NvmeController {
    /// Connects to a controller. Call it inside an event loop: the controller lives there.
    ///
    /// # Errors
    /// When the controller is unreachable in all attempts, or refuses this host, which is not tried again.
    pub async fn open(address: SubsystemAddress, options: NvmeOptions) -> Result<NvmeController, Error> {
        let io = IoQueues::start(&options).await;
        let local = LocalController::new(address, options.clone(), io.clone());
        let first = establish_with_retry(&local).await?;
        let (info, listeners) = (local.info.clone(), local.listeners.clone());
        let (handle, registration, requests) = CoreHandle::new(local.clone());
        lunar_runtime::spawn(handle_requests(local, requests));
        lunar_runtime::spawn(lifetime::live(registration, first));
        Ok(NvmeController(Arc::new(ControllerShared { handle, io, info, listeners, options })))
    }

    /// Sends an I/O command. The result is its completion, whatever its status, or an error if there is none.
    pub fn submit(&self, command: NvmeCommand) -> PendingCompletion {
        request::submit(&self.0.io, command)
    }

    /// The I/O queues.
    pub(super) fn io_queues(&self) -> &Arc<IoQueues> {
        &self.0.io
    }

    /// Sends a fused pair of I/O commands, one directly behind the other.
    pub fn submit_pair(&self, commands: [NvmeCommand; 2]) -> [PendingCompletion; 2] {
        request::submit_pair(&self.0.io, commands)
    }

    /// Sends an admin command once.
    pub async fn admin(&self, command: NvmeCommand) -> NvmeResult {
        let (reply, response) = flume::bounded(1);
        match self.0.handle.send(ControllerRequest::Admin(command, reply)) {
            Ok(()) => response.recv_async().await.unwrap_or_else(|_| (Err(closed()), None)),
            Err(ControllerRequest::Admin(command, _)) => (Err(closed()), command.data.into_buf()),
            Err(_) => (Err(closed()), None),
        }
    }

    /// Sends an admin command that returns `len` bytes, and fails unless it succeeds.
    ///
    /// # Errors
    /// The status as an error, or the lack of a completion.
    pub async fn read_admin(&self, sqe: Sqe, len: usize) -> Result<Buf, Error> {
        let (result, buf) = self.admin(NvmeCommand::new(sqe, Direction::In(Buf::zeroed(len)))).await;
        let cqe = result?;
        match buf.filter(|_| cqe.status.is_success()) {
            Some(buf) => Ok(buf),
            None => Err(error_of(cqe.status)),
        }
    }

    /// The active namespaces, ascending.
    ///
    /// # Errors
    /// Those of Identify.
    pub async fn namespaces(&self) -> Result<Vec<u32>, Error> {
        let mut all: Vec<u32> = Vec::new();
        for _ in 0..MAX_LISTS {
            let after = all.last().copied().unwrap_or(0);
            let list = self.read_admin(identify_entry(ACTIVE_NAMESPACES, after), 4 * LIST).await?;
            let before = all.len();
            all.extend(listed_namespaces(&list).filter(|id| *id > after));
            if all.len() - before < LIST {
                break;
            }
        }
        Ok(all)
    }

    /// The current state.
    pub fn info(&self) -> ControllerInfo {
        lock(&self.0.info).clone()
    }

    /// The options.
    pub fn options(&self) -> &NvmeOptions {
        &self.0.options
    }

    /// The events of the controller, from now on: it was lost, it is back, or namespaces may have changed.
    pub fn events(&self) -> flume::Receiver<Event> {
        self.0.listeners.add()
    }

    /// Pins a namespace to this identity: after a lost connection, its commands are sent only if it has not changed. Each call
    /// is followed by one of [`NvmeController::unpin`].
    pub(crate) fn pin(&self, namespace: u32, identity: NamespaceIdentity) {
        // An error means that the controller has ended: nothing more is sent.
        _ = self.0.handle.send(ControllerRequest::Pin(namespace, identity));
    }

    /// Ends the use of a pinned namespace.
    pub(crate) fn unpin(&self, namespace: u32) {
        // An error means that the controller has ended.
        _ = self.0.handle.send(ControllerRequest::Unpin(namespace));
    }

    /// Begins the end of the controller, as [`NvmeController::close`] does: commands that wait for a connection fail.
    pub fn give_up(&self) {
        let (reply, _) = flume::bounded(1);
        // An error means that the controller has ended.
        _ = self.0.handle.send(ControllerRequest::Close(reply));
    }

    /// Ends the controller after the commands in flight: CC.SHN, and the end of the connections. Later commands fail.
    pub async fn close(&self) {
        let (reply, response) = flume::bounded(1);
        if self.0.handle.send(ControllerRequest::Close(reply)).is_ok() {
            // Without a reply, the event loop has ended, and with it the connections.
            _ = response.recv_async().await;
        }
    }
}

impl fmt::Debug for NvmeController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.info();
        let mut shown = f.debug_struct("NvmeController");
        shown.field("portal", &info.portal).field("subsystem", &info.subsystem).finish_non_exhaustive()
    }
}

/// Connects, and tries again while the controller is unreachable, up to the number of attempts in the options.
async fn establish_with_retry(local: &LocalController) -> Result<super::association::Association, Error> {
    let missing = |e: &Error| tracing::warn!("{e}; the initiator tries again");
    with_retry(local.options.timeouts.login_tries, missing, async || local.establish().await).await
}

/// Handles requests from other cores. Closes the controller when all handles are dropped.
async fn handle_requests(local: Rc<LocalController>, requests: flume::Receiver<ControllerRequest>) {
    while let Ok(request) = requests.recv_async().await {
        match request {
            ControllerRequest::Admin(command, reply) => admin(&local, command, reply),
            ControllerRequest::Pin(namespace, identity) => local.pin(namespace, identity),
            ControllerRequest::Unpin(namespace) => local.unpin(namespace),
            ControllerRequest::Close(reply) => {
                let local = local.clone();
                lunar_runtime::spawn(async move {
                    local.close().await;
                    // The caller may have stopped waiting.
                    _ = reply.send(());
                });
            }
        }
    }
    local.close().await;
}

fn admin(local: &LocalController, command: NvmeCommand, reply: flume::Sender<NvmeResult>) {
    let Some(admin) = local.admin.borrow().clone() else {
        let lost = Error::new(ErrorCode::ConnectionLost, "there is no connection to the controller");
        // The caller may have stopped waiting.
        _ = reply.send((Err(lost), command.data.into_buf()));
        return;
    };
    match admin.accept(command.once(), CompletionWaiter::There(reply.clone())) {
        Ok(_) => SendPump::flush_soon(&admin),
        // The caller may have stopped waiting.
        Err(refused) => _ = reply.send(*refused),
    }
}
