//! The medium of a LUN.

use super::rbd;
use lunar_block::{BackendKind, DataLifetime, RbdLocation, SizeRule};
use lunar_config::{Diagnostics, InvalidValue, Section, unknown};
use lunar_proto::size;
use lunar_router::namespaces::lu_name;
use lunar_router::routes::LuAddress;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The medium of a LUN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Reads return zeros, writes are discarded.
    Null {
        /// Bytes.
        size: u64,
    },
    /// Sparse memory.
    Memory {
        /// Bytes.
        size: u64,
    },
    /// A regular file.
    File {
        /// Its path.
        path: PathBuf,
        /// Size in bytes if the file is created; None: the file must exist.
        size: Option<u64>,
    },
    /// A block device.
    Device {
        /// Its path.
        path: PathBuf,
    },
    /// An image of Ceph RBD.
    Rbd {
        /// The image, and its cluster.
        image: RbdLocation,
        /// Size in bytes if the image is created; None: the image must exist.
        size: Option<u64>,
    },
    /// A logical unit of an upstream. It results from the mappings of an instance ([`crate::routes::expand`]), never
    /// from the file itself.
    Routed(LuAddress),
}

impl Source {
    /// The medium of a kind. None if the path or size that the kind needs is missing, and for an image of RBD.
    pub fn new(kind: BackendKind, path: Option<PathBuf>, size: Option<u64>) -> Option<Source> {
        Some(match kind {
            BackendKind::Null => Source::Null { size: size? },
            BackendKind::Memory => Source::Memory { size: size? },
            BackendKind::File => Source::File { path: path?, size },
            BackendKind::Device => Source::Device { path: path? },
            BackendKind::Rbd => return None,
        })
    }

    /// The kind of its backend. None for a logical unit of an upstream.
    pub fn kind(&self) -> Option<BackendKind> {
        match self {
            Source::Null { .. } => Some(BackendKind::Null),
            Source::Memory { .. } => Some(BackendKind::Memory),
            Source::File { .. } => Some(BackendKind::File),
            Source::Device { .. } => Some(BackendKind::Device),
            Source::Rbd { .. } => Some(BackendKind::Rbd),
            Source::Routed(_) => None,
        }
    }

    /// The path of a file or device. Two LUNs must not write the same one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Source::File { path, .. } | Source::Device { path } => Some(path),
            Source::Null { .. } | Source::Memory { .. } | Source::Rbd { .. } | Source::Routed(_) => None,
        }
    }

    /// The image of RBD, if it is one.
    pub fn image(&self) -> Option<&RbdLocation> {
        match self {
            Source::Rbd { image, .. } => Some(image),
            _ => None,
        }
    }

    /// The configured size in bytes. For a file, it applies only if the file is created.
    pub fn size(&self) -> Option<u64> {
        match self {
            Source::Null { size } | Source::Memory { size } => Some(*size),
            Source::File { size, .. } | Source::Rbd { size, .. } => *size,
            Source::Device { .. } | Source::Routed(_) => None,
        }
    }

    /// The logical unit of an upstream, if it is one.
    pub fn lu_address(&self) -> Option<&LuAddress> {
        match self {
            Source::Routed(address) => Some(address),
            _ => None,
        }
    }

    /// The lifetime of its data.
    pub fn data_lifetime(&self) -> DataLifetime {
        self.kind().map_or(DataLifetime::Medium, BackendKind::data_lifetime)
    }

    /// Whether the medium has a block size of its own, which a configured one replaces.
    pub fn has_own_block_size(&self) -> bool {
        matches!(self, Source::Device { .. })
    }
}

/// The source in messages.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Null { size } => write!(f, "null, {}", size::show(*size)),
            Source::Memory { size } => write!(f, "memory, {}", size::show(*size)),
            Source::File { path, .. } | Source::Device { path } => write!(f, "{}", path.display()),
            Source::Rbd { image, .. } => image.fmt(f),
            Source::Routed(LuAddress { router, upstream, target, lun }) => {
                write!(f, "router {router}, upstream {upstream}")?;
                if target.is_empty() { Ok(()) } else { write!(f, ", {}", lu_name(target, *lun)) }
            }
        }
    }
}

/// Reads the keys of the medium.
pub(super) fn source(p: &mut Diagnostics<'_>, s: &mut Section<'_>, base: &Path) -> Option<Source> {
    let backend = s.text(p, "backend");
    let (path_at, size_at) = (s.find("path").map(|v| v.span()), s.find("size").map(|v| v.span()));
    let path = s.parsed(p, "path", |text| crate::config::path(text, base));
    let size = s.size(p, "size", 4096..=size::MAX_BYTES);
    let image = rbd::location(p, s, base);
    let Some((backend, at)) = backend else {
        if s.find("backend").is_none() {
            s.missing(p, "backend", &example());
        }
        return None;
    };
    let kind = p.check(&at, kind(backend))?;
    check_path(p, kind, &at, path_at);
    check_size(p, kind, &at, size_at);
    match kind {
        BackendKind::Rbd => Some(Source::Rbd { image: rbd::check(p, &at, image)?, size }),
        _ => {
            rbd::refuse(p, s, kind);
            Source::new(kind, path, size)
        }
    }
}

fn check_path(p: &mut Diagnostics<'_>, kind: BackendKind, at: &Range<usize>, path_at: Option<Range<usize>>) {
    let name = kind.name();
    match (kind.has_path(), path_at) {
        (true, None) => p.add(at, format!("the backend \"{name}\" needs a path"), "add path = \"disk.img\""),
        (false, Some(at)) => {
            let what = format!("the backend \"{name}\" takes no path");
            p.add(&at, what, "remove `path`, or write backend = \"file\"");
        }
        (true, Some(_)) | (false, None) => {}
    }
}

fn check_size(p: &mut Diagnostics<'_>, kind: BackendKind, at: &Range<usize>, size_at: Option<Range<usize>>) {
    let name = kind.name();
    match (kind.size_rule(), size_at) {
        (SizeRule::Required, None) => {
            p.add(at, format!("the backend \"{name}\" needs a size"), "add size = \"64MiB\"")
        }
        (SizeRule::Fixed, Some(at)) => p.add(&at, format!("the size of a {name} is fixed"), "remove `size`"),
        (SizeRule::Required, Some(_)) | (SizeRule::IfCreated, _) | (SizeRule::Fixed, None) => {}
    }
}

fn kind(text: &str) -> Result<BackendKind, InvalidValue> {
    BackendKind::named(text).ok_or_else(|| {
        let names = || BackendKind::ALL.iter().map(|kind| kind.name());
        let mut all: Vec<String> = names().map(quoted).collect();
        let last = all.pop().unwrap_or_default();
        unknown("backend", text, names(), format!("write {} or {last}", all.join(", ")))
    })
}

/// The value of a missing `backend`: most users want a file.
fn example() -> String {
    let file = BackendKind::File;
    let others = BackendKind::ALL.iter().filter(|kind| **kind != file).map(|kind| quoted(kind.name()));
    format!("{} (or {})", quoted(file.name()), others.collect::<Vec<_>>().join(", "))
}

fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}
