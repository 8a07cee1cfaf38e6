//! Data transfer initiated by the target: R2T and Data-In (RFC 7143 sections 11.7 and 11.8).

use super::data_out::{Stretch, data_out};
use super::errors::broke;
use super::session_state::SessionState;
use super::task::{Data, Task};
use super::transport::TransportSender;
use crate::Error;
use lunar_proto::parameters::Parameters;
use lunar_runtime::iscsi::receive::PredictedPdu;
use lunar_runtime::{Buf, PipedBytes};
use lunar_wire::iscsi::request::DataOutTags;
use lunar_wire::iscsi::{Bhs, NONE};
use lunar_wire::scsi::lun::shown;
use std::rc::Rc;

/// The maximum number of disjoint received ranges, if Data-In may arrive in any order.
const PIECES: usize = 256;
/// The number of R2Ts beyond MaxOutstandingR2T whose data may be queued.
const SPARE_R2TS: usize = 64;

impl SessionState {
    /// Handles an R2T: sends the requested range of the command's data.
    pub fn r2t(&mut self, header: &Bhs) -> Result<(), Error> {
        let (ttt, r2t_sn, offset, len) =
            (header.ttt(), header.r2t_sn(), header.buffer_offset(), header.desired_len());
        let exp_stat_sn = self.connection.exp_stat_sn();
        let (out, p, digests) = self.connection.out_with_parameters();
        let Some(task) = self.tasks.sent(header.itt()) else {
            return Err(broke(format!(
                "the target sent an R2T with Initiator Task Tag {:08x}, which no command has",
                header.itt()
            )));
        };
        let (lun, expected, next) = (task.lun, task.expected, task.data_sn);
        let Data::Out(buf) = &task.data else {
            return Err(broke("the target sent an R2T for a command that is no write"));
        };
        if ttt == NONE {
            return Err(broke("the target sent an R2T with the reserved Target Transfer Tag ffffffff"));
        }
        if len == 0 || len > p.max_burst_length || expected.checked_sub(offset).is_none_or(|n| n < len) {
            return Err(broke(format!(
                "R2T for {len} bytes at offset {offset} of a write of {expected} bytes, with MaxBurstLength {}",
                p.max_burst_length
            )));
        }
        if r2t_sn != next {
            return Err(broke(format!("the target sent R2TSN {r2t_sn}, expected {next}")));
        }
        // Some targets set the field to zero.
        if header.lun() != lun && header.lun() != 0 {
            let (asked, own) = (shown(header.lun()), shown(lun));
            return Err(broke(format!(
                "the target sent an R2T for LUN {asked}, but the command is for LUN {own}"
            )));
        }
        if Rc::strong_count(buf) - 1 > max_waiting(expected, p) {
            return Err(broke("the target sends R2Ts but does not read the data that they request"));
        }
        task.data_sn += 1;
        let stretch = Stretch { offset: offset as usize, end: (offset + len) as usize, exp_stat_sn };
        let TransportSender::Tcp(out) = out else {
            return Err(broke("the target sent an R2T on an RDMA connection, where it must use RDMA Read"));
        };
        data_out(out, DataOutTags { lun, itt: header.itt(), ttt }, buf, stretch, p, digests);
        task.end = out.end();
        self.is_urgent = true;
        Ok(())
    }

    /// Takes back the buffer of a read that the target has filled by RDMA, except for the last `short` bytes.
    pub fn take_back_filled(&mut self, tag: u32, memory: Buf, short: u32) {
        let Some(task) = self.tasks.sent(tag) else { return };
        let expected = task.expected;
        if let Data::In(buf, received) = &mut task.data {
            (*buf, *received) = (Some(memory), expected.saturating_sub(short));
        }
    }

    /// The buffer and offset for a valid Data-In, so that it is received directly into the command's buffer.
    pub fn landing_place(&mut self, header: &Bhs) -> Option<(Buf, usize)> {
        let offset = self.data_in_offset(header).ok()?;
        let task = self.tasks.get(header.itt())?;
        task.leave_pipe().ok()?;
        let place = offset.checked_sub(task.split())?;
        let Data::In(buf, _) = &mut task.data else { return None };
        Some((buf.take()?, place))
    }

    /// Whether the data of a read arrive in order.
    #[inline]
    pub(super) fn is_in_order(&self) -> bool {
        let parameters = self.connection.parameters();
        parameters.data_pdu_in_order && parameters.data_sequence_in_order
    }

    /// Takes back the buffer of a predicted response that did not arrive.
    pub fn take_back(&mut self, answer: PredictedPdu) {
        if let Some(Task { data: Data::In(buf @ None, _), .. }) = self.tasks.get(answer.tag) {
            *buf = answer.buf;
        }
    }

