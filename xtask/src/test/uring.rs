//! The kernel setting that disables io_uring, as in containers by default.

use std::fs;

use anyhow::{Context, Result};

const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";
const OFF_FOR_ALL: &str = "2";

/// Keeps io_uring disabled until it is dropped.
#[derive(Debug)]
pub struct IoUringDisabled {
    before: String,
}

/// Disables io_uring; the inner error is the reason why that is not possible here.
pub fn disable() -> Result<Result<IoUringDisabled, String>> {
    let Ok(before) = fs::read_to_string(SWITCH) else {
        return Ok(Err("this kernel has no kernel.io_uring_disabled".into()));
    };
    if fs::write(SWITCH, OFF_FOR_ALL).is_err() {
        return Ok(Err("needs root: sysctl kernel.io_uring_disabled=2".into()));
    }
    let now = fs::read_to_string(SWITCH).context(SWITCH)?;
    anyhow::ensure!(now.trim() == OFF_FOR_ALL, "{SWITCH} stays {now}");
    Ok(Ok(IoUringDisabled { before }))
}

impl Drop for IoUringDisabled {
    fn drop(&mut self) {
        if let Err(error) = fs::write(SWITCH, &self.before) {
            eprintln!("xtask: cannot set {SWITCH} back to {}: {error}", self.before.trim());
        }
    }
}
