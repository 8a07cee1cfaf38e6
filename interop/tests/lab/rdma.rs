//! iSER and SRP: the kernel's initiators and targets over siw, its software iWARP.

use super::guest::{Guest, example, lab, lab_of_rdma, server_over};
use interop::tool::{self, Tool};
use interop::{Server, TARGET};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

const CHAP: &str = "mutual = \"lunar\"\n[[target.access]]\nchap = [\"alice\"]\n\
    [[chap_user]]\nname = \"alice\"\nsecret_file = \"alice.secret\"\n\
    [[chap_user]]\nname = \"lunar\"\nsecret_file = \"lunar.secret\"\n";
const BOTH: &str = "\"tcp\", \"iser\"";

/// Kills the server twice when the guest asks for it.
fn kill_twice(guest: &mut Guest, server: &mut Server) {
    for kill in ["kill-1", "kill-2"] {
        guest.when_asked(kill, || {
            server.kill9();
            thread::sleep(Duration::from_secs(1));
            server.restart();
        });
    }
}

#[test]
fn the_kernels_iser_initiator_over_siw() {
    let Some(_turn) = lab_of_rdma() else { return };
    let server = server_over(1, BOTH, CHAP);
    let chap = [("CHAP", "alice alice-secret-1234"), ("CHAP_MUTUAL", "lunar lunar-secret-5678")];
    let mut guest = Guest::boot(&server, "iser", &chap);
    guest.when_asked("grow", || {
        let disk = fs::OpenOptions::new().write(true).open(server.dir().join("disk.img")).expect("the disk");
        disk.set_len(640 << 20).expect("grow the disk");
        server.signal(1);
    });
    guest.must_pass();
}

#[test]
fn a_file_system_over_iser_outlives_kill_9_of_the_server() {
    let Some(_turn) = lab_of_rdma() else { return };
    let mut server = server_over(1, BOTH, "");
    let mut guest = Guest::boot(&server, "crash", &[("RDMA", "siw"), ("KILLS", "2")]);
    kill_twice(&mut guest, &mut server);
    guest.must_pass();
}

#[test]
fn multipath_over_two_portals_of_iser() {
    let Some(_turn) = lab_of_rdma() else { return };
    let server = server_over(2, BOTH, "");
    Guest::boot(&server, "multipath", &[("RDMA", "siw")]).must_pass();
}

#[test]
fn our_iser_initiator_against_the_kernels_target() {
    let Some(_turn) = lab_of_rdma() else { return };
    let program = interop::lunar_bin();
    let program = program.to_str().expect("a path in UTF-8");
    Guest::alone("iser_lio", &[("LUNAR", program)]).must_pass();
}

#[test]
fn our_iser_initiator_against_stgt() {
    let Some(_turn) = lab_of_rdma() else { return };
    if !have_stgt() {
        return;
    }
    let program = interop::lunar_bin();
    let program = program.to_str().expect("a path in UTF-8");
    Guest::alone("iser_tgt", &[("LUNAR", program)]).must_pass();
}

fn have_stgt() -> bool {
    tool::have(&["tgtd", "tgtadm"].map(|program| Tool { program, package: "tgt" }))
}

#[test]
fn the_kernels_srp_initiator_over_siw() {
    let Some(_turn) = lab_of_rdma() else { return };
    let mut server = server_over(1, "\"srp\"", "");
    let mut guest = Guest::boot(&server, "srp", &[("PORT", &srp_port(TARGET))]);
    guest.when_asked("channels", || two_channels_work(&server));
    kill_twice(&mut guest, &mut server);
    guest.must_pass();
}

/// The guest has two channels, and each had commands.
fn two_channels_work(server: &Server) {
    let mut list = Command::new(interop::lunar_bin());
    list.args(["session", "list", "--json", "--socket"]).arg(server.dir().join("admin.sock"));
    let said = tool::run(&mut list, Duration::from_secs(30)).said;
    let sessions: Value = serde_json::from_str(&said).expect("JSON");
    let works = |session: &&Value| {
        session["srp"]["channels"] == 2 && session["counters"]["commands"].as_u64() > Some(50)
    };
    assert_eq!(sessions.as_array().expect("sessions").iter().filter(works).count(), 2, "{said}");
}

/// The target port of a target: FNV-1a of its name, as docs/rdma.md tells.
fn srp_port(target: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", target.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

#[test]
fn our_srp_initiator_against_the_kernels_target() {
    let Some(_turn) = lab_of_rdma() else { return };
    let program = interop::lunar_bin();
    let program = program.to_str().expect("a path in UTF-8");
    Guest::alone("srp_lio", &[("LUNAR", program)]).must_pass();
}

/// What the guest's programs need for soft RDMA devices, and the Debian packages that bring it.
const RDMA: [(&str, &str); 2] = [
    ("/etc/libibverbs.d/rxe.driver", "ibverbs-providers"),
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
];

fn have_verbs() -> bool {
    let missing = RDMA.iter().find(|(file, _)| !Path::new(file).exists());
    if let Some((_, package)) = missing {
        println!("skipped: needs rdma-core (apt-get install {package})");
    }
    missing.is_none()
}

/// Over soft RoCE, and over soft iWARP where the guest's kernel has it.
#[test]
fn the_verbs_provider_over_soft_devices() {
    let Some(_turn) = lab() else { return };
    if !tool::have(&[Tool { program: "rdma", package: "iproute2" }]) || !have_verbs() {
        return;
    }
    let program = example("rdma", "verbs_loop");
    Guest::alone("verbs", &[("VERBS_LOOP", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

/// Scenarios in one guest, in which `lunar` runs as well, with RDMA by verbs over a soft device.
fn through_verbs(device: &str, scenarios: &str) {
    let Some(_turn) = lab_of_rdma() else { return };
    if !have_verbs() {
        return;
    }
    let program = interop::lunar_bin();
    let program = program.to_str().expect("a path in UTF-8");
    let variables = [
        ("LUNAR", program),
        ("PROVIDER", "verbs"),
        ("RDMA", device),
        ("SCENARIOS", scenarios),
        ("BRIEF", "yes"),
        ("KILLS", "1"),
    ];
    Guest::alone("row", &variables).must_pass();
}

#[test]
fn the_kernels_iser_initiator_to_verbs_over_siw() {
    through_verbs("siw", "iser crash");
}

#[test]
fn the_kernels_iser_initiator_to_verbs_over_rxe() {
    through_verbs("rxe", "iser crash");
}

#[test]
fn our_iser_initiator_by_verbs_over_siw() {
    if have_stgt() {
        through_verbs("siw", "iser_lio iser_tgt");
    }
}

#[test]
fn our_iser_initiator_by_verbs_over_rxe() {
    if have_stgt() {
        through_verbs("rxe", "iser_lio iser_tgt");
    }
}

#[test]
fn srp_by_verbs_over_siw() {
    through_verbs("siw", "srp srp_lio");
}

#[test]
fn srp_by_verbs_over_rxe() {
    through_verbs("rxe", "srp srp_lio");
}

/// By iSER and SRP, over iwarp and over verbs with both soft devices.
#[test]
fn lunar_and_lunar() {
    let Some(_turn) = lab_of_rdma() else { return };
    if !have_verbs() {
        return;
    }
    let program = interop::lunar_bin();
    Guest::alone("own", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}
