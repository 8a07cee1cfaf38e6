use super::*;
use lunar_initiator::SessionHooks;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::task::Poll;

const PATH: &str = "r1/a iqn.x:y 0 iscsi://192.0.2.1/iqn.x:y/0";
const BESIDE: &str = "r1/a iqn.x:y 0 iscsi://192.0.2.2/iqn.x:y/0";
const OLD: Isid = [0x80, 0, 0, 0, 0, 1];
const NAME: &str = "iqn.2026-11.org.example:host";
const NO_WAIT: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(3600);

/// The target port of a login over any path.
fn group(tag: u16) -> Result<Option<String>, Error> {
    Ok(Some(format!("group:{tag},iqn.x:y")))
}

fn key(path: &str) -> PathKey<'_> {
    PathKey { unit: "r1/a iqn.x:y 0 ", path, user: None }
}

fn on_core<T: Send + 'static, W: Future<Output = T> + 'static>(
    test: impl FnOnce() -> W + Send + 'static,
) -> T {
    lunar_runtime::Cores::one().expect("an event loop").wait(0, test).expect("the test panicked")
}

/// An empty directory that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("lunar-ports-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a new directory");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens a session over each path. Returns their ISIDs, and those that were replaced.
async fn sessions(isids: &Arc<RouterIsids>, paths: &[&str]) -> (Vec<Isid>, Vec<Isid>) {
    let (replaced, mut all_isids) = (RefCell::new(Vec::new()), Vec::new());
    for path in paths {
        let key = PathKey { unit: path, path, user: None };
        let owes = isids.settle(key, LONG, async |old| {
            replaced.borrow_mut().push(old.isid);
            group(1)
        });
        assert_eq!(owes.await, Ok(false), "{path}");
        let lease = isids.isid(key, NAME).await;
        isids.moves(path, lease.isid(), group(1).expect("a port"), 0);
        isids.save().await;
        all_isids.push(lease.isid());
    }
    let mut replaced = replaced.into_inner();
    replaced.sort_unstable();
    all_isids.sort_unstable();
    (all_isids, replaced)
}

/// The sessions of one process, on two paths. Returns their ISIDs, and those that it replaced.
async fn run(folder: PathBuf, router: &str) -> (Vec<Isid>, Vec<Isid>) {
    sessions(&IsidStore::kept_in(&folder).of(router), &[PATH, PATH, "r1/b"]).await
}

fn with_old() -> Arc<RouterIsids> {
    let paths = record::read(&format!("800000000001 {PATH}\n")).0;
    Arc::new(RouterIsids { paths: Mutex::new(paths), ..RouterIsids::default() })
}

#[test]
fn restart_keeps_the_isids_and_replaces_their_sessions() {
    let (folder, elsewhere) = (Folder::new("restart"), Folder::new("elsewhere"));
    let (one, other) = (folder.0.clone(), elsewhere.0.clone());
    let (first, again, another) = on_core(move || async move {
        (run(one.clone(), "r1").await, run(one, "r1").await, run(other, "r1").await)
    });
    assert_eq!((first.1.len(), first.0[0] == first.0[1]), (0, false));
    assert_eq!(again, (first.0.clone(), first.0.clone()));
    assert!(another.0.iter().all(|isid| !first.0.contains(isid)) && another.1.is_empty());
}

#[test]
fn second_server_leaves_the_sessions_of_the_first_alone() {
    let folder = Folder::new("second");
    let at = folder.0.clone();
    let (first, second, again) = on_core(move || async move {
        let isids = IsidStore::kept_in(&at).of("r1");
        let first = sessions(&isids, &[PATH]).await;
        let second = run(at.clone(), "r1").await;
        drop(isids);
        (first, second, run(at, "r1").await)
    });
    assert!(second.1.is_empty() && second.0.iter().all(|isid| !first.0.contains(isid)), "{second:02x?}");
    assert_eq!(again.1, first.0, "the record has the sessions of the first server");
}

