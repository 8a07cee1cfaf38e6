use super::super::tests::{Fake, Folder, args, service};
use super::*;
use lunar_admin::{ApplyOptions, ObjectAction, ObjectChange, Response};
use lunar_server::config;
use std::path::PathBuf;

const NAME: &str = "iqn.2026-11.org.example:a";
const USER: &str = "in use by iqn.2026-11.org.example:host at 192.0.2.1:1000";

/// A server with two LUNs that a host uses.
fn used(folder: &Folder) -> Service<Fake> {
    let fake = Fake::default();
    fake.log_in();
    service(&args(folder.config(2)), &fake)
}

fn apply(service: &mut Service<Fake>, options: ApplyOptions) -> Result<Vec<String>, String> {
    match service.try_out(options) {
        Response::Changed { warnings, .. } => Ok(warnings),
        Response::Failed(error) => {
            assert_eq!(error.kind, ControlErrorKind::Conflict);
            Err(error.problems[0].to_string())
        }
        other => panic!("{other:?}"),
    }
}

fn luns(service: &Service<Fake>) -> usize {
    service.config.targets[0].luns.len()
}

/// Another file: that of the server, with a text replaced.
fn other(folder: &Folder, from: &str, to: &str) -> ApplyOptions {
    let text = std::fs::read_to_string(folder.0.join("lunar.toml")).unwrap();
    assert!(text.contains(from), "{text}");
    let file = folder.0.join("other.toml");
    std::fs::write(&file, text.replace(from, to)).unwrap();
    ApplyOptions { file: Some(file), ..Default::default() }
}

const LUN_1: &str = "[[target.lun]]\nlun = 1\nbackend = \"null\"\nsize = \"1G\"\n";

#[test]
fn apply_that_takes_a_lun_in_use_needs_force() {
    let folder = Folder::new("taken");
    let mut service = used(&folder);
    let without = other(&folder, LUN_1, "");
    for options in [
        without.clone(),
        ApplyOptions { confirm_within_s: Some(600), ..without.clone() },
        ApplyOptions { dry_run: true, ..without.clone() },
    ] {
        let refused = apply(&mut service, options).unwrap_err();
        let start = format!("LUN 1 of {NAME} is {USER}\n  hint: log the hosts out first, or use --force");
        assert!(refused.starts_with(&start), "{refused}");
        assert_eq!((luns(&service), service.trial.confirm_by()), (2, None));
    }
    apply(&mut service, ApplyOptions { dry_run: true, force: true, ..without.clone() }).unwrap();
    assert_eq!(luns(&service), 2);
    apply(&mut service, ApplyOptions { force: true, ..without }).unwrap();
    assert_eq!(luns(&service), 1);
}

#[test]
fn another_medium_or_identity_of_a_lun_in_use_needs_force() {
    let folder = Folder::new("another");
    let mut service = used(&folder);
    let lun = format!("LUN 1 of {NAME} is {USER}");
    for changed in [
        LUN_1.replace("null", "memory").replace("1G", "1M"),
        LUN_1.to_owned() + "serial = \"9\"\n",
        LUN_1.to_owned() + "eui64 = \"0x0011223344556677\"\n",
        LUN_1.replace("lun = 1", "lun = 2"),
    ] {
        let options = other(&folder, LUN_1, &changed);
        let refused = apply(&mut service, ApplyOptions { dry_run: true, ..options }).unwrap_err();
        assert!(refused.starts_with(&lun), "{refused}");
    }
    let harmless = LUN_1.replace("1G", "2G") + "read_only = true\n";
    let options = other(&folder, LUN_1, &harmless);
    apply(&mut service, options).unwrap();
    let options = other(&folder, NAME, "iqn.2026-11.org.example:b");
    let refused = apply(&mut service, options).unwrap_err();
    assert!(refused.starts_with(&format!("target {NAME} is {USER}")), "{refused}");
}

