//! Source and destination of a copy: opens what the command line names.

use crate::client;
use crate::error_hints::with_url_hint;
use crate::exit::{Exit, Failure, invalid};
use crate::output;
use crate::rbd_image;
use lunar_block::{Backend, BackendKind, BackendSpec, RBD_PREFIX};
use lunar_initiator::nvme::{self, NvmeDisk, NvmeUrl};
use lunar_initiator::{Lun, Url};
use lunar_nbd::client as nbd;
use lunar_server::{Diagnostic, ErrorCode, folders};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open source or destination.
pub struct CopyEnd {
    /// Name for messages, without secrets.
    pub name: String,
    /// Identifies the end: a resumed copy must use the same one.
    pub identity: String,
    /// How it is read or written.
    pub medium: Medium,
    /// It is known to read as zeros.
    pub zeroed: bool,
    /// Path of a regular file that is written.
    pub file: Option<PathBuf>,
    /// This copy created the file, or extended an empty one.
    pub created: bool,
    /// The LUN of a URL: its session is logged out at the end.
    pub lun: Option<Arc<Lun>>,
    /// The NBD export of a URL: its connection is closed at the end.
    pub export: Option<Arc<nbd::NbdDisk>>,
    /// The NVMe namespace of a URL: its controllers are shut down at the end.
    pub namespace: Option<Arc<NvmeDisk>>,
}

/// How an end is read or written.
pub enum Medium {
    /// At any offset.
    Disk(Arc<dyn Backend>),
    /// In order.
    Stream(File),
}

/// Source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndRole {
    /// Only read.
    Source,
    /// Written.
    Destination {
        /// Size in bytes of a file to create.
        size: u64,
        /// A file with data may be overwritten.
        overwrite: bool,
    },
}

impl CopyEnd {
    /// A disk without further properties.
    pub fn disk(name: &str, identity: String, disk: Arc<dyn Backend>) -> CopyEnd {
        CopyEnd::new(name, identity, Medium::Disk(disk))
    }

    fn stream(name: &str, file: File) -> CopyEnd {
        CopyEnd::new(name, String::new(), Medium::Stream(file))
    }

    fn new(name: &str, identity: String, medium: Medium) -> CopyEnd {
        let name = name.into();
        CopyEnd {
            name,
            identity,
            medium,
            zeroed: false,
            file: None,
            created: false,
            lun: None,
            export: None,
            namespace: None,
        }
    }

    /// Size in bytes; None for a stream.
    pub fn size(&self) -> Option<u64> {
        self.as_disk().map(|disk| disk.info().capacity)
    }

    /// The disk, if it is one.
    pub fn as_disk(&self) -> Option<&Arc<dyn Backend>> {
        match &self.medium {
            Medium::Disk(disk) => Some(disk),
            Medium::Stream(_) => None,
        }
    }
}

/// Opens an end from its argument. Runs on the event loop that uses the end.
///
/// `raw`: copy the bytes of a file or device, even if they look like an image format.
pub async fn open_end(text: &str, role: EndRole, raw: bool) -> Result<CopyEnd, Failure> {
    Ok(match null_size(text) {
        _ if text == "-" => standard(role)?,
        Some(size) => null(text, lunar_proto::size::parse(size).map_err(|e| invalid(e.into()))?, role)?,
        _ if is_url(text) => remote(text).await?,
        _ if nbd::is_url(text) => export(text, role).await?,
        _ if nvme::is_url(text) => namespace(text).await?,
        _ if text.starts_with(RBD_PREFIX) => image(text, role).await?,
        _ => at_path(text, Path::new(text), role, raw).await?,
    })
}

/// An NBD export. Its identity is URL and size: NBD has no identifier of a disk.
async fn export(text: &str, role: EndRole) -> Result<CopyEnd, Failure> {
    let cannot = rbd_image::cannot_open;
    let url: nbd::NbdUrl = text.parse().map_err(|e| invalid(cannot(e)))?;
    let disk = nbd::open(&url).await.map_err(cannot)?;
    let info = disk.info();
    if info.read_only && role != EndRole::Source {
        let what = format!("{url}: the server offers this export read-only");
        return Err(Diagnostic::new(what, "choose another export, or make this export writable").into());
    }
    let identity = format!("{url}, {} bytes", info.capacity);
    Ok(CopyEnd { export: Some(disk.clone()), ..CopyEnd::disk(&url.to_string(), identity, disk) })
}

/// An image of RBD.
async fn image(text: &str, role: EndRole) -> Result<CopyEnd, Failure> {
    let disk = rbd_image::open(text, |spec| match role {
        EndRole::Source => spec.read_only = true,
        EndRole::Destination { size, .. } => (spec.create, spec.size) = (true, Some(size)),
    });
    let disk = disk.await?;
    Ok(CopyEnd::disk(text, format!("rbd {}", disk.identity()), Arc::new(disk)))
}

