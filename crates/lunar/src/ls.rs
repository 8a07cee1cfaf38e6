//! `lunar ls`: lists targets and their logical units.

mod namespaces;

use crate::client::{self, ClientArgs, json_list, run};
use crate::discover::none;
use crate::error_hints::with_url_hint;
use crate::exit::Failure;
use crate::output;
use clap::Args;
use lunar_initiator::nvme::{self, NvmeUrl};
use lunar_initiator::{Error, Options, Session, Url};
use lunar_proto::size;
use lunar_server::hints::words;
use lunar_wire::scsi::lun::decode;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;
use utoipa::ToSchema;

const EXAMPLES: &str = "\
Examples:
  lunar ls 127.0.0.1
  lunar ls iscsi://192.0.2.10/iqn.2026-11.org.example:disks
  lunar ls iscsi://ann@192.0.2.10?password_file=ann.secret --json
  lunar ls nvme://192.0.2.10";

/// Time limit for a logical unit to become ready.
const NOT_READY: Duration = Duration::from_secs(5);

/// Arguments of `lunar ls`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Ls {
    /// HOST[:PORT], or a URL: iscsi://HOST[:PORT][/TARGET[/LUN]][?KEY=VALUE&...], an iser:// or srp:// URL, or
    /// nvme://HOST[:PORT][/NQN[/NAMESPACE]], which lists subsystems and namespaces
    #[arg(value_name = "URL")]
    url: String,

    #[command(flatten)]
    common: ClientArgs,
}

/// A target.
#[derive(Serialize, ToSchema)]
#[schema(as = ListedTarget)]
pub struct TargetEntry {
    target: String,
    portal: String,
    luns: Vec<LunEntry>,
    /// The error of its login or of REPORT LUNS.
    error: Option<String>,
    /// The errors of its unreachable portals.
    #[serde(skip)]
    unreachable: Vec<Error>,
}

/// One of its logical units.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = ListedLun)]
pub struct LunEntry {
    /// The LUN, or the number of a namespace (NSID).
    lun: u32,
    url: String,
    #[serde(skip)]
    is_namespace: bool,
    #[serde(rename = "type")]
    kind: &'static str,
    vendor: String,
    product: String,
    revision: String,
    serial: Option<String>,
    identity: Option<String>,
    capacity_bytes: u64,
    block_size_bytes: u32,
    read_only: bool,
    /// The error of the examination. It starts with the LUN ([`lunar_initiator::properties`]).
    error: Option<String>,
}

/// The text to print. Targets that reject the login are reported on stderr.
///
/// # Errors
/// When nothing can be listed: those of discovery, or of the only login.
pub fn ls(args: Ls) -> Result<String, Failure> {
    let targets = match nvme::is_url(&args.url) {
        true => {
            let url = args.url.parse::<NvmeUrl>()?.with_default("login_tries", "1")?;
            run(args.common, move || async move { namespaces::list(&url).await })?
        }
        false => {
            let url = client::url(&args.url)?;
            let asked = url.clone();
            let targets = run(args.common, move || async move { list(&asked).await });
            targets.map_err(|failure| with_url_hint(&url, failure))?
        }
    };
    targets.iter().for_each(warn);
    if args.common.json {
        return json_list(&targets);
    }
    Ok(targets.iter().map(text).collect())
}

/// Reports on stderr why a target is listed without LUNs, and its unreachable portals.
fn warn(TargetEntry { target, error, unreachable, .. }: &TargetEntry) {
    for e in unreachable {
        let hint = e.hint.as_ref().map(|hint| format!("\n  hint: {}", words(hint))).unwrap_or_default();
        output::stderr_line(format_args!("warning: {target}: {}{hint}", e.what));
    }
    if let Some(error) = error {
        output::stderr_line(format_args!("warning: {target}: {error}"));
    }
}

/// All targets that the URL selects.
async fn list(url: &Url) -> Result<Vec<TargetEntry>, Failure> {
    let mut options = url.options()?;
    // A logical unit that is not ready is listed as such.
    options.timeouts.busy = NOT_READY;
    let Some(target) = &url.target else { return list_portal(url, &options).await };
    let session = Session::open(url.portal.clone(), target, options).await?;
    Ok(vec![of_session(url, session).await?])
}

/// All targets of a portal. An error if none of them accepts a login.
async fn list_portal(url: &Url, options: &Options) -> Result<Vec<TargetEntry>, Failure> {
    let found = lunar_initiator::discover(url.portal.clone(), options).await?;
    if found.is_empty() {
        return Err(none(&url.portal));
    }
    let (mut targets, mut first) = (Vec::new(), None);
    for one in found {
        let urls = lunar_initiator::portal_urls(url, one);
        let mut unreachable = Vec::new();
        let entered = log_in(&urls, options, &mut unreachable).await;
        let target = entered.unwrap_or_else(|error| {
            let target = refused(&urls[0], &error);
            first.get_or_insert(error);
            target
        });
        targets.push(TargetEntry { unreachable, ..target });
    }
    match first {
        Some(error) if targets.iter().all(|target| target.error.is_some()) => Err(error.into()),
        _ => Ok(targets),
    }
}

