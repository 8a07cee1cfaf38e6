//! The Terminate message: the error that ends a connection (RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044
//! section 8).

use super::ddp::{TAGGED_LEN, UNTAGGED_LEN};
use std::fmt;

/// Bytes of a Terminate message without the headers of the erroneous segment.
pub const CONTROL_LEN: usize = 4;

/// Bits of the byte after the code: the message includes the segment length, its DDP header, or its RDMAP header.
const HAS_LENGTH: u8 = 0x80;
const HAS_DDP: u8 = 0x40;
const HAS_RDMAP: u8 = 0x20;

/// The error that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Layer: 0 RDMAP, 1 DDP, 2 MPA and below.
    pub layer: u8,
    /// Error type; its meaning depends on the layer.
    pub kind: u8,
    /// Error code; its meaning depends on the type.
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
    CATASTROPHE 0 0 0x00 "local catastrophic error at the peer";
    READ_STAG 0 1 0x00 "RDMA Read with an invalid steering tag";
    READ_BOUNDS 0 1 0x01 "RDMA Read beyond the bounds of its steering tag";
    ACCESS 0 1 0x02 "access rights violation";
    READ_FOREIGN 0 1 0x03 "RDMA Read with a steering tag of another connection";
    READ_WRAP 0 1 0x04 "RDMA Read offset wraps";
    INVALIDATE 0 1 0x09 "steering tag cannot be invalidated";
    PROTECTION 0 1 0xff "remote protection error";
    RDMAP_VERSION 0 2 0x05 "invalid RDMAP version";
    OPCODE 0 2 0x06 "unexpected RDMAP opcode";
    STREAM 0 2 0x07 "catastrophic error of the RDMAP stream";
    GLOBAL 0 2 0x08 "global catastrophic error at the peer";
    OPERATION_INVALIDATE 0 2 0x09 "steering tag cannot be invalidated";
    OPERATION 0 2 0xff "remote operation error";
    DDP_CATASTROPHE 1 0 0x00 "local catastrophic DDP error at the peer";
    STAG 1 1 0x00 "invalid steering tag";
    BOUNDS 1 1 0x01 "access beyond the bounds of its steering tag";
    FOREIGN 1 1 0x02 "steering tag of another connection";
    WRAP 1 1 0x03 "tagged offset wraps";
    TAGGED_VERSION 1 1 0x04 "invalid DDP version of a tagged segment";
    QUEUE 1 2 0x01 "invalid DDP queue number";
    NO_BUFFER 1 2 0x02 "no receive buffer for the message";
    MSN 1 2 0x03 "invalid message sequence number";
    OFFSET 1 2 0x04 "invalid message offset";
    TOO_LONG 1 2 0x05 "message longer than its receive buffer";
    UNTAGGED_VERSION 1 2 0x06 "invalid DDP version of an untagged segment";
    CLOSED 2 0 0x01 "TCP connection lost";
    CRC 2 0 0x02 "MPA CRC mismatch";
    LENGTH 2 0 0x03 "invalid FPDU length";
    MPA 2 0 0x04 "malformed MPA request or reply";
}

impl Terminate {
    /// Encodes the payload of a Terminate message. `wrong` holds the start of the erroneous segment: MPA length and DDP
    /// header, and the payload of an RDMA Read Request. It may be empty.
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

    /// Decodes a Terminate message. `None` if it is too short. Some peers (siw of Linux) swap layer and type, so an
    /// unknown combination is also tried swapped.
    pub fn decode(b: &[u8]) -> Option<Terminate> {
        let [first, code, ..] = *b.first_chunk::<CONTROL_LEN>()?;
        let straight = Terminate { layer: first >> 4, kind: first & 0xf, code };
        let swapped = Terminate { layer: straight.kind, kind: straight.layer, code };
        Some(if straight.text().is_none() && swapped.text().is_some() { swapped } else { straight })
    }

    /// A description of the error; `None` for a combination that no standard defines.
    pub fn text(&self) -> Option<&'static str> {
        REASONS.iter().find(|(reason, _)| reason == self).map(|(_, text)| *text)
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Terminate { layer, kind, code } = self;
        let text = self.text().unwrap_or("unknown error");
        write!(f, "{text} (layer {layer}, type {kind}, code {code:#04x})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminate_matches_the_standard() {
        assert_eq!(Terminate::BOUNDS.encode(&[7; TAGGED_LEN])[..5], [0x11, 0x01, 0xc0, 0, 7]);
        assert_eq!(Terminate::READ_STAG.encode(&[7; 48])[..5], [0x01, 0x00, 0xe0, 0, 7]);
        assert_eq!(Terminate::CRC.encode(&[]), [0x20, 0x02, 0, 0]);
    }

    #[test]
    fn every_terminate_error_round_trips() {
        for (reason, text) in REASONS {
            assert_eq!(Terminate::decode(&reason.encode(&[])), Some(*reason), "{text}");
        }
        assert_eq!(Terminate::decode(&[0x11, 1, 0]), None);
        let unknown = Terminate::decode(&[0x9a, 0xbc, 0, 0]).unwrap();
        assert_eq!(unknown.to_string(), "unknown error (layer 9, type 10, code 0xbc)");
    }

    #[test]
    fn swapped_layer_and_type_decode() {
        assert_eq!(Terminate::decode(&[0x02, 0x02, 0, 0]), Some(Terminate::CRC));
    }
}
