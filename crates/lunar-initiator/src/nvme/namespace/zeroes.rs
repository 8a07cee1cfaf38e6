//! Zeros and deallocation.

use super::{MAX_BLOCKS, NvmeNamespace};
use crate::{Direction, Error};
use lunar_runtime::Buf;
use lunar_wire::nvme::{NvmeStatus, nvm_opcode};
use std::sync::atomic::Ordering;

/// Bytes of one write of zeros where Write Zeroes is not supported.
const ZEROS: u64 = 1 << 20;
/// The most bytes of one Write Zeroes that cannot deallocate: it must end within the command timeout.
const WRITTEN_ZEROES: u64 = 64 << 20;
/// Command dword 12: Write Zeroes may deallocate (DEAC).
const MAY_DEALLOCATE: u32 = 1 << 25;

/// The whole blocks inside a range, and the partial blocks before and behind them. Each is an offset and a length.
pub(super) fn inside(offset: u64, len: u64, size: u64) -> ((u64, u64), [(u64, u64); 2]) {
    let end = offset + len;
    let (first, last) = (offset.next_multiple_of(size), end - end % size);
    if first >= last {
        return ((first, 0), [(offset, len), (end, 0)]);
    }
    ((first, last - first), [(offset, first - offset), (last, end - last)])
}

/// Whether a controller does not execute Write Zeroes on this medium: nvmet lists the command for each file, and rejects it
/// where the file system cannot do it.
fn is_rejection(status: NvmeStatus) -> bool {
    [NvmeStatus::INVALID_OPCODE, NvmeStatus::INVALID_FIELD, NvmeStatus::COMMAND_SIZE_LIMIT]
        .iter()
        .any(|one| (one.kind, one.code) == (status.kind, status.code))
}

impl NvmeNamespace {
    /// Whether the controller executes Write Zeroes.
    fn has_write_zeroes(&self) -> bool {
        self.features.write_zeroes && !self.rejects_zeroes.load(Ordering::Relaxed)
    }

    /// Whether Write Zeroes deallocates. Dataset Management is no substitute: a controller may ignore it, and keep old data.
    pub(super) fn can_deallocate(&self) -> bool {
        let properties = self.properties();
        self.has_write_zeroes() && properties.zeroes_deallocate() && properties.reads_zeros()
    }

    async fn zero_edges(&self, edges: [(u64, u64); 2]) -> Result<(), Error> {
        for (at, len) in edges.into_iter().filter(|(_, len)| *len > 0) {
            self.write_any(at, Buf::zeroed(len as usize), false).await.0?;
        }
        Ok(())
    }

    /// Writes zeros: whole blocks by Write Zeroes where it is supported, the rest by writes.
    pub(super) async fn zero(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        let size = u64::from(self.block_size);
        let ((start, len), edges) = inside(offset, len, size);
        self.zero_edges(edges).await?;
        if !self.has_write_zeroes() {
            return self.write_zeros(start, len).await;
        }
        let hold = self.hold(start, len).await;
        let deallocates = unmap && self.can_deallocate();
        let max = MAX_BLOCKS * size;
        let max = if deallocates { max } else { max.min(WRITTEN_ZEROES) };
        let flags = if deallocates { MAY_DEALLOCATE } else { 0 };
        let mut done = 0;
        while done < len {
            let part = (len - done).min(max);
            let sqe = self.blocks_entry(nvm_opcode::WRITE_ZEROES, start + done, part, flags);
            match self.perform(sqe, Direction::None, Some(&hold)).await.0 {
                Ok(()) => done += part,
                Err(e) if e.nvme_status.is_some_and(is_rejection) => {
                    self.rejects_zeroes.store(true, Ordering::Relaxed);
                    // The writes hold the range themselves.
                    drop(hold);
                    return self.write_zeros(start + done, len - done).await;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    async fn write_zeros(&self, start: u64, len: u64) -> Result<(), Error> {
        let (mut at, end) = (start, start + len);
        while at < end {
            let part = (end - at).min(ZEROS);
            self.write_any(at, Buf::zeroed(part as usize), false).await.0?;
            at += part;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_and_edges_cover_the_range_once() {
        assert_eq!(inside(512, 1024, 512), ((512, 1024), [(512, 0), (1536, 0)]));
        assert_eq!(inside(500, 600, 512), ((512, 512), [(500, 12), (1024, 76)]));
        assert_eq!(inside(10, 20, 512), ((512, 0), [(10, 20), (30, 0)]));
    }
}
