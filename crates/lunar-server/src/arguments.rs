//! `lunar serve` without a configuration file: builds a configuration from arguments and defaults.

mod objects;

use crate::build::create_folder;
use crate::config::{self, Config, LunConfig, OneFile, Source};
use crate::{Diagnostic, ErrorCode, identity};
use lunar_block::{BackendKind, RBD_PREFIX, RbdLocation};
use lunar_config::{InvalidValue, invalid, nearest};
use lunar_scsi::PeripheralDeviceType;
use lunar_target::config::{Portal, PortalGroup, PortalProtocol, Transports};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The arguments of the command line, as written.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// LUNs 0, 1, ...: `PATH`, `null:SIZE` or `memory:SIZE`. If empty, a disk in the state folder.
    pub luns: Vec<String>,
    /// Size of missing files, which are created.
    pub size: Option<String>,
    /// Portals; 127.0.0.1:3260 if empty.
    pub listen: Vec<String>,
    /// Whether the portals also accept iSER.
    pub iser: bool,
    /// SRP portals, in addition to `listen`.
    pub srp: Vec<String>,
    /// NVMe/TCP portals, in addition to `listen`.
    pub nvme: Vec<String>,
    /// Whether files and devices are raw disks, so that image formats are not detected.
    pub raw: bool,
    /// Name of the target; None: derived from the host name.
    pub target: Option<String>,
}

/// The environment of the command.
#[derive(Clone, Copy, Debug)]
pub struct ServeContext<'a> {
    /// The state folder.
    pub state_dir: &'a Path,
    /// The host name.
    pub host: &'a str,
}

/// The longest NQN in bytes.
const MAX_NQN: usize = 223;
/// The NQN of the subsystem if the name of the target has no such form.
const DEFAULT_NQN: &str = "nqn.2026-11.org.lunar:default";

/// The portal if `listen` is empty.
const DEFAULT_PORTAL: &str = "127.0.0.1:3260";
/// Bytes of the default disk, which is served if there is no LUN argument.
const DEFAULT_DISK_BYTES: u64 = 1 << 30;

impl Arguments {
    /// The equivalent configuration. Creates the folder of the default disk.
    pub fn config(&self, context: ServeContext<'_>) -> Result<Config, Vec<Diagnostic>> {
        let mut problems = Vec::new();
        let mut note = |argument: &str, invalid: Diagnostic| {
            problems.push(Diagnostic { what: format!("{argument}: {}", invalid.what), ..invalid });
        };
        let size = self.size.as_deref().map(disk_size).transpose();
        let size = size.unwrap_or_else(|invalid| {
            note("--size", invalid.into());
            // The default disk is created without `--size`.
            Some(DEFAULT_DISK_BYTES)
        });
        let portals = self.portals(&mut note);
        let name = match &self.target {
            Some(name) => config::iscsi_name(name).unwrap_or_else(|invalid| {
                note("--target", invalid.into());
                lunar_proto::name::of_host(context.host)
            }),
            None => lunar_proto::name::of_host(context.host),
        };
        let luns = self.units(&name, size, context, &mut note);
        if problems.is_empty() { Ok(assemble(name, luns, portals)) } else { Err(problems) }
    }

    fn portals(&self, note: &mut impl FnMut(&str, Diagnostic)) -> Vec<Portal> {
        let mut seen = BTreeSet::new();
        let mut portals = Vec::new();
        let default = [DEFAULT_PORTAL.to_string()];
        let listen = if self.listen.is_empty() { &default[..] } else { &self.listen };
        let iscsi = Transports { iser: self.iser, ..Transports::TCP };
        let iscsi = listen.iter().map(|text| ("--listen", text, iscsi));
        let srp = self.srp.iter().map(|text| ("--srp", text, Transports::SRP));
        let nvme = self.nvme.iter().map(|text| ("--nvme", text, Transports::NVME_TCP));
        for (argument, text, transports) in iscsi.chain(srp).chain(nvme) {
            match config::listen(text, transports) {
                Ok(listen) if listen.port() == 0 || seen.insert(listen) => {
                    portals.push(Portal { transports, ..Portal::tcp(listen) })
                }
                Ok(listen) => note(argument, twice(&listen.to_string()).into()),
                Err(invalid) => note(argument, invalid.into()),
            }
        }
        let discovery = portals.iter().filter(|portal| is_registered(portal)).map(discovery_portal);
        let discovery: Vec<Portal> = discovery.filter(|portal| seen.insert(portal.listen)).collect();
        portals.extend(discovery);
        portals
    }

