//! The disk of an attachment: a logical unit on one or several paths.

use super::attachment_record::{AttachmentRecord, PathRecord};
use super::namespace;
use super::path::LunPath;
use crate::exit::{Exit, Failure};
use crate::rbd_image;
use lunar_block::{Backend, RbdBackend};
use lunar_initiator::multipath::{self, LatePath, LunPath as _, Multipath, MultipathOptions};
use lunar_initiator::nvme::{self, NvmeDisk};
use lunar_initiator::{Error, ErrorCode, Lun, Options, SessionInfo, Url};
use lunar_server::attached::{AttachedPath, LeftSession, UNKNOWN_PORT};
use lunar_server::config::attachment::{Attachment, PathPolicy, is_image, of_paths};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Default of `--recovery-timeout`.
pub const DEFAULT_RECOVERY_TIMEOUT: Duration = Duration::from_secs(120);
/// The logical block size of an image of Ceph RBD, in bytes.
const IMAGE_BLOCK_SIZE: u32 = 512;
/// Interval of checks whether capacity and state of a single path have changed.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long the other paths may still open after the first one.
const OTHER_PATHS_TIMEOUT: Duration = Duration::from_secs(1);
/// The time limit of an operation exceeds the recovery timeout by this much.
const OPERATION_MARGIN: Duration = Duration::from_secs(60);

/// An open disk.
pub struct Disk {
    /// Reads and writes its data.
    pub backend: Arc<dyn Backend>,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// The best designator of VPD page 83h, or else the whole page in hexadecimal.
    pub identity: String,
    /// How long I/O waits for a lost connection.
    pub recovery: Duration,
    paths: Vec<Arc<LatePath<LunPath>>>,
    joined: Option<Arc<Multipath>>,
    image: Option<Arc<RbdBackend>>,
    namespace: Option<Arc<NvmeDisk>>,
}

/// Opens the disk, inside an event loop. One open path is enough; the others are retried while the disk is in use.
/// `missing` receives the error of each attempt. Each session is recorded before it is used.
///
/// # Errors
/// The error of the first failed path if none can be opened; an error if the paths lead to different logical units.
pub async fn open(
    attachment: &Attachment,
    record: &Arc<AttachmentRecord>,
    missing: impl Fn(&Error) + Clone + 'static,
) -> Result<Disk, Failure> {
    if let [image] = &*attachment.urls
        && is_image(image)
    {
        return open_image(attachment, image).await;
    }
    if let [url] = &*attachment.urls
        && nvme::is_url(url)
    {
        return open_namespace(attachment, url, missing).await;
    }
    let mut urls = attachment.urls.iter().map(|url| Url::parse(url)).collect::<Result<Vec<Url>, Error>>()?;
    urls.iter().try_for_each(|url| url.check_beside(&urls[0]))?;
    let Some(first) = urls.first_mut() else {
        return Err(Failure::new(
            Exit::Invalid,
            "no URL given",
            "give the URL of a LUN: iscsi://HOST/TARGET/LUN",
        ));
    };
    let recovery = attachment.recovery_timeout.unwrap_or(first.timeouts_mut().recovery);
    let several = urls.len() > 1;
    let mut urls =
        urls.into_iter().map(|url| with_timeouts(url, recovery, several)).collect::<Result<Vec<_>, _>>()?;
    let settings = multipath_settings(&mut urls, recovery, attachment.policy.unwrap_or_default());
    let path = |(at, url): (usize, Url)| {
        let record = PathRecord { record: record.clone(), index: at, url: url.clone() };
        LunPath::new(url, Some(record))
    };
    let paths: Vec<Arc<LatePath<LunPath>>> = urls.into_iter().enumerate().map(path).collect();
    let lun = open_all(&paths, missing).await?;
    let properties = lun.properties();
    let whole = || properties.identity.iter().map(|byte| format!("{byte:02x}")).collect();
    let identity = properties.designator.clone().unwrap_or_else(whole);
    let block_size = lun.block_size();
    let (backend, joined): (Arc<dyn Backend>, _) = if several {
        paths.iter().for_each(|path| path.set_expected(lun.properties().identity, lun.info()));
        let lun_paths = paths.iter().map(|path| path.clone() as Arc<dyn multipath::LunPath>).collect();
        let joined = Multipath::join(lun_paths, settings).await?;
        (joined.clone(), Some(joined))
    } else {
        lunar_runtime::spawn(check_periodically(Arc::downgrade(&lun)));
        (lun, None)
    };
    Ok(Disk { backend, block_size, identity, recovery, paths, joined, image: None, namespace: None })
}

