use super::super::tests::{Fake, Folder, args, service};
use super::*;
use lunar_admin::{ApplyOptions, Keys, ObjectOrigin};
use serde_json::json;

const NAME: &str = "iqn.2026-11.org.example:a";

fn lun(number: u16) -> ObjectId {
    ObjectId::Lun(NAME.into(), number)
}

fn keys(value: serde_json::Value) -> Keys {
    value.as_object().unwrap().clone()
}

fn null_lun(number: u16) -> ObjectChange {
    let action = ObjectAction::Create(keys(json!({ "backend": "null", "size": "1M" })));
    ObjectChange { id: lun(number), action, version: None, dry_run: false, transient: false, force: false }
}

fn user(secret: &str) -> ObjectChange {
    let action = ObjectAction::Create(keys(json!({ "secret": secret })));
    ObjectChange { id: ObjectId::ChapUser("bob".into()), action, ..null_lun(0) }
}

/// The names of files below the folder of the API.
fn files(folder: &Folder) -> Vec<String> {
    let mut names = Vec::new();
    for folder in [folder.0.join("lunar.d/api"), folder.0.join("lunar.d/api/secrets")] {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files = entries.filter(|entry| entry.path().is_file());
        names.extend(files.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    }
    names.sort();
    names
}

fn failed(response: Response) -> (ControlErrorKind, String) {
    let Response::Failed(error) = response else { panic!("{response:?}") };
    (error.kind, error.problems[0].to_string())
}

fn version(response: Response) -> String {
    let Response::Changed { version, .. } = response else { panic!("{response:?}") };
    version
}

#[test]
fn change_is_applied_saved_and_published() {
    let folder = Folder::new("change");
    let fake = Fake::default();
    let mut service = service(&args(folder.config(1)), &fake);
    let before = service.published.get();
    let changed = version(service.change_object(null_lun(1)));
    let after = service.published.get();
    assert_ne!(before.version, after.version);
    assert_eq!(after.version, changed);
    assert_eq!(after.objects[&lun(1)].source.origin, ObjectOrigin::Api);
    assert_eq!(fake.notes(), ["reload 2"]);
    assert_eq!(files(&folder), ["lun-iqn.2026-11.org.example-a-1-6635e753.toml"]);
    service.reload();
    assert_eq!(service.config.targets[0].luns.len(), 2, "the file is read again");
    let delete = ObjectChange { action: ObjectAction::Delete, ..null_lun(1) };
    version(service.change_object(delete));
    assert!(files(&folder).is_empty());
    assert_eq!(service.config.targets[0].luns.len(), 1);
}

#[test]
fn dry_run_and_invalid_change_leave_no_trace() {
    let folder = Folder::new("dry");
    let fake = Fake::default();
    let mut service = service(&args(folder.config(1)), &fake);
    let before = service.published.get().version.clone();
    for change in [null_lun(1), user("0123456789abcdef")] {
        assert_eq!(version(service.change_object(ObjectChange { dry_run: true, ..change })), before);
    }
    let action = ObjectAction::Create(keys(json!({ "backend": "null", "size": "1M", "sise": 1 })));
    let (kind, what) = failed(service.change_object(ObjectChange { action, ..null_lun(1) }));
    assert_eq!(kind, ControlErrorKind::Invalid);
    assert!(what.contains("unknown key `sise`") && what.contains("did you mean `size`?"), "{what}");
    assert_eq!(failed(service.change_object(user("short"))).0, ControlErrorKind::Invalid);
    assert!(files(&folder).is_empty() && fake.notes().is_empty());
    assert_eq!(service.published.get().version, before);
}

#[test]
fn change_for_another_version_is_stale() {
    let folder = Folder::new("stale");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    let old = service.published.get().version.clone();
    let new = version(service.change_object(null_lun(1)));
    let late = ObjectChange { version: Some(old), ..null_lun(2) };
    assert_eq!(failed(service.change_object(late)).0, ControlErrorKind::Stale);
    version(service.change_object(ObjectChange { version: Some(new), ..null_lun(2) }));
}

#[test]
fn folder_that_cannot_be_written_changes_nothing() {
    let folder = Folder::new("unwritable");
    let fake = Fake::default();
    let mut service = service(&args(folder.config(1)), &fake);
    std::fs::write(folder.0.join("lunar.d"), "a file").unwrap();
    let (kind, what) = failed(service.change_object(null_lun(1)));
    assert_eq!(kind, ControlErrorKind::Conflict);
    assert!(what.contains("cannot write") && what.contains("transient"), "{what}");
    assert!(fake.notes().is_empty());
}

#[test]
fn failed_commit_takes_the_change_back() {
    let folder = Folder::new("commit");
    let fake = Fake::default();
    let mut service = service(&args(folder.config(1)), &fake);
    // A folder in the place of the file: the new file can be staged there, and not renamed.
    let place = folder.0.join("lunar.d/api/lun-iqn.2026-11.org.example-a-1-6635e753.toml/x");
    std::fs::create_dir_all(place).unwrap();
    assert_eq!(failed(service.change_object(null_lun(1))).0, ControlErrorKind::Conflict);
    assert_eq!(fake.notes(), ["reload 2", "reload 1"]);
    assert_eq!(service.config.targets[0].luns.len(), 1);
    assert!(files(&folder).is_empty());
}

#[test]
fn edited_file_is_not_overwritten() {
    let folder = Folder::new("edited");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    version(service.change_object(null_lun(1)));
    let path = folder.0.join("lunar.d/api").join(&files(&folder)[0]);
    let edited = std::fs::read_to_string(&path).unwrap() + "read_only = true\n";
    std::fs::write(&path, &edited).unwrap();
    let patch = || {
        let action = ObjectAction::Merge(keys(json!({ "vendor": "A" })));
        ObjectChange { action, ..null_lun(1) }
    };
    for change in [patch(), ObjectChange { action: ObjectAction::Delete, ..null_lun(1) }] {
        let (kind, what) = failed(service.change_object(change));
        assert_eq!(kind, ControlErrorKind::Conflict);
        assert!(what.contains("has changed since") && what.contains("lunar reload"), "{what}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), edited);
    }
    service.reload();
    version(service.change_object(patch()));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("read_only = true") && text.contains("vendor"), "{text}");
}

#[test]
fn file_that_cannot_be_removed_keeps_its_object() {
    let folder = Folder::new("kept");
    let fake = Fake::default();
    let mut service = service(&args(folder.config(1)), &fake);
    version(service.change_object(null_lun(1)));
    let name = format!(".{}.old", files(&folder)[0]);
    std::fs::create_dir(folder.0.join("lunar.d/api").join(name)).unwrap();
    let delete = ObjectChange { action: ObjectAction::Delete, ..null_lun(1) };
    assert_eq!(failed(service.change_object(delete)).0, ControlErrorKind::Conflict);
    assert_eq!(fake.notes(), ["reload 2"], "no host has seen a change");
    assert_eq!((files(&folder).len(), service.config.targets[0].luns.len()), (1, 2));
}

#[test]
fn transient_object_survives_a_reload_and_no_restart() {
    let folder = Folder::new("transient");
    let fake = Fake::default();
    let mut service = service(&args(folder.config(1)), &fake);
    version(service.change_object(ObjectChange { transient: true, ..null_lun(1) }));
    assert_eq!(service.published.get().objects[&lun(1)].source.origin, ObjectOrigin::Transient);
    service.reload();
    assert_eq!(service.config.targets[0].luns.len(), 2);
    assert!(files(&folder).is_empty());
    // A later permanent change replaces it.
    let patch = ObjectAction::Merge(keys(json!({ "vendor": "A" })));
    version(service.change_object(ObjectChange { action: patch, ..null_lun(1) }));
    assert_eq!(files(&folder).len(), 1);
    service.reload();
    assert_eq!(service.published.get().objects[&lun(1)].source.origin, ObjectOrigin::Api);
}

#[test]
fn secret_is_moved_to_a_file_of_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("secret");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    version(service.change_object(user("0123456789abcdef")));
    let [secret, file] = &files(&folder)[..] else { panic!("{:?}", files(&folder)) };
    let text = std::fs::read_to_string(folder.0.join("lunar.d/api").join(file)).unwrap();
    assert!(!text.contains("0123456789abcdef") && text.contains(secret), "{text}");
    let secret = folder.0.join("lunar.d/api/secrets").join(secret);
    assert_eq!(std::fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o600);
    let action = ObjectAction::Merge(keys(json!({ "secret": "abcdefghijklmnop" })));
    version(service.change_object(ObjectChange { action, ..user("") }));
    assert!(!secret.exists(), "the old secret is removed");
    assert_eq!(files(&folder).len(), 2);
    version(service.change_object(ObjectChange { action: ObjectAction::Delete, ..user("") }));
    assert!(files(&folder).is_empty(), "{:?}", files(&folder));
    let transient = ObjectChange { transient: true, ..user("0123456789abcdef") };
    assert_eq!(failed(service.change_object(transient)).0, ControlErrorKind::Invalid);
}

