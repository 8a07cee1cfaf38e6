//! Whole sessions over software iWARP, with a target on another thread, including reconnection.

use super::*;
use crate::session::Session;
use compio::runtime::Runtime;
use lunar_runtime::Stream;
use lunar_wire::srp::task_status;
use lunar_wire::srp::{PortId, TaskManagement};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;
const INQUIRY: u8 = 0x12;
/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(60);

/// The behavior of a target on one connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Executes all requests.
    Serves,
    /// Closes the connection on a read.
    HangsUp,
    /// Sends no responses.
    IsSilent,
    /// Neither responds to reads nor aborts them.
    Refuses,
}

/// The requests received on one connection.
#[derive(Default)]
struct Seen {
    initiator: PortId,
    /// The operation codes of commands.
    commands: Vec<u8>,
    /// The codes of task management functions.
    functions: Vec<u8>,
}

/// A target with a disk in memory.
struct Disk {
    endpoint: Rc<dyn Endpoint>,
    manner: Manner,
    seen: Seen,
    data: Vec<u8>,
    /// The disk offsets of writes whose data are being read by RDMA, by tag.
    fetched: Vec<(u64, usize)>,
}

impl Disk {
    /// Serves the connection until it ends.
    async fn serve(&mut self) {
        let mut events = EndpointEvents::default();
        loop {
            while !self.endpoint.flush().unwrap_or(true) {
                _ = self.endpoint.writable().await;
            }
            if self.endpoint.readable().await.is_err() {
                return;
            }
            self.endpoint.poll(&mut events);
            for event in std::mem::take(&mut events.list) {
                match event {
                    EndpointEvent::Message(range, _) => self.unit(&events.bytes[range]),
                    EndpointEvent::Read(tag, buf, _) => self.fetched(tag, &buf),
                    EndpointEvent::End(_) => return,
                }
            }
            events.clear();
        }
    }

    fn unit(&mut self, unit: &[u8]) {
        self.endpoint.receives(1, srp::LINUX_IU_LEN);
        match FromInitiator::decode(unit, Some(srp::IMMEDIATE_OFFSET)).expect("a valid information unit") {
            FromInitiator::Command(command) => self.command(&command),
            FromInitiator::TaskManagement(TaskManagement { tag, function, .. }) => {
                self.seen.functions.push(function);
                self.respond(tag, &[0, 0, 0, task_status::FAILED]);
            }
            other => panic!("{other:?}"),
        }
    }

    fn command(&mut self, command: &srp::SrpCommand<'_>) {
        let code = command.cdb[0];
        self.seen.commands.push(code);
        match (self.manner, code) {
            (Manner::IsSilent, _) | (Manner::Refuses, READ_10) => return,
            (Manner::HangsUp, READ_10) => return self.endpoint.close(),
            _ => {}
        }
        let at = u32::from_be_bytes(command.cdb[2..6].try_into().expect("four bytes")) as usize * 512;
        match (code, command.data_out, command.data_in) {
            (READ_10, _, DataBuffer::Direct(to)) => {
                let bytes = self.data[at..at + to.len as usize].to_vec();
                self.endpoint.write(remote(to), Payload::Bytes(bytes));
            }
            (WRITE_10, DataBuffer::Immediate(bytes), _) => {
                self.data[at..at + bytes.len()].copy_from_slice(bytes)
            }
            (WRITE_10, DataBuffer::Direct(from), _) => {
                let len = from.len as usize;
                self.fetched.push((command.tag, at));
                return self.endpoint.read(command.tag, remote(from), Buf::zeroed(len), 0, len);
            }
            _ => {}
        }
        self.respond(command.tag, &[]);
    }

    fn fetched(&mut self, tag: u64, buf: &[u8]) {
        let at = self.fetched.iter().find(|(fetched, _)| *fetched == tag).expect("a write with this tag").1;
        self.data[at..at + buf.len()].copy_from_slice(buf);
        self.respond(tag, &[]);
    }

    fn respond(&self, tag: u64, data: &[u8]) {
        let mut unit = Vec::new();
        SrpResponse { tag, credits: 1, data, ..SrpResponse::default() }.encode(&mut unit);
        self.endpoint.send(&unit, Payload::Empty, None);
    }
}

/// Accepts a connection and serves it in this manner.
async fn take(listener: &TcpListener, manner: Manner, data: Vec<u8>) -> (Vec<u8>, Seen) {
    let (socket, peer) = listener.accept().expect("a connection");
    let stream = Stream::new(socket).expect("a stream");
    let local = listener.local_addr().expect("bound");
    let how = lunar_rdma::iwarp::Options::default();
    let asked = lunar_rdma::iwarp::request(stream, Vec::new(), local, peer, &how).await.expect("a request");
    let login = LoginRequest::decode(asked.private(), LoginFormat::RdmaCm).expect("a login");
    let receives = (16, srp::LINUX_IU_LEN);
    let terms = ConnParam { ord: 8, ird: 0, receives };
    let endpoint = asked.accept(granted(16, true).encode().to_vec(), terms).await.expect("accepted");
    let seen = Seen { initiator: login.initiator, ..Seen::default() };
    let mut disk = Disk { endpoint, manner, seen, data, fetched: Vec::new() };
    disk.serve().await;
    (disk.data, disk.seen)
}

