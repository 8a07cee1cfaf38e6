//! Prediction of responses. Most targets respond in command order, so one receive can place the data of many
//! responses directly into the buffers of their commands, and only the headers elsewhere. After a wrong prediction,
//! the received bytes are reassembled in wire order and parsed as usual.

use super::{
    LARGE, PduHandler, PduReceiver, ReceiveError, ReceiveStatus, ReceiveStep, ReceivedData, ReceivedPdu,
    SegmentReceive,
};
use crate::Buf;
use crate::iscsi::pdu_queue::Digests;
use lunar_wire::iscsi::{BHS_LEN, Bhs, opcode};
use std::io::{self, IoSliceMut};

/// Limit of predicted responses in one receive: after a receive that brought few, and the upper limit.
const FEW: usize = 4;
const MANY: usize = 32;
/// Upper limit of their data in bytes.
const DATA: usize = 256 << 10;
/// Receives without a prediction after a wrong one: at first, and after many wrong ones.
const PAUSE: u32 = 16;
const LONG_PAUSE: u32 = 4096;

/// A response that may come next: one PDU, with all data of its command or none.
#[derive(Debug)]
pub struct PredictedPdu {
    /// The Initiator Task Tag of its command.
    pub tag: u32,
    /// The buffer that its data fills completely; None without data.
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

/// The predicted PDUs of one receive.
#[derive(Debug)]
pub struct ReceivePrediction {
    answers: Vec<PredictedPdu>,
    /// Bytes of their data.
    data: usize,
    /// Limit of predicted responses.
    max: usize,
    /// Receives until the handler makes the next prediction.
    pause: u32,
    next_pause: u32,
}

impl Default for ReceivePrediction {
    fn default() -> Self {
        ReceivePrediction { answers: Vec::new(), data: 0, max: FEW, pause: 0, next_pause: PAUSE }
    }
}

impl ReceivePrediction {
    /// Whether a response with this many bytes of data still fits.
    #[inline]
    pub fn has_room(&self, data: usize) -> bool {
        self.answers.len() < self.max && self.data + data <= DATA
    }

    /// Adds the next response.
    #[inline]
    pub fn push(&mut self, answer: PredictedPdu) {
        self.data += answer.len();
        self.answers.push(answer);
    }

    /// Asks the handler for a prediction. Returns false if it is not worthwhile.
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

    /// Adapts the limit to a receive that brought `came` predicted responses.
    fn learn(&mut self, right: bool, came: usize) {
        if right {
            self.max = (2 * came).clamp(FEW, MANY);
            self.next_pause = PAUSE;
        } else {
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(LONG_PAUSE);
        }
    }
}

/// The slices of a receive: data in its buffers, everything between them consecutively in `rest`.
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

/// Copies bytes into the first slices and returns the remaining ones.
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

/// Reassembles `len` received bytes in wire order: data from the buffers, the rest from `between`.
fn as_sent(answers: &[PredictedPdu], mut between: &[u8], len: usize, digests: Digests) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    let mut take = |from: &[u8], max: usize| {
        let n = max.min(len - bytes.len());
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
    /// One receive into the predicted places.
    pub(super) fn receive_predicted(
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
                let received = self.take_predicted(&mut answers, buffer, len, sink);
                received.map(|received| Some(ReceiveStep { got, room, received, ends_turn: false }))
            }
            Err(e) => Err(e.into()),
        };
        give_back(&mut answers, sink);
        self.prediction.answers = answers;
        step
    }

    /// Passes on the `len` received bytes.
    fn take_predicted(
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
                    return self.begin_predicted(header, answer, between, left);
                }
                break;
            }
            self.check_header(&between[..header_len])?;
            let (data, intact) = match answer.buf.take() {
                Some(buf) => {
                    let intact = self.is_intact(&buf, &between[header_len..header_len + tail]);
                    (ReceivedData::Placed(buf), intact)
                }
                None => (ReceivedData::Bytes(&[]), true),
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

    /// Continues with a large, incomplete response in its buffer.
    fn begin_predicted(
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
            let (ahs, start, stop, landing) = (Vec::new(), 0, usize::MAX, true);
            self.gather = Some(SegmentReceive { header, ahs, buf, start, end, filled, stop, landing });
        }
        Ok(ReceiveStatus::More)
    }
}

/// Returns the buffers that were not filled.
fn give_back(answers: &mut Vec<PredictedPdu>, sink: &mut impl PduHandler) {
    answers.drain(..).filter(|answer| answer.buf.is_some()).for_each(|answer| sink.give_back(answer));
}

#[cfg(test)]
mod tests;
