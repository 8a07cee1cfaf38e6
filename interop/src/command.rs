//! Runs commands of `lunar` with an initiator name, and returns their output and exit status.

use crate::{config, lunar_bin};
use std::process::Command;

/// Standard output, standard error, exit status.
pub type CommandOutput = (String, String, i32);

/// Runs a command as this initiator.
pub fn lunar_as(initiator: &str, arguments: &[&str]) -> CommandOutput {
    let ran = Command::new(lunar_bin()).args(arguments).env("LUNAR_INITIATOR", initiator).output();
    let ran = ran.expect("lunar runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (text(ran.stdout), text(ran.stderr), ran.status.code().expect("an exit status"))
}

/// Runs a command as the default initiator of the tests.
pub fn lunar(arguments: &[&str]) -> CommandOutput {
    lunar_as(config::INITIATOR, arguments)
}
