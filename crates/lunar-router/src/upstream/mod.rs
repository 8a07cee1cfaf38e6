//! The block path of a routed LUN: a logical unit of another target as storage.
//!
//! [`look`] finds out what an upstream has, and a [`Remote`] is one logical unit of it: sessions of each core over
//! each path ([`line`]), all held to one identity ([`known`]), whose failures are told as SCSI does ([`told`]).

mod health;
mod known;
mod line;
mod look;
mod losses;
mod queue;
mod remote;
mod told;

pub use health::Health;
pub(crate) use line::is_about_luns;
pub use look::look;
pub use lunar_initiator::multipath::{Policy, State};
pub use remote::{PathFacts, Remote};
pub use told::{MANUAL_INTERVENTION, told};

use crate::ports::Ports;
use event_listener::Event as Bell;
use lunar_initiator::{Error, Url};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long commands wait for an upstream unless told otherwise: shorter than hosts wait before they abort.
pub const HOLD: Duration = Duration::from_secs(8);

/// The longest pause between two tries to connect.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits of a session: a command that hangs is given up before hosts do so, who wait 30 s and 15 s for an abort.
const WAITS: [(&str, &str); 10] = [
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

/// Targets elsewhere, as they are configured.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// The routing instance that it belongs to.
    pub router: String,
    /// Its name there.
    pub name: String,
    /// The ways to it, the primary one first: all lead to a portal, to a target, or to a LUN.
    pub urls: Vec<Url>,
    /// Which of the ways is taken. Whatever it is, those come first that the target calls the best (ALUA).
    pub policy: Policy,
    /// How long commands wait when there is no way to it; from then on they fail at once.
    pub hold: Duration,
    /// A designator that its LUN has to have, such as `naa.6001405...`.
    pub identity: Option<String>,
    /// Rung when a session hears that there may be other logical units: a reason to look again.
    pub again: Arc<Bell>,
    /// Rung when a look has seen something else than is known: a reason for sessions to look at their logical units again. Not
    /// all targets tell.
    pub doubts: Arc<Bell>,
    /// Why it could not be seen the last time.
    pub obstacle: Arc<Mutex<Option<String>>>,
    /// The reservation key with which this router of a failover pair keeps the other one off.
    pub fence: Option<u64>,
    /// The ISIDs of sessions that carry blocks; None: random ones, which nobody records.
    pub ports: Option<Arc<Ports>>,
}

impl Upstream {
    /// An upstream with these ways, and the defaults.
    pub fn new(router: impl Into<String>, name: impl Into<String>, urls: Vec<Url>) -> Upstream {
        Upstream {
            router: router.into(),
            name: name.into(),
            urls,
            policy: Policy::Failover,
            hold: HOLD,
            identity: None,
            again: Arc::default(),
            doubts: Arc::default(),
            obstacle: Arc::default(),
            fence: None,
            ports: None,
        }
    }

    /// The ways with the waits of a router, where they name none themselves.
    ///
    /// # Errors
    /// None that can be: the waits are known to be right.
    pub(crate) fn ways(&self) -> Result<Vec<Url>, Error> {
        let several = self.urls.len() > 1;
        self.urls.iter().map(|url| patient(url, self.hold, several)).collect()
    }
}

/// A URL with the waits of a router. A session that is lost gives its commands back at once: they wait for a path,
/// whichever comes first. So does, where there are several, one that is between two access states.
fn patient(url: &Url, hold: Duration, several: bool) -> Result<Url, Error> {
    let mut url =
        WAITS.into_iter().try_fold(url.clone(), |url, (key, value)| url.with_default(key, value))?;
    if several {
        url = url.with_default("transition_timeout", "0")?;
    }
    let timeouts = url.timeouts_mut();
    (timeouts.recovery, timeouts.busy, timeouts.pause) = (Duration::ZERO, hold, PAUSE);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_waits_are_those_of_a_router_but_where_the_url_has_its_own() {
        let url = Url::parse("iscsi://10.0.0.1/iqn.x:y/0?command_timeout=3").expect("a URL");
        let mut ways = Upstream::new("r", "a", vec![url]).ways().expect("known keys");
        let timeouts = ways[0].timeouts_mut();
        assert_eq!((timeouts.command, timeouts.abort), (Duration::from_secs(3), Duration::from_secs(5)));
        assert_eq!((timeouts.recovery, timeouts.busy), (Duration::ZERO, HOLD));
    }

    #[test]
    fn of_several_ways_another_one_is_taken_at_once() {
        let url = |text: &str| Url::parse(&format!("iscsi://10.0.0.1/iqn.x:y/0{text}")).expect("a URL");
        let transitions = |urls: Vec<Url>| {
            let ways = Upstream::new("r", "a", urls).ways().expect("known keys");
            ways.into_iter().map(|mut url| url.timeouts_mut().transition).collect::<Vec<_>>()
        };
        assert_eq!(transitions(vec![url("")]), [None], "as long as it is busy");
        let own = url("?transition_timeout=3");
        let told = [Some(Duration::ZERO), Some(Duration::from_secs(3))];
        assert_eq!(transitions(vec![url(""), own]), told);
    }
}
