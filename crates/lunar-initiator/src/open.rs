//! Opens a session or a logical unit from a URL.

use crate::{DiscoveredTarget, Error, ErrorCode, Lun, Options, Portal, Session, Url, discover, luns};
use lunar_wire::scsi::lun::decode;
use std::sync::Arc;

/// The number of names that a hint lists.
const LISTED: usize = 8;

/// Logs in to the target of a URL. The URL may omit the target if the portal has exactly one.
///
/// # Errors
/// Those of [`Url::options`] and [`Session::open`]; [`ErrorCode::InvalidArgument`] with a hint when the portal has several
/// targets.
pub async fn connect(url: &Url) -> Result<Session, Error> {
    Ok(connect_with(url, &url.options()?).await?.1)
}

/// [`connect`] with other options than those of the URL. Returns the session, and the URL of the portal and target that
/// answered.
///
/// # Errors
/// Those of [`resolve`] and [`Session::open`].
pub async fn connect_with(url: &Url, options: &Options) -> Result<(Url, Session), Error> {
    log_in(&resolve(url, options).await?, options, |e| tracing::warn!("{e}")).await
}

/// Resolves a URL to one URL for each portal of its target. The URL may omit the target if the portal has exactly one.
///
/// # Errors
/// Those of [`discover`]; [`ErrorCode::NotFound`] without a target, [`ErrorCode::InvalidArgument`] with several.
pub async fn resolve(url: &Url, options: &Options) -> Result<Vec<Url>, Error> {
    if url.target.is_some() {
        return Ok(vec![url.clone()]);
    }
    let found = discover(url.portal.clone(), options).await?;
    Ok(portal_urls(url, only_target(url, found)?))
}

