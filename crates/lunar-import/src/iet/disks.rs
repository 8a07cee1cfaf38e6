//! LUNs, and the identity that IET derives for them.

use super::IetImport;
use super::file::IetKey;
use crate::common::{medium_of, name_of};
use crate::{Disk, DiskMedium, Identity, NewTarget};
use std::collections::BTreeMap;

/// Bytes of an identifier and of a serial number.
const ID_LEN: usize = 16;

/// The parameters of a `Lun` line by their names in lower case.
type IetParameters<'a> = BTreeMap<String, &'a str>;

impl IetImport {
    /// Adds the LUN of a `Lun` line.
    pub(super) fn lun(&mut self, target: &mut NewTarget, key: &IetKey) {
        let (number, all) = key.value.split_once(char::is_whitespace).unwrap_or((&key.value, ""));
        let Ok(lun) = number.parse::<u16>() else {
            self.0.notes.lost(&key.place, format!("{}: Lun {}: no valid number", target.name, key.value));
            return;
        };
        let parameters = parameters(all);
        match disk(&parameters) {
            Ok(disk) => {
                let place = format!("{}: LUN {lun}", target.name);
                let identity = self.identity(&parameters, &place, key);
                self.0.add_lun(target, lun, Disk { identity, ..disk }, &key.place);
                self.other_parameters(&parameters, &place, key);
            }
            Err(why) => self.0.notes.lost(&key.place, format!("{}: LUN {lun}: {why}", target.name)),
        }
    }

    /// The identity of a LUN. Without `ScsiId`, IET derives the designator from numbers that the file does not have.
    fn identity(&mut self, parameters: &IetParameters<'_>, lun: &str, key: &IetKey) -> Identity {
        let id = parameters.get("scsiid").copied().unwrap_or_default();
        if id.is_empty() {
            let what = format!(
                "{lun}: the designator, which IET derives from the inode or device. Copy it from VPD page 83h of the \
                 running target to `designators`"
            );
            self.0.notes.lost(&key.place, what);
        }
        let serial = parameters.get("scsisn").filter(|serial| !serial.is_empty());
        if serial.is_none() {
            self.0.notes.changed(
                &key.place,
                format!("{lun}: the serial number, which was blank, and is not any more"),
            );
        }
        let serial = serial.and_then(|serial| self.0.scsi_text(serial, "serial number", ID_LEN, &key.place));
        Identity {
            serial: serial.map(|serial| format!("{serial:>ID_LEN$}")),
            vendor: Some("IET".into()),
            product: Some("VIRTUAL-DISK".into()),
            revision: Some("0".into()),
            designators: Some(designator(id)).filter(|_| !id.is_empty()).into_iter().collect(),
            ..Identity::default()
        }
    }

    fn other_parameters(&mut self, parameters: &IetParameters<'_>, lun: &str, key: &IetKey) {
        let known = ["path", "type", "scsiid", "scsisn", "iomode", "sectors", "blocksize"];
        for (name, value) in parameters.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            self.0.notes.lost(&key.place, format!("{lun}: {name}={value}"));
        }
    }
}

fn parameters(text: &str) -> IetParameters<'_> {
    let one = |text| {
        let (name, value) = str::split_once(text, '=').unwrap_or((text, ""));
        (name.trim().to_ascii_lowercase(), value.trim())
    };
    text.split(',').filter(|text| !text.trim().is_empty()).map(one).collect()
}

fn disk(parameters: &IetParameters<'_>) -> Result<Disk, String> {
    let get = |name: &str| parameters.get(name).copied().filter(|value| !value.is_empty());
    let path = || get("path").ok_or("it has no Path");
    let kind = get("type").unwrap_or("fileio").to_ascii_lowercase();
    let medium = match kind.as_str() {
        "fileio" | "blockio" => medium_of(path()?),
        "nullio" => DiskMedium::Null(null_bytes(get("sectors"))?),
        other => return Err(format!("the type {other:?} has no counterpart")),
    };
    let block_size = match get("blocksize").unwrap_or("512") {
        "512" => 512,
        "4096" => 4096,
        other => return Err(format!("a block size of {other} bytes")),
    };
    let mode = get("iomode").unwrap_or("wt").to_ascii_lowercase();
    Ok(Disk {
        block_size: Some(block_size),
        read_only: mode == "ro",
        write_cache: mode == "wb",
        direct: kind == "blockio",
        thin: false,
        ..Disk::new(name_of(get("path").unwrap_or("null")), medium)
    })
}

/// The size of a null disk, which is given in sectors of 512 bytes.
fn null_bytes(sectors: Option<&str>) -> Result<u64, String> {
    let sectors = sectors.ok_or("it has no Sectors")?;
    let bytes = sectors.parse::<u64>().ok().and_then(|sectors| sectors.checked_mul(512));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| format!("Sectors={sectors} is no size"))
}

/// A designator of type T10 vendor ID that says to be binary: the vendor and the identifier, filled with zeros.
fn designator(id: &str) -> String {
    let mut bytes: Vec<u8> = b"IET\0\0\0\0\0".iter().copied().chain(id.bytes().take(ID_LEN)).collect();
    bytes.resize(8 + ID_LEN, 0);
    format!("0101 0018 {}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn designator_is_binary_with_type_t10() {
        assert_eq!(designator("disk1-id"), "0101 0018 49455400000000006469736b312d69640000000000000000");
        assert_eq!(designator("0123456789abcdefgh").len(), "0101 0018 ".len() + 48);
    }
}
