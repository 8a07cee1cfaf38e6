//! Segmentation of messages into FPDUs that fit a TCP segment.

use crate::RemoteAddress;
use lunar_runtime::Buf;
use lunar_runtime::iscsi::digest::crc32c;
use lunar_runtime::send_queue::{Payload, SendQueue};
use lunar_wire::iwarp::ddp::{self, opcode, queue};
use lunar_wire::iwarp::{DdpHeader, ReadRequest, TaggedHeader, Terminate, UntaggedHeader, mpa};
use std::rc::Rc;

/// The default TCP segment size, if the kernel does not report one.
const DEFAULT_MSS: usize = 1448;
/// The limits of the FPDU size in bytes: the longest header must fit, and the length field has 16 bits.
const MIN_MSS: usize = 148;
const MAX_MSS: usize = 65_000;

/// The send queue of FPDUs.
pub(super) struct FpduQueue {
    /// The FPDUs.
    pub(super) out: SendQueue,
    crc: bool,
    mss: usize,
    /// The header of an FPDU, kept to reuse its memory.
    frame: Vec<u8>,
    /// Sequence numbers of the next Send and the next Read Request.
    send_msn: u32,
    read_msn: u32,
}

impl FpduQueue {
    /// `mss` limits the FPDU size in bytes.
    pub(super) fn new(crc: bool, mss: Option<usize>) -> FpduQueue {
        let mss = mss.unwrap_or(DEFAULT_MSS).clamp(MIN_MSS, MAX_MSS);
        FpduQueue { out: SendQueue::default(), crc, mss, frame: Vec::new(), send_msn: 1, read_msn: 1 }
    }

    /// Queues a Send, with Invalidate for a steering tag.
    pub(super) fn send(&mut self, head: &[u8], payload: Payload, invalidate: Option<u32>) {
        let opcode = if invalidate.is_some() { opcode::SEND_INVALIDATE } else { opcode::SEND };
        let msn = next(&mut self.send_msn);
        self.cut(untagged(opcode, invalidate.unwrap_or(0), queue::SEND, msn), head, payload);
    }

    /// Queues an RDMA Write.
    pub(super) fn write(&mut self, to: RemoteAddress, payload: Payload) {
        self.cut(tagged(opcode::WRITE, to), &[], payload);
    }

    /// Queues a Read Response.
    pub(super) fn respond(&mut self, to: RemoteAddress, payload: Payload) {
        self.cut(tagged(opcode::READ_RESPONSE, to), &[], payload);
    }

    /// Queues a Read Request.
    pub(super) fn request(&mut self, request: &ReadRequest) {
        let msn = next(&mut self.read_msn);
        self.cut(untagged(opcode::READ_REQUEST, 0, queue::READ, msn), &request.encode(), Payload::Empty);
    }

    /// Queues a Terminate. `wrong` is as in [`Terminate::encode`].
    pub(super) fn terminate(&mut self, why: Terminate, wrong: &[u8]) {
        self.cut(untagged(opcode::TERMINATE, 0, queue::TERMINATE, 1), &why.encode(wrong), Payload::Empty);
    }

    /// Segments a message into FPDUs. `first` is the header of the first one.
    fn cut(&mut self, first: DdpHeader, head: &[u8], payload: Payload) {
        let whole = head.len() + payload.bytes().len();
        // A multiple of four, so that only the last FPDU is padded.
        let max = (self.mss - mpa::CRC_LEN - first.len()) & !3;
        if whole <= max {
            return self.push(&part(first, 0, true), head, payload);
        }
        let body = SharedPayload::from(payload);
        let mut at = 0;
        while at < whole {
            let end = (at + max).min(whole);
            let of_head = &head[at.min(head.len())..end.min(head.len())];
            let [from, to] = [at, end].map(|at| at.saturating_sub(head.len()));
            self.push(&part(first, at, end == whole), of_head, body.part(from, to - from));
            at = end;
        }
    }

    /// Queues one FPDU.
    fn push(&mut self, header: &DdpHeader, head: &[u8], payload: Payload) {
        let bytes = payload.bytes();
        self.frame.clear();
        header.put(head.len() + bytes.len(), &mut self.frame);
        self.frame.extend_from_slice(head);
        let padding = mpa::padding(self.frame.len() + bytes.len());
        let mut tail = [0; 3 + mpa::CRC_LEN];
        if self.crc {
            let crc = crc32c(&[&self.frame, bytes, &tail[..padding]]);
            tail[padding..padding + mpa::CRC_LEN].copy_from_slice(&crc.to_le_bytes());
        }
        self.out.push(&self.frame, payload, &tail[..padding + mpa::CRC_LEN]);
    }
}

