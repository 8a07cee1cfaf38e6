//! Many concurrent reads and writes. An operation needs a future of its own only if it takes several commands or a
//! retry.

use super::Lun;
use super::retry::{Repeatable, perform_again};
use super::transferred::{Transfer, read_result, write_result};
use crate::slow_path::SlowPath;
use crate::{Batch, Command, Completion, Direction, Error};
use lunar_block::{Backend, BackendQueue, BufResult};
use lunar_runtime::Buf;
use lunar_wire::scsi::TaskAttribute;
use lunar_wire::scsi::cdb::Cdb;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// The queued reads and writes of one owner.
pub struct LunQueue {
    lun: Arc<Lun>,
    batch: Batch,
    /// The commands in flight, by lane.
    sent: Vec<Option<SentCommand>>,
    /// The operations that have futures.
    slow: SlowPath,
}

struct SentCommand {
    cdb: Cdb,
    started_at: Instant,
    offset: u64,
    len: usize,
    is_write: bool,
}

impl SentCommand {
    #[inline(always)]
    fn end(&self, result: Result<Completion, Error>, buf: Option<Buf>) -> BufResult {
        let (result, buf): Transfer = match self.is_write {
            false => read_result(result, buf, self.len),
            true => write_result(result, buf, self.len),
        };
        (result.map_err(io::Error::from), buf)
    }
}

impl LunQueue {
    pub fn new(lun: Arc<Lun>, batch: Batch) -> LunQueue {
        LunQueue { lun, batch, sent: Vec::new(), slow: SlowPath::default() }
    }

    #[inline]
    fn send(&mut self, lane: usize, offset: u64, command: Command) {
        let sent = SentCommand {
            cdb: command.cdb,
            started_at: self.batch.about_now(),
            offset,
            len: command.data.expected(),
            is_write: command.hold.is_some(),
        };
        match self.batch.submit(lane as u32, command) {
            Ok(()) => {
                if lane >= self.sent.len() {
                    self.sent.resize_with(lane + 1, || None);
                }
                self.sent[lane] = Some(sent);
            }
            Err(ended) => {
                let (result, buf) = *ended;
                self.slow.begin(lane, async move { sent.end(result, buf) });
            }
        }
    }

    /// Retries a command after a unit attention or while the logical unit is busy.
    fn try_again(&mut self, lane: usize, sent: SentCommand, completion: Completion, buf: Option<Buf>) {
        let lun = self.lun.clone();
        self.slow.begin(lane, async move {
            let SentCommand { cdb, started_at, offset, len, is_write } = sent;
            // The range lock of the first attempt has been released.
            let hold = if is_write { Some(lun.hold(offset, len as u64).await) } else { None };
            let what = Repeatable {
                lun: lun.lun,
                cdb,
                extended_cdb: None,
                out: is_write,
                repeatable: true,
                attribute: TaskAttribute::Simple,
                hold: hold.as_ref(),
            };
            let (result, buf) = perform_again(&lun.session, what, started_at, Ok(completion), buf).await;
            sent.end(result, buf)
        });
    }
}

impl BackendQueue for LunQueue {
    fn read(&mut self, lane: usize, offset: u64, buf: Buf) {
        if self.lun.is_one_command(offset, buf.len()) {
            let cdb = self.lun.read_cdb(offset, buf.len());
            return self.send(lane, offset, Command::on_blocks(self.lun.lun, cdb, Direction::In(buf)));
        }
        let lun = self.lun.clone();
        self.slow.begin(lane, async move { lun.read(offset, buf).await });
    }

    fn write(&mut self, lane: usize, offset: u64, buf: Buf, fua: bool) {
        let (sends_fua, flush) = self.lun.fua_or_flush(fua);
        if self.lun.is_one_command(offset, buf.len())
            && !flush
            && let Some(hold) = self.lun.try_hold(offset, buf.len() as u64)
        {
            let cdb = self.lun.write_cdb(offset, buf.len(), sends_fua);
            let mut command = Command::on_blocks(self.lun.lun, cdb, Direction::Out(buf));
            command.hold = Some(hold);
            return self.send(lane, offset, command);
        }
        let lun = self.lun.clone();
        self.slow.begin(lane, async move { lun.write(offset, buf, fua).await });
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        while let Poll::Ready((lane, (result, buf))) = self.batch.poll_ended(cx) {
            let lane = lane as usize;
            let sent = self.sent[lane].take().expect("a completed lane has a sent command");
            match result {
                Ok(completion) if completion.status != 0 => self.try_again(lane, sent, completion, buf),
                result => return Poll::Ready((lane, sent.end(result, buf))),
            }
        }
        self.slow.poll(cx)
    }
}
