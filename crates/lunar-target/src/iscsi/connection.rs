//! A connection in full feature phase: what it holds, its loops, and its end.

use super::carrier::{Carrier, Incoming, Line, Out};
use super::dispatch::{self, Held};
use super::letters;
use super::luns::Luns;
use super::out::{Digests, Payload};
use super::receive::{Broken, Received};
use super::services::{self, Pings};
use super::task::{Aborted, Command, Task};
use crate::access::Door;
use crate::fence::{self, Fence};
use crate::registry::{Done, LOGGED_IN_AGAIN, Letter, Seat, Which};
use crate::server::{Counted, Shared};
use crate::session::Info;
use crate::share::Origin;
use event_listener::Event;
use lunar_proto::login::SessionType;
use lunar_proto::parameters::{Parameters, TaskReporting};
use lunar_proto::text::Exchange;
use lunar_proto::window::CmdWindow;
use lunar_runtime::{Pool, SendPump, SendSide};
use lunar_scsi::Port;
use lunar_wire::iscsi::Bhs;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

/// While this much waits to be sent, nothing is received.
const MAX_WAITING: usize = 16 << 20;

/// The same of data that is in no buffer of the pool.
const MAX_OWN: usize = 1 << 20;

/// A connection that has just logged in.
pub struct Begun {
    /// What all connections share.
    pub shared: Arc<Shared>,
    /// The connection.
    pub carrier: Carrier,
    /// Our address.
    pub local: SocketAddr,
    /// Its view of the configuration.
    pub door: Door,
    /// What was found out.
    pub info: Arc<Info>,
    /// Its place among the sessions.
    pub seat: Seat,
    /// Its messages.
    pub letters: flume::Receiver<Letter>,
    /// Its place in the counts.
    pub count: Counted,
    /// Commands that may be in flight.
    pub depth: u32,
    /// The first ExpCmdSN.
    pub cmd_sn: u32,
    /// The next StatSN.
    pub stat_sn: u32,
}

/// How far its life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// All commands are taken.
    Running,
    /// The initiator was asked to log out: no new commands.
    Leaving,
    /// Nothing more is taken.
    Over,
}

/// The state of a session: one connection carries it.
pub struct Session {
    /// What all connections share.
    pub shared: Arc<Shared>,
    /// The connection.
    pub conn: Weak<Connection>,
    /// Its share of the buffers.
    pub pool: Pool,
    /// What is shown from outside.
    pub info: Arc<Info>,
    /// Its handle.
    pub tsih: u16,
    /// What was negotiated.
    pub parameters: Parameters,
    /// The digests in use.
    pub digests: Digests,
    /// CmdSN.
    pub window: CmdWindow,
    /// StatSN of the next response.
    pub stat_sn: u32,
    /// What waits to be sent.
    pub out: Out,
    /// Commands that did not end on the spot, by Initiator Task Tag.
    pub tasks: HashMap<u32, Task>,
    /// Immediate commands that have not ended.
    pub immediate_live: u32,
    /// Requests that came before their turn, by CmdSN.
    pub held: BTreeMap<u32, Held>,
    /// Tags of task management functions that are not answered yet.
    pub managing: Vec<u32>,
    /// Its LUNs.
    pub luns: Luns,
    /// Text requests.
    pub text: Exchange,
    /// Its view of the configuration.
    pub door: Door,
    /// Our address.
    pub local: SocketAddr,
    /// Keepalive.
    pub pings: Pings,
    /// How far its life has come.
    pub life: Life,
    /// Why it ends, if it is not that the initiator closed the connection.
    pub end: Option<&'static str>,
    /// Those who wait for its end.
    pub farewells: Vec<Done>,
    /// The answer to a logout: it goes when no task is left.
    pub last_word: Option<Bhs>,
    /// Of the latest task.
    pub serial: u64,
    /// Serials of tasks that have ended here and may still be carried out elsewhere; the oldest are forgotten.
    pub indeterminate: VecDeque<u64>,
    /// Upper bits of the latest Target Transfer Tag.
    pub ttt_base: u32,
    /// What arrives now had arrived before a function of another session: no command ends on the spot, and these do not begin.
    pub recalling: Option<Which>,
    /// R2Ts that were sent.
    pub r2ts: u64,
    /// It is looked whether data that were announced come.
    pub expecting: bool,
}

