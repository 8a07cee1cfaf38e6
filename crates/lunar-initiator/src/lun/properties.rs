//! The properties of a logical unit.

use crate::designators::{identity, name_of, target_port_group};
use crate::options::Transport;
use lunar_wire::scsi::inquiry::{Capacity, StandardData};
use lunar_wire::scsi::limits::{BlockLimits, Provisioning};
use lunar_wire::scsi::{mode, vpd};

/// The transfer limit in bytes if the logical unit reports none.
const TRANSFER: u64 = 8 << 20;
/// The same over RDMA, as in Linux's initiators. STGT drops the connection on larger transfers.
const RDMA_TRANSFER: u64 = 512 << 10;
/// The upper limit, which fits every block count field.
const MAX_TRANSFER: u64 = 16 << 20;

/// The peripheral device type of a CD, which is never written.
const CD: u8 = 5;

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
    pub target_port_group: Option<u16>,
    /// Support of target port groups (TPGS): implicit, explicit or both.
    pub alua: u8,
}

/// The data from which the properties are decoded. Missing data are empty.
#[derive(Debug, Default)]
pub struct ParameterData {
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
    /// READ CAPACITY(16), or READ CAPACITY(10).
    pub capacity: Option<Capacity>,
    /// MODE SENSE(10) of the caching page or of all pages.
    pub mode: Vec<u8>,
    /// The transport of the session.
    pub transport: Transport,
}

/// Those of a logical unit that reports nothing.
impl Default for Properties {
    fn default() -> Properties {
        Properties::read(&ParameterData::default())
    }
}

impl Properties {
    /// Decodes the data. Missing bytes count as zeros.
    pub(crate) fn read(a: &ParameterData) -> Properties {
        let standard = StandardData(&a.inquiry);
        let (capacity, limits) = (a.capacity.unwrap_or_default(), BlockLimits::decode(&a.limits));
        let provisioning = Provisioning::decode(&a.provisioning);
        let (block_size, thin) = (capacity.block_size, capacity.thin);
        let bytes = |blocks: u32| u64::from(blocks) * u64::from(block_size);
        Properties {
            device_type: standard.device_type(),
            vendor: standard.vendor(),
            product: standard.product(),
            revision: standard.revision(),
            serial: Some(vpd::serial(&a.serial)).filter(|s| !s.is_empty()),
            padded_serial: vpd::body(&a.serial).to_vec(),
            designator: name_of(&identity(&a.identity)),
            identity: identity(&a.identity),
            blocks: a.capacity.map_or(0, |capacity| capacity.blocks()),
            block_size,
            physical_block_size: block_size << capacity.physical_exponent,
            read_only: mode::write_protected(&a.mode) || standard.device_type() == CD,
            removable: standard.removable(),
            // An unknown state counts as an enabled cache.
            write_cache: mode::write_cache(&a.mode).unwrap_or(true),
            fua: mode::supports_fua(&a.mode),
            thin,
            unmapped_reads_zero: capacity.unmapped_reads_zero || provisioning.reads_zero,
            unmap: (thin && provisioning.unmap && limits.unmap > 0).then_some(limits.unmap),
            write_same_unmap: thin && provisioning.write_same_16,
            write_same: match limits.write_same {
                0 => u32::MAX.into(),
                n => n,
            },
            transfer: match bytes(limits.transfer) {
                0 if a.transport == Transport::Tcp => TRANSFER,
                0 => RDMA_TRANSFER,
                n => n.min(MAX_TRANSFER),
            },
            optimal_transfer: Some(bytes(limits.optimal_transfer)).filter(|n| *n > 0),
            compare_and_write: limits.compare_and_write,
            target_port_group: target_port_group(&a.identity),
            alua: standard.alua(),
        }
    }

    /// The capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.blocks.saturating_mul(self.block_size.into())
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        has_blocks(self.device_type)
    }
}

/// Whether devices of this type have blocks: disk, CD, optical memory, simplified disk.
pub fn has_blocks(device_type: u8) -> bool {
    matches!(device_type, 0 | CD | 7 | 0x0e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::designators::{is_named, naa};
    use lunar_wire::be;

    #[test]
    fn thin_disk_is_read_as_what_it_is() {
        let mut a = ParameterData { inquiry: vec![0; 36], limits: vec![0; 64], ..ParameterData::default() };
        a.inquiry[8..15].copy_from_slice(b"LUNAR  ");
        a.inquiry[16..20].copy_from_slice(b"DISK");
        a.inquiry[5] = 0x10;
        a.limits[5] = 1;
        be::put32(&mut a.limits[8..], 64);
        be::put32(&mut a.limits[20..], 1000);
        a.provisioning = vec![0, 0xb2, 0, 4, 0, 0xe4, 0, 0];
        let flags = Capacity { thin: true, unmapped_reads_zero: true, ..Capacity::default() };
        a.capacity = Some(Capacity { last_lba: 99, block_size: 512, physical_exponent: 3, ..flags });
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
        let transfer =
            |transport| Properties::read(&ParameterData { transport, ..ParameterData::default() }).transfer;
        assert_eq!(
            [Transport::Tcp, Transport::Iser, Transport::Srp].map(transfer),
            [8 << 20, 512 << 10, 512 << 10]
        );
    }

    #[test]
    fn answers_cut_anywhere_are_read_without_a_panic() {
        let page = [&[0, 0x83, 0, 12, 1, 3, 0, 8][..], &[0x60, 1, 2, 3, 4, 5, 6, 7]].concat();
        let mode = [0, 0, 0, 0x90, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0x48, 1, 0, 2, 9, 9, 0x08, 1, 0x04];
        for n in 0..mode.len() {
            let cut = |b: &[u8]| b[..n.min(b.len())].to_vec();
            Properties::read(&ParameterData {
                inquiry: cut(&[0xff; 36]),
                serial: cut(&[0xff; 20]),
                identity: cut(&page),
                limits: cut(&[0xff; 64]),
                provisioning: cut(&[0xff; 8]),
                capacity: Capacity::decode_16(&cut(&[0xff; 32])),
                mode: cut(&mode),
                transport: Transport::Tcp,
            });
        }
    }
}
