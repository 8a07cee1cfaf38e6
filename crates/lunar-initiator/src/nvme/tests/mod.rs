//! A queue pair and a host against bytes that are written by hand.

mod host;
mod hostile;
mod paths;
mod queue;
mod queues;
mod reconnect;
mod scripted;
mod transfer;

use super::command::{NvmeCommand, NvmeResult};
use super::initialize::NvmeLink;
use super::queue_state::QueueState;
use super::queue_tasks::CompletionWaiter;
use crate::Direction;
use lunar_runtime::nvme::receive::{NvmeReceiveError, NvmeReceiver};
use lunar_runtime::{Buf, ReceiveStatus};
use lunar_wire::nvme::{Digests, Sqe};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const PLAIN: Digests = Digests { header: false, data: false };
const MAX_DATA: u32 = 8192;

/// Waits until something is so.
async fn within_time(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        compio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The 24 bytes of a header that data PDUs and R2T share.
fn header(kind: u8, flags: u8, offset: u8, len: u32, fields: (u16, u16, u32, u32)) -> Vec<u8> {
    let (command, tag, at, data) = fields;
    let mut bytes = vec![kind, flags, 24, offset];
    bytes.extend(len.to_le_bytes());
    bytes.extend(command.to_le_bytes());
    bytes.extend(tag.to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend(data.to_le_bytes());
    bytes.extend([0; 4]);
    bytes
}

/// C2HData. Flags: 4 LAST, 8 SUCCESS.
fn c2h_data(command: u16, at: u32, data: &[u8], flags: u8) -> Vec<u8> {
    let len = data.len() as u32;
    [header(7, flags, 24, 24 + len, (command, 0, at, len)), data.to_vec()].concat()
}

/// R2T.
fn r2t(command: u16, tag: u16, at: u32, len: u32) -> Vec<u8> {
    header(9, 0, 0, 24, (command, tag, at, len))
}

/// CapsuleResp. `status` is the field of 16 bits, with the phase in bit 0.
fn response(command: u16, status: u16, result: u64) -> Vec<u8> {
    let mut bytes = vec![5, 0, 24, 0, 24, 0, 0, 0];
    bytes.extend(result.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(command.to_le_bytes());
    bytes.extend(status.to_le_bytes());
    bytes
}

/// A queue pair with its receiver, and without a socket.
struct Pair {
    state: QueueState,
    receiver: NvmeReceiver,
}

impl Pair {
    fn new(entries: u32) -> Pair {
        Pair::with(entries, PLAIN)
    }

    fn with(entries: u32, digests: Digests) -> Pair {
        let mut pair = Pair {
            state: QueueState::new(entries, 4096),
            receiver: NvmeReceiver::new(false, digests, 1 << 20, Vec::new()),
        };
        pair.connect(digests);
        pair
    }

    fn connect(&mut self, digests: Digests) {
        self.receiver = NvmeReceiver::new(false, digests, 1 << 20, Vec::new());
        self.state.connect(NvmeLink { digests, max_data: MAX_DATA });
        self.state.admit();
    }

    fn submit(&mut self, opcode: u8, data: Direction) -> u64 {
        self.submit_command(NvmeCommand::new(Sqe::new(opcode, 0, 1), data))
    }

    fn submit_command(&mut self, command: NvmeCommand) -> u64 {
        self.state.submit(command, CompletionWaiter::Unknown).expect("it is accepted")
    }

    fn read(&mut self, len: usize) -> u64 {
        self.submit(2, Direction::In(Buf::zeroed(len)))
    }

    fn write(&mut self, data: &[u8]) -> u64 {
        self.submit(1, Direction::Out(Buf::copy_of(data)))
    }

    fn sent(&mut self) -> Vec<u8> {
        let bytes = self.state.out.take_bytes();
        self.state.settle();
        bytes
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<ReceiveStatus, NvmeReceiveError> {
        self.receiver.feed(bytes, &mut self.state)
    }

    fn take(&mut self, bytes: &[u8]) {
        assert_eq!(self.feed(bytes).expect("no violation"), ReceiveStatus::More);
    }

    /// FES and FEI of the violation in these bytes.
    fn violation(&mut self, bytes: &[u8]) -> (u16, u32) {
        match self.feed(bytes) {
            Err(NvmeReceiveError::Pdu { error, .. }) => (error.status, error.field),
            other => panic!("no violation: {other:?}"),
        }
    }

    fn poll(&mut self, key: u64) -> Poll<NvmeResult> {
        self.state.poll(key, &mut Context::from_waker(Waker::noop()))
    }

    fn ended(&mut self, key: u64) -> NvmeResult {
        match self.poll(key) {
            Poll::Ready(ended) => ended,
            Poll::Pending => panic!("the command has not ended"),
        }
    }
}

/// The PDUs in these bytes, without digests.
fn pdus(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let len = u32::from_le_bytes(bytes[4..8].try_into().expect("a header")) as usize;
        let (pdu, rest) = bytes.split_at(len);
        all.push(pdu.to_vec());
        bytes = rest;
    }
    all
}
