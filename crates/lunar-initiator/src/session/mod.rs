//! A session with a target. It lives on one core. Its handle works on every core.

mod batch;
pub(crate) mod command_window;
pub(crate) mod completions;
mod connection;
mod connection_state;
mod control;
pub(crate) mod control_request;
mod data_out;
mod debug;
mod deferred_errors;
mod error_handler;
mod errors;
mod event;
mod held_back;
mod hooks;
mod identity_checks;
mod incoming;
pub(crate) mod info;
mod local_session;
mod logout;
mod long_reads;
mod orphans;
mod owner_requests;
mod parts;
mod pending;
mod pinned_luns;
mod piped_reads;
mod proof;
mod recovery;
mod request;
mod send_order;
pub(crate) mod session_state;
mod session_tasks;
pub(crate) mod tag_map;
pub(crate) mod task;
mod task_pipe;
pub mod testing;
#[cfg(test)]
mod tests;
mod text_exchange;
mod text_requests;
mod transfer;
pub(crate) mod transport;
mod unverified_luns;
mod violations;
mod yield_heuristic;

pub use batch::Batch;
pub(crate) use error_handler::is_done;
pub use event::Event;
pub(crate) use event::Listeners;
pub use hooks::{SessionHooks, SessionLogin};
pub use identity_checks::IDENTITY_LEN;
pub use info::SessionInfo;
pub use pending::Pending;
pub use request::CommandId;
pub(crate) use request::Held;

use crate::connect;
use crate::nexus::{self, LoginTarget};
use crate::options::Transport;
#[cfg(feature = "rdma")]
use crate::rdma_connector::RdmaConnector;
use crate::{Command, Error, ErrorCode, Options, Portal, text};
use deferred_errors::DeferredErrors;
use event::lock;
use local_session::LocalSession;
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::{Sense, Status};
use lunar_wire::srp::PortId;
use proof::Proof;
use request::{SessionHandle, SessionRequest};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The data shared by all handles of a session.
struct SessionShared {
    handle: SessionHandle,
    /// The number of commands sent from other cores.
    sent: AtomicU64,
    info: Arc<Mutex<SessionInfo>>,
    listeners: Arc<Listeners>,
    deferred_errors: DeferredErrors,
    /// The LUN whose commands are sent again, and its last response.
    repeats: Mutex<Option<(u64, String)>>,
    options: Options,
}

/// A handle of a session. The session ends when the last handle is dropped.
#[derive(Clone)]
pub struct Session(Arc<SessionShared>);

/// A weak handle: it does not keep the session open.
#[derive(Clone)]
pub struct WeakSession(Weak<SessionShared>);

impl WeakSession {
    /// A strong handle, if one still exists.
    pub fn upgrade(&self) -> Option<Session> {
        self.0.upgrade().map(Session)
    }

    /// Whether both are handles of the same session.
    pub fn is(&self, session: &Session) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&session.0))
    }
}

impl Session {
    /// Logs in to a target. Call it inside an event loop: the session lives there.
    ///
    /// # Errors
    /// When the target is unreachable in all attempts, or rejects the login, which is not retried. The error of
    /// [`SessionHooks::logged_in`].
    pub async fn open(portal: Portal, target: &str, options: Options) -> Result<Session, Error> {
        let isid = options.isid.unwrap_or_else(nexus::new_isid);
        let login_target =
            LoginTarget { portal, target: Some(target.to_owned()), isid, is_extra_channel: false };
        let connected = connect::connect_with_retry(&login_target, &options).await?;
        Session::begin(login_target, options, connected).await
    }

    /// The same over an RDMA connection that `make` establishes, from the given private data and connection
    /// parameters. For tests and measurements: a lost connection is not replaced.
    ///
    /// # Errors
    /// The errors of the connection and the login; [`ErrorCode::InvalidArgument`] when the transport is TCP.
    #[cfg(feature = "rdma")]
    pub async fn open_on(target: &str, options: Options, make: impl RdmaConnector) -> Result<Session, Error> {
        let isid = options.isid.unwrap_or_else(nexus::new_isid);
        let portal = Portal { host: "in memory".into(), port: 0 };
        let login_target =
            LoginTarget { portal, target: Some(target.to_owned()), isid, is_extra_channel: false };
        let connected = connect::connect_with(&login_target, &options, make).await?;
        Session::begin(login_target, options, connected).await
    }

    async fn begin(
        login_target: LoginTarget,
        options: Options,
        connected: connect::Connected,
    ) -> Result<Session, Error> {
        let info = connected.info(&login_target, &options);
        if let Some(hooks) = &options.hooks {
            hooks.logged_in(SessionLogin::first(&info)).await?;
        }
        let info = Arc::new(Mutex::new(info));
        let listeners = Arc::new(Listeners::default());
        let local = LocalSession::new(login_target, options.clone(), info.clone(), listeners.clone());
        let (handle, core) = SessionHandle::new(local);
        session_tasks::start(core, connected);
        Ok(Session(Arc::new(SessionShared {
            handle,
            sent: AtomicU64::new(0),
            info,
            listeners,
            deferred_errors: DeferredErrors::default(),
            repeats: Mutex::default(),
            options,
        })))
    }

