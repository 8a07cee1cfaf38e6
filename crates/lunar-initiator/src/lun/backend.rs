//! A logical unit as a [`Backend`]. Partial blocks are written by read-modify-write.

use super::queue::LunQueue;
use super::retry::{perform, perform_piped};
use super::transferred::{Transfer, has_begun, of_step, read_result, write_result};
use super::{Lun, lba_status};
use crate::{Direction, Error};
use lunar_block::range_lock::{RangeAccess, RangeLock, RangeLocks};
use lunar_block::{
    Backend, BackendInfo, BackendQueue, BufResult, Extent, LocalBoxFuture, PipedResult, describe_row,
};
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb::{self, Cdb};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The size of one write of zeros where WRITE SAME is not supported.
const ZEROS: usize = 1 << 20;

/// The maximum number of bytes of one WRITE SAME.
const WRITTEN_SAME: u64 = 64 << 20;

impl Lun {
    /// LBA and count of blocks. None if the range is not a whole number of blocks.
    #[inline]
    fn blocks(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let size = u64::from(self.block_size);
        if size.is_power_of_two() {
            // The common case. Four divisions would cost more than sending the command.
            let whole = (offset | len) & (size - 1) == 0;
            return whole.then(|| (offset >> size.trailing_zeros(), len >> size.trailing_zeros()));
        }
        let whole = offset.is_multiple_of(size) && len.is_multiple_of(size);
        whole.then(|| (offset / size, len / size))
    }

    /// Whether one command can transfer these bytes: whole blocks within the transfer limit.
    #[inline]
    pub(super) fn is_one_command(&self, offset: u64, len: usize) -> bool {
        len <= self.transfer && self.blocks(offset, len as u64).is_some()
    }

    /// The command that reads whole blocks.
    #[inline]
    pub(super) fn read_cdb(&self, offset: u64, len: usize) -> Cdb {
        let (lba, blocks) = self.blocks(offset, len as u64).expect("whole blocks");
        match (u32::try_from(lba), u16::try_from(blocks)) {
            (Ok(lba), Ok(blocks)) => cdb::read_10(lba, blocks),
            _ => cdb::read_16(lba, blocks as u32),
        }
    }

    /// The command that writes whole blocks.
    #[inline]
    pub(super) fn write_cdb(&self, offset: u64, len: usize, fua: bool) -> Cdb {
        let (lba, blocks) = self.blocks(offset, len as u64).expect("whole blocks");
        match (u32::try_from(lba), u16::try_from(blocks)) {
            (Ok(lba), Ok(blocks)) => cdb::write_10(lba, blocks, fua),
            _ => cdb::write_16(lba, blocks as u32, fua),
        }
    }

    fn read_blocks(&self, offset: u64, buf: Buf) -> impl std::future::Future<Output = Transfer> {
        let len = buf.len();
        let answer = perform(&self.session, self.lun, self.read_cdb(offset, len), Direction::In(buf));
        async move {
            let (result, buf) = answer.await;
            read_result(result, buf, len)
        }
    }

