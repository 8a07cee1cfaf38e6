//! Copy within a namespace.

use super::queue::NvmeQueue;
use crate::core::NexusState;
use lunar_proto::nvme::{copy_segments, of_scsi};
use lunar_wire::nvme::{NvmeStatus, Sqe};
use lunar_wire::scsi::{copy, op};

/// The parameter list of EXTENDED COPY for a Copy command, whose source ranges are `data`. The copy itself checks range,
/// reservations and write protection again in each step, but has one status for all of these faults.
///
/// # Errors
/// The status of the command.
pub fn parameter_list(
    state: &mut NexusState<NvmeQueue>,
    sqe: &Sqe,
    lun: u64,
    data: &[u8],
) -> Result<Vec<u8>, NvmeStatus> {
    let view = state.namespace(lun).ok_or(NvmeStatus::INVALID_NAMESPACE)?;
    if let Some(refused) = state.refusal(lun, [op::READ_10, op::WRITE_10]) {
        return Err(of_scsi(refused.status, refused.sense));
    }
    let segments = copy_segments(sqe, data, view.block_size, view.blocks)?;
    Ok(copy::list_within(segments.into_iter()))
}
