//! The steps of `cargo xtask test`.

use anyhow::Result;
use std::ffi::OsStr;

use super::cargo::{self, ONE_BY_ONE, TestSelection};
use super::disk::{self, LoopDevice};
use super::{StepReport, fuzz, packages, uring};
use crate::root::{self, Profile, StepResult};

/// One step of `cargo xtask test`.
pub struct Row {
    /// Its name on the command line
    pub name: &'static str,
    /// A description
    pub what: &'static str,
    /// Part of `--quick`
    pub quick: bool,
    /// Part of every run; if it fails, the run ends
    pub always: bool,
    /// Runs in parallel with the following steps, which mostly wait, up to one that is alone
    pub parallel: bool,
    /// Starts when all steps before it have ended
    pub alone: bool,
    /// Runs it
    pub run: fn() -> Result<StepReport>,
}

/// All steps, in order.
pub const STEPS: [Row; 12] = [
    Row { always: true, ..quick("packages", "programs of real peers", packages::install) },
    Row { always: true, ..quick("build", "lunar, with the profile of tests", build) },
    quick("units", "tests of every crate", units),
    long("gateways", "20,000 schedules of each simulation of gateways", || schedules("20000")),
    long("package", "the packaged library, outside the workspace", package),
    long("dist", "packages of the program, lintian and rpm", dist),
    quick("measures", "fio, and the published experiments with peers", measures),
    Row { parallel: true, ..long("fuzz", "a part of the fuzz targets for a short while", fuzz::run) },
    Row { parallel: true, ..quick("peers", "libiscsi, QEMU, STGT and istgt", peers) },
    quick("server", "raw PDUs against the running server", server),
    long("polling", "tests of sockets and files, without io_uring", polling),
    Row { alone: true, ..long("lab", "the Linux kernel in a guest", lab) },
];

const fn quick(name: &'static str, what: &'static str, run: fn() -> Result<StepReport>) -> Row {
    Row { quick: true, ..long(name, what, run) }
}

const fn long(name: &'static str, what: &'static str, run: fn() -> Result<StepReport>) -> Row {
    Row { name, what, quick: false, always: false, parallel: false, alone: false, run }
}

/// Tests of `interop` that have their own step.
const OWN_STEPS: [&str; 2] = ["lab", "peers"];
/// Tests that depend on how the server waits for sockets and files: they run with both drivers. All others run
/// with both in `cargo xtask soak`.
const OF_THE_DRIVER: [&str; 18] = [
    "attach",
    "conformance_data",
    "conformance_tasks",
    "crash",
    "data_out",
    "device",
    "hosts",
    "idle",
    "initiator_wire",
    "late",
    "long_writes",
    "media",
    "memory",
    "nvme_wire",
    "router",
    "smoke",
    "storm",
    "zero_copy",
];
/// Programs at a time, and tests at a time in each; they mostly wait.
const WIDTH: usize = 3;
const THREADS: &str = "--test-threads=4";
/// The programs that take longest.
const FIRST: [&str; 5] =
    ["interop/router", "interop/docs", "interop/attach", "interop/initiator_hostile", "interop/reload"];
/// Tests that need an answer before a time limit, or that measure the whole machine. No test asserts a speed: a test
/// may assert, with a wide margin, that something does not take the time of a time-out.
const ALONE: [(&str, &[&str]); 2] = [
    (
        "interop/router",
        &[
            "faults::commands_fail_after_path_loss_timeout",
            "pass::reserve_6_reservation_ends_with_its_session",
            "pass::forwarded_lun_reset_ends_hung_commands",
        ],
    ),
    ("interop/device", &["sanitize_operation_survives_abort_task", "sanitize_operation_survives_a_reset"]),
];

fn build() -> Result<StepReport> {
    root::lunar(Profile::Test)?;
    Ok(StepResult::Ok.into())
}

/// The unit tests of the crates that take longest, and those that use peers.
const UNITS_FIRST: [&str; 6] = [
    "lunar-initiator/peers",
    "lunar/reproduce",
    "lunar-bench",
    "lunar-scsi",
    "lunar/copy",
    "lunar-nbd/server",
];

/// Many schedules use all cores for minutes, so tests that have a time limit do not run beside them.
pub(super) fn schedules(number: &str) -> Result<StepReport> {
    let variables = [("LUNAR_TEST_SEEDS", OsStr::new(number))];
    let selection = &["--package", "lunar-gateway", "--lib"];
    cargo::test(&TestSelection { selection, variables: &variables, ..ONE_BY_ONE })
}

