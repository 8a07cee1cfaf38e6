//! iSER on the wire: private data of the connection setup, and the header in front of each message (RFC 7145
//! section 9). Integers are big-endian.
//!
//! ```text
//! message   0  header (28)   28  Basic Header Segment (48)   76  additional segments   ..  data segment
//! ```
//!
//! There are no digests. The message length bounds the PDU; padding at its end is optional.

use crate::be;
use crate::iscsi::{BHS_LEN, Bhs};
use std::fmt;

/// Bytes of the header in front of each message.
pub const HEADER_LEN: usize = 28;
/// Bytes of a message before its additional header segments and its data.
pub const OVERHEAD: usize = HEADER_LEN + BHS_LEN;
/// Bytes of the longest message before full feature phase: a Login or Text PDU with 8 KiB of keys.
pub const LOGIN_LEN: usize = OVERHEAD + 8192;
/// Bytes of data that a message to a Linux or libiscsi initiator may carry in full feature phase. These initiators
/// post no larger receive buffers, even if the login negotiated more.
pub const SAFE_DATA_LEN: usize = 128;
/// Bytes of private data that each side sends during connection setup.
pub const PRIVATE_LEN: usize = 4;

/// The iSER version (RFC 7145 section 9.3).
pub const VERSION: u8 = 10;

const NO_ZBVA: u8 = 0x80;
const NO_INVALIDATE: u8 = 0x40;

const CONTROL: u8 = 1;
const HELLO: u8 = 2;
const HELLO_REPLY: u8 = 3;
/// WSV and RSV of a control header: the steering tag for the write or the read is valid.
const WRITE_VALID: u8 = 0x08;
const READ_VALID: u8 = 0x04;
/// REJ of a HelloReply.
const REJECT: u8 = 0x01;

/// Capabilities of one side, exchanged in the private data of the connection setup (IBTA annex A12; RFC 7145 leaves
/// them to the transport).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IserCapabilities {
    /// Zero-based virtual addresses: tagged offsets begin at zero. No known implementation uses it.
    pub zero_based: bool,
    /// For an initiator: the target may use Send with Invalidate. For a target: it will use it.
    pub invalidate: bool,
}

impl IserCapabilities {
    /// Encodes the private data that announces these capabilities.
    pub fn encode(self) -> [u8; PRIVATE_LEN] {
        let zbva = if self.zero_based { 0 } else { NO_ZBVA };
        let invalidate = if self.invalidate { 0 } else { NO_INVALIDATE };
        [zbva | invalidate, 0, 0, 0]
    }

    /// Decodes the private data of the other side. Zeros may follow it (InfiniBand). Fewer than four bytes announce no
    /// capability.
    pub fn decode(private: &[u8]) -> IserCapabilities {
        match private.first_chunk::<PRIVATE_LEN>() {
            Some([flags, ..]) => {
                IserCapabilities { zero_based: flags & NO_ZBVA == 0, invalidate: flags & NO_INVALIDATE == 0 }
            }
            None => IserCapabilities::default(),
        }
    }
}

/// Initiator memory that a command advertises for RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvertisedBuffer {
    /// Steering tag.
    pub stag: u32,
    /// Tagged offset of the first byte.
    pub offset: u64,
}

/// The header in front of a message (RFC 7145 sections 9.2 to 9.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IserHeader {
    /// An iSCSI control-type PDU follows. Only initiators advertise memory.
    Control {
        /// Memory from which the target reads the data of a write (WSV).
        write: Option<AdvertisedBuffer>,
        /// Memory to which the target writes the data of a read (RSV).
        read: Option<AdvertisedBuffer>,
    },
    /// Hello of the initiator. No known implementation sends it.
    Hello {
        /// Highest and lowest version that it supports.
        versions: (u8, u8),
        /// Maximum RDMA Reads that it accepts at a time (iSER-IRD).
        ird: u16,
    },
    /// The target's answer to Hello.
    HelloReply {
        /// REJ: the target refuses the connection.
        reject: bool,
        /// Highest version that it supports, and the version in use.
        versions: (u8, u8),
        /// Maximum RDMA Reads that it keeps outstanding (iSER-ORD).
        ord: u16,
    },
}

/// The reason why a message does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IserError {
    /// Shorter than its headers; the length in bytes.
    Short(usize),
    /// Unknown opcode in the iSER header.
    Opcode(u8),
    /// A Hello or a HelloReply where a PDU is required.
    Greeting,
    /// Length mismatch: the bytes that the PDU announces, and the bytes present after the headers.
    Length(usize, usize),
}

