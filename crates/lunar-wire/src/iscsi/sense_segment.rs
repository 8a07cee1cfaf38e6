//! The data segment of a SCSI Response, and of an Asynchronous Message with a SCSI event: SenseLength and sense data
//! (RFC 7143 sections 11.4.7.2 and 11.9.4).

use crate::be;

/// Bytes of SenseLength.
const LENGTH: usize = 2;

/// Encodes the segment.
pub fn encode(sense: &[u8]) -> Vec<u8> {
    [&(sense.len() as u16).to_be_bytes()[..], sense].concat()
}

/// The sense data of a segment. They are empty if it has no SenseLength.
///
/// # Errors
/// SenseLength, if the segment is shorter than that.
pub fn decode(segment: &[u8]) -> Result<&[u8], usize> {
    let Some((len, rest)) = segment.split_at_checked(LENGTH) else { return Ok(&[]) };
    let len = usize::from(be::get16(len));
    rest.get(..len).ok_or(len)
}

/// All bytes after SenseLength, whatever its value.
pub fn undelimited(segment: &[u8]) -> &[u8] {
    segment.get(LENGTH..).unwrap_or_default()
}

/// Shortens a segment of more than `max` bytes to `max` bytes, at least two, and corrects SenseLength.
pub fn truncate(segment: &mut Vec<u8>, max: usize) {
    if segment.len() > max.max(LENGTH) {
        segment.truncate(max.max(LENGTH));
        let len = (segment.len() - LENGTH) as u16;
        be::put16(segment, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sense_segment_cut_anywhere_is_incomplete() {
        let segment = encode(&[0x70, 0, 5]);
        assert_eq!(segment, [0, 3, 0x70, 0, 5]);
        assert_eq!(decode(&segment), Ok(&[0x70, 0, 5][..]));
        assert_eq!(decode(&[&segment[..], &[9]].concat()), Ok(&[0x70, 0, 5][..]), "padding is ignored");
        for short in [&[][..], &[0]] {
            assert_eq!((decode(short), undelimited(short)), (Ok(&[][..]), &[][..]));
        }
        (2..segment.len()).for_each(|n| assert_eq!(decode(&segment[..n]), Err(3), "{n} bytes"));
        assert_eq!(undelimited(&segment[..4]), [0x70, 0]);
    }

    #[test]
    fn truncated_segment_states_its_length() {
        let mut segment = encode(&[7; 18]);
        truncate(&mut segment, 20);
        assert_eq!(segment.len(), 20);
        truncate(&mut segment, 6);
        assert_eq!(segment, [0, 4, 7, 7, 7, 7]);
        truncate(&mut segment, 0);
        assert_eq!(segment, [0, 0]);
    }
}
