//! The properties of a logical unit.

use crate::designators::{identity, name_of, port_group};
use crate::options::Transport;
use lunar_wire::be;
use lunar_wire::scsi::{fields, mode, vpd};

/// The transfer limit in bytes if the logical unit reports none.
const TRANSFER: u64 = 8 << 20;
/// The same over RDMA, as in Linux's initiators. STGT drops the connection on larger transfers.
const RDMA_TRANSFER: u64 = 512 << 10;
/// The upper limit, which fits every block count field.
const MAX_TRANSFER: u64 = 16 << 20;

/// The properties of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// Peripheral device type: 0 is a disk, 5 a CD.
    pub device_type: u8,
    /// T10 vendor identification.
    pub vendor: String,
    /// Product identification.
    pub product: String,
    /// Product revision level.
    pub revision: String,
    /// Unit serial number (VPD page 80h).
    pub serial: Option<String>,
    /// The unit serial number including padding. Empty if there is none.
    pub padded_serial: Vec<u8>,
    /// The undecoded designators of the logical unit in VPD page 83h. Empty if there are none.
    pub identity: Vec<u8>,
    /// The most specific designator of the logical unit, such as `naa.6001405...`.
    pub designator: Option<String>,
    /// The number of blocks.
    pub blocks: u64,
    /// The block size in bytes.
    pub block_size: u32,
    /// The physical block size in bytes.
    pub physical_block_size: u32,
    /// Whether it is write-protected.
    pub read_only: bool,
    /// Whether the medium is removable.
    pub removable: bool,
    /// Whether the write cache is enabled: only flushed data are durable.
    pub write_cache: bool,
    /// Whether a single write can be made durable (FUA).
    pub fua: bool,
    /// Whether it is thin provisioned.
    pub thin: bool,
    /// Whether unmapped blocks read as zeros (LBPRZ).
    pub unmapped_reads_zero: bool,
    /// The maximum number of blocks of one UNMAP, if it is supported.
    pub unmap: Option<u32>,
    /// Whether WRITE SAME(16) with UNMAP is supported.
    pub write_same_unmap: bool,
    /// The maximum number of blocks of one WRITE SAME.
    pub write_same: u64,
    /// The maximum transfer length in bytes.
    pub transfer: u64,
    /// The optimal transfer length in bytes, if reported.
    pub optimal_transfer: Option<u64>,
    /// The maximum number of blocks of one COMPARE AND WRITE. 0 if it is not supported.
    pub compare_and_write: u8,
    /// The target port group of the port that reported the properties.
    pub port_group: Option<u16>,
    /// Support of target port groups (TPGS): implicit, explicit or both.
    pub alua: u8,
}

fn text(b: &[u8], at: usize, len: usize) -> String {
    fields::text(b.get(at..(at + len).min(b.len())).unwrap_or(&[]))
}

fn byte(b: &[u8], at: usize) -> u8 {
    b.get(at).copied().unwrap_or(0)
}

fn word(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).map_or(0, be::get32)
}

fn long(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).map_or(0, be::get64)
}

/// The data from which the properties are decoded. Missing data are empty.
#[derive(Debug, Default)]
pub struct Answers {
    /// Standard INQUIRY data.
    pub inquiry: Vec<u8>,
    /// VPD page 80h.
    pub serial: Vec<u8>,
    /// VPD page 83h.
    pub identity: Vec<u8>,
    /// VPD page B0h.
    pub limits: Vec<u8>,
    /// VPD page B2h.
    pub provisioning: Vec<u8>,
    /// READ CAPACITY(16), or READ CAPACITY(10) converted to its format.
    pub capacity: Vec<u8>,
    /// MODE SENSE(10) of the caching page or of all pages.
    pub mode: Vec<u8>,
    /// The transport of the session.
    pub transport: Transport,
}

/// Those of a logical unit that reports nothing.
impl Default for Properties {
    fn default() -> Properties {
        Properties::read(&Answers::default())
    }
}

impl Properties {
    /// Decodes the data. Missing bytes count as zeros.
    pub(crate) fn read(a: &Answers) -> Properties {
        let block_size = word(&a.capacity, 8);
        let exponent = u32::from(byte(&a.capacity, 13) & 0x0f);
        let limit = |blocks: u32| u64::from(blocks) * u64::from(block_size);
        let provisioning = byte(&a.provisioning, 5);
        let thin = byte(&a.capacity, 14) & 0x80 != 0;
        let (max_unmap, unmaps) = (word(&a.limits, 20), provisioning & 0x80 != 0);
        Properties {
            device_type: byte(&a.inquiry, 0) & 0x1f,
            vendor: text(&a.inquiry, 8, 8),
            product: text(&a.inquiry, 16, 16),
            revision: text(&a.inquiry, 32, 4),
            serial: Some(vpd::serial(&a.serial)).filter(|s| !s.is_empty()),
            padded_serial: vpd::body(&a.serial).to_vec(),
            designator: name_of(&identity(&a.identity)),
            identity: identity(&a.identity),
            blocks: if a.capacity.len() < 12 { 0 } else { long(&a.capacity, 0).saturating_add(1) },
            block_size,
            physical_block_size: block_size << exponent.min(15),
            read_only: byte(&a.mode, 3) & 0x80 != 0 || byte(&a.inquiry, 0) & 0x1f == 5,
            removable: byte(&a.inquiry, 1) & 0x80 != 0,
            // An unknown state counts as an enabled cache.
            write_cache: caching(&a.mode).is_none_or(|b| b & 0x04 != 0),
            fua: byte(&a.mode, 3) & 0x10 != 0,
            thin,
            unmapped_reads_zero: byte(&a.capacity, 14) & 0x40 != 0 || provisioning & 0x04 != 0,
            unmap: (thin && unmaps && max_unmap > 0).then_some(max_unmap),
            write_same_unmap: thin && provisioning & 0x40 != 0,
            write_same: match long(&a.limits, 36) {
                0 => u32::MAX.into(),
                n => n,
            },
            transfer: match limit(word(&a.limits, 8)) {
                0 if a.transport == Transport::Tcp => TRANSFER,
                0 => RDMA_TRANSFER,
                n => n.min(MAX_TRANSFER),
            },
            optimal_transfer: Some(limit(word(&a.limits, 12))).filter(|n| *n > 0),
            compare_and_write: byte(&a.limits, 5),
            port_group: port_group(&a.identity),
            alua: byte(&a.inquiry, 5) >> 4 & 3,
        }
    }

