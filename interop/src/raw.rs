//! One TCP connection to a target, PDU by PDU.

use crate::check;
use crate::digest::crc32c;
use crate::pdu::{NONE, Pdu, op};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of a read.
pub const PATIENCE: Duration = Duration::from_secs(5);
static PATIENCE_CHOSEN: OnceLock<Duration> = OnceLock::new();

/// Time limit of a read in this process: [`PATIENCE`] by default.
pub fn patience() -> Duration {
    PATIENCE_CHOSEN.get().copied().unwrap_or(PATIENCE)
}

/// Sets the time limit of reads for the whole process. Only the first call has an effect.
pub fn choose_patience(limit: Duration) {
    let _ = PATIENCE_CHOSEN.set(limit);
}

/// The time for which [`Raw::expect_silence`] expects no PDU.
pub const QUIET: Duration = Duration::from_millis(150);

/// The result of a read with a time limit.
#[derive(Debug)]
pub enum Received {
    Pdu(Pdu),
    Closed,
    Nothing,
}

/// A connection with the numbers that an initiator keeps.
pub struct Raw {
    pub stream: TcpStream,
    pub header_digest: bool,
    pub data_digest: bool,
    /// CmdSN of the next non-immediate command.
    pub cmd_sn: u32,
    pub exp_stat_sn: u32,
    /// ExpCmdSN and MaxCmdSN of the last received PDU. None: none has arrived.
    pub window: Option<(u32, u32)>,
    /// MaxRecvDataSegmentLength that this side declared, in bytes.
    pub receive_max: usize,
    /// Whether the StatSN of each received PDU is checked.
    pub check_stat_sn: bool,
    /// Negotiated keys, for writes.
    pub immediate_data: bool,
    pub initial_r2t: bool,
    pub first_burst: usize,
    pub max_burst: usize,
    pub send_max: usize,
    /// Header digest and data digest of the last received PDU.
    pub last_digests: (Option<[u8; 4]>, Option<[u8; 4]>),
    /// TSIH of the session, once known.
    pub tsih: u16,
    next_itt: u32,
    input: Vec<u8>,
    stash: VecDeque<Pdu>,
}

/// A connection from this IPv4 address of this host.
pub(crate) fn stream_from(source: IpAddr, address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let socket = socket_with(family, SocketType::STREAM, flags, None).expect("a socket");
    bind(&socket, &SocketAddr::new(source, 0)).expect("an address of this host");
    connect(&socket, &address).expect("connect");
    socket.into()
}

impl Raw {
    /// Opens a connection, and sends nothing.
    pub fn connect(address: SocketAddr) -> Raw {
        Raw::of(TcpStream::connect_timeout(&address, patience()).expect("connect"))
    }

    /// Opens a connection from this address.
    pub fn connect_from(source: IpAddr, address: SocketAddr) -> Raw {
        Raw::of(stream_from(source, address))
    }

    fn of(stream: TcpStream) -> Raw {
        stream.set_nodelay(true).expect("nodelay");
        Raw {
            stream,
            header_digest: false,
            data_digest: false,
            cmd_sn: 1,
            exp_stat_sn: 0,
            window: None,
            receive_max: 8192,
            check_stat_sn: false,
            immediate_data: true,
            initial_r2t: true,
            first_burst: 65536,
            max_burst: 262144,
            send_max: 8192,
            last_digests: (None, None),
            tsih: 0,
            next_itt: 0x100,
            input: Vec::new(),
            stash: VecDeque::new(),
        }
    }

    /// A task tag that this connection has not used before.
    pub fn new_itt(&mut self) -> u32 {
        self.next_itt += 1;
        self.next_itt
    }

    /// The CmdSN of the next non-immediate command. The counter increases.
    pub fn take_cmd_sn(&mut self) -> u32 {
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.cmd_sn.wrapping_sub(1)
    }

    /// A request with a new tag, the next CmdSN and ExpStatSN. An immediate request does not increase CmdSN.
    pub fn request(&mut self, first: u8) -> Pdu {
        let cmd_sn = if first & 0x40 != 0 { self.cmd_sn } else { self.take_cmd_sn() };
        let itt = self.new_itt();
        Pdu::new(first).itt(itt).cmd_sn(cmd_sn).exp_stat_sn(self.exp_stat_sn)
    }

    /// Sends a PDU with the negotiated digests.
    pub fn send(&mut self, pdu: &Pdu) {
        self.send_bytes(&pdu.encode(self.header_digest, self.data_digest));
    }

    /// Sends several PDUs in one write.
    pub fn send_all(&mut self, pdus: &[Pdu]) {
        let bytes: Vec<u8> =
            pdus.iter().flat_map(|p| p.encode(self.header_digest, self.data_digest)).collect();
        self.send_bytes(&bytes);
    }

