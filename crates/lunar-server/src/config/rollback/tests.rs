use super::*;
use crate::config::tests::Folder;
use crate::config::{TransientFiles, load, load_with, shown};

const NAME: &str = "iqn.2026-11.org.example:a";
const MAIN: &str = "[session]\nnop_interval_s = 5\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
    [[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1M\"\n[[target.access]]\ninitiators = [\"iqn.0\"]\n";

fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    std::fs::create_dir_all(folder.0.join("lunar.d/api")).unwrap();
    folder.file("lunar.toml", MAIN, 0o644);
    folder
}

fn lun(number: u16, size: &str) -> String {
    format!("[[lun]]\ntarget = \"{NAME}\"\nlun = {number}\nbackend = \"null\"\nsize = \"{size}\"\n")
}

fn entry(initiator: &str) -> String {
    format!("[[access]]\ntarget = \"{NAME}\"\ninitiators = [\"{initiator}\"]\n")
}

fn loaded(folder: &Folder) -> Config {
    load(&folder.0.join("lunar.toml")).map_err(|list| list[0].to_string()).unwrap()
}

/// The tree of the files.
fn tree_of(folder: &Folder) -> String {
    "# {}\n".to_owned() + &shown(&loaded(folder).sources)
}

fn back(config: &Config, text: &str) -> Result<TreeRollback, Vec<String>> {
    let faults = |error: ControlError| error.problems.iter().map(ToString::to_string).collect();
    roll_back(config, text, Path::new("tree.toml")).map_err(faults)
}

/// Returns to a tree, writes its files, and checks that the configuration is as at the time of the tree.
fn restored(folder: &Folder, text: &str) -> TreeRollback {
    let rollback = back(&loaded(folder), text).unwrap();
    let whole = folder.0.canonicalize().unwrap().join("lunar.toml");
    let new = crate::config::parse_files(rollback.files.clone(), &whole).unwrap();
    rollback.check(&new).map_err(|e| e.problems[0].to_string()).unwrap();
    for FileWrite { path, text, .. } in &rollback.writes {
        match text {
            Some(text) => std::fs::write(path, text).unwrap(),
            None => std::fs::remove_file(path).unwrap(),
        }
    }
    let old = tree(text, Path::new("tree.toml"), &whole).unwrap();
    let now = tree(&shown(&loaded(folder).sources), &whole, &whole).unwrap();
    assert_eq!(crate::diff(&old, &now), [], "both without secrets");
    rollback
}

#[test]
fn objects_of_the_api_come_change_and_go() {
    let folder = folder("rollback");
    folder.file("lunar.d/api/one.toml", lun(1, "1M"), 0o600);
    folder.file("lunar.d/api/two.toml", lun(2, "2M"), 0o600);
    folder.file("lunar.d/api/access-1.toml", entry("iqn.1"), 0o600);
    folder.file("lunar.d/api/access-2.toml", entry("iqn.2"), 0o600);
    let text = tree_of(&folder);
    assert!(back(&loaded(&folder), &text).unwrap().writes.is_empty(), "nothing differs");
    std::fs::remove_file(folder.0.join("lunar.d/api/one.toml")).unwrap();
    folder.file("lunar.d/api/two.toml", lun(2, "3M"), 0o600);
    folder.file("lunar.d/api/three.toml", lun(3, "1M"), 0o600);
    std::fs::remove_file(folder.0.join("lunar.d/api/access-1.toml")).unwrap();
    let rollback = restored(&folder, &text);
    assert_eq!(rollback.removed, [ObjectId::Lun(NAME.into(), 3)]);
    let names: Vec<String> = rollback
        .writes
        .iter()
        .map(|write| write.path.file_name().unwrap().to_string_lossy().into())
        .collect();
    let [lun_1, two, three, first, second] = &names[..] else { panic!("{names:?}") };
    assert!(lun_1.starts_with("lun-iqn.2026-11.org.example-a-1-"), "{names:?}");
    assert_eq!([two, three, first], ["two.toml", "three.toml", "access-2.toml"]);
    assert!(second.starts_with("access-iqn.") && second.ends_with("-000001.toml"), "{names:?}");
}

#[test]
fn target_and_all_its_objects_return() {
    let folder = folder("rollback-target");
    let name = "iqn.2026-11.org.example:b";
    let of = |text: String| text.replace(NAME, name);
    folder.file("ann.secret", "twelve characters", 0o600);
    let user = "[[chap_user]]\nname = \"ann\"\nsecret_file = \"ann.secret\"\n";
    for (file, text) in [
        ("t", format!("[[target]]\nname = \"{name}\"\nalias = \"B\"\n")),
        ("l", of(lun(7, "1M"))),
        ("a", of(entry("iqn.9"))),
        ("u", user.to_owned()),
        ("d", "[[disk]]\nname = \"d\"\nbackend = \"null\"\nsize = \"1M\"\n".to_owned()),
        ("p", "[[portal_group]]\ntag = 4\nportals = [\"127.0.0.1:9999\"]\n".to_owned()),
    ] {
        folder.file(&format!("lunar.d/api/{file}.toml"), text, 0o600);
    }
    let text = tree_of(&folder);
    assert!(!text.contains("twelve"), "{text}");
    std::fs::remove_dir_all(folder.0.join("lunar.d/api")).unwrap();
    std::fs::create_dir(folder.0.join("lunar.d/api")).unwrap();
    assert_eq!(restored(&folder, &text).writes.len(), 6);
}

#[test]
fn difference_in_a_file_of_an_administrator_is_rejected() {
    let folder = folder("rollback-admin");
    let text = tree_of(&folder);
    let now = MAIN.replace("= 5", "= 6").replace("1M", "2M").replace("iqn.0", "iqn.x");
    folder.file("lunar.toml", now, 0o644);
    folder.file("lunar.d/more.toml", "[limits]\nsessions = 9\n", 0o644);
    let faults = back(&loaded(&folder), &text).unwrap_err();
    let main = folder.0.canonicalize().unwrap().join("lunar.toml").display().to_string();
    let own = "and the API does not change this file\n  hint: edit the file and run lunar reload, or move the object \
        with lunar adopt";
    let more = main.replace("lunar.toml", "lunar.d/more.toml");
    assert_eq!(
        faults,
        [
            format!("{more}:1:1: `limits` differs from the tree, {own}"),
            format!("{main}:2:1: `session.nop_interval_s` differs from the tree, {own}"),
            format!("{main}:5:1: LUN 0 of {NAME} differs from the tree, {own}"),
            format!("{main}:9:1: access entry 0 of {NAME} differs from the tree, {own}"),
        ]
    );
}

#[test]
fn object_that_an_administrator_removed_is_rejected() {
    let folder = folder("rollback-gone");
    folder.file("lunar.d/more.toml", lun(1, "1M"), 0o644);
    folder.file("lunar.toml", MAIN.replace("= 5", "= 5\nnop_timeout_s = 7"), 0o644);
    let text = tree_of(&folder);
    folder.file("lunar.toml", MAIN, 0o644);
    std::fs::remove_file(folder.0.join("lunar.d/more.toml")).unwrap();
    let faults = back(&loaded(&folder), &text).unwrap_err();
    let base = folder.0.canonicalize().unwrap().display().to_string();
    let was = "was here, in a file that the API does not change\n  hint: add it to the file again, and run lunar reload";
    assert_eq!(
        faults,
        [
            format!("{base}/lunar.toml:1:1: `session.nop_timeout_s` {was}"),
            format!("{base}/lunar.d/more.toml:1:1: LUN 1 of {NAME} {was}"),
        ]
    );
}

#[test]
fn adopted_object_can_return_to_its_keys() {
    let folder = folder("rollback-adopted");
    let text = tree_of(&folder);
    let (main, _) = MAIN.split_once("[[target.lun]]").unwrap();
    folder.file("lunar.toml", main.to_owned() + "[[target.access]]\ninitiators = [\"iqn.0\"]\n", 0o644);
    folder.file("lunar.d/api/zero.toml", lun(0, "9M"), 0o600);
    let rollback = restored(&folder, &text);
    assert_eq!(rollback.writes.len(), 1);
}

#[test]
fn transient_object_returns_as_transient() {
    let folder = folder("rollback-transient");
    let path = folder.0.join("lunar.toml");
    let api = folder.0.canonicalize().unwrap().join("lunar.d/api");
    let file = api.join("one.toml");
    let transient = TransientFiles::from([(file.clone(), Some(lun(1, "1M")))]);
    let with = load_with(&path, &transient).unwrap();
    let text = "# {}\n".to_owned() + &shown(&with.sources);
    let rollback = back(&loaded(&folder), &text).unwrap();
    assert!(rollback.writes.is_empty());
    assert_eq!(rollback.transient.len(), 1);
    assert!(rollback.files.last().unwrap().is_transient);
    // A permanent object becomes permanent again.
    std::fs::write(&file, lun(1, "1M")).unwrap();
    let text = tree_of(&folder);
    let rollback = back(&load_with(&path, &transient).unwrap(), &text).unwrap();
    assert_eq!((rollback.writes.len(), rollback.transient.len()), (1, 0));
    assert!(rollback.files.iter().all(|file| !file.is_transient));
}

#[test]
fn file_with_several_objects_is_not_rewritten() {
    let folder = folder("rollback-several");
    folder.file("lunar.d/api/both.toml", lun(1, "1M") + &lun(2, "1M"), 0o600);
    let text = tree_of(&folder);
    folder.file("lunar.d/api/both.toml", lun(1, "1M") + &lun(2, "2M"), 0o600);
    let faults = back(&loaded(&folder), &text).unwrap_err();
    assert_eq!(faults.len(), 1, "{faults:?}");
    let fault =
        format!("both.toml:6:1: LUN 2 of {NAME} differs from the tree, and the file has other objects too");
    assert!(faults[0].contains(&fault), "{faults:?}");
}

#[test]
fn tree_of_another_version_is_reported_with_its_line() {
    let folder = folder("rollback-version");
    let text = tree_of(&folder) + "\n# x\n[later]\nkey = 1\n";
    let faults = back(&loaded(&folder), &text).unwrap_err();
    assert!(faults[0].starts_with("tree.toml:") && faults[0].contains("later"), "{faults:?}");
}

#[test]
fn password_of_a_router_is_no_difference() {
    let folder = folder("rollback-password");
    let router = "[router.r.upstream.a]\nurls = [\"iscsi://bob%hidden@192.0.2.1/iqn.x:t\"]\n\
        [[router.r.target]]\nname = \"iqn.2026-11.org.example:r\"\nmap = \"lun\"\n\
        access = \"all\"\n[[router.r.target.lun]]\nlun = 0\nfrom = 0\nupstream = \"a\"\n";
    folder.file("lunar.d/router.toml", router, 0o600);
    let text = tree_of(&folder);
    assert!(!text.contains("hidden"), "{text}");
    folder.file("lunar.d/api/one.toml", lun(1, "1M"), 0o600);
    assert_eq!(restored(&folder, &text).removed, [ObjectId::Lun(NAME.into(), 1)]);
}
