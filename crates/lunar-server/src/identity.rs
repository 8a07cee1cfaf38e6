//! Default identities of logical units, derived from names so that they are the same at each start.

use lunar_scsi::LuIdentity;
use sha2::{Digest, Sha256};

use crate::Diagnostic;
use crate::config::LunConfig;

/// The identity of a logical unit of a target.
pub(crate) fn identity(target: &str, number: u16, lun: &LunConfig) -> LuIdentity {
    let serial = lun.serial.clone().unwrap_or_else(|| serial(&[target, &number.to_string()]));
    let revision = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    let found = lun.found.as_deref();
    let revision = found.map_or(revision, |found| found.revision.as_str());
    // A different configured serial number makes it another disk. Leading and trailing spaces are ignored.
    let same = found.filter(|found| lun.serial.as_ref().is_none_or(|own| own.trim() == found.serial));
    // NAA designators have 8 or 16 bytes (SPC-5 section 7.7.6.6).
    let own = same.map(|found| &found.naa).filter(|naa| matches!(naa.len(), 8 | 16));
    let naa = own.cloned().unwrap_or_else(|| naa(target, serial.trim()));
    let same = same.filter(|found| found.vendor == lun.vendor && !found.designators.is_empty());
    let designators = same.map(|found| found.designators.clone());
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
    hash("serial", parts)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A reservation key derived from a seed; never 0.
pub(crate) fn key(seed: &str) -> u64 {
    let hash = hash("key", &[seed]);
    hash[..8].iter().fold(0, |key, byte| key << 8 | u64::from(*byte)).max(1)
}

/// Sixteen random hexadecimal digits.
pub(crate) fn random_serial() -> Result<String, Diagnostic> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| {
        Diagnostic::new(format!("cannot generate a serial number: {e}"), "set `serial` for the LUN")
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A locally assigned NAA designator (3h): 60 bits derived from target name and serial number.
fn naa(target: &str, serial: &str) -> Vec<u8> {
    let mut naa = hash("naa", &[target, serial])[..8].to_vec();
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

    /// Hosts identify disks by these values: a change would make every disk a new one.
    #[test]
    fn identities_never_change() {
        let lun = LunConfig::new(Source::Null { size: 4096 }, lunar_scsi::PeripheralDeviceType::Disk);
        let identity = identity("iqn.2026-11.org.example:disks", 3, &lun);
        assert_eq!(identity.serial, "d8c20d33e66d8d43");
        let naa: String = identity.naa.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(naa, "32b10563e3c11ce1");
    }

    #[test]
    fn identity_depends_on_target_lun_and_serial() {
        let plain = LunConfig::new(Source::Null { size: 4096 }, lunar_scsi::PeripheralDeviceType::Disk);
        let named = LunConfig { serial: Some("7".into()), ..plain.clone() };
        let a = identity("iqn.2026-11.org.example:a", 0, &plain);
        for other in [
            identity("iqn.2026-11.org.example:b", 0, &plain),
            identity("iqn.2026-11.org.example:a", 1, &plain),
        ] {
            assert_ne!(other.serial, a.serial);
            assert_ne!(other.naa, a.naa);
        }
        let given = identity("iqn.2026-11.org.example:a", 0, &named);
        assert_eq!(given.serial, "7");
        assert_ne!(given.naa, a.naa);
        assert_eq!(given.naa[0] >> 4, 3);
        assert_ne!(hash("x", &["ab", "c"]), hash("x", &["a", "bc"]));
    }
}
