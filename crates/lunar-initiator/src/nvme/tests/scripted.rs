//! A controller of one namespace in threads, whose bytes are written by hand.

use super::{c2h_data, r2t, response};
use crate::nvme::options::Nqn;
use crate::nvme::{NvmeOptions, SubsystemAddress};
use crate::{Error, Portal};
use lunar_runtime::Cores;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Bytes of the namespace.
pub const CAPACITY: usize = 1 << 20;
/// Bytes of data that a capsule has room for.
const CAPSULE: usize = 512;
/// The identifier of the controller.
const ID: u16 = 3;

/// The behaviour of the controller, and the commands that it has seen.
pub struct Script {
    /// The medium.
    pub medium: Vec<u8>,
    /// Opcodes of all commands, with the first dword of their parameters.
    pub seen: Vec<(u8, u32)>,
    /// The first byte of each write that was executed.
    pub writes: Vec<u8>,
    /// The number of the I/O command from which on none is answered, until the connections are cut.
    pub silent_from: usize,
    /// Whether a command that is not answered cuts all connections.
    pub cuts: bool,
    /// The identifier of the host in each Connect.
    pub hosts: Vec<[u8; 16]>,
    /// Whether there is a volatile write cache.
    pub has_cache: bool,
    /// Writes with FUA.
    pub forced: u32,
    /// Whether new connections are closed at once.
    pub refuses: bool,
    /// The result and the status of Connect on the admin queue.
    pub connect: (u64, u16),
    /// The value of CSTS once the controller is enabled.
    pub status: u32,
    /// The identifier of the controller in Identify.
    pub identified: u16,
    /// The UUID of the namespace.
    pub uuid: [u8; 16],
    /// The number of a namespace with another UUID, or with an answer that there is none.
    pub odd: Option<(u32, OddNamespace)>,
    /// The status of the list of identifiers.
    pub identifiers: u16,
    /// Blocks of the namespace.
    pub blocks: u64,
    /// The last value of CC.
    pub configuration: u32,
    /// Connections, to cut them.
    pub streams: Vec<TcpStream>,
    /// The event request that waits: its connection and its identifier.
    pub event: Option<(TcpStream, u16)>,
    /// The generation of the discovery log page, and how often it changes while it is read.
    pub generation: (u64, u32),
    /// Whether it is a discovery controller.
    pub is_discovery: bool,
    /// This many reads and writes to come fail, with this status.
    pub failures: (u32, u16),
    /// The status of Write Zeroes.
    pub zeroes: u16,
    /// DLFEAT: how deallocated blocks read, and whether Write Zeroes deallocates.
    pub deallocation: u8,
    /// The access log page (ANA), if the controller has one.
    pub access_log: Option<Vec<u8>>,
    /// OAES.
    pub offered_events: u32,
    /// Whether it refuses requests for events.
    pub refuses_events: bool,
    /// The last value of the feature Asynchronous Event Configuration.
    pub events: u32,
    /// I/O commands so far.
    io_commands: usize,
    /// The number of I/O queues that it grants, and of those that it connects.
    pub queues: (u16, u16),
    /// Whether the other queues get no answer to Connect.
    pub ignores_others: bool,
    /// These Connects: number of the queue, connection, and identifier of the command.
    pub ignored: Vec<(u16, TcpStream, u16)>,
    /// The binary logarithm of the most pages in a command (MDTS).
    pub transfer: u8,
    /// The connections of I/O queues, by the number of the queue.
    pub io_streams: Vec<(u16, TcpStream)>,
    /// The opcode of each I/O command, by the number of its queue.
    pub seen_on: Vec<(u16, u8)>,
}

/// How a namespace differs from the others.
#[derive(Clone, Copy)]
pub enum OddNamespace {
    Uuid([u8; 16]),
    /// Identify ends with this status, or with a page of zeros.
    Absent(u16),
}

/// A running controller.
#[derive(Clone)]
pub struct ScriptedController {
    script: Arc<Mutex<Script>>,
    port: u16,
}

