//! A session with a target: it lives on one core, and its handle may be used from all.

mod batch;
pub(crate) mod command_window;
mod completions;
mod connection;
mod connection_state;
mod control;
pub(crate) mod control_request;
mod data_out;
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
mod mailbox;
mod orphans;
mod owner_requests;
mod pending;
mod pinned_luns;
mod proof;
mod recovery;
mod request;
mod send_order;
pub(crate) mod session_state;
pub(crate) mod tag_map;
pub(crate) mod task;
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
pub use hooks::{SessionHooks, SessionLogin};
pub use identity_checks::IDENTITY_LEN;
pub use info::SessionInfo;
pub use pending::Pending;
pub use request::CommandId;
pub(crate) use request::Held;

use crate::connect;
use crate::nexus::{self, LoginTarget};
use crate::options::Transport;
use crate::rdma_connector::RdmaConnector;
use crate::{Command, Error, Kind, Options, Portal, text};
use deferred_errors::DeferredErrors;
use event::{Listeners, lock};
use local_session::LocalSession;
use lunar_wire::iscsi::request::Function;
use lunar_wire::scsi::{Sense, Status};
use lunar_wire::srp::PortId;
use pending::Address;
use proof::Proof;
use request::{RequestSender, SessionRequest};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// What all handles of a session share.
struct Shared {
    address: Address,
    facts: Arc<Mutex<SessionInfo>>,
    listeners: Arc<Listeners>,
    deferred_errors: DeferredErrors,
    options: Options,
}

/// A handle of a session. The session ends when the last handle is gone.
#[derive(Clone)]
pub struct Session(Arc<Shared>);

/// A session that may have ended: this keeps it from nothing.
#[derive(Clone)]
pub struct WeakSession(Weak<Shared>);

impl std::fmt::Debug for WeakSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakSession")
    }
}

impl WeakSession {
    /// A handle, while there is one.
    pub fn upgrade(&self) -> Option<Session> {
        self.0.upgrade().map(Session)
    }

    /// It is this one.
    pub fn is(&self, session: &Session) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&session.0))
    }
}

impl Session {
    /// Logs in to a target. To be called inside an event loop, which the session then lives in.
    ///
    /// # Errors
    /// When the target cannot be reached within the set tries, or refuses; at once when it refuses for good. The error of
    /// [`SessionHooks::logged_in`].
    pub async fn open(portal: Portal, target: &str, options: Options) -> Result<Session, Error> {
        let isid = options.isid.unwrap_or_else(nexus::new_isid);
        let login_target =
            LoginTarget { portal, target: Some(target.to_owned()), isid, is_extra_channel: false };
        let connected = connect::connect_with_retry(&login_target, &options).await?;
        Session::begin(login_target, options, connected).await
    }

