//! Data-out transfer of a write on the target side: unsolicited data, R2Ts and their Data-Out sequences (RFC 7143
//! sections 4.2.5.2, 11.3.4, 11.7 and 11.8).

use std::ops::Range;

use crate::parameters::Parameters;

/// Maximum number of separate ranges of a sequence while data PDUs arrive out of order (DataPDUInOrder=No).
const PIECES: usize = 256;

/// The reason why a task ends with CHECK CONDITION, ABORTED COMMAND (RFC 7143 section 11.4.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutFailure {
    /// Unsolicited data that the negotiated values do not allow.
    Unexpected,
    /// More or less data than an R2T requested or the F bit announced.
    Amount,
    /// A Data-Out is missing, which is treated like a digest error (RFC 7143 section 7.9).
    Missing,
}

impl DataOutFailure {
    /// Additional sense code and qualifier; the sense key is ABORTED COMMAND.
    pub fn additional_sense(self) -> (u8, u8) {
        match self {
            Self::Unexpected => (0x0c, 0x0c),
            Self::Amount => (0x0c, 0x0d),
            Self::Missing => (0x47, 0x05),
        }
    }
}

/// The header fields of a Data-Out, or of the immediate data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOutSegment {
    /// DataSN: the position in the sequence, from 0 on.
    pub data_sn: u32,
    /// Buffer Offset: bytes from the start of the command's data.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
    /// F: the last PDU of its sequence.
    pub is_final: bool,
}

/// The treatment of a Data-Out's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutVerdict {
    /// Store it at this offset of the command's data. Discard the part beyond the length that the command needs.
    Accept {
        /// Bytes from the start of the command's data.
        offset: u32,
    },
    /// Discard it; the task has failed.
    Discard,
    /// Discard it and reject the PDU; the task is not affected.
    Invalid,
}

/// An R2T to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// Part of the Target Transfer Tag: below MaxOutstandingR2T, and unique among the outstanding R2Ts of the task.
    pub ttt_index: u16,
    /// R2TSN.
    pub r2t_sn: u32,
    /// Buffer Offset in bytes.
    pub offset: u32,
    /// Desired Data Transfer Length in bytes.
    pub len: u32,
}

/// A Data-Out sequence in progress.
#[derive(Debug)]
struct DataOutSequence {
    /// `R2t::ttt_index`; `None` for unsolicited data.
    index: Option<u16>,
    start: u32,
    len: u32,
    /// The received bytes, as disjoint ranges in ascending order; one range if data PDUs arrive in order.
    pieces: Vec<(u32, u32)>,
    data_sn: u32,
}

/// The data-out transfer of one write.
#[derive(Debug)]
pub struct DataOutSequencer {
    /// Bytes that the command needs.
    wanted: u32,
    /// End of the data requested or announced so far, in bytes from the start.
    asked: u32,
    open: Vec<DataOutSequence>,
    failure: Option<DataOutFailure>,
    r2t_sn: u32,
    max_burst: u32,
    max_open: u16,
    in_order: bool,
    /// R2Ts cover only bytes before this offset.
    allowed: u32,
    /// No R2T crosses a multiple of this number of bytes.
    piece: u32,
}

impl DataOutSequencer {
    /// The transfer of a command with its Expected Data Transfer Length, the length that its CDB requires, and the
    /// length of its immediate data (all in bytes) and its F bit. Check [`DataOutSequencer::failure`] at once: the
    /// command itself may violate the negotiated values.
    pub fn new(edtl: u32, wanted: u32, immediate_len: u32, is_final: bool, p: &Parameters) -> Self {
        let unsolicited = p.first_burst_length.min(edtl);
        let failure = if (immediate_len > 0 && !p.immediate_data) || (!is_final && p.initial_r2t) {
            Some(DataOutFailure::Unexpected)
        } else if immediate_len > unsolicited {
            Some(DataOutFailure::Amount)
        } else {
            None
        };
        let mut sequencer = DataOutSequencer {
            wanted: wanted.min(edtl),
            asked: immediate_len,
            open: vec![],
            failure,
            r2t_sn: 0,
            max_burst: p.max_burst_length.max(1),
            max_open: p.max_outstanding_r2t.max(1),
            in_order: p.data_pdu_in_order,
            allowed: u32::MAX,
            piece: u32::MAX,
        };
        // Without the F bit more data follow, unless all allowed unsolicited data were received.
        if !is_final && (immediate_len < unsolicited || failure.is_some()) {
            sequencer.open(None, immediate_len, unsolicited.saturating_sub(immediate_len));
            sequencer.asked = unsolicited.max(immediate_len);
        }
        sequencer
    }