/// Opens an image of Ceph RBD.
async fn open_image(attachment: &Attachment, image: &str) -> Result<Disk, Failure> {
    let recovery = attachment.recovery_timeout.unwrap_or(DEFAULT_RECOVERY_TIMEOUT);
    let image = rbd_image::open(image, |spec| spec.read_only = attachment.read_only).await?;
    let image = image.with_patience(recovery);
    let (identity, image) = (image.identity(), Arc::new(image));
    Ok(Disk {
        backend: image.clone(),
        block_size: IMAGE_BLOCK_SIZE,
        identity,
        recovery,
        paths: Vec::new(),
        joined: None,
        image: Some(image),
        namespace: None,
    })
}

/// Opens an NVMe namespace.
async fn open_namespace(
    attachment: &Attachment,
    url: &str,
    missing: impl Fn(&Error) + Clone + 'static,
) -> Result<Disk, Failure> {
    let (disk, recovery) = namespace::open(attachment, url, missing).await?;
    let namespace = disk.namespace();
    Ok(Disk {
        backend: disk.backend(),
        block_size: namespace.block_size(),
        identity: namespace.properties().identity.to_string(),
        recovery,
        paths: Vec::new(),
        joined: None,
        image: None,
        namespace: Some(Arc::new(disk)),
    })
}

/// Sets the timeouts of an attachment. With several paths, a command fails at once, so that another path can retry it.
fn with_timeouts(mut url: Url, recovery: Duration, several: bool) -> Result<Url, Error> {
    if several {
        url = url.with_default("transition_timeout", "0")?;
    }
    let timeouts = url.timeouts_mut();
    timeouts.recovery = if several { Duration::ZERO } else { recovery };
    timeouts.operation = timeouts.operation.max(timeouts.recovery + OPERATION_MARGIN);
    Ok(url)
}

/// Settings for these paths.
fn multipath_settings(urls: &mut [Url], recovery: Duration, policy: PathPolicy) -> MultipathOptions {
    let longest = urls.iter_mut().map(|url| url.timeouts_mut().operation).max().unwrap_or_default();
    path_settings(longest, recovery, policy)
}

/// Settings for several paths, whose operations have this time limit. An operation may wait `recovery` for a path, and then takes
/// as long as on a single path.
pub fn path_settings(operation: Duration, recovery: Duration, policy: PathPolicy) -> MultipathOptions {
    let operation = operation.max(recovery.saturating_add(OPERATION_MARGIN));
    MultipathOptions::default().with_policy(of_paths(policy)).with_queue(recovery).with_operation(operation)
}

