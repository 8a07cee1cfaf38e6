//! Routing loops: each target of a router reports the router targets behind it. No target uses an upstream that leads
//! back to itself.

use lunar_initiator::{Discovery, Error, ErrorCode, Options, Portal, Session};
use sha2::{Digest, Sha256};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The text key that requests the routes behind the target of the session, or behind a named target.
pub const KEY: &str = "X-org.lunar.route";
/// The value of the request.
const ASK: &str = "?";
/// The maximum number of names in a response.
const MAX: usize = 256;
/// The number of random bytes from which names are derived.
const OWN_LEN: usize = 16;
/// The length of a name in characters.
const NAME_LEN: usize = 16;

/// The name of an upstream, in this module and in errors.
pub fn name(router: &str, upstream: &str) -> String {
    format!("upstream {upstream} of router {router}")
}

/// The routes behind the targets of this router.
#[derive(Default)]
pub struct LoopDetector {
    /// The file with the random bytes. None: names are valid only in this process.
    file: Option<PathBuf>,
    own: OnceLock<[u8; OWN_LEN]>,
    routes: Mutex<BTreeMap<String, Route>>,
}

/// An upstream.
#[derive(Default)]
struct Route {
    /// The targets of this router that use it.
    targets: BTreeSet<String>,
    /// The names of router targets behind each of its targets.
    behind: BTreeMap<String, BTreeSet<String>>,
    /// Its targets that do not answer the request, and thus are not routers.
    silent: BTreeSet<String>,
}

/// A target of an upstream.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamTarget<'a> {
    /// The upstream, by its [`name`].
    pub upstream: &'a str,
    /// The target.
    pub target: &'a str,
    /// Whether it is served under its own name, once it is accepted.
    pub keeps_name: bool,
}

impl LoopDetector {
    /// A detector with names that survive a restart, because other routers may remember them. The file is read or
    /// created when a router first needs it. If it cannot be written, names are valid only in this process.
    pub fn kept_in(file: &Path) -> LoopDetector {
        LoopDetector { file: Some(file.to_owned()), ..LoopDetector::default() }
    }

    /// The random bytes that make the names of this router unique.
    fn own(&self) -> &[u8; OWN_LEN] {
        self.own.get_or_init(|| self.file.as_deref().map_or_else(random, kept))
    }

    fn routes(&self) -> MutexGuard<'_, BTreeMap<String, Route>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a target of this router.
    fn name(&self, target: &str) -> String {
        let hash = Sha256::new().chain_update(self.own()).chain_update(target).finalize();
        let mut text: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        text.truncate(NAME_LEN);
        text
    }

    /// The response to a text key in a session with `target`, or None if it is another key.
    pub fn answer(&self, target: &str, key: &str, value: &str) -> Option<String> {
        (key == KEY && value == ASK).then(|| self.route_names(target))
    }

    /// The same in a discovery session, where the value names the target. A target that waits for its upstream
    /// accepts no login, so it cannot be asked in a session.
    pub fn answer_in_discovery(&self, key: &str, target: &str) -> Option<String> {
        let is_ours = || self.routes().values().any(|route| route.targets.contains(target));
        (key == KEY && is_ours()).then(|| self.route_names(target))
    }

    fn route_names(&self, target: &str) -> String {
        let routes = self.routes();
        let used = routes.values().filter(|route| route.targets.contains(target));
        let behind: BTreeSet<&String> = used.flat_map(|route| route.behind.values().flatten()).collect();
        let own = self.name(target);
        let all: Vec<&str> = std::iter::once(&own).chain(behind).take(MAX).map(String::as_str).collect();
        all.join(",")
    }

    /// Sets the targets of this router that use an upstream.
    pub fn uses(&self, upstream: &str, targets: BTreeSet<String>) {
        // Before the request is sent: reading the file may be slow.
        self.own();
        self.routes().entry(upstream.to_owned()).or_default().targets = targets;
    }

    /// Records that an upstream is no longer used.
    pub fn forget(&self, upstream: &str) {
        self.routes().remove(upstream);
    }

    /// Records that a target rejected the request, or ended the session. It is asked again only after an outage.
    pub fn record_no_router(&self, there: UpstreamTarget<'_>) {
        let mut routes = self.routes();
        let route = routes.entry(there.upstream.to_owned()).or_default();
        route.behind.remove(there.target);
        route.silent.insert(there.target.to_owned());
    }

    /// Records that an upstream is down: when it returns, it may be a router.
    pub fn record_outage(&self, upstream: &str) {
        self.routes().entry(upstream.to_owned()).or_default().silent.clear();
    }

    fn is_silent(&self, there: UpstreamTarget<'_>) -> bool {
        self.routes().get(there.upstream).is_some_and(|route| route.silent.contains(there.target))
    }

