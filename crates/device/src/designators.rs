//! What a logical unit, its target ports and its target are called: VPD 83h and 88h (SPC-5 section 7.8.6).

use crate::table::Cx;

/// Code sets.
const BINARY: u8 = 1;
const ASCII: u8 = 2;
const UTF8: u8 = 3;

/// Designator types.
const T10_VENDOR: u8 = 1;
const NAA: u8 = 3;
const RELATIVE_PORT: u8 = 4;
const PORT_GROUP: u8 = 5;
const SCSI_NAME: u8 = 8;

/// What a designator is of, as in byte 1; ports and devices name their protocol (PIV).
const UNIT: u8 = 0x00;
const PORT: u8 = 0x90;
const DEVICE: u8 = 0xa0;

/// PROTOCOL IDENTIFIER of iSCSI, for the high half of byte 0.
const ISCSI: u8 = 0x50;

/// Device identification (83h).
pub(crate) fn identification(cx: &Cx<'_>) -> Vec<u8> {
    let settings = cx.lu.settings();
    let identity = &settings.identity;
    let tag = cx.port.tag.to_be_bytes();
    let number = [0, 0, tag[0], tag[1]];
    let made = || {
        let serial = format!("{:8}{}", identity.vendor, identity.serial);
        let serial = designator(ASCII, UNIT, T10_VENDOR, serial.as_bytes());
        [designator(BINARY, UNIT, NAA, &identity.naa), serial].concat()
    };
    [
        identity.designators.clone().unwrap_or_else(made),
        designator(BINARY, PORT, RELATIVE_PORT, &number),
        designator(BINARY, PORT, PORT_GROUP, &number),
        port_name(cx, cx.port.tag),
        designator(UTF8, DEVICE, SCSI_NAME, &padded(&cx.port.target)),
    ]
    .concat()
}

/// SCSI ports (88h): every portal group is a port.
pub(crate) fn ports(cx: &Cx<'_>) -> Vec<u8> {
    let mut page = Vec::new();
    for &tag in cx.port.all_tags.iter() {
        let name = port_name(cx, tag);
        page.extend_from_slice(&[0, 0]);
        page.extend_from_slice(&tag.to_be_bytes());
        page.extend_from_slice(&[0, 0, 0, 0, 0, 0]);
        page.extend_from_slice(&(name.len() as u16).to_be_bytes());
        page.extend_from_slice(&name);
    }
    page
}

/// The SCSI name string of a target port (RFC 7143 section 4.4.2).
fn port_name(cx: &Cx<'_>, tag: u16) -> Vec<u8> {
    designator(UTF8, PORT, SCSI_NAME, &padded(&format!("{},t,0x{tag:04x}", cx.port.target)))
}

fn designator(code_set: u8, of: u8, kind: u8, value: &[u8]) -> Vec<u8> {
    let protocol = if of == UNIT { 0 } else { ISCSI };
    // An iSCSI name has at most 223 bytes; what a caller made longer is cut rather than miscounted.
    let value = &value[..value.len().min(252)];
    [&[protocol | code_set, of | kind, 0, value.len() as u8], value].concat()
}

/// With a NUL at the end, and more up to a multiple of four.
fn padded(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(bytes.len() / 4 * 4 + 4, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use crate::testing::*;
    use wire::scsi::op;

    #[test]
    fn device_identification() {
        let mut n = nexus(&lu(disk()), "a");
        let page = data(&mut n, &[op::INQUIRY, 1, 0x83, 0xff, 0xff, 0]);
        let expected: [&[u8]; 9] = [
            &[0, 0x83, 0, 136],
            &[0x01, 0x03, 0, 8, 0x30, 1, 2, 3, 4, 5, 6, 7],
            &[0x02, 0x01, 0, 24],
            b"LUNAR   0123456789abcdef",
            &[0x51, 0x94, 0, 4, 0, 0, 0, 1, 0x51, 0x95, 0, 4, 0, 0, 0, 1],
            &[0x53, 0x98, 0, 40],
            b"iqn.2026-11.org.example:disk,t,0x0001\0\0\0",
            &[0x53, 0xa8, 0, 32],
            b"iqn.2026-11.org.example:disk\0\0\0\0",
        ];
        assert_eq!(page, expected.concat());
    }

    #[test]
    fn every_port_is_listed() {
        let mut n = nexus(&lu(disk()), "a");
        let page = data(&mut n, &[op::INQUIRY, 1, 0x88, 0xff, 0xff, 0]);
        assert_eq!(page.len(), 4 + 2 * 56);
        assert_eq!(page[4..20], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 44, 0x53, 0x98, 0, 40]);
        assert_eq!(page[60..76], [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 44, 0x53, 0x98, 0, 40]);
        assert_eq!(page[76..116], *b"iqn.2026-11.org.example:disk,t,0x0002\0\0\0");
    }
}
