//! A backend as a file, in a folder of its own, by FUSE: for those without the privileges that a block device
//! needs.
//!
//! The file has the backend's capacity, which cannot be changed through it. Writes are stable after fsync, or
//! at once in a file that was opened with O_DSYNC. O_DIRECT passes the kernel's page cache by.
//!
//! Everything here blocks, and must not be called on a core's own thread.

mod abi;
mod answer;
mod mount;
mod session;

use crate::Error;
use lunar_block::Backend;
use lunar_runtime::Cores;
use mount::MountGuard;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long what is in flight may take to end once it is unmounted.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a file's name at most.
const MAX_NAME: usize = 255;

/// How to mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Refuse writes, also if the backend would take them.
    pub read_only: bool,
}

/// A mounted file. It is gone when this is dropped or stopped, and also when the process dies.
pub struct FuseMount {
    dir: PathBuf,
    path: PathBuf,
    mounted: Option<MountGuard>,
    /// Dropped to end the session.
    stop: Option<flume::Sender<()>>,
    /// Disconnected when the session is over.
    ended: flume::Receiver<()>,
}

impl FuseMount {
    /// Mounts on the folder `dir`, in which there is then only the file `name`; served on the first of these
    /// cores, and there when this returns. Only the user of this process can use it.
    ///
    /// # Errors
    /// No such folder, a name that cannot be, no FUSE or no right to mount there.
    pub fn start(
        cores: &Cores,
        backend: Arc<dyn Backend>,
        dir: &Path,
        name: &str,
        options: &Options,
    ) -> Result<FuseMount, Error> {
        check_name(name)?;
        let read_only = options.read_only || backend.facts().read_only;
        let dir = std::path::absolute(dir)
            .map_err(|e| Error::refused(dir.display().to_string(), "use it", e, "name a folder"))?;
        let (device, mounted) = mount::mount(&dir, read_only)?;
        let (stop, stopped) = flume::bounded(0);
        let (ending, ended) = flume::bounded(0);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let file = answer::ExportedFile { backend, name: name.into(), read_only, since };
        cores.run_on(0, move || {
            let session = async {
                if let Err(e) = session::serve(device, file, stopped, ending).await {
                    tracing::error!("a FUSE session ended: {e}");
                }
            };
            lunar_runtime::spawn(session);
        });
        let path = dir.join(name);
        let mount = FuseMount { dir, path, mounted: Some(mounted), stop: Some(stop), ended };
        // Should it not answer, the mount is dropped, and so unmounted.
        match std::fs::metadata(&mount.path) {
            Ok(_) => Ok(mount),
            Err(e) => Err(Error::refused(mount.path.display().to_string(), "see it", e, "see the log")),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Nobody has unmounted it.
    pub fn is_mounted(&self) -> bool {
        !self.ended.is_disconnected()
    }

    /// Flushes and unmounts. Whoever still has the file open gets errors from then on.
    ///
    /// # Errors
    /// When what was written does not become stable, or it cannot be unmounted.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(mounted) = self.mounted.take() else { return Ok(()) };
        let is_there = self.is_mounted();
        // A file mapped into memory may have been written without a word to us.
        let flushed = match is_there {
            true => std::fs::File::open(&self.path).and_then(|file| file.sync_all()),
            false => Ok(()),
        };
        let unmounted = mounted.unmount(&self.dir, is_there);
        drop(self.stop.take());
        // Without an end in time, what is in flight ends later, and is told to nobody.
        let _ = self.ended.recv_timeout(PATIENCE);
        unmounted?;
        let hint = "the last writes may be lost: see the log for the medium's error";
        flushed.map_err(|e| Error::refused(self.path.display().to_string(), "flush", e, hint))
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{e}");
        }
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let cannot_be = name.is_empty() || name.len() > MAX_NAME || matches!(name, "." | "..");
    match cannot_be || name.bytes().any(|b| b == b'/' || b == 0) {
        true => Err(Error::new(format!("{name:?}"), "is no name of a file", "choose a short one without /")),
        false => Ok(()),
    }
}
