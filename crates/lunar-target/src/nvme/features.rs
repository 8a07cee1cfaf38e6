//! Get Features and Set Features.

use super::admin_state::{AdminState, HOST_BEHAVIOR_LEN};
use super::limits::MAX_IO_QUEUES;
use lunar_proto::nvme::ControllerKind;
use lunar_wire::nvme::{DataPlace, NvmeStatus, Sqe};

/// Identifiers of features.
mod feature {
    pub const ARBITRATION: u8 = 0x01;
    pub const POWER: u8 = 0x02;
    pub const TEMPERATURE: u8 = 0x04;
    pub const ERROR_RECOVERY: u8 = 0x05;
    pub const WRITE_CACHE: u8 = 0x06;
    pub const QUEUES: u8 = 0x07;
    pub const ATOMICITY: u8 = 0x0a;
    pub const EVENTS: u8 = 0x0b;
    pub const KEEP_ALIVE: u8 = 0x0f;
    pub const HOST_BEHAVIOR: u8 = 0x16;
    pub const HOST_ID: u8 = 0x81;
    pub const RESERVATION_EVENTS: u8 = 0x82;
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
}

/// Features that are kept and returned, but change nothing.
const KEPT: [u8; 5] =
    [feature::ARBITRATION, feature::POWER, feature::TEMPERATURE, feature::ERROR_RECOVERY, feature::ATOMICITY];
/// Set Features: the value is saved (SV).
const SAVES: u32 = 1 << 31;
/// Get Features (SEL): capabilities of the feature.
const CAPABILITIES: u32 = 3;
/// Capabilities: the value can be changed, and is one of a namespace.
const CHANGEABLE: u64 = 1 << 2;
const OF_NAMESPACE: u64 = 1 << 1;
/// Host Identifier: with 128 bits (EXHID).
const EXTENDED_HOST_ID: u32 = 1;
/// All namespaces.
const EVERY: u32 = u32::MAX;

/// The result of a command on features.
pub struct FeatureValue {
    /// Dword 0 of the completion.
    pub result: u64,
    /// Data for the host.
    pub data: Option<Vec<u8>>,
}

fn value(result: u64) -> Result<FeatureValue, NvmeStatus> {
    Ok(FeatureValue { result, data: None })
}

fn with_data(data: Vec<u8>, sqe: &Sqe) -> Result<FeatureValue, NvmeStatus> {
    match data.len() == sqe.data().len as usize {
        true => Ok(FeatureValue { result: 0, data: Some(data) }),
        false => Err(NvmeStatus::SGL_INVALID_LENGTH),
    }
}

/// Whether the controller has the feature.
fn is_there(kind: ControllerKind, id: u8) -> bool {
    match kind {
        ControllerKind::Discovery => matches!(id, feature::EVENTS | feature::KEEP_ALIVE),
        ControllerKind::Io => {
            KEPT.contains(&id)
                || matches!(
                    id,
                    feature::WRITE_CACHE
                        | feature::QUEUES
                        | feature::EVENTS
                        | feature::KEEP_ALIVE
                        | feature::HOST_BEHAVIOR
                        | feature::HOST_ID
                        | feature::RESERVATION_EVENTS
                        | feature::RESERVATION_PERSISTENCE
                )
        }
    }
}

