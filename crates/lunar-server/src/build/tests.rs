use super::*;
use crate::config::tests::Folder;
use crate::config::{Filter, Share, parse};
use lunar_block::BackendSpec;
use std::path::Path;
use std::time::Duration;

fn config(folder: &Folder, luns: &str) -> Config {
    let source = format!("[[target]]\nname = \"iqn.2026-11.org.example:disks\"\n{luns}");
    parse(&source, &folder.0.join("t.toml")).map_err(|list| list[0].to_string()).unwrap()
}

fn unit(setup: &TargetConfig, lun: u16) -> &Arc<LogicalUnit> {
    &setup.targets["iqn.2026-11.org.example:disks"].luns[&lun]
}

const DISK: &str = "[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\"\n";
const NULL: &str = "[[target.lun]]\nlun = 1\nbackend = \"null\"\nsize = \"1TiB\"\n";
const MEMORY: &str = "[[target.lun]]\nlun = 2\nbackend = \"memory\"\nsize = \"1MiB\"\n";

/// Quiesces the units as the server does.
fn rest(units: Vec<Arc<LogicalUnit>>) -> Result<Vec<Quiesced>, (usize, std::io::Error)> {
    let runtime = compio::runtime::Runtime::new().unwrap();
    Ok(units.iter().map(|unit| runtime.block_on(unit.quiesce()).unwrap()).collect())
}

/// The error when another server opens the disk.
fn locked(folder: &Folder) -> String {
    lunar_block::open(&BackendSpec::path(folder.0.join("disk.img"))).err().unwrap().what
}

fn messages(result: Result<TargetConfig, Vec<Diagnostic>>, folder: &Folder) -> String {
    let list = result.err().unwrap();
    let text: Vec<String> = list.iter().map(Diagnostic::to_string).collect();
    text.join("\n").replace(&format!("{}/", folder.0.display()), "")
}

#[test]
fn configuration_becomes_a_setup() {
    let folder = Folder::new("build");
    let config = config(&folder, &format!("alias = \"Disks\"\n{DISK}serial = \"42\"\n{NULL}{MEMORY}"));
    let setup =
        Units::new(folder.0.join("state")).setup(&config, &rest).map_err(|list| list[0].to_string()).unwrap();
    let disk = unit(&setup, 0);
    assert_eq!(std::fs::metadata(folder.0.join("disk.img")).unwrap().len(), 1 << 20);
    assert_eq!(disk.lu.settings().capacity, 1 << 20);
    assert_eq!(disk.lu.settings().identity.serial, "42");
    assert_eq!(unit(&setup, 1).lu.settings().capacity, 1 << 40);
    assert_ne!(unit(&setup, 1).lu.settings().identity.naa, unit(&setup, 2).lu.settings().identity.naa);
    assert_eq!([0, 1, 2].map(|lun| unit(&setup, lun).lu.settings().max_atomic), [lunar_block::MAX_ATOMIC; 3]);
    let state = folder.0.join("state/lu/iqn.2026-11.org.example:disks/0.state");
    assert_eq!(disk.state_file.as_ref(), Some(&state));
    assert!(state.parent().unwrap().is_dir());
    assert_eq!(setup.targets["iqn.2026-11.org.example:disks"].alias.as_deref(), Some("Disks"));
}

const SHARED: &str = "[[disk]]\nname = \"d\"\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\"\n\
    [[target]]\nname = \"iqn.2026-11.org.example:other\"\n[[target.lun]]\nlun = 5\ndisk = \"d\"\n";

#[test]
fn targets_share_the_unit_of_a_disk() {
    let folder = Folder::new("shared-disk");
    let mut units = Units::new(folder.0.join("state"));
    let both = config(&folder, &format!("[[target.lun]]\nlun = 0\ndisk = \"d\"\n{SHARED}"));
    let setup = units.setup(&both, &rest).map_err(|list| list[0].to_string()).unwrap();
    let shared = unit(&setup, 0).clone();
    let other = |setup: &TargetConfig| setup.targets["iqn.2026-11.org.example:other"].luns[&5].clone();
    assert!(Arc::ptr_eq(&shared, &other(&setup)));
    assert_eq!(shared.state_file, Some(folder.0.join("state/lu/disks/d.state")));
    let one = config(&folder, &format!("{NULL}{SHARED}"));
    let setup = units.setup(&one, &rest).map_err(|list| list[0].to_string()).unwrap();
    assert!(Arc::ptr_eq(&shared, &other(&setup)), "the other target still shows it");
    let changed = config(&folder, &format!("{NULL}{}", SHARED.replace("size", "vendor = \"X\"\nsize")));
    let setup = units.setup(&changed, &rest).map_err(|list| list[0].to_string()).unwrap();
    assert!(Arc::ptr_eq(&shared, &other(&setup)));
    assert_eq!(shared.lu.settings().identity.vendor, "X");
    let none = units.setup(&config(&folder, NULL), &rest).map_err(|list| list[0].to_string()).unwrap();
    assert_eq!(none.targets.len(), 1);
    lunar_block::open(&BackendSpec::path(folder.0.join("disk.img"))).expect("the file is closed");
}

