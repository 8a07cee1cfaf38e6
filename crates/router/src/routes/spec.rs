//! What is wanted: upstreams, and logical units of them.

use super::{Key, Shared};
use crate::FoundTarget;
use crate::sg;
use crate::upstream::Upstream;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// An upstream that is to be found.
#[derive(Clone)]
pub struct Spec {
    /// Where it is; of a device of this host only its names count.
    pub upstream: Upstream,
    /// Its URLs as they are written, by which a change is seen. They may hold secrets.
    pub written: Vec<String>,
    /// How commands go there.
    pub how: How,
}

/// How commands go to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// This target speaks for it: blocks are read and written.
    Block,
    /// They are carried there as they are.
    Pass,
    /// They are handed to this SCSI generic device as they are.
    Device(PathBuf),
}

/// A logical unit of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The routing instance.
    pub router: String,
    /// The upstream.
    pub upstream: String,
    /// The target there; empty for a device of this host.
    pub target: String,
    /// LUN there.
    pub lun: u16,
}

impl Place {
    pub(super) fn key(&self) -> Key {
        (self.router.clone(), self.upstream.clone())
    }
}

impl Spec {
    pub(super) fn key(&self) -> Key {
        (self.upstream.router.clone(), self.upstream.name.clone())
    }

    pub(super) fn device(&self) -> Option<(Key, PathBuf)> {
        match &self.how {
            How::Device(path) => Some((self.key(), path.clone())),
            How::Block | How::Pass => None,
        }
    }

    /// Where it is, for people.
    pub(super) fn places(&self) -> Vec<String> {
        match &self.how {
            How::Device(path) => vec![path.display().to_string()],
            How::Block | How::Pass => self.upstream.urls.iter().map(|url| url.plain()).collect(),
        }
    }

    /// It leads to the same place, whatever else has changed.
    pub(super) fn meets(&self, other: &Spec) -> bool {
        match (&self.how, &other.how) {
            (How::Device(a), How::Device(b)) => a == b,
            _ => self.written.iter().any(|url| other.written.contains(url)),
        }
    }

    /// It leads to the same place in the same way.
    pub(super) fn is_as(&self, other: &Spec) -> bool {
        let (a, b) = (&self.upstream, &other.upstream);
        self.how == other.how
            && (a.policy, a.hold, &a.identity, a.fence, &self.written)
                == (b.policy, b.hold, &b.identity, b.fence, &other.written)
    }
}

/// How often SCSI devices of this host are looked for that are not there.
const AGAIN: Duration = Duration::from_secs(10);

/// Looks at a SCSI device of this host until it is there. Another one in the place of one that is known is told, and
/// not served: numbers of sg devices move.
pub(super) async fn attend_device(key: Key, path: PathBuf, shared: Arc<Shared>) {
    let mut last = None;
    loop {
        let seen = device(&path).await.map_err(|e| e.to_string());
        let seen = seen.and_then(|target| shared.learn_device(&key, target));
        match seen {
            Ok(()) => return,
            Err(e) if last.as_ref() != Some(&e) => {
                tracing::error!(router = key.0, upstream = key.1, "{}: {e}", path.display());
                last = Some(e);
            }
            Err(_) => {}
        }
        compio::time::sleep(AGAIN).await;
    }
}

impl Shared {
    fn learn_device(&self, key: &Key, target: FoundTarget) -> Result<(), String> {
        let mut state = self.state();
        let name = |t: &FoundTarget| t.luns.get(&0).map(|lun| (lun.designators.clone(), lun.serial.clone()));
        let known = state.found.targets(&key.0, &key.1).first();
        if known.is_some_and(|known| name(known) != name(&target)) {
            return Err("another device than the one that was there: name it by its new number".into());
        }
        state.found.0.insert(key.clone(), vec![target]);
        drop(state);
        (self.changed)();
        Ok(())
    }
}

async fn device(path: &Path) -> io::Result<FoundTarget> {
    let device = sg::Device::open(path)?;
    let lun = device.properties().await?;
    Ok(FoundTarget { luns: [(0, lun)].into(), ..FoundTarget::default() })
}
