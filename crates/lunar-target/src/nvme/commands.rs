//! Commands of the NVM command set, as SCSI commands of the core.

use super::copy;
use super::fused::{FusedHalf, FusedPair};
use super::limits::{MAX_NAMESPACES, MAX_TRANSFER};
use super::queue::NvmeQueue;
use super::reservations;
use crate::core::{Cdb, NexusState, ScsiCommand, TaskAttribute};
use lunar_proto::nvme::{BlockCommand, NvmAction, fused, transfer, translate, unmap_list};
use lunar_runtime::{Buf, ReceivedData};
use lunar_wire::nvme::{DataPlace, Fuse, NvmeStatus, Sqe, nvm_opcode};
use lunar_wire::scsi::cdb;

/// A block of zeros, which the host of Write Zeroes does not send; as long as the longest block.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The most data of a reservation command.
const MAX_COLLECTED: u32 = 4096;

/// The LUN field of a namespace. None: it is no valid identifier of one. Larger numbers would have the fields of smaller ones.
pub fn lun_of(namespace: u32) -> Option<u64> {
    let number = u16::try_from(namespace).ok();
    number.filter(|_| (1..=MAX_NAMESPACES).contains(&namespace)).map(lunar_wire::scsi::lun::encode)
}

/// Begins a command of the queue. `data` are those in its capsule.
#[inline(always)]
pub fn begin(state: &mut NexusState<NvmeQueue>, sqe: &Sqe, place: DataPlace, data: ReceivedData<'_>) {
    if sqe.fuse() == Fuse::Second {
        return second_half(state, sqe, place, &data);
    }
    end_first_half(state);
    if sqe.data().len > MAX_TRANSFER {
        return state.front_mut().complete_entry(sqe, NvmeStatus::INVALID_FIELD);
    }
    let Some((lun, block_size)) = lun_of(sqe.namespace()).and_then(|lun| Some((lun, state.block_size(lun)?)))
    else {
        return state.front_mut().complete_entry(sqe, NvmeStatus::INVALID_NAMESPACE);
    };
    match sqe.opcode() {
        _ if sqe.fuse() == Fuse::First => first_half(state, sqe, place, &data),
        _ if sqe.fuse() == Fuse::Reserved => {
            state.front_mut().complete_entry(sqe, NvmeStatus::INVALID_FIELD);
        }
        nvm_opcode::READ | nvm_opcode::WRITE => match transfer(sqe, block_size) {
            Ok(command) if fits(&command, place) => submit_inline(state, sqe, lun, command, data),
            Ok(_) => state.front_mut().complete_entry(sqe, NvmeStatus::INVALID_FIELD),
            Err(status) => state.front_mut().complete_entry(sqe, status),
        },
        opcode if reservations::is_one(opcode) => begin_collected(state, sqe, place, &data),
        nvm_opcode::DATASET_MANAGEMENT | nvm_opcode::COPY => begin_collected(state, sqe, place, &data),
        _ => plain(state, sqe, (lun, block_size), place, data),
    }
}

/// Begins a command whose data the core moves, if it has some.
fn plain(
    state: &mut NexusState<NvmeQueue>,
    sqe: &Sqe,
    (lun, block_size): (u64, u32),
    place: DataPlace,
    data: ReceivedData<'_>,
) {
    match translate(sqe, block_size) {
        Ok(NvmAction::Blocks(command)) if fits(&command, place) => {
            submit_to_core(state, sqe, lun, command, data);
        }
        Ok(NvmAction::Zeroes(command)) => {
            let command = BlockCommand { from_host: block_size, ..command };
            let zeros = &ZEROS[..block_size as usize];
            submit_to_core(state, sqe, lun, command, ReceivedData::Bytes(zeros));
        }
        Ok(_) => state.front_mut().complete_entry(sqe, NvmeStatus::INVALID_FIELD),
        Err(status) => state.front_mut().complete_entry(sqe, status),
    }
}

/// Whether the data are where they can be: those to the host are never in the capsule.
fn fits(command: &BlockCommand, place: DataPlace) -> bool {
    command.to_host == 0 || place == DataPlace::Host
}

