//! The state of a logical unit that all cores and paths share: its expected identity, its properties and its health.

use super::health::HealthMonitor;
use crate::FoundLun;
use crate::failover::IoGate;
use crate::identity_change::IdentityChange;
use crate::isids::RouterIsids;
use event_listener::Event;
use lunar_block::BackendInfo;
use lunar_initiator::{Error, ErrorCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const READ_ONLY: u8 = 1;
const UNMAP: u8 = 2;
const STABLE: u8 = 4;

/// An upstream logical unit.
pub struct LuContext {
    /// The routing instance.
    pub router: String,
    /// The upstream.
    pub upstream: String,
    /// The discovered target.
    pub target: String,
    /// The discovered LUN.
    pub lun: u16,
    /// The discovered identity. Every path must lead to it.
    pub found: FoundLun,
    /// The time for which commands wait for it.
    pub path_loss_timeout: Duration,
    /// Notified when there may be other logical units.
    pub rediscover: Arc<Event>,
    /// Notified when its identity may have changed.
    pub recheck: Arc<Event>,
    /// Reports resets upstream: one event for all resets before the next receive.
    pub resets: (flume::Sender<()>, flume::Receiver<()>),
    /// Its health.
    pub monitor: HealthMonitor,
    /// The gate, in a failover pair.
    pub gate: Option<Arc<IoGate>>,
    /// The ISIDs of its sessions.
    pub isids: Option<Arc<RouterIsids>>,
    capacity: AtomicU64,
    flags: AtomicU8,
}

impl LuContext {
    /// Creates the state of a discovered logical unit. Unknown properties get the value that loses no data.
    pub fn new(upstream: &super::Upstream, target: &str, lun: u16, found: FoundLun) -> LuContext {
        let flags = if found.read_only { READ_ONLY } else { 0 } | if found.thin { UNMAP } else { 0 };
        LuContext {
            router: upstream.router.clone(),
            upstream: upstream.name.clone(),
            target: target.to_owned(),
            lun,
            path_loss_timeout: upstream.path_loss_timeout,
            rediscover: upstream.rediscover.clone(),
            recheck: upstream.recheck.clone(),
            resets: flume::bounded(1),
            monitor: HealthMonitor::default(),
            isids: upstream.isids.clone(),
            gate: upstream.fence.map(|key| Arc::new(IoGate::new(key))),
            capacity: AtomicU64::new(found.capacity),
            flags: AtomicU8::new(flags),
            found,
        }
    }

    /// The current properties.
    #[inline]
    pub fn info(&self) -> BackendInfo {
        let flags = self.flags.load(Relaxed);
        BackendInfo {
            capacity: self.capacity.load(Relaxed),
            read_only: flags & READ_ONLY != 0,
            unmap: flags & UNMAP != 0,
            null: false,
            remote: true,
            write_through: flags & STABLE != 0,
        }
    }

    /// Stores the properties that a path has read. Returns true if they changed.
    pub fn learn(&self, seen: BackendInfo) -> bool {
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let flags =
            flag(seen.read_only, READ_ONLY) | flag(seen.unmap, UNMAP) | flag(seen.write_through, STABLE);
        let other = self.flags.swap(flags, Relaxed) != flags;
        (self.capacity.swap(seen.capacity, Relaxed) != seen.capacity) | other
    }

    /// Checks that a path leads to this logical unit.
    ///
    /// # Errors
    /// [`ErrorCode::IdentityMismatch`] with the expected and the present identity.
    pub fn recognise(&self, seen: &FoundLun) -> Result<(), Error> {
        if !self.found.is_same(seen) {
            return Err(Error::new(ErrorCode::IdentityMismatch, seen.name()));
        }
        if seen.block_size != self.found.block_size {
            let what = format!("{}, but with blocks of {} bytes", self.was(), seen.block_size);
            return Err(Error::new(ErrorCode::IdentityMismatch, what));
        }
        Ok(())
    }

    /// The discovered identity, for people.
    pub fn was(&self) -> String {
        self.found.name()
    }

    /// Records that it was reset upstream, or may have been.
    pub fn record_reset(&self) {
        // Full: an event is already pending.
        _ = self.resets.0.try_send(());
    }

    /// Logs that a path leads to another logical unit.
    pub fn log_change(&self, path: &str, now: &str) {
        let LuContext { router, upstream, target, lun, .. } = self;
        IdentityChange { router, upstream, target, lun: *lun, path, was: &self.was(), now }.log();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::Upstream;
    use lunar_initiator::Properties;

    const NAA: [u8; 12] = [1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7];

    fn context(designators: &[u8]) -> LuContext {
        let found = FoundLun {
            vendor: "LUNAR".into(),
            product: "DISK".into(),
            serial: "7".into(),
            block_size: 512,
            capacity: 4096,
            designators: designators.to_vec(),
            ..FoundLun::default()
        };
        LuContext::new(&Upstream::new("r", "a", Vec::<lunar_initiator::Url>::new()), "iqn.x:y", 0, found)
    }

    fn seen(serial: &str, identity: &[u8], block_size: u32) -> Properties {
        let mut p = Properties::default();
        (p.vendor, p.product, p.serial) = ("LUNAR".into(), "DISK".into(), Some(serial.into()));
        (p.identity, p.block_size) = (identity.to_vec(), block_size);
        p
    }

    #[test]
    fn lu_identity_is_designators_or_serial_number() {
        let other = [1, 3, 0, 8, 0x60, 9, 9, 9, 9, 9, 9, 9];
        for (had, p, is_it) in [
            (&NAA[..], seen("7", &NAA, 512), true),
            (&NAA, seen("8", &NAA, 512), true),
            (&NAA, seen("7", &other, 512), false),
            (&NAA, seen("7", &[], 512), false),
            (&NAA, seen("7", &NAA, 4096), false),
            (&[], seen("7", &[], 512), true),
            (&[], seen("8", &[], 512), false),
            (&[], seen("7", &NAA, 512), false),
        ] {
            let result = context(had).recognise(&p.clone().into());
            assert_eq!(result.is_ok(), is_it, "{had:02x?} {p:?}");
            assert!(result.err().is_none_or(|e| e.code == ErrorCode::IdentityMismatch));
        }
        let error =
            context(&NAA).recognise(&seen("7", &other, 512).into()).expect_err("another logical unit");
        assert_eq!(
            (context(&NAA).was().as_str(), error.what.as_str()),
            ("naa.6001020304050607", "naa.6009090909090909")
        );
    }

    #[test]
    fn learned_fact_is_logged_once() {
        let context = context(&NAA);
        let mut info = context.info();
        assert_eq!((info.capacity, info.write_through), (4096, false));
        assert!(!context.learn(info));
        info.capacity = 8192;
        info.write_through = true;
        assert!(context.learn(info) && !context.learn(info));
        assert_eq!(context.info(), info);
    }
}
