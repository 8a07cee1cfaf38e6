//! Data-out transfer of a write on the target side: unsolicited data, requests for data, and the data that answer
//! them. It serves every transport of a SCSI target, and knows no PDU.

use std::ops::Range;

/// Maximum number of separate ranges of a sequence while segments arrive out of order.
const PIECES: usize = 256;

/// The rules of a transport for the Data-Out of its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOutRules {
    /// Maximum number of bytes that may arrive with a command; 0: none.
    pub max_immediate: u32,
    /// Maximum number of bytes that may arrive without a request, with the command and after it; 0: none may follow
    /// the command.
    pub max_unsolicited: u32,
    /// Maximum number of bytes of one request.
    pub max_request: u32,
    /// Maximum number of outstanding requests of one command.
    pub max_requests: u16,
    /// The segments of a sequence arrive in order of their offsets.
    pub in_order: bool,
}

/// The reason why a task ends with CHECK CONDITION, ABORTED COMMAND (for iSCSI, RFC 7143 section 11.4.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutFailure {
    /// Unsolicited data that the rules do not allow.
    Unexpected,
    /// More or less data than a request or the command announced.
    Amount,
    /// A segment is missing, which is treated like a digest error (RFC 7143 section 7.9).
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

/// A part of a command's data that arrives at once. The segments that answer one request form a sequence, and so do
/// those that follow the command unrequested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOutSegment {
    /// Position in the sequence, from 0 on. None: the protocol does not number segments.
    pub number: Option<u32>,
    /// Bytes from the start of the command's data.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
    /// The last segment of its sequence.
    pub is_final: bool,
}

/// The treatment of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutVerdict {
    /// Store it at this offset of the command's data. Discard the part beyond the length that the command needs.
    Accept {
        /// Bytes from the start of the command's data.
        offset: u32,
    },
    /// Discard it; the task has failed.
    Discard,
    /// Discard it and reject the segment; the task is not affected.
    Invalid,
}

/// A request for a part of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOutRequest {
    /// Below [`DataOutRules::max_requests`], and unique among the outstanding requests of the command.
    pub index: u16,
    /// Position among all requests of the command, from 0 on.
    pub number: u32,
    /// Bytes from the start of the command's data.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// A sequence of segments in progress.
#[derive(Debug)]
struct DataOutSequence {
    /// `DataOutRequest::index`; `None` for unsolicited data.
    index: Option<u16>,
    start: u32,
    len: u32,
    /// The received bytes, as disjoint ranges in ascending order; one range if segments arrive in order.
    pieces: Vec<(u32, u32)>,
    /// Number of the next segment.
    next: u32,
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
    /// Number of requests so far.
    requests: u32,
    max_request: u32,
    max_requests: u16,
    in_order: bool,
    /// Requests cover only bytes before this offset.
    allowed: u32,
    /// No request crosses a multiple of this number of bytes.
    piece: u32,
}

impl DataOutSequencer {
    /// The transfer of a command. The initiator offers `expected` bytes, the CDB needs `wanted`, and `immediate_len`
    /// arrived with the command. `has_unsolicited`: data follow without a request. Check
    /// [`DataOutSequencer::failure`] at once: the command itself may violate the rules.
    pub fn new(
        expected: u32,
        wanted: u32,
        immediate_len: u32,
        has_unsolicited: bool,
        rules: &DataOutRules,
    ) -> Self {
        let unsolicited = rules.max_unsolicited.min(expected);
        let is_unexpected = (immediate_len > 0 && rules.max_immediate == 0)
            || (has_unsolicited && rules.max_unsolicited == 0);
        let failure = if is_unexpected {
            Some(DataOutFailure::Unexpected)
        } else if immediate_len > rules.max_immediate.min(expected) {
            Some(DataOutFailure::Amount)
        } else {
            None
        };
        let mut sequencer = DataOutSequencer {
            wanted: wanted.min(expected),
            asked: immediate_len,
            open: vec![],
            failure,
            requests: 0,
            max_request: rules.max_request.max(1),
            max_requests: rules.max_requests.max(1),
            in_order: rules.in_order,
            allowed: u32::MAX,
            piece: u32::MAX,
        };
        // More data follow, unless all allowed unsolicited data were received.
        if has_unsolicited && (immediate_len < unsolicited || failure.is_some()) {
            sequencer.open(None, immediate_len, unsolicited.saturating_sub(immediate_len));
            sequencer.asked = unsolicited.max(immediate_len);
        }
        sequencer
    }

