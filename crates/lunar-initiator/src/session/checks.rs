//! Whether logical units are what they were: after a recovery, and after a unit attention that leaves it open.

use super::errors::changed;
use super::event::Event;
use super::home::Home;
use super::machine::Online;
use super::pending::Pending;
use super::pins::Hold;
use super::request::Held;
use super::task::Waiter;
use crate::designators;
use crate::{Command, Direction, Error, Finished, Kind};
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A logical unit that was not seen is looked at again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Bytes of VPD page 83h that are read.
pub const IDENTITY_LEN: u16 = 1024;

/// Lets commands through: those of a logical unit that has to stay what it is once it is seen to be that, all others now.
pub fn admit(home: &Rc<Home>) {
    let luns = home.pinned.borrow().luns();
    luns.into_iter().for_each(|lun| home.hold_back(lun));
    let mut machine = home.machine.borrow_mut();
    machine.online = Online::Yes;
    machine.pump();
    drop(machine);
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
    /// From now on it has to be this one, in place of what it had to be before.
    pub fn pin(self: &Rc<Self>, lun: u64, identity: Vec<u8>) {
        let is_new = self.pinned.borrow_mut().pin(lun, identity);
        if is_new {
            self.look_with_others(lun);
        }
    }

    /// One more uses it as storage, until what comes back is dropped.
    ///
    /// # Errors
    /// When it had to be another one: those who use that are not to write on this.
    pub fn hold(self: &Rc<Self>, held: Held, identity: Vec<u8>) -> Result<Held, Error> {
        let lun = held.lun();
        let holds = self.pinned.borrow_mut().hold(lun, identity);
        match holds {
            Hold::Again => {}
            Hold::First => self.look_with_others(lun),
            Hold::Mismatch(identity) => {
                self.mark(lun, Seen::Changed(identity));
                return Err(changed());
            }
        }
        Ok(held.counted())
    }

    /// While others are looked at, what is new may have been seen on the connection before.
    fn look_with_others(self: &Rc<Self>, lun: u64) {
        let machine = self.machine.borrow();
        let are_looked_at = machine.online == Online::Yes && !machine.unseen.is_empty();
        drop(machine);
        if are_looked_at {
            self.hold_back(lun);
        }
    }

    /// What it has to be.
    pub fn identity(&self, lun: u64) -> Option<Vec<u8>> {
        self.pinned.borrow().identity(lun).cloned()
    }

    /// One less does. What nobody uses may become another one.
    pub fn let_go(self: &Rc<Self>, lun: u64) {
        let is_free = self.pinned.borrow_mut().release(lun);
        if is_free {
            self.changed.borrow_mut().retain(|changed| *changed != lun);
            self.machine.borrow_mut().release(lun);
            self.flush_soon();
        }
    }

    /// Keeps what was seen of a logical unit: what is another one takes no commands until it is seen to be back.
    pub fn mark(&self, lun: u64, seen: Seen) {
        let was = self.changed.borrow().contains(&lun);
        match seen {
            Seen::Changed(identity) => {
                if !was {
                    tracing::error!(lun, "{}", changed());
                    self.changed.borrow_mut().push(lun);
                    self.listeners.notify(&Event::Changed { lun, identity });
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

    /// Sends a logical unit nothing until it was looked at.
    pub(super) fn hold_back(self: &Rc<Self>, lun: u64) {
        let look = self.machine.borrow_mut().unseen.add(lun, Instant::now());
        if let Some(look) = look {
            lunar_runtime::spawn(look_at(self.clone(), lun, look));
        }
    }

    /// An INQUIRY that passes all other commands.
    fn inquire(self: &Rc<Self>, lun: u64, page: Option<u8>) -> Result<Pending, Error> {
        let data = Direction::In(Buf::zeroed(IDENTITY_LEN.into()));
        let command = Command::new(lun, cdb::inquiry(page, IDENTITY_LEN), data);
        let tag = self.machine.borrow_mut().submit_urgently(command, Waiter::Unknown);
        let tag = tag.map_err(|_| Error::new(Kind::Invalid, "too many commands"))?;
        self.flush_soon();
        Ok(self.pending(tag))
    }

    /// What a logical unit is; None of one that is not there (PERIPHERAL QUALIFIER, SPC-5 section 6.6.2) or does not tell.
    async fn see(self: &Rc<Self>, lun: u64, identity: &[u8]) -> Result<Option<Seen>, Error> {
        let (standard, page) = (self.inquire(lun, None)?, self.inquire(lun, Some(0x83))?);
        let (standard, page) = (data_of(standard.await)?, data_of(page.await)?);
        let is_there = standard.is_some_and(|data| data.first().is_some_and(|b| b >> 5 == 0));
        let compare = |page: Vec<u8>| match designators::identity(&page) {
            now if now == identity => Seen::Unchanged,
            now => Seen::Changed(now),
        };
        Ok(page.filter(|_| is_there).map(compare))
    }

    /// A look at a logical unit that is still wanted. True: it was seen.
    async fn saw(self: &Rc<Self>, lun: u64, look: u32) -> bool {
        let Some(identity) = self.identity(lun) else { return true };
        let doubts = self.machine.borrow().doubts;
        let seen = self.see(lun, &identity).await;
        if !self.machine.borrow().unseen.wants(lun, look) {
            return true;
        }
        self.is_back();
        // A unit attention that came meanwhile may tell of a change after the answer.
        if self.machine.borrow().doubts != doubts || self.identity(lun) != Some(identity) {
            return false;
        }
        let found = match seen {
            Ok(Some(seen)) => {
                self.mark(lun, seen);
                if self.machine.borrow_mut().release(lun) {
                    self.listeners.notify(&Event::Seen { lun });
                }
                self.flush_soon();
                return true;
            }
            Ok(None) => "it is not there".into(),
            Err(e) => e.to_string(),
        };
        let is_over = self.machine.borrow_mut().unseen.missed(lun, found);
        let pause = if is_over { LOOK_AGAIN.max(self.options.timeouts.pause) } else { LOOK_AGAIN };
        compio::time::sleep(pause).await;
        false
    }
}

/// The data of an INQUIRY, None if it was refused.
fn data_of((result, buf): Finished) -> Result<Option<Vec<u8>>, Error> {
    let done = result?;
    Ok(buf.filter(|_| done.status == 0).map(|buf| buf[..done.transferred.min(buf.len())].to_vec()))
}

/// Looks at a logical unit until it is seen, on this connection: a target that starts may add it later. Its own commands
/// wait meanwhile, and no others.
async fn look_at(home: Rc<Home>, lun: u64, look: u32) {
    while home.machine.borrow().unseen.wants(lun, look) && !home.saw(lun, look).await {}
}

/// Looks once more at a logical unit that was another one. One that is not there is not back.
pub async fn look_again(home: Rc<Home>, lun: u64, reply: flume::Sender<()>) {
    let is_seen = |home: &Home| {
        let machine = home.machine.borrow();
        machine.online == Online::Yes && !machine.unseen.has(lun)
    };
    if let Some(identity) = home.identity(lun)
        && home.changed.borrow().contains(&lun)
        && is_seen(&home)
        && let Ok(page) = home.inquire(lun, Some(0x83))
        && let Ok(Some(page)) = data_of(page.await)
        && designators::identity(&page) == identity
    {
        home.mark(lun, Seen::Unchanged);
    }
    // Who has stopped to wait does not want it.
    let _ = reply.send(());
}
