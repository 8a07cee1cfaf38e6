//! Imports of each format, over samples.

mod ctld;
mod iet;
mod istgt;
mod lio;
mod nvmet;
mod open_iscsi;
mod scst;
mod spdk;
mod tgt;

use lunar_import::{Configuration, Disk, Imported, NewSubsystem, NewTarget, Outcome};

/// The target whose name ends with this text.
fn target<'a>(configuration: &'a Configuration, end: &str) -> &'a NewTarget {
    let mut targets = configuration.targets.iter();
    targets.find(|target| target.name.ends_with(end)).unwrap_or_else(|| panic!("no target {end}"))
}

/// The subsystem whose NQN ends with this text.
fn subsystem<'a>(configuration: &'a Configuration, end: &str) -> &'a NewSubsystem {
    let mut subsystems = configuration.subsystems.iter();
    subsystems.find(|one| one.nqn.ends_with(end)).unwrap_or_else(|| panic!("no subsystem {end}"))
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

/// Each of these identifiers is kept by a namespace.
#[track_caller]
fn keeps(imported: &Imported, identifiers: &[&str]) {
    let namespaces = imported.configuration.subsystems.iter().flat_map(|one| one.namespaces.values());
    let kept = namespaces.map(|one| [&one.identifiers.uuid, &one.identifiers.nguid, &one.identifiers.eui64]);
    let kept: Vec<&str> = kept.flatten().flatten().map(String::as_str).collect();
    for one in identifiers {
        assert!(kept.contains(one), "{one} is not in {kept:?}");
    }
}
