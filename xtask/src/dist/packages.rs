//! Packages for Debian and RPM, and the list of components. The tools read their settings from a manifest of Cargo. It
//! is made here from `dist/package.toml` and the list of files, so that no list exists twice.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use toml::{Table, Value};

use super::layout::{self, PackagedFile};
use super::{Release, epoch, tools};
use crate::root::{self, StepResult};

/// Tags of lintian that do not apply: this is no upload to Debian, so no bug asked for it.
const IGNORED: [&str; 1] = ["initial-upload-closes-no-bugs"];
/// The Debian revision: the first package of a version.
const REVISION: &str = "1";

/// The Debian package of the manifest in `folder`.
pub fn deb(release: &Release, folder: &Path) -> Result<()> {
    let mut command = tools::DEB.command()?;
    epoch(&mut command, release.time);
    command.args(["--no-build", "--no-strip", "--quiet", "--deb-revision", REVISION, "--manifest-path"]);
    command.arg(folder.join("Cargo.toml")).arg("--output").arg(&release.out);
    command.args(release.fast.then_some("--fast"));
    // Only the sizes belong on stdout.
    let status = command.stdout(std::io::stderr()).status().context("cannot run cargo-deb")?;
    ensure!(status.success(), "cargo-deb: {status}");
    Ok(())
}

/// The RPM package of the manifest in `folder`.
pub fn rpm(release: &Release, folder: &Path) -> Result<()> {
    let mut command = tools::RPM.command()?;
    epoch(&mut command, release.time);
    let compression = if release.fast { "gzip" } else { "zstd" };
    command.args(["--payload-compress", compression]).arg("--output").arg(&release.out);
    let status = command.current_dir(folder).status();
    let status = status.context("cannot run cargo-generate-rpm")?;
    ensure!(status.success(), "cargo-generate-rpm: {status}");
    Ok(())
}

/// The list of components in the format CycloneDX.
pub fn components(release: &Release) -> Result<()> {
    let mut command = tools::CYCLONEDX.command()?;
    epoch(&mut command, release.time);
    let name = format!("lunar-{}.cdx", release.version);
    let manifest = root::path().join("crates/lunar/Cargo.toml");
    command.args([
        "cyclonedx",
        "--quiet",
        "--format",
        "json",
        "--no-build-deps",
        "--override-filename",
        &name,
    ]);
    command.arg("--manifest-path").arg(&manifest);
    let status = command.status().context("cannot run cargo-cyclonedx")?;
    ensure!(status.success(), "cargo-cyclonedx: {status}");
    // It writes beside the manifest of each crate of the workspace.
    let file = format!("{name}.json");
    let result = manifest.with_file_name(&file);
    let text = fs::read_to_string(&result).with_context(|| format!("no {}", result.display()))?;
    fs::write(release.path(&file), without_folder(&text, &root::path()))?;
    for folder in ["crates", "."] {
        for entry in fs::read_dir(root::path().join(folder))? {
            // Most folders have none.
            let _ = fs::remove_file(entry?.path().join(&file));
        }
    }
    Ok(())
}

/// References to crates of the workspace have the folder of the build.
fn without_folder(text: &str, folder: &Path) -> String {
    text.replace(&format!("file://{}", folder.display()), "file://")
}

/// The package in a folder: its file has this extension.
pub fn find(folder: &Path, extension: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ext| ext == extension) {
            return Ok(path);
        }
    }
    bail!("no .{extension} package in {}", folder.display())
}

/// Runs lintian on a Debian package.
pub fn lint(package: &Path) -> Result<StepResult> {
    if !root::is_installed("lintian") {
        return Ok(StepResult::Skipped("needs lintian (apt-get install lintian)".into()));
    }
    let mut command = root::command("lintian");
    command.args(["--fail-on", "error,warning", "--suppress-tags", &IGNORED.join(",")]);
    let status = command.arg(package).status().context("cannot run lintian")?;
    ensure!(status.success(), "lintian: {status}");
    Ok(StepResult::Ok)
}

/// Writes the manifest of the files below `stage`, and returns its folder.
pub fn manifest(release: &Release, stage: &Path, files: &[PackagedFile]) -> Result<PathBuf> {
    let folder = stage.join("package");
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/main.rs"), "fn main() {}\n")?;
    let changelog = folder.join("changelog");
    fs::write(&changelog, debian_changelog(release)?)?;
    let files: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
    let text = fs::read_to_string(root::path().join("dist/package.toml"))?;
    let mut table: Table = text.parse()?;
    fill(&mut table, &release.version, &stage.display().to_string(), &files)?;
    let deb = metadata(&mut table, "deb")?;
    deb.insert("changelog".into(), changelog.display().to_string().into());
    let scripts = root::path().join("dist/debian");
    deb.insert("maintainer-scripts".into(), scripts.display().to_string().into());
    deb.insert(
        "license-file".into(),
        Value::Array(vec![scripts.join("copyright").display().to_string().into(), "0".into()]),
    );
    fs::write(folder.join("Cargo.toml"), toml::to_string(&table)?)?;
    Ok(folder)
}

