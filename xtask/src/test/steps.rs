//! The steps.

use anyhow::Result;

use super::disk::{self, Disk};
use super::{Report, cargo, fuzz, packages, uring};
use crate::root::{self, Step};

/// One step of `cargo xtask test`.
pub struct Row {
    /// What to call it on the command line
    pub name: &'static str,
    /// What it does
    pub what: &'static str,
    /// Part of `--quick`
    pub quick: bool,
    /// Part of every run, and nothing goes on without it
    pub always: bool,
    /// Goes on beside the steps behind it, with what they leave of the processor
    pub beside: bool,
    /// Does it
    pub run: fn() -> Result<Report>,
}

/// All steps in their order.
pub const STEPS: [Row; 8] = [
    Row { always: true, ..quick("packages", "programs of real peers", packages::install) },
    Row { always: true, ..quick("build", "the release build of lunar", build) },
    quick("units", "tests of every crate", units),
    quick("server", "raw PDUs against the running server", server),
    Row { beside: true, ..long("fuzz", "every fuzz target for a short while", fuzz::run) },
    quick("peers", "libiscsi, QEMU, STGT and istgt", peers),
    long("polling", "the server's tests without io_uring", polling),
    long("lab", "the Linux kernel in a guest", lab),
];

const fn quick(name: &'static str, what: &'static str, run: fn() -> Result<Report>) -> Row {
    Row { quick: true, ..long(name, what, run) }
}

const fn long(name: &'static str, what: &'static str, run: fn() -> Result<Report>) -> Row {
    Row { name, what, quick: false, always: false, beside: false, run }
}

/// Tests of `interop` that have steps of their own.
const OWN_STEPS: [&str; 2] = ["lab", "peers"];
/// Tests to which it is all the same how the server waits for its sockets and files.
const NOT_OF_THE_CORE: [&str; 9] = [
    "bench_faces",
    "commands",
    "docs",
    "initiator_hostile",
    "inspect",
    "log",
    "router_pair",
    "rows",
    "verify",
];

fn build() -> Result<Report> {
    root::lunar()?;
    Ok(Step::Ok.into())
}

fn units() -> Result<Report> {
    const SELECTION: [&str; 3] = ["--workspace", "--exclude", "interop"];
    if std::env::var_os(disk::VARIABLE).is_some() {
        return cargo::test(&SELECTION, &[]);
    }
    match Disk::attach()? {
        Ok(disk) => cargo::test_with(&[(disk::VARIABLE, disk.path().as_os_str())], &SELECTION, &[]),
        Err(why) => {
            println!("no disk for the test of block devices: {why}");
            cargo::test(&SELECTION, &[])
        }
    }
}

fn server() -> Result<Report> {
    against_the_server(&server_tests()?)
}

fn against_the_server(names: &[String]) -> Result<Report> {
    let mut selection = vec!["--package", "interop", "--lib"];
    selection.extend(names.iter().flat_map(|name| ["--test", name.as_str()]));
    cargo::test(&selection, &[])
}

/// The names of interop's tests but for those with steps of their own.
fn server_tests() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root::path().join("interop/tests"))? {
        let path = entry?.path();
        let is_test = path.extension().is_some_and(|ext| ext == "rs") || path.join("main.rs").exists();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if is_test && !OWN_STEPS.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn peers() -> Result<Report> {
    cargo::test(&["--package", "interop", "--test", "peers"], &[])
}

/// One guest at a time: an emulated machine fills two cores.
fn lab() -> Result<Report> {
    root::build_examples(&[("lunar-host", "ublk"), ("lunar-router", "sg"), ("lunar-rdma", "verbs_loop")])?;
    cargo::test(&["--package", "interop", "--test", "lab"], &["--test-threads=1"])
}

fn polling() -> Result<Report> {
    match uring::disable()? {
        Ok(_disabled) => {
            let mut names = server_tests()?;
            names.retain(|name| !NOT_OF_THE_CORE.contains(&name.as_str()));
            against_the_server(&names)
        }
        Err(why) => Ok(Step::Skipped(why).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_with_a_step_of_their_own_are_left_out_of_the_servers() {
        let names = server_tests().expect("interop/tests");
        assert!(names.contains(&"smoke".to_string()), "{names:?}");
        assert!(OWN_STEPS.iter().all(|own| !names.contains(&own.to_string())), "{names:?}");
        assert!(NOT_OF_THE_CORE.iter().all(|other| names.contains(&other.to_string())), "{names:?}");
    }
}
