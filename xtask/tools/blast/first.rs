//! Measures the time from a READ to its first data, with one command in flight.

use std::time::Instant;

use crate::latency::LatencyHistogram;

/// The maximum bytes of one receive: a longer one would add its copying time.
pub const RECEIVE: usize = 16 << 10;

/// The pending times, and the measured ones.
#[derive(Debug, Default)]
pub struct FirstDataTimer {
    byte_since: Option<Instant>,
    pdu_since: Option<Instant>,
    /// From sending a READ to the first byte of its data
    pub byte: LatencyHistogram,
    /// From sending a READ to the last byte of its first Data-In
    pub pdu: LatencyHistogram,
}

impl FirstDataTimer {
    /// A READ is being sent.
    pub fn sent(&mut self, now: Instant) {
        (self.byte_since, self.pdu_since) = (Some(now), Some(now));
    }

    /// Data of a segment has arrived, or its `whole` rest.
    pub fn data(&mut self, now: Instant, whole: bool) {
        count(&mut self.byte, &mut self.byte_since, now);
        if whole {
            count(&mut self.pdu, &mut self.pdu_since, now);
        }
    }
}

fn count(latency: &mut LatencyHistogram, since: &mut Option<Instant>, now: Instant) {
    if let Some(since) = since.take() {
        latency.count((now - since).as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_first_data_of_a_command_counts() {
        let (mut first, start) = (FirstDataTimer::default(), Instant::now());
        let at = |us| start + Duration::from_micros(us);
        first.sent(start);
        first.data(at(10), false);
        first.data(at(20), false);
        first.data(at(30), true);
        first.data(at(70), true);
        assert_eq!((first.byte.quantile_us(1.0), first.pdu.quantile_us(1.0)), (10.0, 30.0));
        first.sent(at(100));
        first.data(at(105), true);
        assert_eq!((first.byte.quantile_us(0.1), first.pdu.quantile_us(0.1)), (5.0, 5.0));
    }
}
