//! NVMe subsystems of SPDK with their namespaces.

use super::SpdkImport;
use super::calls::Call;
use crate::{AdmittedHosts, NamespaceIdentifiers, NewSubsystem};
use std::collections::BTreeSet;

/// The controller identifiers that SPDK uses by default.
const ALL_CONTROLLERS: (u64, u64) = (1, 65519);

impl SpdkImport<'_> {
    /// Adds a subsystem.
    pub(super) fn subsystem(&mut self, call: &Call) {
        let (nqn, place) = (call.text("nqn"), call.place.as_str());
        if self.imported.check_subsystem_name(nqn, place) {
            self.imported.notes.carried(place, nqn);
        }
        let range = (call.number("min_cntlid").unwrap_or(1), call.number("max_cntlid").unwrap_or(65519));
        if range != ALL_CONTROLLERS {
            let what = format!(
                "{nqn}: the controller identifiers {} to {}, which depend on the tag of the portal group",
                range.0, range.1
            );
            self.imported.notes.lost(place, what);
        }
        if call.flag("passthrough") {
            self.imported.notes.lost(place, format!("{nqn}: commands for the devices themselves"));
        }
        let any_host = self.any_host.get(nqn).copied().unwrap_or_else(|| call.flag("allow_any_host"));
        let hosts = match any_host {
            true => AdmittedHosts::Every,
            false => AdmittedHosts::Named(BTreeSet::new()),
        };
        let subsystem = NewSubsystem {
            nqn: nqn.to_owned(),
            serial: self.imported.subsystem_text(call.text("serial_number"), "serial number", 20, place),
            model: self.imported.subsystem_text(call.text("model_number"), "model number", 40, place),
            hosts,
            ..NewSubsystem::default()
        };
        self.imported.configuration.subsystems.push(subsystem);
    }

    /// Adds a namespace to its subsystem.
    pub(super) fn namespace(&mut self, call: &Call) {
        let (nqn, place, from) = (call.text("nqn"), call.place.as_str(), call.part("namespace"));
        let bdev = from.text("bdev_name");
        let known = self.imported.configuration.subsystems.iter().position(|one| one.nqn == nqn);
        let found = self.find_bdev(bdev).map(|(disk, uuid)| (disk, uuid.to_owned()));
        let why = match (&found, known) {
            (_, None) => Some("there is no such subsystem"),
            (Err(why), _) => Some(why.as_str()),
            // Lunar shows a namespace to all hosts of a subsystem.
            _ if from.flag("no_auto_visible") => Some("only some hosts may see it"),
            _ => None,
        };
        if let Some(why) = why {
            let nsid = from.number("nsid").unwrap_or_default();
            return self.imported.notes.lost(place, format!("{nqn}: namespace {nsid}, {bdev}: {why}"));
        }
        let (Ok((disk, bdev_uuid)), Some(index)) = (found, known) else { return };
        let mut subsystem = std::mem::take(&mut self.imported.configuration.subsystems[index]);
        let nsid =
            from.number("nsid").and_then(|nsid| nsid.try_into().ok()).unwrap_or_else(|| free(&subsystem));
        let uuid = if from.text("uuid").is_empty() { &bdev_uuid } else { from.text("uuid") };
        let nguid = if from.text("nguid").is_empty() { &bdev_uuid } else { from.text("nguid") };
        let identifiers = NamespaceIdentifiers::new(uuid, nguid, from.text("eui64"));
        self.imported.add_namespace(&mut subsystem, nsid, disk, identifiers, place);
        if !from.text("ptpl_file").is_empty() {
            self.imported.notes.lost(place, format!("the saved reservations in {}", from.text("ptpl_file")));
        }
        if let Some(group) = from.number("anagrpid").filter(|group| *group != u64::from(nsid)) {
            let what =
                format!("ANA group {group}: a namespace has a group of its own, with the state of its disk");
            self.imported.notes.changed(place, what);
        }
        self.imported.configuration.subsystems[index] = subsystem;
    }
}

/// The lowest free NSID, which SPDK takes for a namespace without a number.
fn free(subsystem: &NewSubsystem) -> u32 {
    (1..=u16::MAX).find(|nsid| !subsystem.namespaces.contains_key(nsid)).map_or(0, u32::from)
}
