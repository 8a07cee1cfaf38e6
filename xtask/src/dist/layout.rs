//! The files of all packages: where they come from, and where they go.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::{Compression, GzBuilder};

use super::{Release, read};
use crate::root;

/// A file of a package, or a folder if the path ends in `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackagedFile {
    /// Path below the root folder, without a leading `/`.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// User and group; 0 in packages.
    pub owner: u32,
    /// Content.
    pub bytes: Vec<u8>,
}

/// Files of the project, by their place in a package.
pub const FILES: [(&str, &str); 17] = [
    ("dist/lunar.service", "usr/lib/systemd/system/lunar.service"),
    ("dist/lunar-attach@.service", "usr/lib/systemd/system/lunar-attach@.service"),
    ("dist/lunar-target@.service", "usr/lib/systemd/system/lunar-target@.service"),
    ("dist/ocf/lunar-target", AGENT),
    ("dist/drbd-reactor/lunar.toml", "usr/share/doc/lunar/examples/drbd-reactor.toml"),
    ("dist/sysusers.d/lunar.conf", "usr/lib/sysusers.d/lunar.conf"),
    ("dist/firewalld/lunar.xml", "usr/lib/firewalld/services/lunar.xml"),
    ("dist/grafana/lunar.json", "usr/share/lunar/grafana/lunar.json"),
    ("dist/prometheus/lunar.rules.yml", "usr/share/lunar/prometheus/lunar.rules.yml"),
    ("dist/lunar-devices.conf", "usr/share/doc/lunar/examples/lunar-devices.conf"),
    ("docs/lunar.example.toml", "usr/share/doc/lunar/examples/lunar.example.toml"),
    ("docs/router.example.toml", "usr/share/doc/lunar/examples/router.example.toml"),
    ("dist/debian/copyright", "usr/share/doc/lunar/copyright"),
    ("LICENSE-MIT", "usr/share/doc/lunar/LICENSE-MIT"),
    ("LICENSE-APACHE", "usr/share/doc/lunar/LICENSE-APACHE"),
    ("README.md", "usr/share/doc/lunar/README.md"),
    ("docs/install.md", "usr/share/doc/lunar/install.md"),
];

/// Completion scripts, by shell. Debian and Fedora have different folders for zsh; both are in the package of each.
pub const COMPLETIONS: [(&str, &str); 4] = [
    ("bash", "usr/share/bash-completion/completions/lunar"),
    ("zsh", "usr/share/zsh/vendor-completions/_lunar"),
    ("zsh", "usr/share/zsh/site-functions/_lunar"),
    ("fish", "usr/share/fish/vendor_completions.d/lunar.fish"),
];

pub const PROGRAM: &str = "usr/bin/lunar";
/// The resource agent.
const AGENT: &str = "usr/lib/ocf/resource.d/lunar/lunar-target";
const MAN: &str = "usr/share/man/man1/";
const CHANGELOG: &str = "usr/share/doc/lunar/changelog.gz";

/// Writes all files below `stage`, from which the tools for packages take them. Returns them in the order of their paths.
pub fn stage(binary: &Path, stage: &Path, release: &Release) -> Result<Vec<PackagedFile>> {
    if stage.exists() {
        fs::remove_dir_all(stage)?;
    }
    fs::create_dir_all(stage)?;
    let mut files =
        vec![PackagedFile { path: PROGRAM.into(), mode: 0o755, owner: 0, bytes: stripped(binary, stage)? }];
    for (source, path) in FILES {
        files.push(plain(path, read(&root::path().join(source))?));
    }
    files.push(plain(CHANGELOG, gzip(&read(&root::path().join("CHANGELOG.md"))?, Compression::best())?));
    for (shell, path) in COMPLETIONS {
        files.push(plain(path, output(binary, &["completions", shell])?));
    }
    let pages = stage.join("pages");
    output(binary, &["man", "--folder", &pages.display().to_string()])?;
    for page in fs::read_dir(&pages)? {
        let page = page?;
        let name = page.file_name().to_string_lossy().into_owned();
        files.push(plain(&format!("{MAN}{name}.gz"), gzip(&read(&page.path())?, Compression::best())?));
    }
    fs::remove_dir_all(&pages)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    for file in &files {
        write(stage, file, release)?;
    }
    Ok(files)
}

/// The permission bits of a file.
pub fn mode(path: &str) -> u32 {
    if [PROGRAM, AGENT].contains(&path) { 0o755 } else { 0o644 }
}

fn plain(path: &str, bytes: Vec<u8>) -> PackagedFile {
    PackagedFile { path: path.into(), mode: mode(path), owner: 0, bytes }
}

fn write(stage: &Path, file: &PackagedFile, release: &Release) -> Result<()> {
    let path = stage.join(&file.path);
    fs::create_dir_all(path.parent().context("a folder")?)?;
    fs::write(&path, &file.bytes)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))?;
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(release.time);
    fs::File::options().write(true).open(&path)?.set_modified(time)?;
    Ok(())
}

/// The program without symbols: with them it is five times as large.
fn stripped(binary: &Path, stage: &Path) -> Result<Vec<u8>> {
    let small: PathBuf = stage.join("lunar.stripped");
    let status = Command::new("strip").arg("-o").arg(&small).arg(binary).status();
    ensure!(
        status.context("cannot run strip; install binutils")?.success(),
        "strip rejects {}",
        binary.display()
    );
    let bytes = read(&small)?;
    fs::remove_file(small)?;
    Ok(bytes)
}

/// Compresses, without time and name.
pub fn gzip(bytes: &[u8], compression: Compression) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), compression);
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// The stdout of the packaged program.
fn output(binary: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(binary).args(arguments).output();
    let output = output.with_context(|| format!("cannot run {}", binary.display()))?;
    ensure!(
        output.status.success(),
        "lunar {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_packaged_file_exists() {
        for (source, path) in FILES {
            assert!(root::path().join(source).is_file(), "{source}");
            assert!(!path.starts_with('/') && !path.starts_with("etc"), "{path}");
        }
    }

    #[test]
    fn compressed_file_has_no_time_and_no_name() {
        let bytes = gzip(b"text", Compression::best()).expect("compressed");
        assert_eq!(bytes[3] & 0x1c, 0, "no name, no comment, no extra field");
        assert_eq!(bytes[4..8], [0; 4], "no time");
    }

    #[test]
    fn units_start_the_packaged_program() {
        for unit in ["dist/lunar.service", "dist/lunar-attach@.service", "dist/lunar-target@.service"] {
            let text = fs::read_to_string(root::path().join(unit)).expect(unit);
            let commands = text.lines().filter_map(|line| line.strip_prefix("Exec"));
            assert!(commands.clone().count() > 0);
            for command in commands {
                let (_, program) = command.split_once('=').expect(unit);
                // Systemd ignores the failure of a program with `-`.
                let program = program.strip_prefix('-').unwrap_or(program);
                assert!(program.starts_with(&format!("/{PROGRAM} ")), "{unit}: {command}");
            }
        }
    }
}