/// A LUN. Its identity is VPD page 83h, which is the same on every path; the URL if the page is missing.
async fn remote(text: &str) -> Result<CopyEnd, Failure> {
    let url = client::url(text)?;
    let lun = lunar_initiator::open(&url).await.map_err(|e| with_url_hint(&url, e.into()))?;
    let designator: String = lun.properties().identity.iter().map(|byte| format!("{byte:02x}")).collect();
    let identity = if designator.is_empty() { url.to_string() } else { format!("LUN {designator}") };
    // Messages show the URL without the defaults.
    let name = Url::parse(text)?.to_string();
    Ok(CopyEnd { lun: Some(lun.clone()), ..CopyEnd::disk(&name, identity, lun) })
}

/// An NVMe namespace. Its identity is its UUID, NGUID or EUI64, which is the same on every path; the URL if it has none.
async fn namespace(text: &str) -> Result<CopyEnd, Failure> {
    let url = text.parse::<NvmeUrl>()?;
    let disk = Arc::new(NvmeDisk::open(&url.clone().with_default("login_tries", "1")?).await?);
    let identifier = disk.namespace().properties().identity.to_string();
    let identity = if identifier.is_empty() { url.to_string() } else { format!("namespace {identifier}") };
    let backend = disk.backend();
    Ok(CopyEnd { namespace: Some(disk), ..CopyEnd::disk(&url.to_string(), identity, backend) })
}

fn is_url(text: &str) -> bool {
    lunar_initiator::is_url(text)
}

/// Whether an argument is a path.
pub fn is_path(text: &str) -> bool {
    text != "-"
        && !text.starts_with(RBD_PREFIX)
        && null_size(text).is_none()
        && !is_url(text)
        && !nbd::is_url(text)
        && !nvme::is_url(text)
}

/// The text of the size in `null:SIZE`. The other disks without a path begin empty: there is nothing to copy from or
/// to them.
fn null_size(text: &str) -> Option<&str> {
    let (kind, size) = BackendKind::split_argument(text)?;
    match kind {
        BackendKind::Null => Some(size),
        _ => None,
    }
}

/// stdin or stdout.
fn standard(role: EndRole) -> Result<CopyEnd, Diagnostic> {
    let (name, file) = match role {
        EndRole::Source => ("stdin", rustix::io::dup(rustix::stdio::stdin())),
        EndRole::Destination { .. } if io::stdout().is_terminal() => {
            return Err(Diagnostic::new("stdout is a terminal", "redirect stdout to a file or a pipe"));
        }
        EndRole::Destination { .. } => ("stdout", rustix::io::dup(rustix::stdio::stdout())),
    };
    let file = file.map_err(|e| cannot_open(name, role, io::Error::from(e)))?;
    Ok(CopyEnd::stream(name, file.into()))
}

/// A null disk. As a destination it accepts any amount of data.
fn null(text: &str, size: u64, role: EndRole) -> Result<CopyEnd, Diagnostic> {
    const ENDLESS: u64 = i64::MAX as u64 & !0xffff;
    let size = if role == EndRole::Source { size } else { ENDLESS };
    let disk = lunar_block::open(&BackendSpec::sized(BackendKind::Null, size));
    let disk = disk.map_err(|e| Diagnostic::new(format!("{text}: {}", e.what), e.hint))?;
    Ok(CopyEnd { zeroed: true, ..CopyEnd::disk(text, text.into(), disk) })
}

async fn at_path(text: &str, path: &Path, role: EndRole, raw: bool) -> Result<CopyEnd, Failure> {
    // A host may write an image header into a served file: it stays raw.
    let is_raw = || raw || folders::state().is_ok_and(|state| lunar_server::was_served(&state, path));
    let found = match std::fs::metadata(path) {
        Ok(found) => Some(found),
        Err(e) if e.kind() == io::ErrorKind::NotFound && role != EndRole::Source => None,
        Err(e) => return Err(cannot_open(text, role, e).into()),
    };
    match (&found, role) {
        (Some(found), _) if found.is_dir() => {
            Err(Failure::new(Exit::Invalid, format!("{text} is a directory"), "name a file in it"))
        }
        // An empty file, such as one in /proc, may still deliver data: read it as a stream.
        (Some(found), EndRole::Source) if found.is_file() && found.len() == 0 => {
            Ok(stream(text, path, role)?)
        }
        (Some(found), _) if !found.is_file() && !found.file_type().is_block_device() => {
            Ok(stream(text, path, role)?)
        }
        (_, EndRole::Source) => Ok(source(text, BackendSpec { raw: is_raw(), ..BackendSpec::path(path) })?),
        (found, EndRole::Destination { size, overwrite }) => {
            let spec =
                BackendSpec { create: true, size: Some(size), raw: is_raw(), ..BackendSpec::path(path) };
            destination(text, spec, found.as_ref(), overwrite).await
        }
    }
}

