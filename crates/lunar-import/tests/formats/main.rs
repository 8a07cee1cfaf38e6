//! Imports of each format, over samples.

mod ctld;
mod iet;
mod istgt;
mod lio;
mod open_iscsi;
mod scst;
mod tgt;

use lunar_import::{Configuration, Disk, Imported, NewTarget, Outcome};

/// The target whose name ends with this text.
fn target<'a>(configuration: &'a Configuration, end: &str) -> &'a NewTarget {
    let mut targets = configuration.targets.iter();
    targets.find(|target| target.name.ends_with(end)).unwrap_or_else(|| panic!("no target {end}"))
}

/// The disk of a LUN.
fn disk_of<'a>(configuration: &'a Configuration, end: &str, lun: u16) -> &'a Disk {
    &configuration.disks[target(configuration, end).luns[&lun]]
}

/// The disk with this name.
fn disk_named<'a>(configuration: &'a Configuration, name: &str) -> &'a Disk {
    configuration.disks.iter().find(|disk| disk.name == name).unwrap_or_else(|| panic!("no disk {name}"))
}

/// The notes with this outcome, as `PLACE TEXT`.
fn notes(imported: &Imported, outcome: Outcome) -> String {
    let notes = imported.notes.list().iter().filter(|note| note.outcome == outcome);
    notes.map(|note| format!("{} {}\n", note.place, note.text)).collect()
}

#[track_caller]
fn has(notes: &str, parts: &[&str]) {
    for part in parts {
        assert!(notes.contains(part), "{part} is not in\n{notes}");
    }
}