    /// Sends a command. The result is the response of the logical unit, whatever its status, or an error if there is
    /// no response. Both return the buffer. [`Pending::id`] identifies the command for [`Session::abort`].
    #[inline]
    pub fn submit(&self, command: Command) -> Pending {
        pending::submit(&self.0.handle, &self.0.sent, command)
    }

    /// Submits many commands of one owner without a future for each. None if the caller is on another core.
    pub fn batch(&self) -> Option<Batch> {
        self.0.handle.local().map(Batch::new)
    }

    /// Requests a task management function of a logical unit (ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET) or of
    /// the target (TARGET WARM RESET, TARGET COLD RESET). Returns the response code (RFC 7143 section 11.6.1): see
    /// [`management_response`](crate::command::management_response).
    ///
    /// # Errors
    /// When the connection is lost, or the target does not answer in time.
    pub async fn manage(&self, function: TaskManagementFunction, lun: u64) -> Result<u8, Error> {
        self.request(|reply| SessionRequest::Manage(function, lun, reply)).await?
    }

    /// Ends a submitted command, with ABORT TASK if the target has it. The owner gets [`ErrorCode::Aborted`] and the
    /// buffer once the target has responded or the abort timeout has expired. If the command's own response comes
    /// first, the owner gets that. Returns when the command has ended, at once if it has already ended.
    ///
    /// # Errors
    /// When the target rejects the function or does not respond in time, or the session ends first. The target may
    /// still execute the command then.
    pub async fn abort(&self, command: CommandId) -> Result<(), Error> {
        self.request(|reply| SessionRequest::Abort(command, reply)).await?
    }

    /// Sends a text request and waits for the response, at most for the login timeout. Concurrent requests run one by
    /// one. The target answers an unknown key with NotUnderstood, which is not an error.
    ///
    /// # Errors
    /// [`ErrorCode::Refused`] when the target rejects the request. [`ErrorCode::ConnectionLost`] or
    /// [`ErrorCode::TimedOut`] without a response, [`ErrorCode::ProtocolError`] for a response that violates the
    /// protocol. [`ErrorCode::InvalidArgument`] for malformed keys, and for those that only a login may negotiate.
    pub async fn text(&self, asked: &[(&str, &str)]) -> Result<Vec<(String, String)>, Error> {
        let question = text::question(asked)?;
        text::parse(&self.request(|reply| SessionRequest::Text(question, reply)).await??)
    }

    /// The name of the target, and the portal.
    pub(crate) fn destination(&self) -> (String, Portal) {
        let info = lock(&self.0.info);
        (info.target.clone(), info.portal.clone())
    }

    /// The transport.
    pub(crate) fn transport(&self) -> Transport {
        self.0.options.transport
    }

    /// A weak handle.
    pub fn downgrade(&self) -> WeakSession {
        WeakSession(Arc::downgrade(&self.0))
    }

    /// The current state.
    pub fn info(&self) -> SessionInfo {
        lock(&self.0.info).clone()
    }

    /// The size of the command window (MaxCmdSN - ExpCmdSN + 1). None if the caller is on another core.
    pub fn window(&self) -> Option<u32> {
        self.0.handle.local().map(|local| local.state.borrow().command_window.window())
    }

    /// The approximate time. On the core of the session, it is the time that the event loop read last.
    #[inline]
    pub(crate) fn about_now(&self) -> Instant {
        self.0.handle.local().map_or_else(Instant::now, |local| local.state.borrow().now)
    }

    /// The initiator port of the nexus, and the target name.
    fn initiator_port(&self) -> (String, [u8; 6], String, Option<PortId>) {
        let (SessionInfo { isid, target, .. }, options) = (self.info(), self.options());
        let srp = (options.transport == Transport::Srp).then(|| options.srp_port(isid));
        (options.initiator.to_ascii_lowercase(), isid, target, srp)
    }

    /// The options of the session.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// The reason why commands of the session wait: it has no connection, or a logical unit is busy or not ready. None
    /// if commands only wait for their responses.
    pub fn obstacle(&self) -> Option<String> {
        let info = self.info();
        if !info.connected {
            let why = info.lost_by.map_or(String::new(), |why| format!(": {why}"));
            return Some(format!("no connection to {}{why}", info.portal));
        }
        let (lun, answer) = lock(&self.0.repeats).clone()?;
        Some(format!("{} is busy or not ready: {answer}", self.place(lun)))
    }

    /// Records the response after which a command of a logical unit is sent again; None once it has ended.
    pub(crate) fn record_repeat(&self, repeat: Option<(u64, String)>) {
        *lock(&self.0.repeats) = repeat;
    }

    /// Subscribes to events. At most 256 are queued.
    pub fn events(&self) -> flume::Receiver<Event> {
        self.0.listeners.add()
    }