#[test]
fn transient_removal_keeps_the_secret() {
    let folder = Folder::new("transient-secret");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    version(service.change_object(user("0123456789abcdef")));
    let before = files(&folder);
    let removal = ObjectChange { action: ObjectAction::Delete, transient: true, ..user("") };
    version(service.change_object(removal));
    assert_eq!(files(&folder), before, "the file of the user still names it");
}

/// Creates a CHAP user whose secret is in this file.
fn user_of_file(id: &str, file: &str) -> ObjectChange {
    let action = ObjectAction::Create(keys(json!({ "name": "bob", "secret_file": file })));
    ObjectChange { id: ObjectId::ChapUser(id.into()), action, ..null_lun(0) }
}

#[test]
fn secret_that_another_user_names_is_kept() {
    let folder = Folder::new("shared-secret");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    version(service.change_object(user("0123456789abcdef")));
    let secret = files(&folder)[0].clone();
    // Another spelling of the same path.
    let file = format!("lunar.d/../lunar.d/api/secrets/{secret}");
    version(service.change_object(user_of_file("second", &file)));
    version(service.change_object(ObjectChange { action: ObjectAction::Delete, ..user("") }));
    assert!(files(&folder).contains(&secret), "{:?}", files(&folder));
    service.reload();
    assert_eq!(service.last_reload.map(|last| last.is_success), Some(true));
    version(
        service.change_object(ObjectChange { action: ObjectAction::Delete, ..user_of_file("second", "") }),
    );
    assert!(files(&folder).is_empty(), "the last user removes it: {:?}", files(&folder));
}

