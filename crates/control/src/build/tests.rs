use super::*;
use crate::config::tests::Folder;
use crate::config::{Filter, parse};

fn config(folder: &Folder, luns: &str) -> Config {
    let source = format!("[[target]]\nname = \"iqn.2026-11.org.example:disks\"\n{luns}");
    parse(&source, &folder.0.join("t.toml")).map_err(|list| list[0].to_string()).unwrap()
}

fn unit(setup: &Setup, lun: u16) -> &Arc<Unit> {
    &setup.targets["iqn.2026-11.org.example:disks"].luns[&lun]
}

const DISK: &str = "[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\"\n";
const NULL: &str = "[[target.lun]]\nlun = 1\nbackend = \"null\"\nsize = \"1TiB\"\n";
const MEMORY: &str = "[[target.lun]]\nlun = 2\nbackend = \"memory\"\nsize = \"1MiB\"\n";

fn told(result: Result<Setup, Vec<Problem>>, folder: &Folder) -> String {
    let list = result.err().unwrap();
    let text: Vec<String> = list.iter().map(Problem::to_string).collect();
    text.join("\n").replace(&format!("{}/", folder.0.display()), "")
}

#[test]
fn a_configuration_becomes_a_setup() {
    let folder = Folder::new("build");
    let config = config(&folder, &format!("alias = \"Disks\"\n{DISK}serial = \"42\"\n{NULL}{MEMORY}"));
    let setup =
        Units::new(folder.0.join("state")).setup(&config).map_err(|list| list[0].to_string()).unwrap();
    let disk = unit(&setup, 0);
    assert_eq!(std::fs::metadata(folder.0.join("disk.img")).unwrap().len(), 1 << 20);
    assert_eq!(disk.lu.settings().capacity, 1 << 20);
    assert_eq!(disk.lu.settings().identity.serial, "42");
    assert_eq!(unit(&setup, 1).lu.settings().capacity, 1 << 40);
    assert_ne!(unit(&setup, 1).lu.settings().identity.naa, unit(&setup, 2).lu.settings().identity.naa);
    let state = folder.0.join("state/lu/iqn.2026-11.org.example:disks/0.state");
    assert_eq!(disk.state_file.as_ref(), Some(&state));
    assert!(state.parent().unwrap().is_dir());
    assert_eq!(setup.targets["iqn.2026-11.org.example:disks"].alias.as_deref(), Some("Disks"));
}

#[test]
fn reload_keeps_what_did_not_change() {
    let folder = Folder::new("reload");
    let mut units = Units::new(folder.0.join("state"));
    let old = units.setup(&config(&folder, &format!("{DISK}{NULL}{MEMORY}"))).ok().unwrap();
    let new =
        units.setup(&config(&folder, &format!("{DISK}{NULL}product = \"X\"\n{MEMORY}removable = true\n")));
    let new = new.map_err(|list| list[0].to_string()).unwrap();
    assert!(Arc::ptr_eq(unit(&old, 0), unit(&new, 0)), "unchanged");
    assert!(!Arc::ptr_eq(unit(&old, 1), unit(&new, 1)), "another product");
    assert!(!Arc::ptr_eq(unit(&old, 2), unit(&new, 2)), "removable");
    assert!(Arc::ptr_eq(&unit(&old, 2).backend, &unit(&new, 2).backend), "memory keeps its contents");
    assert_eq!(unit(&new, 1).lu.settings().identity.product, "X");
}

#[test]
fn a_locked_file_goes_on_under_another_definition_or_lun() {
    let folder = Folder::new("moved");
    let mut units = Units::new(folder.0.join("state"));
    let old = units.setup(&config(&folder, DISK)).ok().unwrap();
    let named = units.setup(&config(&folder, &format!("{DISK}product = \"X\"\n"))).ok().unwrap();
    assert!(Arc::ptr_eq(&unit(&old, 0).backend, &unit(&named, 0).backend));
    let moved = units.setup(&config(&folder, &DISK.replace("lun = 0", "lun = 7"))).ok().unwrap();
    assert!(Arc::ptr_eq(&unit(&old, 0).backend, &unit(&moved, 7).backend));
    assert_eq!(
        told(units.setup(&config(&folder, &format!("{DISK}read_only = true\n"))), &folder),
        "LUN 0 of iqn.2026-11.org.example:disks: disk.img: is being written by another server\n  \
         hint: restart lunar to open it in another way"
    );
}

