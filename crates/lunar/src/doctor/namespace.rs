//! Examines network, controller and namespace behind an NVMe URL.

use super::namespace_report::{ControllerSummary, NamespaceSummary};
use super::report::{DoctorReport, us};
use super::{broken, measure, namespace_findings, namespace_paths, reads, within};
use crate::exit::Failure;
use lunar_initiator::multipath::{LunPath, PathState};
use lunar_initiator::nvme::{self, ControllerInfo, NvmeController, NvmeNamespace, NvmeUrl};
use lunar_initiator::{Error, ErrorCode, Probe};
use std::time::{Duration, Instant};

/// The report, and the failure if the URL cannot be used. Several paths are examined one after the other, so that none
/// disturbs the measurements of another one. Each has an equal share of the time that is left: one that does not answer
/// must not hide the others.
///
/// # Errors
/// When the options of the URL are invalid, such as a file with a secret.
pub async fn examine(url: &NvmeUrl, limit: Duration) -> Result<(DoctorReport, Option<Failure>), Failure> {
    let (started_at, paths) = (Instant::now(), url.paths());
    let mut examined = Vec::new();
    for (at, path) in paths.iter().enumerate() {
        let left = limit.saturating_sub(started_at.elapsed()) / (paths.len() - at) as u32;
        // The maximum is no limit.
        let share = if limit == Duration::MAX { limit } else { left };
        examined.push(examine_path(path, share).await?);
    }
    Ok(if examined.len() == 1 { examined.remove(0) } else { namespace_paths::merge(url, examined) })
}

async fn examine_path(url: &NvmeUrl, limit: Duration) -> Result<(DoctorReport, Option<Failure>), Failure> {
    let options = url.options()?;
    let mut report = DoctorReport {
        url: url.to_string(),
        initiator: options.host.to_string(),
        is_nvme: true,
        usable: true,
        ..DoctorReport::default()
    };
    // An unreachable controller is a result, not a reason to retry.
    let url = url.clone().with_default("login_tries", "1")?;
    let mut probe = Probe::of(url.portal.clone());
    let outcome = within(limit, async {
        probe.reach(options.timeouts.login, options.window).await?;
        examine_controller(&url, &mut report).await
    })
    .await;
    report.take(&probe);
    let failure = outcome.err().map(|e| broken(&mut report, e.code, Failure::from(e)));
    let mut found = namespace_findings::of(&report, options.secrets.is_some(), url.namespace.is_none());
    report.findings.append(&mut found);
    Ok((report, failure))
}

async fn examine_controller(url: &NvmeUrl, report: &mut DoctorReport) -> Result<(), Error> {
    let started_at = Instant::now();
    let controller = nvme::connect(url).await?;
    let connected_in_us = us(started_at.elapsed());
    let outcome = examine_namespace(url, &controller, connected_in_us, report).await;
    controller.close().await;
    outcome
}

async fn examine_namespace(
    url: &NvmeUrl,
    controller: &NvmeController,
    connected_in_us: u64,
    report: &mut DoctorReport,
) -> Result<(), Error> {
    let namespaces = controller.namespaces().await?;
    let first = namespaces.first().copied();
    report.controller = Some(ControllerSummary::of(&controller.info(), namespaces, connected_in_us));
    let number = match (url.namespace, first) {
        (Some(name), _) => name.resolve(controller).await?,
        (None, Some(first)) => first,
        (None, None) => {
            let what = format!("{} has no namespace for this host", controller.info().subsystem);
            return Err(Error::new(ErrorCode::NotFound, what)
                .with_hint("check on the target which namespaces this host may use"));
        }
    };
    let namespace = NvmeNamespace::open(controller, number).await?;
    let access = LunPath::check(&*namespace).await;
    report.namespace = Some(NamespaceSummary::of(&namespace, access));
    report.round_trip = Some(measure::admin_round_trip(controller).await?);
    if !access.is_usable() {
        return Err(inaccessible(number, access, &controller.info()));
    }
    report.reads = reads(&namespace, namespace.block_size()).await?;
    Ok(())
}

fn inaccessible(number: u32, access: PathState, info: &ControllerInfo) -> Error {
    let what =
        format!("namespace {number} takes no commands through {}: its state is {access} (ANA)", info.portal);
    Error::new(ErrorCode::Unreachable, what).with_hint(
        "use another path, which paths= of the URL can name; a failover of the storage changes the state",
    )
}