    fn open(&mut self, index: Option<u16>, start: u32, len: u32) {
        self.open.push(DataOutSequence { index, start, len, pieces: vec![], next: 0 });
    }

    /// Processes a segment of the request with this index; `None` for unsolicited data.
    pub fn take(&mut self, index: Option<u16>, segment: DataOutSegment) -> DataOutVerdict {
        let Some(at) = self.open.iter().position(|s| s.index == index) else {
            return self.stray(index);
        };
        let taken = match self.failure {
            Some(_) => None,
            None => Some(self.open[at].take(segment, self.in_order)),
        };
        if let Some(Err(SegmentFault::Segment)) = taken {
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

    /// Whether [`DataOutSequencer::take`] would accept this segment now, so that its bytes can be received into their
    /// final buffer.
    pub fn accepts(&self, index: Option<u16>, segment: DataOutSegment) -> bool {
        let sequence = self.open.iter().find(|s| s.index == index);
        self.failure.is_none() && sequence.is_some_and(|s| s.check(segment, self.in_order).is_ok())
    }

    /// The verdict for a segment that belongs to no open sequence.
    fn stray(&mut self, index: Option<u16>) -> DataOutVerdict {
        match (index, self.failure) {
            (Some(_), _) => DataOutVerdict::Invalid,
            (None, Some(_)) => DataOutVerdict::Discard,
            (None, None) => self.fail(DataOutFailure::Unexpected),
        }
    }

    fn fail(&mut self, failure: DataOutFailure) -> DataOutVerdict {
        self.failure = Some(failure);
        DataOutVerdict::Discard
    }

    /// The next request to send, if one is due. Requests follow the unsolicited data, and at most
    /// [`DataOutRules::max_requests`] are outstanding.
    pub fn next_request(&mut self) -> Option<DataOutRequest> {
        let announced = self.open.iter().any(|s| s.index.is_none());
        let end = self.wanted.min(self.allowed);
        if announced || self.failure.is_some() || self.asked >= end {
            return None;
        }
        let index = (0..self.max_requests).find(|i| self.open.iter().all(|s| s.index != Some(*i)))?;
        let to_piece_end = self.piece - self.asked % self.piece;
        let (offset, len) = (self.asked, self.max_request.min(end - self.asked).min(to_piece_end));
        let request = DataOutRequest { index, number: self.requests, offset, len };
        self.open(Some(index), offset, len);
        self.requests = self.requests.wrapping_add(1);
        self.asked += len;
        Some(request)
    }

    /// Splits the transfer into chunks of `piece` bytes. A chunk is requested after [`DataOutSequencer::allow`]
    /// permits it.
    pub fn in_pieces(&mut self, piece: u32) {
        (self.piece, self.allowed) = (piece.max(1), 0);
    }

    /// Permits requests for bytes before `end`.
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

    /// Makes no further request, because an early error ended the command. The response still waits for
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

    /// Number of requests so far.
    pub fn requests(&self) -> u32 {
        self.requests
    }
}

/// The reason why a segment is not accepted.
enum SegmentFault {
    /// The task fails.
    Task(DataOutFailure),
    /// Only the segment is invalid.
    Segment,
}

impl DataOutSequence {
    fn received(&self) -> u32 {
        self.pieces.iter().map(|p| p.1 - p.0).sum()
    }

    /// Checks a segment; returns its range of bytes, and the received ranges that it touches.
    fn check(
        &self,
        segment: DataOutSegment,
        in_order: bool,
    ) -> Result<((u32, u32), Range<usize>), SegmentFault> {
        let DataOutSegment { number, offset, len, is_final } = segment;
        let end = self.start + self.len;
        if number.is_some_and(|number| number != self.next) {
            return Err(SegmentFault::Task(DataOutFailure::Missing));
        }
        let next = self.pieces.last().map_or(self.start, |p| p.1);
        if offset < self.start || offset > end || (in_order && offset != next) {
            return Err(SegmentFault::Segment);
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
        if overlaps || self.pieces.len() - touching >= PIECES {
            Err(SegmentFault::Segment)
        } else {
            Ok(range)
        }
    }

    /// Records a segment as received, and returns its offset.
    fn take(&mut self, segment: DataOutSegment, in_order: bool) -> Result<u32, SegmentFault> {
        let ((from, to), joined) = self.check(segment, in_order)?;
        self.next = self.next.wrapping_add(1);
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
