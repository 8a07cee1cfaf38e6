//! MODE SENSE (SPC-5 sections 6.15 and 6.16).

use super::pages::{self, ModePageTemplate};
use crate::dispatch::write_protected;
use crate::table::CommandContext;
use crate::{PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::be;
use lunar_wire::scsi::{Sense, op};

/// Page code for all pages, subpage code for all subpages.
const ALL: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;

/// PC of the saved values.
const SAVED: u8 = 3;

/// DBD and LLBAA, byte 1.
const DBD: u8 = 0x08;
const LLBAA: u8 = 0x10;

/// Device-specific parameter of a disk (SBC-4 section 6.4.1).
const WP: u8 = 0x80;
const DPOFUA: u8 = 0x10;

pub(super) fn mode_sense(cx: &mut CommandContext<'_>) -> PlanResult {
    let pages = wanted(cx)?;
    let long = cx.cdb[0] == op::MODE_SENSE_10;
    let long_lba = long && cx.cdb[1] & LLBAA != 0;
    let descriptor = if cx.cdb[1] & DBD != 0 { Vec::new() } else { block_descriptor(cx, long_lba) };
    let mut data = header(cx, long, long_lba, descriptor.len());
    data.extend_from_slice(&descriptor);
    data.extend_from_slice(&pages);
    let allocation_len = if long {
        let len = data.len() as u16 - 2;
        be::put16(&mut data, len);
        be::get16(&cx.cdb[7..]) as u32
    } else {
        data[0] = data.len() as u8 - 1;
        cx.cdb[4] as u32
    };
    Ok(Plan::data_cut(data, allocation_len))
}

/// The pages that the CDB selects, with the values that PC selects.
fn wanted(cx: &CommandContext<'_>) -> Result<Vec<u8>, Sense> {
    let (code, subpage) = (cx.cdb[2] & 0x3f, cx.cdb[3]);
    if subpage != 0 && subpage != ALL_SUBPAGES {
        return Err(Sense::cdb_field(3, 7));
    }
    let (modes, can_save) = (&cx.state.modes, cx.state.reservations.can_persist());
    let control = cx.cdb[2] >> 6;
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
        bytes[0] &= if can_save { 0xff } else { !pages::PS };
        bytes
    };
    let pages: Vec<u8> = pages::of(cx.lu.settings().device_type)
        .filter(|p| code == ALL || p.code == code)
        .flat_map(make)
        .collect();
    if pages.is_empty() { Err(Sense::cdb_field(2, 5)) } else { Ok(pages) }
}

fn header(cx: &CommandContext<'_>, long: bool, long_lba: bool, descriptor_len: usize) -> Vec<u8> {
    let settings = cx.lu.settings();
    let specific = match settings.device_type {
        PeripheralDeviceType::Disk if write_protected(cx.state, &settings, cx.read_only) => WP | DPOFUA,
        PeripheralDeviceType::Disk => DPOFUA,
        PeripheralDeviceType::CdRom => 0,
    };
    let len = descriptor_len as u8;
    if long { vec![0, 0, 0, specific, long_lba as u8, 0, 0, len] } else { vec![0, 0, specific, len] }
}

/// Short or long LBA mode parameter block descriptor (SBC-4 sections 6.4.2 and 6.4.3).
fn block_descriptor(cx: &CommandContext<'_>, long_lba: bool) -> Vec<u8> {
    let (blocks, size) = (cx.state.blocks, cx.lu.settings().block_size);
    if long_lba {
        let mut b = vec![0; 16];
        be::put64(&mut b, blocks);
        be::put32(&mut b[12..], size);
        return b;
    }
    let mut b = vec![0; 8];
    be::put32(&mut b, u32::try_from(blocks).unwrap_or(u32::MAX));
    be::put24(&mut b[5..], size);
    b
}
