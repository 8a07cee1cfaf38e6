//! A namespace as a logical unit: its identity, and its properties for SCSI hosts (NVM Express: SCSI Translation Reference).

use crate::FoundLun;
use lunar_initiator::nvme::{ControllerInfo, NamespaceProperties};
use lunar_wire::scsi::vpd::Designator;

/// T10 vendor identification of namespaces.
const VENDOR: &str = "NVMe";
/// The first two bytes of a UUID designator (SPC-5 section 7.7.6.11): the type of the UUID, and a reserved byte.
const UUID_HEAD: [u8; 2] = [0x10, 0];

/// The logical unit that a namespace is for hosts.
pub fn found(
    controller: &ControllerInfo,
    nsid: u32,
    properties: &NamespaceProperties,
    can_deallocate: bool,
) -> FoundLun {
    let serial = serial(controller, nsid, properties);
    let block_size = properties.block_size();
    FoundLun {
        kind: 0,
        block_size,
        physical_block_size: block_size,
        capacity: properties.capacity,
        read_only: properties.is_read_only(),
        removable: false,
        thin: can_deallocate,
        vendor: VENDOR.into(),
        product: controller.model(),
        revision: controller.firmware(),
        padded_serial: serial.clone().into_bytes(),
        designators: designators(properties, &serial),
        serial,
        naa: Vec::new(),
    }
}

/// The serial number: the digits of the identifier that lasts longest. Without one, that of the subsystem with the NSID.
fn serial(controller: &ControllerInfo, nsid: u32, properties: &NamespaceProperties) -> String {
    let identity = properties.identity.to_string();
    match identity.split_once('.') {
        Some((_, digits)) => digits.into(),
        None => format!("{}.{nsid:08x}", controller.serial()),
    }
}

/// The designators: EUI-64 with 8 bytes and with 16 bytes (NGUID), UUID, and T10 vendor ID, which all initiators know. Of two
/// EUI-64, the last one is the name in messages.
fn designators(properties: &NamespaceProperties, serial: &str) -> Vec<u8> {
    let identity = &properties.identity;
    let uuid = identity.uuid.map(|uuid| [&UUID_HEAD[..], &uuid].concat());
    let t10 = format!("{VENDOR:8}{serial}");
    let binary = |kind, value: &[u8]| Designator::new(Designator::BINARY, kind, value).encode();
    let eui = |value: &[u8]| binary(Designator::EUI, value);
    [
        identity.eui64.map(|eui64| eui(&eui64)),
        identity.nguid.map(|nguid| eui(&nguid)),
        uuid.map(|uuid| binary(Designator::UUID, &uuid)),
        Some(Designator::new(Designator::ASCII, Designator::T10, t10.as_bytes()).encode()),
    ]
    .into_iter()
    .flatten()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_initiator::nvme::{IdentifyNamespace, NamespaceIdentity};

    fn properties(identity: NamespaceIdentity) -> NamespaceProperties {
        let identify = IdentifyNamespace::decode(&[0; 4096]);
        NamespaceProperties { identity, identify, capacity: 1 << 20 }
    }

    #[test]
    fn designators_hold_every_identifier_of_the_namespace() {
        let all = NamespaceIdentity {
            uuid: Some([0xab; 16]),
            nguid: Some([0xcd; 16]),
            eui64: Some([0xef; 8]),
            block_shift: 9,
        };
        let uuid = "abababab-abab-abab-abab-abababababab";
        let made = designators(&properties(all.clone()), uuid);
        let expected = [
            &[1, 2, 0, 8][..],
            &[0xef; 8],
            &[1, 2, 0, 16],
            &[0xcd; 16],
            &[1, 10, 0, 18, 0x10, 0],
            &[0xab; 16],
            &[2, 1, 0, 44],
            b"NVMe    abababab-abab-abab-abab-abababababab",
        ];
        assert_eq!(made, expected.concat());
        assert_eq!(lunar_initiator::name_of(&made), Some(format!("eui.{}", "cd".repeat(16))));
        assert!(lunar_initiator::is_named(&made, &format!("eui.{}", "ef".repeat(8))));
        let only = NamespaceIdentity { nguid: None, eui64: None, ..all };
        let name = lunar_initiator::name_of(&designators(&properties(only), uuid));
        assert_eq!(name, Some(format!("t10.NVMe    {uuid}")));
    }
}
