//! `[router.NAME.upstream.NAME]`: the storage behind a router.

use super::remote_url::RemoteUrl;
use super::{Context, Mode, mode};
use crate::config::lun::Source;
use crate::config::{attachment, path};
use lunar_block::BackendKind;
use lunar_config::scsi_text;
use lunar_config::{Diagnostics, InvalidValue, invalid, unknown};
use lunar_config::{Section, UniqueKeys, text};
use lunar_proto::size;
use std::ops::Range;
use std::path::PathBuf;

/// An upstream: storage with logical units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// The location of the storage.
    pub source: UpstreamSource,
    /// How commands are routed to it.
    pub mode: Mode,
    /// The policy that selects a path.
    pub policy: UpstreamPolicy,
    /// The designator (VPD page 83h) that its LUN must have, such as `naa.6001405...`.
    pub identity: Option<String>,
    /// T10 vendor identification that replaces its own.
    pub vendor: Option<String>,
    /// Product identification that replaces its own.
    pub product: Option<String>,
    /// Unit serial number that replaces its own.
    pub serial: Option<String>,
}

/// The location of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamSource {
    /// Other targets.
    Remote {
        /// One URL for each path, the primary one first; at least one.
        urls: Vec<RemoteUrl>,
    },
    /// A backend of this host, which is one LUN.
    Local(Source),
    /// A SCSI device of this host, which is one LUN.
    Sg {
        /// `/dev/sg*`.
        path: PathBuf,
    },
}

/// The policy that selects one of several paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamPolicy {
    /// The first usable path takes all operations.
    #[default]
    Failover,
    /// Paths take turns.
    RoundRobin,
    /// The path with the fewest operations in flight.
    LeastQueue,
    /// As `LeastQueue`, among the paths that the target prefers (ALUA, SPC-5 section 5.18).
    Alua,
}

impl UpstreamPolicy {
    const ALL: [UpstreamPolicy; 4] = [
        UpstreamPolicy::Failover,
        UpstreamPolicy::RoundRobin,
        UpstreamPolicy::LeastQueue,
        UpstreamPolicy::Alua,
    ];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            UpstreamPolicy::Failover => "failover",
            UpstreamPolicy::RoundRobin => "round-robin",
            UpstreamPolicy::LeastQueue => "least-queue",
            UpstreamPolicy::Alua => "alua",
        }
    }
}

/// The scope of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach<'a> {
    /// All targets of a portal.
    Portal,
    /// A target of this name.
    Target(&'a str),
    /// A LUN of the target of this name.
    Lun(&'a str, u16),
    /// One LUN of this host, without a target.
    Local,
}

impl Reach<'_> {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Reach::Portal => "a portal",
            Reach::Target(_) => "a target",
            Reach::Lun(..) => "a LUN",
            Reach::Local => "a LUN of this host",
        }
    }
}

impl UpstreamConfig {
    /// Its scope, by its first URL.
    pub fn reach(&self) -> Reach<'_> {
        match &self.source {
            UpstreamSource::Remote { urls } => urls.first().map_or(Reach::Local, RemoteUrl::reach),
            UpstreamSource::Local(_) | UpstreamSource::Sg { .. } => Reach::Local,
        }
    }

    /// Its location in messages, without secrets.
    pub fn location(&self) -> String {
        match &self.source {
            UpstreamSource::Remote { urls } => {
                urls.iter().map(RemoteUrl::plain).collect::<Vec<_>>().join(", ")
            }
            UpstreamSource::Sg { path } => path.display().to_string(),
            UpstreamSource::Local(source) => source.to_string(),
        }
    }

    /// Whether it is a subsystem or a namespace.
    pub(super) fn is_nvme(&self) -> bool {
        matches!(&self.source, UpstreamSource::Remote { urls } if urls.iter().any(RemoteUrl::is_nvme))
    }
}

impl UpstreamSource {
    /// Adds this setting to URLs that do not have it.
    fn with_late_writes(self, late: Option<&str>) -> UpstreamSource {
        match (self, late) {
            (UpstreamSource::Remote { urls }, Some(late)) => UpstreamSource::Remote {
                urls: urls.into_iter().map(|url| url.with_late_writes(late)).collect(),
            },
            (source, _) => source,
        }
    }
}

/// The keys that locate an upstream: `urls`, `sg`, and the name of each kind of backend.
fn source_keys() -> Vec<&'static str> {
    let with_path = BackendKind::ALL.iter().filter(|kind| kind.has_path()).map(|kind| kind.name());
    let without = BackendKind::sized().map(BackendKind::name);
    ["urls"].into_iter().chain(with_path).chain(["sg"]).chain(without).collect()
}

