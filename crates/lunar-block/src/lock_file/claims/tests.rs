use super::super::tests::TempDir;
use super::super::watcher::Watched;
use super::*;

fn join(folder: &TempDir) -> Claims {
    Claims::join(&folder.0).expect("a lock file")
}

fn take(claims: &Claims, name: &str) -> Result<Claim, Holder> {
    claims.take(&[(name.into(), format!("owner of {name}"))]).expect("written").remove(0)
}

/// Writes what was released.
fn check(claims: &Claims) {
    claims.0.check();
}

fn own(owner: &str) -> Holder {
    Holder { pid: Some(std::process::id()), owner: owner.into() }
}

#[test]
fn claimed_name_has_one_holder_until_dropped() {
    let folder = TempDir::new("claims-one");
    let (first, second) = (join(&folder), join(&folder));
    let claim = take(&first, "a").expect("free");
    assert_eq!(take(&second, "a").expect_err("held"), own("owner of a"));
    assert_eq!(HolderTable::of(&folder.0).holder("a"), Some(own("owner of a")));
    let other = take(&second, "b").expect("free");
    drop(claim);
    check(&first);
    take(&second, "a").expect("released");
    assert_eq!(take(&first, "b").expect_err("held"), own("owner of b"));
    drop(other);
}

#[test]
fn rejected_claim_leaves_the_others_of_its_call() {
    let folder = TempDir::new("claims-some");
    let (first, second) = (join(&folder), join(&folder));
    let _held = take(&first, "b").expect("free");
    let wanted = ["a", "b", "c"].map(|name| (name.to_owned(), String::new()));
    let results = second.take(&wanted).expect("written");
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    let table = HolderTable::read(&folder.0, Some(first.0.slot));
    assert_eq!(["a", "b", "c"].map(|name| table.holder(name).is_some()), [true, false, true]);
}

#[test]
fn name_stays_claimed_until_its_last_claim_is_dropped() {
    let folder = TempDir::new("claims-count");
    let (first, second) = (join(&folder), join(&folder));
    let (one, two) = (take(&first, "a").expect("free"), take(&first, "a").expect("its own"));
    two.set_owner("changed".into());
    drop(one);
    first.publish().expect("written");
    assert_eq!(take(&second, "a").expect_err("held"), own("changed"));
    drop(two);
    check(&first);
    take(&second, "a").expect("released");
}

#[test]
fn process_that_ends_leaves_neither_claims_nor_file() {
    let folder = TempDir::new("claims-end");
    let (first, second) = (join(&folder), join(&folder));
    let claim = take(&first, "a").expect("free");
    drop(first);
    assert!(take(&second, "a").is_err(), "the claim lives");
    drop(claim);
    take(&second, "a").expect("free");
    drop(second);
    assert_eq!(std::fs::read_dir(&folder.0).expect("there").count(), 0);
}

/// A killed process leaves its file.
#[test]
fn file_without_lock_claims_nothing() {
    let folder = TempDir::new("claims-killed");
    std::fs::write(folder.0.join("1.lock"), "7\na\tother\n").expect("written");
    let first = join(&folder);
    drop(take(&first, "a").expect("free"));
    check(&first);
    let second = join(&folder);
    assert_eq!((first.0.slot, second.0.slot), (0, 1));
    assert!(HolderTable::of(&folder.0).holder("a").is_none());
}

#[test]
fn one_of_simultaneous_claims_succeeds() {
    let folder = TempDir::new("claims-race");
    let all: Vec<Claims> = (0..4).map(|_| join(&folder)).collect();
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|claims| scope.spawn(|| take(claims, "a"))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
}

#[test]
fn deleted_folder_excludes_others_and_comes_back() {
    let folder = TempDir::new("claims-deleted");
    let first = join(&folder);
    let claim = take(&first, "a").expect("free");
    std::fs::remove_dir_all(&folder.0).expect("deleted");
    // The watcher may already have recreated the file.
    let holder = HolderTable::read(&folder.0, None).holder("a").expect("held");
    assert!(holder == Holder::default() || holder == own("owner of a"), "{holder:?}");
    first.0.file.0.check();
    assert_eq!(HolderTable::of(&folder.0).holder("a"), Some(own("owner of a")));
    std::fs::remove_dir_all(&folder.0).expect("deleted");
    let _other = take(&first, "b").expect("the file is written again");
    let table = HolderTable::of(&folder.0);
    assert!(table.holder("a").is_some() && table.holder("b").is_some());
    drop(claim);
}

#[test]
fn damaged_file_of_a_process_rejects_every_name() {
    let folder = TempDir::new("claims-damaged");
    let other = LockFile::lock(&folder.0.join("0.lock")).expect("a lock").expect("free");
    for text in ["", "no number\na\tb\n", "7"] {
        other.write_owner(text.into()).expect("written");
        assert_eq!(HolderTable::read(&folder.0, None).holder("a"), Some(Holder::default()), "{text}");
    }
    other.write_owner("7\na\n".into()).expect("written");
    let table = HolderTable::read(&folder.0, None);
    assert_eq!(table.holder("a"), Some(Holder { pid: Some(7), owner: String::new() }));
    assert_eq!(table.holder("b"), None);
}

#[test]
fn new_names_are_appended_as_whole_lines() {
    let folder = TempDir::new("claims-appended");
    let (first, second) = (join(&folder), join(&folder));
    let path = path(&folder.0, first.0.slot);
    let before = std::fs::metadata(&path).expect("there").len();
    let claims = ["a", "b"].map(|name| take(&first, name).expect("free"));
    let added = "a\towner of a\nb\towner of b\n".len() as u64;
    assert_eq!(
        std::fs::metadata(&path).expect("there").len(),
        before + added,
        "only the new names are written"
    );
    // A line that is being written.
    let mut text = std::fs::read(&path).expect("there");
    text.extend(b"c\tow");
    std::fs::write(&path, text).expect("written");
    assert!(HolderTable::read(&folder.0, Some(second.0.slot)).holder("c").is_none());
    drop(claims);
}

#[test]
fn more_processes_than_files_are_rejected() {
    let folder = TempDir::new("claims-many");
    let all: Vec<Claims> = (0..MAX_PROCESSES).map(|_| join(&folder)).collect();
    let rejected = Claims::join(&folder.0).expect_err("all files are in use");
    assert_eq!(rejected.kind(), ErrorKind::ResourceBusy);
    drop(all);
}
