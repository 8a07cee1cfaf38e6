//! Hundreds of connections that misbehave and close. They do not disturb another session, the neighbour, and leave no
//! resources behind.

use interop::scsi::{READ, WRITE, read10, write10};
use interop::{Login, Pdu, Raw, Server, TARGET, config, op};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// The growth of the server that a storm may leave, in KiB.
const GROWTH_KIB: u64 = 64 << 10;
/// Concurrent clients.
const THREADS: u32 = 4;

/// A session that does I/O until it is stopped, and fails on any wrong response.
struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u32>,
}

impl Neighbour {
    fn begin(portal: SocketAddr) -> Neighbour {
        let mut raw = Raw::session(portal, &[]);
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut done = 0;
            while !is_stopped.load(Ordering::Relaxed) {
                let (lba, data) = (1000 + done % 64, [done as u8; 4096]);
                raw.write_blocks(0, lba, &data).good();
                assert_eq!(raw.read_blocks(0, lba, 8), data);
                done += 1;
            }
            raw.ping();
            done
        });
        Neighbour { stop, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let done = self.thread.join().expect("the neighbour saw an error");
        assert!(done > 10, "the neighbour did no more than {done} writes");
    }
}

fn open_files(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("the server lives").count()
}

/// Waits until no more files are open than before, and checks that memory has not grown.
fn settles(server: &Server, (rss_kib, files): (u64, usize)) {
    let end = Instant::now() + Duration::from_secs(20);
    while open_files(server) > files {
        assert!(Instant::now() < end, "{} files are open, {files} were", open_files(server));
        sleep(Duration::from_millis(50));
    }
    let grown = server.rss_kib().saturating_sub(rss_kib);
    assert!(grown < GROWTH_KIB, "the server has grown by {grown} KiB");
}

/// Memory in KiB and open files before a storm, including the connections of the test.
fn state(server: &Server) -> (u64, usize) {
    (server.rss_kib(), open_files(server))
}

type BadConnection = fn(SocketAddr, u32);

/// Connections that misbehave. In each case, the client closes the connection.
const BAD_CONNECTIONS: [BadConnection; 8] = [
    |portal, _| Raw::connect(portal).cut(),
    |portal, n| {
        let mut raw = Raw::connect(portal);
        raw.send_bytes(&garbage(n, 4096));
        raw.cut();
    },
    // Garbage with the opcode of a Login Request.
    |portal, n| {
        let mut raw = Raw::connect(portal);
        let mut bytes = garbage(n, 48);
        (bytes[0], bytes[1]) = (0x43, 0x87);
        raw.send_bytes(&bytes);
        raw.cut();
    },
    // Half of a login.
    |portal, n| {
        let (login, mut raw) = (Login::new(), Raw::connect(portal));
        let bytes = login.request(1, Some(3)).encode(false, false);
        raw.send_bytes(&bytes[..n as usize * 7 % bytes.len()]);
        raw.cut();
    },
    // A complete login, whose response is not read.
    |portal, _| {
        let (login, mut raw) = (Login::new(), Raw::connect(portal));
        raw.send(&login.request(1, Some(3)));
        raw.cut();
    },
    // A login that stops between two stages.
    |portal, _| {
        let login = Login::new();
        let mut raw = login.connect(portal);
        raw.login(&login.request(0, Some(1)));
        raw.cut();
    },
    // A disconnect with commands in flight, one of which waits for its data.
    |portal, n| {
        let mut raw = Login::new().on(portal);
        let slow = raw.command(2, 0x80 | READ, &read10(0, 8), 4096);
        let waits = raw.command(0, 0x80 | WRITE, &write10(n, 128), 65536);
        raw.send_all(&[slow, waits]);
        raw.cut();
    },
    // An abort and a reset of a command that was just sent.
    |portal, _| {
        let mut raw = Login::new().on(portal);
        let slow = raw.command(2, 0x80 | READ, &read10(0, 8), 4096);
        let abort = raw.tmf(1, 2, slow.tag(), slow.get32(24));
        let reset = raw.tmf(5, 2, interop::NONE, 0);
        raw.send_all(&[slow, abort, reset]);
        raw.cut();
    },
];

fn garbage(seed: u32, length: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Calls `work` for every number below `count`, on several threads.
fn by_many(count: u32, work: impl Fn(u32) + Sync) {
    let next = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    match next.fetch_add(1, Ordering::Relaxed) {
                        n if n < count => work(n),
                        _ => return,
                    }
                }
            });
        }
    });
}

