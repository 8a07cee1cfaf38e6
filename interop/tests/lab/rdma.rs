//! iSER and SRP: the kernel's initiators and targets over siw, its software iWARP.

use super::guest::{Scenario, example, lab, lab_of_rdma, server_over};
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
fn kill_twice(scenario: &mut Scenario, server: &mut Server) {
    for kill in ["kill-1", "kill-2"] {
        scenario.when_asked(kill, || {
            server.kill9();
            thread::sleep(Duration::from_secs(1));
            server.restart();
        });
    }
}

#[test]
fn kernels_iser_initiator_over_siw() {
    let Some(lab) = lab_of_rdma() else { return };
    let server = server_over(1, BOTH, CHAP);
    let chap = [("CHAP", "alice alice-secret-1234"), ("CHAP_MUTUAL", "lunar lunar-secret-5678")];
    let mut scenario = lab.against(&server, "iser", &chap);
    scenario.when_asked("grow", || {
        let disk = fs::OpenOptions::new().write(true).open(server.dir().join("disk.img")).expect("the disk");
        disk.set_len(640 << 20).expect("grow the disk");
        server.signal(1);
    });
    scenario.must_pass();
}

#[test]
fn file_system_over_iser_outlives_kill_9_of_the_server() {
    let Some(lab) = lab_of_rdma() else { return };
    let mut server = server_over(1, BOTH, "");
    let mut scenario = lab.against(&server, "crash", &[("RDMA", "siw"), ("KILLS", "2")]);
    kill_twice(&mut scenario, &mut server);
    scenario.must_pass();
}

#[test]
fn multipath_over_two_portals_of_iser() {
    let Some(lab) = lab_of_rdma() else { return };
    let server = server_over(2, BOTH, "");
    lab.against(&server, "multipath", &[("RDMA", "siw")]).must_pass();
}

#[test]
fn our_iser_initiator_against_the_kernels_target() {
    let Some(lab) = lab_of_rdma() else { return };
    let program = interop::lunar_bin();
    let program = program.to_str().expect("a path in UTF-8");
    lab.alone("iser_lio", &[("LUNAR", program)]).must_pass();
}

#[test]
fn our_iser_initiator_against_stgt() {
    let Some(lab) = lab_of_rdma() else { return };
    if !have_stgt() {
        return;
    }
    let program = interop::lunar_bin();
    let program = program.to_str().expect("a path in UTF-8");
    lab.alone("iser_tgt", &[("LUNAR", program)]).must_pass();
}

fn have_stgt() -> bool {
    tool::have(&["tgtd", "tgtadm"].map(|program| Tool { program, package: "tgt" }))
}

#[test]
fn kernels_srp_initiator_over_siw() {
    let Some(lab) = lab_of_rdma() else { return };
    let mut server = server_over(1, "\"srp\"", "");
    let mut scenario = lab.against(&server, "srp", &[("PORT", &srp_port(TARGET))]);
    scenario.when_asked("channels", || two_channels_work(&server));
    kill_twice(&mut scenario, &mut server);
    scenario.must_pass();
}

/// Checks that the guest has two channels, and that each had commands.
fn two_channels_work(server: &Server) {
    let mut list = Command::new(interop::lunar_bin());
    list.args(["session", "list", "--json", "--socket"]).arg(server.dir().join("admin.sock"));
    let said = tool::run(&mut list, Duration::from_secs(30)).said;
    let sessions: Value = serde_json::from_str(&said).expect("JSON");
    let works = |session: &&Value| {
        session["srp"]["channels"] == 2 && session["counters"]["commands"].as_u64() > Some(50)
    };
    assert_eq!(sessions["items"].as_array().expect("sessions").iter().filter(works).count(), 2, "{said}");
}

/// The SRP target port of a target: FNV-1a of its name, as in docs/rdma.md.
fn srp_port(target: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", target.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

#[test]
fn our_srp_initiator_against_the_kernels_target() {
    let Some(lab) = lab_of_rdma() else { return };
    let program = interop::lunar_bin();
    let program = program.to_str().expect("a path in UTF-8");
    lab.alone("srp_lio", &[("LUNAR", program)]).must_pass();
}

/// Libraries that the guest's programs need for soft RDMA devices, and their Debian packages.
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
fn verbs_provider_over_soft_devices() {
    let Some(lab) = lab() else { return };
    if !tool::have(&[Tool { program: "rdma", package: "iproute2" }]) || !have_verbs() {
        return;
    }
    let program = example("lunar-rdma", "verbs_loop");
    lab.alone("verbs", &[("VERBS_LOOP", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

/// Runs a scenario in which `lunar` is in the guest too, and uses verbs over a soft RDMA device.
fn through_verbs(device: &str, scenario: &str) {
    let Some(lab) = lab_of_rdma() else { return };
    if !have_verbs() {
        return;
    }
    let program = interop::lunar_bin();
    let program = program.to_str().expect("a path in UTF-8");
    let variables =
        [("LUNAR", program), ("PROVIDER", "verbs"), ("RDMA", device), ("BRIEF", "yes"), ("KILLS", "1")];
    lab.alone(scenario, &variables).must_pass();
}

#[test]
fn kernels_iser_initiator_to_verbs_over_siw() {
    through_verbs("siw", "iser");
}

#[test]
fn kernels_iser_initiator_to_verbs_over_rxe() {
    through_verbs("rxe", "iser");
}

#[test]
fn file_system_to_verbs_over_siw_outlives_kill_9() {
    through_verbs("siw", "crash");
}

#[test]
fn file_system_to_verbs_over_rxe_outlives_kill_9() {
    through_verbs("rxe", "crash");
}

#[test]
fn our_iser_initiator_by_verbs_over_siw_against_isert() {
    through_verbs("siw", "iser_lio");
}

#[test]
fn our_iser_initiator_by_verbs_over_rxe_against_isert() {
    through_verbs("rxe", "iser_lio");
}

#[test]
fn our_iser_initiator_by_verbs_over_siw_against_stgt() {
    if have_stgt() {
        through_verbs("siw", "iser_tgt");
    }
}

#[test]
fn our_iser_initiator_by_verbs_over_rxe_against_stgt() {
    if have_stgt() {
        through_verbs("rxe", "iser_tgt");
    }
}

#[test]
fn kernels_srp_initiator_to_verbs_over_siw() {
    through_verbs("siw", "srp");
}

#[test]
fn kernels_srp_initiator_to_verbs_over_rxe() {
    through_verbs("rxe", "srp");
}

#[test]
fn our_srp_initiator_by_verbs_over_siw() {
    through_verbs("siw", "srp_lio");
}

#[test]
fn our_srp_initiator_by_verbs_over_rxe() {
    through_verbs("rxe", "srp_lio");
}

/// Over iSER and SRP, with the iwarp provider, and with verbs over both soft devices.
#[test]
fn lunar_and_lunar() {
    let Some(lab) = lab_of_rdma() else { return };
    if !have_verbs() {
        return;
    }
    let program = interop::lunar_bin();
    lab.alone("own", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}
