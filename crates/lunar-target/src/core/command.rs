//! A SCSI command as a front end submits it.

pub use lunar_wire::scsi::TaskAttribute;
use std::ops::Deref;

/// A CDB with at least 16 bytes.
#[derive(Clone, Debug)]
pub enum Cdb {
    /// 16 bytes.
    Short([u8; 16]),
    /// Longer.
    Long(Box<[u8]>),
}

impl Deref for Cdb {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Cdb::Short(c) => c,
            Cdb::Long(c) => c,
        }
    }
}

impl From<[u8; 16]> for Cdb {
    fn from(cdb: [u8; 16]) -> Cdb {
        Cdb::Short(cdb)
    }
}

/// A SCSI command: what the core needs until the command ends.
#[derive(Clone, Debug)]
pub struct ScsiCommand {
    /// Identifies the command within its I_T nexus.
    pub tag: u32,
    /// Index of the connection that received the command and sends its response.
    pub connection: u16,
    /// The LUN field (SAM-5 section 4.7).
    pub lun: u64,
    /// Position in the order of the initiator's commands, modulo 2^32.
    pub sequence: u32,
    /// The command is immediate: delivered outside that order.
    pub immediate: bool,
    /// The initiator expects Data-In.
    pub reads: bool,
    /// The initiator sends Data-Out.
    pub writes: bool,
    /// Unsolicited Data-Out follows the command.
    pub has_unsolicited: bool,
    /// EXTENDED COPY, whose CDB has no FUA, writes to stable storage before its status.
    pub copies_stably: bool,
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// Bytes that the initiator expects to transfer.
    pub expected_len: u32,
    /// The CDB.
    pub cdb: Cdb,
}

impl ScsiCommand {
    /// A command without LUN, CDB and data, to be refused. The core identifies it by `tag`; `sequence` is its position
    /// in the order of the initiator.
    pub fn to_refuse(tag: u32, sequence: u32) -> ScsiCommand {
        ScsiCommand {
            tag,
            connection: 0,
            lun: 0,
            sequence,
            immediate: false,
            reads: false,
            writes: false,
            has_unsolicited: false,
            copies_stably: false,
            attribute: TaskAttribute::Simple,
            expected_len: 0,
            cdb: Cdb::Short([0; 16]),
        }
    }

    /// The CDB, 16 bytes or more.
    #[inline]
    pub fn cdb(&self) -> &[u8] {
        &self.cdb
    }

    /// Bytes of Data-In that the initiator accepts.
    #[inline]
    pub fn data_in_len(&self) -> u32 {
        if self.reads { self.expected_len } else { 0 }
    }

    /// Bytes of Data-Out that the initiator offers.
    #[inline]
    pub fn data_out_len(&self) -> u32 {
        if self.writes { self.expected_len } else { 0 }
    }
}
