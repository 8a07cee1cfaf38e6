//! A session with a target: it lives on one core, and its handle may be used from all.

mod batch;
pub(crate) mod by_tag;
pub(crate) mod carrier;
mod checks;
pub(crate) mod control;
mod demand;
mod drive;
mod escalate;
mod home;
mod hooks;
mod incoming;
mod leave;
mod losses;
pub(crate) mod machine;
pub(crate) mod numbers;
mod order;
mod orphans;
mod patience;
mod pins;
mod recover;
mod talk;
pub(crate) mod task;
pub mod testing;
#[cfg(test)]
mod tests;
mod transfer;
mod unseen;
mod violations;

pub use batch::Batch;
pub use checks::IDENTITY_LEN;
pub use hooks::{SessionHooks, SessionLogin};

use crate::connect::{self, Goal, TargetPort};
use crate::lun::{self, Patience};
use crate::made::{self, Make};
use crate::options::Transport;
use crate::waits::{self, Wait};
use crate::{Command, Direction, Error, Finished, Kind, Options, Portal, text};
pub use home::{CommandId, Pending};
use home::{Home, Mail};
use losses::Losses;
use lunar_proto::initiator::login::LoggedIn;
use lunar_proto::parameters::Parameters;
use lunar_wire::iscsi::request::Function;
use lunar_wire::scsi::cdb::Cdb;
use lunar_wire::scsi::{Sense, Status, op};
use lunar_wire::srp::PortId;
use orphans::Proof;
pub(crate) use pins::Held;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// What happened to a session without being asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A logical unit tells of a change: the eight bytes of its LUN, and the unit attention.
    Attention {
        /// The eight bytes of the LUN.
        lun: u64,
        /// The unit attention.
        sense: Sense,
    },
    /// The connection is gone, for this reason; it is being made anew.
    Lost(String),
    /// There is a connection again.
    Connected,
    /// Behind a LUN is another logical unit than the one that was opened: it takes no commands until it is seen
    /// to be back.
    Changed {
        /// The eight bytes of the LUN.
        lun: u64,
        /// What its designators are now (VPD page 83h).
        identity: Vec<u8>,
    },
    /// A logical unit that was missing is there, and what it was.
    Seen {
        /// The eight bytes of the LUN.
        lun: u64,
    },
    /// The time for recovery is over: commands fail until there is a connection again.
    GaveUp(String),
}

/// What a session is, for people and programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Where it leads.
    pub portal: Portal,
    /// The name of the target.
    pub target: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Portal group of the target.
    pub portal_group_tag: Option<u16>,
    /// The target port of its nexus, where that can be known.
    pub port: Option<TargetPort>,
    /// Our part of the session's identifier.
    pub isid: [u8; 6],
    /// The target's part.
    pub tsih: u16,
    /// The CHAP user that the target has of us; empty where it did not ask for a proof.
    pub user: String,
    /// What carries it, and what carries that: `tcp`, `iser/iwarp`, `srp/verbs:rxe0`.
    pub carrier: String,
    /// What was negotiated.
    pub parameters: Parameters,
    /// It has a connection.
    pub connected: bool,
    /// Times that it was made anew.
    pub recoveries: u32,
    /// Commands that it has left behind at its end: the target may still carry them out.
    pub left_behind: usize,
}

impl Facts {
    /// The port of the target in its nexus, by a name that no other port has; None where that cannot be known. It has no spaces.
    pub fn target_port(&self) -> Option<String> {
        port_name(self.port, &self.target)
    }
}

fn port_name(port: Option<TargetPort>, target: &str) -> Option<String> {
    Some(format!("{},{}", port?, target.replace(char::is_whitespace, "_")))
}

/// What all handles of a session share.
struct Shared {
    id: u64,
    place: usize,
    mail: flume::Sender<Mail>,
    facts: Arc<Mutex<Facts>>,
    listeners: Arc<Listeners>,
    losses: Losses,
    options: Options,
    /// Commands that came from other cores.
    sent_here: AtomicU64,
}

/// Those who want to hear of events.
#[derive(Default)]
struct Listeners {
    events: Mutex<Vec<flume::Sender<Event>>>,
}