#[test]
fn secret_outside_of_the_folder_is_kept() {
    use std::os::unix::fs::{OpenOptionsExt, symlink};
    let folder = Folder::new("foreign-secret");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    let secrets = folder.0.join("lunar.d/api/secrets");
    std::fs::create_dir_all(&secrets).unwrap();
    symlink(&folder.0, secrets.join("link")).unwrap();
    let foreign = folder.0.join("foreign.secret");
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&foreign).unwrap();
    io::Write::write_all(&mut file, b"0123456789abcdef").unwrap();
    for way in ["../../..", "link"] {
        let change = user_of_file("bob", &format!("lunar.d/api/secrets/{way}/foreign.secret"));
        version(service.change_object(change.clone()));
        version(service.change_object(ObjectChange { action: ObjectAction::Delete, ..change }));
        assert!(foreign.exists(), "{way}");
    }
}

#[test]
fn change_waits_for_the_end_of_a_trial() {
    let folder = Folder::new("trial");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    service.try_out(ApplyOptions { confirm_within_s: Some(600), ..Default::default() });
    assert!(service.published.get().confirm_by.is_some());
    let (kind, what) = failed(service.change_object(null_lun(1)));
    assert_eq!(kind, ControlErrorKind::Conflict);
    assert!(what.starts_with("a configuration is on trial\n  hint: run lunar apply --confirm"), "{what}");
    service.confirm();
    assert!(service.published.get().confirm_by.is_none());
    version(service.change_object(null_lun(1)));
}

