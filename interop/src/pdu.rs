//! One PDU as bytes. Each field can have any value, also an invalid one (RFC 7143 section 11).

use crate::digest::crc32c;

/// Opcodes (RFC 7143 section 11.2.1.2).
pub mod op {
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI: u8 = 0x01;
    pub const TMF: u8 = 0x02;
    pub const LOGIN: u8 = 0x03;
    pub const TEXT: u8 = 0x04;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const SNACK: u8 = 0x10;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const TMF_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const TEXT_RESPONSE: u8 = 0x24;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
}

/// The reserved value of both task tags.
pub const NONE: u32 = 0xffff_ffff;

/// Header, additional headers and data of one PDU, without padding and digests.
#[derive(Clone, PartialEq, Eq)]
pub struct Pdu {
    pub bhs: [u8; 48],
    pub ahs: Vec<u8>,
    pub data: Vec<u8>,
}

impl Pdu {
    /// A PDU of opcode byte `first` (the immediate bit 0x40 included) with the F bit set and all else zero.
    pub fn new(first: u8) -> Pdu {
        let mut bhs = [0; 48];
        bhs[0] = first;
        bhs[1] = 0x80;
        Pdu { bhs, ahs: Vec::new(), data: Vec::new() }
    }

    /// Sets the immediate bit.
    pub fn immediate(self) -> Pdu {
        let first = self.bhs[0];
        self.byte(0, first | 0x40)
    }

    /// Sets header byte `at`.
    pub fn byte(mut self, at: usize, value: u8) -> Pdu {
        self.bhs[at] = value;
        self
    }

    /// Sets the second byte: F and the flags of the opcode.
    pub fn flags(self, value: u8) -> Pdu {
        self.byte(1, value)
    }

    /// Sets header bytes from `at`.
    pub fn bytes(mut self, at: usize, value: &[u8]) -> Pdu {
        self.bhs[at..at + value.len()].copy_from_slice(value);
        self
    }

    /// Sets a 16-bit field at byte `at`.
    pub fn set16(self, at: usize, value: u16) -> Pdu {
        self.bytes(at, &value.to_be_bytes())
    }

    /// Sets a 32-bit field at byte `at`.
    pub fn set32(self, at: usize, value: u32) -> Pdu {
        self.bytes(at, &value.to_be_bytes())
    }

    /// Sets the Initiator Task Tag.
    pub fn itt(self, tag: u32) -> Pdu {
        self.set32(16, tag)
    }

    /// Sets the Target Transfer Tag, or another field that the opcode has at byte 20.
    pub fn ttt(self, tag: u32) -> Pdu {
        self.set32(20, tag)
    }

    /// Sets CmdSN.
    pub fn cmd_sn(self, value: u32) -> Pdu {
        self.set32(24, value)
    }

    /// Sets ExpStatSN.
    pub fn exp_stat_sn(self, value: u32) -> Pdu {
        self.set32(28, value)
    }

    /// Sets the LUN: peripheral addressing below 256, flat space above (SAM-5 section 4.7).
    pub fn lun(self, lun: u16) -> Pdu {
        let field = if lun < 256 { lun } else { 0x4000 | lun };
        self.set16(8, field)
    }

    /// Sets the additional header segments.
    pub fn ahs(mut self, ahs: &[u8]) -> Pdu {
        self.ahs = ahs.to_vec();
        self
    }

    /// Sets the data segment.
    pub fn data(mut self, data: &[u8]) -> Pdu {
        self.data = data.to_vec();
        self
    }

    /// Sets the data segment to `keys` as text.
    pub fn keys(self, keys: &[(&str, &str)]) -> Pdu {
        let text: String = keys.iter().map(|(k, v)| format!("{k}={v}\0")).collect();
        self.data(text.as_bytes())
    }

    /// The opcode without the immediate bit.
    pub fn opcode(&self) -> u8 {
        self.bhs[0] & 0x3f
    }

    /// The F (or T) bit.
    pub fn is_final(&self) -> bool {
        self.bhs[1] & 0x80 != 0
    }

    /// The 16-bit field at byte `at`.
    pub fn get16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bhs[at], self.bhs[at + 1]])
    }

    /// The 32-bit field at byte `at`.
    pub fn get32(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.bhs[at], self.bhs[at + 1], self.bhs[at + 2], self.bhs[at + 3]])
    }

    /// The Initiator Task Tag.
    pub fn tag(&self) -> u32 {
        self.get32(16)
    }

    /// The Target Transfer Tag.
    pub fn transfer_tag(&self) -> u32 {
        self.get32(20)
    }

    /// StatSN of a target's PDU.
    pub fn stat_sn(&self) -> u32 {
        self.get32(24)
    }

    /// ExpCmdSN of a target's PDU.
    pub fn exp_cmd_sn(&self) -> u32 {
        self.get32(28)
    }

    /// MaxCmdSN of a target's PDU.
    pub fn max_cmd_sn(&self) -> u32 {
        self.get32(32)
    }

    /// Status-Class and Status-Detail of a Login Response as one number: 0x0201 is authentication failure.
    pub fn status(&self) -> u16 {
        self.get16(36)
    }

    /// The pairs of the data segment, in order. Text without `=` becomes a key with an empty value.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let text = String::from_utf8_lossy(&self.data).into_owned();
        let pair = |kv: &str| {
            kv.split_once('=').map(|(k, v)| (k.into(), v.into())).unwrap_or((kv.into(), "".into()))
        };
        text.split('\0').filter(|kv| !kv.is_empty()).map(pair).collect()
    }

    /// The value of `key` in the data segment. Fails if the key occurs twice.
    pub fn value(&self, key: &str) -> Option<String> {
        let mut found = self.pairs().into_iter().filter(|(k, _)| k == key);
        let value = found.next().map(|(_, v)| v);
        assert!(found.next().is_none(), "{key} occurs twice in {self:?}");
        value
    }

    /// Header and additional header segments as on the wire, with their lengths.
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.bhs.to_vec();
        out[4] = (self.ahs.len() / 4) as u8;
        out[5..8].copy_from_slice(&(self.data.len() as u32).to_be_bytes()[1..]);
        out.extend_from_slice(&self.ahs);
        out
    }

    /// The bytes on the wire: header, header digest, padded data, data digest.
    pub fn encode(&self, header_digest: bool, data_digest: bool) -> Vec<u8> {
        let mut out = self.header();
        if header_digest {
            let digest = crc32c(&out);
            out.extend_from_slice(&digest);
        }
        let start = out.len();
        out.extend_from_slice(&self.data);
        out.resize(out.len().next_multiple_of(4), 0);
        if data_digest && !self.data.is_empty() {
            let digest = crc32c(&out[start..]);
            out.extend_from_slice(&digest);
        }
        out
    }
}

impl std::fmt::Debug for Pdu {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        for (i, part) in self.bhs.chunks(8).enumerate() {
            write!(f, "{}", if i == 0 { "[" } else { " " })?;
            part.iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        }
        write!(f, "] ahs {:02x?} data({}) ", self.ahs, self.data.len())?;
        write!(f, "{:?}", String::from_utf8_lossy(&self.data[..self.data.len().min(64)]))
    }
}
