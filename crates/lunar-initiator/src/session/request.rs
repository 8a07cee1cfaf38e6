//! Requests to a session from other cores.

use super::errors::closed;
use super::local_session::LocalSession;
use super::proof::Proof;
use crate::{Command, CommandResult, Error};
use lunar_runtime::{CoreHandle, Registration};
use lunar_wire::scsi::TaskManagementFunction;
use std::rc::Rc;
use std::time::Duration;

/// Identifies a command of a session, for [`crate::Session::abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandId(pub(super) CommandKey);

/// The key by which a session finds a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CommandKey {
    /// The tag of a command from the core of the session.
    Tag(u32),
    /// The number of a command from another core.
    Number(u64),
    /// The command has already ended.
    Over,
}

/// A request to a session from another task or core.
pub enum SessionRequest {
    Command(Command, flume::Sender<CommandResult>, u64),
    Abort(CommandId, flume::Sender<Result<(), Error>>),
    Text(Vec<u8>, flume::Sender<Result<Vec<u8>, Error>>),
    Manage(TaskManagementFunction, u64, flume::Sender<Result<u8, Error>>),
    Pin(u64, Vec<u8>),
    Hold(Held, Vec<u8>, flume::Sender<Result<Held, Error>>),
    ReleaseHold(u64),
    Changed(u64, Vec<u8>),
    VerifyAgain(u64, flume::Sender<()>),
    Orphans(Option<u64>, flume::Sender<Option<Duration>>),
    Prove(Proof, flume::Sender<()>),
    ResetAbandoned(flume::Sender<()>),
    GiveUp,
    Close(flume::Sender<Result<(), Error>>),
}

/// The access to a session from any core.
#[derive(Clone)]
pub struct SessionHandle(CoreHandle<LocalSession, SessionRequest>);

/// The receiving end: the session on its core, and the queue of requests.
pub struct SessionCore {
    /// Keeps the session registered on its core.
    pub registration: Registration<LocalSession>,
    /// Requests from other cores.
    pub requests: flume::Receiver<SessionRequest>,
}

impl SessionHandle {
    /// Creates the handle and the receiving end of a session on this core.
    pub fn new(local: Rc<LocalSession>) -> (SessionHandle, SessionCore) {
        let (handle, registration, requests) = CoreHandle::new(local);
        (SessionHandle(handle), SessionCore { registration, requests })
    }

    /// The session, if the caller is on the session's core.
    #[inline]
    pub fn local(&self) -> Option<Rc<LocalSession>> {
        self.0.local()
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the session has ended.
    pub fn send(&self, request: SessionRequest) -> Result<(), Error> {
        self.0.send(request).map_err(|_| closed())
    }

    /// The same, but returns the request on failure.
    ///
    /// # Errors
    /// The request, when the session has ended.
    pub fn try_send(&self, request: SessionRequest) -> Result<(), Box<SessionRequest>> {
        self.0.send(request).map_err(Box::new)
    }

    /// Sends a request and waits for its answer.
    pub async fn request<T>(
        &self,
        request: impl FnOnce(flume::Sender<T>) -> SessionRequest,
    ) -> Result<T, Error> {
        let (reply, response) = flume::bounded(1);
        self.send(request(reply))?;
        response.recv_async().await.map_err(|_| closed())
    }
}

/// A user of a pinned logical unit, until this is dropped.
pub struct Held {
    session: SessionHandle,
    lun: u64,
    /// Whether the session counts this user.
    counts: bool,
}

impl Held {
    /// A hold that is not counted yet.
    pub fn new(session: &SessionHandle, lun: u64) -> Held {
        Held { session: session.clone(), lun, counts: false }
    }

    /// The eight bytes of the LUN.
    pub fn lun(&self) -> u64 {
        self.lun
    }

    /// Marks the user as counted.
    pub fn counted(self) -> Held {
        let mut held = self;
        held.counts = true;
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.counts {
            // An error means that the session has ended: nothing more is sent.
            let _ = self.session.send(SessionRequest::ReleaseHold(self.lun));
        }
    }
}
