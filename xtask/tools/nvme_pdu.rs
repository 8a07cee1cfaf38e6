//! Bytes of NVMe/TCP PDUs, for `blast` and `floor`: they share no code with the product that they measure.

/// PDU types (NVMe/TCP transport specification, section 3.6).
pub const ICREQ: u8 = 0x00;
/// The response to ICReq.
pub const ICRESP: u8 = 0x01;
/// A command, and its data if they are in the capsule.
pub const CAPSULE_CMD: u8 = 0x04;
/// A completion.
pub const CAPSULE_RESP: u8 = 0x05;
/// Data of the host.
pub const H2C_DATA: u8 = 0x06;
/// Data of the controller.
pub const C2H_DATA: u8 = 0x07;
/// A request for data of the host.
pub const R2T: u8 = 0x09;

/// Flag: these are the last data of a command, or of an R2T.
pub const LAST: u8 = 4;
/// Flag: the command has succeeded, and no CapsuleResp follows.
pub const SUCCESS: u8 = 8;

/// Length in bytes of ICReq and ICResp.
pub const IC_LEN: usize = 128;
/// Length in bytes of the header of a CapsuleCmd.
pub const COMMAND_LEN: usize = 72;
/// Length in bytes of the header of a CapsuleResp, of data and of an R2T.
pub const HEADER_LEN: usize = 24;

/// Opcode of a fabrics command.
pub const FABRICS: u8 = 0x7f;
/// SGL descriptor: the data are in the capsule.
pub const IN_CAPSULE: u8 = 0x01;

/// The 16-bit number at `at`.
pub fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The 32-bit number at `at`.
pub fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Puts the bytes of a little-endian number at `at`.
pub fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// The digests of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PduDigests {
    /// CRC32C of headers
    pub header: bool,
    /// CRC32C of data
    pub data: bool,
}

impl PduDigests {
    /// From the byte DGST of ICReq or ICResp.
    pub fn of_byte(byte: u8) -> PduDigests {
        PduDigests { header: byte & 1 != 0, data: byte & 2 != 0 }
    }

    /// The byte DGST.
    pub fn byte(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    /// Bytes of a header digest.
    pub fn header_len(self) -> usize {
        if self.header { 4 } else { 0 }
    }

    /// Bytes of the digest of `data` bytes.
    pub fn data_len(self, data: usize) -> usize {
        if self.data && data > 0 { 4 } else { 0 }
    }

    /// Appends a header with its digest, in front of `data` bytes. Fills the flags of digests, and all lengths in.
    pub fn push_header<const N: usize>(self, mut header: [u8; N], data: usize, output: &mut Vec<u8>) {
        let (start, tail) = (N + self.header_len(), self.data_len(data));
        header[1] |= u8::from(self.header) | u8::from(tail > 0) << 1;
        header[2] = N as u8;
        header[3] = if data > 0 { start as u8 } else { 0 };
        put(&mut header, 4, ((start + data + tail) as u32).to_le_bytes());
        output.extend_from_slice(&header);
        if self.header {
            output.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        }
    }

    /// Whether the digest behind a header of `len` bytes is right, or not used.
    pub fn is_header_good(self, pdu: &[u8], len: usize) -> bool {
        !self.header || crc32c::crc32c(&pdu[..len]) == get32(pdu, len)
    }
}
