//! Discovery of an upstream: targets, their LUNs, and the properties of these.

use super::{Upstream, UpstreamUrls};
use crate::loops::{self, LoopDetector, UpstreamTarget};
use crate::{FoundLun, FoundTarget, namespaces};
use lunar_initiator::{Error, ErrorCode, Options, Properties, Session, Url};
use lunar_wire::scsi::lun::decode;

/// Probes an upstream: all targets of a portal, all LUNs of a target, or one LUN. If a URL fails, the next one is
/// used. The result has the names of the first URL.
///
/// # Errors
/// Those of the last URL, if none works; [`ErrorCode::IdentityMismatch`] when the LUN has another identity than
/// required.
pub async fn probe(upstream: &Upstream, loops: &LoopDetector) -> Result<Vec<FoundTarget>, Error> {
    let urls = match &upstream.urls {
        UpstreamUrls::Scsi(urls) => urls,
        UpstreamUrls::Nvme(urls) => {
            return expected(upstream, namespaces::probe::probe(upstream, urls).await?);
        }
    };
    let mut last = Error::new(ErrorCode::InvalidArgument, format!("upstream {} has no URL", upstream.name));
    // A portal leads to all of its targets, each of which is served under its own name.
    let keep_names = urls.iter().any(|url| url.target.is_none());
    let loop_check = LoopCheck { loops, upstream: loops::name(&upstream.router, &upstream.name), keep_names };
    for url in upstream.session_urls()? {
        match through(&url, &loop_check).await {
            Ok(found) => return expected(upstream, as_first(urls.first(), found)),
            Err(e) => last = e.during(url.plain()),
        }
    }
    Err(last)
}

/// URLs may have different target names and LUNs: the result gets those of the first URL.
fn as_first(first: Option<&Url>, mut found: Vec<FoundTarget>) -> Vec<FoundTarget> {
    let Some(first) = first else { return found };
    if let (Some(name), [target]) = (&first.target, &mut found[..]) {
        target.name.clone_from(name);
        if let (Some(lun), 1) = (first.lun, target.luns.len()) {
            target.luns = std::mem::take(&mut target.luns).into_values().map(|one| (lun, one)).collect();
        }
    }
    found
}

fn expected(upstream: &Upstream, found: Vec<FoundTarget>) -> Result<Vec<FoundTarget>, Error> {
    let Some(wanted) = &upstream.identity else { return Ok(found) };
    let mut luns = found.iter().flat_map(|target| target.luns.values());
    let Some(other) = luns.find(|lun| !lunar_initiator::is_named(&lun.designators, wanted)) else {
        return Ok(found);
    };
    let is = lunar_initiator::name_of(&other.designators).unwrap_or_else(|| "none (no designators)".into());
    Err(Error::new(
        ErrorCode::IdentityMismatch,
        format!("the LUN has the identity {is}, but `identity` requires {wanted}"),
    ))
}

/// Checks that a target does not lead back to its user.
struct LoopCheck<'a> {
    loops: &'a LoopDetector,
    upstream: String,
    keep_names: bool,
}

async fn through(url: &Url, check: &LoopCheck<'_>) -> Result<Vec<FoundTarget>, Error> {
    let options = url.options()?;
    if url.target.is_some() {
        return Ok(vec![target(url, options, check).await?]);
    }
    let mut all = Vec::new();
    for found in lunar_initiator::discover(url.portal.clone(), &options).await? {
        match at_first(&lunar_initiator::portal_urls(url, found), &options, check).await {
            Ok(found) => all.push(found),
            // A listed target may reject this initiator. The others are used.
            Err(e)
                if matches!(
                    e.code,
                    ErrorCode::Refused
                        | ErrorCode::AuthenticationFailed
                        | ErrorCode::NotFound
                        | ErrorCode::InvalidArgument
                ) =>
            {
                tracing::warn!(portal = %url.portal, "a target of the upstream is skipped: {e}");
            }
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// Probes a target through the first of its portals that responds.
async fn at_first(urls: &[Url], options: &Options, check: &LoopCheck<'_>) -> Result<FoundTarget, Error> {
    let mut last = Error::new(ErrorCode::NotFound, "the discovery returned no portal of the target");
    for url in urls {
        match target(url, options.clone(), check).await {
            Err(e) if e.is_away() => last = e,
            end => return end,
        }
    }
    Err(last)
}

async fn target(url: &Url, options: Options, check: &LoopCheck<'_>) -> Result<FoundTarget, Error> {
    let name = url.target.clone().unwrap_or_default();
    let there = UpstreamTarget { upstream: &check.upstream, target: &name, keeps_name: check.keep_names };
    let session = checked(url, &options, check.loops, there).await?;
    let luns = luns(&session, url.lun).await;
    let window = session.window().unwrap_or(0);
    // The result is complete: a missing logout response does not matter.
    _ = session.close().await;
    Ok(FoundTarget { name, window, luns: luns?.into_iter().collect() })
}

/// Opens a session with a target that does not lead back to this router.
async fn checked(
    url: &Url,
    options: &Options,
    loops: &LoopDetector,
    there: UpstreamTarget<'_>,
) -> Result<Session, Error> {
    let open = || Session::open(url.portal.clone(), there.target, options.clone());
    let session = match open().await {
        Ok(session) => session,
        Err(e) => {
            loops.check_in_discovery(there, url.portal.clone(), options).await?;
            return Err(url.explain(e));
        }
    };
    match loops.check(there, &session).await {
        Ok(()) => Ok(session),
        Err(e)
            if matches!(
                e.code,
                ErrorCode::Refused
                    | ErrorCode::ConnectionLost
                    | ErrorCode::SessionClosed
                    | ErrorCode::TimedOut
            ) =>
        {
            // Targets without support for text requests, such as STGT and istgt, end the session, some after a
            // Reject, and are available again at once. A router that went down is not.
            _ = session.close().await;
            let session = open().await?;
            loops.record_no_router(there);
            Ok(session)
        }
        Err(e) => {
            // The session is not used, whatever the result.
            _ = session.close().await;
            Err(e)
        }
    }
}

async fn luns(session: &Session, only: Option<u16>) -> Result<Vec<(u16, FoundLun)>, Error> {
    if let Some(lun) = only {
        return Ok(vec![(lun, lunar_initiator::inspect(session, lun).await?.into())]);
    }
    let mut found = Vec::new();
    for lun in lunar_initiator::luns(session).await?.into_iter().filter_map(decode) {
        match lunar_initiator::inspect(session, lun).await {
            Ok(properties) => found.push((lun, properties.into())),
            // The target was removed during the probe.
            Err(e) if e.code == ErrorCode::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

impl From<Properties> for FoundLun {
    fn from(p: Properties) -> FoundLun {
        FoundLun {
            kind: p.device_type,
            block_size: p.block_size,
            physical_block_size: p.physical_block_size,
            capacity: p.capacity(),
            read_only: p.read_only,
            removable: p.removable,
            thin: p.thin,
            serial: p.serial.unwrap_or_default(),
            padded_serial: p.padded_serial,
            naa: lunar_initiator::naa(&p.identity).unwrap_or_default().to_vec(),
            vendor: p.vendor,
            product: p.product,
            revision: p.revision,
            designators: p.identity,
        }
    }
}
