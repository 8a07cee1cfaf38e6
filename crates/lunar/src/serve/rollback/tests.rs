use super::super::tests::{Fake, Folder, args, service};
use super::*;
use lunar_admin::{Keys, ObjectAction, ObjectChange, ObjectId};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const NAME: &str = "iqn.2026-11.org.example:a";

fn lun(number: u16) -> ObjectChange {
    let keys: Keys = json!({ "backend": "null", "size": "1M" }).as_object().unwrap().clone();
    let (id, action) = (ObjectId::Lun(NAME.into(), number), ObjectAction::Create(keys));
    ObjectChange { id, action, version: None, dry_run: false, transient: false, force: false }
}

fn back(to: u64) -> RollbackRequest {
    RollbackRequest { to, version: None, dry_run: false, force: false, confirm_within_s: None }
}

fn trial(to: u64) -> RollbackRequest {
    RollbackRequest { confirm_within_s: Some(600), ..back(to) }
}

fn asks(service: &mut Service<Fake>, request: Request) -> Response {
    let response = service.answer(request, &lunar_admin::Asker::new("user 7"));
    service.history.settle();
    response
}

fn changes(response: Response) -> Vec<String> {
    let Response::Changed { changes, .. } = response else { panic!("{response:?}") };
    changes.iter().map(ToString::to_string).collect()
}

fn failed(response: Response) -> (ControlErrorKind, String) {
    let Response::Failed(error) = response else { panic!("{response:?}") };
    (error.kind, error.problems[0].to_string())
}

/// A server with a LUN of the file, and LUN 1 of the API.
fn with_two_luns(folder: &Folder, fake: &Fake) -> Service<Fake> {
    let mut service = service(&args(folder.config(1)), fake);
    service.history.settle();
    changes(asks(&mut service, Request::Change(lun(1))));
    service
}

/// The names of the files of the API, also of hidden ones.
fn files(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.0.join("lunar.d/api")).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn luns(service: &Service<Fake>) -> usize {
    service.config.targets[0].luns.len()
}

fn again(folder: &Folder) -> Service<Fake> {
    service(&args(folder.0.join("lunar.toml")), &Fake::default())
}

fn causes(service: &Service<Fake>) -> Vec<(u64, ApplyCause, Option<String>)> {
    service.history.settle();
    service.history.entries().into_iter().map(|entry| (entry.number, entry.cause, entry.asker)).collect()
}

#[test]
fn earlier_tree_returns_with_its_files() {
    let folder = Folder::new("back");
    let mut service = with_two_luns(&folder, &Fake::default());
    let removed = format!("target {NAME}: LUN 1: removed");
    let dry = RollbackRequest { dry_run: true, ..back(1) };
    assert_eq!(changes(asks(&mut service, Request::RollBackTo(dry))), [&*removed]);
    assert_eq!((luns(&service), files(&folder).len()), (2, 1));
    assert_eq!(changes(asks(&mut service, Request::RollBackTo(back(1)))), [&*removed]);
    assert_eq!((luns(&service), files(&folder).len()), (1, 0));
    assert!(changes(asks(&mut service, Request::RollBackTo(back(1)))).is_empty(), "nothing differs now");
    assert_eq!(changes(asks(&mut service, Request::RollBackTo(back(2)))).len(), 1);
    assert_eq!((luns(&service), files(&folder).len()), (2, 1));
    let asker = || Some("user 7".to_owned());
    assert_eq!(
        causes(&service),
        [
            (4, ApplyCause::Rollback, asker()),
            (3, ApplyCause::Rollback, asker()),
            (2, ApplyCause::Change, asker()),
            (1, ApplyCause::Start, None),
        ]
    );
    let Response::Differences(since) = service.diff_since(HistoryPoint::Number(1)) else { panic!("no list") };
    assert_eq!(since.iter().map(ToString::to_string).collect::<Vec<_>>().len(), 1);
    drop(service);
    assert_eq!(luns(&again(&folder)), 2);
}

