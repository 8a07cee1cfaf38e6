//! Long reads from a remote medium: data that have arrived go to the initiator while the rest is being read
//! (cut-through).

use super::data_in::DataIn;
use super::front_end::FrontEnd;
use super::nexus::TransferParts;
use super::task_execution::TaskExecution;
use crate::LogicalUnit;
use crate::exec::{self, ExecutionOutput, ExecutionResult};
use lunar_runtime::Buf;
use lunar_scsi::CommandError;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Maximum number of parts that are read at the same time.
const PARALLEL_PARTS: usize = 8;
/// The same until the first part has arrived. More would delay the first.
const PARALLEL_PARTS_AT_FIRST: usize = 1;

/// Buffers of a READ: one, or one for each part.
#[derive(Default)]
pub struct ReadBuffers {
    /// The first, or the only one.
    pub first: Option<Buf>,
    /// Those of further parts.
    pub rest: Vec<Buf>,
}

impl ReadBuffers {
    /// The buffer of a read in one part, if it is large enough.
    pub fn whole(self, len: usize) -> Option<Buf> {
        self.first.filter(|b| b.capacity() >= len)
    }

    /// Whether the read has several parts whose lengths sum to `len`.
    pub fn is_cut_to(&self, len: usize) -> bool {
        !self.rest.is_empty() && self.first.iter().chain(&self.rest).map(|b| b.len()).sum::<usize>() == len
    }
}

/// The lengths of the parts of a read. The first part is short, so that the initiator gets its first data early.
pub fn lengths(len: usize, stride: Option<usize>) -> impl Iterator<Item = usize> {
    let stride = stride.filter(|stride| *stride >= 4096 && len > *stride);
    let short = stride.map_or(len, |stride| stride / 4);
    let mut left = len;
    let part = move |n: usize| {
        let max = match (n, stride) {
            (0, _) | (_, None) => short,
            (1, Some(stride)) => stride - short,
            (_, Some(stride)) => stride,
        };
        let part = max.min(left);
        left -= part;
        (part > 0).then_some(part)
    };
    (0..).map_while(part)
}

/// A part that is being read or has been read.
enum PendingRead<'a> {
    Coming(lunar_block::LocalBoxFuture<'a, Result<Buf, CommandError>>),
    Here(Result<Buf, CommandError>),
}

impl PendingRead<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) {
        if let PendingRead::Coming(read) = self
            && let Poll::Ready(result) = read.as_mut().poll(cx)
        {
            *self = PendingRead::Here(result);
        }
    }
}

/// Waits for the first part. The others make progress meanwhile.
async fn first(parts: &mut VecDeque<PendingRead<'_>>) -> Option<Result<Buf, CommandError>> {
    poll_fn(|cx| {
        parts.iter_mut().for_each(|part| part.poll(cx));
        match parts.pop_front() {
            Some(PendingRead::Here(result)) => Poll::Ready(Some(result)),
            Some(coming) => {
                parts.push_front(coming);
                Poll::Pending
            }
            None => Poll::Ready(None),
        }
    })
    .await
}

impl<F: FrontEnd> TaskExecution<F> {
    /// Reads part by part, and sends each part when it has arrived. The last part is returned, and goes with the
    /// response. After a failure it waits for the parts that are being read, and does not send them.
    pub async fn read_in_parts(
        &self,
        unit: &Arc<LogicalUnit>,
        mut offset: u64,
        buffers: ReadBuffers,
    ) -> ExecutionResult {
        let mut buffers: VecDeque<Buf> = buffers.first.into_iter().chain(buffers.rest).collect();
        let (mut parts, mut last, mut failed, mut ahead) =
            (VecDeque::new(), None, None, PARALLEL_PARTS_AT_FIRST);
        loop {
            while failed.is_none()
                && parts.len() < ahead
                && let Some(buf) = buffers.pop_front()
            {
                let at = offset;
                offset += buf.len() as u64;
                parts.push_back(PendingRead::Coming(Box::pin(exec::read_part(unit, at, buf))));
            }
            let Some(result) = first(&mut parts).await else { break };
            ahead = PARALLEL_PARTS;
            match result {
                Err(failure) => failed = failed.or(Some(failure)),
                Ok(_) if failed.is_some() => {}
                Ok(buf) if parts.is_empty() && buffers.is_empty() => last = Some(buf),
                Ok(buf) => self.send_part(buf),
            }
        }
        match (failed, last) {
            (Some(failure), _) => Err(failure),
            (None, Some(last)) => Ok(ExecutionOutput::Medium(last)),
            (None, None) => Ok(ExecutionOutput::Good),
        }
    }

    /// Sends a part of the Data-In, unless the command was aborted.
    pub fn send_part(&self, part: Buf) {
        let tag = self.command().tag;
        let mut state = self.nexus().state();
        if state.is_aborted(tag, self.serial()) {
            return;
        }
        let TransferParts { tasks, front, .. } = state.transfer_parts();
        let Some(task) = tasks.find_mut(tag, self.serial()) else { return };
        let len = part.len();
        task.send_part(|sent| front.data_in(self.command(), DataIn::Buf(part, len), sent));
        drop(state);
        // Flush now: the request for the next parts does not use this send queue, and would leave before this part.
        F::flush(self.nexus());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_read_first_part_is_short() {
        let cut = |len, stride| lengths(len, stride).collect::<Vec<_>>();
        assert_eq!(cut(1000, None), [1000]);
        assert_eq!(cut(8192, Some(8192)), [8192]);
        assert_eq!(cut(8704, Some(8192)), [2048, 6144, 512]);
        assert_eq!(cut(32768, Some(8192)), [2048, 6144, 8192, 8192, 8192]);
        assert_eq!(cut(0, Some(8192)), [] as [usize; 0]);
    }
}
