//! LUNs, and the identity that istgt derives for them.

use super::IstgtImport;
use super::file::{IstgtKey, IstgtSection, number_after};
use crate::common::{medium_of, name_of};
use crate::{Disk, Identity, NewTarget};
use std::collections::BTreeMap;

/// Bytes of a product identification, to which the T10 designator fills it.
const PRODUCT_LEN: usize = 16;

impl IstgtImport {
    /// Adds the LUNs of a unit with a number and a name. Its name as written is in the identities of its LUNs.
    pub(super) fn luns(&mut self, target: &mut NewTarget, unit: &IstgtSection, (number, name): (u16, &str)) {
        let mut by_lun: BTreeMap<u16, Vec<&IstgtKey>> = BTreeMap::new();
        for key in &unit.keys {
            if let Some(lun) = number_after(&key.key, "LUN") {
                by_lun.entry(lun).or_default().push(key);
            }
        }
        for (lun, keys) in by_lun {
            let (options, media): (Vec<&IstgtKey>, Vec<&IstgtKey>) =
                keys.into_iter().partition(|key| key.word(0).eq_ignore_ascii_case("Option"));
            let Some((medium, others)) = media.split_first() else { continue };
            for other in others {
                self.0.notes.lost(
                    &other.place,
                    format!("{}: {}: it has a medium already", target.name, other.shown()),
                );
            }
            match disk(unit, medium, &options) {
                Ok(disk) => {
                    let identity = self.identity(name, unit, (number, lun), &options);
                    self.0.add_lun(target, lun, Disk { identity, ..disk }, &medium.place);
                    self.medium_size(medium);
                    options.iter().for_each(|option| self.option(option, &target.name));
                }
                Err(why) => {
                    self.0.notes.lost(&medium.place, format!("{}: {}: {why}", target.name, medium.shown()))
                }
            }
        }
    }

    /// Reports a size in the file: a LUN of Lunar has the size of its medium.
    fn medium_size(&mut self, medium: &IstgtKey) {
        let size = medium.words.last().map(String::as_str).unwrap_or_default();
        if medium.words.len() > 2 && !size.eq_ignore_ascii_case("Auto") {
            let what = format!("{}: the size {size}: the LUN has that of its medium", medium.key);
            self.0.notes.changed(&medium.place, what);
        }
    }

    fn option(&mut self, option: &IstgtKey, of: &str) {
        match option.word(1).to_ascii_lowercase().as_str() {
            "serial" | "writecache" => {}
            _ => self.0.notes.lost(&option.place, format!("{of}: {}", option.shown())),
        }
    }

    /// The identity of a LUN: serial number, NAA 3 with a checksum of the names, and T10 vendor ID.
    fn identity(
        &mut self,
        name: &str,
        unit: &IstgtSection,
        (number, lun): (u16, u16),
        options: &[&IstgtKey],
    ) -> Identity {
        let is_dvd = unit.word("UnitType", 0).is_some_and(|kind| kind.eq_ignore_ascii_case("DVD"));
        let inquiry = unit.all("UnitInquiry").next();
        let place = inquiry.map_or(&unit.place, |key| &key.place);
        let word = |n: usize| inquiry.map(|key| key.word(n)).filter(|word| !word.is_empty());
        let product = word(1).unwrap_or(if is_dvd { "iSCSI DVD" } else { "iSCSI DISK" });
        let vendor = self.0.scsi_text(word(0).unwrap_or("FreeBSD"), "vendor", 8, place);
        let product = self.0.scsi_text(product, "product", PRODUCT_LEN, place);
        let revision = self.0.scsi_text(word(2).unwrap_or("0001"), "revision", 4, place);
        let serial = serial(word(3), number, lun, options);
        let serial = self.0.scsi_text(&serial, "serial number", 64, place);
        let t10_id = serial
            .as_ref()
            .zip(product.as_ref())
            .map(|(serial, product)| format!("{product:PRODUCT_LEN$}{serial}"));
        let naa = Some(naa(name, lun));
        Identity { serial, naa, t10_id, vendor, product, revision, ..Identity::default() }
    }
}

fn serial(of_unit: Option<&str>, number: u16, lun: u16, options: &[&IstgtKey]) -> String {
    let own = options.iter().find(|option| option.word(1).eq_ignore_ascii_case("Serial"));
    let of_unit = of_unit.map_or_else(|| (10_000_000 + u32::from(number)).to_string(), Into::into);
    match own {
        Some(own) => own.word(2).to_owned(),
        None if lun == 0 => of_unit,
        None => format!("{of_unit}L{lun}"),
    }
}

fn disk(unit: &IstgtSection, medium: &IstgtKey, options: &[&IstgtKey]) -> Result<Disk, String> {
    let cdrom = match unit.word("UnitType", 0).unwrap_or("Disk").to_ascii_lowercase().as_str() {
        "disk" => false,
        "dvd" => true,
        "pass" => return Err("a router serves SCSI devices, see `sg` in docs/router-keys.md".into()),
        other => return Err(format!("the unit type {other:?}")),
    };
    let kind = medium.word(0).to_ascii_lowercase();
    let (flags, path) = match kind.as_str() {
        "storage" => ("", medium.word(1)),
        "removable" => (medium.word(1), medium.word(2)),
        _ => return Err("this kind of medium has no counterpart".into()),
    };
    if path.is_empty() {
        return Err("it has no path".into());
    }
    let block_size = match unit.word("BlockLength", 0).unwrap_or("512") {
        "512" => 512,
        "4096" => 4096,
        _ if cdrom => 2048,
        other => return Err(format!("a block size of {other} bytes")),
    };
    let is_off = |option: &&&IstgtKey| {
        option.word(1).eq_ignore_ascii_case("WriteCache") && !option.word(2).eq_ignore_ascii_case("Enable")
    };
    let is_read_only = unit.is_yes("ReadOnly") == Some(true) || flags.split(',').any(|flag| flag == "ro");
    Ok(Disk {
        cdrom,
        block_size: (!cdrom).then_some(block_size),
        read_only: cdrom || is_read_only,
        removable: cdrom || kind == "removable",
        write_cache: options.iter().find(is_off).is_none(),
        thin: false,
        ..Disk::new(name_of(path), medium_of(path))
    })
}

/// The NAA 3 designator: the checksum (CRC-32C) of the name of the target and the LUN.
fn naa(target: &str, lun: u16) -> String {
    format!("30000000{:08x}", crc32c(format!("{target},{lun}").as_bytes()))
}

fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let bit = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naa_is_a_checksum_of_the_names() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(naa("iqn.2007-09.org.example.istgt:disk1", 0), "3000000016546154");
    }
}
