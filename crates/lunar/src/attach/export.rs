//! Exports the disk to the host: over NBD, as a block device (ublk), or as a file (FUSE).

use super::disk::Disk;
use super::process::unstable;
use crate::exit::{Exit, Failure};
use lunar_block::users;
use lunar_host::{fuse, ublk};
use lunar_nbd::server as nbd;
use lunar_runtime::Cores;
use lunar_server::attached::{Attached, Record};
use lunar_server::config::attachment::How;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The export of a disk.
pub enum HostExport {
    /// NBD server.
    Nbd(nbd::NbdServer),
    /// Block device.
    Ublk(Box<ublk::UblkDevice>),
    /// File.
    Fuse(fuse::FuseMount),
}

impl HostExport {
    /// Exports the disk by the method of the record, or takes over the device of a dead process. Must not run on a core.
    ///
    /// # Errors
    /// When the address is in use, the driver or the folder is missing, or the permission is denied.
    pub fn start(
        cores: &Arc<Cores>,
        disk: &Disk,
        record: &Record,
        before: Option<&Record>,
        attached: &Attached,
    ) -> Result<HostExport, Failure> {
        let backend = disk.backend.clone();
        match (record.how, before.and_then(|before| before.ublk_id)) {
            (How::Nbd, _) => nbd_server(cores, disk, record, attached),
            (How::Ublk, Some(id)) => {
                let device = ublk::UblkDevice::recover(cores, backend, id).map_err(failed)?;
                Ok(HostExport::Ublk(Box::new(device)))
            }
            (How::Ublk, None) => {
                let options = ublk::Options {
                    block_size: disk.block_size,
                    read_only: record.read_only,
                    ..ublk::Options::default()
                };
                let device = ublk::UblkDevice::start(cores, backend, &options).map_err(failed)?;
                Ok(HostExport::Ublk(Box::new(device)))
            }
            (How::Fuse, _) => {
                let dir = Path::new(record.place.as_deref().unwrap_or("."));
                let options = fuse::Options { read_only: record.read_only };
                let mount = fuse::FuseMount::start(cores, backend, dir, &record.name, &options);
                Ok(HostExport::Fuse(mount.map_err(failed)?))
            }
        }
    }

    /// NBD URI, or path of the block device or file.
    pub fn device(&self) -> String {
        match self {
            HostExport::Nbd(handle) => handle.addresses().first().map(|at| at.url("")).unwrap_or_default(),
            HostExport::Ublk(device) => device.path().display().to_string(),
            HostExport::Fuse(mount) => mount.path().display().to_string(),
        }
    }

    /// Listen address of an NBD server, in the form of `--nbd`.
    pub fn place(&self) -> Option<String> {
        let HostExport::Nbd(handle) = self else { return None };
        handle.addresses().first().map(|at| match at {
            nbd::ListenAddress::Tcp(address) => address.to_string(),
            nbd::ListenAddress::Unix(path) => format!("unix:{}", path.display()),
        })
    }

    /// The number of a ublk device.
    pub fn ublk_id(&self) -> Option<u32> {
        match self {
            HostExport::Ublk(device) => Some(device.id()),
            HostExport::Nbd(_) | HostExport::Fuse(_) => None,
        }
    }

    /// Descriptions of the current users: clients, mounts, processes.
    pub fn users(&self) -> Vec<String> {
        match self {
            HostExport::Nbd(handle) => match handle.clients() {
                0 => Vec::new(),
                n => vec![crate::output::count(n, "NBD client")],
            },
            HostExport::Ublk(device) => users::of_device(&device.path()),
            HostExport::Fuse(mount) => users::of_file(mount.path()),
        }
    }

    /// Announces a capacity change to the host.
    pub fn resize(&mut self) {
        // NBD clients read the size when they connect, and readers of a file at each stat.
        if let HostExport::Ublk(device) = self
            && let Err(e) = device.resize()
        {
            tracing::warn!("{e}");
        }
    }

    /// Why the export has ended: another process unmounted it, or it failed. None: it is in service.
    pub fn is_over(&mut self) -> Option<&'static str> {
        match self {
            HostExport::Fuse(mount) => {
                (!mount.is_mounted()).then_some("another process unmounted the FUSE mount")
            }
            HostExport::Ublk(device) => {
                device.has_failed().then_some("the ublk device no longer answers requests")
            }
            HostExport::Nbd(_) => None,
        }
    }

    /// Waits for I/O in flight, flushes, and removes the export from the host. Must not run on a core.
    ///
    /// # Errors
    /// When not all data could be flushed, or the host does not release the device.
    pub fn stop(self) -> Result<(), Failure> {
        match self {
            HostExport::Nbd(handle) => handle.stop().map_err(unstable),
            HostExport::Ublk(device) => device.stop().map_err(failed),
            HostExport::Fuse(mount) => mount.stop().map_err(failed),
        }
    }
}

fn nbd_server(
    cores: &Arc<Cores>,
    disk: &Disk,
    record: &Record,
    attached: &Attached,
) -> Result<HostExport, Failure> {
    let listen = match record.place.as_deref().map(|place| (place.strip_prefix("unix:"), place)) {
        None => nbd::ListenAddress::Unix(attached.file(&record.name, "nbd")),
        Some((Some(path), _)) => nbd::ListenAddress::Unix(path.into()),
        Some((None, address)) => nbd::ListenAddress::Tcp(address.parse().map_err(|e| {
            Failure::new(Exit::Invalid, format!("--nbd {address}: {e}"), "write unix:PATH or ADDR:PORT")
        })?),
    };
    let offered = nbd::NbdExport {
        name: String::new(),
        backend: disk.backend.clone(),
        block_size: disk.block_size,
        read_only: record.read_only,
        description: record.urls.first().cloned().unwrap_or_default(),
    };
    let handle = nbd::serve(&[listen], vec![offered], cores.clone(), nbd::ServerLimits::default());
    Ok(HostExport::Nbd(handle.map_err(|e| {
        let hint = match e.kind() {
            io::ErrorKind::AddrInUse => "the address is in use: choose another address or --name",
            io::ErrorKind::InvalidInput => "choose a shorter path, with --nbd unix:PATH",
            _ => "choose another address: --nbd unix:PATH or --nbd ADDR:PORT",
        };
        let exit = match e.kind() {
            io::ErrorKind::AddrInUse => Exit::InUse,
            io::ErrorKind::InvalidInput => Exit::Invalid,
            io::ErrorKind::PermissionDenied => Exit::NoAccess,
            _ => Exit::General,
        };
        Failure::new(exit, e.to_string(), hint)
    })?))
}

/// Adds the exit status to an error of an export.
pub fn failed(e: lunar_host::Error) -> Failure {
    let denied = e.source.as_ref().is_some_and(|source| source.kind() == io::ErrorKind::PermissionDenied);
    let exit = if denied { Exit::NoAccess } else { Exit::General };
    Failure::new(exit, format!("{}: {}", e.subject, e.what), e.hint)
}
