//! A host that proves its secret again on queues that are served, as Linux does when its administrator changes the secret.

use super::authenticate::{ANN, negotiation, receive, send};
use super::{config, portal, queue, server};
use interop::nvme::{DNR, NvmeEntry, NvmeHostName, NvmeWire, connect_data};
use interop::raw::patience;
use interop::routed::until;
use interop::{Folder, Server};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const GUARDED: &str = "nqn.2026-11.org.example:guarded";
/// Secrets whose keys have 32 equal bytes: these.
const SECRETS: [(u8, &str); 2] = [
    (0x11, "DHHC-1:00:ERERERERERERERERERERERERERERERERERERERERERHYIEm8:\n"),
    (0x22, "DHHC-1:00:IiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIGuf2I:\n"),
];
/// The first bytes of messages of the controller.
const SUCCESS: [u8; 2] = [0x01, 0x03];
const FAILURE: [u8; 2] = [0x00, 0xf1];
const SEQUENCE: u16 = DNR | 0x0c;

fn hmac(key: &[u8; 32], message: &[u8]) -> Vec<u8> {
    let pad = |byte: u8| {
        let mut block = [byte; 64];
        block.iter_mut().zip(key).for_each(|(to, from)| *to ^= from);
        Sha256::new().chain_update(block)
    };
    let inner = pad(0x36).chain_update(message).finalize();
    pad(0x5c).chain_update(inner).finalize().to_vec()
}

/// Runs an exchange with SHA-256 and without a group. Returns the kind of the last message.
fn exchange(wire: &mut NvmeWire, key: u8) -> [u8; 2] {
    send(wire, &negotiation()).good();
    let challenge = receive(wire).good();
    let transaction = [7, 0];
    let message = [
        &challenge[16..48],
        &challenge[12..16],
        &transaction,
        &[0],
        b"HostHost",
        ANN.as_bytes(),
        &[0],
        GUARDED.as_bytes(),
    ];
    let response = hmac(&[key; 32], &message.concat());
    let head = [1, 2, 0, 0, transaction[0], transaction[1], 32, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    send(wire, &[&head[..], &response, &[0; 32]].concat()).good();
    let last = receive(wire).good();
    [last[0], last[1]]
}

struct Guarded {
    server: Server,
    folder: Folder,
}

impl Guarded {
    fn start() -> Guarded {
        let folder = Folder::fresh();
        let file = folder.join("host.key").display().to_string();
        let subsystem = format!(
            "[[subsystem]]\nnqn = \"{GUARDED}\"\nportal_groups = [1]\n\
             [[subsystem.host]]\nnqn = \"{ANN}\"\nsecret_file = \"{file}\"\n\
             [[subsystem.namespace]]\nnsid = 1\nbackend = \"memory\"\nsize = \"8MiB\"\n\
             filters = [{{ kind = \"delay\", read_us = 100000 }}]\n",
        );
        write_secret(&folder, 0);
        Guarded { server: Server::start(&config(&subsystem)), folder }
    }

    /// A queue that is connected and authenticated with the first secret, and the identifier of its controller.
    fn connect(&self, queue: u16, controller: u16) -> (NvmeWire, u16) {
        let mut wire = NvmeWire::begin(portal(&self.server), 0);
        let data = connect_data(&NvmeHostName::new("ann"), controller, GUARDED);
        let connected = wire.execute(&NvmeEntry::connect(queue, 31, 0), &data);
        assert_eq!((connected.status, exchange(&mut wire, SECRETS[0].0)), (0, SUCCESS));
        (wire, connected.result as u16)
    }

    /// An enabled controller by its admin queue, and an I/O queue.
    fn queues(&self) -> [NvmeWire; 2] {
        let (mut admin, id) = self.connect(0, 0xffff);
        admin.execute(&NvmeEntry::configure(0x46_0001), &[]).good();
        while admin.execute(&NvmeEntry::property(0x1c, false), &[]).result & 1 == 0 {}
        [admin, self.connect(1, id).0]
    }

    /// The second secret becomes that of the host.
    fn change_secret(&self) {
        write_secret(&self.folder, 1);
        self.server.said(&["reload"]);
    }
}

fn write_secret(folder: &Folder, secret: usize) {
    let (new, file) = (folder.join("new.key"), folder.join("host.key"));
    fs::write(&new, SECRETS[secret].1).expect("write a secret");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("permissions");
    fs::rename(&new, &file).expect("rename");
}

/// Commands go on during the exchange, and after it.
#[test]
fn host_proves_its_secret_again_on_each_queue() {
    let guarded = Guarded::start();
    let [mut admin, mut queue] = guarded.queues();
    for _ in 0..3 {
        receive(&mut admin).is(SEQUENCE);
        assert_eq!(exchange(&mut admin, SECRETS[0].0), SUCCESS);
        admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
        let read = queue.submit(&NvmeEntry::read(1, 0, 8), &[]);
        receive(&mut queue).is(SEQUENCE);
        assert_eq!(exchange(&mut queue, SECRETS[0].0), SUCCESS);
        assert_eq!(queue.collect(read, &[]).good().len(), 4096);
    }
}

/// An open controller goes on with the secret of before until its host proves a secret again, which must be the new one.
#[test]
fn changed_secret_is_that_of_the_next_proof() {
    let guarded = Guarded::start();
    let [mut admin, mut queue] = guarded.queues();
    guarded.change_secret();
    queue.execute(&NvmeEntry::read(1, 0, 8), &[]).good();
    for wire in [&mut admin, &mut queue] {
        assert_eq!(exchange(wire, SECRETS[1].0), SUCCESS);
    }
    queue.execute(&NvmeEntry::read(1, 0, 8), &[]).good();
    assert_eq!(exchange(&mut admin, SECRETS[0].0), FAILURE);
    admin.expect_close(patience());
    queue.expect_close(patience());
    until("the log", || guarded.server.log().contains("did not prove its secret again").then_some(()));
}

#[test]
fn failed_proof_on_an_io_queue_ends_it() {
    let guarded = Guarded::start();
    let [mut admin, mut queue] = guarded.queues();
    assert_eq!(exchange(&mut queue, SECRETS[1].0), FAILURE);
    queue.expect_close(patience());
    admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
    let log = format!("the secret of the host is not that in {}", guarded.folder.display());
    until("the log", || guarded.server.log().contains(&log).then_some(()));
}

/// The target executes one command of an exchange at a time.
#[test]
fn hasty_messages_end_without_a_stuck_command() {
    let guarded = Guarded::start();
    for wire in &mut guarded.queues() {
        let message = negotiation();
        let len = message.len() as u32;
        let entry = NvmeEntry::new(0x7f, 5).dword(10, 0xe901_0100).dword(11, len).in_capsule(len);
        let ids: Vec<u16> = (0..16).map(|_| wire.submit(&entry, &message)).collect();
        let statuses: Vec<u16> = ids.into_iter().map(|id| wire.collect(id, &[]).status).collect();
        assert!(statuses[0] == 0 && statuses.iter().all(|status| [0, SEQUENCE].contains(status)));
        assert_eq!(exchange(wire, SECRETS[0].0), SUCCESS);
    }
}

#[test]
fn host_without_a_secret_has_nothing_to_prove() {
    let server = server();
    let (mut it, mut queue) = queue(&server, "host");
    for wire in [&mut it.admin, &mut queue] {
        send(wire, &negotiation()).is(DNR | 2);
        receive(wire).is(DNR | 2);
    }
    super::read(&mut queue, 0, 1);
}