#[test]
fn routers_of_two_servers_keep_records_of_their_own() {
    let folder = Folder::new("two");
    let at = folder.0.clone();
    on_core(move || async move {
        let servers = ["r1", "r2"].map(|router| IsidStore::kept_in(&at).of(router));
        let mut taken = Vec::new();
        for isids in servers.iter().chain(&servers) {
            taken.push(sessions(isids, &[PATH]).await.0[0]);
        }
        drop(servers);
        for (at_first, router) in ["r1", "r2"].into_iter().enumerate() {
            let mut own = vec![taken[at_first], taken[at_first + 2]];
            own.sort_unstable();
            assert_eq!(run(at.clone(), router).await.1, own, "{router}");
        }
    });
}

#[test]
fn record_that_cannot_be_read_whole_stays_as_it_is() {
    let good = format!("800000000001 {PATH}\n");
    for (text, replaced) in
        [([b"80\xff".as_slice(), good.as_bytes()].concat(), vec![]), ((good + "8000").into(), vec![OLD])]
    {
        let folder = Folder::new("damaged");
        let file = folder.0.join("r1.isids");
        fs::write(&file, &text).expect("a file");
        let at = folder.0.clone();
        assert_eq!(on_core(move || run(at, "r1")).1, replaced);
        assert_eq!(fs::read(&file).expect("the record is readable"), text);
    }
}

/// Settles a path with this result of the login, and leases an ISID for a session.
async fn session(
    isids: &Arc<RouterIsids>,
    path: &str,
    login: Result<Option<String>, Error>,
) -> Result<Isid, Error> {
    assert!(!isids.settle(key(path), LONG, async |_| login.clone()).await?, "{path}");
    Ok(isids.isid(key(path), NAME).await.isid())
}

#[test]
fn path_whose_old_sessions_stay_is_not_opened() {
    let isids = with_old();
    on_core(move || async move {
        let away = Err(Error::new(ErrorCode::Unreachable, "away"));
        assert_eq!(session(&isids, PATH, away.clone()).await, away.map(|_| OLD));
        // A record of an older version has no port, so a login over another path proves nothing.
        assert!(session(&isids, BESIDE, group(1)).await.is_err());
        assert_eq!(session(&isids, PATH, group(1)).await, Ok(OLD));
        let none = async |_: &OldSession| panic!("no old session is left");
        assert_eq!(isids.settle(key(BESIDE), LONG, none).await, Ok(false));
        assert!(isids.isid(key(BESIDE), NAME).await.isid() != OLD, "each path has its own ISIDs");
        assert!(!isids.reserve(BESIDE, OLD), "the ISID is in use");
    });
}

/// The record of an old session at portal group 1.
fn with_recorded() -> Arc<RouterIsids> {
    let paths = record::read(&format!("800000000001 as={NAME} at=group:1,iqn.x:y {PATH}\n")).0;
    Arc::new(RouterIsids { paths: Mutex::new(paths), ..RouterIsids::default() })
}

#[test]
fn login_at_another_portal_group_ends_no_old_session() {
    for (tag, is_ended) in [(1, true), (2, false)] {
        for path in [BESIDE, PATH] {
            let isids = with_recorded();
            on_core(move || async move {
                let log_in = async |old: &OldSession| {
                    assert_eq!(old.initiator.as_deref(), Some(NAME));
                    group(tag)
                };
                let settled = isids.settle(key(path), LONG, log_in).await;
                assert_eq!(settled.is_ok(), is_ended, "{tag} {path} {settled:?}");
                assert_eq!(isids.left(key(path).unit).is_empty(), is_ended);
            });
        }
    }
}

#[test]
fn reset_ends_all_old_sessions_once_logins_had_time() {
    let isids = with_recorded();
    on_core(move || async move {
        let elsewhere = async |_: &OldSession| group(2);
        assert!(isids.settle(key(BESIDE), LONG, elsewhere).await.is_err());
        assert_eq!(isids.settle(key(BESIDE), NO_WAIT, elsewhere).await, Ok(true));
        isids.acquire_reset(key(BESIDE)).await.expect("old sessions").record_failure();
        assert!(isids.settle(key(BESIDE), LONG, elsewhere).await.is_err(), "the next attempt is not due yet");
        let guard = isids.acquire_reset(key(BESIDE)).await.expect("old sessions");
        let mut other = Box::pin(isids.acquire_reset(key(PATH)));
        let is_first = std::future::poll_fn(|cx| Poll::Ready(other.as_mut().poll(cx).is_pending()));
        assert!(is_first.await, "one reset at a time");
        guard.record_reset().await;
        assert!(other.await.is_none(), "no old session is left");
        assert_eq!(isids.settle(key(PATH), LONG, elsewhere).await, Ok(false));
    });
}

