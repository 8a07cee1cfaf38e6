//! INQUIRY: standard data (SPC-5 section 6.7.2). VPD pages are in `vpd`.

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{LuSettings, PeripheralDeviceType, Plan, PlanResult, TransportProtocol, vpd};
use lunar_wire::be;
use lunar_wire::scsi::{Sense, op};

const INQUIRY: &[u8] = &[0x12, 0x01, 0xff, 0xff, 0xff, 0];

/// Rows of the command table.
pub(crate) const ROWS: &[Row] =
    &[Row::new(op::INQUIRY, inquiry, ReservationClass::Always, ChangeScope::Nothing, INQUIRY)
        .despite_attention()
        .despite_reserve()
        .in_standby()
        .while_sanitizing()];

/// Bytes of standard data, up to and including the reserved bytes after the version descriptors.
const LEN: usize = 96;
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
}

fn inquiry(cx: &mut CommandContext<'_>) -> PlanResult {
    let data = match (cx.cdb[1] & 1, cx.cdb[2]) {
        (0, 0) => standard(&cx.lu.settings(), cx.port.own().protocol),
        (0, _) => return Err(Sense::cdb_field(2, 7).into()),
        (_, page) => vpd::page(cx, page).ok_or(Sense::cdb_field(2, 7))?,
    };
    Ok(Plan::data_cut(data, be::get16(&cx.cdb[3..]) as u32))
}

/// The fields common to all standard data: qualifier and type, and the text fields.
pub(crate) fn head(device: u8, vendor: &str, product: &str, revision: &str) -> Vec<u8> {
    let mut b = vec![0; LEN];
    b[0] = device;
    b[2] = VERSION;
    // HISUP, RESPONSE DATA FORMAT 2.
    b[3] = 0x12;
    b[4] = (LEN - 5) as u8;
    // CMDQUE.
    b[7] = 0x02;
    text(&mut b[8..16], vendor);
    text(&mut b[16..32], product);
    text(&mut b[32..36], revision);
    b
}

fn standard(settings: &LuSettings, protocol: TransportProtocol) -> Vec<u8> {
    let id = &settings.identity;
    let mut b = head(settings.device_type.device_type(), &id.vendor, &id.product, &id.revision);
    b[1] = if settings.removable { 0x80 } else { 0 };
    if settings.device_type == PeripheralDeviceType::Disk {
        // TPGS: 11b if explicit access is allowed, otherwise 01b (implicit). 3PC: EXTENDED COPY is supported.
        b[5] = if settings.explicit_access { 0x38 } else { 0x18 };
    }
    // MULTIP: more than one port.
    b[6] = 0x10;
    let own = if settings.device_type == PeripheralDeviceType::Disk { SBC_3 } else { MMC_6 };
    let transport = match protocol {
        TransportProtocol::Iscsi => ISCSI,
        TransportProtocol::Srp => SRP,
    };
    for (i, standard) in [SAM_5, SPC_4, own, transport].into_iter().enumerate() {
        be::put16(&mut b[58 + 2 * i..], standard);
    }
    b
}

/// Fills a field with ASCII text, left-aligned and padded with spaces.
pub(crate) fn text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    let len = text.len().min(field.len());
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
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
        let mut n = nexus(&lu(disk()), "0x00000000000000010000000000000002");
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
