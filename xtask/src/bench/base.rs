//! Compares Lunar with another build of Lunar, `--base`: no change may make the speed rows slower.

use std::path::Path;

use anyhow::Result;

use super::cached_file::CachedFile;
use super::load::BlastLoad;
use super::rows::BenchRun;
use super::server::{self, Backing, BenchServer};
use super::table::{RatioLimit, RowResult};

/// Ratio to the other build below which a row is a regression. Runs of one build differ by less.
const OF_BASE: f64 = 0.97;

const LOADS: [(&str, BlastLoad); 7] = [
    ("4 KiB random read, depth 32", BlastLoad::new("read", 4096, 32)),
    ("4 KiB random write, depth 32", BlastLoad::new("write", 4096, 32)),
    ("4 KiB random read, depth 1", BlastLoad::new("read", 4096, 1)),
    ("4 KiB random write, depth 1", BlastLoad::new("write", 4096, 1)),
    ("256 KiB read, depth 8", BlastLoad::new("read", 262_144, 8)),
    ("256 KiB write, depth 8", BlastLoad::new("write", 262_144, 8)),
    ("4 MiB write, depth 4", BlastLoad::new("write", 4 << 20, 4)),
];

impl BenchRun<'_> {
    /// The speed rows, of a null LUN and of a file in the page cache, against the build `base`.
    pub fn against_base(&self, base: &Path) -> Result<Vec<RowResult>> {
        let files = [CachedFile::create()?, CachedFile::create()?];
        let [new, old] = files.each_ref().map(|file| Backing::File(file.path()));
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