    fn open(&mut self, index: Option<u16>, start: u32, len: u32) {
        self.open.push(DataOutSequence { index, start, len, pieces: vec![], data_sn: 0 });
    }

    /// Processes a Data-Out of the sequence with this index; `None` for unsolicited data.
    pub fn take(&mut self, ttt_index: Option<u16>, segment: DataOutSegment) -> DataOutVerdict {
        let Some(at) = self.open.iter().position(|s| s.index == ttt_index) else {
            return self.stray(ttt_index);
        };
        let taken = match self.failure {
            Some(_) => None,
            None => Some(self.open[at].take(segment, self.in_order)),
        };
        if let Some(Err(SegmentFault::Pdu)) = taken {
            return DataOutVerdict::Invalid;
        }
        if segment.is_final {
            self.open.swap_remove(at);
        }
        match taken {
            Some(Ok(offset)) => DataOutVerdict::Accept { offset },
            Some(Err(SegmentFault::Task(failure))) => self.fail(failure),
            _ => DataOutVerdict::Discard,
        }
    }

    /// Whether [`DataOutSequencer::take`] would accept this Data-Out now, so that its payload can be received into
    /// its final buffer.
    pub fn accepts(&self, ttt_index: Option<u16>, segment: DataOutSegment) -> bool {
        let sequence = self.open.iter().find(|s| s.index == ttt_index);
        self.failure.is_none() && sequence.is_some_and(|s| s.check(segment, self.in_order).is_ok())
    }

    /// The verdict for a Data-Out that belongs to no open sequence.
    fn stray(&mut self, ttt_index: Option<u16>) -> DataOutVerdict {
        match (ttt_index, self.failure) {
            (Some(_), _) => DataOutVerdict::Invalid,
            (None, Some(_)) => DataOutVerdict::Discard,
            (None, None) => self.fail(DataOutFailure::Unexpected),
        }
    }

    fn fail(&mut self, failure: DataOutFailure) -> DataOutVerdict {
        self.failure = Some(failure);
        DataOutVerdict::Discard
    }

    /// The next R2T to send, if one is due. R2Ts follow the unsolicited data, and at most MaxOutstandingR2T are
    /// outstanding.
    pub fn next_r2t(&mut self) -> Option<R2t> {
        let announced = self.open.iter().any(|s| s.index.is_none());
        let end = self.wanted.min(self.allowed);
        if announced || self.failure.is_some() || self.asked >= end {
            return None;
        }
        let ttt_index = (0..self.max_open).find(|i| self.open.iter().all(|s| s.index != Some(*i)))?;
        let to_piece_end = self.piece - self.asked % self.piece;
        let (offset, len) = (self.asked, self.max_burst.min(end - self.asked).min(to_piece_end));
        let r2t = R2t { ttt_index, r2t_sn: self.r2t_sn, offset, len };
        self.open(Some(ttt_index), offset, len);
        self.r2t_sn = self.r2t_sn.wrapping_add(1);
        self.asked += len;
        Some(r2t)
    }

    /// Splits the transfer into chunks of `piece` bytes. R2Ts are sent for a chunk after [`DataOutSequencer::allow`]
    /// permits it.
    pub fn in_pieces(&mut self, piece: u32) {
        (self.piece, self.allowed) = (piece.max(1), 0);
    }