impl fmt::Display for IserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IserError::Short(len) => write!(f, "an iSER message of {len} bytes is shorter than its headers"),
            IserError::Opcode(opcode) => write!(f, "an iSER header with the unknown opcode {opcode}"),
            IserError::Greeting => write!(f, "an iSER Hello or HelloReply message, which was not negotiated"),
            IserError::Length(asked, there) => {
                write!(f, "an iSER message has {there} bytes of data, but its PDU header states {asked}")
            }
        }
    }
}

impl std::error::Error for IserError {}

impl IserHeader {
    /// The header of a message that advertises no memory.
    pub const PLAIN: IserHeader = IserHeader::Control { write: None, read: None };

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        match *self {
            IserHeader::Control { write, read } => {
                b[0] = CONTROL << 4;
                put(&mut b, 4, WRITE_VALID, write);
                put(&mut b, 16, READ_VALID, read);
            }
            IserHeader::Hello { versions, ird } => greet(&mut b, HELLO << 4, versions, ird),
            IserHeader::HelloReply { reject, versions, ord } => {
                greet(&mut b, (HELLO_REPLY << 4) | (u8::from(reject) * REJECT), versions, ord);
            }
        }
        b
    }

    /// Decodes the header of a message. It ignores reserved bits and invalid tags.
    ///
    /// # Errors
    /// [`IserError::Short`] and [`IserError::Opcode`].
    pub fn decode(message: &[u8]) -> Result<IserHeader, IserError> {
        let b = message.first_chunk::<HEADER_LEN>().ok_or(IserError::Short(message.len()))?;
        let (versions, limit) = ((b[1] >> 4, b[1] & 0xf), be::get16(&b[2..]));
        match b[0] >> 4 {
            CONTROL => {
                Ok(IserHeader::Control { write: get(b, 4, WRITE_VALID), read: get(b, 16, READ_VALID) })
            }
            HELLO => Ok(IserHeader::Hello { versions, ird: limit }),
            HELLO_REPLY => Ok(IserHeader::HelloReply { reject: b[0] & REJECT != 0, versions, ord: limit }),
            opcode => Err(IserError::Opcode(opcode)),
        }
    }
}

fn put(b: &mut [u8; HEADER_LEN], at: usize, valid: u8, advertised: Option<AdvertisedBuffer>) {
    if let Some(AdvertisedBuffer { stag, offset }) = advertised {
        b[0] |= valid;
        be::put32(&mut b[at..], stag);
        be::put64(&mut b[at + 4..], offset);
    }
}

fn get(b: &[u8; HEADER_LEN], at: usize, valid: u8) -> Option<AdvertisedBuffer> {
    (b[0] & valid != 0)
        .then(|| AdvertisedBuffer { stag: be::get32(&b[at..]), offset: be::get64(&b[at + 4..]) })
}

fn greet(b: &mut [u8; HEADER_LEN], first: u8, (high, low): (u8, u8), limit: u16) {
    (b[0], b[1]) = (first, (high << 4) | (low & 0xf));
    be::put16(&mut b[2..], limit);
}

/// An iSCSI PDU with the memory that its message advertises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IserPdu<'a> {
    /// Memory from which the target reads the data of a write.
    pub write: Option<AdvertisedBuffer>,
    /// Memory to which the target writes the data of a read.
    pub read: Option<AdvertisedBuffer>,
    /// The Basic Header Segment.
    pub bhs: Bhs,
    /// The additional header segments.
    pub ahs: &'a [u8],
    /// The data segment without its padding.
    pub data: &'a [u8],
}

