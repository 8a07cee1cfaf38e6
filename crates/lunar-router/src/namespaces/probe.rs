//! Discovery of the namespaces of a subsystem.

use super::found::found;
use super::{lun_of, options, with_timeouts};
use crate::upstream::Upstream;
use crate::{FoundLun, FoundTarget};
use lunar_block::Backend;
use lunar_initiator::nvme::{self, NvmeController, NvmeNamespace, NvmeUrl};
use lunar_initiator::{Error, ErrorCode};
use std::collections::BTreeMap;
use std::time::Duration;

/// Probes the namespaces of a subsystem, or one of them, through the first URL that works. The subsystem is a target with
/// the name of the first URL.
///
/// # Errors
/// Those of the last URL, if none works; [`ErrorCode::NotFound`] when the only namespace does not exist.
pub async fn probe(upstream: &Upstream, urls: &[NvmeUrl]) -> Result<Vec<FoundTarget>, Error> {
    let mut last = Error::new(ErrorCode::InvalidArgument, format!("upstream {} has no URL", upstream.name));
    let first = urls.first();
    for url in with_timeouts(urls)? {
        match through(&url).await {
            Ok(target) => return Ok(vec![as_first(first, target)]),
            Err(e) => last = e.during(url.plain()),
        }
    }
    Err(last)
}

/// URLs may have different NSIDs: the result gets that of the first URL.
fn as_first(first: Option<&NvmeUrl>, mut target: FoundTarget) -> FoundTarget {
    let Some(first) = first else { return target };
    target.name = first.subsystem.as_ref().map_or(String::new(), |name| name.as_str().to_owned());
    if let (Some(lun), 1) = (first.nsid().and_then(lun_of), target.luns.len()) {
        target.luns = std::mem::take(&mut target.luns).into_values().map(|one| (lun, one)).collect();
    }
    target
}

async fn through(url: &NvmeUrl) -> Result<FoundTarget, Error> {
    let controller = nvme::connect_with(url, options(url, Duration::ZERO, Duration::ZERO)?).await?;
    let luns = luns(&controller, url.nsid()).await;
    let window = controller.info().queue_len.saturating_sub(1);
    controller.close().await;
    Ok(FoundTarget { name: String::new(), window, luns: luns? })
}

async fn luns(controller: &NvmeController, only: Option<u32>) -> Result<BTreeMap<u16, FoundLun>, Error> {
    if let Some(nsid) = only {
        return Ok(lun_of(nsid).zip(Some(inspect(controller, nsid).await?)).into_iter().collect());
    }
    let mut found = BTreeMap::new();
    for nsid in controller.namespaces().await? {
        let Some(lun) = lun_of(nsid) else {
            tracing::warn!(nsid, "a namespace of the upstream is skipped: its number is too large for a LUN");
            continue;
        };
        match inspect(controller, nsid).await {
            Ok(unit) => _ = found.insert(lun, unit),
            // The namespace was removed during the probe.
            Err(e) if e.code == ErrorCode::NotFound => {}
            Err(e) if e.code == ErrorCode::InvalidArgument => {
                tracing::warn!(nsid, "a namespace of the upstream is skipped: {e}");
            }
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

async fn inspect(controller: &NvmeController, nsid: u32) -> Result<FoundLun, Error> {
    let namespace = NvmeNamespace::open(controller, nsid).await?;
    Ok(unit(&namespace))
}

/// The logical unit that a namespace is for hosts.
pub(crate) fn unit(namespace: &NvmeNamespace) -> FoundLun {
    let info = namespace.controller().info();
    found(&info, namespace.id(), &namespace.properties(), namespace.info().unmap)
}