#[test]
fn last_access_entry_is_kept_unless_forced() {
    let folder = Folder::new("access");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    let entry = |at| ObjectId::Access(NAME.into(), at);
    for at in 0..2 {
        let action = ObjectAction::Create(keys(json!({ "initiators": [format!("iqn.{at}")] })));
        version(service.change_object(ObjectChange { id: entry(at), action, ..null_lun(0) }));
    }
    let delete = |at| ObjectChange { id: entry(at), action: ObjectAction::Delete, ..null_lun(0) };
    version(service.change_object(delete(1)));
    let (kind, what) = failed(service.change_object(delete(0)));
    assert_eq!(kind, ControlErrorKind::Conflict);
    assert!(what.contains("would admit all initiators"), "{what}");
    version(service.change_object(ObjectChange { force: true, ..delete(0) }));
    assert!(service.config.targets[0].access.is_empty());
}

#[test]
fn subsystem_is_not_opened_without_force() {
    let folder = Folder::new("opened");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    let name = "nqn.2026-11.org.example:s";
    let change =
        |action, force| ObjectChange { id: ObjectId::Subsystem(name.into()), action, force, ..null_lun(0) };
    let rules = json!({ "allowed_hosts": ["nqn.2026-11.org.example:a"], "networks": ["192.0.2.0/24"] });
    version(service.change_object(change(ObjectAction::Create(keys(rules.clone())), false)));
    let merge = |keys_of| change(ObjectAction::Merge(keys(keys_of)), false);
    version(service.change_object(merge(json!({ "networks": null }))));
    let (kind, what) = failed(service.change_object(merge(json!({ "allowed_hosts": null }))));
    assert_eq!(kind, ControlErrorKind::Conflict);
    assert!(what.contains("would admit all hosts without `allowed_hosts`"), "{what}");
    // An empty list admits no host, and a read-only subsystem can be open to all.
    version(service.change_object(merge(json!({ "networks": [], "allowed_hosts": null }))));
    let merged = failed(service.change_object(merge(json!({ "networks": null, "read_only": true }))));
    assert_eq!(merged.0, ControlErrorKind::Conflict);
    let open = json!({ "networks": null, "read_only": true });
    version(service.change_object(change(ObjectAction::Merge(keys(open)), true)));
    version(service.change_object(merge(json!({ "read_only": null }))));
    version(service.change_object(merge(json!({ "allowed_hosts": null, "offline": true }))));
    version(service.change_object(merge(rules)));
    version(service.change_object(merge(json!({ "offline": null }))));
    let all = ObjectAction::Replace(keys(json!({})));
    assert_eq!(failed(service.change_object(change(all.clone(), false))).0, ControlErrorKind::Conflict);
    version(service.change_object(change(all, true)));
}

/// The warnings of a change that succeeds.
fn warnings(response: Response) -> Vec<String> {
    let Response::Changed { warnings, .. } = response else { panic!("{response:?}") };
    warnings
}

#[test]
fn change_warns_of_the_faults_that_it_makes() {
    let folder = Folder::new("warnings");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    let entry = |at, value, dry_run| ObjectChange {
        id: ObjectId::Access(NAME.into(), at),
        action: ObjectAction::Insert(keys(value)),
        dry_run,
        ..null_lun(0)
    };
    assert_eq!(warnings(service.change_object(entry(0, json!({ "initiators": ["iqn.a"] }), false))), [""; 0]);
    let all = |at, dry_run| entry(at, json!({}), dry_run);
    for (at, start) in
        [(0, "access entry 1 of iqn.2026-11.org.example:a never applies"), (1, "access entry 1 of ")]
    {
        let lines = warnings(service.change_object(all(at, true)));
        assert!(lines.iter().any(|line| line.starts_with(start)), "{lines:?}");
        let admits = format!("access entry {at} of {NAME} admits every host");
        assert!(lines.iter().any(|line| line.starts_with(&admits)), "{lines:?}");
    }
    assert_eq!(warnings(service.change_object(all(1, false))).len(), 1);
    assert_eq!(warnings(service.change_object(null_lun(1))), [""; 0], "the entry is not new");
    let delete =
        ObjectChange { id: ObjectId::Access(NAME.into(), 0), action: ObjectAction::Delete, ..null_lun(0) };
    assert_eq!(warnings(service.change_object(delete)), [""; 0], "it has only moved");
}

