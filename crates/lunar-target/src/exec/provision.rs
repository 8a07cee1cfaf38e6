//! WRITE SAME, UNMAP and GET LBA STATUS (SBC-4 section 4.7).

use super::medium::{
    ExecutionContext, ExecutionOutput, ExecutionResult, READ, STEP, WRITE, aborted_failure,
    buffer_without_waiting, flush, has_begun, io_failure, of_step, write_buf,
};
use crate::LogicalUnit;
use lunar_block::{Backend, LocalBoxFuture};
use lunar_runtime::{Buf, Pool};
use lunar_scsi::CommandError;
use std::io;
use std::sync::Arc;

/// WRITE SAME. Without a block, or for a block of zeros, it uses the backend's fast path for zeros.
pub async fn write_same(
    unit: &Arc<LogicalUnit>,
    pool: &Pool,
    (offset, len): (u64, u64),
    block: Option<Buf>,
    (unmap, stable): (bool, bool),
    context: &dyn ExecutionContext,
) -> ExecutionResult {
    let block = block.filter(|b| b.iter().any(|x| *x != 0));
    match block {
        None => {
            clear(unit, (offset, len), STRETCH, context, |b, at, n| b.write_zeroes(at, n, unmap)).await?;
            unit.lu.count(WRITE.bytes, len);
        }
        Some(block) => repeat(unit, pool, (offset, len), &block, &|| !context.is_aborted()).await?,
    }
    finish(unit, stable).await
}

/// Ends a command that has changed the medium.
async fn finish(unit: &Arc<LogicalUnit>, stable: bool) -> ExecutionResult {
    if stable { flush(unit).await.map_err(has_begun) } else { Ok(ExecutionOutput::Good) }
}

/// Bytes that are zeroed per step, because a backend that writes zeros takes a while.
const STRETCH: u64 = 64 * STEP as u64;
/// The same for unmapping.
const LONG_STRETCH: u64 = 16 * STRETCH;

/// Applies `one` to a range, step by step, until the command is aborted. Steps are aligned to multiples of `stretch`,
/// so that a backend can unmap each of its allocation units as a whole.
async fn clear(
    unit: &Arc<LogicalUnit>,
    (offset, len): (u64, u64),
    stretch: u64,
    context: &dyn ExecutionContext,
    one: impl Fn(&dyn Backend, u64, u64) -> LocalBoxFuture<'_, io::Result<()>>,
) -> Result<(), CommandError> {
    let (backend, end) = (unit.backend(), offset + len);
    let mut at = offset;
    while at < end {
        if context.is_aborted() {
            return Err(aborted_failure());
        }
        let n = (stretch - at % stretch).min(end - at);
        let done = one(&*backend, at, n).await.map_err(|e| io_failure(unit, &e, at, &WRITE));
        done.map_err(of_step(at > offset))?;
        at += n;
    }
    Ok(())
}

/// Writes `block` repeatedly from `offset` on, until `len` bytes are written or `goes_on` returns false.
pub async fn repeat(
    unit: &Arc<LogicalUnit>,
    pool: &Pool,
    (offset, len): (u64, u64),
    block: &[u8],
    goes_on: &dyn Fn() -> bool,
) -> Result<(), CommandError> {
    let whole = (STEP / block.len()).max(1) * block.len();
    let mut buf = buffer_without_waiting(pool, whole.min(len as usize));
    buf.chunks_mut(block.len()).for_each(|c| c.copy_from_slice(&block[..c.len()]));
    let mut done = 0;
    while done < len {
        if !goes_on() {
            return Err(aborted_failure());
        }
        buf.set_visible(whole.min((len - done) as usize));
        let n = buf.len() as u64;
        buf = write_buf(unit, offset + done, buf, false).await.map_err(of_step(done > 0))?;
        done += n;
    }
    Ok(())
}

pub async fn unmap(
    unit: &Arc<LogicalUnit>,
    extents: Vec<(u64, u64)>,
    stable: bool,
    context: &dyn ExecutionContext,
) -> ExecutionResult {
    let mut begun = false;
    for extent in extents {
        let done = clear(unit, extent, LONG_STRETCH, context, |b, at, n| b.unmap(at, n)).await;
        done.map_err(of_step(begun))?;
        begun |= extent.1 > 0;
    }
    finish(unit, stable).await
}

/// Maximum number of extents in one response. The initiator continues from their end.
const MAX_EXTENTS: usize = 256;

pub async fn lba_status(
    unit: &Arc<LogicalUnit>,
    offset: u64,
    allocation_len: u32,
    block_size: u32,
) -> ExecutionResult {
    let end = unit.backend().info().capacity / block_size as u64 * block_size as u64;
    let room = (allocation_len as usize / 16).clamp(1, MAX_EXTENTS);
    let found = unit.backend().extents(offset, end.saturating_sub(offset), room).await;
    let found = found.map_err(|e| io_failure(unit, &e, offset, &READ))?;
    let extents: Vec<(u64, bool)> = found.iter().map(|extent| (extent.len, extent.mapped)).collect();
    Ok(ExecutionOutput::Data(lunar_scsi::lba_status(offset, &extents, block_size, allocation_len)))
}
