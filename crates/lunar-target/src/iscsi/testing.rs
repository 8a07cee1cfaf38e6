//! The framing of a connection without a socket, for tests and fuzzers.

use super::pdu_queue::Digests;
use super::receive::{PduHandler, PduReceiver, ReceiveError, ReceivedData, ReceivedPdu, encode};
use super::scsi_command;
use lunar_runtime::Buf;
use lunar_wire::iscsi::{Bhs, opcode};

/// Offset at which segments are placed in their buffer.
const PLACE: usize = 12;

/// Parameters of the framing.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    /// Header digests.
    pub header_digest: bool,
    /// Data digests.
    pub data_digest: bool,
    /// MaxRecvDataSegmentLength in bytes.
    pub max_data: usize,
    /// Whether large Data-Out segments are placed in the buffers of tasks.
    pub lands: bool,
}

/// A received PDU.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its header.
    pub header: Bhs,
    /// Its additional header segments.
    pub ahs: Vec<u8>,
    /// Its data segment.
    pub data: Vec<u8>,
    /// Whether the data digest matches, or there is none.
    pub intact: bool,
    /// Whether it is a valid SCSI Command.
    pub is_command: bool,
}

struct Frames {
    framing: Framing,
    all: Vec<Frame>,
}

impl PduHandler for Frames {
    fn place(&mut self, header: &Bhs) -> Option<(Buf, usize)> {
        let lands = self.framing.lands && header.opcode() == opcode::DATA_OUT;
        lands.then(|| (Buf::zeroed(header.data_len() + PLACE), PLACE))
    }

    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }

    fn is_full(&self) -> bool {
        false
    }

    fn take(&mut self, pdu: ReceivedPdu<'_>) -> bool {
        let data = match &pdu.data {
            ReceivedData::Placed(buf) => buf[PLACE..].to_vec(),
            other => other.bytes().to_vec(),
        };
        let ReceivedPdu { header, ahs, intact, .. } = pdu;
        let is_command =
            header.opcode() == opcode::SCSI_COMMAND && scsi_command::read(&header, ahs, 0).is_some();
        self.all.push(Frame { header, ahs: ahs.to_vec(), data, intact, is_command });
        true
    }
}

impl Framing {
    /// Parses a stream that arrives in pieces of `step` bytes. Returns the PDUs, and whether parsing failed.
    pub fn frames(&self, stream: &[u8], step: usize) -> (Vec<Frame>, bool) {
        let mut frames = Frames { framing: *self, all: Vec::new() };
        let mut receiver = PduReceiver::new(self.digests(), self.max_data, Vec::new());
        let broken = stream.chunks(step.max(1)).any(|piece| take(&mut receiver, piece, &mut frames).is_err());
        (frames.all, broken)
    }

    /// Encodes a PDU and sets its lengths.
    pub fn encode(&self, header: Bhs, ahs: &[u8], data: &[u8]) -> Vec<u8> {
        encode(self.digests(), header, ahs, data)
    }

    fn digests(&self) -> Digests {
        Digests { header: self.header_digest, data: self.data_digest }
    }
}

fn take(receiver: &mut PduReceiver, piece: &[u8], frames: &mut Frames) -> Result<(), ReceiveError> {
    receiver.feed(piece, frames).map(drop)
}