#[test]
fn entry_at_a_place_beyond_the_list_is_refused() {
    let folder = Folder::new("beyond");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    let action = ObjectAction::Create(keys(json!({ "initiators": ["iqn.a"] })));
    let change = ObjectChange { id: ObjectId::Access(NAME.into(), 7), action, ..null_lun(0) };
    let (kind, what) = failed(service.change_object(change));
    assert_eq!(kind, ControlErrorKind::Invalid);
    assert!(what.contains("the next index is 0"), "{what}");
    assert!(files(&folder).is_empty());
}

#[test]
fn change_needs_the_own_configuration() {
    let folder = Folder::new("own");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    let other = folder.0.join("other.toml");
    std::fs::copy(folder.0.join("lunar.toml"), &other).unwrap();
    service.try_out(ApplyOptions { file: Some(other), ..Default::default() });
    let what = failed(service.change_object(null_lun(1))).1;
    assert!(what.contains("other.toml, not that of the server"), "{what}");
    service.reload();
    version(service.change_object(null_lun(1)));
}

/// The keys of an object that the server knows, from its hint for an unknown one.
fn known_keys(source: &str) -> Vec<String> {
    let list = lunar_server::config::parse(source, Path::new("t.toml")).unwrap_err();
    let hints = list.iter().filter_map(|problem| problem.hint.as_deref()?.strip_prefix("known keys: "));
    let mut keys: Vec<String> = hints.flat_map(|hint| hint.split(", ").map(str::to_owned)).collect();
    keys.sort();
    keys
}

/// The keys that the description of the API has for an object, and those that identify it there.
fn described_keys(schema: &str, of_path: &[&str]) -> Vec<String> {
    let document = serde_json::to_value(lunar_api::openapi()).unwrap();
    let properties = document["components"]["schemas"][schema]["properties"].as_object().unwrap();
    let mut keys: Vec<String> = properties.keys().cloned().collect();
    keys.extend(of_path.iter().map(|key| (*key).to_owned()));
    keys.retain(|key| key != "secret");
    keys.sort();
    keys
}

#[test]
fn api_describes_the_keys_that_the_server_knows() {
    let target = format!("[[target]]\nname = \"{NAME}\"\n");
    let subsystem = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:s\"\n";
    let lun = "lun = 0\nbackend = \"null\"\nsize = \"1M\"\n";
    for (source, schema, of_path) in [
        (format!("{target}zzzzzzzz = 1\n"), "TargetKeys", &["name", "lun", "access"][..]),
        (format!("{target}[[target.lun]]\n{lun}zzzzzzzz = 1\n"), "LunKeys", &["lun"]),
        (format!("{target}[[target.access]]\nzzzzzzzz = 1\n"), "AccessKeys", &[]),
        (
            format!("{target}[[disk]]\nname = \"d\"\nbackend = \"null\"\nsize = \"1M\"\nzzzzzzzz = 1\n"),
            "DiskKeys",
            &["name"],
        ),
        (format!("{target}[[chap_user]]\nname = \"d\"\nzzzzzzzz = 1\n"), "ChapUserKeys", &["id"]),
        (
            format!("{target}[[portal_group]]\ntag = 1\nportals = [\"::1\"]\nzzzzzzzz = 1\n"),
            "PortalGroupKeys",
            &["tag"],
        ),
        (format!("{subsystem}zzzzzzzz = 1\n"), "SubsystemKeys", &["nqn", "namespace", "host"]),
        (format!("{subsystem}[[subsystem.host]]\nzzzzzzzz = 1\n"), "HostKeys", &["nqn"]),
    ] {
        assert_eq!(described_keys(schema, of_path), known_keys(&source), "{schema}");
    }
    let mut of_namespace = described_keys("LunKeys", &["target", "lun", "nguid", "uuid"]);
    of_namespace.sort();
    assert_eq!(described_keys("NamespaceKeys", &[]), of_namespace);
}

