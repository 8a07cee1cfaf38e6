use super::super::tests::Folder;
use super::*;
use lunar_admin::HistoryTree;
use lunar_server::config;
use std::os::unix::fs::PermissionsExt;

const MAIN: &str = "[[target]]\nname = \"iqn.2026-11.org.example:a\"\nalias = \"ALIAS\"\n[[target.lun]]\nlun = 0\n\
    backend = \"null\"\nsize = \"1M\"\n";

fn sources(folder: &Folder, alias: &str) -> Sources {
    let path = folder.0.join("lunar.toml");
    config::parse(&MAIN.replace("ALIAS", alias), &path).map_err(|list| list[0].to_string()).unwrap().sources
}

fn started(folder: &Folder) -> ConfigHistory {
    ConfigHistory::start(&folder.0, &sources(folder, "a")).unwrap()
}

fn record(history: &ConfigHistory, folder: &Folder, alias: &str) {
    history.record(&sources(folder, alias), ApplyCause::Change, Some("user 0"));
    history.settle();
}

fn numbers(history: &ConfigHistory) -> Vec<u64> {
    history.entries().iter().map(|entry| entry.number).collect()
}

/// The names of the files, and the mode of each.
fn files(history: &ConfigHistory) -> Vec<(String, u32)> {
    let entries = std::fs::read_dir(history.0.folder.as_ref().unwrap()).into_iter().flatten().flatten();
    let file = |entry: std::fs::DirEntry| {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        (entry.file_name().to_string_lossy().into_owned(), mode)
    };
    let mut files: Vec<_> = entries.map(file).collect();
    files.sort();
    files
}

#[test]
fn last_trees_are_kept_and_older_ones_removed() {
    let folder = Folder::new("history");
    let history = started(&folder);
    for at in 1..=25 {
        record(&history, &folder, &format!("a{at}"));
    }
    assert_eq!(numbers(&history), (6..=25).rev().collect::<Vec<u64>>());
    let names: Vec<(String, u32)> = (6..=25).map(|number| (format!("{number:08}.toml"), 0o600)).collect();
    assert_eq!(files(&history), names);
    let tree: HistoryTree = history.tree(HistoryPoint::Number(6)).unwrap().into();
    assert_eq!(tree.toml, config::shown(&sources(&folder, "a6")));
    let file = folder.0.join("lunar.toml").display().to_string();
    assert_eq!((tree.entry.asker.as_deref(), tree.entry.file), (Some("user 0"), file));
    assert_eq!(
        history.tree(HistoryPoint::Number(5)).unwrap_err().problems[0].what,
        "the history has no entry 5"
    );
    drop(history);
    let again = started(&folder);
    record(&again, &folder, "b");
    assert_eq!(numbers(&again), (7..=26).rev().collect::<Vec<u64>>());
}

#[test]
fn tree_like_the_newest_is_not_kept_again() {
    let folder = Folder::new("history-same");
    let history = started(&folder);
    for alias in ["a", "a", "b", "a"] {
        record(&history, &folder, alias);
    }
    assert_eq!(numbers(&history), [3, 2, 1]);
    drop(history);
    let again = started(&folder);
    again.record(&sources(&folder, "a"), ApplyCause::Start, None);
    again.settle();
    assert_eq!(numbers(&again), [3, 2, 1], "also after a restart");
}

#[test]
fn trees_in_quick_succession_wait_for_nothing() {
    let folder = Folder::new("history-quick");
    let history = started(&folder);
    for at in 0..500 {
        history.record(&sources(&folder, &format!("a{at}")), ApplyCause::Change, None);
        assert!(history.0.queue().waiting.len() <= KEPT);
    }
    history.settle();
    let newest: HistoryTree = history.tree(HistoryPoint::Number(numbers(&history)[0])).unwrap().into();
    assert!(newest.toml.contains("alias = \"a499\""), "{}", newest.toml);
    assert_eq!(files(&history).len(), KEPT);
}

#[test]
fn folder_that_cannot_be_written_loses_only_the_history() {
    let folder = Folder::new("history-unwritable");
    std::fs::write(folder.0.join("history"), "a file").unwrap();
    let history = started(&folder);
    record(&history, &folder, "a");
    assert_eq!(numbers(&history), Vec::<u64>::new());
    std::fs::remove_file(folder.0.join("history")).unwrap();
    record(&history, &folder, "b");
    assert_eq!(numbers(&history), [1]);
}

#[test]
fn damaged_and_foreign_files_are_left_out() {
    let folder = Folder::new("history-damaged");
    let history = started(&folder);
    record(&history, &folder, "a");
    let place = history.0.folder.clone().unwrap();
    drop(history);
    // The second is what a crash during a write leaves.
    for (name, text) in [("00000007.toml", "# {\"number\":7"), (".00000008.toml.new", "# {"), ("x.toml", "")]
    {
        std::fs::write(place.join(name), text).unwrap();
    }
    let again = started(&folder);
    record(&again, &folder, "b");
    assert_eq!(numbers(&again), [8, 1]);
    assert!(!place.join(".00000008.toml.new").exists());
    std::fs::write(place.join("00000008.toml"), "# {").unwrap();
    let error = again.tree(HistoryPoint::Number(8)).unwrap_err();
    assert!(error.problems[0].what.contains("00000008.toml: damaged: EOF"), "{:?}", error.problems);
}

#[test]
fn tree_is_written_once_and_by_its_own_length() {
    let folder = Folder::new("history-bytes");
    let history = started(&folder);
    record(&history, &folder, "a");
    let tree: HistoryTree = history.tree(HistoryPoint::Number(1)).unwrap().into();
    let length = std::fs::metadata(history.tree(HistoryPoint::Number(1)).unwrap().path).unwrap().len();
    let entry = serde_json::to_string(&tree.entry).unwrap();
    assert_eq!(length as usize, "# \n".len() + entry.len() + tree.toml.len());
}

#[test]
fn server_without_a_file_keeps_nothing() {
    let folder = Folder::new("history-none");
    let history = ConfigHistory::start(&folder.0, &Sources::default()).unwrap();
    history.record(&Sources::default(), ApplyCause::Start, None);
    history.settle();
    assert_eq!((numbers(&history), folder.0.join("history").exists()), (Vec::new(), false));
}
