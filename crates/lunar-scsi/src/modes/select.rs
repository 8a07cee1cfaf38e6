//! MODE SELECT (SPC-5 sections 6.13 and 6.14). A list is applied as a whole or not at all.

use super::{ChangeableValues, pages};
use crate::table::CommandContext;
use crate::{LuSettings, Plan, PlanResult, State};
use lunar_wire::scsi::cdb;
use lunar_wire::scsi::cdb::mode_select_10::{PF, SP};
use lunar_wire::scsi::mode::{
    BlockDescriptorLayout, HeaderLayout, ModeHeader, PAGE_CODE, PAGE_HEADER_LEN, PAGE_LENGTH, PS, SPF,
};
use lunar_wire::scsi::{BitField, Sense};

pub(super) fn mode_select_6(cx: &mut CommandContext<'_>) -> PlanResult {
    let len = cdb::mode_select_6::PARAMETER_LIST_LENGTH.get_u32(cx.cdb);
    mode_select(cx, HeaderLayout::SIX, len)
}

pub(super) fn mode_select_10(cx: &mut CommandContext<'_>) -> PlanResult {
    let len = cdb::mode_select_10::PARAMETER_LIST_LENGTH.get_u32(cx.cdb);
    mode_select(cx, HeaderLayout::TEN, len)
}

fn mode_select(cx: &mut CommandContext<'_>, layout: HeaderLayout, len: u32) -> PlanResult {
    if len != 0 && !PF.is_set(cx.cdb) {
        return Err(Sense::in_cdb(PF).into());
    }
    if SP.is_set(cx.cdb) && !cx.state.reservations.can_persist() {
        return Err(Sense::in_cdb(SP).into());
    }
    let list = match cx.parameters {
        _ if len == 0 => &[][..],
        None => return Ok(Plan::Parameters { len }),
        Some(list) => list,
    };
    let mut values = cx.state.modes.current;
    if len != 0 {
        take(list, layout, &cx.lu.settings(), cx.state, &mut values)?;
    }
    Ok(apply(cx, values))
}

fn apply(cx: &mut CommandContext<'_>, values: ChangeableValues) -> Plan {
    let modes = &mut cx.state.modes;
    let changed = std::mem::replace(&mut modes.current, values) != values;
    if SP.is_set(cx.cdb) {
        modes.saved = Some(values);
        cx.state.mark_persistent_change();
    }
    if changed {
        cx.state.mark_shared_change();
        cx.state.raise_on_others_everywhere(Sense::MODE_PARAMETERS_CHANGED, cx.nexus);
    }
    Plan::Done
}

/// Parses header, block descriptor and pages.
fn take(
    list: &[u8],
    layout: HeaderLayout,
    settings: &LuSettings,
    state: &State,
    values: &mut ChangeableValues,
) -> Result<(), Sense> {
    let head = list.get(..layout.len).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let header = ModeHeader::decode(head, layout);
    if header.medium_type != 0 {
        return Err(Sense::in_parameters(layout.medium_type));
    }
    let descriptor_layout = BlockDescriptorLayout::of(header.longlba);
    let descriptor_len = usize::from(header.block_descriptor_length);
    if descriptor_len != 0 && descriptor_len != descriptor_layout.len {
        return Err(Sense::in_parameters(layout.block_descriptor_length));
    }
    let pages_at = layout.len + descriptor_len;
    let descriptor = list.get(layout.len..pages_at).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    if !descriptor.is_empty() {
        let invalid = |field: BitField| Sense::in_parameters(field.after(layout.len as u16));
        check_descriptor(descriptor, descriptor_layout, settings, state).map_err(invalid)?;
    }
    take_pages(list, pages_at, settings, values)
}

/// Checks a block descriptor. The medium cannot be formatted: number and size of blocks must be the current ones, 0,
/// or all ones. An error is the field.
fn check_descriptor(
    descriptor: &[u8],
    layout: BlockDescriptorLayout,
    settings: &LuSettings,
    state: &State,
) -> Result<(), BitField> {
    let blocks = layout.number_of_logical_blocks.get(descriptor);
    let size = layout.logical_block_length.get_u32(descriptor);
    if blocks != 0 && blocks != layout.max_blocks() && blocks != state.blocks {
        return Err(layout.number_of_logical_blocks);
    }
    if size != 0 && size != settings.block_size {
        return Err(layout.logical_block_length);
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
        let rest = &list[at..];
        let invalid = |field: BitField| Sense::in_parameters(field.after(at as u16));
        let page = pages::of(settings.device_type).find(|p| p.code == PAGE_CODE.get_u8(rest));
        let page = page.ok_or(invalid(PAGE_CODE))?;
        if let Some(reserved) = [PS, SPF].into_iter().find(|field| field.is_set(rest)) {
            return Err(invalid(reserved));
        }
        if rest.len() < PAGE_HEADER_LEN {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let len = PAGE_LENGTH.get_u8(rest);
        if len != page.page_length() {
            return Err(invalid(PAGE_LENGTH));
        }
        let bytes = rest.get(..PAGE_HEADER_LEN + usize::from(len)).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        page.take(bytes, values).map_err(invalid)?;
        at += bytes.len();
    }
    Ok(())
}