    fn write_blocks<'a>(
        &'a self,
        offset: u64,
        buf: Buf,
        fua: bool,
        hold: &'a RangeLock,
    ) -> impl std::future::Future<Output = Transfer> + use<'a> {
        let len = buf.len();
        let (sends_fua, flush) = self.fua_or_flush(fua);
        let answer = self.perform_holding(self.write_cdb(offset, len, sends_fua), Direction::Out(buf), hold);
        async move {
            let (result, buf) = answer.await;
            let (mut result, buf) = write_result(result, buf, len);
            if flush && result.is_ok() {
                result = self.synchronize().await.map_err(has_begun);
            }
            (result, buf)
        }
    }

    /// Whether to set FUA, and whether to flush afterwards.
    pub(super) fn fua_or_flush(&self, fua: bool) -> (bool, bool) {
        if !fua {
            return (false, false);
        }
        let p = self.properties.lock().unwrap_or_else(|e| e.into_inner());
        (p.fua, p.write_cache && !p.fua)
    }

    async fn synchronize(&self) -> Result<(), Error> {
        match perform(&self.session, self.lun, cdb::synchronize_cache(), Direction::None).await.0 {
            // INVALID COMMAND OPERATION CODE: the logical unit has no volatile cache.
            Err(e) if e.sense.is_some_and(|s| (s.key, s.asc) == (5, 0x20)) => {}
            other => drop(other?),
        }
        self.session.take_deferred_error(self.lun).map_or(Ok(()), Err)
    }

    /// The range extended to whole blocks: offset and length.
    fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        let size = u64::from(self.block_size);
        let start = offset - offset % size;
        (start, (offset + len).next_multiple_of(size) - start)
    }

    /// Reads any byte range, with several commands above the transfer limit. Partial blocks are read whole.
    async fn read_any(&self, offset: u64, mut buf: Buf) -> (Result<(), Error>, Buf) {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let len = (buf.len() - done).min(self.piece());
            let (start, around) = self.around(at, len as u64);
            let (result, piece) = self.read_blocks(start, Buf::zeroed(around as usize)).await;
            if let Err(e) = result {
                return (Err(e), buf);
            }
            let from = (at - start) as usize;
            buf[done..done + len].copy_from_slice(&piece[from..from + len]);
            done += len;
        }
        (Ok(()), buf)
    }

    /// Locks these bytes for a write. Two concurrent writers of one block could undo each other's changes.
    pub(super) async fn hold(&self, offset: u64, len: u64) -> RangeLock {
        let (bytes, share) = self.to_hold(offset, len);
        self.ranges().lock(bytes, share).await
    }

    /// The same without waiting. None if another writer has locked the range.
    pub(super) fn try_hold(&self, offset: u64, len: u64) -> Option<RangeLock> {
        let (bytes, share) = self.to_hold(offset, len);
        self.ranges().try_lock(&bytes, share)
    }

    fn to_hold(&self, offset: u64, len: u64) -> (Range<u64>, RangeAccess) {
        RangeLocks::covering_blocks(&(offset..offset.saturating_add(len)), self.block_size.into())
    }

    /// Writes any byte range, with several commands above the transfer limit. Partially written blocks are read
    /// first.
    async fn write_any(&self, offset: u64, buf: &[u8], fua: bool) -> Result<(), Error> {
        let hold = self.hold(offset, buf.len() as u64).await;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let len = (buf.len() - done).min(self.piece());
            let (start, around) = self.around(at, len as u64);
            let mut piece = Buf::zeroed(around as usize);
            if around != len as u64 {
                let (result, before) = self.read_blocks(start, piece).await;
                result.map_err(of_step(done > 0))?;
                piece = before;
            }
            let from = (at - start) as usize;
            piece[from..from + len].copy_from_slice(&buf[done..done + len]);
            self.write_blocks(start, piece, fua, &hold).await.0.map_err(of_step(done > 0))?;
            done += len;
        }
        Ok(())
    }

    /// The maximum number of bytes of one command, minus one block at each end for partial blocks.
    fn piece(&self) -> usize {
        let size = self.block_size as usize;
        (self.transfer / size).saturating_sub(2).max(1) * size
    }

    /// The whole blocks inside a range as LBA and count, and the partial blocks before and after them as offset and
    /// length.
    fn inside(&self, offset: u64, len: u64) -> ((u64, u64), [(u64, u64); 2]) {
        let size = u64::from(self.block_size);
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(size), end - end % size);
        if first >= last {
            return ((first / size, 0), [(offset, len), (end, 0)]);
        }
        ((first / size, (last - first) / size), [(offset, first - offset), (last, end - last)])
    }

    /// Writes zeros: whole blocks by WRITE SAME where it is supported, the rest by writes.
    async fn zero(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        let ((lba, blocks), edges) = self.inside(offset, len);
        let has_edges = self.zero_edges(edges).await?;
        let size = u64::from(self.block_size);
        let hold = self.hold(lba * size, blocks * size).await;
        let p = self.properties();
        let unmap = unmap && p.write_same_unmap && p.unmapped_reads_zero;
        let mut done = 0;
        while done < blocks && !self.no_write_same.load(Ordering::Relaxed) {
            // Without UNMAP, the target must write all blocks within the command timeout.
            let max = if unmap { 1 << 22 } else { (WRITTEN_SAME / size).max(1) };
            let n = (blocks - done).min(p.write_same).min(max) as u32;
            let cdb = cdb::write_same_16(lba + done, n, unmap);
            let block = Direction::Out(Buf::zeroed(self.block_size as usize));
            match self.perform_holding(cdb, block, &hold).await.0 {
                Ok(_) => done += u64::from(n),
                Err(e) if e.sense.is_some_and(|s| s.key == 5 && matches!(s.asc, 0x20 | 0x24)) => {
                    self.no_write_same.store(true, Ordering::Relaxed);
                }
                Err(e) => return Err(of_step(has_edges || done > 0)(e)),
            }
        }
        let begun = has_edges || done > 0;
        self.write_zeros(lba + done, blocks - done, begun, &hold).await
    }

    /// Writes zeros to the partial blocks of a range. Returns whether there are any.
    async fn zero_edges(&self, edges: [(u64, u64); 2]) -> Result<bool, Error> {
        let mut begun = false;
        for (at, len) in edges.into_iter().filter(|(_, len)| *len > 0) {
            self.write_any(at, &vec![0; len as usize], false).await.map_err(of_step(begun))?;
            begun = true;
        }
        Ok(begun)
    }

    async fn write_zeros(&self, lba: u64, blocks: u64, begun: bool, hold: &RangeLock) -> Result<(), Error> {
        let size = u64::from(self.block_size);
        let (mut at, end) = (lba * size, (lba + blocks) * size);
        let mut zeros = Buf::zeroed(0);
        while at < end {
            let len = (end - at).min(ZEROS.min(self.piece()) as u64) as usize;
            if zeros.len() != len {
                zeros = Buf::zeroed(len);
            }
            let (result, back) = self.write_blocks(at, zeros, false, hold).await;
            result.map_err(of_step(begun || at > lba * size))?;
            (zeros, at) = (back, at + len as u64);
        }
        Ok(())
    }

    /// Deallocates blocks. UNMAP is only a hint. Where WRITE SAME is not supported, this relies on LBPRZ: unmapped
    /// blocks read as zeros.
    async fn give_back(&self, offset: u64, len: u64) -> Result<(), Error> {
        let p = self.properties();
        let (Some(max), true) = (p.unmap, p.unmapped_reads_zero) else {
            return self.zero(offset, len, true).await;
        };
        if p.write_same_unmap && !self.no_write_same.load(Ordering::Relaxed) {
            return self.zero(offset, len, true).await;
        }
        let ((lba, blocks), edges) = self.inside(offset, len);
        let has_edges = self.zero_edges(edges).await?;
        let size = u64::from(self.block_size);
        let hold = self.hold(lba * size, blocks * size).await;
        let mut done = 0;
        while done < blocks {
            let n = (blocks - done).min(max.into()) as u32;
            let list = Buf::copy_of(&cdb::unmap_list(lba + done, n));
            let (result, _) = self.perform_holding(cdb::unmap(24), Direction::Out(list), &hold).await;
            result.map_err(of_step(has_edges || done > 0))?;
            done += u64::from(n);
        }
        Ok(())
    }

    /// Sends GET LBA STATUS once. Returns the extents that the response describes, starting at `offset`: at least
    /// one.
    async fn status_of(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>, Error> {
        let mapped = vec![Extent { offset, len, mapped: true }];
        let p = self.properties();
        // Without LBPRZ, unmapped blocks may read as any data.
        if !(p.thin && p.unmapped_reads_zero) {
            return Ok(mapped);
        }
        let size = u64::from(self.block_size);
        let room = lba_status::room(max);
        let cdb = cdb::get_lba_status(offset / size, room as u32);
        let (result, buf) = perform(&self.session, self.lun, cdb, Direction::In(Buf::zeroed(room))).await;
        let (got, buf) = match (result, buf) {
            (Ok(c), Some(buf)) => (c.transferred, buf),
            (Err(e), _) if e.sense.is_some_and(|s| s.key == 5) => return Ok(mapped),
            (Err(e), _) => return Err(e),
            (Ok(_), None) => return Ok(mapped),
        };
        let extents =
            lba_status::extents(&buf[..got.min(buf.len())], size, offset..offset.saturating_add(len));
        Ok(if extents.is_empty() { mapped } else { extents.into_iter().take(max.max(1)).collect() })
    }
}