/// Adds the version and the files to the manifest of `dist/package.toml`.
fn fill(table: &mut Table, version: &str, stage: &str, files: &[String]) -> Result<()> {
    table["package"].as_table_mut().context("no [package]")?.insert("version".into(), version.into());
    let mode = |path: &str| format!("{:o}", layout::mode(path));
    let of_deb = |path: &String| {
        Value::Array(vec![format!("{stage}/{path}").into(), path.as_str().into(), mode(path).into()])
    };
    // cargo-deb makes the copyright file itself.
    let debian = files.iter().filter(|path| !path.ends_with("/copyright") && !path.contains("/LICENSE-"));
    let assets = debian.filter(|path| !path.contains("site-functions")).map(of_deb).collect();
    metadata(table, "deb")?.insert("assets".into(), Value::Array(assets));
    let of_rpm = |path: &String| {
        let mut asset = Table::new();
        asset.insert("source".into(), format!("{stage}/{path}").into());
        asset.insert("dest".into(), format!("/{path}").into());
        asset.insert("mode".into(), mode(path).into());
        asset.insert("doc".into(), path.starts_with("usr/share/doc/").into());
        Value::Table(asset)
    };
    let rpm = files.iter().filter(|path| !path.contains("vendor-completions/_"));
    let assets = rpm.map(of_rpm).collect();
    metadata(table, "generate-rpm")?.insert("assets".into(), Value::Array(assets));
    Ok(())
}

fn metadata<'a>(table: &'a mut Table, tool: &str) -> Result<&'a mut Table> {
    let found = table.get_mut("package").and_then(|package| package.get_mut("metadata"));
    found.and_then(|all| all.get_mut(tool)?.as_table_mut()).with_context(|| format!("no metadata of {tool}"))
}

/// The changelog of the package. The one of the program is beside it.
fn debian_changelog(release: &Release) -> Result<String> {
    let time = format!("@{}", release.time);
    let date = root::command("date").args(["--utc", "--rfc-email", "--date", &time]).output();
    let date = String::from_utf8(date.context("cannot run date")?.stdout)?;
    let version = &release.version;
    Ok(format!(
        "lunar ({version}-{REVISION}) unstable; urgency=medium\n\n  * Release {version}: see changelog.gz.\n\n \
         -- {}  {}\n",
        MAINTAINER,
        date.trim()
    ))
}

const MAINTAINER: &str = "Seed f4e65a3a maintainers <maintainers@users.noreply.a-seed-f4e65a3a.example>";

#[cfg(test)]
mod tests {
    use super::super::layout::{COMPLETIONS, FILES, PROGRAM};
    use super::*;

    #[test]
    fn packages_have_all_files_with_their_modes() {
        let text = fs::read_to_string(root::path().join("dist/package.toml")).expect("the file");
        let mut table: Table = text.parse().expect("TOML");
        let files: Vec<String> = [PROGRAM]
            .into_iter()
            .chain(FILES.map(|(_, path)| path))
            .chain(COMPLETIONS.map(|(_, path)| path))
            .map(str::to_owned)
            .collect();
        fill(&mut table, "1.2.3", "/stage", &files).expect("filled");
        assert_eq!(table["package"]["version"].as_str(), Some("1.2.3"));
        let metadata = &table["package"]["metadata"];
        let deb: Vec<(&str, &str)> = metadata["deb"]["assets"]
            .as_array()
            .expect("assets")
            .iter()
            .map(|asset| (asset[1].as_str().unwrap(), asset[2].as_str().unwrap()))
            .collect();
        assert!(deb.contains(&("usr/bin/lunar", "755")), "{deb:?}");
        assert!(deb.contains(&("usr/lib/ocf/resource.d/lunar/lunar-target", "755")), "{deb:?}");
        assert!(deb.contains(&("usr/lib/systemd/system/lunar.service", "644")), "{deb:?}");
        // The copyright file and the two licences become one file, and zsh has one folder.
        assert_eq!(deb.len(), files.len() - 4);
        let rpm = metadata["generate-rpm"]["assets"].as_array().expect("assets");
        assert_eq!(rpm.len(), files.len() - 1);
        let program = rpm.iter().find(|asset| asset["dest"].as_str() == Some("/usr/bin/lunar")).expect("it");
        assert_eq!((program["mode"].as_str(), program["doc"].as_bool()), (Some("755"), Some(false)));
        assert_eq!(metadata["deb"]["maintainer"].as_str(), Some(MAINTAINER));
    }

    #[test]
    fn list_of_components_does_not_name_the_folder_of_the_build() {
        let text = without_folder("path+file:///build/lunar/crates/lunar#1", Path::new("/build/lunar"));
        assert_eq!(text, "path+file:///crates/lunar#1");
    }

    #[test]
    fn maintainer_scripts_are_shell_without_errors() {
        for script in ["postinst", "prerm", "postrm"] {
            let path = root::path().join("dist/debian").join(script);
            let status = root::command("/bin/sh").arg("-n").arg(&path).status().expect("a shell");
            assert!(status.success(), "{script}");
            let text = fs::read_to_string(path).expect("the script");
            assert!(text.starts_with("#!/bin/sh\nset -e\n"), "{script}");
        }
    }
}
