//! `lunar doctor`: examines network, login, session and LUN behind a URL, and reports faults with hints.

mod devices;
mod findings;
mod measure;
mod namespace;
mod namespace_findings;
mod namespace_paths;
mod namespace_report;
pub mod report;

use crate::client::{self, ClientArgs, json, run};
use crate::error_hints::with_url_hint;
use crate::exit::{Exit, Failure};
use clap::Args;
use lunar_initiator::nvme::NvmeUrl;
use lunar_initiator::options::Transport;
use lunar_initiator::{Backend, Error, ErrorCode, Options, Probe, Url, nvme};
use lunar_proto::chap::Algorithm;
use lunar_proto::initiator::login::LoggedIn;
use lunar_server::Diagnostic;
use lunar_server::hints::words;
use lunar_wire::scsi::lun::decode;
use report::{DoctorReport, Finding, LunProperties, SessionSummary, Severity};
use std::sync::Arc;
use std::time::Duration;

const EXAMPLES: &str = "\
It reads for about a second on each path, and writes nothing. If the LUN is unusable, the exit status is that of the cause.

Examples:
  lunar doctor 127.0.0.1
  lunar doctor iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0
  lunar doctor nvme://192.0.2.10/nqn.2026-11.org.example:disks/1
  lunar doctor 'iser://192.0.2.10/iqn.2026-11.org.example:disks/0?provider=verbs'
  lunar doctor iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0 --json --timeout 60";

/// Arguments of `lunar doctor`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Doctor {
    /// HOST[:PORT], or a URL: iscsi://HOST[:PORT][/TARGET[/LUN]][?KEY=VALUE&...], an iser:// or srp:// URL, or
    /// nvme://HOST[:PORT]/NQN[/NAMESPACE]
    #[arg(value_name = "URL")]
    url: String,

    #[command(flatten)]
    common: ClientArgs,
}

/// The report to print, and the failure if the URL cannot be used.
///
/// # Errors
/// When the URL is invalid.
pub fn doctor(args: Doctor) -> Result<(String, Option<Failure>), Failure> {
    let namespace = nvme::is_url(&args.url).then(|| args.url.parse::<NvmeUrl>()).transpose()?;
    // A timeout ends the examination only: the report shows what was found until then.
    let (limit, without_timeout) = (args.common.timeout, ClientArgs { timeout: None, ..args.common });
    let limit = limit.unwrap_or(Duration::MAX);
    let (report, failure) = match namespace {
        Some(url) => run(without_timeout, move || async move { namespace::examine(&url, limit).await })?,
        None => {
            let url = client::url(&args.url)?;
            run(without_timeout, move || async move { examine(&url, limit).await })?
        }
    };
    let text = if args.common.json { json(&report)? } else { report.text() };
    Ok((text, failure))
}

async fn examine(url: &Url, limit: Duration) -> Result<(DoctorReport, Option<Failure>), Failure> {
    let mut options = url.options()?;
    // An unreachable target is a result, not a reason to retry.
    options.timeouts.login_tries = 1;
    let initiator = options.initiator.clone();
    let mut report = DoctorReport {
        url: url.to_string(),
        initiator,
        transport: options.transport,
        by_device: options.by_device(),
        devices: if options.transport == Transport::Tcp { None } else { devices::of_this_host() },
        usable: true,
        ..DoctorReport::default()
    };
    let mut probe = Probe::of(url.portal.clone());
    let outcome = within(limit, examine_lun(url, &options, &mut report, &mut probe)).await;
    report.take(&probe);
    let failure = outcome.err().map(|e| broken(&mut report, e.code, with_url_hint(url, Failure::from(e))));
    let mut found = findings::of(&report, options.credentials.is_some(), url.lun.is_none());
    report.findings.append(&mut found);
    Ok((report, failure))
}

async fn within(limit: Duration, work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    if limit == Duration::MAX {
        return work.await;
    }
    let late =
        || Error::new(ErrorCode::TimedOut, format!("timed out after {}", humantime::format_duration(limit)));
    compio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
}

/// Adds the error to the findings. The returned failure only refers to the report.
fn broken(report: &mut DoctorReport, code: ErrorCode, mut failure: Failure) -> Failure {
    if failure.exit == Exit::TimedOut {
        let (what, hint) = report.waits_for();
        failure.problems.iter_mut().for_each(|problem| {
            problem.what += &format!(": waiting for {what}");
            problem.hint = Some(hint.into());
        });
    }
    report.usable = false;
    for problem in &failure.problems {
        let hint = problem.hint.clone().unwrap_or_default();
        report.findings.push(Finding {
            weight: Severity::Broken,
            code: Some(code),
            what: problem.what.clone(),
            hint,
        });
    }
    refer(&report.url, failure)
}