/// A target that accepts one connection after the other, with these manners.
fn target(manners: &'static [Manner]) -> (SocketAddr, JoinHandle<Vec<Seen>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serving = std::thread::spawn(move || {
        Runtime::new().expect("an event loop").block_on(async {
            let (mut data, mut all) = (vec![0; 1 << 20], Vec::new());
            for manner in manners {
                let (after, seen) = take(&listener, *manner, data).await;
                data = after;
                all.push(seen);
            }
            all
        })
    });
    (address, serving)
}

/// Runs `work` in a session with a scripted target, and returns the requests that the target received.
fn with(manners: &'static [Manner], options: Options, work: impl AsyncFnOnce(&Session)) -> Vec<Seen> {
    let (address, serving) = target(manners);
    let portal = Portal { host: address.ip().to_string(), port: address.port() };
    Runtime::new().expect("an event loop").block_on(async {
        let used = async {
            let session = Session::open(portal, TARGET, options).await.unwrap_or_else(|e| panic!("{e}"));
            work(&session).await;
            session.close().await.unwrap_or_else(|e| panic!("{e}"));
        };
        compio::time::timeout(LIMIT, used).await.expect("the test hangs");
    });
    serving.join().expect("the target")
}

async fn perform(session: &Session, cdb: Cdb, data: Direction) -> (Completion, Option<Buf>) {
    let (result, buf) = session.submit(Command::new(LUN, cdb, data)).await;
    (result.unwrap_or_else(|e| panic!("{e}")), buf)
}

async fn read(session: &Session, lba: u32, blocks: u16) -> Vec<u8> {
    let data = Direction::In(Buf::zeroed(usize::from(blocks) * 512));
    let (done, buf) = perform(session, cdb::read_10(lba, blocks), data).await;
    assert_eq!((done.status, done.transferred), (0, usize::from(blocks) * 512));
    buf.expect("its buffer").to_vec()
}

#[test]
fn written_data_is_read_back() {
    let seen = with(&[Manner::Serves], options(), async |session| {
        for (lba, blocks) in [(0, 1), (8, 16), (100, 17), (200, 1024)] {
            let data = pattern(usize::from(blocks) * 512);
            let done =
                perform(session, cdb::write_10(lba, blocks, false), Direction::Out(buf(&data))).await.0;
            assert_eq!((done.status, done.transferred), (0, data.len()));
            assert!(read(session, lba, blocks).await == data);
        }
        let info = session.info();
        assert_eq!((info.target.as_str(), info.recoveries), (TARGET, 0));
        assert_eq!(session.window(), Some(15));
    });
    assert_eq!(seen[0].commands, [WRITE_10, READ_10].repeat(4));
}

#[test]
fn lost_connection_is_replaced_and_the_command_resent() {
    let seen = with(&[Manner::HangsUp, Manner::Serves], options(), async |session| {
        let data = pattern(512);
        perform(session, cdb::write_10(3, 1, false), Direction::Out(buf(&data))).await;
        assert!(read(session, 3, 1).await == data);
        assert_eq!(session.info().recoveries, 1);
    });
    assert_eq!([&seen[0].commands[..], &seen[1].commands], [&[WRITE_10, READ_10][..], &[READ_10]]);
    assert_eq!(
        seen[0].initiator, seen[1].initiator,
        "the same port, so that the login ends the earlier session"
    );
}

/// As when two hosts log in with the same port and keep ending each other's sessions.
#[test]
fn session_lost_repeatedly_waits_before_the_next() {
    const AGAIN: Manner = Manner::HangsUp;
    let started_at = std::time::Instant::now();
    with(&[AGAIN, AGAIN, AGAIN, Manner::Serves], options(), async |session| {
        read(session, 0, 1).await;
        assert_eq!(session.info().recoveries, 3);
    });
    assert!(started_at.elapsed() >= Duration::from_millis(250 + 500), "{:?}", started_at.elapsed());
}

#[test]
fn silent_target_is_given_up() {
    let mut options = options();
    options.timeouts.noop_interval = Duration::from_millis(50);
    options.timeouts.noop = Duration::from_millis(50);
    let seen = with(&[Manner::IsSilent, Manner::Serves], options, async |session| {
        read(session, 0, 1).await;
    });
    assert_eq!(seen[0].commands, [READ_10, INQUIRY]);
    assert!(seen[1].commands.contains(&READ_10));
}

/// ABORT TASK and LOGICAL UNIT RESET fail. SRP has no target reset, so the connection is replaced.
#[test]
fn command_that_cannot_be_ended_is_resent_after_reconnect() {
    let mut options = options();
    options.timeouts.command = Duration::from_millis(50);
    let seen = with(&[Manner::Refuses, Manner::Serves], options, async |session| {
        read(session, 0, 1).await;
    });
    assert_eq!(seen[0].functions, [1, 8]);
    assert!(seen[1].functions.is_empty() && seen[1].commands == [READ_10]);
}

#[test]
fn two_sessions_of_one_host_have_ports_of_their_own() {
    let ports = [(); 2].map(|()| with(&[Manner::Serves], options(), async |_| {})[0].initiator);
    assert!(ports[0].extension() != ports[1].extension() && ports[0].guid() == ports[1].guid());
}
