//! Reads and writes of any bytes. Partial blocks are written by read-modify-write.

use super::{NvmeNamespace, transfer};
use crate::lun::with_buffer;
use crate::nvme::status::ABORTED_BY_HOST;
use crate::{Direction, Error};
use lunar_block::range_lock::{RangeAccess, RangeLock, RangeLocks};
use lunar_runtime::Buf;
use lunar_wire::nvme::{NvmeStatus, Sqe, nvm_opcode};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Command dword 12, bit 30: force unit access.
const FUA: u32 = 1 << 30;

/// A result, and the buffer of the operation.
pub(super) type BlockTransfer = (Result<(), Error>, Buf);

/// The flag of a write that must be on stable storage.
pub(super) fn fua_flag(fua: bool) -> u32 {
    if fua { FUA } else { 0 }
}

impl NvmeNamespace {
    /// The entry of a command for whole blocks. `flags` are those of command dword 12.
    pub(super) fn blocks_entry(&self, opcode: u8, offset: u64, len: u64, flags: u32) -> Sqe {
        let size = u64::from(self.block_size);
        let (lba, blocks) = (offset / size, len / size);
        Sqe::new(opcode, 0, self.id)
            .with_dword(10, lba as u32)
            .with_dword(11, (lba >> 32) as u32)
            .with_dword(12, (blocks.saturating_sub(1) as u32) | flags)
    }

    /// Whether these bytes are whole blocks.
    pub(super) fn is_whole(&self, offset: u64, len: u64) -> bool {
        (offset | len) & u64::from(self.block_size - 1) == 0
    }

    /// The most data of one command, in bytes.
    pub(super) fn transfer(&self) -> usize {
        self.transfer.load(Ordering::Relaxed)
    }

    /// Takes over the limit of the current connection.
    pub(super) fn adopt_limit(&self) {
        let limit = self.controller.info().max_transfer;
        self.transfer.store(transfer(limit, self.block_size), Ordering::Relaxed);
    }

    pub(super) fn is_one_command(&self, offset: u64, len: usize) -> bool {
        len > 0 && len <= self.transfer() && self.is_whole(offset, len as u64)
    }

    /// Whether a command of `len` bytes with this status must be split: it was made for a connection with a larger limit.
    pub(super) fn must_split(&self, status: NvmeStatus, len: usize) -> bool {
        if status != ABORTED_BY_HOST {
            return false;
        }
        self.adopt_limit();
        len > self.transfer()
    }

    fn must_split_after(&self, result: &Result<(), Error>, len: usize) -> bool {
        let status = result.as_ref().err().and_then(|e| e.nvme_status);
        status.is_some_and(|status| self.must_split(status, len))
    }

    /// The next command of a longer transfer of `left` bytes: how many of them it moves, and its whole blocks as offset and
    /// length.
    fn piece(&self, offset: u64, left: usize) -> (usize, u64, u64) {
        let size = u64::from(self.block_size);
        let start = offset - offset % size;
        let end = (offset + left as u64).next_multiple_of(size).min(start + self.transfer() as u64);
        let len = (end - offset).min(left as u64) as usize;
        (len, start, end - start)
    }

    async fn read_blocks(&self, offset: u64, buf: Buf) -> BlockTransfer {
        let len = buf.len();
        let sqe = self.blocks_entry(nvm_opcode::READ, offset, len as u64, 0);
        let (result, buf) = self.perform(sqe, Direction::In(buf), None).await;
        (result, buf.unwrap_or_else(|| Buf::zeroed(len)))
    }

    async fn write_blocks(&self, offset: u64, buf: Buf, fua: bool, hold: &RangeLock) -> BlockTransfer {
        let len = buf.len();
        let sqe = self.blocks_entry(nvm_opcode::WRITE, offset, len as u64, fua_flag(fua));
        let (result, buf) = self.perform(sqe, Direction::Out(buf), Some(hold)).await;
        with_buffer(result, buf, len)
    }

    /// Reads any bytes.
    pub(super) async fn read_any(&self, offset: u64, mut buf: Buf) -> BlockTransfer {
        if self.is_one_command(offset, buf.len()) {
            let (result, back) = self.read_blocks(offset, buf).await;
            if !self.must_split_after(&result, back.len()) {
                return (result, back);
            }
            buf = back;
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (len, start, around) = self.piece(at, buf.len() - done);
            let (result, piece) = self.read_blocks(start, Buf::zeroed(around as usize)).await;
            if self.must_split_after(&result, piece.len()) {
                continue;
            }
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

    fn ranges(&self) -> &Arc<RangeLocks> {
        self.ranges.get_or_init(Arc::default)
    }

    fn to_hold(&self, offset: u64, len: u64) -> (Range<u64>, RangeAccess) {
        RangeLocks::covering_blocks(&(offset..offset.saturating_add(len)), self.block_size.into())
    }

    /// Writes any bytes.
    pub(super) async fn write_any(&self, offset: u64, mut buf: Buf, fua: bool) -> BlockTransfer {
        let hold = self.hold(offset, buf.len() as u64).await;
        if self.is_one_command(offset, buf.len()) {
            let (result, back) = self.write_blocks(offset, buf, fua, &hold).await;
            if !self.must_split_after(&result, back.len()) {
                return (result, back);
            }
            buf = back;
        }
        let result = self.write_pieces(offset, &buf, fua, &hold).await;
        (result, buf)
    }

    async fn write_pieces(&self, offset: u64, buf: &[u8], fua: bool, hold: &RangeLock) -> Result<(), Error> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (len, start, around) = self.piece(at, buf.len() - done);
            let mut piece = Buf::zeroed(around as usize);
            if around != len as u64 {
                let (result, before) = self.read_blocks(start, piece).await;
                if self.must_split_after(&result, before.len()) {
                    continue;
                }
                result?;
                piece = before;
            }
            let from = (at - start) as usize;
            piece[from..from + len].copy_from_slice(&buf[done..done + len]);
            let (result, piece) = self.write_blocks(start, piece, fua, hold).await;
            if self.must_split_after(&result, piece.len()) {
                continue;
            }
            result?;
            done += len;
        }
        Ok(())
    }
}