    /// Requests the routes behind a target of an upstream, and records them.
    ///
    /// Two targets may become each other's upstream at the same time. Each records its route before it asks again, so
    /// at least one of them sees itself.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when a target that uses the upstream is behind it. Those of the session when
    /// the target does not answer or rejects the request.
    pub async fn check(&self, there: UpstreamTarget<'_>, session: &Session) -> Result<(), Error> {
        if self.is_silent(there) {
            return Ok(());
        }
        for _ in 0..2 {
            let answer = session.text(&[(KEY, ASK)]).await?;
            self.learn(there, value_of(&answer))?;
        }
        Ok(())
    }

    /// The same for a target that accepts no login. Otherwise two routers could wait for each other forever.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when a target that uses the upstream is behind it.
    pub async fn check_in_discovery(
        &self,
        there: UpstreamTarget<'_>,
        portal: Portal,
        options: &Options,
    ) -> Result<(), Error> {
        let Ok(mut discovery) = Discovery::open(portal, options).await else { return Ok(()) };
        let answer = discovery.text(&[(KEY, there.target)]).await.unwrap_or_default();
        // The response is complete: a missing logout response does not matter.
        _ = discovery.close().await;
        self.learn(there, value_of(&answer))
    }

    /// Records the routes behind a target of an upstream.
    fn learn(&self, there: UpstreamTarget<'_>, names: &str) -> Result<(), Error> {
        let is_name = |name: &&str| name.len() == NAME_LEN && name.bytes().all(|b| b.is_ascii_hexdigit());
        let behind: BTreeSet<String> =
            names.split(',').filter(is_name).take(MAX).map(str::to_owned).collect();
        let mut routes = self.routes();
        let route = routes.entry(there.upstream.to_owned()).or_default();
        let itself = there.keeps_name.then_some(there.target);
        let mut users = route.targets.iter().map(String::as_str).chain(itself);
        if let Some(target) = users.find(|target| behind.contains(&self.name(target))) {
            let what = format!(
                "routing loop: {} leads back to the target {target}, which itself uses this upstream",
                there.upstream
            );
            route.behind.remove(there.target);
            let hint = "remove the upstream from the configuration of one router in the loop";
            return Err(Error::new(ErrorCode::InvalidArgument, what).with_hint(hint));
        }
        route.behind.insert(there.target.to_owned(), behind);
        Ok(())
    }
}

/// Random bytes: hashes with the process's random keys.
fn random() -> [u8; OWN_LEN] {
    let mut own = [0; OWN_LEN];
    let random = || RandomState::new().hash_one(()).to_be_bytes();
    own.as_chunks_mut().0.iter_mut().for_each(|part| *part = random());
    own
}

/// The bytes in a file. If it has none, random bytes, which are written to it.
fn kept(file: &Path) -> [u8; OWN_LEN] {
    lunar_target::remove_leftovers(file);
    if let Some(own) = fs::read(file).ok().and_then(|bytes| bytes.try_into().ok()) {
        return own;
    }
    let own = random();
    if let Err(e) = lunar_target::replace_file(file, &own) {
        tracing::warn!(
            "{}: cannot write the identifier of this server: {e}; after a restart, routing loops are detected late",
            file.display()
        );
    }
    own
}

