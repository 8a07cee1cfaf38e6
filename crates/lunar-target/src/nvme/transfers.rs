//! Data that the target has requested from the host, by command.

use super::error_log::ErrorPlace;
use super::limits::MAX_TRANSFER;
use crate::core::{DataOutId, DataRequest};
use lunar_proto::transfer::DataOutSegment;
use lunar_runtime::Buf;
use lunar_wire::nvme::{DataPdu, NvmePdu, NvmePduError, NvmeStatus, Sqe, fatal_error};
use std::collections::BTreeMap;

/// The offset of DATAL in the header of data.
const LENGTH_FIELD: u32 = 16;
/// The offset of the flags.
const FLAGS_FIELD: u32 = 1;

/// The owner of requested data.
pub enum DataOwner {
    /// A task of the core.
    Core {
        /// Its LUN field.
        lun: u64,
        /// The transfer tag of the request.
        transfer_tag: u32,
    },
    /// A command that begins when its data are here.
    Collected {
        /// Its entry.
        sqe: Sqe,
        /// Its data so far.
        buf: Buf,
        /// Whether a part of them was damaged on the way.
        is_damaged: bool,
    },
    /// A command that has ended early with this status. It completes when its data are here, because the host may use its
    /// identifier again then.
    Abandoned(NvmeStatus, ErrorPlace),
}

/// A request for data that were not all received yet.
struct HostDataTransfer {
    owner: DataOwner,
    /// The offset of the next data.
    next: u32,
    /// The offset behind the last ones.
    end: u32,
    /// Number of the request in its queue.
    number: u64,
}

/// The requests of a queue.
#[derive(Default)]
pub struct Transfers {
    all: BTreeMap<u16, HostDataTransfer>,
    /// Number of requests so far.
    count: u64,
    /// Whether a timer watches the requests of the front end.
    has_timer: bool,
}

impl Transfers {
    /// Records a request of the core.
    pub fn begin_of_core(&mut self, id: u16, lun: u64, request: DataRequest) {
        let owner = DataOwner::Core { lun, transfer_tag: request.transfer_tag };
        self.add(id, owner, (request.offset, request.offset + request.len));
    }

    fn add(&mut self, id: u16, owner: DataOwner, (next, end): (u32, u32)) {
        self.count += 1;
        self.all.insert(id, HostDataTransfer { owner, next, end, number: self.count });
    }

    /// Records a request for all data of a command, which go into this buffer.
    pub fn collect(&mut self, sqe: Sqe, buf: Buf) {
        let end = buf.len().min(MAX_TRANSFER as usize) as u32;
        let owner = DataOwner::Collected { sqe, buf, is_damaged: false };
        self.add(sqe.id(), owner, (0, end));
    }

    /// Keeps the status of a task that has ended before its requested data are here. False: it waits for none.
    pub fn abandon(&mut self, id: u16, status: NvmeStatus, place: impl FnOnce() -> ErrorPlace) -> bool {
        let Some(transfer) = self.all.get_mut(&id) else { return false };
        transfer.owner = DataOwner::Abandoned(status, place());
        true
    }

    /// The number of the request for data of a command that has ended early. None: it waits for none.
    pub fn abandoned(&self, id: u16) -> Option<u64> {
        let transfer = self.all.get(&id)?;
        matches!(transfer.owner, DataOwner::Abandoned(..)).then_some(transfer.number)
    }

    /// Whether the front end must begin a timer for its requests.
    pub fn take_need_of_timer(&mut self) -> bool {
        !std::mem::replace(&mut self.has_timer, true)
    }

    /// The number of the oldest request for which the core has no timer. None: there is none, and the timer ends.
    pub fn oldest_without_task(&mut self) -> Option<u64> {
        let waiting = self.all.values().filter(|one| !matches!(one.owner, DataOwner::Core { .. }));
        let oldest = waiting.map(|one| one.number).min();
        self.has_timer = oldest.is_some();
        oldest
    }

