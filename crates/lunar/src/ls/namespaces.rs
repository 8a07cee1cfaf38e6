//! `lunar ls` of NVMe subsystems and their namespaces.

use super::{LunEntry, TargetEntry};
use crate::discover::{PortalEntry, no_subsystem, of_one_service, subsystems};
use crate::exit::Failure;
use lunar_initiator::nvme::discovery::{self, discover_referred};
use lunar_initiator::nvme::{self, ControllerInfo, NvmeController, NvmeUrl, SubsystemAddress};
use lunar_initiator::{Error, ErrorCode, Portal};
use lunar_wire::nvme::Nqn;
use lunar_wire::scsi::fields::utf8;

/// The subsystem of a URL, or all subsystems of a discovery service.
///
/// # Errors
/// When nothing can be listed: those of discovery, or of the only subsystem.
pub async fn list(url: &NvmeUrl) -> Result<Vec<TargetEntry>, Failure> {
    if url.subsystem.is_some() {
        return Ok(vec![of_subsystem(url).await?]);
    }
    of_one_service(url)?;
    let address = SubsystemAddress { portal: url.portal.clone(), subsystem: discovery::well_known() };
    let found = subsystems(discover_referred(&address, &url.options()?).await?);
    if found.is_empty() {
        return Err(no_subsystem(&url.portal));
    }
    let (mut targets, mut first) = (Vec::new(), None);
    for one in found {
        let Ok(name) = Nqn::new(&one.target) else { continue };
        let listed = match without_tls(one.portals) {
            Some(portal) => of_subsystem(&url.through(portal, name)).await,
            None => Err(needs_tls(&one.target)),
        };
        targets.push(match listed {
            Ok(target) => target,
            Err(e) => {
                let target = entry(&one.target, &url.portal, Vec::new(), Some(e.what.clone()));
                first.get_or_insert(e);
                target
            }
        });
    }
    match first {
        Some(error) if targets.iter().all(|target| target.error.is_some()) => Err(error.into()),
        _ => Ok(targets),
    }
}

/// The first portal that does not demand TLS.
fn without_tls(portals: Vec<PortalEntry>) -> Option<Portal> {
    let open = portals.into_iter().find(|portal| portal.tls_required != Some(true))?;
    Some(Portal { host: open.host, port: open.port })
}

fn needs_tls(subsystem: &str) -> Error {
    let what = format!(
        "all portals of {} for this host demand TLS, which Lunar's initiator does not have",
        utf8(subsystem.as_bytes())
    );
    Error::new(ErrorCode::Refused, what).with_hint(
        "connect with nvme connect --tls; or name a host without a TLS key with host_nqn= in the URL",
    )
}

fn entry(name: &str, portal: &Portal, luns: Vec<LunEntry>, error: Option<String>) -> TargetEntry {
    let target = utf8(name.as_bytes());
    TargetEntry { target, portal: portal.to_string(), luns, error, unreachable: Vec::new() }
}

/// The subsystem as the first path shows it that works. The errors of those before it are part of the entry.
///
/// # Errors
/// The first one, if no path works.
async fn of_subsystem(url: &NvmeUrl) -> Result<TargetEntry, Error> {
    let mut unreachable = Vec::new();
    for path in url.paths() {
        match on_path(&path).await {
            Ok(target) => return Ok(TargetEntry { unreachable, ..target }),
            Err(e) => unreachable.push(e),
        }
    }
    Err(unreachable.swap_remove(0))
}

async fn on_path(url: &NvmeUrl) -> Result<TargetEntry, Error> {
    let controller = nvme::connect(url).await?;
    let listed = namespaces(url, &controller).await;
    controller.close().await;
    let info = controller.info();
    Ok(entry(info.subsystem.as_str(), &info.portal, listed?, None))
}

async fn namespaces(url: &NvmeUrl, controller: &NvmeController) -> Result<Vec<LunEntry>, Error> {
    let numbers = match url.namespace {
        Some(name) => vec![name.resolve(controller).await?],
        None => controller.namespaces().await?,
    };
    let info = controller.info();
    let mut entries = Vec::new();
    for number in numbers {
        entries.push(namespace(url, number, controller, &info).await?);
    }
    Ok(entries)
}

/// Examines one namespace. If the URL names it, it must exist.
async fn namespace(
    url: &NvmeUrl,
    number: u32,
    controller: &NvmeController,
    info: &ControllerInfo,
) -> Result<LunEntry, Error> {
    let entry =
        LunEntry { lun: number, url: url.at(number).plain(), is_namespace: true, ..LunEntry::default() };
    Ok(match nvme::inspect(controller, number).await {
        Ok(properties) => LunEntry {
            kind: "disk",
            capacity_bytes: properties.capacity,
            block_size_bytes: properties.block_size(),
            read_only: properties.is_read_only(),
            vendor: "NVMe".into(),
            product: info.model(),
            revision: info.firmware(),
            serial: Some(info.serial()),
            identity: Some(properties.identity.to_string()).filter(|text| !text.is_empty()),
            ..entry
        },
        Err(e) if e.code == ErrorCode::InvalidArgument && url.namespace.is_none() => {
            LunEntry { error: Some(e.to_string()), ..entry }
        }
        Err(e) => return Err(e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portal_without_tls_is_the_one_to_list() {
        let portal =
            |port, tls_required| PortalEntry { host: "192.0.2.1".into(), port, tag: None, tls_required };
        let tls = || portal(1, Some(true));
        assert_eq!(without_tls(vec![tls(), portal(2, Some(false))]).map(|found| found.port), Some(2));
        assert_eq!(without_tls(vec![tls(), portal(3, None)]).map(|found| found.port), Some(3));
        assert!(without_tls(vec![tls()]).is_none());
    }
}
