//! A network without pacing. With BBR as the host's congestion control, the kernel delays bursts with timers,
//! even within the host. In a virtual machine these timers cost more than the commands.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context, Result};

use crate::root::StepResult;

/// The congestion control of this network namespace.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// The kernel's algorithms without pacing.
const UNPACED: [&str; 2] = ["reno", "cubic"];
/// Configures a new namespace, and runs the remaining arguments there.
const NAMESPACE_SETUP: &str =
    "ip link set lo up && echo reno >/proc/sys/net/ipv4/tcp_congestion_control && exec \"$@\"";

/// Runs this command again in a network namespace without pacing, if that is needed and possible. Returns None
/// to continue here.
pub fn run_unpaced() -> Result<Option<StepResult>> {
    let control = std::fs::read_to_string(CONGESTION_CONTROL).unwrap_or_default();
    if UNPACED.contains(&control.trim()) {
        return Ok(None);
    }
    if !in_namespace("true".as_ref()).output().is_ok_and(|output| output.status.success()) {
        eprintln!("bench: {} delays packets; run as root to avoid that", control.trim());
        return Ok(None);
    }
    let program = std::env::current_exe().context("the path of xtask is unknown")?;
    let status = in_namespace(program.as_ref())
        .args(std::env::args_os().skip(1))
        .status()
        .context("cannot run unshare")?;
    Ok(Some(if status.success() { StepResult::Ok } else { StepResult::Failed("see above".into()) }))
}

/// A program in a new namespace.
fn in_namespace(program: &OsStr) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", NAMESPACE_SETUP, "sh"]).arg(program);
    command
}