    /// Checks the header of received data against the requests.
    ///
    /// # Errors
    /// The fault, which ends the connection.
    fn check(&mut self, pdu: &NvmePdu, data: &DataPdu) -> Result<&mut HostDataTransfer, NvmePduError> {
        let transfer = self.all.get_mut(&data.tag).filter(|_| data.tag == data.command);
        let transfer = transfer.ok_or(NvmePduError::of(fatal_error::SEQUENCE))?;
        if data.len as usize != pdu.data.len() || data.len == 0 {
            return Err(NvmePduError::field(LENGTH_FIELD));
        }
        let end = data.offset.checked_add(data.len).filter(|end| *end <= transfer.end);
        if data.offset != transfer.next || end.is_none() {
            return Err(NvmePduError::of(fatal_error::OUT_OF_RANGE));
        }
        if pdu.is_last() != (end == Some(transfer.end)) {
            return Err(NvmePduError::field(FLAGS_FIELD));
        }
        Ok(transfer)
    }

    /// The transfer of the core to which data belong, before they are received. None: it is not one of the core, or the data
    /// are invalid, which [`Transfers::receive`] reports.
    pub fn of_core(&mut self, pdu: &NvmePdu, data: &DataPdu) -> Option<(DataOutId, DataOutSegment)> {
        let transfer = self.check(pdu, data).ok()?;
        transfer.core_segment(data)
    }

    /// Takes note of received data. Returns the transfer of the core to which they belong, if it is one.
    ///
    /// # Errors
    /// The fault, which ends the connection.
    pub fn receive(
        &mut self,
        pdu: &NvmePdu,
        data: &DataPdu,
        bytes: &[u8],
        intact: bool,
    ) -> Result<Received, NvmePduError> {
        let transfer = self.check(pdu, data)?;
        let segment = transfer.core_segment(data);
        transfer.next += data.len;
        if let DataOwner::Collected { buf, is_damaged, .. } = &mut transfer.owner {
            let at = data.offset as usize;
            buf[at..at + bytes.len()].copy_from_slice(bytes);
            *is_damaged |= !intact;
        }
        let is_done = transfer.next == transfer.end;
        let done = is_done.then(|| self.all.remove(&data.tag)).flatten();
        Ok(match (segment, done) {
            (Some((id, segment)), _) => Received::OfCore(id, segment),
            (None, Some(HostDataTransfer { owner: DataOwner::Collected { sqe, buf, is_damaged }, .. })) => {
                Received::Collected { sqe, buf, is_damaged }
            }
            (None, Some(HostDataTransfer { owner: DataOwner::Abandoned(status, place), .. })) => {
                Received::OfEnded(data.tag, status, place)
            }
            (None, _) => Received::More,
        })
    }
}

/// Received data.
pub enum Received {
    /// Data of a task.
    OfCore(DataOutId, DataOutSegment),
    /// The last data of a command.
    Collected {
        /// Its entry.
        sqe: Sqe,
        /// Its data.
        buf: Buf,
        /// Whether a part of them was damaged on the way.
        is_damaged: bool,
    },
    /// The last data of a command that has ended early with this status.
    OfEnded(u16, NvmeStatus, ErrorPlace),
    /// More data of the command follow.
    More,
}

