use super::watcher::Watched;
use super::*;

pub(super) struct TempDir(pub(super) PathBuf);

impl TempDir {
    pub(super) fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("lunar-lock-file-{name}-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        TempDir(path)
    }

    fn lock(&self) -> PathBuf {
        self.0.join("lu/a.lock")
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn lock_error_reveals_missing_support() {
    for (error, is_without) in [(Errno::NOLCK, true), (Errno::OPNOTSUPP, true), (Errno::ACCESS, false)] {
        assert_eq!(has_no_locks(&io::Error::from_raw_os_error(error.raw_os_error())), is_without, "{error}");
    }
}

fn lock(folder: &TempDir) -> Option<LockFile> {
    LockFile::lock(&folder.lock()).expect("a lock")
}

#[test]
fn lock_has_one_holder_and_owner_text() {
    let folder = TempDir::new("one");
    assert!(!is_held(&folder.lock()) && !folder.lock().exists());
    let first = lock(&folder).expect("free");
    first
        .write_owner("first, long".into())
        .and_then(|()| first.write_owner("second".into()))
        .expect("signed");
    assert_eq!(std::fs::read_to_string(folder.lock()).expect("there"), "second");
    assert!(is_held(&folder.lock()) && lock(&folder).is_none());
    drop(first);
    assert!(!is_held(&folder.lock()));
    lock(&folder).expect("free again").remove();
    assert!(!folder.lock().exists());
}

/// The references that the watcher holds during a check.
fn look(held: &LockFile) -> (Arc<LockInner>, Option<Arc<File>>) {
    (held.0.clone(), held.0.state().file.clone())
}

#[test]
fn released_lock_is_free_during_check() {
    let folder = TempDir::new("looked-at");
    let first = lock(&folder).expect("free");
    let look_at_first = look(&first);
    drop(first);
    assert!(!is_held(&folder.lock()));
    let second = LockFile::once(&folder.lock()).expect("a lock").expect("free at once");
    let look_at_second = look(&second);
    second.remove();
    assert!(!folder.lock().exists() && LockFile::once(&folder.lock()).expect("a lock").is_some());
    drop((look_at_first, look_at_second));
}

#[test]
fn released_lock_file_is_not_recreated() {
    let folder = TempDir::new("given-up");
    let first = lock(&folder).expect("free");
    let (held, _) = look(&first);
    std::fs::remove_file(folder.lock()).expect("deleted");
    // The watcher has noticed it, and recreates the file while the lock is being released.
    let again = try_lock(&folder.lock());
    first.remove();
    assert!(folder.lock().exists());
    held.relock(again, &held.writing());
    held.check();
    assert!(!folder.lock().exists());
}

#[test]
fn release_does_not_wait_for_dead_file_system() {
    let (answer, answered) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    within(Duration::ZERO, move || {
        begun.send(()).expect("the test goes on");
        _ = answered.recv();
    });
    begins.recv().expect("it was begun");
    drop(answer);
}

#[test]
fn lock_of_removed_file_does_not_count() {
    let folder = TempDir::new("removed");
    let first = lock(&folder).expect("free");
    let waits = File::options().read(true).write(true).open(folder.lock()).expect("there");
    first.remove();
    drop(first);
    waits.try_lock().expect("its holder is gone");
    let second = try_lock(&folder.lock()).expect("a lock").expect("another file");
    assert_ne!(FileId::of_open(&second).expect("open"), FileId::of_open(&waits).expect("open"));
}

#[test]
fn deleted_lock_file_still_excludes_others() {
    let folder = TempDir::new("deleted");
    let _first = lock(&folder).expect("free");
    std::fs::remove_dir_all(&folder.0).expect("deleted");
    // The host lock works without the file.
    assert!(HostLock::take(&folder.lock()).is_err() && is_held(&folder.lock()));
    assert!(lock(&folder).is_none());
}

#[test]
fn deleted_lock_file_is_recreated_and_locked() {
    let folder = TempDir::new("again");
    let first = lock(&folder).expect("free");
    first.write_owner("mine".into()).expect("signed");
    std::fs::remove_dir_all(&folder.0).expect("deleted");
    first.0.check();
    assert_eq!(std::fs::read_to_string(folder.lock()).expect("there"), "mine");
    assert!(try_lock(&folder.lock()).expect("a lock").is_none());
    // Replace the file by a copy, as some editors do.
    std::fs::remove_file(folder.lock())
        .and_then(|()| std::fs::write(folder.lock(), "other"))
        .expect("replaced");
    first.0.check();
    assert_eq!(std::fs::read_to_string(folder.lock()).expect("there"), "mine");
    assert!(try_lock(&folder.lock()).expect("a lock").is_none());
}

#[test]
fn lock_taken_by_other_is_left_alone() {
    let folder = TempDir::new("taken");
    let first = lock(&folder).expect("free");
    std::fs::remove_file(folder.lock()).expect("deleted");
    // As in a container with its own network namespace, which does not see the host lock.
    let other = try_lock(&folder.lock()).expect("a lock").expect("a new file");
    first.0.check();
    assert!(FileId::of_open(&other).expect("open").is_at(folder.lock()), "it stays");
    first.remove();
    assert!(FileId::of_open(&other).expect("open").is_at(folder.lock()), "the file stays");
}
