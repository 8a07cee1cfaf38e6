//! The kinds of backends: the table that configurations and command lines share.

use std::path::Path;

macro_rules! kinds {
    ($($(#[$doc:meta])+ $kind:ident = $name:literal,)+) => {
        /// The kind of a backend.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum BackendKind {
            $($(#[$doc])+ $kind,)+
        }

        impl BackendKind {
            /// All kinds, in the order of messages.
            pub const ALL: &'static [BackendKind] = &[$(BackendKind::$kind,)+];

            /// The name in configurations, and before the colon on command lines.
            pub fn name(self) -> &'static str {
                match self {
                    $(BackendKind::$kind => $name,)+
                }
            }
        }
    };
}

kinds! {
    /// No storage: reads return zeros, writes are discarded.
    Null = "null",
    /// The memory of this process.
    Memory = "memory",
    /// A regular file.
    File = "file",
    /// A block device.
    Device = "device",
    /// An image of Ceph RBD.
    Rbd = "rbd",
}

/// The meaning of a configured size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeRule {
    /// The size of the disk.
    Required,
    /// The size of the file if it is created.
    IfCreated,
    /// The medium has a size of its own.
    Fixed,
}

/// The lifetime of the data of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLifetime {
    /// Writes are discarded.
    None,
    /// Until the process ends.
    Process,
    /// Until the medium is destroyed.
    Medium,
}

impl BackendKind {
    /// The kind of a path: [`BackendKind::Device`] for a block device, otherwise [`BackendKind::File`], even if it
    /// does not exist.
    pub fn of(path: &Path) -> BackendKind {
        use std::os::unix::fs::FileTypeExt;
        match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => BackendKind::Device,
            _ => BackendKind::File,
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<BackendKind> {
        BackendKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The kinds that are nothing but a size, which command lines name as `NAME:SIZE`.
    pub fn sized() -> impl Iterator<Item = BackendKind> {
        BackendKind::ALL.iter().copied().filter(|kind| kind.size_rule() == SizeRule::Required)
    }

    /// The kind and the text of the size in `null:SIZE` or `memory:SIZE`. None for all other arguments.
    pub fn split_argument(text: &str) -> Option<(BackendKind, &str)> {
        let (name, size) = text.split_once(':')?;
        Some((BackendKind::sized().find(|kind| kind.name() == name)?, size))
    }

    /// Whether the medium has a path.
    pub fn has_path(self) -> bool {
        match self {
            BackendKind::Null | BackendKind::Memory | BackendKind::Rbd => false,
            BackendKind::File | BackendKind::Device => true,
        }
    }

    /// The meaning of a configured size.
    pub fn size_rule(self) -> SizeRule {
        match self {
            BackendKind::Null | BackendKind::Memory => SizeRule::Required,
            BackendKind::File | BackendKind::Rbd => SizeRule::IfCreated,
            BackendKind::Device => SizeRule::Fixed,
        }
    }

    /// The lifetime of its data.
    pub fn data_lifetime(self) -> DataLifetime {
        match self {
            BackendKind::Null => DataLifetime::None,
            BackendKind::Memory => DataLifetime::Process,
            BackendKind::File | BackendKind::Device | BackendKind::Rbd => DataLifetime::Medium,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_of_a_kind_without_path_splits_into_kind_and_size() {
        assert_eq!(BackendKind::split_argument("null:1G"), Some((BackendKind::Null, "1G")));
        assert_eq!(BackendKind::split_argument("memory:"), Some((BackendKind::Memory, "")));
        for path in ["null", "file:disk.img", "device:/dev/sdb", "Null:1G", "nbd://h", "./null:1G"] {
            assert_eq!(BackendKind::split_argument(path), None, "{path}");
        }
    }

    #[test]
    fn name_of_each_kind_finds_the_kind() {
        for kind in BackendKind::ALL {
            assert_eq!(BackendKind::named(kind.name()), Some(*kind));
            assert!(!kind.has_path() || kind.size_rule() != SizeRule::Required, "{kind:?}");
        }
        assert_eq!(BackendKind::named("disk"), None);
    }
}
