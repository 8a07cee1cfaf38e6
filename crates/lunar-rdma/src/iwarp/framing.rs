//! Splits the peer's stream into FPDUs (RFC 5044 section 4).

use lunar_runtime::iscsi::digest::crc32c;
use lunar_wire::be;
use lunar_wire::iwarp::{Terminate, mpa};

/// The number of bytes missing to determine the length of the first FPDU in `bytes`, or to complete it.
pub(super) fn missing(bytes: &[u8]) -> usize {
    let whole = match bytes.len() {
        0..mpa::LENGTH_LEN => mpa::LENGTH_LEN,
        _ => mpa::fpdu_len(be::get16(bytes).into()),
    };
    whole.saturating_sub(bytes.len())
}

/// The content of the FPDU at the start of `bytes`, and its length. None if the FPDU is incomplete.
///
/// # Errors
/// When the CRC does not match.
pub(super) fn first(bytes: &[u8], crc: bool) -> Result<Option<(&[u8], usize)>, Terminate> {
    if bytes.len() < mpa::LENGTH_LEN {
        return Ok(None);
    }
    let segment = usize::from(be::get16(bytes));
    let (len, whole) = (mpa::LENGTH_LEN + segment, mpa::fpdu_len(segment));
    let Some(fpdu) = bytes.get(..whole) else { return Ok(None) };
    if crc {
        let (covered, digest) = fpdu.split_at(whole - mpa::CRC_LEN);
        if crc32c(&[covered]).to_le_bytes() != digest {
            return Err(Terminate::CRC);
        }
    }
    Ok(Some((&fpdu[..len], whole)))
}