/// Opens all paths concurrently, and returns the first LUN. The other paths have [`OTHER_PATHS_TIMEOUT`] to open; a path
/// that misses it is retried while the disk is in use.
async fn open_all(
    paths: &[Arc<LatePath<LunPath>>],
    missing: impl Fn(&Error) + Clone + 'static,
) -> Result<Arc<Lun>, Failure> {
    let (done, ended) = flume::unbounded();
    let open = |path: &Arc<LatePath<LunPath>>| {
        let (path, done, missing) = (path.clone(), done.clone(), missing.clone());
        compio::runtime::spawn(async move {
            let opened = path.open_with_retry(missing).await;
            // The receiver is gone if opening has ended already.
            _ = done.send(opened.inspect_err(|e| tracing::warn!("the path {} is missing: {e}", path.name())));
        })
    };
    // Dropping them cancels the tasks: only one task at a time opens a path.
    let _openers: Vec<_> = paths.iter().map(open).collect();
    drop(done);
    let mut failure = None;
    loop {
        match ended.recv_async().await {
            Ok(Ok(())) => break,
            Ok(Err(e)) => failure = failure.or(Some(e)),
            Err(_) => {
                let none = || Error::new(ErrorCode::SessionClosed, "no path to the LUN was opened");
                return Err(failure.unwrap_or_else(none).into());
            }
        }
    }
    let rest = async { while ended.recv_async().await.is_ok() {} };
    _ = compio::time::timeout(OTHER_PATHS_TIMEOUT, rest).await;
    let open = paths.iter().find_map(|path| path.opened().cloned());
    open.ok_or_else(|| Error::new(ErrorCode::SessionClosed, "no path to the LUN was opened").into())
}

/// Sends commands while the host is idle: a target reports a capacity change only with a response.
async fn check_periodically(lun: Weak<Lun>) {
    loop {
        compio::time::sleep(CHECK_INTERVAL).await;
        let Some(lun) = lun.upgrade() else { return };
        lun.check().await;
    }
}

/// A logical unit on one path.
pub struct ProbedLun {
    /// URL of the path.
    pub url: Url,
    /// The logical unit, with the session of the path.
    pub lun: Arc<Lun>,
}

impl ProbedLun {
    /// The session of the path, in the form of the record.
    pub fn session(&self) -> LeftSession {
        let session = self.lun.session();
        session_of(&self.url, session.options(), &session.info())
    }
}

/// A session in the form of the record.
pub fn session_of(url: &Url, options: &Options, info: &SessionInfo) -> LeftSession {
    LeftSession {
        url: without_isid(&url.to_string()),
        isid: crate::hex::digits(&info.isid),
        initiator: Some(options.initiator.clone()),
        port: Some(info.target_port().unwrap_or_else(|| UNKNOWN_PORT.to_owned())),
        user: Some(info.user.clone()),
    }
}

/// Removes the ISID that [`super::claim::with_isids`] added.
fn without_isid(url: &str) -> String {
    let Some((head, query)) = url.split_once('?') else { return url.to_owned() };
    let others: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("isid=")).collect();
    if others.is_empty() { head.to_owned() } else { format!("{head}?{}", others.join("&")) }
}

/// The only path of an image: its client.
fn image_path(image: &RbdBackend) -> AttachedPath {
    let connected = !image.is_fenced();
    let state = if connected { "connected" } else { "lost" };
    AttachedPath { url: image.location().to_string(), state: state.into(), connected, recoveries: 0 }
}

/// I/O of a disk that waits for its target.
pub struct PendingIo {
    paths: Vec<Arc<LatePath<LunPath>>>,
    joined: Option<Arc<Multipath>>,
    image: Option<Arc<RbdBackend>>,
    namespace: Option<Arc<NvmeDisk>>,
}

impl PendingIo {
    /// Fails all I/O that waits for an unreachable target.
    pub fn fail(&self) {
        self.paths.iter().filter_map(|path| path.opened()).for_each(|lun| lun.session().give_up());
        if let Some(joined) = &self.joined {
            joined.give_up();
        }
        if let Some(image) = &self.image {
            image.give_up();
        }
        if let Some(namespace) = &self.namespace {
            namespace.give_up();
        }
    }
}

impl Disk {
    /// The state of each path.
    pub fn paths(&self) -> Vec<AttachedPath> {
        let states = self.joined.as_ref().map(|joined| joined.paths()).unwrap_or_default();
        let state = |at: usize| states.get(at).map(|(_, state, _)| *state);
        let paths = self.paths.iter().enumerate().map(|(at, path)| path.state(state(at)));
        let paths = paths.chain(self.image.as_deref().map(image_path));
        paths.chain(self.namespace.as_deref().map(namespace::paths).into_iter().flatten()).collect()
    }

