//! Sense data, fixed and descriptor format (SPC-5 section 4.4).

use super::{BitField, asc};
use crate::be;

/// The content of sense data, independent of their format on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// A deferred error of an earlier command. The command that reports it was not performed (SPC-5 section 4.4.7).
    pub deferred: bool,
    /// Sense key, 0 to 15.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
    /// INFORMATION: an LBA, or an offset for MISCOMPARE.
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION.
    pub command: Option<u64>,
    /// Sense-key-specific bytes, with SKSV in the first: a field pointer or a progress indication.
    pub specific: Option<[u8; 3]>,
}

/// One row per condition: constant, sense key, ASC, ASCQ, the standard's name.
macro_rules! conditions {
    ($($name:ident = $key:literal $asc:literal $ascq:literal, $text:literal;)*) => {
        impl Sense {
            $(#[doc = $text] pub const $name: Sense = Sense::new($key, $asc, $ascq);)*

        }

        /// All conditions with their names.
        #[cfg(test)]
        const CONDITIONS: &[(Sense, &str)] = &[$((Sense::$name, $text)),*];
    };
}

conditions! {
    NO_SENSE = 0x0 0x00 0x00, "no additional sense information";
    NOT_READY_NO_MEDIUM = 0x2 0x3a 0x00, "medium not present";
    NOT_READY_STOPPED = 0x2 0x04 0x02, "logical unit not ready, initializing command required";
    NOT_READY_INTERVENTION = 0x2 0x04 0x03, "logical unit not ready, manual intervention required";
    NOT_READY_STANDBY = 0x2 0x04 0x0b, "logical unit not accessible, target port in standby state";
    NOT_READY_UNAVAILABLE = 0x2 0x04 0x0c, "logical unit not accessible, target port in unavailable state";
    NOT_READY_TRANSITION = 0x2 0x04 0x0a, "logical unit not accessible, asymmetric access state transition";
    SANITIZE_IN_PROGRESS = 0x2 0x04 0x1b, "logical unit not ready, sanitize in progress";
    SANITIZE_FAILED = 0x3 0x31 0x03, "sanitize command failed";
    READ_ERROR = 0x3 0x11 0x00, "unrecovered read error";
    WRITE_ERROR = 0x3 0x0c 0x00, "write error";
    SET_ACCESS_FAILED = 0x4 0x67 0x0a, "set target port groups command failed";
    INTERNAL_FAILURE = 0x4 0x44 0x00, "internal target failure";
    OPERATION_IN_PROGRESS = 0x5 0x00 0x16, "operation in progress";
    COMMAND_SEQUENCE = 0x5 0x2c 0x00, "command sequence error";
    PARAMETER_LIST_LENGTH = 0x5 0x1a 0x00, "parameter list length error";
    INVALID_FIELD_IN_COMMAND_IU = 0x5 0x0e 0x03, "invalid field in command information unit";
    INVALID_OPCODE = 0x5 0x20 0x00, "invalid command operation code";
    LBA_OUT_OF_RANGE = 0x5 0x21 0x00, "logical block address out of range";
    INVALID_FIELD_IN_CDB = 0x5 0x24 0x00, "invalid field in CDB";
    LUN_NOT_SUPPORTED = 0x5 0x25 0x00, "logical unit not supported";
    INVALID_FIELD_IN_PARAMETERS = 0x5 0x26 0x00, "invalid field in parameter list";
    INVALID_RELEASE = 0x5 0x26 0x04, "invalid release of persistent reservation";
    TOO_MANY_TARGETS = 0x5 0x26 0x06, "too many target descriptors";
    UNSUPPORTED_TARGET_TYPE = 0x5 0x26 0x07, "unsupported target descriptor type code";
    TOO_MANY_SEGMENTS = 0x5 0x26 0x08, "too many segment descriptors";
    UNSUPPORTED_SEGMENT_TYPE = 0x5 0x26 0x09, "unsupported segment descriptor type code";
    INLINE_DATA_LENGTH = 0x5 0x26 0x0b, "inline data length exceeded";
    SAVING_NOT_SUPPORTED = 0x5 0x39 0x00, "saving parameters not supported";
    REMOVAL_PREVENTED = 0x5 0x53 0x02, "medium removal prevented";
    INSUFFICIENT_REGISTRATIONS = 0x5 0x55 0x04, "insufficient registration resources";
    COPY_ABORTED = 0xa 0x00 0x00, "no additional sense information";
    COPY_UNKNOWN_TARGET = 0xa 0x08 0x04, "unreachable copy target";
    COPY_INEXACT_SEGMENT = 0xa 0x26 0x0a, "unexpected inexact segment";
    COPY_DEVICE_FAILURE = 0xa 0x0d 0x01, "third party device failure";
    COPY_TARGET_UNREACHABLE = 0xa 0x0d 0x02, "copy target device not reachable";
    COPY_WRONG_TARGET = 0xa 0x0d 0x03, "incorrect copy target device type";
    POWER_ON = 0x6 0x29 0x00, "power on, reset, or bus device reset occurred";
    BUS_RESET = 0x6 0x29 0x02, "SCSI bus reset occurred";
    LUN_RESET = 0x6 0x29 0x03, "bus device reset function occurred";
    NEXUS_LOSS = 0x6 0x29 0x07, "I_T nexus loss occurred";
    MODE_PARAMETERS_CHANGED = 0x6 0x2a 0x01, "mode parameters changed";
    LOG_PARAMETERS_CHANGED = 0x6 0x2a 0x02, "log parameters changed";
    RESERVATIONS_PREEMPTED = 0x6 0x2a 0x03, "reservations preempted";
    RESERVATIONS_RELEASED = 0x6 0x2a 0x04, "reservations released";
    REGISTRATIONS_PREEMPTED = 0x6 0x2a 0x05, "registrations preempted";
    ACCESS_STATE_CHANGED = 0x6 0x2a 0x06, "asymmetric access state changed";
    CAPACITY_CHANGED = 0x6 0x2a 0x09, "capacity data has changed";
    COMMANDS_CLEARED = 0x6 0x2f 0x00, "commands cleared by another initiator";
    MEDIUM_CHANGED = 0x6 0x28 0x00, "not ready to ready change, medium may have changed";
    INQUIRY_CHANGED = 0x6 0x3f 0x03, "inquiry data has changed";
    LUNS_CHANGED = 0x6 0x3f 0x0e, "reported LUNs data has changed";
    MICROCODE_CHANGED = 0x6 0x3f 0x01, "microcode has been changed";
    TASKS_CLEARED_BY_TRANSPORT = 0x6 0x47 0x7f, "some commands cleared by iSCSI protocol event";
    WRITE_PROTECTED = 0x7 0x27 0x00, "write protected";
    SPACE_ALLOCATION_FAILED = 0x7 0x27 0x07, "space allocation failed write protect";
    COMMAND_ABORTED = 0xb 0x00 0x00, "no additional sense information";
    CRC_ERROR = 0xb 0x47 0x05, "protocol service CRC error";
    UNEXPECTED_UNSOLICITED_DATA = 0xb 0x0c 0x0c, "write error - unexpected unsolicited data";
    NOT_ENOUGH_UNSOLICITED_DATA = 0xb 0x0c 0x0d, "write error - not enough unsolicited data";
    SNACK_REJECTED = 0xb 0x11 0x13, "read error, failed retransmission request";
    ECHO_BUFFER_OVERWRITTEN = 0xb 0x3f 0x0f, "echo buffer overwritten";
    MISCOMPARE = 0xe 0x1d 0x00, "miscompare during verify operation";
}

impl Sense {
    /// The name of the additional sense code in the standard; `None` if it is unknown.
    pub fn name(&self) -> Option<&'static str> {
        asc::name(self.asc, self.ascq)
    }

    /// The sense-key-specific bytes as text: a field pointer, a progress indication or a retry count (SPC-5 section
    /// 4.4.2.4).
    pub fn detail(&self) -> Option<String> {
        let [first, high, low] = self.specific?;
        let n = u16::from_be_bytes([high, low]);
        match self.key {
            5 => {
                let place = if first & 0x40 != 0 { "CDB" } else { "parameter list" };
                let bit = if first & 0x08 != 0 { format!(", bit {}", first & 7) } else { String::new() };
                Some(format!("{place}, byte {n}{bit}"))
            }
            0 | 2 => Some(format!("{} % done", u32::from(n) * 100 / 65536)),
            1 | 3 | 4 => Some(format!("{n} retries")),
            0xa => Some(format!("segment descriptor, byte {n}")),
            _ => None,
        }
    }

    /// Sense data of a key, an additional sense code and its qualifier, without further fields.
    pub const fn new(key: u8, asc: u8, ascq: u8) -> Self {
        Sense { deferred: false, key, asc, ascq, information: None, command: None, specific: None }
    }

    /// Whether the sense key is UNIT ATTENTION (SAM-5 section 5.14).
    pub const fn is_unit_attention(&self) -> bool {
        self.key == Sense::POWER_ON.key
    }

    /// Sets INFORMATION.
    pub const fn at(self, information: u64) -> Self {
        Sense { information: Some(information), ..self }
    }

    /// INVALID FIELD IN CDB with a field pointer to a byte and, if `bit` is at most 7, to its leftmost wrong bit.
    pub const fn cdb_field(byte: u16, bit: u8) -> Self {
        Sense::INVALID_FIELD_IN_CDB.pointing(true, byte, bit)
    }

    /// INVALID FIELD IN PARAMETER LIST with a field pointer to a byte and, if `bit` is at most 7, to a bit.
    pub const fn parameter_field(byte: u16, bit: u8) -> Self {
        Sense::INVALID_FIELD_IN_PARAMETERS.pointing(false, byte, bit)
    }

    /// INVALID FIELD IN CDB with a field pointer to `field`.
    pub const fn in_cdb(field: BitField) -> Self {
        Sense::cdb_field(field.byte(), field.bit())
    }

    /// INVALID FIELD IN PARAMETER LIST with a field pointer to `field`.
    pub const fn in_parameters(field: BitField) -> Self {
        Sense::parameter_field(field.byte(), field.bit())
    }

    /// Sets a field pointer (SPC-5 section 4.4.2.4.2).
    pub const fn pointing(self, in_cdb: bool, byte: u16, bit: u8) -> Self {
        let c_d = if in_cdb { 0x40 } else { 0 };
        let bit = if bit <= 7 { 0x08 | bit } else { 0 };
        Sense { specific: Some([0x80 | c_d | bit, (byte >> 8) as u8, byte as u8]), ..self }
    }

    /// Names the segment descriptor in which an EXTENDED COPY failed: its number in COMMAND-SPECIFIC INFORMATION, the byte
    /// in a segment pointer (SPC-5 section 4.4.2.4.5).
    pub const fn segment(self, number: u16, byte: u16) -> Self {
        Sense {
            command: Some(number as u64),
            specific: Some([0x80 | 0x20, (byte >> 8) as u8, byte as u8]),
            ..self
        }
    }

    /// Sets a progress indication in units of 1/65536 (SPC-5 section 4.4.2.4.4).
    pub const fn progress(self, done: u16) -> Self {
        Sense { specific: Some([0x80, (done >> 8) as u8, done as u8]), ..self }
    }

    /// Encodes descriptor format (72h) or fixed format (70h, 18 bytes); 73h and 71h if deferred. Fixed format omits an
    /// INFORMATION above 32 bits, and clears VALID.
    pub fn encode(&self, descriptor: bool) -> Vec<u8> {
        if descriptor { self.encode_descriptor() } else { self.encode_fixed() }
    }

    /// Decodes fixed (70h, 71h) or descriptor format (72h, 73h); `None` for any other response code. Missing bytes count
    /// as zeros.
    pub fn decode(b: &[u8]) -> Option<Sense> {
        match b.first()? & 0x7f {
            0x70 | 0x71 => Some(Sense::decode_fixed(b)),
            0x72 | 0x73 => Some(Sense::decode_descriptors(b)),
            _ => None,
        }
    }

    fn decode_fixed(b: &[u8]) -> Sense {
        let mut full = [0; 18];
        let n = b.len().min(18);
        full[..n].copy_from_slice(&b[..n]);
        let command = be::get32(&full[8..]);
        Sense {
            deferred: full[0] & 1 != 0,
            key: full[2] & 0x0f,
            asc: full[12],
            ascq: full[13],
            information: (full[0] & 0x80 != 0).then(|| be::get32(&full[3..]).into()),
            command: (command != 0).then_some(command.into()),
            specific: (full[15] & 0x80 != 0).then_some([full[15], full[16], full[17]]),
        }
    }

    fn decode_descriptors(b: &[u8]) -> Sense {
        let at = |i: usize| b.get(i).copied().unwrap_or(0);
        let deferred = at(0) & 1 != 0;
        let mut sense = Sense { deferred, ..Sense::new(at(1) & 0x0f, at(2), at(3)) };
        let mut rest = b.get(8..).unwrap_or(&[]);
        while let [kind, len, ..] = *rest {
            let whole = 2 + len as usize;
            let Some(d) = rest.get(..whole) else { break };
            match kind {
                0 if whole >= 12 && d[2] & 0x80 != 0 => sense.information = Some(be::get64(&d[4..])),
                1 if whole >= 12 => sense.command = Some(be::get64(&d[4..])),
                2 if whole >= 7 && d[4] & 0x80 != 0 => sense.specific = Some([d[4], d[5], d[6]]),
                _ => {}
            }
            rest = &rest[whole..];
        }
        sense
    }

    fn encode_fixed(&self) -> Vec<u8> {
        let mut b = vec![0; 18];
        b[0] = 0x70 | u8::from(self.deferred);
        b[2] = self.key;
        b[7] = 10;
        if let Some(c) = self.command.and_then(|c| u32::try_from(c).ok()) {
            be::put32(&mut b[8..], c);
        }
        b[12] = self.asc;
        b[13] = self.ascq;
        if let Some(i) = self.information.and_then(|i| u32::try_from(i).ok()) {
            b[0] |= 0x80;
            be::put32(&mut b[3..], i);
        }
        if let Some(s) = self.specific {
            b[15..18].copy_from_slice(&s);
        }
        b
    }

    fn encode_descriptor(&self) -> Vec<u8> {
        let mut b = vec![0x72 | u8::from(self.deferred), self.key, self.asc, self.ascq, 0, 0, 0, 0];
        if let Some(i) = self.information {
            b.extend_from_slice(&[0x00, 0x0a, 0x80, 0]);
            b.extend_from_slice(&i.to_be_bytes());
        }
        if let Some(c) = self.command {
            b.extend_from_slice(&[0x01, 0x0a, 0, 0]);
            b.extend_from_slice(&c.to_be_bytes());
        }
        if let Some(s) = self.specific {
            b.extend_from_slice(&[0x02, 0x06, 0, 0, s[0], s[1], s[2], 0]);
        }
        b[7] = (b.len() - 8) as u8;
        b
    }
}

