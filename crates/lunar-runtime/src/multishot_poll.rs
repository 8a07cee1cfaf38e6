//! A multishot poll: submitted once, it reports each time that a socket becomes readable.
//!
//! Reports are edge-triggered. A receiver that takes less than is available must remember that more is left. The end
//! of the stream is reported once, possibly together with its last bytes.
#![allow(unsafe_code)]

use crate::yield_now;
use compio::BufResult;
use compio::driver::{Decision, Extra, IourOpCode, OpEntry, PollOpCode, SharedFd};
use compio::runtime::{SubmitMulti, submit_multi};
use futures_util::Stream as _;
use io_uring::{opcode, types};
use rustix::event::PollFlags;
use socket2::Socket;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The peer sends no more (FIN), or the connection is broken.
const GONE: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);
/// The awaited events. Urgent data is not among them: Linux sets POLLPRI whenever it sets POLLIN.
const WANTED: PollFlags = PollFlags::IN.union(GONE);

/// Readiness of a socket. Belongs to one core, whose event loop uses io_uring.
pub struct MultishotPoll {
    socket: SharedFd<Socket>,
    /// None before the first wait, and after the completion queue overflowed.
    poll: RefCell<Option<SubmitMulti<MultishotPollOp>>>,
    /// The readiness reported so far and not consumed.
    seen: Cell<PollFlags>,
}

impl MultishotPoll {
    /// Prepares the poll; the first wait submits it.
    pub fn new(socket: SharedFd<Socket>) -> MultishotPoll {
        MultishotPoll { socket, poll: RefCell::default(), seen: Cell::new(PollFlags::empty()) }
    }

    /// Waits until the socket is readable or the peer is gone. If either is known already, it yields first, so that a
    /// busy peer cannot starve others.
    pub async fn readable(&self) -> io::Result<()> {
        if self.is_readable() {
            yield_now().await;
        }
        poll_fn(|cx| self.poll_readable(cx)).await
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut poll = self.poll.borrow_mut();
        while !self.is_readable() {
            let staying = poll.get_or_insert_with(|| submit_multi(MultishotPollOp::new(self.socket.clone())));
            match Pin::new(staying).poll_next(cx) {
                Poll::Ready(Some(BufResult(report, _))) => self.seen.set(self.seen.get() | flags(report?)),
                Poll::Ready(None) => *poll = None,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Whether the socket is known to be readable, or the peer to be gone. Makes no system call.
    pub fn is_readable(&self) -> bool {
        !self.seen.get().is_empty()
    }

    /// Records that a receive found nothing.
    pub fn found_nothing(&self) {
        self.seen.set(PollFlags::empty());
    }

    /// Records that a receive took everything. After the peer's last bytes, the end of the stream is still readable.
    pub fn took_all(&self) {
        if !self.seen.get().intersects(GONE) {
            self.found_nothing();
        }
    }
}

fn flags(report: usize) -> PollFlags {
    PollFlags::from_bits_truncate(report as u16)
}

/// The operation: a poll with IORING_POLL_ADD_MULTI (io_uring_enter(2), since Linux 5.13, which the event loop needs
/// too).
struct MultishotPollOp {
    socket: SharedFd<Socket>,
    /// The union of the reports that were not taken yet.
    report: Option<(io::Result<usize>, Extra)>,
}

impl MultishotPollOp {
    fn new(socket: SharedFd<Socket>) -> MultishotPollOp {
        MultishotPollOp { socket, report: None }
    }
}

// SAFETY: the entry names a descriptor that the operation itself holds open, and no memory.
unsafe impl IourOpCode for MultishotPollOp {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let fd = types::Fd(self.socket.as_raw_fd());
        opcode::PollAdd::new(fd, u32::from(WANTED.bits())).multi(true).build().into()
    }

    // SAFETY: it has no requirements on its caller.
    unsafe fn push_multishot(&mut self, (): &mut (), report: io::Result<usize>, extra: Extra) {
        let before = self.report.take().and_then(|(report, _)| report.ok()).unwrap_or(0);
        self.report = Some((report.map(|flags| flags | before), extra));
    }

    fn pop_multishot(&mut self, (): &mut ()) -> Option<BufResult<usize, Extra>> {
        self.report.take().map(|(report, extra)| BufResult(report, extra))
    }
}

// SAFETY: it waits for no descriptor.
unsafe impl PollOpCode for MultishotPollOp {
    type Control = ();

    fn pre_submit(&mut self, (): &mut ()) -> io::Result<Decision> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn operate(&mut self, (): &mut ()) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
