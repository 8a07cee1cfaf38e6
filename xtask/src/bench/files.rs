//! Files in the page cache: reads without a copy, and a file system in memory.

use std::path::Path;

use anyhow::Result;

use super::cached_file::CachedFile;
use super::load::BlastLoad;
use super::rows::BenchRun;
use super::server::Backing;
use super::stgt::{self, StgtStore};
use super::table::{RatioLimit, RowResult};

/// The server's CPU time of a read without a copy, relative to one with a copy.
const CPU_OF_COPY: f64 = 0.45;
/// A file in memory, relative to a file of a disk in the page cache.
const OF_DISK: f64 = 0.9;
/// Writes of many bursts, relative to those of STGT.
const OF_STGT: f64 = 1.5;
/// A file system in memory.
const TMPFS: &str = "/dev/shm";

const LARGE_READS: [(&str, BlastLoad); 2] = [
    ("128 KiB read, depth 16", BlastLoad::new("read", 131_072, 16)),
    ("256 KiB read, depth 8", BlastLoad::new("read", 262_144, 8)),
];
const SMALL_READS: [(&str, BlastLoad); 2] = [
    ("4 KiB random read, depth 32", BlastLoad::new("read", 4096, 32)),
    ("4 KiB random read, depth 1", BlastLoad::new("read", 4096, 1)),
];

const LARGE_WRITES: [(&str, BlastLoad); 3] = [
    ("16 MiB write, depth 1", BlastLoad::new("write", 16 << 20, 1)),
    ("32 MiB write, depth 1", BlastLoad::new("write", 32 << 20, 1)),
    ("64 MiB write in two commands", BlastLoad::new("write", 32 << 20, 2)),
];

impl BenchRun<'_> {
    /// Writes of many bursts to files in memory, against STGT.
    pub fn large_writes(&self) -> Result<Vec<RowResult>> {
        let mut outcomes = Vec::new();
        for (work, load) in LARGE_WRITES {
            let name = format!("{work}, file on tmpfs");
            if !self.programs.stgt || !self.wants(&name) {
                continue;
            }
            let tmpfs = Path::new(TMPFS);
            let files = [CachedFile::create_in(tmpfs)?, CachedFile::create_in(tmpfs)?];
            let lunar = self.lunar(Backing::File(files[0].path()))?;
            let stgt = stgt::start(StgtStore::File(files[1].path()))?;
            let reached = self.medians(&[(&lunar, load), (&stgt, load)])?;
            let limit = RatioLimit::AtLeast(OF_STGT);
            outcomes.push(RowResult::ratio(&name, "IO/s", reached[0].iops, "STGT", reached[1].iops, limit));
        }
        Ok(outcomes)
    }

    /// Large reads with `zero_copy` against the default.
    pub fn zero_copy(&self) -> Result<Vec<RowResult>> {
        let mut outcomes = Vec::new();
        for (work, load) in LARGE_READS {
            let name = format!("{work}, cached file, zero copy");
            if !self.wants(&name) {
                continue;
            }
            let files = [CachedFile::create()?, CachedFile::create()?];
            let with = self.lunar(Backing::ZeroCopyFile(files[0].path()))?;
            let copying = self.lunar(Backing::File(files[1].path()))?;
            let reached = self.medians(&[(&with, load), (&copying, load)])?;
            let [fast, slow] = [reached[0], reached[1]];
            let at_least = RatioLimit::AtLeast(1.0);
            outcomes.push(RowResult::ratio(&name, "IO/s", fast.iops, "copy", slow.iops, at_least));
            let cpu = format!("{name}, server's CPU per I/O");
            let at_most = RatioLimit::AtMost(CPU_OF_COPY);
            let [fast, slow] = [fast.cpu_us_per_io, slow.cpu_us_per_io];
            outcomes.push(RowResult::ratio(&cpu, "µs", fast, "copy", slow, at_most));
        }
        Ok(outcomes)
    }

    /// Small reads of a file in memory against those of a file of a disk.
    pub fn memory_file_system(&self) -> Result<Vec<RowResult>> {
        let mut outcomes = Vec::new();
        for (work, load) in SMALL_READS {
            let name = format!("{work}, file on tmpfs");
            if !self.wants(&name) {
                continue;
            }
            let (memory, disk) = (CachedFile::create_in(Path::new(TMPFS))?, CachedFile::create()?);
            let servers =
                [self.lunar(Backing::File(memory.path()))?, self.lunar(Backing::File(disk.path()))?];
            let reached = self.medians(&[(&servers[0], load), (&servers[1], load)])?;
            let limit = RatioLimit::AtLeast(OF_DISK);
            outcomes.push(RowResult::ratio(&name, "IO/s", reached[0].iops, "disk", reached[1].iops, limit));
        }
        Ok(outcomes)
    }
}
