//! Backing stores and direct stores, and the identity that tgtd derives for them.

use super::TgtImport;
use super::file::TgtEntry;
use super::settings::TgtSettings;
use crate::common::{medium_of, name_of};
use crate::{Disk, DiskMedium, Identity, NewTarget};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of the identifier and of the serial number.
const ID_LEN: usize = 36;
/// Bytes of a null store.
const NULL_BYTES: u64 = 1 << 40;
/// Keys that a store or its target may have.
const KEYS: [&str; 18] = [
    "lun",
    "bs-type",
    "bsopts",
    "bsoflags",
    "block-size",
    "lbppbe",
    "write-cache",
    "readonly",
    "removable",
    "device-type",
    "scsi_id",
    "scsi_sn",
    "vendor_id",
    "product_id",
    "product_rev",
    "params",
    "online",
    "size",
];

/// A store, with the settings of its target and then its own.
pub(super) struct Store<'a> {
    path: &'a str,
    place: &'a str,
    lun: Option<u16>,
    is_direct: bool,
    keys: TgtSettings<'a>,
    own: TgtSettings<'a>,
}

impl Store<'_> {
    /// Whether a store reads this key.
    pub(super) fn reads(key: &str) -> bool {
        KEYS.contains(&key)
    }
}

/// The stores of a target with their LUN numbers: backing stores before direct stores, each in the order of their paths.
/// A store without a number gets the first free one from 1.
pub(super) fn stores<'a>(target: &TgtSettings<'a>) -> Vec<Store<'a>> {
    let mut found: BTreeMap<(bool, &str), (&str, Vec<&TgtEntry>)> = BTreeMap::new();
    for entry in
        target.0.iter().filter(|entry| matches!(entry.key.as_str(), "backing-store" | "direct-store"))
    {
        let key = (entry.key == "direct-store", entry.value.as_str());
        let (_, keys) = found.entry(key).or_insert((&entry.place, Vec::new()));
        keys.extend(entry.block.iter().flatten());
    }
    let one = |((is_direct, path), (place, own)): ((bool, &'a str), (&'a str, Vec<&'a TgtEntry>))| {
        let own = TgtSettings(own);
        let lun = own.value("lun").map(|lun| lun.parse().unwrap_or(u16::MAX));
        let keys = TgtSettings(target.0.iter().chain(&own.0).copied().collect());
        Store { path, place, lun, is_direct, keys, own }
    };
    let mut stores: Vec<Store<'a>> = found.into_iter().map(one).collect();
    let taken: BTreeSet<u16> = stores.iter().filter_map(|store| store.lun).collect();
    let mut free = (1..=u16::MAX).filter(|lun| !taken.contains(lun));
    stores.iter_mut().filter(|store| store.lun.is_none()).for_each(|store| store.lun = free.next());
    stores
}

impl TgtImport {
    /// Adds a store as a LUN.
    pub(super) fn store(&mut self, target: &mut NewTarget, tid: u32, store: &Store<'_>) {
        for entry in store.own.0.iter().filter(|entry| !Store::reads(&entry.key)) {
            self.other_key(entry, store.path);
        }
        let lun = store.lun.unwrap_or(u16::MAX);
        match self.disk(store) {
            Ok(disk) => {
                let identity = self.identity(store, tid, lun, disk.cdrom);
                self.0.add_lun(target, lun, Disk { identity, ..disk }, store.place);
            }
            Err(why) => {
                self.0.notes.lost(store.place, format!("{}: LUN {lun}, {}: {why}", target.name, store.path))
            }
        }
    }

    fn disk(&mut self, store: &Store<'_>) -> Result<Disk, String> {
        let keys = &store.keys;
        let medium = medium(store)?;
        let block_size = match keys.value("block-size").unwrap_or("512") {
            "512" => 512,
            "4096" => 4096,
            other => return Err(format!("a block size of {other} bytes")),
        };
        if keys.is_set("online") == Some(false) {
            return Err("it is offline".into());
        }
        let cdrom = match keys.value("device-type").unwrap_or("disk") {
            "disk" => false,
            "cd" => true,
            other => return Err(format!("the device type {other:?}")),
        };
        let flags = keys.value("bsoflags").unwrap_or_default();
        let has_cache = keys.value("write-cache") != Some("off") && !flags.contains("sync");
        let has_path = !matches!(medium, DiskMedium::Null(_));
        let is_direct = flags.contains("direct") || keys.value("bs-type") == Some("aio");
        Ok(Disk {
            cdrom,
            block_size: (!cdrom).then_some(block_size),
            physical_block_size: self.physical_block_size(keys, block_size).filter(|_| !cdrom),
            read_only: cdrom || keys.is_set("readonly") == Some(true),
            removable: cdrom || keys.is_set("removable") == Some(true),
            write_cache: has_cache,
            direct: has_path && is_direct,
            thin: !cdrom && self.is_thin(keys),
            ..Disk::new(name_of(store.path), medium)
        })
    }

