//! The Data-Out of a task, while it arrives.

use super::data_out_buffers::{CHUNK_LEN, DataOutBuffers};
use super::data_out_requests::{DataOutRequests, TransferBase};
use super::transfer::DataRequest;
use lunar_proto::transfer::{self, DataOutRequest, DataOutSegment, DataOutSequencer, DataOutVerdict};
use lunar_runtime::{Buf, Pool, ReceivedData};
use lunar_scsi::CommandError;
use lunar_wire::scsi::{Sense, Status};

/// Number of checks within the timeout for data. Each check sees whether data have arrived since the previous one.
pub const CHECKS_PER_TIMEOUT: u32 = 6;
/// Number of timeouts for which data of a command may be missing, plus one for each [`BYTES_PER_TIMEOUT`] of data
/// that the session awaited at the first check. It bounds sessions that send a few bytes now and then.
const MAX_TIMEOUTS: u32 = 4;
const BYTES_PER_TIMEOUT: u64 = 1 << 20;

fn sense_of(failure: transfer::DataOutFailure) -> Sense {
    let (asc, ascq) = failure.additional_sense();
    Sense::new(0x0b, asc, ascq)
}

/// The Data-Out of a task, while it arrives.
pub struct DataOutTransfer {
    /// The bytes that have arrived, and the bytes to request next.
    sequencer: DataOutSequencer,
    /// The buffers for the data.
    buffers: DataOutBuffers,
    /// Bytes that the command needs.
    wanted: u32,
    /// Its transfer tags.
    tags: TransferBase,
    /// Whether data arrived damaged.
    is_damaged: bool,
    /// Whether the pool had no room when the data arrived.
    is_out_of_memory: bool,
    /// Whether data have arrived since the last check.
    has_progressed: bool,
    /// Number of consecutive checks without new data.
    idle_checks: u32,
    /// Number of checks at which data were missing.
    checks: u32,
    /// Number of checks after which the data are overdue; 0: not known yet.
    max_checks: u32,
    /// The number of this transfer's latest request, among all requests of the session.
    last_request: u64,
    /// Whether the data arrive chunk by chunk.
    is_chunked: bool,
    /// Whether the command was launched; it then ends this transfer.
    is_launched: bool,
    /// Whether the command ends without the requested data.
    is_abandoned: bool,
}

/// The data of a command at the start of its transfer.
pub struct FirstData {
    /// Bytes that the command needs.
    pub wanted: u32,
    /// The buffer for them, or for the first chunk. None: the data are dropped.
    pub buf: Option<Buf>,
    /// Whether the data arrive chunk by chunk.
    pub is_chunked: bool,
}

impl DataOutTransfer {
    /// A transfer that begins with the data that arrived with the command.
    pub fn new(mut sequencer: DataOutSequencer, first: FirstData, requests: &mut DataOutRequests) -> Self {
        let FirstData { wanted, buf, is_chunked } = first;
        let buffers = DataOutBuffers::first(buf);
        if is_chunked {
            sequencer.in_pieces(CHUNK_LEN);
            sequencer.allow(buffers.end());
        }
        DataOutTransfer {
            sequencer,
            buffers,
            wanted,
            tags: requests.next_base(),
            is_damaged: false,
            is_out_of_memory: false,
            has_progressed: true,
            idle_checks: 0,
            checks: 0,
            max_checks: 0,
            last_request: requests.latest_number(),
            is_chunked,
            is_launched: false,
            is_abandoned: false,
        }
    }

    /// The next request for data that is due.
    pub fn next_request(&mut self, requests: &mut DataOutRequests) -> Option<DataRequest> {
        let DataOutRequest { index, number, offset, len } = self.sequencer.next_request()?;
        self.last_request = requests.next_number();
        Some(DataRequest { transfer_tag: self.tags.tag(index), number, offset, len })
    }

    /// Whether a transfer tag belongs to this task.
    pub fn has_transfer(&self, transfer: u32) -> bool {
        self.tags.index_of(Some(transfer)).is_some()
    }

    /// The buffer, and the offset in it, where a segment belongs; None if it is not awaited. `is_of_lun`: it has the
    /// LUN field of the command, which unsolicited data need not have.
    pub fn placement(
        &mut self,
        transfer: Option<u32>,
        is_of_lun: bool,
        segment: DataOutSegment,
        pool: &Pool,
    ) -> Option<(Buf, usize)> {
        let index = self.tags.index_of(transfer).filter(|index| index.is_none() || is_of_lun)?;
        if !self.sequencer.accepts(index, segment) || !self.claim() {
            return None;
        }
        self.grow(pool);
        self.buffers.take_range(segment.offset, segment.len)
    }

