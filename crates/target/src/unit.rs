//! A served logical unit: the device server's side, the blocks behind it, and the file that keeps its state.

use crate::gate::Gate;
use block::Backend;
use device::Lu;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// A logical unit with its backend.
pub struct Unit {
    /// The device server's side.
    pub lu: Arc<Lu>,
    /// The blocks.
    pub backend: Arc<dyn Backend>,
    /// Where reservations with APTPL and saved mode pages are kept; None: not kept.
    pub state_file: Option<PathBuf>,
    pub(crate) gate: Arc<Gate>,
    /// The version of the state that is on stable storage. Held while the file is written.
    saved: Mutex<Option<u64>>,
}

impl Unit {
    /// Puts the parts together. Without a state file the logical unit promises to keep nothing.
    pub fn new(lu: Arc<Lu>, backend: Arc<dyn Backend>, state_file: Option<PathBuf>) -> Unit {
        if state_file.is_none() {
            lu.set_volatile();
        }
        Unit { gate: Arc::new(Gate::new(lu.clone())), lu, backend, state_file, saved: Mutex::new(None) }
    }

    /// Keeps the state of the logical unit on stable storage: as it is now, or as somebody kept it meanwhile.
    ///
    /// # Errors
    /// Those of the file system; `Unsupported` without a state file.
    pub async fn save(self: &Arc<Self>) -> io::Result<()> {
        let unit = self.clone();
        let written = compio::runtime::spawn_blocking(move || unit.save_now()).await;
        written.unwrap_or_else(|_| Err(io::Error::other("the writer of state died")))
    }

    fn save_now(&self) -> io::Result<()> {
        let Some(path) = &self.state_file else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut saved = self.saved.lock().unwrap_or_else(|e| e.into_inner());
        let (version, bytes) = self.lu.saved();
        if saved.is_none_or(|s| version > s) {
            replace(path, &bytes)?;
            *saved = Some(version);
        }
        Ok(())
    }

    /// Looks whether the medium has another size now; if so, initiators hear of it with their next command.
    pub fn refresh(&self) -> bool {
        let changed = self.backend.refresh();
        if changed {
            self.lu.resized(self.backend.facts().capacity);
        }
        changed
    }
}

/// Writes a file beside, makes it stable, and renames it into place: at any moment the old or the new one is
/// there.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    File::open(folder)?.sync_all()
}
