//! Arguments of `lunar copy`.

use clap::ValueEnum;
use lunar_block::offload::GRANULE;
use lunar_copy::{CopyStyle, ZeroPolicy};
use lunar_server::Problem;
use std::path::PathBuf;

const EXAMPLES: &str = "\
SRC and DST are a file, a block device, - (stdin, stdout), null:SIZE, iscsi://HOST[:PORT]/TARGET/LUN, or one of iser://
or srp://, nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH.

Examples:
  lunar copy disk.img copy.img                 holes stay holes
  lunar copy /dev/sdb backup.img --resume      the same again goes on where it was interrupted
  lunar copy backup.img /dev/sdb --verify
  lunar copy /dev/sdb - | zstd > backup.zst
  lunar copy disk.img iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0
  lunar copy iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0 iscsi://192.0.2.10/iqn.2026-11.org.example:disks/1

Exit status: 0 all is copied and stable, 1 it failed, 8 --timeout, 40 what could not be read was left out,
41 --verify found a difference, 129 SIGHUP, 130 SIGINT, 143 SIGTERM; also those of lunar --help.";

/// Arguments of `lunar copy`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What is copied
    #[arg(value_name = "SRC")]
    pub source: String,

    /// Where it goes; a file that is missing is created
    #[arg(value_name = "DST")]
    pub destination: String,

    /// Bytes of one request, a multiple of 64K
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    pub block: String,

    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,

    /// Whether zeros become holes where DST can have them
    #[arg(long, value_name = "auto|never", default_value = "auto", hide_possible_values = true)]
    pub sparse: When,

    /// Read both ends again and compare them
    #[arg(long)]
    pub verify: bool,

    /// Go on with a copy that was interrupted, or begin one that can be gone on with
    #[arg(long)]
    pub resume: bool,

    /// Where --resume keeps how far it is [default: DST.lunar-copy, if DST is a file]
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,

    /// With --resume: make DST stable and note it each time so much was copied, and every few seconds
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub checkpoint: String,

    /// Overwrite a file that has data
    #[arg(long)]
    pub force: bool,

    /// Copy the bytes of SRC and DST as they are, also where they look like an image format (qcow2, VMDK, VHD, VHDX, VDI)
    #[arg(long)]
    pub raw: bool,

    /// Refuse a DST that is larger than SRC
    #[arg(long)]
    pub exact: bool,

    /// Leave out what cannot be read: it becomes zeros, and is listed
    #[arg(long)]
    pub skip_errors: bool,

    /// Read and write also where the target of two LUNs could copy by itself (EXTENDED COPY)
    #[arg(long)]
    pub no_offload: bool,

    /// End after this time (5, 5s, 2m, 500ms)
    #[arg(long, value_name = "TIME", value_parser = lunar_proto::duration::positive)]
    pub timeout: Option<std::time::Duration>,

    /// Tell how far it is also where stderr is no terminal
    #[arg(long)]
    pub progress: bool,

    /// Print a summary as JSON
    #[arg(long)]
    pub json: bool,
}

/// Values of `--sparse`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum When {
    /// Where DST can have holes
    Auto,
    /// Zeros are written like everything else
    Never,
}

/// Memory that requests in flight may take, in bytes.
const MEMORY: u64 = 2 << 30;

impl Args {
    /// How to copy.
    pub fn style(&self) -> Result<CopyStyle, Problem> {
        let block = size("--block", &self.block)?;
        if block == 0 || !block.is_multiple_of(GRANULE) || block > 32 << 20 {
            let what = format!("--block: {} bytes cannot be", block);
            return Err(Problem::new(what, "choose a multiple of 64K, up to 32M"));
        }
        if block * u64::from(self.depth) > MEMORY {
            let what = format!("--depth {} with --block {} takes too much memory", self.depth, self.block);
            return Err(Problem::new(what, "together they may have 2G"));
        }
        let sparse = match self.sparse {
            When::Auto => ZeroPolicy::Auto,
            When::Never => ZeroPolicy::Never,
        };
        Ok(CopyStyle { block, depth: self.depth.into(), sparse, skip_errors: self.skip_errors })
    }

    /// Bytes between two updates of the journal; None if it is not kept while all goes well.
    pub fn every(&self) -> Result<Option<u64>, Problem> {
        let every = size("--checkpoint", &self.checkpoint)?;
        Ok((self.resume || self.journal.is_some()).then_some(every))
    }
}

fn size(argument: &str, text: &str) -> Result<u64, Problem> {
    lunar_proto::size::parse(text).map_err(|e| Problem::new(format!("{argument}: {}", e.what), e.hint))
}
