//! `ctl.conf` of FreeBSD's ctld, in its own grammar and in UCL (`ctld -u`).

mod access;
mod disks;
mod file;
mod identity;
mod portals;
mod targets;
mod ucl;
mod ucl_sections;

use crate::{ImportError, Imported};
use file::CtldKey;
use std::collections::BTreeMap;

/// Imports a `ctl.conf`.
///
/// # Errors
/// The text has another grammar, or no target.
pub fn ctld(text: &str) -> Result<Imported, ImportError> {
    let keys = file::parse(text)?;
    if !keys.iter().any(|key| key.key == "target") {
        return Err(ImportError::new("the file has no target", "give /etc/ctl.conf"));
    }
    let mut import = CtldImport::default();
    keys.iter().for_each(|key| import.global_key(key));
    let disks = import.disks(&keys);
    let portals = import.portal_groups(&keys);
    import.discovery(&keys, &portals);
    for target in file::all(&keys, "target") {
        import.target(target, &keys, &disks, &portals);
    }
    let disk = |key: &CtldKey| Some(((*disks.get(key.word(0))?)?, key.place()));
    import.0.unused_disks(file::all(&keys, "lun").filter_map(disk));
    Ok(import.0.keep_identities_apart())
}

/// The import in progress.
#[derive(Default)]
struct CtldImport(Imported);

/// The disk of each LUN that has a name. None: it is lost.
type CtldDisks<'a> = BTreeMap<&'a str, Option<usize>>;

impl CtldImport {
    fn global_key(&mut self, key: &CtldKey) {
        let what = key.shown();
        match key.key.as_str() {
            "auth-group" | "portal-group" | "lun" | "target" | "pidfile" | "debug" => {}
            "timeout" | "maxproc" => {
                self.0.notes.changed(key.place(), format!("{what}: see [limits] in docs/lunar.example.toml"));
            }
            isns if isns.starts_with("isns-") => {
                self.0.notes.lost(key.place(), format!("{what}: Lunar does not register with iSNS"));
            }
            _ => self.0.notes.lost(key.place(), what),
        }
    }
}