/// Submits a command to the core.
fn submit_to_core(
    state: &mut NexusState<NvmeQueue>,
    sqe: &Sqe,
    lun: u64,
    command: BlockCommand,
    data: ReceivedData<'_>,
) {
    submit_inline(state, sqe, lun, command, data);
}

/// The same for the commands whose rate counts: a copy of a value that was just made takes a dozen cycles, and inline there
/// is none.
#[inline(always)]
fn submit_inline(
    state: &mut NexusState<NvmeQueue>,
    sqe: &Sqe,
    lun: u64,
    command: BlockCommand,
    data: ReceivedData<'_>,
) {
    let BlockCommand { cdb, to_host, from_host } = command;
    let command = ScsiCommand {
        tag: sqe.id().into(),
        connection: 0,
        lun,
        sequence: state.front_mut().take_sequence(),
        immediate: false,
        reads: to_host > 0,
        writes: from_host > 0,
        has_unsolicited: false,
        copies_stably: sqe.is_fua(),
        attribute: TaskAttribute::Simple,
        expected_len: to_host.max(from_host),
        cdb: Cdb::Short(cdb),
    };
    state.command(&command, data);
}

/// Ends a command whose capsule was damaged on the way. The first half of a pair still waits for the second one, with which it
/// ends: other commands must not follow it.
pub fn damaged(state: &mut NexusState<NvmeQueue>, sqe: &Sqe, place: DataPlace) {
    if sqe.fuse() == Fuse::Second {
        return match state.front_mut().pairs.take_first() {
            Some(first) => {
                fail_pair(state, [&first.sqe, sqe], NvmeStatus::TRANSIENT_TRANSPORT_ERROR);
            }
            None => state.front_mut().complete_entry(sqe, NvmeStatus::TRANSIENT_TRANSPORT_ERROR),
        };
    }
    end_first_half(state);
    if sqe.fuse() == Fuse::First {
        let data = (place != DataPlace::Host).then(|| Buf::zeroed(0));
        return state.front_mut().pairs.hold(FusedHalf { sqe: *sqe, data, is_damaged: true });
    }
    state.front_mut().complete_entry(sqe, NvmeStatus::TRANSIENT_TRANSPORT_ERROR);
}

/// Whether the data of a command that is collected may have this length. Those of reservations are checked by their translation,
/// but no host needs more than a page.
fn may_collect(sqe: &Sqe) -> Result<(), NvmeStatus> {
    match reservations::is_one(sqe.opcode()) {
        true if sqe.data().len > MAX_COLLECTED => Err(NvmeStatus::SGL_INVALID_LENGTH),
        true => Ok(()),
        false => translate(sqe, 0).map(drop),
    }
}

/// Begins a command that needs all its data first.
fn begin_collected(state: &mut NexusState<NvmeQueue>, sqe: &Sqe, place: DataPlace, data: &ReceivedData<'_>) {
    let to_host = reservations::to_host(sqe.opcode());
    let checked = if to_host { Ok(()) } else { may_collect(sqe) };
    match (checked, place) {
        (Err(status), _) => state.front_mut().complete_entry(sqe, status),
        (_, DataPlace::Host) if to_host => run(state, sqe, &[]),
        _ if to_host => state.front_mut().complete_entry(sqe, NvmeStatus::SGL_INVALID_TYPE),
        (_, DataPlace::Host) => request(state, sqe),
        (_, DataPlace::Capsule | DataPlace::None) => run(state, sqe, data.bytes()),
    }
}

/// Requests all data of a command.
fn request(state: &mut NexusState<NvmeQueue>, sqe: &Sqe) {
    let len = sqe.data().len;
    let Some(buf) = state.pool().try_get(len as usize) else {
        return state.front_mut().respond_busy(sqe.id());
    };
    let queue = state.front_mut();
    queue.transfers.collect(*sqe, buf);
    queue.connection().request(sqe.id(), 0, len);
    queue.limit_transfers();
}

