//! VERIFY, WRITE AND VERIFY, COMPARE AND WRITE and ORWRITE (SBC-4): operations that read the medium first.

use super::medium::{
    ExecutionContext, ExecutionOutput, ExecutionResult, READ, STEP, VERIFY, WRITE, aborted_failure, fetch,
    fetch_into, has_begun, io_failure, write_buf,
};
use crate::{LogicalUnit, ScsiError};
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{CommandError, Compare};
use lunar_wire::scsi::Sense;
use std::sync::Arc;

/// Fails with MISCOMPARE. INFORMATION is the offset of the first byte that differs (SBC-4 section 5.3).
fn miscompare(medium: &[u8], expected: &[u8], before: u64) -> Result<(), CommandError> {
    match medium.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(Sense::MISCOMPARE.at(before + at as u64).into()),
    }
}

pub async fn verify(
    unit: &Arc<LogicalUnit>,
    pool: &Pool,
    (offset, len): (u64, u64),
    compare: Compare,
    data: Option<Buf>,
    context: &dyn ExecutionContext,
) -> ExecutionResult {
    let expected = data.as_deref().unwrap_or_default();
    let mut done = 0;
    while done < len {
        if context.is_aborted() {
            return Err(aborted_failure());
        }
        let n = (len - done).min(STEP as u64) as usize;
        let medium = fetch(unit, pool, offset + done, n, &VERIFY).await?;
        match compare {
            Compare::Nothing => {}
            Compare::Whole => miscompare(&medium, expected.get(done as usize..).unwrap_or_default(), done)?,
            Compare::OneBlock(size) => {
                for (i, block) in medium.chunks(size as usize).enumerate() {
                    miscompare(block, expected, done + i as u64 * size as u64)?;
                }
            }
        }
        done += n as u64;
    }
    Ok(ExecutionOutput::Good)
}

pub async fn write_verify(
    unit: &Arc<LogicalUnit>,
    pool: &Pool,
    offset: u64,
    data: Buf,
    compare: bool,
    context: &dyn ExecutionContext,
) -> ExecutionResult {
    let data = write_buf(unit, offset, data, true).await?;
    let how = if compare { Compare::Whole } else { Compare::Nothing };
    let len = data.len() as u64;
    verify(unit, pool, (offset, len), how, Some(data), context).await.map_err(has_begun)
}

/// COMPARE AND WRITE. The first half of `data` is compared, the second is written. The caller holds the task set lock
/// exclusively.
pub async fn compare_and_write(
    unit: &Arc<LogicalUnit>,
    offset: u64,
    len: usize,
    mut data: Buf,
    stable: bool,
) -> ExecutionResult {
    if len == 0 {
        return Ok(ExecutionOutput::Good);
    }
    if unit.lu.settings().medium_compares {
        return compare_and_write_in_medium(unit, offset, data).await;
    }
    // Not from the pool: the holders of its buffers may wait for this command.
    let medium = fetch_into(unit, offset, Buf::zeroed(len), &READ).await?;
    miscompare(&medium, &data[..len], 0)?;
    data.copy_within(len..2 * len, 0);
    data.set_visible(len);
    let (result, _) = unit.backend().write(offset, data, stable).await;
    result.map_err(|e| may_have_written(io_failure(unit, &e, offset, &WRITE), ScsiError::of(&e)))?;
    unit.lu.count(WRITE.bytes, len as u64);
    Ok(ExecutionOutput::Good)
}

/// COMPARE AND WRITE of one block, as one step of the medium.
async fn compare_and_write_in_medium(unit: &Arc<LogicalUnit>, offset: u64, data: Buf) -> ExecutionResult {
    let bytes = data.len() as u64 / 2;
    let differs = match unit.backend().compare_and_swap(offset, data).await {
        Ok(differs) => differs,
        Err(e) => return Err(may_have_written(io_failure(unit, &e, offset, &WRITE), ScsiError::of(&e))),
    };
    unit.lu.count(READ.bytes, bytes);
    if let Some(at) = differs {
        return Err(Sense::MISCOMPARE.at(at as u64).into());
    }
    unit.lu.count(WRITE.bytes, bytes);
    Ok(ExecutionOutput::Good)
}

/// The failure of the write of a COMPARE AND WRITE. A remote or incomplete write may have taken effect. If the status
/// invited a repetition, the host would find its own data and get a miscompare. BUSY from a SCSI device (`reported`)
/// is safe, because the device did nothing.
fn may_have_written(failure: CommandError, scsi_error: Option<ScsiError>) -> CommandError {
    const NOT_READY: u8 = 2;
    const UNCERTAIN: Sense = Sense::new(0x0b, 0x08, 0x00);
    match failure.sense {
        None if scsi_error.is_none() => UNCERTAIN.into(),
        Some(sense) if sense.key == NOT_READY => UNCERTAIN.into(),
        _ => failure,
    }
}

/// ORWRITE. The caller holds the task set lock exclusively.
pub async fn or_write(unit: &Arc<LogicalUnit>, offset: u64, data: Buf, stable: bool) -> ExecutionResult {
    if data.is_empty() {
        return Ok(ExecutionOutput::Good);
    }
    let mut medium = fetch_into(unit, offset, Buf::zeroed(data.len()), &READ).await?;
    medium.iter_mut().zip(data.iter()).for_each(|(m, d)| *m |= d);
    write_buf(unit, offset, medium, stable).await?;
    Ok(ExecutionOutput::Good)
}