/// Events that wait for one listener; what is more is dropped.
const EVENTS: usize = 256;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Listeners {
    fn tell(&self, event: &Event) {
        let heard = |l: &flume::Sender<Event>| {
            !matches!(l.try_send(event.clone()), Err(flume::TrySendError::Disconnected(_)))
        };
        lock(&self.events).retain(heard);
    }
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
        let isid = options.isid.unwrap_or_else(connect::new_isid);
        let goal = Goal { portal, target: Some(target.to_owned()), isid, beside: false };
        let connected = connect::patiently(&goal, &options).await?;
        Session::begin(goal, options, connected).await
    }

    /// The same over RDMA, on a connection that somebody else makes: of our private data and terms. For tests and
    /// measurements, as it is not made anew.
    ///
    /// # Errors
    /// What is wrong with the connection or the login; [`Kind::Invalid`] when the options are those of TCP.
    pub async fn open_on(target: &str, options: Options, make: impl Make) -> Result<Session, Error> {
        let isid = options.isid.unwrap_or_else(connect::new_isid);
        let portal = Portal { host: "in memory".into(), port: 0 };
        let goal = Goal { portal, target: Some(target.to_owned()), isid, beside: false };
        let connected = made::made(&goal, &options, make).await?;
        Session::begin(goal, options, connected).await
    }

    async fn begin(goal: Goal, options: Options, connected: connect::Connected) -> Result<Session, Error> {
        let facts = facts(&connected, &goal, &options);
        if let Some(hooks) = &options.hooks {
            hooks.logged_in(SessionLogin::first(&facts)).await?;
        }
        let facts = Arc::new(Mutex::new(facts));
        let listeners = Arc::new(Listeners::default());
        let (mail, inbox) = flume::unbounded();
        let home = Home::new(goal, options.clone(), facts.clone(), listeners.clone());
        let (id, place) = home::settle(home.clone());
        drive::start(home, connected, inbox);
        let (losses, sent_here) = (Losses::default(), AtomicU64::new(0));
        Ok(Session(Arc::new(Shared { id, place, mail, facts, listeners, losses, options, sent_here })))
    }

    /// Sends a command. The answer is that of the logical unit, whatever its status; an error means that
    /// there is none. The buffer comes back in both cases. [`Pending::id`] names the command for [`Session::abort`].
    #[inline]
    pub fn submit(&self, command: Command) -> Pending {
        home::submit(&self.0, command)
    }

    /// For many commands of one owner, whose ends are taken one after the other: without a future for each. None on
    /// another core than that of the session.
    pub fn batch(&self) -> Option<Batch> {
        home::here(&self.0).map(Batch::new)
    }

    /// Sends a CDB as a host does: again where the logical unit was busy, becoming ready, or had something to
    /// tell first. The logical unit need not be a disk.
    ///
    /// # Errors
    /// What the logical unit answers, or that there was no answer; with the buffer.
    pub async fn perform(&self, lun: u64, cdb: Cdb, data: Direction) -> Finished {
        let _wait = self.waits_for(cdb[0]);
        lun::perform_within(Patience::of(self), self, lun, cdb, data).await
    }

    /// The same of any command, for who wants to see the answer that stays: it is no error, whatever its status.
    ///
    /// # Errors
    /// That there was no answer; with the buffer.
    pub async fn ask(&self, command: Command) -> Finished {
        let _wait = self.waits_for(command.cdb[0]);
        let (result, buf) = lun::settle(Patience::of(self), self, command).await;
        (result.map(|(completion, _)| completion), buf)
    }

    fn waits_for(&self, opcode: u8) -> Wait {
        let (target, portal) = {
            let facts = lock(&self.0.facts);
            (facts.target.clone(), facts.portal.clone())
        };
        let command = op::name(opcode).map_or_else(|| format!("command {opcode:02x}h"), str::to_owned);
        waits::on(format!("the answer of {target} at {portal} to {command}"))
    }

    /// Asks for a task management function on a logical unit (ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT
    /// RESET) or on the target (TARGET WARM RESET, TARGET COLD RESET). The answer is the response code of
    /// RFC 7143 section 11.6.1.
    ///
    /// # Errors
    /// When the connection is lost meanwhile, or the target does not answer in time.
    pub async fn manage(&self, function: Function, lun: u64) -> Result<u8, Error> {
        let (reply, answer) = flume::bounded(1);
        self.mail(Mail::Manage(function, lun, reply))?;
        answer.recv_async().await.map_err(|_| closed())?
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
        let (reply, answer) = flume::bounded(1);
        self.mail(Mail::Abort(command, reply))?;
        answer.recv_async().await.map_err(|_| closed())?
    }

    /// Asks in key text and waits for the answer, as long as a login may take; others that ask at the same time wait
    /// for each other. A key that the target does not know is answered by NotUnderstood, which is no error.
    ///
    /// # Errors
    /// [`Kind::Refused`] when the target rejects the request. [`Kind::Lost`] or [`Kind::TimedOut`] when there is no
    /// answer, [`Kind::Protocol`] for one that breaks the rules. [`Kind::Invalid`] for what is no key text, or is settled
    /// by the login.
    pub async fn text(&self, asked: &[(&str, &str)]) -> Result<Vec<(String, String)>, Error> {
        let (reply, answer) = flume::bounded(1);
        self.mail(Mail::Text(text::question(asked)?, reply))?;
        text::answer(&answer.recv_async().await.map_err(|_| closed())??)
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
    pub fn facts(&self) -> Facts {
        lock(&self.0.facts).clone()
    }

    /// Commands that the target takes at once (MaxCmdSN - ExpCmdSN + 1); None on another core than that of
    /// the session.
    pub fn window(&self) -> Option<u32> {
        home::window(&self.0)
    }

    /// About now: the kernel is not asked on the session's own core.
    #[inline]
    pub(crate) fn about_now(&self) -> Instant {
        home::about_now(&self.0).unwrap_or_else(Instant::now)
    }

    /// The initiator's end of its nexus, and the target.
    fn initiator_port(&self) -> (String, [u8; 6], String, Option<PortId>) {
        let (Facts { isid, target, .. }, options) = (self.facts(), self.options());
        let srp = (options.transport == Transport::Srp).then(|| options.srp_port(isid));
        (options.initiator.to_ascii_lowercase(), isid, target, srp)
    }

    /// How it was opened.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Events from now on; at most 256 wait.
    pub fn events(&self) -> flume::Receiver<Event> {
        let (sender, events) = flume::bounded(EVENTS);
        let mut listeners = lock(&self.0.listeners.events);
        // Where nothing happens nobody is told, and who has gone is not noticed by that.
        listeners.retain(|listener| !listener.is_disconnected());
        listeners.push(sender);
        drop(listeners);
        events
    }

    /// What came as the status of a command and is not about it: listeners are told of a unit attention, a deferred
    /// error is kept for [`Session::take_loss`].
    pub(crate) fn attention(&self, lun: u64, sense: Sense) {
        match sense.deferred {
            true => self.0.losses.note(lun, sense),
            false => self.0.listeners.tell(&Event::Attention { lun, sense }),
        }
    }

    /// The deferred error that a logical unit has told since this was asked last: what was acknowledged is lost.
    pub(crate) fn take_loss(&self, lun: u64) -> Option<Error> {
        let sense = self.0.losses.take(lun)?;
        let error = Error::new(Kind::Scsi, format!("data that were acknowledged are lost: {sense}"));
        // To who asks now it is an error of what was asked: what is deferred is tried again by hosts.
        let sense = Sense { deferred: false, ..sense };
        Some(error.with_status(Status::CheckCondition as u8).with_sense(Some(sense)))
    }

    /// From now on this logical unit has to be the same after every recovery: `identity` is what VPD page 83h
    /// tells. Its commands fail when it is not. What it had to be before counts no more.
    pub fn pin(&self, lun: u64, identity: Vec<u8>) {
        // The session is over: nothing will be sent any more.
        let _ = self.mail(Mail::Pin(lun, identity));
    }

    /// The same for as long as somebody uses it as storage and keeps what comes back.
    pub(crate) async fn hold(&self, lun: u64, identity: Vec<u8>) -> Result<Held, Error> {
        let (reply, answer) = flume::bounded(1);
        self.mail(Mail::Hold(Held::new(self, lun), identity, reply))?;
        answer.recv_async().await.map_err(|_| closed())?
    }

    fn let_go(&self, lun: u64) {
        // The session is over: nothing will be sent any more.
        let _ = self.mail(Mail::LetGo(lun));
    }

    /// A logical unit was seen to be another one: it takes no commands until a new connection finds it back.
    pub(crate) fn expel(&self, lun: u64, identity: Vec<u8>) -> Error {
        // The session is over: nothing will be sent any more.
        let _ = self.mail(Mail::Changed(lun, identity));
        checks::changed()
    }

    /// Looks whether a logical unit that was another one is back, and lets its commands through if it is.
    pub(crate) async fn look_again(&self, lun: u64) {
        let (reply, answer) = flume::bounded(1);
        if self.mail(Mail::LookAgain(lun, reply)).is_ok() {
            // The session is over: there is nothing to be seen.
            let _ = answer.recv_async().await;
        }
    }

    /// How long the oldest command has waited that changes this logical unit (any, with None), and that the target may still
    /// carry out though its connection is lost.
    pub async fn oldest_orphan(&self, lun: Option<u64>) -> Option<Duration> {
        let (reply, answer) = flume::bounded(1);
        self.mail(Mail::Orphans(lun, reply)).ok()?;
        answer.recv_async().await.ok()?
    }

    /// The logical unit was reset through another session, by a function that was sent at this time: the target carries out
    /// nothing any more that it had of a connection that was lost before.
    pub async fn was_reset(&self, lun: u64, at: Instant) {
        let (reply, answer) = flume::bounded(1);
        if self.mail(Mail::Prove(Proof::Reset(Some(lun), at), reply)).is_ok() {
            // The session is over: nothing waits any more.
            let _ = answer.recv_async().await;
        }
    }

    /// Another session, with the same name and ISID, has logged in: that has ended what the target had of this one at the
    /// same target port (RFC 7143 section 6.3.5).
    pub async fn was_reinstated(&self, by: &Session) {
        let Some(port) = by.facts().port.filter(|_| by.initiator_port() == self.initiator_port()) else {
            return;
        };
        let (reply, answer) = flume::bounded(1);
        if self.mail(Mail::Prove(Proof::Login(port), reply)).is_ok() {
            // The session is over: nothing waits any more.
            let _ = answer.recv_async().await;
        }
    }

    /// Resets the connection if the target still has commands whose owners were told that their time is over: one
    /// of them may be done elsewhere by now, and must not be carried out once more after that.
    pub async fn give_up_strays(&self) {
        let (reply, answer) = flume::bounded(1);
        if self.mail(Mail::GiveUpStrays(reply)).is_ok() {
            // The session is over: it has no connection any more.
            let _ = answer.recv_async().await;
        }
    }

    /// Makes no other connection. A session that has one ends with it; one that has lost it ends now, and what waits fails.
    pub fn give_up(&self) {
        // The session is over: nothing waits.
        _ = self.mail(Mail::GiveUp);
    }

    /// Logs out, after the commands in flight have ended; whatever is sent later fails.
    ///
    /// # Errors
    /// When the target does not answer in time; the session is over all the same. [`Kind::Lost`] when the target may still
    /// carry out writes.
    pub async fn close(&self) -> Result<(), Error> {
        let (reply, answer) = flume::bounded(1);
        self.mail(Mail::Close(reply))?;
        answer.recv_async().await.map_err(|_| closed())?
    }

    fn mail(&self, mail: Mail) -> Result<(), Error> {
        self.0.mail.send(mail).map_err(|_| closed())
    }
}

fn closed() -> Error {
    Error::new(Kind::Closed, "the session is closed")
}

fn facts(c: &connect::Connected, goal: &Goal, options: &Options) -> Facts {
    Facts {
        portal: c.portal.clone(),
        target: goal.target.clone().unwrap_or_default(),
        alias: c.login.target_alias.clone(),
        portal_group_tag: c.login.portal_group_tag,
        port: c.target_port(goal),
        isid: goal.isid,
        tsih: c.login.tsih,
        user: user(&c.login, options),
        carrier: c.wire.carrier(),
        parameters: c.login.parameters.clone(),
        connected: true,
        recoveries: 0,
        left_behind: 0,
    }
}

/// A target that asks for no proof knows no user.
fn user(login: &LoggedIn, options: &Options) -> String {
    let credentials = options.credentials.as_ref().filter(|_| login.chap.is_some());
    credentials.map(|credentials| credentials.name.clone()).unwrap_or_default()
}
