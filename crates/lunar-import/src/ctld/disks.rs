//! LUNs: those with a name, which several targets can show, and those of one target.

use super::file::{CtldKey, all, option, size, value};
use super::{CtldDisks, CtldImport};
use crate::common::{medium_of, name_of};
use crate::{Disk, DiskMedium, NewTarget};

impl CtldImport {
    /// Adds the disks of LUNs that have a name.
    pub(super) fn disks<'a>(&mut self, keys: &'a [CtldKey]) -> CtldDisks<'a> {
        let mut disks = CtldDisks::new();
        for key in all(keys, "lun") {
            let name = key.word(0);
            if disks.contains_key(name) {
                self.0.notes.lost(key.place(), format!("lun {name}, which is above already"));
                continue;
            }
            let disk = self.disk(key, name, None);
            disks.insert(name, disk.and_then(|disk| self.0.add_disk(disk, &key.place())));
        }
        disks
    }

    /// Adds a LUN to a target.
    pub(super) fn lun(&mut self, target: &mut NewTarget, key: &CtldKey, disks: &CtldDisks<'_>) {
        let place = key.place();
        let lost = |why: &str| format!("{}: {}: {why}", target.name, key.shown());
        let Ok(number) = key.word(0).parse::<u16>() else {
            self.0.notes.lost(place, lost("the number is not valid"));
            return;
        };
        match key.words.get(1).map(|name| disks.get(name.as_str())) {
            None => {
                let scsi_name = format!("{},lun,{number}", target.name);
                let name = value(&key.block, "path").map_or("memory", name_of);
                if let Some(disk) = self.disk(key, name, Some(scsi_name)) {
                    self.0.add_lun(target, number, disk, &place);
                }
            }
            Some(Some(Some(index))) => self.0.show_disk(target, number, *index, &place),
            Some(Some(None)) => self.0.notes.lost(place, lost("the disk is lost")),
            Some(None) => self.0.notes.lost(place, lost("the file does not have it")),
        }
    }

    /// The disk of a LUN. `scsi_name` is the SCSI name that it has by default.
    fn disk(&mut self, key: &CtldKey, name: &str, scsi_name: Option<String>) -> Option<Disk> {
        let keys = &key.block[..];
        let is_on = |name: &str| option(keys, name).map(|option| option.word(1) == "on");
        let settings = kind(keys).and_then(|cdrom| Ok((cdrom, block_size(keys, cdrom)?, medium(keys)?)));
        let (cdrom, block_size, medium) = match settings {
            Ok(settings) => settings,
            Err(why) => {
                self.0.notes.lost(key.place(), format!("{}: {why}", key.shown()));
                return None;
            }
        };
        let is_thin = match &medium {
            DiskMedium::Device(path) => path.starts_with("/dev/zvol/"),
            _ => true,
        };
        let physical_block_size = self.physical_block_size(keys, block_size).filter(|_| !cdrom);
        self.other_keys(key, &medium);
        Some(Disk {
            cdrom,
            block_size: block_size.filter(|_| !cdrom),
            physical_block_size,
            read_only: cdrom || is_on("readonly") == Some(true),
            removable: is_on("removable").unwrap_or(cdrom),
            write_cache: option(keys, "writecache").is_none_or(|option| option.word(1) != "off"),
            thin: !cdrom && is_on("unmap").unwrap_or(is_thin),
            identity: self.identity(key, cdrom, scsi_name),
            ..Disk::new(name, medium)
        })
    }

    fn physical_block_size(&mut self, keys: &[CtldKey], block_size: Option<u32>) -> Option<u32> {
        /// 16 MiB.
        const MAX: u32 = 1 << 24;
        let key = option(keys, "pblocksize").filter(|key| key.word(1) != "0")?;
        let value = size(key.word(1)).and_then(|size| u32::try_from(size).ok());
        let value =
            value.filter(|size| size.is_power_of_two() && (block_size.unwrap_or(512)..=MAX).contains(size));
        if value.is_none() {
            self.0.notes.lost(key.place(), key.shown());
        }
        value
    }

    /// Reports the keys and options that have no counterpart.
    fn other_keys(&mut self, key: &CtldKey, medium: &DiskMedium) {
        for other in &key.block {
            let what = format!("{}: {}", key.shown(), other.shown());
            let notes = &mut self.0.notes;
            match (other.key.as_str(), other.word(0)) {
                ("size", _) if !matches!(medium, DiskMedium::Memory(_) | DiskMedium::Null(_)) => {
                    notes.changed(other.place(), format!("{what}: the LUN has the size of its medium"));
                }
                ("option", "capacity") => {
                    notes.changed(other.place(), format!("{what}: memory has room for the whole disk"));
                }
                ("option", "readonly" | "removable" | "writecache" | "unmap" | "pblocksize") => {}
                ("option", "vendor" | "product" | "revision" | "scsiname" | "eui" | "naa" | "uuid") => {}
                ("path" | "backend" | "blocksize" | "size" | "serial" | "device-id" | "device-type", _) => {}
                // A number of CTL, which hosts do not see.
                ("ctl-lun", _) => {}
                _ => notes.lost(other.place(), what),
            }
        }
    }
}

/// Whether a LUN is a CD.
fn kind(keys: &[CtldKey]) -> Result<bool, String> {
    match value(keys, "device-type").unwrap_or("disk").to_ascii_lowercase().as_str() {
        "disk" | "direct" | "0" => Ok(false),
        "cd" | "cdrom" | "dvd" | "dvdrom" | "5" => Ok(true),
        other => Err(format!("the device type {other:?}")),
    }
}

fn block_size(keys: &[CtldKey], cdrom: bool) -> Result<Option<u32>, String> {
    match (value(keys, "blocksize").map(|text| (text, size(text))), cdrom) {
        (None, false) => Ok(Some(512)),
        (None | Some((_, Some(2048))), true) => Ok(Some(2048)),
        (Some((_, Some(bytes @ (512 | 4096)))), false) => Ok(Some(bytes as u32)),
        (Some((text, _)), _) => Err(format!("a block size of {text}")),
    }
}

fn medium(keys: &[CtldKey]) -> Result<DiskMedium, String> {
    match (value(keys, "backend").unwrap_or("block"), value(keys, "path").unwrap_or_default()) {
        ("block", "") => Err("it has no path".into()),
        ("block", path) => Ok(medium_of(path)),
        ("ramdisk", _) => {
            let bytes = value(keys, "size").and_then(size).ok_or("it has no size")?;
            // Without a capacity, all writes are discarded.
            let capacity = option(keys, "capacity").and_then(|capacity| size(capacity.word(1)));
            Ok(if capacity.unwrap_or(0) > 0 { DiskMedium::Memory(bytes) } else { DiskMedium::Null(bytes) })
        }
        (other, _) => Err(format!("the backend {other:?} has no counterpart")),
    }
}
