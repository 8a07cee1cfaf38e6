//! The parts of a command capsule.

use lunar_wire::nvme::{DataPlace, NvmeStatus, PduHeader, Sqe};

/// The entry in the header of a capsule.
#[inline]
pub fn entry(header: &[u8]) -> Option<Sqe> {
    header.get(PduHeader::LEN..).and_then(<[u8]>::first_chunk).map(|entry| Sqe(*entry))
}

/// Checks where the data of a command are, against those in its capsule.
///
/// # Errors
/// The status of the command.
#[inline]
pub fn place_of(sqe: &Sqe, in_capsule: usize) -> Result<DataPlace, NvmeStatus> {
    if !sqe.has_sgl() {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    let place = sqe.data().place()?;
    let expected = if place == DataPlace::Capsule { sqe.data().len as usize } else { 0 };
    if expected == in_capsule { Ok(place) } else { Err(NvmeStatus::SGL_INVALID_LENGTH) }
}
