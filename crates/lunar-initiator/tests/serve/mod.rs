//! The server for tests that use the library as applications do.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A server with one LUN in memory, and its URL.
pub struct Server {
    child: Child,
    pub url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the server on a port of its own.
pub fn server() -> Server {
    let mut command = Command::new(interop::lunar_bin());
    command.args(["serve", "memory:64M", "--listen", "127.0.0.1:0"]);
    command.env("LUNAR_RUN_DIR", std::env::temp_dir().join(format!("lunar-{}", std::process::id())));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("lunar starts");
    let lines =
        BufReader::new(child.stdout.take().expect("a piped standard output")).lines().map_while(Result::ok);
    let lines: Vec<String> = lines.take_while(|line| line != "ready").collect();
    let url =
        lines.iter().find_map(|line| line.trim().strip_prefix("iscsi://").map(|_| line.trim().to_owned()));
    Server { child, url: url.unwrap_or_else(|| panic!("no URL in {lines:?}")) }
}
