//! Default identities of logical units, derived from names so that they are the same at each start.

use lunar_admin::Keys;
use lunar_scsi::LuIdentity;
use sha2::{Digest, Sha256};

use crate::Diagnostic;
use crate::build::UnitName;
use crate::config::{IdentityKeys, LunConfig, hex};

/// The identity of a logical unit.
pub(crate) fn identity(name: &UnitName, lun: &LunConfig) -> LuIdentity {
    let [owner, _] = &name.seed();
    let serial = serial_of(name, lun);
    let revision = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    let found = lun.found.as_deref();
    let revision = lun.revision.as_deref().or(found.map(|found| found.revision.as_str())).unwrap_or(revision);
    // A different configured serial number makes it another disk. Leading and trailing spaces are ignored.
    let same = found.filter(|found| lun.serial.as_ref().is_none_or(|own| own.trim() == found.serial));
    // NAA designators have 8 or 16 bytes (SPC-5 section 7.7.6.6).
    let own = same.map(|found| &found.naa).filter(|naa| matches!(naa.len(), 8 | 16));
    let naa = lun.identity.first_naa().or(own.cloned()).unwrap_or_else(|| naa(owner, serial.trim()));
    let same = same.filter(|found| found.vendor == lun.vendor && !found.designators.is_empty());
    let configured = || lun.identity.descriptors(&lun.vendor, &serial, &naa);
    let designators = match lun.identity.is_empty() {
        true => same.map(|found| found.designators.clone()),
        false => Some(configured()),
    };
    LuIdentity {
        vendor: lun.vendor.clone(),
        product: lun.product.clone(),
        revision: revision.chars().take(4).collect(),
        serial,
        naa,
        designators,
    }
}

/// Sixteen hexadecimal digits derived from names.
pub(crate) fn serial(parts: &[&str]) -> String {
    hex(&hash("serial", parts)[..8])
}

/// A reservation key derived from a seed; never 0.
pub(crate) fn key(seed: &str) -> u64 {
    let hash = hash("key", &[seed]);
    hash[..8].iter().fold(0, |key, byte| key << 8 | u64::from(*byte)).max(1)
}

/// The serial number of a unit: configured, or derived from its name.
pub(crate) fn serial_of(name: &UnitName, lun: &LunConfig) -> String {
    let [owner, number] = &name.seed();
    lun.serial.clone().unwrap_or_else(|| serial(&[owner, number]))
}

/// The keys that keep the identity of a unit at another place. Without them, it derives from the place.
pub(crate) fn lasting_keys(name: &UnitName, lun: &LunConfig) -> Keys {
    let mut keys = Keys::from_iter([("serial".to_owned(), serial_of(name, lun).into())]);
    let IdentityKeys { naa, eui64, scsi_name, designators, t10_id: _ } = &lun.identity;
    if naa.is_none() && eui64.is_none() && scsi_name.is_none() && designators.is_none() {
        keys.insert("naa".into(), hex(&identity(name, lun).naa).into());
    }
    keys
}

/// Sixteen random hexadecimal digits.
pub(crate) fn random_serial() -> Result<String, Diagnostic> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| {
        Diagnostic::new(format!("cannot generate a serial number: {e}"), "set `serial` for the LUN")
    })?;
    Ok(hex(&bytes))
}

/// A locally assigned NAA designator (3h): 60 bits derived from the target's name, or `disk`, and the serial number.
fn naa(owner: &str, serial: &str) -> Vec<u8> {
    let mut naa = hash("naa", &[owner, serial])[..8].to_vec();
    naa[0] = 0x30 | naa[0] & 0x0f;
    naa
}

