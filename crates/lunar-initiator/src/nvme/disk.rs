//! An open namespace, whatever the number of its paths.

use super::namespace::NvmeNamespace;
use super::open::open;
use super::paths::NvmePaths;
use crate::Error;
use crate::multipath::MultipathOptions;
use crate::url::nvme::NvmeUrl;
use lunar_block::Backend;
use std::sync::Arc;

/// The open namespace of a URL, on one path or on several.
#[derive(Debug)]
pub struct NvmeDisk {
    namespace: Arc<NvmeNamespace>,
    paths: Option<NvmePaths>,
}

impl NvmeDisk {
    /// Opens the namespace of a URL with all paths of [`NvmeUrl::paths`]. With several, the time-outs `recovery_timeout` and
    /// `operation_timeout` apply to all of them together.
    ///
    /// # Errors
    /// Those of [`open`] and [`NvmePaths::open`].
    pub async fn open(url: &NvmeUrl) -> Result<NvmeDisk, Error> {
        let urls = url.paths();
        if let [one] = &urls[..] {
            return Ok(NvmeDisk { namespace: open(one).await?, paths: None });
        }
        let timeouts = url.options()?.timeouts;
        let settings = MultipathOptions::default().with_queue(timeouts.recovery);
        let paths = NvmePaths::open(&urls, settings.with_operation(timeouts.operation)).await?;
        let namespace = paths.namespaces().next().expect("one path is open").clone();
        Ok(NvmeDisk { namespace, paths: Some(paths) })
    }

    /// The namespace as storage.
    pub fn backend(&self) -> Arc<dyn Backend> {
        match &self.paths {
            Some(paths) => paths.joined().clone(),
            None => self.namespace.clone(),
        }
    }

    /// The namespace on one path.
    pub fn namespace(&self) -> &Arc<NvmeNamespace> {
        &self.namespace
    }

    /// Shuts all controllers down, after the commands in flight.
    pub async fn close(&self) {
        match &self.paths {
            Some(paths) => paths.close().await,
            None => self.namespace.controller().close().await,
        }
    }
}