impl std::fmt::Display for Sense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const KEYS: [&str; 16] = [
            "no sense",
            "recovered error",
            "not ready",
            "medium error",
            "hardware error",
            "illegal request",
            "unit attention",
            "data protect",
            "blank check",
            "vendor specific",
            "copy aborted",
            "aborted command",
            "reserved",
            "volume overflow",
            "miscompare",
            "completed",
        ];
        let key = KEYS[(self.key & 0x0f) as usize];
        let deferred = if self.deferred { "deferred " } else { "" };
        write!(f, "{deferred}{key} ({:x}/{:02x}/{:02x})", self.key, self.asc, self.ascq)?;
        self.name().map_or(Ok(()), |name| write!(f, ": {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_have_the_names_of_the_asc_table() {
        CONDITIONS.iter().for_each(|(sense, text)| assert_eq!(sense.name(), Some(*text)));
    }

    #[test]
    fn sense_key_specific_bytes_show_as_text() {
        let detail = |s: Sense| s.detail();
        assert_eq!(detail(Sense::cdb_field(2, 7)).as_deref(), Some("CDB, byte 2, bit 7"));
        assert_eq!(detail(Sense::parameter_field(9, 8)).as_deref(), Some("parameter list, byte 9"));
        assert_eq!(detail(Sense::SANITIZE_IN_PROGRESS.progress(0x8000)).as_deref(), Some("50 % done"));
        assert_eq!(detail(Sense::POWER_ON), None);
    }

    #[test]
    fn fixed_format_is_eighteen_bytes() {
        let s = Sense::LBA_OUT_OF_RANGE.at(0x01020304).encode(false);
        assert_eq!(s, [0xf0, 0, 5, 1, 2, 3, 4, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn descriptor_format_carries_information_and_field_pointer() {
        let s = Sense::cdb_field(1, 3).at(7).encode(true);
        assert_eq!(s[..8], [0x72, 5, 0x24, 0, 0, 0, 0, 20]);
        assert_eq!(s[8..20], [0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(s[20..], [2, 6, 0, 0, 0x80 | 0x40 | 8 | 3, 0, 1, 0]);
    }

    #[test]
    fn segment_pointer_encodes_in_both_formats() {
        let s = Sense::COPY_ABORTED.segment(2, 12);
        let fixed = s.encode(false);
        assert_eq!((&fixed[8..12], &fixed[15..]), (&[0, 0, 0, 2][..], &[0xa0, 0, 12][..]));
        let descriptors = s.encode(true);
        assert_eq!(descriptors[8..20], [1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(descriptors[20..], [2, 6, 0, 0, 0xa0, 0, 12, 0]);
    }

    #[test]
    fn truncated_sense_data_decode() {
        for sense in [
            Sense::NO_SENSE,
            Sense::MISCOMPARE.at(0x1234),
            Sense::COPY_ABORTED.segment(2, 12),
            Sense::cdb_field(7, 2).at(9),
            Sense { deferred: true, ..Sense::WRITE_ERROR.at(5) },
        ] {
            for descriptor in [false, true] {
                let b = sense.encode(descriptor);
                assert_eq!(Sense::decode(&b), Some(sense));
                (0..b.len()).for_each(|n| assert_eq!(Sense::decode(&b[..n]).is_some(), n > 0));
            }
        }
        assert_eq!((Sense::decode(&[]), Sense::decode(&[0x7f; 20])), (None, None));
    }

    #[test]
    fn deferred_error_has_its_own_response_code() {
        let deferred = Sense { deferred: true, ..Sense::WRITE_ERROR };
        assert_eq!((deferred.encode(false)[0], deferred.encode(true)[0]), (0x71, 0x73));
        assert_eq!(deferred.to_string(), "deferred medium error (3/0c/00): write error");
    }

    #[test]
    fn fixed_format_omits_wide_information() {
        assert_eq!(Sense::MISCOMPARE.at(1 << 32).encode(false)[0], 0x70);
    }
}
