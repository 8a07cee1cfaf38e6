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
    /// Does it
    pub run: fn() -> Result<Report>,
}

/// All steps in their order.
pub const STEPS: [Row; 8] = [
    Row {
        name: "packages",
        what: "programs of real peers",
        quick: true,
        always: true,
        run: packages::install,
    },
    Row { name: "build", what: "the release build of lunar", quick: true, always: true, run: build },
    Row { name: "units", what: "tests of every crate", quick: true, always: false, run: units },
    Row {
        name: "server",
        what: "raw PDUs against the running server",
        quick: true,
        always: false,
        run: server,
    },
    Row { name: "peers", what: "libiscsi, QEMU, STGT and istgt", quick: true, always: false, run: peers },
    Row {
        name: "polling",
        what: "the server's tests without io_uring",
        quick: false,
        always: false,
        run: polling,
    },
    Row {
        name: "fuzz",
        what: "every fuzz target for a short while",
        quick: false,
        always: false,
        run: fuzz::run,
    },
    Row { name: "lab", what: "the Linux kernel in a guest", quick: false, always: false, run: lab },
];
/// Tests of `interop` that have steps of their own.
const OWN_STEPS: [&str; 2] = ["lab", "peers"];

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
    let names = server_tests()?;
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
    root::build_example("export", "ublk")?;
    root::build_example("router", "sg")?;
    root::build_example("rdma", "verbs_loop")?;
    cargo::test(&["--package", "interop", "--test", "lab"], &["--test-threads=1"])
}

fn polling() -> Result<Report> {
    match uring::disable()? {
        Ok(_disabled) => server(),
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
    }
}
