//! Targets that are open on the cores of this machine, ready for jobs.

use crate::document::MeasuredTarget;
use crate::run::DRAIN_TIMEOUT;
use crate::verify::WriteLedger;
use crate::{Error, ErrorKind, cpu};
use lunar_block::{Backend, BackendKind, BackendSpec, RBD_PREFIX, RbdLocation};
use lunar_initiator::nvme::{self, NvmeDisk, NvmeUrl};
use lunar_initiator::options::Transport;
use lunar_initiator::{Lun, Url};
use lunar_nbd::client as nbd;
use lunar_proto::size;
use lunar_runtime::{CoreSelection, Cores};
use std::path::PathBuf;
use std::sync::Arc;

/// The name of a target to measure.
#[derive(Clone, Debug)]
pub enum TargetSpec {
    /// A logical unit: `iscsi://...`.
    Lun(Box<Url>),
    /// An export of an NBD server: `nbd://...`, `nbd+unix://...`.
    Nbd(nbd::NbdUrl),
    /// A namespace over NVMe/TCP: `nvme://...`.
    Nvme(Box<NvmeUrl>),
    /// An image of Ceph RBD.
    Rbd(Box<RbdLocation>),
    /// A disk in this process, and its size in bytes: `null:SIZE`, `memory:SIZE`, or either without a size.
    InProcess(BackendKind, u64),
    /// A file or a block device.
    Path(PathBuf),
}

/// Sets defaults of a URL for measurements. A lost target is awaited for [`DRAIN_TIMEOUT`], as commands in flight at
/// the end of a job are. During a longer outage, there is nothing to measure.
fn with_default_timeouts(url: Url) -> Result<Url, lunar_initiator::Error> {
    let url = url.with_default("login_tries", "1")?.with_default("late_writes", "risk")?;
    url.with_default("recovery_timeout", &DRAIN_TIMEOUT.as_secs().to_string())
}

/// The same for NVMe, which has no rule for late writes.
fn with_default_nvme_timeouts(url: NvmeUrl) -> Result<NvmeUrl, lunar_initiator::Error> {
    let url = url.with_default("login_tries", "1")?;
    url.with_default("recovery_timeout", &DRAIN_TIMEOUT.as_secs().to_string())
}

/// Bytes of `null:` and `memory:` without a size.
const DEFAULT_SIZE: u64 = 1 << 30;
/// The fault if the event loop of a session has ended.
const EVENT_LOOP: &str = "an event loop of the benchmark failed";

/// How targets are opened.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// Sessions with each target. Local disks are opened once, for all.
    pub sessions: usize,
    /// The cores to run on, assigned to sessions in round-robin order.
    pub cores: CoreSelection,
    /// Bypass the page cache of this host. Applies to files and block devices.
    pub direct: bool,
    /// Whether jobs will write.
    pub write: bool,
    /// Whether jobs may overwrite existing data.
    pub destroy: bool,
    /// Use the bytes of files and devices as they are, without a check for image formats.
    pub raw: bool,
    /// Create a file of this size if none exists.
    pub create: Option<u64>,
    /// The process of a local target, to measure its CPU time.
    pub target_pid: Option<u32>,
}

impl Default for TargetOptions {
    /// One session, all cores, read-only, no check for image formats: the defaults of other tools.
    fn default() -> TargetOptions {
        TargetOptions {
            sessions: 1,
            cores: CoreSelection::All,
            direct: false,
            write: false,
            destroy: false,
            raw: true,
            create: None,
            target_pid: None,
        }
    }
}

/// A session with a target.
#[derive(Clone)]
pub(crate) struct TargetSession {
    pub core: usize,
    pub disk: Arc<dyn Backend>,
    /// The index of the target.
    pub target: usize,
    /// The logical unit below the disk, if it is one.
    pub lun: Option<Arc<Lun>>,
    /// The expected content of the target, if jobs verify it.
    pub ledger: Option<Arc<WriteLedger>>,
}

/// Targets that are open. Sessions are logged out when it is closed or dropped.
pub struct OpenTargets {
    pub(crate) cores: Cores,
    pub(crate) target_sessions: Vec<TargetSession>,
    /// The options with which the targets were opened.
    pub(crate) options: TargetOptions,
    luns: Vec<(usize, Arc<Lun>)>,
    namespaces: Vec<(usize, NvmeDisk)>,
    measured: Vec<MeasuredTarget>,
}

