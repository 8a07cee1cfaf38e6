//! The Basic Header Segment and the fields that most PDUs share (RFC 7143 section 11.2.1).

use crate::be;

/// Bytes of a Basic Header Segment.
pub const BHS_LEN: usize = 48;

/// The reserved value of Initiator Task Tag and Target Transfer Tag.
pub const NONE: u32 = 0xffff_ffff;

/// A Basic Header Segment: 48 bytes seen through their fields. Every getter is total.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bhs(pub [u8; BHS_LEN]);

impl Bhs {
    /// A header of zeros but for its opcode byte and the F bit.
    pub fn new(opcode: u8) -> Self {
        let mut b = [0; BHS_LEN];
        b[0] = opcode;
        b[1] = 0x80;
        Bhs(b)
    }

    /// The opcode without the I bit.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }

    /// The I bit: an immediate request, outside the CmdSN order.
    #[inline]
    pub fn immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// The F bit (T in login).
    #[inline]
    pub fn is_final(&self) -> bool {
        self.0[1] & 0x80 != 0
    }

    /// The C bit of Login and Text PDUs.
    #[inline]
    pub fn continues(&self) -> bool {
        self.0[1] & 0x40 != 0
    }

    /// The opcode-specific flags byte.
    #[inline]
    pub fn flags(&self) -> u8 {
        self.0[1]
    }

    /// TotalAHSLength in bytes.
    #[inline]
    pub fn ahs_len(&self) -> usize {
        self.0[4] as usize * 4
    }

    /// DataSegmentLength in bytes, without padding.
    #[inline]
    pub fn data_len(&self) -> usize {
        be::get24(&self.0[5..]) as usize
    }

    /// The LUN field as 64 bits.
    #[inline]
    pub fn lun(&self) -> u64 {
        be::get64(&self.0[8..])
    }

    /// Initiator Task Tag.
    #[inline]
    pub fn itt(&self) -> u32 {
        self.word(16)
    }

    /// The word at offset 20: Target Transfer Tag, Expected Data Transfer Length or Referenced Task Tag.
    #[inline]
    pub fn word20(&self) -> u32 {
        self.word(20)
    }

    /// CmdSN of a request.
    #[inline]
    pub fn cmd_sn(&self) -> u32 {
        self.word(24)
    }

    /// ExpStatSN of a request.
    #[inline]
    pub fn exp_stat_sn(&self) -> u32 {
        self.word(28)
    }

    /// The 32 bits at a byte offset of at most 44.
    #[inline]
    pub fn word(&self, at: usize) -> u32 {
        be::get32(&self.0[at..])
    }

    /// Writes 32 bits at a byte offset.
    #[inline]
    pub fn set_word(&mut self, at: usize, v: u32) {
        be::put32(&mut self.0[at..], v);
    }

    /// Writes DataSegmentLength.
    #[inline]
    pub fn set_data_len(&mut self, len: usize) {
        be::put24(&mut self.0[5..], len as u32);
    }

    /// Writes the LUN field.
    #[inline]
    pub fn set_lun(&mut self, lun: u64) {
        be::put64(&mut self.0[8..], lun);
    }

    /// The 16 bytes of the CDB in a SCSI Command.
    #[inline]
    pub fn cdb(&self) -> &[u8; 16] {
        self.0[32..].try_into().expect("16 of 48 bytes")
    }
}

impl std::fmt::Debug for Bhs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", super::opcode::name(self.opcode()))?;
        self.0.chunks(4).try_for_each(|w| write!(f, "{:08x} ", be::get32(w)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_standard_puts_them() {
        let mut b = Bhs([0; BHS_LEN]);
        for (i, x) in b.0.iter_mut().enumerate() {
            *x = i as u8;
        }
        b.0[0] = 0x41;
        assert_eq!((b.opcode(), b.immediate()), (1, true));
        assert_eq!(b.data_len(), 0x050607);
        assert_eq!(b.ahs_len(), 16);
        assert_eq!(b.lun(), 0x08090a0b0c0d0e0f);
        assert_eq!(
            (b.itt(), b.word20(), b.cmd_sn(), b.exp_stat_sn()),
            (0x10111213, 0x14151617, 0x18191a1b, 0x1c1d1e1f)
        );
        assert_eq!(b.cdb()[0], 32);
    }
}
