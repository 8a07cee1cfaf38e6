//! `[[target.lun]]`: a logical unit and its medium.

mod identity_keys;
mod rbd;
mod source;

pub use identity_keys::IdentityKeys;
pub use source::Source;

pub(crate) use identity_keys::hex;
pub(super) use identity_keys::serial;
pub(super) use identity_keys::{bytes_of, without_prefix};

use lunar_config::scsi_text;
use lunar_config::{Diagnostics, InvalidValue, invalid, unknown};
use lunar_config::{Section, UniqueKeys, kind, table};
use lunar_proto::size;
use lunar_router::FoundLun;
use lunar_scsi::PeripheralDeviceType;
use lunar_target::OnMissing;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The definition of a logical unit.
#[derive(Clone, Debug, PartialEq)]
pub struct LunConfig {
    /// Its medium.
    pub source: Source,
    /// Device type.
    pub kind: PeripheralDeviceType,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Whether the block size is configured. Otherwise a device uses its own.
    pub has_block_size: bool,
    /// Physical block size in bytes.
    pub physical_block_size: u32,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// Whether the medium can be ejected and loaded.
    pub removable: bool,
    /// Whether the write cache is enabled at power on.
    pub write_cache: bool,
    /// Whether to bypass the page cache.
    pub direct: bool,
    /// Whether cached reads send the pages of the page cache themselves.
    pub zero_copy: bool,
    /// Whether the medium is raw, so that image formats are not detected.
    pub raw: bool,
    /// The behaviour while the file is deleted or replaced, or the device is gone.
    pub on_missing_file: OnMissing,
    /// Whether it is thin provisioned.
    pub thin: bool,
    /// Unit serial number; None: derived from target name and LUN.
    pub serial: Option<String>,
    /// Designators that replace the default ones.
    pub identity: IdentityKeys,
    /// T10 vendor identification.
    pub vendor: String,
    /// Product identification.
    pub product: String,
    /// Product revision level; None: the version of Lunar.
    pub revision: Option<String>,
    /// Filters, innermost first.
    pub filters: Vec<Filter>,
    /// The `[[disk]]` that defines it; None: it is defined for one LUN.
    pub disk: Option<String>,
    /// Name of the file of reservations and mode pages; None: its LUN.
    pub state_name: Option<String>,
    /// The folder of its state; None: that of the server.
    pub state_dir: Option<PathBuf>,
    /// The properties that its upstream reports; None if it is not routed.
    pub found: Option<Box<FoundLun>>,
    /// Whether initiators may reserve it.
    pub reservable: bool,
    /// Whether the device server of this target executes its commands (block mode).
    pub is_block: bool,
    /// Whether it is a disk of this host behind a router, with other keys than a `[[target.lun]]`.
    pub is_upstream: bool,
    /// The rate limit shared with the other LUNs of its routing instance; None: no limit.
    pub share: Option<Share>,
}

/// Limit of operations and bytes a second for all LUNs of a routing instance together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// The instance.
    pub router: String,
    /// Operations a second; 0 is no limit.
    pub iops: u64,
    /// Bytes a second; 0 is no limit.
    pub bytes_per_s: u64,
}

/// Values that must be unique in a file.
pub(super) struct UniqueValues {
    pub(super) names: UniqueKeys<String>,
    pub(super) serials: UniqueKeys<String>,
    pub(super) designators: UniqueKeys<String>,
    /// Those of namespaces.
    pub(super) identifiers: UniqueKeys<String>,
    pub(super) files: UsedFiles,
}

impl UniqueValues {
    pub(super) fn new() -> UniqueValues {
        UniqueValues {
            names: UniqueKeys::new("target"),
            serials: UniqueKeys::new("serial number"),
            designators: UniqueKeys::new("designator"),
            identifiers: UniqueKeys::new("identifier"),
            files: UsedFiles::default(),
        }
    }
}

/// The files of a configuration, by identity and not by path. Only a read-only file may be used twice.
#[derive(Default)]
pub(super) struct UsedFiles(BTreeMap<OneFile, (PathBuf, Range<usize>, bool)>);

