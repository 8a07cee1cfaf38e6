//! A logical unit on the shared event loop: the operations behind [`crate::blocking::BlockingLun`] and
//! [`crate::any_executor::AsyncLun`].

use crate::event_loop::{Reply, start};
use crate::{Completion, Direction, Error, ErrorCode, Properties, Url};
use lunar_block::Backend;
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb::Cdb;
use std::io;
use std::sync::Arc;
use std::thread;

/// The data of a SCSI command.
#[derive(Debug)]
pub enum Data<'a> {
    /// No data.
    None,
    /// Data-In, at most the length of the slice.
    In(&'a mut [u8]),
    /// Data-Out, the whole slice.
    Out(&'a [u8]),
}

impl Data<'_> {
    /// Allocates the command's buffer, and copies Data-Out into it.
    pub(crate) fn to_direction(&self) -> Direction {
        match self {
            Data::None => Direction::None,
            Data::In(room) => Direction::In(Buf::zeroed(room.len())),
            Data::Out(bytes) => Direction::Out(Buf::copy_of(bytes)),
        }
    }

    /// Copies the received Data-In.
    pub(crate) fn fill(self, completion: &Completion, buf: Option<Buf>) {
        if let (Data::In(room), Some(buf)) = (self, buf) {
            let received = completion.transferred.min(room.len()).min(buf.len());
            room[..received].copy_from_slice(&buf[..received]);
        }
    }
}

/// A logical unit whose session lives on the shared event loop.
#[derive(Clone, Debug)]
pub(crate) struct SharedLun(Option<Arc<crate::Lun>>);

/// Dropping the last handle wakes the event loop. compio aborts the process if a panicking thread does that, so
/// another thread does it.
impl Drop for SharedLun {
    fn drop(&mut self) {
        if let Some(lun) = self.0.take().filter(|_| thread::panicking()) {
            drop(thread::Builder::new().spawn(move || drop(lun)));
        }
    }
}

type PendingResult<T> = Result<Reply<Result<T, Error>>, Error>;

impl SharedLun {
    /// Opens the logical unit of a URL.
    pub fn open(url: &Url) -> PendingResult<SharedLun> {
        let url = url.clone();
        start(move || async move { crate::open(&url).await.map(|lun| SharedLun(Some(lun))) })
    }

    fn lun(&self) -> &Arc<crate::Lun> {
        self.0.as_ref().expect("the LUN is present until drop")
    }

    pub fn properties(&self) -> Properties {
        self.lun().properties()
    }

    pub fn capacity(&self) -> u64 {
        self.lun().info().capacity
    }

    pub fn read(&self, offset: u64, len: usize) -> PendingResult<Buf> {
        self.check_range(offset, len as u64)?;
        let lun = self.lun().clone();
        start(move || async move {
            let (result, buf) = lun.read(offset, Buf::zeroed(len)).await;
            result.map(|()| buf).map_err(|e| from_io(e, "read"))
        })
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> PendingResult<()> {
        self.check_range(offset, data.len() as u64)?;
        let (lun, buf) = (self.lun().clone(), Buf::copy_of(data));
        start(move || async move { lun.write(offset, buf, false).await.0.map_err(|e| from_io(e, "write")) })
    }

    pub fn flush(&self) -> PendingResult<()> {
        let lun = self.lun().clone();
        start(move || async move { lun.flush().await.map_err(|e| from_io(e, "flush")) })
    }

    pub fn unmap(&self, offset: u64, len: u64) -> PendingResult<()> {
        self.check_range(offset, len)?;
        let lun = self.lun().clone();
        start(move || async move { lun.unmap(offset, len).await.map_err(|e| from_io(e, "unmap")) })
    }

    pub fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> PendingResult<()> {
        self.check_range(offset, len)?;
        let lun = self.lun().clone();
        start(move || async move {
            lun.write_zeroes(offset, len, unmap).await.map_err(|e| from_io(e, "write zeroes"))
        })
    }

    pub fn compare_and_write(&self, offset: u64, old: &[u8], new: &[u8]) -> PendingResult<bool> {
        if old.len() != new.len() {
            let what = format!(
                "compare and write: {} bytes to compare, but {} bytes to write",
                old.len(),
                new.len()
            );
            return Err(
                Error::new(ErrorCode::InvalidArgument, what).with_hint("pass two buffers of the same length")
            );
        }
        let (lun, buf) = (self.lun().clone(), Buf::copy_of(&[old, new].concat()));
        start(move || async move { lun.compare_and_write(offset, buf).await })
    }

    pub fn scsi(&self, cdb: Cdb, data: Direction) -> PendingResult<(Completion, Option<Buf>)> {
        let lun = self.lun().clone();
        start(move || async move {
            let (result, buf) = lun.scsi(cdb, data).await;
            result.map(|completion| (completion, buf))
        })
    }

    pub fn close(&self) -> PendingResult<()> {
        let lun = self.lun().clone();
        start(move || async move { lun.session().close().await })
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<(), Error> {
        let capacity = self.capacity();
        if offset.checked_add(len).is_some_and(|end| end <= capacity) {
            return Ok(());
        }
        let what = format!(
            "range of {len} bytes at offset {offset}: beyond the capacity of the LUN, {capacity} bytes"
        );
        Err(Error::new(ErrorCode::InvalidArgument, what))
    }
}

/// The [`Error`] inside a backend's I/O error, or a new one.
fn from_io(e: io::Error, doing: &str) -> Error {
    match e.downcast::<Error>() {
        Ok(ours) => ours,
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
            Error::new(ErrorCode::InvalidArgument, format!("{doing}: {e}"))
        }
        Err(e) => Error::new(ErrorCode::ScsiError, format!("{doing}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_inside_an_io_error_is_returned_unchanged() {
        let e = Error::new(ErrorCode::ReservationConflict, "held");
        assert_eq!(from_io(e.clone().into(), "read"), e);
        assert_eq!(from_io(io::Error::other("odd"), "read").what, "read: odd");
    }
}
