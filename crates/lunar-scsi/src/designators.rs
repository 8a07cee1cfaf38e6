//! Designators of the logical unit, its target ports and its target device: VPD pages 83h and 88h (SPC-5 section
//! 7.8.6).

use crate::table::CommandContext;
use crate::{LuIdentity, TargetPort, TransportProtocol};
use lunar_wire::scsi::vpd::{self, Designator, ScsiPortDescriptor};
use lunar_wire::srp::PortId;

/// Device identification (83h).
pub(crate) fn identification(cx: &CommandContext<'_>) -> Vec<u8> {
    let own = cx.port.own;
    let (relative, group) = (vpd::relative(own.relative), vpd::relative(own.portal_group_tag));
    let binary = |kind, value| of_port(own.protocol, Designator::new(Designator::BINARY, kind, value));
    // SRP has no device names. The device is the same through all of its ports, so its iSCSI name is used.
    let device = vpd::scsi_name(&cx.port.target);
    let device = Designator::new(Designator::UTF8, Designator::SCSI_NAME, &device)
        .with_protocol(Designator::TARGET_DEVICE, TransportProtocol::Iscsi as u8);
    [
        of_unit(&cx.lu.settings().identity),
        binary(Designator::RELATIVE_PORT, &relative),
        binary(Designator::TARGET_PORT_GROUP, &group),
        port_name(cx, own),
        device.encode(),
    ]
    .concat()
}

/// The designators of the logical unit: those of its definition, or NAA and T10 vendor ID.
fn of_unit(identity: &LuIdentity) -> Vec<u8> {
    let made = || {
        let serial = format!("{:8}{}", identity.vendor, identity.serial);
        let serial = Designator::new(Designator::ASCII, Designator::T10, serial.as_bytes()).encode();
        let naa = Designator::new(Designator::BINARY, Designator::NAA, &identity.naa).encode();
        [naa, serial].concat()
    };
    identity.designators.clone().unwrap_or_else(made)
}

/// SCSI ports (88h): each portal group has one target port for each protocol of its portals.
pub(crate) fn ports(cx: &CommandContext<'_>) -> Vec<u8> {
    let one = |port: &TargetPort| ScsiPortDescriptor::new(port.relative, &port_name(cx, *port)).encode();
    cx.port.ports.get().iter().flat_map(one).collect()
}

/// The name of a target port: a SCSI name string (RFC 7143 section 4.4.2), or the SRP port identifier, which is an
/// EUI-64 designator with identifier extension (SRP r16a section 4.3).
fn port_name(cx: &CommandContext<'_>, port: TargetPort) -> Vec<u8> {
    let (target, tag) = (&cx.port.target, port.portal_group_tag);
    let name = |code_set, kind, value: &[u8]| of_port(port.protocol, Designator::new(code_set, kind, value));
    match port.protocol {
        TransportProtocol::Iscsi => {
            name(Designator::UTF8, Designator::SCSI_NAME, &vpd::scsi_name(&format!("{target},t,0x{tag:04x}")))
        }
        TransportProtocol::Srp => name(Designator::BINARY, Designator::EUI, &PortId::of_name(target).0),
        // NVMe hosts do not ask for it, and SCSI hosts do not see these ports.
        TransportProtocol::Nvme => name(Designator::UTF8, Designator::SCSI_NAME, &vpd::scsi_name(target)),
    }
}

/// Encodes a designator of a target port.
fn of_port(protocol: TransportProtocol, designator: Designator<'_>) -> Vec<u8> {
    designator.with_protocol(Designator::TARGET_PORT, protocol as u8).encode()
}

#[cfg(test)]
mod tests {
    use crate::testing::*;
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
        nexus_of(&lu(disk()), srp_port())
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
