//! Waits for a condition, such as LUNs that a router shows after it has found them upstream.

use crate::login::Login;
use crate::raw::{Raw, patience};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Longer than the probe interval of a router.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `look` returns a value. Fails after 30 s, or after [`patience`] if that is longer, and prints `what`.
pub fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + PATIENCE.max(patience());
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "timed out while waiting: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A session, as soon as its target shows exactly these LUNs. Their unit attentions are cleared.
pub fn session(login: &Login, portal: SocketAddr, luns: &[u16]) -> Raw {
    until(&format!("LUNs {luns:?} of {:?}", login.keys), || {
        let mut raw = login.try_on(portal).ok()?;
        (raw.luns() == luns).then(|| {
            luns.iter().for_each(|lun| raw.clear_attentions(*lun));
            raw
        })
    })
}

impl Raw {
    /// The LUNs that the target shows (REPORT LUNS).
    pub fn luns(&mut self) -> Vec<u16> {
        let list = self.read(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], 1024).good();
        list[8..].chunks_exact(8).map(|lun| u16::from_be_bytes([lun[0] & 0x3f, lun[1]])).collect()
    }
}
