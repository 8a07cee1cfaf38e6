//! Commands and their Data-Out PDUs (RFC 7143 sections 11.3 and 11.7).

use super::task::{Data, Task};
use super::transport::TransportSender;
use crate::Error;
use lunar_proto::parameters::Parameters;
use lunar_runtime::Buf;
use lunar_runtime::iscsi::pdu_queue::{self, Digests, Payload};
use lunar_wire::iscsi::request::{self, DataOutTags};
use lunar_wire::iscsi::{Bhs, NONE};
use std::rc::Rc;

/// Queues a command with its immediate and unsolicited data.
///
/// # Errors
/// When the memory cannot be registered for the target. Nothing is queued then.
#[inline]
pub fn begin(
    out: &mut TransportSender,
    header: Bhs,
    task: &mut Task,
    p: &Parameters,
    digests: Digests,
) -> Result<(), Error> {
    match out {
        TransportSender::Tcp(out) => {
            begin_stream(out, header, task, p, digests);
            Ok(())
        }
        TransportSender::Datamover(datamover) => datamover.command(header, task, p),
    }
}

#[inline]
fn begin_stream(
    out: &mut pdu_queue::PduQueue,
    mut header: Bhs,
    task: &Task,
    p: &Parameters,
    digests: Digests,
) {
    match &task.data {
        Data::None => command(out, header, task, Payload::Empty, digests),
        Data::In(..) => {
            request::set_read(&mut header, task.expected);
            command(out, header, task, Payload::Empty, digests);
        }
        Data::Out(buf) => {
            let (immediate, unsolicited) = (immediate(buf.len(), p), unsolicited(buf.len(), p));
            request::set_write(&mut header, task.expected, unsolicited > immediate);
            let payload = if immediate > 0 { part(buf, 0, immediate) } else { Payload::Empty };
            let exp_stat_sn = header.exp_stat_sn();
            command(out, header, task, payload, digests);
            if unsolicited > immediate {
                // Without a Target Transfer Tag, the LUN field is reserved (section 11.7.4).
                let burst = DataOutTags { lun: 0, itt: task.tag, ttt: NONE };
                let stretch = Stretch { offset: immediate, end: unsolicited, exp_stat_sn };
                data_out(out, burst, buf, stretch, p, digests);
            }
        }
    }
}

/// The number of bytes that are sent as immediate data.
fn immediate(len: usize, p: &Parameters) -> usize {
    let max = p.first_burst_length.min(p.max_xmit_data_segment_length);
    if p.immediate_data { len.min(max as usize) } else { 0 }
}

/// The number of bytes that are sent without an R2T.
pub fn unsolicited(len: usize, p: &Parameters) -> usize {
    if p.initial_r2t { immediate(len, p) } else { len.min(p.first_burst_length as usize) }
}

/// The SCSI Command PDU, including a long CDB.
#[inline]
fn command(out: &mut pdu_queue::PduQueue, mut header: Bhs, task: &Task, payload: Payload, digests: Digests) {
    match &task.extended_cdb {
        None => out.push(&mut header, payload, digests),
        Some(rest) => out.push_extended(header, rest.ahs(), payload, digests),
    }
}

fn part(buf: &Rc<Buf>, at: usize, len: usize) -> Payload {
    Payload::Part(buf.clone(), at, len)
}

/// The byte range of one sequence of Data-Out PDUs.
pub struct Stretch {
    /// The first byte.
    pub offset: usize,
    /// The end, exclusive.
    pub end: usize,
    /// ExpStatSN of each PDU.
    pub exp_stat_sn: u32,
}

/// Queues a sequence of Data-Out PDUs.
pub fn data_out(
    out: &mut pdu_queue::PduQueue,
    burst: DataOutTags,
    buf: &Rc<Buf>,
    s: Stretch,
    p: &Parameters,
    digests: Digests,
) {
    let (mut at, mut data_sn) = (s.offset, 0);
    while at < s.end {
        let len = (s.end - at).min(p.max_xmit_data_segment_length as usize);
        let mut header = request::data_out(burst, data_sn, at as u32, at + len == s.end, s.exp_stat_sn);
        out.push(&mut header, part(buf, at, len), digests);
        (at, data_sn) = (at + len, data_sn + 1);
    }
}
