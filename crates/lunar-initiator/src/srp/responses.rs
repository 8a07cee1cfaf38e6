//! Converts SRP responses of a target to iSCSI PDUs.

use crate::session::transport;
use lunar_wire::iscsi::flag::{OVERFLOW, UNDERFLOW};
use lunar_wire::iscsi::status::{async_event, management_response};
use lunar_wire::iscsi::{Bhs, pdu};
use lunar_wire::srp::{Aer, Residual, SrpResponse, task_status};

/// The direction of the data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirection {
    /// No data.
    None,
    /// Data-In.
    In,
    /// Data-Out.
    Out,
}

/// The residual count for the direction of a command.
fn residual(direction: DataDirection, response: &SrpResponse<'_>) -> Residual {
    match (direction, response.residual_in) {
        (DataDirection::Out, _) | (DataDirection::None, Residual::None) => response.residual_out,
        (_, residual_in) => residual_in,
    }
}

/// The number of bytes of a read that the target has not filled.
pub fn unfilled(direction: DataDirection, response: &SrpResponse<'_>) -> u32 {
    let residual = match residual(direction, response) {
        Residual::None => None,
        Residual::Over(_) => Some(0),
        Residual::Under(bytes) => Some(bytes),
    };
    transport::unfilled(residual, response.status, response.sense)
}

/// Builds the SCSI Response to a command, and its data segment.
pub fn scsi_response(itt: u32, direction: DataDirection, response: &SrpResponse<'_>) -> (Bhs, Vec<u8>) {
    let (flags, bytes) = match residual(direction, response) {
        Residual::None => (0, 0),
        Residual::Over(bytes) => (OVERFLOW, bytes),
        Residual::Under(bytes) => (UNDERFLOW, bytes),
    };
    // Response data mean that the target rejected the information unit.
    let code = response.task_status().unwrap_or(0);
    let mut header = pdu::scsi_response(itt, flags, code, response.status);
    header.set_residual_count(bytes);
    (header, sense(response.sense))
}

/// Builds the response to a task management function.
pub fn managed(itt: u32, response: &SrpResponse<'_>) -> Bhs {
    let code = match response.task_status() {
        Some(task_status::COMPLETE) => management_response::COMPLETE,
        Some(task_status::NOT_SUPPORTED) => management_response::UNSUPPORTED,
        Some(_) | None => management_response::REJECTED,
    };
    pdu::task_management_response(itt, code)
}

/// Builds the Asynchronous Message of an event, and its data segment.
pub fn event(aer: &Aer<'_>) -> (Bhs, Vec<u8>) {
    (pdu::async_message(aer.lun, async_event::SCSI, [0; 3]), sense(aer.sense))
}

/// Sense data in the format of a data segment, with a two-byte length before them.
fn sense(bytes: &[u8]) -> Vec<u8> {
    match u16::try_from(bytes.len()) {
        Ok(len) if len > 0 => [&len.to_be_bytes()[..], bytes].concat(),
        _ => Vec::new(),
    }
}