impl UsedFiles {
    pub(super) fn add(&mut self, p: &mut Diagnostics<'_>, path: &Path, read_only: bool, at: &Range<usize>) {
        let same = self.0.entry(OneFile::of(path));
        let (name, stands, reads) = same.or_insert_with(|| (path.to_path_buf(), at.clone(), read_only));
        if stands == at || (*reads && read_only) {
            return;
        }
        let (first, second) = (line(p, stands.start, at), line(p, at.start, at));
        let how = match one_name(name) == one_name(path) {
            true => format!("{} is given twice", path.display()),
            false => format!("{} and {} are the same file", name.display(), path.display()),
        };
        let what = format!("{how}, {first} and {second}");
        p.add(
            at,
            what,
            "remove one of the LUNs (one LUN serves many hosts), or set read_only = true in both",
        );
    }
}

/// The line of a byte, and its file if that is not the one of `at`.
fn line(p: &Diagnostics<'_>, offset: usize, at: &Range<usize>) -> String {
    let ((file, position), here) = (p.place(offset), p.place(at.start).0);
    let line = position.line;
    if file == here { format!("line {line}") } else { format!("line {line} of {}", file.display()) }
}

/// The identity of a file or device: two paths with the same identity lead to the same bytes.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OneFile {
    /// Device and inode of a file.
    Inode(u64, u64),
    /// Number of a device.
    Device(u64),
    /// The path of a file that does not exist yet.
    Name(PathBuf),
}

impl OneFile {
    pub(crate) fn of(path: &Path) -> OneFile {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        match path.metadata() {
            Ok(found) if found.file_type().is_block_device() => OneFile::Device(found.rdev()),
            Ok(found) => OneFile::Inode(found.dev(), found.ino()),
            Err(_) => OneFile::Name(one_name(path)),
        }
    }
}

/// The canonical path of a file, with links resolved, even if the file does not exist yet.
pub(crate) fn one_name(path: &Path) -> PathBuf {
    /// The kernel follows at most 40 links in one path (path_resolution(7)).
    const MAX_LINKS: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        if let Ok(path) = path.canonicalize() {
            return path;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = folder.canonicalize().unwrap_or(folder.to_path_buf());
        path = path.file_name().map_or(folder.clone(), |name| folder.join(name));
        match path.read_link() {
            Ok(leads_to) => path = folder.join(leads_to),
            Err(_) => break,
        }
    }
    path
}

/// A filter around a backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Filter {
    /// Counts operations.
    Stats,
    /// Delays operations.
    Delay {
        /// Microseconds added to a read.
        read_us: u64,
        /// Microseconds added to a write.
        write_us: u64,
    },
    /// Limits the rate of operations; 0 is no limit.
    Rate {
        /// Operations a second.
        iops: u64,
        /// Bytes a second.
        bytes_per_s: u64,
    },
    /// Fails a fraction of the operations.
    Error {
        /// The fraction, 0.0 to 1.0.
        rate: f64,
        /// The kind of operation.
        op: Fail,
    },
}

/// The operations that an error filter fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fail {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
}

impl LunConfig {
    /// A logical unit with all defaults.
    pub fn new(source: Source, kind: PeripheralDeviceType) -> LunConfig {
        let cdrom = kind == PeripheralDeviceType::CdRom;
        LunConfig {
            source,
            kind,
            block_size: if cdrom { 2048 } else { 512 },
            has_block_size: false,
            physical_block_size: if cdrom { 2048 } else { 4096 },
            read_only: cdrom,
            removable: cdrom,
            write_cache: true,
            direct: false,
            zero_copy: false,
            raw: false,
            on_missing_file: OnMissing::default(),
            thin: !cdrom,
            serial: None,
            identity: IdentityKeys::default(),
            vendor: "LUNAR".into(),
            product: if cdrom { "VIRTUAL CD" } else { "VIRTUAL DISK" }.into(),
            revision: None,
            filters: Vec::new(),
            disk: None,
            state_name: None,
            state_dir: None,
            found: None,
            reservable: true,
            is_block: true,
            is_upstream: false,
            share: None,
        }
    }
}

