//! Tools from the registry, with pinned versions, in a cache of the user: a clean checkout does not build them again.

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

/// Settings for a quick build of the tools: they run for seconds.
const QUICK_BUILD: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
];

/// Installs all that are missing.
pub fn install_missing() -> Result<()> {
    ALL.iter().filter(|tool| !tool.is_installed()).try_for_each(PinnedTool::install)
}

impl PinnedTool {
    /// `$XDG_CACHE_HOME/lunar-xtask`, `~/.cache/lunar-xtask` or `target/tools`.
    fn folder() -> PathBuf {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        cache.map_or_else(|| root::target_dir().join("tools"), |cache| cache.join("lunar-xtask"))
    }

    /// A command that runs the tool in the root folder. The tool is installed first if it is missing or has another
    /// version.
    pub fn command(&self) -> Result<Command> {
        if !self.is_installed() {
            self.install()?;
        }
        Ok(root::command(&PinnedTool::folder().join("bin").join(self.name).display().to_string()))
    }

    fn install(&self) -> Result<()> {
        let spec = format!("{}@{}", self.name, self.version);
        let folder = PinnedTool::folder().display().to_string();
        let arguments = ["install", "--locked", "--quiet", "--root", &folder, &spec];
        eprintln!("installing {spec} in {folder}");
        let mut cargo = root::command("cargo");
        // One folder, so that what the tools share is built once.
        cargo
            .args(arguments)
            .envs(QUICK_BUILD)
            .env("CARGO_TARGET_DIR", root::target_dir().join("tools/build"));
        let status = cargo.status().context("cannot run cargo")?;
        ensure!(status.success(), "{spec} is missing; install it: cargo {}", arguments.join(" "));
        Ok(())
    }

    /// Whether cargo has installed this version.
    pub fn is_installed(&self) -> bool {
        let list = std::fs::read_to_string(PinnedTool::folder().join(".crates.toml")).unwrap_or_default();
        let is_there = PinnedTool::folder().join("bin").join(self.name).exists();
        is_there && list.contains(&format!("\"{} {} (", self.name, self.version))
    }
}
