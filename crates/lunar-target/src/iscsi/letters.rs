//! What a connection does with messages from other cores, and what its commands may ask of the rest of the
//! process.

use super::connection::{Connection, Life};
use crate::access::{LunMap, Visible};
use crate::exec::Surroundings;
use crate::exec::copy::Ends;
use crate::gate::{Entry, Member};
use crate::registry::{Done, Letter, Which};
use lunar_scsi::{CopyRange, CopySegment, NexusId};
use lunar_wire::iscsi::lun;
use lunar_wire::scsi::Sense;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Events of asynchronous messages (RFC 7143 section 11.9.1).
const SCSI_EVENT: u8 = 0;
const LOGOUT_REQUEST: u8 = 1;
const SESSION_DROP: u8 = 3;

/// Seconds that an initiator has to log out when the target stops.
const TIME_TO_LOG_OUT_S: u16 = 3;

/// Takes letters until the connection is gone.
pub async fn serve(conn: Weak<Connection>, letters: flume::Receiver<Letter>) {
    while let Ok(letter) = letters.recv_async().await {
        let Some(conn) = conn.upgrade() else { return };
        match letter {
            Letter::End { why, done } => conn.end(why, done),
            Letter::Abort { which, from, indeterminate, done } => {
                // Beside the next letters: a task may take its time to end.
                lunar_runtime::spawn(async move {
                    conn.abort_for_others(&which, &from, &indeterminate).await;
                    drop(done);
                });
            }
            Letter::Stop { done } => lunar_runtime::spawn(async move { conn.stop(done).await }),
            Letter::Luns(Some(map)) => conn.replace_luns(map),
            Letter::Luns(None) => {
                conn.session.borrow_mut().announce(0, SESSION_DROP, [0, 2, 0], Vec::new());
                conn.flush();
                conn.end("its target, or its access to it, is gone", flume::bounded(0).0);
            }
            Letter::Attention(unit) => conn.tell(Sense::CAPACITY_CHANGED, |v| Arc::ptr_eq(&v.unit, &unit)),
        }
    }
}

impl Connection {
    /// Ends the connection; `done` goes once all is over.
    fn end(&self, why: &'static str, done: Done) {
        let mut session = self.session.borrow_mut();
        session.farewells.push(done);
        session.is_over(why);
        drop(session);
        self.task_ended.notify(usize::MAX);
        self.close();
    }

    /// No new commands; those in flight finish; the initiator is asked to log out, and has some seconds for
    /// it.
    async fn stop(self: Rc<Self>, done: Done) {
        if self.session.borrow().life == Life::Running {
            self.session.borrow_mut().life = Life::Leaving;
        }
        self.wait_until(|s| s.tasks.is_empty() || s.life == Life::Over).await;
        let asks = {
            let mut session = self.session.borrow_mut();
            let asks = session.life == Life::Leaving && !session.info.discovery && session.out.notifies();
            if asks {
                session.announce(0, LOGOUT_REQUEST, [0, 0, TIME_TO_LOG_OUT_S], Vec::new());
            }
            session.farewells.push(done);
            asks
        };
        self.flush();
        if asks {
            let left = self.wait_until(|s| s.life == Life::Over);
            let _ = compio::time::timeout(Duration::from_secs(TIME_TO_LOG_OUT_S as u64), left).await;
        }
        self.session.borrow_mut().is_over("the server stops");
        self.close();
    }

    /// The initiator sees other LUNs now, and hears of it.
    fn replace_luns(self: &Rc<Self>, map: Arc<LunMap>) {
        let changed = self.session.borrow_mut().luns.replace(map);
        if changed {
            self.tell(Sense::LUNS_CHANGED, |_| true);
        }
    }

    /// An asynchronous SCSI event about the first LUN that it concerns and for which it was asked for.
    fn tell(self: &Rc<Self>, event: Sense, concerns: impl Fn(&Visible) -> bool) {
        let mut session = self.session.borrow_mut();
        let number = session.luns.map().iter().find(|(_, v)| v.aen && concerns(v)).map(|(n, _)| *n);
        if let Some(number) = number.filter(|_| session.out.takes_event()) {
            let sense = event.encode(false);
            let data = [&(sense.len() as u16).to_be_bytes()[..], &sense].concat();
            session.announce(lun::encode(number), SCSI_EVENT, [0; 3], data);
            drop(session);
            self.flush();
        }
    }
}

/// What one command may ask for.
pub struct Around<'a> {
    /// Its connection.
    pub conn: &'a Connection,
    /// Its Initiator Task Tag.
    pub itt: u32,
    /// The serial of its task.
    pub serial: u64,
    /// The gate of its logical unit, if it has one, and how it steps in.
    pub gate: Option<(Member, Entry)>,
}

impl Surroundings for Around<'_> {
    fn luns(&self) -> Vec<u16> {
        self.conn.session.borrow().luns.map().keys().copied().collect()
    }

    fn copy_ends(&self, number: u16, segment: &CopySegment) -> Result<Ends, Sense> {
        let mut session = self.conn.session.borrow_mut();
        let ends = session.luns.copy_ends(number, segment)?;
        if let Some(task) = session.tasks.get_mut(&self.itt).filter(|t| t.serial == self.serial) {
            task.reaches.extend([ends.source.nexus, ends.destination.nexus]);
        }
        Ok(ends)
    }

    fn copy_range(&self, number: u16, segment: &CopySegment, ends: &Ends) -> Result<CopyRange, Sense> {
        self.conn.session.borrow().luns.copy_range(number, segment, ends)
    }

    fn own_gate(&self) -> Option<(Member, Entry)> {
        self.gate.clone()
    }

    fn abort(&self, victims: Vec<NexusId>) -> lunar_block::Future<'_, ()> {
        let which = Which::Nexuses(victims.into());
        let (shared, from) = self.conn.origin();
        Box::pin(async move {
            let letter = |done| {
                let (which, from, indeterminate) = (which.clone(), from.clone(), Default::default());
                Letter::Abort { which, from, indeterminate, done }
            };
            shared.registry.tell_all(None, letter).await;
        })
    }

    fn is_aborted(&self) -> bool {
        let session = self.conn.session.borrow();
        session.is_aborted(self.itt, self.serial) || self.conn.why_late(&session, None).is_some()
    }
}