    /// A handle that can fail waiting I/O.
    pub fn pending_io(&self) -> PendingIo {
        PendingIo {
            paths: self.paths.clone(),
            joined: self.joined.clone(),
            image: self.image.clone(),
            namespace: self.namespace.clone(),
        }
    }

    /// The NVMe namespace, if the disk is one.
    pub fn namespace(&self) -> Option<Arc<NvmeDisk>> {
        self.namespace.clone()
    }

    /// The logical unit on each open path.
    pub fn reached(&self) -> Vec<ProbedLun> {
        let reached = |path: &Arc<LatePath<LunPath>>| {
            Some(ProbedLun { url: path.url().clone(), lun: path.opened()?.clone() })
        };
        self.paths.iter().filter_map(reached).collect()
    }

    /// Whether the target may still execute writes of lost connections.
    pub async fn has_orphans(reached: &[ProbedLun]) -> bool {
        for path in reached {
            if path.lun.session().oldest_orphan(None).await.is_some() {
                return true;
            }
        }
        false
    }

    /// Logs out on every path, inside the event loop. Returns the sessions whose writes the target may still execute, and
    /// the number of these writes.
    pub async fn close(reached: Vec<ProbedLun>) -> (Vec<LeftSession>, usize) {
        let (mut left, mut writes) = (Vec::new(), 0);
        for path in reached {
            if let Err(e) = path.lun.session().close().await {
                tracing::info!("logout failed: {e}");
            }
            // A session that had ended before this logout may have left writes, too.
            let count = path.lun.session().info().orphans;
            writes += count;
            left.extend((count > 0).then(|| path.session()));
        }
        (left, writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_used_as_was_asked_for() {
        let policy = |policy| multipath_settings(&mut [], Duration::ZERO, policy).policy;
        let asked = [
            multipath::PathPolicy::Failover,
            multipath::PathPolicy::RoundRobin,
            multipath::PathPolicy::LeastQueue,
        ];
        assert_eq!(PathPolicy::ALL.map(policy), asked);
        assert_eq!(policy(PathPolicy::default()), MultipathOptions::default().policy);
    }

    #[test]
    fn record_has_the_isid_beside_the_url() {
        for (url, plain) in [("u", "u"), ("u?isid=8", "u"), ("u?a=1&isid=8&b=2", "u?a=1&b=2")] {
            assert_eq!(without_isid(url), plain);
        }
    }

    #[test]
    fn of_several_paths_another_one_is_taken_at_once() {
        let s = Duration::from_secs;
        for (text, several, recovery, transition) in [
            ("", false, s(9), None),
            ("", true, s(0), Some(s(0))),
            ("?transition_timeout=3", true, s(0), Some(s(3))),
            ("?transition_timeout=3", false, s(9), Some(s(3))),
        ] {
            let url = Url::parse(&format!("iscsi://host/iqn.2026-01.test:a/0{text}")).expect("a URL");
            let mut url = with_timeouts(url, s(9), several).expect("a known key");
            let timeouts = url.timeouts_mut();
            assert_eq!((timeouts.recovery, timeouts.transition), (recovery, transition), "{text} {several}");
        }
    }

    #[test]
    fn operation_on_several_paths_has_a_deadline() {
        let s = Duration::from_secs;
        let url =
            |text: &str| Url::parse(&format!("iscsi://host/iqn.2026-01.test:a/0{text}")).expect("a URL");
        for (settings, recovery, operation) in [
            (["", ""], s(120), s(180)),
            (["?operation_timeout=20", "?operation_timeout=300"], s(120), s(300)),
            (["", ""], s(600), s(660)),
            (["", ""], Duration::MAX, Duration::MAX),
        ] {
            let joined = multipath_settings(&mut settings.map(url), recovery, PathPolicy::default());
            assert_eq!((joined.queue, joined.operation), (recovery, operation), "{settings:?}");
        }
    }
}
