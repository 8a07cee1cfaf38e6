//! Requests to a session from other cores.

use super::errors::closed;
use super::local_session::LocalSession;
use super::proof::Proof;
use crate::{Command, CommandResult, Error};
use lunar_runtime::{CoreHandle, Registration};
use lunar_wire::scsi::TaskManagementFunction;
use std::rc::Rc;
use std::time::Duration;

/// Names a command of a session: [`crate::Session::abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandId(pub(super) CommandKey);

/// How a session finds a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CommandKey {
    /// By its tag: it came from the core of the session.
    Tag(u32),
    /// By its number among those that came from other cores.
    Number(u64),
    /// Not at all: it is over.
    Over,
}

/// What is sent to a session from outside.
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

/// How every core reaches a session.
#[derive(Clone)]
pub struct SessionHandle(CoreHandle<LocalSession, SessionRequest>);

/// A session on its core, and the requests to it.
pub struct SessionCore {
    /// The core finds the session until this is dropped.
    pub registration: Registration<LocalSession>,
    /// From other cores.
    pub requests: flume::Receiver<SessionRequest>,
}

impl SessionHandle {
    /// That of a session of this core.
    pub fn new(local: Rc<LocalSession>) -> (SessionHandle, SessionCore) {
        let (handle, registration, requests) = CoreHandle::new(local);
        (SessionHandle(handle), SessionCore { registration, requests })
    }

    /// The session itself; None on another core.
    #[inline]
    pub fn local(&self) -> Option<Rc<LocalSession>> {
        self.0.local()
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The session is over.
    pub fn send(&self, request: SessionRequest) -> Result<(), Error> {
        self.0.send(request).map_err(|_| closed())
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The request, when the session is over.
    pub fn try_send(&self, request: SessionRequest) -> Result<(), Box<SessionRequest>> {
        self.0.send(request).map_err(Box::new)
    }

    /// Sends a request and waits for its answer.
    pub async fn ask<T>(&self, request: impl FnOnce(flume::Sender<T>) -> SessionRequest) -> Result<T, Error> {
        let (reply, answer) = flume::bounded(1);
        self.send(request(reply))?;
        answer.recv_async().await.map_err(|_| closed())
    }
}

/// A user of a logical unit as storage.
pub struct Held {
    session: SessionHandle,
    lun: u64,
    /// It was counted.
    counts: bool,
}

impl Held {
    /// One that is not counted yet.
    pub fn new(session: &SessionHandle, lun: u64) -> Held {
        Held { session: session.clone(), lun, counts: false }
    }

    /// The eight bytes of the LUN.
    pub fn lun(&self) -> u64 {
        self.lun
    }

    /// The session has counted it.
    pub fn counted(self) -> Held {
        let mut held = self;
        held.counts = true;
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.counts {
            // The session is over: nothing will be sent any more.
            let _ = self.session.send(SessionRequest::ReleaseHold(self.lun));
        }
    }
}