#[test]
fn changed_definition_keeps_the_unit_serving() {
    let folder = Folder::new("reload");
    let mut units = Units::new(folder.0.join("state"));
    let old = units.setup(&config(&folder, &format!("{DISK}{NULL}{MEMORY}")), &rest).ok().unwrap();
    let backends = [0, 1, 2].map(|lun| unit(&old, lun).backend());
    let changed = [
        "product = \"X\"\n",
        "serial = \"9\"\n",
        "read_only = true\n",
        "block_size = 4096\n",
        "write_cache = false\n",
        "removable = true\n",
        "filters = [{ kind = \"stats\" }]\n",
    ];
    for keys in changed {
        let of_memory = keys.replace("\"9\"", "\"10\"");
        let new = units.setup(&config(&folder, &format!("{DISK}{keys}{NULL}{MEMORY}{of_memory}")), &rest);
        let new = new.map_err(|list| list[0].to_string()).unwrap();
        for lun in [0, 1, 2] {
            assert!(Arc::ptr_eq(unit(&old, lun), unit(&new, lun)), "{lun} {keys}");
            assert_eq!(unit(&new, lun).lu.busy_status(), None, "{lun} {keys}");
        }
        assert!(Arc::ptr_eq(&backends[1], &unit(&new, 1).backend()), "{keys}");
        let keeps = !keys.starts_with("filters");
        assert_eq!(Arc::ptr_eq(&backends[2], &unit(&new, 2).backend()), keeps, "memory keeps its contents");
    }
    assert_eq!(unit(&old, 0).backend().describe()[0].1, "stats");
    units.setup(&config(&folder, &format!("{DISK}vendor = \"X\"\n")), &rest).ok().unwrap();
    assert_eq!(unit(&old, 0).lu.settings().identity.vendor, "X");
}

#[test]
fn file_is_opened_in_another_way_by_the_same_unit() {
    let folder = Folder::new("another-way");
    let mut units = Units::new(folder.0.join("state"));
    let old = units.setup(&config(&folder, DISK), &rest).ok().unwrap();
    let before = unit(&old, 0).backend();
    let new = units.setup(&config(&folder, &format!("{DISK}read_only = true\n")), &rest);
    let new = new.map_err(|list| list[0].to_string()).unwrap();
    assert!(Arc::ptr_eq(unit(&old, 0), unit(&new, 0)));
    assert!(!Arc::ptr_eq(&before, &unit(&new, 0).backend()));
    assert!(unit(&new, 0).backend().info().read_only && unit(&new, 0).lu.settings().read_only);
    let writable = units.setup(&config(&folder, DISK), &rest).ok().unwrap();
    assert!(!unit(&writable, 0).backend().info().read_only);
    assert_eq!(locked(&folder), "is in use by another server");
}

/// Two servers with the same state folder.
#[test]
fn second_null_disk_of_a_name_keeps_no_state() {
    let folder = Folder::new("null-twice");
    let [mut first, mut second] = [0; 2].map(|_| Units::new(folder.0.join("state")));
    let one = first.setup(&config(&folder, NULL), &rest).ok().unwrap();
    let two = second.setup(&config(&folder, NULL), &rest).ok().unwrap();
    assert!(unit(&one, 1).state_file.is_some() && unit(&two, 1).state_file.is_none());
    let named = config(&folder, &format!("{NULL}serial = \"1\"\n"));
    let message = messages(second.setup(&named, &rest), &folder);
    assert!(
        message.contains("the state state/lu/") && message.contains(" is in use by process "),
        "{message}"
    );
}

/// A reload.
fn again(units: &mut Units, config: &Config) -> Result<TargetConfig, Vec<Diagnostic>> {
    units.check_paths(config)?;
    served(units, config)
}

/// A start, or the part of a reload after the check of paths.
fn served(units: &mut Units, config: &Config) -> Result<TargetConfig, Vec<Diagnostic>> {
    let setup = units.setup(config, &rest)?;
    units.record();
    Ok(setup)
}

/// Puts another file at the path of the disk, and renames the old file to `keep` or removes it. Returns the words of
/// the expected error.
fn replace(folder: &Folder, keep: Option<&str>) -> String {
    use std::os::unix::fs::MetadataExt;
    let disk = folder.0.join("disk.img");
    let served = std::fs::metadata(&disk).unwrap().ino();
    keep.iter().for_each(|name| std::fs::rename(&disk, folder.0.join(name)).unwrap());
    std::fs::write(folder.0.join("other.img"), vec![7; 2 << 20]).unwrap();
    std::fs::rename(folder.0.join("other.img"), &disk).unwrap();
    let there = std::fs::metadata(&disk).unwrap().ino();
    assert_ne!(served, there);
    format!("LUN 0 of iqn.2026-11.org.example:disks: disk.img {served} {there}")
}

