//! Converts configurations of other targets of iSCSI and NVMe/TCP to `lunar.toml`, and those of open-iscsi to saved attachments.
//!
//! An importer reads the text of a configuration, and makes a [`Configuration`] with the same targets, disks, access
//! and CHAP users. Disks keep the values by which hosts identify them, so that hosts find the disks that they know. The
//! [`Notes`] list what was carried over, what has another effect, and what is lost.
#![forbid(unsafe_code)]

mod attachment;
mod common;
mod configuration;
mod ctld;
mod files;
mod iet;
mod istgt;
mod json;
mod lio;
mod notes;
mod nvme;
mod nvme_steps;
mod nvmet;
mod open_iscsi;
mod portals;
mod scst;
mod spdk;
mod tgt;
mod write;
mod write_nvme;

pub use attachment::{NewAttachment, NewPath};
pub use configuration::{
    Access, ChapUser, Configuration, Discovery, Disk, DiskMedium, Identity, NewPortal, NewPortalGroup,
    NewTarget, NewTransport, ReadOnly, file_name,
};
pub use ctld::ctld;
pub use files::{Found, Reader, no_files};
pub use iet::iet;
pub use istgt::istgt;
pub use lio::lio;
pub use notes::{Note, Notes, Outcome};
pub use nvme::{AdmittedHosts, NamespaceIdentifiers, NewNamespace, NewSubsystem, ProvenHost, SecretFile};
pub use nvmet::{MAX_ATTRIBUTE, MAX_TREE_ENTRIES, TreeEntry, TreeReader, nvmet, nvmet_tree};
pub use open_iscsi::open_iscsi;
pub use scst::scst;
pub use spdk::spdk;
pub use tgt::tgt;
pub use write::toml;

use std::fmt;

/// The result of an import.
#[derive(Debug, Default)]
pub struct Imported {
    /// The configuration.
    pub configuration: Configuration,
    /// The report: each setting that was carried over, changed or lost.
    pub notes: Notes,
}

/// The file cannot be imported at all.
#[derive(Debug, PartialEq, Eq)]
pub struct ImportError {
    /// The fault.
    pub what: String,
    /// How to mend it.
    pub hint: String,
}

impl ImportError {
    pub(crate) fn new(what: impl Into<String>, hint: impl Into<String>) -> ImportError {
        ImportError { what: what.into(), hint: hint.into() }
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for ImportError {}
