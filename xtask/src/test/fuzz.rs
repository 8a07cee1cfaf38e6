//! Runs the fuzz targets of `fuzz/` for a short time, starting with their committed seeds.
//!
//! They are built like cargo-fuzz does, except for the address sanitizer, which needs a nightly compiler. The
//! code has hardly any `unsafe`, and panics, hangs and memory growth are found without it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};

use super::{StepReport, TestCounts};
use crate::root::{self, StepResult};

/// Options of libFuzzer for one target, except its time.
const LIMITS: [&str; 3] = ["-timeout=10", "-rss_limit_mb=2048", "-print_final_stats=1"];
/// Coverage counters, and the checks of a debug build.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks";

/// The time and number of fuzz targets.
#[derive(Clone, Copy, Debug)]
pub struct FuzzBudget {
    /// Seconds of each target
    pub seconds: u64,
    /// Run one in this many targets; the commit selects them
    pub part: usize,
    /// The optimization level: a lower one compiles faster and runs slower
    pub opt_level: &'static str,
}

/// The budget of each test run.
const IN_EVERY_RUN: FuzzBudget = FuzzBudget { seconds: 20, part: 4, opt_level: "0" };

/// Builds and runs a part of the targets, selected by the hash of the commit; `cargo xtask soak` runs all
/// targets.
pub fn run() -> Result<StepReport> {
    run_for(IN_EVERY_RUN)
}

/// Builds and runs targets.
pub fn run_for(extent: FuzzBudget) -> Result<StepReport> {
    let fuzz = root::path().join("fuzz");
    if !fuzz.join("Cargo.toml").exists() {
        return Ok(StepResult::Skipped("fuzz/Cargo.toml is missing".into()).into());
    }
    let all = targets(&std::fs::read_to_string(fuzz.join("Cargo.toml"))?)?;
    let targets = part_of(all, extent.part, commit());
    let built = build(&fuzz, &targets, extent.opt_level)?;
    let failed = run_all(&fuzz, &built, &targets, extent.seconds);
    let counts = TestCounts { passed: targets.len() - failed.len(), failed: failed.len(), skipped: 0 };
    let step = if failed.is_empty() { StepResult::Ok } else { StepResult::Failed(failed.join(", ")) };
    Ok(StepReport { step, counts, details: String::new(), flaky: Vec::new() })
}

/// Every `part`-th target, starting at the `turn`-th.
fn part_of(targets: Vec<String>, part: usize, turn: usize) -> Vec<String> {
    targets.into_iter().skip(turn % part).step_by(part).collect()
}

/// The first digits of the commit's hash as a number; 0 without a commit.
fn commit() -> usize {
    let output = root::command("git").args(["rev-parse", "HEAD"]).output();
    let hash = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    usize::from_str_radix(hash.get(..7).unwrap_or("0"), 16).unwrap_or(0)
}

/// Runs one target on each core; returns those that failed.
fn run_all(fuzz: &Path, built: &Path, targets: &[String], seconds: u64) -> Vec<String> {
    let (next, failed) = (Mutex::new(targets.iter()), Mutex::new(Vec::new()));
    let take = || next.lock().expect("no thread panics while it holds the lock").next();
    let work = || {
        while let Some(target) = take() {
            if let Err(error) = run_one(fuzz, built, target, seconds) {
                println!("fuzz {target}: {error:#}");
                failed.lock().expect("no thread panics while it holds the lock").push(target.clone());
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| (0..cores).for_each(|_| _ = scope.spawn(work)));
    failed.into_inner().expect("no thread panics while it holds the lock")
}

/// The names of the binaries in a manifest.
fn targets(manifest: &str) -> Result<Vec<String>> {
    let manifest: toml::Table = manifest.parse().context("fuzz/Cargo.toml")?;
    let bins =
        manifest.get("bin").and_then(|bins| bins.as_array()).context("no [[bin]] in fuzz/Cargo.toml")?;
    Ok(bins.iter().filter_map(|bin| Some(bin.get("name")?.as_str()?.to_string())).collect())
}

/// Builds targets; returns their folder. With `--target`, the flags do not apply to build scripts.
fn build(fuzz: &Path, targets: &[String], opt_level: &str) -> Result<PathBuf> {
    let version = root::command("rustc").arg("-vV").output()?;
    let version = String::from_utf8(version.stdout)?;
    let host =
        version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    let target_dir = root::target_dir().join("fuzz");
    let mut command = patient("cargo");
    command.args(["build", "--release", "--target", host, "--manifest-path"]).arg(fuzz.join("Cargo.toml"));
    command.args(targets.iter().flat_map(|target| ["--bin", target]));
    command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", opt_level);
    let status = command.env("CARGO_TARGET_DIR", &target_dir).env("RUSTFLAGS", FLAGS).status()?;
    ensure!(status.success(), "the fuzz targets do not build: {status}");
    Ok(target_dir.join(host).join("release"))
}

/// A command with low priority: tests that depend on the clock run in parallel.
fn patient(program: &str) -> Command {
    let mut command = root::command("nice");
    command.args(["-n", "19", program]);
    command
}

/// Runs a target. Its findings go to the build folder; its seeds are committed.
fn run_one(fuzz: &Path, built: &Path, target: &str, seconds: u64) -> Result<()> {
    let found = root::target_dir().join("fuzz/corpus").join(target);
    std::fs::create_dir_all(&found)?;
    let artifacts = root::target_dir().join("fuzz/artifacts").join(target);
    std::fs::create_dir_all(&artifacts)?;
    let mut command = patient(&built.join(target).display().to_string());
    command.args(LIMITS).arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/", artifacts.display())).arg(found);
    let seeds = ["seeds", "corpus"].map(|folder| fuzz.join(folder).join(target));
    command.args(seeds.iter().filter(|folder| folder.is_dir()));
    let output = command.output().with_context(|| format!("cannot run {target}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let runs = lines.iter().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    println!("fuzz {target}: {} runs", runs.map_or("no", str::trim));
    let end = lines[lines.len().saturating_sub(30)..].join("\n");
    ensure!(output.status.success(), "{}; the inputs are in {}\n{end}", output.status, artifacts.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_all_turns_cover_all_targets() {
        let all: Vec<String> = (0..17).map(|n| n.to_string()).collect();
        let mut parts: Vec<String> = (3..6).flat_map(|turn| part_of(all.clone(), 3, turn)).collect();
        parts.sort_by_key(|name| name.parse::<u32>().expect("a number"));
        assert_eq!(parts, all);
        assert_eq!(part_of(all.clone(), 1, 5), all);
    }

    #[test]
    fn targets_are_the_binaries_of_the_manifest() {
        let manifest = "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"framer\"\n[[bin]]\nname = \"text\"\n";
        assert_eq!(targets(manifest).expect("targets"), ["framer", "text"]);
        assert!(targets("[package]\nname = \"fuzz\"\n").is_err());
    }
}