    fn units(
        &self,
        target: &str,
        size: Option<u64>,
        context: ServeContext<'_>,
        note: &mut impl FnMut(&str, Diagnostic),
    ) -> Vec<LunConfig> {
        if self.luns.is_empty() {
            let path = context.state_dir.join("disk.img");
            match create_folder(context.state_dir) {
                // An existing disk keeps its size, unless another one was requested.
                Ok(()) if size.is_none() && path.metadata().is_ok_and(|found| found.len() > 0) => {
                    return vec![disk(target, path, None)];
                }
                Ok(()) => return vec![disk(target, path, Some(size.unwrap_or(DEFAULT_DISK_BYTES)))],
                Err(problem) => note("the default disk", problem),
            }
        }
        let mut seen: BTreeMap<OneFile, (&str, bool)> = BTreeMap::new();
        let mut luns = Vec::new();
        for text in &self.luns {
            match lun(target, text, size).map(|lun| LunConfig { raw: self.raw, ..lun }) {
                Ok(lun) => {
                    let Some(path) = lun.source.path() else {
                        luns.push(lun);
                        continue;
                    };
                    match seen.insert(OneFile::of(path), (text, lun.read_only)) {
                        Some((first, read_only)) if !(read_only && lun.read_only) => {
                            note("LUN", one_file(first, text).into());
                        }
                        _ => luns.push(lun),
                    }
                }
                Err(invalid) => note("LUN", invalid),
            }
        }
        luns
    }
}

/// Whether it is a portal at the registered port of NVMe/TCP, whose hosts look for discovery at its registered port.
fn is_registered(portal: &Portal) -> bool {
    portal.transports.protocol == PortalProtocol::NvmeTcp && portal.listen.port() == config::NVME_PORT
}

fn discovery_portal(portal: &Portal) -> Portal {
    let listen = SocketAddr::new(portal.listen.ip(), config::NVME_DISCOVERY_PORT);
    Portal { transports: Transports::NVME_DISCOVERY, ..Portal::tcp(listen) }
}

/// The subsystem with the disks of a target.
fn subsystem_of(target: &config::Target) -> config::Target {
    let nqn = match target.name.strip_prefix("iqn.") {
        Some(rest) if rest.len() <= MAX_NQN - 4 => format!("nqn.{rest}"),
        _ => DEFAULT_NQN.into(),
    };
    let disks = target.luns.iter().filter(|(_, lun)| lun.kind == PeripheralDeviceType::Disk);
    let shared = disks.map(|(number, _)| (number + 1, (target.name.clone(), *number))).collect();
    let subsystem = Some(config::SubsystemConfig { shared, ..Default::default() });
    config::Target { subsystem, ..config::Target::new(nqn, vec![1]) }
}

/// Reports a duplicate argument.
fn twice(what: &str) -> InvalidValue {
    InvalidValue {
        what: format!("{} is given twice", what.escape_debug()),
        hint: "remove one of them".into(),
        code: ErrorCode::Other,
    }
}

fn one_file(first: &str, second: &str) -> InvalidValue {
    if config::one_name(Path::new(first)) == config::one_name(Path::new(second)) {
        return twice(second);
    }
    let what = format!("{} and {} are the same file", first.escape_debug(), second.escape_debug());
    InvalidValue { what, hint: "remove one of them".into(), code: ErrorCode::Other }
}

fn assemble(name: String, luns: Vec<LunConfig>, portals: Vec<Portal>) -> Config {
    let mut config = config::defaults();
    config.portal_groups = vec![PortalGroup { tag: 1, portals }];
    config.targets = vec![config::Target {
        luns: Arc::new((0..).zip(luns).collect::<BTreeMap<u16, LunConfig>>()),
        ..config::Target::new(name, vec![1])
    }];
    let has_nvme = config.portal_groups[0].portals.iter().any(|portal| portal.transports.protocol.is_nvme());
    if has_nvme {
        config.targets.push(subsystem_of(&config.targets[0]));
    }
    config.sources.document = Arc::new(objects::document(&config));
    config
}

/// Parses a LUN argument of a target. `size`: that of a missing file, which is created.
///
/// # Errors
/// The fault of the argument or of the size.
pub fn lun_argument(target: &str, text: &str, size: Option<&str>) -> Result<LunConfig, Diagnostic> {
    lun(target, text, disk_size_argument(size)?)
}

/// As [`lun_argument`], for a server of another host: its files cannot be examined here.
///
/// # Errors
/// The fault of the argument or of the size.
pub fn remote_lun_argument(target: &str, text: &str, size: Option<&str>) -> Result<LunConfig, Diagnostic> {
    lun_with(target, text, disk_size_argument(size)?, |target, text, size| {
        let path = PathBuf::from(text);
        if path.is_relative() {
            let what = format!("the path {} is not absolute", text.escape_debug());
            invalid(what, "write the path of the file on the host of the server")?;
        }
        let source = match path.starts_with("/dev") {
            true => Source::Device { path },
            false if is_iso(&path) => {
                return Ok(named(target, Source::File { path, size: None }, PeripheralDeviceType::CdRom));
            }
            false => Source::File { path, size },
        };
        Ok(named(target, source, PeripheralDeviceType::Disk))
    })
}

fn disk_size_argument(size: Option<&str>) -> Result<Option<u64>, Diagnostic> {
    let of_argument = |problem: Diagnostic| problem.with_code(ErrorCode::InvalidArgument);
    size.map(disk_size).transpose().map_err(|invalid| of_argument(invalid.into()))
}