    /// The capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.blocks.saturating_mul(self.block_size.into())
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        matches!(self.device_type, 0 | 5 | 7 | 0x0e)
    }
}

/// Byte 2 of the caching mode page (08h), if present.
fn caching(mode: &[u8]) -> Option<u8> {
    let page = mode::pages(mode).find(|page| (page.code, page.subpage) == (8, 0))?;
    page.bytes.get(2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::designators::{is_named, naa};

    #[test]
    fn thin_disk_is_read_as_what_it_is() {
        let mut a = Answers { inquiry: vec![0; 36], limits: vec![0; 64], ..Answers::default() };
        a.inquiry[8..15].copy_from_slice(b"LUNAR  ");
        a.inquiry[16..20].copy_from_slice(b"DISK");
        a.inquiry[5] = 0x10;
        a.limits[5] = 1;
        be::put32(&mut a.limits[8..], 64);
        be::put32(&mut a.limits[20..], 1000);
        a.provisioning = vec![0, 0xb2, 0, 4, 0, 0xe4, 0, 0];
        a.capacity = vec![0; 32];
        a.capacity[7] = 99;
        be::put32(&mut a.capacity[8..], 512);
        (a.capacity[13], a.capacity[14]) = (3, 0xc0);
        a.mode = vec![0, 0, 0, 0x10, 0, 0, 0, 0, 0x08, 0x12, 0x04];
        a.mode.resize(28, 0);
        a.serial = [&[0, 0x80, 0, 3][..], b"S\x1b1"].concat();
        let port = [1, 0x14, 0, 4, 0, 0, 0, 1];
        let unit = [&[1, 3, 0, 8][..], &[0x60, 1, 2, 3, 4, 5, 6, 7]].concat();
        a.identity = [&[0, 0x83, 0, 20][..], &port, &unit].concat();
        let p = Properties::read(&a);
        assert_eq!((p.vendor.as_str(), p.product.as_str(), p.capacity()), ("LUNAR", "DISK", 51200));
        assert_eq!(
            (p.physical_block_size, p.thin, p.unmap, p.write_same_unmap),
            (4096, true, Some(1000), true)
        );
        assert_eq!((p.fua, p.write_cache, p.read_only, p.unmapped_reads_zero), (true, true, false, true));
        assert_eq!((p.transfer, p.compare_and_write, p.alua), (64 * 512, 1, 1));
        a.mode[10] = 0;
        assert!(!Properties::read(&a).write_cache);
        a.mode.truncate(8);
        assert!(Properties::read(&a).write_cache, "an unknown cache state counts as enabled");
        assert_eq!(p.serial.as_deref(), Some("S?1"), "control characters are replaced");
        assert_eq!(p.identity, unit, "the designator of the port is excluded");
        assert_eq!(p.designator.as_deref(), Some("naa.6001020304050607"));
        assert_eq!(naa(&p.identity), Some(&unit[4..]));
        assert!(is_named(&p.identity, "NAA.6001020304050607") && !is_named(&p.identity, "naa.6001"));
        assert!(!p.removable);
        a.inquiry[1] = 0x80;
        assert!(Properties::read(&a).removable);
    }

    #[test]
    fn missing_transfer_limit_is_that_of_the_transport() {
        let transfer = |transport| Properties::read(&Answers { transport, ..Answers::default() }).transfer;
        assert_eq!(
            [Transport::Tcp, Transport::Iser, Transport::Srp].map(transfer),
            [8 << 20, 512 << 10, 512 << 10]
        );
    }

    #[test]
    fn answers_cut_anywhere_are_read_without_a_panic() {
        let page = [&[0, 0x83, 0, 12, 1, 3, 0, 8][..], &[0x60, 1, 2, 3, 4, 5, 6, 7]].concat();
        let mode = [0, 0, 0, 0x90, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0x48, 1, 0, 2, 9, 9, 0x08, 1, 0x04];
        assert_eq!(caching(&mode), Some(0x04));
        for n in 0..mode.len() {
            let cut = |b: &[u8]| b[..n.min(b.len())].to_vec();
            Properties::read(&Answers {
                inquiry: cut(&[0xff; 36]),
                serial: cut(&[0xff; 20]),
                identity: cut(&page),
                limits: cut(&[0xff; 64]),
                provisioning: cut(&[0xff; 8]),
                capacity: cut(&[0xff; 32]),
                mode: cut(&mode),
                transport: Transport::Tcp,
            });
        }
    }
}
