//! The queue pair and the completion queue of a connection.
#![allow(unsafe_code)]

use super::bounce::BounceBuffer;
use super::cm::{CmId, FdWatch, watch};
use super::domain::Domain;
use super::ffi::*;
use super::library::{cannot, last_error};
use super::shared::SharedReceives;
use crate::RemoteAddress;
use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

/// The maximum numbers of posted sends and of posted receives of a connection. The device may have lower limits.
const DEPTH: u32 = 1024;
/// The maximum number of completions in one poll.
pub const BATCH: usize = 32;
/// The lengths in bytes up to which messages are sent inline, which saves the device a memory read. The first length
/// that the device accepts is used. An SRP response with fixed-format sense data has 54 bytes, an iSER response 76,
/// or 96 with sense data. Soft iWARP accepts 80.
const INLINE: [u32; 3] = [128, 80, 0];

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A message, which may invalidate a key of the peer.
    Send(Option<u32>),
    Write(RemoteAddress),
    Read(RemoteAddress),
}

/// An operation for the device.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest {
    /// The id in its completion.
    pub id: u64,
    pub verb: Verb,
    /// The address and the key of its memory.
    pub at: (u64, u32),
    pub len: usize,
    /// Whether success generates a completion. Failure always does.
    pub is_signalled: bool,
}

/// A receive queue: of a queue pair, or shared.
pub trait PostReceive {
    /// Posts receives, each with its completion id, its buffer, and its length in bytes. Returns how many the device
    /// has accepted. Their buffers must be valid until the completion, or until the queue is destroyed.
    fn receive(&self, into: &[(u64, &BounceBuffer, usize)]) -> usize;
}

