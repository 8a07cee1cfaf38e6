//! Bytes in a pipe that a socket sends without copying them.
//!
//! A pipe holds references to pages (splice(2)). Pages of a file can be sent even if the file is truncated or its disk
//! fails meanwhile. The references do not protect the content: a later write to these bytes of the file changes them.

use crate::Stream;
use crate::buf::PAGE;
use crate::pipe::{self, PIPE_LEN, Pipe};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};
use std::cell::Cell;
use std::io;
use std::rc::Rc;

/// Maximum length of bytes in a pipe.
pub const MAX_PIPED: usize = PIPE_LEN;

/// Bytes in a pipe, such as references to the pages of a range of a file. They are sent in order, and once.
///
/// A program that sends them should ignore SIGPIPE, as Rust's runtime does: splice(2) has no flag against this signal,
/// which the kernel raises when the peer is gone.
#[derive(Debug)]
pub struct PipedBytes {
    /// Taken on drop.
    pipe: Option<Pipe>,
    len: usize,
    /// Bytes that were taken out of the pipe.
    position: Cell<usize>,
}

impl PipedBytes {
    /// Takes references to `len` bytes of a file from `offset`. The pages should be in the page cache: otherwise the
    /// kernel reads them first, and this call waits. None: the data must be copied, because the file is shorter, the
    /// range is longer than [`MAX_PIPED`], or there are too many references.
    pub fn take(file: impl AsFd, offset: u64, len: usize) -> Option<PipedBytes> {
        let pages = (offset as usize % PAGE + len).div_ceil(PAGE);
        if pages > MAX_PIPED / PAGE {
            return None;
        }
        let pipe = pipe::take()?;
        let mut spliced = PipedBytes { pipe: Some(pipe), len, position: Cell::new(0) };
        spliced.fill(file, offset).then_some(spliced)
    }

    /// An empty pipe, for received bytes. None: there are too many pipes.
    pub fn empty() -> Option<PipedBytes> {
        Some(PipedBytes { pipe: Some(pipe::take()?), len: 0, position: Cell::new(0) })
    }

    /// Appends copies of the first of these bytes, and returns their number. Those for which there is no room are left
    /// out.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let Some(pipe) = &self.pipe else { return 0 };
        let pushed = rustix::io::write(&pipe.writer, bytes).unwrap_or(0);
        self.len += pushed;
        pushed
    }

    /// Appends up to `max` bytes that a socket has received. `AGAIN`: it has none, or there is no room.
    pub(crate) fn receive(&mut self, socket: impl AsFd, max: usize) -> Result<usize, Errno> {
        let Some(pipe) = &self.pipe else { return Err(Errno::INVAL) };
        let received = splice(socket, None, &pipe.writer, None, max, SpliceFlags::NONBLOCK)?;
        self.len += received;
        Ok(received)
    }

    /// Whether there is no room for another byte from a socket.
    pub(crate) fn is_full(&self) -> bool {
        let Some(pipe) = &self.pipe else { return true };
        let mut ends = [PollFd::new(&pipe.writer, PollFlags::OUT)];
        poll(&mut ends, Some(&Timespec::default())).is_ok() && !ends[0].revents().contains(PollFlags::OUT)
    }

    /// Moves all bytes to memory of their length.
    ///
    /// # Errors
    /// Those of reading a pipe; `InvalidInput` if some were sent.
    pub fn move_to(&self, place: &mut [u8]) -> io::Result<()> {
        self.read(0, place)
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

    /// Copies `len` bytes from `start` out of the pipe.
    fn copy(&self, start: usize, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read(start, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads the bytes from `start` out of the pipe.
    fn read(&self, start: usize, place: &mut [u8]) -> io::Result<()> {
        let pipe = self.pipe_at(start)?;
        let mut at = 0;
        while at < place.len() {
            match rustix::io::read(&pipe.reader, &mut place[at..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => at += read,
            }
            self.position.set(start + at);
        }
        Ok(())
    }
}

impl Drop for PipedBytes {
    fn drop(&mut self) {
        // A pipe with remaining bytes is closed: emptying it would take as long as a new one.
        let pipe = self.pipe.take().filter(|_| self.position.get() == self.len);
        pipe::put_back(pipe);
    }
}

/// A part of [`PipedBytes`]. The parts must be sent in order.
pub struct PipedPart {
    /// The bytes.
    pub piped: Rc<PipedBytes>,
    /// First byte.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

impl From<PipedBytes> for PipedPart {
    fn from(piped: PipedBytes) -> PipedPart {
        let len = piped.len();
        PipedPart { piped: Rc::new(piped), start: 0, len }
    }
}

impl PipedPart {
    /// Sends the part without its first `sent` bytes, as much as the socket takes without waiting; None if nothing.
    pub(crate) fn send(&self, stream: &Stream, sent: usize) -> io::Result<Option<usize>> {
        let start = self.start + sent;
        let pipe = self.piped.pipe_at(start)?;
        let sent = stream.send_pipe(&pipe.reader, self.len - sent)?;
        self.piped.position.set(start + sent.unwrap_or(0));
        Ok(sent)
    }

    /// A copy of the bytes.
    ///
    /// # Errors
    /// Those of reading a pipe; `InvalidInput` if another part comes first.
    pub fn copy(&self) -> io::Result<Vec<u8>> {
        self.piped.copy(self.start, self.len)
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