/// Reads an upstream.
pub(super) fn upstream(
    p: &mut Diagnostics<'_>,
    mut s: Section<'_>,
    default: Mode,
    around: &mut Context<'_>,
) -> Option<UpstreamConfig> {
    s.renamed(&[("path", "mode")]);
    let late = s.parsed(p, "late_writes", attachment::late_writes);
    let source = source(p, &mut s, around).map(|source| source.with_late_writes(late));
    let mode = s.parsed(p, "mode", mode).unwrap_or(default);
    let mut upstream = UpstreamConfig {
        // Without a source there is no upstream, but its other problems are reported too.
        source: source.clone().unwrap_or(UpstreamSource::Local(Source::Null { size: 0 })),
        mode,
        policy: s.parsed(p, "policy", policy).unwrap_or_default(),
        identity: s.parsed(p, "identity", identity),
        vendor: s.parsed(p, "vendor", |text| scsi_text(text, "vendor", 8)),
        product: s.parsed(p, "product", |text| scsi_text(text, "product", 16)),
        serial: s.parsed(p, "serial", crate::config::lun::serial),
    };
    if let (Some(serial), Some(value)) = (&upstream.serial, s.find("serial")) {
        around.unique.serials.first(p, serial.trim().into(), &value.span());
    }
    if source.is_some() {
        fits(p, &mut s, &mut upstream);
    }
    s.done(p);
    source.map(|_| upstream)
}

fn source(p: &mut Diagnostics<'_>, s: &mut Section<'_>, around: &mut Context<'_>) -> Option<UpstreamSource> {
    let keys = source_keys();
    let there = keys.iter().filter_map(|key| s.find(key).map(|value| value.span()));
    let mut there: Vec<Range<usize>> = there.collect();
    there.sort_by_key(|at| at.start);
    let keys = keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    if there.is_empty() {
        p.add(&s.at, "the upstream has no source", format!("add one of {keys}"));
    }
    if let Some(second) = there.get(1) {
        p.add(second, "the upstream has several sources", format!("keep one of {keys}"));
    }
    let base = around.base;
    let urls = urls(p, s, around).map(|urls| UpstreamSource::Remote { urls });
    let sg = s.parsed(p, "sg", |text| path(text, base)).map(|path| UpstreamSource::Sg { path });
    // Each key is read, even after the first source.
    let mut local = None;
    for &kind in BackendKind::ALL {
        let source = match kind.has_path() {
            true => Source::new(kind, disk(p, s, kind.name(), around), None),
            false => Source::new(kind, None, s.size(p, kind.name(), 4096..=size::MAX_BYTES)),
        };
        local = local.or(source.map(UpstreamSource::Local));
    }
    urls.or(sg).or(local)
}

/// Reads a file or a device, which must have no other writer in the configuration.
fn disk(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    key: &'static str,
    around: &mut Context<'_>,
) -> Option<PathBuf> {
    let at = s.find(key)?.span();
    let found = s.parsed(p, key, |text| path(text, around.base))?;
    around.unique.files.add(p, &found, false, &at);
    Some(found)
}

/// Reads the URLs, which must all have the same scope.
fn urls(p: &mut Diagnostics<'_>, s: &mut Section<'_>, around: &Context<'_>) -> Option<Vec<RemoteUrl>> {
    let (values, at) = s.list(p, "urls")?;
    if values.is_empty() {
        p.add(
            &at,
            "`urls` is empty",
            "write urls = [\"iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0\"]",
        );
    }
    let (mut urls, mut once): (Vec<RemoteUrl>, _) = (Vec::new(), UniqueKeys::new("the URL"));
    for value in values {
        let at = value.span();
        let url = text(p, "urls", value).and_then(|text| p.check(&at, RemoteUrl::parse(text, around.base)));
        let Some(url) = url else { continue };
        refuse_open_secret(p, &url, &at);
        // Printed without secrets.
        once.first(p, url.to_string(), &at);
        let first = urls.first().unwrap_or(&url);
        let (this, other) = (url.reach().name(), first.reach().name());
        if this != other {
            let what = format!("this URL names {this}, but the first URL names {other}");
            p.add(&at, what, "write URLs that are paths to the same portal, target or LUN");
        }
        p.check(&at, url.check_beside(first));
        p.check(&at, around.own.check(&url));
        urls.push(url);
    }
    Some(urls).filter(|urls| !urls.is_empty())
}

/// Rejects a password in a file that other users can read.
fn refuse_open_secret(p: &mut Diagnostics<'_>, url: &RemoteUrl, at: &Range<usize>) {
    if let (true, Some((file, mode))) = (url.holds_secret(), p.open_to_others(at)) {
        let what = format!("the URL holds a secret, but other users can access the file: mode {mode:04o}");
        let file = file.display();
        p.add(at, what, format!("run chmod 0600 {file}, or keep the secret in a password_file="));
    }
}

