//! What is to be done: the command line.

use std::net::SocketAddr;

use clap::{Parser, ValueEnum};

/// Direction of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoOp {
    /// READ(10)
    Read,
    /// WRITE(10)
    Write,
}

/// A neutral iSCSI load generator.
#[derive(Debug, Parser)]
#[command(name = "blast")]
pub struct BlastJob {
    /// Portal of the target
    #[arg(long, value_name = "ADDR:PORT")]
    pub portal: SocketAddr,
    /// Name of the target
    #[arg(long, value_name = "IQN")]
    pub target: String,
    /// The first LUN
    #[arg(long, default_value_t = 0)]
    pub lun: u16,
    /// How many LUNs, from the first on, take the commands in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub luns: u16,
    /// What to do
    #[arg(long, value_enum, default_value = "read")]
    pub op: IoOp,
    /// Bytes of one command, a multiple of 512
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(512..=33_553_920))]
    pub bytes: u32,
    /// Commands in flight of each session
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub depth: u32,
    /// How long to measure
    #[arg(long, default_value_t = 5)]
    pub seconds: u64,
    /// Sessions, each with a thread and an initiator name of its own
    #[arg(long, default_value_t = 1)]
    pub sessions: u32,
    /// Process of the target, to report its CPU time
    #[arg(long)]
    pub pid: Option<u32>,
    /// Block addresses ascend instead of being random
    #[arg(long)]
    pub sequential: bool,
    /// The first part of the LUN that is used, in MiB
    #[arg(long, default_value_t = 256)]
    pub span_mib: u64,
    /// Data digests (CRC32C) both ways. Those of what is written are computed once per length, and those of
    /// what is read are passed over: the cost that is measured is the target's
    #[arg(long)]
    pub data_digest: bool,
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

    /// How many places in the span a command may go to.
    pub fn places(&self) -> u64 {
        ((self.span_mib << 20) / u64::from(self.bytes)).max(1)
    }
}
