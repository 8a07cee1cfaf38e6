//! The project's folders, and the result of a step.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The project's root folder.
pub fn path() -> PathBuf {
    let xtask = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask lies in the project's root").to_path_buf()
}

/// The build folder of cargo.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| path().join("target"), |dir| path().join(dir))
}

/// A command that runs in the root folder.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(path());
    command
}

/// Runs a command with visible output; fails if the command fails.
pub fn must(program: &str, arguments: &[&str]) -> Result<()> {
    let status =
        command(program).args(arguments).status().with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{program} {}: {status}", arguments.join(" "));
    Ok(())
}

/// A build profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The profile of tests, so that dependencies are compiled once
    Test,
    /// The profile of users: for benchmarks and campaigns
    Release,
}

impl Profile {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Profile::Test => &[],
            Profile::Release => &["--release"],
        }
    }

    fn folder(self) -> PathBuf {
        target_dir().join(match self {
            Profile::Test => "debug",
            Profile::Release => "release",
        })
    }
}

/// Builds a release binary and returns its path.
pub fn build(package: &str, binary: &str) -> Result<PathBuf> {
    must("cargo", &["build", "--release", "--quiet", "--package", package, "--bin", binary])?;
    Ok(Profile::Release.folder().join(binary))
}

/// Builds examples (package and name), and returns their folder. They are built together with `lunar`: alone,
/// they would select other features of shared crates, which would be built twice.
pub fn build_examples(profile: Profile, examples: &[(&str, &str)]) -> Result<PathBuf> {
    let wanted = examples.iter().flat_map(|(package, name)| ["--package", package, "--example", name]);
    let lunar = ["--quiet", "--package", "lunar", "--bin", "lunar"];
    let all: Vec<&str> =
        ["build"].iter().chain(profile.flags()).copied().chain(lunar).chain(wanted).collect();
    must("cargo", &all)?;
    Ok(profile.folder().join("examples"))
}

/// The program under test: `$LUNAR_BIN`, or a build with this profile.
pub fn lunar(profile: Profile) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("LUNAR_BIN") {
        return Ok(path.into());
    }
    build_examples(profile, &[])?;
    Ok(profile.folder().join("lunar"))
}

/// The path of the program under test, which was built before: `$LUNAR_BIN`, or the one with this profile.
pub fn lunar_path(profile: Profile) -> PathBuf {
    std::env::var_os("LUNAR_BIN").map_or_else(|| profile.folder().join("lunar"), PathBuf::from)
}

/// Whether a program is on the PATH, or a file at its absolute path.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub enum StepResult {
    /// It succeeded
    Ok,
    /// It failed, with the reason
    Failed(String),
    /// It could not run, with the reason
    Skipped(String),
}