#[test]
fn object_that_others_name_is_not_removed() {
    let folder = Folder::new("named");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    version(service.change_object(user("0123456789abcdef")));
    let action = ObjectAction::Create(keys(json!({ "chap": ["bob"] })));
    let id = ObjectId::Access(NAME.into(), 0);
    version(service.change_object(ObjectChange { id: id.clone(), action, ..null_lun(0) }));
    for force in [false, true] {
        let delete = ObjectChange { action: ObjectAction::Delete, force, ..user("") };
        let (kind, what) = failed(service.change_object(delete));
        assert_eq!(kind, ControlErrorKind::Conflict);
        assert!(what.contains(&format!("is in use by {id}")), "{what}");
    }
    version(service.change_object(ObjectChange {
        id,
        action: ObjectAction::Delete,
        force: true,
        ..null_lun(0)
    }));
    version(service.change_object(ObjectChange { action: ObjectAction::Delete, ..user("") }));
}

#[test]
fn transient_object_is_removed_without_a_file() {
    let folder = Folder::new("transient-gone");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    version(service.change_object(ObjectChange { transient: true, ..null_lun(1) }));
    version(service.change_object(ObjectChange { action: ObjectAction::Delete, ..null_lun(1) }));
    assert_eq!(service.published.get().objects.get(&lun(1)), None);
    service.reload();
    assert_eq!(service.config.targets[0].luns.len(), 1);
}

/// A LUN with the file `disk` of 1 MiB, and a patch of its size.
fn resized(folder: &Folder, size: &str) -> (ObjectChange, ObjectChange) {
    let path = folder.0.join("disk");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let create = ObjectAction::Create(keys(json!({ "backend": "file", "path": path })));
    let patch = ObjectAction::Merge(keys(json!({ "size": size })));
    (ObjectChange { action: create, ..null_lun(1) }, ObjectChange { action: patch, ..null_lun(1) })
}

#[test]
fn patch_of_size_grows_the_file_and_never_shrinks_it() {
    let folder = Folder::new("grow");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    let (create, patch) = resized(&folder, "2MiB");
    let length = || folder.0.join("disk").metadata().unwrap().len();
    version(service.change_object(create));
    version(service.change_object(ObjectChange { dry_run: true, ..patch.clone() }));
    assert_eq!(length(), 1 << 20);
    version(service.change_object(patch.clone()));
    assert_eq!(length(), 2 << 20);
    let action = ObjectAction::Merge(keys(json!({ "size": "1MiB" })));
    let before = service.published.get().version.clone();
    let (kind, what) = failed(service.change_object(ObjectChange { action, ..patch.clone() }));
    assert_eq!(kind, ControlErrorKind::Conflict);
    assert!(what.contains("disk cannot shrink to the given size: it has 2 MiB, more than 1 MiB"), "{what}");
    assert_eq!((length(), &service.published.get().version), (2 << 20, &before));
    // A patch of another key leaves the size of the file alone, whatever the file says.
    std::fs::OpenOptions::new().write(true).open(folder.0.join("disk")).unwrap().set_len(3 << 20).unwrap();
    let action = ObjectAction::Merge(keys(json!({ "thin": false })));
    version(service.change_object(ObjectChange { action, ..patch }));
    assert_eq!(length(), 3 << 20);
}

fn moved(number: u16) -> ObjectChange {
    ObjectChange { action: ObjectAction::Move(lun(number)), ..null_lun(1) }
}