/// Continues a command whose requested data are here.
pub fn collected(state: &mut NexusState<NvmeQueue>, sqe: &Sqe, data: Buf, is_damaged: bool) {
    if sqe.fuse() != Fuse::None {
        if let Some(pair) = state.front_mut().pairs.add_data(sqe.id(), data, is_damaged) {
            run_pair(state, pair);
        }
        return;
    }
    match is_damaged {
        true => state.front_mut().complete_entry(sqe, NvmeStatus::TRANSIENT_TRANSPORT_ERROR),
        false => run(state, sqe, &data),
    }
}

/// Runs a command with all its data.
fn run(state: &mut NexusState<NvmeQueue>, sqe: &Sqe, data: &[u8]) {
    let Some(lun) = lun_of(sqe.namespace()) else { return };
    let id = sqe.id();
    match reservations::is_one(sqe.opcode()) {
        true => match reservations::translate(state, sqe, lun, data) {
            Ok(reservations::Translated::Command(cdb, list)) => submit(state, sqe, lun, cdb, &list),
            Ok(reservations::Translated::Report(report)) => {
                state.front_mut().complete_with_data(id, report);
            }
            Err(status) => state.front_mut().complete_entry(sqe, status),
        },
        false => match translate(sqe, 0) {
            // Deallocation is a hint.
            Ok(NvmAction::Unmap { .. }) if !is_thin(state, lun) => {
                state.front_mut().complete(id, NvmeStatus::SUCCESS);
            }
            Ok(NvmAction::Unmap { ranges, .. }) if data.len() >= ranges * 16 => {
                let list = unmap_list(data, ranges);
                submit(state, sqe, lun, cdb::unmap(list.len() as u16), &list);
            }
            Ok(NvmAction::Copy { .. }) => match copy::parameter_list(state, sqe, lun, data) {
                Ok(list) => submit(state, sqe, lun, cdb::extended_copy(list.len() as u32), &list),
                Err(status) => state.front_mut().complete_entry(sqe, status),
            },
            Ok(NvmAction::Ignored { .. }) => state.front_mut().complete(id, NvmeStatus::SUCCESS),
            Ok(_) => state.front_mut().complete_entry(sqe, NvmeStatus::SGL_INVALID_LENGTH),
            Err(status) => state.front_mut().complete_entry(sqe, status),
        },
    }
}

fn is_thin(state: &mut NexusState<NvmeQueue>, lun: u64) -> bool {
    state.namespace(lun).is_none_or(|view| view.thin)
}

/// Submits a SCSI command with a parameter list.
fn submit(state: &mut NexusState<NvmeQueue>, sqe: &Sqe, lun: u64, cdb: cdb::Cdb, list: &[u8]) {
    let command = BlockCommand { cdb, to_host: 0, from_host: list.len() as u32 };
    submit_to_core(state, sqe, lun, command, ReceivedData::Bytes(list));
}

/// Ends a first command that no second one follows.
#[inline]
pub fn end_first_half(state: &mut NexusState<NvmeQueue>) {
    if state.front().pairs.has_first()
        && let Some(half) = state.front_mut().pairs.take_first()
    {
        state.front_mut().complete_entry(&half.sqe, NvmeStatus::MISSING_FUSED);
    }
}

/// A half of a pair. Data in the capsule are copied.
fn half(
    state: &mut NexusState<NvmeQueue>,
    sqe: &Sqe,
    place: DataPlace,
    data: &ReceivedData<'_>,
) -> Option<FusedHalf> {
    let data = match place {
        DataPlace::Host => None,
        DataPlace::Capsule | DataPlace::None => {
            let bytes = data.bytes();
            let mut buf = state.pool().try_get(bytes.len())?;
            buf.copy_from_slice(bytes);
            Some(buf)
        }
    };
    Some(FusedHalf { sqe: *sqe, data, is_damaged: false })
}

fn first_half(state: &mut NexusState<NvmeQueue>, sqe: &Sqe, place: DataPlace, data: &ReceivedData<'_>) {
    match half(state, sqe, place, data) {
        Some(half) => state.front_mut().pairs.hold(half),
        None => state.front_mut().respond_busy(sqe.id()),
    }
}

