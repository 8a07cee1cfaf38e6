//! The interface of a path of one core, whatever its protocol.

use super::UpstreamUrls;
use super::context::LuContext;
use super::path::UpstreamPath;
use crate::namespaces::path::NamespacePath;
use lunar_block::BackendInfo;
use lunar_initiator::multipath::LunPath;
use lunar_initiator::{Error, Lun};
use std::sync::Arc;
use std::time::Duration;

/// A path of one core to an upstream logical unit.
pub trait RoutedPath: LunPath {
    /// The reason why it is not open.
    fn obstacle(&self) -> Option<Error>;

    /// The properties of the logical unit, if they have changed.
    fn learned(&self) -> Option<BackendInfo>;

    /// The number of recoveries of its session or controller.
    fn recoveries(&self) -> u32;

    /// The handle of a SCSI logical unit, once the path is open.
    fn opened_lun(&self) -> Option<Arc<Lun>> {
        None
    }
}

/// Starts to open a path for each URL. A lost NVMe controller may return within `recovery`. Call it inside an event loop.
pub fn begin(urls: &UpstreamUrls, context: &Arc<LuContext>, recovery: Duration) -> Vec<Arc<dyn RoutedPath>> {
    let mut paths: Vec<Arc<dyn RoutedPath>> = Vec::new();
    match urls {
        UpstreamUrls::Scsi(urls) => {
            urls.iter().for_each(|url| paths.push(UpstreamPath::begin(context.clone(), url.clone())));
        }
        UpstreamUrls::Nvme(urls) => {
            urls.iter()
                .for_each(|url| paths.push(NamespacePath::begin(context.clone(), url.clone(), recovery)));
        }
    }
    paths
}