    /// Takes back the buffer of [`DataOutTransfer::placement`] with a segment. False: the segment belongs to an
    /// earlier task that ended while it was being read, and whose tag was reused.
    pub fn take_placed(&mut self, transfer: Option<u32>, segment: DataOutSegment, buf: Buf) -> bool {
        let Some(index) = self.tags.index_of(transfer) else { return false };
        self.buffers.put_back(segment.offset, buf);
        self.sequencer.take(index, segment);
        self.has_progressed |= segment.len > 0;
        true
    }

    /// Copies a segment. False: it is invalid.
    pub fn take(
        &mut self,
        transfer: Option<u32>,
        is_of_lun: bool,
        segment: DataOutSegment,
        data: &ReceivedData<'_>,
        pool: &Pool,
    ) -> bool {
        let index = self.tags.index_of(transfer).filter(|index| index.is_none() || is_of_lun);
        let Some(index) = index else { return false };
        let verdict = self.sequencer.take(index, segment);
        // A segment without data is no progress: sending it costs the initiator nothing.
        self.has_progressed |= segment.len > 0 && verdict != DataOutVerdict::Invalid;
        match verdict {
            DataOutVerdict::Accept { offset } => {
                self.claim();
                self.grow(pool);
                self.buffers.copy(offset, data.bytes());
                true
            }
            DataOutVerdict::Discard => true,
            DataOutVerdict::Invalid => false,
        }
    }

    /// Records that data arrived damaged. No further chunk is requested.
    pub fn note_damage(&mut self) {
        self.is_damaged = true;
        if self.is_chunked {
            self.sequencer.stop();
        }
    }

    /// Counts the buffer against the pool when the first data arrive. Without room, all data of the command are
    /// dropped.
    fn claim(&mut self) -> bool {
        if !self.buffers.claim() {
            self.buffers = DataOutBuffers::default();
            self.is_out_of_memory = true;
            self.sequencer.stop();
        }
        !self.is_out_of_memory
    }

    /// The failure that keeps the command from running or continuing.
    pub fn failure(&self) -> Option<CommandError> {
        match (self.is_damaged, self.sequencer.failure()) {
            (true, _) => Some(Sense::CRC_ERROR.into()),
            (false, Some(failure)) => Some(sense_of(failure).into()),
            (false, None) => self.is_out_of_memory.then(|| Status::TaskSetFull.into()),
        }
    }

    /// Whether no more data are to arrive.
    pub fn is_complete(&self) -> bool {
        self.sequencer.is_complete()
    }

    /// Whether the initiator still has to send data.
    pub fn is_awaited(&self) -> bool {
        self.sequencer.is_awaited()
    }

    /// The buffer with all data of a command that is not chunked.
    pub fn into_buf(mut self) -> Option<Buf> {
        self.buffers.take()
    }

    /// Whether the command was launched; it then ends this transfer.
    pub fn is_launched(&self) -> bool {
        self.is_launched
    }

    /// Launches the command if its data arrive chunk by chunk, and the first chunk has arrived.
    pub fn launch(&mut self) -> bool {
        self.is_launched |= self.is_chunked && self.failure().is_none() && self.has_chunk();
        self.is_launched
    }

    /// Stops the transfer of an aborted task. Returns whether the task ends now. With `wait` it ends when all
    /// requested data have arrived. A launched task ends on its own.
    pub fn abort(&mut self, wait: bool) -> bool {
        self.sequencer.stop();
        self.is_abandoned |= !wait;
        !self.is_launched && (!wait || self.sequencer.is_complete())
    }

    /// Number of bytes that have not arrived.
    pub fn missing_bytes(&self) -> u32 {
        self.wanted.saturating_sub(self.sequencer.arrived())
    }

    /// Whether data have been missing for too long in total. `missing_bytes`: bytes that the session awaits.
    /// `is_full`: the target does not receive at the moment, so that the lack of data is no delay.
    pub fn is_slow(&mut self, missing_bytes: u64, is_full: bool) -> bool {
        if self.max_checks == 0 {
            let times = u64::from(MAX_TIMEOUTS) + missing_bytes / BYTES_PER_TIMEOUT;
            self.max_checks = u32::try_from(times).unwrap_or(u32::MAX).saturating_mul(CHECKS_PER_TIMEOUT);
        }
        self.has_progressed |= is_full;
        self.checks += u32::from(!is_full);
        self.checks >= self.max_checks
    }
}

/// Chunks of long writes.
impl DataOutTransfer {
    /// Whether the next chunk has arrived, or never will.
    pub fn has_chunk(&self) -> bool {
        self.failure().is_some() || self.buffers.is_filled(self.sequencer.arrived())
    }

    /// Whether the waiting task can continue.
    pub fn has_news(&self) -> bool {
        self.has_chunk() || self.sequencer.is_complete()
    }

    /// Takes the chunk that has arrived.
    pub fn take_chunk(&mut self) -> Result<Buf, CommandError> {
        match self.failure() {
            Some(failure) => Err(failure),
            None => self.buffers.take().ok_or(Sense::INTERNAL_FAILURE.into()),
        }
    }