/// The value of this module's key in a response.
fn value_of(answer: &[(String, String)]) -> &str {
    answer.iter().find(|(key, _)| key == KEY).map_or("", |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A router with one target that uses one upstream.
    fn router() -> LoopDetector {
        let loops = LoopDetector::default();
        loops.uses("u", ["t".to_owned()].into());
        loops
    }

    /// A target of the upstream.
    const THERE: UpstreamTarget<'_> = UpstreamTarget { upstream: "u", target: "there", keeps_name: false };

    fn route_names(router: &LoopDetector, target: &str) -> String {
        router.answer(target, KEY, ASK).unwrap()
    }

    #[test]
    fn routes_are_reported_and_a_loop_is_rejected() {
        let (a, b, c) = (router(), router(), router());
        b.learn(THERE, &route_names(&c, "t")).unwrap();
        assert_eq!(route_names(&b, "t"), format!("{},{}", b.name("t"), c.name("t")));
        a.learn(THERE, &route_names(&b, "t")).unwrap();
        assert_eq!(c.learn(THERE, &route_names(&a, "t")).unwrap_err().code, ErrorCode::InvalidArgument);
        assert_eq!(route_names(&c, "t"), c.name("t"), "a looping route is not recorded");
        b.forget("u");
        assert_eq!(route_names(&b, "t"), b.name("t"));
    }

    #[test]
    fn mutual_routing_of_disks_is_no_loop() {
        let (a, b) = (router(), router());
        assert!(a.learn(THERE, &route_names(&b, "disk")).is_ok());
        assert!(b.learn(THERE, &route_names(&a, "disk")).is_ok());
    }

    #[test]
    fn target_that_keeps_its_name_does_not_come_back_under_it() {
        let (a, b) = (LoopDetector::default(), LoopDetector::default());
        let disk = UpstreamTarget { target: "disk", keeps_name: true, ..THERE };
        b.uses("u", ["disk".to_owned()].into());
        b.learn(disk, &route_names(&a, "disk")).unwrap();
        assert_eq!(a.learn(disk, &route_names(&b, "disk")).unwrap_err().code, ErrorCode::InvalidArgument);
        assert!(a.learn(UpstreamTarget { target: "other", ..disk }, &route_names(&b, "other")).is_ok());
    }

    #[test]
    fn discovery_reports_only_routed_targets() {
        let a = router();
        assert_eq!(a.answer_in_discovery(KEY, "t"), a.answer("t", KEY, ASK));
        assert_eq!(a.answer_in_discovery(KEY, "disk"), None);
        assert_eq!(a.answer_in_discovery("X-org.lunar.other", "t"), None);
    }

    #[test]
    fn routes_behind_each_target_are_reported() {
        let (a, b) = (router(), LoopDetector::default());
        for target in ["x", "y"] {
            a.learn(UpstreamTarget { target, ..THERE }, &route_names(&b, target)).unwrap();
        }
        let all = route_names(&a, "t");
        assert!(all.contains(&b.name("x")) && all.contains(&b.name("y")), "{all}");
    }

    #[test]
    fn simultaneous_queries_find_the_loop() {
        let (a, b) = (router(), router());
        // Both ask before either has recorded its route, then both ask again.
        let (first_a, first_b) = (route_names(&a, "t"), route_names(&b, "t"));
        assert!(a.learn(THERE, &first_b).is_ok() && b.learn(THERE, &first_a).is_ok());
        assert!(a.learn(THERE, &route_names(&b, "t")).is_err());
    }

    #[test]
    fn names_are_the_same_after_a_restart_and_no_others() {
        let folder = std::env::temp_dir().join(format!("lunar-loops-{}", std::process::id()));
        let file = folder.join("router.id");
        let first = LoopDetector::kept_in(&file);
        assert_eq!(LoopDetector::kept_in(&file).name("t"), first.name("t"));
        fs::write(&file, "torn").unwrap();
        let other = LoopDetector::kept_in(&file);
        assert_ne!(other.name("t"), first.name("t"));
        assert_eq!(LoopDetector::kept_in(&file).name("t"), other.name("t"));
        fs::remove_dir_all(&folder).unwrap();
        assert_ne!(LoopDetector::default().name("t"), LoopDetector::default().name("t"));
        assert_ne!(other.name("t"), other.name("u"));
        assert_eq!(other.name("t").len(), NAME_LEN);
    }

    #[test]
    fn identity_is_kept_once_a_reload_brings_a_router() {
        let folder = std::env::temp_dir().join(format!("lunar-loops-late-{}", std::process::id()));
        let file = folder.join("router.id");
        let without_routers = LoopDetector::kept_in(&file);
        assert!(!file.exists(), "the file is not needed yet");
        without_routers.uses("u", BTreeSet::from(["t".to_owned()]));
        assert!(file.exists());
        assert_eq!(LoopDetector::kept_in(&file).name("t"), without_routers.name("t"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn link_in_place_of_the_identity_is_not_followed() {
        let folder = std::env::temp_dir().join(format!("lunar-loops-link-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, victim) = (folder.join("router.id"), folder.join("victim"));
        fs::write(&victim, "kept").unwrap();
        std::os::unix::fs::symlink(&victim, &file).unwrap();
        let first = LoopDetector::kept_in(&file);
        first.uses("u", BTreeSet::new());
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
        assert_eq!(LoopDetector::kept_in(&file).name("t"), first.name("t"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn non_router_is_asked_again_after_an_outage() {
        let a = router();
        a.record_no_router(THERE);
        assert!(a.is_silent(THERE) && !a.is_silent(UpstreamTarget { target: "other", ..THERE }));
        a.record_outage("u");
        assert!(!a.is_silent(THERE));
    }

    #[test]
    fn other_keys_and_answers_mean_nothing() {
        let a = router();
        assert_eq!(a.answer("t", "X-org.lunar.other", ASK), None);
        assert_eq!(a.answer("t", KEY, "x"), None);
        for answer in ["", "NotUnderstood", "Reject", ",,,", "0123456789abcdef0", "not a name, it is"] {
            assert!(a.learn(THERE, answer).is_ok());
        }
        assert_eq!(route_names(&a, "t"), a.name("t"));
    }
}
