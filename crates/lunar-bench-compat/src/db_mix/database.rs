//! The files of a database as one disk. Most operations fall into a window of each file, and a flush follows a
//! number of writes.

use crate::unsupported;
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file: a range of a disk.
pub struct DatabaseFile {
    /// The disk.
    pub disk: Arc<dyn Backend>,
    /// The first byte.
    pub start: u64,
    /// The number of writes so far.
    pub writes: AtomicU64,
}

/// The distribution of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessProfile {
    /// Bytes of a file.
    pub size: u64,
    /// Bytes of its window, at its start.
    pub window: u64,
    /// The percentage of operations anywhere in the file.
    pub outside: u64,
    /// The number of writes after which a file is flushed; 0 is never.
    pub fsync_every: u64,
    /// The alignment of operations.
    pub granule: u64,
}

/// All files, one after another.
pub struct Database {
    files_of_db: Vec<DatabaseFile>,
    habit: AccessProfile,
    /// The number of operations; each is derived from its number.
    count: AtomicU64,
}

impl Database {
    /// Creates the disk.
    pub fn new(files_of_db: Vec<DatabaseFile>, habit: AccessProfile) -> Database {
        Database { files_of_db, habit, count: AtomicU64::new(0) }
    }

    /// The file of an operation, and the offset on its disk.
    fn place(&self, offset: u64, len: u64) -> (&DatabaseFile, u64) {
        let AccessProfile { size, window, outside, granule, .. } = self.habit;
        let part = &self.files_of_db[(offset / size) as usize];
        let within = offset % size;
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        // Steps through 0..100 with a stride coprime to 100: exact in every hundred, and without a pattern in
        // the offsets, which are random.
        let is_outside = n.wrapping_mul(37) % 100 < outside;
        let room = if is_outside { size } else { window };
        let places = room.saturating_sub(len) / granule + 1;
        (part, part.start + within / granule % places * granule)
    }

    async fn written(&self, part: &DatabaseFile) -> io::Result<()> {
        let n = part.writes.fetch_add(1, Ordering::Relaxed) + 1;
        match self.habit.fsync_every {
            0 => Ok(()),
            every if n.is_multiple_of(every) => part.disk.flush().await,
            _ => Ok(()),
        }
    }
}

impl Backend for Database {
    fn info(&self) -> BackendInfo {
        let info = self.files_of_db[0].disk.info();
        BackendInfo { capacity: self.habit.size * self.files_of_db.len() as u64, ..info }
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        let (part, at) = self.place(offset, buf.len() as u64);
        part.disk.read(at, buf)
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let (part, at) = self.place(offset, buf.len() as u64);
            let (result, buf) = part.disk.write(at, buf, fua).await;
            if result.is_err() {
                return (result, buf);
            }
            (self.written(part).await, buf)
        })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            for part in &self.files_of_db {
                part.disk.flush().await?;
            }
            Ok(())
        })
    }

    fn unmap(&self, _offset: u64, _len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        unsupported()
    }

    fn write_zeroes(&self, _offset: u64, _len: u64, _unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        unsupported()
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.files_of_db[0].disk.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_bench::testing::{RecordingDisk, run_on_core};

    #[test]
    fn operations_fall_into_windows_and_writes_flush() {
        let probe = RecordingDisk::new(1 << 20);
        let part = |start| DatabaseFile { disk: probe.clone(), start, writes: AtomicU64::new(0) };
        let habit =
            AccessProfile { size: 500_000, window: 65536, outside: 10, fsync_every: 10, granule: 512 };
        let base = Database::new(vec![part(0), part(500_224)], habit);
        assert_eq!(base.info().capacity, 1_000_000);
        run_on_core(move || async move {
            for n in 0..200u64 {
                let offset = n * 4999 / 512 * 512;
                base.write(offset, Buf::zeroed(4096), false).await.0.expect("written");
            }
        });
        let writes = probe.writes();
        let within =
            |(at, len): &(u64, usize)| (if *at < 500_000 { *at } else { at - 500_224 }) + *len as u64;
        assert!(writes.iter().all(|write| within(write) <= 500_000), "{writes:?}");
        assert!(writes.iter().any(|write| write.0 >= 500_224));
        let outside = writes.iter().filter(|write| within(write) > 65536).count();
        assert!((10..=20).contains(&outside), "{outside} of 20 expected");
        // One tenth of each file.
        assert!((19..=20).contains(&probe.flushes()), "{}", probe.flushes());
    }
}
