//! Opens an sg device, and checks that it is one.

use super::ioctl::{ScsiId, SgNode};
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// SCSI_GENERIC_MAJOR: the device number of the sg driver.
const MAJOR: u32 = 21;
/// The first driver version with `sg_io_hdr`.
const VERSION: i32 = 30000;
/// The size of the driver's reserved memory: transfers up to this never lack memory.
const RESERVED: i32 = 1 << 20;

/// An opened device.
pub(super) struct OpenedDevice {
    /// The device.
    pub node: SgNode,
    /// The address and type of the device.
    pub scsi_id: ScsiId,
    /// The kernel's maximum transfer length for one command in bytes.
    pub max_transfer: usize,
}

/// Opens a device.
///
/// # Errors
/// Those of [`super::Device::open`].
pub(super) fn open(path: &Path) -> io::Result<OpenedDevice> {
    let open_error = |e: io::Error| {
        let text = format!("cannot open {} for SCSI pass-through: {e}; {}", path.display(), hint(&e));
        io::Error::new(e.kind(), text)
    };
    let metadata = std::fs::metadata(path).map_err(open_error)?;
    let is_sg = metadata.file_type().is_char_device() && rustix::fs::major(metadata.rdev()) == MAJOR;
    if !is_sg {
        return Err(open_error(io::Error::new(io::ErrorKind::Unsupported, "not an sg device")));
    }
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
    let file = File::options().read(true).write(true).custom_flags(flags).open(path).map_err(open_error)?;
    examine(file).map_err(open_error)
}

fn examine(file: File) -> io::Result<OpenedDevice> {
    let node = SgNode::new(file)?;
    let version = node.version()?;
    if version < VERSION {
        let text = format!("the sg driver has version {version}; {VERSION} or newer is required");
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let scsi_id = node.scsi_id()?;
    node.prepare(RESERVED)?;
    let max_transfer = node.max_transfer()?;
    tracing::debug!(version, ?scsi_id, max_transfer, "sg device");
    Ok(OpenedDevice { node, scsi_id, max_transfer })
}

fn hint(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::PermissionDenied => {
            "run as root, or as a member of the group that owns it (disk, tape or cdrom)"
        }
        io::ErrorKind::NotFound => {
            "load the kernel module with `modprobe sg`; /sys/class/scsi_generic lists the devices"
        }
        io::ErrorKind::Unsupported => {
            "configure a /dev/sgN; /sys/class/scsi_generic and `lsscsi -g` list them with their devices"
        }
        io::ErrorKind::ResourceBusy => "end the program that has opened the device exclusively",
        _ => "check that the device is present, and read the kernel log",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &str) -> String {
        open(Path::new(path)).err().expect("not an sg device").to_string()
    }

    #[test]
    fn non_sg_device_is_rejected_with_a_hint() {
        for other in ["/dev/null", "/dev", "/proc/self/status"] {
            let text = refused(other);
            assert!(
                text.contains(other) && text.contains("not an sg device") && text.contains("/dev/sgN"),
                "{text}"
            );
        }
        assert!(refused("/dev/sg-none").contains("modprobe sg"));
    }
}