#[test]
fn after_an_error_everything_is_as_it_was() {
    let folder = Folder::new("undo");
    let mut units = Units::new(folder.0.join("state"));
    let good = config(&folder, &format!("{DISK}{NULL}"));
    let old = units.setup(&good).ok().unwrap();
    let missing = DISK.replace("disk.img", "none.img").replace("size = \"1MiB\"\n", "");
    assert_eq!(
        told(units.setup(&config(&folder, &format!("{missing}{NULL}vendor = \"X\"\n"))), &folder),
        "LUN 0 of iqn.2026-11.org.example:disks: none.img: no such file or directory\n  \
         hint: check the path, or give a size to create it"
    );
    let again = units.setup(&good).ok().unwrap();
    assert!(Arc::ptr_eq(unit(&old, 0), unit(&again, 0)));
    assert!(Arc::ptr_eq(unit(&old, 1), unit(&again, 1)));
}

#[test]
fn damaged_state_is_refused_and_stays() {
    let folder = Folder::new("damaged");
    let lu = folder.0.join("state/lu/iqn.2026-11.org.example:disks");
    create_folder(&lu).unwrap();
    let state = folder.file("state/lu/iqn.2026-11.org.example:disks/1.state", b"no state of ours", 0o600);
    assert_eq!(
        told(Units::new(folder.0.join("state")).setup(&config(&folder, NULL)), &folder),
        "LUN 1 of iqn.2026-11.org.example:disks: the saved state state/lu/iqn.2026-11.org.example:disks/1.state \
         is damaged: not the saved state of a logical unit\n  \
         hint: restore it from a backup, or move it away to begin without reservations and saved mode pages"
    );
    assert_eq!(std::fs::read(&state).unwrap(), b"no state of ours");
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    assert_eq!(
        told(Units::new(folder.0.join("state")).setup(&config(&folder, NULL)), &folder),
        "LUN 1 of iqn.2026-11.org.example:disks: the saved state state/lu/iqn.2026-11.org.example:disks/1.state \
         cannot be read: is a directory\n  \
         hint: make it readable, or move it away to begin without reservations and saved mode pages"
    );
}

#[test]
fn saved_state_is_loaded() {
    let folder = Folder::new("saved");
    let config = config(&folder, NULL);
    let first = Units::new(folder.0.join("state")).setup(&config).ok().unwrap();
    let (_, bytes) = unit(&first, 1).lu.saved();
    let file = unit(&first, 1).state_file.clone().unwrap();
    std::fs::write(&file, &bytes).unwrap();
    assert!(Units::new(folder.0.join("state")).setup(&config).is_ok());
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    assert!(Units::new(folder.0.join("state")).setup(&config).is_err(), "it was read");
}

#[test]
fn a_folder_that_cannot_be_made_is_told() {
    let folder = Folder::new("folder");
    let file = folder.file("state", "in the way", 0o600);
    assert_eq!(
        told(Units::new(file).setup(&config(&folder, NULL)), &folder),
        "LUN 1 of iqn.2026-11.org.example:disks: cannot create the folder \
         state/lu/iqn.2026-11.org.example:disks: not a directory\n  \
         hint: set XDG_STATE_HOME, or state_dir in the configuration, to a folder that this user can write"
    );
}

#[test]
fn filters_wrap_the_medium() {
    let folder = Folder::new("filters");
    let filters = "filters = [{ kind = \"stats\" }, { kind = \"delay\", read_us = 1 }, { kind = \"rate\", iops = 5 }, { kind = \"error\", rate = 1.0, op = \"flush\" }]\n";
    let config = config(&folder, &format!("{NULL}{filters}"));
    assert_eq!(config.targets[0].luns[&1].filters[1], Filter::Delay { read_us: 1, write_us: 0 });
    let setup = Units::new(folder.0.join("state")).setup(&config).ok().unwrap();
    let names: Vec<String> = unit(&setup, 1).backend.describe().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names.join(" "), "error rate delay stats backend capacity");
}
