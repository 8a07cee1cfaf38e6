//! The designators of a logical unit (VPD page 83h, SPC-5 section 7.7.6).

use crate::nvme::NamespaceIdentity;
use lunar_wire::scsi::vpd::{self, Designator};

/// The designators of VPD page 83h that are associated with the logical unit, not with the port or the target.
fn designations(page: &[u8]) -> impl Iterator<Item = Designator<'_>> {
    vpd::designators(page).filter(|d| d.association == 0)
}

/// The identity of a logical unit: its designators, which are the same on every path.
pub fn identity(page: &[u8]) -> Vec<u8> {
    designations(page).flat_map(|d| d.whole).copied().collect()
}

/// The most specific designator of an identity: NAA, EUI-64, SCSI name, T10 vendor, UUID, in this order.
pub fn name_of(identity: &[u8]) -> Option<String> {
    ranked(identity).max_by_key(|(rank, _)| *rank).map(|(_, name)| name)
}

/// Whether an identity contains this designator, in the notation of [`name_of`] and in any letter case.
pub fn is_named(identity: &[u8], name: &str) -> bool {
    ranked(identity).any(|(_, known)| known.eq_ignore_ascii_case(name))
}

fn ranked(identity: &[u8]) -> impl Iterator<Item = (u8, String)> {
    vpd::descriptors(identity).filter_map(|d| match d.kind {
        Designator::NAA => Some((4, format!("naa.{}", d.text()))),
        Designator::EUI => Some((3, format!("eui.{}", d.text()))),
        Designator::SCSI_NAME => Some((2, d.text())),
        Designator::T10 => Some((1, format!("t10.{}", d.text()))),
        Designator::UUID => Some((0, uuid_name(d.value)?)),
        _ => None,
    })
}

/// The name of a UUID designator, in the notation of NVMe namespaces. The UUID follows two bytes.
fn uuid_name(value: &[u8]) -> Option<String> {
    let uuid = Some(*value.get(2..)?.first_chunk()?);
    Some(NamespaceIdentity { uuid, ..NamespaceIdentity::default() }.to_string())
}

/// The bytes of the first NAA designator of an identity.
pub fn naa(identity: &[u8]) -> Option<&[u8]> {
    vpd::descriptors(identity).find(|d| d.kind == Designator::NAA).map(|d| d.value)
}

/// The designation descriptor that identifies this logical unit to a copy manager: binary NAA, else EUI-64.
/// Descriptors with an invalid length are skipped (SPC-5 section 7.7.6).
pub fn copy_name(identity: &[u8]) -> Option<&[u8]> {
    let rank = |d: &Designator<'_>| match (d.code_set, d.kind, d.value.len()) {
        (1, Designator::NAA, 8 | 16) => Some(2),
        (1, Designator::EUI, 8 | 12 | 16) => Some(1),
        _ => None,
    };
    let ranked = vpd::descriptors(identity).filter_map(|d| Some((rank(&d)?, d.whole)));
    // Among descriptors of equal rank, the first wins.
    ranked.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, whole)| whole)
}

/// The target port group of the port that returned this VPD page 83h (designator type 5h, association 1h).
pub fn target_port_group(page: &[u8]) -> Option<u16> {
    let of_port = |d: &Designator<'_>| (d.kind, d.association) == (Designator::TARGET_PORT_GROUP, 1);
    vpd::designators(page).filter(of_port).find_map(|d| d.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_name_prefers_naa_to_eui() {
        let (text, eui) = ([2, 1, 0, 2, 65, 66], [1, 2, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
        let (naa, other) = ([1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7], [1, 3, 0, 8, 0x50, 1, 2, 3, 4, 5, 6, 7]);
        let odd = [1, 3, 0, 2, 0x60, 1];
        assert_eq!(copy_name(&[&text[..], &odd, &eui, &naa, &other].concat()), Some(&naa[..]));
        assert_eq!(copy_name(&[&text[..], &eui].concat()), Some(&eui[..]));
        assert_eq!(copy_name(&[&text[..], &naa[..6]].concat()), None);
    }

    #[test]
    fn uuid_designator_has_the_name_of_a_namespace() {
        let uuid = [&[1, 10, 0, 18, 0x10, 0][..], &[0xab; 16]].concat();
        let name = "uuid.abababab-abab-abab-abab-abababababab";
        assert_eq!(name_of(&uuid).as_deref(), Some(name));
        let both = [&uuid[..], &[2, 1, 0, 2, 65, 66]].concat();
        assert_eq!((name_of(&both).as_deref(), is_named(&both, name)), (Some("t10.AB"), true));
        assert_eq!(name_of(&[1, 10, 0, 2, 0x10, 0]), None);
    }

    #[test]
    fn group_of_the_port_is_found_among_the_designators() {
        let page = [
            &[0, 0x83, 0, 28][..],
            &[1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7],
            &[0x51, 0x94, 0, 4, 0, 0, 0, 1],
            &[0x51, 0x95, 0, 4, 0, 0, 0x01, 0x02],
        ]
        .concat();
        assert_eq!(target_port_group(&page), Some(0x0102));
        (0..page.len()).for_each(|n| assert_eq!(target_port_group(&page[..n]), None, "{n} bytes"));
    }
}