#[test]
fn reload_refuses_another_file_at_the_path_of_a_served_one() {
    let changes = [
        format!("{DISK}{NULL}"),
        format!("{DISK}read_only = true\n{NULL}"),
        format!("{DISK}serial = \"9\"\n{NULL}"),
        format!("{}{NULL}", DISK.replace("lun = 0", "lun = 7")),
    ];
    for (keep, remedies) in [
        (None, ["cp --sparse=always /proc/", "stop and start the server"]),
        (
            Some("kept.img"),
            ["move the file back: mv kept.img disk.img", "once without this LUN and once with it"],
        ),
    ] {
        let folder = Folder::new("replaced");
        let mut units = Units::new(folder.0.join("state"));
        let both = config(&folder, &format!("{DISK}{NULL}"));
        let old = units.setup(&both, &rest).ok().unwrap();
        let before = unit(&old, 0).backend();
        let names = replace(&folder, keep);
        for change in &changes {
            let refused = messages(again(&mut units, &config(&folder, change)), &folder);
            assert!(names.split(' ').all(|word| refused.contains(word)), "{refused}");
            assert!(remedies.iter().all(|remedy| refused.contains(remedy)), "{refused}");
            assert!(Arc::ptr_eq(&before, &unit(&old, 0).backend()));
        }
        let found = units.setup(&both, &rest).ok().unwrap();
        assert!(Arc::ptr_eq(&before, &unit(&found, 0).backend()), "the file is not opened again");
        let Some(keep) = keep else { continue };
        again(&mut units, &config(&folder, NULL)).ok().unwrap();
        let new = again(&mut units, &both).ok().unwrap();
        assert_eq!(unit(&new, 0).backend().info().capacity, 2 << 20);
        std::fs::rename(folder.0.join(keep), folder.0.join("disk.img")).unwrap();
        assert!(again(&mut units, &both).is_err(), "the new file is served now");
    }
}

#[test]
fn file_that_was_moved_is_not_made_anew_by_a_reload() {
    let folder = Folder::new("moved-away");
    let mut units = Units::new(folder.0.join("state"));
    let old = served(&mut units, &config(&folder, DISK)).ok().unwrap();
    let record = folder.0.join("state/lu/iqn.2026-11.org.example:disks/0.medium");
    let before = std::fs::read(&record).unwrap();
    std::fs::rename(folder.0.join("disk.img"), folder.0.join("aside.img")).unwrap();
    let changed = config(&folder, &format!("{DISK}read_only = true\n"));
    let refused = messages(again(&mut units, &changed), &folder);
    assert!(refused.contains("disk.img was moved to aside.img\n  hint: move the file back"), "{refused}");
    assert!(unit(&old, 0).lu.busy_status().is_none());
    for goes_on in [format!("{DISK}serial = \"9\"\n"), DISK.replace("lun = 0", "lun = 7")] {
        again(&mut units, &config(&folder, &goes_on)).ok().unwrap();
        assert_eq!(std::fs::read(&record).unwrap(), before, "the record describes the open file");
    }
    assert!(!folder.0.join("disk.img").exists(), "no other file was created");
}

#[test]
fn missing_image_is_not_made_anew_under_the_old_identity() {
    let folder = Folder::new("not-anew");
    let state = || Units::new(folder.0.join("state"));
    let disk = folder.0.join("disk.img");
    drop(served(&mut state(), &config(&folder, DISK)).ok().unwrap());
    let mut running = state();
    running.setup(&config(&folder, NULL), &rest).ok().unwrap();
    std::fs::remove_file(&disk).unwrap();
    let both = config(&folder, &format!("{DISK}{NULL}"));
    let start =
        "LUN 0 of iqn.2026-11.org.example:disks: disk.img: no such file or directory; the path held the data";
    let started = messages(state().setup(&config(&folder, DISK), &rest), &folder);
    let reloaded = messages(again(&mut running, &both), &folder);
    let record = "remove the record state/lu/iqn.2026-11.org.example:disks/0.medium";
    for refused in [started, reloaded] {
        assert!(refused.starts_with(start) && refused.contains(record), "{refused}");
    }
    assert!(!disk.exists(), "no file was created");
    std::fs::remove_file(folder.0.join("state/lu/iqn.2026-11.org.example:disks/0.medium")).unwrap();
    again(&mut running, &both).ok().unwrap();
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 1 << 20);
}

#[test]
fn server_that_is_refused_leaves_the_record_alone() {
    let folder = Folder::new("record-alone");
    let [mut first, mut second] = [0; 2].map(|_| Units::new(folder.0.join("state")));
    served(&mut first, &config(&folder, DISK)).ok().unwrap();
    let record = folder.0.join("state/lu/iqn.2026-11.org.example:disks/0.medium");
    let before = std::fs::read(&record).unwrap();
    let copied = config(&folder, &DISK.replace("disk.img", "copy.img"));
    let refused = messages(second.setup(&copied, &rest), &folder);
    assert!(refused.contains("0.state is in use by process "), "{refused}");
    assert_eq!(std::fs::read(&record).unwrap(), before);
    assert!(!folder.0.join("copy.img").exists(), "no file was created");
}