    /// Checks that a Data-In lies within the buffer and in the negotiated order. Returns its offset.
    #[inline]
    pub(super) fn data_in_offset(&mut self, header: &Bhs) -> Result<usize, Error> {
        let (data_sn, offset, len) = (header.data_sn(), header.buffer_offset(), header.data_len() as u32);
        let in_order = self.is_in_order();
        let Some(task) = self.tasks.sent(header.itt()) else {
            return Err(broke(format!(
                "the target sent a Data-In with Initiator Task Tag {:08x}, which no command has",
                header.itt()
            )));
        };
        let Data::In(_, received) = &task.data else {
            return Err(broke("the target sent a Data-In for a command that is no read"));
        };
        if task.expected.checked_sub(offset).is_none_or(|room| room < len) {
            let expected = task.expected;
            return Err(broke(format!(
                "the target sent a Data-In of {len} bytes at offset {offset} of a read of {expected} bytes"
            )));
        }
        if data_sn != task.data_sn {
            let next = task.data_sn;
            return Err(broke(format!(
                "the target sent DataSN {data_sn}, expected {next}: a Data-In was lost"
            )));
        }
        if in_order && len > 0 && offset != *received {
            return Err(broke(format!("the target sent a Data-In at offset {offset}, expected {received}")));
        }
        if !in_order && task.pieces.iter().any(|(from, to)| *from < offset + len && offset < *to) {
            return Err(broke(format!(
                "the target sent a Data-In of {len} bytes at offset {offset} that overlaps an earlier Data-In"
            )));
        }
        Ok(offset as usize)
    }

    /// Accepts the data segment of a Data-In: copies it, or takes back the buffer that received it.
    #[inline]
    pub fn data_in(&mut self, header: &Bhs, segment: Segment<'_>) -> Result<(), Error> {
        let offset = self.data_in_offset(header)?;
        let in_order = self.is_in_order();
        let Some(task) = self.tasks.get(header.itt()) else { return Ok(()) };
        task.data_sn += 1;
        if !in_order && !join(&mut task.pieces, (offset as u32, (offset + header.data_len()) as u32)) {
            return Err(broke(format!(
                "the target sent the data of a read in more than {PIECES} separate ranges"
            )));
        }
        let (split, len) = (task.split(), header.data_len());
        if let Segment::Bytes(_) = &segment {
            task.leave_pipe().map_err(|e| broke(format!("the data of a read are lost: {e}")))?;
        }
        let Data::In(buf, received) = &mut task.data else { return Ok(()) };
        match (segment, &mut *buf) {
            (Segment::Piped(piped), _) => {
                *received += len as u32;
                task.take_back_pipe(piped);
                return Ok(());
            }
            (Segment::Landed(back), _) => *buf = Some(back),
            (Segment::Bytes(bytes), Some(buf)) => copy_rest(buf, split, offset, bytes),
            (Segment::Bytes(_), None) => {
                return Err(broke("the target sent a Data-In while an earlier one still fills the buffer"));
            }
        }
        *received += len as u32;
        if task.parts.is_some() {
            self.split_next(header.itt());
        }
        Ok(())
    }
}

/// Copies data at this offset of a read to the buffer, whose first `split` bytes were split off.
#[inline]
fn copy_rest(buf: &mut Buf, split: usize, offset: usize, bytes: &[u8]) {
    let skip = split.saturating_sub(offset).min(bytes.len());
    let at = (offset + skip).saturating_sub(split);
    buf[at..at + bytes.len() - skip].copy_from_slice(&bytes[skip..]);
}

/// The maximum number of queued Data-Out PDUs for a command with `expected` bytes: twice its data, and a partial PDU
/// for each R2T. Each queued PDU keeps a reference to the buffer.
fn max_waiting(expected: u32, p: &Parameters) -> usize {
    let whole = expected.div_ceil(p.max_xmit_data_segment_length.max(1)) as usize;
    2 * whole + usize::from(p.max_outstanding_r2t.max(1)) + SPARE_R2TS
}

/// Adds a received range that overlaps no other. Returns false if there are too many disjoint ranges.
fn join(pieces: &mut Vec<(u32, u32)>, (mut from, mut to): (u32, u32)) -> bool {
    if from == to {
        return true;
    }
    let first = pieces.partition_point(|p| p.1 < from);
    let touching = pieces[first..].iter().take_while(|p| p.0 <= to).count();
    for piece in pieces.drain(first..first + touching) {
        (from, to) = (from.min(piece.0), to.max(piece.1));
    }
    pieces.insert(first, (from, to));
    pieces.len() <= PIECES
}

/// The data segment of a Data-In.
pub enum Segment<'a> {
    /// In a buffer of the receiver.
    Bytes(&'a [u8]),
    /// In the buffer of its command, received directly.
    Landed(Buf),
    /// In the pipe of its command, behind the earlier ones.
    Piped(PipedBytes),
}