/// Reads a `[[target.lun]]`. Returns its number and its definition.
pub(super) fn lun(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    base: &Path,
    unique: &mut UniqueValues,
) -> Option<LunConfig> {
    let source = source::source(p, s, base);
    let kind = s.parsed(p, "kind", device_kind).unwrap_or(PeripheralDeviceType::Disk);
    let mut lun = LunConfig::new(source.clone().unwrap_or(Source::Null { size: 0 }), kind);
    block_sizes(p, s, &mut lun);
    flags(p, s, &mut lun);
    if let Some(value) = s.find("serial") {
        lun.serial = s.parsed(p, "serial", serial);
        lun.serial.iter().for_each(|serial| _ = unique.serials.first(p, serial.trim().into(), &value.span()));
    }
    lun.vendor = s.parsed(p, "vendor", |text| scsi_text(text, "vendor", 8)).unwrap_or(lun.vendor);
    lun.product = s.parsed(p, "product", |text| scsi_text(text, "product", 16)).unwrap_or(lun.product);
    lun.revision = s.parsed(p, "revision", |text| scsi_text(text, "revision", 4));
    lun.identity = identity_keys::identity_keys(p, s, unique);
    lun.filters = filters(p, s);
    source?;
    if let (Some(path), Some(value)) = (lun.source.path(), s.find("path")) {
        unique.files.add(p, path, lun.read_only, &value.span());
    }
    if let (Some(image), Some(value)) = (lun.source.image(), s.find("image")) {
        // The text of an image and its cluster is as good a name as a path.
        let name = format!("{image} {:?} {:?}", image.cluster, image.conf);
        unique.files.add(p, Path::new(&name), lun.read_only || image.snapshot.is_some(), &value.span());
    }
    Some(lun)
}

fn device_kind(text: &str) -> Result<PeripheralDeviceType, InvalidValue> {
    match text {
        "disk" => Ok(PeripheralDeviceType::Disk),
        "cdrom" => Ok(PeripheralDeviceType::CdRom),
        _ => invalid(format!("unknown kind \"{}\"", text.escape_debug()), "write \"disk\" or \"cdrom\""),
    }
}

fn block_sizes(p: &mut Diagnostics<'_>, s: &mut Section<'_>, lun: &mut LunConfig) {
    let allowed: &[u64] = if lun.kind == PeripheralDeviceType::CdRom { &[2048] } else { &[512, 4096] };
    if let (Some(value), Some(size)) = (s.find("block_size"), s.size(p, "block_size", 0..=1 << 20)) {
        if allowed.contains(&size) {
            lun.block_size = size as u32;
            lun.has_block_size = lun.source.has_own_block_size();
        } else {
            let hint = if lun.kind == PeripheralDeviceType::CdRom {
                "write 2048, which a cdrom requires"
            } else {
                "write 512 or 4096"
            };
            p.add(&value.span(), format!("`block_size` cannot be {}", size::show(size)), hint);
        }
    }
    lun.physical_block_size = lun.physical_block_size.max(lun.block_size);
    if let (Some(value), Some(size)) =
        (s.find("physical_block_size"), s.size(p, "physical_block_size", 0..=16 << 20))
    {
        if size.is_power_of_two() && size >= u64::from(lun.block_size) {
            lun.physical_block_size = size as u32;
        } else {
            let what = format!("`physical_block_size` cannot be {}", size::show(size));
            p.add(&value.span(), what, format!("use a power of two, at least {}", lun.block_size));
        }
    }
}

fn flags(p: &mut Diagnostics<'_>, s: &mut Section<'_>, lun: &mut LunConfig) {
    let cdrom = lun.kind == PeripheralDeviceType::CdRom;
    lun.read_only = s.flag(p, "read_only", cdrom);
    lun.removable = s.flag(p, "removable", lun.removable);
    lun.write_cache = s.flag(p, "write_cache", lun.write_cache);
    lun.direct = s.flag(p, "direct", lun.direct);
    lun.thin = s.flag(p, "thin", lun.thin);
    if let (true, false, Some(value)) = (cdrom, lun.read_only, s.find("read_only")) {
        p.add(
            &value.span(),
            "`read_only` is false, but a cdrom is always read-only",
            "remove `read_only`, or write kind = \"disk\"",
        );
    }
    let in_memory = lun.source.path().is_none();
    if let (true, true, Some(value)) = (lun.direct, in_memory, s.find("direct")) {
        p.add(&value.span(), "`direct` requires a file or a device", "remove `direct`");
    }
    zero_copy(p, s, lun);
    of_medium(p, s, lun, in_memory);
}

fn zero_copy(p: &mut Diagnostics<'_>, s: &mut Section<'_>, lun: &mut LunConfig) {
    lun.zero_copy = s.flag(p, "zero_copy", lun.zero_copy);
    let has_pages = lun.source.path().is_some() && !lun.direct;
    if let (true, false, Some(value)) = (lun.zero_copy, has_pages, s.find("zero_copy")) {
        let what = "`zero_copy` requires a file or a device with the page cache";
        let hint = if lun.direct { "remove `zero_copy` or `direct`" } else { "remove `zero_copy`" };
        p.add(&value.span(), what, hint);
    }
}