/// The sessions as a process finds them after a restart.
fn after_restart(isids: &RouterIsids) -> RouterIsids {
    let (paths, bad) = record::read(&record::written(&isids.lock()));
    assert_eq!(bad, None);
    RouterIsids { paths: Mutex::new(paths), ..RouterIsids::default() }
}

#[test]
fn session_that_was_never_there_has_left_nothing() {
    on_core(|| async {
        let isids = Arc::new(RouterIsids::default());
        let lease = isids.isid(key(PATH), NAME).await;
        let left = after_restart(&isids).left(key(PATH).unit);
        assert_eq!(
            left.iter().map(|old| old.port()).collect::<Vec<_>>(),
            [None],
            "the session may have logged in"
        );
        isids.record_failed_login(key(PATH), lease.isid()).await;
        assert!(after_restart(&isids).left(key(PATH).unit).is_empty());
    });
}

#[test]
fn session_without_a_recorded_port_has_left_something() {
    let (paths, bad) = record::read(&format!("800000000001 as={NAME} {PATH}\n"));
    let isids = RouterIsids { paths: Mutex::new(paths), ..RouterIsids::default() };
    let left = isids.left(key(PATH).unit);
    assert_eq!((left.len(), bad), (1, None));
    assert!(
        left[0].is_ended_at(key(PATH), Some("group:1,iqn.x:y")) && !left[0].is_ended_at(key(BESIDE), None)
    );
}

#[test]
fn session_that_ended_in_good_order_has_left_nothing() {
    for is_settled in [true, false] {
        on_core(move || async move {
            let isids = Arc::new(RouterIsids::default());
            let nexus = isids.nexus([0x80, 0, 0, 0, 0, 9]);
            let lease = isids.isid(key(PATH), NAME).await;
            isids.moves(PATH, lease.isid(), group(1).expect("a port"), nexus.id());
            nexus.ended(is_settled);
            let next = after_restart(&isids);
            assert_eq!(next.left(key(PATH).unit).is_empty(), is_settled);
            let isid = lease.isid();
            assert!(isids.take(key(PATH), NAME).isid() != isid, "the ISID is still leased");
            drop(lease);
            assert_eq!(isids.take(key(PATH), NAME).isid() == isid, is_settled);
            assert_eq!(
                next.take(key(PATH), NAME).isid() == isid,
                is_settled,
                "the ISID is reused, because targets may know it"
            );
        });
    }
}

/// The target ports of the sessions that a process finds after a restart.
fn ports_left(isids: &RouterIsids) -> Vec<Option<String>> {
    after_restart(isids).left(key(PATH).unit).into_iter().map(|old| old.at).collect()
}

#[test]
fn port_stays_recorded_while_commands_are_left_there() {
    on_core(|| async {
        let isids = Arc::new(RouterIsids::default());
        let nexus = isids.nexus([0x80, 0, 0, 0, 0, 9]);
        let at = |tag| group(tag).expect("a port");
        let lease = isids.isid(key(PATH), NAME).await;
        isids.moves(PATH, lease.isid(), at(1), nexus.id());
        nexus.logged_in_again(at(2), true).await;
        nexus.logged_in_again(at(2), true).await;
        assert_eq!(ports_left(&isids), [at(1), at(2)]);
        nexus.logged_in_again(at(3), false).await;
        assert_eq!(ports_left(&isids), [at(3)]);
        nexus.logged_in_again(at(1), true).await;
        nexus.ended(true);
        assert!(ports_left(&isids).is_empty());
    });
}