fn second_half(state: &mut NexusState<NvmeQueue>, sqe: &Sqe, place: DataPlace, data: &ReceivedData<'_>) {
    let Some(first) = state.front_mut().pairs.take_first() else {
        return state.front_mut().complete_entry(sqe, NvmeStatus::MISSING_FUSED);
    };
    let both = [first.sqe.id(), sqe.id()];
    if first.is_damaged {
        return fail_pair(state, [&first.sqe, sqe], NvmeStatus::TRANSIENT_TRANSPORT_ERROR);
    }
    let block_size = lun_of(sqe.namespace()).and_then(|lun| state.block_size(lun));
    let checked = fused(&first.sqe, sqe, block_size.unwrap_or_default());
    let lengths = [first.sqe.data().len, sqe.data().len];
    if let Some(status) = checked
        .err()
        .or(lengths.iter().any(|len| *len > MAX_TRANSFER / 2).then_some(NvmeStatus::INVALID_FIELD))
    {
        return fail_pair(state, [&first.sqe, sqe], status);
    }
    let Some(second) = half(state, sqe, place, data) else { return busy_pair(state, both) };
    let pair = FusedPair { first, second };
    if pair.is_complete() {
        return run_pair(state, pair);
    }
    request_pair(state, pair);
}

/// Completes both commands of a pair, which was not executed.
fn fail_pair(state: &mut NexusState<NvmeQueue>, [first, second]: [&Sqe; 2], status: NvmeStatus) {
    state.front_mut().complete_entry(first, status);
    let of_second = NvmeStatus { do_not_retry: status.do_not_retry, ..NvmeStatus::FAILED_FUSED };
    state.front_mut().complete_entry(second, of_second);
}

/// Completes both commands of a pair later: the target has no memory for them now.
fn busy_pair(state: &mut NexusState<NvmeQueue>, [first, second]: [u16; 2]) {
    state.front_mut().pairs.execute(first, second);
    state.front_mut().respond_busy(first);
}

/// Requests the data of a pair that are not here. No data are requested unless there is room for all.
fn request_pair(state: &mut NexusState<NvmeQueue>, pair: FusedPair) {
    let ids = [pair.first.sqe.id(), pair.second.sqe.id()];
    let missing: Vec<Sqe> =
        [&pair.first, &pair.second].iter().filter(|half| half.data.is_none()).map(|half| half.sqe).collect();
    let buffers: Option<Vec<Buf>> =
        missing.iter().map(|sqe| state.pool().try_get(sqe.data().len as usize)).collect();
    let Some(buffers) = buffers else { return busy_pair(state, ids) };
    let queue = state.front_mut();
    for (sqe, buf) in missing.into_iter().zip(buffers) {
        queue.transfers.collect(sqe, buf);
        queue.connection().request(sqe.id(), 0, sqe.data().len);
    }
    queue.pairs.wait(pair);
    queue.limit_transfers();
}

/// Executes a pair with all its data.
fn run_pair(state: &mut NexusState<NvmeQueue>, pair: FusedPair) {
    let FusedPair { first, second } = &pair;
    let both_halves = [&first.sqe, &second.sqe];
    let ids = both_halves.map(Sqe::id);
    if pair.is_damaged() {
        return fail_pair(state, both_halves, NvmeStatus::TRANSIENT_TRANSPORT_ERROR);
    }
    let target = lun_of(first.sqe.namespace()).and_then(|lun| Some((lun, state.block_size(lun)?)));
    let Some((lun, block_size)) = target else {
        return fail_pair(state, both_halves, NvmeStatus::INVALID_NAMESPACE);
    };
    let command = match fused(&first.sqe, &second.sqe, block_size) {
        Ok(command) => command,
        Err(status) => return fail_pair(state, both_halves, status),
    };
    let (Some(expected), Some(new)) = (&first.data, &second.data) else { return };
    let Some(mut both) = state.pool().try_get(expected.len() + new.len()) else {
        return busy_pair(state, ids);
    };
    both[..expected.len()].copy_from_slice(expected);
    both[expected.len()..].copy_from_slice(new);
    state.front_mut().pairs.execute(ids[0], ids[1]);
    submit_to_core(state, &first.sqe, lun, command, ReceivedData::Buf(both));
}
