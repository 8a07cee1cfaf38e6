//! Limits the connections and the log lines of peers, none of which is known yet.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Maximum number of connections of one address; of IPv6, of one network of 64 bits.
pub const MAX_OF_PEER: usize = 16;

/// Connections by peer.
#[derive(Clone, Default)]
pub struct PeerCounts(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection of a peer. Dropping it makes room for another one.
pub struct PeerConnection {
    counts: PeerCounts,
    peer: IpAddr,
}

impl PeerCounts {
    /// Counts a connection. None: the peer has too many.
    pub fn enter(&self, address: IpAddr) -> Option<PeerConnection> {
        let peer = network(address);
        let mut counts = self.lock();
        let count = counts.entry(peer).or_default();
        if *count >= MAX_OF_PEER {
            return None;
        }
        *count += 1;
        Some(PeerConnection { counts: self.clone(), peer })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

/// The network that one host can have for itself.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

/// Allows one log line a second, so that no peer fills the log.
pub struct LogThrottle {
    start: Instant,
    /// The second from which a line is allowed.
    next: AtomicU64,
}

impl LogThrottle {
    /// Allows a line at once.
    pub fn new() -> LogThrottle {
        LogThrottle { start: Instant::now(), next: AtomicU64::new(0) }
    }

    /// Whether a line may be written now.
    pub fn allows(&self) -> bool {
        let now = self.start.elapsed().as_secs();
        let later = |next| (next <= now).then_some(now + 1);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_a_network_are_limited_together() {
        let counts = PeerCounts::default();
        let at = |text: &str| counts.enter(text.parse().unwrap());
        let held: Vec<_> = (0..MAX_OF_PEER).map(|n| at(&format!("2001:db8::{n:x}")).unwrap()).collect();
        assert!(at("2001:db8::ffff").is_none() && at("2001:db8:0:1::1").is_some());
        let v4: Vec<_> = (0..MAX_OF_PEER).map(|_| at("192.0.2.1").unwrap()).collect();
        assert!(at("::ffff:192.0.2.1").is_none() && at("192.0.2.2").is_some());
        drop((held, v4));
        assert!(at("2001:db8::1").is_some() && counts.lock().is_empty());
    }

    #[test]
    fn second_line_of_a_second_is_suppressed() {
        let log = LogThrottle::new();
        assert!(log.allows());
        assert!((0..100).filter(|_| log.allows()).count() < 100);
    }
}
