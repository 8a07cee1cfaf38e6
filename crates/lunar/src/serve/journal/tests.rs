use super::super::tests::Folder;
use super::*;
use std::collections::BTreeMap;

/// The files before the change, and after it. None: the file does not exist.
const FILES: [(&str, Option<&str>, Option<&str>); 4] = [
    ("changed.toml", Some("old"), Some("new")),
    ("created.toml", None, Some("new")),
    ("removed.toml", Some("old"), None),
    ("other.toml", Some("same"), Some("same")),
];

/// A step of a change that a power cut may follow.
type Step<'a> = Box<dyn Fn(&Path) + 'a>;

fn put(api: &Path, name: &str, text: Option<&str>) {
    match text {
        Some(text) => std::fs::write(api.join(name), text).unwrap(),
        None => _ = std::fs::remove_file(api.join(name)),
    }
}

fn record() -> TrialRecord {
    let files = FILES.iter().filter(|(_, before, after)| before != after);
    let files = files.map(|(name, before, _)| ((*name).to_owned(), before.map(str::to_owned))).collect();
    TrialRecord { files, ..TrialRecord::default() }
}

/// A configuration with the files before the change.
fn folder(name: &str) -> (Folder, PathBuf, PathBuf) {
    let folder = Folder::new(name);
    let (whole, api) = (folder.0.join("lunar.toml"), folder.0.join("lunar.d/api"));
    std::fs::create_dir_all(&api).unwrap();
    FILES.iter().for_each(|(name, before, _)| put(&api, name, *before));
    (folder, whole, api)
}

/// The files that a server would read.
fn read(api: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(api).unwrap().flatten();
    let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    let counted = named.filter(|(name, _)| !name.starts_with('.'));
    counted.map(|(name, path)| (name, std::fs::read_to_string(path).unwrap())).collect()
}

/// All steps of a change on trial, in their order on the disk.
fn steps<'a>() -> Vec<Step<'a>> {
    let text = record().text();
    let part = text[..text.len() / 2].to_owned();
    let mut steps: Vec<Step<'a>> = vec![
        Box::new(move |api| put(api, "..trial.new", Some(&part))),
        Box::new({
            let text = text.clone();
            move |api| put(api, "..trial.new", Some(&text))
        }),
        Box::new(|api| std::fs::rename(api.join("..trial.new"), api.join(".trial")).unwrap()),
    ];
    for (name, _, after) in FILES.iter().filter(|(_, before, after)| before != after) {
        if let Some(after) = after {
            steps.push(Box::new(move |api| put(api, &format!(".{name}.new"), Some(after))));
        }
    }
    for (name, _, after) in FILES.iter().filter(|(_, before, after)| before != after) {
        steps.push(Box::new(move |api| {
            put(api, name, *after);
            _ = std::fs::remove_file(api.join(format!(".{name}.new")));
        }));
    }
    steps
}

#[test]
fn power_cut_at_any_step_leaves_the_files_before() {
    let count = steps().len();
    assert_eq!(count, 3 + 2 + 3);
    for cut in 0..=count {
        let (_folder, whole, api) = folder(&format!("cut-{cut}"));
        let before = read(&api);
        steps().iter().take(cut).for_each(|step| step(&api));
        recover(&whole).unwrap();
        assert_eq!(read(&api), before, "after {cut} steps");
        assert!(!api.join(".trial").exists(), "after {cut} steps");
        recover(&whole).unwrap();
        assert_eq!(read(&api), before, "again after {cut} steps");
    }
}

#[test]
fn power_cut_while_files_are_put_back_is_harmless() {
    for cut in 0..=FILES.len() {
        let (_folder, whole, api) = folder(&format!("back-{cut}"));
        let before = read(&api);
        steps().iter().for_each(|step| step(&api));
        FILES.iter().take(cut).for_each(|(name, before, _)| put(&api, name, *before));
        recover(&whole).unwrap();
        assert_eq!((read(&api), api.join(".trial").exists()), (before, false), "after {cut} files");
    }
}

#[test]
fn confirmed_change_stays() {
    let (_folder, whole, api) = folder("confirmed");
    let journal = Journal::write(&whole, record()).unwrap();
    FILES.iter().for_each(|(name, _, after)| put(&api, name, *after));
    let after = read(&api);
    journal.remove().unwrap();
    recover(&whole).unwrap();
    assert_eq!(read(&api), after);
}

#[test]
fn trial_of_a_running_server_is_left_alone() {
    let (_folder, whole, api) = folder("running");
    let before = read(&api);
    let journal = Journal::write(&whole, record()).unwrap();
    FILES.iter().for_each(|(name, _, after)| put(&api, name, *after));
    let after = read(&api);
    recover(&whole).unwrap();
    assert_eq!((read(&api), api.join(".trial").exists()), (after, true));
    drop(journal);
    recover(&whole).unwrap();
    assert_eq!((read(&api), api.join(".trial").exists()), (before, false));
}

#[test]
fn files_that_cannot_be_put_back_are_reported() {
    let (_folder, whole, api) = folder("stuck");
    Journal::write(&whole, record()).unwrap();
    // A folder in the place of a file, which no file can replace.
    std::fs::remove_file(api.join("changed.toml")).unwrap();
    std::fs::create_dir_all(api.join("changed.toml/x")).unwrap();
    let problem = recover(&whole).unwrap_err();
    assert!(problem.what.starts_with("cannot undo the unconfirmed configuration: "), "{problem}");
    assert!(api.join(".trial").exists(), "the next start tries again");
    std::fs::remove_dir_all(api.join("changed.toml")).unwrap();
    recover(&whole).unwrap();
    assert_eq!(read(&api)["changed.toml"], "old");
}
