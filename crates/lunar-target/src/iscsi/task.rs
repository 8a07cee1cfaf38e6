//! SCSI commands that did not end on the spot.

use super::places::Places;
use super::respond::Sent;
use crate::Unit;
use lunar_proto::transfer::Incoming;
use lunar_scsi::{Answer, Failure, NexusId};
use lunar_wire::iscsi::Bhs;
use lunar_wire::scsi::{Sense, Status};
use std::sync::Arc;
use std::time::Instant;

/// Task attributes (SAM-5 section 8.6), as in the SCSI Command PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
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
    /// In the header.
    Short([u8; 16]),
    /// With an Extended CDB header segment.
    Long(Box<[u8]>),
}

/// A SCSI Command, as far as its end needs it.
#[derive(Clone, Debug)]
pub struct Command {
    /// Initiator Task Tag.
    pub itt: u32,
    /// LUN field.
    pub lun: u64,
    /// CmdSN.
    pub cmd_sn: u32,
    /// Outside the CmdSN order.
    pub immediate: bool,
    /// R bit: Data-In is expected.
    pub reads: bool,
    /// W bit: Data-Out is expected.
    pub writes: bool,
    /// F bit: no unsolicited Data-Out follows.
    pub is_final: bool,
    /// Task attribute.
    pub attribute: Attribute,
    /// Expected Data Transfer Length in bytes.
    pub edtl: u32,
    /// The CDB.
    pub cdb: Cdb,
}

/// Type of the Extended CDB header segment (RFC 7143 section 11.2.2.3).
const EXTENDED_CDB: u8 = 1;

impl Command {
    /// Reads a SCSI Command PDU; None for one that contradicts itself (a format error, RFC 7143 section 7.7).
    #[inline]
    pub fn read(h: &Bhs, ahs: &[u8]) -> Option<Command> {
        let flags = h.flags();
        let (reads, writes, edtl) = (flags & 0x40 != 0, flags & 0x20 != 0, h.word20());
        if (!writes && !h.is_final()) || (edtl > 0 && !reads && !writes) {
            return None;
        }
        let attribute = match flags & 7 {
            2 => Attribute::Ordered,
            3 => Attribute::HeadOfQueue,
            _ => Attribute::Simple,
        };
        let cdb = if ahs.is_empty() { Cdb::Short(*h.cdb()) } else { extended(h.cdb(), ahs)? };
        Some(Command {
            itt: h.itt(),
            lun: h.lun(),
            cmd_sn: h.cmd_sn(),
            immediate: h.immediate(),
            reads,
            writes,
            is_final: h.is_final(),
            attribute,
            edtl,
            cdb,
        })
    }

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
    pub fn room(&self) -> u32 {
        if self.reads { self.edtl } else { 0 }
    }

    /// Bytes of Data-Out that the initiator has.
    #[inline]
    pub fn offered(&self) -> u32 {
        if self.writes { self.edtl } else { 0 }
    }
}

/// Walks the additional header segments (RFC 7143 section 11.2.2): AHSLength counts what follows the type.
fn extended(cdb: &[u8; 16], mut ahs: &[u8]) -> Option<Cdb> {
    let mut whole = cdb.to_vec();
    while ahs.len() >= 4 {
        let len = u16::from_be_bytes([ahs[0], ahs[1]]) as usize;
        let end = 3 + len;
        if len == 0 || end > ahs.len() {
            return None;
        }
        if ahs[2] & 0x3f == EXTENDED_CDB {
            whole.extend_from_slice(&ahs[4.min(end)..end]);
        }
        ahs = ahs.get(end.next_multiple_of(4)..).unwrap_or_default();
    }
    whole.truncate(260);
    Some(if whole.len() == 16 { Cdb::Short(*cdb) } else { Cdb::Long(whole.into()) })
}

/// Why a task ends without its own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aborted {
    /// By its own session: nothing is sent.
    Silently,
    /// By another nexus while TAS is set: TASK ABORTED.
    Told,
    /// By a SNACK that cannot be served.
    Unrecoverable,
}

