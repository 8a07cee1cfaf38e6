//! A SCSI command for a logical unit, and how it ended.

use crate::{Error, Kind};
use net::Buf;
use std::time::{Duration, Instant};
use wire::iscsi::request::{self, Attribute};
use wire::scsi::cdb::Cdb;
use wire::scsi::{Sense, op};

/// Which way the data of a command goes. The buffer comes back when it ends.
#[derive(Debug)]
pub enum Direction {
    /// No data.
    None,
    /// From the logical unit, at most as much as the buffer holds.
    In(Buf),
    /// To the logical unit, the whole buffer.
    Out(Buf),
}

impl Direction {
    /// Bytes that are expected to be transferred.
    #[inline]
    pub fn expected(&self) -> usize {
        match self {
            Direction::None => 0,
            Direction::In(b) | Direction::Out(b) => b.len(),
        }
    }

    /// The buffer alone.
    pub fn into_buf(self) -> Option<Buf> {
        match self {
            Direction::None => None,
            Direction::In(b) | Direction::Out(b) => Some(b),
        }
    }
}

/// A command as it is to be sent.
#[derive(Debug)]
pub struct Command {
    /// The eight bytes of the LUN (SAM-5 section 4.7).
    pub lun: u64,
    /// The CDB, followed by zeros; of a longer one its first 16 bytes.
    pub cdb: Cdb,
    /// What a longer CDB has behind them.
    pub rest: Option<Box<Rest>>,
    /// Its data.
    pub data: Direction,
    /// Its task attribute.
    pub attribute: Attribute,
    /// Whether it may be sent once more although it may have been carried out already.
    pub repeatable: bool,
    /// Since when its owner waits, if this is not the first try: the time of the operation runs from then on.
    pub(crate) since: Option<Instant>,
}

impl Command {
    /// A SIMPLE command; whether it may be repeated is decided by [`is_repeatable`].
    #[inline]
    pub fn new(lun: u64, cdb: Cdb, data: Direction) -> Command {
        let repeatable = is_repeatable(&cdb);
        Command { lun, cdb, rest: None, data, attribute: Attribute::Simple, repeatable, since: None }
    }

    /// The same with a CDB of any length that SPC knows.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a CDB of no byte, or of more than [`MAX_CDB_LEN`] bytes.
    pub fn long(lun: u64, cdb: &[u8], data: Direction) -> Result<Command, Error> {
        if cdb.is_empty() || cdb.len() > MAX_CDB_LEN {
            let what = format!("a CDB has 1 to {MAX_CDB_LEN} bytes, not {}", cdb.len());
            return Err(Error::new(Kind::Invalid, what));
        }
        let (first, rest) = cdb.split_at(cdb.len().min(16));
        let mut short = Cdb::default();
        short[..first.len()].copy_from_slice(first);
        let mut command = Command::new(lun, short, data);
        command.rest = (!rest.is_empty()).then(|| Box::new(Rest(request::extended_cdb(rest))));
        Ok(command)
    }
}

/// The longest CDB in bytes (SPC-5 section 4.2.3).
pub const MAX_CDB_LEN: usize = 260;

/// What a CDB has behind its first 16 bytes, as it travels: an additional header segment.
#[derive(Debug)]
pub struct Rest(Vec<u8>);

impl Rest {
    /// The segment, padded.
    pub(crate) fn ahs(&self) -> &[u8] {
        &self.0
    }
}

/// The end of a command: how, and its buffer.
pub type Finished = (Result<Completion, Error>, Option<Buf>);

/// How a command ended: the answer of the logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// SCSI status.
    pub status: u8,
    /// Sense data as they came; empty without CHECK CONDITION.
    pub sense: Box<[u8]>,
    /// Bytes that came in, or were taken.
    pub transferred: usize,
    /// The logical unit had, or wanted, so many bytes more than the buffer holds.
    pub overflow: u32,
    /// How long it waited to be sent, because the window was closed or there was no connection; zero if it was
    /// sent at once.
    pub queued: Duration,
}

impl Completion {
    /// The sense data, decoded.
    pub fn sense(&self) -> Option<Sense> {
        Sense::decode(&self.sense)
    }
}

/// Whether doing it twice comes to the same as doing it once. Anything that is not known here is not: neither
/// what moves a tape (READ(6), WRITE(6)) nor what compares first.
pub fn is_repeatable(cdb: &Cdb) -> bool {
    const SAME: [u8; 39] = [
        op::TEST_UNIT_READY,
        op::REQUEST_SENSE,
        op::INQUIRY,
        op::MODE_SENSE_6,
        op::RESERVE_6,
        op::RELEASE_6,
        op::RECEIVE_DIAGNOSTIC,
        op::PREVENT_ALLOW,
        op::READ_CAPACITY_10,
        op::READ_10,
        op::WRITE_10,
        op::WRITE_VERIFY_10,
        op::VERIFY_10,
        op::PRE_FETCH_10,
        op::SYNCHRONIZE_CACHE_10,
        op::READ_DEFECT_DATA_10,
        op::READ_BUFFER_10,
        op::WRITE_SAME_10,
        op::UNMAP,
        op::READ_TOC,
        op::GET_CONFIGURATION,
        op::LOG_SENSE,
        op::MODE_SENSE_10,
        op::PERSISTENT_RESERVE_IN,
        op::RECEIVE_COPY_RESULTS,
        op::READ_16,
        op::WRITE_16,
        op::WRITE_VERIFY_16,
        op::VERIFY_16,
        op::PRE_FETCH_16,
        op::SYNCHRONIZE_CACHE_16,
        op::WRITE_SAME_16,
        op::SERVICE_ACTION_IN_16,
        op::REPORT_LUNS,
        op::MAINTENANCE_IN,
        op::READ_12,
        op::WRITE_12,
        op::WRITE_VERIFY_12,
        op::VERIFY_12,
    ];
    const fn bits() -> [bool; 256] {
        let mut bits = [false; 256];
        let mut i = 0;
        while i < SAME.len() {
            bits[SAME[i] as usize] = true;
            i += 1;
        }
        bits
    }
    static TABLE: [bool; 256] = bits();
    TABLE[cdb[0] as usize]
}
