//! Vital product data pages (SPC-5 section 7.7, SBC-4 section 6.6). The pages of designators are in `designators`.

use crate::lba_range::MAX_TRANSFER;
use crate::provisioning::{MAX_UNMAP_DESCRIPTORS, MAX_WRITE_SAME};
use crate::table::{CommandContext, DeviceTypes};
use crate::{LuSettings, PeripheralDeviceType};
use crate::{copy, designators};
use lunar_wire::be;

/// Builds the body of a page, which follows the four bytes of the header.
type PageBody = fn(&CommandContext<'_>) -> Vec<u8>;

/// Pages in ascending order of their codes, as page 00h lists them.
const PAGES: &[(u8, DeviceTypes, PageBody)] = &[
    (0x00, DeviceTypes::All, |cx| pages(cx.lu.settings().device_type).map(|(code, ..)| *code).collect()),
    (0x80, DeviceTypes::All, |cx| cx.lu.settings().identity.serial.as_bytes().to_vec()),
    (0x83, DeviceTypes::All, designators::identification),
    // Management network addresses: none.
    (0x85, DeviceTypes::All, |_| Vec::new()),
    (0x86, DeviceTypes::All, |_| extended_inquiry()),
    // Mode page policy: all pages are shared.
    (0x87, DeviceTypes::All, |_| vec![0x3f, 0xff, 0x00, 0]),
    (0x88, DeviceTypes::All, designators::ports),
    (0x8f, DeviceTypes::Only(PeripheralDeviceType::Disk), |cx| copy::third_party_page(&cx.lu.settings())),
    (0xb0, DeviceTypes::Only(PeripheralDeviceType::Disk), |cx| block_limits(&cx.lu.settings())),
    (0xb1, DeviceTypes::Only(PeripheralDeviceType::Disk), |cx| characteristics(cx.lu.settings().thin)),
    (0xb2, DeviceTypes::Only(PeripheralDeviceType::Disk), |cx| provisioning(cx.lu.settings().thin)),
];

/// MAXIMUM COMPARE AND WRITE LENGTH in blocks: the maximum that the CDB can express.
const MAX_COMPARE_AND_WRITE: u8 = 255;
/// OPTIMAL TRANSFER LENGTH in bytes.
const OPTIMAL_TRANSFER: u32 = 1 << 20;

fn pages(device_type: PeripheralDeviceType) -> impl Iterator<Item = &'static (u8, DeviceTypes, PageBody)> {
    PAGES
        .iter()
        .filter(move |(_, types, _)| *types == DeviceTypes::All || *types == DeviceTypes::Only(device_type))
}

/// A complete page; `None` if it does not exist.
pub(crate) fn page(cx: &CommandContext<'_>, code: u8) -> Option<Vec<u8>> {
    let kind = cx.lu.settings().device_type;
    let (_, _, make) = pages(kind).find(|(c, ..)| *c == code)?;
    let body = make(cx);
    let mut page = vec![kind.device_type(), code, 0, 0];
    be::put16(&mut page[2..], body.len() as u16);
    page.extend_from_slice(&body);
    Some(page)
}

/// Extended INQUIRY data (86h). Offsets in the standard are four higher.
fn extended_inquiry() -> Vec<u8> {
    let mut b = vec![0; 60];
    // HEADSUP, ORDSUP, SIMPSUP.
    b[1] = 0x07;
    // V_SUP: a volatile cache is supported.
    b[2] = 0x01;
    b
}

/// Block limits (B0h). Offsets in the standard are four higher.
fn block_limits(settings: &LuSettings) -> Vec<u8> {
    let blocks = |bytes: u32| bytes / settings.block_size;
    let physical = blocks(settings.physical_block_size);
    let mut b = vec![0; 60];
    // WSNZ.
    b[0] = 0x01;
    b[1] = MAX_COMPARE_AND_WRITE;
    be::put16(&mut b[2..], physical as u16);
    be::put32(&mut b[4..], blocks(MAX_TRANSFER));
    be::put32(&mut b[8..], blocks(OPTIMAL_TRANSFER));
    if settings.thin {
        // UNMAP is limited by the number of descriptors, not of blocks.
        be::put32(&mut b[16..], u32::MAX);
        be::put32(&mut b[20..], MAX_UNMAP_DESCRIPTORS as u32);
        be::put32(&mut b[24..], physical);
        // UGAVALID: the alignment is LBA 0.
        b[28] = 0x80;
    }
    be::put64(&mut b[32..], MAX_WRITE_SAME / settings.block_size as u64);
    // MAXIMUM ATOMIC TRANSFER LENGTH. Alignment and granularity are 0: any.
    be::put32(&mut b[40..], blocks(settings.max_atomic));
    b
}

