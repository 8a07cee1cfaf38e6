//! The disk of an attachment: a logical unit, over one path or several.

use crate::exit::{Exit, Failure};
use block::Backend;
use control::attached::PathState;
use control::config::attachment::Attachment;
use initiator::multipath::{Multipath, Settings, Way};
use initiator::{Error, Lun, Url};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a lost network is waited out unless told otherwise, in seconds.
pub const RECOVERY_S: u64 = 120;
/// So often a path is asked whether it is still as it was.
const LOOK: Duration = Duration::from_secs(5);
/// An operation may take so much longer than the recovery that it waits for.
const AFTER_RECOVERY: Duration = Duration::from_secs(60);

/// A disk that is open.
pub struct Disk {
    /// Its bytes.
    pub backend: Arc<dyn Backend>,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// VPD page 83h in hexadecimal.
    pub identity: String,
    /// How long a lost network is waited out.
    pub recovery: Duration,
    paths: Vec<Arc<Lun>>,
    joined: Option<Arc<Multipath>>,
    /// Paths that could not be opened, with the reason.
    absent: Vec<(String, String)>,
}

/// Opens the disk, inside an event loop. Where there are several paths, one that works is enough.
///
/// # Errors
/// Those of the first path, when none can be opened; when the paths lead to different logical units.
pub async fn open(attachment: &Attachment) -> Result<Disk, Failure> {
    let mut urls = attachment.urls.iter().map(|url| Url::parse(url)).collect::<Result<Vec<Url>, Error>>()?;
    let Some(first) = urls.first_mut() else {
        return Err(Failure::new(Exit::Invalid, "there is no URL", "name the disk: iscsi://HOST/TARGET/LUN"));
    };
    let told = attachment.recovery_timeout_s.map(Duration::from_secs);
    let recovery = told.unwrap_or(first.timeouts_mut().recovery);
    let several = urls.len() > 1;
    for url in &mut urls {
        let timeouts = url.timeouts_mut();
        // With several paths a command is to come back at once, and to go on another.
        timeouts.recovery = if several { Duration::ZERO } else { recovery };
        timeouts.operation = timeouts.operation.max(timeouts.recovery + AFTER_RECOVERY);
    }
    let (paths, absent) = open_all(urls).await?;
    let identity = paths[0].properties().identity.iter().map(|byte| format!("{byte:02x}")).collect();
    let block_size = paths[0].block_size();
    let (backend, joined): (Arc<dyn Backend>, _) = if several {
        let ways = paths.iter().map(|lun| lun.clone() as Arc<dyn Way>).collect();
        let joined = Multipath::join(ways, Settings { queue: recovery, ..Settings::default() }).await?;
        (joined.clone(), Some(joined))
    } else {
        compio::runtime::spawn(look_after(Arc::downgrade(&paths[0]))).detach();
        (paths[0].clone(), None)
    };
    Ok(Disk { backend, block_size, identity, recovery, paths, joined, absent })
}

/// Paths that are open, and those that are not with the reason.
type Opened = (Vec<Arc<Lun>>, Vec<(String, String)>);

/// Opens all paths at a time.
async fn open_all(urls: Vec<Url>) -> Result<Opened, Failure> {
    let (mut paths, mut absent, mut failure) = (Vec::new(), Vec::new(), None);
    let mut opening = Vec::new();
    for url in urls {
        let (done, end) = flume::bounded(1);
        let shown = url.to_string();
        compio::runtime::spawn(async move { drop(done.send(initiator::open(&url).await)) }).detach();
        opening.push((shown, end));
    }
    for (url, end) in opening {
        match end.recv_async().await {
            Ok(Ok(lun)) => paths.push(lun),
            Ok(Err(e)) => {
                absent.push((url, e.to_string()));
                failure = failure.or(Some(Failure::from(e)));
            }
            Err(_) => absent.push((url, "it could not be opened".into())),
        }
    }
    for (url, why) in absent.iter().filter(|_| !paths.is_empty()) {
        tracing::warn!("the path {url} is not used until it is attached again: {why}");
    }
    match failure {
        Some(failure) if paths.is_empty() => Err(failure),
        _ => Ok((paths, absent)),
    }
}

/// A host that only waits would not hear that the capacity has changed: the target tells it with an answer.
async fn look_after(lun: Weak<Lun>) {
    loop {
        compio::time::sleep(LOOK).await;
        let Some(lun) = lun.upgrade() else { return };
        lun.check().await;
    }
}

impl Disk {
    /// How its paths are.
    pub fn paths(&self) -> Vec<PathState> {
        let states = self.joined.as_ref().map(|joined| joined.paths()).unwrap_or_default();
        let open = self.paths.iter().enumerate().map(|(at, lun)| {
            let facts = lun.session().facts();
            let state = match states.get(at) {
                Some((_, state, _)) => format!("{state:?}").to_lowercase(),
                None => if facts.connected { "connected" } else { "lost" }.to_owned(),
            };
            PathState { url: lun.name(), state, connected: facts.connected, recoveries: facts.recoveries }
        });
        let absent = self.absent.iter().map(|(url, why)| PathState {
            url: url.clone(),
            state: format!("absent: {why}"),
            connected: false,
            recoveries: 0,
        });
        open.chain(absent).collect()
    }

    /// Logs out, on every path, inside the event loop.
    pub async fn close(paths: Vec<Arc<Lun>>) {
        for lun in paths {
            if let Err(e) = lun.session().close().await {
                tracing::info!("logout: {e}");
            }
        }
    }

    /// Its paths, to be closed.
    pub fn into_paths(self) -> Vec<Arc<Lun>> {
        self.paths
    }
}
