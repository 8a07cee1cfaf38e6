//! The life of a session: its connection, the next one when it is lost, and its end.

use super::carrier::{Incoming, Line};
use super::home::Home;
use super::machine::{Machine, Online};
use super::numbers::Numbers;
use super::pins::Pinned;
use super::task::{State, Waiter};
use super::{Event, closed, drive, lock};
use crate::connect::{self, Connected};
use crate::lun;
use crate::{Command, Direction, Error, Kind};
use net::{Buf, either};
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};
use wire::scsi::cdb;

/// Pauses between tries to connect: this one first, doubled each time, up to the one of the options.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest Time2Wait that RFC 7143 section 13.15 knows, in seconds.
const LONGEST_WAIT_S: u16 = 3600;
/// A logical unit that does not answer yet is asked again after this.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Bytes of VPD page 83h that are read.
pub const IDENTITY_LEN: u16 = 1024;

/// What commands get whose logical unit is not what it was.
pub fn changed() -> Error {
    Error::new(
        Kind::Identity,
        "the logical unit is not the one that it was: its identity (VPD page 83h) changed",
    )
}

/// Runs a session from its first connection to its end.
pub async fn live(home: Rc<Home>, connected: Connected) {
    let mut next = Some(connected);
    while let Some(connected) = next {
        let receiver = home.install(connected);
        if home.closing.get() {
            // That was asked for before there was this connection to end.
            home.give_up_connection(closed());
        }
        compio::runtime::spawn(admit(home.clone())).detach();
        let why = drive::connection(&home, receiver).await;
        home.remove_connection(&why);
        next = reconnect(&home, why).await;
    }
    home.machine.borrow_mut().fail_queued(&closed(), |_| true);
    home.over.set(true);
    home.bell.notify(usize::MAX);
    drive::end(&home);
}

impl Home {
    fn install(&self, connected: Connected) -> Incoming {
        let Connected { wire, portal, login } = connected;
        let carrier = wire.carrier();
        let (line, begun) = wire.into_line();
        let numbers = Numbers {
            cmd_sn: login.cmd_sn,
            exp_cmd_sn: login.exp_cmd_sn,
            max_cmd_sn: login.max_cmd_sn,
            exp_stat_sn: login.exp_stat_sn,
        };
        let mut facts = lock(&self.facts);
        (facts.portal, facts.tsih) = (portal, login.tsih);
        (facts.alias, facts.portal_group_tag) = (login.target_alias, login.portal_group_tag);
        (facts.carrier, facts.parameters) = (carrier, login.parameters.clone());
        let mut machine = self.machine.borrow_mut();
        machine.now = Instant::now();
        machine.connect(login.parameters, numbers, line.out());
        // Should it fail, a reset is asked for again at the end.
        _ = line.reset_on_close(true);
        self.parted.set(false);
        self.leaving.set(false);
        let max = machine.parameters.max_recv_data_segment_length as usize;
        let incoming = line.incoming(machine.digests, max, begun);
        *self.stream.borrow_mut() = Some(Rc::new(line));
        incoming
    }

    /// The present connection. Held weakly: the socket of one that is lost is to be closed at once.
    pub fn line(&self) -> Option<Weak<Line>> {
        self.stream.borrow().as_ref().map(Rc::downgrade)
    }

    /// This connection is the present one.
    fn is_on(&self, line: &Weak<Line>) -> bool {
        self.stream.borrow().as_ref().is_some_and(|s| Rc::as_ptr(s) == line.as_ptr())
    }

    fn remove_connection(&self, why: &Error) {
        if let Some(stream) = self.stream.borrow_mut().take()
            && !self.parted.get()
        {
            stream.reset();
        }
        let mut machine = self.machine.borrow_mut();
        machine.now = Instant::now();
        machine.disconnect(why);
        lock(&self.facts).connected = false;
        self.lost.set(self.lost.get().or(Some(machine.now)));
        *self.last_error.borrow_mut() = Some(why.clone());
        drop(machine);
        self.end_recovery(Instant::now());
    }
}

