//! A SCSI command for a logical unit, and its result. Task management functions for
//! [`Session::manage`](crate::Session::manage).
//!
//! The method decides about retries while the logical unit is busy, and after a unit attention:
//!
//! | method | retries | a status other than GOOD |
//! |---|---|---|
//! | [`Session::submit`](crate::Session::submit) | no | is a response |
//! | [`Session::ask`](crate::Session::ask) | yes | is the final response |
//! | [`Session::perform`](crate::Session::perform), [`Lun::perform`](crate::Lun::perform) | yes | is an error |
//! | [`Lun::scsi`](crate::Lun::scsi) | no, also not after a lost connection | is a response |

use crate::{Error, ErrorCode};
use lunar_block::range_lock::RangeLock;
use lunar_runtime::Buf;
use lunar_wire::iscsi::request;
#[doc(inline)]
pub use lunar_wire::iscsi::status::management_response;
#[doc(inline)]
pub use lunar_wire::scsi::cdb::Cdb;
use lunar_wire::scsi::{Sense, op};
#[doc(inline)]
pub use lunar_wire::scsi::{TaskAttribute, TaskManagementFunction};
use std::time::{Duration, Instant};

/// The data of a command and their direction. The result of the command returns the buffer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Direction {
    /// No data.
    None,
    /// Data-In, at most the length of the buffer.
    In(Buf),
    /// Data-Out, the whole buffer.
    Out(Buf),
}

impl Direction {
    /// The expected data transfer length in bytes.
    #[inline]
    pub fn expected(&self) -> usize {
        match self {
            Direction::None => 0,
            Direction::In(b) | Direction::Out(b) => b.len(),
        }
    }

    /// The buffer without the direction.
    pub fn into_buf(self) -> Option<Buf> {
        match self {
            Direction::None => None,
            Direction::In(b) | Direction::Out(b) => Some(b),
        }
    }
}

/// A command.
#[derive(Debug)]
pub struct Command {
    /// The eight bytes of the LUN (SAM-5 section 4.7).
    pub lun: u64,
    /// The first 16 bytes of the CDB. A shorter CDB is padded with zeros.
    pub cdb: Cdb,
    /// The bytes of a longer CDB after the first 16.
    pub extended_cdb: Option<Box<ExtendedCdb>>,
    /// The data and their direction.
    pub data: Direction,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// Whether the command may be sent again although the target may already have executed it.
    pub repeatable: bool,
    /// Whether the command may change the medium or the state of the logical unit. A late execution could undo newer
    /// commands.
    pub changes: bool,
    /// The time of the first attempt, if this command is a retry. The operation timeout counts from it.
    pub(crate) started_at: Option<Instant>,
    /// The range lock of a write. No other command may write the range until the target has ended this command, even
    /// if the owner no longer waits.
    pub(crate) hold: Option<RangeLock>,
}

impl Command {
    /// A command with the task attribute SIMPLE. [`is_repeatable`] decides whether it may be repeated.
    #[inline]
    pub fn new(lun: u64, cdb: Cdb, data: Direction) -> Command {
        Command::classified(lun, cdb, data, is_repeatable(&cdb), !only_reads(&cdb))
    }

    #[inline]
    fn classified(lun: u64, cdb: Cdb, data: Direction, repeatable: bool, changes: bool) -> Command {
        let attribute = TaskAttribute::Simple;
        Command {
            lun,
            cdb,
            extended_cdb: None,
            data,
            attribute,
            repeatable,
            changes,
            started_at: None,
            hold: None,
        }
    }

    /// The same for a block device, where [`is_repeatable_on_blocks`] decides.
    #[inline]
    pub(crate) fn on_blocks(lun: u64, cdb: Cdb, data: Direction) -> Command {
        Command::classified(lun, cdb, data, is_repeatable_on_blocks(&cdb), !only_reads_on_blocks(&cdb))
    }

    /// The same with a CDB of up to [`MAX_CDB_LEN`] bytes.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] for an empty CDB or one of more than [`MAX_CDB_LEN`] bytes.
    pub fn long(lun: u64, cdb: &[u8], data: Direction) -> Result<Command, Error> {
        if cdb.is_empty() || cdb.len() > MAX_CDB_LEN {
            let what = format!("the CDB has {} bytes, outside 1 to {MAX_CDB_LEN}", cdb.len());
            return Err(Error::new(ErrorCode::InvalidArgument, what));
        }
        let (first, rest) = cdb.split_at(cdb.len().min(16));
        let mut short = Cdb::default();
        short[..first.len()].copy_from_slice(first);
        let mut command = Command::new(lun, short, data);
        command.extended_cdb = (!rest.is_empty()).then(|| Box::new(ExtendedCdb(request::extended_cdb(rest))));
        Ok(command)
    }
}

/// The longest CDB in bytes (SPC-5 section 4.2.3).
pub const MAX_CDB_LEN: usize = 260;

/// The bytes of a CDB after the first 16, encoded as an additional header segment (RFC 7143 section 11.2.2).
#[derive(Clone, Debug)]
pub struct ExtendedCdb(Vec<u8>);

impl ExtendedCdb {
    /// The segment, padded.
    pub(crate) fn ahs(&self) -> &[u8] {
        &self.0
    }
}

