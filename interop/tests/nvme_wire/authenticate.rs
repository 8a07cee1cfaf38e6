//! DH-HMAC-CHAP: nothing is served before the host has proved that it knows its secret.

use super::{config, portal};
use interop::command::{CommandOutput, lunar};
use interop::nvme::{DNR, NvmeEntry, NvmeHostName, NvmeReply, NvmeWire, WireEvent, connect_data};
use interop::routed::until;
use interop::{Folder, Server};
use std::time::Duration;

const GUARDED: &str = "nqn.2026-11.org.example:guarded";
const AUTHENTICATION_REQUIRED: u64 = 1 << 17;
const NOT_AUTHENTICATED: u16 = DNR | 0x191;
const NOT_ALLOWED: u16 = DNR | 0x184;
const LIMIT: Duration = Duration::from_secs(10);
/// Authentication Send and Receive: FCTYPE, and the protocols of NVMe.
const SEND: u32 = 0x05;
const RECEIVE: u32 = 0x06;
const PROTOCOL: u32 = 0xe901_0100;
pub const ANN: &str = "nqn.2026-11.org.example:ann";

struct Guarded {
    server: Server,
    folder: Folder,
}

fn guarded() -> Guarded {
    let folder = Folder::fresh();
    let file = |name: &str| folder.join(name).display().to_string();
    let own = ["--nvme=subsystem", GUARDED, "--key-length", "64", "--output", &file("own.key")];
    for secret in [own, ["--nvme", ANN, "--hash", "sha384", "--output", &file("host.key")]] {
        let (_, errors, code) = lunar(&[&["chap", "add"], &secret[..]].concat());
        assert_eq!(code, 0, "{errors}");
    }
    let subsystem = format!(
        "[[subsystem]]\nnqn = \"{GUARDED}\"\nportal_groups = [1]\nsecret_file = \"{}\"\n\
         [[subsystem.host]]\nnqn = \"{ANN}\"\nsecret_file = \"{}\"\n\
         [[subsystem.namespace]]\nnsid = 1\nbackend = \"memory\"\nsize = \"64MiB\"\n",
        file("own.key"),
        file("host.key"),
    );
    Guarded { server: Server::start(&config(&subsystem)), folder }
}

impl Guarded {
    /// A queue of the host `ann` that is connected, and not authenticated.
    fn connect(&self) -> NvmeWire {
        let mut wire = NvmeWire::begin(portal(&self.server), 0);
        let data = connect_data(&NvmeHostName::new("ann"), 0xffff, GUARDED);
        let reply = wire.execute(&NvmeEntry::connect(0, 31, 0), &data);
        assert_eq!((reply.status, reply.result & AUTHENTICATION_REQUIRED), (0, AUTHENTICATION_REQUIRED));
        wire
    }

    /// Runs a command with a URL that has these settings; `{}` is the folder of the secrets.
    fn run(&self, command: &str, settings: &str) -> CommandOutput {
        let settings = settings.replace("{}", &self.folder.display().to_string());
        lunar(&[command, &format!("nvme://{}/{GUARDED}/1?host_nqn={ANN}{settings}", portal(&self.server))])
    }
}

/// Authentication Send.
pub fn send(wire: &mut NvmeWire, message: &[u8]) -> NvmeReply {
    let len = message.len() as u32;
    let entry = NvmeEntry::new(0x7f, SEND).dword(10, PROTOCOL).dword(11, len).in_capsule(len);
    wire.execute(&entry, message)
}

/// Authentication Receive.
pub fn receive(wire: &mut NvmeWire) -> NvmeReply {
    wire.execute(&NvmeEntry::new(0x7f, RECEIVE).dword(10, PROTOCOL).dword(11, 4096).on_host(4096), &[])
}

/// The host offers SHA-256 without a group.
pub fn negotiation() -> Vec<u8> {
    let mut message = vec![0; 72];
    message[4] = 7;
    (message[7], message[8], message[10], message[11], message[12]) = (1, 1, 1, 1, 1);
    message
}