/// Implements [`PostReceive::receive`] with a verb. The verb takes the first request of a chain, and returns the
/// first rejected one by pointer.
pub fn hand_over(
    into: &[(u64, &BounceBuffer, usize)],
    call: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> usize {
    let part = |(_, chunk, len): &(u64, &BounceBuffer, usize)| sge(chunk.place(), (*len).min(chunk.len()));
    let mut sges: Vec<ibv_sge> = into.iter().map(part).collect();
    let empty = |(id, _, _): &(u64, &BounceBuffer, usize)| ibv_recv_wr {
        wr_id: *id,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 1,
    };
    let mut chain: Vec<ibv_recv_wr> = into.iter().map(empty).collect();
    for n in 0..chain.len() {
        chain[n].sg_list = &raw mut sges[n];
        chain[n].next = if n + 1 < chain.len() { &raw mut chain[n + 1] } else { null_mut() };
    }
    let Some(first) = chain.first_mut() else { return 0 };
    let (first, mut bad) = (&raw mut *first, null_mut());
    let status = call(first, &raw mut bad);
    taken(status, first as usize, bad as usize, size_of::<ibv_recv_wr>(), chain.len())
}

/// The queues of a connection. Their id must outlive them.
pub struct QueuePair {
    id: *mut rdma_cm_id,
    /// Null once destroyed.
    qp: Cell<*mut ibv_qp>,
    /// The maximum length of an inline message in bytes.
    inline: usize,
    is_iwarp: bool,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    library: &'static super::library::Library,
    /// The maximum numbers of posted sends and receives.
    pub depths: (usize, usize),
    /// The memory of the last chain of requests, kept for reuse.
    chain: RefCell<(Vec<ibv_sge>, Vec<ibv_send_wr>)>,
    /// Counts this connection among those of its device.
    _user: Arc<()>,
}

// SAFETY: the library accepts calls for queues from any thread, and this is not shared.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Creates the queues of a new connection. A shared receive queue must outlive them.
    ///
    /// # Errors
    /// When the device has no free queues.
    pub fn new(id: &CmId, domain: &Domain, shared: Option<&SharedReceives>) -> io::Result<QueuePair> {
        let context = id.context()?.as_ptr();
        let limited = |limit: c_int| u32::try_from(limit).unwrap_or(0).clamp(1, DEPTH);
        let depth = limited(domain.attr.max_qp_wr).min(limited(domain.attr.max_cqe / 2));
        // One connection may use the whole shared queue, if its peer exceeds its own limit.
        let cqe = depth + shared.map_or(depth, SharedReceives::depth);
        let mut queues = QueuePair {
            id: id.as_ptr(),
            qp: Cell::new(null_mut()),
            inline: 0,
            is_iwarp: domain.is_iwarp,
            cq: null_mut(),
            channel: null_mut(),
            library: id.library,
            depths: (depth as usize, depth as usize),
            chain: RefCell::default(),
            _user: domain.user(),
        };
        let library = id.library;
        // SAFETY: the context is valid as long as the id.
        queues.channel = unsafe { (library.ibv_create_comp_channel)(context) };
        if queues.channel.is_null() {
            return Err(last_error("create an RDMA completion channel"));
        }
        let cqe = c_int::try_from(cqe).unwrap_or(c_int::MAX);
        // SAFETY: both are valid. The queue uses the channel for its events.
        queues.cq = unsafe { (library.ibv_create_cq)(context, cqe, null_mut(), queues.channel, 0) };
        if queues.cq.is_null() {
            return Err(last_error("create an RDMA completion queue"));
        }
        queues.pair(domain, depth, shared.map_or(null_mut(), SharedReceives::as_ptr))?;
        Ok(queues)
    }

    fn pair(&mut self, domain: &Domain, depth: u32, srq: *mut ibv_srq) -> io::Result<()> {
        let mut made = Err(io::ErrorKind::Unsupported.into());
        for inline in INLINE {
            made = self.pair_with(domain, (depth, inline), srq);
            if made.is_ok() {
                break;
            }
        }
        self.inline = made?;
        // SAFETY: the id is valid, and now has a pair.
        self.qp.set(unsafe { (*self.id).qp });
        Ok(())
    }

    /// Creates a pair for `depth` operations and this inline length. Returns the actual inline length.
    fn pair_with(
        &self,
        domain: &Domain,
        (depth, max_inline_data): (u32, u32),
        srq: *mut ibv_srq,
    ) -> io::Result<usize> {
        let mut attr = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq,
            cap: ibv_qp_cap {
                max_send_wr: depth,
                max_recv_wr: depth,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data,
            },
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: id, domain, completion queue and receive queue are valid.
        let status = unsafe { (self.library.rdma_create_qp)(self.id, domain.pd(), &raw mut attr) };
        match status {
            0 => Ok(attr.cap.max_inline_data as usize),
            _ => Err(last_error("create an RDMA queue pair")),
        }
    }

    /// Disconnects and destroys the pair. Afterwards the device uses memory of no operation, and accepts no new ones.
    pub fn end(&self) {
        if !self.qp.replace(null_mut()).is_null() {
            // SAFETY: the id is valid, and has a pair, which is not used after this.
            unsafe {
                (self.library.rdma_disconnect)(self.id);
                (self.library.rdma_destroy_qp)(self.id);
            }
        }
    }

    /// A watch that becomes readable with a completion event.
    ///
    /// # Errors
    /// When there are too many descriptors.
    pub fn watch(&self) -> io::Result<FdWatch> {
        // SAFETY: the channel is valid as long as this.
        watch(unsafe { (*self.channel).fd })
    }

    /// Requests an event for the next completion.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue is valid as long as this, with its context and the functions in it.
        let status = unsafe { ((*(*self.cq).context).ops.req_notify_cq)(self.cq, 0) };
        check(status, "request completion events of the RDMA device")
    }

    /// Takes and acknowledges an event, if available. A watch must exist, which makes the descriptor non-blocking.
    pub fn take_event(&self) {
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is valid, and each event is acknowledged at once, for the queue that it names: this
        // one.
        unsafe {
            if (self.library.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut context) == 0 {
                (self.library.ibv_ack_cq_events)(cq, 1);
            }
        }
    }

    /// Takes up to [`BATCH`] completions. Returns their number.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn poll(&self, into: &mut [ibv_wc; BATCH]) -> io::Result<usize> {
        // SAFETY: as for `arm`. There is room for this many.
        let n = unsafe { ((*(*self.cq).context).ops.poll_cq)(self.cq, BATCH as c_int, into.as_mut_ptr()) };
        usize::try_from(n).map_err(|_| io::Error::other("the RDMA device cannot poll its completion queue"))
    }

    /// Posts operations in one call. Returns how many the device has accepted.
    ///
    /// Their memory must be valid until their completions, or until the queues are destroyed.
    pub fn post(&self, work: impl Iterator<Item = WorkRequest>) -> usize {
        let (sges, chain) = &mut *self.chain.borrow_mut();
        sges.clear();
        chain.clear();
        for work in work {
            sges.push(sge(work.at, work.len));
            chain.push(request(&work, self.inline_for(work.verb)));
        }
        for n in 0..chain.len() {
            chain[n].sg_list = &raw mut sges[n];
            chain[n].next = if n + 1 < chain.len() { &raw mut chain[n + 1] } else { null_mut() };
        }
        let Some((first, qp)) = chain.first_mut().zip(self.pair_now()) else { return 0 };
        let (first, mut bad) = (&raw mut *first, null_mut());
        // SAFETY: as for `arm`. The chain and its elements are valid until the call returns; the caller promises the
        // same for their memory until the completion.
        let status = unsafe { ((*(*qp).context).ops.post_send)(qp, first, &raw mut bad) };
        taken(status, first as usize, bad as usize, size_of::<ibv_send_wr>(), chain.len())
    }

    /// The maximum inline length for an operation. Soft iWARP rejects an inline Send with Invalidate.
    fn inline_for(&self, verb: Verb) -> usize {
        if matches!(verb, Verb::Send(Some(_))) && self.is_iwarp { 0 } else { self.inline }
    }

    /// The addresses of the pair and the completion queue, which identify them in asynchronous events.
    pub fn addresses(&self) -> [usize; 2] {
        [self.qp.get() as usize, self.cq as usize]
    }

    /// Whether the pair is destroyed.
    pub fn is_ended(&self) -> bool {
        self.qp.get().is_null()
    }

    fn pair_now(&self) -> Option<*mut ibv_qp> {
        Some(self.qp.get()).filter(|qp| !qp.is_null())
    }
}

