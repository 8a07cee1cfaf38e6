//! The identity of a LUN, as CTL shows it.

use super::CtldImport;
use super::file::{CtldKey, option, value};
use crate::Identity;

/// Bytes of VPD page 80h.
const SERIAL_LEN: usize = 16;
/// Least and most bytes of a device identifier.
const DEVICE_ID: (usize, usize) = (16, 64);

/// The designators of a LUN, in hexadecimal digits except the text of the SCSI name.
#[derive(Default)]
struct CtldDesignators {
    device_id: Option<String>,
    scsi_name: Option<String>,
    eui: Option<String>,
    naa: Option<String>,
    uuid: Option<String>,
}

impl CtldImport {
    /// The identity of a LUN. `scsi_name` is the SCSI name that it has by default.
    pub(super) fn identity(&mut self, key: &CtldKey, cdrom: bool, scsi_name: Option<String>) -> Identity {
        let keys = &key.block[..];
        let own = |name: &'static str| {
            option(keys, name).map(|option| option.word(1)).filter(|word| !word.is_empty())
        };
        let product = if cdrom { "CTLCDROM" } else { "CTLDISK" };
        let place = |name: &str| option(keys, name).unwrap_or(key).place();
        let mut text = |name: &'static str, default: &str, max| {
            self.0.scsi_text(own(name).unwrap_or(default), name, max, &place(name))
        };
        let vendor = text("vendor", "FREEBSD", 8);
        let product = text("product", product, 16);
        let revision = text("revision", "0001", 4);
        let serial = value(keys, "serial").map(|serial| serial.chars().take(SERIAL_LEN).collect::<String>());
        let serial = serial.and_then(|serial| {
            self.0.scsi_text(serial.trim_end(), "serial number", SERIAL_LEN, &key.place())
        });
        let designators = CtldDesignators {
            device_id: value(keys, "device-id").filter(|id| id.is_ascii()).map(Into::into),
            scsi_name: own("scsiname").map(Into::into).or(scsi_name),
            eui: own("eui").map(|text| digits(text, &[8, 12, 16])),
            naa: own("naa").map(|text| digits(text, &[8, 16])),
            uuid: own("uuid").map(|text| digits(text, &[16])),
        };
        let missing = match (&serial, &designators.device_id) {
            (Some(_), Some(_)) => None,
            (None, Some(_)) => Some("the serial number"),
            (Some(_), None) => Some("the device identifier"),
            (None, None) => Some("the serial number and the device identifier"),
        };
        if let Some(missing) = missing {
            let what = format!("{}: {missing}, for which ctld counts the LUNs that it makes", key.shown());
            self.0.notes.lost(key.place(), what);
        }
        designators.identity(Identity { vendor, product, revision, serial, ..Identity::default() })
    }
}

impl CtldDesignators {
    /// Adds the designators to an identity: with one key each, or as a list if a key cannot have a value.
    fn identity(self, identity: Identity) -> Identity {
        let is_plain_id =
            |id: &String| id.len() >= DEVICE_ID.0 && id.len() <= DEVICE_ID.1 && id.trim_end() == id;
        let is_naa = |naa: &String| match naa.len() {
            16 => naa.starts_with(['2', '3', '5']),
            _ => naa.starts_with('6'),
        };
        let is_name = |name: &String| ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind));
        let is_plain = self.uuid.is_none()
            && self.device_id.iter().all(is_plain_id)
            && self.naa.iter().all(is_naa)
            && self.scsi_name.iter().all(is_name);
        if is_plain {
            return Identity {
                t10_id: self.device_id,
                scsi_name: self.scsi_name,
                eui64: self.eui,
                naa: self.naa,
                ..identity
            };
        }
        let vendor = identity.vendor.as_deref().unwrap_or_default();
        Identity { designators: self.list(vendor), ..identity }
    }

    /// The designation descriptors, in the order of CTL.
    fn list(&self, vendor: &str) -> Vec<String> {
        let t10 = |id: &String| {
            let mut bytes: Vec<u8> = id.bytes().take(DEVICE_ID.1).collect();
            bytes.resize(bytes.len().max(DEVICE_ID.0), 0);
            descriptor("0201", &hex(&[format!("{vendor:8}").as_bytes(), &bytes].concat()))
        };
        let name = |name: &String| {
            let mut bytes: Vec<u8> = name.bytes().take(250).collect();
            // A NUL ends the name, and more fill it to a multiple of four bytes.
            bytes.resize((bytes.len() / 4 + 1) * 4, 0);
            descriptor("0308", &hex(&bytes))
        };
        let all = [
            self.device_id.as_ref().map(t10),
            self.scsi_name.as_ref().map(name),
            self.eui.as_ref().map(|eui| descriptor("0102", eui)),
            self.naa.as_ref().map(|naa| descriptor("0103", naa)),
            self.uuid.as_ref().map(|uuid| descriptor("010a", &format!("1000{uuid}"))),
        ];
        all.into_iter().flatten().collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A designation descriptor of a logical unit (SPC-5 section 7.7.6.1).
fn descriptor(kind: &str, value: &str) -> String {
    format!("{kind} 00{:02x} {value}", value.len() / 2)
}

/// The hexadecimal digits at the begin of a text, with zeros up to the first of these lengths in bytes that is large
/// enough. Hyphens are skipped, and the rest is cut.
fn digits(text: &str, lengths: &[usize]) -> String {
    let text = text.trim_start();
    let text = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let max = lengths.last().copied().unwrap_or_default();
    let found = text.chars().filter(|c| *c != '-').take_while(char::is_ascii_hexdigit).take(2 * max);
    let found: String = found.collect::<String>().to_ascii_lowercase();
    let len = lengths.iter().find(|len| found.len() <= 2 * **len).copied().unwrap_or(max);
    format!("{found:0<width$}", width = 2 * len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_fill_the_next_length() {
        assert_eq!(digits("0x50015178f369f093", &[8, 16]), "50015178f369f093");
        assert_eq!(
            digits("0x6589CFC000000f00d00000000000001a", &[8, 16]),
            "6589cfc000000f00d00000000000001a"
        );
        assert_eq!(digits("0x5001517", &[8, 16]), "5001517000000000");
        assert_eq!(digits("6001517800000000f", &[8, 12, 16]), "6001517800000000f0000000");
        assert_eq!(digits("9d4f8a3e-0c1b-4f5a", &[16]), "9d4f8a3e0c1b4f5a0000000000000000");
    }

    #[test]
    fn short_device_identifier_ends_with_nuls() {
        let designators = CtldDesignators { device_id: Some("MYDEVID".into()), ..CtldDesignators::default() };
        let identity =
            designators.identity(Identity { vendor: Some("FREEBSD".into()), ..Identity::default() });
        assert_eq!(identity.designators, ["0201 0018 46524545425344204d594445564944000000000000000000"]);
    }

    #[test]
    fn name_in_a_list_ends_with_a_nul() {
        let uuid = Some(digits("0x1", &[16]));
        let designators =
            CtldDesignators { scsi_name: Some("iqn.1234".into()), uuid, ..CtldDesignators::default() };
        assert_eq!(
            designators.identity(Identity::default()).designators,
            ["0308 000c 69716e2e3132333400000000", "010a 0012 100010000000000000000000000000000000"]
        );
    }
}