/// A connection. Lives on one core.
pub struct Connection {
    /// How its PDUs travel.
    pub line: Line,
    /// Its session.
    pub session: RefCell<Session>,
    /// Its receiving side.
    pub incoming: RefCell<Incoming>,
    /// A closed connection ends with a Logout; None: not looked at yet.
    pub logs_out: Cell<Option<bool>>,
    /// What is under way.
    pub fence: Arc<Fence>,
    /// Buffers.
    pub pool: Pool,
    /// A task has ended or is aborted, the CmdSN window has moved, or life is over.
    pub task_ended: Event,
    /// Sends what waits.
    pump: SendPump,
}

/// Serves a connection from the end of its login to its own end.
pub async fn run(begun: Begun) {
    let Begun { shared, carrier, local, door, info, seat, letters, count, depth, cmd_sn, stat_sn } = begun;
    let p = &info.parameters;
    let digests = Digests { header: p.header_digest, data: p.data_digest };
    let tsih = seat.tsih;
    let Carrier { line, out, incoming } = carrier;
    let seated = Seated { tsih, depth, cmd_sn, stat_sn, digests, local, line, out, incoming };
    let logged = shared.clone();
    let conn = Connection::new(shared, door, info.clone(), seated);
    lunar_runtime::spawn(letters::serve(Rc::downgrade(&conn), letters));
    lunar_runtime::spawn(services::keep_alive(Rc::downgrade(&conn)));
    let received = conn.receive().await;
    goodbye(&logged, &info, tsih, conn.session.borrow().end, received);
    conn.finish().await;
    let farewells = std::mem::take(&mut conn.session.borrow_mut().farewells);
    // In this order: who waits for the end finds the session's place free and its nexuses gone.
    drop(conn);
    drop((seat, count));
    drop(farewells);
}

/// Tells of the end as `login::welcome` tells of the beginning.
fn goodbye(shared: &Shared, info: &Info, tsih: u16, end: Option<&'static str>, received: Result<(), Broken>) {
    let reason = match (end, received) {
        (Some(end), _) => end.to_owned(),
        (None, Err(broken)) => broken.to_string(),
        (None, Ok(())) => "the initiator closed the connection".to_owned(),
    };
    let Info { initiator, address, .. } = info;
    let Some(target) = &info.target else {
        return tracing::debug!(%initiator, %address, tsih, reason, "discovery ended");
    };
    if let Some(left_out) = shared.ended.may_of(address.ip(), Instant::now()) {
        tracing::info!(%initiator, %address, %target, tsih, reason, left_out, "session ended");
    }
}

/// What a login left to a session.
struct Seated {
    tsih: u16,
    depth: u32,
    cmd_sn: u32,
    stat_sn: u32,
    digests: Digests,
    local: SocketAddr,
    line: Line,
    out: Out,
    incoming: Incoming,
}

fn port_of(shared: &Shared, info: &Info, door: &Door) -> Arc<Port> {
    let target = info.target.as_ref().and_then(|t| door.setup.targets.get(t));
    let groups = target.map(|t| t.portal_groups.iter()).unwrap_or_default();
    Arc::new(Port {
        initiator: info.initiator.clone(),
        isid: info.isid,
        user: info.user.clone().unwrap_or_default(),
        target: info.target.clone().unwrap_or_default(),
        tag: info.tag,
        ports: groups.flat_map(|tag| shared.target_ports(*tag)).collect(),
    })
}

/// The owner of the memory of a session: its address, and its CHAP user. Everybody chooses the name of an initiator.
fn owner_of(info: &Info) -> String {
    let (user, origin) = (info.user.as_deref().unwrap_or_default(), Origin::from(info.address.ip()));
    format!("{origin} {user}")
}

fn luns_of(shared: &Shared, info: &Info, door: &Door) -> Luns {
    let target = info.target.as_ref().and_then(|t| door.setup.targets.get(t));
    let map =
        target.filter(|_| !info.discovery).map(|t| door.lun_map(t, &info.initiator)).unwrap_or_default();
    Luns::new(Arc::new(map), port_of(shared, info, door), info.nexuses.clone())
}

