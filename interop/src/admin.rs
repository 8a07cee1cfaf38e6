//! Commands of `lunar` that use the admin socket of a server.

use crate::script::lunar;
use crate::server::Server;
use crate::tool::ToolOutput;

impl Server {
    /// Runs `lunar WORDS` on its socket.
    pub fn asked(&self, words: &[&str]) -> ToolOutput {
        let socket = self.dir().join("admin.sock").display().to_string();
        lunar(&[words, &["--socket", &socket]].concat())
    }

    /// Runs `lunar WORDS`, which must succeed; its output.
    pub fn said(&self, words: &[&str]) -> String {
        let ran = self.asked(words);
        assert!(ran.ok(), "{words:?}: {}", ran.said);
        ran.said
    }
}
