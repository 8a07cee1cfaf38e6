//! One connection of a scripted target: framing, digests, numbers.

use super::initiator_check::{InitiatorCheck, TargetLimits};
use super::{ReceivedPdu, Shared};
use crate::check;
use crate::digest::crc32c;
use crate::pdu::{Pdu, op};
use crate::script::disk::Write;
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// The time limit of reads and writes: it ends connections that a test has left open.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection, as the hook of a test sees it.
pub struct ScriptConnection {
    pub stream: TcpStream,
    /// The number of earlier connections.
    pub number: usize,
    pub full_feature: bool,
    pub header_digest: bool,
    pub data_digest: bool,
    /// StatSN of the next answer.
    pub stat_sn: u32,
    pub exp_cmd_sn: u32,
    pub max_cmd_sn: u32,
    /// Negotiated and declared keys.
    pub keys: BTreeMap<String, String>,
    /// MaxRecvDataSegmentLength of the initiator.
    pub send_max: usize,
    /// Writes whose data have not all arrived.
    pub(super) writes: HashMap<u32, Write>,
    pub(super) shared: Arc<Shared>,
    watch: InitiatorCheck,
    input: Vec<u8>,
}

impl ScriptConnection {
    pub(super) fn new(stream: TcpStream, number: usize, shared: Arc<Shared>) -> ScriptConnection {
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time-out");
        ScriptConnection {
            stream,
            number,
            full_feature: false,
            header_digest: false,
            data_digest: false,
            stat_sn: shared.script.stat_sn,
            exp_cmd_sn: 0,
            max_cmd_sn: 0,
            keys: BTreeMap::new(),
            send_max: 8192,
            writes: HashMap::new(),
            shared,
            watch: InitiatorCheck::default(),
            input: Vec::new(),
        }
    }

    /// The address of the target.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The value of a key as a number.
    pub fn number_of(&self, key: &str, default: usize) -> usize {
        self.keys.get(key).map_or(default, |v| v.parse().expect("a number"))
    }

    /// MaxRecvDataSegmentLength that this target declares.
    pub fn receive_max(&self) -> usize {
        super::default_response::SEGMENT
    }

    pub(super) fn disk(&self) -> MutexGuard<'_, Vec<u8>> {
        self.shared.disk.lock().expect("no thread panics while it holds the lock")
    }

    /// The next request. None: the initiator has closed the connection.
    pub(super) fn receive(&mut self) -> Option<Pdu> {
        loop {
            if let Some(pdu) = self.parse() {
                self.record(&pdu);
                return Some(pdu);
            }
            let mut chunk = [0; 65536];
            match self.stream.read(&mut chunk) {
                Ok(n) if n > 0 => self.input.extend_from_slice(&chunk[..n]),
                _ => return None,
            }
        }
    }

    fn fault(&self, what: String) {
        self.shared.faults.lock().expect("no thread panics while it holds the lock").push(what);
    }

    fn parse(&mut self) -> Option<Pdu> {
        let bhs: [u8; 48] = self.input.get(..48)?.try_into().expect("48 bytes");
        let header = 48 + bhs[4] as usize * 4;
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize;
        let at = header + if self.header_digest { 4 } else { 0 };
        let end = at + length.next_multiple_of(4);
        let total = end + if self.data_digest && length > 0 { 4 } else { 0 };
        if self.input.len() < total {
            return None;
        }
        let all: Vec<u8> = self.input.drain(..total).collect();
        if self.header_digest && crc32c(&all[..header]) != all[header..at] {
            self.fault(format!("a bad header digest: {bhs:02x?}"));
        }
        if total != end && crc32c(&all[at..end]) != all[end..] {
            self.fault(format!("a bad data digest: {bhs:02x?}"));
        }
        if all[at + length..end].iter().any(|b| *b != 0) {
            self.fault(format!("padding is not zero: {bhs:02x?}"));
        }
        Some(Pdu { bhs, ahs: all[48..header].to_vec(), data: all[at..at + length].to_vec() })
    }

    /// Records a request, and each rule that it breaks.
    fn record(&mut self, pdu: &Pdu) {
        let limits = TargetLimits {
            stat_sn: self.stat_sn,
            max_cmd_sn: self.max_cmd_sn,
            full_feature: self.full_feature,
            receive_max: self.receive_max(),
        };
        if let Err(why) = self.watch.check(pdu, &limits) {
            self.fault(format!("{why}: {pdu:?}"));
        }
        let is_first = pdu.opcode() == op::LOGIN && self.keys.is_empty();
        if is_first {
            self.exp_cmd_sn = pdu.get32(24);
        } else if pdu.bhs[0] & 0x40 == 0 && pdu.opcode() != op::DATA_OUT {
            self.exp_cmd_sn = pdu.get32(24).wrapping_add(1);
        }
        let seen = ReceivedPdu { link: self.number, full_feature: self.full_feature, pdu: pdu.clone() };
        self.shared.seen.lock().expect("no thread panics while it holds the lock").push(seen);
    }

    /// Advances the command window, and sets StatSN, ExpCmdSN and MaxCmdSN.
    pub fn with_numbers(&mut self, pdu: Pdu) -> Pdu {
        self.max_cmd_sn = self.exp_cmd_sn.wrapping_add(self.shared.script.window).wrapping_sub(1);
        let stat_sn = if check::has_stat_sn(&pdu) { self.stat_sn } else { 0 };
        if check::counts(&pdu) {
            self.stat_sn = self.stat_sn.wrapping_add(1);
        }
        let pdu = pdu.set32(24, stat_sn).set32(28, self.exp_cmd_sn);
        pdu.set32(32, self.max_cmd_sn)
    }

    /// Sends an answer with its numbers and digests.
    pub fn send(&mut self, pdu: Pdu) {
        let pdu = self.with_numbers(pdu);
        self.send_unchanged(&pdu);
    }

    /// Sends a PDU without changing its numbers.
    pub fn send_unchanged(&mut self, pdu: &Pdu) {
        if check::counts(pdu) {
            self.watch.answered(pdu.tag());
        }
        let bytes = pdu.encode(self.header_digest, self.data_digest);
        self.send_bytes(&bytes);
    }

    /// Sends bytes. If the connection is closed, the next read reports it.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both); // it may be closed already
    }
}