/// A pipe or a character device.
fn stream(text: &str, path: &Path, role: EndRole) -> Result<CopyEnd, Diagnostic> {
    let (read, write) = (role == EndRole::Source, role != EndRole::Source);
    let file = OpenOptions::new().read(read).write(write).open(path);
    Ok(CopyEnd::stream(text, file.map_err(|e| cannot_open(text, role, e))?))
}

fn source(text: &str, spec: BackendSpec) -> Result<CopyEnd, Diagnostic> {
    let disk = open(text, EndRole::Source, &BackendSpec { read_only: true, ..spec.clone() })?;
    let path = &*spec.path;
    if let Some(user) = lunar_block::users::mounted_for_writing(path) {
        output::stderr_line(format_args!(
            "warning: {text} is {user} and can change during the copy; hint: unmount the source, mount it read-only, or copy a \
             snapshot"
        ));
    }
    // Read after the open, so that it describes the opened file.
    let found = std::fs::metadata(path).map_err(|e| cannot_open(text, EndRole::Source, e))?;
    let mut identity = identity(path, &found);
    if found.is_file() {
        // A program can set mtime back, but not ctime.
        let [written, changed] = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())]
            .map(|(s, ns)| format!("{s}.{ns:09}"));
        identity += &format!(", written at {written}, changed at {changed}");
    }
    Ok(CopyEnd::disk(text, identity, disk))
}

async fn destination(
    text: &str,
    spec: BackendSpec,
    before: Option<&Metadata>,
    overwrite: bool,
) -> Result<CopyEnd, Failure> {
    let role = EndRole::Destination { size: spec.size.unwrap_or_default(), overwrite };
    let disk = open(text, role, &spec)?;
    let path = &*spec.path;
    let found = std::fs::metadata(path).map_err(|e| cannot_open(text, role, e))?;
    let is_file = found.is_file();
    let created = is_file && before.is_none_or(|before| before.len() == 0);
    let zeroed = is_file && (created || has_no_data(&*disk).await);
    if is_file && !zeroed && !overwrite {
        return Err(Failure::new(
            Exit::Exists,
            format!("{text} already has data"),
            "add --force to overwrite the data",
        ));
    }
    let file = is_file.then(|| path.into());
    Ok(CopyEnd { zeroed, file, created, ..CopyEnd::disk(text, identity(path, &found), disk) })
}

/// Whether the whole disk is one hole, so that overwriting it loses no data.
async fn has_no_data(disk: &dyn Backend) -> bool {
    let capacity = disk.info().capacity;
    disk.extent(0, capacity).await.is_ok_and(|found| !found.mapped && found.len == capacity)
}

fn open(text: &str, role: EndRole, spec: &BackendSpec) -> Result<Arc<dyn Backend>, Diagnostic> {
    lunar_block::open(spec).map_err(|e| {
        let hint = match &e.users {
            Some(users) => format!("stop {users}"),
            None if e.kind == io::ErrorKind::InvalidData => e.hint.clone(),
            None => hint(role).into(),
        };
        Diagnostic::new(format!("{text}: {}", e.what), hint).with_code(ErrorCode::from(e.kind))
    })
}

fn cannot_open(text: &str, role: EndRole, e: io::Error) -> Diagnostic {
    Diagnostic::new(format!("cannot open {text}: {e}"), hint(role)).with_code(ErrorCode::from(e.kind()))
}

fn hint(role: EndRole) -> &'static str {
    match role {
        EndRole::Source => {
            "check the path, its permissions, and that no server has it open for writing (fuser -v)"
        }
        EndRole::Destination { .. } => {
            "check the path, its permissions, and that it is not mounted or in use (lsblk, fuser -v)"
        }
    }
}

fn identity(path: &Path, found: &Metadata) -> String {
    let known = path.canonicalize().unwrap_or(path.into());
    match found.is_file() {
        true => format!("file {}, inode {}:{}", known.display(), found.dev(), found.ino()),
        false => format!("device {}", known.display()),
    }
}

/// Whether both arguments name the same file, block device or URL.
pub fn same(source: &str, destination: &str) -> bool {
    let found = |text| std::fs::metadata(text).ok();
    match (found(source), found(destination)) {
        (Some(a), Some(b)) if a.file_type().is_block_device() && b.file_type().is_block_device() => {
            a.rdev() == b.rdev()
        }
        (Some(a), Some(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => source == destination && (is_url(source) || nbd::is_url(source) || nvme::is_url(source)),
    }
}