impl TargetSpec {
    /// Parses the name of a target.
    ///
    /// # Errors
    /// If the name is malformed.
    pub fn parse(text: &str) -> Result<TargetSpec, Error> {
        let sized = |size: &str| match size {
            "" => Ok(DEFAULT_SIZE),
            size => size::parse(size)
                .map_err(|e| Error::new(ErrorKind::Invalid, format!("{text}: {}", e.what), e.hint)),
        };
        Ok(match BackendKind::split_argument(text) {
            Some((kind, size)) => TargetSpec::InProcess(kind, sized(size)?),
            _ if lunar_initiator::is_url(text) => TargetSpec::Lun(Box::new(
                Url::parse(text).and_then(with_default_timeouts).map_err(initiator_error)?,
            )),
            _ if nbd::is_url(text) => TargetSpec::Nbd(
                text.parse().map_err(|e| Error { kind: ErrorKind::Invalid, ..open_error(e) })?,
            ),
            _ if nvme::is_url(text) => TargetSpec::Nvme(Box::new(
                text.parse().and_then(with_default_nvme_timeouts).map_err(initiator_error)?,
            )),
            _ if text.starts_with(RBD_PREFIX) => TargetSpec::Rbd(Box::new(
                RbdLocation::parse(text)
                    .map_err(|(what, hint)| Error::new(ErrorKind::Invalid, what, hint))?,
            )),
            _ => TargetSpec::Path(text.into()),
        })
    }
}

impl std::fmt::Display for TargetSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TargetSpec::Lun(url) => url.fmt(f),
            TargetSpec::Nbd(url) => url.fmt(f),
            TargetSpec::Nvme(url) => url.fmt(f),
            TargetSpec::InProcess(kind, size) => write!(f, "{}:{size}", kind.name()),
            TargetSpec::Rbd(image) => image.fmt(f),
            TargetSpec::Path(path) => path.display().fmt(f),
        }
    }
}

fn initiator_error(e: lunar_initiator::Error) -> Error {
    let kind = ErrorKind::Target(Some(e.code));
    let lunar_initiator::Details { what, hint, .. } = e.into_details();
    Error::new(kind, what, hint.unwrap_or_else(|| "run lunar doctor on the target".into()))
}

impl OpenTargets {
    /// Opens targets. Unless data may be overwritten, it first checks that their first and last mebibytes are zeros.
    ///
    /// # Errors
    /// If a target cannot be opened, or holds data that must not be overwritten.
    pub fn open(targets: &[TargetSpec], options: &TargetOptions) -> Result<OpenTargets, Error> {
        let cpus = options.cores.usable()?;
        if let Some(pid) = options.target_pid {
            cpu::of(pid)?;
        }
        let cores = Cores::start(&cpus)
            .map_err(|e| system_error("cannot start the event loops of the benchmark", &e))?;
        let mut opened = OpenTargets {
            cores,
            target_sessions: Vec::new(),
            options: options.clone(),
            luns: Vec::new(),
            namespaces: Vec::new(),
            measured: Vec::new(),
        };
        for target in targets {
            opened.add(target, options)?;
            if options.write && !options.destroy {
                opened.check_no_data(target)?;
            }
        }
        Ok(opened)
    }

    /// The description of each target.
    pub fn measured_targets(&self) -> Vec<MeasuredTarget> {
        self.measured.clone()
    }

    /// Sessions, all targets together.
    pub fn sessions(&self) -> usize {
        self.target_sessions.len()
    }

    /// The index of a session among the sessions with its target, and the number of these.
    pub fn index_at_target(&self, session: usize) -> (usize, usize) {
        let is_same_target = |other: &&TargetSession| other.target == self.target_sessions[session].target;
        let before = self.target_sessions[..session].iter().filter(is_same_target).count();
        (before, self.target_sessions.iter().filter(is_same_target).count())
    }

    /// Whether all targets are null disks.
    pub fn is_null(&self) -> bool {
        self.target_sessions.iter().all(|session| session.disk.info().null)
    }

    /// Bytes of the smallest target.
    pub fn capacity(&self) -> u64 {
        self.target_sessions.iter().map(|session| session.disk.info().capacity).min().unwrap_or(0)
    }

    /// The largest block size of the logical units and namespaces; 1 if there are none.
    pub fn block_size(&self) -> u64 {
        let luns = self.luns.iter().map(|(_, lun)| lun.block_size());
        let namespaces = self.namespaces.iter().map(|(_, disk)| disk.namespace().block_size());
        luns.chain(namespaces).max().map_or(1, u64::from)
    }