/// Block device characteristics (B1h): non-rotating medium. WABEREQ: a read after a block erase succeeds.
fn characteristics(thin: bool) -> Vec<u8> {
    let mut b = vec![0; 60];
    be::put16(&mut b, 1);
    b[3] = if thin { 0x40 } else { 0 };
    b
}

/// Logical block provisioning (B2h): LBPU, LBPWS, LBPWS10, LBPRZ, ANC_SUP; thin provisioned.
fn provisioning(thin: bool) -> Vec<u8> {
    if thin { vec![0, 0xe6, 0x02, 0] } else { vec![0, 0, 0, 0] }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;
    use lunar_wire::scsi::{Sense, op};

    fn vpd(n: &mut crate::Nexus, code: u8) -> Vec<u8> {
        data(n, &[op::INQUIRY, 1, code, 0xff, 0xff, 0])
    }

    #[test]
    fn every_listed_page_is_there_and_says_its_length() {
        for (settings, codes) in [
            (disk(), &[0, 0x80, 0x83, 0x85, 0x86, 0x87, 0x88, 0x8f, 0xb0, 0xb1, 0xb2][..]),
            (cdrom(), &[0, 0x80, 0x83, 0x85, 0x86, 0x87, 0x88][..]),
        ] {
            let mut n = nexus(&lu(settings), "a");
            assert_eq!(vpd(&mut n, 0)[4..], *codes);
            for &code in codes {
                let page = vpd(&mut n, code);
                assert_eq!(page[1], code);
                assert_eq!(page.len(), 4 + u16::from_be_bytes([page[2], page[3]]) as usize, "{code:02x}");
            }
        }
    }

    #[test]
    fn vpd_pages_match_golden_bytes() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(vpd(&mut n, 0x80), [&[0, 0x80, 0, 16][..], b"0123456789abcdef"].concat());
        assert_eq!(vpd(&mut n, 0x85), [0, 0x85, 0, 0]);
        assert_eq!(vpd(&mut n, 0x86), [&[0, 0x86, 0, 60, 0, 7, 1, 0][..], &[0; 56]].concat());
        assert_eq!(vpd(&mut n, 0x87), [0, 0x87, 0, 4, 0x3f, 0xff, 0, 0]);
        assert_eq!(vpd(&mut n, 0xb1), [&[0, 0xb1, 0, 60, 0, 1, 0, 0x40][..], &[0; 56]].concat());
        assert_eq!(vpd(&mut n, 0xb2), [0, 0xb2, 0, 4, 0, 0xe6, 2, 0]);
        #[rustfmt::skip]
        assert_eq!(vpd(&mut n, 0xb0), [
            0, 0xb0, 0, 60, 1, 255, 0, 8, 0, 1, 0, 0, 0, 0, 8, 0,
            0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 1, 0, 0, 0, 0, 8,
            0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 8, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ]);
    }

    #[test]
    fn fully_provisioned_disk_claims_nothing_else() {
        let mut n = nexus(&lu(crate::LuSettings { thin: false, ..disk() }), "a");
        assert_eq!(vpd(&mut n, 0xb0)[20..36], [0; 16]);
        assert_eq!(vpd(&mut n, 0xb1)[..8], [0, 0xb1, 0, 60, 0, 1, 0, 0]);
        assert_eq!(vpd(&mut n, 0xb2), [0, 0xb2, 0, 4, 0, 0, 0, 0]);
    }

    #[test]
    fn unknown_page_is_pointed_at() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(run(&mut n, &[op::INQUIRY, 1, 0xc0, 0, 255, 0]), fails(Sense::cdb_field(2, 7)));
    }
}
