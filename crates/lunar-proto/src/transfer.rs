//! The data of a write, as the target takes it: unsolicited data, R2Ts and their Data-Out sequences
//! (RFC 7143 sections 4.2.5.2, 11.3.4, 11.7 and 11.8).

use std::ops::Range;

use crate::parameters::Parameters;

/// Pieces of one sequence that may lie apart when DataPDUInOrder is No.
const PIECES: usize = 256;

/// Why the task ends with CHECK CONDITION, ABORTED COMMAND (RFC 7143 section 11.4.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutFailure {
    /// Unsolicited data that was not allowed.
    Unexpected,
    /// More or less data than asked for or announced.
    Amount,
    /// A Data-Out is missing: treated like a digest error (RFC 7143 section 7.9).
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

/// A part of the data of a command, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOutSegment {
    /// Its place in its sequence, from 0 on (DataSN).
    pub data_sn: u32,
    /// Bytes from the start of the command's data.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// The last of its sequence.
    pub is_final: bool,
}

/// What to do with the payload of a Data-Out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutVerdict {
    /// It belongs at this offset of the command's data. Beyond the wanted length it is to be dropped.
    Accept {
        /// Bytes from the start of the command's data.
        offset: u32,
    },
    /// The task has failed; the payload is dropped.
    Discard,
    /// It is refused, and its payload dropped; the task is unharmed.
    Invalid,
}

/// An R2T to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// Below MaxOutstandingR2T and unique among the open R2Ts of the task: makes the Target Transfer Tag.
    pub ttt_index: u16,
    /// R2TSN.
    pub r2t_sn: u32,
    /// Buffer Offset.
    pub offset: u32,
    /// Desired Data Transfer Length.
    pub len: u32,
}

/// A sequence of Data-Outs that is under way.
#[derive(Debug)]
struct DataOutSequence {
    /// None: unsolicited.
    index: Option<u16>,
    start: u32,
    len: u32,
    /// The received bytes, as disjoint ranges in ascending order; one range if data PDUs arrive in order.
    pieces: Vec<(u32, u32)>,
    data_sn: u32,
}

/// The data of one write.
#[derive(Debug)]
pub struct DataOutSequencer {
    /// Bytes that the command is to have.
    wanted: u32,
    /// Bytes asked for or announced so far, from the start.
    asked: u32,
    open: Vec<DataOutSequence>,
    failure: Option<DataOutFailure>,
    r2t_sn: u32,
    max_burst: u32,
    max_open: u16,
    in_order: bool,
    /// No R2T has been sent for bytes from here on.
    allowed: u32,
    /// No R2T crosses a multiple of this.
    piece: u32,
}

impl DataOutSequencer {
    /// The write of a command: its Expected Data Transfer Length, the bytes that its CDB requires, the immediate
    /// data that came along and its F bit. Look at [`DataOutSequencer::failure`] at once: the command may be
    /// wrong from the start.
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
        // Without the F bit more data follows, unless all allowed unsolicited data was received.
        if !is_final && (immediate_len < unsolicited || failure.is_some()) {
            sequencer.open(None, immediate_len, unsolicited.saturating_sub(immediate_len));
            sequencer.asked = unsolicited.max(immediate_len);
        }
        sequencer
    }

    fn open(&mut self, index: Option<u16>, start: u32, len: u32) {
        self.open.push(DataOutSequence { index, start, len, pieces: vec![], data_sn: 0 });
    }

    /// Takes a segment of the transfer with this index (None: unsolicited).
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

    /// Whether [`DataOutSequencer::take`] would accept this Data-Out now, so that its payload can be received in
    /// place.
    pub fn accepts(&self, ttt_index: Option<u16>, segment: DataOutSegment) -> bool {
        let sequence = self.open.iter().find(|s| s.index == ttt_index);
        self.failure.is_none() && sequence.is_some_and(|s| s.check(segment, self.in_order).is_ok())
    }

    /// A Data-Out that belongs to no open sequence.
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

    /// The next R2T to send, if one is due: after the unsolicited data, never more open than
    /// MaxOutstandingR2T.
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

    /// The data are taken in pieces of so many bytes, each when [`DataOutSequencer::allow`] has let it in.
    pub fn in_pieces(&mut self, piece: u32) {
        (self.piece, self.allowed) = (piece.max(1), 0);
    }

    /// R2Ts may cover bytes up to here.
    pub fn allow(&mut self, end: u32) {
        self.allowed = self.allowed.max(end);
    }

    /// Bytes asked for or announced so far, from the start.
    pub fn asked(&self) -> u32 {
        self.asked
    }

    /// Bytes from the start that are all here.
    pub fn arrived(&self) -> u32 {
        self.open.iter().map(|s| s.start).min().unwrap_or(self.asked)
    }

    /// Data were asked for or announced, and are not all here.
    pub fn is_awaited(&self) -> bool {
        !self.open.is_empty()
    }

    /// The device needs no more data (an early error): no further R2T. The response still waits until
    /// [`DataOutSequencer::is_complete`].
    pub fn stop(&mut self) {
        self.wanted = self.wanted.min(self.asked);
    }

    /// All data was received: the command can run, or end with [`DataOutSequencer::failure`].
    pub fn is_complete(&self) -> bool {
        self.open.is_empty() && (self.failure.is_some() || self.asked >= self.wanted)
    }

    /// Why the command cannot run.
    pub fn failure(&self) -> Option<DataOutFailure> {
        self.failure
    }

    /// R2Ts sent so far (the next R2TSN).
    pub fn r2ts(&self) -> u32 {
        self.r2t_sn
    }
}

/// Why a Data-Out is not taken.
enum SegmentFault {
    /// The task fails.
    Task(DataOutFailure),
    /// The PDU alone is wrong.
    Pdu,
}

impl DataOutSequence {
    fn received(&self) -> u32 {
        self.pieces.iter().map(|p| p.1 - p.0).sum()
    }

    /// The bytes that a Data-Out brings, and the pieces that they join.
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

    /// The pieces that a range touches; an error if it overlaps one, or too many lie apart.
    fn neighbours(&self, (from, to): (u32, u32)) -> Result<Range<usize>, SegmentFault> {
        let first = self.pieces.partition_point(|p| p.1 < from);
        let touching = self.pieces[first..].iter().take_while(|p| p.0 <= to).count();
        let range = first..first + touching;
        let overlaps = self.pieces[range.clone()].iter().any(|p| p.0 < to && from < p.1);
        if overlaps || self.pieces.len() - touching >= PIECES { Err(SegmentFault::Pdu) } else { Ok(range) }
    }

    /// Takes a Data-Out and gives its offset.
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