#[test]
fn deleted_file_is_the_only_copy_and_its_lun_stays() {
    let folder = Folder::new("only-copy");
    let mut units = Units::new(folder.0.join("state"));
    let both = config(&folder, &format!("{DISK}{NULL}"));
    let old = units.setup(&both, &rest).ok().unwrap();
    assert!(units.unlinked().is_empty());
    std::fs::remove_file(folder.0.join("disk.img")).unwrap();
    let [unlinked] = &units.unlinked()[..] else { panic!("one unlinked LUN") };
    let hint = unlinked.hint.clone().unwrap();
    assert!(hint.contains(&format!("cp --sparse=always /proc/{}/fd/", std::process::id())), "{hint}");
    for changed in [NULL.to_owned(), format!("{DISK}read_only = true\n{NULL}")] {
        let refused = messages(again(&mut units, &config(&folder, &changed)), &folder);
        let start = "LUN 0 of iqn.2026-11.org.example:disks: disk.img was deleted; the data of the file is lost when \
            the server closes it\n";
        assert!(refused.starts_with(start) && refused.contains("cp --sparse=always"), "{refused}");
    }
    let new = again(&mut units, &both).ok().unwrap();
    assert!(Arc::ptr_eq(&unit(&old, 0).backend(), &unit(&new, 0).backend()), "the LUN keeps the open file");
    assert!(!folder.0.join("disk.img").exists(), "no other file was created");
}

/// Writes the magic of qcow2 into the disk, as a host may do.
fn write_qcow2(disk: &Path) {
    let disk = std::fs::File::options().write(true).open(disk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&disk, b"QFI\xfb\0\0\0\x03", 0).unwrap();
}

#[test]
fn disk_once_served_stays_raw_whatever_hosts_write() {
    let folder = Folder::new("stays-raw");
    let state = || Units::new(folder.0.join("state"));
    drop(served(&mut state(), &config(&folder, DISK)).ok().unwrap());
    write_qcow2(&folder.0.join("disk.img"));
    assert!(state().setup(&config(&folder, DISK), &rest).is_ok());
    let elsewhere = DISK.replace("lun = 0", "lun = 7");
    let refused = messages(state().setup(&config(&folder, &elsewhere), &rest), &folder);
    assert!(refused.contains("disk.img: is a disk image in the format qcow2, not raw\n"), "{refused}");
    let raw = config(&folder, &format!("{elsewhere}format = \"raw\"\n"));
    assert!(served(&mut state(), &raw).is_ok());
    assert!(state().setup(&config(&folder, &elsewhere), &rest).is_ok(), "the record marks it as raw");
}

#[test]
fn reload_that_fails_leaves_the_record_alone() {
    let folder = Folder::new("record-failed");
    let mut units = Units::new(folder.0.join("state"));
    let good = config(&folder, &format!("{DISK}{NULL}"));
    served(&mut units, &good).ok().unwrap();
    let record = folder.0.join("state/lu/iqn.2026-11.org.example:disks/0.medium");
    let before = std::fs::read(&record).unwrap();
    folder.file("small.img", vec![0; 1000], 0o600);
    let missing = NULL.replace("\"null\"", "\"file\"\npath = \"none.img\"").replace("size = \"1TiB\"\n", "");
    let of_another = DISK.replace("disk.img", "other.img") + &missing;
    let of_itself = DISK.replace("disk.img", "small.img") + "block_size = 4096\n" + NULL;
    for invalid in [of_another, of_itself] {
        assert!(again(&mut units, &config(&folder, &invalid)).is_err(), "{invalid}");
        assert_eq!(std::fs::read(&record).unwrap(), before, "{invalid}");
    }
    drop(units);
    let mut units = Units::new(folder.0.join("state"));
    std::fs::rename(folder.0.join("disk.img"), folder.0.join("aside.img")).unwrap();
    let refused = messages(served(&mut units, &good), &folder);
    assert!(refused.contains("disk.img: no such file or directory; the path held the data"), "{refused}");
    assert!(!folder.0.join("disk.img").exists(), "no file was created");
    std::fs::rename(folder.0.join("aside.img"), folder.0.join("disk.img")).unwrap();
    write_qcow2(&folder.0.join("disk.img"));
    assert!(served(&mut units, &good).is_ok(), "the disk stays raw");
}

#[test]
fn start_is_recorded_when_it_is_served() {
    let folder = Folder::new("record-start");
    let mut units = Units::new(folder.0.join("state"));
    units.setup(&config(&folder, DISK), &rest).ok().unwrap();
    let record = folder.0.join("state/lu/iqn.2026-11.org.example:disks/0.medium");
    assert!(!record.exists());
    units.record();
    assert!(record.exists());
}

