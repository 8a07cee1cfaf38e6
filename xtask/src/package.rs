//! `cargo xtask package`: checks the crates that may be published, as users get them. Packages them without a
//! network, and unpacks them outside the workspace. There it builds and runs a program that uses the library. Then it
//! checks the documentation of all of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::root::{self, StepResult};

/// The program that uses the library.
const PROGRAM: &str = include_str!("../package/main.rs");
const LIBRARY: &str = "lunar-initiator";

/// Runs all checks.
pub fn run() -> Result<StepResult> {
    let crates = publishable()?;
    ensure!(crates.iter().any(|(name, _)| name == LIBRARY), "{LIBRARY} may not be published");
    let outside = Outside::new()?;
    package(&crates)?;
    unpack(&crates, &outside.0)?;
    write_program(&crates, &outside.0)?;
    outside.cargo(&["run", "--quiet", "--offline"])?;
    outside.cargo(&["build", "--quiet", "--offline", "--features", "rdma"])?;
    document(&crates)?;
    Ok(StepResult::Ok)
}

/// Names and versions of the crates that may be published.
fn publishable() -> Result<Vec<(String, String)>> {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = root::command("cargo").args(arguments).output().context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let text = |package: &Value, key: &str| package[key].as_str().unwrap_or_default().to_owned();
    let published = packages.iter().filter(|package| package["publish"].is_null());
    Ok(published.map(|package| (text(package, "name"), text(package, "version"))).collect())
}

/// Creates the files that a registry would get.
fn package(crates: &[(String, String)]) -> Result<()> {
    let mut arguments = vec!["package", "--quiet", "--offline", "--no-verify", "--allow-dirty"];
    arguments.extend(crates.iter().flat_map(|(name, _)| ["--package", name.as_str()]));
    root::must("cargo", &arguments)
}

fn unpack(crates: &[(String, String)], folder: &Path) -> Result<()> {
    for (name, version) in crates {
        let packed = root::target_dir().join(format!("package/{name}-{version}.crate"));
        // `m` sets the current time. All packages contain the same old time, with which cargo would consider an
        // earlier build current.
        let status = Command::new("tar").arg("xzmf").arg(&packed).arg("-C").arg(folder).status();
        ensure!(status.context("cannot run tar")?.success(), "cannot unpack {}", packed.display());
        for licence in ["LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
            let file = folder.join(format!("{name}-{version}/{licence}"));
            ensure!(file.is_file(), "the package of {name} has no {licence}");
        }
    }
    Ok(())
}

/// Writes a package that uses the packaged crates instead of those of a registry. It has the profile and the versions
/// of the workspace, so that dependencies are not built again.
fn write_program(crates: &[(String, String)], folder: &Path) -> Result<()> {
    let patches: String = crates
        .iter()
        .map(|(name, version)| format!("{name} = {{ path = \"{name}-{version}\" }}\n"))
        .collect();
    let (_, version) = crates.iter().find(|(name, _)| name == LIBRARY).context("no library")?;
    let workspace: toml::Table = fs::read_to_string(root::path().join("Cargo.toml"))?.parse()?;
    let profile =
        toml::to_string(&toml::Table::from_iter([("profile".into(), workspace["profile"].clone())]))?;
    let manifest = format!(
        "[package]\nname = \"outside\"\nedition = \"2024\"\n\n[features]\nrdma = [\"{LIBRARY}/rdma\"]\n\n\
         [dependencies]\n{LIBRARY} = \"{version}\"\n\n[patch.crates-io]\n{patches}\n{profile}",
    );
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join("src/main.rs"), PROGRAM)?;
    fs::copy(root::path().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    Ok(())
}

/// Checks that the documentation of each crate has no warnings. The step of unit tests runs its examples.
fn document(crates: &[(String, String)]) -> Result<()> {
    let mut doc = root::command("cargo");
    doc.args(["doc", "--quiet", "--offline", "--no-deps", "--all-features"]);
    doc.args(crates.iter().flat_map(|(name, _)| ["--package", name.as_str()]));
    let status = doc.env("RUSTDOCFLAGS", "--deny warnings").status().context("cannot run cargo doc")?;
    ensure!(status.success(), "the documentation of the published crates has warnings");
    Ok(())
}

/// A folder outside the workspace. It is removed on drop.
struct Outside(PathBuf);

impl Outside {
    fn new() -> Result<Outside> {
        let folder = std::env::temp_dir().join(format!("lunar-package-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Outside(folder))
    }

    /// Runs cargo there, with the build folder of the workspace.
    fn cargo(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("cargo");
        command.args(arguments).current_dir(&self.0).env("CARGO_TARGET_DIR", root::target_dir());
        let status = command.status().context("cannot run cargo")?;
        ensure!(status.success(), "cargo {} outside the workspace: {status}", arguments.join(" "));
        Ok(())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // It lies in the temporary folder of the system.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::project;

    #[test]
    fn packaged_crates_are_those_that_tidy_checks() {
        let files = project::read(&root::path()).expect("the files");
        let packaged = publishable().expect("cargo metadata").into_iter().map(|(name, _)| name);
        assert_eq!(
            packaged.collect::<std::collections::BTreeSet<_>>(),
            project::published(&files).into_iter().collect()
        );
    }
}
