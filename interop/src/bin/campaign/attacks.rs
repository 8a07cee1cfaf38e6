//! Hostile connections: garbage, mutated logins and texts, wrong proofs, stolen names, and many that are kept open.

use crate::logins::{HONEST, HONEST_ISID, MALLORY, OPEN};
use interop::{Chap, Login, Pdu, Random, TARGET, chap, op};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Connections of each kind that an attacker keeps open.
const KEPT: usize = 72;
/// Time that an attacker waits for a response.
const ATTACKER: Duration = Duration::from_millis(500);

/// A client that floods the server with hostile connections.
pub struct Attacker {
    portal: SocketAddr,
    sources: Vec<IpAddr>,
    random: Random,
    idle: VecDeque<TcpStream>,
    /// Connections that send one byte at a time, each with its unsent bytes in reverse order.
    slow: VecDeque<(TcpStream, Vec<u8>)>,
    sessions: VecDeque<TcpStream>,
    answers: u64,
}

type Attack = fn(&mut Attacker) -> Option<()>;

const ATTACKS: [Attack; 12] = [
    Attacker::sends_garbage,
    Attacker::sends_a_mutated_login,
    Attacker::sends_a_mutated_login,
    Attacker::sends_mutated_keys,
    Attacker::sends_mutated_keys,
    Attacker::answers_a_challenge_wrongly,
    Attacker::takes_the_name_of_another,
    Attacker::discovers,
    Attacker::discovers,
    Attacker::says_nothing,
    Attacker::says_it_slowly,
    Attacker::sends_mutated_requests,
];

/// Values that are wrong for most keys.
const VALUES: [&str; 14] = [
    "",
    "0",
    "-1",
    "4294967296",
    "18446744073709551616",
    "0x",
    "0b====",
    "Yes",
    "No,Yes",
    "None,,CRC32C",
    "CHAP,None",
    "Reject",
    "Irrelevant",
    "NotUnderstood",
];

const KEYS: [&str; 16] = [
    "InitiatorName",
    "TargetName",
    "SessionType",
    "AuthMethod",
    "HeaderDigest",
    "DataDigest",
    "MaxConnections",
    "InitialR2T",
    "MaxRecvDataSegmentLength",
    "MaxBurstLength",
    "ErrorRecoveryLevel",
    "CHAP_A",
    "CHAP_N",
    "CHAP_R",
    "X-org.example.key",
    "SendTargets",
];

impl Attacker {
    /// An attacker that connects from `sources`.
    pub fn new(portal: SocketAddr, sources: Vec<IpAddr>, random: Random) -> Attacker {
        let (idle, slow, sessions) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Attacker { portal, sources, random, idle, slow, sessions, answers: 0 }
    }

    /// Attacks until the quota is reached, and returns the number of responses.
    pub fn run(&mut self, begun: &AtomicU64, attacks: u64) -> u64 {
        while begun.fetch_add(1, Relaxed) < attacks {
            let attack = *self.random.pick(&ATTACKS);
            let _ = attack(self); // the server may have closed the connection
            self.drip();
        }
        self.answers
    }

