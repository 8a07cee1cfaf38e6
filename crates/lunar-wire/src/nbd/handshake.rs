//! Handshake and option negotiation of the fixed newstyle protocol.

use crate::be;

/// `NBDMAGIC`: the first eight bytes that a server sends.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: announces newstyle negotiation, and begins each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Bytes of the greeting: both magics and the handshake flags.
pub const GREETING_LEN: usize = 18;
/// Bytes of the client's flags.
pub const CLIENT_FLAGS_LEN: usize = 4;
/// Bytes of an option's header.
pub const OPTION_LEN: usize = 16;
/// Bytes of the header of a reply to an option.
pub const OPTION_REPLY_LEN: usize = 20;
/// Bytes of the reply to [`option::EXPORT_NAME`]: size and transmission flags.
pub const EXPORT_LEN: usize = 10;
/// Bytes of zeros after that reply, unless both sides set NO_ZEROES.
pub const EXPORT_ZEROS: usize = 124;
/// The longest string of the protocol in bytes.
pub const MAX_STRING: usize = 4096;

/// Handshake flags of both sides.
pub mod handshake_flag {
    /// Fixed newstyle: the server may reject an option, and the client may send several.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No zeros after the reply to EXPORT_NAME.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: the capabilities of an export.
pub mod transmission_flag {
    /// Always set: the flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// The export is read-only.
    pub const READ_ONLY: u16 = 1 << 1;
    /// The server supports FLUSH.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The server supports the command flag FUA.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The server supports TRIM.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// The server supports WRITE_ZEROES and the command flag NO_HOLE.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The server supports the command flag DF.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers writes that completed on any connection.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The server supports CACHE.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The server supports the command flag FAST_ZERO.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options of the client.
pub mod option {
    /// Selects an export. The server cannot reject it except by closing the connection.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the session.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Starts TLS.
    pub const STARTTLS: u32 = 5;
    /// Queries an export.
    pub const INFO: u32 = 6;
    /// Selects an export, and begins transmission.
    pub const GO: u32 = 7;
    /// Enables structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Selects metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// An aspect of an export: see [`super::info`].
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = ERROR | 1;
    /// The policy of the server forbids the option.
    pub const ERR_POLICY: u32 = ERROR | 2;
    /// The option is invalid.
    pub const ERR_INVALID: u32 = ERROR | 3;
    /// The server requires TLS.
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
    /// The client must request the block size constraints and obey them.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR | 8;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
    /// The bit that makes a type an error.
    pub const ERROR: u32 = 1 << 31;
}

/// Aspects of an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The name of the export.
    pub const NAME: u16 = 1;
    /// Human-readable description.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum block size, preferred block size, maximum payload size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// The greeting: the first message of a server, with its handshake flags.
pub fn greeting(flags: u16) -> [u8; GREETING_LEN] {
    let mut b = [0; GREETING_LEN];
    be::put64(&mut b, MAGIC);
    be::put64(&mut b[8..], OPTION_MAGIC);
    be::put16(&mut b[16..], flags);
    b
}

/// The handshake flags of a greeting. `None` if a magic number is wrong.
pub fn greeting_flags(b: &[u8; GREETING_LEN]) -> Option<u16> {
    let is_right = be::get64(b) == MAGIC && be::get64(&b[8..]) == OPTION_MAGIC;
    is_right.then(|| be::get16(&b[16..]))
}

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// The option code: see [`option`].
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Decodes a header. `None` if its magic is wrong.
    pub fn decode(b: &[u8; OPTION_LEN]) -> Option<OptionHeader> {
        let header = OptionHeader { option: be::get32(&b[8..]), len: be::get32(&b[12..]) };
        (be::get64(b) == OPTION_MAGIC).then_some(header)
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; OPTION_LEN] {
        let mut b = [0; OPTION_LEN];
        be::put64(&mut b, OPTION_MAGIC);
        be::put32(&mut b[8..], self.option);
        be::put32(&mut b[12..], self.len);
        b
    }
}

/// The header of a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReply {
    /// The code of the option that is answered: see [`option`].
    pub option: u32,
    /// The reply type: see [`reply`].
    pub reply: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionReply {
    /// Decodes a header. `None` if its magic is wrong.
    pub fn decode(b: &[u8; OPTION_REPLY_LEN]) -> Option<OptionReply> {
        let [option, reply, len] = [8, 12, 16].map(|at| be::get32(&b[at..]));
        (be::get64(b) == OPTION_REPLY_MAGIC).then_some(OptionReply { option, reply, len })
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; OPTION_REPLY_LEN] {
        let mut b = [0; OPTION_REPLY_LEN];
        be::put64(&mut b, OPTION_REPLY_MAGIC);
        be::put32(&mut b[8..], self.option);
        be::put32(&mut b[12..], self.reply);
        be::put32(&mut b[16..], self.len);
        b
    }
}

/// An export in the reply to EXPORT_NAME and in [`info::EXPORT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportReply {
    /// Size in bytes.
    pub size: u64,
    /// Transmission flags: see [`transmission_flag`].
    pub flags: u16,
}