/// Reads the settings that only files and devices have.
fn of_medium(p: &mut Diagnostics<'_>, s: &mut Section<'_>, lun: &mut LunConfig, in_memory: bool) {
    lun.raw = s.parsed(p, "format", format).is_some();
    lun.on_missing_file = s.parsed(p, "on_missing_file", on_missing).unwrap_or_default();
    for key in ["format", "on_missing_file"] {
        if let (true, Some(value)) = (in_memory, s.find(key)) {
            let what = format!("`{key}` requires a file or a device");
            p.add(&value.span(), what, format!("remove `{key}`"));
        }
    }
}

fn format(text: &str) -> Result<(), InvalidValue> {
    match text {
        "raw" => Ok(()),
        _ => invalid(
            format!("unsupported format \"{}\"", text.escape_debug()),
            "convert the image (qemu-img convert -O raw), and write format = \"raw\" or leave it out",
        ),
    }
}

fn on_missing(text: &str) -> Result<OnMissing, InvalidValue> {
    let all = "write \"continue\", \"read-only\" or \"not-ready\"";
    let found = OnMissing::ALL.into_iter().find(|one| one.name() == text);
    found.ok_or_else(|| unknown("setting", text, OnMissing::ALL.map(OnMissing::name), all))
}

fn filters(p: &mut Diagnostics<'_>, s: &mut Section<'_>) -> Vec<Filter> {
    let values = s.list(p, "filters").map(|(values, _)| values).unwrap_or_default();
    values
        .into_iter()
        .filter_map(|value| {
            let section = table(p, "filters", "[[target.lun.filters]]", value)?;
            filter(p, section)
        })
        .collect()
}

const FILTERS: [&str; 4] = ["stats", "delay", "rate", "error"];

fn filter(p: &mut Diagnostics<'_>, mut s: Section<'_>) -> Option<Filter> {
    let Some((kind, at)) = s.text(p, "kind") else {
        if s.find("kind").is_none() {
            s.missing(p, "kind", "\"stats\" (or \"delay\", \"rate\", \"error\")");
        }
        return None;
    };
    let filter = match kind {
        "stats" => Filter::Stats,
        "delay" => Filter::Delay {
            read_us: s.number(p, "read_us", 0..=60_000_000).unwrap_or(0),
            write_us: s.number(p, "write_us", 0..=60_000_000).unwrap_or(0),
        },
        "rate" => Filter::Rate {
            iops: s.number(p, "iops", 0..=1_000_000_000).unwrap_or(0),
            bytes_per_s: s.size(p, "bytes_per_s", 0..=1 << 50).unwrap_or(0),
        },
        "error" => Filter::Error {
            rate: share(p, &mut s, "rate"),
            op: s.parsed(p, "op", fail).unwrap_or(Fail::Read),
        },
        _ => {
            let all = format!("filters are {}", FILTERS.join(", "));
            let InvalidValue { what, hint, .. } = unknown("filter", kind, FILTERS, all);
            p.add(&at, what, hint);
            return None;
        }
    };
    s.done(p);
    Some(filter)
}

/// A fraction from 0.0 to 1.0.
fn share(p: &mut Diagnostics<'_>, s: &mut Section<'_>, key: &'static str) -> f64 {
    let Some(value) = s.find(key) else { return 0.0 };
    let number = match value.get_ref() {
        toml::de::DeValue::Float(float) => float.as_str().parse().unwrap_or(f64::NAN),
        toml::de::DeValue::Integer(integer) => integer.as_str().parse().unwrap_or(f64::NAN),
        _ => {
            kind(p, key, value, "a number from 0.0 to 1.0", "write 0.0 to 1.0");
            return 0.0;
        }
    };
    if !(0.0..=1.0).contains(&number) {
        p.add(&value.span(), format!("`{key}` is out of range"), "use 0.0 to 1.0");
    }
    number
}

fn fail(text: &str) -> Result<Fail, InvalidValue> {
    match text {
        "read" => Ok(Fail::Read),
        "write" => Ok(Fail::Write),
        "flush" => Ok(Fail::Flush),
        _ => invalid(
            format!("unknown operation \"{}\"", text.escape_debug()),
            "write \"read\", \"write\" or \"flush\"",
        ),
    }
}