fn next(msn: &mut u32) -> u32 {
    let this = *msn;
    *msn = msn.wrapping_add(1);
    this
}

fn tagged(opcode: u8, to: RemoteAddress) -> DdpHeader {
    DdpHeader::Tagged(TaggedHeader { opcode, last: true, stag: to.stag, offset: to.offset })
}

fn untagged(opcode: u8, stag: u32, queue: u32, msn: u32) -> DdpHeader {
    DdpHeader::Untagged(UntaggedHeader { opcode, last: true, stag, queue, msn, offset: 0 })
}

/// The header of a segment at this offset of its message.
fn part(first: DdpHeader, at: usize, last: bool) -> DdpHeader {
    match first {
        DdpHeader::Tagged(t) => {
            DdpHeader::Tagged(TaggedHeader { last, offset: t.offset.wrapping_add(at as u64), ..t })
        }
        DdpHeader::Untagged(u) => DdpHeader::Untagged(ddp::UntaggedHeader { last, offset: at as u32, ..u }),
    }
}

/// A payload shared by several FPDUs.
enum SharedPayload {
    Zeros,
    Bytes(Vec<u8>),
    /// A buffer and the offset of the payload.
    Shared(Rc<Buf>, usize),
}

impl From<Payload> for SharedPayload {
    fn from(payload: Payload) -> SharedPayload {
        match payload {
            Payload::Empty => SharedPayload::Bytes(Vec::new()),
            Payload::Zeros(_) => SharedPayload::Zeros,
            Payload::Bytes(bytes) => SharedPayload::Bytes(bytes),
            Payload::Buf(buf, _) => SharedPayload::Shared(Rc::new(buf), 0),
            Payload::Part(buf, at, _) => SharedPayload::Shared(buf, at),
        }
    }
}

impl SharedPayload {
    fn part(&self, from: usize, len: usize) -> Payload {
        match self {
            _ if len == 0 => Payload::Empty,
            SharedPayload::Zeros => Payload::Zeros(len),
            SharedPayload::Bytes(bytes) => Payload::Bytes(bytes[from..from + len].to_vec()),
            SharedPayload::Shared(buf, at) => Payload::Part(buf.clone(), at + from, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_is_one_fpdu_with_padding_and_crc() {
        let mut transmit = FpduQueue::new(true, None);
        transmit.send(b"head", Payload::Bytes(b"body!".to_vec()), None);
        let covered = b"\x00\x1b\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0headbody!\0\0\0";
        let crc = crc32c(&[covered]).to_le_bytes();
        assert_eq!(transmit.out.take_bytes(), [&covered[..], &crc].concat());
    }

    #[test]
    fn fpdu_fits_the_tcp_segment_and_only_the_last_is_padded() {
        for mss in [148, 1448, 1449, 9000, 65_000] {
            let mut transmit = FpduQueue::new(false, Some(mss));
            transmit.write(RemoteAddress { stag: 1, offset: 0 }, Payload::Zeros(100_001));
            let bytes = transmit.out.take_bytes();
            let (mut rest, mut sent) = (&bytes[..], 0);
            while !rest.is_empty() {
                let segment = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
                let whole = mpa::fpdu_len(segment);
                assert!(whole <= mss, "{whole} of {mss}");
                assert!(whole == rest.len() || mpa::padding(segment + 2) == 0);
                sent += segment - 14;
                rest = &rest[whole..];
            }
            assert_eq!(sent, 100_001);
        }
    }

    #[test]
    fn large_buffer_is_released_with_its_last_fpdu() {
        let (mut transmit, buf) = (FpduQueue::new(false, None), Rc::new(Buf::zeroed(10_000)));
        transmit.write(RemoteAddress { stag: 1, offset: 0 }, Payload::Part(buf.clone(), 0, 10_000));
        assert_eq!(Rc::strong_count(&buf), 1 + 10_000usize.div_ceil(1428));
        transmit.out.take_bytes();
        assert_eq!(Rc::strong_count(&buf), 1);
    }
}
