//! Configured upstreams, and addresses of their logical units.

use super::{Key, RoutesInner};
use crate::upstream::Upstream;
use crate::{FoundLun, FoundTarget, sg};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A configured upstream.
#[derive(Clone)]
pub struct UpstreamSpec {
    /// The upstream. For a device of this host, only its names are used.
    pub upstream: Upstream,
    /// The URLs as written, to detect changes. They may contain secrets.
    pub written: Vec<String>,
    /// The mode.
    pub mode: Mode,
}

/// The mode of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The device server of this target executes commands as reads and writes of blocks.
    Block,
    /// Commands are forwarded unchanged.
    Passthrough,
    /// Commands are forwarded unchanged to this SCSI generic device.
    Device(PathBuf),
}

/// The address of a logical unit of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LuAddress {
    /// The routing instance.
    pub router: String,
    /// The upstream.
    pub upstream: String,
    /// The target. Empty for a device of this host.
    pub target: String,
    /// The LUN at the target.
    pub lun: u16,
}

impl LuAddress {
    pub(super) fn key(&self) -> Key {
        (self.router.clone(), self.upstream.clone())
    }
}

impl UpstreamSpec {
    pub(super) fn key(&self) -> Key {
        (self.upstream.router.clone(), self.upstream.name.clone())
    }

    pub(super) fn device(&self) -> Option<(Key, PathBuf)> {
        match &self.mode {
            Mode::Device(path) => Some((self.key(), path.clone())),
            Mode::Block | Mode::Passthrough => None,
        }
    }

    /// The URLs or the device, for people.
    pub(super) fn urls(&self) -> Vec<String> {
        match &self.mode {
            Mode::Device(path) => vec![path.display().to_string()],
            Mode::Block | Mode::Passthrough => self.upstream.urls.plain(),
        }
    }

    /// Whether both have a device or a URL in common.
    pub(super) fn overlaps(&self, other: &UpstreamSpec) -> bool {
        match (&self.mode, &other.mode) {
            (Mode::Device(a), Mode::Device(b)) => a == b,
            _ => self.written.iter().any(|url| other.written.contains(url)),
        }
    }

    /// Whether both have the same URLs or device, and the same settings.
    pub(super) fn is_same(&self, other: &UpstreamSpec) -> bool {
        let (a, b) = (&self.upstream, &other.upstream);
        self.mode == other.mode
            && (a.policy, a.path_loss_timeout, &a.identity, a.fence, &self.written)
                == (b.policy, b.path_loss_timeout, &b.identity, b.fence, &other.written)
    }
}

/// Whether both maps have the same upstreams with the same settings.
pub(super) fn are_alike(some: &BTreeMap<Key, UpstreamSpec>, others: &BTreeMap<Key, UpstreamSpec>) -> bool {
    let is_there =
        |(key, spec): (&Key, &UpstreamSpec)| others.get(key).is_some_and(|other| other.is_same(spec));
    some.len() == others.len() && some.iter().all(is_there)
}

/// The interval of checks for SCSI devices of this host.
const AGAIN: Duration = Duration::from_secs(5);

/// Waits for a SCSI device of this host, and again after its removal. If another device appears at the path of a
/// known one, it is logged and not served, because sg numbers may change.
pub(super) async fn attend_device(key: Key, path: PathBuf, shared: Arc<RoutesInner>) {
    let mut is_there = false;
    loop {
        if is_there && shared.has_gone(&key) {
            is_there = false;
            shared.set_obstacle(&key, Some(format!("the SCSI device {} was removed", path.display())));
        }
        if !is_there {
            let seen = shared.learn_device(&key, &path).await;
            is_there = seen.is_ok();
            shared.set_obstacle(&key, seen.err().map(|e| format!("{}: {e}", path.display())));
        }
        compio::time::sleep(AGAIN).await;
    }
}

impl RoutesInner {
    /// Whether an open device was removed. Closes it, so that the kernel can reuse its number.
    fn has_gone(&self, key: &Key) -> bool {
        let device = self.state().open_lus.device(key).filter(|device| device.is_gone());
        device.iter().for_each(|device| device.close());
        device.is_some()
    }

    /// Sets the reason why an upstream is unreachable. Logs a new reason.
    fn set_obstacle(&self, key: &Key, why: Option<String>) {
        let state = self.state();
        let Some(spec) = state.specs.get(key) else { return };
        let mut obstacle = spec.upstream.obstacle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = why.as_ref().filter(|why| obstacle.as_ref() != Some(why)) {
            tracing::error!(name: "upstream.unreachable", router = key.0, upstream = key.1, "{why}");
        }
        *obstacle = why;
    }

    async fn learn_device(&self, key: &Key, path: &Path) -> Result<(), String> {
        let device = sg::Device::open(path).map_err(|e| e.to_string())?;
        let lun = device.properties().await.map_err(|e| e.to_string())?;
        let mut state = self.state();
        let wanted = state.specs.get(key).and_then(|spec| spec.upstream.identity.clone());
        let known = state.found.targets(&key.0, &key.1).first().and_then(|target| target.luns.get(&0));
        is_meant(&lun, known, wanted.as_deref())?;
        if let Some(used) = state.open_lus.device(key).filter(|used| used.is_gone()) {
            used.replace(&device);
            tracing::info!(
                name: "upstream.usable",
                router = key.0,
                upstream = key.1,
                "the SCSI device {} is available again",
                path.display()
            );
        }
        let target = FoundTarget { luns: [(0, lun)].into(), ..FoundTarget::default() };
        state.found.0.insert(key.clone(), vec![target]);
        drop(state);
        (self.changed)();
        Ok(())
    }
}

/// Checks that a device is the known one, and has the configured identity.
fn is_meant(seen: &FoundLun, known: Option<&FoundLun>, wanted: Option<&str>) -> Result<(), String> {
    if known.is_some_and(|known| !known.is_same(seen)) {
        return Err(
            "the path now leads to another device; hint: configure the new path of the old device".into()
        );
    }
    match wanted.filter(|wanted| !lunar_initiator::is_named(&seen.designators, wanted)) {
        Some(wanted) => {
            Err(format!("the device has the identity {}, but `identity` requires {wanted}", seen.name()))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_known_by_its_designators_or_else_by_its_texts() {
        let named =
            FoundLun { designators: vec![1, 3, 0, 8, 0x50, 1, 2, 3, 4, 5, 6, 7], ..FoundLun::default() };
        let text = |vendor: &str, serial: &str| FoundLun {
            vendor: vendor.into(),
            serial: serial.into(),
            ..FoundLun::default()
        };
        for (seen, known, is_it) in [
            (&named, &named, true),
            (&FoundLun { serial: "2".into(), ..named.clone() }, &named, true),
            (&text("", ""), &named, false),
            (&text("A", "1"), &text("A", "1"), true),
            (&text("A", "1"), &text("A", "2"), false),
            (&text("A", ""), &text("B", ""), false),
        ] {
            assert_eq!(is_meant(seen, Some(known), None).is_ok(), is_it, "{seen:?} {known:?}");
        }
        let wanted = "naa.5001020304050607";
        assert_eq!(is_meant(&named, None, Some(wanted)), Ok(()));
        let other = is_meant(&text("A", "1"), None, Some(wanted)).expect_err("another logical unit");
        assert!(other.contains("the device has the identity A  1") && other.contains(wanted), "{other}");
    }
}
