//! The URLs of an upstream.

use super::Upstream;
use crate::namespaces;
use lunar_initiator::nvme::NvmeUrl;
use lunar_initiator::{Error, Url};
use lunar_wire::scsi::vpd::Designator;
use std::time::Duration;

/// The URLs of an upstream, primary first: one for each path.
#[derive(Clone, Debug)]
pub enum UpstreamUrls {
    /// SCSI targets. All URLs name a portal, all a target, or all a LUN.
    Scsi(Vec<Url>),
    /// NVMe subsystems. All URLs name a subsystem, or all a namespace.
    Nvme(Vec<NvmeUrl>),
}

impl UpstreamUrls {
    /// The URLs, without secrets.
    pub fn plain(&self) -> Vec<String> {
        match self {
            UpstreamUrls::Scsi(urls) => urls.iter().map(Url::plain).collect(),
            UpstreamUrls::Nvme(urls) => urls.iter().map(NvmeUrl::plain).collect(),
        }
    }

    /// Whether these designators distinguish the logical unit from others, on all paths. The T10 designator of a namespace does not:
    /// it is the last one.
    pub(crate) fn identify(&self, designators: &[u8]) -> bool {
        match self {
            UpstreamUrls::Scsi(_) => !designators.is_empty(),
            UpstreamUrls::Nvme(_) => designators.get(1).is_some_and(|kind| kind & 0xf != Designator::T10),
        }
    }

    /// The number of URLs.
    pub(crate) fn count(&self) -> usize {
        match self {
            UpstreamUrls::Scsi(urls) => urls.len(),
            UpstreamUrls::Nvme(urls) => urls.len(),
        }
    }
}

impl From<Vec<Url>> for UpstreamUrls {
    fn from(urls: Vec<Url>) -> UpstreamUrls {
        UpstreamUrls::Scsi(urls)
    }
}

impl From<Vec<NvmeUrl>> for UpstreamUrls {
    fn from(urls: Vec<NvmeUrl>) -> UpstreamUrls {
        UpstreamUrls::Nvme(urls)
    }
}

/// The URLs with a router's timeouts, and the longest time of an operation. A command that took this long on one path is
/// not retried on another: its host has given up.
pub fn with_timeouts(upstream: &Upstream) -> Result<(UpstreamUrls, Option<Duration>), Error> {
    match &upstream.urls {
        UpstreamUrls::Scsi(_) => {
            let mut urls = upstream.session_urls()?;
            let longest = urls.iter_mut().map(|url| url.timeouts_mut().operation).max();
            Ok((urls.into(), longest))
        }
        UpstreamUrls::Nvme(urls) => {
            let urls = namespaces::with_timeouts(urls)?;
            let longest = urls.iter().map(|url| Ok(url.options()?.timeouts.operation));
            let longest = longest.collect::<Result<Vec<_>, Error>>()?.into_iter().max();
            Ok((urls.into(), longest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_number_identifies_no_namespace_of_several_paths() {
        let binary = |kind| Designator::new(Designator::BINARY, kind, &[7; 16]).encode();
        let t10 = Designator::new(Designator::ASCII, Designator::T10, b"NVMe    1.00000001").encode();
        let (scsi, nvme) = (UpstreamUrls::Scsi(Vec::new()), UpstreamUrls::Nvme(Vec::new()));
        assert_eq!([&scsi, &nvme].map(|urls| urls.identify(&t10)), [true, false]);
        assert_eq!([&scsi, &nvme].map(|urls| urls.identify(&[])), [false, false]);
        for kind in [Designator::EUI, Designator::UUID] {
            assert!(nvme.identify(&[binary(kind), t10.clone()].concat()));
        }
    }
}
