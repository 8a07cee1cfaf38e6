//! The logical unit that a closed path must lead to.

use lunar_block::BackendInfo;
use std::sync::OnceLock;

/// The properties of a path that has never been open, without another one.
const NOTHING: BackendInfo = BackendInfo {
    capacity: 0,
    read_only: true,
    unmap: false,
    null: false,
    remote: true,
    write_through: false,
};

/// Identity and properties of a logical unit or namespace, from another path. They apply while a path is closed.
#[derive(Debug, Default)]
pub struct ExpectedUnit(OnceLock<(Vec<u8>, BackendInfo)>);

impl ExpectedUnit {
    /// Sets them. An earlier call counts.
    pub fn set(&self, identity: Vec<u8>, info: BackendInfo) {
        _ = self.0.set((identity, info));
    }

    /// Whether a path may lead to a unit with this identity. Any may be the first.
    pub fn allows(&self, identity: &[u8]) -> bool {
        self.0.get().is_none_or(|(expected, _)| expected == identity)
    }

    /// The identity; empty before it is set.
    pub fn identity(&self) -> Vec<u8> {
        self.0.get().map(|(identity, _)| identity.clone()).unwrap_or_default()
    }

    /// The properties; those of an empty, read-only unit before they are set.
    pub fn info(&self) -> BackendInfo {
        self.0.get().map_or(NOTHING, |(_, info)| *info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_unit_is_the_only_one_allowed() {
        let (expected, info) = (ExpectedUnit::default(), BackendInfo { capacity: 512, ..NOTHING });
        assert!(expected.allows(&[1]) && expected.allows(&[2]));
        assert_eq!((expected.identity(), expected.info()), (vec![], NOTHING));
        expected.set(vec![1], info);
        expected.set(vec![2], NOTHING);
        assert!(expected.allows(&[1]) && !expected.allows(&[2]));
        assert_eq!((expected.identity(), expected.info()), (vec![1], info));
    }
}
