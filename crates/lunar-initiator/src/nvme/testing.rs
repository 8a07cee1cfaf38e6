//! A queue pair without a socket, for fuzz targets.

use super::command::NvmeCommand;
use super::host_queue::MAX_TRANSFER;
use super::initialize::NvmeLink;
use super::queue_state::QueueState;
use super::queue_tasks::CompletionWaiter;
use crate::{Direction, Error, ErrorCode};
use lunar_runtime::iscsi::digest::crc32c;
use lunar_runtime::nvme::receive::{NvmeReceiveError, NvmeReceiver};
use lunar_runtime::{Buf, ReceiveStatus};
use lunar_wire::nvme::{Digests, Fuse, Sqe, nvm_opcode, pdu_flag, pdu_type};
use std::fmt;
use std::task::{Context, Poll, Waker};

/// Entries of the queue.
const ENTRIES: u32 = 9;
/// The most commands that wait or are in flight.
const COMMANDS: usize = 16;
/// Bytes of data that fit a capsule.
const CAPSULE_DATA: usize = 4096;
/// Bytes of data in one H2CData.
const MAX_DATA: u32 = 8192;
/// Bytes of the header of every PDU of a controller but ICResp.
const HEADER: usize = 24;

/// An I/O queue that is connected. The fuzzer supplies all bytes from the controller.
pub struct NvmeQueuePair {
    state: QueueState,
    receiver: NvmeReceiver,
    digests: Digests,
    /// Keys and buffer lengths of commands that have a waiter.
    commands: Vec<(u64, usize)>,
}

impl fmt::Debug for NvmeQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmeQueuePair").field("commands", &self.commands).finish_non_exhaustive()
    }
}

impl NvmeQueuePair {
    /// A queue with these digests.
    pub fn new(digests: Digests) -> NvmeQueuePair {
        let state = QueueState::new(ENTRIES, CAPSULE_DATA);
        let mut pair = NvmeQueuePair { state, receiver: receiver(digests), digests, commands: Vec::new() };
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        self.receiver = receiver(self.digests);
        self.state.connect(NvmeLink { digests: self.digests, max_data: MAX_DATA });
        self.state.admit();
    }

    /// Submits a command that reads or writes `len` bytes, if the limit permits.
    pub fn submit(&mut self, reads: bool, len: usize, is_repeatable: bool, may_be_short: bool) {
        if self.commands.len() >= COMMANDS {
            return;
        }
        let command = NvmeCommand { may_be_short, repeatable: is_repeatable, ..command(reads, len) };
        let key = self.state.submit(command, CompletionWaiter::Unknown).expect("nothing was refused");
        self.commands.push((key, len));
    }

    /// Submits a fused pair that writes `len` bytes twice, if the limit permits.
    pub fn submit_pair(&mut self, len: usize) {
        if self.commands.len() + 2 > COMMANDS {
            return;
        }
        let half = |fuse| {
            let mut half = command(false, len).once();
            half.sqe.0[1] |= fuse;
            half
        };
        let waiters = [CompletionWaiter::Unknown, CompletionWaiter::Unknown];
        let keys = self.state.submit_pair([half(1), half(2)], waiters).expect("nothing was refused");
        self.commands.extend(keys.map(|key| (key, len)));
    }

    /// Gives up waiting for a command, which stays in the queue.
    pub fn abandon(&mut self, which: usize) {
        if !self.commands.is_empty() {
            let (key, _) = self.commands.swap_remove(which % self.commands.len());
            self.state.abandon(key);
            self.receive(&[]);
        }
    }

    /// The identifier of a command in flight.
    pub fn id(&mut self, which: usize) -> Option<u16> {
        let state = &mut self.state;
        let ids: Vec<u16> = (0..ENTRIES as u16).filter(|id| state.by_id(*id).is_some()).collect();
        (!ids.is_empty()).then(|| ids[which % ids.len()])
    }

    /// Encodes a PDU of the controller with valid lengths and digests. `fields` are the bytes behind the common header.
    pub fn encode(&self, kind: u8, flags: u8, fields: &[u8; 16], data: &[u8]) -> Vec<u8> {
        let has_digests = kind != pdu_type::IC_RESPONSE && kind != pdu_type::C2H_TERM_REQUEST;
        let digests = if has_digests { self.digests } else { Digests::default() };
        let has_data_digest = digests.data && !data.is_empty();
        let own = pdu_flag::HEADER_DIGEST | pdu_flag::DATA_DIGEST;
        let chosen = [(digests.header, pdu_flag::HEADER_DIGEST), (has_data_digest, pdu_flag::DATA_DIGEST)];
        let set = chosen.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum::<u8>();
        let offset = HEADER + if digests.header { 4 } else { 0 };
        let len = offset + data.len() + if has_data_digest { 4 } else { 0 };
        let data_offset = if kind == pdu_type::C2H_DATA { offset as u8 } else { 0 };
        let mut pdu = vec![kind, flags & !own | set, HEADER as u8, data_offset];
        pdu.extend((len as u32).to_le_bytes());
        pdu.extend(fields);
        if digests.header {
            pdu.extend(crc32c(&[&pdu]).to_le_bytes());
        }
        pdu.extend(data);
        if has_data_digest {
            pdu.extend(crc32c(&[data]).to_le_bytes());
        }
        pdu
    }