/// A hash of texts. Each is preceded by its length, so that different lists never give the same input.
fn hash(purpose: &str, parts: &[&str]) -> [u8; 32] {
    let mut sha = Sha256::new();
    for part in [&[purpose], parts].concat() {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    sha.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;

    fn lun_of(target: &str, number: u16) -> UnitName {
        UnitName::Lun(target.into(), number)
    }

    /// Hosts identify disks by these values: a change would make every disk a new one.
    #[test]
    fn identities_never_change() {
        let lun = LunConfig::new(Source::Null { size: 4096 }, lunar_scsi::PeripheralDeviceType::Disk);
        let identity = identity(&lun_of("iqn.2026-11.org.example:disks", 3), &lun);
        assert_eq!(identity.serial, "d8c20d33e66d8d43");
        let naa: String = identity.naa.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(naa, "32b10563e3c11ce1");
        let shared = crate::identity::identity(&UnitName::Disk("a".into()), &lun);
        assert_eq!(shared.serial, "aff2eea04ea0754f");
    }

    fn of_keys(keys: IdentityKeys) -> LuIdentity {
        let lun = LunConfig::new(Source::Null { size: 4096 }, lunar_scsi::PeripheralDeviceType::Disk);
        let lun = LunConfig { identity: keys, serial: Some("  7".into()), vendor: "IET".into(), ..lun };
        identity(&lun_of("iqn.2026-11.org.example:a", 0), &LunConfig { revision: Some("0".into()), ..lun })
    }

    #[test]
    fn configured_designators_replace_the_default_ones() {
        let naa = vec![0x60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let t10_id = Some("a:b".to_string());
        let all = of_keys(IdentityKeys {
            naa: Some(naa.clone()),
            eui64: Some(vec![9; 8]),
            scsi_name: Some("iqn.x:a".into()),
            t10_id: t10_id.clone(),
            designators: None,
        });
        let expected: [&[u8]; 8] = [
            &[1, 3, 0, 16],
            &naa,
            &[1, 2, 0, 8],
            &[9; 8],
            &[3, 8, 0, 8],
            b"iqn.x:a\0",
            &[2, 1, 0, 11],
            b"IET     a:b",
        ];
        assert_eq!((all.designators, all.naa, all.revision), (Some(expected.concat()), naa, "0".into()));
        let t10 = of_keys(IdentityKeys { t10_id, ..IdentityKeys::default() });
        let expected = [&[1, 3, 0, 8][..], &t10.naa, &[2, 1, 0, 11], b"IET     a:b"].concat();
        assert_eq!(t10.designators, Some(expected), "the default NAA stays");
        let eui = of_keys(IdentityKeys { eui64: Some(vec![9; 8]), ..IdentityKeys::default() });
        let expected = [&[1, 2, 0, 8][..], &[9; 8], &[2, 1, 0, 11], b"IET       7"].concat();
        assert_eq!(eui.designators, Some(expected), "no NAA beside a configured EUI-64");
        assert_eq!(of_keys(IdentityKeys::default()).designators, None);
    }

    #[test]
    fn copies_use_the_first_listed_naa() {
        let list = [&[1, 1, 0, 4][..], b"IET ", &[1, 3, 0, 8, 0x30, 0, 0, 0, 0, 0, 0, 1]].concat();
        let listed = of_keys(IdentityKeys { designators: Some(list.clone()), ..IdentityKeys::default() });
        assert_eq!((listed.designators, listed.naa), (Some(list), vec![0x30, 0, 0, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn identity_depends_on_target_lun_and_serial() {
        let plain = LunConfig::new(Source::Null { size: 4096 }, lunar_scsi::PeripheralDeviceType::Disk);
        let named = LunConfig { serial: Some("7".into()), ..plain.clone() };
        let a = identity(&lun_of("iqn.2026-11.org.example:a", 0), &plain);
        for other in [
            identity(&lun_of("iqn.2026-11.org.example:b", 0), &plain),
            identity(&lun_of("iqn.2026-11.org.example:a", 1), &plain),
        ] {
            assert_ne!(other.serial, a.serial);
            assert_ne!(other.naa, a.naa);
        }
        let given = identity(&lun_of("iqn.2026-11.org.example:a", 0), &named);
        assert_eq!(given.serial, "7");
        assert_ne!(given.naa, a.naa);
        assert_eq!(given.naa[0] >> 4, 3);
        assert_ne!(hash("x", &["ab", "c"]), hash("x", &["a", "bc"]));
    }
}
