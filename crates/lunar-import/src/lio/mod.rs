//! `saveconfig.json` of targetcli, the configuration of the Linux kernel's target (LIO).
//!
//! Any key may be absent in a file that was written by hand. Numbers may be text, and flags may be 0 and 1.

mod access;
mod disks;
mod file;
mod targets;

use crate::portals::PortalSets;
use crate::{ImportError, Imported, json};
use file::SaveConfig;
use std::collections::BTreeMap;

/// Imports a `saveconfig.json`.
///
/// # Errors
/// The text is no such file, or it has no disk and no target.
pub fn lio(text: &str) -> Result<Imported, ImportError> {
    let file: SaveConfig = json::parse(text).map_err(|e| {
        ImportError::new(format!("the file is no saveconfig.json: {e}"), "give the file that targetcli saves")
    })?;
    if file.storage_objects.is_empty() && file.targets.is_empty() {
        return Err(ImportError::new(
            "the file has no storage object and no target",
            "look for an older one in /etc/target/backup (Debian: /etc/rtslib-fb-target/backup)",
        ));
    }
    let mut import = Import::default();
    import.discovery(&file);
    let disks = import.disks(&file);
    let mut portals = PortalSets::default();
    let sets = import.targets(&file, &disks, &mut portals);
    import.portal_groups(&mut portals, &sets);
    let disk = |(n, object)| Some((*disks.get(&disks::path(object))?, format!("storage_objects[{n}]")));
    import.0.unused_disks(file.storage_objects.iter().enumerate().filter_map(disk));
    Ok(import.0.keep_identities_apart())
}

/// The import in progress.
#[derive(Default)]
struct Import(Imported);

/// The index of the disk of each storage object, by its path in the configuration tree.
type DiskIndices = BTreeMap<String, usize>;
