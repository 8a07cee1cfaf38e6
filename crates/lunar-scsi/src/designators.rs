//! Designators of the logical unit, its target ports and its target device: VPD pages 83h and 88h (SPC-5 section
//! 7.8.6).

use crate::table::CommandContext;
use crate::{TargetPort, TransportProtocol};
use lunar_wire::srp::PortId;

/// Code sets.
const BINARY: u8 = 1;
const ASCII: u8 = 2;
const UTF8: u8 = 3;

/// Designator types.
const T10_VENDOR: u8 = 1;
const EUI_64: u8 = 2;
const NAA: u8 = 3;
const RELATIVE_PORT: u8 = 4;
const PORT_GROUP: u8 = 5;
const SCSI_NAME: u8 = 8;

/// Byte 1 of a designator: ASSOCIATION, and PIV for ports and devices, which name their protocol.
const UNIT: u8 = 0x00;
const PORT: u8 = 0x90;
const DEVICE: u8 = 0xa0;

/// Device identification (83h).
pub(crate) fn identification(cx: &CommandContext<'_>) -> Vec<u8> {
    let settings = cx.lu.settings();
    let identity = &settings.identity;
    let own = cx.port.own();
    let (relative, group) = (u32::from(own.relative()).to_be_bytes(), u32::from(own.group).to_be_bytes());
    let made = || {
        let serial = format!("{:8}{}", identity.vendor, identity.serial);
        let serial = designator(ASCII, UNIT, T10_VENDOR, serial.as_bytes());
        [designator(BINARY, UNIT, NAA, &identity.naa), serial].concat()
    };
    [
        identity.designators.clone().unwrap_or_else(made),
        of_protocol(own.protocol, designator(BINARY, PORT, RELATIVE_PORT, &relative)),
        of_protocol(own.protocol, designator(BINARY, PORT, PORT_GROUP, &group)),
        port_name(cx, own),
        // SRP has no device names. The device is the same through all of its ports, so its iSCSI name is used.
        of_protocol(TransportProtocol::Iscsi, designator(UTF8, DEVICE, SCSI_NAME, &padded(&cx.port.target))),
    ]
    .concat()
}

/// SCSI ports (88h): each portal group has one target port for each protocol of its portals.
pub(crate) fn ports(cx: &CommandContext<'_>) -> Vec<u8> {
    let mut page = Vec::new();
    for &port in cx.port.ports.iter() {
        let name = port_name(cx, port);
        page.extend_from_slice(&u32::from(port.relative()).to_be_bytes());
        page.extend_from_slice(&[0, 0, 0, 0, 0, 0]);
        page.extend_from_slice(&(name.len() as u16).to_be_bytes());
        page.extend_from_slice(&name);
    }
    page
}

/// The name of a target port: a SCSI name string (RFC 7143 section 4.4.2), or the SRP port identifier, which is an
/// EUI-64 designator with identifier extension (SRP r16a section 4.3).
fn port_name(cx: &CommandContext<'_>, port: TargetPort) -> Vec<u8> {
    let (target, tag) = (&cx.port.target, port.group);
    let name = match port.protocol {
        TransportProtocol::Iscsi => {
            designator(UTF8, PORT, SCSI_NAME, &padded(&format!("{target},t,0x{tag:04x}")))
        }
        TransportProtocol::Srp => designator(BINARY, PORT, EUI_64, &PortId::of_name(target).0),
    };
    of_protocol(port.protocol, name)
}

/// Sets PROTOCOL IDENTIFIER in the designator of a port or device.
fn of_protocol(protocol: TransportProtocol, mut designator: Vec<u8>) -> Vec<u8> {
    designator[0] |= (protocol as u8) << 4;
    designator
}

fn designator(code_set: u8, of: u8, kind: u8, value: &[u8]) -> Vec<u8> {
    // An iSCSI name has at most 223 bytes. Cut a longer value, so that the length field stays right.
    let value = &value[..value.len().min(252)];
    [&[code_set, of | kind, 0, value.len() as u8], value].concat()
}

/// Appends at least one NUL, up to a multiple of four bytes.
fn padded(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(bytes.len() / 4 * 4 + 4, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use crate::testing::*;
    use crate::{NexusPorts, TargetPort, TransportProtocol};
    use lunar_wire::scsi::op;

    #[test]
    fn device_identification_page_matches_golden_bytes() {
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

    /// The SRP port of the target in these tests.
    const SRP_PORT: [u8; 16] =
        [0x9f, 0xb1, 0xbf, 0x94, 0xf0, 0x01, 0x06, 0xed, 0x9f, 0xb1, 0xbf, 0x94, 0xf0, 0x01, 0x06, 0xed];

    fn srp_nexus() -> crate::Nexus {
        let group = |group| {
            [TransportProtocol::Iscsi, TransportProtocol::Srp].map(|protocol| TargetPort { protocol, group })
        };
        let initiator = "0x00000000000000010000000000000002".into();
        let ports = [group(1), group(2)].concat().into();
        let mut n = lu(disk()).attach(NexusPorts { initiator, ports, ..(*port("")).clone() }.into(), false);
        assert_eq!(run(&mut n, &[op::TEST_UNIT_READY]), fails(lunar_wire::scsi::Sense::POWER_ON));
        n
    }

    #[test]
    fn srp_names_are_reported_on_an_srp_port() {
        let page = data(&mut srp_nexus(), &[op::INQUIRY, 1, 0x83, 0xff, 0xff, 0]);
        let expected: [&[u8]; 5] = [
            &[0x41, 0x94, 0, 4, 0, 0, 0x80, 1, 0x41, 0x95, 0, 4, 0, 0, 0, 1],
            &[0x41, 0x92, 0, 16],
            &SRP_PORT,
            &[0x53, 0xa8, 0, 32],
            b"iqn.2026-11.org.example:disk\0\0\0\0",
        ];
        assert_eq!(page[4 + 12 + 28..], expected.concat());
    }

    #[test]
    fn ports_of_both_protocols_are_listed() {
        let page = data(&mut srp_nexus(), &[op::INQUIRY, 1, 0x88, 0xff, 0xff, 0]);
        assert_eq!(page.len(), 4 + 2 * (56 + 32));
        assert_eq!(page[4..16], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 44]);
        assert_eq!(page[60..76], [0, 0, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 20, 0x41, 0x92, 0, 16]);
        assert_eq!(page[76..92], SRP_PORT);
        assert_eq!(page[92..96], [0, 0, 0, 2]);
        assert_eq!(page[148..152], [0, 0, 0x80, 2]);
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
