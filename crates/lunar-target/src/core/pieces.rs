//! Long writes, piece by piece: each piece is written as soon as it has come, while the next one comes. So a command holds
//! a few buffers, and not all of its data.
//!
//! Between two pieces the command is outside the gate: an initiator that is slow, or gone, keeps nobody out. So each piece
//! asks anew for all that may have changed, and a piece that may not begin ends the command.

use super::command::{Attribute, Command};
use super::execution::{TaskExecution, Within};
use super::front_end::FrontEnd;
use super::late::Waited;
use super::nexus::{ItNexus, State};
use super::places::{BUFFERS, PIECE};
use super::task::Receiving;
use crate::Unit;
use crate::exec::{self, Ended, Outcome};
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{Answer, Failure, Plan};
use lunar_wire::scsi::{Sense, Status, op};
use std::rc::Rc;
use std::sync::Arc;

const WRITES: [u8; 3] = [op::WRITE_10, op::WRITE_12, op::WRITE_16];

/// Whether a command takes its data in pieces. An ORDERED one is alone from its beginning to its end, and must not wait
/// for data then. What is passed on goes with all of its data.
pub fn suits(c: &Command, unit: Option<&Unit>, answer: Option<&Answer>) -> bool {
    let len = c.offered();
    let is_long = len > BUFFERS * PIECE && len as usize <= Pool::MAX_BUFFER;
    let is_plain = c.attribute != Attribute::Ordered && !c.reads && WRITES.contains(&c.cdb()[0]);
    let fits = match answer {
        None => true,
        Some(Ok(Plan::Write { len: needed, .. })) => *needed == len,
        Some(_) => false,
    };
    is_long && is_plain && fits && unit.is_some_and(|unit| unit.passage().is_none())
}

/// What a WRITE does.
pub struct Write {
    /// First byte on the medium.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// It ends when they are on stable storage.
    pub stable: bool,
}

impl Receiving {
    /// The next piece is here, or none will be.
    fn has_piece(&self) -> bool {
        self.failure().is_some() || self.places.is_filled(self.sequencer.arrived())
    }

    /// Its command can begin: it takes its data in pieces, and the first one is here.
    pub fn may_begin(&self) -> bool {
        self.in_pieces && self.failure().is_none() && self.has_piece()
    }

    /// Somebody waits for what has come.
    pub fn is_news(&self) -> bool {
        self.has_piece() || self.sequencer.is_complete()
    }

    /// Takes one more buffer, if this command has too few and there is one.
    pub fn grow(&mut self, pool: &Pool) {
        if self.in_pieces {
            self.places.grow(pool, self.wanted);
            self.sequencer.allow(self.places.end());
        }
    }
}

impl<F: FrontEnd> State<F> {
    /// The Data-Out of a task that goes on.
    fn receiving_of(&mut self, tag: u32, serial: u64) -> Option<&mut Receiving> {
        let task = self.tasks.get_mut(&tag).filter(|t| t.serial == serial && t.aborted.is_none())?;
        task.receiving.as_mut()
    }

    fn needs_no_more(&mut self, tag: u32, serial: u64) {
        let task = self.tasks.get_mut(&tag).filter(|t| t.serial == serial);
        if let Some(receiving) = task.and_then(|t| t.receiving.as_mut()) {
            receiving.sequencer.stop();
            receiving.places = Default::default();
        }
    }

    fn take_piece(&mut self, tag: u32, serial: u64) -> Result<Buf, Failure> {
        let receiving = self.receiving_of(tag, serial).ok_or_else(exec::gone)?;
        match receiving.failure() {
            Some(failure) => Err(failure),
            None => receiving.places.take().ok_or(Sense::INTERNAL_FAILURE.into()),
        }
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// The next piece of a task's data, once it is here.
    async fn next_piece(&self, tag: u32, serial: u64) -> Result<Buf, Failure> {
        self.wait_until(|s| {
            let task = s.tasks.get(&tag).filter(|t| t.serial == serial && t.aborted.is_none());
            task.and_then(|t| t.receiving.as_ref()).is_none_or(Receiving::has_piece)
        })
        .await;
        self.state().take_piece(tag, serial)
    }

    /// A piece was written: its buffer is for another one, which is asked for.
    fn piece_written(self: &Rc<Self>, tag: u32, serial: u64, buf: Buf) {
        let mut state = self.state();
        let Some(receiving) = state.receiving_of(tag, serial) else { return };
        receiving.places.reuse(buf, receiving.wanted);
        receiving.grow(self.pool());
        state.ask(tag);
        drop(state);
        F::flush(self);
    }

    /// A task in pieces needs no more data. What was asked for still comes, before it may be answered (RFC 7143 section
    /// 4.2.3.3 and 11.8); unless nothing is to be waited for any more.
    pub async fn rest_of_data(&self, tag: u32, serial: u64) {
        self.state().needs_no_more(tag, serial);
        self.wait_until(|s| {
            let task = s.tasks.get(&tag).filter(|t| t.serial == serial);
            let left = |r: &Receiving| r.is_left || r.sequencer.is_complete();
            task.and_then(|t| t.receiving.as_ref()).is_none_or(left)
        })
        .await;
    }
}

impl<F: FrontEnd> TaskExecution<F> {
    /// Writes piece by piece. The first one is here, and is written within what was entered already.
    pub async fn write_in_pieces(&self, unit: &Arc<Unit>, mut write: Write, within: Within) -> Ended {
        let nexus = &self.nexus;
        let (tag, serial) = (self.command.tag, self.serial);
        let (mut at, mut within) = (0, within);
        let mut piece = nexus.next_piece(tag, serial).await?;
        loop {
            // What was offered beyond what the CDB asks for is left out.
            let len = piece.len().min((write.len - at) as usize);
            piece.set_visible(len);
            let stored = exec::put(unit, write.offset + u64::from(at), piece, false).await?;
            at += len as u32;
            if at >= write.len {
                break;
            }
            drop(within);
            nexus.piece_written(tag, serial, stored);
            piece = nexus.next_piece(tag, serial).await?;
            within = self.step_in_again(unit, &mut write).await?;
        }
        if write.stable {
            exec::flush(unit).await?;
        }
        drop(within);
        Ok(Outcome::Good)
    }

    /// Steps in for a piece behind the first, which is decided anew: meanwhile a reservation, write protection, the size or the
    /// write cache may have changed. The command has begun, so no status says that it has not.
    async fn step_in_again(&self, unit: &Arc<Unit>, write: &mut Write) -> Result<Within, Failure> {
        let standing = self.nexus.standing(&self.command, unit).ok_or(Sense::LUN_NOT_SUPPORTED)?;
        let waited = Waited::for_data();
        let inside = self.step_in(&standing.member, standing.entry, &waited).await;
        let within = inside.ok_or_else(exec::gone)?;
        self.is_still_meant(unit).map_err(has_begun)?;
        match self.nexus.go_on(&self.command, unit).map_err(has_begun)? {
            Plan::Write { offset, len, stable } if (offset, len) == (write.offset, write.len) => {
                write.stable |= stable;
                Ok(within)
            }
            // Its blocks have another size.
            _ => Err(Sense::MEDIUM_CHANGED.into()),
        }
    }
}

/// How a command ends that has begun and may not go on. BUSY and RESERVATION CONFLICT mean that nothing was done (SAM-5 section
/// 5.3.1): a host that sends it again gets them then.
fn has_begun(failure: Failure) -> Failure {
    match failure.status {
        Status::Busy | Status::ReservationConflict => Sense::COMMAND_ABORTED.into(),
        _ => failure,
    }
}