    /// Handles sense data that concern other commands than the one that returned them. Listeners get a unit
    /// attention. A deferred error is kept for [`Session::take_deferred_error`].
    pub(crate) fn attention(&self, lun: u64, sense: Sense) {
        match sense.deferred {
            true => self.0.deferred_errors.note(lun, sense),
            false => self.0.listeners.notify(&Event::UnitAttention { lun, sense }),
        }
    }

    /// Takes the deferred error that a logical unit reported since the last call: acknowledged data are lost.
    pub(crate) fn take_deferred_error(&self, lun: u64) -> Option<Error> {
        let sense = self.0.deferred_errors.take(lun)?;
        let error = Error::new(
            ErrorCode::ScsiError,
            format!("acknowledged data of an earlier write is lost: {sense}"),
        );
        // Returned as a current error of this request: hosts retry a command that returns a deferred error.
        let sense = Sense { deferred: false, ..sense };
        Some(error.with_status(Status::CheckCondition as u8).with_sense(Some(sense)))
    }

    /// Pins a logical unit to this identity (VPD page 83h). Replaces an earlier one. If the identity differs after a
    /// recovery, its commands fail.
    // Public for the routers of Lunar: a program that opens a `Lun` needs no pin of its own.
    #[doc(hidden)]
    pub fn pin(&self, lun: u64, identity: Vec<u8>) {
        // An error means that the session has ended: nothing more is sent.
        let _ = self.mail(SessionRequest::Pin(lun, identity));
    }

    /// The same, while the returned hold exists.
    pub(crate) async fn hold(&self, lun: u64, identity: Vec<u8>) -> Result<Held, Error> {
        self.request(|reply| SessionRequest::Hold(Held::new(&self.0.handle, lun), identity, reply)).await?
    }

    /// Records that a LUN leads to another logical unit. It accepts no commands until a check finds the pinned one.
    pub(crate) fn expel(&self, lun: u64, identity: Vec<u8>) -> Error {
        // An error means that the session has ended: nothing more is sent.
        let _ = self.mail(SessionRequest::Changed(lun, identity));
        errors::changed()
    }

    /// Checks whether the pinned logical unit is back. If so, the LUN accepts commands again.
    pub(crate) async fn verify_again(&self, lun: u64) {
        // An error means that the session has ended: there is nothing to check.
        let _ = self.request(|reply| SessionRequest::VerifyAgain(lun, reply)).await;
    }

    /// The age of the oldest orphan of this logical unit, or of all with None. The target may still execute an orphan
    /// and change the medium, although its connection is lost.
    // Public for the routers and attachments of Lunar, which end orphans in other ways than a session does.
    #[doc(hidden)]
    pub async fn oldest_orphan(&self, lun: Option<u64>) -> Option<Duration> {
        self.request(|reply| SessionRequest::Orphans(lun, reply)).await.ok()?
    }

    /// Records that another session has reset the logical unit by a request sent at this time. This ends the orphans
    /// of connections that were lost earlier.
    // Public for the routers and attachments of Lunar, which end orphans in other ways than a session does.
    #[doc(hidden)]
    pub async fn record_reset(&self, lun: u64, at: Instant) {
        // An error means that the session has ended: there are no orphans.
        let _ = self.request(|reply| SessionRequest::Prove(Proof::Reset(Some(lun), at), reply)).await;
    }

    /// Records that another session with the same name and ISID has logged in. A login at the same target port ends
    /// the tasks of this session (RFC 7143 section 6.3.5).
    // Public for the routers and attachments of Lunar, which end orphans in other ways than a session does.
    #[doc(hidden)]
    pub async fn record_reinstatement(&self, by: &Session) {
        let Some(port) = by.info().port.filter(|_| by.initiator_port() == self.initiator_port()) else {
            return;
        };
        // An error means that the session has ended: there are no orphans.
        let _ = self.request(|reply| SessionRequest::Prove(Proof::Login(port), reply)).await;
    }

    /// Resets the connection if the target has commands whose owners no longer wait. An owner may since have repeated
    /// its command on another path. The target must not execute the old one after that.
    // Public for the routers and attachments of Lunar, which end orphans in other ways than a session does.
    #[doc(hidden)]
    pub async fn reset_abandoned(&self) {
        // An error means that the session has ended and has no connection.
        let _ = self.request(SessionRequest::ResetAbandoned).await;
    }

    /// Stops the recovery: no new connection is made. Without a connection, the session ends now and its queued
    /// commands fail.
    pub fn give_up(&self) {
        // An error means that the session has ended: there is nothing to stop.
        _ = self.mail(SessionRequest::GiveUp);
    }

    /// Logs out, after the commands in flight. Later commands fail.
    ///
    /// # Errors
    /// When the target does not answer in time. The session ends in either case. [`ErrorCode::ConnectionLost`] when
    /// the target may still execute writes.
    pub async fn close(&self) -> Result<(), Error> {
        self.request(SessionRequest::Close).await?
    }

    async fn request<T>(&self, request: impl FnOnce(flume::Sender<T>) -> SessionRequest) -> Result<T, Error> {
        self.0.handle.request(request).await
    }

    fn mail(&self, mail: SessionRequest) -> Result<(), Error> {
        self.0.handle.send(mail)
    }
}