/// If the user is part of a session's identity, a login of another user does not end it.
#[test]
fn login_of_another_user_ends_no_old_session() {
    for (user, is_ended) in [(Some("alice"), true), (Some("bob"), false), (None, false)] {
        let line = format!("800000000001 as={NAME} user=alice at=group:1,iqn.x:y {PATH}\n");
        let isids =
            Arc::new(RouterIsids { paths: Mutex::new(record::read(&line).0), ..RouterIsids::default() });
        on_core(move || async move {
            let key = PathKey { user, ..key(PATH) };
            let settled = isids.settle(key, LONG, async |_| group(1)).await;
            assert_eq!((settled.is_ok(), isids.left(key.unit).is_empty()), (is_ended, is_ended), "{user:?}");
            assert_eq!(isids.settle(key, NO_WAIT, async |_| group(1)).await, Ok(!is_ended), "{user:?}");
        });
    }
}

#[test]
fn record_that_cannot_be_written_is_tried_again() {
    let folder = Folder::new("full");
    let (file, parent) = (folder.0.join("r1.isids"), folder.0.clone());
    on_core(move || async move {
        let isids = IsidStore::kept_in(&parent).of("r1");
        sessions(&isids, &[PATH]).await;
        // A directory cannot be replaced by a file, not even by root.
        fs::remove_file(&file).expect("the record is removed");
        fs::create_dir(&file).expect("a new directory");
        let lease = isids.isid(key(BESIDE), NAME).await;
        assert!(!isids.writes().await);
        fs::remove_dir(&file).expect("the folder");
        isids.save().await;
        let text = fs::read_to_string(&file).expect("the record is readable");
        let digits: String = lease.isid().iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(text.contains(&digits), "{text}");
    });
}

#[test]
fn record_whose_lock_cannot_be_taken_stays_as_it_is() {
    let folder = Folder::new("unlockable");
    fs::create_dir(folder.0.join("r1.isids.lock")).expect("a new directory");
    let (file, at) = (folder.0.join("r1.isids"), folder.0.clone());
    let text = format!("800000000001 {PATH}\n");
    fs::write(&file, &text).expect("the record is written");
    assert!(on_core(move || run(at, "r1")).1.is_empty(), "the sessions may be alive");
    assert_eq!(fs::read_to_string(&file).expect("the record is readable"), text);
}

/// A stalled or abandoned login may be executed later, and would then end a session that uses its ISID.
#[test]
fn isid_that_another_path_logs_in_with_is_not_used() {
    for is_given_up in [false, true] {
        let isids = with_recorded();
        on_core(move || async move {
            let (goes_on, ends) = flume::bounded::<()>(1);
            let stalls = async |_: &OldSession| {
                _ = ends.recv_async().await;
                group(1)
            };
            let mut beside = Box::pin(isids.settle(key(BESIDE), LONG, stalls));
            let begun = std::future::poll_fn(|cx| Poll::Ready(beside.as_mut().poll(cx).is_pending()));
            assert!(begun.await, "the login stalls");
            assert!(session(&isids, PATH, group(1)).await.is_ok_and(|isid| isid != OLD), "{is_given_up}");
            if is_given_up {
                drop(beside);
            } else {
                goes_on.send(()).expect("the login is waiting");
                assert_eq!(beside.await, Ok(false));
            }
            assert_eq!(isids.isid(key(PATH), NAME).await.isid() == OLD, !is_given_up);
            // No old session is left, so a caller does not wait for a replacement.
            for _ in 0..2 {
                let none = async |_: &OldSession| panic!("no old session is left");
                assert_eq!(isids.settle(key(BESIDE), LONG, none).await, Ok(false));
            }
        });
    }
}

#[test]
fn record_is_bounded_and_lines_that_are_none_are_left_out() {
    let lines: String = (0..2 * MAX).map(|n| format!("80000000{n:04x} {PATH}\n")).collect();
    let (paths, bad) = record::read(&format!("{lines}+80000000001 x\nno line\n8000000000 x\n"));
    assert_eq!((paths.keys().collect::<Vec<_>>(), bad), (vec![&PATH.to_owned()], Some(2 * MAX + 1)));
    assert_eq!(paths[PATH].all.len(), MAX);
    let isids = RouterIsids { paths: Mutex::new(paths), ..RouterIsids::default() };
    isids.end(|_, _| true);
    let all_isids: BTreeSet<Isid> = (0..2 * MAX).map(|_| isids.take(key(PATH), NAME).isid()).collect();
    assert_eq!((all_isids.len(), isids.lock()[PATH].all.len()), (2 * MAX, MAX));
}
