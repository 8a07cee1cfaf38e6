//! The same logical units for programs without an event loop: each operation waits for its end.
//!
//! ```no_run
//! let lun = lunar_initiator::blocking::Lun::open(&"iscsi://127.0.0.1/iqn.2026-11.org.example:disks/0".parse()?)?;
//! let mut block = [0; 4096];
//! lun.read_at(0, &mut block)?;
//! # Ok::<(), lunar_initiator::Error>(())
//! ```

use crate::{Completion, Direction, Error, ErrorCode, Properties, Url};
use lunar_block::Backend;
use lunar_runtime::{Buf, Cores};
use lunar_wire::scsi::cdb::Cdb;
use std::io;
use std::sync::Arc;

/// Data of a SCSI command.
#[derive(Debug)]
pub enum Data<'a> {
    /// None.
    None,
    /// From the logical unit, at most as much as there is room.
    In(&'a mut [u8]),
    /// To the logical unit, all of it.
    Out(&'a [u8]),
}

/// A logical unit with a session and an event loop of its own. Any number of threads may use it at once. It
/// is not to be used from inside an event loop.
pub struct Lun {
    lun: Arc<crate::Lun>,
    cores: Cores,
}

impl Lun {
    /// Opens the logical unit of a URL.
    ///
    /// # Errors
    /// Those of [`crate::open`].
    pub fn open(url: &Url) -> Result<Lun, Error> {
        let cores = Cores::one().map_err(|e| of_io(e, "the event loop"))?;
        let url = url.clone();
        let opened = cores.wait(0, move || async move { crate::open(&url).await });
        let lun = opened.map_err(|e| of_io(e, "the event loop"))??;
        Ok(Lun { lun, cores })
    }

    /// Its properties, as read last.
    pub fn properties(&self) -> Properties {
        self.lun.properties()
    }

    /// Bytes that can be addressed, now.
    pub fn capacity(&self) -> u64 {
        self.lun.facts().capacity
    }

    /// Fills `data` from `offset`, both in bytes.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] beyond the capacity; those of the commands.
    pub fn read_at(&self, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        self.within(offset, data.len() as u64)?;
        let buf = Buf::zeroed(data.len());
        let (result, buf) = self.run(move |lun| async move { lun.read(offset, buf).await })?;
        result.map_err(|e| of_io(e, "read"))?;
        data.copy_from_slice(&buf);
        Ok(())
    }

    /// Writes `data` at `offset`, in bytes. It is stable after the next [`Lun::flush`].
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] beyond the capacity; those of the commands.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.within(offset, data.len() as u64)?;
        let mut buf = Buf::zeroed(data.len());
        buf.copy_from_slice(data);
        let (result, _) = self.run(move |lun| async move { lun.write(offset, buf, false).await })?;
        result.map_err(|e| of_io(e, "write"))
    }

    /// Every write that has ended becomes stable.
    ///
    /// # Errors
    /// Those of the commands.
    pub fn flush(&self) -> Result<(), Error> {
        self.run(|lun| async move { lun.flush().await })?.map_err(|e| of_io(e, "flush"))
    }

    /// Gives space back where the logical unit can.
    ///
    /// # Errors
    /// As of [`Lun::write_at`].
    pub fn unmap(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.within(offset, len)?;
        self.run(move |lun| async move { lun.unmap(offset, len).await })?.map_err(|e| of_io(e, "unmap"))
    }

    /// The bytes read as zeros afterwards; with `unmap` space may be given back.
    ///
    /// # Errors
    /// As of [`Lun::write_at`].
    pub fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Result<(), Error> {
        self.within(offset, len)?;
        let zeroed = self.run(move |lun| async move { lun.write_zeroes(offset, len, unmap).await })?;
        zeroed.map_err(|e| of_io(e, "write zeroes"))
    }

    /// Compares blocks with `old` and, if they are equal, writes `new`, as one step. False if they differ.
    ///
    /// # Errors
    /// As of [`crate::Lun::compare_and_write`].
    pub fn compare_and_write(&self, offset: u64, old: &[u8], new: &[u8]) -> Result<bool, Error> {
        if old.len() != new.len() {
            return Err(Error::new(
                ErrorCode::InvalidArgument,
                "what is compared is as long as what is written",
            ));
        }
        let mut buf = Buf::zeroed(2 * old.len());
        buf[..old.len()].copy_from_slice(old);
        buf[old.len()..].copy_from_slice(new);
        self.run(move |lun| async move { lun.compare_and_write(offset, buf).await })?
    }

    /// Sends a CDB as it is, once; whatever status the logical unit answers is no error.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn scsi(&self, cdb: Cdb, data: Data<'_>) -> Result<Completion, Error> {
        let direction = match &data {
            Data::None => Direction::None,
            Data::In(room) => Direction::In(Buf::zeroed(room.len())),
            Data::Out(bytes) => {
                let mut buf = Buf::zeroed(bytes.len());
                buf.copy_from_slice(bytes);
                Direction::Out(buf)
            }
        };
        let (result, buf) = self.run(move |lun| async move { lun.scsi(cdb, direction).await })?;
        if let (Data::In(room), Some(buf), Ok(c)) = (data, buf, &result) {
            let got = c.transferred.min(room.len()).min(buf.len());
            room[..got].copy_from_slice(&buf[..got]);
        }
        result
    }

    /// Logs out. Without it the target sees the connection end.
    ///
    /// # Errors
    /// When the target does not answer in time; it is closed all the same.
    pub fn close(self) -> Result<(), Error> {
        let closed = self.run(|lun| async move { lun.session().close().await })?;
        self.cores.stop();
        closed
    }

    fn within(&self, offset: u64, len: u64) -> Result<(), Error> {
        let capacity = self.capacity();
        if offset.checked_add(len).is_some_and(|end| end <= capacity) {
            return Ok(());
        }
        let what = format!("{len} bytes at {offset} are beyond the capacity of {capacity} bytes");
        Err(Error::new(ErrorCode::InvalidArgument, what))
    }

    fn run<T, W>(&self, work: impl FnOnce(Arc<crate::Lun>) -> W + Send + 'static) -> Result<T, Error>
    where
        T: Send + 'static,
        W: Future<Output = T> + 'static,
    {
        let lun = self.lun.clone();
        self.cores
            .wait(0, move || work(lun))
            .map_err(|_| Error::new(ErrorCode::SessionClosed, "the event loop has ended"))
    }
}

/// An error of a backend is one of ours inside.
fn of_io(e: io::Error, doing: &str) -> Error {
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
    fn a_lun_may_be_used_by_many_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Lun>();
    }

    #[test]
    fn an_error_comes_out_as_it_went_in() {
        let e = Error::new(ErrorCode::ReservationConflict, "held");
        assert_eq!(of_io(e.clone().into(), "read"), e);
        assert_eq!(of_io(io::Error::other("odd"), "read").what, "read: odd");
    }

    #[test]
    fn unreachable_portal_is_an_error() {
        let url: Url = "iscsi://127.0.0.1:1/iqn.2026-11.org.example:a/0?login_tries=1".parse().unwrap();
        let Err(e) = Lun::open(&url) else { panic!("there is a target on port 1") };
        assert_eq!(e.code, ErrorCode::Unreachable);
    }
}