impl ScriptedController {
    /// Starts a controller that works.
    pub fn start() -> ScriptedController {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let script = Arc::new(Mutex::new(Script {
            medium: vec![0; CAPACITY],
            seen: Vec::new(),
            writes: Vec::new(),
            silent_from: usize::MAX,
            cuts: false,
            hosts: Vec::new(),
            has_cache: true,
            forced: 0,
            refuses: false,
            connect: (ID.into(), 0),
            status: 1,
            identified: ID,
            uuid: [0xab; 16],
            odd: None,
            identifiers: 0,
            blocks: CAPACITY as u64 / 512,
            configuration: 0,
            streams: Vec::new(),
            event: None,
            generation: (7, 0),
            is_discovery: false,
            failures: (0, 0),
            zeroes: 0,
            deallocation: 0b1001,
            access_log: None,
            offered_events: 0x900,
            refuses_events: false,
            events: 0,
            io_commands: 0,
            queues: (1, u16::MAX),
            ignores_others: false,
            ignored: Vec::new(),
            transfer: 1,
            io_streams: Vec::new(),
            seen_on: Vec::new(),
        }));
        let controller = ScriptedController { script, port };
        let own = controller.clone();
        // The thread ends with the process.
        thread::spawn(move || listener.incoming().flatten().for_each(|stream| own.accept(stream)));
        controller
    }

