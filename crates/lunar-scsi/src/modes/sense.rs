//! MODE SENSE (SPC-5 sections 6.15 and 6.16).

use super::pages::{self, ModePageTemplate};
use crate::dispatch::write_protected;
use crate::table::CommandContext;
use crate::{PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::cdb;
use lunar_wire::scsi::cdb::mode_sense_10::{DBD, LLBAA, PAGE_CODE, PC, SUBPAGE_CODE};
use lunar_wire::scsi::mode::{ALL_PAGES, ALL_SUBPAGES, BlockDescriptorLayout, HeaderLayout, ModeHeader, PS};

/// PC of the saved values.
const SAVED: u8 = 3;

pub(super) fn mode_sense_6(cx: &mut CommandContext<'_>) -> PlanResult {
    let data = data(cx, HeaderLayout::SIX, false)?;
    Ok(Plan::data_cut(data, cdb::mode_sense_6::ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

pub(super) fn mode_sense_10(cx: &mut CommandContext<'_>) -> PlanResult {
    let data = data(cx, HeaderLayout::TEN, LLBAA.is_set(cx.cdb))?;
    Ok(Plan::data_cut(data, cdb::mode_sense_10::ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

/// Header, block descriptor and pages.
fn data(cx: &CommandContext<'_>, layout: HeaderLayout, longlba: bool) -> Result<Vec<u8>, Sense> {
    let pages = wanted(cx)?;
    let descriptor = if DBD.is_set(cx.cdb) { Vec::new() } else { block_descriptor(cx, longlba) };
    let header = header(cx, longlba, descriptor.len()).encode(layout);
    let mut data = [header, descriptor, pages].concat();
    layout.mode_data_length.set_following_len(&mut data);
    Ok(data)
}

/// The pages that the CDB selects, with the values that PC selects.
fn wanted(cx: &CommandContext<'_>) -> Result<Vec<u8>, Sense> {
    let (code, subpage) = (PAGE_CODE.get_u8(cx.cdb), SUBPAGE_CODE.get_u8(cx.cdb));
    if subpage != 0 && subpage != ALL_SUBPAGES {
        return Err(Sense::in_cdb(SUBPAGE_CODE));
    }
    let (modes, can_save) = (&cx.state.modes, cx.state.reservations.can_persist());
    let control = PC.get_u8(cx.cdb);
    if control == SAVED && !can_save {
        return Err(Sense::SAVING_NOT_SUPPORTED);
    }
    let make = |page: &ModePageTemplate| {
        let mut bytes = match control {
            0 => page.with(modes.current),
            1 => page.changeable(),
            2 => page.with(modes.default),
            _ => page.with(modes.saved_or_default()),
        };
        if !can_save {
            PS.set(&mut bytes, 0);
        }
        bytes
    };
    let pages: Vec<u8> = pages::of(cx.lu.settings().device_type)
        .filter(|p| code == ALL_PAGES || p.code == code)
        .flat_map(make)
        .collect();
    if pages.is_empty() { Err(Sense::in_cdb(PAGE_CODE)) } else { Ok(pages) }
}

fn header(cx: &CommandContext<'_>, longlba: bool, descriptor_len: usize) -> ModeHeader {
    let settings = cx.lu.settings();
    let disk = settings.device_type == PeripheralDeviceType::Disk;
    ModeHeader {
        medium_type: 0,
        wp: disk && write_protected(cx.state, &settings, cx.read_only),
        dpofua: disk,
        longlba,
        block_descriptor_length: descriptor_len as u16,
    }
}

fn block_descriptor(cx: &CommandContext<'_>, longlba: bool) -> Vec<u8> {
    BlockDescriptorLayout::of(longlba).encode(cx.state.blocks, cx.lu.settings().block_size)
}
