//! Arguments of `lunar copy`.

use clap::ValueEnum;
use lunar_block::offload::GRANULE;
use lunar_copy::{CopyStyle, ZeroPolicy};
use lunar_server::Diagnostic;
use std::path::PathBuf;

const EXAMPLES: &str = "\
SRC and DST: a file, a block device, - (stdin or stdout), null:SIZE, a LUN (iscsi://HOST[:PORT]/TARGET/LUN, or
iser://, srp://), an NVMe namespace (nvme://HOST[:PORT]/NQN[/NAMESPACE]), or an NBD export (nbd://HOST[:PORT]/EXPORT,
nbd+unix:///EXPORT?socket=PATH).

Examples:
  lunar copy disk.img copy.img                 preserve holes
  lunar copy /dev/sdb backup.img --resume      after an interruption, repeat this command
  lunar copy backup.img /dev/sdb --verify
  lunar copy /dev/sdb - | zstd > backup.zst
  lunar copy disk.img iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0
  lunar copy iscsi://192.0.2.10/iqn.2026-11.org.example:disks/0 iscsi://192.0.2.10/iqn.2026-11.org.example:disks/1

Exit status: 0 copied and flushed, 1 failed, 8 --timeout, 40 copied except for unreadable ranges, 41 --verify found a
difference, 129 SIGHUP, 130 SIGINT, 143 SIGTERM; others as in lunar --help.";

/// Arguments of `lunar copy`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Source
    #[arg(value_name = "SRC")]
    pub source: String,

    /// Destination; a missing file is created
    #[arg(value_name = "DST")]
    pub destination: String,

    /// Request size, a multiple of 64K
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    pub block: String,

    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,

    /// Turn zeros into holes if DST supports holes
    #[arg(long, value_name = "auto|never", default_value = "auto", hide_possible_values = true)]
    pub sparse: SparseMode,

    /// Read SRC and DST again after copying, and compare them
    #[arg(long)]
    pub verify: bool,

    /// Resume an interrupted copy, or start a copy that can be resumed
    #[arg(long)]
    pub resume: bool,

    /// Progress file of --resume [default: DST.lunar-copy, if DST is a file]
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,

    /// With --resume: flush DST and update the journal after this much data, and every few seconds
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub checkpoint: String,

    /// Overwrite a file that has data
    #[arg(long)]
    pub force: bool,

    /// Copy raw bytes, even if SRC or DST looks like an image format (qcow2, VMDK, VHD, VHDX, VDI)
    #[arg(long)]
    pub raw: bool,

    /// Reject a DST that is larger than SRC
    #[arg(long)]
    pub exact: bool,

    /// Write zeros for unreadable ranges, and list them
    #[arg(long)]
    pub skip_errors: bool,

    /// Read and write the data even if the target could copy between its LUNs (EXTENDED COPY)
    #[arg(long)]
    pub no_offload: bool,

    /// Stop after this time (5, 5s, 2m, 500ms)
    #[arg(long, value_name = "TIME", value_parser = lunar_proto::duration::positive)]
    pub timeout: Option<std::time::Duration>,

    /// Show progress even if stderr is not a terminal
    #[arg(long)]
    pub progress: bool,

    /// Print a summary as JSON
    #[arg(long)]
    pub json: bool,
}

/// Values of `--sparse`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SparseMode {
    /// If DST supports holes
    Auto,
    /// Write zeros
    Never,
}

/// Limit of memory for requests in flight, in bytes.
const MAX_BUFFER_BYTES: u64 = 2 << 30;

impl Args {
    /// The style of the copy, from --block, --depth, --sparse and --skip-errors.
    pub fn style(&self) -> Result<CopyStyle, Diagnostic> {
        let block = size("--block", &self.block)?;
        if block == 0 || !block.is_multiple_of(GRANULE) || block > 32 << 20 {
            let what = format!("--block: invalid size: {} bytes", block);
            return Err(Diagnostic::new(what, "choose a multiple of 64K, up to 32M"));
        }
        if block * u64::from(self.depth) > MAX_BUFFER_BYTES {
            let what = format!("--depth {} with --block {} exceeds the memory limit", self.depth, self.block);
            return Err(Diagnostic::new(what, "keep the product of --depth and --block at 2G or less"));
        }
        let sparse = match self.sparse {
            SparseMode::Auto => ZeroPolicy::Auto,
            SparseMode::Never => ZeroPolicy::Never,
        };
        Ok(CopyStyle { block, depth: self.depth.into(), sparse, skip_errors: self.skip_errors })
    }

    /// Bytes between updates of the journal; None: without --resume or --journal it is written only when the copy fails.
    pub fn checkpoint_bytes(&self) -> Result<Option<u64>, Diagnostic> {
        let every = size("--checkpoint", &self.checkpoint)?;
        Ok((self.resume || self.journal.is_some()).then_some(every))
    }
}

fn size(argument: &str, text: &str) -> Result<u64, Diagnostic> {
    lunar_proto::size::parse(text).map_err(|e| Diagnostic::new(format!("{argument}: {}", e.what), e.hint))
}
