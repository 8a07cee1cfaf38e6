//! Queued reads and writes on the core of the controller, without a future for each. A future exists only for an operation
//! that takes more than one command, waits for a range lock, or needs a retry.

use super::NvmeNamespace;
use super::blocks::fua_flag;
use crate::lun::with_buffer;
use crate::nvme::command::{NvmeCommand, NvmeResult};
use crate::nvme::host_queue::HostQueue;
use crate::nvme::queue_load::QueueLoad;
use crate::nvme::queue_tasks::CompletionWaiter;
use crate::nvme::status::error_of;
use crate::session::completions::Completions;
use crate::slow_path::SlowPath;
use crate::{Direction, Error};
use lunar_block::{Backend, BackendQueue, BufResult};
use lunar_runtime::Buf;
use lunar_wire::nvme::nvm_opcode;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The queued reads and writes of one owner.
pub struct NamespaceQueue {
    namespace: Arc<NvmeNamespace>,
    io: Rc<HostQueue>,
    ends: Rc<Completions<u64>>,
    /// The operations that one command executes, by lane.
    sent: Vec<Option<LaneOperation>>,
    /// The operations that have futures.
    slow: SlowPath,
}

/// An operation in flight.
struct LaneOperation {
    key: u64,
    offset: u64,
    len: usize,
    /// Whether it writes, and whether with FUA.
    writes: Option<bool>,
}

/// The result of an operation, and its buffer. No other path may write the replacement of lost data.
fn ended(result: Result<(), Error>, buf: Option<Buf>, writes: bool, len: usize) -> BufResult {
    let (result, buf) = match writes {
        true => with_buffer(result, buf, len),
        false => (result, buf.unwrap_or_else(|| Buf::zeroed(len))),
    };
    (result.map_err(io::Error::from), buf)
}

impl NamespaceQueue {
    /// A queue on the core of this I/O queue.
    pub fn new(namespace: Arc<NvmeNamespace>, io: Rc<HostQueue>) -> NamespaceQueue {
        NamespaceQueue { namespace, io, ends: Rc::default(), sent: Vec::new(), slow: SlowPath::default() }
    }

    fn can_send(&self, offset: u64, len: usize) -> bool {
        self.namespace.is_one_command(offset, len) && self.namespace.check(offset, len as u64).is_ok()
    }

    /// The load that a command of this many bytes adds to the queue of this core; None if another queue should take it.
    fn load(&self, len: usize) -> Option<QueueLoad> {
        let (at, load) = self.namespace.controller().io_queues().choose(len);
        (at == 0).then_some(load)
    }

    fn send(&mut self, lane: usize, command: NvmeCommand, (offset, writes): (u64, Option<bool>)) {
        let len = command.data.expected();
        let waiter = CompletionWaiter::Among(self.ends.clone(), lane as u32);
        match self.io.accept(command, waiter) {
            Ok(key) => {
                if lane >= self.sent.len() {
                    self.sent.resize_with(lane + 1, || None);
                }
                self.sent[lane] = Some(LaneOperation { key, offset, len, writes });
            }
            Err(refused) => {
                let (result, buf) = *refused;
                let failed = ended(result.map(drop), buf, writes.is_some(), len);
                self.slow.begin(lane, std::future::ready(failed));
            }
        }
    }

    fn begin_write(&mut self, lane: usize, offset: u64, buf: Buf, fua: bool) {
        let namespace = self.namespace.clone();
        self.slow.begin(lane, async move { namespace.write(offset, buf, fua).await });
    }

    fn begin_read(&mut self, lane: usize, offset: u64, buf: Buf) {
        let namespace = self.namespace.clone();
        self.slow.begin(lane, async move { namespace.read(offset, buf).await });
    }

    /// The result of an operation; None if it is tried again.
    fn end(&mut self, lane: usize, sent: &LaneOperation, (result, buf): NvmeResult) -> Option<BufResult> {
        let ended = |result, buf| Some(ended(result, buf, sent.writes.is_some(), sent.len));
        match (result, buf, sent.writes) {
            (Ok(cqe), buf, _) if cqe.status.is_success() => ended(Ok(()), buf),
            (Err(e), buf, _) => ended(Err(e), buf),
            (Ok(cqe), buf, _)
                if self.namespace.is_final(cqe.status)
                    && !self.namespace.must_split(cqe.status, sent.len) =>
            {
                ended(Err(error_of(cqe.status)), buf)
            }
            // The future decides about further attempts: its first one is the second of this operation. It splits an operation
            // that has become too long for one command.
            (Ok(_), Some(buf), Some(fua)) => {
                self.begin_write(lane, sent.offset, buf, fua);
                None
            }
            (Ok(_), Some(buf), None) => {
                self.begin_read(lane, sent.offset, buf);
                None
            }
            (Ok(cqe), None, _) => ended(Err(error_of(cqe.status)), None),
        }
    }
}

impl BackendQueue for NamespaceQueue {
    fn read(&mut self, lane: usize, offset: u64, buf: Buf) {
        if self.can_send(offset, buf.len())
            && let Some(load) = self.load(buf.len())
        {
            let sqe = self.namespace.blocks_entry(nvm_opcode::READ, offset, buf.len() as u64, 0);
            let mut command = NvmeCommand::new(sqe, Direction::In(buf));
            command.load = load;
            return self.send(lane, command, (offset, None));
        }
        self.begin_read(lane, offset, buf);
    }

    fn write(&mut self, lane: usize, offset: u64, buf: Buf, fua: bool) {
        let len = buf.len() as u64;
        if self.can_send(offset, buf.len())
            && let Some(load) = self.load(buf.len())
            && let Some(hold) = self.namespace.try_hold(offset, len)
        {
            let flags = fua_flag(fua);
            let sqe = self.namespace.blocks_entry(nvm_opcode::WRITE, offset, len, flags);
            let mut command = NvmeCommand::new(sqe, Direction::Out(buf));
            (command.hold, command.load) = (Some(hold), load);
            return self.send(lane, command, (offset, Some(fua)));
        }
        self.begin_write(lane, offset, buf, fua);
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        while let Poll::Ready((lane, key)) = self.ends.poll(cx) {
            let lane = lane as usize;
            let sent = self.sent[lane].take().expect("a completed lane has a sent command");
            let Some(result) = self.io.state.borrow_mut().take_ended(key) else { continue };
            if let Some(ended) = self.end(lane, &sent, result) {
                return Poll::Ready((lane, ended));
            }
        }
        self.slow.poll(cx)
    }
}

impl Drop for NamespaceQueue {
    fn drop(&mut self) {
        let mut state = self.io.state.borrow_mut();
        self.sent.iter().flatten().for_each(|sent| state.abandon(sent.key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multipath::state_after;
    use crate::nvme::status::closed;
    use lunar_wire::nvme::NvmeStatus;

    #[test]
    fn write_whose_data_are_gone_is_no_fault_of_the_path() {
        for error in [closed(), error_of(NvmeStatus::PATH_ERROR)] {
            let is_fault = |buf, writes| {
                let (result, buf) = ended(Err(error.clone()), buf, writes, 512);
                assert_eq!(buf.len(), 512);
                result.err().as_ref().and_then(Error::of).and_then(state_after).is_some()
            };
            assert_eq!([is_fault(None, true), is_fault(None, false)], [false, true], "{error}");
            assert!(is_fault(Some(Buf::zeroed(512)), true), "{error}");
        }
    }
}