impl Connection {
    fn new(shared: Arc<Shared>, door: Door, info: Arc<Info>, seated: Seated) -> Rc<Connection> {
        let session_type = if info.discovery { SessionType::Discovery } else { SessionType::Normal };
        let limits = door.setup.limits.clone();
        let pool = shared.pool.share_of(&owner_of(&info));
        Rc::new_cyclic(|me| Connection {
            line: seated.line,
            fence: info.fence.clone(),
            incoming: RefCell::new(seated.incoming),
            logs_out: Cell::default(),
            pool: pool.clone(),
            task_ended: Event::new(),
            pump: SendPump::default(),
            session: RefCell::new(Session {
                conn: me.clone(),
                pool,
                tsih: seated.tsih,
                parameters: info.parameters.clone(),
                digests: seated.digests,
                window: CmdWindow::new(seated.cmd_sn, seated.depth),
                stat_sn: seated.stat_sn,
                out: seated.out,
                tasks: HashMap::new(),
                immediate_live: 0,
                held: BTreeMap::new(),
                managing: Vec::new(),
                luns: luns_of(&shared, &info, &door),
                text: Exchange::new(session_type, limits.text_bytes),
                local: seated.local,
                pings: Pings::default(),
                life: Life::Running,
                end: None,
                farewells: Vec::new(),
                last_word: None,
                serial: 0,
                indeterminate: VecDeque::new(),
                ttt_base: 0,
                r2ts: 0,
                expecting: false,
                recalling: None,
                shared,
                info,
                door,
            }),
        })
    }

    /// Receives until the connection ends.
    async fn receive(self: &Rc<Self>) -> Result<(), Broken> {
        let mut next = Received::More;
        let has_begun = self.incoming.borrow().has_begun();
        if has_begun {
            next = self.take(Incoming::resume)?;
        }
        loop {
            if next == Received::End {
                return Ok(());
            }
            self.flush();
            self.wait_for_room().await;
            next = if next == Received::Full {
                self.take(Incoming::resume)?
            } else {
                self.line.readable().await?;
                lunar_block::next_turn();
                self.take(|incoming, session| incoming.receive(&self.line, session))?
            };
        }
    }

    /// Takes what has come, unless another core has ended the session meanwhile.
    #[inline]
    fn take(
        &self,
        what: impl FnOnce(&mut Incoming, &mut Session) -> Result<Received, Broken>,
    ) -> Result<Received, Broken> {
        let Some(_under_way) = fence::enter(&*self.fence) else {
            self.session.borrow_mut().is_over(LOGGED_IN_AGAIN);
            return Ok(Received::End);
        };
        what(&mut self.incoming.borrow_mut(), &mut self.session.borrow_mut())
    }

    async fn wait_for_room(&self) {
        let is_full = || {
            let session = self.session.borrow();
            self.pump.is_blocked() && session.is_full() && session.life != Life::Over
        };
        while is_full() {
            let drained = self.pump.drained().listen();
            if is_full() {
                drained.await;
            }
        }
    }

    /// See [`SendPump::flush`].
    pub fn flush(self: &Rc<Self>) {
        SendPump::flush(self);
    }

    /// See [`SendPump::flush_soon`].
    pub fn flush_soon(self: &Rc<Self>) {
        SendPump::flush_soon(self);
    }

    /// See [`SendPump::flushed`].
    pub async fn flushed(self: &Rc<Self>) {
        SendPump::flushed(self).await;
    }

    /// Ends all tasks and waits for those that run, ends every nexus, sends what is left, closes.
    async fn finish(self: &Rc<Self>) {
        let all = {
            let mut session = self.session.borrow_mut();
            session.life = Life::Over;
            session.held.clear();
            session.abort(|_| true, Aborted::Silently, false)
        };
        self.wait_for(&all).await;
        let end = {
            let mut session = self.session.borrow_mut();
            // First: who hears of the end takes what was reserved for free.
            session.luns.close();
            session.say_last_word();
            session.end
        };
        self.line.farewell(end);
        let farewell = async {
            self.line.settled(&self.session).await;
            self.flushed().await;
        };
        let _ = compio::time::timeout(services::FAREWELL, farewell).await;
        self.line.close();
    }

