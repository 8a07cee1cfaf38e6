//! Received PDUs. A violation ends the connection, and H2CTermReq reports it to the controller.

use super::queue_state::QueueState;
use super::queue_tasks::QueueTaskData;
use super::status::terminated;
use lunar_runtime::Buf;
use lunar_runtime::ReceivedData;
use lunar_runtime::nvme::receive::{NvmePduHandler, ReceivedNvmePdu};
use lunar_wire::nvme::{Cqe, DataPdu, NvmePdu, NvmePduError, NvmePduKind, NvmeStatus, fatal_error};

/// Offsets of fields in headers.
mod at {
    /// The flags.
    pub const FLAGS: u32 = 1;
    /// CCCID of a data PDU or an R2T.
    pub const COMMAND: u32 = 8;
    /// DATAL or R2TL.
    pub const LEN: u32 = 16;
    /// CID of a completion.
    pub const COMPLETION_COMMAND: u32 = 20;
}

/// Bytes before the entry of a completion.
const COMMON: usize = 8;

impl NvmePduHandler for QueueState {
    fn place(&mut self, pdu: &NvmePdu, header: &[u8]) -> Option<(Buf, usize)> {
        let part = self.check_data(pdu, header).ok()?;
        let (_, task) = self.by_id(part.command)?;
        match std::mem::replace(&mut task.data, QueueTaskData::Lent) {
            QueueTaskData::In(buf) => Some((buf, part.offset as usize)),
            other => {
                task.data = other;
                None
            }
        }
    }

    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }

    fn is_full(&self) -> bool {
        false
    }

    fn take(&mut self, received: ReceivedNvmePdu<'_>) -> Result<bool, NvmePduError> {
        let ReceivedNvmePdu { pdu, header, data, intact } = received;
        match pdu.kind {
            NvmePduKind::ControllerData => self.take_data(pdu, header, data, intact)?,
            NvmePduKind::Response => self.take_completion(header)?,
            NvmePduKind::ReadyToTransfer => self.take_request(header)?,
            NvmePduKind::ControllerTermRequest => {
                self.fail(terminated(header, data.bytes()));
                return Ok(false);
            }
            _ => return Err(NvmePduError::of(fatal_error::SEQUENCE)),
        }
        Ok(true)
    }
}

fn data_pdu(header: &[u8]) -> Result<DataPdu, NvmePduError> {
    header.first_chunk().map(DataPdu::decode).ok_or(NvmePduError::field(2))
}

impl QueueState {
    /// Checks a C2HData PDU: the next bytes of a read in flight.
    fn check_data(&mut self, pdu: &NvmePdu, header: &[u8]) -> Result<DataPdu, NvmePduError> {
        if pdu.kind != NvmePduKind::ControllerData {
            return Err(NvmePduError::of(fatal_error::SEQUENCE));
        }
        let part = data_pdu(header)?;
        let (_, task) = self.by_id(part.command).ok_or(NvmePduError::field(at::COMMAND))?;
        if !task.is_in() {
            return Err(NvmePduError::field(at::COMMAND));
        }
        if part.len == 0 || part.len as usize != pdu.data.len() {
            return Err(NvmePduError::field(at::LEN));
        }
        if task.is_last {
            return Err(NvmePduError::of(fatal_error::SEQUENCE));
        }
        let (offset, len) = (part.offset as usize, part.len as usize);
        if offset != task.moved || task.len - offset < len {
            return Err(NvmePduError::of(fatal_error::OUT_OF_RANGE));
        }
        if pdu.is_success() && !pdu.is_last() {
            return Err(NvmePduError::field(at::FLAGS));
        }
        Ok(part)
    }

    fn take_data(
        &mut self,
        pdu: &NvmePdu,
        header: &[u8],
        data: ReceivedData<'_>,
        intact: bool,
    ) -> Result<(), NvmePduError> {
        let data = match data {
            ReceivedData::Placed(buf) => {
                self.take_back(data_pdu(header)?.command, buf);
                ReceivedData::Bytes(&[])
            }
            other => other,
        };
        let (part, now) = (self.check_data(pdu, header)?, self.now);
        let Some((_, task)) = self.by_id(part.command) else { return Ok(()) };
        task.active_at = Some(now);
        let (start, bytes) = (part.offset as usize, data.bytes());
        if let QueueTaskData::In(buf) = &mut task.data {
            buf[start..start + bytes.len()].copy_from_slice(bytes);
        }
        task.moved += part.len as usize;
        task.damaged |= !intact;
        task.is_last = pdu.is_last();
        if pdu.is_success() {
            if !task.is_complete() {
                return Err(NvmePduError::field(at::FLAGS));
            }
            let (id, status) = (part.command, NvmeStatus::SUCCESS);
            self.complete(id, Cqe { result: 0, head: 0, id, status });
        }
        Ok(())
    }

    fn take_completion(&mut self, header: &[u8]) -> Result<(), NvmePduError> {
        let entry = header.get(COMMON..).and_then(|entry| entry.first_chunk());
        let cqe = entry.map(Cqe::decode).ok_or(NvmePduError::field(2))?;
        let (_, task) = self.by_id(cqe.id).ok_or(NvmePduError::field(at::COMPLETION_COMMAND))?;
        // A success before the command or its data have left is an answer to an earlier command.
        if cqe.status.is_success() && (!task.is_complete() || task.is_leaving()) {
            return Err(NvmePduError::of(fatal_error::SEQUENCE));
        }
        self.complete(cqe.id, cqe);
        Ok(())
    }

    /// The controller asks for data. One request of a command is outstanding at a time, as ICReq demands.
    fn take_request(&mut self, header: &[u8]) -> Result<(), NvmePduError> {
        let request = data_pdu(header)?;
        let (_, task) = self.by_id(request.command).ok_or(NvmePduError::field(at::COMMAND))?;
        if task.in_capsule || !matches!(task.data, QueueTaskData::Out(_)) {
            return Err(NvmePduError::field(at::COMMAND));
        }
        if request.len == 0 {
            return Err(NvmePduError::field(at::LEN));
        }
        let (offset, len) = (request.offset as usize, request.len as usize);
        if offset != task.moved || task.len - offset < len {
            return Err(NvmePduError::of(fatal_error::OUT_OF_RANGE));
        }
        if task.is_leaving() {
            return Err(NvmePduError::of(fatal_error::LIMIT_EXCEEDED));
        }
        self.send_data(request);
        Ok(())
    }
}
