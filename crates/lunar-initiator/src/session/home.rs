//! Where a session lives, and how commands get there: at once on its own core, by mail from others.

use super::carrier::Line;
use super::machine::Machine;
use super::orphans::Proof;
use super::pins::{Held, Pinned};
use super::task::Waiter;
use super::violations::Violations;
use super::{Facts, Listeners, Shared, closed};
use crate::connect::Goal;
use crate::{Command, Error, Finished, Kind, Options};
use event_listener::Event as Bell;
use lunar_block::range::Hold;
use lunar_runtime::SendPump;
use lunar_wire::iscsi::request::Function;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A session on its core.
pub struct Home {
    /// Its protocol.
    pub machine: RefCell<Machine>,
    /// Its connection, while there is one.
    pub stream: RefCell<Option<Rc<Line>>>,
    /// Where it leads, and under which name.
    pub goal: RefCell<Goal>,
    /// How it was opened.
    pub options: Options,
    /// What it is, for those outside.
    pub facts: Arc<Mutex<Facts>>,
    /// Who hears of events.
    pub listeners: Arc<Listeners>,
    /// Logical units that have to stay what they are, each once.
    pub pinned: RefCell<Vec<Pinned>>,
    /// Those that did not: they take no commands.
    pub changed: RefCell<Vec<u64>>,
    /// Since when there is no connection, and whether the time for recovery is over.
    pub lost: Cell<Option<Instant>>,
    pub gave_up: RefCell<Option<Error>>,
    /// Why there is no connection.
    pub last_error: RefCell<Option<Error>>,
    /// Violations of the protocol that the target repeats.
    pub violations: RefCell<Violations>,
    /// The connection was lost over a question in key text: who asked hears of it, and nobody else need.
    pub asked: Cell<bool>,
    /// It is to end.
    pub closing: Cell<bool>,
    /// It is to end now: it waits for no orphan any more.
    pub leaves_now: Cell<bool>,
    /// So many orphans it has left behind.
    pub left_behind: Cell<usize>,
    /// When logical units were reset last for orphans of another portal group.
    pub reset: Cell<Option<Instant>>,
    /// People know that orphans wait.
    pub said_waits: Cell<bool>,
    /// No other connection is made.
    pub gives_up: Cell<bool>,
    /// It has ended.
    pub over: Cell<bool>,
    /// The logout on this connection was answered.
    pub parted: Cell<bool>,
    /// A logout that the target asked for is under way.
    pub leaving: Cell<bool>,
    /// Rings when a command ends, the connection changes, or the session is to end.
    pub bell: Bell,
    /// Sends what waits.
    pub pump: SendPump,
    /// A recovery of a command is under way.
    pub escalating: Cell<bool>,
}

/// What is sent to a session from outside.
pub enum Mail {
    Command(Command, flume::Sender<Finished>, u64),
    Abort(CommandId, flume::Sender<Result<(), Error>>),
    Text(Vec<u8>, flume::Sender<Result<Vec<u8>, Error>>),
    Manage(Function, u64, flume::Sender<Result<u8, Error>>),
    Pin(u64, Vec<u8>),
    Hold(Held, Vec<u8>, flume::Sender<Result<Held, Error>>),
    LetGo(u64),
    Changed(u64, Vec<u8>),
    LookAgain(u64, flume::Sender<()>),
    Orphans(Option<u64>, flume::Sender<Option<Duration>>),
    Prove(Proof, flume::Sender<()>),
    GiveUpStrays(flume::Sender<()>),
    GiveUp,
    Close(flume::Sender<Result<(), Error>>),
}

type Places = Vec<Option<(u64, Rc<Home>)>>;

thread_local! {
    static HERE: RefCell<Places> = const { RefCell::new(Vec::new()) };
}
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Home {
    /// A session that has no connection yet.
    pub fn new(
        goal: Goal,
        options: Options,
        facts: Arc<Mutex<Facts>>,
        listeners: Arc<Listeners>,
    ) -> Rc<Home> {
        let mut machine = Machine::new(options.commands, Instant::now);
        machine.late_writes = options.late_writes;
        Rc::new(Home {
            machine: RefCell::new(machine),
            stream: RefCell::default(),
            goal: RefCell::new(goal),
            options,
            facts,
            listeners,
            pinned: RefCell::default(),
            changed: RefCell::default(),
            lost: Cell::new(None),
            gave_up: RefCell::default(),
            last_error: RefCell::default(),
            violations: RefCell::default(),
            asked: Cell::new(false),
            closing: Cell::new(false),
            leaves_now: Cell::new(false),
            left_behind: Cell::new(0),
            reset: Cell::new(None),
            said_waits: Cell::new(false),
            gives_up: Cell::new(false),
            over: Cell::new(false),
            parted: Cell::new(false),
            leaving: Cell::new(false),
            bell: Bell::new(),
            pump: SendPump::default(),
            escalating: Cell::new(false),
        })
    }

    /// Takes a command in; one that cannot be sent ends at once.
    #[inline]
    pub fn accept(self: &Rc<Self>, command: Command, waiter: Waiter) -> Result<u32, Box<Finished>> {
        let ended = |error, command: Command| Box::new((Err(error), command.data.into_buf()));
        if let Some(error) = self.obstacle(&command) {
            return Err(ended(error, command));
        }
        let taken = self.machine.borrow_mut().submit(command, waiter);
        let many = "too many commands, or too much data in one";
        let tag = taken.map_err(|command| ended(Error::new(Kind::Invalid, many), *command))?;
        self.flush_soon();
        Ok(tag)
    }

    /// The end of a command that was taken in here.
    pub fn pending(self: &Rc<Self>, tag: u32) -> Pending {
        Pending(Way::Here(self.clone(), tag))
    }

    /// The name of its target, for logs.
    pub fn name(&self) -> String {
        self.goal.borrow().target.clone().unwrap_or_default()
    }

    #[inline]
    fn obstacle(&self, command: &Command) -> Option<Error> {
        if self.closing.get() {
            return Some(closed());
        }
        if self.lost.get().is_some()
            && let Some(error) = &*self.gave_up.borrow()
        {
            return Some(error.clone());
        }
        let changed = self.changed.borrow();
        if !changed.is_empty() && changed.contains(&command.lun) {
            return Some(super::checks::changed());
        }
        self.machine.borrow().unseen.obstacle(command.lun)
    }
}

