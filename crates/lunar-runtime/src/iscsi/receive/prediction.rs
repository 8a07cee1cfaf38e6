//! Answers that are foreseen. Most targets answer in the order in which they were asked, so one receive can bring many
//! answers with their data straight into the buffers of their commands, and only the headers elsewhere. Where
//! something else comes than was foreseen, what came is put together again as it was sent, and read as if nothing
//! had been foreseen.

use super::{
    LARGE, PduData, PduHandler, PduReceiver, ReceiveError, ReceiveStatus, ReceiveStep, ReceivedPdu,
    SegmentReceive,
};
use crate::Buf;
use crate::iscsi::out::Digests;
use lunar_wire::iscsi::{BHS_LEN, Bhs, opcode};
use std::io::{self, IoSliceMut};

/// Answers that one receive foresees, after one that brought few and at most.
const FEW: usize = 4;
const MANY: usize = 32;
/// Bytes of their data at most.
const DATA: usize = 256 << 10;
/// Receives that predict nothing after one that foresaw wrongly: at first, and after many that did.
const PAUSE: u32 = 16;
const LONG_PAUSE: u32 = 4096;

/// An answer that may come next: one PDU, with all data of its command or none.
#[derive(Debug)]
pub struct PredictedPdu {
    /// The Initiator Task Tag of its command.
    pub tag: u32,
    /// What its data fill from end to end; None: it has no data.
    pub buf: Option<Buf>,
}

impl PredictedPdu {
    fn len(&self) -> usize {
        self.buf.as_ref().map_or(0, |buf| buf.len())
    }

    /// Whether this is its header.
    fn is(&self, header: &Bhs) -> bool {
        let same_size = header.ahs_len() == 0 && header.data_len() == self.len();
        let same_kind = match self.buf {
            Some(_) => header.opcode() == opcode::DATA_IN && header.buffer_offset() == 0,
            None => header.opcode() == opcode::SCSI_RESPONSE,
        };
        same_size && same_kind && header.itt() == self.tag
    }
}

/// What comes next, as far as the sink knows and one receive has room for it.
#[derive(Debug)]
pub struct ReceivePrediction {
    answers: Vec<PredictedPdu>,
    /// Bytes of their data.
    data: usize,
    /// Answers at most.
    most: usize,
    /// Receives until the sink is asked again.
    pause: u32,
    next_pause: u32,
}

impl Default for ReceivePrediction {
    fn default() -> Self {
        ReceivePrediction { answers: Vec::new(), data: 0, most: FEW, pause: 0, next_pause: PAUSE }
    }
}

impl ReceivePrediction {
    /// Whether an answer with so many bytes of data still fits.
    #[inline]
    pub fn has_room(&self, data: usize) -> bool {
        self.answers.len() < self.most && self.data + data <= DATA
    }

    /// Adds the next answer.
    #[inline]
    pub fn push(&mut self, answer: PredictedPdu) {
        self.data += answer.len();
        self.answers.push(answer);
    }

    /// Asks the sink. False: it knows nothing that would be worth it.
    pub(super) fn look(&mut self, sink: &mut impl PduHandler) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        self.data = 0;
        sink.predict(self);
        if self.data == 0 {
            self.answers.clear();
        }
        self.data > 0
    }

    /// Learns from a receive that brought so many.
    fn learn(&mut self, right: bool, came: usize) {
        if right {
            self.most = (2 * came).clamp(FEW, MANY);
            self.next_pause = PAUSE;
        } else {
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(LONG_PAUSE);
        }
    }
}

/// The places of what comes: data in their buffers, all that lies between them one behind the other in `rest`.
fn lay_out<'a>(
    answers: &'a mut [PredictedPdu],
    mut rest: &'a mut [u8],
    digests: Digests,
) -> Vec<IoSliceMut<'a>> {
    let mut parts = Vec::with_capacity(2 * answers.len() + 1);
    let mut between = 0;
    for answer in answers {
        between += BHS_LEN + digests.header_len();
        let Some(buf) = &mut answer.buf else { continue };
        let (lead, others) = rest.split_at_mut(between);
        (between, rest) = (digests.tail_len(buf.len()), others);
        parts.push(IoSliceMut::new(lead));
        parts.push(IoSliceMut::new(buf));
    }
    parts.push(IoSliceMut::new(rest));
    parts
}

