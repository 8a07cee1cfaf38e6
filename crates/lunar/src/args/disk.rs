//! Arguments of `lunar disk`.

use super::objects::{ObjectArgs, ServerArgs};
use crate::objects::keys::{self, Pair};
use clap::{Args, Subcommand};

const DISK_EXAMPLES: &str = "Examples:
  lunar disk add data new.img --size 10G
  lunar lun add iqn.2026-11.org.example:a disk:data
  lunar lun add iqn.2026-11.org.example:b disk:data
  lunar disk show data
  lunar disk remove data";

/// Arguments of `lunar disk add`.
#[derive(Args, Debug)]
pub struct DiskAdd {
    /// Name of the disk
    pub name: String,
    /// A file, a block device, null:SIZE or memory:SIZE
    #[arg(value_name = "MEDIUM")]
    pub medium: String,
    /// Keys of a disk, such as `read_only=true`
    #[arg(value_name = "KEY=VALUE", value_parser = keys::pair)]
    pub keys: Vec<Pair>,
    /// Create a missing file, sparse, at this size
    #[arg(long, value_name = "SIZE")]
    pub size: Option<String>,
    #[command(flatten)]
    pub object: ObjectArgs,
}

/// Subcommands of `lunar disk`.
#[derive(Debug, Subcommand)]
#[command(after_help = DISK_EXAMPLES)]
pub enum DiskCommand {
    /// List the disks, with the number of LUNs that show each
    List(ServerArgs),
    /// Show the keys of a disk, and the LUNs that show it
    Show {
        /// Name of the disk
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Add a disk, which LUNs of several targets can show
    Add(DiskAdd),
    /// Remove a disk that no LUN shows; its file stays
    Remove {
        /// Name of the disk
        name: String,
        #[command(flatten)]
        object: ObjectArgs,
    },
}