fn policy(text: &str) -> Result<UpstreamPolicy, InvalidValue> {
    let names = UpstreamPolicy::ALL.map(UpstreamPolicy::name);
    let named = UpstreamPolicy::ALL.into_iter().find(|policy| policy.name() == text);
    named.ok_or_else(|| unknown("policy", text, names, format!("policies are {}", names.join(", "))))
}

/// Parses a designator in the form of `lunar ls`.
fn identity(text: &str) -> Result<String, InvalidValue> {
    let hex = |digits: &str, lengths: &[usize]| {
        lengths.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit())
    };
    match text.split_once('.') {
        Some(("naa", digits)) if hex(digits, &[16, 32]) => Ok(text.to_ascii_lowercase()),
        Some(("eui", digits)) if hex(digits, &[16, 24, 32]) => Ok(text.to_ascii_lowercase()),
        Some(("uuid", uuid)) if is_uuid(uuid) => Ok(text.to_ascii_lowercase()),
        Some(("t10" | "iqn", rest)) if !rest.is_empty() && !text.chars().any(char::is_control) => {
            Ok(text.into())
        }
        _ => invalid(
            format!("\"{}\" is not a LUN identity", text.escape_debug()),
            "write the identity as `lunar ls` shows it: naa. and 16 or 32 hexadecimal digits, eui. and 16, 24 or 32, uuid., or t10.",
        ),
    }
}

pub(in crate::config) fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12]) && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

/// Reports keys that do not apply to the kind of upstream.
fn fits(p: &mut Diagnostics<'_>, s: &mut Section<'_>, u: &mut UpstreamConfig) {
    let (is_remote, is_pass) =
        (matches!(u.source, UpstreamSource::Remote { .. }), u.mode == Mode::Passthrough);
    let is_sg = matches!(u.source, UpstreamSource::Sg { .. });
    let is_one = !matches!(u.reach(), Reach::Portal | Reach::Target(_));
    let own = "a passthrough upstream keeps its own vendor, product and serial number";
    let is_nvme = u.is_nvme();
    let rules: [(&'static str, bool, &str, &str); 8] = [
        (
            "urls",
            is_nvme && is_pass,
            "an NVMe namespace does not support mode = \"passthrough\"",
            "write mode = \"block\"",
        ),
        ("sg", is_sg && !is_pass, "`sg` requires mode = \"passthrough\"", "add mode = \"passthrough\""),
        ("late_writes", !is_remote, "`late_writes` requires `urls`", "remove `late_writes`"),
        (
            "late_writes",
            is_nvme,
            "`late_writes` does not apply to nvme:// URLs: NVMe has no proof that a write has ended",
            "remove `late_writes`",
        ),
        ("policy", !is_remote, "`policy` requires `urls`", "remove `policy`"),
        (
            "policy",
            is_remote && is_pass && u.policy != UpstreamPolicy::Failover,
            "`policy` uses several paths, but mode = \"passthrough\" uses one path at a time",
            "write policy = \"failover\", or mode = \"block\"",
        ),
        (
            "identity",
            !(is_remote || is_sg) || !is_one,
            "`identity` requires an upstream of one LUN",
            "add the LUN to the URLs, or remove the key",
        ),
        (
            "serial",
            !is_pass && !is_one,
            "`serial` requires an upstream of one LUN",
            "add the LUN to the URLs, or remove the key",
        ),
    ];
    let of_own = ["vendor", "product", "serial"]
        .map(|key| (key, is_pass, own, "remove the key, or write mode = \"block\""));
    let of_local = BackendKind::ALL.iter().map(|kind| {
        let (what, hint) = no_passthrough(*kind);
        (kind.name(), is_pass, what, hint)
    });
    for (key, is_wrong, what, hint) in rules.into_iter().chain(of_local).chain(of_own) {
        if let (true, Some(value)) = (is_wrong, s.find(key)) {
            p.add(&value.span(), what, hint);
        }
    }
}

/// The fault and the hint for a backend of this host in passthrough mode.
fn no_passthrough(kind: BackendKind) -> (&'static str, &'static str) {
    match kind {
        BackendKind::Null => ("null does not support mode = \"passthrough\"", "write mode = \"block\""),
        BackendKind::Memory => ("memory does not support mode = \"passthrough\"", "write mode = \"block\""),
        BackendKind::File => ("a file does not support mode = \"passthrough\"", "write mode = \"block\""),
        BackendKind::Device => (
            "a block device does not support mode = \"passthrough\"",
            "write mode = \"block\", or `sg` for a SCSI device",
        ),
        BackendKind::Rbd => ("rbd does not support mode = \"passthrough\"", "write mode = \"block\""),
    }
}