impl ExportReply {
    /// Decodes the reply.
    pub fn decode(b: &[u8; EXPORT_LEN]) -> ExportReply {
        ExportReply { size: be::get64(b), flags: be::get16(&b[8..]) }
    }

    /// Encodes the reply.
    pub fn encode(&self) -> [u8; EXPORT_LEN] {
        let mut b = [0; EXPORT_LEN];
        be::put64(&mut b, self.size);
        be::put16(&mut b[8..], self.flags);
        b
    }
}

/// The block sizes of an export in [`info::BLOCK_SIZE`], in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// The minimum.
    pub min: u32,
    /// The preferred size.
    pub preferred: u32,
    /// The maximum length of a payload.
    pub max_payload: u32,
}

impl BlockSizes {
    /// Bytes of the encoded sizes.
    pub const LEN: usize = 12;

    /// Decodes the sizes.
    pub fn decode(b: &[u8; Self::LEN]) -> BlockSizes {
        BlockSizes { min: be::get32(b), preferred: be::get32(&b[4..]), max_payload: be::get32(&b[8..]) }
    }

    /// Encodes the sizes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        be::put32(&mut b, self.min);
        be::put32(&mut b[4..], self.preferred);
        be::put32(&mut b[8..], self.max_payload);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_matches_the_document() {
        assert_eq!(&greeting(3), b"NBDMAGICIHAVEOPT\0\x03");
    }

    #[test]
    fn option_headers_match_and_round_trip() {
        let asked = OptionHeader { option: option::GO, len: 0x0102_0304 };
        assert_eq!(&asked.encode(), b"IHAVEOPT\0\0\0\x07\x01\x02\x03\x04");
        assert_eq!(OptionHeader::decode(&asked.encode()), Some(asked));
        let answer = OptionReply { option: option::GO, reply: reply::ERR_UNKNOWN, len: 5 };
        assert_eq!(&answer.encode(), b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\x80\0\0\x06\0\0\0\x05");
        assert_eq!(OptionReply::decode(&answer.encode()), Some(answer));
    }

    #[test]
    fn option_header_with_wrong_magic_is_none() {
        for at in 0..8 {
            let mut asked = OptionHeader { option: 1, len: 0 }.encode();
            asked[at] ^= 1;
            assert_eq!(OptionHeader::decode(&asked), None);
            let mut answer = OptionReply { option: 1, reply: 1, len: 0 }.encode();
            answer[at] ^= 1;
            assert_eq!(OptionReply::decode(&answer), None);
        }
    }

    #[test]
    fn size_and_flags_follow_one_another() {
        let export = ExportReply { size: 0x0102_0304_0506_0708, flags: 0x0a0b };
        assert_eq!(export.encode(), [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]);
        assert_eq!(ExportReply::decode(&export.encode()), export);
    }

    #[test]
    fn block_sizes_match_and_round_trip() {
        let sizes = BlockSizes { min: 1, preferred: 0x0203, max_payload: 0x0405_0607 };
        assert_eq!(sizes.encode(), [0, 0, 0, 1, 0, 0, 2, 3, 4, 5, 6, 7]);
        assert_eq!(BlockSizes::decode(&sizes.encode()), sizes);
    }

    #[test]
    fn greeting_without_both_magic_numbers_is_none() {
        assert_eq!(greeting_flags(&greeting(3)), Some(3));
        for at in 0..16 {
            let mut b = greeting(3);
            b[at] ^= 1;
            assert_eq!(greeting_flags(&b), None);
        }
    }
}