#[test]
fn reload_and_apply_are_causes_of_their_own() {
    let folder = Folder::new("causes");
    let mut service = service(&args(folder.config(1)), &Fake::default());
    service.history.settle();
    folder.config(2);
    let apply = |file: Option<PathBuf>, confirm_within_s| {
        Request::Apply(ApplyOptions { file, confirm_within_s, ..Default::default() })
    };
    asks(&mut service, apply(None, None));
    asks(&mut service, apply(None, None));
    folder.config(3);
    service.reload();
    service.history.settle();
    folder.config(4);
    asks(&mut service, apply(Some(folder.0.join("lunar.toml")), Some(600)));
    asks(&mut service, Request::Rollback);
    let found: Vec<_> =
        causes(&service).into_iter().map(|(_, cause, asker)| (cause, asker.is_some())).collect();
    use ApplyCause::*;
    assert_eq!(found, [(Rollback, true), (Apply, true), (Reload, false), (Reload, true), (Start, false)]);
}

#[test]
fn unconfirmed_rollback_is_undone_in_time_and_by_hand() {
    let folder = Folder::new("undone");
    let mut service = with_two_luns(&folder, &Fake::default());
    for by_hand in [true, false] {
        changes(asks(&mut service, Request::RollBackTo(trial(1))));
        assert_eq!((luns(&service), files(&folder)), (1, vec![".trial".to_owned()]));
        assert_eq!(failed(asks(&mut service, Request::RollBackTo(back(2)))).0, ControlErrorKind::Conflict);
        match by_hand {
            true => assert_eq!(service.roll_back(), Response::Done("rolled back".into())),
            false => (0..20).for_each(|number| service.unconfirmed(number)),
        }
        assert_eq!((luns(&service), files(&folder).len()), (2, 1), "{by_hand}");
        assert!(!files(&folder).contains(&".trial".to_owned()));
    }
    assert_eq!(causes(&service)[0].1, ApplyCause::Rollback);
}

#[test]
fn restart_undoes_an_unconfirmed_rollback() {
    let folder = Folder::new("restarted");
    let mut service = with_two_luns(&folder, &Fake::default());
    changes(asks(&mut service, Request::RollBackTo(trial(1))));
    drop(service);
    let mut service = again(&folder);
    assert_eq!((luns(&service), files(&folder).len()), (2, 1));
    changes(asks(&mut service, Request::RollBackTo(trial(1))));
    assert_eq!(asks(&mut service, Request::Confirm), Response::Done("confirmed".into()));
    drop(service);
    assert_eq!((luns(&again(&folder)), files(&folder)), (1, Vec::new()));
}

#[test]
fn restart_undoes_files_of_the_api_that_were_edited_for_a_trial() {
    let folder = Folder::new("edited");
    let mut service = with_two_luns(&folder, &Fake::default());
    let file = folder.0.join("lunar.d/api").join(&files(&folder)[0]);
    let before = std::fs::read_to_string(&file).unwrap();
    let mine = folder.0.join("lunar.d/api/mine.toml");
    for replaced in [false, true] {
        std::fs::write(&file, before.replace("1M", "2M")).unwrap();
        std::fs::write(&mine, before.replace("lun = 1", "lun = 2")).unwrap();
        let apply = |within| Request::Apply(ApplyOptions { confirm_within_s: within, ..Default::default() });
        assert_eq!(changes(asks(&mut service, apply(Some(600)))).len(), 2);
        if replaced {
            asks(&mut service, apply(None));
        }
        drop(service);
        service = again(&folder);
        let is_back = std::fs::read_to_string(&file).unwrap() == before && !mine.exists();
        assert_eq!((is_back, luns(&service)), (!replaced, if replaced { 3 } else { 2 }));
        assert!(!folder.0.join("lunar.d/api/.trial").exists());
    }
}

#[test]
fn transient_objects_return_when_a_trial_ends() {
    let folder = Folder::new("transient-back");
    let mut service = with_two_luns(&folder, &Fake::default());
    changes(asks(&mut service, Request::Change(ObjectChange { transient: true, ..lun(2) })));
    changes(asks(&mut service, Request::RollBackTo(trial(1))));
    assert_eq!((luns(&service), service.transient.len()), (1, 0));
    service.roll_back();
    assert_eq!((luns(&service), service.transient.len()), (3, 1));
    changes(asks(&mut service, Request::RollBackTo(back(2))));
    service.reload();
    assert_eq!((luns(&service), service.transient.len()), (2, 0));
}

