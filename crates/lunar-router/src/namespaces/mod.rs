//! Namespaces of NVMe subsystems as upstream logical units.
//!
//! Namespace n is LUN n - 1, as in `lunar serve --nvme`. [`probe`] discovers the namespaces of a subsystem. Each core that
//! uses a namespace has one controller for each URL ([`path`]).
//!
//! NVMe/TCP has no proof that a lost controller has ended its writes. With one URL, the controller sends unanswered commands
//! again in their order, before newer ones. With several, another path repeats them at once, as Linux does.

pub(crate) mod found;
pub(crate) mod path;
pub(crate) mod probe;

use crate::upstream::{PAUSE, Upstream};
use lunar_initiator::Error;
use lunar_initiator::nvme::{NvmeOptions, NvmeUrl};
use std::time::Duration;

/// The begin of the names of subsystems. No SCSI target has such a name (RFC 7143 section 4.2.7).
const NQN: &str = "nqn.";

/// The largest NSID that a LUN of a single level can show (SAM-5 section 4.7).
pub const MAX_NSID: u32 = 1 << 14;

/// The timeouts of a controller, as those of a session.
const TIMEOUTS: [(&str, &str); 4] =
    [("login_timeout", "5"), ("login_tries", "1"), ("command_timeout", "10"), ("operation_timeout", "15")];

/// The LUN of a namespace. None if the number is too large.
pub fn lun_of(nsid: u32) -> Option<u16> {
    (1..=MAX_NSID).contains(&nsid).then(|| (nsid - 1) as u16)
}

/// The namespace of a LUN.
pub fn nsid_of(lun: u16) -> u32 {
    u32::from(lun) + 1
}

/// The URL of a namespace: that of an upstream, with the namespace of this LUN if it names none.
pub(crate) fn url_of(url: &NvmeUrl, lun: u16) -> NvmeUrl {
    url.at(url.nsid().unwrap_or_else(|| nsid_of(lun)))
}

/// Whether the target of an upstream is an NVMe subsystem.
pub fn is_subsystem(target: &str) -> bool {
    target.starts_with(NQN)
}

/// The number of a logical unit at its target: that of the namespace, if the target is a subsystem.
pub fn number_at(target: &str, lun: u16) -> u32 {
    if is_subsystem(target) { nsid_of(lun) } else { lun.into() }
}

/// A logical unit of an upstream in messages: `LUN 3 of iqn.…` or `namespace 4 of nqn.…`.
pub fn lu_name(target: &str, lun: u16) -> String {
    let what = if is_subsystem(target) { "namespace" } else { "LUN" };
    format!("{what} {} of {target}", number_at(target, lun))
}

/// URLs with a router's timeouts, unless they set their own.
pub(crate) fn with_timeouts(urls: &[NvmeUrl]) -> Result<Vec<NvmeUrl>, Error> {
    let with = |url: &NvmeUrl| {
        TIMEOUTS.into_iter().try_fold(url.clone(), |url, (key, value)| url.with_default(key, value))
    };
    urls.iter().map(with).collect()
}

/// The time in which a lost controller may return before its commands fail. With another path, they fail over at once.
pub(crate) fn recovery_timeout(upstream: &Upstream) -> Duration {
    if upstream.urls.count() > 1 { Duration::ZERO } else { upstream.path_loss_timeout }
}

/// The options of the controller of a URL.
pub(crate) fn options(url: &NvmeUrl, recovery: Duration, busy: Duration) -> Result<NvmeOptions, Error> {
    let mut options = url.options()?;
    let times = &mut options.timeouts;
    (times.recovery, times.busy, times.pause) = (recovery, busy, PAUSE);
    // Another path takes a command whose status is about this path.
    times.transition = recovery.is_zero().then_some(Duration::ZERO);
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::UpstreamUrls;

    #[test]
    fn namespaces_are_luns_from_zero_on() {
        assert_eq!(
            [lun_of(0), lun_of(1), lun_of(MAX_NSID), lun_of(MAX_NSID + 1)],
            [None, Some(0), Some(16383), None]
        );
        assert_eq!([0, 16383].map(nsid_of), [1, MAX_NSID]);
        assert_eq!(lu_name("nqn.2026-11.org.example:a", 3), "namespace 4 of nqn.2026-11.org.example:a");
        assert_eq!(lu_name("iqn.2026-11.org.example:a", 3), "LUN 3 of iqn.2026-11.org.example:a");
    }

    #[test]
    fn url_timeouts_override_those_of_the_router() {
        let url: NvmeUrl = "nvme://h/nqn.2026-11.org.example:a?command_timeout=3".parse().expect("a URL");
        let upstream = Upstream::new("r", "a", vec![url.clone()]);
        let url = with_timeouts(&[url]).expect("known keys").remove(0);
        let times =
            options(&url, recovery_timeout(&upstream), Duration::from_secs(7)).expect("options").timeouts;
        assert_eq!((times.command, times.operation), (Duration::from_secs(3), Duration::from_secs(15)));
        assert_eq!((times.recovery, times.busy), (upstream.path_loss_timeout, Duration::from_secs(7)));
        assert_eq!(times.transition, None, "the only path may be in transition");
        let UpstreamUrls::Nvme(mut urls) = upstream.urls.clone() else { panic!("a namespace") };
        urls.push(urls[0].at(1));
        let several = Upstream { urls: urls.clone().into(), ..upstream };
        assert_eq!(recovery_timeout(&several), Duration::ZERO);
        let times = options(&urls[0], Duration::ZERO, Duration::from_secs(7)).expect("options").timeouts;
        assert_eq!(times.transition, Some(Duration::ZERO), "another path takes the command");
    }
}