/// The LUNs of the target.
fn luns(service: &Service<Fake>) -> Vec<u16> {
    service.config.targets[0].luns.keys().copied().collect()
}

#[test]
fn moved_lun_is_at_its_new_place_after_a_restart() {
    let folder = Folder::new("move");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    version(service.change_object(null_lun(1)));
    let before = service.config.targets[0].luns[&1].clone();
    version(service.change_object(ObjectChange { dry_run: true, ..moved(5) }));
    assert_eq!(luns(&service), [0, 1]);
    version(service.change_object(moved(5)));
    assert_eq!((luns(&service), files(&folder).len()), (vec![0, 5], 1));
    assert!(service.config.targets[0].luns[&5].serial.is_some() && before.serial.is_none());
    // The serial number of the former place belongs to the moved LUN.
    let (kind, what) = failed(service.change_object(null_lun(1)));
    assert!(kind == ControlErrorKind::Conflict && what.contains("has the same serial number"), "{what}");
    // A transient LUN moves in memory only.
    let action = ObjectAction::Create(keys(json!({ "backend": "null", "size": "1M", "serial": "7" })));
    version(service.change_object(ObjectChange { transient: true, action, ..null_lun(1) }));
    version(service.change_object(ObjectChange { transient: true, ..moved(7) }));
    service.reload();
    assert_eq!((luns(&service), files(&folder).len()), (vec![0, 5, 7], 1));
    drop(service);
    let service = super::super::tests::service(&args(folder.0.join("lunar.toml")), &Fake::default());
    assert_eq!(luns(&service), [0, 5]);
}

#[test]
fn crash_during_a_move_leaves_the_lun_at_one_place() {
    let folder = Folder::new("move-crash");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    version(service.change_object(null_lun(1)));
    let whole = service.config.sources.whole.clone();
    let writes = config::edit(&service.config, &moved(5)).unwrap().writes;
    drop(service);
    for steps in 0..=writes.len() + 1 {
        let journal = rollback::journal(&whole, &writes).unwrap();
        commit(staged(&writes[..steps.min(writes.len())]).unwrap()).unwrap();
        let is_whole = steps > writes.len();
        if is_whole {
            journal.remove().unwrap();
        }
        // The lock of the journal ends with the process.
        drop(journal);
        let service = super::super::tests::service(&args(whole.clone()), &Fake::default());
        assert_eq!(luns(&service), [0, if is_whole { 5 } else { 1 }], "{steps}");
        assert!(!files(&folder).contains(&".trial".to_owned()));
    }
}

#[test]
fn move_that_cannot_be_written_changes_nothing() {
    let folder = Folder::new("move-failed");
    let fake = Fake::default();
    let mut service = service(&args(folder.config(1)), &fake);
    version(service.change_object(null_lun(1)));
    let before = files(&folder);
    let new = config::file_name(&lun(5));
    // A folder in the place of the file: the new file can be staged there, and not renamed.
    let place = folder.0.join("lunar.d/api").join(format!("{new}.toml"));
    std::fs::create_dir_all(place.join("x")).unwrap();
    assert_eq!(failed(service.change_object(moved(5))).0, ControlErrorKind::Conflict);
    assert_eq!((luns(&service), files(&folder)), (vec![0, 1], before));
    std::fs::remove_dir_all(&place).unwrap();
    version(service.change_object(moved(5)));
    assert_eq!((luns(&service), files(&folder)), (vec![0, 5], vec![format!("{new}.toml")]));
}

#[test]
fn file_that_cannot_grow_leaves_the_lun_unchanged() {
    let folder = Folder::new("nogrow");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    // More than any file system of Linux holds.
    let (create, patch) = resized(&folder, "8191PiB");
    version(service.change_object(create));
    let (kind, what) = failed(service.change_object(patch));
    assert_eq!(kind, ControlErrorKind::Conflict, "{what}");
    assert!(what.contains("disk to 8191 PiB: "), "{what}");
    assert_eq!(service.published.get().objects[&lun(1)].keys.get("size"), None);
}