impl Aborted {
    /// What the initiator hears.
    pub fn answer(self) -> Option<Failure> {
        match self {
            Aborted::Silently => None,
            Aborted::Told => Some(Status::TaskAborted.into()),
            Aborted::Unrecoverable => Some(Sense::SNACK_REJECTED.into()),
        }
    }
}

/// Data-Out on its way.
pub struct Receiving {
    /// Its sequencing.
    pub incoming: Incoming,
    /// Where it goes.
    pub places: Places,
    /// Bytes that the command is to have.
    pub wanted: u32,
    /// Upper bits of its Target Transfer Tags.
    pub ttt_base: u32,
    /// A data digest did not fit.
    pub damaged: bool,
    /// There was no room for its data when they came.
    pub full: bool,
    /// Bytes have come since this was looked at last.
    pub moved: bool,
    /// How often no data had come when it was looked.
    pub late: u32,
    /// How often data were missing when it was looked.
    pub looks: u32,
    /// With so many looks its data are late; 0: not looked at yet.
    pub max_looks: u32,
    /// R2Ts of the session up to its latest one.
    pub asked: u64,
    /// It is taken piece by piece.
    pub in_pieces: bool,
    /// Its command has begun, and ends this.
    pub is_launched: bool,
    /// Its command ends without the data that were asked for.
    pub is_left: bool,
}

/// A command that did not end on the spot.
pub struct Task {
    /// Unique on its connection.
    pub serial: u64,
    /// The command.
    pub command: Command,
    /// The logical unit and the nexus, when there is one.
    pub place: Option<(Arc<Unit>, NexusId)>,
    /// The nexuses with other logical units through which it copies.
    pub reaches: Vec<NexusId>,
    /// The logical unit's epoch when the answer was found.
    pub epoch: u64,
    /// The medium that it was asked of.
    pub medium: u64,
    /// It is to end without an answer of its own.
    pub aborted: Option<Aborted>,
    /// Data-Out on its way; None: it is all here, and the command runs.
    pub receiving: Option<Receiving>,
    /// What it comes to; None: to be decided when its turn has come, or it runs.
    pub answer: Option<Answer>,
    /// How much of its Data-In has gone.
    pub sent: Sent,
    /// When it arrived, if that is counted.
    pub began: Option<Instant>,
}

impl Task {
    /// Its serial, and its Data-Out if the initiator is to send some.
    pub fn waits_for_data(&mut self) -> Option<(u64, &mut Receiving)> {
        let receiving = self.receiving.as_mut().filter(|receiving| receiving.incoming.is_awaited());
        receiving.map(|receiving| (self.serial, receiving))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(flags: u8, edtl: u32) -> Bhs {
        let mut h = Bhs::new(1);
        h.0[1] = flags;
        h.set_word(20, edtl);
        h
    }

    #[test]
    fn contradictions_are_format_errors() {
        for (flags, edtl, good) in
            [(0x80, 0, true), (0x80, 512, false), (0x40, 512, false), (0x20, 512, true), (0xc0, 8, true)]
        {
            assert_eq!(Command::read(&header(flags, edtl), &[]).is_some(), good, "{flags:02x} {edtl}");
        }
    }

    #[test]
    fn an_extended_cdb_continues_the_header() {
        let mut ahs = vec![0, 17, 1, 0];
        ahs.extend(1..=16);
        let c = Command::read(&header(0x80, 0), &ahs).expect("a command");
        assert_eq!((c.cdb().len(), &c.cdb()[16..]), (32, &(1..=16).collect::<Vec<u8>>()[..]));
        let bidi = [0, 5, 2, 0, 0, 0, 2, 0];
        let both = [&bidi[..], &ahs].concat();
        assert_eq!(Command::read(&header(0x80, 0), &both).expect("a command").cdb().len(), 32);
    }

    #[test]
    fn a_header_segment_that_overruns_is_a_format_error() {
        for ahs in [[0, 0, 1, 0], [0, 17, 1, 0], [255, 255, 1, 0]] {
            assert!(Command::read(&header(0x80, 0), &ahs).is_none());
        }
    }
}
