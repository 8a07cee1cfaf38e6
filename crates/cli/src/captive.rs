//! The command that `lunar serve --run` serves.

use crate::paste::Reach;
use crate::serve::Event;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::process::Command;
use std::sync::mpsc::Sender;

/// A running command.
pub struct Captive(Option<Pid>);

impl Captive {
    /// Runs a shell command that knows where the server is. Its end is told as [`Event::Ended`].
    pub fn start(command: &str, reach: &Reach, events: Sender<Event>) -> io::Result<Captive> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", command])
            .env("LUNAR_URL", &reach.url)
            .env("LUNAR_PORTAL", &reach.portal)
            .spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let wait = move || {
            if let Ok(status) = child.wait() {
                // The main thread may have gone.
                _ = events.send(Event::Ended(status));
            }
        };
        std::thread::Builder::new().name("captive".into()).spawn(wait)?;
        Ok(Captive(pid))
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        if let Some(pid) = self.0 {
            // It may have ended by itself.
            _ = kill_process(pid, Signal::TERM);
        }
    }
}