#[test]
fn portal_in_use_is_named_unless_its_target_is_lost() {
    let folder = Folder::new("portal");
    let mut service = used(&folder);
    let name = format!("name = \"{NAME}\"\n");
    let moved = |to: &str| {
        let text = std::fs::read_to_string(folder.0.join("lunar.toml")).unwrap();
        let group = "[[portal_group]]\ntag = 5\nportals = [\"127.0.0.1:3333\"]\n";
        let file = folder.0.join("other.toml");
        std::fs::write(&file, format!("{group}{}", text.replace(&name, to))).unwrap();
        ApplyOptions { file: Some(file), ..Default::default() }
    };
    let refused = apply(&mut service, moved(&name)).unwrap_err();
    assert!(
        refused.starts_with(&format!("portal 192.0.2.9:3260 of portal group 1 is {USER}\n")),
        "{refused}"
    );
    let refused = apply(&mut service, moved("name = \"iqn.2026-11.org.example:b\"\n")).unwrap_err();
    assert!(refused.starts_with(&format!("target {NAME} is {USER}\n")), "{refused}");
    let options = other(&folder, &name, &format!("{name}relative_ports = {{ 1 = 2 }}\n"));
    let refused = apply(&mut service, options).unwrap_err();
    assert!(
        refused.starts_with(&format!("portal 192.0.2.9:3260 of portal group 1 is {USER}\n")),
        "{refused}"
    );
    apply(&mut service, ApplyOptions { force: true, ..moved(&name) }).unwrap();
}

#[test]
fn delete_and_apply_have_the_same_error() {
    let folder = Folder::new("same");
    let mut service = used(&folder);
    let api = folder.0.join("lunar.d/api");
    std::fs::create_dir_all(&api).unwrap();
    let lun = LUN_1.replace("target.", "").replace("lun = 1", "lun = 7") + &format!("target = \"{NAME}\"\n");
    std::fs::write(api.join("lun.toml"), lun).unwrap();
    service.reload();
    let id = ObjectId::Lun(NAME.into(), 7);
    let delete = |force| {
        let action = ObjectAction::Delete;
        ObjectChange { id: id.clone(), action, version: None, dry_run: false, transient: false, force }
    };
    let Response::Failed(error) = service.change_object(delete(false)) else { panic!("removed") };
    std::fs::rename(api.join("lun.toml"), api.join("kept")).unwrap();
    let refused = apply(&mut service, ApplyOptions::default()).unwrap_err();
    assert_eq!(error.problems[0].to_string(), refused);
    std::fs::rename(api.join("kept"), api.join("lun.toml")).unwrap();
    assert!(matches!(service.change_object(delete(true)), Response::Changed { .. }));
    assert_eq!(luns(&service), 2);
}

#[test]
fn signal_and_rollback_of_a_trial_ask_for_nothing() {
    let folder = Folder::new("unasked");
    let mut service = used(&folder);
    let more = other(&folder, LUN_1, &(LUN_1.to_owned() + &LUN_1.replace("lun = 1", "lun = 2")));
    apply(&mut service, ApplyOptions { confirm_within_s: Some(600), ..more }).unwrap();
    assert_eq!(luns(&service), 3);
    assert_eq!(service.roll_back(), Response::Done("rolled back".into()));
    assert_eq!(luns(&service), 2);
    folder.config(1);
    let new = config::load(&folder.0.join("lunar.toml")).unwrap();
    assert_eq!(service.taken(&new).len(), 1);
    service.reload();
    assert_eq!(luns(&service), 1);
}

#[test]
fn many_luns_in_use_are_counted() {
    let folder = Folder::new("many");
    let fake = Fake::default();
    fake.log_in();
    let mut service = service(&args(folder.config(13)), &fake);
    folder.config(1);
    let refused = apply(&mut service, ApplyOptions::default()).unwrap_err();
    assert_eq!(refused.matches(USER).count(), MAX_SHOWN);
    assert!(refused.contains("; 2 more are in use\n"), "{refused}");
}

