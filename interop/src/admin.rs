//! Commands of `lunar` that use the admin socket of a server.

use crate::script::lunar;
use crate::server::Server;
use crate::tool::ToolOutput;

impl Server {
    /// Runs `lunar WORDS` with the admin socket of this server.
    pub fn asked(&self, words: &[&str]) -> ToolOutput {
        let socket = self.dir().join("admin.sock").display().to_string();
        lunar(&[words, &["--socket", &socket]].concat())
    }

    /// Runs `lunar WORDS` with the admin socket of this server. The command must succeed. Returns the output.
    pub fn said(&self, words: &[&str]) -> String {
        let ran = self.asked(words);
        assert!(ran.ok(), "{words:?}: {}", ran.said);
        ran.said
    }
}
