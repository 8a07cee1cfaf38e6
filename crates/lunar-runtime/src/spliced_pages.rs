//! Pages of the page cache that a socket sends without copying them.
//!
//! A pipe holds references to the pages (splice(2)), so the data can be sent even if the file is truncated or its disk
//! fails meanwhile. The references do not protect the content: a later write to these bytes of the file changes them.

use crate::Stream;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use crate::buf::PAGE;

/// Maximum length of spliced data in bytes: the largest pipe that the kernel grants to every user.
pub const MAX_SPLICED: usize = 1 << 20;
/// Maximum number of pipes of a core, and so of reads whose pages wait to be sent.
const MAX_PIPES: usize = 64;

thread_local! {
    static PIPES: RefCell<PipePool> = RefCell::default();
}

/// The pipes of a core.
#[derive(Default)]
struct PipePool {
    free: Vec<Pipe>,
    lent: usize,
}

/// An empty pipe with room for [`MAX_SPLICED`] bytes of whole pages.
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Pipe> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // The kernel rounds up, or fails.
        fcntl_setpipe_size(&writer, MAX_SPLICED)?;
        Ok(Pipe { reader, writer })
    }
}

impl PipePool {
    /// A pipe with room for this many pages. None: as many as possible are lent, or the system has no more.
    fn take(&mut self, pages: usize) -> Option<Pipe> {
        if self.lent >= MAX_PIPES || pages > MAX_SPLICED / PAGE {
            return None;
        }
        let pipe = self.free.pop().or_else(|| Pipe::new().ok())?;
        self.lent += 1;
        Some(pipe)
    }

    /// `pipe`: if it is empty.
    fn put_back(&mut self, pipe: Option<Pipe>) {
        self.lent = self.lent.saturating_sub(1);
        self.free.extend(pipe);
    }
}

/// References to the pages of a range of a file. They are sent in order, and once.
pub struct SplicedPages {
    pipe: Option<Pipe>,
    len: usize,
    /// Bytes that were taken out of the pipe.
    position: Cell<usize>,
}

impl SplicedPages {
    /// Takes references to `len` bytes of a file from `offset`. The pages should be in the page cache: otherwise the
    /// kernel reads them first, and this call waits. None: the data must be copied, because the file is shorter, the
    /// range is longer than [`MAX_SPLICED`], or there are too many references.
    pub fn take(file: impl AsFd, offset: u64, len: usize) -> Option<SplicedPages> {
        let pages = (offset as usize % PAGE + len).div_ceil(PAGE);
        let pipe = PIPES.with_borrow_mut(|pipes| pipes.take(pages))?;
        let mut spliced = SplicedPages { pipe: Some(pipe), len, position: Cell::new(0) };
        spliced.fill(file, offset).then_some(spliced)
    }

    /// False: the pipe has fewer bytes, and `len` is their number.
    fn fill(&mut self, file: impl AsFd, mut offset: u64) -> bool {
        let wanted = std::mem::take(&mut self.len);
        let Some(pipe) = &self.pipe else { return false };
        while self.len < wanted {
            let rest = wanted - self.len;
            match splice(&file, Some(&mut offset), &pipe.writer, None, rest, SpliceFlags::NONBLOCK) {
                Ok(0) | Err(_) => return false,
                Ok(spliced) => self.len += spliced,
            }
        }
        true
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pipe, if its next byte is the one at `start`.
    fn pipe_at(&self, start: usize) -> io::Result<&Pipe> {
        let is_next = self.position.get() == start;
        self.pipe.as_ref().filter(|_| is_next).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Copies `len` bytes from `start` out of the pages.
    fn copy(&self, start: usize, len: usize) -> io::Result<Vec<u8>> {
        let pipe = self.pipe_at(start)?;
        let mut bytes = vec![0; len];
        let mut at = 0;
        while at < len {
            match rustix::io::read(&pipe.reader, &mut bytes[at..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => at += read,
            }
            self.position.set(start + at);
        }
        Ok(bytes)
    }
}

impl Drop for SplicedPages {
    fn drop(&mut self) {
        // A pipe with remaining bytes is closed: emptying it would take as long as a new one.
        let pipe = self.pipe.take().filter(|_| self.position.get() == self.len);
        _ = PIPES.try_with(|pipes| pipes.borrow_mut().put_back(pipe));
    }
}

/// A part of [`SplicedPages`]. The parts must be sent in order.
pub struct PagesPart {
    /// The pages.
    pub pages: Rc<SplicedPages>,
    /// First byte.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

impl From<SplicedPages> for PagesPart {
    fn from(pages: SplicedPages) -> PagesPart {
        let len = pages.len();
        PagesPart { pages: Rc::new(pages), start: 0, len }
    }
}

impl PagesPart {
    /// Sends the part without its first `sent` bytes, as much as the socket takes without waiting; None if nothing.
    pub(crate) fn send(&self, stream: &Stream, sent: usize) -> io::Result<Option<usize>> {
        let start = self.start + sent;
        let pipe = self.pages.pipe_at(start)?;
        let sent = stream.send_pipe(&pipe.reader, self.len - sent)?;
        self.pages.position.set(start + sent.unwrap_or(0));
        Ok(sent)
    }

    /// A copy of the bytes.
    ///
    /// # Errors
    /// Those of reading a pipe; `InvalidInput` if another part comes first.
    pub fn copy(&self) -> io::Result<Vec<u8>> {
        self.pages.copy(self.start, self.len)
    }
}

impl Stream {
    /// Sends up to `len` bytes of a pipe without waiting; None if nothing.
    fn send_pipe(&self, pipe: &OwnedFd, len: usize) -> io::Result<Option<usize>> {
        match splice(pipe, None, self.socket(), None, len, SpliceFlags::NONBLOCK) {
            // The pipe has fewer bytes than were put in.
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(sent) => Ok(Some(sent)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests;