/// Lets commands through once all logical units that are in use are seen to be what they were.
pub async fn admit(home: Rc<Home>) {
    let Some(line) = home.line() else { return };
    let is_current = || home.is_on(&line);
    loop {
        home.machine.borrow_mut().in_doubt = false;
        let pinned = home.pinned.borrow().clone();
        for Pinned { lun, identity, .. } in &pinned {
            let (lun, is_wanted) = (*lun, || is_current() && home.is_pinned(*lun, identity));
            let seen = look_at(&home, lun, identity, is_wanted).await;
            if !is_current() {
                // The next connection has a check of its own.
                return;
            }
            match seen {
                // It was let go meanwhile.
                _ if !home.is_pinned(lun, identity) => {}
                Ok(seen) => home.mark(lun, seen),
                // Nothing is sent to what is not known.
                Err(e) => return home.give_up_connection(e.during("the check of an identity")),
            }
        }
        if !is_current() {
            return;
        }
        // A unit attention that came meanwhile may tell of a change after the answer, and what was pinned meanwhile was
        // seen on another connection.
        if !home.machine.borrow().in_doubt && home.are_all_pins(&pinned) {
            break;
        }
    }
    let mut machine = home.machine.borrow_mut();
    machine.online = Online::Yes;
    machine.pump();
    drop(machine);
    let again = home.lost.take().is_some();
    *home.gave_up.borrow_mut() = None;
    {
        let mut facts = lock(&home.facts);
        facts.connected = true;
        facts.recoveries += u32::from(again);
    }
    if again {
        tracing::info!(target = %home.name(), "the session is back");
        home.listeners.tell(&Event::Connected);
    }
    home.bell.notify(usize::MAX);
    home.flush_soon();
}

/// What a logical unit is, seen anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// What it was.
    Unchanged,
    /// Another one, of this identity.
    Changed(Vec<u8>),
}

impl Home {
    /// Keeps what was seen of a logical unit: what is another one takes no commands until it is seen to be back.
    pub fn mark(&self, lun: u64, seen: Seen) {
        let was = self.changed.borrow().contains(&lun);
        match seen {
            Seen::Changed(identity) => {
                if !was {
                    tracing::error!(lun, "{}", changed());
                    self.changed.borrow_mut().push(lun);
                    self.listeners.tell(&Event::Changed { lun, identity });
                }
                self.machine.borrow_mut().fail_queued(&changed(), |t| t.lun == lun && !t.urgent);
            }
            Seen::Unchanged if was => {
                tracing::info!(lun, "the logical unit is again the one that it was");
                self.changed.borrow_mut().retain(|l| *l != lun);
            }
            Seen::Unchanged => {}
        }
    }

    /// An INQUIRY that passes all other commands: its data, None if it was refused.
    async fn inquire(self: &Rc<Self>, lun: u64, page: Option<u8>) -> Result<Option<Vec<u8>>, Error> {
        let data = Direction::In(Buf::zeroed(IDENTITY_LEN.into()));
        let command = Command::new(lun, cdb::inquiry(page, IDENTITY_LEN), data);
        let tag = self.machine.borrow_mut().submit_urgently(command, Waiter::Unknown);
        let tag = tag.map_err(|_| Error::new(Kind::Invalid, "too many commands"))?;
        self.flush_soon();
        let (result, buf) = self.pending(tag).await;
        let done = result?;
        Ok(buf.filter(|_| done.status == 0).map(|buf| buf[..done.transferred.min(buf.len())].to_vec()))
    }

    /// Nothing can be sent: the time for recovery runs.
    fn wait_for_unit(&self) {
        self.lost.set(self.lost.get().or(Some(Instant::now())));
    }
}

/// Whether a logical unit has the identity that it had. One that does not answer, or is not there (PERIPHERAL
/// QUALIFIER, SPC-5 section 6.6.2), is asked again: a target that starts may add it later. Meanwhile the time for
/// recovery runs.
async fn look_at(
    home: &Rc<Home>,
    lun: u64,
    identity: &[u8],
    is_wanted: impl Fn() -> bool,
) -> Result<Seen, Error> {
    while is_wanted() {
        let inquiry = home.inquire(lun, None).await?;
        if inquiry.is_some_and(|data| data.first().is_some_and(|b| b >> 5 == 0))
            && let Some(page) = home.inquire(lun, Some(0x83)).await?
        {
            let now = lun::identity(&page);
            return Ok(if now == identity { Seen::Unchanged } else { Seen::Changed(now) });
        }
        home.wait_for_unit();
        compio::time::sleep(ASK_AGAIN).await;
    }
    Err(Error::new(Kind::Lost, "the connection was lost"))
}

