//! The send queue of PDUs, which adds digests.

use lunar_runtime::Stream;
use lunar_runtime::iscsi::digest::crc32c;
use lunar_runtime::send_queue::{Payload, SendQueue};
use lunar_wire::nvme::{DataPdu, Digests, NvmePduError, NvmePduKind, PduHeader, Sqe, TermRequest};
use std::io;

/// The longest header of a PDU that is queued here, with its digest.
const MAX_HEAD: usize = PduHeader::LEN + Sqe::LEN + 4;

/// The PDUs that a host sends.
#[derive(Default)]
pub struct HostPduQueue {
    queue: SendQueue,
    digests: Digests,
}

impl HostPduQueue {
    /// An empty queue for a connection with these digests.
    pub fn new(digests: Digests) -> HostPduQueue {
        HostPduQueue { queue: SendQueue::default(), digests }
    }

    /// Whether all of them have left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a command with the data that its capsule has.
    #[inline(always)]
    pub fn push_command(&mut self, sqe: &Sqe, data: Payload) {
        let common = PduHeader::of(NvmePduKind::Command, 0, self.digests, data.len()).encode();
        let mut header = [0; PduHeader::LEN + Sqe::LEN];
        header[..PduHeader::LEN].copy_from_slice(&common);
        header[PduHeader::LEN..].copy_from_slice(&sqe.0);
        self.push(&header, data);
    }

    /// Queues an H2CData PDU.
    pub fn push_data(&mut self, part: DataPdu, flags: u8, data: Payload) {
        self.push(&part.encode(NvmePduKind::HostData, flags, self.digests), data);
    }

    #[inline(always)]
    fn push(&mut self, header: &[u8], data: Payload) {
        match self.digests == Digests::default() {
            true => self.queue.push(header, data, &[]),
            false => self.push_with_digests(header, data),
        }
    }

    fn push_with_digests(&mut self, header: &[u8], data: Payload) {
        let mut head = [0; MAX_HEAD];
        head[..header.len()].copy_from_slice(header);
        let mut len = header.len();
        if self.digests.header {
            head[len..len + 4].copy_from_slice(&crc32c(&[header]).to_le_bytes());
            len += 4;
        }
        let digest = (self.digests.data && data.len() > 0).then(|| crc32c(&[data.bytes()]).to_le_bytes());
        self.queue.push(&head[..len], data, digest.as_ref().map_or(&[], |digest| &digest[..]));
    }

    /// Replaces what has not begun to leave by H2CTermReq.
    pub fn terminate(&mut self, error: NvmePduError, header: &[u8]) {
        self.queue.drop_unbegun();
        let request = TermRequest { error, header }.encode(NvmePduKind::HostTermRequest);
        self.queue.push(&request, Payload::Empty, &[]);
    }

    /// Sends until the queue is empty (true) or the socket takes no more (false).
    pub fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        self.queue.flush(stream)
    }

    /// Takes all queued bytes: for tests and fuzzers.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        self.queue.take_bytes()
    }
}