    /// The script.
    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("no thread has panicked")
    }

    /// The place of the subsystem.
    pub fn address(&self) -> SubsystemAddress {
        SubsystemAddress {
            portal: Portal { host: "127.0.0.1".into(), port: self.port },
            subsystem: Nqn::new("nqn.2026-11.org.example:scripted").expect("a name"),
        }
    }

    fn accept(&self, stream: TcpStream) {
        let mut script = self.script();
        if script.refuses {
            return;
        }
        script.streams.push(stream.try_clone().expect("a handle"));
        drop(script);
        let own = self.clone();
        thread::spawn(move || own.serve(stream));
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut request = [0; 128];
        stream.read_exact(&mut request).ok()?;
        assert_eq!(request[..8], [0, 0, 128, 0, 128, 0, 0, 0]);
        let mut answer = [0; 128];
        answer[..8].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0]);
        answer[12..16].copy_from_slice(&4096u32.to_le_bytes());
        stream.write_all(&answer).ok()?;
        let mut link = Link { stream, queue: 0, waiting: VecDeque::new(), compare: None };
        loop {
            let (sqe, data) = link.command()?;
            if sqe[0] == 0x7f && sqe[4] == 1 {
                link.queue = u16::from_le_bytes([sqe[42], sqe[43]]);
                assert_eq!(data.len(), 1024);
                self.script().hosts.push(data[..16].try_into().expect("16 bytes"));
                self.answer_connect(&mut link, &sqe)?;
            } else if link.queue > 0 {
                self.io(&mut link, &sqe, data)?;
            } else {
                self.admin(&mut link, &sqe)?;
            }
        }
    }

    fn answer_connect(&self, link: &mut Link, sqe: &[u8]) -> Option<()> {
        let mut script = self.script();
        let (result, status) = match link.queue {
            0 => script.connect,
            queue if queue <= script.queues.1 => {
                script.io_streams.push((queue, link.stream.try_clone().expect("a handle")));
                (ID.into(), 0)
            }
            queue if script.ignores_others => {
                script.ignored.push((queue, link.stream.try_clone().expect("a handle"), id(sqe)));
                return Some(());
            }
            // 1/81h: Connect Controller Busy.
            _ => (0, 0x181 << 1),
        };
        drop(script);
        link.send(&response(id(sqe), status, result))
    }

    fn admin(&self, link: &mut Link, sqe: &[u8]) -> Option<()> {
        let mut script = self.script();
        script.seen.push((sqe[0], u32_at(sqe, 40)));
        let (id, mut result, mut page) = (id(sqe), 0, None);
        let odd = script.odd.filter(|(number, _)| *number == u32_at(sqe, 4)).map(|(_, odd)| odd);
        let status = match (sqe[0], sqe[40]) {
            (6, 0 | 3) if let Some(OddNamespace::Absent(status)) = odd => status,
            (6, 3) => script.identifiers,
            // 1/05h: Asynchronous Event Request Limit Exceeded.
            (0x0c, _) if script.refuses_events => 0x8000 | 0x105 << 1,
            _ => 0,
        };
        match (sqe[0], sqe[4]) {
            (0x7f, 0) => {
                let value = u32_at(sqe, 48);
                script.configuration = value;
                if value & 1 << 14 != 0 {
                    script.status |= 2 << 2;
                }
            }
            (0x7f, _) => {
                result = match u32_at(sqe, 44) {
                    0x00 => 127 | 10 << 24 | 1 << 37,
                    0x08 => 0x1_0400,
                    0x1c if script.configuration & 1 == 0 => 0,
                    _ => script.status.into(),
                };
            }
            (0x06 | 0x0c, _) if status != 0 => {}
            (0x06, _) if let Some(OddNamespace::Absent(_)) = odd => page = Some(vec![0; 4096]),
            (0x06, _) => {
                let mut known = identify(&script, sqe[40]);
                if let (Some(OddNamespace::Uuid(uuid)), 3) = (odd, sqe[40]) {
                    known[4..20].copy_from_slice(&uuid);
                }
                page = Some(known);
            }
            (0x02, _) if sqe[40] == 0x70 => page = Some(script.discovery_page(sqe)),
            (0x02, _) if sqe[40] == 0x0c => page = Some(script.access_page(sqe)),
            (0x02, _) => page = Some(vec![0; 4096]),
            (0x09, _) if sqe[40] == 0x07 => {
                let last = u64::from(script.queues.0 - 1);
                result = last | last << 16;
            }
            (0x09, _) if sqe[40] == 0x0b => script.events = u32_at(sqe, 44),
            (0x0c, _) => {
                script.event = Some((link.stream.try_clone().expect("a handle"), id));
                return Some(());
            }
            _ => {}
        }
        drop(script);
        let data = page.map(|page| c2h_data(id, 0, &page, 4)).unwrap_or_default();
        link.send(&[data, response(id, status, result)].concat())
    }

    fn io(&self, link: &mut Link, sqe: &[u8], capsule: Vec<u8>) -> Option<()> {
        let mut script = self.script();
        script.seen.push((sqe[0], u32_at(sqe, 40)));
        script.seen_on.push((link.queue, sqe[0]));
        script.io_commands += 1;
        script.forced += u32::from(sqe[0] == 1 && u32_at(sqe, 48) & 1 << 30 != 0);
        if script.io_commands > script.silent_from {
            if script.cuts {
                script.silent_from = usize::MAX;
                script.cut();
                // Commands behind it are not executed.
                return None;
            }
            return Some(());
        }
        drop(script);
        let (id, at) = (id(sqe), u32_at(sqe, 40) as usize * 512);
        let len = (u32_at(sqe, 48) as usize & 0xffff) * 512 + 512;
        let limit = 4096 << self.script().transfer;
        assert!(len <= limit || sqe[0] == 8, "MDTS is {limit}, and the command has {len} bytes");
        let data = match (sqe[39], u32_at(sqe, 32) as usize) {
            (0x5a, wanted) if matches!(sqe[0], 1 | 5) => link.fetch(id, wanted)?,
            _ => capsule,
        };
        let mut script = self.script();
        let bytes = match sqe[0] {
            1 | 2 if script.failures.0 > 0 => {
                script.failures.0 -= 1;
                // 0/09h: the other half has failed.
                let half = link.compare.take().filter(|_| sqe[1] & 3 == 2);
                let half =
                    half.map(|(compared, _)| response(compared, 0x8000 | 0x09 << 1, 0)).unwrap_or_default();
                [half, response(id, script.failures.1, 0)].concat()
            }
            0x02 => [c2h_data(id, 0, &script.medium[at..at + len], 4), response(id, 0, 0)].concat(),
            0x05 => {
                link.compare = Some((id, script.medium[at..at + len] == data));
                return Some(());
            }
            0x01 if sqe[1] & 3 == 2 => {
                let (compared, is_equal) = link.compare.take().expect("the first half");
                if is_equal {
                    script.medium[at..at + len].copy_from_slice(&data);
                }
                let status = |bad: u16| if is_equal { 0 } else { 0x8000 | bad << 1 };
                [response(compared, status(0x285), 0), response(id, status(0x09), 0)].concat()
            }
            0x01 => {
                script.medium[at..at + len].copy_from_slice(&data);
                script.writes.push(data[0]);
                response(id, 0, 0)
            }
            0x08 if script.zeroes != 0 => response(id, script.zeroes, 0),
            0x08 => {
                script.medium[at..at + len].fill(0);
                response(id, 0, 0)
            }
            _ => response(id, 0, 0),
        };
        drop(script);
        link.send(&bytes)
    }
}

