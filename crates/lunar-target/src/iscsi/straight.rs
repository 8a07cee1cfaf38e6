//! READs and WRITEs before which nothing stands but a medium that has to be waited for: they are inside their gate, what
//! they do is decided, and their data, or a buffer for it, is here.

use super::connection::{Connection, Session};
use super::lanes::Begun;
use super::luns::{Found, Handle};
use super::parts;
use super::receive::Data;
use super::respond::Sent;
use super::task::{Command, Task};
use crate::Unit;
use crate::exec::{self, Ended, Outcome};
use crate::fence;
use lunar_runtime::{Buf, Pool};
use lunar_scsi::Plan;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What is to be done at the medium.
pub enum Work {
    /// Fills the buffer.
    Read { offset: u64, buf: Buf },
    /// Writes the buffer.
    Write { offset: u64, buf: Buf, stable: bool },
}

impl Work {
    /// None if it needs more than this: data or a buffer that are not here, parts that are sent early, an answer of another
    /// length than the initiator has room for.
    fn of(pool: &Pool, handle: &Handle, c: &Command, plan: &Plan, data: &Data<'_>) -> Option<Work> {
        match (plan, data) {
            (&Plan::Read { offset, len }, _) if len > 0 && len <= c.room() && c.offered() == 0 => {
                let len = len as usize;
                let stride = handle.is_afar.then(|| handle.backend.stride()).flatten();
                let is_whole = len <= Pool::MAX_BUFFER && parts::lengths(len, stride).nth(1).is_none();
                let buf = is_whole.then(|| pool.try_get(len)).flatten()?;
                Some(Work::Read { offset, buf })
            }
            (&Plan::Write { offset, len, stable }, Data::Bytes(data)) if data.len() == len as usize => {
                let mut buf = pool.try_get(data.len())?;
                buf.copy_from_slice(data);
                Some(Work::Write { offset, buf, stable })
            }
            _ => None,
        }
    }

    /// Bytes of Data-Out.
    fn written(&self) -> u32 {
        match self {
            Work::Read { .. } => 0,
            Work::Write { buf, .. } => buf.len() as u32,
        }
    }

    async fn done(self, unit: &Arc<Unit>) -> Ended {
        match self {
            Work::Read { offset, buf } => exec::read_part(unit, offset, buf).await.map(Outcome::Medium),
            Work::Write { offset, buf, stable } => exec::write(unit, offset, buf, stable).await,
        }
    }
}

impl Session {
    /// Begins a READ, or a WRITE that has brought all of its data, which is inside its gate, and stays there until it has
    /// ended. False: it needs more than that, and nothing was done.
    pub fn goes_straight(&mut self, c: &Command, plan: &Plan, data: &Data<'_>) -> bool {
        let (Found::Unit(handle), Some(conn)) = (self.luns.find(c.lun), self.conn.upgrade()) else {
            return false;
        };
        let Some(work) = Work::of(&self.pool, handle, c, plan, data) else { return false };
        let Some(under_way) = fence::enter(conn.fence.clone()) else { return false };
        let (unit, inside, lanes) = (handle.unit.clone(), handle.member().entered(), handle.lanes());
        self.serial += 1;
        let task = Task {
            serial: self.serial,
            command: c.clone(),
            place: Some((unit.clone(), handle.nexus.id())),
            reaches: Vec::new(),
            epoch: handle.nexus.epoch(),
            medium: unit.lu.medium(),
            aborted: None,
            receiving: None,
            answer: None,
            sent: Sent::default(),
            began: None,
        };
        self.tasks.insert(c.itt, task);
        self.info.visit.get().into_iter().for_each(|visit| visit.instance().front.add(Duration::ZERO));
        let begun = Begun {
            itt: c.itt,
            serial: self.serial,
            unit,
            inside,
            _under_way: under_way,
            written: work.written(),
        };
        match lanes {
            Some(lanes) => lanes.begin(&conn, begun, work),
            None => lunar_runtime::spawn(alone(conn, begun, work)),
        }
        true
    }
}

/// A command whose medium takes it by itself.
async fn alone(conn: Rc<Connection>, begun: Begun, work: Work) {
    let why_late = conn.why_late(&conn.session.borrow(), None);
    let ended = match why_late {
        None => work.done(&begun.unit).await,
        Some(_) => Err(exec::gone()),
    };
    conn.end_straight(begun, ended);
}

impl Connection {
    /// A command that went straight is over.
    pub fn end_straight(self: &Rc<Self>, begun: Begun, ended: Ended) {
        let Begun { itt, serial, written, inside, .. } = begun;
        drop(inside);
        if written > 0 && ended.is_ok() {
            self.note(Some(written), false);
        }
        self.end_task(itt, serial, ended, written.into());
    }
}