/// Gives a session its place on this core.
pub fn settle(home: Rc<Home>) -> (u64, usize) {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    HERE.with_borrow_mut(|here| {
        let free = here.iter().position(Option::is_none);
        let place = free.unwrap_or(here.len());
        match free {
            Some(_) => here[place] = Some((id, home)),
            None => here.push(Some((id, home))),
        }
        (id, place)
    })
}

/// Takes its place back.
pub fn leave(home: &Rc<Home>) {
    HERE.with_borrow_mut(|here| {
        let mine = |h: &Option<(u64, Rc<Home>)>| h.as_ref().is_some_and(|(_, h)| Rc::ptr_eq(h, home));
        if let Some(place) = here.iter_mut().find(|h| mine(h)) {
            *place = None;
        }
    });
}

/// Asks a session that is on this core.
#[inline]
fn ask_here<T>(shared: &Shared, question: impl FnOnce(&Rc<Home>) -> T) -> Option<T> {
    HERE.with_borrow(|here| match here.get(shared.place) {
        Some(Some((id, home))) if *id == shared.id => Some(question(home)),
        _ => None,
    })
}

#[inline]
pub(super) fn here(shared: &Shared) -> Option<Rc<Home>> {
    ask_here(shared, Rc::clone)
}

/// See [`super::Session::window`].
pub(super) fn window(shared: &Shared) -> Option<u32> {
    ask_here(shared, |home| home.machine.borrow().numbers.window())
}

/// About now, as its machine has it; None on another core.
#[inline]
pub(super) fn about_now(shared: &Shared) -> Option<Instant> {
    ask_here(shared, |home| home.machine.borrow().now)
}

/// A command on its way. Dropping it gives the answer up, not the command.
pub struct Pending(Way);

/// Names a command of a session: [`super::Session::abort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommandId(pub(super) Name);

/// How a session finds a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Name {
    /// By its tag: it came from the core of the session.
    Tag(u32),
    /// By its number among those that came from other cores.
    Number(u64),
    /// Not at all: it is over.
    Over,
}

impl Pending {
    /// What names the command for as long as it is not over.
    pub fn id(&self) -> CommandId {
        CommandId(match &self.0 {
            Way::Here(_, tag) => Name::Tag(*tag),
            Way::There(_, number, _) => Name::Number(*number),
            Way::Refused(_) | Way::Over => Name::Over,
        })
    }
}

enum Way {
    Here(Rc<Home>, u32),
    /// On another core. Of a write also what it holds: its owner bars that at once when it gives the answer up.
    There(flume::r#async::RecvFut<'static, Finished>, u64, Option<Hold>),
    Refused(Box<Finished>),
    Over,
}

/// Hands a command to its session.
#[inline]
pub(super) fn submit(shared: &Shared, command: Command) -> Pending {
    if let Some(home) = here(shared) {
        return Pending(match home.accept(command, Waiter::Unknown) {
            Ok(tag) => Way::Here(home, tag),
            Err(finished) => Way::Refused(finished),
        });
    }
    let (reply, answer) = flume::bounded(1);
    let number = shared.sent_here.fetch_add(1, Ordering::Relaxed);
    let hold = command.hold.as_ref().map(Hold::again);
    match shared.mail.send(Mail::Command(command, reply, number)) {
        Ok(()) => Pending(Way::There(answer.into_recv_async(), number, hold)),
        Err(flume::SendError(Mail::Command(command, ..))) => {
            Pending(Way::Refused(Box::new((Err(closed()), command.data.into_buf()))))
        }
        Err(_) => Pending(Way::Over),
    }
}

impl Future for Pending {
    type Output = Finished;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        let me = &mut self.get_mut().0;
        let finished = match me {
            Way::Here(home, tag) => match home.machine.borrow_mut().poll(*tag, cx.waker()) {
                Some(finished) => finished,
                None => return Poll::Pending,
            },
            Way::There(answer, ..) => match Pin::new(answer).poll(cx) {
                Poll::Ready(got) => got.unwrap_or_else(|_| (Err(closed()), None)),
                Poll::Pending => return Poll::Pending,
            },
            Way::Refused(_) | Way::Over => match std::mem::replace(me, Way::Over) {
                Way::Refused(finished) => *finished,
                _ => (Err(closed()), None),
            },
        };
        *me = Way::Over;
        Poll::Ready(finished)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        match &self.0 {
            Way::Here(home, tag) => home.machine.borrow_mut().tasks.abandon(*tag),
            // Its core learns of it later: newer writes of the same bytes must not pass it meanwhile.
            Way::There(_, _, Some(hold)) => hold.bar(),
            Way::There(..) | Way::Refused(_) | Way::Over => {}
        }
    }
}