impl Script {
    /// Cuts all connections.
    pub fn cut(&mut self) {
        for stream in self.streams.drain(..) {
            _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Answers the Connects that were ignored.
    pub fn answer_ignored(&mut self) {
        for (queue, mut stream, id) in self.ignored.drain(..) {
            stream.write_all(&response(id, 0, ID.into())).expect("the host still waits");
            self.io_streams.push((queue, stream));
        }
    }

    /// Cuts the connection of an I/O queue.
    pub fn cut_queue(&mut self, queue: u16) {
        self.io_streams.retain(|(number, stream)| {
            if *number == queue {
                _ = stream.shutdown(Shutdown::Both);
            }
            *number != queue
        });
    }

    /// The I/O queues that have had a command, in order.
    pub fn used(&self) -> Vec<u16> {
        let mut used: Vec<u16> = self.seen_on.iter().map(|(queue, _)| *queue).collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// Answers the event request: a namespace has changed.
    pub fn raise_event(&mut self) {
        self.raise(0x04_0002);
    }

    /// Answers the event request with this event.
    pub fn raise(&mut self, event: u64) {
        let (mut stream, id) = self.event.take().expect("the host has sent an event request");
        stream.write_all(&response(id, 0, event)).expect("the host listens");
    }

    /// The access log page in which the namespace has this state.
    pub fn set_access(&mut self, state: u8) {
        let mut page = vec![0; 16 + 32 + 4];
        (page[8], page[16], page[20], page[32], page[48]) = (1, 1, 1, state, 1);
        self.access_log = Some(page);
    }

    /// Sets the access state, and raises the event of its change.
    pub fn change_access(&mut self, state: u8) {
        self.set_access(state);
        self.raise(0x0c_0302);
    }

    /// The wanted part of the access log page, with zeros behind its end.
    fn access_page(&self, sqe: &[u8]) -> Vec<u8> {
        let (offset, dwords) = (u32_at(sqe, 48) as usize, u32_at(sqe, 40) >> 16);
        let page = self.access_log.iter().flatten().copied().skip(offset).chain(std::iter::repeat(0));
        page.take(4 * (dwords as usize + 1)).collect()
    }

    /// The wanted part of a discovery log page with five entries. Each new generation has another first port.
    fn discovery_page(&mut self, sqe: &[u8]) -> Vec<u8> {
        let mut page = vec![0; 6 * 1024];
        page[..8].copy_from_slice(&self.generation.0.to_le_bytes());
        page[8] = 5;
        for (n, entry) in page[1024..].chunks_exact_mut(1024).enumerate() {
            entry[..3].copy_from_slice(&[3, 1, 2]);
            let port = format!("{}", self.generation.0 + n as u64);
            entry[32..32 + port.len()].copy_from_slice(port.as_bytes());
            entry[256..286].copy_from_slice(b"nqn.2026-11.org.example:found\0");
            entry[512..523].copy_from_slice(b"192.0.2.1  ");
        }
        let (offset, dwords) = (u32_at(sqe, 48) as usize, u32_at(sqe, 40) >> 16);
        if offset > 0 && self.generation.1 > 0 {
            self.generation = (self.generation.0 + 1, self.generation.1 - 1);
        }
        page[offset..offset + 4 * (dwords as usize + 1)].to_vec()
    }

    /// How often an opcode was seen.
    pub fn count(&self, opcode: u8) -> usize {
        self.seen.iter().filter(|(seen, _)| *seen == opcode).count()
    }
}

/// Options with short pauses.
pub fn options() -> NvmeOptions {
    let mut options = NvmeOptions::new(Nqn::new("nqn.2026-11.org.example:host").expect("a name"));
    options.timeouts.login = Duration::from_secs(5);
    options.timeouts.login_tries = 1;
    options.timeouts.logout = Duration::from_secs(1);
    options
}

/// Runs work on an event loop of its own.
pub fn on_a_core<T, W>(work: impl FnOnce() -> W + Send + 'static) -> T
where
    T: Send + 'static,
    W: Future<Output = Result<T, Error>> + 'static,
{
    let cores = Cores::one().expect("an event loop");
    let ended = cores.wait(0, work).expect("the work does not panic");
    ended.unwrap_or_else(|e| panic!("{e}"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn id(sqe: &[u8]) -> u16 {
    u16::from_le_bytes([sqe[2], sqe[3]])
}

/// A connection.
struct Link {
    stream: TcpStream,
    /// The number of its queue.
    queue: u16,
    /// The compare half of a fused pair.
    compare: Option<(u16, bool)>,
    /// Commands that came while data were fetched.
    waiting: VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl Link {
    fn send(&mut self, bytes: &[u8]) -> Option<()> {
        self.stream.write_all(bytes).ok()
    }

    /// The header of the next PDU, and its data.
    fn pdu(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut common = [0; 8];
        self.stream.read_exact(&mut common).ok()?;
        let mut rest = vec![0; u32_at(&common, 4) as usize - 8];
        self.stream.read_exact(&mut rest).ok()?;
        let data = rest.split_off(usize::from(common[2]) - 8);
        Some(([&common[..], &rest].concat(), data))
    }

    /// The next command and the data in its capsule.
    fn command(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        if let Some(waiting) = self.waiting.pop_front() {
            return Some(waiting);
        }
        let (header, data) = self.pdu()?;
        assert_eq!(header[..3], [4, 0, 72]);
        Some((header[8..].to_vec(), data))
    }

    /// Fetches the data of a command by one R2T.
    fn fetch(&mut self, id: u16, len: usize) -> Option<Vec<u8>> {
        self.send(&r2t(id, 9, 0, len as u32))?;
        let mut data = Vec::new();
        while data.len() < len {
            let (header, part) = self.pdu()?;
            if header[0] == 4 {
                self.waiting.push_back((header[8..].to_vec(), part));
                continue;
            }
            assert_eq!((header[0], u32_at(&header, 12) as usize), (6, data.len()));
            data.extend(part);
        }
        Some(data)
    }
}

fn identify(script: &Script, structure: u8) -> Vec<u8> {
    let mut page = vec![0; 4096];
    match structure {
        0x01 => {
            page[76] = 2 | if script.access_log.is_some() { 8 } else { 0 };
            page[92..96].copy_from_slice(&script.offered_events.to_le_bytes());
            // Offsets in log pages; 1024 groups and namespaces.
            page[261] = 4;
            [348, 516, 540].into_iter().for_each(|at| page[at + 1] = 4);
            page[77] = script.transfer;
            page[78..80].copy_from_slice(&script.identified.to_le_bytes());
            (page[111], page[320]) = (1 + u8::from(script.is_discovery), 1);
            (page[520], page[522], page[525]) = (0x0c, 1, script.has_cache.into());
            page[1792..1796].copy_from_slice(&((64 + CAPSULE as u32) / 16).to_le_bytes());
            page[1796] = 1;
        }
        0x00 => {
            page[..8].copy_from_slice(&script.blocks.to_le_bytes());
            page[8..16].copy_from_slice(&script.blocks.to_le_bytes());
            (page[33], page[92], page[130]) = (script.deallocation, 1, 9);
        }
        0x03 => {
            page[..4].copy_from_slice(&[3, 16, 0, 0]);
            page[4..20].copy_from_slice(&script.uuid);
        }
        _ => page[0] = 1,
    }
    page
}
