//! The command of `lunar serve --run`.

use crate::serve::ServeEvent;
use lunar_runtime::child;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::sync::mpsc::Sender;

/// A running command.
pub struct Captive {
    pid: Option<Pid>,
    /// Whether it leads a process group, which ends with it. Not on a terminal, because only the foreground process
    /// group may read from a terminal.
    leads: bool,
}

impl Captive {
    /// Runs a shell command with these variables in its environment. [`ServeEvent::Ended`] reports its end.
    pub fn start(
        command: &str,
        environment: Vec<(&'static str, String)>,
        events: Sender<ServeEvent>,
    ) -> io::Result<Captive> {
        let leads = !io::stdin().is_terminal();
        let mut shell = child::command("/bin/sh");
        shell.args(["-c", command]).envs(environment);
        if leads {
            shell.process_group(0);
        }
        let mut child = shell.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let wait = move || {
            if let Some(pid) = pid.filter(|_| leads) {
                // Ends the rest of its process group before the process id is reaped and can be reused.
                _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
                _ = kill_process_group(pid, Signal::TERM);
            }
            if let Ok(status) = child.wait() {
                // The main thread may have ended.
                _ = events.send(ServeEvent::Ended(status));
            }
        };
        std::thread::Builder::new().name("captive".into()).spawn(wait)?;
        Ok(Captive { pid, leads })
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        // The signal fails if the command has ended.
        match self.pid {
            Some(pid) if self.leads => _ = kill_process_group(pid, Signal::TERM),
            Some(pid) => _ = kill_process(pid, Signal::TERM),
            None => {}
        }
    }
}
