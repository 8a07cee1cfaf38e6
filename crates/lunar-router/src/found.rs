//! What upstreams were found to have. It is only known while the router runs, and plain data: `watch` gathers
//! it, the configuration is expanded by it.

use std::collections::BTreeMap;

/// Instance and upstream, as the configuration names them.
pub type UpstreamKey = (String, String);

/// What was found so far, at each upstream that was ever reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found(pub BTreeMap<UpstreamKey, Vec<FoundTarget>>);

/// A target of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundTarget {
    /// Its iSCSI name; empty for a device of this host, which has no target.
    pub name: String,
    /// Commands that it took at a time when it was seen first; 0 where that is not known.
    pub window: u32,
    /// Its logical units by LUN; that of a device of this host is LUN 0.
    pub luns: BTreeMap<u16, FoundLun>,
}

/// A logical unit of an upstream, with the properties it reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundLun {
    /// Peripheral device type (SPC-5 section 6.6.2): 0 is a disk, 1 a tape, 5 a CD.
    pub kind: u8,
    /// Logical block size in bytes; 0 where there are no blocks.
    pub block_size: u32,
    /// Physical block size in bytes; 0 where there are no blocks.
    pub physical_block_size: u32,
    /// Capacity in bytes; 0 where there are no blocks, or no medium.
    pub capacity: u64,
    /// It cannot be written.
    pub read_only: bool,
    /// The medium can be ejected and loaded.
    pub removable: bool,
    /// It is thinly provisioned.
    pub thin: bool,
    /// T10 vendor identification.
    pub vendor: String,
    /// Product identification.
    pub product: String,
    /// Product revision level.
    pub revision: String,
    /// Unit serial number (VPD page 80h); empty if it reports none.
    pub serial: String,
    /// The same as it came, with the spaces around it.
    pub padded_serial: Vec<u8>,
    /// The NAA designator of the logical unit; empty if it has none.
    pub naa: Vec<u8>,
    /// The designation descriptors of the logical unit in VPD page 83h, as they came.
    pub designators: Vec<u8>,
}

impl Found {
    /// The targets of an upstream; none if it was never reached.
    pub fn targets(&self, router: &str, upstream: &str) -> &[FoundTarget] {
        let key = (router.to_owned(), upstream.to_owned());
        self.0.get(&key).map_or(&[], Vec::as_slice)
    }
}

impl FoundLun {
    /// It is the same logical unit: by its designators, and where it has none, by all that it reports. Texts may
    /// change with the firmware: they count only where there is nothing better.
    pub fn is_same(&self, other: &FoundLun) -> bool {
        let is_named = !self.designators.is_empty();
        self.designators == other.designators && (is_named || self.texts() == other.texts())
    }

    /// What it is called, for people.
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
