//! A filter that delays operations.

use super::{Filter, FilterOp, Hook};
use crate::{Backend, describe_row};
use std::io;
use std::sync::Arc;
use std::time::Duration;

struct DelayFilter {
    read: Duration,
    write: Duration,
}

/// Delays each read by `read`, and each write, UNMAP and WRITE ZEROES by `write`. Flushes are not delayed.
pub fn delay(inner: Arc<dyn Backend>, read: Duration, write: Duration) -> Arc<dyn Backend> {
    Filter::wrap(inner, DelayFilter { read, write })
}

impl DelayFilter {
    fn of(&self, op: FilterOp) -> Duration {
        match op {
            FilterOp::Read => self.read,
            FilterOp::Write | FilterOp::Clear => self.write,
            FilterOp::Flush => Duration::ZERO,
        }
    }
}

impl Hook for DelayFilter {
    fn now(&self, op: FilterOp, _bytes: u64) -> bool {
        self.of(op).is_zero()
    }

    fn before(&self, op: FilterOp, _bytes: u64) -> (Duration, io::Result<()>) {
        (self.of(op), Ok(()))
    }

    fn describe(&self) -> Vec<(String, String)> {
        vec![
            describe_row("filter", "delay"),
            describe_row("read_us", self.read.as_micros()),
            describe_row("write_us", self.write.as_micros()),
        ]
    }
}
