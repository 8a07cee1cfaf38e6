//! A URL of an upstream at other targets.

use super::Reach;
use crate::config::Target;
use crate::config::attachment;
use crate::hints::words;
use lunar_config::{InvalidValue, invalid};
use lunar_initiator::nvme::{self, NvmeUrl};
use lunar_initiator::{Error, Portal, Url};
use lunar_router::namespaces::{MAX_NSID, lun_of};
use lunar_target::config::{PortalGroup, PortalProtocol};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// A URL with absolute paths of its files with secrets. It may hold a secret, which is never shown.
#[derive(Clone)]
pub struct RemoteUrl {
    /// The parsed URL.
    pub address: RemoteAddress,
    text: String,
}

/// A parsed URL.
#[derive(Clone, Debug)]
pub enum RemoteAddress {
    /// A portal, a target or a LUN.
    Scsi(Box<Url>),
    /// A subsystem or a namespace.
    Nvme(NvmeUrl),
}

impl RemoteUrl {
    /// Parses a URL. Relative paths of files start at `base`.
    pub(super) fn parse(text: &str, base: &Path) -> Result<RemoteUrl, InvalidValue> {
        // The text as written is in the message, not the whole paths.
        address(text)?;
        let text = attachment::absolute(text, base);
        Ok(RemoteUrl { address: address(&text)?, text })
    }

    /// Adds this setting to a URL that does not have it.
    pub(super) fn with_late_writes(self, late: &str) -> RemoteUrl {
        let text = attachment::with_setting(&self.text, "late_writes", late);
        let address = Url::parse(&text).map_or(self.address, scsi);
        RemoteUrl { text, address }
    }

    /// The URL as written, including secrets.
    pub(crate) fn secret_text(&self) -> &str {
        &self.text
    }

    /// Whether it holds a secret.
    pub(super) fn holds_secret(&self) -> bool {
        matches!(&self.address, RemoteAddress::Scsi(url) if url.holds_secret())
    }

    /// The URL without settings.
    pub(super) fn plain(&self) -> String {
        match &self.address {
            RemoteAddress::Scsi(url) => url.plain(),
            RemoteAddress::Nvme(url) => url.plain(),
        }
    }

    /// Whether it names a subsystem or a namespace.
    pub(in crate::config) fn is_nvme(&self) -> bool {
        matches!(self.address, RemoteAddress::Nvme(_))
    }

    /// Its scope. A subsystem counts as a target, and a namespace as a LUN.
    pub(super) fn reach(&self) -> Reach<'_> {
        let (target, lun) = match &self.address {
            RemoteAddress::Scsi(url) => (url.target.as_deref(), url.lun),
            RemoteAddress::Nvme(url) => {
                (url.subsystem.as_ref().map(|name| name.as_str()), url.nsid().and_then(lun_of))
            }
        };
        match (target, lun) {
            (None, _) => Reach::Portal,
            (Some(target), None) => Reach::Target(target),
            (Some(target), Some(lun)) => Reach::Lun(target, lun),
        }
    }

    /// Checks that this path can be used beside the first one.
    pub(super) fn check_beside(&self, first: &RemoteUrl) -> Result<(), InvalidValue> {
        match (&self.address, &first.address) {
            (RemoteAddress::Scsi(url), RemoteAddress::Scsi(first)) => {
                url.check_beside(first).or_else(as_invalid)
            }
            (RemoteAddress::Nvme(url), RemoteAddress::Nvme(first)) if url.subsystem != first.subsystem => {
                invalid(
                    "the URLs of an upstream name different subsystems",
                    "write an upstream for each subsystem: the paths of one have the same NQN",
                )
            }
            (RemoteAddress::Nvme(_), RemoteAddress::Nvme(_)) => Ok(()),
            _ => invalid(
                "an upstream cannot have nvme:// URLs and URLs of SCSI targets",
                "write an upstream for each of them",
            ),
        }
    }
}

fn scsi(url: Url) -> RemoteAddress {
    RemoteAddress::Scsi(Box::new(url))
}