impl<'a> IserPdu<'a> {
    /// Decodes a message. It may be up to four bytes longer than its PDU, because some implementations pad.
    ///
    /// # Errors
    /// The message holds no PDU, or its length is not that of the PDU: see [`IserError`].
    pub fn decode(message: &'a [u8]) -> Result<IserPdu<'a>, IserError> {
        let IserHeader::Control { write, read } = IserHeader::decode(message)? else {
            return Err(IserError::Greeting);
        };
        let short = IserError::Short(message.len());
        let (bhs, rest) = message[HEADER_LEN..].split_first_chunk::<BHS_LEN>().ok_or(short)?;
        let bhs = Bhs(*bhs);
        let asked = bhs.ahs_len() + bhs.data_len();
        if !(asked..=asked + 4).contains(&rest.len()) {
            return Err(IserError::Length(asked, rest.len()));
        }
        let (ahs, data) = rest[..asked].split_at(bhs.ahs_len());
        Ok(IserPdu { write, read, bhs, ahs, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iscsi::request;
    use proptest::prelude::*;

    const READ: AdvertisedBuffer = AdvertisedBuffer { stag: 0x0102_0304, offset: 0x1112_1314_1516_1718 };
    const WRITE: AdvertisedBuffer = AdvertisedBuffer { stag: 0xa1a2_a3a4, offset: 0xb1b2_b3b4_b5b6_b7b8 };

    #[test]
    fn capabilities_are_encoded_as_cleared_bits() {
        let all = [(true, true), (true, false), (false, true), (false, false)];
        let all = all.map(|(zero_based, invalidate)| IserCapabilities { zero_based, invalidate });
        assert_eq!(all.map(|a| a.encode()[0]), [0x00, 0x40, 0x80, 0xc0]);
        for abilities in all {
            assert_eq!(IserCapabilities::decode(&abilities.encode()), abilities);
            let padded = [&abilities.encode()[..], &[0; 192]].concat();
            assert_eq!(IserCapabilities::decode(&padded), abilities, "zeros may follow");
        }
        assert_eq!(IserCapabilities::decode(&[0; 3]), IserCapabilities::default());
    }

    #[test]
    fn control_header_matches_the_standard() {
        let mut b = [0; HEADER_LEN];
        b[0] = 0x10;
        assert_eq!(IserHeader::PLAIN.encode(), b);
        b[0] = 0x1c;
        b[4..16].copy_from_slice(&[0xa1, 0xa2, 0xa3, 0xa4, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8]);
        b[16..].copy_from_slice(&[1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!(IserHeader::Control { write: Some(WRITE), read: Some(READ) }.encode(), b);
        b[0] = 0x14;
        assert_eq!(IserHeader::decode(&b), Ok(IserHeader::Control { write: None, read: Some(READ) }));
        b[0] = 0x18;
        assert_eq!(IserHeader::decode(&b), Ok(IserHeader::Control { write: Some(WRITE), read: None }));
    }

    #[test]
    fn hello_matches_the_standard() {
        let hello = IserHeader::Hello { versions: (VERSION, VERSION), ird: 0x0102 };
        assert_eq!(hello.encode()[..5], [0x20, 0xaa, 1, 2, 0]);
        let reply = IserHeader::HelloReply { reject: true, versions: (VERSION, VERSION), ord: 8 };
        assert_eq!(reply.encode()[..5], [0x31, 0xaa, 0, 8, 0]);
        assert_eq!([hello, reply].map(|h| IserHeader::decode(&h.encode())), [Ok(hello), Ok(reply)]);
        let message = [&hello.encode()[..], &[0; BHS_LEN]].concat();
        assert_eq!(IserPdu::decode(&message), Err(IserError::Greeting));
    }

    #[test]
    fn invalid_header_is_rejected() {
        assert_eq!(IserHeader::decode(&[0x10; HEADER_LEN - 1]), Err(IserError::Short(27)));
        assert_eq!(IserHeader::decode(&[0x40; HEADER_LEN]), Err(IserError::Opcode(4)));
        assert_eq!(IserPdu::decode(&[0x10; OVERHEAD - 1]), Err(IserError::Short(75)));
    }

    /// A Text Request that announces `ahs_words` words of additional segments and `data_len` bytes of data. `there`
    /// bytes follow its headers.
    fn message(ahs_words: u8, data_len: usize, there: usize) -> Vec<u8> {
        let mut bhs = request::text(1, 0x80, 0, 2);
        bhs.set_ahs_len(usize::from(ahs_words) * 4);
        bhs.set_data_len(data_len);
        let behind: Vec<u8> = (0..there).map(|i| i as u8).collect();
        [&IserHeader::PLAIN.encode()[..], &bhs.0, &behind].concat()
    }

    #[test]
    fn pdu_decodes_with_and_without_padding() {
        for there in 9..=13 {
            let bytes = message(1, 5, there);
            let pdu = IserPdu::decode(&bytes).unwrap();
            assert_eq!((pdu.ahs, pdu.data, pdu.bhs.itt()), (&[0, 1, 2, 3][..], &[4, 5, 6, 7, 8][..], 1));
        }
        assert_eq!(IserPdu::decode(&message(1, 5, 8)), Err(IserError::Length(9, 8)));
        assert_eq!(IserPdu::decode(&message(1, 5, 14)), Err(IserError::Length(9, 14)));
        assert_eq!(IserPdu::decode(&message(255, 0xff_ffff, 0)), Err(IserError::Length(0x100_03fb, 0)));
    }

    fn advertised() -> impl Strategy<Value = Option<AdvertisedBuffer>> {
        any::<Option<(u32, u64)>>().prop_map(|a| a.map(|(stag, offset)| AdvertisedBuffer { stag, offset }))
    }

    proptest! {
        #[test]
        fn control_header_round_trips(write in advertised(), read in advertised()) {
            let header = IserHeader::Control { write, read };
            prop_assert_eq!(IserHeader::decode(&header.encode()), Ok(header));
        }
    }
}