/// Puts bytes into the first of these places; where the next ones belong.
pub(super) fn scatter<'a, 'b>(
    mut parts: &'a mut [IoSliceMut<'b>],
    mut bytes: &[u8],
) -> &'a mut [IoSliceMut<'b>] {
    while let Some(part) = parts.first_mut().filter(|_| !bytes.is_empty()) {
        let n = part.len().min(bytes.len());
        part[..n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        IoSliceMut::advance_slices(&mut parts, n);
    }
    parts
}

/// What came, as it was sent: `len` bytes that begin with the first of these answers, and with `between` where they
/// are no data.
fn as_sent(answers: &[PredictedPdu], mut between: &[u8], len: usize, digests: Digests) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    let mut take = |from: &[u8], most: usize| {
        let n = most.min(len - bytes.len());
        bytes.extend_from_slice(&from[..n]);
        n
    };
    for answer in answers {
        between = &between[take(between, BHS_LEN + digests.header_len())..];
        if let Some(buf) = &answer.buf {
            take(buf, buf.len());
            between = &between[take(between, digests.tail_len(buf.len()))..];
        }
    }
    take(between, between.len());
    bytes
}

impl PduReceiver {
    /// One receive that brings what was foreseen, and more behind it.
    pub(super) fn receive_foreseen(
        &mut self,
        buffer: &mut [u8],
        sink: &mut impl PduHandler,
        source: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<Option<usize>>,
    ) -> Result<Option<ReceiveStep>, ReceiveError> {
        let mut answers = std::mem::take(&mut self.prediction.answers);
        let mut parts = lay_out(&mut answers, buffer, self.digests);
        let empty = scatter(&mut parts, &self.partial);
        let room = empty.iter().map(|part| part.len()).sum();
        let step = match source(empty) {
            Ok(None) => Ok(None),
            Ok(Some(0)) => {
                Ok(Some(ReceiveStep { got: 0, room, received: ReceiveStatus::End, ends_turn: true }))
            }
            Ok(Some(got)) => {
                let len = self.partial.len() + got;
                self.partial.clear();
                let received = self.take_foreseen(&mut answers, buffer, len, sink);
                received.map(|received| Some(ReceiveStep { got, room, received, ends_turn: false }))
            }
            Err(e) => Err(e.into()),
        };
        give_back(&mut answers, sink);
        self.prediction.answers = answers;
        step
    }

    /// Hands over the `len` bytes that came.
    fn take_foreseen(
        &mut self,
        answers: &mut Vec<PredictedPdu>,
        mut between: &[u8],
        len: usize,
        sink: &mut impl PduHandler,
    ) -> Result<ReceiveStatus, ReceiveError> {
        let header_len = BHS_LEN + self.digests.header_len();
        let (mut left, mut came, mut right) = (len, 0, true);
        for answer in &mut *answers {
            let tail = self.digests.tail_len(answer.len());
            let whole = header_len + answer.len() + tail;
            if left < header_len || sink.is_full() {
                break;
            }
            let header = Bhs::from_bytes(between[..BHS_LEN].try_into().expect("48 bytes"));
            right = answer.is(&header);
            if !right {
                break;
            }
            if left < whole {
                if answer.len() > LARGE {
                    return self.begin_foreseen(header, answer, between, left);
                }
                break;
            }
            self.check_header(&between[..header_len])?;
            let (data, intact) = match answer.buf.take() {
                Some(buf) => {
                    let intact = self.is_intact(&buf, &between[header_len..header_len + tail]);
                    (PduData::Landed(buf), intact)
                }
                None => (PduData::Bytes(&[]), true),
            };
            if !sink.take(ReceivedPdu { header, ahs: &[], data, intact, behind: &[] }) {
                return Ok(ReceiveStatus::End);
            }
            (between, left, came) = (&between[header_len + tail..], left - whole, came + 1);
        }
        if came > 0 || !right {
            self.prediction.learn(right, came);
        }
        if came == answers.len() {
            return self.parse(&between[..left], sink);
        }
        let rest = as_sent(&answers[came..], between, left, self.digests);
        give_back(answers, sink);
        self.parse(&rest, sink)
    }

    /// Goes on with a large one that has not come whole in its buffer.
    fn begin_foreseen(
        &mut self,
        header: Bhs,
        answer: &mut PredictedPdu,
        between: &[u8],
        left: usize,
    ) -> Result<ReceiveStatus, ReceiveError> {
        let header_len = BHS_LEN + self.digests.header_len();
        self.check_header(&between[..header_len])?;
        if let Some(buf) = answer.buf.take() {
            let (end, data) = (buf.len(), left - header_len);
            let filled = data.min(end);
            self.partial.extend_from_slice(&between[header_len..header_len + data - filled]);
            self.gather =
                Some(SegmentReceive { header, ahs: Vec::new(), buf, start: 0, end, filled, landing: true });
        }
        Ok(ReceiveStatus::More)
    }
}

/// The buffers that were not filled.
fn give_back(answers: &mut Vec<PredictedPdu>, sink: &mut impl PduHandler) {
    answers.drain(..).filter(|answer| answer.buf.is_some()).for_each(|answer| sink.give_back(answer));
}

#[cfg(test)]
mod tests;
