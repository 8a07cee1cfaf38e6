//! Devices of the handlers, and the identity that SCST derives for them.

use super::file::ScstEntry;
use super::{ScstDevice, ScstImport};
use crate::{Disk, DiskMedium, Identity};

/// Attributes of devices that are carried over or reported by name.
const KNOWN: [&str; 27] = [
    "filename",
    "blocksize",
    "read_only",
    "removable",
    "size",
    "size_mb",
    "write_through",
    "nv_cache",
    "o_direct",
    "thin_provisioned",
    "usn",
    "t10_dev_id",
    "t10_vend_id",
    "vend_specific_id",
    "prod_id",
    "prod_rev_lvl",
    "naa_id",
    "eui64_id",
    "dummy",
    "rotational",
    "tst",
    "active",
    "inq_vend_id",
    "scsi_device_name",
    "inq_vend_specific",
    "gen_tp_soft_threshold_reached_UA",
    "cluster_mode",
];

impl ScstImport {
    /// Adds the disks of all handlers.
    pub(super) fn disks(&mut self, file: &ScstEntry) {
        for handler in file.all("HANDLER") {
            for device in handler.all("DEVICE") {
                let new = self.device(handler.arg(), device);
                self.devices.insert(device.arg().to_owned(), new);
            }
            for other in handler.entries.iter().filter(|entry| entry.key != "DEVICE") {
                self.unknown(other, handler.arg());
            }
        }
    }

    fn device(&mut self, handler: &str, device: &ScstEntry) -> ScstDevice {
        let (name, place) = (device.arg(), device.place());
        if handler == "vdisk_nullio" && device.flag("dummy") == Some(true) {
            self.imported.notes.carried(place, format!("{name}: a dummy, which is no LUN"));
            return ScstDevice::Dummy;
        }
        if self.devices.contains_key(name) {
            // Which of them a LUN shows is not known.
            self.imported
                .notes
                .lost(&place, format!("{name}: another device with this name, so neither is served"));
            return ScstDevice::Lost;
        }
        match medium(handler, device).and_then(|medium| Ok((medium, block_size(handler, device)?))) {
            Ok((medium, block_size)) => {
                self.imported.notes.carried(&place, format!("{name}: {}", medium));
                let disk = self.disk(
                    handler,
                    device,
                    Disk::new(self.imported.configuration.free_disk_name(name), medium),
                );
                let configuration = &mut self.imported.configuration;
                configuration.disks.push(Disk { block_size, ..disk });
                ScstDevice::Disk(configuration.disks.len() - 1, device.line)
            }
            Err(why) => {
                self.imported.notes.lost(place, format!("{name}: {why}"));
                ScstDevice::Lost
            }
        }
    }

    fn disk(&mut self, handler: &str, device: &ScstEntry, disk: Disk) -> Disk {
        self.device_notes(device);
        let identity = self.identity(handler, device);
        if handler == "vcdrom" {
            let write_cache = true;
            return Disk {
                cdrom: true,
                read_only: true,
                removable: true,
                thin: false,
                write_cache,
                identity,
                ..disk
            };
        }
        let is_set = |key| device.flag(key) == Some(true);
        let is_null = matches!(disk.medium, DiskMedium::Null(_));
        Disk {
            read_only: is_set("read_only"),
            removable: is_set("removable"),
            write_cache: is_null || !(is_set("write_through") || is_set("nv_cache")),
            direct: is_set("o_direct"),
            thin: device.flag("thin_provisioned").unwrap_or(handler == "vdisk_blockio") || is_null,
            identity,
            ..disk
        }
    }

    /// Reports the attributes of a device that have no counterpart.
    fn device_notes(&mut self, device: &ScstEntry) {
        let name = device.arg();
        for entry in &device.entries {
            let (key, is_set) = (entry.key.as_str(), entry.arg() != "0");
            let what = match key {
                "nv_cache" if is_set => {
                    "nv_cache reported writes in the page cache as stable; they are stable now, and slower"
                }
                "rotational" => "the rotation rate, which hosts read from VPD page B1h",
                "inq_vend_id" => "the vendor in INQUIRY, which is now that of the T10 designator",
                "scsi_device_name" => "the SCSI name of the target device",
                "inq_vend_specific" => "the vendor-specific bytes of INQUIRY",
                "tst" if entry.arg() != "1" => "the task set type: each host has its own task set",
                "active" if !is_set => {
                    let what = "active 0: the server opens it, so remove it while another node uses it";
                    self.imported.notes.lost(entry.place(), format!("{name}: {what}"));
                    continue;
                }
                "cluster_mode" if is_set => {
                    let what = "cluster_mode: reservations are not shared with other nodes";
                    self.imported.notes.lost(entry.place(), format!("{name}: {what}"));
                    continue;
                }
                _ if KNOWN.contains(&key) => continue,
                _ => {
                    self.unknown(entry, name);
                    continue;
                }
            };
            self.imported.notes.changed(entry.place(), format!("{name}: {what}"));
        }
    }

