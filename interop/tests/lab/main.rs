//! The Linux kernel's own initiator, in the guest of `interop/lab`, against the server on the host; and the kernel's
//! own target, against the commands.
//!
//! Each test boots one guest with one scenario. What a scenario asks the host for (killing the server,
//! growing its disk) it asks through a file in the folder that both see.
#![forbid(unsafe_code)]

mod guest;
mod rdma;

use guest::{Guest, example, lab, server};
use std::fs;
use std::thread;
use std::time::Duration;

use interop::tool::{self, Tool};

#[test]
fn a_disk_with_and_without_digests() {
    let Some(_turn) = lab() else { return };
    let server = server(1, "");
    Guest::boot(&server, "disk", &[]).must_pass();
}

#[test]
fn a_disk_behind_mutual_chap() {
    let Some(_turn) = lab() else { return };
    let tables = "mutual = \"lunar\"\n[[target.access]]\nchap = [\"alice\"]\n\
        [[chap_user]]\nname = \"alice\"\nsecret_file = \"alice.secret\"\n\
        [[chap_user]]\nname = \"lunar\"\nsecret_file = \"lunar.secret\"\n";
    let server = server(1, tables);
    let chap = [
        ("CHAP", "alice alice-secret-1234"),
        ("CHAP_MUTUAL", "lunar lunar-secret-5678"),
        ("DIGESTS", "CRC32C"),
    ];
    Guest::boot(&server, "disk", &chap).must_pass();
}

#[test]
fn a_file_system_outlives_kill_9_of_the_server() {
    let Some(_turn) = lab() else { return };
    let mut server = server(1, "");
    let mut guest = Guest::boot(&server, "crash", &[("KILLS", "2")]);
    for kill in ["kill-1", "kill-2"] {
        guest.when_asked(kill, || {
            server.kill9();
            thread::sleep(Duration::from_secs(1));
            server.restart();
        });
    }
    guest.must_pass();
}

#[test]
fn a_larger_disk_is_seen() {
    let Some(_turn) = lab() else { return };
    let server = server(1, "");
    let mut guest = Guest::boot(&server, "resize", &[]);
    guest.when_asked("grow", || {
        let disk = fs::OpenOptions::new().write(true).open(server.dir().join("disk.img")).expect("the disk");
        disk.set_len(640 << 20).expect("grow the disk");
        server.signal(1);
    });
    guest.must_pass();
}

#[test]
fn multipath_over_two_portals() {
    let Some(_turn) = lab() else { return };
    let server = server(2, "");
    Guest::boot(&server, "multipath", &[]).must_pass();
}

#[test]
fn a_far_line_of_the_kernels() {
    let Some(_turn) = lab() else { return };
    let program = interop::lunar_bin();
    Guest::alone("far", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn the_kernels_own_target() {
    let Some(_turn) = lab() else { return };
    let program = interop::lunar_bin();
    Guest::alone("lio", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn a_ublk_device_outlives_kill_9_of_its_process() {
    let Some(_turn) = lab() else { return };
    let program = example("export", "ublk");
    let program = program.to_str().expect("a path in UTF-8");
    Guest::alone("ublk", &[("UBLK", program)]).must_pass();
}

#[test]
fn commands_are_passed_to_the_kernels_scsi_devices() {
    let Some(_turn) = lab() else { return };
    let program = example("router", "sg");
    Guest::alone("sg", &[("SG", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn the_router_between_the_kernels_initiator_and_its_target() {
    let Some(_turn) = lab() else { return };
    if !tool::have(&[Tool { program: "tgtd", package: "tgt" }]) {
        return;
    }
    let program = interop::lunar_bin();
    Guest::alone("router", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn multipath_over_a_pair_of_routers_with_delay_and_loss() {
    let Some(_turn) = lab() else { return };
    let program = interop::lunar_bin();
    Guest::alone("pair", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

#[test]
fn an_attached_disk_outlives_its_process_and_its_target() {
    let Some(_turn) = lab() else { return };
    if !tool::have(&[Tool { program: "nbd-client", package: "nbd-client" }]) {
        return;
    }
    let mut server = server(1, "");
    let lunar = interop::lunar_bin();
    let mut guest = Guest::boot(&server, "attach", &[("LUNAR", lunar.to_str().expect("a path in UTF-8"))]);
    for kill in ["kill-1", "kill-2"] {
        guest.when_asked(kill, || {
            server.kill9();
            thread::sleep(Duration::from_secs(1));
            server.restart();
        });
    }
    guest.must_pass();
}