    /// Sends bytes. If the connection is closed, the next read reports it.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends each byte in a separate segment.
    pub fn send_slowly(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.send_bytes(std::slice::from_ref(byte));
            sleep(Duration::from_micros(200));
        }
    }

    /// Sends a PDU, and returns the next PDU with its tag.
    pub fn ask(&mut self, pdu: &Pdu) -> Pdu {
        self.send(pdu);
        self.recv_for(pdu.tag())
    }

    /// The next PDU of any kind.
    pub fn recv(&mut self) -> Pdu {
        match self.get(patience()) {
            Received::Pdu(pdu) => pdu,
            other => panic!("expected a PDU, got {other:?}"),
        }
    }

    /// The next PDU with this task tag. Other PDUs are stored for later calls.
    pub fn recv_for(&mut self, itt: u32) -> Pdu {
        self.recv_that(|p| p.tag() == itt)
    }

    /// The next PDU with this opcode. Other PDUs are stored for later calls.
    pub fn recv_op(&mut self, opcode: u8) -> Pdu {
        self.recv_that(|p| p.opcode() == opcode)
    }

    fn recv_that(&mut self, wanted: impl Fn(&Pdu) -> bool) -> Pdu {
        self.try_recv_that(wanted)
            .unwrap_or_else(|| panic!("the connection was closed after {:?}", self.stash))
    }

    /// As [`Raw::recv_for`]. `None`: the connection has ended.
    pub fn try_recv_for(&mut self, itt: u32) -> Option<Pdu> {
        self.try_recv_that(|p| p.tag() == itt)
    }

    fn try_recv_that(&mut self, wanted: impl Fn(&Pdu) -> bool) -> Option<Pdu> {
        if let Some(at) = self.stash.iter().position(&wanted) {
            return self.stash.remove(at);
        }
        let end = Instant::now() + patience();
        loop {
            match self.fresh(end) {
                Received::Pdu(pdu) if wanted(&pdu) => return Some(pdu),
                Received::Pdu(pdu) => self.stash.push_back(pdu),
                Received::Closed => return None,
                Received::Nothing => panic!("expected another PDU after {:?}", self.stash),
            }
        }
    }

    /// The next PDU within `limit`. Stored PDUs come first.
    pub fn get(&mut self, limit: Duration) -> Received {
        match self.stash.pop_front() {
            Some(pdu) => Received::Pdu(pdu),
            None => self.fresh(Instant::now() + limit),
        }
    }

    /// Checks that no PDU arrives for a while, and that the connection stays open.
    pub fn expect_silence(&mut self) {
        match self.get(QUIET) {
            Received::Nothing => {}
            other => panic!("expected silence, got {other:?}"),
        }
    }

    /// Reads all PDUs until the connection ends. Fails if it does not end in time.
    pub fn until_close(&mut self) -> Vec<Pdu> {
        let mut seen = Vec::new();
        loop {
            match self.get(patience()) {
                Received::Pdu(pdu) => seen.push(pdu),
                Received::Closed => return seen,
                Received::Nothing => panic!("the connection was not closed; seen: {seen:?}"),
            }
        }
    }

    /// Checks that the connection ends, and that only asynchronous messages arrive before.
    pub fn expect_close(&mut self) {
        let seen = self.until_close();
        assert!(seen.iter().all(|p| p.opcode() == op::ASYNC), "PDUs before the close: {seen:?}");
    }

    /// Ends the connection. The kernel sends a FIN, or a reset if received data are unread.
    pub fn cut(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends a ping and checks its response: the session lives, and the target has read all earlier PDUs.
    pub fn ping(&mut self) {
        let ping = self.request(op::NOP_OUT | 0x40).ttt(NONE).data(b"alive?");
        let pong = self.ask(&ping);
        assert_eq!((pong.opcode(), &pong.data[..]), (op::NOP_IN, &b"alive?"[..]));
    }

    fn fresh(&mut self, end: Instant) -> Received {
        loop {
            if let Some(pdu) = self.parse() {
                self.watch(&pdu);
                return Received::Pdu(pdu);
            }
            let left = end.saturating_duration_since(Instant::now());
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).expect("time-out");
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Received::Closed,
                Ok(n) => self.input.extend_from_slice(&chunk[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Received::Nothing;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Received::Closed,
            }
        }
    }

    fn parse(&mut self) -> Option<Pdu> {
        let bhs: [u8; 48] = self.input.get(..48)?.try_into().ok()?;
        let header = 48 + bhs[4] as usize * 4;
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        let at = header + if self.header_digest { 4 } else { 0 };
        let padded = length.next_multiple_of(4);
        let total = at + padded + if self.data_digest && length > 0 { 4 } else { 0 };
        if self.input.len() < total {
            return None;
        }
        let all: Vec<u8> = self.input.drain(..total).collect();
        assert!(
            !self.header_digest || crc32c(&all[..header]) == all[header..at],
            "bad header digest: {bhs:02x?}"
        );
        let end = at + padded;
        assert!(total == end || crc32c(&all[at..end]) == all[end..], "bad data digest: {bhs:02x?}");
        assert!(all[at + length..end].iter().all(|b| *b == 0), "padding is not zero: {bhs:02x?}");
        self.last_digests = (all[header..at].try_into().ok(), all[end..].try_into().ok());
        Some(Pdu { bhs, ahs: all[48..header].to_vec(), data: all[at..at + length].to_vec() })
    }

    /// Checks the rules that apply to each PDU, and records its numbers.
    fn watch(&mut self, pdu: &Pdu) {
        check::layout(pdu).unwrap_or_else(|why| panic!("{why}: {pdu:?}"));
        assert!(pdu.data.len() <= self.receive_max, "data beyond {}: {pdu:?}", self.receive_max);
        if pdu.opcode() == op::LOGIN_RESPONSE && pdu.status() != 0 {
            return;
        }
        if check::has_stat_sn(pdu) {
            assert!(
                !self.check_stat_sn || pdu.stat_sn() == self.exp_stat_sn,
                "StatSN, {}: {pdu:?}",
                self.exp_stat_sn
            );
            self.exp_stat_sn = if check::counts(pdu) { pdu.stat_sn().wrapping_add(1) } else { pdu.stat_sn() };
            self.check_stat_sn = true;
        }
        let (exp, max) = (pdu.exp_cmd_sn(), pdu.max_cmd_sn());
        assert!(!check::before(max, exp.wrapping_sub(1)), "MaxCmdSN below ExpCmdSN - 1: {pdu:?}");
        if let Some((old_exp, old_max)) = self.window {
            assert!(
                !check::before(exp, old_exp) && !check::before(max, old_max),
                "the window moved back: {pdu:?}"
            );
        }
        self.window = Some((exp, max));
    }
}