/// Logs in at the first of these URLs that is reachable. The errors of unreachable ones go to `report`. Any other
/// error ends the attempts, because all portals of a target respond alike.
///
/// # Errors
/// The error of the last URL, if none is reachable; the errors of [`Session::open`]. [`ErrorCode::InvalidArgument`]
/// without a URL.
pub async fn log_in(
    urls: &[Url],
    options: &Options,
    mut report: impl FnMut(Error),
) -> Result<(Url, Session), Error> {
    let mut last = Error::new(ErrorCode::InvalidArgument, "the list of URLs to log in to is empty");
    for (n, url) in urls.iter().enumerate() {
        if n > 0 {
            report(last);
        }
        let target = url.target.as_deref().unwrap_or_default();
        match Session::open(url.portal.clone(), target, options.clone()).await {
            Ok(session) => return Ok((url.clone(), session)),
            Err(e) if e.is_away() => last = url.explain(e),
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Opens the logical unit of a URL with its own session. The URL may omit the LUN if the target has exactly one.
///
/// # Errors
/// Those of [`connect`] and [`Lun::open`]; [`ErrorCode::InvalidArgument`] with a hint when the target has several logical
/// units.
pub async fn open(url: &Url) -> Result<Arc<Lun>, Error> {
    open_with(url, &url.options()?).await
}

/// [`open`] with other options than those of the URL.
///
/// # Errors
/// Those of [`open`].
pub async fn open_with(url: &Url, options: &Options) -> Result<Arc<Lun>, Error> {
    let (_, session) = connect_with(url, options).await?;
    let lun = lun_of(url, &session).await?;
    Lun::open(&session, lun).await
}

/// The URLs of a discovered target, in order of preference: one for each portal, and at least one. The portal of
/// `url` comes first, if the target has it.
pub fn portal_urls(url: &Url, found: DiscoveredTarget) -> Vec<Url> {
    let there = url.at(found.name, url.lun);
    let mut portals: Vec<Portal> = found.addresses.into_iter().map(Portal::from).collect();
    match portals.iter().position(|portal| *portal == url.portal) {
        Some(own) => portals[..=own].rotate_right(1),
        None if portals.is_empty() => portals.push(url.portal.clone()),
        None => {}
    }
    portals.into_iter().map(|portal| there.sent_to(portal)).collect()
}

/// The LUN of a URL. The URL may omit it if the target has exactly one.
///
/// # Errors
/// Those of REPORT LUNS; [`ErrorCode::InvalidArgument`] with a hint when the target has several logical units.
pub async fn lun_of(url: &Url, session: &Session) -> Result<u16, Error> {
    match url.lun {
        Some(lun) => Ok(lun),
        None => only_lun(url, session).await,
    }
}

fn only_target(url: &Url, mut found: Vec<DiscoveredTarget>) -> Result<DiscoveredTarget, Error> {
    match found.len() {
        0 => Err(Error::new(
            ErrorCode::NotFound,
            format!("portal {}: the target list for this initiator is empty", url.portal),
        )
        .with_hint(
            "the access list of the target may require another initiator name: add initiator=IQN to the URL",
        )),
        1 => Ok(found.remove(0)),
        n => {
            let names = found.iter().map(|one| url.at(&one.name, None).plain());
            let what = format!("portal {}: the URL names none of the {n} targets", url.portal);
            Err(Error::new(ErrorCode::InvalidArgument, what)
                .with_hint(format!("choose one of: {}", list(names))))
        }
    }
}

async fn only_lun(url: &Url, session: &Session) -> Result<u16, Error> {
    let target = session.info().target;
    let found: Vec<u16> = luns(session).await?.into_iter().filter_map(decode).collect();
    match found[..] {
        [] => Err(Error::new(
            ErrorCode::NotFound,
            format!("target {target}: the LUN list for this initiator is empty"),
        )
        .with_hint(
            "the access list of the target may require another initiator name: add initiator=IQN to the URL",
        )),
        [one] => Ok(one),
        _ => {
            let urls = found.iter().map(|lun| url.at(&target, Some(*lun)).plain());
            let what = format!("target {target}: the URL names none of the {} LUNs", found.len());
            Err(Error::new(ErrorCode::InvalidArgument, what)
                .with_hint(format!("choose one of: {}", list(urls))))
        }
    }
}

fn list(all: impl ExactSizeIterator<Item = String>) -> String {
    let n = all.len();
    let mut text = all.take(LISTED).collect::<Vec<_>>().join(", ");
    if n > LISTED {
        text += &format!(", and {} more", n - LISTED);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortalAddress;

    fn found(n: usize) -> Vec<DiscoveredTarget> {
        let one =
            |n| DiscoveredTarget { name: format!("iqn.2026-11.org.example:{n}"), addresses: Vec::new() };
        (0..n).map(one).collect()
    }

    #[test]
    fn one_target_will_do_and_several_are_listed() {
        let url = Url::parse("iscsi://h?commands=3").unwrap();
        assert_eq!(only_target(&url, found(0)).unwrap_err().code, ErrorCode::NotFound);
        assert_eq!(only_target(&url, found(1)).unwrap(), found(1)[0]);
        let error = only_target(&url, found(10)).unwrap_err();
        let hint = error.hint.clone().unwrap();
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(hint.contains("iscsi://h:3260/iqn.2026-11.org.example:7, and 2 more"), "{hint}");
    }

    #[test]
    fn unreachable_address_names_its_source() {
        let url = Url::parse("iscsi://127.0.0.1").unwrap();
        let address = PortalAddress { host: "192.0.2.9".into(), port: 3260, portal_group_tag: Some(1) };
        let found = DiscoveredTarget { name: "iqn.2026-11.org.example:a".into(), addresses: vec![address] };
        let there = portal_urls(&url, found.clone()).swap_remove(0);
        let error = there.explain(Error::new(ErrorCode::Unreachable, "connection refused"));
        assert_eq!(
            error.what,
            "portal 192.0.2.9:3260, which the portal 127.0.0.1:3260 advertised: connection refused"
        );
        assert!(error.hint.as_ref().unwrap().contains("127.0.0.1:3260"), "{:?}", error.hint);
        let kept = [
            there.explain(Error::new(ErrorCode::Refused, "x")),
            there.through(url.portal.clone()).explain(Error::new(ErrorCode::Unreachable, "x")),
            portal_urls(&url, DiscoveredTarget { addresses: Vec::new(), ..found })[0]
                .explain(Error::new(ErrorCode::Unreachable, "x")),
        ];
        assert!(kept.iter().all(|error| error.what == "x"), "{kept:?}");
    }

    #[test]
    fn portals_of_a_target_are_tried_from_the_one_asked() {
        let url = Url::parse("iscsi://a").unwrap();
        let of = |hosts: &[&str]| {
            let address =
                |host: &&str| PortalAddress { host: host.to_string(), port: 3260, portal_group_tag: Some(1) };
            let found =
                DiscoveredTarget { name: "iqn.x".into(), addresses: hosts.iter().map(address).collect() };
            portal_urls(&url, found).into_iter().map(|url| url.portal.host).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(&[]), "a");
        assert_eq!(of(&["b", "c", "a", "d"]), "a b c d");
        assert_eq!(of(&["b", "c"]), "b c");
    }

    /// These futures are part of all callers' futures.
    #[test]
    fn futures_of_logins_are_small() {
        let url = Url::parse("iscsi://h/iqn.x").unwrap();
        let options = url.options().unwrap();
        let urls = [url.clone()];
        let sizes = [
            size_of_val(&Session::open(url.portal.clone(), "iqn.x", options.clone())),
            size_of_val(&discover(url.portal.clone(), &options)),
            size_of_val(&log_in(&urls, &options, drop)),
            size_of_val(&open(&url)),
        ];
        assert!(sizes.iter().all(|size| *size < 8192), "{sizes:?}");
    }
}
