//! NVMe/TCP: the Linux kernel's host in the guest against the server on the host.

use super::guest::{HOST, lab_with};
use super::machine::{GuestKind, Lab};
use interop::command::lunar;
use interop::routed::until;
use interop::tool::Tool;
use interop::{Folder, Server, TARGET, lunar_bin, ports};
use std::fs;
use std::thread;
use std::time::Duration;

/// The serial number of the subsystem.
pub const SERIAL: &str = "SER-0001";
const NQN: &str = "nqn.2026-11.org.example:disks";
/// A subsystem whose host must authenticate itself.
const GUARDED: &str = "nqn.2026-11.org.example:guarded";
/// The name of the guest's host: `HOSTNQN` in `nvme_lib.sh`.
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:7d3f1a52-90c4-4b61-8a0e-2f6c5b1d9e70";
const NVME: [Tool; 1] = [Tool { program: "nvme", package: "nvme-cli" }];
/// A second namespace.
const SECOND: &str = "[[subsystem.namespace]]\nnsid = 7\nbackend = \"memory\"\nsize = \"32MiB\"\n";

/// The portals of a server: two of NVMe/TCP and one of iSCSI.
pub struct Portals([u16; 3]);

impl Portals {
    pub fn free() -> Portals {
        Portals([(); 3].map(|()| ports::free()))
    }

    /// The configuration with these of the NVMe portals, and further tables of the subsystem. LUN 0 is namespace 1.
    pub fn config(&self, nvme: &[usize], tables: &str) -> String {
        let groups: String = nvme.iter().map(|at| group(at + 1, self.0[*at], "nvme-tcp")).collect();
        let tags: Vec<usize> = nvme.iter().map(|at| at + 1).collect();
        format!(
            r#"{groups}{iscsi}
[[target]]
name = "{TARGET}"
[[target.lun]]
lun = 0
backend = "file"
path = "disk.img"
size = "512MiB"
[[subsystem]]
nqn = "{NQN}"
serial = "{SERIAL}"
portal_groups = {tags:?}
[[subsystem.namespace]]
nsid = 1
target = "{TARGET}"
lun = 0
{tables}"#,
            iscsi = group(3, self.0[2], "tcp"),
        )
    }

    fn seen_by_guest(&self, at: usize) -> String {
        format!("{HOST}:{}", self.0[at])
    }

    /// Starts a scenario that knows these of the NVMe portals.
    fn start(&self, lab: Lab, scenario: &str, nvme: &[usize]) -> super::guest::Scenario {
        self.start_with(lab, scenario, nvme, &[])
    }

    /// The same with more environment variables.
    pub fn start_with(
        &self,
        lab: Lab,
        scenario: &str,
        nvme: &[usize],
        more: &[(&str, &str)],
    ) -> super::guest::Scenario {
        let nvme: Vec<String> = nvme.iter().map(|at| self.seen_by_guest(*at)).collect();
        let iscsi = self.seen_by_guest(2);
        let variables =
            [("NVME", nvme.join(" ")), ("NQN", NQN.into()), ("PORTAL", iscsi), ("IQN", TARGET.into())];
        let mut all = variables.each_ref().map(|(name, value)| (*name, value.as_str())).to_vec();
        all.extend(more);
        lab.alone(scenario, &all)
    }
}

fn group(tag: usize, port: u16, transport: &str) -> String {
    let addresses = format!("listen = \"127.0.0.1:{port}\", advertise = \"{HOST}:{port}\"");
    format!("[[portal_group]]\ntag = {tag}\nportals = [{{ {addresses}, transport = [\"{transport}\"] }}]\n")
}

/// Files with the secrets of the guest's host and of the guarded subsystem.
struct Secrets(Folder);

impl Secrets {
    const HOST: &str = "host.key";
    const OWN: &str = "own.key";

    fn make() -> Secrets {
        let secrets = Secrets(Folder::fresh());
        for (owner, nqn, file) in
            [("--nvme", HOST_NQN, Secrets::HOST), ("--nvme=subsystem", GUARDED, Secrets::OWN)]
        {
            let line = ["chap", "add", owner, nqn, "--hash", "sha256", "--output", &secrets.path(file)];
            let (_, errors, code) = lunar(&line);
            assert_eq!(code, 0, "{errors}");
        }
        secrets
    }