    /// The identity of a device (`vdisk_inquiry` of SCST).
    fn identity(&mut self, handler: &str, device: &ScstEntry) -> Identity {
        let (name, place) = (device.arg(), device.place());
        let id = format!("{:x}", u64::from(self.setup_id) << 32 | u64::from(crc32c(name)));
        let default_id: String = format!("{id}-{name}").chars().take(25).collect();
        let t10 = device.value("t10_dev_id").unwrap_or(&default_id);
        let vendor = if handler == "vdisk_blockio" { "SCST_BIO" } else { "SCST_FIO" };
        let vendor = device.value("t10_vend_id").unwrap_or(vendor);
        let [naa, eui64] = ["naa_id", "eui64_id"].map(|key| self.designator(device, key));
        let has_default = device.value("naa_id").is_none() && device.value("eui64_id").is_none();
        if device.value("prod_rev_lvl").is_none() {
            self.imported
                .notes
                .changed(&place, format!("{name}: the revision, which was the version of SCST"));
        }
        let id = device.value("usn").unwrap_or(&id);
        let text = |import: &mut ScstImport, text: &str, what, max| {
            import.imported.scsi_text(text, what, max, &place)
        };
        Identity {
            serial: text(self, id, "serial number", 252),
            naa,
            eui64: eui64.or_else(|| has_default.then(|| default_eui(t10))),
            t10_id: text(self, device.value("vend_specific_id").unwrap_or(t10), "T10 designator", 244),
            vendor: text(self, vendor, "vendor", 8),
            product: text(self, device.value("prod_id").unwrap_or(name), "product", 16),
            revision: device.value("prod_rev_lvl").and_then(|level| text(self, level, "revision", 4)),
            ..Identity::default()
        }
    }

    /// The digits of a designator. Other values are reported.
    fn designator(&mut self, device: &ScstEntry, key: &str) -> Option<String> {
        let entry = device.find(key).filter(|entry| !entry.arg().is_empty())?;
        let digits = entry.arg().trim_start_matches("0x").to_ascii_lowercase();
        let fits = match (key, digits.len()) {
            ("naa_id", 16) => digits.starts_with(['2', '3', '5']),
            ("naa_id", 32) => digits.starts_with('6'),
            ("naa_id", _) => false,
            (_, length) => [16, 24, 32].contains(&length),
        };
        if fits && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Some(digits);
        }
        let what = format!("{}: {key} {:?}, which is no designator of this kind", device.arg(), entry.arg());
        self.imported.notes.lost(entry.place(), what);
        None
    }
}

/// The medium of a device.
fn medium(handler: &str, device: &ScstEntry) -> Result<DiskMedium, String> {
    let path = device.value("filename");
    let path = || path.map(str::to_owned).ok_or("the device has no filename");
    let bytes = |key: &str, unit: u64| {
        device
            .value(key)
            .and_then(|size| size.parse::<u64>().ok()?.checked_mul(unit))
            .filter(|size| *size > 0)
    };
    Ok(match handler {
        "vdisk_fileio" => crate::common::medium_of(&path()?),
        "vdisk_blockio" => DiskMedium::Device(path()?),
        "vcdrom" => DiskMedium::File(path().map_err(|_| "a drive without a medium")?),
        "vdisk_nullio" => DiskMedium::Null(
            { bytes("size", 1) }
                .or_else(|| bytes("size_mb", 1 << 20))
                .ok_or("the size is not in the file")?,
        ),
        _ if handler.starts_with("dev_") => {
            return Err("a SCSI device, which a router serves: see `sg` in docs/router-keys.md".into());
        }
        other => return Err(format!("the unknown handler {other:?}")),
    })
}

/// The block size of a disk. A CD has its own.
fn block_size(handler: &str, device: &ScstEntry) -> Result<Option<u32>, String> {
    match device.value("blocksize") {
        _ if handler == "vcdrom" => Ok(None),
        None | Some("512") => Ok(Some(512)),
        Some("4096") => Ok(Some(4096)),
        Some(other) => Err(format!("blocks of {other:?} bytes; Lunar has blocks of 512 and 4096 bytes")),
    }
}

/// The EUI-64 of a device that has no other designator: the first 8 bytes of its T10 identifier.
fn default_eui(t10: &str) -> String {
    let bytes = t10.bytes().chain(std::iter::repeat(0)).take(8);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// The CRC-32C of a name and its NUL, with the initial value 0 and no inversion, as SCST calls it.
fn crc32c(name: &str) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    name.bytes().chain([0]).fold(0, |crc, byte| {
        let shift = |crc: u32, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ POLYNOMIAL };
        (0..8).fold(crc ^ u32::from(byte), shift)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_a_name_is_that_of_scst() {
        assert_eq!(crc32c("disk1"), 0xb8fd_bd32);
        assert_eq!(crc32c("disk_default_ids"), 0xfdab_491a);
        assert_eq!(crc32c("vol_b"), 0xce37_9bae);
    }

    #[test]
    fn default_eui_is_the_start_of_the_identifier() {
        assert_eq!(default_eui("b8fdbd32-disk1"), "6238666462643332");
        assert_eq!(default_eui("ab"), "6162000000000000");
    }
}