fn refused(url: &Url, error: &Error) -> TargetEntry {
    TargetEntry {
        target: url.target.clone().unwrap_or_default(),
        portal: url.portal.to_string(),
        luns: Vec::new(),
        error: Some(error.what.clone()),
        unreachable: Vec::new(),
    }
}

async fn log_in(urls: &[Url], options: &Options, unreachable: &mut Vec<Error>) -> Result<TargetEntry, Error> {
    let (url, session) = lunar_initiator::log_in(urls, options, |e| unreachable.push(e)).await?;
    of_session(&url, session).await
}

async fn of_session(url: &Url, session: Session) -> Result<TargetEntry, Error> {
    let numbers = match url.lun {
        Some(lun) => vec![lun],
        None => lunar_initiator::luns(&session).await?.into_iter().filter_map(decode).collect(),
    };
    let info = session.info();
    let mut luns = Vec::new();
    for number in numbers {
        luns.push(lun(&url.at(&info.target, Some(number)), number, &session).await?);
    }
    if let Err(e) = session.close().await {
        tracing::info!("{}: logout failed: {e}", info.target);
    }
    let portal = info.portal.to_string();
    Ok(TargetEntry { target: info.target, portal, luns, error: None, unreachable: Vec::new() })
}

/// Examines one logical unit. If the URL names it, it must exist.
async fn lun(url: &Url, number: u16, session: &Session) -> Result<LunEntry, Error> {
    let entry = LunEntry { lun: number.into(), url: url.plain(), ..LunEntry::default() };
    Ok(match lunar_initiator::properties(session, number).await {
        Ok(p) => LunEntry {
            kind: kind(p.device_type),
            capacity_bytes: p.capacity(),
            block_size_bytes: p.block_size,
            read_only: p.read_only,
            vendor: p.vendor,
            product: p.product,
            revision: p.revision,
            serial: p.serial,
            identity: p.designator,
            ..entry
        },
        Err(e) if e.sense.is_some() => LunEntry { error: Some(e.to_string()), ..entry },
        Err(e) => return Err(e),
    })
}

/// Peripheral device types (SPC-5 section 6.6.2).
fn kind(device_type: u8) -> &'static str {
    const NAMES: [(u8, &str); 10] = [
        (0x00, "disk"),
        (0x01, "tape"),
        (0x03, "processor"),
        (0x05, "cdrom"),
        (0x07, "optical"),
        (0x08, "changer"),
        (0x0c, "controller"),
        (0x0d, "enclosure"),
        (0x0e, "rbc"),
        (0x14, "zoned"),
    ];
    NAMES.iter().find(|row| row.0 == device_type).map_or("other", |row| row.1)
}

/// A target and its logical units as text.
fn text(target: &TargetEntry) -> String {
    let mut text = format!("{} at {}\n", target.target, target.portal);
    if let Some(error) = &target.error {
        _ = writeln!(text, "  {error}");
    } else if target.luns.is_empty() {
        text += "  no LUNs\n";
    }
    for lun in &target.luns {
        _ = match &lun.error {
            Some(error) => writeln!(text, "  {error}"),
            None if lun.is_namespace => writeln!(text, "  namespace {}: {}", lun.lun, line(lun)),
            None => writeln!(text, "  LUN {}: {}", lun.lun, line(lun)),
        };
    }
    text
}

fn line(lun: &LunEntry) -> String {
    let mut parts = vec![lun.kind.to_owned()];
    if lun.capacity_bytes > 0 {
        parts.push(size::show(lun.capacity_bytes));
    }
    parts.push(format!("{} {}", lun.vendor, lun.product));
    parts.extend(lun.identity.clone());
    if lun.read_only {
        parts.push("read-only".into());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_reads_as_it_should() {
        let lun = LunEntry {
            kind: kind(5),
            vendor: "LUNAR".into(),
            product: "CD".into(),
            identity: Some("naa.3".into()),
            capacity_bytes: 1 << 30,
            read_only: true,
            ..LunEntry::default()
        };
        let away = LunEntry { lun: 1, error: Some("LUN 1: not ready".into()), ..LunEntry::default() };
        let mut target = TargetEntry {
            target: "iqn.x".into(),
            portal: "h:1".into(),
            luns: vec![lun, away],
            error: None,
            unreachable: Vec::new(),
        };
        assert_eq!(
            text(&target),
            "iqn.x at h:1\n  LUN 0: cdrom, 1 GiB, LUNAR CD, naa.3, read-only\n  LUN 1: not ready\n"
        );
        target.luns.clear();
        assert_eq!(text(&target), "iqn.x at h:1\n  no LUNs\n");
        assert_eq!(kind(0x1f), "other");
    }
}
