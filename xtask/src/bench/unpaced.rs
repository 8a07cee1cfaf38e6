//! A network without pacing. Where the host's congestion control is BBR, the kernel holds back what is sent, within the host
//! too, by a timer for each burst; in a virtual machine that costs more than the commands.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context, Result};

use crate::root::StepResult;

/// That of this network namespace.
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Those of the kernel that do not pace.
const UNPACED: [&str; 2] = ["reno", "cubic"];
/// Makes an empty namespace fit for use, and runs the rest of the words there.
const NAMESPACE_SETUP: &str =
    "ip link set lo up && echo reno >/proc/sys/net/ipv4/tcp_congestion_control && exec \"$@\"";

/// Runs this command again in a network namespace where nothing is paced, if that makes a difference and can be had. None:
/// go on here.
pub fn run_unpaced() -> Result<Option<StepResult>> {
    let control = std::fs::read_to_string(CONGESTION_CONTROL).unwrap_or_default();
    if UNPACED.contains(&control.trim()) {
        return Ok(None);
    }
    if !in_namespace("true".as_ref()).output().is_ok_and(|output| output.status.success()) {
        eprintln!(
            "bench: {} holds back what others send; as root that would not be measured",
            control.trim()
        );
        return Ok(None);
    }
    let program = std::env::current_exe().context("where is this program?")?;
    let status = in_namespace(program.as_ref())
        .args(std::env::args_os().skip(1))
        .status()
        .context("cannot run unshare")?;
    Ok(Some(if status.success() { StepResult::Ok } else { StepResult::Failed("see above".into()) }))
}

/// A program in such a namespace.
fn in_namespace(program: &OsStr) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", NAMESPACE_SETUP, "sh"]).arg(program);
    command
}