impl PostReceive for QueuePair {
    fn receive(&self, into: &[(u64, &BounceBuffer, usize)]) -> usize {
        let Some(qp) = self.pair_now() else { return 0 };
        // SAFETY: as for `post`.
        hand_over(into, |first, bad| unsafe { ((*(*qp).context).ops.post_recv)(qp, first, bad) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // The pair goes first: afterwards the device uses no memory.
        self.end();
        // SAFETY: both are owned, the queue uses the channel and is destroyed first, and all events are acknowledged.
        unsafe {
            if !self.cq.is_null() {
                (self.library.ibv_destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (self.library.ibv_destroy_comp_channel)(self.channel);
            }
        }
    }
}

fn sge((addr, lkey): (u64, u32), len: usize) -> ibv_sge {
    ibv_sge { addr, length: u32::try_from(len).unwrap_or(0), lkey }
}

/// The work request of an operation. Up to `inline` bytes are sent inline.
fn request(work: &WorkRequest, inline: usize) -> ibv_send_wr {
    // Some devices interpret a length of zero as 2^31.
    let num_sge = c_int::from(work.len > 0);
    let wr = ibv_send_wr { wr_id: work.id, num_sge, ..ibv_send_wr::default() };
    let here = RemoteAddress { stag: 0, offset: 0 };
    let (opcode, invalidate_rkey, remote) = match work.verb {
        Verb::Send(None) => (WR_SEND, 0, here),
        // Soft iWARP's driver takes the key from `rkey`. The others ignore that field.
        Verb::Send(Some(key)) => (WR_SEND_WITH_INV, key, RemoteAddress { stag: key, ..here }),
        Verb::Write(to) => (WR_RDMA_WRITE, 0, to),
        Verb::Read(from) => (WR_RDMA_READ, 0, from),
    };
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    let is_inline = (1..=inline).contains(&work.len) && opcode != WR_RDMA_READ;
    let send_flags = flag(work.is_signalled, SEND_SIGNALED) | flag(is_inline, SEND_INLINE);
    ibv_send_wr { opcode, invalidate_rkey, send_flags, remote_addr: remote.offset, rkey: remote.stag, ..wr }
}

/// The number of requests of a chain that were accepted. `bad` is the address of the first rejected one.
fn taken(status: c_int, first: usize, bad: usize, size: usize, all: usize) -> usize {
    match status {
        0 => all,
        // An address outside the chain: none were accepted.
        _ => bad.checked_sub(first).map(|bytes| bytes / size).filter(|n| *n < all).unwrap_or(0),
    }
}

fn check(status: c_int, tried: &str) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(cannot(tried, io::Error::from_raw_os_error(status.abs()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_request_has_the_form_of_the_library() {
        let remote = RemoteAddress { stag: 7, offset: 0x1234 };
        let both = SEND_SIGNALED | SEND_INLINE;
        let rows = [
            (Verb::Send(None), 101, false, (WR_SEND, 0, 0, 0, 0)),
            (Verb::Send(None), 100, false, (WR_SEND, SEND_INLINE, 0, 0, 0)),
            (Verb::Send(Some(5)), 100, true, (WR_SEND_WITH_INV, both, 5, 0, 5)),
            (Verb::Write(remote), 101, false, (WR_RDMA_WRITE, 0, 0, 0x1234, 7)),
            (Verb::Write(remote), 1, false, (WR_RDMA_WRITE, SEND_INLINE, 0, 0x1234, 7)),
            (Verb::Read(remote), 100, true, (WR_RDMA_READ, SEND_SIGNALED, 0, 0x1234, 7)),
        ];
        for (verb, len, is_signalled, want) in rows {
            let wr = request(&WorkRequest { id: 3, verb, at: (1000, 9), len, is_signalled }, 100);
            let got = (wr.opcode, wr.send_flags, wr.invalidate_rkey, wr.remote_addr, wr.rkey);
            assert_eq!((got, wr.wr_id, wr.num_sge), (want, 3, 1), "{verb:?} of {len}");
        }
        let empty = WorkRequest { id: 3, verb: Verb::Send(None), at: (1000, 9), len: 0, is_signalled: false };
        assert_eq!((request(&empty, 100).send_flags, request(&empty, 100).num_sge), (0, 0));
        let entry = sge((1000, 9), 100);
        assert_eq!((entry.addr, entry.length, entry.lkey), (1000, 100, 9));
    }

    #[test]
    fn chain_may_be_taken_in_part() {
        assert_eq!(taken(0, 1000, 0, 128, 3), 3);
        assert_eq!(taken(12, 1000, 1000, 128, 3), 0);
        assert_eq!(taken(12, 1000, 1256, 128, 3), 2);
        assert_eq!(taken(12, 1000, 0, 128, 3), 0);
        assert_eq!(taken(12, 1000, 9000, 128, 3), 0);
    }
}
