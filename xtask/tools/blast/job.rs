//! The command line.

use std::net::SocketAddr;
use std::ops::Range;

use clap::{Parser, ValueEnum};

/// Direction of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoOp {
    /// READ
    Read,
    /// WRITE
    Write,
}

/// A neutral load generator for iSCSI and NVMe/TCP.
#[derive(Debug, Parser)]
#[command(name = "blast")]
pub struct BlastJob {
    /// Portal of the target
    #[arg(long, value_name = "ADDR:PORT")]
    pub portal: SocketAddr,
    /// Use NVMe/TCP: a session is a controller, LUN n is the namespace n + 1, and a login takes the steps of Linux
    #[arg(long)]
    pub nvme: bool,
    /// Name of the target, or of the subsystem
    #[arg(long, value_name = "NAME")]
    pub target: String,
    /// The first LUN
    #[arg(long, default_value_t = 0)]
    pub lun: u16,
    /// The number of LUNs, from the first on, that receive commands in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub luns: u16,
    /// The direction
    #[arg(long, value_enum, default_value = "read")]
    pub op: IoOp,
    /// Bytes of one command, a multiple of 512
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(512..=33_554_432))]
    pub bytes: u32,
    /// Commands in flight of each session, or of each I/O queue
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub depth: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 5)]
    pub seconds: u64,
    /// Sessions, each with its own thread and initiator name
    #[arg(long, default_value_t = 1)]
    pub sessions: u32,
    /// I/O queues of each NVMe controller, each with its own thread
    #[arg(long, requires = "nvme", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub queues: u32,
    /// Use one thread for all sessions: the threads of many sessions cost more than their commands. It receives at most
    /// 128 KiB in one call, because another client on the same core waits for the call
    #[arg(long, conflicts_with = "first")]
    pub one_thread: bool,
    /// The number of the first session, which is a part of its initiator name and ISID. Processes that load one target
    /// at the same time need different numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub first_session: u32,
    /// Process of the target, to report its CPU time
    #[arg(long)]
    pub pid: Option<u32>,
    /// Use ascending block addresses instead of random ones
    #[arg(long)]
    pub sequential: bool,
    /// The part of the LUN in use, in MiB from its start
    #[arg(long, default_value_t = 256)]
    pub span_mib: u64,
    /// Use CRC32C data digests both ways. Those of writes are computed once per length, and those of reads are
    /// ignored: the target's cost is measured
    #[arg(long)]
    pub data_digest: bool,
    /// Use CRC32C header digests both ways
    #[arg(long, requires = "nvme")]
    pub header_digest: bool,
    /// Switch submission queue flow control off: the target may then end a READ with its data
    #[arg(long, requires = "nvme")]
    pub disable_sqflow: bool,
    /// Only log in, print `held N`, and keep the idle sessions until standard input ends
    #[arg(long)]
    pub hold: bool,
    /// Report also the median times from sending a READ to its first byte of data, and to its first whole
    /// Data-In; for reads at depth 1
    #[arg(long)]
    pub first: bool,
}

impl BlastJob {
    /// 512-byte blocks of one command.
    pub fn blocks(&self) -> u32 {
        self.bytes / 512
    }

    /// The LUN of a command with this offset.
    pub fn lun_at(&self, place: u64) -> u16 {
        self.lun + (place % u64::from(self.luns)) as u16
    }

    /// The numbers of the sessions.
    pub fn session_numbers(&self) -> Range<u32> {
        self.first_session..self.first_session + self.sessions
    }

    /// The number of offsets in the span.
    pub fn places(&self) -> u64 {
        ((self.span_mib << 20) / u64::from(self.bytes)).max(1)
    }
}