impl HostDataTransfer {
    fn core_segment(&self, data: &DataPdu) -> Option<(DataOutId, DataOutSegment)> {
        let DataOwner::Core { lun, transfer_tag } = self.owner else { return None };
        let DataPdu { command, offset, len, .. } = *data;
        let id = DataOutId { connection: 0, task_tag: command.into(), lun, transfer_tag: Some(transfer_tag) };
        let is_final = offset + len == self.end;
        Some((id, DataOutSegment { number: None, offset, len, is_final }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::nvme::pdu_flag;

    const SEQUENCE: u16 = fatal_error::SEQUENCE;
    const OUT_OF_RANGE: u16 = fatal_error::OUT_OF_RANGE;

    fn pdu(len: usize, is_last: bool) -> NvmePdu {
        NvmePdu {
            kind: lunar_wire::nvme::NvmePduKind::HostData,
            flags: if is_last { pdu_flag::LAST } else { 0 },
            header_digest: None,
            data: 24..24 + len,
            data_digest: None,
            len: 24 + len,
        }
    }

    fn data(id: u16, offset: u32, len: u32) -> DataPdu {
        DataPdu { command: id, tag: id, offset, len }
    }

    /// Requests of 16 bytes: of a task from offset 8 on with CID 1, and of a command with CID 2.
    fn transfers() -> Transfers {
        let mut all = Transfers::default();
        all.begin_of_core(1, 0, DataRequest { transfer_tag: 9, number: 0, offset: 8, len: 16 });
        all.collect(Sqe::new(0x09, 2, 1), Buf::zeroed(16));
        all
    }

    #[test]
    fn data_outside_of_the_request_are_faults() {
        for (head, is_last, expected) in [
            (data(3, 0, 16), true, NvmePduError::of(SEQUENCE)),
            (DataPdu { tag: 2, ..data(1, 8, 16) }, true, NvmePduError::of(SEQUENCE)),
            (data(1, 0, 16), true, NvmePduError::of(OUT_OF_RANGE)),
            (data(1, 8, 17), true, NvmePduError::of(OUT_OF_RANGE)),
            (data(1, 8, u32::MAX), true, NvmePduError::of(OUT_OF_RANGE)),
            (data(1, 8, 0), false, NvmePduError::field(LENGTH_FIELD)),
            (data(1, 8, 8), true, NvmePduError::field(FLAGS_FIELD)),
            (data(1, 8, 16), false, NvmePduError::field(FLAGS_FIELD)),
        ] {
            let bytes = vec![0; head.len.min(64) as usize];
            let received = transfers().receive(&pdu(head.len as usize, is_last), &head, &bytes, true);
            assert_eq!(received.err(), Some(expected), "{head:?}");
        }
        let lie = transfers().receive(&pdu(8, false), &data(1, 8, 4), &[0; 8], true);
        assert_eq!(lie.err(), Some(NvmePduError::field(LENGTH_FIELD)));
    }

    #[test]
    fn collected_data_are_whole_and_remember_damage() {
        let mut all = transfers();
        let first = all.receive(&pdu(8, false), &data(2, 0, 8), &[1; 8], false);
        assert!(matches!(first, Ok(Received::More)));
        let Ok(Received::Collected { sqe, buf, is_damaged }) =
            all.receive(&pdu(8, true), &data(2, 8, 8), &[2; 8], true)
        else {
            panic!("the last data")
        };
        assert_eq!((sqe.id(), &buf[..], is_damaged), (2, &[[1; 8], [2; 8]].concat()[..], true));
        let late = all.receive(&pdu(8, true), &data(2, 8, 8), &[2; 8], true);
        assert_eq!(late.err(), Some(NvmePduError::of(SEQUENCE)));
    }

    #[test]
    fn data_of_a_task_keep_their_request() {
        let mut all = transfers();
        let Ok(Received::OfCore(id, segment)) = all.receive(&pdu(16, true), &data(1, 8, 16), &[], true)
        else {
            panic!("data of a task")
        };
        assert_eq!((id.task_tag, id.transfer_tag), (1, Some(9)));
        assert_eq!((segment.offset, segment.len, segment.is_final), (8, 16, true));
    }

    #[test]
    fn ended_command_completes_behind_its_data() {
        let place = ErrorPlace { namespace: 1, lba: 8 };
        let mut all = transfers();
        assert!(!all.abandon(3, NvmeStatus::RESERVATION_CONFLICT, ErrorPlace::default));
        assert_eq!([1, 2].map(|id| all.abandoned(id)), [None; 2]);
        assert!(all.abandon(1, NvmeStatus::RESERVATION_CONFLICT, || place));
        assert_eq!([1, 2].map(|id| all.abandoned(id)), [Some(1), None]);
        assert!(all.of_core(&pdu(8, false), &data(1, 8, 8)).is_none(), "no buffer of the task");
        assert!(matches!(all.receive(&pdu(8, false), &data(1, 8, 8), &[], true), Ok(Received::More)));
        let last = all.receive(&pdu(8, true), &data(1, 16, 8), &[], true);
        assert!(
            matches!(last, Ok(Received::OfEnded(1, NvmeStatus::RESERVATION_CONFLICT, at)) if at == place)
        );
        assert_eq!(all.abandoned(1), None);
        assert!(!all.abandon(1, NvmeStatus::RESERVATION_CONFLICT, || place));
    }

    #[test]
    fn timer_watches_requests_that_no_task_has() {
        let mut all = transfers();
        assert_eq!([all.take_need_of_timer(), all.take_need_of_timer()], [true, false]);
        assert_eq!(all.oldest_without_task(), Some(2));
        all.abandon(1, NvmeStatus::INTERNAL_ERROR, ErrorPlace::default);
        assert_eq!(all.oldest_without_task(), Some(1));
        for id in [1, 2] {
            let at = if id == 1 { 8 } else { 0 };
            assert!(all.receive(&pdu(16, true), &data(id, at, 16), &[0; 16], true).is_ok());
        }
        assert_eq!((all.oldest_without_task(), all.take_need_of_timer()), (None, true));
    }
}