#[test]
fn rollback_for_another_version_or_entry_is_rejected() {
    let folder = Folder::new("rejected");
    let mut service = with_two_luns(&folder, &Fake::default());
    let stale = RollbackRequest { version: Some("x".into()), ..back(1) };
    assert_eq!(failed(service.roll_back_to(&stale)).0, ControlErrorKind::Stale);
    let (kind, what) = failed(service.roll_back_to(&back(9)));
    assert_eq!(kind, ControlErrorKind::NotFound);
    assert_eq!(what, "the history has no entry 9\n  hint: lunar history shows the entries");
    let other = folder.0.join("other.toml");
    std::fs::copy(folder.0.join("lunar.toml"), &other).unwrap();
    asks(&mut service, Request::Apply(ApplyOptions { file: Some(other), ..Default::default() }));
    assert!(failed(service.roll_back_to(&back(1))).1.contains("not that of the server"));
    service.reload();
    service.history.settle();
    let (_, what) = failed(service.roll_back_to(&back(3)));
    assert!(what.contains("entry 3 is of the configuration ") && what.contains("other.toml"), "{what}");
}

#[test]
fn failed_write_takes_the_whole_rollback_back() {
    let folder = Folder::new("half");
    let mut service = with_two_luns(&folder, &Fake::default());
    changes(asks(&mut service, Request::Change(lun(2))));
    let names = files(&folder);
    let whole = service.config.sources.whole.clone();
    let kept = service.history.tree(HistoryPoint::Number(1)).unwrap();
    let back = config::roll_back(&service.config, &kept.text, &kept.path).unwrap();
    let new = config::parse_files(back.files.clone(), &whole).unwrap();
    let journal = journal(&whole, &back.writes).unwrap();
    // The file of LUN 2 can be neither removed nor put back: a folder is in its place.
    let place = folder.0.join("lunar.d/api").join(&names[1]);
    std::fs::remove_file(&place).unwrap();
    std::fs::create_dir_all(place.join("x")).unwrap();
    let replaced = Replaced { writes: &back.writes, transient: &back.transient };
    let error = service.replace_files(new, replaced, journal, None).unwrap_err();
    let what = &error.problems[0].what;
    assert!(what.contains("cannot write") && what.contains(&names[1]), "{what}");
    assert_eq!(luns(&service), 3);
    // The server retries, and changes nothing else until then. A crash is safe too.
    assert_eq!(failed(asks(&mut service, Request::Change(lun(5)))).0, ControlErrorKind::Conflict);
    assert!(folder.0.join("lunar.d/api/.trial").exists());
    std::fs::remove_dir_all(&place).unwrap();
    assert_eq!(service.roll_back(), Response::Done("rolled back".into()));
    assert_eq!((luns(&service), files(&folder)), (3, names));
    assert_eq!(causes(&service)[0].0, 3, "the history has no trace of it");
}

#[test]
fn journal_that_cannot_be_written_changes_nothing() {
    let folder = Folder::new("nojournal");
    let fake = Fake::default();
    let mut service = with_two_luns(&folder, &fake);
    std::fs::create_dir_all(folder.0.join("lunar.d/api/.trial/x")).unwrap();
    let notes = fake.notes();
    let (kind, what) = failed(asks(&mut service, Request::RollBackTo(trial(1))));
    assert_eq!(kind, ControlErrorKind::Conflict);
    assert!(what.contains("cannot write") && what.contains(".trial"), "{what}");
    assert_eq!((luns(&service), fake.notes()), (2, notes));
}

#[test]
fn last_access_entry_is_not_lost_without_force() {
    let folder = Folder::new("open");
    let mut service = with_two_luns(&folder, &Fake::default());
    let keys: Keys = json!({ "initiators": ["iqn.a"] }).as_object().unwrap().clone();
    let (id, action) = (ObjectId::Access(NAME.into(), 0), ObjectAction::Create(keys));
    changes(asks(&mut service, Request::Change(ObjectChange { id, action, ..lun(0) })));
    let what = failed(asks(&mut service, Request::RollBackTo(back(2)))).1;
    assert!(what.contains("would admit all initiators"), "{what}");
    changes(asks(&mut service, Request::RollBackTo(RollbackRequest { force: true, ..back(2) })));
    assert!(service.config.targets[0].access.is_empty());
}

