//! A SCSI command as a front end hands it over.

/// Task attributes (SAM-5 section 8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskAttribute {
    /// Runs beside others.
    Simple,
    /// Runs after all before it and before all after it.
    Ordered,
    /// Runs before all that wait.
    HeadOfQueue,
}

/// A CDB with at least 16 bytes.
#[derive(Clone, Debug)]
pub enum Cdb {
    /// Of 16 bytes.
    Short([u8; 16]),
    /// Longer.
    Long(Box<[u8]>),
}

/// A SCSI command, as far as its end needs it.
#[derive(Clone, Debug)]
pub struct ScsiCommand {
    /// Names the command among those of its I_T nexus (in iSCSI the Initiator Task Tag).
    pub tag: u32,
    /// The connection that brought it, and takes its answer: its place among those of the session.
    pub connection: u16,
    /// The LUN field (SAM-5 section 4.7).
    pub lun: u64,
    /// Its place in the order in which the initiator sent its commands, modulo 2^32 (in iSCSI CmdSN).
    pub sequence: u32,
    /// It was delivered outside that order.
    pub immediate: bool,
    /// Data-In is expected.
    pub reads: bool,
    /// Data-Out is expected.
    pub writes: bool,
    /// More Data-Out follows without being asked for.
    pub has_unsolicited: bool,
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// Bytes that the initiator expects to move.
    pub expected_len: u32,
    /// The CDB.
    pub cdb: Cdb,
}

impl ScsiCommand {
    /// The CDB, 16 bytes or more.
    #[inline]
    pub fn cdb(&self) -> &[u8] {
        match &self.cdb {
            Cdb::Short(c) => c,
            Cdb::Long(c) => c,
        }
    }

    /// Bytes of Data-In that the initiator takes.
    #[inline]
    pub fn data_in_len(&self) -> u32 {
        if self.reads { self.expected_len } else { 0 }
    }

    /// Bytes of Data-Out that the initiator has.
    #[inline]
    pub fn data_out_len(&self) -> u32 {
        if self.writes { self.expected_len } else { 0 }
    }
}