    /// Waits until none of these tasks is left.
    pub async fn wait_for(&self, serials: &[u64]) {
        self.wait_until(|s| !s.tasks.values().any(|t| serials.contains(&t.serial))).await;
    }

    /// Waits until the session is as wanted; looks again whenever a task has ended or CmdSN has moved.
    pub async fn wait_until(&self, wanted: impl Fn(&Session) -> bool) {
        loop {
            let changed = self.task_ended.listen();
            if wanted(&self.session.borrow()) {
                return;
            }
            changed.await;
        }
    }

    /// Ends the connection from our side: the receiving loop finds the socket closed.
    pub fn close(&self) {
        self.pump.wake();
        self.line.stop_receiving();
    }
}

impl SendSide for Connection {
    fn pump(&self) -> &SendPump {
        &self.pump
    }

    fn try_flush(&self) -> io::Result<bool> {
        self.line.flush(&mut self.session.borrow_mut())
    }

    async fn writable(&self) -> io::Result<()> {
        self.line.writable().await
    }

    /// What waits is dropped: it must not keep the receiving loop from its end.
    fn lost(&self, _: io::Error) {
        let mut session = self.session.borrow_mut();
        session.out.give_up();
        session.is_over("the connection was lost");
        drop(session);
        self.task_ended.notify(usize::MAX);
        self.line.close();
    }

    /// A data mover also begins to read, which does not wait for what goes out.
    fn flushes_while_blocked(&self) -> bool {
        self.line.reads_by_itself()
    }
}

impl Session {
    /// Takes nothing more; the first reason is the one that counts.
    pub fn is_over(&mut self, why: &'static str) {
        self.life = Life::Over;
        self.end.get_or_insert(why);
    }

    /// Wakes those who wait for tasks.
    pub fn task_ended(&self) {
        if let Some(conn) = self.conn.upgrade() {
            conn.task_ended.notify(usize::MAX);
        }
    }

    fn say_last_word(&mut self) {
        if let Some(header) = self.last_word.take() {
            self.reply(header, Payload::Empty);
        }
    }

    /// Commands that may be known at a time, those outside the CmdSN order included.
    pub fn most_tasks(&self) -> usize {
        self.window.depth() as usize + dispatch::IMMEDIATE as usize
    }

    /// There is a task of this tag, or a request that waits for its turn to become one.
    pub fn is_known(&self, itt: u32) -> bool {
        self.tasks.contains_key(&itt) || self.held.values().any(|held| held.itt() == itt)
    }

    /// So much waits to be sent that no more is taken.
    pub fn is_full(&self) -> bool {
        self.recalling.is_none() && (self.out.waiting() > MAX_WAITING || self.out.own() > MAX_OWN)
    }

    /// Marks tasks as aborted and gives the serials of all that were chosen, marked before or not: each has
    /// to be waited for. With `wait` those that wait for data end when what was asked for has come (RFC
    /// 7143 section 4.2.3.3), else at once.
    pub fn abort(&mut self, which: impl Fn(&Task) -> bool, how: Aborted, wait: bool) -> Vec<u64> {
        let (mut serials, mut idle) = (Vec::new(), Vec::new());
        for task in self.tasks.values_mut().filter(|t| which(t)) {
            serials.push(task.serial);
            let how = *task.aborted.get_or_insert(how);
            if let Some(r) = &mut task.receiving {
                r.incoming.stop();
                r.is_left |= !wait;
                // One that has begun ends by itself.
                if !r.is_launched && (!wait || r.incoming.is_complete()) {
                    idle.push((task.command.itt, how));
                }
            }
        }
        idle.into_iter().for_each(|(itt, how)| self.give_up(itt, how));
        self.task_ended();
        serials
    }

    /// Aborted tasks of this session wait for the data that was asked for, unless FastAbort was negotiated.
    pub fn waits_for_data(&self) -> bool {
        self.parameters.task_reporting != TaskReporting::FastAbort
    }

    /// Whether a command with this tag is there.
    pub fn is_live(&self, c: &Command) -> bool {
        !self.tasks.is_empty() && self.tasks.contains_key(&c.itt)
    }
}