#[test]
fn unauthenticated_queue_takes_no_other_command() {
    let guarded = guarded();
    let mut wire = guarded.connect();
    for entry in [
        NvmeEntry::property(0, true),
        NvmeEntry::configure(0x0046_0001),
        NvmeEntry::identify(1, 0).on_host(4096),
        NvmeEntry::read(1, 0, 1),
    ] {
        wire.execute(&entry, &[]).is(NOT_AUTHENTICATED);
    }
    assert_ne!(receive(&mut wire).status, 0, "the host sends first");
    send(&mut wire, &negotiation()).good();
    // A host that never ends its exchange is not served for ever.
    for _ in 0..64 {
        wire.submit(&NvmeEntry::property(0, true), &[]);
        match wire.get(LIMIT) {
            WireEvent::Pdu(_) => {}
            WireEvent::Closed => return,
            WireEvent::Nothing => panic!("no answer"),
        }
    }
    panic!("the connection goes on");
}

#[test]
fn guessed_response_ends_the_connection() {
    let guarded = guarded();
    let mut wire = guarded.connect();
    send(&mut wire, &negotiation()).good();
    let challenge = receive(&mut wire).good();
    assert_eq!((&challenge[..2], challenge[6], challenge[8], challenge[9]), (&[1, 1][..], 32, 1, 0));
    let mut reply = vec![0x5a; 16 + 32 + 32];
    reply[..16].fill(0);
    (reply[0], reply[1], reply[4], reply[6]) = (1, 2, 7, 32);
    send(&mut wire, &reply).good();
    let failure = receive(&mut wire).good();
    assert_eq!((&failure[..2], failure[6]), (&[0, 0xf1][..], 1));
    wire.expect_close(LIMIT);
    until("the log", || guarded.server.log().contains("authentication failed").then_some(()));
}

#[test]
fn host_that_leaves_before_its_proof_is_logged_so() {
    let guarded = guarded();
    drop(guarded.connect());
    let expected = "the host has not ended its authentication";
    until("the log", || guarded.server.log().contains(expected).then_some(()));
}

#[test]
fn host_with_its_secret_uses_the_namespace() {
    let guarded = guarded();
    for (settings, expected) in [
        ("", "requires authentication"),
        ("&secret_file={}/host.key", ""),
        ("&secret_file={}/host.key&subsystem_secret_file={}/own.key", ""),
    ] {
        let (_, errors, code) = guarded.run("info", settings);
        assert_eq!(code == 0, expected.is_empty(), "{settings}: {errors}");
        assert!(errors.contains(expected), "{settings}: {errors}");
    }
}

#[test]
fn wrong_secret_is_named_by_both_sides() {
    let guarded = guarded();
    let folder = guarded.folder.display();
    for (settings, ours, logged) in [
        (
            "&secret_file={}/own.key",
            format!("authentication failed: the controller has another secret for the host {ANN}\n"),
            format!("authentication failed: the secret of the host is not that in {folder}/host.key; hint: "),
        ),
        (
            "&secret_file={}/host.key&subsystem_secret_file={}/host.key",
            "authentication failed: the controller has another secret of the subsystem than this host\n"
                .into(),
            format!("for the host, the secret of the subsystem is not that in {folder}/own.key; hint: "),
        ),
    ] {
        let (_, errors, code) = guarded.run("info", settings);
        assert!(code != 0 && errors.contains(&ours), "{settings}: {errors}");
        until(&logged, || {
            let log = guarded.server.log();
            log.lines().any(|line| line.contains(&logged) && line.contains(ANN)).then_some(())
        });
    }
}

#[test]
fn unknown_host_is_refused_before_authentication() {
    let guarded = guarded();
    let mut wire = NvmeWire::begin(portal(&guarded.server), 0);
    let data = connect_data(&NvmeHostName::new("bob"), 0xffff, GUARDED);
    wire.execute(&NvmeEntry::connect(0, 31, 0), &data).is(NOT_ALLOWED);
}

#[test]
fn doctor_shows_whether_a_host_has_authenticated() {
    let guarded = guarded();
    let (report, _, status) = guarded.run("doctor", "&secret_file={}/host.key");
    assert!(status == 0 && report.contains("authentication: DH-HMAC-CHAP\n"), "{report}");
    assert!(!report.contains("requires no authentication"), "{report}");
    let (report, err, status) = guarded.run("doctor", "");
    assert!(
        report.contains("\nbroken: ") && report.contains("hint: add secret_file=FILE to the URL"),
        "{report}"
    );
    assert!(status == 24 && err.ends_with("cannot be used: see the report\n"), "{err}");
}
