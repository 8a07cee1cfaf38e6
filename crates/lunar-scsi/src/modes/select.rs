//! MODE SELECT (SPC-5 sections 6.13 and 6.14). A list is applied as a whole or not at all.

use super::{ChangeableValues, pages};
use crate::table::CommandContext;
use crate::{LuSettings, Plan, PlanResult, State};
use lunar_wire::be;
use lunar_wire::scsi::{Sense, op};

/// PF and SP, byte 1.
const PF: u8 = 0x10;
const SP: u8 = 0x01;
/// SPF, byte 0 of a page.
const SPF: u8 = 0x40;
/// PS, byte 0 of a page; reserved in MODE SELECT.
const PS: u8 = 0x80;

pub(super) fn mode_select(cx: &mut CommandContext<'_>) -> PlanResult {
    let long = cx.cdb[0] == op::MODE_SELECT_10;
    let len = if long { be::get16(&cx.cdb[7..]) as u32 } else { cx.cdb[4] as u32 };
    if len != 0 && cx.cdb[1] & PF == 0 {
        return Err(Sense::cdb_field(1, 4).into());
    }
    if cx.cdb[1] & SP != 0 && !cx.state.reservations.can_persist() {
        return Err(Sense::cdb_field(1, 0).into());
    }
    let list = match cx.parameters {
        _ if len == 0 => &[][..],
        None => return Ok(Plan::Parameters { len }),
        Some(list) => list,
    };
    let mut values = cx.state.modes.current;
    if len != 0 {
        take(list, long, &cx.lu.settings(), cx.state, &mut values)?;
    }
    Ok(apply(cx, values))
}

fn apply(cx: &mut CommandContext<'_>, values: ChangeableValues) -> Plan {
    let modes = &mut cx.state.modes;
    let changed = std::mem::replace(&mut modes.current, values) != values;
    if cx.cdb[1] & SP != 0 {
        modes.saved = Some(values);
        cx.state.mark_persistent_change();
    }
    if changed {
        cx.state.raise_on_others(Sense::MODE_PARAMETERS_CHANGED, cx.nexus);
    }
    Plan::Done
}

/// Parses header, block descriptor and pages.
fn take(
    list: &[u8],
    long: bool,
    settings: &LuSettings,
    state: &State,
    values: &mut ChangeableValues,
) -> Result<(), Sense> {
    let head = if long { 8 } else { 4 };
    let header = list.get(..head).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let (long_lba, descriptor_at) = if long { (header[4] & 1 != 0, 6) } else { (false, 3) };
    let descriptor_len = if long { be::get16(&header[6..]) as usize } else { header[3] as usize };
    if header[if long { 2 } else { 1 }] != 0 {
        return Err(Sense::parameter_field(if long { 2 } else { 1 }, 7));
    }
    if descriptor_len != 0 && descriptor_len != if long_lba { 16 } else { 8 } {
        return Err(Sense::parameter_field(descriptor_at, 7));
    }
    let pages_at = head + descriptor_len;
    let descriptor = list.get(head..pages_at).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    if !descriptor.is_empty() {
        check_descriptor(descriptor, head, settings, state)?;
    }
    take_pages(list, pages_at, settings, values)
}

/// Checks a block descriptor. The medium cannot be formatted: number and size of blocks must be the current ones, 0,
/// or all ones.
fn check_descriptor(descriptor: &[u8], at: usize, settings: &LuSettings, state: &State) -> Result<(), Sense> {
    let (blocks, all, size, size_at) = if descriptor.len() == 16 {
        (be::get64(descriptor), u64::MAX, be::get32(&descriptor[12..]), 12)
    } else {
        (be::get32(descriptor) as u64, u32::MAX as u64, be::get24(&descriptor[5..]), 5)
    };
    if blocks != 0 && blocks != all && blocks != state.blocks {
        return Err(Sense::parameter_field(at as u16, 7));
    }
    if size != 0 && size != settings.block_size {
        return Err(Sense::parameter_field((at + size_at) as u16, 7));
    }
    Ok(())
}

fn take_pages(
    list: &[u8],
    mut at: usize,
    settings: &LuSettings,
    values: &mut ChangeableValues,
) -> Result<(), Sense> {
    while at < list.len() {
        let head = list[at];
        let page = pages::of(settings.device_type).find(|p| p.code == head & 0x3f);
        let page = page.ok_or(Sense::parameter_field(at as u16, 5))?;
        if head & (SPF | PS) != 0 {
            return Err(Sense::parameter_field(at as u16, if head & PS != 0 { 7 } else { 6 }));
        }
        let &len = list.get(at + 1).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        if len != page.changeable()[1] {
            return Err(Sense::parameter_field(at as u16 + 1, 7));
        }
        let end = at + 2 + len as usize;
        let bytes = list.get(at..end).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let wrong = |(byte, bit): (usize, u8)| Sense::parameter_field((at + byte) as u16, bit);
        page.take(bytes, values).map_err(wrong)?;
        at = end;
    }
    Ok(())
}
