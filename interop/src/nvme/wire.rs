//! A connection, which is one queue.

use super::frame::{header_len, is_plain};
use super::{NvmeEntry, NvmeFrame, pdu};
use crate::digest::crc32c;
use crate::raw::{QUIET, patience, stream_from};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The bit MORE of a status without its reserved bit.
const MORE: u16 = 1 << 13;

/// The result of a read with a time limit.
#[derive(Debug)]
pub enum WireEvent {
    Pdu(NvmeFrame),
    Closed,
    Nothing,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeReply {
    /// The status without its reserved bit and MORE: code, type in bits 8 to 10, DNR in bit 14.
    pub status: u16,
    /// The error log has more about the failure (MORE).
    pub more: bool,
    pub result: u64,
    /// SQHD. None: no completion came, because the data had the flag SUCCESS.
    pub head: Option<u16>,
    pub data: Vec<u8>,
    /// R2Ts that were received: offset and length.
    pub requests: Vec<(u32, u32)>,
}

impl NvmeReply {
    /// The data of a command that has succeeded.
    pub fn good(self) -> Vec<u8> {
        assert_eq!(self.status, 0, "the command failed: {self:04x?}");
        self.data
    }

    /// Fails unless the command ended with this status.
    pub fn is(self, status: u16) {
        assert_eq!(format!("{:#06x}", self.status), format!("{status:#06x}"), "{self:x?}");
    }
}

/// A connection with the state of a host.
pub struct NvmeWire {
    pub stream: TcpStream,
    pub header_digest: bool,
    pub data_digest: bool,
    last_id: u16,
    input: Vec<u8>,
    stash: VecDeque<NvmeFrame>,
}

impl NvmeWire {
    /// Opens a connection, and sends nothing.
    pub fn open(address: SocketAddr) -> NvmeWire {
        NvmeWire::of(TcpStream::connect_timeout(&address, patience()).expect("connect"))
    }

    /// The same from this address of this host.
    pub fn open_from(source: IpAddr, address: SocketAddr) -> NvmeWire {
        NvmeWire::of(stream_from(source, address))
    }

    fn of(stream: TcpStream) -> NvmeWire {
        stream.set_nodelay(true).expect("nodelay");
        let (input, stash) = (Vec::new(), VecDeque::new());
        NvmeWire { stream, header_digest: false, data_digest: false, last_id: 0, input, stash }
    }

    /// Opens a connection and initializes it with these bits of DGST.
    pub fn begin(address: SocketAddr, digests: u8) -> NvmeWire {
        NvmeWire::open(address).initialized(digests)
    }

    /// Exchanges ICReq and ICResp with these bits of DGST.
    pub fn initialized(mut self, digests: u8) -> NvmeWire {
        self.send(&NvmeFrame::ic_request(digests));
        let response = self.recv();
        assert_eq!((response.kind(), response.head[11]), (pdu::IC_RESPONSE, digests));
        (self.header_digest, self.data_digest) = (digests & 1 != 0, digests & 2 != 0);
        self
    }

    /// The bytes of a PDU on this connection.
    pub fn encode(&self, frame: &NvmeFrame) -> Vec<u8> {
        frame.encode(self.header_digest, self.data_digest)
    }

    /// Sends a PDU.
    pub fn send(&mut self, frame: &NvmeFrame) {
        let bytes = self.encode(frame);
        self.send_bytes(&bytes);
    }

    /// Sends bytes. If the connection is closed, the next read reports it.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// An identifier that no other command of this connection has.
    pub fn take_id(&mut self) -> u16 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    /// Sends a command with a new identifier, and returns that.
    pub fn submit(&mut self, entry: &NvmeEntry, capsule: &[u8]) -> u16 {
        let id = self.take_id();
        self.send(&NvmeFrame::command(&entry.id(id), capsule));
        id
    }

    /// Executes a command. `out` are its data for the controller.
    pub fn execute(&mut self, entry: &NvmeEntry, out: &[u8]) -> NvmeReply {
        let capsule = if entry.is_in_capsule() { out } else { &[] };
        let id = self.submit(entry, capsule);
        self.collect(id, out)
    }

    /// Executes a reservation command for namespace 1 with these keys, and returns its status. `dword` is command dword 10.
    pub fn reserve(&mut self, opcode: u8, dword: u32, keys: [u64; 2]) -> u16 {
        let data = keys.map(u64::to_le_bytes).concat();
        self.execute(&NvmeEntry::new(opcode, 1).dword(10, dword).in_capsule(16), &data).status
    }

    /// Waits for the end of a command, and answers its R2Ts from `out`.
    pub fn collect(&mut self, id: u16, out: &[u8]) -> NvmeReply {
        let mut reply = NvmeReply {
            status: 0,
            more: false,
            result: 0,
            head: None,
            data: Vec::new(),
            requests: Vec::new(),
        };
        loop {
            let frame = self.recv_for(id);
            match frame.kind() {
                pdu::DATA => {
                    assert_eq!(
                        frame.get32(12) as usize,
                        reply.data.len(),
                        "DATAO is not contiguous: {frame:x?}"
                    );
                    assert_eq!(frame.get32(16) as usize, frame.data.len(), "DATAL: {frame:x?}");
                    reply.data.extend_from_slice(&frame.data);
                    if frame.flags() & pdu::SUCCESS != 0 {
                        assert_ne!(frame.flags() & pdu::LAST, 0, "SUCCESS without LAST");
                        return reply;
                    }
                }
                pdu::R2T => {
                    reply.requests.push((frame.get32(12), frame.get32(16)));
                    self.answer(&frame, out);
                }
                _ => {
                    let field = frame.get16(22) >> 1;
                    (reply.status, reply.more) = (field & !MORE, field & MORE != 0);
                    reply.result = u64::from(frame.get32(8)) | u64::from(frame.get32(12)) << 32;
                    reply.head = Some(frame.get16(16));
                    return reply;
                }
            }
        }
    }