#[test]
fn lun_that_goes_back_to_a_disk_knows_it() {
    let folder = Folder::new("record-back-again");
    let mut units = Units::new(folder.0.join("state"));
    let (a, b) = (config(&folder, DISK), config(&folder, &DISK.replace("disk.img", "other.img")));
    served(&mut units, &a).ok().unwrap();
    write_qcow2(&folder.0.join("disk.img"));
    for (config, disk) in [(&b, "other.img"), (&a, "disk.img"), (&b, "other.img")] {
        again(&mut units, config).map_err(|list| list[0].to_string()).unwrap();
        write_qcow2(&folder.0.join(disk));
    }
    std::fs::remove_file(folder.0.join("disk.img")).unwrap();
    let refused = messages(again(&mut units, &a), &folder);
    assert!(refused.contains("disk.img: no such file or directory; the path held the data"), "{refused}");
}

#[test]
fn occupied_path_leaves_the_old_medium_serving() {
    let folder = Folder::new("taken-place");
    let mut units = Units::new(folder.0.join("state"));
    let good = config(&folder, DISK);
    let old = units.setup(&good, &rest).ok().unwrap();
    let before = unit(&old, 0).backend();
    std::fs::rename(folder.0.join("disk.img"), folder.0.join("aside.img")).unwrap();
    std::fs::create_dir(folder.0.join("disk.img")).unwrap();
    let refused = messages(again(&mut units, &good), &folder);
    assert!(refused.contains("disk.img was moved to aside.img and replaced by another file ("), "{refused}");
    assert!(Arc::ptr_eq(&before, &unit(&old, 0).backend()));
    std::fs::remove_dir(folder.0.join("disk.img")).unwrap();
    let gone = again(&mut units, &good).ok().unwrap();
    assert!(Arc::ptr_eq(&before, &unit(&gone, 0).backend()), "the open medium stays in use");
    assert!(!folder.0.join("disk.img").exists());
    std::fs::rename(folder.0.join("aside.img"), folder.0.join("disk.img")).unwrap();
    let back = again(&mut units, &good).ok().unwrap();
    assert!(Arc::ptr_eq(&before, &unit(&back, 0).backend()));
    assert_eq!(locked(&folder), "is in use by another server");
}

#[test]
fn file_lock_moves_to_another_lun_after_removal() {
    let folder = Folder::new("moved");
    let mut units = Units::new(folder.0.join("state"));
    let old = units.setup(&config(&folder, DISK), &rest).ok().unwrap();
    let medium = unit(&old, 0).backend();
    let moved = units.setup(&config(&folder, &DISK.replace("lun = 0", "lun = 7")), &rest).ok().unwrap();
    assert!(Arc::ptr_eq(&medium, &unit(&moved, 7).backend()));
    assert!(unit(&old, 0).lu.busy_status().is_some(), "a removed unit stays busy");
    assert!(unit(&old, 0).backend().info().null, "a removed unit has closed the file");
}

#[test]
fn media_can_be_exchanged() {
    let folder = Folder::new("exchanged");
    let mut units = Units::new(folder.0.join("state"));
    let other = |disk: &str, lun: &str| DISK.replace("disk.img", disk).replace("lun = 0", lun);
    let a = format!("{}{}", other("a.img", "lun = 0"), other("b.img", "lun = 1"));
    let b = format!("{}{}", other("b.img", "lun = 0"), other("a.img", "lun = 1"));
    let old = units.setup(&config(&folder, &a), &rest).ok().unwrap();
    let before = [0, 1].map(|lun| unit(&old, lun).backend());
    let new = units.setup(&config(&folder, &b), &rest).ok().unwrap();
    assert!(Arc::ptr_eq(&before[0], &unit(&new, 1).backend()));
    assert!(Arc::ptr_eq(&before[1], &unit(&new, 0).backend()));
    assert!(Arc::ptr_eq(unit(&old, 0), unit(&new, 0)) && Arc::ptr_eq(unit(&old, 1), unit(&new, 1)));
}

#[test]
fn another_disk_under_another_name_is_another_unit() {
    let folder = Folder::new("another");
    let mut units = Units::new(folder.0.join("state"));
    let old = units.setup(&config(&folder, &format!("{DISK}serial = \"1\"\n")), &rest).ok().unwrap();
    let other = DISK.replace("disk.img", "other.img");
    let new = units.setup(&config(&folder, &format!("{other}serial = \"2\"\n")), &rest).ok().unwrap();
    assert!(!Arc::ptr_eq(unit(&old, 0), unit(&new, 0)));
    assert!(unit(&old, 0).lu.busy_status().is_some() && unit(&new, 0).lu.busy_status().is_none());
    let cdrom = units.setup(&config(&folder, &format!("{other}serial = \"2\"\nkind = \"cdrom\"\n")), &rest);
    let cdrom = cdrom.map_err(|list| list[0].to_string()).unwrap();
    assert!(!Arc::ptr_eq(unit(&new, 0), unit(&cdrom, 0)));
}

