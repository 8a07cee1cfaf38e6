//! INQUIRY: standard data (SPC-5 section 6.7.2). VPD pages are in `vpd`.

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{LuSettings, PeripheralDeviceType, Plan, PlanResult, TransportProtocol, vpd};
use lunar_wire::scsi::cdb::inquiry::{ALLOCATION_LENGTH, EVPD, PAGE_CODE};
use lunar_wire::scsi::inquiry::{Peripheral, StandardInquiry};
use lunar_wire::scsi::{Sense, op};

const INQUIRY: &[u8] = &[0x12, 0x01, 0xff, 0xff, 0xff, 0];

/// Rows of the command table.
pub(crate) const ROWS: &[Row] =
    &[Row::new(op::INQUIRY, inquiry, ReservationClass::Always, ChangeScope::Nothing, INQUIRY)
        .despite_attention()
        .despite_reserve()
        .in_standby()
        .while_sanitizing()];

/// VERSION: SPC-4.
const VERSION: u8 = 6;
/// Version descriptors: SAM-5, SPC-4, the standard of the device type, and that of the port's protocol.
const SAM_5: u16 = 0x00a0;
const SPC_4: u16 = 0x0460;
const SBC_3: u16 = 0x04c0;
const MMC_6: u16 = 0x04e0;
const SRP: u16 = 0x0940;
const ISCSI: u16 = 0x0960;

impl PeripheralDeviceType {
    /// The code of PERIPHERAL DEVICE TYPE.
    pub(crate) fn device_type(self) -> u8 {
        match self {
            PeripheralDeviceType::Disk => 0x00,
            PeripheralDeviceType::CdRom => 0x05,
        }
    }

    /// The first byte of standard data and of VPD pages.
    pub(crate) fn peripheral(self) -> Peripheral {
        Peripheral { qualifier: 0, device_type: self.device_type() }
    }
}

fn inquiry(cx: &mut CommandContext<'_>) -> PlanResult {
    let data = match (EVPD.is_set(cx.cdb), PAGE_CODE.get_u8(cx.cdb)) {
        (false, 0) => standard(&cx.lu.settings(), cx.port.own.protocol),
        (false, _) => return Err(Sense::in_cdb(PAGE_CODE).into()),
        (true, page) => vpd::page(cx, page).ok_or(Sense::in_cdb(PAGE_CODE))?,
    };
    Ok(Plan::data_cut(data, ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

/// The values common to all standard data.
pub(crate) fn head(peripheral: Peripheral) -> StandardInquiry<'static> {
    StandardInquiry {
        peripheral,
        version: VERSION,
        hierarchical_luns: true,
        command_queuing: true,
        ..StandardInquiry::default()
    }
}

fn standard(settings: &LuSettings, protocol: TransportProtocol) -> Vec<u8> {
    let id = &settings.identity;
    let is_disk = settings.device_type == PeripheralDeviceType::Disk;
    let transport = match protocol {
        TransportProtocol::Iscsi => ISCSI,
        TransportProtocol::Srp => SRP,
        TransportProtocol::Nvme => 0,
    };
    let data = StandardInquiry {
        removable: settings.removable,
        alua: if is_disk { access(settings) } else { 0 },
        third_party_copy: is_disk,
        multi_port: true,
        vendor: &id.vendor,
        product: &id.product,
        revision: &id.revision,
        version_descriptors: [SAM_5, SPC_4, if is_disk { SBC_3 } else { MMC_6 }, transport, 0, 0, 0, 0],
        ..head(settings.device_type.peripheral())
    };
    data.encode().to_vec()
}

/// TPGS: implicit access, and explicit access if it is allowed.
fn access(settings: &LuSettings) -> u8 {
    if settings.explicit_access { 3 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn golden_data_of_a_disk() {
        let mut n = nexus(&lu(disk()), "a");
        let data = data(&mut n, &[op::INQUIRY, 0, 0, 1, 0, 0]);
        assert_eq!(data[..8], [0, 0, 6, 0x12, 91, 0x38, 0x10, 2]);
        assert_eq!(data[8..36], *b"LUNAR   VIRTUAL DISK    0001");
        assert_eq!(data[36..58], [0; 22]);
        assert_eq!(data[58..66], [0, 0xa0, 4, 0x60, 4, 0xc0, 9, 0x60]);
        assert_eq!(data[66..], [0; 30]);
    }

    #[test]
    fn version_descriptors_name_the_protocol_of_the_port() {
        let mut n = nexus_of(&lu(disk()), srp_port());
        assert_eq!(
            data(&mut n, &[op::INQUIRY, 0, 0, 1, 0, 0])[58..68],
            [0, 0xa0, 4, 0x60, 4, 0xc0, 9, 0x40, 0, 0]
        );
    }

    #[test]
    fn cdrom_is_removable_and_of_its_own_kind() {
        let mut n = nexus(&lu(cdrom()), "a");
        let data = data(&mut n, &[op::INQUIRY, 0, 0, 0, 255, 0]);
        assert_eq!(data[..8], [5, 0x80, 6, 0x12, 91, 0, 0x10, 2]);
        assert_eq!(data[62..64], [4, 0xe0]);
    }

    #[test]
    fn page_without_evpd_is_pointed_at() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(run(&mut n, &[op::INQUIRY, 0, 0x80, 0, 255, 0]), fails(Sense::cdb_field(2, 7)));
        assert_eq!(run(&mut n, &[op::INQUIRY, 2, 0, 0, 255, 0]), fails(Sense::cdb_field(1, 1)));
    }
}