fn lun(target: &str, text: &str, size: Option<u64>) -> Result<LunConfig, Diagnostic> {
    lun_with(target, text, size, path)
}

/// The LUN of an argument. `of_path` makes that of a path.
fn lun_with(
    target: &str,
    text: &str,
    size: Option<u64>,
    of_path: impl Fn(&str, &str, Option<u64>) -> Result<LunConfig, Diagnostic>,
) -> Result<LunConfig, Diagnostic> {
    if text.starts_with(RBD_PREFIX) {
        let image = RbdLocation::parse(text).or_else(|(what, hint)| invalid(what, hint))?;
        return Ok(named(target, Source::Rbd { image, size }, PeripheralDeviceType::Disk));
    }
    if text.is_empty() {
        let forms: Vec<String> = BackendKind::sized().map(|kind| format!("{}:SIZE", kind.name())).collect();
        invalid("the LUN argument is empty", format!("write a path, {}", forms.join(" or ")))?;
    }
    let source = match BackendKind::split_argument(text) {
        Some((kind, written)) => Source::new(kind, None, Some(memory_size(text, written)?)),
        None => None,
    };
    match source {
        Some(source) => Ok(LunConfig::new(source, PeripheralDeviceType::Disk)),
        None => of_path(target, text, size),
    }
}

fn memory_size(text: &str, size: &str) -> Result<u64, InvalidValue> {
    match lunar_proto::size::parse(size)? {
        0..4096 => {
            invalid(format!("the size of {} is too small", text.escape_debug()), "use at least 4096 bytes")
        }
        size => Ok(size),
    }
}

/// The size of a disk to create. A multiple of the block size, so that hosts can reach all of it.
fn disk_size(text: &str) -> Result<u64, InvalidValue> {
    match memory_size(text, text)? {
        size if size.is_multiple_of(512) => Ok(size),
        size => invalid(
            format!("the size of {size} bytes is not a multiple of the block size, 512 bytes"),
            format!("use {}", size.next_multiple_of(512)),
        ),
    }
}

fn path(target: &str, text: &str, size: Option<u64>) -> Result<LunConfig, Diagnostic> {
    let path = PathBuf::from(text);
    let iso = is_iso(&path);
    match std::fs::metadata(&path) {
        Ok(_) if iso => Ok(named(target, Source::File { path, size: None }, PeripheralDeviceType::CdRom)),
        Ok(_) if BackendKind::of(&path) == BackendKind::Device => {
            Ok(named(target, Source::Device { path }, PeripheralDeviceType::Disk))
        }
        Ok(_) => Ok(disk(target, path, size)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => missing(target, text, path, iso, size),
        Err(e) => {
            let what = format!("cannot examine {}: {}", text.escape_debug(), crate::io_text(&e));
            Err(Diagnostic::new(what, "check the path and its permissions")
                .with_code(ErrorCode::from(e.kind())))
        }
    }
}

fn is_iso(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("iso"))
}

fn missing(
    target: &str,
    text: &str,
    path: PathBuf,
    iso: bool,
    size: Option<u64>,
) -> Result<LunConfig, Diagnostic> {
    if text.parse::<SocketAddr>().is_ok() {
        let hint = format!("write --nvme={text} or --listen {text}, or ./{text} for a file");
        invalid(format!("{text} is an address, not a disk"), hint)?;
    }
    let what = format!("{} does not exist", text.escape_debug());
    if let Some((kind, rest)) = text.split_once(':')
        && let Some(meant) = nearest(kind, BackendKind::sized().map(BackendKind::name))
    {
        invalid(&what, format!("did you mean {meant}:{}?", rest.escape_debug()))?;
    }
    if BackendKind::sized().any(|kind| kind.name() == text) {
        invalid(&what, format!("write {text}:10G for a disk without a file, or ./{text} for a file"))?;
    }
    let none = |hint: &str| Err(Diagnostic::new(what, hint).with_code(ErrorCode::NotFound));
    match size {
        _ if iso => none("check the path; an ISO image cannot be created"),
        None => none("check the path, or add --size 10G to create it"),
        Some(_) => Ok(disk(target, path, size)),
    }
}

fn disk(target: &str, path: PathBuf, size: Option<u64>) -> LunConfig {
    named(target, Source::File { path, size }, PeripheralDeviceType::Disk)
}

/// A LUN whose identity and state derive from its path or image, not from its place on the command line. Otherwise, hosts
/// could take two disks that are served at different times for the same one.
fn named(target: &str, source: Source, kind: PeripheralDeviceType) -> LunConfig {
    let mut lun = LunConfig::new(source, kind);
    let path = lun.source.path().map(|path| config::one_name(path).to_string_lossy().into_owned());
    if let Some(name) = path.or_else(|| lun.source.image().map(ToString::to_string)) {
        let serial = identity::serial(&[target, &name]);
        lun.state_name = Some(serial.clone());
        lun.serial = Some(serial);
    }
    lun
}

#[cfg(test)]
mod tests;
