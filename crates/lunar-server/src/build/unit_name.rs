//! Names of logical units.

use crate::config::{Config, LunConfig};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The name of a logical unit, by which a reload finds it again, and which its default identity is derived from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UnitName {
    /// A LUN of one target, or a namespace of one subsystem: the name and the number.
    Lun(String, u16),
    /// A `[[disk]]`, which LUNs of several targets may show.
    Disk(String),
}

impl UnitName {
    /// The name of the logical unit that a LUN of a target shows.
    pub(crate) fn of(target: &str, number: u16, lun: &LunConfig) -> UnitName {
        match &lun.disk {
            Some(disk) => UnitName::Disk(disk.clone()),
            None => UnitName::Lun(target.into(), number),
        }
    }

    /// The file of its state without extension, relative to the folder of state. No target is named `disks`.
    pub(super) fn state_file(&self) -> PathBuf {
        match self {
            UnitName::Lun(target, number) => PathBuf::from(target).join(number.to_string()),
            UnitName::Disk(name) => PathBuf::from("disks").join(name),
        }
    }

    /// The texts that a default identity is derived from.
    pub(crate) fn seed(&self) -> [String; 2] {
        match self {
            UnitName::Lun(target, number) => [target.clone(), number.to_string()],
            UnitName::Disk(name) => ["disk".into(), name.clone()],
        }
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnitName::Lun(subsystem, number) if subsystem.starts_with("nqn.") => {
                write!(f, "namespace {number} of {subsystem}")
            }
            UnitName::Lun(target, number) => write!(f, "LUN {number} of {target}"),
            UnitName::Disk(name) => write!(f, "disk {name}"),
        }
    }
}

/// All logical units of a configuration. A disk that no target shows is none of them.
pub(crate) fn wanted(config: &Config) -> BTreeMap<UnitName, &LunConfig> {
    let luns = config.targets.iter().flat_map(|target| {
        target.luns.iter().map(|(number, lun)| (UnitName::of(&target.name, *number, lun), lun))
    });
    luns.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_namespace_is_in_words_of_nvme() {
        let shown = |target: &str| UnitName::Lun(target.into(), 1).to_string();
        assert_eq!(shown("nqn.2026-11.org.example:a"), "namespace 1 of nqn.2026-11.org.example:a");
        assert_eq!(shown("iqn.2026-11.org.example:nqn.a"), "LUN 1 of iqn.2026-11.org.example:nqn.a");
        assert_eq!(UnitName::Disk("nqn.a".into()).to_string(), "disk nqn.a");
    }
}
