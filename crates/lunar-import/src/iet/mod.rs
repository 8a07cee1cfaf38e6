//! `ietd.conf` of the iSCSI Enterprise Target, with `initiators.allow`, `initiators.deny` and `targets.allow`.

mod access;
mod disks;
mod file;
mod lists;
mod patterns;
mod targets;

use crate::files::Reader;
use crate::portals::PortalSets;
use crate::{Discovery, ImportError, Imported};
use lists::IetLists;

/// Imports an `ietd.conf`. The lists are beside it, in `/etc/iet` or in `/etc`.
///
/// # Errors
/// The text has no target, or a list cannot be read.
pub fn iet(text: &str, reader: Reader<'_>) -> Result<Imported, ImportError> {
    let (globals, targets) = file::parse(text);
    if targets.is_empty() {
        return Err(ImportError::new("the file has no Target", "give /etc/iet/ietd.conf or /etc/ietd.conf"));
    }
    let lists = IetLists::read(reader)?;
    let mut import = IetImport::default();
    import.discovery(&globals);
    import.lists(&lists);
    let mut portals = PortalSets::default();
    for target in &targets {
        import.target(target, &lists, &mut portals);
    }
    import.portals(&mut portals);
    Ok(import.0.keep_identities_apart())
}

/// The import in progress.
#[derive(Default)]
struct IetImport(Imported);

impl IetImport {
    /// Carries over the users of discovery, and reports the other keys before the first target.
    fn discovery(&mut self, globals: &[file::IetKey]) {
        let (chap, mutual) = self.users(globals);
        self.0.configuration.discovery = Discovery { disabled: false, chap, mutual };
        for key in globals.iter().filter(|key| !key.key.ends_with("user")) {
            self.other_key(key, "all targets");
        }
    }
}
