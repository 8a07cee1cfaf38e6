//! Programs that the tests use, and their Debian packages.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Result, ensure};

use super::{StepReport, python};
use crate::root::{self, StepResult};

/// A program on the PATH, or a file, that shows that a package is installed; and the package.
const PACKAGES: &[(&str, &str)] = &[
    ("iscsi-test-cu", "libiscsi-bin"),
    ("tgtd", "tgt"),
    ("/usr/lib/tgt/backing-store/bs_rbd.so", "tgt-rbd"),
    ("istgt", "istgt"),
    ("qemu-img", "qemu-utils"),
    ("/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so", "qemu-block-extra"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("/usr/lib/ipxe/qemu/pxe-e1000.rom", "ipxe-qemu"),
    ("virt-xml-validate", "libvirt-clients"),
    ("xmllint", "libxml2-utils"),
    ("zsh", "zsh"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("cpio", "cpio"),
    ("xz", "xz-utils"),
    ("iscsiadm", "open-iscsi"),
    ("multipath", "multipath-tools"),
    ("udevadm", "udev"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("curl", "curl"),
    ("openssl", "openssl"),
    ("fio", "fio"),
    ("nvme", "nvme-cli"),
    ("chromium", "chromium"),
    ("nbdinfo", "libnbd-bin"),
    ("nbd-client", "nbd-client"),
    ("nbd-server", "nbd-server"),
    ("nbdkit", "nbdkit"),
    ("tc", "iproute2"),
    ("taskset", "util-linux"),
    ("c++", "g++"),
    ("git", "git"),
    ("gdb", "gdb"),
    ("losetup", "mount"),
    ("fusermount3", "fuse3"),
    ("setsid", "util-linux"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("gcc-12", "gcc-12"),
    ("make", "make"),
    ("strip", "binutils"),
    ("/usr/lib/x86_64-linux-gnu/libelf.so.1", "libelf1"),
    ("sg_persist", "sg3-utils"),
    ("ceph-mon", "ceph-mon"),
    ("ceph-osd", "ceph-osd"),
    ("rbd", "ceph-common"),
    ("/usr/include/rbd/librbd.h", "librbd-dev"),
    ("/lib/udev/rules.d/58-scsi-sg3_symlink.rules", "sg3-utils-udev"),
    ("targetctl", "python3-rtslib-fb"),
    ("promtool", "prometheus"),
    ("tmux", "tmux"),
    ("lintian", "lintian"),
    ("rpm", "rpm"),
    ("python3", "python3"),
    ("/usr/lib/x86_64-linux-gnu/libgnutls.so.30", "libgnutls30"),
    ("/usr/share/python-wheels", "python3-venv"),
];
/// While this script exits with 101, installing a package starts no daemon.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Installs missing packages as root; otherwise prints the command. Then installs the packages of Python. Never fails
/// because of a missing package: the tests that need it report it.
pub fn install() -> Result<StepReport> {
    let report = of_debian()?;
    if let Err(error) = python::install() {
        println!("{error:#}");
    }
    Ok(report)
}

fn of_debian() -> Result<StepReport> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(StepResult::Ok.into());
    }
    let command = format!("apt-get install --no-install-recommends {}", missing.join(" "));
    if fs::metadata("/proc/self")?.uid() != 0 || !root::is_installed("apt-get") {
        println!("to run all tests, as root: {command}");
        return Ok(StepResult::Skipped(format!("missing: {}", missing.join(" "))).into());
    }
    println!("{command}");
    match apt_get(&missing) {
        Ok(()) => Ok(StepResult::Ok.into()),
        Err(error) => Ok(StepResult::Skipped(format!("{error:#}")).into()),
    }
}

fn missing() -> Vec<&'static str> {
    let mut missing: Vec<&str> =
        PACKAGES.iter().filter(|(file, _)| !root::is_installed(file)).map(|(_, package)| *package).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

fn apt_get(packages: &[&str]) -> Result<()> {
    let ours = !Path::new(POLICY).exists();
    if ours {
        fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
    }
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(packages);
    let outcome = quiet(&["update", "-qq"]).and_then(|()| quiet(&install));
    if ours {
        fs::remove_file(POLICY)?;
    }
    outcome
}

/// Runs apt-get; prints its output only if it fails.
fn quiet(arguments: &[&str]) -> Result<()> {
    let output =
        root::command("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "apt-get {}: {}", arguments[0], said.trim());
    Ok(())
}