    /// The block size, shifted by the exponent of `lbppbe`.
    fn physical_block_size(&mut self, keys: &TgtSettings<'_>, block_size: u32) -> Option<u32> {
        /// 16 MiB.
        const MAX: u32 = 24;
        let entry = keys.entry("lbppbe")?;
        let exponent =
            entry.value.parse::<u32>().ok().and_then(|n| n.checked_add(block_size.trailing_zeros()));
        match exponent {
            Some(exponent) if exponent <= MAX => Some(1 << exponent),
            _ => {
                self.0.notes.lost(&entry.place, format!("lbppbe {}", entry.value));
                None
            }
        }
    }

    /// Reads `params`, and reports all but thin provisioning.
    fn is_thin(&mut self, keys: &TgtSettings<'_>) -> bool {
        let mut is_thin = false;
        for entry in keys.all("params") {
            for param in entry.value.split(',').map(str::trim) {
                match param.split_once('=') {
                    Some(("thin_provisioning", value)) => is_thin = value != "0",
                    _ => self.0.notes.lost(&entry.place, format!("params {param}")),
                }
            }
        }
        is_thin
    }

    /// The identity of a LUN: `spc_lu_init` and VPD pages 80h and 83h of tgtd.
    fn identity(&mut self, store: &Store<'_>, tid: u32, lun: u16, cdrom: bool) -> Identity {
        let id =
            store.keys.value("scsi_id").map_or_else(|| format!("IET     {tid:04x}{lun:04x}"), Into::into);
        let product = if cdrom { "VIRTUAL-CDROM" } else { "VIRTUAL-DISK" };
        if store.is_direct {
            let what = format!(
                "{}: vendor, product, revision and serial number, which tgt-admin reads from the disk. Set them in \
                 lunar.toml, unless the store has keys for them",
                store.path
            );
            self.0.notes.lost(store.place, what);
        }
        let mut text = |key: &str, default: &str, what: &str, max| {
            let value = store.keys.entry(key).filter(|entry| !entry.value.is_empty());
            match value {
                Some(entry) => self.0.scsi_text(&entry.value, what, max, &entry.place),
                None => Some(default.to_owned()).filter(|_| !store.is_direct),
            }
        };
        let serial = text("scsi_sn", &format!("beaf{tid}{lun}"), "serial number", ID_LEN);
        Identity {
            serial: serial.map(|serial| format!("{serial:>ID_LEN$}")),
            vendor: text("vendor_id", "IET", "vendor", 8),
            product: text("product_id", product, "product", 16),
            revision: text("product_rev", "0001", "revision", 4),
            designators: designators(&id, tid, lun),
            ..Identity::default()
        }
    }
}

/// The medium of a store.
fn medium(store: &Store<'_>) -> Result<DiskMedium, String> {
    let options = store.keys.value("bsopts").map(|options| format!(" with {options:?}")).unwrap_or_default();
    match store.keys.value("bs-type").unwrap_or("rdwr") {
        "null" => Ok(DiskMedium::Null(NULL_BYTES)),
        "rdwr" | "aio" if store.path.is_empty() => Err("it has no path".into()),
        "rdwr" | "aio" => Ok(medium_of(store.path)),
        kind @ ("sg" | "bsg") => Err(format!(
            "the store type {kind}: a router serves SCSI devices, see `sg` in docs/router-keys.md"
        )),
        kind => Err(format!("the store type {kind:?}{options} has no counterpart")),
    }
}

/// The designators of a LUN: the identifier, then an NAA 3 of both numbers, then an NAA 6 of the identifier.
fn designators(id: &str, tid: u32, lun: u16) -> Vec<String> {
    let mut bytes: Vec<u8> = id.bytes().take(ID_LEN).collect();
    bytes.resize(ID_LEN, 0);
    let t10: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let local = 3 << 60 | u64::from(tid) << 32 | u64::from(lun);
    let extended = 6 << 124 | naa_digits(id) & (u128::MAX >> 4);
    vec![format!("0201 0024 {t10}"), format!("0103 0008 {local:016x}"), format!("0103 0010 {extended:032x}")]
}

/// The number that an identifier is in hexadecimal digits. Other characters count as 0.
fn naa_digits(id: &str) -> u128 {
    let digit = |c: char| u128::from(c.to_digit(16).unwrap_or(0));
    id.chars().take(ID_LEN).fold(0, |number, c| number << 4 | digit(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of a running tgtd 1.0.85.
    #[test]
    fn designators_are_those_of_tgtd() {
        let [t10, local, extended] = &designators("IET     00010001", 1, 1)[..] else { panic!("three") };
        assert!(t10.starts_with("0201 0024 4945542020202020303030313030303100"), "{t10}");
        assert_eq!(local, "0103 0008 3000000100000001");
        assert_eq!(extended, "0103 0010 60000000000000000e00000000010001");
        assert_eq!(designators("beaf77", 1, 15)[2], "0103 0010 60000000000000000000000000beaf77");
    }
}
