//! Compare and Write: a fused pair.

use super::NvmeNamespace;
use super::blocks::fua_flag;
use crate::nvme::command::NvmeCommand;
use crate::nvme::status::{ABORTED_BY_HOST, error_of};
use crate::{Direction, Error, ErrorCode};
use lunar_block::range_lock::RangeLock;
use lunar_runtime::Buf;
use lunar_wire::nvme::{NvmeStatus, Sqe, nvm_opcode};
use std::io;

/// FUSE, bits 0 and 1 of byte 1: the first and the second command of a pair.
const FIRST: u8 = 1;
const SECOND: u8 = 2;
/// Attempts while the medium has the expected data although Compare reported a difference.
const TRIES: u32 = 8;

/// Marks an entry as a half of a fused pair.
fn fuse(mut sqe: Sqe, half: u8) -> Sqe {
    sqe.0[1] |= half;
    sqe
}

/// Whether the write was executed. False: the data differ.
///
/// # Errors
/// The status of the half that failed.
fn outcome(compare: NvmeStatus, write: NvmeStatus) -> Result<bool, Error> {
    let is = |status: NvmeStatus, other: NvmeStatus| (status.kind, status.code) == (other.kind, other.code);
    if is(compare, NvmeStatus::COMPARE_FAILURE) && !write.is_success() {
        return Ok(false);
    }
    // Of two failures, the one that is not the consequence of the other is the cause.
    match [compare, write]
        .into_iter()
        .filter(|status| !status.is_success())
        .min_by_key(|status| is(*status, NvmeStatus::FAILED_FUSED))
    {
        Some(cause) => Err(error_of(cause)),
        None => Ok(true),
    }
}

impl NvmeNamespace {
    /// The most bytes of a half; 0 without fused commands.
    pub(super) fn max_compare(&self) -> u32 {
        let limit = u64::from(self.features.compare_blocks) * u64::from(self.block_size);
        let limit = limit.min(self.transfer() as u64) as u32;
        // The largest power of two within the limit, as the trait has it.
        if limit == 0 { 0 } else { 1 << limit.ilog2() }
    }

    /// Compares the first half of `data` with the medium and writes the second half if they are equal, in one step. Returns
    /// whether it has written, on stable storage. The pair is never repeated.
    ///
    /// # Errors
    /// [`ErrorCode::ConnectionLost`] if the controller may have executed it; [`ErrorCode::IdentityMismatch`] when the namespace
    /// is another one; its status.
    pub async fn compare_and_write(&self, offset: u64, data: &[u8]) -> Result<bool, Error> {
        let len = data.len() / 2;
        if data.len() != 2 * len
            || len == 0
            || len as u64 > u64::from(self.max_compare())
            || !self.is_whole(offset, len as u64)
        {
            let what = format!(
                "Compare and Write at {offset}: {} bytes are no two halves of whole blocks",
                data.len()
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        let hold = self.hold(offset, len as u64).await;
        self.check_same()?;
        let command = |opcode, flags, half, part: &[u8]| {
            let sqe = fuse(self.blocks_entry(opcode, offset, len as u64, flags), half);
            let mut command = NvmeCommand::new(sqe, Direction::Out(Buf::copy_of(part))).once();
            command.hold = Some(RangeLock::add_holder(&hold));
            command
        };
        let (expected, new) = data.split_at(len);
        let pair = [
            command(nvm_opcode::COMPARE, 0, FIRST, expected),
            command(nvm_opcode::WRITE, fua_flag(true), SECOND, new),
        ];
        let [compare, write] = self.controller.submit_pair(pair);
        let (compare, _) = compare.await;
        let (write, _) = write.await;
        let (compare, write) = (compare?.status, write?.status);
        if compare == ABORTED_BY_HOST {
            let what = format!(
                "Compare and Write at {offset}: the controller takes no pair of {len} bytes any more"
            );
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        outcome(compare, write)
    }

    /// As [`Backend::compare_and_swap`](lunar_block::Backend::compare_and_swap): a pair reports that the data differ, but
    /// not where.
    pub(super) async fn compare_and_swap(&self, offset: u64, buf: Buf) -> io::Result<Option<usize>> {
        let len = buf.len() / 2;
        for _ in 0..TRIES {
            if self.compare_and_write(offset, &buf).await? {
                return Ok(None);
            }
            let (result, now) = self.read_any(offset, Buf::zeroed(len)).await;
            result?;
            if let Some(at) = (0..len).find(|at| now[*at] != buf[*at]) {
                return Ok(Some(at));
            }
            // Another host has written the expected data since.
        }
        Err(error_of(NvmeStatus::COMPARE_FAILURE).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_is_that_of_the_half_that_failed() {
        let (good, differs) = (NvmeStatus::SUCCESS, NvmeStatus::COMPARE_FAILURE);
        assert_eq!(outcome(good, good), Ok(true));
        assert_eq!(outcome(differs, NvmeStatus::FAILED_FUSED), Ok(false));
        for pair in [
            (NvmeStatus::FAILED_FUSED, NvmeStatus::WRITE_PROTECTED),
            (NvmeStatus::WRITE_PROTECTED, NvmeStatus::FAILED_FUSED),
            (good, NvmeStatus::WRITE_PROTECTED),
        ] {
            assert_eq!(outcome(pair.0, pair.1), Err(error_of(NvmeStatus::WRITE_PROTECTED)));
        }
        assert!(outcome(differs, good).is_err(), "the controller has written although the data differ");
    }
}
