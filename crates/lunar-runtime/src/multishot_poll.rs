//! A poll that stays: the ring tells each time that something has come to a socket, and is asked once.
//!
//! What it tells are changes. Whoever takes less than is there has to remember that there is more, and the peer's end is
//! told once, maybe together with its last bytes.
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

/// The peer sends no more, or the connection is broken.
const GONE: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);
/// What is waited for. Not urgent data: the kernel tells of them with all that comes (POLLPRI is set whenever POLLIN is).
const WANTED: PollFlags = PollFlags::IN.union(GONE);

/// Whether a socket can be read. Belongs to one core, whose event loop is on io_uring.
pub struct MultishotPoll {
    socket: SharedFd<Socket>,
    /// None before the first wait, and after the ring had no room for what it had to tell.
    poll: RefCell<Option<SubmitMulti<MultishotPollOp>>>,
    /// What is known of the socket.
    seen: Cell<PollFlags>,
}

impl MultishotPoll {
    /// Watches a socket from the first wait on.
    pub fn new(socket: SharedFd<Socket>) -> MultishotPoll {
        MultishotPoll { socket, poll: RefCell::default(), seen: Cell::new(PollFlags::empty()) }
    }

    /// Waits until there is something to receive, or the peer is gone. Others go first when that is known already, so that a
    /// peer who never pauses keeps nobody out.
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
                Poll::Ready(Some(BufResult(told, _))) => self.seen.set(self.seen.get() | flags(told?)),
                Poll::Ready(None) => *poll = None,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// It is known that there is something to receive, or that the peer is gone.
    pub fn is_readable(&self) -> bool {
        !self.seen.get().is_empty()
    }

    /// A receive has found nothing.
    pub fn found_nothing(&self) {
        self.seen.set(PollFlags::empty());
    }

    /// A receive has taken all that was there. After the peer's last bytes its end is still to be received.
    pub fn took_all(&self) {
        if !self.seen.get().intersects(GONE) {
            self.found_nothing();
        }
    }
}

fn flags(told: usize) -> PollFlags {
    PollFlags::from_bits_truncate(told as u16)
}

/// The operation: a poll with IORING_POLL_ADD_MULTI (io_uring_enter(2), since Linux 5.13, as the event loop itself needs it).
struct MultishotPollOp {
    socket: SharedFd<Socket>,
    /// What was told and not taken yet, all of it in one.
    told: Option<(io::Result<usize>, Extra)>,
}

impl MultishotPollOp {
    fn new(socket: SharedFd<Socket>) -> MultishotPollOp {
        MultishotPollOp { socket, told: None }
    }
}

// SAFETY: the entry names a descriptor that the operation itself holds open, and no memory.
unsafe impl IourOpCode for MultishotPollOp {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let fd = types::Fd(self.socket.as_raw_fd());
        opcode::PollAdd::new(fd, u32::from(WANTED.bits())).multi(true).build().into()
    }

    // SAFETY: it asks nothing of its caller.
    unsafe fn push_multishot(&mut self, (): &mut (), told: io::Result<usize>, extra: Extra) {
        let before = self.told.take().and_then(|(told, _)| told.ok()).unwrap_or(0);
        self.told = Some((told.map(|flags| flags | before), extra));
    }

    fn pop_multishot(&mut self, (): &mut ()) -> Option<BufResult<usize, Extra>> {
        self.told.take().map(|(told, extra)| BufResult(told, extra))
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