#[test]
fn failed_open_leaves_the_old_medium_serving() {
    let folder = Folder::new("failing");
    let mut units = Units::new(folder.0.join("state"));
    let old = units.setup(&config(&folder, &format!("{DISK}{NULL}")), &rest).ok().unwrap();
    let before = unit(&old, 0).backend();
    let missing = NULL.replace("\"null\"", "\"file\"\npath = \"none.img\"").replace("size = \"1TiB\"\n", "");
    assert_eq!(
        messages(
            units.setup(&config(&folder, &format!("{DISK}read_only = true\n{missing}")), &rest),
            &folder
        ),
        "LUN 1 of iqn.2026-11.org.example:disks: none.img: no such file or directory\n  \
         hint: check the path, or set a size to create the file"
    );
    assert!(Arc::ptr_eq(&before, &unit(&old, 0).backend()));
    assert!(!unit(&old, 0).lu.settings().read_only);
    assert_eq!((unit(&old, 0).lu.busy_status(), unit(&old, 1).lu.busy_status()), (None, None));
    assert_eq!(locked(&folder), "is in use by another server");
}

#[test]
fn unit_that_does_not_come_to_rest_stays_as_it_was() {
    let folder = Folder::new("restless");
    let mut units = Units::new(folder.0.join("state"));
    let good = config(&folder, &format!("{DISK}{NULL}"));
    let old = units.setup(&good, &rest).ok().unwrap();
    let restless = |_| Err((1, std::io::Error::other("Its commands did not end")));
    assert_eq!(
        messages(units.setup(&config(&folder, &format!("{DISK}serial = \"1\"\n")), &restless), &folder),
        "LUN 1 of iqn.2026-11.org.example:disks: cannot be changed now: its commands did not end\n  \
         hint: reload again later, or restart lunar; the old configuration stays in force"
    );
    let again = units.setup(&good, &|units| {
        assert!(units.is_empty());
        Ok(Vec::new())
    });
    assert!(Arc::ptr_eq(unit(&old, 0), unit(&again.ok().unwrap(), 0)));
}

#[test]
fn after_an_error_everything_is_as_it_was() {
    let folder = Folder::new("undo");
    let mut units = Units::new(folder.0.join("state"));
    let good = config(&folder, &format!("{DISK}{NULL}"));
    let old = units.setup(&good, &rest).ok().unwrap();
    let missing = DISK.replace("disk.img", "none.img").replace("size = \"1MiB\"\n", "");
    assert_eq!(
        messages(units.setup(&config(&folder, &format!("{missing}{NULL}vendor = \"X\"\n")), &rest), &folder),
        "LUN 0 of iqn.2026-11.org.example:disks: none.img: no such file or directory\n  \
         hint: check the path, or set a size to create the file"
    );
    let again = units.setup(&good, &rest).ok().unwrap();
    assert!(Arc::ptr_eq(unit(&old, 0), unit(&again, 0)));
    assert!(Arc::ptr_eq(unit(&old, 1), unit(&again, 1)));
}

#[test]
fn share_keeps_its_limits_when_a_reload_fails() {
    let folder = Folder::new("limits");
    let mut units = Units::new(folder.0.join("state"));
    let with_rate_limit = |iops, more: &str| {
        let mut config = config(&folder, &format!("{MEMORY}{more}"));
        let lun = std::sync::Arc::make_mut(&mut config.targets[0].luns).get_mut(&2).unwrap();
        lun.share = Some(Share { router: "r".into(), iops, bytes_per_s: 0 });
        config
    };
    let waits = |units: &Units| {
        let rate = units.rates.lock().unwrap()["r"].clone();
        (0..3).map(|_| rate.pay(1)).max().unwrap() > Duration::ZERO
    };
    units.setup(&with_rate_limit(0, ""), &rest).ok().unwrap();
    assert!(!waits(&units), "no limit is set");
    let missing = DISK.replace("disk.img", "none.img").replace("size = \"1MiB\"\n", "");
    assert!(units.setup(&with_rate_limit(1, &missing), &rest).is_err());
    assert!(!waits(&units), "the failed reload set no limit");
    units.setup(&with_rate_limit(1, ""), &rest).ok().unwrap();
    assert!(waits(&units));
}

