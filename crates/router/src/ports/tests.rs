use super::*;
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

/// The port of the target of a login over any path.
fn group(tag: u16) -> Result<Option<String>, Error> {
    Ok(Some(format!("group:{tag},iqn.x:y")))
}

fn way(path: &str) -> Way<'_> {
    Way { unit: "r1/a iqn.x:y 0 ", path }
}

fn on_core<T: Send + 'static, W: Future<Output = T> + 'static>(
    test: impl FnOnce() -> W + Send + 'static,
) -> T {
    net::Cores::one().expect("an event loop").wait(0, test).expect("the test")
}

/// An empty folder, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("lunar-ports-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// A session over each path; and the ISIDs that were replaced.
async fn sessions(ports: &Arc<Ports>, paths: &[&str]) -> (Vec<Isid>, Vec<Isid>) {
    let (replaced, mut isids) = (RefCell::new(Vec::new()), Vec::new());
    for path in paths {
        let way = Way { unit: path, path };
        let owes = ports.settle(way, LONG, async |old| {
            replaced.borrow_mut().push(old.isid);
            group(1)
        });
        assert_eq!(owes.await, Ok(false), "{path}");
        let isid = ports.isid(way, NAME).await;
        ports.is_at(way, isid, group(1).expect("a port")).await;
        isids.push(isid);
    }
    let mut replaced = replaced.into_inner();
    replaced.sort_unstable();
    isids.sort_unstable();
    (isids, replaced)
}

/// Three sessions of a process, one of them over another path; and the ISIDs that it has replaced.
async fn run(folder: PathBuf, router: &str) -> (Vec<Isid>, Vec<Isid>) {
    sessions(&Routers::kept_in(&folder).of(router), &[PATH, PATH, "r1/b"]).await
}

fn with_old() -> Arc<Ports> {
    let paths = record::read(&format!("800000000001 {PATH}\n")).0;
    Arc::new(Ports { paths: Mutex::new(paths), ..Ports::default() })
}

