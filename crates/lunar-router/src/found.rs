//! The discoveries of upstreams, as plain data. They exist only while the router runs: `watch` collects them, and the
//! configuration is expanded with them.

use std::collections::BTreeMap;

/// Instance and upstream, by their names in the configuration.
pub type UpstreamKey = (String, String);

/// The discoveries of each upstream that was ever reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found(pub BTreeMap<UpstreamKey, Vec<FoundTarget>>);

/// A target of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundTarget {
    /// The iSCSI name. Empty for a device of this host, which has no target.
    pub name: String,
    /// The command window when the target was first discovered. 0 if unknown.
    pub window: u32,
    /// The logical units by LUN. A device of this host has LUN 0.
    pub luns: BTreeMap<u16, FoundLun>,
}

/// A logical unit of an upstream, with its reported properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundLun {
    /// Peripheral device type (SPC-5 section 6.6.2): 0 is a disk, 1 a tape, 5 a CD.
    pub kind: u8,
    /// Logical block size in bytes. 0 without blocks.
    pub block_size: u32,
    /// Physical block size in bytes. 0 without blocks.
    pub physical_block_size: u32,
    /// Capacity in bytes. 0 without blocks or medium.
    pub capacity: u64,
    /// Whether it is write-protected.
    pub read_only: bool,
    /// Whether the medium is removable.
    pub removable: bool,
    /// Whether it is thin provisioned.
    pub thin: bool,
    /// T10 vendor identification.
    pub vendor: String,
    /// Product identification.
    pub product: String,
    /// Product revision level.
    pub revision: String,
    /// Unit serial number (VPD page 80h). Empty if it reports none.
    pub serial: String,
    /// The undecoded unit serial number, including padding.
    pub padded_serial: Vec<u8>,
    /// The NAA designator of the logical unit. Empty if it has none.
    pub naa: Vec<u8>,
    /// The undecoded designation descriptors of the logical unit in VPD page 83h.
    pub designators: Vec<u8>,
}

impl Found {
    /// The targets of an upstream. Empty if it was never reached.
    pub fn targets(&self, router: &str, upstream: &str) -> &[FoundTarget] {
        let key = (router.to_owned(), upstream.to_owned());
        self.0.get(&key).map_or(&[], Vec::as_slice)
    }
}

impl FoundLun {
    /// Whether both are the same logical unit: by their designators, or without these by all reported properties.
    /// Texts may change with a firmware update, so they count only in the latter case.
    pub fn is_same(&self, other: &FoundLun) -> bool {
        let is_named = !self.designators.is_empty();
        self.designators == other.designators && (is_named || self.texts() == other.texts())
    }

    /// The name, for people.
    pub fn name(&self) -> String {
        lunar_initiator::name_of(&self.designators).unwrap_or_else(|| self.texts().join(" "))
    }

    fn texts(&self) -> [&str; 3] {
        [&self.vendor, &self.product, &self.serial]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_is_found_by_instance_and_name() {
        let disk = FoundTarget { name: "iqn.x".into(), ..FoundTarget::default() };
        let found = Found(BTreeMap::from([(("r1".into(), "a".into()), vec![disk.clone()])]));
        assert_eq!(found.targets("r1", "a"), [disk]);
        assert_eq!((found.targets("r1", "b"), found.targets("r2", "a")), (&[][..], &[][..]));
    }
}