#[test]
fn bad_connections_leave_no_sessions() {
    let mut server = Server::start(&config::standard());
    let neighbour = Neighbour::begin(server.portal());
    let before = state(&server);
    by_many(200, |n| BAD_CONNECTIONS[n as usize % BAD_CONNECTIONS.len()](server.portal(), n));
    settles(&server, before);
    neighbour.end();
    assert!(server.lives());
    Raw::session(server.portal(), &[]).ping();
}

/// Logs in with one ISID without waiting for commands in flight: the next login reinstates the session.
fn reinstate(portal: SocketAddr, n: u32) {
    let login = Login::new().isid([0x80, 0, 0, 0x55, 0, 1]);
    let mut raw = login.connect(portal);
    raw.send(&login.request(1, Some(3)));
    // Another login may replace this session before or after the response. The connection then ends, which is
    // correct.
    let Some(answer) = next(&mut raw) else { return };
    assert_eq!((answer.opcode(), answer.status()), (op::LOGIN_RESPONSE, 0), "{answer:?}");
    let data = [n as u8; 4096];
    let commands = [
        raw.request(op::SCSI).flags(0x81 | WRITE).set32(20, 4096).bytes(32, &write10(n, 8)).data(&data),
        raw.request(op::SCSI).flags(0x81 | READ).lun(2).set32(20, 4096).bytes(32, &read10(n, 8)),
    ];
    raw.send_all(&commands);
    while next(&mut raw).is_some_and(|pdu| pdu.opcode() == op::ASYNC || pdu.tag() != commands[0].tag()) {}
}

fn next(raw: &mut Raw) -> Option<Pdu> {
    match raw.get(Duration::from_secs(20)) {
        interop::Received::Pdu(pdu) => Some(pdu),
        interop::Received::Closed => None,
        interop::Received::Nothing => panic!("no response and no close in time"),
    }
}

#[test]
fn session_reinstated_in_parallel_under_io_ends_with_one() {
    let mut server = Server::start(&config::standard());
    let neighbour = Neighbour::begin(server.portal());
    let before = state(&server);
    by_many(60, |n| reinstate(server.portal(), n));
    let mut last = Login::new().isid([0x80, 0, 0, 0x55, 0, 1]).on(server.portal());
    last.clear_attentions(0);
    last.write_blocks(0, 0, &[1; 512]).good();
    assert_eq!(last.read_blocks(0, 0, 1), [1; 512]);
    last.cut();
    settles(&server, before);
    neighbour.end();
    assert!(server.lives());
}

/// Logs in over a plain socket, with the default MaxRecvDataSegmentLength.
fn plain_login(server: &Server) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect(server.portal())?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let keys = ["InitiatorName=iqn.2026-11.org.example:full", &format!("TargetName={TARGET}")];
    let mut text: Vec<u8> = keys.iter().flat_map(|k| [k.as_bytes(), b"\0"].concat()).collect();
    let mut request = [0; 48];
    (request[0], request[1], request[6], request[7]) =
        (0x43, 0x87, (text.len() >> 8) as u8, text.len() as u8);
    (request[8], request[27]) = (0x80, 1);
    text.resize(text.len().next_multiple_of(4), 0);
    socket.write_all(&[&request[..], &text].concat())?;
    let mut answer = [0; 48];
    socket.read_exact(&mut answer)?;
    assert_eq!((answer[0], answer[36]), (0x23, 0), "a login that succeeds");
    Ok(socket)
}

/// The client requests much more than it reads, and closes. Its core must continue to serve others.
#[test]
fn departed_reader_with_unread_data_frees_its_core() {
    let server = Server::start(&format!(
        "[server]\ncores = 1\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1TiB\"\n"
    ));
    let mut reader = plain_login(&server).expect("a login");
    for i in 0..120u8 {
        let mut command = [0; 48];
        (command[0], command[1], command[19], command[27]) = (0x01, 0xc1, i, 1 + i);
        (command[21], command[32], command[44]) = (0x80, 0x88, 0x40);
        reader.write_all(&command).expect("a command");
    }
    // Unread data make the close a reset.
    sleep(Duration::from_millis(500));
    drop(reader);
    sleep(Duration::from_millis(500));
    plain_login(&server).expect("another login on the same core");
}
