//! `lunar attach` as a child process, with an NBD export on a Unix socket.

use crate::tally::Tally;
use interop::nbd::Nbd;
use interop::routed::until;
use interop::{Folder, lunar_bin};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A process of `lunar attach`, killed on drop.
pub struct Attach {
    child: Child,
    dir: Folder,
}

impl Attach {
    /// Attaches over these URLs.
    pub fn start(tally: &Tally, urls: &[String], options: &[&str]) -> Result<Attach, String> {
        let dir = tally.folder();
        let log = File::create(dir.join("stderr")).map_err(|e| format!("a log: {e}"))?;
        let mut command = Command::new(lunar_bin());
        command.args(["attach", "--foreground", "--name", "campaign"]).args(options);
        command.arg("--nbd").arg(format!("unix:{}", dir.join("nbd").display())).arg(&urls[0]);
        command.args(urls[1..].iter().flat_map(|url| ["--path", url]));
        for (variable, folder) in
            [("LUNAR_RUN_DIR", "run"), ("XDG_CONFIG_HOME", "config"), ("XDG_STATE_HOME", "state")]
        {
            command.env(variable, dir.join(folder));
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut attach = Attach { child: child.map_err(|e| format!("lunar attach: {e}"))?, dir };
        let socket = attach.socket();
        let is_up = until("lunar attach is up, or has ended", || {
            let has_ended = matches!(attach.child.try_wait(), Ok(Some(_)));
            (has_ended || socket.exists()).then_some(!has_ended)
        });
        if is_up { Ok(attach) } else { Err(format!("lunar attach ended: {}", attach.log())) }
    }

    /// A connection to the export.
    pub fn connect(&self) -> Result<Nbd, String> {
        Nbd::connect(&self.socket()).map_err(|why| format!("{why}\n{}", self.log()))
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("nbd")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("stderr")).unwrap_or_default()
    }
}

impl Drop for Attach {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