    /// Receives bytes from the controller. Replaces a failed connection by the next one, checks the results of ended
    /// commands, and discards sent bytes.
    pub fn receive(&mut self, bytes: &[u8]) {
        let is_broken = match self.receiver.feed(bytes, &mut self.state) {
            Ok(status) => status == ReceiveStatus::End,
            Err(NvmeReceiveError::Pdu { error, header }) => {
                self.state.out.terminate(error, &header);
                true
            }
            Err(NvmeReceiveError::Io(e)) => panic!("there is no socket: {e}"),
        };
        self.state.take_fault();
        let sent = self.state.out.take_bytes();
        assert!(sent.len() < 16 << 20, "{} bytes were sent for {}", sent.len(), bytes.len());
        self.state.settle();
        if is_broken {
            self.reconnect();
        }
        self.check_ended();
    }

    /// Loses the connection and makes the next one.
    pub fn reconnect(&mut self) {
        self.state.disconnect(&lost());
        self.connect();
    }

    /// Loses the connection, and moves the commands that wait to another queue, which is connected.
    pub fn move_waiting(&mut self) {
        self.state.disconnect(&lost());
        self.check_ended();
        let before = self.commands.len();
        let mut waiting = self.state.take_waiting().into_iter();
        assert!(!self.state.is_busy(), "a command was left behind");
        self.state = QueueState::new(ENTRIES, CAPSULE_DATA);
        self.commands.clear();
        while let Some((command, waiter)) = waiting.next() {
            let (is_first, len) = (command.sqe.fuse() == Fuse::First, command.data.expected());
            let gone = [Some(&waiter), waiting.as_slice().first().map(|(_, waiter)| waiter)]
                .map(|waiter| matches!(waiter, Some(CompletionWaiter::Gone)));
            let keys = match is_first {
                true => {
                    let (second, other) = waiting.next().expect("a pair is whole");
                    assert_eq!(second.sqe.fuse(), Fuse::Second);
                    self.state
                        .submit_pair([command, second], [waiter, other])
                        .expect("nothing was refused")
                        .into()
                }
                false => vec![self.state.submit(command, waiter).expect("nothing was refused")],
            };
            let waited_for = keys.into_iter().zip(gone).filter(|(_, is_gone)| !is_gone);
            self.commands.extend(waited_for.map(|(key, _)| (key, len)));
        }
        assert_eq!(self.commands.len(), before, "each command is there once");
        self.connect();
    }

    /// Loses the connection for good: every command ends.
    pub fn finish(mut self) {
        self.state.disconnect(&lost());
        self.state.refuse(&lost());
        self.check_ended();
        assert!(self.commands.is_empty() && !self.state.is_busy(), "a command did not end");
    }

    /// Removes the commands that have ended.
    fn check_ended(&mut self) {
        let state = &mut self.state;
        let mut context = Context::from_waker(Waker::noop());
        self.commands.retain(|(key, len)| match state.poll(*key, &mut context) {
            Poll::Pending => true,
            // The buffer of a read may have been lost with its connection.
            Poll::Ready((Err(_), buf)) => {
                assert!(buf.is_none_or(|buf| buf.len() == *len), "the buffer is another one");
                false
            }
            Poll::Ready((Ok(_), buf)) => {
                assert_eq!(buf.map_or(0, |buf| buf.len()), *len, "the buffer is returned");
                false
            }
        });
    }
}

fn receiver(digests: Digests) -> NvmeReceiver {
    NvmeReceiver::new(false, digests, MAX_TRANSFER, Vec::new())
}

fn command(reads: bool, len: usize) -> NvmeCommand {
    let (opcode, data) = match (reads, len) {
        (_, 0) => (nvm_opcode::FLUSH, Direction::None),
        (true, _) => (nvm_opcode::READ, Direction::In(Buf::zeroed(len))),
        (false, _) => (nvm_opcode::WRITE, Direction::Out(Buf::zeroed(len))),
    };
    NvmeCommand::new(Sqe::new(opcode, 0, 1), data)
}

fn lost() -> Error {
    Error::new(ErrorCode::ConnectionLost, "cut")
}
