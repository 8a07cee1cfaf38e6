//! Tools from the registry, with pinned versions, in target/tools.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::root;

/// A tool: its package, which is also the name of its program.
pub struct PinnedTool {
    pub name: &'static str,
    pub version: &'static str,
}

/// Makes Debian packages.
pub const DEB: PinnedTool = PinnedTool { name: "cargo-deb", version: "3.8.0" };
/// Makes RPM packages.
pub const RPM: PinnedTool = PinnedTool { name: "cargo-generate-rpm", version: "0.21.1" };
/// Lists components in the format CycloneDX.
pub const CYCLONEDX: PinnedTool = PinnedTool { name: "cargo-cyclonedx", version: "0.5.9" };

/// All of them.
pub const ALL: [PinnedTool; 3] = [DEB, RPM, CYCLONEDX];

impl PinnedTool {
    fn folder() -> PathBuf {
        root::target_dir().join("tools")
    }

    /// A command that runs the tool in the root folder. The tool is installed first if it is missing or has another
    /// version.
    pub fn command(&self) -> Result<Command> {
        let program = PinnedTool::folder().join("bin").join(self.name);
        if !self.is_installed() {
            let spec = format!("{}@{}", self.name, self.version);
            let folder = PinnedTool::folder().display().to_string();
            let arguments = ["install", "--locked", "--quiet", "--root", &folder, &spec];
            eprintln!("installing {spec} in {folder}");
            let status = root::command("cargo").args(arguments).status().context("cannot run cargo")?;
            ensure!(status.success(), "{spec} is missing; install it: cargo {}", arguments.join(" "));
        }
        Ok(root::command(&program.display().to_string()))
    }

    /// Whether cargo has installed this version.
    pub fn is_installed(&self) -> bool {
        let list = std::fs::read_to_string(PinnedTool::folder().join(".crates.toml")).unwrap_or_default();
        list.contains(&format!("\"{} {} (", self.name, self.version))
    }
}