#[test]
fn damaged_state_is_refused_and_stays() {
    let folder = Folder::new("damaged");
    let lu = folder.0.join("state/lu/iqn.2026-11.org.example:disks");
    create_folder(&lu).unwrap();
    let state = folder.file("state/lu/iqn.2026-11.org.example:disks/1.state", b"no state of ours", 0o600);
    assert_eq!(
        messages(Units::new(folder.0.join("state")).setup(&config(&folder, NULL), &rest), &folder),
        "LUN 1 of iqn.2026-11.org.example:disks: the saved state state/lu/iqn.2026-11.org.example:disks/1.state \
         is damaged: the file is not the saved state of a logical unit\n  \
         hint: restore the file from a backup, or move it away to start without reservations and saved mode pages"
    );
    assert_eq!(std::fs::read(&state).unwrap(), b"no state of ours");
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    assert_eq!(
        messages(Units::new(folder.0.join("state")).setup(&config(&folder, NULL), &rest), &folder),
        "LUN 1 of iqn.2026-11.org.example:disks: the saved state state/lu/iqn.2026-11.org.example:disks/1.state \
         cannot be read: is a directory\n  \
         hint: make the file readable, or move it away to start without reservations and saved mode pages"
    );
}

#[test]
fn saved_state_is_loaded() {
    let folder = Folder::new("saved");
    let config = config(&folder, NULL);
    let first = Units::new(folder.0.join("state")).setup(&config, &rest).ok().unwrap();
    let (_, bytes) = unit(&first, 1).lu.saved_state();
    let file = unit(&first, 1).state_file.clone().unwrap();
    std::fs::write(&file, &bytes).unwrap();
    assert!(Units::new(folder.0.join("state")).setup(&config, &rest).is_ok());
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    assert!(Units::new(folder.0.join("state")).setup(&config, &rest).is_err(), "the saved state is read");
    let left = file.with_file_name("1.state.new-4000000000-1-0");
    std::fs::write(&left, "half").unwrap();
    std::fs::write(&file, &bytes).unwrap();
    assert!(Units::new(folder.0.join("state")).setup(&config, &rest).is_ok());
    assert!(!left.exists(), "the temporary file of a killed writer is removed");
}

#[test]
fn nameless_memory_is_another_disk_each_time() {
    let folder = Folder::new("nameless");
    let who = |units: &mut Units, keys: &str| {
        let setup = units.setup(&config(&folder, keys), &rest).map_err(|list| list[0].to_string()).unwrap();
        let unit = unit(&setup, 2).clone();
        (unit.lu.settings().identity.clone(), unit.state_file.clone())
    };
    let new = || Units::new(folder.0.join("state"));
    let mut units = new();
    let (first, file) = who(&mut units, MEMORY);
    assert_eq!(file, None, "reservations must not outlive the data");
    assert_eq!(
        who(&mut units, &format!("{MEMORY}write_cache = false\n")).0,
        first,
        "the disk keeps its identity"
    );
    let (second, _) = who(&mut new(), MEMORY);
    assert_ne!(first.serial, second.serial);
    assert_ne!(first.naa, second.naa);
    who(&mut units, &MEMORY.replace("\"memory\"", "\"null\""));
    assert_ne!(who(&mut units, MEMORY).0, first, "a new disk has a new identity");
    let named = format!("{MEMORY}serial = \"7\"\n");
    let (third, file) = who(&mut new(), &named);
    assert_eq!(
        (&third, file.is_some()),
        (&who(&mut new(), &named).0, true),
        "a configured serial number lasts"
    );
}

#[test]
fn memory_keeps_its_size_and_its_data() {
    let folder = Folder::new("memory-size");
    let mut units = Units::new(folder.0.join("state"));
    let old = units.setup(&config(&folder, MEMORY), &rest).ok().unwrap();
    let backend = unit(&old, 2).backend();
    let other = config(&folder, &MEMORY.replace("1MiB", "2MiB"));
    assert_eq!(
        messages(units.setup(&other, &rest), &folder),
        "LUN 2 of iqn.2026-11.org.example:disks: the memory disk has 1 MiB: a change to 2 MiB would lose its data\n  \
         hint: keep the size, or restart the server, which empties the disk"
    );
    assert!(Arc::ptr_eq(&backend, &unit(&old, 2).backend()));
    assert_eq!(unit(&old, 2).lu.busy_status(), None);
}

/// LUN 3 of memory or a file, as the API moves it: with a serial number.
fn movable(lun: u16, keys: &str) -> String {
    format!("[[target.lun]]\nlun = {lun}\nserial = \"m\"\n{keys}")
}

const MOVABLE: [&str; 2] =
    ["backend = \"memory\"\nsize = \"1MiB\"\n", "backend = \"file\"\npath = \"disk.img\"\nsize = \"1MiB\"\n"];

/// The file of a LUN in the state folder.
fn state_of(folder: &Folder, file: &str) -> PathBuf {
    folder.0.join("state/lu/iqn.2026-11.org.example:disks").join(file)
}

