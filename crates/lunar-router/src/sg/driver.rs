//! The interface between a device and the kernel: commands and completions.

use lunar_target::PassthroughData;
use std::io;

/// An open device. It owns the commands in flight, with their CDBs and buffers.
pub(super) trait SgDriver: Send + Sync {
    /// Submits a command, without waiting for its completion.
    ///
    /// # Errors
    /// When the kernel rejects it. The command is returned.
    fn send(&self, id: u32, sg_io: SgIo) -> Result<(), (io::Error, SgIo)>;

    /// The next completion. None if there is none yet.
    ///
    /// # Errors
    /// When no more completions can be read.
    fn receive(&self) -> io::Result<Option<SgCompletion>>;

    /// Sleeps until [`SgDriver::wake`], or until a command may have completed if any are `in_flight`.
    ///
    /// # Errors
    /// When waiting is not possible.
    fn wait(&self, in_flight: bool) -> io::Result<()>;

    /// Ends the current sleep of [`SgDriver::wait`], or the next one.
    fn wake(&self);

    /// Sends LOGICAL UNIT RESET, and waits for its end.
    ///
    /// # Errors
    /// When the host adapter's driver has no reset or it failed; `PermissionDenied` without CAP_SYS_ADMIN and
    /// CAP_SYS_RAWIO.
    fn reset(&self) -> io::Result<()>;
}

/// A command for the kernel.
#[derive(Debug)]
pub(super) struct SgIo {
    /// The CDB, in the length of the command.
    pub cdb: Box<[u8]>,
    /// The data.
    pub data: PassthroughData,
    /// The time after which the kernel aborts it, in milliseconds.
    pub timeout_ms: u32,
    /// Whether it precedes all commands queued in the kernel (HEAD OF QUEUE).
    pub first: bool,
}

impl SgIo {
    /// The length of the data buffer in bytes.
    pub fn len(&self) -> usize {
        match &self.data {
            PassthroughData::None => 0,
            PassthroughData::In(buf) | PassthroughData::Out(buf) => buf.len(),
        }
    }
}

/// A completed command.
#[derive(Debug)]
pub(super) struct SgCompletion {
    /// The id given to [`SgDriver::send`].
    pub id: u32,
    /// The command, with the received data.
    pub sg_io: SgIo,
    /// The result.
    pub outcome: SgOutcome,
}

/// The completion of a command (the outputs of `sg_io_hdr`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SgOutcome {
    /// The SCSI status, and other bits that old drivers set in this byte.
    pub status: u8,
    /// The result of the host adapter's driver, `DID_*`.
    pub host: u16,
    /// The result of the SCSI middle layer, `DRIVER_*`.
    pub driver: u16,
    /// The undecoded sense data.
    pub sense: Vec<u8>,
    /// The number of buffer bytes that were not transferred. Negative if the device had more data than the buffer
    /// holds.
    pub residual: i32,
}
