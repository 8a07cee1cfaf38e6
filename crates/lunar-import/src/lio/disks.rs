//! Storage objects, and the identity that the kernel derives for them.

use super::file::{SaveConfig, StorageObject};
use super::{DiskIndices, Import};
use crate::{Disk, DiskMedium, Identity};

/// The IEEE company identifier of LIO.
const COMPANY: &str = "001405";

impl Import {
    /// Adds the disks of all storage objects that Lunar can serve.
    pub(super) fn disks(&mut self, file: &SaveConfig) -> DiskIndices {
        let mut disks = DiskIndices::new();
        for (n, object) in file.storage_objects.iter().enumerate() {
            let place = format!("storage_objects[{n}]");
            let path = path(object);
            match medium(object) {
                Ok(medium) => {
                    self.0.notes.carried(&place, format!("{path}: {}", shown(&medium)));
                    let name = self.0.configuration.free_disk_name(&object.name);
                    let disk = self.disk(object, Disk::new(name, medium), &place);
                    disks.insert(path, self.0.configuration.disks.len());
                    self.0.configuration.disks.push(disk);
                }
                Err(why) => self.0.notes.lost(place, format!("{path}: {why}")),
            }
        }
        disks
    }

    fn disk(&mut self, object: &StorageObject, disk: Disk, place: &str) -> Disk {
        let attributes = &object.attributes;
        let write_cache = attributes.is_set("emulate_write_cache").unwrap_or(object.write_back.0);
        let unmap = ["emulate_tpu", "emulate_tpws"].into_iter().filter_map(|key| attributes.is_set(key));
        if attributes.number("pi_prot_type").is_some_and(|kind| kind != 0) {
            self.0.notes.lost(format!("{place}.attributes.pi_prot_type"), "protection information");
        }
        for group in &object.alua_tpgs {
            if group.alua_access_state != 0 || group.preferred.0 {
                let what =
                    format!("the ALUA state of group {}, which begins as active/optimized", group.name);
                self.0.notes.lost(format!("{place}.alua_tpgs"), what);
            }
        }
        Disk {
            block_size: attributes.number("block_size").and_then(|size| size.try_into().ok()),
            read_only: object.readonly.0,
            write_cache,
            direct: object.aio.0,
            thin: { unmap }.any(|is_set| is_set),
            identity: self.identity(object, place),
            ..disk
        }
    }

    /// The identity of a storage object (`spc_emulate_evpd_83` of the kernel).
    fn identity(&mut self, object: &StorageObject, place: &str) -> Identity {
        let model = match object.attributes.is_set("emulate_model_alias").unwrap_or(false) {
            true => object.name.chars().take(16).collect(),
            false => default_model(&object.plugin).to_owned(),
        };
        let product = Some(model.clone()).filter(|model| is_product(model));
        if product.is_none() {
            self.0
                .notes
                .changed(format!("{place}.name"), format!("the product {model:?}, which SCSI cannot carry"));
        }
        let identity = Identity {
            vendor: Some("LIO-ORG".into()),
            product,
            revision: Some("4.0".into()),
            ..Identity::default()
        };
        if object.wwn.is_empty() {
            self.0.notes.lost(
                format!("{place}.wwn"),
                "the serial number and the designators, which are not in the file",
            );
            return identity;
        }
        Identity {
            serial: Some(object.wwn.clone()),
            naa: Some(naa(&object.wwn)),
            t10_id: Some(format!("{model}:{}", object.wwn)).filter(|id| id.is_ascii()),
            ..identity
        }
    }
}

/// The path of a storage object in the configuration tree.
pub(super) fn path(object: &StorageObject) -> String {
    format!("/backstores/{}/{}", object.plugin, object.name)
}

/// The medium of a storage object.
fn medium(object: &StorageObject) -> Result<DiskMedium, String> {
    let size = || object.size.ok_or("the size is not in the file");
    let path = |path: &str| match path.is_empty() {
        true => Err("the path is not in the file"),
        false => Ok(path.to_owned()),
    };
    Ok(match object.plugin.as_str() {
        "fileio" if object.dev.starts_with("/dev/") => DiskMedium::Device(path(&object.dev)?),
        "fileio" => DiskMedium::File(path(&object.dev)?),
        "block" => DiskMedium::Device(path(&object.dev)?),
        "ramdisk" if object.nullio.0 => DiskMedium::Null(size()?),
        "ramdisk" => DiskMedium::Memory(size()?),
        "user" => DiskMedium::File(user_file(&object.config)?),
        "pscsi" => return Err("a SCSI device, which a router serves: see `sg` in docs/router-keys.md".into()),
        other => return Err(format!("the unknown backstore {other:?}")),
    })
}

/// The file of a user backstore with the handler `file`.
fn user_file(config: &str) -> Result<String, String> {
    let path = config.strip_prefix("file/").filter(|path| path.starts_with('/'));
    path.map(Into::into).ok_or_else(|| format!("the user backstore {config:?} has no counterpart"))
}

/// The medium for the report.
fn shown(medium: &DiskMedium) -> String {
    let lost = match medium {
        DiskMedium::Memory(_) => "; its content is lost with the kernel's target",
        _ => "",
    };
    format!("{medium}{lost}")
}

fn default_model(plugin: &str) -> &'static str {
    match plugin {
        "fileio" => "FILEIO",
        "block" => "IBLOCK",
        "user" => "TCMU device",
        _ => "RAMDISK-MCP",
    }
}

/// Whether a product identification is printable, and has no space at its ends.
fn is_product(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && text.bytes().all(|b| (0x20..0x7f).contains(&b))
}

/// The NAA 6 designator of a unit serial number: the company, then the first 25 hexadecimal digits of the serial
/// number. Other characters are skipped, and zeros follow.
fn naa(serial: &str) -> String {
    let digits: String = serial.chars().filter(char::is_ascii_hexdigit).take(25).collect();
    format!("6{COMPANY}{:0<25}", digits.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of a running kernel.
    #[test]
    fn naa_has_the_digits_of_the_serial_number() {
        assert_eq!(naa("3f2d9c1a-7b54-4e60-9a11-0c5d8e7f6a21"), "60014053f2d9c1a7b544e609a110c5d8");
        assert_eq!(naa("50cfd3766cc33a70"), "600140550cfd3766cc33a70000000000");
        assert_eq!(naa(""), "60014050000000000000000000000000");
    }
}