    /// Permits R2Ts for bytes before `end`.
    pub fn allow(&mut self, end: u32) {
        self.allowed = self.allowed.max(end);
    }

    /// End of the data requested or announced so far, in bytes from the start.
    pub fn asked(&self) -> u32 {
        self.asked
    }

    /// Bytes from the start that were received without a gap.
    pub fn arrived(&self) -> u32 {
        self.open.iter().map(|s| s.start).min().unwrap_or(self.asked)
    }

    /// Whether requested or announced data are outstanding.
    pub fn is_awaited(&self) -> bool {
        !self.open.is_empty()
    }

    /// Sends no further R2T, because an early error ended the command. The response still waits for
    /// [`DataOutSequencer::is_complete`].
    pub fn stop(&mut self) {
        self.wanted = self.wanted.min(self.asked);
    }

    /// Whether all data were received: the command can run, or end with [`DataOutSequencer::failure`].
    pub fn is_complete(&self) -> bool {
        self.open.is_empty() && (self.failure.is_some() || self.asked >= self.wanted)
    }

    /// The reason why the command cannot run.
    pub fn failure(&self) -> Option<DataOutFailure> {
        self.failure
    }

    /// Number of R2Ts sent, which is the next R2TSN.
    pub fn r2ts(&self) -> u32 {
        self.r2t_sn
    }
}

/// The reason why a Data-Out is not accepted.
enum SegmentFault {
    /// The task fails.
    Task(DataOutFailure),
    /// Only the PDU is invalid.
    Pdu,
}

impl DataOutSequence {
    fn received(&self) -> u32 {
        self.pieces.iter().map(|p| p.1 - p.0).sum()
    }

    /// Checks a Data-Out; returns its range of bytes, and the received ranges that it touches.
    fn check(
        &self,
        segment: DataOutSegment,
        in_order: bool,
    ) -> Result<((u32, u32), Range<usize>), SegmentFault> {
        let DataOutSegment { data_sn, offset, len, is_final } = segment;
        let end = self.start + self.len;
        if data_sn != self.data_sn {
            return Err(SegmentFault::Task(DataOutFailure::Missing));
        }
        let next = self.pieces.last().map_or(self.start, |p| p.1);
        if offset < self.start || offset > end || (in_order && offset != next) {
            return Err(SegmentFault::Pdu);
        }
        if len > end - offset || (is_final && self.received() + len < self.len) {
            return Err(SegmentFault::Task(DataOutFailure::Amount));
        }
        let bytes = (offset, offset + len);
        Ok((bytes, self.neighbours(bytes)?))
    }

    /// The received ranges that a range touches. Fails if it overlaps one, or if too many are separate.
    fn neighbours(&self, (from, to): (u32, u32)) -> Result<Range<usize>, SegmentFault> {
        let first = self.pieces.partition_point(|p| p.1 < from);
        let touching = self.pieces[first..].iter().take_while(|p| p.0 <= to).count();
        let range = first..first + touching;
        let overlaps = self.pieces[range.clone()].iter().any(|p| p.0 < to && from < p.1);
        if overlaps || self.pieces.len() - touching >= PIECES { Err(SegmentFault::Pdu) } else { Ok(range) }
    }

    /// Stores a Data-Out as received, and returns its offset.
    fn take(&mut self, segment: DataOutSegment, in_order: bool) -> Result<u32, SegmentFault> {
        let ((from, to), joined) = self.check(segment, in_order)?;
        self.data_sn = self.data_sn.wrapping_add(1);
        if from < to {
            let group = &self.pieces[joined.clone()];
            let whole =
                (group.first().map_or(from, |p| p.0.min(from)), group.last().map_or(to, |p| p.1.max(to)));
            self.pieces.splice(joined, [whole]);
        }
        Ok(from)
    }
}

#[cfg(test)]
mod tests;
