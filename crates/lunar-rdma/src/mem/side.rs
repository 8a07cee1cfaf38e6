//! The state of one endpoint.

use super::faults::{EndpointOp, Faults};
use crate::keys::SteeringTags;
use crate::{ConnParam, EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress, RemoteRange};
use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

/// A gather: RDMA Reads into one buffer, which complete together.
pub(super) struct SideRead {
    pub id: u64,
    pub from: Vec<RemoteRange>,
    pub buf: Buf,
    pub at: usize,
}

/// Queued work.
pub(super) enum SideWork {
    Send(SideMessage),
    Write(RemoteAddress, Payload),
    Read(SideRead),
}

impl SideWork {
    /// Its bytes, including overhead.
    pub fn size(&self) -> usize {
        let bytes = match self {
            SideWork::Send(message) => message.bytes.len(),
            SideWork::Write(_, payload) => payload.bytes().len(),
            SideWork::Read(_) => 0,
        };
        bytes + size_of::<SideWork>()
    }
}

/// A message, and the steering tag that its arrival invalidates.
pub(super) struct SideMessage {
    pub bytes: Vec<u8>,
    pub invalidate: Option<u32>,
}

/// One endpoint.
pub(super) struct EndpointSide {
    pub faults: Rc<Faults>,
    keys: SteeringTags,
    /// The posted receives, in order: their number, and the length of each in bytes.
    pub receives: VecDeque<(usize, usize)>,
    /// Work that is not flushed yet.
    pub queue: VecDeque<SideWork>,
    /// Messages and RDMA Writes that are flushed but not sent.
    pub posted: VecDeque<SideWork>,
    /// The totals of queued and of sent messages and RDMA Writes.
    pub queued: u64,
    pub sent: u64,
    /// Flushed reads that have not ended. The first `in_flight` are in flight, the others wait.
    pub reads: VecDeque<SideRead>,
    pub in_flight: usize,
    pub ord: u16,
    pub invalidates: bool,
    /// Messages to this endpoint that have not arrived yet.
    pub arriving: VecDeque<SideMessage>,
    /// Events that are not taken yet.
    pub came: EndpointEvents,
    pub moved: bool,
}

impl EndpointSide {
    pub fn new(own: ConnParam, other: ConnParam, faults: Rc<Faults>) -> EndpointSide {
        EndpointSide {
            invalidates: faults.invalidates.get(),
            faults,
            keys: SteeringTags::default(),
            receives: VecDeque::from([own.receives]),
            queue: VecDeque::new(),
            posted: VecDeque::new(),
            queued: 0,
            sent: 0,
            reads: VecDeque::new(),
            in_flight: 0,
            ord: own.ord.min(other.ird),
            arriving: VecDeque::new(),
            came: EndpointEvents::default(),
            moved: false,
        }
    }

    pub fn expose(&mut self, memory: MemoryRegion) -> io::Result<RemoteAddress> {
        match self.faults.fail_next_expose.take() {
            true => Err(io::Error::new(io::ErrorKind::OutOfMemory, "no memory to register (injected fault)")),
            false => self.keys.expose(memory),
        }
    }

    pub fn revoke(&mut self, stag: u32) -> Option<MemoryRegion> {
        self.keys.revoke(stag)
    }

    /// Executes an RDMA Write of the peer.
    pub fn written(&mut self, to: RemoteAddress, bytes: &[u8]) -> Result<(), String> {
        let sink = self.keys.sink(to, bytes.len());
        sink.map_err(|fault| format!("RDMA Write to {:#010x}: {fault}", to.stag))?.copy_from_slice(bytes);
        Ok(())
    }

    /// Executes RDMA Reads of the peer.
    pub fn read_by(&self, read: &mut SideRead) -> Result<(), String> {
        let mut at = read.at;
        for (from, len) in &read.from {
            let source = self.keys.source(*from, *len);
            let (bytes, start) =
                source.map_err(|fault| format!("RDMA Read from {:#010x}: {fault}", from.stag))?;
            let sink = at.checked_add(*len).and_then(|end| read.buf.get_mut(at..end));
            sink.ok_or("RDMA Read exceeds its local buffer")?.copy_from_slice(&bytes[start..start + len]);
            at += len;
        }
        Ok(())
    }

