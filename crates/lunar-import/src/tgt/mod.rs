//! `targets.conf` of tgt, and the output of `tgt-admin --dump`, which has the same grammar.

mod access;
mod disks;
mod file;
mod include;
mod settings;
mod targets;

use crate::files::Reader;
use crate::portals::PortalSets;
use crate::{ImportError, Imported};

/// Imports a `targets.conf` with its includes.
///
/// # Errors
/// The text is no such file, an included file cannot be read, or there is no target.
pub fn tgt(text: &str, reader: Reader<'_>) -> Result<Imported, ImportError> {
    let file = file::parse(text, reader)?;
    let mut import = TgtImport::default();
    for (place, what) in &file.missing {
        import.0.notes.lost(place, what);
    }
    let globals = import.globals(&file.entries);
    let targets = targets::merged(&file.entries);
    if targets.is_empty() {
        return Err(ImportError::new(
            "the file and its includes have no <target>",
            "give /etc/tgt/targets.conf, and with --root the folder that has the path of its includes",
        ));
    }
    import.targets(targets, &globals);
    import.portals();
    Ok(import.0.keep_identities_apart())
}

/// The import in progress. iSER: whether a target uses it.
#[derive(Default)]
struct TgtImport(Imported, bool);

impl TgtImport {
    /// Adds a portal group with every address, because the file has no portals.
    fn portals(&mut self) {
        let mut sets = PortalSets::default();
        sets.add(Some(1), crate::common::every_address(self.1));
        self.0.configuration.portal_groups = sets.groups().0;
        let notes = &mut self.0.notes;
        if self.1 {
            notes.changed("targets", "iSER, which each portal serves for all targets");
        }
        notes.changed(
            "targets",
            "the portals, which are arguments of tgtd: now 0.0.0.0:3260 and [::]:3260. Compare them with \
             tgtadm --lld iscsi --mode portal --op show",
        );
        notes.changed("targets", "LUN 0 of each target, the controller, which Lunar does not have");
    }
}
