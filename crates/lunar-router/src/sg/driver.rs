//! The seam between a device and the kernel: requests to the kernel and its completions.

use lunar_target::PassthroughData;
use std::io;

/// One open device. Commands in flight, their CDBs and their buffers belong to it.
pub(super) trait SgDriver: Send + Sync {
    /// Hands a command over, and does not wait for its end.
    ///
    /// # Errors
    /// Why the kernel did not take it; the command comes back.
    fn send(&self, id: u32, sg_io: SgIo) -> Result<(), (io::Error, SgIo)>;

    /// The next command that has ended; None while there is none.
    ///
    /// # Errors
    /// No more completions can be read.
    fn receive(&self) -> io::Result<Option<SgCompletion>>;

    /// Sleeps until [`SgDriver::wake`], or until a command may have ended if there are any `in_flight`.
    ///
    /// # Errors
    /// Waiting is not possible.
    fn wait(&self, in_flight: bool) -> io::Result<()>;

    /// Ends the sleep of [`SgDriver::wait`], or the next one.
    fn wake(&self);

    /// LOGICAL UNIT RESET. Waits for its end.
    ///
    /// # Errors
    /// The host's driver has none or failed; `PermissionDenied` without CAP_SYS_ADMIN and CAP_SYS_RAWIO.
    fn reset(&self) -> io::Result<()>;
}

/// A command for the kernel.
#[derive(Debug)]
pub(super) struct SgIo {
    /// The CDB, as long as the command is.
    pub cdb: Box<[u8]>,
    /// Its data.
    pub data: PassthroughData,
    /// How long it may take in the device before the kernel ends it.
    pub timeout_ms: u32,
    /// Before all that wait in the kernel (HEAD OF QUEUE), not after them.
    pub first: bool,
}

impl SgIo {
    /// Bytes of its data buffer.
    pub fn len(&self) -> usize {
        match &self.data {
            PassthroughData::None => 0,
            PassthroughData::In(buf) | PassthroughData::Out(buf) => buf.len(),
        }
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(super) struct SgCompletion {
    /// That of [`SgDriver::send`].
    pub id: u32,
    /// The command, with what came in.
    pub sg_io: SgIo,
    /// What became of it.
    pub outcome: SgOutcome,
}

/// The completion of a command (the outputs of `sg_io_hdr`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SgOutcome {
    /// SCSI status, with what else old drivers put into the byte.
    pub status: u8,
    /// What the host adapter's driver says, `DID_*`.
    pub host: u16,
    /// What the middle layer says, `DRIVER_*`.
    pub driver: u16,
    /// Sense data as they came.
    pub sense: Vec<u8>,
    /// Bytes of the buffer that were not moved; less than 0 when more was to be moved than it holds.
    pub residual: i32,
}
