//! A network without pacing. Where the host's congestion control is BBR, the kernel holds back what is sent, within the host
//! too, by a timer for each burst; in a virtual machine that costs more than the commands.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context, Result};

use crate::root::Step;

/// That of this network namespace.
const CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Those of the kernel that do not pace.
const UNPACED: [&str; 2] = ["reno", "cubic"];
/// Makes an empty namespace fit for use, and runs the rest of the words there.
const BEGIN: &str =
    "ip link set lo up && echo reno >/proc/sys/net/ipv4/tcp_congestion_control && exec \"$@\"";

/// Runs this command again in a network namespace where nothing is paced, if that makes a difference and can be had. None:
/// go on here.
pub fn elsewhere() -> Result<Option<Step>> {
    let control = std::fs::read_to_string(CONTROL).unwrap_or_default();
    if UNPACED.contains(&control.trim()) {
        return Ok(None);
    }
    if !there("true".as_ref()).output().is_ok_and(|output| output.status.success()) {
        eprintln!(
            "bench: {} holds back what others send; as root that would not be measured",
            control.trim()
        );
        return Ok(None);
    }
    let program = std::env::current_exe().context("where is this program?")?;
    let status =
        there(program.as_ref()).args(std::env::args_os().skip(1)).status().context("cannot run unshare")?;
    Ok(Some(if status.success() { Step::Ok } else { Step::Failed("see above".into()) }))
}

/// A program in such a namespace.
fn there(program: &OsStr) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", BEGIN, "sh"]).arg(program);
    command
}