    /// Receives a message.
    pub fn arrives(&mut self, message: &SideMessage) -> Result<(), String> {
        let len = self.next_receive().ok_or("a message arrived, but no receive buffer was posted")?;
        if message.bytes.len() > len {
            return Err(format!(
                "a message of {} bytes is longer than its receive buffer of {len} bytes",
                message.bytes.len()
            ));
        }
        if let Some(stag) = message.invalidate.filter(|stag| !self.keys.end(*stag)) {
            return Err(format!("a message invalidates the steering tag {stag:#010x}, which is not valid"));
        }
        self.came.message(&message.bytes, message.invalidate);
        Ok(())
    }

    /// The next queued work, unless a gate holds it back.
    pub fn next_job(&mut self) -> Option<SideWork> {
        self.queue.front()?;
        let is_read = |job: &SideWork| matches!(job, SideWork::Read(_));
        let at = if self.faults.sends.admits() { 0 } else { self.queue.iter().position(is_read)? };
        self.queue.remove(at)
    }

    /// The next message or RDMA Write to send, unless a gate holds it back.
    pub fn next_posted(&mut self) -> Option<SideWork> {
        self.posted.front()?;
        let job = if self.faults.line.admits() { self.posted.pop_front() } else { None };
        self.sent += u64::from(job.is_some());
        job
    }

    /// Starts the RDMA Reads that ORD allows.
    pub fn begin_reads(&mut self) {
        while self.in_flight < self.ord.into()
            && let Some(SideRead { id, from, .. }) = self.reads.get(self.in_flight)
        {
            for (from, len) in from {
                self.faults.did(EndpointOp::Read { id: *id, from: *from, len: *len });
            }
            self.in_flight += 1;
        }
    }

    /// The next RDMA Read to complete, unless a gate holds it back.
    pub fn next_read(&mut self) -> Option<SideRead> {
        if self.in_flight == 0 || !self.faults.reads.admits() {
            return None;
        }
        self.in_flight -= 1;
        self.reads.pop_front()
    }

    fn next_receive(&mut self) -> Option<usize> {
        while let Some((0, _)) = self.receives.front() {
            self.receives.pop_front();
        }
        let (count, len) = self.receives.front_mut()?;
        *count -= 1;
        Some(*len)
    }

    /// Ends a gather of this endpoint.
    pub fn read_ended(&mut self, read: SideRead, result: io::Result<()>) {
        self.faults.ended(read.id);
        self.came.list.push(EndpointEvent::Read(read.id, read.buf, result));
    }

    /// Ends the connection: reads fail, and other queued work is dropped.
    pub fn over(&mut self, reason: Option<&str>) {
        self.arriving.clear();
        self.posted.clear();
        self.in_flight = 0;
        let queued = std::mem::take(&mut self.queue);
        let queued = queued
            .into_iter()
            .filter_map(|job| if let SideWork::Read(read) = job { Some(read) } else { None });
        let reads: Vec<SideRead> = self.reads.drain(..).chain(queued).collect();
        for read in reads {
            self.read_ended(read, Err(broken(reason)));
        }
        self.came.list.push(EndpointEvent::End(reason.map(|reason| broken(Some(reason)))));
        self.update();
    }

    /// Updates the count of outstanding work, and wakes waiters if there are events.
    pub fn update(&self) {
        self.faults.set_outstanding(self.queue.len() + self.posted.len() + self.reads.len());
        if !self.came.is_empty() {
            self.faults.bell.notify(usize::MAX);
        }
    }
}

/// The error of work that fails with the connection.
pub(super) fn broken(reason: Option<&str>) -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionReset,
        reason.unwrap_or("the RDMA connection was closed").to_string(),
    )
}