/// The result of a command, and its buffer.
pub type CommandResult = (Result<Completion, Error>, Option<Buf>);

/// The response of a logical unit to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completion {
    /// SCSI status.
    pub status: u8,
    /// The undecoded sense data; empty without CHECK CONDITION.
    pub sense: Box<[u8]>,
    /// Bytes that the logical unit has sent or accepted.
    pub transferred: usize,
    /// Residual overflow: bytes that the logical unit could not transfer because the buffer was too small.
    pub overflow: u32,
    /// The time in the queue, while the command window was closed or there was no connection. Zero if the command was
    /// sent at once.
    pub queued: Duration,
}

impl Completion {
    /// The sense data, decoded.
    pub fn sense(&self) -> Option<Sense> {
        Sense::decode(&self.sense)
    }
}

/// Whether the command may be repeated with the same result on any device type. Unknown commands are not repeatable,
/// nor are commands that compare first. Commands that move a tape are not repeatable either: READ(6), WRITE(6), and
/// some operation codes of [`is_repeatable_on_blocks`].
#[inline]
pub fn is_repeatable(cdb: &Cdb) -> bool {
    op::is_repeatable(cdb) && !op::moves_tape(cdb)
}

/// The same on a block device. On a tape, some of these commands write at the current position or move the tape.
#[inline]
pub fn is_repeatable_on_blocks(cdb: &Cdb) -> bool {
    op::is_repeatable(cdb)
}

/// Whether the command changes nothing on any device type, so that late execution is harmless. Unknown commands count
/// as changes.
#[inline]
pub fn only_reads(cdb: &Cdb) -> bool {
    op::only_reads(cdb) && !op::moves_tape(cdb)
}

/// The same on a block device. Some of these commands move a tape.
#[inline]
pub fn only_reads_on_blocks(cdb: &Cdb) -> bool {
    op::only_reads(cdb)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cdb(code: u8) -> Cdb {
        with_action(code, 0)
    }

    fn with_action(code: u8, action: u8) -> Cdb {
        let mut cdb = Cdb::default();
        (cdb[0], cdb[1]) = (code, action);
        cdb
    }

    #[test]
    fn commands_that_may_change_anything_are_not_reads() {
        let reads = (0..=255).filter(|code| only_reads(&cdb(*code))).count();
        assert_eq!(reads, 25);
        for code in [0x00, 0x05, 0x12, 0x25, 0x28, 0x2f, 0x35, 0x44, 0x5e, 0xa0, 0xa8] {
            assert!(
                only_reads(&cdb(code)) && !Command::new(0, cdb(code), Direction::None).changes,
                "{code:02x}"
            );
        }
        // Commands from WRITE(6) to WRITE SCATTERED, and unknown operation codes.
        for code in [
            0x04, 0x0a, 0x1b, 0x2a, 0x2e, 0x3f, 0x41, 0x42, 0x48, 0x50, 0x51, 0x53, 0x5f, 0x7f, 0x83, 0x89,
            0x8a, 0x8b, 0x8e, 0x93, 0x9c, 0x9e, 0x9f, 0xa3, 0xaa, 0xae, 0xc1, 0xff,
        ] {
            assert!(!only_reads(&cdb(code)) && !only_reads_on_blocks(&cdb(code)), "{code:02x}");
            assert!(Command::on_blocks(0, cdb(code), Direction::None).changes, "{code:02x}");
        }
        // These move a tape.
        for code in [0x08, 0x88, 0x8f, 0x91] {
            assert!(!only_reads(&cdb(code)) && only_reads_on_blocks(&cdb(code)), "{code:02x}");
        }
    }

    /// STREAM CONTROL and REMOVE ELEMENT AND TRUNCATE have the operation code of READ CAPACITY(16).
    #[test]
    fn service_action_that_changes_something_is_no_read() {
        for action in [0x14, 0x18] {
            let command = Command::on_blocks(0, with_action(0x9e, action), Direction::None);
            assert!(command.changes && !command.repeatable, "{action:02x}");
        }
        for (code, action) in [(0x9e, 0x10), (0x9e, 0x12), (0xa3, 0x0a), (0xa3, 0x0c)] {
            let command = Command::new(0, with_action(code, action), Direction::None);
            assert!(!command.changes && command.repeatable, "{code:02x}/{action:02x}");
        }
    }

    /// READ(6), READ(16), WRITE(16), VERIFY(16) and SPACE(16), which has the code of SYNCHRONIZE CACHE(16).
    #[test]
    fn tape_motion_is_repeated_on_block_devices_alone() {
        for code in [0x08, 0x88, 0x8a, 0x8f, 0x91] {
            let cdb = cdb(code);
            assert!(!is_repeatable(&cdb) && is_repeatable_on_blocks(&cdb), "{code:02x}");
            assert!(!Command::new(0, cdb, Direction::None).repeatable);
            assert!(Command::on_blocks(0, cdb, Direction::None).repeatable);
        }
        for (code, is) in [(0x28, true), (0x2a, true), (0x0a, false), (0x89, false)] {
            let cdb = cdb(code);
            assert_eq!((is_repeatable(&cdb), is_repeatable_on_blocks(&cdb)), (is, is), "{code:02x}");
        }
    }
}
