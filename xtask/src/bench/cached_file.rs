//! A file that a server reads from the page cache.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{Context, Result};

/// As large as the part of a LUN that `blast` uses.
const BYTES: usize = 256 << 20;

/// A file without holes; removed on drop.
pub struct CachedFile(PathBuf);

impl CachedFile {
    /// A file in the folder of temporary files.
    pub fn create() -> Result<CachedFile> {
        CachedFile::create_in(&std::env::temp_dir())
    }

    /// A file in this folder.
    pub fn create_in(dir: &Path) -> Result<CachedFile> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Relaxed);
        let file = CachedFile(dir.join(format!("lunar-bench-{}-{number}.img", std::process::id())));
        std::fs::write(&file.0, vec![0x5a; BYTES]).with_context(|| file.0.display().to_string())?;
        // The kernel must not write it back during a measurement.
        std::fs::File::open(&file.0)?.sync_all()?;
        Ok(file)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