    /// The same over RDMA, on a connection that somebody else makes: of our private data and terms. For tests and
    /// measurements, as it is not made anew.
    ///
    /// # Errors
    /// What is wrong with the connection or the login; [`Kind::Invalid`] when the options are those of TCP.
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
        let facts = connected.facts(&login_target, &options);
        if let Some(hooks) = &options.hooks {
            hooks.logged_in(SessionLogin::first(&facts)).await?;
        }
        let facts = Arc::new(Mutex::new(facts));
        let listeners = Arc::new(Listeners::default());
        let (requests, inbox) = RequestSender::new();
        let local = LocalSession::new(login_target, options.clone(), facts.clone(), listeners.clone());
        let address = Address::new(local_session::settle(local.clone()), requests);
        mailbox::start(local, connected, inbox);
        let deferred_errors = DeferredErrors::default();
        Ok(Session(Arc::new(Shared { address, facts, listeners, deferred_errors, options })))
    }

    /// Sends a command. The answer is that of the logical unit, whatever its status; an error means that
    /// there is none. The buffer comes back in both cases. [`Pending::id`] names the command for [`Session::abort`].
    #[inline]
    pub fn submit(&self, command: Command) -> Pending {
        pending::submit(&self.0.address, command)
    }

    /// For many commands of one owner, whose ends are taken one after the other: without a future for each. None on
    /// another core than that of the session.
    pub fn batch(&self) -> Option<Batch> {
        self.0.address.here.local().map(Batch::new)
    }

    /// Asks for a task management function on a logical unit (ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT
    /// RESET) or on the target (TARGET WARM RESET, TARGET COLD RESET). The answer is the response code of
    /// RFC 7143 section 11.6.1.
    ///
    /// # Errors
    /// When the connection is lost meanwhile, or the target does not answer in time.
    pub async fn manage(&self, function: Function, lun: u64) -> Result<u8, Error> {
        self.request(|reply| SessionRequest::Manage(function, lun, reply)).await?
    }

    /// Ends one command that was submitted: at the target by ABORT TASK, or before it is sent. What waits for it
    /// hears of it with [`Kind::Aborted`], and has its buffer back, once the target has answered or the time for that
    /// is over; a command that ends by itself meanwhile has its own answer. Returns when the command is over; so does
    /// one that was over before.
    ///
    /// # Errors
    /// When the target refuses or does not answer in time, or the session ends before that: the target may still carry the
    /// command out.
    pub async fn abort(&self, command: CommandId) -> Result<(), Error> {
        self.request(|reply| SessionRequest::Abort(command, reply)).await?
    }

    /// Asks in key text and waits for the answer, as long as a login may take; others that ask at the same time wait
    /// for each other. A key that the target does not know is answered by NotUnderstood, which is no error.
    ///
    /// # Errors
    /// [`Kind::Refused`] when the target rejects the request. [`Kind::Lost`] or [`Kind::TimedOut`] when there is no
    /// answer, [`Kind::Protocol`] for one that breaks the rules. [`Kind::Invalid`] for what is no key text, or is settled
    /// by the login.
    pub async fn text(&self, asked: &[(&str, &str)]) -> Result<Vec<(String, String)>, Error> {
        let question = text::question(asked)?;
        text::answer(&self.request(|reply| SessionRequest::Text(question, reply)).await??)
    }

    /// The name of its target, and the portal.
    pub(crate) fn destination(&self) -> (String, Portal) {
        let facts = lock(&self.0.facts);
        (facts.target.clone(), facts.portal.clone())
    }

    /// What carries it.
    pub(crate) fn transport(&self) -> Transport {
        self.0.options.transport
    }

    /// It, without keeping it.
    pub fn downgrade(&self) -> WeakSession {
        WeakSession(Arc::downgrade(&self.0))
    }

    /// What it is now.
    pub fn facts(&self) -> SessionInfo {
        lock(&self.0.facts).clone()
    }

    /// Commands that the target takes at once (MaxCmdSN - ExpCmdSN + 1); None on another core than that of
    /// the session.
    pub fn window(&self) -> Option<u32> {
        self.0.address.here.window()
    }

    /// About now: the kernel is not asked on the session's own core.
    #[inline]
    pub(crate) fn about_now(&self) -> Instant {
        self.0.address.here.about_now().unwrap_or_else(Instant::now)
    }

    /// The initiator's end of its nexus, and the target.
    fn initiator_port(&self) -> (String, [u8; 6], String, Option<PortId>) {
        let (SessionInfo { isid, target, .. }, options) = (self.facts(), self.options());
        let srp = (options.transport == Transport::Srp).then(|| options.srp_port(isid));
        (options.initiator.to_ascii_lowercase(), isid, target, srp)
    }

    /// How it was opened.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Events from now on; at most 256 wait.
    pub fn events(&self) -> flume::Receiver<Event> {
        self.0.listeners.add()
    }

    /// What came as the status of a command and is not about it: listeners are told of a unit attention, a deferred
    /// error is kept for [`Session::take_deferred_error`].
    pub(crate) fn attention(&self, lun: u64, sense: Sense) {
        match sense.deferred {
            true => self.0.deferred_errors.note(lun, sense),
            false => self.0.listeners.notify(&Event::Attention { lun, sense }),
        }
    }

    /// The deferred error that a logical unit has told since this was asked last: what was acknowledged is lost.
    pub(crate) fn take_deferred_error(&self, lun: u64) -> Option<Error> {
        let sense = self.0.deferred_errors.take(lun)?;
        let error = Error::new(Kind::Scsi, format!("data that were acknowledged are lost: {sense}"));
        // To who asks now it is an error of what was asked: what is deferred is tried again by hosts.
        let sense = Sense { deferred: false, ..sense };
        Some(error.with_status(Status::CheckCondition as u8).with_sense(Some(sense)))
    }

    /// From now on this logical unit has to be the same after every recovery: `identity` is what VPD page 83h
    /// tells. Its commands fail when it is not. What it had to be before counts no more.
    pub fn pin(&self, lun: u64, identity: Vec<u8>) {
        // The session is over: nothing will be sent any more.
        let _ = self.mail(SessionRequest::Pin(lun, identity));
    }

    /// The same for as long as somebody uses it as storage and keeps what comes back.
    pub(crate) async fn hold(&self, lun: u64, identity: Vec<u8>) -> Result<Held, Error> {
        self.request(|reply| SessionRequest::Hold(Held::new(&self.0.address.requests, lun), identity, reply))
            .await?
    }

    /// A logical unit was seen to be another one: it takes no commands until a new connection finds it back.
    pub(crate) fn expel(&self, lun: u64, identity: Vec<u8>) -> Error {
        // The session is over: nothing will be sent any more.
        let _ = self.mail(SessionRequest::Changed(lun, identity));
        errors::changed()
    }

    /// Looks whether a logical unit that was another one is back, and lets its commands through if it is.
    pub(crate) async fn verify_again(&self, lun: u64) {
        // The session is over: there is nothing to be seen.
        let _ = self.request(|reply| SessionRequest::VerifyAgain(lun, reply)).await;
    }

    /// How long the oldest command has waited that changes this logical unit (any, with None), and that the target may still
    /// carry out though its connection is lost.
    pub async fn oldest_orphan(&self, lun: Option<u64>) -> Option<Duration> {
        self.request(|reply| SessionRequest::Orphans(lun, reply)).await.ok()?
    }

    /// The logical unit was reset through another session, by a function that was sent at this time: the target carries out
    /// nothing any more that it had of a connection that was lost before.
    pub async fn was_reset(&self, lun: u64, at: Instant) {
        // The session is over: nothing waits any more.
        let _ = self.request(|reply| SessionRequest::Prove(Proof::Reset(Some(lun), at), reply)).await;
    }

    /// Another session, with the same name and ISID, has logged in: that has ended what the target had of this one at the
    /// same target port (RFC 7143 section 6.3.5).
    pub async fn was_reinstated(&self, by: &Session) {
        let Some(port) = by.facts().port.filter(|_| by.initiator_port() == self.initiator_port()) else {
            return;
        };
        // The session is over: nothing waits any more.
        let _ = self.request(|reply| SessionRequest::Prove(Proof::Login(port), reply)).await;
    }

    /// Resets the connection if the target still has commands whose owners were told that their time is over: one
    /// of them may be done elsewhere by now, and must not be carried out once more after that.
    pub async fn reset_abandoned(&self) {
        // The session is over: it has no connection any more.
        let _ = self.request(SessionRequest::ResetAbandoned).await;
    }

    /// Makes no other connection. A session that has one ends with it; one that has lost it ends now, and what waits fails.
    pub fn give_up(&self) {
        // The session is over: nothing waits.
        _ = self.mail(SessionRequest::GiveUp);
    }

    /// Logs out, after the commands in flight have ended; whatever is sent later fails.
    ///
    /// # Errors
    /// When the target does not answer in time; the session is over all the same. [`Kind::Lost`] when the target may still
    /// carry out writes.
    pub async fn close(&self) -> Result<(), Error> {
        self.request(SessionRequest::Close).await?
    }

    async fn request<T>(&self, request: impl FnOnce(flume::Sender<T>) -> SessionRequest) -> Result<T, Error> {
        self.0.address.requests.ask(request).await
    }

    fn mail(&self, mail: SessionRequest) -> Result<(), Error> {
        self.0.address.requests.send(mail)
    }
}