    /// The logical unit of a session; None for other targets.
    pub fn lun(&self, session: usize) -> Option<&Arc<Lun>> {
        let disk = Arc::as_ptr(&self.target_sessions.get(session)?.disk).cast::<()>();
        self.luns.iter().map(|(_, lun)| lun).find(|lun| Arc::as_ptr(lun).cast::<()>() == disk)
    }

    /// The disk of a session.
    pub fn disk(&self, session: usize) -> Option<Arc<dyn Backend>> {
        self.target_sessions.get(session).map(|session| session.disk.clone())
    }

    /// Replaces the disk of each session by a filter on top of it.
    pub fn wrap(&mut self, filter: impl Fn(usize, Arc<dyn Backend>) -> Arc<dyn Backend>) {
        for (index, session) in self.target_sessions.iter_mut().enumerate() {
            session.disk = filter(index, session.disk.clone());
        }
    }

    /// Replaces all sessions by `sessions` sessions that share one disk, built from their disks.
    pub fn replace_by_shared(
        &mut self,
        sessions: usize,
        made_of: impl FnOnce(Vec<Arc<dyn Backend>>) -> Arc<dyn Backend>,
    ) {
        let disk = made_of(self.target_sessions.drain(..).map(|session| session.disk).collect());
        for _ in 0..sessions {
            self.add_session(disk.clone());
        }
    }

    /// Makes jobs record their writes and check their reads in one ledger for each target, in order.
    pub(crate) fn attach_ledgers(&mut self, ledgers: &[Arc<WriteLedger>]) {
        for session in &mut self.target_sessions {
            session.ledger = ledgers.get(session.target).cloned();
        }
    }

    /// Logs out.
    pub fn close(self) {
        drop(self);
    }

    fn add(&mut self, target: &TargetSpec, options: &TargetOptions) -> Result<(), Error> {
        let sessions = options.sessions.max(1);
        let facts = match target {
            TargetSpec::Lun(url) => {
                let luns = (0..sessions).map(|_| self.add_lun(url)).collect::<Result<Vec<_>, _>>()?;
                facts_of_lun(&luns[0])
            }
            TargetSpec::Nbd(url) => {
                let exports = (0..sessions).map(|_| self.add_nbd(url)).collect::<Result<Vec<_>, _>>()?;
                exports[0].describe()
            }
            TargetSpec::Nvme(url) => {
                let disks = (0..sessions).map(|_| self.add_nvme(url)).collect::<Result<Vec<_>, _>>()?;
                disks[0].describe()
            }
            local => {
                let disk = open_local(local, options)?;
                for _ in 0..sessions {
                    self.add_session(disk.clone());
                }
                disk.describe()
            }
        };
        let capacity = self.target_sessions.last().map_or(0, |session| session.disk.info().capacity);
        self.measured.push(MeasuredTarget { name: target.to_string(), sessions, capacity, facts });
        Ok(())
    }

    fn add_session(&mut self, disk: Arc<dyn Backend>) -> usize {
        let core = self.target_sessions.len() % self.cores.count();
        self.target_sessions.push(TargetSession {
            core,
            disk,
            target: self.measured.len(),
            lun: None,
            ledger: None,
        });
        core
    }

    fn add_lun(&mut self, url: &Url) -> Result<Arc<Lun>, Error> {
        let (core, url) = (self.target_sessions.len() % self.cores.count(), url.clone());
        let lun = self.cores.wait(core, move || async move { lunar_initiator::open(&url).await });
        let lun = lun.map_err(|e| system_error(EVENT_LOOP, &e))?.map_err(initiator_error)?;
        self.add_session(lun.clone());
        if let Some(session) = self.target_sessions.last_mut() {
            session.lun = Some(lun.clone());
        }
        self.luns.push((core, lun.clone()));
        Ok(lun)
    }

    fn add_nbd(&mut self, url: &nbd::NbdUrl) -> Result<Arc<nbd::NbdDisk>, Error> {
        let (core, url) = (self.target_sessions.len() % self.cores.count(), url.clone());
        let disk = self.cores.wait(core, move || async move { nbd::open(&url).await });
        let disk = disk.map_err(|e| system_error(EVENT_LOOP, &e))?.map_err(open_error)?;
        self.add_session(disk.clone());
        Ok(disk)
    }

