//! Child processes.

use std::ffi::OsStr;
use std::process::Command;

/// Variables by which a service manager addresses this process alone: sd_notify(3), sd_listen_fds(3) and
/// sd_watchdog_enabled(3).
pub const SERVICE_MANAGER_VARIABLES: [&str; 7] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "LISTEN_PIDFDID",
];

/// A command whose process does not inherit [`SERVICE_MANAGER_VARIABLES`]: otherwise it could report in our name.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    SERVICE_MANAGER_VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_inherits_no_variable_of_the_service_manager() {
        let child = command("true");
        let removed: Vec<_> = child.get_envs().filter(|(_, value)| value.is_none()).collect();
        assert_eq!(removed.len(), SERVICE_MANAGER_VARIABLES.len());
        assert!(removed.iter().any(|(name, _)| *name == "NOTIFY_SOCKET"));
    }
}
