//! The Linux kernel's initiator in the guest of `interop/lab` against the server on the host, and the kernel's target
//! against the commands.
//!
//! Each test runs one scenario. Scenarios share guests ([`machine`]). A scenario requests actions of the host, such
//! as a kill of the server, through files in the shared folder.
#![forbid(unsafe_code)]

mod gateways;
mod gateways_pr;
mod guest;
mod machine;
mod nvme;
mod nvme_answers;
mod rdma;

use guest::{example, lab, server};
use machine::ScenarioResult;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use interop::tool::{self, Tool};

/// Tests the lab itself: a guest is cleaned and used again, and a guest that has died is replaced.
#[test]
fn guest_is_cleaned_between_scenarios_and_replaced() {
    let Some(mut lab) = lab() else { return };
    // A guest runs a limited number of scenarios: this one is new.
    lab.discard_guest();
    let lab = lab.alone("leave", &[("LEAVE", "yes")]).must_pass();
    let mut lab = lab.alone("leave", &[("GUEST", "same")]).must_pass();
    let job = lab.start("leave", &[("DIE", "yes")]);
    assert_eq!(lab.wait(&job, Duration::from_secs(300)), ScenarioResult::Guest);
    lab.alone("leave", &[("GUEST", "new")]).must_pass();
}

#[test]
fn disk_with_and_without_digests() {
    let Some(lab) = lab() else { return };
    let server = server(1, "");
    lab.against(&server, "disk", &[]).must_pass();
}

#[test]
fn disk_behind_mutual_chap() {
    let Some(lab) = lab() else { return };
    let tables = "mutual = \"lunar\"\n[[target.access]]\nchap = [\"alice\"]\n\
        [[chap_user]]\nname = \"alice\"\nsecret_file = \"alice.secret\"\n\
        [[chap_user]]\nname = \"lunar\"\nsecret_file = \"lunar.secret\"\n";
    let server = server(1, tables);
    let chap = [
        ("CHAP", "alice alice-secret-1234"),
        ("CHAP_MUTUAL", "lunar lunar-secret-5678"),
        ("DIGESTS", "CRC32C"),
    ];
    lab.against(&server, "disk", &chap).must_pass();
}

#[test]
fn file_system_outlives_kill_9_of_the_server() {
    let Some(lab) = lab() else { return };
    let mut server = server(1, "");
    let mut scenario = lab.against(&server, "crash", &[("KILLS", "2")]);
    for kill in ["kill-1", "kill-2"] {
        scenario.when_asked(kill, || {
            server.kill9();
            thread::sleep(Duration::from_secs(1));
            server.restart();
        });
    }
    scenario.must_pass();
}

#[test]
fn larger_disk_is_seen() {
    let Some(lab) = lab() else { return };
    let server = server(1, "");
    let mut scenario = lab.against(&server, "resize", &[]);
    scenario.when_asked("grow", || {
        let disk = fs::OpenOptions::new().write(true).open(server.dir().join("disk.img")).expect("the disk");
        disk.set_len(640 << 20).expect("grow the disk");
        server.signal(1);
    });
    scenario.must_pass();
}

#[test]
fn multipath_over_two_portals() {
    let Some(lab) = lab() else { return };
    let server = server(2, "");
    lab.against(&server, "multipath", &[]).must_pass();
}

/// Links in `/dev/disk/by-id` and WWIDs of multipath, with the rules of Debian's udev and sg3-utils.
#[test]
fn disks_of_lio_and_stgt_keep_their_names() {
    let Some(lab) = lab() else { return };
    let targets = ["tgtd", "tgt-admin"].map(|program| Tool { program, package: "tgt" });
    let lio = Tool { program: "targetctl", package: "python3-rtslib-fb" };
    let udev = Tool { program: "udevadm", package: "udev sg3-utils-udev" };
    if !tool::have(&[&targets[..], &[lio, udev]].concat()) {
        return;
    }
    let program = interop::lunar_bin();
    lab.alone("moved", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

/// The service of the package, under systemd in the guest.
#[test]
fn restart_and_upgrade_fail_no_command_of_the_kernel() {
    let Some(package) = std::env::var_os("LUNAR_DEB") else {
        return println!("skipped: needs LUNAR_DEB (cargo xtask test dist lab)");
    };
    let tools =
        [("nsenter", "util-linux"), ("pgrep", "procps"), ("systemctl", "systemd"), ("dpkg-deb", "dpkg")];
    let tools = tools.map(|(program, package)| Tool { program, package });
    if !tool::have(&tools) {
        return;
    }
    let Some(lab) = lab() else { return };
    let package = uncompressed(Path::new(&package));
    let path = package.join("lunar.deb");
    lab.alone("service", &[("DEB", path.to_str().expect("a path in UTF-8"))]).must_pass();
}

/// A folder with the same package as `lunar.deb`, uncompressed: to unpack it is slow in the guest.
fn uncompressed(package: &Path) -> interop::Folder {
    let dir = interop::Folder::fresh();
    let (files, to) = (dir.join("files"), dir.join("lunar.deb"));
    let steps: [&[&OsStr]; 2] = [
        &["-R".as_ref(), package.as_ref(), files.as_ref()],
        &["-Znone".as_ref(), "-b".as_ref(), files.as_ref(), to.as_ref()],
    ];
    for words in steps {
        let ran = tool::run(Command::new("dpkg-deb").args(words), Duration::from_secs(60));
        assert!(ran.ok(), "dpkg-deb: {}", ran.said);
    }
    dir
}

#[test]
fn far_line_of_the_kernels() {
    let Some(lab) = lab() else { return };
    let program = interop::lunar_bin();
    lab.alone("far", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn kernels_own_target() {
    let Some(lab) = lab() else { return };
    let program = interop::lunar_bin();
    lab.alone("lio", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn kernels_own_nvme_target() {
    let Some(lab) = lab() else { return };
    let program = interop::lunar_bin();
    lab.alone("nvme_initiator", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn ublk_device_outlives_kill_9_of_its_process() {
    let Some(lab) = lab() else { return };
    let program = example("lunar-host", "ublk");
    let program = program.to_str().expect("a path in UTF-8");
    lab.alone("ublk", &[("UBLK", program)]).must_pass();
}

#[test]
fn commands_are_passed_to_the_kernels_scsi_devices() {
    let Some(lab) = lab() else { return };
    let program = example("lunar-router", "sg");
    lab.alone("sg", &[("SG", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn router_between_the_kernels_initiator_and_its_target() {
    let Some(lab) = lab() else { return };
    if !tool::have(&[Tool { program: "tgtd", package: "tgt" }]) {
        return;
    }
    let program = interop::lunar_bin();
    lab.alone("router", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn multipath_over_a_pair_of_routers_with_delay_and_loss() {
    let Some(lab) = lab() else { return };
    let program = interop::lunar_bin();
    lab.alone("pair", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn attached_disk_outlives_its_process_and_its_target() {
    let Some(lab) = lab() else { return };
    if !tool::have(&[Tool { program: "nbd-client", package: "nbd-client" }]) {
        return;
    }
    let mut server = server(1, "");
    let lunar = interop::lunar_bin();
    let mut scenario = lab.against(&server, "attach", &[("LUNAR", lunar.to_str().expect("a path in UTF-8"))]);
    for kill in ["kill-1", "kill-2"] {
        scenario.when_asked(kill, || {
            server.kill9();
            thread::sleep(Duration::from_secs(1));
            server.restart();
        });
    }
    scenario.must_pass();
}
