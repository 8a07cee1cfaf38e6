//! Batched reads and writes of one owner over the paths of this core, with the same gate and error mapping as single ones.

use super::UpstreamLu;
use crate::failover::IoPermit;
use lunar_block::{BackendQueue, BufResult};
use lunar_runtime::Buf;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The queued reads and writes of one owner.
pub struct UpstreamQueue {
    remote: Arc<UpstreamLu>,
    queue: Box<dyn BackendQueue>,
    /// In a failover pair, the permits of admitted operations, by lane.
    inside: Vec<Option<IoPermit>>,
    /// Operations that were not admitted.
    refused: Vec<(usize, io::Error, Buf)>,
}

impl UpstreamQueue {
    /// Wraps the queue of a core's paths.
    pub fn new(remote: Arc<UpstreamLu>, queue: Box<dyn BackendQueue>) -> UpstreamQueue {
        UpstreamQueue { remote, queue, inside: Vec::new(), refused: Vec::new() }
    }

    /// Admits a command, and returns its buffer. None if it is rejected.
    fn enter(&mut self, lane: usize, buf: Buf) -> Option<Buf> {
        match self.remote.enter_gate() {
            Ok(None) => {}
            Ok(inside) => {
                if lane >= self.inside.len() {
                    self.inside.resize_with(lane + 1, || None);
                }
                self.inside[lane] = inside;
            }
            Err(e) => {
                self.refused.push((lane, e, buf));
                return None;
            }
        }
        Some(buf)
    }
}

impl BackendQueue for UpstreamQueue {
    fn read(&mut self, lane: usize, offset: u64, buf: Buf) {
        if let Some(buf) = self.enter(lane, buf) {
            self.queue.read(lane, offset, buf);
        }
    }

    fn write(&mut self, lane: usize, offset: u64, buf: Buf, fua: bool) {
        if let Some(buf) = self.enter(lane, buf) {
            self.remote.writes();
            self.queue.write(lane, offset, buf, fua);
        }
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        if let Some((lane, e, buf)) = self.refused.pop() {
            return Poll::Ready((lane, (Err(e), buf)));
        }
        let Poll::Ready((lane, (result, buf))) = self.queue.poll_ended(cx) else { return Poll::Pending };
        drop(self.inside.get_mut(lane).and_then(Option::take));
        Poll::Ready((lane, (result.map_err(|e| self.remote.with_scsi_error(e)), buf)))
    }
}