/// Looks once more at a logical unit that was another one. One that is not there is not back.
pub async fn look_again(home: Rc<Home>, lun: u64, reply: flume::Sender<()>) {
    let pinned = home.pinned.borrow().iter().find(|p| p.lun == lun).cloned();
    if let Some(Pinned { identity, .. }) = pinned
        && home.changed.borrow().contains(&lun)
        && home.machine.borrow().online == Online::Yes
        && let Ok(Some(page)) = home.inquire(lun, Some(0x83)).await
        && lun::identity(&page) == identity
    {
        home.mark(lun, Seen::Unchanged);
    }
    // Who has stopped to wait does not want it.
    let _ = reply.send(());
}

/// The next connection, however long it takes; None when the session is to end.
async fn reconnect(home: &Rc<Home>, why: Error) -> Option<Connected> {
    if home.closing.get() {
        return None;
    }
    tracing::warn!(target = %home.name(), "the session was lost: {why}");
    home.listeners.tell(&Event::Lost(why.to_string()));
    let wait_s = home.machine.borrow().time2wait_s.min(LONGEST_WAIT_S);
    or_closing(home, compio::time::sleep(Duration::from_secs(wait_s.into()))).await?;
    let mut pause = FIRST_PAUSE;
    loop {
        let (goal, options) = (home.goal.borrow().clone(), &home.options);
        let tried = or_closing(home, connect::once(&goal, options)).await?;
        match tried {
            Ok(connected) => return Some(connected),
            Err(e) => {
                tracing::debug!(target = %home.name(), "no connection yet: {e}");
                *home.last_error.borrow_mut() = Some(e);
            }
        }
        or_closing(home, compio::time::sleep(pause + jitter(pause))).await?;
        pause = (pause * 2).min(options.timeouts.pause);
    }
}

/// Up to an eighth more, so that many who lost the same target do not come back all at once.
fn jitter(pause: Duration) -> Duration {
    let mut random = [0];
    // Without randomness all come back at once: no reason to fail.
    let _ = getrandom::fill(&mut random);
    pause * random[0].into() / 2048
}

/// Does something, unless the session is to end first.
async fn or_closing<T>(home: &Rc<Home>, work: impl Future<Output = T>) -> Option<T> {
    let work = async { Some(work.await) };
    let closing = async {
        loop {
            let rung = home.bell.listen();
            if home.closing.get() {
                return None;
            }
            rung.await;
        }
    };
    either(work, closing).await
}

/// The target wants us to log out of this connection: commands in flight end, new ones wait for the next. Where the
/// target ends it by itself meanwhile, the next one is not meant.
pub async fn take_leave(home: Rc<Home>, line: Weak<Line>) {
    quiet(&home, || home.is_on(&line)).await;
    if !home.is_on(&line) {
        return;
    }
    let heard = home.answer(home.options.timeouts.logout, Machine::log_out).await;
    let why = Error::new(Kind::Lost, "the target asked for a logout");
    if !home.is_on(&line) {
        return;
    }
    if heard.is_ok() {
        // The end was in good order: there is nothing to wait for (section 11.15.3).
        home.machine.borrow_mut().time2wait_s = 0;
        home.part_in_order(why);
    } else {
        home.give_up_connection(why);
    }
}

/// Waits until nothing is in flight, for as long as a logout may take, and the connection is there.
async fn quiet(home: &Rc<Home>, is_there: impl Fn() -> bool) {
    let idle = async {
        while !home.machine.borrow().is_idle() && is_there() {
            compio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // Those that are still there are ended by the logout.
    let _ = compio::time::timeout(home.options.timeouts.logout, idle).await;
}

/// Ends a session in good order.
pub async fn close(home: &Rc<Home>) -> Result<(), Error> {
    if home.over.get() {
        return Ok(());
    }
    let was_online = home.machine.borrow().online == Online::Yes;
    if was_online {
        quiet(home, || home.stream.borrow().is_some()).await;
    }
    home.closing.set(true);
    home.machine.borrow_mut().fail_queued(&closed(), |t| t.state == State::Queued);
    home.bell.notify(usize::MAX);
    let mut result = Ok(());
    if was_online && home.stream.borrow().is_some() {
        let heard = home.answer(home.options.timeouts.logout, Machine::log_out).await;
        if heard.is_ok() {
            home.part_in_order(closed());
        } else {
            result = Err(Error::new(Kind::TimedOut, "the target did not answer the logout"));
        }
    }
    if !home.parted.get() {
        home.give_up_connection(closed());
    }
    while !home.over.get() {
        let rung = home.bell.listen();
        if !home.over.get() {
            rung.await;
        }
    }
    result
}
