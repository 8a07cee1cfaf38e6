//! An open namespace, whatever the number of its paths.

use super::namespace::NvmeNamespace;
use super::open::open_with;
use super::paths::{NvmePaths, tries_again};
use crate::multipath::MultipathOptions;
use crate::url::nvme::NvmeUrl;
use crate::{Error, with_retry};
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
    /// Those of [`open_with`] and [`NvmePaths::open`].
    pub async fn open(url: &NvmeUrl) -> Result<NvmeDisk, Error> {
        let timeouts = url.options()?.timeouts;
        let settings = MultipathOptions::default().with_queue(timeouts.recovery);
        NvmeDisk::open_with(url, settings.with_operation(timeouts.operation), tries_again).await
    }

    /// [`NvmeDisk::open`] with the time-outs of these settings: `queue` is the time to reconnect, also of a single path. `missing`
    /// receives the error of each attempt to connect that another one follows.
    ///
    /// # Errors
    /// As [`NvmeDisk::open`].
    pub async fn open_with(
        url: &NvmeUrl,
        settings: MultipathOptions,
        missing: impl Fn(&Error) + Clone + 'static,
    ) -> Result<NvmeDisk, Error> {
        let urls = url.paths();
        if urls.len() > 1 {
            let paths = NvmePaths::open_with(&urls, settings, missing).await?;
            let namespace = paths.namespaces().next().expect("one path is open").clone();
            return Ok(NvmeDisk { namespace, paths: Some(paths) });
        }
        let mut options = url.options()?;
        let tries = std::mem::replace(&mut options.timeouts.login_tries, 1);
        (options.timeouts.recovery, options.timeouts.operation) = (settings.queue, settings.operation);
        let open = async || open_with(url, options.clone()).await;
        Ok(NvmeDisk { namespace: with_retry(tries, missing, open).await?, paths: None })
    }

    /// The namespace as storage.
    pub fn backend(&self) -> Arc<dyn Backend> {
        match &self.paths {
            Some(paths) => paths.joined().clone(),
            None => self.namespace.clone(),
        }
    }

    /// The paths, if the URL has several.
    pub fn paths(&self) -> Option<&NvmePaths> {
        self.paths.as_ref()
    }

    /// The namespace on one path.
    pub fn namespace(&self) -> &Arc<NvmeNamespace> {
        &self.namespace
    }

    /// Begins the end of all controllers: commands that wait for a connection or a path fail.
    pub fn give_up(&self) {
        match &self.paths {
            Some(paths) => paths.give_up(),
            None => self.namespace.controller().give_up(),
        }
    }

    /// Shuts all controllers down, after the commands in flight.
    pub async fn close(&self) {
        match &self.paths {
            Some(paths) => paths.close().await,
            None => self.namespace.controller().close().await,
        }
    }
}