impl Backend for Lun {
    fn info(&self) -> BackendInfo {
        let p = self.properties.lock().unwrap_or_else(|e| e.into_inner());
        BackendInfo {
            capacity: self.capacity.load(Ordering::Relaxed),
            read_only: p.read_only,
            unmap: p.unmapped_reads_zero && (p.write_same_unmap || p.unmap.is_some()),
            null: false,
            remote: true,
            write_through: !p.write_cache,
        }
    }

    fn refresh(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            if self.is_one_command(offset, buf.len()) {
                let (result, buf) = self.read_blocks(offset, buf).await;
                return (result.map_err(io::Error::from), buf);
            }
            let (result, buf) = self.read_any(offset, buf).await;
            (result.map_err(io::Error::from), buf)
        })
    }

    fn read_piped(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, PipedResult> {
        Box::pin(async move {
            let len = buf.len();
            if !self.is_one_command(offset, len) {
                let (result, buf) = self.read(offset, buf).await;
                return (result.map(|()| None), buf);
            }
            let cdb = self.read_cdb(offset, len);
            let ((result, buf), piped) = perform_piped(&self.session, self.lun, cdb, buf).await;
            let (result, buf) = read_result(result, buf, len);
            (result.map(|()| piped).map_err(io::Error::from), buf)
        })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            if self.is_one_command(offset, buf.len()) {
                let hold = self.hold(offset, buf.len() as u64).await;
                let (result, buf) = self.write_blocks(offset, buf, fua, &hold).await;
                return (result.map_err(io::Error::from), buf);
            }
            (self.write_any(offset, &buf, fua).await.map_err(io::Error::from), buf)
        })
    }

    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        let batch = self.session.batch()?;
        Some(Box::new(LunQueue::new(self, batch)))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.synchronize().await.map_err(io::Error::from) })
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.give_back(offset, len).await.map_err(io::Error::from) })
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move { self.zero(offset, len, unmap).await.map_err(io::Error::from) })
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            let extents = self.status_of(offset, len, 1).await?;
            Ok(extents.first().copied().unwrap_or(Extent { offset, len, mapped: true }))
        })
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        Box::pin(async move { self.status_of(offset, len, max).await.map_err(io::Error::from) })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let info = self.session.info();
        vec![
            describe_row("kind", "remote"),
            describe_row("target", info.target),
            describe_row("portal", info.portal),
            describe_row("lun", self.number),
        ]
    }
}
