//! Installs the RPM package below a scratch folder with the real `rpm`: with its scriptlets, which run there in a root
//! of their own. Then it is upgraded and removed.

use std::fs::{self, Metadata};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::layout::{FILES, PROGRAM, mode};
use crate::root::{self, StepResult};

/// Programs of the scratch root.
const BUSYBOX: &str = "/bin/busybox";
/// Users of the scratch root: `getent` and `useradd`, as the scriptlets call them.
const PROGRAMS: [(&str, &str); 2] = [
    ("usr/bin/getent", "#!/bin/sh\ngrep \"^$2:\" /etc/$1\n"),
    (
        "usr/sbin/useradd",
        "#!/bin/sh\necho lunar:x:77:77::/var/lib/lunar:/sbin/nologin >>/etc/passwd\necho lunar:x:77: >>/etc/group\n",
    ),
];
/// The user that `useradd` makes.
const LUNAR: u32 = 77;
/// Folders of the scriptlets: mode, user, group.
const FOLDERS: [(&str, u32, u32, u32); 4] = [
    ("etc/lunar", 0o750, 0, LUNAR),
    ("etc/lunar/lunar.d", 0o750, 0, LUNAR),
    ("etc/lunar/lunar.d/api", 0o700, LUNAR, LUNAR),
    ("var/lib/lunar", 0o750, LUNAR, LUNAR),
];
/// Scriptlets, by their tags.
const SCRIPTLETS: [&str; 4] = ["PREIN", "POSTIN", "PREUN", "POSTUN"];
/// The file of the administrator.
const CONFIGURATION: &str = "etc/lunar/lunar.toml";

/// Installs, verifies, upgrades and removes a package. `version`: that of the program.
pub fn check(package: &Path, version: &str) -> Result<StepResult> {
    if let Some(missing) = missing() {
        return Ok(StepResult::Skipped(missing.into()));
    }
    SCRIPTLETS.iter().try_for_each(|tag| scriptlet(package, tag))?;
    let scratch = Scratch::new()?;
    let package = package.display().to_string();
    scratch.rpm(&["--initdb"])?;
    scratch.rpm(&["--install", "--nodeps", &package])?;
    scratch.verify(version)?;
    fs::write(scratch.0.join(CONFIGURATION), "# of the administrator\n")?;
    scratch.rpm(&["--upgrade", "--nodeps", "--replacepkgs", &package])?;
    scratch.verify(version)?;
    scratch.rpm(&["--erase", "lunar"])?;
    scratch.is_clean()?;
    fs::remove_dir_all(&scratch.0)?;
    Ok(StepResult::Ok)
}

fn missing() -> Option<&'static str> {
    if !root::is_installed("rpm") {
        return Some("needs rpm (apt-get install rpm)");
    }
    if !Path::new(BUSYBOX).exists() {
        return Some("needs busybox (apt-get install busybox-static)");
    }
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    (!is_root).then_some("needs root, because rpm changes the root folder for scriptlets")
}

/// Checks that the package has a scriptlet, and its syntax.
fn scriptlet(package: &Path, tag: &str) -> Result<()> {
    let format = format!("%{{{tag}}}");
    let query =
        Command::new("rpm").args(["--query", "--package", "--queryformat", &format]).arg(package).output();
    let text = query.context("cannot run rpm")?.stdout;
    ensure!(!text.is_empty() && text != b"(none)", "the package has no scriptlet {tag}");
    let mut shell = Command::new("sh").arg("-n").stdin(Stdio::piped()).spawn().context("cannot run sh")?;
    shell.stdin.take().context("a pipe")?.write_all(&text)?;
    ensure!(shell.wait()?.success(), "the scriptlet {tag} has a syntax error");
    Ok(())
}

/// The scratch root.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch> {
        let folder = root::target_dir().join("rpm-root");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        for below in ["bin", "dev", "etc", "usr/bin", "usr/sbin", "var/lib"] {
            fs::create_dir_all(folder.join(below))?;
        }
        fs::copy(BUSYBOX, folder.join("bin/busybox")).context("busybox")?;
        for program in ["sh", "mkdir", "rmdir", "chgrp", "chown", "grep"] {
            symlink("busybox", folder.join("bin").join(program))?;
        }
        for (path, text) in PROGRAMS {
            fs::write(folder.join(path), text)?;
            fs::set_permissions(folder.join(path), fs::Permissions::from_mode(0o755))?;
        }
        // A file takes what scriptlets throw away.
        fs::write(folder.join("dev/null"), "")?;
        for file in ["passwd", "group"] {
            fs::write(folder.join("etc").join(file), "root:x:0:0::/root:/bin/sh\n")?;
        }
        Ok(Scratch(folder))
    }

    fn rpm(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("rpm").arg("--root").arg(&self.0).args(arguments).output();
        let output = output.context("cannot run rpm")?;
        let said = String::from_utf8_lossy(&output.stderr);
        // A scriptlet that fails is a warning for some actions.
        let is_good = output.status.success() && !said.contains("scriptlet failed");
        ensure!(is_good, "rpm {}: {}: {said}", arguments.join(" "), output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Verifies the installed files, the folders of the scriptlets, and that the program runs.
    fn verify(&self, version: &str) -> Result<()> {
        let changed = self.rpm(&["--verify", "--nodeps", "lunar"])?;
        ensure!(changed.is_empty(), "rpm --verify: {changed}");
        for path in FILES.iter().map(|(_, path)| *path).chain([PROGRAM]) {
            self.has(path, (mode(path), 0, 0))?;
        }
        for (path, mode, user, group) in FOLDERS {
            self.has(path, (mode, user, group))?;
        }
        let program = Command::new(self.0.join(PROGRAM)).arg("--version").output();
        let said = String::from_utf8_lossy(&program.context("cannot run the program")?.stdout).into_owned();
        ensure!(said.contains(version), "the installed program is of another version: {said}");
        Ok(())
    }

    fn has(&self, path: &str, expected: (u32, u32, u32)) -> Result<()> {
        let found = fs::metadata(self.0.join(path)).with_context(|| format!("/{path} is not installed"))?;
        let facts = |of: &Metadata| (of.mode() & 0o7777, of.uid(), of.gid());
        let (mode, user, group) = facts(&found);
        ensure!(
            facts(&found) == expected,
            "/{path} has the mode {mode:o}, the user {user} and the group {group}"
        );
        Ok(())
    }

    /// Checks that only the configuration and the folders of the scriptlets are left.
    fn is_clean(&self) -> Result<()> {
        ensure!(self.0.join(CONFIGURATION).exists(), "the removal took the configuration");
        let mut left = Vec::new();
        named(&self.0, &mut left)?;
        let kept = |path: &Path| {
            let folders = FOLDERS.iter().map(|(folder, ..)| *folder).chain([CONFIGURATION]);
            folders.into_iter().any(|kept| path == self.0.join(kept))
        };
        left.retain(|path| !kept(path));
        match left.first() {
            None => Ok(()),
            Some(path) => bail!("the removal left {}", path.display()),
        }
    }
}

/// Files and folders with the name of the program.
fn named(folder: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().contains("lunar")) {
            into.push(path.clone());
        }
        if path.is_dir() && !path.is_symlink() {
            named(&path, into)?;
        }
    }
    Ok(())
}
