//! Commands of the admin queue.

use super::admin_state::AdminState;
use super::features::{self, FeatureValue};
use super::{identify, log_pages};
use lunar_proto::nvme::{ControllerKind, PropertyChange};
use lunar_wire::nvme::{DataPlace, Fuse, NvmeStatus, PropertyAccess, Sqe, admin_opcode, fabrics_type};

/// The outcome of a command that has not failed.
pub enum AdminOutcome {
    /// It has succeeded, with this result.
    Done(u64),
    /// It has succeeded, with data for the host.
    Data(Vec<u8>),
    /// It is completed later: an Asynchronous Event Request.
    Held,
    /// It is completed when this command of an I/O queue is over: an Abort.
    Abort {
        /// The queue.
        queue: u16,
        /// The identifier of the command.
        id: u16,
    },
    /// It is completed when the exchange has gone on: Authentication Send or Receive.
    Authenticate,
    /// It has succeeded, and the properties have changed.
    Changed(PropertyChange),
}

/// Executes a command. `data` are those in its capsule.
///
/// # Errors
/// The status of the command.
pub fn execute(
    state: &mut AdminState,
    sqe: &Sqe,
    place: DataPlace,
    data: &[u8],
) -> Result<AdminOutcome, NvmeStatus> {
    if sqe.fuse() != Fuse::None {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    if sqe.opcode() == admin_opcode::FABRICS {
        return fabrics(state, sqe);
    }
    if !state.properties.is_ready() {
        return Err(NvmeStatus::SEQUENCE_ERROR);
    }
    let is_io = state.kind() == ControllerKind::Io;
    match sqe.opcode() {
        admin_opcode::IDENTIFY => {
            // A change of the namespace may not have reached this core yet.
            state.refresh_namespace(sqe.namespace());
            let data = identify::identify(state, sqe)?;
            to_host(sqe, place, data)
        }
        // Before the log page counts as read.
        admin_opcode::GET_LOG_PAGE if place == DataPlace::Capsule => Err(NvmeStatus::SGL_INVALID_TYPE),
        admin_opcode::GET_LOG_PAGE => {
            let data = log_pages::get_log_page(state, sqe)?;
            to_host(sqe, place, data)
        }
        admin_opcode::GET_FEATURES => feature(sqe, place, features::get(state, sqe)?),
        admin_opcode::SET_FEATURES => feature(sqe, place, features::set(state, sqe, place, data)?),
        admin_opcode::ASYNC_EVENT_REQUEST => {
            state.events_mut().request(sqe.id())?;
            Ok(AdminOutcome::Held)
        }
        admin_opcode::KEEP_ALIVE => Ok(AdminOutcome::Done(0)),
        admin_opcode::ABORT if is_io => {
            let [queue, id] = [sqe.dword(10) as u16, (sqe.dword(10) >> 16) as u16];
            Ok(AdminOutcome::Abort { queue, id })
        }
        _ => Err(NvmeStatus::INVALID_OPCODE),
    }
}

/// Data for the host, which must have exactly the room that it offers.
fn to_host(sqe: &Sqe, place: DataPlace, data: Vec<u8>) -> Result<AdminOutcome, NvmeStatus> {
    match place {
        DataPlace::Host if sqe.data().len as usize == data.len() => Ok(AdminOutcome::Data(data)),
        DataPlace::Host | DataPlace::None => Err(NvmeStatus::SGL_INVALID_LENGTH),
        DataPlace::Capsule => Err(NvmeStatus::SGL_INVALID_TYPE),
    }
}

fn feature(sqe: &Sqe, place: DataPlace, value: FeatureValue) -> Result<AdminOutcome, NvmeStatus> {
    match value.data {
        Some(data) => to_host(sqe, place, data),
        None => Ok(AdminOutcome::Done(value.result)),
    }
}

fn fabrics(state: &mut AdminState, sqe: &Sqe) -> Result<AdminOutcome, NvmeStatus> {
    match sqe.fabrics_type() {
        fabrics_type::PROPERTY_GET => {
            let access = PropertyAccess::decode(sqe).ok_or(NvmeStatus::INVALID_FIELD)?;
            state.properties.get(access).map(AdminOutcome::Done)
        }
        fabrics_type::PROPERTY_SET => {
            let access = PropertyAccess::decode(sqe).ok_or(NvmeStatus::INVALID_FIELD)?;
            state.properties.set(access).map(AdminOutcome::Changed)
        }
        fabrics_type::AUTHENTICATION_SEND | fabrics_type::AUTHENTICATION_RECEIVE => {
            Ok(AdminOutcome::Authenticate)
        }
        fabrics_type::CONNECT => Err(NvmeStatus::SEQUENCE_ERROR),
        fabrics_type::DISCONNECT => Err(NvmeStatus::INVALID_QUEUE_TYPE),
        _ => Err(NvmeStatus::INVALID_FIELD),
    }
}