#[test]
fn moved_unit_takes_its_medium_and_state_along() {
    for keys in MOVABLE {
        let folder = Folder::new("moved-unit");
        let mut units = Units::new(folder.0.join("state"));
        let old = served(&mut units, &config(&folder, &movable(3, keys))).ok().unwrap();
        let backend = unit(&old, 3).backend();
        let (_, saved) = unit(&old, 3).lu.saved_state();
        std::fs::write(state_of(&folder, "3.state"), &saved).unwrap();
        // A former LUN of the new place had a record.
        std::fs::write(state_of(&folder, "4.medium"), "old").unwrap();
        let new = served(&mut units, &config(&folder, &movable(4, keys))).map_err(|list| list[0].to_string());
        let new = new.unwrap();
        assert!(Arc::ptr_eq(&backend, &unit(&new, 4).backend()), "{keys}");
        assert_eq!(unit(&new, 4).lu.busy_status(), None);
        assert!(unit(&old, 3).lu.busy_status().is_some(), "the former unit is gone");
        assert_eq!(std::fs::read(state_of(&folder, "4.state")).unwrap(), saved);
        assert!(!state_of(&folder, "3.state").exists() && !state_of(&folder, "3.medium").exists());
        let has_record = keys.contains("file");
        assert_eq!(state_of(&folder, "4.medium").exists(), has_record, "{keys}");
    }
}

#[test]
fn move_on_trial_keeps_the_former_state_until_its_end() {
    let folder = Folder::new("moved-trial");
    let mut units = Units::new(folder.0.join("state"));
    let (here, there) = (movable(3, MOVABLE[0]), movable(4, MOVABLE[0]));
    let old = served(&mut units, &config(&folder, &here)).ok().unwrap();
    let backend = unit(&old, 3).backend();
    std::fs::write(state_of(&folder, "3.state"), unit(&old, 3).lu.saved_state().1).unwrap();
    for (is_kept, expected) in [(false, [true, false]), (true, [false, true])] {
        units.begin_trial();
        served(&mut units, &config(&folder, &there)).ok().unwrap();
        assert!(["3.state", "4.state"].iter().all(|name| state_of(&folder, name).exists()));
        if !is_kept {
            let back = served(&mut units, &config(&folder, &here)).ok().unwrap();
            assert!(Arc::ptr_eq(&backend, &unit(&back, 3).backend()));
        }
        units.end_trial();
        assert_eq!(["3.state", "4.state"].map(|name| state_of(&folder, name).exists()), expected);
    }
}

#[test]
fn failed_move_leaves_no_state_at_the_new_place() {
    let folder = Folder::new("moved-failed");
    let mut units = Units::new(folder.0.join("state"));
    let old = served(&mut units, &config(&folder, &movable(3, MOVABLE[0]))).ok().unwrap();
    std::fs::write(state_of(&folder, "3.state"), unit(&old, 3).lu.saved_state().1).unwrap();
    let missing = "[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"missing.img\"\n";
    let new = config(&folder, &format!("{}{missing}", movable(4, MOVABLE[0])));
    assert!(units.setup(&new, &rest).is_err());
    assert!(state_of(&folder, "3.state").exists() && !state_of(&folder, "4.state").exists());
    assert_eq!(unit(&old, 3).lu.busy_status(), None);
}

/// Two LUNs with other serial numbers are other disks, even if one comes as the other goes.
#[test]
fn unit_with_another_serial_number_does_not_move() {
    let folder = Folder::new("not-moved");
    let mut units = Units::new(folder.0.join("state"));
    let old = served(&mut units, &config(&folder, &movable(3, MOVABLE[0]))).ok().unwrap();
    let other = movable(4, MOVABLE[0]).replace("\"m\"", "\"n\"");
    let new = served(&mut units, &config(&folder, &other)).ok().unwrap();
    assert!(!Arc::ptr_eq(&unit(&old, 3).backend(), &unit(&new, 4).backend()));
}

#[test]
fn uncreatable_folder_is_reported() {
    let folder = Folder::new("folder");
    let file = folder.file("state", "in the way", 0o600);
    assert_eq!(
        messages(Units::new(file).setup(&config(&folder, NULL), &rest), &folder),
        "LUN 1 of iqn.2026-11.org.example:disks: cannot create the folder \
         state/servers: not a directory\n  \
         hint: set XDG_STATE_HOME, or state_dir in the configuration, to a folder that this user can write"
    );
}

#[test]
fn filters_wrap_the_medium() {
    let folder = Folder::new("filters");
    let filters = "filters = [{ kind = \"stats\" }, { kind = \"delay\", read_us = 1 }, { kind = \"rate\", iops = 5 }, { kind = \"error\", rate = 1.0, op = \"flush\" }]\n";
    let config = config(&folder, &format!("{NULL}{filters}"));
    assert_eq!(config.targets[0].luns[&1].filters[1], Filter::Delay { read_us: 1, write_us: 0 });
    let setup = Units::new(folder.0.join("state")).setup(&config, &rest).ok().unwrap();
    let rows = unit(&setup, 1).backend().describe();
    let filters: Vec<&str> =
        rows.iter().filter(|(name, _)| name == "filter").map(|(_, value)| &**value).collect();
    assert_eq!(filters, ["error", "rate", "delay", "stats"]);
    assert!(rows.contains(&("op".into(), "flush".into())), "{rows:?}");
}