    fn connect(&mut self) -> Option<TcpStream> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
        let source = *self.random.pick(&self.sources);
        let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::STREAM, flags, None).ok()?;
        bind(&socket, &SocketAddr::new(source, 0)).ok()?;
        connect(&socket, &self.portal).ok()?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(ATTACKER)).ok()?;
        stream.set_write_timeout(Some(ATTACKER)).ok()?;
        Some(stream)
    }

    /// Sends a PDU, and returns the response, if any.
    fn ask(&mut self, stream: &mut TcpStream, pdu: &Pdu) -> Option<Pdu> {
        stream.write_all(&pdu.encode(false, false)).ok()?;
        let answer = answer(stream)?;
        self.answers += 1;
        Some(answer)
    }

    /// Ends a connection by a close, a half-close or a reset.
    fn end(&mut self, mut stream: TcpStream) -> Option<()> {
        match self.random.below(4) {
            0 => drop(stream),
            1 => {
                stream.shutdown(Shutdown::Write).ok()?;
                self.answers += u64::from(answer(&mut stream).is_some());
                reset(&stream);
            }
            _ => reset(&stream),
        }
        Some(())
    }

    fn bytes(&mut self, max: u64) -> Vec<u8> {
        let length = 1 + self.random.below(max);
        (0..length).map(|_| self.random.next_u64() as u8).collect()
    }

    fn name(&mut self) -> String {
        match self.random.below(3) {
            0 => HONEST.into(),
            1 => format!("iqn.2026-11.org.example:x{}", self.random.below(1000)),
            _ => "iqn.2026-11.org.example:x".into(),
        }
    }

    fn isid(&mut self) -> [u8; 6] {
        match self.random.below(2) {
            0 => HONEST_ISID,
            _ => self.random.next_u64().to_be_bytes()[..6].try_into().expect("6 bytes"),
        }
    }

    /// A correct login.
    fn login(&mut self) -> Login {
        let (name, isid) = (self.name(), self.isid());
        let login = Login::new().initiator(&name).isid(isid);
        let method = *self.random.pick(&["None", "CHAP", "CHAP,None"]);
        match self.random.below(4) {
            0 => login,
            1 => login.key("AuthMethod", method),
            2 => login.target(OPEN),
            _ => login.without("TargetName").key("SessionType", "Discovery"),
        }
    }

    fn request(&mut self) -> Pdu {
        let (login, csg) = (self.login(), self.random.below(2) as u8);
        login.request(csg, *self.random.pick(&[None, Some(1), Some(3), Some(3)]))
    }

    fn sends_garbage(&mut self) -> Option<()> {
        let mut stream = self.connect()?;
        let mut bytes = self.bytes(3000);
        if self.random.one_in(2) {
            bytes[0] = 0x43;
        }
        stream.write_all(&bytes).ok()?;
        self.end(stream)
    }

    fn sends_a_mutated_login(&mut self) -> Option<()> {
        let mut bytes = self.request().encode(false, false);
        for _ in 0..=self.random.below(3) {
            self.mutate(&mut bytes);
        }
        let mut stream = self.connect()?;
        stream.write_all(&bytes).ok()?;
        self.end(stream)
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let at = self.random.below(bytes.len() as u64) as usize;
        let header = self.random.below(bytes.len().min(48) as u64) as usize;
        let byte = self.random.next_u64() as u8;
        match self.random.below(8) {
            0 => bytes[at] ^= 1 << (byte & 7),
            1 => bytes[header] ^= 1 << (byte & 7),
            2 => bytes[header] = byte,
            3 => bytes.truncate(at),
            4 => bytes.extend(self.bytes(600)),
            // Lengths of the segments.
            5 if bytes.len() > 8 => bytes[4 + at % 4] = byte,
            // Stages, versions.
            6 if bytes.len() > 4 => bytes[1 + at % 3] = byte,
            _ => drop(bytes.splice(at..at, [0; 4])),
        }
    }

    /// Text with repeated, unknown, huge or truncated keys.
    fn mutated_text(&mut self, pdu: Pdu) -> Pdu {
        let mut text = pdu.data.clone();
        for _ in 0..=self.random.below(6) {
            let (key, value) = (*self.random.pick(&KEYS), *self.random.pick(&VALUES));
            match self.random.below(6) {
                0 => text.extend([0; 7]),
                1 => text.extend(text.clone()),
                2 => text.extend(format!("{key}={}\0", "9".repeat(1 << self.random.below(14))).bytes()),
                3 => text.extend(key.bytes()),
                4 => self.mutate(&mut text),
                _ => text.extend(format!("{key}={value}\0").bytes()),
            }
        }
        text.truncate(1 << 17);
        pdu.data(&text)
    }

    fn sends_mutated_keys(&mut self) -> Option<()> {
        let request = self.request();
        let request = self.mutated_text(request);
        let mut stream = self.connect()?;
        if let Some(answer) = self.ask(&mut stream, &request).filter(|answer| answer.status() == 0) {
            let next = self.login().empty(answer.bhs[1] >> 2 & 3, Some(3));
            let next = self.mutated_text(next);
            let _ = self.ask(&mut stream, &next);
        }
        self.end(stream)
    }

    fn answers_a_challenge_wrongly(&mut self) -> Option<()> {
        let login = Login::new().initiator(HONEST).isid(self.isid()).key("AuthMethod", "CHAP");
        let mut stream = self.connect()?;
        self.ask(&mut stream, &login.request(0, None))?;
        let algorithm = *self.random.pick(&["5", "6", "7", "8", "5,6,7,8", "0", "99"]);
        let challenge = self.ask(&mut stream, &login.empty(0, None).keys(&[("CHAP_A", algorithm)]))?;
        let value = challenge.value("CHAP_C").unwrap_or_else(|| "0x00".into());
        let garbage = self.bytes(80);
        let response = match self.random.below(4) {
            0 => value,
            1 => chap::hex(&garbage),
            2 => chap::base64(&garbage),
            _ => String::from_utf8_lossy(&garbage).replace('\0', "x"),
        };
        let mut keys = vec![("CHAP_N", *self.random.pick(&["alice", "mallory", ""])), ("CHAP_R", &response)];
        if self.random.one_in(2) {
            // Mutual CHAP. If `response` is the target's own challenge, this reflects it.
            keys.extend([("CHAP_I", "1"), ("CHAP_C", &response)]);
        }
        let pdu = login.empty(0, Some(1)).keys(&keys);
        let answer = self.ask(&mut stream, &pdu);
        assert!(
            answer.is_none_or(|pdu| pdu.status() != 0 || !pdu.is_final()),
            "the target accepted a wrong CHAP response"
        );
        self.end(stream)
    }

    /// Logs in with the name and ISID of the honest host and with any TSIH, without CHAP or as its own CHAP user.
    fn takes_the_name_of_another(&mut self) -> Option<()> {
        let mut login = Login::new().initiator(HONEST).isid(HONEST_ISID);
        if self.random.one_in(2) {
            login = login.session(self.random.below(300) as u16, self.random.below(3) as u16);
        }
        let mut stream = self.connect()?;
        if self.random.one_in(2) {
            self.ask(&mut stream, &login.request(1, Some(3)));
            return self.end(stream);
        }
        self.ask(&mut stream, &login.clone().key("AuthMethod", "CHAP").request(0, None))?;
        let challenge = self.ask(&mut stream, &login.empty(0, None).keys(&[("CHAP_A", "5")]))?;
        challenge.value("CHAP_C")?;
        let response = chap::hex(&Chap::read(&challenge).response(MALLORY));
        let keys = [("CHAP_N", "mallory"), ("CHAP_R", &response[..])];
        let answer = self.ask(&mut stream, &login.empty(0, Some(1)).keys(&keys))?;
        if answer.status() == 0 {
            self.ask(&mut stream, &login.empty(1, Some(3)));
        }
        self.keep_session(stream)
    }

    fn keep_session(&mut self, stream: TcpStream) -> Option<()> {
        self.sessions.push_back(stream);
        if self.sessions.len() > KEPT {
            let oldest = self.sessions.pop_front()?;
            return self.end(oldest);
        }
        Some(())
    }

    fn discovers(&mut self) -> Option<()> {
        let name = self.name();
        let login = Login::discovery().initiator(&name);
        let mut stream = self.connect()?;
        self.ask(&mut stream, &login.request(1, Some(3)))?;
        let text = Pdu::new(op::TEXT | 0x40).itt(1).ttt(interop::NONE).cmd_sn(1);
        let all = text.keys(&[("SendTargets", *self.random.pick(&["All", "", TARGET, OPEN, "none"]))]);
        let text = if self.random.one_in(3) { self.mutated_text(all) } else { all };
        self.ask(&mut stream, &text);
        self.keep_session(stream)
    }

    fn says_nothing(&mut self) -> Option<()> {
        let stream = self.connect()?;
        self.idle.push_back(stream);
        if self.idle.len() > KEPT {
            let oldest = self.idle.pop_front()?;
            return self.end(oldest);
        }
        Some(())
    }

    fn says_it_slowly(&mut self) -> Option<()> {
        let mut bytes = self.request().encode(false, false);
        bytes.reverse();
        let stream = self.connect()?;
        self.slow.push_back((stream, bytes));
        if self.slow.len() > KEPT {
            let (oldest, _) = self.slow.pop_front()?;
            return self.end(oldest);
        }
        Some(())
    }

    /// Sends the next byte of each slow login.
    fn drip(&mut self) {
        for (stream, bytes) in &mut self.slow {
            if let Some(byte) = bytes.pop() {
                let _ = stream.write_all(&[byte]); // the server may have closed the connection
            }
        }
    }

    fn sends_mutated_requests(&mut self) -> Option<()> {
        let login = Login::new().initiator("iqn.2026-11.org.example:x").target(OPEN).isid(self.isid());
        let mut stream = self.connect()?;
        self.ask(&mut stream, &login.request(1, Some(3)))?;
        for _ in 0..3 {
            let first = *self.random.pick(&[op::TEXT, op::SCSI, op::TMF, op::LOGOUT, op::NOP_OUT, op::LOGIN]);
            let pdu = Pdu::new(first | 0x40).itt(self.random.next_u64() as u32).cmd_sn(1);
            let mut bytes = self.mutated_text(pdu).encode(false, false);
            self.mutate(&mut bytes);
            stream.write_all(&bytes).ok()?;
        }
        self.end(stream)
    }
}

/// Makes the close of this connection send a TCP reset.
pub fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// The next PDU, if one comes.
fn answer(stream: &mut TcpStream) -> Option<Pdu> {
    let mut bhs = [0; 48];
    stream.read_exact(&mut bhs).ok()?;
    let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
    let mut data = vec![0; length.next_multiple_of(4)];
    stream.read_exact(&mut data).ok()?;
    data.truncate(length);
    Some(Pdu { bhs, ahs: Vec::new(), data })
}
