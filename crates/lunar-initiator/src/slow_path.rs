//! Queue operations that take more than one step. Each has a future and its lane.

use lunar_block::{BufResult, LocalBoxFuture};
use std::task::{Context, Poll};

/// Operations with futures.
#[derive(Default)]
pub struct SlowPath(Vec<(usize, LocalBoxFuture<'static, BufResult>)>);

impl SlowPath {
    /// Starts the operation of a lane. It progresses only when polled.
    pub fn begin(&mut self, lane: usize, end: impl std::future::Future<Output = BufResult> + 'static) {
        self.0.push((lane, Box::pin(end)));
    }

    /// Polls for the next completed operation.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        for (at, (lane, end)) in self.0.iter_mut().enumerate() {
            if let Poll::Ready(finished) = end.as_mut().poll(cx) {
                let lane = *lane;
                drop(self.0.swap_remove(at));
                return Poll::Ready((lane, finished));
            }
        }
        Poll::Pending
    }
}
