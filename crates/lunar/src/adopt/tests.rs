use super::*;
use interop::Folder;
use lunar_server::diff;

const MAIN: &str = "# The configuration\n\n[server]\ncores = 1\n\n[[target]]\nname = \"iqn.2026-11.org.example:a\"\n\n\
    # The disk\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1M\"\n\n\
    [[target.access]]\ninitiators = [\"iqn.a\"]\n\n[[target.access]]\ninitiators = [\"iqn.b\"]\n";

fn folder() -> (Folder, PathBuf) {
    let folder = Folder::fresh();
    let file = folder.join("lunar.toml");
    std::fs::write(&file, MAIN).unwrap();
    (folder, file)
}

fn load(file: &Path) -> Config {
    config::load(file).map_err(|list| list[0].to_string()).unwrap()
}

fn args(file: &Path) -> Adopt {
    Adopt { objects: Vec::new(), all: true, config: Some(file.to_path_buf()), dry_run: false, json: false }
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn configuration_is_equal_after_a_crash_at_any_moment() {
    let (_folder, file) = folder();
    let before = load(&file);
    let step = &config::adopt(&before, &config::all_adoptable(&before)).unwrap()[0];
    let number = actions(&before, step).unwrap().len();
    assert_eq!(number, 1 + 4 + 1 + 1);
    for done in 0..=number {
        let (folder, file) = self::folder();
        let before = load(&file);
        let step = &config::adopt(&before, &config::all_adoptable(&before)).unwrap()[0];
        for action in actions(&before, step).unwrap().iter().take(done) {
            action.perform().unwrap();
        }
        let now = load(&file);
        assert_eq!(diff(&before, &now), [], "after {done} actions");
        assert_eq!(now.sources.document.len(), before.sources.document.len(), "after {done} actions");
        // The next one completes it.
        adopt(&args(&file)).unwrap();
        let api = folder.join("lunar.d/api");
        assert_eq!(names(&api).len(), 4, "after {done} actions: {:?}", names(&api));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "# The configuration\n\n[server]\ncores = 1\n");
        assert_eq!(diff(&before, &load(&file)), [], "after {done} actions");
    }
}

#[test]
fn failed_write_of_the_file_is_undone() {
    let (folder, file) = folder();
    let config = load(&file);
    let step = config::adopt(&config, &config::all_adoptable(&config)).unwrap().remove(0);
    let mut actions = actions(&config, &step).unwrap();
    // The file of the administrator cannot be written.
    actions[5].path = folder.join("missing\0name");
    assert!(actions.iter().try_for_each(Action::perform).is_err());
    finish(&file).unwrap();
    assert_eq!(names(&folder.join("lunar.d/api")), [""; 0]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), MAIN);
}

#[test]
fn objects_are_named_in_five_forms() {
    assert_eq!(object("iqn.a"), Ok(ObjectId::Target("iqn.a".into())));
    assert_eq!(object("iqn.a/7"), Ok(ObjectId::Lun("iqn.a".into(), 7)));
    assert_eq!(object("chap:a/b"), Ok(ObjectId::ChapUser("a/b".into())));
    assert_eq!(object("disk:d"), Ok(ObjectId::Disk("d".into())));
    assert_eq!(object("nqn.a:b/c"), Ok(ObjectId::Subsystem("nqn.a:b/c".into())));
    assert_eq!(object("nqn.a:b/7"), Ok(ObjectId::Namespace("nqn.a:b".into(), 7)));
    assert_eq!(object("portal:2"), Ok(ObjectId::PortalGroup(2)));
    assert_eq!(object("iqn.a/x"), Err("\"x\" is no LUN".into()));
    assert_eq!(object("portal:x"), Err("\"x\" is no portal group tag".into()));
}

#[test]
fn second_adoption_of_a_configuration_waits_for_none() {
    let (_folder, file) = folder();
    let lock = lock(&file).unwrap();
    let failure = adopt(&args(&file)).unwrap_err();
    assert_eq!(failure.exit, Exit::InUse);
    drop(lock);
    let dry = Adopt { dry_run: true, ..args(&file) };
    let text = adopt(&dry).unwrap();
    assert!(
        text.contains("LUN 0 of iqn.2026-11.org.example:a: ") && text.contains("lunar.toml:10 -> "),
        "{text}"
    );
    assert!(text.ends_with("dry run: nothing was changed\n"), "{text}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), MAIN);
    assert!(adopt(&args(&file)).unwrap().ends_with("adopted 4 objects; run lunar reload\n"));
    assert_eq!(adopt(&args(&file)).unwrap(), "nothing to adopt: the API owns these objects already\n");
}
