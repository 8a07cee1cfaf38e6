//! The filters of a LUN.

use crate::config::{Fail, Filter, Lun};
use block::Backend;
use std::sync::Arc;
use std::time::Duration;

/// The medium inside of its filters.
pub(super) fn filtered(medium: Arc<dyn Backend>, lun: &Lun) -> Arc<dyn Backend> {
    lun.filters.iter().fold(medium, |inner, filter| match *filter {
        Filter::Stats => block::filter::stats(inner).0,
        Filter::Delay { read_us, write_us } => {
            block::filter::delay(inner, Duration::from_micros(read_us), Duration::from_micros(write_us))
        }
        Filter::Rate { iops, bytes_per_s } => {
            block::filter::rate(inner, block::filter::Rate::new(iops, bytes_per_s))
        }
        Filter::Error { rate, op } => block::filter::error(inner, op_of(op), rate, None),
    })
}

fn op_of(fail: Fail) -> block::filter::Op {
    match fail {
        Fail::Read => block::filter::Op::Read,
        Fail::Write => block::filter::Op::Write,
        Fail::Flush => block::filter::Op::Flush,
    }
}
