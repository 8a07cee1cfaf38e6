//! READs and WRITEs before which nothing stands but a medium that has to be waited for: they are inside their gate, what
//! they do is decided, and their data, or a buffer for it, is here.

use super::command::Command;
use super::cut_through;
use super::execution::TaskEnd;
use super::front_end::FrontEnd;
use super::io_queue::{Begun, IoQueue, Work};
use super::lun_map::{Found, LunHandle};
use super::nexus::{ItNexus, State};
use super::response::Sent;
use super::task::Task;
use super::transfer::Arrival;
use crate::Unit;
use crate::exec::{self, Ended, Outcome};
use crate::fence;
use lunar_runtime::Pool;
use lunar_scsi::Plan;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

impl Work {
    /// None if it needs more than this: data or a buffer that are not here, parts that are sent early, an answer of another
    /// length than the initiator has room for.
    fn of(pool: &Pool, handle: &LunHandle, c: &Command, plan: &Plan, data: &Arrival<'_>) -> Option<Work> {
        match (plan, data) {
            (&Plan::Read { offset, len }, _) if len > 0 && len <= c.room() && c.offered() == 0 => {
                let len = len as usize;
                let stride = handle.is_afar.then(|| handle.backend.stride()).flatten();
                let is_whole = len <= Pool::MAX_BUFFER && cut_through::lengths(len, stride).nth(1).is_none();
                let buf = is_whole.then(|| pool.try_get(len)).flatten()?;
                Some(Work::Read { offset, buf })
            }
            (&Plan::Write { offset, len, stable }, Arrival::Bytes(data)) if data.len() == len as usize => {
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

impl<F: FrontEnd> State<F> {
    /// Begins a READ, or a WRITE that has brought all of its data, which is inside its gate, and stays there until it has
    /// ended. False: it needs more than that, and nothing was done.
    pub(super) fn goes_direct(&mut self, c: &Command, plan: &Plan, data: &Arrival<'_>) -> bool {
        let (Found::Unit(handle), Some(nexus)) = (self.luns.find(c.lun), self.me.upgrade()) else {
            return false;
        };
        let Some(work) = Work::of(&self.pool, handle, c, plan, data) else { return false };
        let Some(under_way) = fence::enter(nexus.fence().clone()) else { return false };
        let (unit, inside, queue) = (handle.unit.clone(), handle.member().entered(), handle.queue());
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
        self.tasks.insert(c.tag, task);
        self.info.visit.get().into_iter().for_each(|visit| visit.instance().front.add(Duration::ZERO));
        let begun = Begun {
            tag: c.tag,
            connection: c.connection,
            serial: self.serial,
            unit,
            inside,
            _under_way: under_way,
            written: work.written(),
        };
        match queue {
            Some(queue) => {
                if queue.begin(begun, work) {
                    lunar_runtime::spawn(serve(queue, nexus));
                }
            }
            None => lunar_runtime::spawn(alone(nexus, begun, work)),
        }
        true
    }
}

/// Takes the ends of a queue until nothing is under way.
async fn serve<F: FrontEnd>(queue: Rc<IoQueue>, nexus: Rc<ItNexus<F>>) {
    queue.take_ends(|begun, ended| nexus.end_direct(begun, ended)).await;
}

/// A command whose medium takes it by itself.
async fn alone<F: FrontEnd>(nexus: Rc<ItNexus<F>>, begun: Begun, work: Work) {
    let why_late = nexus.state().front().why_late(begun.connection, None);
    let ended = match why_late {
        None => work.done(&begun.unit).await,
        Some(_) => Err(exec::gone()),
    };
    nexus.end_direct(begun, ended);
}

impl<F: FrontEnd> ItNexus<F> {
    /// A command that went straight to its medium is over.
    pub(super) fn end_direct(self: &Rc<Self>, begun: Begun, ended: Ended) {
        let Begun { tag, serial, written, inside, .. } = begun;
        drop(inside);
        let ended = TaskEnd { ended, moved: written.into(), written: (written > 0).then_some(written) };
        self.end_task(tag, serial, ended);
    }
}