    /// Reuses the buffer of a written chunk for a later one.
    pub fn reuse(&mut self, buf: Buf, pool: &Pool) {
        self.buffers.reuse(buf, self.wanted);
        self.grow(pool);
    }

    /// Takes one more buffer if this command has too few and the pool has one.
    pub fn grow(&mut self, pool: &Pool) {
        if self.is_chunked {
            self.buffers.grow(pool, self.wanted);
            self.sequencer.allow(self.buffers.end());
        }
    }

    /// Discards the data that no chunk needs, and requests no more.
    pub fn discard_rest(&mut self) {
        self.sequencer.stop();
        self.buffers = DataOutBuffers::default();
    }

    /// Whether the task may end: the requested data have arrived, or the session no longer waits for them.
    pub fn may_end(&self) -> bool {
        self.is_abandoned || self.sequencer.is_complete()
    }
}

/// Checks the transfers that wait for data, [`CHECKS_PER_TIMEOUT`] times within the timeout. Returns whether one is
/// overdue.
///
/// Data arrive in the order of the requests: a transfer that waits behind one that makes progress is not overdue. A
/// transfer with a newer request has made progress recently.
pub fn is_late(mut waiting: Vec<(u64, &mut DataOutTransfer)>) -> bool {
    waiting.sort_unstable_by_key(|(serial, receiving)| (receiving.last_request, *serial));
    let (mut moves, mut late) = (false, false);
    for (_, receiving) in waiting {
        moves |= std::mem::take(&mut receiving.has_progressed);
        receiving.idle_checks = if moves { 0 } else { receiving.idle_checks + 1 };
        late |= receiving.idle_checks >= CHECKS_PER_TIMEOUT;
    }
    late
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_proto::transfer::DataOutRules;

    const RULES: DataOutRules = DataOutRules {
        max_immediate: 0,
        max_unsolicited: 0,
        max_request: 4096,
        max_requests: 1,
        in_order: true,
    };

    fn receiving() -> DataOutTransfer {
        let sequencer = DataOutSequencer::new(4096, 4096, 0, false, &RULES);
        DataOutTransfer {
            sequencer,
            buffers: DataOutBuffers::default(),
            wanted: 4096,
            tags: TransferBase::default(),
            is_damaged: false,
            is_out_of_memory: false,
            has_progressed: true,
            idle_checks: 0,
            checks: 0,
            max_checks: 0,
            last_request: 0,
            is_chunked: false,
            is_launched: false,
            is_abandoned: false,
        }
    }

    /// Whether data are overdue in one of two transfers. The older one was announced first.
    fn look([older, younger]: &mut [DataOutTransfer; 2]) -> bool {
        is_late(vec![(2, younger), (1, older)])
    }

    #[test]
    fn data_out_without_progress_is_overdue() {
        let mut waiting = [receiving(), receiving()];
        for _ in 0..CHECKS_PER_TIMEOUT {
            assert!(!look(&mut waiting));
        }
        // Progress of the younger transfer does not excuse the older one.
        waiting[1].has_progressed = true;
        assert!(look(&mut waiting));
        assert_eq!([waiting[0].idle_checks, waiting[1].idle_checks], [CHECKS_PER_TIMEOUT, 0]);
    }

    /// A few bytes now and then do not excuse a transfer forever. A target that does not receive does.
    #[test]
    fn data_out_that_drips_is_overdue() {
        let mut waiting = receiving();
        for _ in 1..MAX_TIMEOUTS * CHECKS_PER_TIMEOUT {
            waiting.has_progressed = true;
            assert!(!waiting.is_slow(4096, false) && !waiting.is_slow(4096, true));
        }
        assert!(waiting.is_slow(4096, false));
        let mut much = receiving();
        let checks = (1..).find(|_| much.is_slow(3 << 20, false));
        assert_eq!(checks, Some((MAX_TIMEOUTS + 3) * CHECKS_PER_TIMEOUT));
    }

    #[test]
    fn data_out_behind_progress_is_not_overdue() {
        let mut waiting = [receiving(), receiving()];
        for _ in 0..=2 * CHECKS_PER_TIMEOUT {
            waiting[0].has_progressed = true;
            assert!(!look(&mut waiting));
        }
    }

    /// The initiator sends data in the order of the requests, across writes.
    #[test]
    fn older_write_waits_for_earlier_request() {
        let mut waiting = [receiving(), receiving()];
        (waiting[0].last_request, waiting[1].last_request) = (9, 5);
        for _ in 0..=2 * CHECKS_PER_TIMEOUT {
            waiting[1].has_progressed = true;
            assert!(!look(&mut waiting));
        }
        waiting[0].has_progressed = true;
        assert!(!look(&mut waiting));
        assert_eq!(waiting[1].idle_checks, 1);
    }
}