#[test]
fn objects_that_another_file_lacks_are_counted() {
    let folder = Folder::new("left-out");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    let add = |number: u16, transient| ObjectChange {
        id: ObjectId::Lun(NAME.into(), number),
        action: ObjectAction::Create(
            serde_json::json!({ "backend": "null", "size": "1M" }).as_object().unwrap().clone(),
        ),
        version: None,
        dry_run: false,
        transient,
        force: false,
    };
    assert!(matches!(service.change_object(add(1, false)), Response::Changed { .. }));
    assert!(matches!(service.change_object(add(2, true)), Response::Changed { .. }));
    let own = ApplyOptions { file: Some(folder.0.join("lunar.toml")), ..Default::default() };
    assert!(apply(&mut service, own).unwrap().is_empty());
    let file: PathBuf = folder.0.join("other.toml");
    std::fs::copy(folder.0.join("lunar.toml"), &file).unwrap();
    for dry_run in [true, false] {
        let options = ApplyOptions { file: Some(file.clone()), dry_run, ..Default::default() };
        let warnings = apply(&mut service, options).unwrap();
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        let start = format!("2 objects of the API are not in {}, ", file.display());
        assert!(warning.starts_with(&start) && warning.contains("other.d/api; hint: "), "{warning}");
    }
    assert_eq!(luns(&service), 1);
}

#[test]
fn other_memory_disk_at_a_number_in_use_needs_force() {
    let folder = Folder::new("memory-disks");
    let fake = Fake::default();
    fake.log_in();
    let disks =
        ["a", "b"].map(|name| format!("[[disk]]\nname = \"{name}\"\nbackend = \"memory\"\nsize = \"1M\"\n"));
    let path = folder.config(2);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(LUN_1), "{text}");
    let text = text.replace(LUN_1, "[[target.lun]]\nlun = 1\ndisk = \"a\"\n");
    std::fs::write(&path, text + &disks.concat()).unwrap();
    let mut service = service(&args(path), &fake);
    let exchanged = other(&folder, "disk = \"a\"", "disk = \"b\"");
    let refused = apply(&mut service, exchanged.clone()).unwrap_err();
    assert!(refused.starts_with(&format!("LUN 1 of {NAME} is {USER}")), "{refused}");
    apply(&mut service, ApplyOptions { force: true, ..exchanged }).unwrap();
}

#[test]
fn other_block_size_of_a_lun_in_use_needs_force() {
    let folder = Folder::new("block-size");
    let mut service = used(&folder);
    let resized = other(&folder, LUN_1, &format!("{LUN_1}block_size = 4096\n"));
    let refused = apply(&mut service, resized.clone()).unwrap_err();
    assert!(refused.starts_with(&format!("LUN 1 of {NAME} is {USER}")), "{refused}");
    apply(&mut service, ApplyOptions { force: true, ..resized }).unwrap();
}

#[test]
fn change_of_access_names_the_sessions_that_it_ends() {
    let folder = Folder::new("excluded");
    let mut service = used(&folder);
    let entry = |initiator: &str, dry_run| ObjectChange {
        id: ObjectId::Access(NAME.into(), 0),
        action: ObjectAction::Insert(
            serde_json::from_value(serde_json::json!({ "initiators": [initiator] })).unwrap(),
        ),
        version: None,
        dry_run,
        transient: false,
        force: false,
    };
    let mut warnings = |change| match service.change_object(change) {
        Response::Changed { warnings, .. } => warnings,
        other => panic!("{other:?}"),
    };
    let line = "1 session ends, because the rules of access exclude the host: iqn.2026-11.org.example:host at 192.0.2.1:1000";
    assert_eq!(warnings(entry("iqn.2026-11.org.example:other", true)), [line]);
    assert_eq!(warnings(entry("iqn.2026-11.org.example:host", false)), [""; 0]);
    assert_eq!(warnings(entry("iqn.2026-11.org.example:other", false)), [""; 0], "the other entry admits it");
}