    fn path(&self, file: &str) -> String {
        self.0.join(file).display().to_string()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).expect("a secret").trim().to_owned()
    }

    /// A subsystem on the first NVMe portal that admits only the guest's host.
    fn guarded(&self) -> String {
        format!(
            "\n[[subsystem]]\nnqn = \"{GUARDED}\"\nportal_groups = [1]\nsecret_file = \"{}\"\n\
             [[subsystem.host]]\nnqn = \"{HOST_NQN}\"\nsecret_file = \"{}\"\n\
             [[subsystem.namespace]]\nnsid = 3\nbackend = \"memory\"\nsize = \"32MiB\"\n",
            self.path(Secrets::OWN),
            self.path(Secrets::HOST),
        )
    }
}

/// A guest with nvme-cli.
pub fn lab() -> Option<Lab> {
    lab_with(&NVME, GuestKind::Plain)
}

#[test]
fn nvme_disk_is_the_lun_and_keeps_data() {
    let Some(lab) = lab() else { return };
    let (portals, secrets) = (Portals::free(), Secrets::make());
    let _server = Server::start(&(portals.config(&[0], "") + &secrets.guarded()));
    let [secret, proof] = [Secrets::HOST, Secrets::OWN].map(|file| secrets.read(file));
    let more = [("GUARDED", GUARDED), ("SECRET", &secret), ("PROOF", &proof)];
    portals.start_with(lab, "nvme", &[0], &more).must_pass();
}

#[test]
fn nvme_over_tls_keeps_data() {
    let tools = [NVME[0], Tool { program: "python3", package: "python3" }];
    let Some(lab) = lab_with(&tools, GuestKind::Plain) else { return };
    let (portals, keys) = (Portals::free(), Folder::fresh());
    let [key, wrong] = ["right", "wrong"].map(|name| {
        let path = keys.join(name).display().to_string();
        let (_, errors, code) = lunar(&["chap", "add", "--nvme=tls", HOST_NQN, "--output", &path]);
        assert_eq!(code, 0, "{errors}");
        fs::read_to_string(path).expect("a key").trim().to_owned()
    });
    let file = keys.join("right").display().to_string();
    let host = format!("[[subsystem.host]]\nnqn = \"{HOST_NQN}\"\ntls_key_file = \"{file}\"\n");
    let with_tls = "transport = [\"nvme-tcp\"], tls = \"required\"";
    let config = portals.config(&[0], &host).replace("transport = [\"nvme-tcp\"]", with_tls);
    let _server = Server::start(&config);
    portals.start_with(lab, "nvme_tls", &[0], &[("KEY", &key), ("WRONG", &wrong)]).must_pass();
}

#[test]
fn nvme_writes_outlive_kill_9_of_the_server() {
    let Some(lab) = lab() else { return };
    let portals = Portals::free();
    let mut server = Server::start(&portals.config(&[0], ""));
    let mut scenario = portals.start(lab, "nvme_crash", &[0]);
    scenario.when_asked("kill", || {
        server.kill9();
        thread::sleep(Duration::from_secs(1));
        server.restart();
    });
    scenario.must_pass();
}