/// Executes Get Features.
///
/// # Errors
/// The status of the command.
pub fn get(state: &AdminState, sqe: &Sqe) -> Result<FeatureValue, NvmeStatus> {
    let (id, select) = (sqe.dword(10) as u8, sqe.dword(10) >> 8 & 7);
    if !is_there(state.kind(), id) || select > CAPABILITIES {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    if select == CAPABILITIES {
        return value(capabilities(id));
    }
    match id {
        feature::WRITE_CACHE => {
            let mut all = state.namespaces().into_iter().flat_map(|all| all.iter());
            value(all.any(|(_, namespace)| namespace.view.write_cache).into())
        }
        feature::QUEUES => {
            let last = u64::from(state.controller().max_queues().saturating_sub(1));
            value(last << 16 | last)
        }
        feature::EVENTS => value(state.events().configuration().into()),
        feature::KEEP_ALIVE => value(state.keep_alive_ms().into()),
        feature::HOST_BEHAVIOR => with_data(state.host_behavior().to_vec(), sqe),
        // Identifiers of hosts over fabrics have 128 bits.
        feature::HOST_ID if sqe.dword(11) & EXTENDED_HOST_ID == 0 => Err(NvmeStatus::INVALID_FIELD),
        feature::HOST_ID => with_data(state.controller().host().id.to_vec(), sqe),
        feature::RESERVATION_EVENTS => {
            namespace_of(state, sqe)?;
            value(state.reservation_mask(sqe.namespace()).into())
        }
        feature::RESERVATION_PERSISTENCE => {
            let unit = namespace_of(state, sqe)?;
            value(unit.lu.reservation_report().persists.into())
        }
        _ => value(state.kept_feature(id).into()),
    }
}

fn capabilities(id: u8) -> u64 {
    match id {
        feature::RESERVATION_EVENTS => CHANGEABLE | OF_NAMESPACE,
        feature::RESERVATION_PERSISTENCE => OF_NAMESPACE,
        feature::WRITE_CACHE | feature::HOST_ID => 0,
        _ => CHANGEABLE,
    }
}

fn namespace_of<'a>(
    state: &'a AdminState,
    sqe: &Sqe,
) -> Result<&'a std::sync::Arc<crate::LogicalUnit>, NvmeStatus> {
    let found = state.namespaces().and_then(|all| all.get(sqe.namespace()));
    found.map(|namespace| namespace.unit()).ok_or(NvmeStatus::INVALID_NAMESPACE)
}

/// Executes Set Features. `data` are those in the capsule.
///
/// # Errors
/// The status of the command.
pub fn set(
    state: &mut AdminState,
    sqe: &Sqe,
    place: DataPlace,
    data: &[u8],
) -> Result<FeatureValue, NvmeStatus> {
    let (id, wanted) = (sqe.dword(10) as u8, sqe.dword(11));
    if !is_there(state.kind(), id) {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    if sqe.dword(10) & SAVES != 0 {
        return Err(NvmeStatus::FEATURE_NOT_SAVEABLE);
    }
    match id {
        feature::QUEUES => set_queues(state, wanted),
        feature::EVENTS => {
            state.events_mut().configure(wanted);
            value(0)
        }
        feature::KEEP_ALIVE => {
            state.set_keep_alive(wanted);
            value(0)
        }
        feature::HOST_BEHAVIOR if place == DataPlace::Host => Err(NvmeStatus::SGL_INVALID_TYPE),
        feature::HOST_BEHAVIOR => {
            let data: &[u8; HOST_BEHAVIOR_LEN] =
                data.try_into().map_err(|_| NvmeStatus::SGL_INVALID_LENGTH)?;
            state.set_host_behavior(*data);
            value(0)
        }
        feature::RESERVATION_EVENTS if sqe.namespace() == EVERY => {
            let all: Vec<u32> =
                state.namespaces().into_iter().flat_map(|all| all.iter()).map(|(id, _)| id).collect();
            all.into_iter().for_each(|id| state.set_reservation_mask(id, wanted));
            value(0)
        }
        feature::RESERVATION_EVENTS => {
            namespace_of(state, sqe)?;
            state.set_reservation_mask(sqe.namespace(), wanted);
            value(0)
        }
        // Register decides on it (CPTPL), because the state must be saved with it.
        feature::RESERVATION_PERSISTENCE | feature::WRITE_CACHE | feature::HOST_ID => {
            Err(NvmeStatus::FEATURE_NOT_CHANGEABLE)
        }
        _ => {
            state.keep_feature(id, wanted);
            value(0)
        }
    }
}

/// Number of Queues: both numbers are 0-based, and FFFFh is reserved.
fn set_queues(state: &mut AdminState, wanted: u32) -> Result<FeatureValue, NvmeStatus> {
    let (submission, completion) = (wanted as u16, (wanted >> 16) as u16);
    if submission == u16::MAX || completion == u16::MAX {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    if state.controller().has_queues() {
        return Err(NvmeStatus::SEQUENCE_ERROR);
    }
    let granted = submission.min(completion).min(MAX_IO_QUEUES - 1);
    state.controller().set_max_queues(granted + 1);
    value(u64::from(granted) << 16 | u64::from(granted))
}