#[test]
fn secret_that_is_gone_rejects_the_rollback() {
    let folder = Folder::new("gone");
    let mut service = with_two_luns(&folder, &Fake::default());
    let keys: Keys = json!({ "secret": "0123456789abcdef" }).as_object().unwrap().clone();
    let (id, action) = (ObjectId::ChapUser("bob".into()), ObjectAction::Create(keys));
    let user = ObjectChange { id, action, ..lun(0) };
    changes(asks(&mut service, Request::Change(user.clone())));
    changes(asks(&mut service, Request::Change(ObjectChange { action: ObjectAction::Delete, ..user })));
    let (kind, what) = failed(asks(&mut service, Request::RollBackTo(back(3))));
    assert_eq!(kind, ControlErrorKind::Invalid);
    assert!(what.contains("secret"), "{what}");
    let text = std::fs::read_to_string(service.history.tree(HistoryPoint::Number(3)).unwrap().path).unwrap();
    assert!(text.contains("secret_file") && !text.contains("0123456789abcdef"), "{text}");
}

/// The names of the files of secrets.
fn secrets(folder: &Folder) -> usize {
    std::fs::read_dir(folder.0.join("lunar.d/api/secrets")).into_iter().flatten().count()
}

#[test]
fn secrets_that_nothing_names_go_with_a_rollback() {
    for (word, end) in [("now", None), ("confirmed", Some(true)), ("undone", Some(false))] {
        let folder = Folder::new(&format!("secrets-{word}"));
        let mut service = with_two_luns(&folder, &Fake::default());
        for name in ["bob", "eve"] {
            let keys: Keys = json!({ "secret": "0123456789abcdef" }).as_object().unwrap().clone();
            let (id, action) = (ObjectId::ChapUser(name.into()), ObjectAction::Create(keys));
            changes(asks(&mut service, Request::Change(ObjectChange { id, action, ..lun(0) })));
        }
        assert_eq!(secrets(&folder), 2);
        let to = if end.is_some() { trial(3) } else { back(3) };
        changes(asks(&mut service, Request::RollBackTo(to)));
        match end {
            None => {}
            Some(is_confirmed) => {
                assert_eq!(secrets(&folder), 2, "the trial may end");
                asks(&mut service, if is_confirmed { Request::Confirm } else { Request::Rollback });
            }
        }
        let left = if end == Some(false) { 2 } else { 1 };
        assert_eq!(secrets(&folder), left, "{word}");
        drop(service);
        assert!(again(&folder).config.sources.document.contains_key(&ObjectId::ChapUser("bob".into())));
    }
}

#[test]
fn secret_of_a_hidden_object_stays_after_a_rollback() {
    let folder = Folder::new("hidden");
    let mut service = with_two_luns(&folder, &Fake::default());
    let other = folder.0.join("other.secret");
    std::fs::write(&other, "fedcba9876543210").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o600)).unwrap();
    let change = |action: fn(Keys) -> ObjectAction, keys: serde_json::Value, transient| {
        let (id, keys) = (ObjectId::ChapUser("bob".into()), keys.as_object().unwrap().clone());
        Request::Change(ObjectChange { id, action: action(keys), transient, ..lun(0) })
    };
    let own = change(ObjectAction::Create, json!({ "secret": "0123456789abcdef" }), false);
    changes(asks(&mut service, own));
    changes(asks(&mut service, change(ObjectAction::Merge, json!({ "secret_file": "other.secret" }), true)));
    for to in [3, 4] {
        changes(asks(&mut service, Request::RollBackTo(back(to))));
    }
    assert_eq!(secrets(&folder), 1, "the next start reads it");
    drop(service);
    let service = again(&folder);
    let user = &service.config.sources.document[&ObjectId::ChapUser("bob".into())];
    assert_ne!(user.keys["secret_file"], json!("other.secret"));
}

#[test]
fn rollback_that_admits_every_host_warns() {
    let folder = Folder::new("wider");
    let mut service = with_two_luns(&folder, &Fake::default());
    let mut entry = |action: fn(Keys) -> ObjectAction, pattern: &str| {
        let keys: Keys = json!({ "initiators": [pattern] }).as_object().unwrap().clone();
        let id = ObjectId::Access(NAME.into(), 0);
        changes(asks(&mut service, Request::Change(ObjectChange { id, action: action(keys), ..lun(0) })));
    };
    entry(ObjectAction::Create, "*");
    entry(ObjectAction::Merge, "iqn.a");
    let Response::Changed { warnings, .. } = asks(&mut service, Request::RollBackTo(back(3))) else {
        panic!("it is no loss of the last entry")
    };
    let line = format!("access entry 0 of {NAME} admits every host");
    assert!(warnings.iter().any(|warning| warning.starts_with(&line)), "{warnings:?}");
}