/// The server and its host are both in the guest.
#[test]
fn nvme_printed_lines_lead_to_the_disk() {
    let Some(lab) = lab() else { return };
    let program = interop::lunar_bin();
    lab.alone("nvme_serve", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}

/// The first namespace is a LUN of the kernel's initiator too.
#[test]
fn nvme_namespaces_grow_come_and_go() {
    let tools = [NVME[0], Tool { program: "sg_persist", package: "sg3-utils" }];
    let Some(lab) = lab_with(&tools, GuestKind::Plain) else { return };
    let portals = Portals::free();
    let mut server = Server::start(&portals.config(&[0], ""));
    let mut scenario = portals.start(lab, "nvme_change", &[0]);
    scenario.when_asked("grow", || {
        let disk = fs::OpenOptions::new().write(true).open(server.dir().join("disk.img")).expect("the disk");
        disk.set_len(640 << 20).expect("grow the disk");
        server.signal(1);
    });
    for (what, tables) in [("add", SECOND), ("remove", "")] {
        scenario.when_asked(what, || {
            // The size of the file is 640 MiB now.
            server.rewrite(&portals.config(&[0], tables).replace("512MiB", "640MiB"));
            server.signal(1);
        });
    }
    scenario.must_pass();
}

#[test]
fn nvme_multipath_outlives_a_closed_portal() {
    let tools = [NVME[0], Tool { program: "sg_stpg", package: "sg3-utils" }];
    let Some(lab) = lab_with(&tools, GuestKind::Plain) else { return };
    let portals = Portals::free();
    let mut server = Server::start(&portals.config(&[0, 1], ""));
    let mut scenario = portals.start(lab, "nvme_paths", &[0, 1]);
    for (what, open) in [("cut", &[1][..]), ("join", &[0, 1])] {
        scenario.when_asked(what, || {
            server.rewrite(&portals.config(open, ""));
            server.signal(1);
        });
    }
    scenario.must_pass();
}

/// A router of a pair in front of a target, with a portal of each family.
fn router(target: &Server, at: usize, iscsi: [u16; 2], nvme: [u16; 2]) -> String {
    format!(
        r#"[[portal_group]]
tag = {tag}
portals = [
    "127.0.0.1:{own}",
    {{ listen = "127.0.0.1:{face}", advertise = "{HOST}:{face}", transport = ["nvme-tcp"] }},
]
[router.r1]
path_loss_timeout_s = 3
[router.r1.upstream.u]
urls = ["iscsi://{upstream}/{TARGET}"]
[[router.r1.target]]
map = "target"
name = "iqn.2026-11.org.example:routed"
upstream = "u"
access = "none"
[router.r1.failover]
peer = "127.0.0.1:{peer}"
group = {other}
prefer = {prefer}
[[subsystem]]
nqn = "{NQN}"
[[subsystem.namespace]]
nsid = 1
target = "iqn.2026-11.org.example:routed"
lun = 0
"#,
        tag = at + 1,
        own = iscsi[at],
        face = nvme[at],
        upstream = target.portal(),
        peer = iscsi[1 - at],
        other = 2 - at,
        prefer = at == 0,
    )
}

#[test]
fn nvme_multipath_follows_a_pair_of_routers() {
    let Some(lab) = lab() else { return };
    let target = Server::start(&format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"64MiB\"\n"
    ));
    let [iscsi, nvme] = [(); 2].map(|()| [(); 2].map(|()| ports::free()));
    let shows = |router: &Server, text: &str| {
        until(text, || router.said(&["router", "show", "r1"]).contains(text).then_some(()));
    };
    let first = Server::start(&router(&target, 0, iscsi, nvme));
    shows(&first, "router r1: active");
    let mut routers = [first, Server::start(&router(&target, 1, iscsi, nvme))];
    shows(&routers[1], "router r1: standby");
    routers.iter().for_each(|router| shows(router, "LUN 0:"));
    let failover = |router: &Server| {
        until("a failover", || router.asked(&["router", "failover", "r1"]).ok().then_some(()));
    };
    let portals = nvme.map(|port| format!("{HOST}:{port}")).join(" ");
    let mut scenario = lab.alone("nvme_pair", &[("NVME", portals.as_str()), ("NQN", NQN)]);
    scenario.when_asked("failover", || failover(&routers[0]));
    scenario.when_asked("kill", || routers[1].kill9());
    scenario.when_asked("return", || routers[1].restart());
    scenario.when_asked("failback", || failover(&routers[0]));
    scenario.must_pass();
}

/// Old storage by NVMe: the block device of a SCSI disk, and its SCSI generic device behind a passthrough router.
#[test]
fn nvme_gives_a_scsi_disk_of_this_machine_a_face() {
    let Some(lab) = lab() else { return };
    let program = lunar_bin();
    lab.alone("nvme_sg", &[("LUNAR", program.to_str().expect("a path in UTF-8"))]).must_pass();
}
