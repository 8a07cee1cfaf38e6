//! The data of Identify.

use super::admin_state::{AdminState, EVENT_REQUESTS};
use super::error_log::ERROR_ENTRIES;
use super::limits::{IN_CAPSULE_LEN, MAX_NAMESPACES, MAX_QUEUE_LEN, MAX_TRANSFER_SHIFT};
use super::namespaces::Namespace;
use lunar_proto::nvme::{AsyncEvent, ControllerKind, MAX_COPY_RANGES, max_copy_blocks, max_copy_range};
use lunar_wire::nvme::{
    DISCOVERY_NQN, IdentifyController, IdentifyNamespace, NvmeStatus, Sqe, namespace_list, padded_text,
};

/// Structures that Identify returns (CNS, command dword 10).
mod wanted {
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    pub const NAMESPACE_LIST: u8 = 0x02;
    pub const IDENTIFIERS: u8 = 0x03;
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    pub const COMMAND_SET_NAMESPACE_LIST: u8 = 0x07;
    pub const ALLOCATED_LIST: u8 = 0x10;
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    pub const NAMESPACE_CONTROLLERS: u8 = 0x12;
    pub const CONTROLLERS: u8 = 0x13;
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// Bytes of every structure.
const LEN: usize = 4096;
/// Multipath: several ports, several controllers, and access states.
const MULTIPATH: u8 = 0x0b;
/// Host identifiers of 128 bits, and Keep Alive by traffic.
const ATTRIBUTES: u32 = 0x41;
/// The delay of commands that the logical unit does not take now, in units of 100 ms.
const RETRY_DELAY: u16 = 10;
/// The most Abort commands at a time, 0-based.
pub const ABORTS: u8 = 3;
/// One slot for firmware, which is read-only.
const FIRMWARE_SLOTS: u8 = 0x03;
/// Log pages: offsets, the list of supported pages.
const LOG_ATTRIBUTES: u8 = 0x24;
/// There is a log page of the effects of commands.
const EFFECTS_LOG: u8 = 0x02;
/// Granularity of the keep-alive timer in units of 100 ms.
pub const KEEP_ALIVE_UNITS: u16 = 10;
/// Seconds in which an access state changes.
const ACCESS_TRANSITION_S: u8 = 30;
/// Access states: all but persistent loss. The group of a namespace does not change.
const ACCESS_STATES: u8 = 0x57;
/// Compare, Dataset Management, Write Zeroes, Reservations, Verify, Copy.
const COMMANDS: u16 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 7 | 1 << 8;
/// Copy takes source ranges of format 0.
const COPY_FORMATS: u16 = 1 << 0;
/// Compare and Write.
const FUSED: u16 = 1;
/// There is a write cache. Flush needs a namespace.
const WRITE_CACHE: u8 = 0x05;
/// Descriptors of data, whose address may be an offset.
const SGLS: u32 = 1 << 0 | 1 << 20;
/// All types of reservations.
const RESERVATION_TYPES: u8 = 0x7e;
/// Reservations persist.
const RESERVATIONS_PERSIST: u8 = 0x01;
/// Deallocated blocks read as zeros, and Write Zeroes may deallocate.
const DEALLOCATION: u8 = 0x09;
/// Features of a namespace: thin, its own atomic units, preferred granularities.
const THIN: u8 = 1 << 0;
const OWN_ATOMIC_UNITS: u8 = 1 << 1;
const GRANULARITIES: u8 = 1 << 4;
/// Bytes of a page of the log and of capsules.
const CAPSULE_UNIT: u32 = 16;
/// The unit of the size of an entry.
const ENTRY: u32 = 64;

/// Executes Identify.
///
/// # Errors
/// The status of the command.
pub fn identify(state: &AdminState, sqe: &Sqe) -> Result<Vec<u8>, NvmeStatus> {
    let (cns, id) = (sqe.dword(10) as u8, sqe.namespace());
    let nvm_only = || if sqe.dword(11) >> 24 == 0 { Ok(()) } else { Err(NvmeStatus::INVALID_FIELD) };
    if state.kind() == ControllerKind::Discovery && cns != wanted::CONTROLLER {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    match cns {
        wanted::CONTROLLER => Ok(controller(state).encode().to_vec()),
        wanted::NAMESPACE | wanted::ALLOCATED_NAMESPACE => {
            Ok(known(state, id)?.map_or_else(zeros, |found| namespace(id, found).encode().to_vec()))
        }
        wanted::NAMESPACE_LIST | wanted::ALLOCATED_LIST => list(state, id),
        wanted::COMMAND_SET_NAMESPACE_LIST => nvm_only().and_then(|()| list(state, id)),
        wanted::IDENTIFIERS => {
            known(state, id)?.map(|found| found.ids.list()).ok_or(NvmeStatus::INVALID_NAMESPACE)
        }
        wanted::COMMAND_SET_NAMESPACE => {
            nvm_only()?;
            known(state, id).map(|_| zeros())
        }
        // No limits beside those of all commands.
        wanted::COMMAND_SET_CONTROLLER => nvm_only().map(|()| zeros()),
        wanted::NAMESPACE_CONTROLLERS => {
            let is_there = known(state, id)?.is_some();
            Ok(controllers(state, sqe, is_there))
        }
        wanted::CONTROLLERS => Ok(controllers(state, sqe, true)),
        wanted::COMMAND_SETS => Ok(command_sets()),
        _ => Err(NvmeStatus::INVALID_FIELD),
    }
}

fn zeros() -> Vec<u8> {
    vec![0; LEN]
}

/// The namespace, if it is active.
fn known(state: &AdminState, id: u32) -> Result<Option<&Namespace>, NvmeStatus> {
    match id {
        1..=MAX_NAMESPACES => Ok(state.namespaces().and_then(|all| all.get(id))),
        _ => Err(NvmeStatus::INVALID_NAMESPACE),
    }
}

fn list(state: &AdminState, after: u32) -> Result<Vec<u8>, NvmeStatus> {
    if after >= u32::MAX - 1 {
        return Err(NvmeStatus::INVALID_NAMESPACE);
    }
    let ids = state.namespaces().into_iter().flat_map(|all| all.iter()).map(|(id, _)| id);
    Ok(namespace_list(ids, after).to_vec())
}

/// The list of controllers from an identifier on: this one, since each host learns of its own ones.
fn controllers(state: &AdminState, sqe: &Sqe, is_there: bool) -> Vec<u8> {
    let (mut list, own) = (zeros(), state.controller().id());
    if is_there && u32::from(own) >= sqe.dword(10) >> 16 {
        list[0] = 1;
        list[2..4].copy_from_slice(&own.to_le_bytes());
    }
    list
}

/// The combinations of command sets: the NVM command set alone.
fn command_sets() -> Vec<u8> {
    let mut sets = zeros();
    sets[0] = 1;
    sets
}

fn controller(state: &AdminState) -> IdentifyController {
    let settings = state.settings();
    let common = IdentifyController {
        serial: padded_text(&settings.serial),
        model: padded_text(&settings.model),
        firmware: padded_text(env!("CARGO_PKG_VERSION")),
        max_transfer: MAX_TRANSFER_SHIFT,
        controller: state.controller().id(),
        version: state.version(),
        attributes: ATTRIBUTES,
        event_requests: EVENT_REQUESTS as u8 - 1,
        log_attributes: LOG_ATTRIBUTES,
        error_entries: ERROR_ENTRIES as u8 - 1,
        keep_alive: KEEP_ALIVE_UNITS,
        max_commands: MAX_QUEUE_LEN as u16,
        sgls: SGLS,
        subsystem: subsystem(state),
        command_capsule: (ENTRY + IN_CAPSULE_LEN as u32) / CAPSULE_UNIT,
        response_capsule: 1,
        max_descriptors: 1,
        ..IdentifyController::zeroed()
    };
    match state.kind() {
        ControllerKind::Discovery => IdentifyController {
            kind: 2,
            events: AsyncEvent::DiscoveryChanged.bit().unwrap_or_default(),
            ..common
        },
        ControllerKind::Io => io_controller(common),
    }
}

fn io_controller(common: IdentifyController) -> IdentifyController {
    let bits = |events: &[AsyncEvent]| events.iter().filter_map(|event| event.bit()).sum();
    IdentifyController {
        kind: 1,
        multipath: MULTIPATH,
        log_attributes: common.log_attributes | EFFECTS_LOG,
        events: bits(&[AsyncEvent::NamespaceChanged, AsyncEvent::AccessChanged]),
        retry_delay: RETRY_DELAY,
        aborts: ABORTS,
        firmware_slots: FIRMWARE_SLOTS,
        access_transition_s: ACCESS_TRANSITION_S,
        access_states: ACCESS_STATES,
        max_access_group: MAX_NAMESPACES,
        access_groups: MAX_NAMESPACES,
        submission_entry: 0x66,
        completion_entry: 0x44,
        namespaces: MAX_NAMESPACES,
        max_namespaces: MAX_NAMESPACES,
        commands: COMMANDS,
        fused: FUSED,
        write_cache: WRITE_CACHE,
        copy_formats: COPY_FORMATS,
        ..common
    }
}

/// The name of the subsystem.
fn subsystem(state: &AdminState) -> [u8; 256] {
    let name = match state.kind() {
        ControllerKind::Io => state.controller().subsystem(),
        ControllerKind::Discovery => DISCOVERY_NQN,
    };
    let mut field = [0; 256];
    field.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    field
}

fn namespace(id: u32, found: &Namespace) -> IdentifyNamespace {
    let view = &found.view;
    let blocks_of_physical = (view.physical_block_size / view.block_size).clamp(1, 1 << 15) as u16;
    let compared = u16::from(view.max_compare_and_write.max(1));
    let persists = if view.persistent_reservations { RESERVATIONS_PERSIST } else { 0 };
    IdentifyNamespace {
        size: view.blocks,
        // A host takes a namespace without capacity for one that has gone.
        capacity: view.blocks,
        used: view.blocks,
        features: OWN_ATOMIC_UNITS | GRANULARITIES | if view.thin { THIN } else { 0 },
        sharing: 1,
        reservations: if view.reservable { RESERVATION_TYPES | persists } else { 0 },
        deallocation: if view.thin { DEALLOCATION } else { 0 },
        atomic_compare: compared - 1,
        write_granularity: blocks_of_physical - 1,
        write_alignment: blocks_of_physical - 1,
        optimal_write: blocks_of_physical - 1,
        max_copy_range: max_copy_range(view.block_size),
        max_copy: max_copy_blocks(view.block_size),
        copy_ranges: MAX_COPY_RANGES as u8 - 1,
        deallocate_granularity: blocks_of_physical - 1,
        deallocate_alignment: blocks_of_physical - 1,
        access_group: id,
        attributes: view.write_protected.into(),
        nguid: found.ids.nguid,
        eui64: found.ids.eui64,
        block_shift: view.block_size.trailing_zeros() as u8,
        ..IdentifyNamespace::zeroed()
    }
}
