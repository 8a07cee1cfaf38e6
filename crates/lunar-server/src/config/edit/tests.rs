use super::*;
use crate::build::UnitName;
use crate::config::tests::Folder;
use crate::config::{load, parse_files};
use crate::identity;
use lunar_target::config::DhChapSecret;
use serde_json::json;

const NAME: &str = "iqn.2026-11.org.example:a";
const MAIN: &str = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
    [[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1M\"\n[[target.access]]\ninitiators = [\"iqn.a\"]\n";

/// A configuration with `MAIN` and files of the folder of the API.
fn config(of_api: &[(&str, &str)]) -> (Folder, Config) {
    let folder = Folder::new("edit");
    std::fs::create_dir_all(folder.0.join("lunar.d/api")).unwrap();
    let path = folder.file("lunar.toml", MAIN, 0o644);
    for (name, text) in of_api {
        folder.file(&format!("lunar.d/api/{name}"), text, 0o644);
    }
    let config = load(&path).map_err(|list| list[0].to_string()).unwrap();
    (folder, config)
}

fn keys(value: Value) -> Keys {
    value.as_object().unwrap().clone()
}

fn change(id: ObjectId, action: ObjectAction) -> ObjectChange {
    ObjectChange { id, action, version: None, dry_run: false, transient: false, force: false }
}

fn lun(number: u16) -> ObjectId {
    ObjectId::Lun(NAME.into(), number)
}

fn create(id: ObjectId, value: Value) -> ObjectChange {
    change(id, ObjectAction::Create(keys(value)))
}

/// The configuration after a change.
fn after(config: &Config, change: &ObjectChange) -> Config {
    let edited = edit(config, change).map_err(|e| e.problems[0].to_string()).unwrap();
    let parsed = parse_files(edited.files, &config.sources.whole);
    parsed.map_err(|list| list[0].to_string()).unwrap()
}

/// Kind and fault of a rejected change.
fn rejected(config: &Config, change: &ObjectChange) -> (ControlErrorKind, String) {
    let error = edit(config, change).unwrap_err();
    let folder = format!("{}/", config.sources.whole.parent().unwrap().display());
    (error.kind, error.problems[0].what.replace(&folder, ""))
}

#[test]
fn new_lun_is_one_file_that_reads_back() {
    let (folder, config) = config(&[]);
    let filters = json!([{ "kind": "delay", "read_us": 5 }]);
    let change = create(lun(1), json!({ "backend": "null", "size": "2M", "filters": filters }));
    let edited = edit(&config, &change).map_err(|e| e.problems[0].to_string()).unwrap();
    let [write] = &edited.writes[..] else { panic!("{:?}", edited.writes) };
    let name = "lun-iqn.2026-11.org.example-a-1-6635e753.toml";
    assert_eq!(write.path, folder.0.canonicalize().unwrap().join("lunar.d/api").join(name));
    let new = after(&config, &change);
    assert_eq!(new.targets[0].luns.len(), 2);
    assert_eq!(
        new.sources.document[&lun(1)].keys,
        keys(json!({ "backend": "null", "size": "2M", "filters": filters }))
    );
    assert_eq!(new.sources.document[&lun(1)].source.origin, ObjectOrigin::Api);
}

#[test]
fn object_of_an_administrator_is_not_changed() {
    let (_folder, config) = config(&[]);
    let what = format!("LUN 0 of {NAME} is in lunar.toml line 3, which the API does not change");
    for action in [ObjectAction::Delete, ObjectAction::Replace(Keys::new()), ObjectAction::Merge(Keys::new())]
    {
        assert_eq!(rejected(&config, &change(lun(0), action)), (ControlErrorKind::Conflict, what.clone()));
    }
    let what = format!("LUN 0 of {NAME} exists already, in lunar.toml line 3");
    assert_eq!(rejected(&config, &create(lun(0), json!({}))), (ControlErrorKind::Conflict, what));
}

#[test]
fn absent_objects_and_targets_are_not_found() {
    let (_folder, config) = config(&[]);
    let not_found = |what: &str| (ControlErrorKind::NotFound, what.to_owned());
    let of_other = ObjectId::Lun("iqn.b".into(), 0);
    assert_eq!(rejected(&config, &create(of_other, json!({}))), not_found("target iqn.b does not exist"));
    let absent = change(ObjectId::Disk("d".into()), ObjectAction::Delete);
    assert_eq!(rejected(&config, &absent), not_found("disk d does not exist"));
}

#[test]
fn patch_merges_and_null_removes() {
    let text =
        format!("[[lun]]\ntarget = \"{NAME}\"\nlun = 1\nbackend = \"null\"\nsize = 4096\nvendor = \"A\"\n");
    let (_folder, config) = config(&[("mine.toml", &text)]);
    let patch = ObjectAction::Merge(keys(json!({ "size": 8192, "vendor": null })));
    let edited =
        edit(&config, &change(lun(1), patch.clone())).map_err(|e| e.problems[0].to_string()).unwrap();
    assert!(edited.writes[0].path.ends_with("lunar.d/api/mine.toml"), "the file keeps its name");
    let new = after(&config, &change(lun(1), patch));
    assert_eq!(new.sources.document[&lun(1)].keys, keys(json!({ "backend": "null", "size": 8192 })));
}

#[test]
fn wrong_keys_are_invalid() {
    let (_folder, config) = config(&[]);
    let invalid = |value: Value| {
        let (kind, what) = rejected(&config, &create(lun(1), value));
        assert_eq!(kind, ControlErrorKind::Invalid);
        what
    };
    assert_eq!(invalid(json!({ "lun": 2 })), format!("`lun` of LUN 1 of {NAME} cannot be 2"));
    assert!(
        invalid(json!({ "designators": [null] }))
            .starts_with(&format!("LUN 1 of {NAME} has a value that no key can have"))
    );
    assert!(invalid(json!({ "luns": { "0": null } })).contains("a value that no key can have"));
    assert!(edit(&config, &create(lun(1), json!({ "lun": 1, "target": NAME }))).is_ok());
}

#[test]
fn null_means_that_a_key_is_absent() {
    let (_folder, config) = config(&[]);
    let text = |value: Value| edit(&config, &create(lun(1), value)).unwrap().writes.remove(0).text.unwrap();
    let filters = json!([{ "kind": "delay", "read_us": 5, "write_us": null }]);
    let with_null = json!({ "backend": "null", "size": "2M", "path": null, "filters": filters });
    let filters = json!([{ "kind": "delay", "read_us": 5 }]);
    assert_eq!(text(with_null), text(json!({ "backend": "null", "size": "2M", "filters": filters })));
}

#[test]
fn file_with_several_objects_is_left_to_its_author() {
    let one = |number: u16| {
        format!("[[lun]]\ntarget = \"{NAME}\"\nlun = {number}\nbackend = \"null\"\nsize = 4096\n")
    };
    let (_folder, config) = config(&[("two.toml", &(one(1) + &one(2)))]);
    let what = format!("LUN 1 of {NAME} is in lunar.d/api/two.toml line 1, and so is LUN 2 of {NAME}");
    assert_eq!(rejected(&config, &change(lun(1), ObjectAction::Delete)), (ControlErrorKind::Conflict, what));
}

#[test]
fn target_is_removed_with_its_objects() {
    let (_folder, config) = config(&[]);
    let name = "iqn.2026-11.org.example:b";
    let target = || ObjectId::Target(name.into());
    let config = after(&config, &create(target(), json!({ "alias": "B" })));
    let config =
        after(&config, &create(ObjectId::Lun(name.into(), 0), json!({ "backend": "null", "size": "1M" })));
    let access = create(ObjectId::Access(name.into(), 0), json!({ "initiators": ["iqn.x"] }));
    let config = after(&config, &access);
    assert_eq!(
        (config.targets.len(), config.targets[1].luns.len(), config.targets[1].access.len()),
        (2, 1, 1)
    );
    let removed = edit(&config, &change(target(), ObjectAction::Delete))
        .map_err(|e| e.problems[0].to_string())
        .unwrap();
    assert_eq!(removed.writes.iter().filter(|write| write.text.is_none()).count(), 3);
    // A crash between two files leaves a configuration without a LUN that is open to all.
    for steps in 1..=3 {
        let writes = removed.writes[..steps].iter();
        let transient: TransientFiles = writes.map(|write| (write.path.clone(), None)).collect();
        let files = overlay(config.sources.files.to_vec(), &config.sources.whole, &transient);
        let left = parse_files(files, &config.sources.whole).map_err(|list| list[0].to_string()).unwrap();
        let target = left.targets.iter().find(|target| target.name == name);
        let counts = target.map(|target| (target.luns.len(), target.access.len()));
        assert_eq!(counts, [Some((0, 1)), Some((0, 0)), None][steps - 1], "{steps}");
    }
}

#[test]
fn subsystem_is_removed_with_its_objects() {
    let (folder, config) = config(&[]);
    let secret = DhChapSecret::generate(None).unwrap().to_text();
    folder.file("a.key", secret.as_bytes(), 0o600);
    let [nqn, host] = ["s", "h"].map(|name| format!("nqn.2026-11.org.example:{name}"));
    let subsystem = ObjectId::Subsystem(nqn.clone());
    let secret = || json!({ "secret_file": "a.key" });
    let config = after(&config, &create(subsystem.clone(), secret()));
    let config = after(&config, &create(ObjectId::Host(nqn.clone(), host), secret()));
    let namespace = json!({ "target": NAME, "lun": 0 });
    let config = after(&config, &create(ObjectId::Namespace(nqn.clone(), 3), namespace));
    assert_eq!(config.target(&nqn).map(|one| (one.disks(), one.secrets())), Some((1, 1)));
    let removed = edit(&config, &change(subsystem, ObjectAction::Delete));
    let removed = removed.map_err(|e| e.problems[0].to_string()).unwrap();
    // A crash between two files leaves no namespace that is open to hosts without a secret.
    for (steps, left) in [(1, Some((0, 1))), (2, Some((0, 0))), (3, None)] {
        let writes = removed.writes[..steps].iter();
        let transient: TransientFiles = writes.map(|write| (write.path.clone(), None)).collect();
        let files = overlay(config.sources.files.to_vec(), &config.sources.whole, &transient);
        let parsed = parse_files(files, &config.sources.whole).map_err(|list| list[0].to_string()).unwrap();
        assert_eq!(parsed.target(&nqn).map(|one| (one.disks(), one.secrets())), left, "{steps}");
    }
}

#[test]
fn access_entries_keep_their_order() {
    let (_folder, mut config) = config(&[]);
    for at in 1..=12 {
        let entry = create(ObjectId::Access(NAME.into(), at), json!({ "initiators": [format!("iqn.{at}")] }));
        config = after(&config, &entry);
    }
    let initiators: Vec<_> = config.targets[0].access.iter().map(|rule| rule.initiators[0].clone()).collect();
    let expected: Vec<_> =
        std::iter::once("iqn.a".into()).chain((1..=12).map(|at| format!("iqn.{at}"))).collect();
    assert_eq!(initiators, expected);
    let config = after(&config, &change(ObjectId::Access(NAME.into(), 5), ObjectAction::Delete));
    assert_eq!(config.targets[0].access[5].initiators, ["iqn.6"]);
}

#[test]
fn chap_user_may_have_another_name_than_its_identifier() {
    let (folder, config) = config(&[]);
    let secret = folder.file("secret", "0123456789abcdef", 0o600);
    for (name, expected) in [(None, "alice"), (Some("bob"), "bob")] {
        let mut keys = keys(json!({ "secret_file": secret.display().to_string() }));
        keys.extend(name.map(|name| ("name".to_owned(), name.into())));
        let user = ObjectId::ChapUser("alice".into());
        let new = after(&config, &change(user.clone(), ObjectAction::Create(keys)));
        assert_eq!(new.sources.document[&user].keys["name"], expected);
    }
}

#[test]
fn transient_file_replaces_that_of_the_disk() {
    let text = format!("[[lun]]\ntarget = \"{NAME}\"\nlun = 1\nbackend = \"null\"\nsize = 4096\n");
    let (_folder, config) = config(&[("mine.toml", &text)]);
    let patch = change(lun(1), ObjectAction::Merge(keys(json!({ "size": 8192 }))));
    let edited = edit(&config, &ObjectChange { transient: true, ..patch })
        .map_err(|e| e.problems[0].to_string())
        .unwrap();
    let transient: TransientFiles = edited.writes.into_iter().map(|write| (write.path, write.text)).collect();
    let whole = &config.sources.whole;
    let reloaded = crate::config::load_with(whole, &transient).map_err(|list| list[0].to_string()).unwrap();
    let object = &reloaded.sources.document[&lun(1)];
    assert_eq!((object.source.origin, &object.keys["size"]), (ObjectOrigin::Transient, &json!(8192)));
    let gone = transient.into_keys().map(|path| (path, None)).collect();
    let reloaded = crate::config::load_with(whole, &gone).map_err(|list| list[0].to_string()).unwrap();
    assert!(!reloaded.sources.document.contains_key(&lun(1)));
}

const OTHER: &str = "iqn.2026-11.org.example:b";

/// A configuration with another target, and LUN 1 of the API with these keys.
fn movable(keys: &str) -> (Folder, Config) {
    let lun_0 = "[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = 4096\n";
    let target = format!("[[target]]\nname = \"{OTHER}\"\n{lun_0}");
    let lun = format!("[[lun]]\ntarget = \"{NAME}\"\nlun = 1\n{keys}");
    config(&[("mine.toml", &lun), ("target.toml", &target)])
}

fn moved(number: u16) -> ObjectChange {
    change(lun(1), ObjectAction::Move(ObjectId::Lun(OTHER.into(), number)))
}

#[test]
fn moved_lun_has_the_keys_of_its_identity() {
    for (own, added) in [
        ("", &["serial", "naa"][..]),
        ("serial = \"7\"\n", &["naa"]),
        ("t10_id = \"x\"\n", &["serial", "naa"]),
        ("eui64 = \"0102030405060708\"\n", &["serial"]),
        ("designators = [\"0103000830000000000000aa\"]\n", &["serial"]),
    ] {
        let (_folder, config) = movable(&format!("backend = \"null\"\nsize = 4096\n{own}"));
        let before = (UnitName::Lun(NAME.into(), 1), &config.targets[0].luns[&1]);
        let edited = edit(&config, &moved(9)).map_err(|e| e.problems[0].to_string()).unwrap();
        assert!(edited.writes[1].path.ends_with("mine.toml") && edited.writes[1].text.is_none());
        let new = after(&config, &moved(9));
        let (old, object) = (&config.sources.document[&lun(1)].keys, ObjectId::Lun(OTHER.into(), 9));
        let keys = &new.sources.document[&object].keys;
        assert!(!new.sources.document.contains_key(&lun(1)));
        let keys: Vec<&str> = keys.keys().filter(|key| !old.contains_key(*key)).map(|key| &**key).collect();
        let mut added = added.to_vec();
        added.sort_unstable();
        assert_eq!(keys, added, "{own}");
        let target = new.targets.iter().find(|target| target.name == OTHER).unwrap();
        let [before, after] = [before, (UnitName::Lun(OTHER.into(), 9), &target.luns[&9])]
            .map(|(name, lun)| (identity::identity(&name, lun), lun.identity.clone()));
        assert_eq!(before.0.serial, after.0.serial);
        let seen = |(identity, keys): &(lunar_scsi::LuIdentity, crate::config::IdentityKeys)| {
            keys.descriptors(&identity.vendor, &identity.serial, &identity.naa)
        };
        assert_eq!(seen(&before), seen(&after), "{own}");
    }
}

#[test]
fn lun_moves_only_if_it_can_keep_what_it_is() {
    let (_folder, config) = movable("backend = \"memory\"\nsize = 4096\n");
    let conflict = |change: ObjectChange, what: &str| {
        assert_eq!(rejected(&config, &change), (ControlErrorKind::Conflict, what.to_owned()));
    };
    conflict(moved(0), &format!("LUN 0 of {OTHER} exists already, in lunar.d/api/target.toml line 3"));
    conflict(moved(1), &format!("LUN 1 of {NAME} is memory without `serial`, which has no lasting identity"));
    let what = format!("LUN 1 of {NAME} cannot move until the next start only");
    conflict(ObjectChange { transient: true, ..moved(1) }, &what);
    let what = format!("LUN 0 of {NAME} is in lunar.toml line 3, which the API does not change");
    conflict(ObjectChange { id: lun(0), ..moved(1) }, &what);
    let absent = change(lun(1), ObjectAction::Move(ObjectId::Lun("iqn.c".into(), 0)));
    assert_eq!(rejected(&config, &absent).1, "target iqn.c does not exist");
}

#[test]
fn lun_of_a_disk_moves_without_keys_of_an_identity() {
    let disk = "[[disk]]\nname = \"d\"\nbackend = \"memory\"\nsize = 4096\n";
    let lun_of_disk = format!("[[lun]]\ntarget = \"{NAME}\"\nlun = 1\ndisk = \"d\"\n");
    let (_folder, config) = config(&[("disk.toml", disk), ("mine.toml", &lun_of_disk)]);
    let to = lun(5);
    let new = after(&config, &change(lun(1), ObjectAction::Move(to.clone())));
    assert_eq!(new.sources.document[&to].keys, keys(json!({ "disk": "d" })));
}

#[test]
fn file_names_of_objects_differ() {
    let names = [lun(1), lun(11), ObjectId::Lun(format!("{NAME}-1"), 1), ObjectId::Target(NAME.into())];
    let mut names: Vec<String> = names.iter().map(file_name).collect();
    names.push(file_name(&ObjectId::ChapUser("a/../b".into())));
    names.push(file_name(&ObjectId::ChapUser("a-..-b".into())));
    names.extend([("a-b", "c"), ("a", "b-c")].map(|(a, b)| file_name(&ObjectId::Host(a.into(), b.into()))));
    assert!(names.iter().all(|name| name.len() <= 240 && !name.contains('/')), "{names:?}");
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 8);
    assert!(file_name(&ObjectId::Target("ü".repeat(300))).len() < 240);
}

/// The first initiator of each access entry.
fn entries(config: &Config) -> Vec<String> {
    config.targets[0].access.iter().map(|rule| rule.initiators[0].clone()).collect()
}

/// An insertion before the entry `at`, of an entry for the initiator `iqn.NAME`.
fn insert(at: usize, name: &str) -> ObjectChange {
    let keys = keys(json!({ "initiators": [format!("iqn.{name}")] }));
    change(ObjectId::Access(NAME.into(), at), ObjectAction::Insert(keys))
}

#[test]
fn entry_is_inserted_at_any_place_by_one_file() {
    let (_folder, mut config) = config(&[]);
    let mut expected = vec!["iqn.a".to_owned()];
    // After the entry of the administrator: at the front, in the middle, before the same entry again, and at the end.
    for (n, at) in [1, 1, 1, 2, 3, 3, 7, 1, 1, 4, 9, 10, 12].into_iter().enumerate() {
        let change = insert(at, &n.to_string());
        let writes = edit(&config, &change).map_err(|e| e.problems[0].to_string()).unwrap().writes;
        assert!(writes.len() == 1 && writes[0].loaded.is_none(), "one new file: {writes:?}");
        config = after(&config, &change);
        expected.insert(at, format!("iqn.{n}"));
        assert_eq!(entries(&config), expected);
    }
}

#[test]
fn appended_entry_follows_an_inserted_one() {
    let (_folder, config) = config(&[]);
    let changes = [insert(1, "b"), insert(2, "c"), insert(2, "between")];
    let config = changes.iter().fold(config, |config, change| after(&config, change));
    let delete = |at| change(ObjectId::Access(NAME.into(), at), ObjectAction::Delete);
    let config = [delete(3), delete(1)].iter().fold(config, |config, change| after(&config, change));
    assert_eq!(entries(&after(&config, &insert(2, "last"))), ["iqn.a", "iqn.between", "iqn.last"]);
}

#[test]
fn names_of_inserted_entries_stay_short() {
    let (_folder, mut config) = config(&[]);
    for n in 0..40 {
        config = after(&config, &insert(1, &n.to_string()));
    }
    let longest = config.sources.files.iter().map(|file| file.path.file_name().unwrap().len()).max();
    let name = file_name(&ObjectId::Access(NAME.into(), 1));
    assert_eq!(longest, Some(format!("{name}-000000-500000.toml").len()));
}

#[test]
fn entry_is_not_inserted_before_one_of_an_administrator() {
    let (_folder, config) = config(&[]);
    let (kind, what) = rejected(&config, &insert(0, "b"));
    assert_eq!(kind, ControlErrorKind::Conflict);
    assert_eq!(
        what,
        format!("access entry 0 of {NAME} is in lunar.toml line 7, which the API does not change")
    );
    let none = change(ObjectId::Access("iqn.b".into(), 0), ObjectAction::Insert(Keys::new()));
    assert_eq!(rejected(&config, &none), (ControlErrorKind::NotFound, "target iqn.b does not exist".into()));
}

#[test]
fn entry_beyond_the_end_of_the_list_is_refused() {
    let (_folder, config) = config(&[]);
    let what = format!("access entry 7 of {NAME} cannot be added: the next index is 1");
    let create = create(ObjectId::Access(NAME.into(), 7), json!({}));
    assert_eq!(rejected(&config, &create), (ControlErrorKind::Invalid, what.clone()));
    assert_eq!(rejected(&config, &insert(7, "b")), (ControlErrorKind::Invalid, what));
    assert_eq!(entries(&after(&config, &insert(1, "b"))), ["iqn.a", "iqn.b"], "the end of the list");
}
