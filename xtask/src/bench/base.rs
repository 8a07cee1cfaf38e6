//! Compares Lunar with another build of Lunar, `--base`: no change may make the speed rows slower.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::load::BlastLoad;
use super::rows::BenchRun;
use super::server::{self, Backing, BenchServer};
use super::table::{RatioLimit, RowResult};

/// Ratio to the other build below which a row is a regression. Runs of one build differ by less.
const OF_BASE: f64 = 0.97;
/// As large as the part of a LUN that `blast` uses.
const FILE_BYTES: usize = 256 << 20;

const LOADS: [(&str, BlastLoad); 7] = [
    ("4 KiB random read, depth 32", BlastLoad::new("read", 4096, 32)),
    ("4 KiB random write, depth 32", BlastLoad::new("write", 4096, 32)),
    ("4 KiB random read, depth 1", BlastLoad::new("read", 4096, 1)),
    ("4 KiB random write, depth 1", BlastLoad::new("write", 4096, 1)),
    ("256 KiB read, depth 8", BlastLoad::new("read", 262_144, 8)),
    ("256 KiB write, depth 8", BlastLoad::new("write", 262_144, 8)),
    ("4 MiB write, depth 4", BlastLoad::new("write", 4 << 20, 4)),
];

/// The files that both builds serve from the page cache; removed on drop.
struct ServedFiles([PathBuf; 2]);

impl ServedFiles {
    fn create() -> Result<ServedFiles> {
        let path = |n| std::env::temp_dir().join(format!("lunar-bench-{}-{n}.img", std::process::id()));
        let files = ServedFiles([path(0), path(1)]);
        for file in &files.0 {
            std::fs::write(file, vec![0x5a; FILE_BYTES])?;
            // The kernel must not write them back during a measurement.
            std::fs::File::open(file)?.sync_all()?;
        }
        Ok(files)
    }
}

impl Drop for ServedFiles {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl BenchRun<'_> {
    /// The speed rows, of a null LUN and of a file in the page cache, against the build `base`.
    pub fn against_base(&self, base: &Path) -> Result<Vec<RowResult>> {
        let files = ServedFiles::create()?;
        let [new, old] = [0, 1].map(|n| Backing::File(&files.0[n]));
        let mut outcomes = Vec::new();
        for (medium, ours, theirs) in [("null", Backing::Null(1), Backing::Null(1)), ("file", new, old)] {
            let both = [self.lunar(ours)?, server::lunar(base, theirs)?];
            for (name, load) in LOADS {
                outcomes.extend(self.row_against_base(&format!("{medium}: {name}"), load, &both)?);
            }
        }
        Ok(outcomes)
    }

    fn row_against_base(
        &self,
        name: &str,
        load: BlastLoad,
        both: &[BenchServer; 2],
    ) -> Result<Option<RowResult>> {
        if !self.wants(name) {
            return Ok(None);
        }
        let [now, base] = both;
        let reached = self.medians(&[(now, load), (base, load)])?;
        let limit = RatioLimit::AtLeast(OF_BASE);
        Ok(Some(RowResult::ratio(name, "IO/s", reached[0].iops, "base", reached[1].iops, limit)))
    }
}
