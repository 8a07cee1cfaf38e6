//! Block devices of SPDK. A namespace names one.

use super::SpdkImport;
use super::calls::Call;
use crate::common::medium_of;
use crate::{Disk, DiskMedium};

/// A block device that Lunar can serve too, or the reason why it cannot.
pub(super) struct Bdev {
    pub(super) disk: Result<Disk, String>,
    /// Its UUID, which is that of its namespaces by default.
    pub(super) uuid: String,
}

/// Whether a method makes a block device, or the controller of some.
pub(super) fn is_made_by(method: &str) -> bool {
    method.starts_with("bdev_") && (method.ends_with("_create") || method.ends_with("_attach_controller"))
}

impl SpdkImport<'_> {
    /// Keeps a block device for the namespaces that name it.
    pub(super) fn bdev(&mut self, call: &Call) {
        let name = call.text("name");
        if name.is_empty() {
            return self.imported.notes.lost(&call.place, format!("{}: it has no name", call.method));
        }
        // A controller has a call for each of its paths.
        if self.bdevs.contains_key(name) && !call.method.ends_with("_attach_controller") {
            return self.imported.notes.lost(&call.place, format!("{name}: the name is given twice"));
        }
        let disk = disk(call);
        if let Err(why) = &disk {
            self.imported.notes.lost(&call.place, format!("{name}: {why}"));
        } else if call.number("md_size").is_some_and(|size| size != 0) {
            self.imported.notes.lost(&call.place, format!("{name}: the metadata of its blocks"));
        }
        self.bdevs.insert(name.to_owned(), Bdev { disk, uuid: call.text("uuid").to_owned() });
    }

    /// The disk of a block device. NVMe controllers have several, such as `Nvme0n1` of `Nvme0`.
    pub(super) fn find_bdev(&self, name: &str) -> Result<(Disk, &str), String> {
        let owner = || {
            let (owner, number) = name.rsplit_once('n')?;
            self.bdevs.get(owner).filter(|_| number.parse::<u32>().is_ok())
        };
        let bdev = self.bdevs.get(name).or_else(owner).ok_or("the block device is not in the file")?;
        bdev.disk.clone().map(|disk| (disk, bdev.uuid.as_str()))
    }
}

fn disk(call: &Call) -> Result<Disk, String> {
    let block_size = call.number("block_size").filter(|size| *size != 0);
    let size = || {
        let size =
            block_size.zip(call.number("num_blocks")).and_then(|(size, blocks)| size.checked_mul(blocks));
        size.ok_or("the size is not in the file")
    };
    let medium = match call.method.as_str() {
        "bdev_aio_create" | "bdev_uring_create" => match call.text("filename") {
            "" => return Err("the path is not in the file".into()),
            path => medium_of(path),
        },
        "bdev_malloc_create" => DiskMedium::Memory(size()?),
        "bdev_null_create" => DiskMedium::Null(size()?),
        "bdev_nvme_attach_controller" if call.text("trtype").eq_ignore_ascii_case("pcie") => {
            let why =
                "an NVMe device of SPDK's driver: give it back to the kernel, and serve its /dev/nvme*n*";
            return Err(why.into());
        }
        "bdev_nvme_attach_controller" => {
            return Err("namespaces of another target, which a router serves: see docs/router.md".into());
        }
        other => return Err(format!("{other} has no counterpart")),
    };
    let size = |size: Option<u64>| size.and_then(|size| size.try_into().ok());
    Ok(Disk {
        block_size: size(block_size),
        physical_block_size: size(call.number("physical_block_size").filter(|size| *size != 0)),
        read_only: call.flag("readonly"),
        write_cache: true,
        ..Disk::new(call.text("name"), medium)
    })
}
