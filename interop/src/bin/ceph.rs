//! A Ceph cluster of one node for other programs. It prints its configuration file, and ends together with its stdin.
#![forbid(unsafe_code)]

use interop::ceph::CephCluster;
use std::process::ExitCode;

/// A busy host must not stop the OSD for longer than this.
const READ_LEASE_S: u32 = 60;

fn main() -> ExitCode {
    // It has printed what is missing.
    let Some(cluster) = CephCluster::start_large(READ_LEASE_S) else { return ExitCode::FAILURE };
    // Other clients then compare with Lunar, which sets it itself.
    cluster.set_of_clients("rbd_cache", "false");
    println!("{}", cluster.conf().display());
    _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    ExitCode::SUCCESS
}
