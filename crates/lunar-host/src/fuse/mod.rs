//! Exports a backend over FUSE, as the only file of a mount. Needs no privileges, unlike a block device.
//!
//! The file has the backend's capacity, which cannot be changed through it. Writes are stable after fsync, or at once
//! in a file that was opened with O_DSYNC. O_DIRECT bypasses the kernel's page cache.
//!
//! Everything here blocks, and must not be called on the thread of a core.

mod abi;
mod mount;
mod reply;
mod session;

use crate::Error;
use lunar_block::Backend;
use lunar_runtime::Cores;
use mount::MountGuard;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long requests in flight may take after the unmount.
const PATIENCE: Duration = Duration::from_secs(5);
/// The maximum length of a file name in bytes.
const MAX_NAME: usize = 255;

/// The options of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Rejects writes, even if the backend accepts them.
    pub read_only: bool,
}

/// A mounted file. It is unmounted when this is dropped or stopped, or the process dies.
pub struct FuseMount {
    dir: PathBuf,
    path: PathBuf,
    mounted: Option<MountGuard>,
    /// Dropped to end the session.
    stop: Option<flume::Sender<()>>,
    /// Disconnected when the session has ended.
    ended: flume::Receiver<()>,
}

impl FuseMount {
    /// Mounts on the directory `dir`, which then has only the file `name`. The first of these cores serves it. The
    /// mount is usable when this returns, by the user of this process only.
    ///
    /// # Errors
    /// No such directory, an invalid name, no FUSE, or no permission to mount there.
    pub fn start(
        cores: &Cores,
        backend: Arc<dyn Backend>,
        dir: &Path,
        name: &str,
        options: &Options,
    ) -> Result<FuseMount, Error> {
        check_name(name)?;
        let read_only = options.read_only || backend.info().read_only;
        let dir = std::path::absolute(dir).map_err(|e| {
            Error::refused(
                dir.display().to_string(),
                "make the path absolute",
                e,
                "give the path of a folder",
            )
        })?;
        let (device, mounted) = mount::mount(&dir, read_only)?;
        let (stop, stopped) = flume::bounded(0);
        let (ending, ended) = flume::bounded(0);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let file = reply::ExportedFile { backend, name: name.into(), read_only, since };
        cores.run_on(0, move || {
            let session = async {
                if let Err(e) = session::serve(device, file, stopped, ending).await {
                    tracing::error!("FUSE session failed, and its mount is no longer served: {e}");
                }
            };
            lunar_runtime::spawn(session);
        });
        let path = dir.join(name);
        let mount = FuseMount { dir, path, mounted: Some(mounted), stop: Some(stop), ended };
        // If the file is not accessible, dropping the mount unmounts it.
        match std::fs::metadata(&mount.path) {
            Ok(_) => Ok(mount),
            Err(e) => Err(Error::refused(
                mount.path.display().to_string(),
                "access the mounted file",
                e,
                "see the log for the error of the FUSE session",
            )),
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is still mounted.
    pub fn is_mounted(&self) -> bool {
        !self.ended.is_disconnected()
    }

    /// Flushes and unmounts. Users that still have the file open get errors from then on.
    ///
    /// # Errors
    /// When the flush or the unmount fails.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(mounted) = self.mounted.take() else { return Ok(()) };
        let is_there = self.is_mounted();
        // Writes to a memory mapping reach the backend only now.
        let flushed = match is_there {
            true => std::fs::File::open(&self.path).and_then(|file| file.sync_all()),
            false => Ok(()),
        };
        let unmounted = mounted.unmount(&self.dir, is_there);
        drop(self.stop.take());
        // Requests that exceed the time limit end later, and their results are dropped.
        let _ = self.ended.recv_timeout(PATIENCE);
        unmounted?;
        let hint = "the last writes may be lost: see the log for the medium's error";
        flushed.map_err(|e| Error::refused(self.path.display().to_string(), "flush the writes", e, hint))
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
        true => Err(Error::new(
            format!("{name:?}"),
            "is not a file name",
            "use 1 to 255 bytes without /, and neither . nor ..",
        )),
        false => Ok(()),
    }
}
