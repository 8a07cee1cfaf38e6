//! Block mode: a logical unit of another target as storage.
//!
//! [`probe`] discovers the logical units of an upstream. An [`UpstreamLu`] is one of them: each core has a session
//! over each path ([`path`]), all pinned to one identity ([`context`]). [`scsi_error`] maps failures to SCSI status
//! and sense data.

mod context;
mod deferred;
mod health;
mod lu;
mod path;
mod path_progress;
mod probe;
mod queue;
mod routed_path;
mod scsi_error;
mod urls;

pub(crate) use context::LuContext;
pub use health::Health;
pub use lu::{PathStatus, UpstreamLu};
pub use lunar_initiator::multipath::{PathPolicy, PathState};
pub(crate) use path::is_about_luns;
pub(crate) use path_progress::{FIRST_PAUSE, PathProgress, event_or_recheck, longer};
pub use probe::probe;
pub(crate) use routed_path::RoutedPath;
pub use scsi_error::{MANUAL_INTERVENTION, scsi_error};
pub use urls::UpstreamUrls;

use crate::isids::RouterIsids;
use event_listener::Event;
use lunar_initiator::{Error, Url};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The default time for which commands wait for an upstream. It is shorter than the time after which hosts abort.
pub const PATH_LOSS_TIMEOUT: Duration = Duration::from_secs(8);

/// The maximum pause between two connection attempts.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// The timeouts of a session. They are shorter than those of hosts, which wait 30 s for a command and 15 s for an
/// abort.
const TIMEOUTS: [(&str, &str); 10] = [
    ("login_timeout", "5"),
    ("login_tries", "1"),
    ("logout_timeout", "5"),
    ("noop_interval", "5"),
    ("noop_timeout", "5"),
    ("command_timeout", "10"),
    ("abort_timeout", "5"),
    ("lun_reset_timeout", "5"),
    ("target_reset_timeout", "5"),
    ("operation_timeout", "15"),
];

/// A configured upstream at other targets.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The routing instance.
    pub router: String,
    /// The name.
    pub name: String,
    /// The URLs.
    pub urls: UpstreamUrls,
    /// The policy for path selection. Paths with the best ALUA state always come first.
    pub policy: PathPolicy,
    /// The time for which commands wait while no path works. Afterwards they fail at once.
    pub path_loss_timeout: Duration,
    /// The designator that its LUN must have, such as `naa.6001405...`.
    pub identity: Option<String>,
    /// Notified when a session reports that there may be other logical units: the next probe starts at once.
    pub rediscover: Arc<Event>,
    /// Notified when a probe has found a change. Sessions then check their logical units again, because not all
    /// targets report a change by a unit attention.
    pub recheck: Arc<Event>,
    /// The reason why the last probe failed.
    pub obstacle: Arc<Mutex<Option<String>>>,
    /// The reservation key with which this router of a failover pair excludes its peer.
    pub fence: Option<u64>,
    /// The ISIDs of block mode sessions. None: random ones without a record.
    pub isids: Option<Arc<RouterIsids>>,
}

impl Upstream {
    /// An upstream with these URLs, and default settings.
    pub fn new(
        router: impl Into<String>,
        name: impl Into<String>,
        urls: impl Into<UpstreamUrls>,
    ) -> Upstream {
        Upstream {
            router: router.into(),
            name: name.into(),
            urls: urls.into(),
            policy: PathPolicy::Failover,
            path_loss_timeout: PATH_LOSS_TIMEOUT,
            identity: None,
            rediscover: Arc::default(),
            recheck: Arc::default(),
            obstacle: Arc::default(),
            fence: None,
            isids: None,
        }
    }

    /// The URLs of SCSI targets with a router's timeouts, unless they set their own.
    ///
    /// # Errors
    /// None in practice: the added settings are valid.
    pub(crate) fn session_urls(&self) -> Result<Vec<Url>, Error> {
        let UpstreamUrls::Scsi(urls) = &self.urls else { return Ok(Vec::new()) };
        let several = urls.len() > 1;
        urls.iter().map(|url| with_timeouts(url, self.path_loss_timeout, several)).collect()
    }
}

/// A URL with a router's timeouts. A lost session returns its commands at once, and they wait for the first usable
/// path. With several paths, a path in an ALUA state transition does the same.
fn with_timeouts(url: &Url, path_loss_timeout: Duration, several: bool) -> Result<Url, Error> {
    let mut url =
        TIMEOUTS.into_iter().try_fold(url.clone(), |url, (key, value)| url.with_default(key, value))?;
    if several {
        url = url.with_default("transition_timeout", "0")?;
    }
    let timeouts = url.timeouts_mut();
    (timeouts.recovery, timeouts.busy, timeouts.pause) = (Duration::ZERO, path_loss_timeout, PAUSE);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_timeouts_override_router_defaults() {
        let url = Url::parse("iscsi://10.0.0.1/iqn.x:y/0?command_timeout=3").expect("a URL");
        let mut urls = Upstream::new("r", "a", vec![url]).session_urls().expect("known keys");
        let timeouts = urls[0].timeouts_mut();
        assert_eq!((timeouts.command, timeouts.abort), (Duration::from_secs(3), Duration::from_secs(5)));
        assert_eq!((timeouts.recovery, timeouts.busy), (Duration::ZERO, PATH_LOSS_TIMEOUT));
    }

    #[test]
    fn several_urls_do_not_wait_for_transitions() {
        let url = |text: &str| Url::parse(&format!("iscsi://10.0.0.1/iqn.x:y/0{text}")).expect("a URL");
        let transitions = |urls: Vec<Url>| {
            let urls = Upstream::new("r", "a", urls).session_urls().expect("known keys");
            urls.into_iter().map(|mut url| url.timeouts_mut().transition).collect::<Vec<_>>()
        };
        assert_eq!(transitions(vec![url("")]), [None], "the same as for a busy logical unit");
        let own = url("?transition_timeout=3");
        let expected = [Some(Duration::ZERO), Some(Duration::from_secs(3))];
        assert_eq!(transitions(vec![url(""), own]), expected);
    }
}