fn as_invalid<T>(e: Error) -> Result<T, InvalidValue> {
    invalid(e.what.as_str(), e.hint.as_ref().map(words).unwrap_or_default())
}

fn address(text: &str) -> Result<RemoteAddress, InvalidValue> {
    if !nvme::is_url(text) {
        return Url::parse(text).map(scsi).or_else(as_invalid);
    }
    let url: NvmeUrl = text.parse().or_else(as_invalid)?;
    if url.subsystem.is_none() {
        return invalid(
            format!("{} names no subsystem", url.plain()),
            "write nvme://HOST/NQN or nvme://HOST/NQN/NSID; `lunar ls nvme://HOST` lists the subsystems",
        );
    }
    if url.paths().len() > 1 {
        return invalid("`paths=` does not apply to an upstream", "write a URL in `urls` for each path");
    }
    if url.has("host_id") {
        return invalid(
            "`host_id=` does not apply to an upstream: each core has a controller of its own",
            "remove `host_id=`; the target may use host_nqn=",
        );
    }
    match url.namespace {
        None => Ok(RemoteAddress::Nvme(url)),
        Some(_) if url.nsid().and_then(lun_of).is_some() => Ok(RemoteAddress::Nvme(url)),
        Some(name) => {
            let what = format!("namespace {name} cannot be a LUN");
            invalid(what, format!("name a namespace by its number, from 1 to {MAX_NSID}"))
        }
    }
}

impl PartialEq for RemoteUrl {
    fn eq(&self, other: &RemoteUrl) -> bool {
        self.text == other.text
    }
}

impl Eq for RemoteUrl {}

impl fmt::Debug for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            RemoteAddress::Scsi(url) => fmt::Display::fmt(&**url, f),
            RemoteAddress::Nvme(url) => fmt::Display::fmt(url, f),
        }
    }
}

/// The subsystems of this server, each with an address at which hosts connect to it.
pub(in crate::config) struct OwnSubsystems(Vec<(String, SocketAddr)>);

impl OwnSubsystems {
    /// The subsystems among these targets.
    pub(in crate::config) fn of(targets: &[Target], groups: &[PortalGroup]) -> OwnSubsystems {
        let subsystems = targets.iter().filter(|target| target.subsystem.is_some());
        let addresses = |target: &Target| {
            let mine = groups.iter().filter(|group| target.portal_groups.contains(&group.tag));
            let portals = mine.flat_map(|group| &group.portals);
            let nvme = portals.filter(|portal| portal.transports.protocol == PortalProtocol::NvmeTcp);
            nvme.map(|portal| (target.name.clone(), portal.listen)).collect::<Vec<_>>()
        };
        OwnSubsystems(subsystems.flat_map(addresses).collect())
    }

    /// Checks that a URL does not lead back to this server, as far as its address shows it.
    pub(super) fn check(&self, url: &RemoteUrl) -> Result<(), InvalidValue> {
        let RemoteAddress::Nvme(url) = &url.address else { return Ok(()) };
        let is_own = |(name, listen): &&(String, SocketAddr)| {
            url.subsystem.as_ref().is_some_and(|nqn| nqn.as_str() == name) && is_at(&url.portal, *listen)
        };
        match self.0.iter().find(is_own) {
            Some((name, listen)) => invalid(
                format!("this server itself serves {name} at {listen}: the router would be its own upstream"),
                "name the subsystem of another server",
            ),
            None => Ok(()),
        }
    }
}

/// Whether a portal is this address, or a loopback address where this server listens on all addresses.
fn is_at(portal: &Portal, listen: SocketAddr) -> bool {
    let host = match portal.host.as_str() {
        "localhost" => Ok(IpAddr::from([127, 0, 0, 1])),
        host => host.trim_matches(['[', ']']).parse::<IpAddr>(),
    };
    portal.port == listen.port()
        && host.is_ok_and(|ip| ip == listen.ip() || (listen.ip().is_unspecified() && ip.is_loopback()))
}