fn units() -> Result<StepReport> {
    let plan = TestSelection {
        selection: &["--workspace", "--exclude", "interop"],
        width: WIDTH,
        first: &UNITS_FIRST,
        ..ONE_BY_ONE
    };
    if std::env::var_os(disk::VARIABLE).is_some() {
        return cargo::test(&plan);
    }
    match LoopDevice::attach()? {
        Ok(disk) => {
            let variables = [(disk::VARIABLE, disk.path().as_os_str())];
            cargo::test(&TestSelection { variables: &variables, ..plan })
        }
        Err(why) => {
            println!("the test of block devices has no disk: {why}");
            cargo::test(&plan)
        }
    }
}

fn package() -> Result<StepReport> {
    Ok(crate::package::run()?.into())
}

fn dist() -> Result<StepReport> {
    Ok(crate::dist::check(&root::lunar(Profile::Test)?)?.into())
}

fn server() -> Result<StepReport> {
    against_the_server(&server_tests()?)
}

fn against_the_server(names: &[String]) -> Result<StepReport> {
    let mut selection = vec!["--package", "interop", "--lib"];
    selection.extend(names.iter().flat_map(|name| ["--test", name.as_str()]));
    let plan = TestSelection {
        selection: &selection,
        options: &[THREADS],
        width: WIDTH,
        first: &FIRST,
        alone: &ALONE,
        ..ONE_BY_ONE
    };
    cargo::test(&plan)
}

/// The names of interop's tests, except those with their own step.
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

/// Tests of `peers` that measure. They need the machine for themselves.
const MEASURES: [&str; 2] = ["fio::", "reproduce::"];

fn measures() -> Result<StepReport> {
    of_peers(&MEASURES)
}

fn peers() -> Result<StepReport> {
    of_peers(&MEASURES.map(|module| ["--skip", module]).concat())
}

fn of_peers(options: &[&str]) -> Result<StepReport> {
    cargo::test(&TestSelection {
        selection: &["--package", "interop", "--test", "peers"],
        options,
        width: WIDTH, // its output must not mix with that of parallel steps
        ..ONE_BY_ONE
    })
}

/// Two guests at a time.
fn lab() -> Result<StepReport> {
    let examples = [("lunar-host", "ublk"), ("lunar-router", "sg"), ("lunar-rdma", "verbs_loop")];
    root::build_examples(Profile::Test, &examples)?;
    let package = crate::dist::checked_package(&root::lunar_path(Profile::Test));
    let variables: Vec<_> = package.iter().map(|package| ("LUNAR_DEB", package.as_os_str())).collect();
    cargo::test(&TestSelection {
        selection: &["--package", "interop", "--test", "lab"],
        variables: &variables,
        options: &["--test-threads=2"],
        ..ONE_BY_ONE
    })
}

fn polling() -> Result<StepReport> {
    without_io_uring(|name| OF_THE_DRIVER.contains(&name))
}

/// The server's tests with matching names, with io_uring off.
pub fn without_io_uring(is_wanted: impl Fn(&str) -> bool) -> Result<StepReport> {
    match uring::disable()? {
        Ok(_disabled) => {
            let mut names = server_tests()?;
            names.retain(|name| is_wanted(name));
            against_the_server(&names)
        }
        Err(why) => Ok(StepResult::Skipped(why).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_that_runs_alone_exists() {
        for (program, tests) in ALONE {
            let tests_folder =
                root::path().join("interop/tests").join(program.trim_start_matches("interop/"));
            for test in tests {
                let (file, name) = match test.split_once("::") {
                    Some((module, name)) => (tests_folder.join(module).with_extension("rs"), name),
                    None => (tests_folder.with_extension("rs"), *test),
                };
                let source = std::fs::read_to_string(&file).expect("the source");
                assert!(source.contains(&format!("fn {name}()")), "{}: {test}", file.display());
            }
        }
    }

    #[test]
    fn measuring_modules_of_peers_exist() {
        let path = root::path().join("interop/tests/peers/main.rs");
        let source = std::fs::read_to_string(path).expect("the source");
        for module in MEASURES {
            assert!(source.contains(&format!("mod {};", module.trim_end_matches(':'))), "{module}");
        }
    }

    #[test]
    fn server_step_omits_tests_with_their_own_step() {
        let names = server_tests().expect("interop/tests");
        assert!(names.contains(&"smoke".to_string()), "{names:?}");
        assert!(OWN_STEPS.iter().all(|own| !names.contains(&own.to_string())), "{names:?}");
        assert!(OF_THE_DRIVER.iter().all(|name| names.contains(&name.to_string())), "{names:?}");
    }
}
