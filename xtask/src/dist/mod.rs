//! `cargo xtask dist`: packages, an image, a tarball, a list of components, and checksums of one build.

mod archive;
mod image;
mod layout;
mod packages;
mod rpm_check;
mod sizes;
mod tools;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use flate2::Compression;

use crate::root::{self, Profile, StepResult};

/// Options of `cargo xtask dist`.
#[derive(Debug, Args)]
pub struct Options {
    /// Package this program instead of a release build
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Folder of the results [default: target/dist]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the sizes as JSON
    #[arg(long)]
    json: bool,
    /// Compress less
    #[arg(long)]
    fast: bool,
}

/// A release: its version, and the time of all files in it.
#[derive(Clone, Debug)]
struct Release {
    version: String,
    /// Seconds since 1970
    time: u64,
    out: PathBuf,
    /// Compress less: for tests
    fast: bool,
}

impl Release {
    /// The compression of archives.
    fn compression(&self) -> Compression {
        if self.fast { Compression::fast() } else { Compression::best() }
    }

    /// The path of a result.
    fn path(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }
}

/// Packages a program as a test, and checks the packages for Debian and RPM. Installs the tools; without them, there is no test.
pub fn check(binary: &Path) -> Result<StepResult> {
    if let Err(error) = tools::install_missing() {
        return Ok(StepResult::Skipped(format!("{error:#}")));
    }
    let out = test_folder();
    run(&Options { binary: Some(binary.to_path_buf()), out: Some(out.clone()), json: false, fast: true })?;
    let package = packages::find(&out, "deb")?;
    let results = [packages::lint(&package)?, rpm_check::check(&packages::find(&out, "rpm")?, &version()?)?];
    // The package is installed, upgraded under I/O and removed.
    let mut test = root::command("cargo");
    test.args([
        "test",
        "--quiet",
        "--package",
        "interop",
        "--test",
        "systemd",
        "--",
        "--nocapture",
        "package_",
    ]);
    let status = test.env("LUNAR_DEB", &package).status().context("cannot run cargo test")?;
    ensure!(status.success(), "the test of the package failed");
    // The step `lab` installs the package too.
    let others = fs::read_dir(&out)?.flatten().map(|entry| entry.path()).filter(|path| *path != package);
    others.for_each(|path| drop(fs::remove_file(path)));
    let is_skipped = |result: &StepResult| matches!(result, StepResult::Skipped(_));
    Ok(results.into_iter().find(is_skipped).unwrap_or(StepResult::Ok))
}

/// The results of [`check`].
fn test_folder() -> PathBuf {
    root::target_dir().join("dist-test")
}

/// The Debian package that [`check`] has made of this program, unless the program is newer.
pub fn checked_package(binary: &Path) -> Option<PathBuf> {
    let package = packages::find(&test_folder(), "deb").ok()?;
    let time = |path: &Path| fs::metadata(path)?.modified();
    (time(&package).ok()? > time(binary).ok()?).then_some(package)
}

/// Makes everything, and prints the sizes.
pub fn run(options: &Options) -> Result<StepResult> {
    let out = options.out.clone().unwrap_or_else(|| root::target_dir().join("dist"));
    let out = std::path::absolute(out)?;
    // Old results would get into the list of checksums.
    match fs::remove_dir_all(&out) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).context(out.display().to_string());
        }
        _ => fs::create_dir_all(&out)?,
    }
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => root::lunar(Profile::Release)?,
    };
    let release = Release { version: version()?, time: time()?, out, fast: options.fast };
    let stage = root::target_dir().join("dist-stage");
    let files = layout::stage(&binary, &stage, &release)?;
    let name = format!("lunar-{}-{}-linux", release.version, std::env::consts::ARCH);
    let tarball = release.path(&format!("{name}.tar.gz"));
    archive::tarball(&files, &name, &tarball, &release)?;
    image::write(&tarball, &release.path(&format!("{name}.oci.tar")), &release)?;
    let manifest = packages::manifest(&release, &stage, &files)?;
    packages::deb(&release, &manifest)?;
    packages::rpm(&release, &manifest)?;
    packages::components(&release)?;
    let sums = sizes::checksums(&release.out)?;
    fs::write(release.path("SHA256SUMS"), &sums.text)?;
    println!("{}", if options.json { sums.json()? } else { sums.table() });
    Ok(StepResult::Ok)
}

/// The version of the workspace.
fn version() -> Result<String> {
    let manifest: toml::Table = fs::read_to_string(root::path().join("Cargo.toml"))?.parse()?;
    let version = manifest["workspace"]["package"]["version"].as_str();
    version.map(str::to_owned).context("the workspace has no version")
}

/// SOURCE_DATE_EPOCH, or the time of the last commit: the time of a build would change every byte of the results.
fn time() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text.parse().with_context(|| format!("SOURCE_DATE_EPOCH: no number of seconds: {text}"));
    }
    let output =
        root::command("git").args(["log", "-1", "--format=%ct"]).output().context("cannot run git")?;
    ensure!(output.status.success(), "git log: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().context("git log: no time")
}

/// The time with which tools make the same bytes again.
fn epoch(command: &mut std::process::Command, time: u64) {
    command.env("SOURCE_DATE_EPOCH", time.to_string());
}

/// Reads a file of the project.
fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