#[test]
fn a_restart_keeps_the_isids_and_replaces_their_sessions() {
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
fn a_second_server_leaves_the_sessions_of_the_first_alone() {
    let folder = Folder::new("second");
    let at = folder.0.clone();
    let (first, second, again) = on_core(move || async move {
        let ports = Routers::kept_in(&at).of("r1");
        let first = sessions(&ports, &[PATH]).await;
        let second = run(at.clone(), "r1").await;
        drop(ports);
        (first, second, run(at, "r1").await)
    });
    assert!(second.1.is_empty() && second.0.iter().all(|isid| !first.0.contains(isid)), "{second:02x?}");
    assert_eq!(again.1, first.0, "the record is that of the first");
}

#[test]
fn routers_of_two_servers_keep_records_of_their_own() {
    let folder = Folder::new("two");
    let at = folder.0.clone();
    on_core(move || async move {
        let servers = ["r1", "r2"].map(|router| Routers::kept_in(&at).of(router));
        let mut taken = Vec::new();
        for ports in servers.iter().chain(&servers) {
            taken.push(sessions(ports, &[PATH]).await.0[0]);
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
fn a_record_that_cannot_be_read_whole_stays_as_it_is() {
    let good = format!("800000000001 {PATH}\n");
    for (text, replaced) in
        [([b"80\xff".as_slice(), good.as_bytes()].concat(), vec![]), ((good + "8000").into(), vec![OLD])]
    {
        let folder = Folder::new("damaged");
        let file = folder.0.join("r1.isids");
        fs::write(&file, &text).expect("a file");
        let at = folder.0.clone();
        assert_eq!(on_core(move || run(at, "r1")).1, replaced);
        assert_eq!(fs::read(&file).expect("it is there"), text);
    }
}

/// Settles over a path, as a login over it ends; then a session over it.
async fn session(
    ports: &Arc<Ports>,
    path: &str,
    login: Result<Option<String>, Error>,
) -> Result<Isid, Error> {
    assert!(!ports.settle(way(path), LONG, async |_| login.clone()).await?, "{path}");
    Ok(ports.isid(way(path), NAME).await)
}

#[test]
fn a_path_whose_old_sessions_stay_is_not_opened() {
    let ports = with_old();
    on_core(move || async move {
        let away = Err(Error::new(Kind::Unreachable, "away"));
        assert_eq!(session(&ports, PATH, away.clone()).await, away.map(|_| OLD));
        // A record of an older version has no port: a login over another path proves nothing.
        assert!(session(&ports, BESIDE, group(1)).await.is_err());
        assert_eq!(session(&ports, PATH, group(1)).await, Ok(OLD));
        let none = async |_: &Old| panic!("there is none");
        assert_eq!(ports.settle(way(BESIDE), LONG, none).await, Ok(false));
        assert!(ports.isid(way(BESIDE), NAME).await != OLD, "each path has its own ISIDs");
        assert!(!ports.reserve(BESIDE, OLD), "it is in use");
    });
}

/// A record of an old session over the path with this name, at portal group 1.
fn with_recorded() -> Arc<Ports> {
    let paths = record::read(&format!("800000000001 as={NAME} at=group:1,iqn.x:y {PATH}\n")).0;
    Arc::new(Ports { paths: Mutex::new(paths), ..Ports::default() })
}

#[test]
fn a_login_at_another_portal_group_ends_no_old_session() {
    for (tag, is_ended) in [(1, true), (2, false)] {
        for path in [BESIDE, PATH] {
            let ports = with_recorded();
            on_core(move || async move {
                let log_in = async |old: &Old| {
                    assert_eq!(old.initiator.as_deref(), Some(NAME));
                    group(tag)
                };
                let settled = ports.settle(way(path), LONG, log_in).await;
                assert_eq!(settled.is_ok(), is_ended, "{tag} {path} {settled:?}");
                assert_eq!(ports.left(way(path).unit).is_empty(), is_ended);
            });
        }
    }
}

#[test]
fn a_reset_ends_all_old_sessions_once_logins_had_time() {
    let ports = with_recorded();
    on_core(move || async move {
        let elsewhere = async |_: &Old| group(2);
        assert!(ports.settle(way(BESIDE), LONG, elsewhere).await.is_err());
        assert_eq!(ports.settle(way(BESIDE), NO_WAIT, elsewhere).await, Ok(true));
        ports.turn(way(BESIDE)).await.expect("old sessions").has_failed();
        assert!(ports.settle(way(BESIDE), LONG, elsewhere).await.is_err(), "the next try has to wait");
        let turn = ports.turn(way(BESIDE)).await.expect("old sessions");
        let mut other = Box::pin(ports.turn(way(PATH)));
        let is_first = std::future::poll_fn(|cx| Poll::Ready(other.as_mut().poll(cx).is_pending()));
        assert!(is_first.await, "one at a time");
        turn.has_ended().await;
        assert!(other.await.is_none(), "nothing is left");
        assert_eq!(ports.settle(way(PATH), LONG, elsewhere).await, Ok(false));
    });
}

#[test]
fn a_session_that_never_logged_in_has_left_nothing() {
    let (paths, bad) = record::read(&format!("800000000001 as={NAME} {PATH}\n"));
    let ports = Ports { paths: Mutex::new(paths), ..Ports::default() };
    assert_eq!((ports.left(way(PATH).unit), bad), (Vec::new(), None));
}

/// A login that stalls, or was given up, would end the session that has its ISID when it is carried out.
#[test]
fn an_isid_that_another_path_logs_in_with_is_not_used() {
    for is_given_up in [false, true] {
        let ports = with_recorded();
        on_core(move || async move {
            let (goes_on, ends) = flume::bounded::<()>(1);
            let stalls = async |_: &Old| {
                _ = ends.recv_async().await;
                group(1)
            };
            let mut beside = Box::pin(ports.settle(way(BESIDE), LONG, stalls));
            let begun = std::future::poll_fn(|cx| Poll::Ready(beside.as_mut().poll(cx).is_pending()));
            assert!(begun.await, "the login stalls");
            assert!(session(&ports, PATH, group(1)).await.is_ok_and(|isid| isid != OLD), "{is_given_up}");
            if is_given_up {
                drop(beside);
            } else {
                goes_on.send(()).expect("it waits");
                assert_eq!(beside.await, Ok(false));
            }
            assert_eq!(ports.isid(way(PATH), NAME).await == OLD, !is_given_up);
            // Nothing is left to be replaced: nobody waits for who replaces it.
            for _ in 0..2 {
                let none = async |_: &Old| panic!("there is none");
                assert_eq!(ports.settle(way(BESIDE), LONG, none).await, Ok(false));
            }
        });
    }
}

#[test]
fn a_record_is_bounded_and_lines_that_are_none_are_left_out() {
    let lines: String = (0..2 * MOST).map(|n| format!("80000000{n:04x} {PATH}\n")).collect();
    let (paths, bad) = record::read(&format!("{lines}+80000000001 x\nno line\n8000000000 x\n"));
    assert_eq!((paths.keys().collect::<Vec<_>>(), bad), (vec![&PATH.to_owned()], Some(2 * MOST + 1)));
    assert_eq!(paths[PATH].all.len(), MOST);
    let ports = Ports { paths: Mutex::new(paths), ..Ports::default() };
    ports.end(|_, _| true);
    let isids: BTreeSet<Isid> = (0..2 * MOST).map(|_| ports.take(PATH, NAME)).collect();
    assert_eq!((isids.len(), ports.lock()[PATH].all.len()), (2 * MOST, MOST));
}
