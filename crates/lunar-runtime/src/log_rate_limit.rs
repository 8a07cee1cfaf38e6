//! Rate limits for log lines that remote peers can cause.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines of one address in each window.
const LINES: u32 = 10;
/// Lines of all addresses in each window.
const OF_ALL: u32 = 50;
/// The length of a window.
const STRETCH: Duration = Duration::from_secs(10);

/// A limit without addresses: the first line at once, then one line a minute with the number of suppressed ones.
#[derive(Default)]
pub struct OncePerMinute(Mutex<(Option<Instant>, u64)>);

const MINUTE: Duration = Duration::from_secs(60);

impl OncePerMinute {
    /// Some if a line may be written now, with the number of lines suppressed since the last one, if any.
    pub fn may(&self, now: Instant) -> Option<Option<u64>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, left_out) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < MINUTE) {
            *left_out += 1;
            return None;
        }
        *last = Some(now);
        Some(Some(std::mem::take(left_out)).filter(|left_out| *left_out > 0))
    }
}

/// A limit per address and in total, which counts suppressed lines.
#[derive(Default)]
pub struct LogRateLimit(Mutex<State>);

#[derive(Default)]
struct State {
    started_at: Option<Instant>,
    lines: u32,
    /// Lines per address in this window: at most as many entries as lines.
    by_address: BTreeMap<IpAddr, u32>,
    left_out: u64,
}

impl LogRateLimit {
    /// Some if a line may be written now, with the number of lines suppressed since the last one, if any.
    pub fn may(&self, now: Instant) -> Option<Option<u64>> {
        self.state(now).write(|state| state.lines < LINES)
    }

    /// As [`LogRateLimit::may`] for one address: a flooding address leaves room for others.
    pub fn may_of(&self, address: IpAddr, now: Instant) -> Option<Option<u64>> {
        let address = network(address);
        let mut state = self.state(now);
        let of_address = state.by_address.get(&address).copied().unwrap_or(0);
        let written = state.write(|state| state.lines < OF_ALL && of_address < LINES);
        if written.is_some() {
            state.by_address.insert(address, of_address + 1);
        }
        written
    }

    fn state(&self, now: Instant) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.started_at.is_none_or(|started_at| now.saturating_duration_since(started_at) >= STRETCH) {
            *state = State { started_at: Some(now), left_out: state.left_out, ..State::default() };
        }
        state
    }
}

impl State {
    fn write(&mut self, may: impl FnOnce(&State) -> bool) -> Option<Option<u64>> {
        if !may(self) {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(Some(std::mem::take(&mut self.left_out)).filter(|left_out| *left_out > 0))
    }
}

/// The key of an address: an IPv6 host has a whole /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_logs_its_first_lines_and_a_count() {
        let (seldom, now) = (LogRateLimit::default(), Instant::now());
        let counts = (0..1000).filter_map(|_| seldom.may(now)).collect::<Vec<_>>();
        assert_eq!(counts, [None; LINES as usize]);
        assert_eq!(seldom.may(now + STRETCH), Some(Some(1000 - LINES as u64)));
        assert_eq!(seldom.may(now + STRETCH), Some(None));
    }

    #[test]
    fn kind_of_line_is_written_once_a_minute() {
        let (kind, now) = (OncePerMinute::default(), Instant::now());
        assert_eq!((0..300).filter_map(|_| kind.may(now)).collect::<Vec<_>>(), [None]);
        assert_eq!(kind.may(now + MINUTE), Some(Some(299)));
    }

    #[test]
    fn flood_of_one_address_leaves_lines_to_others() {
        let (seldom, now) = (LogRateLimit::default(), Instant::now());
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let lines = |from: &str| (0..100).filter(|_| seldom.may_of(address(from), now).is_some()).count();
        assert_eq!(lines("192.0.2.1"), LINES as usize);
        assert_eq!(lines("::ffff:192.0.2.1"), 0, "the same host");
        assert_eq!((lines("2001:db8::1"), lines("2001:db8::2")), (LINES as usize, 0), "the same network");
        let others: usize = (2..200).map(|n| lines(&format!("192.0.2.{n}"))).sum();
        assert_eq!(others, (OF_ALL - 2 * LINES) as usize, "the total is bounded");
        // 90 of 192.0.2.4 and all 100 of each later address: the last allowed line was the tenth of 192.0.2.4.
        let left_out = 90 + 195 * 100;
        assert_eq!(seldom.may_of(address("192.0.2.1"), now + STRETCH), Some(Some(left_out)));
    }
}
