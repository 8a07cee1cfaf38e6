//! The filters of a LUN.

use crate::config::{Fail, Filter, LunConfig};
use lunar_block::Backend;
use std::sync::Arc;
use std::time::Duration;

/// Wraps a medium in the filters of a LUN.
pub(super) fn filtered(medium: Arc<dyn Backend>, lun: &LunConfig) -> Arc<dyn Backend> {
    lun.filters.iter().fold(medium, |inner, filter| match *filter {
        Filter::Stats => lunar_block::filter::stats(inner).0,
        Filter::Delay { read_us, write_us } => {
            lunar_block::filter::delay(inner, Duration::from_micros(read_us), Duration::from_micros(write_us))
        }
        Filter::Rate { iops, bytes_per_s } => {
            lunar_block::filter::rate(inner, lunar_block::filter::RateLimit::new(iops, bytes_per_s))
        }
        Filter::Error { rate, op } => lunar_block::filter::error(inner, op_of(op), rate, None),
    })
}

fn op_of(fail: Fail) -> lunar_block::filter::FilterOp {
    match fail {
        Fail::Read => lunar_block::filter::FilterOp::Read,
        Fail::Write => lunar_block::filter::FilterOp::Write,
        Fail::Flush => lunar_block::filter::FilterOp::Flush,
    }
}
