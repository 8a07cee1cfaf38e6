use crate::config::tests::Folder;
use crate::config::{Config, load};
use std::path::Path;

const MAIN: &str = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\
    [[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1M\"\n\
    [[target.access]]\ninitiators = [\"iqn.a\"]\n[access]\nlab = {}\n";
const LUN: &str =
    "[[lun]]\ntarget = \"iqn.2026-11.org.example:a\"\nlun = 1\nbackend = \"null\"\nsize = 4096\n";

/// Writes the files below a new folder, and loads `lunar.toml` there. Faults are shown without the folder.
fn loaded(files: &[(&str, &str)]) -> Result<Config, Vec<String>> {
    let folder = Folder::new("drop-ins");
    for (name, text) in files {
        let path = folder.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let shown = |problem: &crate::Diagnostic| {
        problem.to_string().replace(&format!("{}/", folder.0.display()), "").replace("\n  hint:", ";")
    };
    load(&folder.0.join("lunar.toml")).map_err(|list| list.iter().map(shown).collect())
}

#[test]
fn drop_ins_append_in_name_order() {
    let target = |name: &str| format!("[[target]]\nname = \"iqn.2026-11.org.example:{name}\"\n");
    let (b, c, d) = (target("b"), target("c"), target("d"));
    let config = loaded(&[
        ("lunar.toml", MAIN),
        ("lunar.d/api/0.toml", &d),
        ("lunar.d/20.toml", &c),
        ("lunar.d/10.toml", &b),
        ("lunar.d/.10.toml", "broken"),
        ("lunar.d/10.toml.bak", "broken"),
    ]);
    let names: Vec<_> = config.unwrap().targets.into_iter().map(|target| target.name).collect();
    assert_eq!(names, ["a", "b", "c", "d"].map(|name| format!("iqn.2026-11.org.example:{name}")));
}

#[test]
fn drop_in_extends_a_target_of_another_file() {
    let more = format!(
        "{LUN}[[access]]\ntarget = \"iqn.2026-11.org.example:a\"\ninitiators = [\"iqn.b\"]\nluns = [1]\n"
    );
    let config = loaded(&[("lunar.toml", MAIN), ("lunar.d/more.toml", &more)]).unwrap();
    let target = &config.targets[0];
    assert_eq!(target.luns.keys().collect::<Vec<_>>(), [&0, &1]);
    // The entry of the drop-in follows that of the target, so the first match is still the target's own.
    let initiators: Vec<_> = target.access.iter().map(|rule| &*rule.initiators[0]).collect();
    assert_eq!(initiators, ["iqn.a", "iqn.b"]);
    assert_eq!(config.access_lists, ["lab"]);
}

#[test]
fn drop_in_without_a_known_target_is_an_error() {
    let unknown = LUN.replace("example:a", "example:b");
    let without = LUN.replace("target = ", "targt = ");
    for (text, expected) in [
        (
            &*unknown,
            "lunar.d/a.toml:2:10: unknown target \"iqn.2026-11.org.example:b\"; did you mean \"iqn.2026-11.org.example:a\"?",
        ),
        (
            &without,
            "lunar.d/a.toml:1:1: [[lun]] has no `target`; add target = \"iqn.2026-11.org.example:disks\"",
        ),
        (
            "lun = [1]\n",
            "lunar.d/a.toml:1:8: `lun` must be a list of tables; write [[lun]] on a separate line",
        ),
    ] {
        assert_eq!(loaded(&[("lunar.toml", MAIN), ("lunar.d/a.toml", text)]).unwrap_err(), [expected]);
    }
}

#[test]
fn key_of_two_files_names_both_places() {
    let problems = loaded(&[
        ("lunar.toml", &format!("server.cores = 1\n{MAIN}")),
        ("lunar.d/a.toml", "[server]\ncores = 2\nstate_dir = \"s\"\n"),
        ("lunar.d/b.toml", LUN),
        ("lunar.d/c.toml", LUN),
    ]);
    assert_eq!(
        problems.unwrap_err(),
        [
            "lunar.d/a.toml:2:1: key `cores` is given twice; the first is at lunar.toml:1:8; remove one of them",
            "lunar.d/c.toml:3:7: LUN 1 is given twice; the first is at lunar.d/b.toml:3:7; change or remove one of them",
        ]
    );
}

#[test]
fn faults_of_all_files_are_reported() {
    let problems =
        loaded(&[("lunar.toml", MAIN), ("lunar.d/a.toml", "x"), ("lunar.d/b.toml", "[server]\ny = = 1\n")]);
    let places: Vec<_> = problems.unwrap_err().iter().map(|fault| fault[..18].to_owned()).collect();
    assert_eq!(places, ["lunar.d/a.toml:1:2", "lunar.d/b.toml:2:5"]);
}

#[test]
fn relative_path_of_a_drop_in_starts_beside_the_main_file() {
    let lun = "[[lun]]\ntarget = \"iqn.2026-11.org.example:a\"\nlun = 1\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"1M\"\n";
    let config = loaded(&[("lunar.toml", MAIN), ("lunar.d/a.toml", lun)]).unwrap();
    let shown = format!("{:?}", config.targets[0].luns[&1]);
    assert!(!shown.contains("lunar.d") && shown.contains("/disk.img"), "{shown}");
}

#[test]
fn file_beside_that_is_no_folder_is_no_drop_in() {
    assert!(loaded(&[("lunar.toml", MAIN), ("lunar.d", "x")]).is_ok());
    assert_eq!(super::drop_in_folder(Path::new("/etc/lunar/lunar.toml")), Path::new("/etc/lunar/lunar.d"));
}