/// The failure of an unusable URL, whose problems are in the report.
fn refer(url: &str, failure: Failure) -> Failure {
    let what = format!("{url} cannot be used: see the report");
    Failure { problems: vec![Diagnostic { hint: None, ..Diagnostic::new(what, "") }], ..failure }
}

async fn log_in(probe: &mut Probe, url: &Url, options: &Options) -> Result<Box<LoggedIn>, Error> {
    probe.log_in(url.target.clone(), options).await;
    // After redirects, the last portal is the one that responded.
    let portal = probe.portals.last().unwrap_or(&url.portal);
    probe.login.clone().map_err(|e| e.during(format!("login to {portal}")))
}

/// Logs in at the first reachable portal of the target. The probe describes the last login. Each unreachable portal
/// is a finding.
async fn log_in_at_one(
    probe: &mut Probe,
    urls: &[Url],
    options: &Options,
    report: &mut DoctorReport,
) -> Result<(Url, Box<LoggedIn>), Error> {
    let mut urls = urls.iter().peekable();
    loop {
        let url = urls.next().ok_or_else(|| Error::new(ErrorCode::NotFound, "the target has no portal"))?;
        *probe = Probe::of(url.portal.clone());
        match log_in(probe, url, options).await.map_err(|e| url.explain(e)) {
            Err(e) if e.is_away() && urls.peek().is_some() => report.findings.push(Finding {
                weight: Severity::Warning,
                code: Some(e.code),
                what: e.what.clone(),
                hint: e.hint.as_ref().map(words).unwrap_or_default().to_owned(),
            }),
            end => return end.map(|login| (url.clone(), login)),
        }
    }
}

/// Examines login, session and LUN, up to the first failure. The probe describes the last login.
async fn examine_lun(
    url: &Url,
    options: &Options,
    report: &mut DoctorReport,
    probe: &mut Probe,
) -> Result<(), Error> {
    if url.target.is_none() {
        log_in(probe, url, options).await?;
    }
    let urls = lunar_initiator::resolve(url, options).await?;
    let (url, login) = log_in_at_one(probe, &urls, options, report).await?;
    let target = url.target.clone().unwrap_or_default();
    let session = lunar_initiator::Session::open(url.portal.clone(), &target, options.clone()).await?;
    let luns: Vec<u16> = lunar_initiator::luns(&session).await?.into_iter().filter_map(decode).collect();
    let number = url.lun.or(luns.first().copied());
    let info = session.info();
    report.session = Some(SessionSummary {
        target: info.target,
        target_alias: info.alias,
        portal_group: info.portal_group_tag,
        chap: login.chap.map(name),
        parameters: (&info.parameters).into(),
        window: session.window().unwrap_or(0),
        commands: options.commands,
        luns,
    });
    let outcome = match number {
        Some(number) => examine_logical_unit(&session, number, report).await,
        None => Err(Error::new(
            ErrorCode::NotFound,
            format!("the target {target} shows no LUN to this initiator"),
        )),
    };
    if let Err(e) = session.close().await {
        tracing::info!("logout failed: {e}");
    }
    outcome
}

async fn examine_logical_unit(
    session: &lunar_initiator::Session,
    number: u16,
    report: &mut DoctorReport,
) -> Result<(), Error> {
    let lun = lunar_initiator::Lun::open(session, number).await?;
    let p = lun.properties();
    report.lun = Some(LunProperties {
        lun: number,
        capacity_bytes: p.capacity(),
        block_size_bytes: p.block_size,
        physical_block_size_bytes: p.physical_block_size,
        read_only: p.read_only,
        write_cache: p.write_cache,
        thin: p.thin,
        identity: p.designator,
        vendor: p.vendor,
        product: p.product,
    });
    report.round_trip = Some(measure::round_trip(&lun).await?);
    report.reads = reads(&lun, lun.block_size()).await?;
    if let (Some(summary), Some(window)) = (&mut report.session, session.window()) {
        summary.window = window;
    }
    Ok(())
}

async fn reads<B: Backend + 'static>(
    disk: &Arc<B>,
    block_size: u32,
) -> Result<Option<report::ReadStats>, Error> {
    let of_io = |e: std::io::Error| {
        e.downcast::<Error>()
            .unwrap_or_else(|e| Error::new(ErrorCode::ScsiError, e.to_string()))
            .during("reading")
    };
    measure::reads(disk, block_size).await.map_err(of_io)
}

fn name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Md5 => "CHAP, MD5",
        Algorithm::Sha1 => "CHAP, SHA-1",
        Algorithm::Sha256 => "CHAP, SHA-256",
        Algorithm::Sha3 => "CHAP, SHA3-256",
    }
}
