//! The Terminate message: why a connection ends (RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044 section 8).

use super::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use std::fmt;

/// Bytes of a Terminate message without the headers of what was wrong.
pub const CONTROL_LEN: usize = 4;

/// Behind the code: the length of the segment, its DDP header and its RDMAP header are there.
const HAS_LENGTH: u8 = 0x80;
const HAS_DDP: u8 = 0x40;
const HAS_RDMAP: u8 = 0x20;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// 0 RDMAP, 1 DDP, 2 what is below.
    pub layer: u8,
    /// Kind of error, by layer.
    pub kind: u8,
    /// The error, by kind.
    pub code: u8,
}

macro_rules! reasons {
    ($($name:ident $layer:literal $kind:literal $code:literal $text:literal;)*) => {
        impl Terminate {
            $(#[doc = $text] pub const $name: Terminate =
                Terminate { layer: $layer, kind: $kind, code: $code };)*
        }
        const REASONS: &[(Terminate, &str)] = &[$((Terminate::$name, $text)),*];
    };
}

reasons! {
    CATASTROPHE 0 0 0x00 "a catastrophe at the other side";
    READ_STAG 0 1 0x00 "an RDMA Read from a steering tag that names nothing";
    READ_BOUNDS 0 1 0x01 "an RDMA Read outside of the memory of its steering tag";
    ACCESS 0 1 0x02 "memory for the other direction";
    READ_FOREIGN 0 1 0x03 "an RDMA Read from a steering tag of another connection";
    READ_WRAP 0 1 0x04 "an RDMA Read beyond the last offset";
    INVALIDATE 0 1 0x09 "a steering tag that cannot be invalidated";
    PROTECTION 0 1 0xff "memory that is protected";
    RDMAP_VERSION 0 2 0x05 "a version of RDMAP that there is not";
    OPCODE 0 2 0x06 "an operation that does not belong here";
    STREAM 0 2 0x07 "a catastrophe of this connection";
    GLOBAL 0 2 0x08 "a catastrophe of the whole other side";
    OPERATION_INVALIDATE 0 2 0x09 "a steering tag that cannot be invalidated";
    OPERATION 0 2 0xff "an operation that failed";
    DDP_CATASTROPHE 1 0 0x00 "a catastrophe in DDP at the other side";
    STAG 1 1 0x00 "a steering tag that names nothing";
    BOUNDS 1 1 0x01 "a place outside of the memory of its steering tag";
    FOREIGN 1 1 0x02 "a steering tag of another connection";
    WRAP 1 1 0x03 "a place beyond the last offset";
    TAGGED_VERSION 1 1 0x04 "a version of DDP that there is not";
    QUEUE 1 2 0x01 "a queue that there is not";
    NO_BUFFER 1 2 0x02 "a message that nothing was there to take";
    MSN 1 2 0x03 "a message out of sequence";
    OFFSET 1 2 0x04 "a part of a message out of sequence";
    TOO_LONG 1 2 0x05 "a message longer than what was there to take it";
    UNTAGGED_VERSION 1 2 0x06 "a version of DDP that there is not, in a message";
    CLOSED 2 0 0x01 "the connection was lost";
    CRC 2 0 0x02 "a CRC that does not fit";
    LENGTH 2 0 0x03 "a frame whose length does not fit";
    MPA 2 0 0x04 "an MPA request or reply that is malformed";
}

impl Terminate {
    /// The payload of a Terminate message. `wrong` is the beginning of the frame that was wrong: its length and its
    /// DDP header, and what a Read Request says; or nothing.
    pub fn encode(&self, wrong: &[u8]) -> Vec<u8> {
        let shown = match wrong.len() {
            0 => 0,
            TAGGED_LEN | UNTAGGED_LEN => HAS_LENGTH | HAS_DDP,
            _ => HAS_LENGTH | HAS_DDP | HAS_RDMAP,
        };
        let mut b = vec![self.layer << 4 | self.kind & 0xf, self.code, shown, 0];
        b.extend_from_slice(wrong);
        b
    }

    /// Reads a Terminate message; None when it is too short. Some peers (siw of Linux) swap layer and kind: what
    /// makes no sense is tried that way, too.
    pub fn decode(b: &[u8]) -> Option<Terminate> {
        let [first, code, ..] = *b.first_chunk::<CONTROL_LEN>()?;
        let straight = Terminate { layer: first >> 4, kind: first & 0xf, code };
        let swapped = Terminate { layer: straight.kind, kind: straight.layer, code };
        Some(if straight.text().is_none() && swapped.text().is_some() { swapped } else { straight })
    }

    /// The reason in words.
    pub fn text(&self) -> Option<&'static str> {
        REASONS.iter().find(|(reason, _)| reason == self).map(|(_, text)| *text)
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Terminate { layer, kind, code } = self;
        let text = self.text().unwrap_or("no known reason");
        write!(f, "{text} (layer {layer}, type {kind}, code {code:#04x})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminate_has_the_bytes_of_the_standard() {
        assert_eq!(Terminate::BOUNDS.encode(&[7; TAGGED_LEN])[..5], [0x11, 0x01, 0xc0, 0, 7]);
        assert_eq!(Terminate::READ_STAG.encode(&[7; 48])[..5], [0x01, 0x00, 0xe0, 0, 7]);
        assert_eq!(Terminate::CRC.encode(&[]), [0x20, 0x02, 0, 0]);
    }

    #[test]
    fn each_reason_is_understood() {
        for (reason, text) in REASONS {
            assert_eq!(Terminate::decode(&reason.encode(&[])), Some(*reason), "{text}");
        }
        assert_eq!(Terminate::decode(&[0x11, 1, 0]), None);
        let unknown = Terminate::decode(&[0x9a, 0xbc, 0, 0]).unwrap();
        assert_eq!(unknown.to_string(), "no known reason (layer 9, type 10, code 0xbc)");
    }

    #[test]
    fn swapped_nibbles_are_understood_where_they_can_be() {
        assert_eq!(Terminate::decode(&[0x02, 0x02, 0, 0]), Some(Terminate::CRC));
    }
}