    fn add_nvme(&mut self, url: &NvmeUrl) -> Result<Arc<dyn Backend>, Error> {
        let (core, url) = (self.target_sessions.len() % self.cores.count(), url.clone());
        let disk = self.cores.wait(core, move || async move { NvmeDisk::open(&url).await });
        let disk = disk.map_err(|e| system_error(EVENT_LOOP, &e))?.map_err(initiator_error)?;
        let backend = disk.backend();
        self.add_session(backend.clone());
        self.namespaces.push((core, disk));
        Ok(backend)
    }

    /// Checks the first and the last mebibyte of the target that was opened last.
    fn check_no_data(&self, target: &TargetSpec) -> Result<(), Error> {
        const CHECKED_BYTES: u64 = 1 << 20;
        let Some(session) = self.target_sessions.last() else { return Ok(()) };
        let capacity = session.disk.info().capacity;
        for offset in [0, capacity.saturating_sub(CHECKED_BYTES)] {
            let (disk, len) = (session.disk.clone(), CHECKED_BYTES.min(capacity) as usize);
            let look = move || async move { disk.read(offset, lunar_runtime::Buf::zeroed(len)).await };
            let (result, buf) =
                self.cores.wait(session.core, look).map_err(|e| system_error(EVENT_LOOP, &e))?;
            result.map_err(|e| system_error(&format!("{target} cannot be read"), &e))?;
            if let Some(at) = buf.iter().position(|byte| *byte != 0) {
                let what = format!("{target} holds data: byte {} is not zero", offset + at as u64);
                return Err(Error::new(ErrorKind::HoldsData, what, "add --destroy to overwrite the data"));
            }
        }
        Ok(())
    }
}

impl Drop for OpenTargets {
    fn drop(&mut self) {
        for (core, lun) in self.luns.drain(..) {
            // Do not wait for a target that no longer responds: nothing is lost.
            let goodbye = move || async move { drop(lun.session().close().await) };
            let _ = self.cores.wait(core, goodbye);
        }
        for (core, disk) in self.namespaces.drain(..) {
            // As for sessions.
            let goodbye = move || async move { disk.close().await };
            let _ = self.cores.wait(core, goodbye);
        }
    }
}

fn system_error(what: &str, e: &std::io::Error) -> Error {
    Error::new(ErrorKind::System, format!("{what}: {e}"), "set LUNAR_LOG=debug for details")
}

fn open_error(e: lunar_block::OpenError) -> Error {
    let kind = ErrorKind::Medium(e.kind.into());
    Error::new(kind, format!("{}: {}", e.subject, e.what), e.hint)
}

fn open_local(target: &TargetSpec, options: &TargetOptions) -> Result<Arc<dyn Backend>, Error> {
    let spec = match target {
        TargetSpec::InProcess(kind, size) => BackendSpec::sized(*kind, *size),
        TargetSpec::Path(path) => BackendSpec {
            read_only: !options.write,
            direct: options.direct,
            create: options.create.is_some(),
            size: options.create,
            raw: options.raw,
            ..BackendSpec::path(path)
        },
        TargetSpec::Rbd(image) => BackendSpec {
            read_only: !options.write,
            create: options.create.is_some(),
            size: options.create,
            ..BackendSpec::rbd((**image).clone())
        },
        TargetSpec::Lun(_) | TargetSpec::Nbd(_) | TargetSpec::Nvme(_) => unreachable!("not a local disk"),
    };
    lunar_block::open(&spec).map_err(open_error)
}

/// The key of the session transport in a description: `tcp`, `iser/iwarp`, `srp/verbs:rxe0`.
pub(crate) const TRANSPORT: &str = "Transport";

/// The identification of a logical unit, and the negotiated keys (RFC 7143 section 13).
fn facts_of_lun(lun: &Lun) -> Vec<(String, String)> {
    let (unit, session) = (lun.properties(), lun.session().info());
    let is_srp = session.transport.transport == Transport::Srp;
    let mut facts = vec![
        (TRANSPORT.to_owned(), session.transport.to_string()),
        ("Vendor".to_owned(), unit.vendor.trim().to_owned()),
        ("Product".to_owned(), unit.product.trim().to_owned()),
        ("Revision".to_owned(), unit.revision.trim().to_owned()),
        ("TargetName".to_owned(), session.target),
    ];
    if is_srp {
        // SRP negotiates no keys; those of the session are placeholders.
        return facts;
    }
    facts.extend(session.parameters.listing().into_iter().map(|(key, value)| (key.to_owned(), value)));
    facts
}