    /// Sends all data that an R2T asks for.
    pub fn answer(&mut self, request: &NvmeFrame, out: &[u8]) {
        let (offset, len) = (request.get32(12), request.get32(16));
        let data = &out[offset as usize..][..len as usize];
        self.send(&NvmeFrame::host_data(pdu::LAST, request.get16(8), request.get16(10), offset, data));
    }

    /// The next PDU of a command. Others are kept.
    pub fn recv_for(&mut self, id: u16) -> NvmeFrame {
        let is_its = |frame: &NvmeFrame| match frame.kind() {
            pdu::RESPONSE => frame.get16(20) == id,
            pdu::DATA | pdu::R2T => frame.get16(8) == id,
            _ => false,
        };
        if let Some(at) = self.stash.iter().position(is_its) {
            return self.stash.remove(at).expect("it is there");
        }
        let end = Instant::now() + patience();
        loop {
            match self.fresh(end) {
                WireEvent::Pdu(frame) if is_its(&frame) => return frame,
                WireEvent::Pdu(frame) => self.stash.push_back(frame),
                other => panic!("expected a PDU of {id:#x}, got {other:?} after {:x?}", self.stash),
            }
        }
    }

    /// The next PDU.
    pub fn recv(&mut self) -> NvmeFrame {
        match self.get(patience()) {
            WireEvent::Pdu(frame) => frame,
            other => panic!("expected a PDU, got {other:?}"),
        }
    }

    /// The next PDU within a limit. Kept ones come first.
    pub fn get(&mut self, limit: Duration) -> WireEvent {
        match self.stash.pop_front() {
            Some(frame) => WireEvent::Pdu(frame),
            None => self.fresh(Instant::now() + limit),
        }
    }

    /// Checks that nothing arrives for a while, and that the connection stays open.
    pub fn expect_silence(&mut self) {
        match self.get(QUIET) {
            WireEvent::Nothing => {}
            other => panic!("expected silence, got {other:x?}"),
        }
    }

    /// Checks that the connection ends within a limit, and that nothing else arrives before.
    pub fn expect_close(&mut self, limit: Duration) {
        match self.get(limit) {
            WireEvent::Closed => {}
            other => panic!("expected the end of the connection, got {other:x?}"),
        }
    }

    /// Checks that the target ends the connection with a termination request: FES and FEI, and the start of `sent`.
    pub fn expect_term(&mut self, (status, field): (u16, u32), sent: &[u8]) {
        let term = self.recv();
        assert_eq!(term.kind(), pdu::TERM, "expected C2HTermReq, got {term:x?}");
        assert_eq!((term.get16(8), term.get32(10)), (status, field), "FES and FEI");
        assert!(!term.data.is_empty() && sent.starts_with(&term.data), "no header of the fault: {term:x?}");
        self.expect_close(patience());
    }

    fn fresh(&mut self, end: Instant) -> WireEvent {
        loop {
            if let Some(frame) = self.parse() {
                return WireEvent::Pdu(frame);
            }
            let left = end.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).expect("time-out");
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return WireEvent::Closed,
                Ok(len) => self.input.extend_from_slice(&chunk[..len]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return WireEvent::Nothing;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return WireEvent::Closed,
            }
        }
    }

    /// A whole PDU, after a check of the rules that each one obeys.
    fn parse(&mut self) -> Option<NvmeFrame> {
        let head: [u8; 8] = self.input.get(..8)?.try_into().ok()?;
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        if self.input.len() < len {
            return None;
        }
        let all: Vec<u8> = self.input.drain(..len).collect();
        let kind = head[0];
        assert!(matches!(kind, 1 | 3 | 5 | 7 | 9), "no PDU of a controller: {all:x?}");
        assert_eq!(usize::from(head[2]), header_len(kind), "HLEN: {all:x?}");
        let (head, rest) = all.split_at(header_len(kind));
        if is_plain(kind) {
            assert_eq!(head[1], 0, "flags: {head:x?}");
            assert!(kind != pdu::TERM || (1..=128).contains(&rest.len()), "C2HTermReq: {all:x?}");
            return Some(NvmeFrame { head: head.to_vec(), data: rest.to_vec() });
        }
        let flagged = (head[1] & pdu::HEADER_DIGEST != 0, head[1] & pdu::DATA_DIGEST != 0);
        assert_eq!(
            flagged,
            (self.header_digest, self.data_digest && kind == pdu::DATA),
            "digests: {head:x?}"
        );
        let start = head.len() + if self.header_digest { 4 } else { 0 };
        assert!(
            start == head.len() || crc32c(head) == all[head.len()..start],
            "bad header digest: {head:x?}"
        );
        if kind != pdu::DATA {
            assert_eq!((head[3], all.len()), (0, start), "PDO and PLEN: {all:x?}");
            return Some(NvmeFrame { head: head.to_vec(), data: Vec::new() });
        }
        assert_eq!(usize::from(head[3]), start, "PDO: {head:x?}");
        let data = &all[start..all.len() - if self.data_digest { 4 } else { 0 }];
        assert!(!self.data_digest || crc32c(data) == all[start + data.len()..], "bad data digest");
        Some(NvmeFrame { head: head.to_vec(), data: data.to_vec() })
    }
}
