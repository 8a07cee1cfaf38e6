//! Vital product data pages (SPC-5 section 7.7, SBC-4 section 6.6). The pages of designators are in `designators`.

use crate::lba_range::MAX_TRANSFER;
use crate::provisioning::{MAX_UNMAP_DESCRIPTORS, MAX_WRITE_SAME};
use crate::table::{CommandContext, DeviceTypes};
use crate::{LuSettings, PeripheralDeviceType};
use crate::{copy, designators};
use lunar_wire::scsi::limits::{BlockLimits, Provisioning};
use lunar_wire::scsi::vpd::{
    self, BLOCK_CHARACTERISTICS, BLOCK_LIMITS, BlockCharacteristics, EXTENDED_INQUIRY, ExtendedInquiry,
    IDENTIFICATION, MANAGEMENT_ADDRESSES, MODE_PAGE_POLICY, ModePagePolicy, PROVISIONING, SCSI_PORTS,
    SERIAL_NUMBER, SUPPORTED_PAGES, THIRD_PARTY_COPY,
};

/// Builds a page, without PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE.
type MakePage = fn(&CommandContext<'_>) -> Vec<u8>;

const DISK: DeviceTypes = DeviceTypes::Only(PeripheralDeviceType::Disk);

/// Pages in ascending order of their codes, as page 00h lists them.
const PAGES: &[(u8, DeviceTypes, MakePage)] = &[
    (SUPPORTED_PAGES, DeviceTypes::All, |cx| supported_pages(cx.lu.settings().device_type)),
    (SERIAL_NUMBER, DeviceTypes::All, |cx| {
        vpd::encode(SERIAL_NUMBER, cx.lu.settings().identity.serial.as_bytes())
    }),
    (IDENTIFICATION, DeviceTypes::All, |cx| vpd::encode(IDENTIFICATION, &designators::identification(cx))),
    // No addresses.
    (MANAGEMENT_ADDRESSES, DeviceTypes::All, |_| vpd::encode(MANAGEMENT_ADDRESSES, &[])),
    (EXTENDED_INQUIRY, DeviceTypes::All, |_| EXTENDED.encode().to_vec()),
    (MODE_PAGE_POLICY, DeviceTypes::All, |_| vpd::encode(MODE_PAGE_POLICY, &SHARED_PAGES.encode())),
    (SCSI_PORTS, DeviceTypes::All, |cx| vpd::encode(SCSI_PORTS, &designators::ports(cx))),
    (THIRD_PARTY_COPY, DISK, |cx| vpd::encode(THIRD_PARTY_COPY, &copy::third_party_page(&cx.lu.settings()))),
    (BLOCK_LIMITS, DISK, |cx| block_limits(&cx.lu.settings()).encode().to_vec()),
    (BLOCK_CHARACTERISTICS, DISK, |cx| characteristics(cx.lu.settings().thin).encode().to_vec()),
    (PROVISIONING, DISK, |cx| provisioning(cx.lu.settings().thin).encode().to_vec()),
];

/// The task attributes and the cache of every logical unit.
const EXTENDED: ExtendedInquiry =
    ExtendedInquiry { head_of_queue: true, ordered: true, simple: true, volatile_cache: true };
/// Nexuses share all mode pages, and logical units share none.
const SHARED_PAGES: ModePagePolicy =
    ModePagePolicy { page: 0x3f, subpage: 0xff, multiple_units: false, policy: 0 };
/// OPTIMAL TRANSFER LENGTH in bytes.
const OPTIMAL_TRANSFER: u32 = 1 << 20;

fn pages(device_type: PeripheralDeviceType) -> impl Iterator<Item = &'static (u8, DeviceTypes, MakePage)> {
    PAGES
        .iter()
        .filter(move |(_, types, _)| *types == DeviceTypes::All || *types == DeviceTypes::Only(device_type))
}

/// A complete page; `None` if it does not exist.
pub(crate) fn page(cx: &CommandContext<'_>, code: u8) -> Option<Vec<u8>> {
    let kind = cx.lu.settings().device_type;
    let (_, _, make) = pages(kind).find(|(c, ..)| *c == code)?;
    let mut page = make(cx);
    kind.peripheral().put(&mut page);
    Some(page)
}

fn supported_pages(device_type: PeripheralDeviceType) -> Vec<u8> {
    let codes: Vec<u8> = pages(device_type).map(|(code, ..)| *code).collect();
    vpd::encode(SUPPORTED_PAGES, &codes)
}

fn block_limits(settings: &LuSettings) -> BlockLimits {
    let blocks = |bytes: u32| bytes / settings.block_size;
    let physical = blocks(settings.physical_block_size);
    let all = BlockLimits {
        write_same_non_zero: true,
        compare_and_write: settings.max_compare_and_write(),
        optimal_granularity: physical as u16,
        transfer: blocks(MAX_TRANSFER),
        optimal_transfer: blocks(OPTIMAL_TRANSFER),
        write_same: MAX_WRITE_SAME / settings.block_size as u64,
        // The alignment and granularity of atomic writes are 0: any.
        atomic_transfer: blocks(settings.max_atomic),
        ..BlockLimits::default()
    };
    if settings.thin { with_unmap(all, physical) } else { all }
}

fn with_unmap(limits: BlockLimits, physical: u32) -> BlockLimits {
    BlockLimits {
        // UNMAP is limited by the number of descriptors, not of blocks.
        unmap: u32::MAX,
        unmap_descriptors: MAX_UNMAP_DESCRIPTORS as u32,
        unmap_granularity: physical,
        unmap_alignment: Some(0),
        ..limits
    }
}

/// A read after a block erase succeeds. Only a thin provisioned logical unit supports block erase.
fn characteristics(thin: bool) -> BlockCharacteristics {
    BlockCharacteristics {
        rotation_rate: BlockCharacteristics::NON_ROTATING,
        write_after_block_erase: thin.into(),
    }
}

fn provisioning(thin: bool) -> Provisioning {
    match thin {
        true => Provisioning {
            unmap: true,
            write_same_16: true,
            write_same_10: true,
            reads_zero: true,
            anchor: true,
            kind: Provisioning::THIN,
        },
        false => Provisioning::default(),
    }
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
