//! Commands with Data-Out whose Expected Data Transfer Length differs from the length that their CDB requires.

use crate::pdu::NONE;
use crate::raw::Raw;
use crate::scsi::{READ, Reply, WRITE, designator, extended_copy, read_keys};
use std::collections::HashSet;

/// INVALID FIELD IN COMMAND INFORMATION UNIT.
const INVALID_FIELD_IN_IU: u32 = 0x05_0e03;
/// INVALID FIELD IN CDB.
const INVALID_FIELD_IN_CDB: u32 = 0x05_2400;
const OVER: u8 = 4;
const UNDER: u8 = 2;
/// The first block of commands that write. The blocks before it are zeros.
const LBA: u8 = 8;
const SANITIZE: u8 = 0x48;

/// Operation codes of commands without Data-Out.
const NO_DATA_OUT: &[u8] = &[
    0x00, 0x03, 0x08, 0x12, 0x16, 0x17, 0x1a, 0x1b, 0x1c, 0x1e, 0x25, 0x28, 0x34, 0x35, 0x37, 0x3c, 0x4d,
    0x56, 0x57, 0x5a, 0x5e, 0x84, 0x88, 0x90, 0x91, 0x9e, 0xa0, 0xa3, 0xa8, 0xb7,
];

/// How the Data-Out reaches the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutMode {
    /// As immediate data.
    Immediate,
    /// As unsolicited Data-Out after the command.
    Unsolicited,
    /// In response to R2Ts.
    Solicited,
}

impl DataOutMode {
    /// Every mode.
    pub const ALL: [DataOutMode; 3] =
        [DataOutMode::Immediate, DataOutMode::Unsolicited, DataOutMode::Solicited];

    /// The keys that a login negotiates for this mode.
    pub fn keys(self) -> [(&'static str, &'static str); 2] {
        let yes_if = |wanted: bool| if wanted { "Yes" } else { "No" };
        [
            ("ImmediateData", yes_if(self == DataOutMode::Immediate)),
            ("InitialR2T", yes_if(self != DataOutMode::Unsolicited)),
        ]
    }
}

/// A command with Data-Out.
struct DataOutCase {
    cdb: Vec<u8>,
    data: Vec<u8>,
    /// The target also rejects more data than the CDB requires.
    exact: bool,
    /// It writes its data to the blocks from [`LBA`] on.
    stores: bool,
}

impl DataOutCase {
    fn new(cdb: &[u8], data: &[u8]) -> DataOutCase {
        DataOutCase { cdb: cdb.to_vec(), data: data.to_vec(), exact: false, stores: false }
    }

    fn exact(self) -> DataOutCase {
        DataOutCase { exact: true, ..self }
    }

    fn stores(self) -> DataOutCase {
        DataOutCase { stores: true, ..self }
    }

    fn opcode(&self) -> u8 {
        self.cdb[0]
    }

    /// With all of its data, the command ends with GOOD and leaves mode pages and reservations unchanged.
    fn is_good(&self) -> bool {
        self.opcode() != SANITIZE && (self.opcode() != 0x5f || matches!(self.cdb[1], 0 | 6))
    }
}

/// A CDB for `blocks` from `lba` on, of the length that the group code of `opcode` implies.
fn transfer(opcode: u8, flags: u8, lba: u8, blocks: u8) -> Vec<u8> {
    let mut cdb = match opcode >> 5 {
        0 => vec![0; 6],
        1 | 2 => vec![0; 10],
        5 => vec![0; 12],
        _ => vec![0; 16],
    };
    (cdb[0], cdb[1]) = (opcode, flags);
    let (lba_at, blocks_at) = match cdb.len() {
        6 => (3, 4),
        10 => (5, 8),
        12 => (5, 9),
        _ => (9, 13),
    };
    (cdb[lba_at], cdb[blocks_at]) = (lba, blocks);
    cdb
}

fn media() -> Vec<DataOutCase> {
    let two = [0x5a; 1024];
    let writes = [0x0a, 0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e];
    let mut cases: Vec<DataOutCase> =
        writes.map(|op| DataOutCase::new(&transfer(op, 0, LBA, 2), &two).stores()).into();
    let verifies = [0x2f, 0xaf, 0x8f];
    cases.extend(verifies.map(|op| DataOutCase::new(&transfer(op, 0x02, 0, 2), &[0; 1024])));
    cases.extend(verifies.map(|op| DataOutCase::new(&transfer(op, 0x06, 0, 2), &[0; 512])));
    cases.extend([0x41, 0x93].map(|op| DataOutCase::new(&transfer(op, 0, 0, 2), &[0; 512]).exact()));
    cases.push(DataOutCase::new(&transfer(0x89, 0, 0, 1), &[0; 1024]).exact());
    cases.push(DataOutCase::new(&transfer(0x8b, 0, 0, 2), &[0; 1024]).exact());
    let mut atomic = transfer(0x9c, 0, LBA, 2);
    // ATOMIC BOUNDARY precedes TRANSFER LENGTH.
    (atomic[11], atomic[13]) = (0, 2);
    cases.push(DataOutCase::new(&atomic, &two).stores());
    cases
}

fn lists(raw: &mut Raw) -> Vec<DataOutCase> {
    let unmap = [&[0, 22, 0, 16][..], &[0; 4], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], &[0; 4]].concat();
    let own = designator(raw, 0);
    let (copy, segments) = extended_copy(&own, &own, 1);
    let mut cases = vec![
        DataOutCase::new(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap),
        DataOutCase::new(&[0x15, 0x10, 0, 0, 4, 0], &[0; 4]),
        DataOutCase::new(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, 8, 0], &[0; 8]),
        DataOutCase::new(&[0x3b, 2, 0, 0, 0, 0, 0, 0, 16, 0], &[7; 16]),
        DataOutCase::new(&[0x4c, 0, 0x40, 0, 0, 0, 0, 0, 4, 0], &[2, 0, 0, 0]),
        DataOutCase::new(&[0x1d, 0x10, 0, 0, 4, 0], &[0; 4]),
        DataOutCase::new(&[SANITIZE, 1, 0, 0, 0, 0, 0, 0, 5, 0], &[1, 0, 0, 1, 0]),
        DataOutCase::new(&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], &[0, 0, 0, 0, 0, 0, 0, 1]),
        DataOutCase::new(&copy, &segments),
    ];
    cases.extend((0..7).map(|action| DataOutCase::new(&[0x5f, action, 0, 0, 0, 0, 0, 0, 24, 0], &[0; 24])));
    cases
}

/// Checks that the cases and [`NO_DATA_OUT`] contain each operation code that the logical unit supports.
fn check_completeness(raw: &mut Raw, cases: &[DataOutCase]) {
    let supported = raw.read(0, &[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0], 4096).good();
    let known: HashSet<u8> =
        cases.iter().map(DataOutCase::opcode).chain(NO_DATA_OUT.iter().copied()).collect();
    for descriptor in supported[4..].chunks_exact(8) {
        assert!(known.contains(&descriptor[0]), "no case for operation code {:02x}", descriptor[0]);
    }
}

/// The state that a rejected command must not change.
fn state(raw: &mut Raw) -> Vec<Vec<u8>> {
    vec![
        raw.read_blocks(0, 0, 32),
        raw.read(0, &[0x1a, 0, 0x3f, 0, 255, 0], 255).good(),
        raw.read(0, &[0x3c, 2, 0, 0, 0, 0, 0, 0, 64, 0], 64).good(),
        read_keys(raw, 0).iter().flat_map(|key| key.to_be_bytes()).collect(),
    ]
}

fn send(raw: &mut Raw, mode: DataOutMode, cdb: &[u8], data: &[u8]) -> Reply {
    if mode != DataOutMode::Unsolicited || data.is_empty() {
        return raw.write(0, cdb, data);
    }
    let command = raw.command(0, WRITE, cdb, data.len() as u32);
    let follows = raw.data_out(command.tag(), NONE, 0, 0, data);
    raw.send_all(&[command.clone(), follows]);
    raw.collect(command.tag(), data)
}

fn check_rejected(reply: &Reply, residual: (u8, u32), what: &str) {
    check_rejected_with(INVALID_FIELD_IN_IU, reply, residual, what);
}

fn check_rejected_with(sense: u32, reply: &Reply, residual: (u8, u32), what: &str) {
    assert_eq!((reply.status, reply.sense()), (2, sense), "{what}: {reply:?}");
    assert_eq!((reply.flags, reply.residual), residual, "{what}: {reply:?}");
}

fn send_less(raw: &mut Raw, mode: DataOutMode, case: &DataOutCase) {
    let needed = case.data.len();
    let before = state(raw);
    let less = [0, 1, needed / 2, needed - 1, needed / 512 * 512].into_iter().filter(|len| *len < needed);
    for len in less {
        let what = format!("{mode:?}, {:02x?} with {len} bytes", case.cdb);
        let reply = send(raw, mode, &case.cdb, &vec![0xee; len]);
        check_rejected(&reply, (OVER, (needed - len) as u32), &what);
        assert!(state(raw) == before, "{what}: the state has changed");
    }
    // Neither R nor W is set; then R instead of W.
    check_rejected(&raw.simple(0, &case.cdb), (OVER, needed as u32), "neither R nor W");
    let read = raw.command(0, 0x80 | READ, &case.cdb, needed as u32);
    check_rejected(&raw.execute(&read, &[]), (UNDER, needed as u32), "R instead of W");
    assert!(state(raw) == before, "{:02x?}: the state has changed", case.cdb);
}

fn send_more(raw: &mut Raw, mode: DataOutMode, case: &DataOutCase) {
    let needed = case.data.len();
    for more in [1, 100, 512] {
        let what = format!("{mode:?}, {:02x?} with {more} bytes more", case.cdb);
        let whole = [&case.data[..], &vec![0xee; more]].concat();
        let before = raw.read_blocks(0, 0, 32);
        let reply = send(raw, mode, &case.cdb, &whole);
        let mut after = before;
        if case.exact {
            check_rejected_with(INVALID_FIELD_IN_CDB, &reply, (UNDER, whole.len() as u32), &what);
        } else {
            assert_eq!((reply.status, reply.sense()), (0, 0), "{what}: {reply:?}");
            assert_eq!((reply.flags, reply.residual), (UNDER, more as u32), "{what}: {reply:?}");
            if case.stores {
                after[usize::from(LBA) * 512..][..needed].copy_from_slice(&case.data);
            }
        }
        assert!(raw.read_blocks(0, 0, 32) == after, "{what}: the disk has other data");
    }
}

/// Sends each command with Data-Out to LUN 0, except the operation codes in `except`, with less and with more data
/// than its CDB requires.
pub fn walk(raw: &mut Raw, mode: DataOutMode, except: &[u8]) {
    raw.write_blocks(0, 0, &[0; 32 * 512]).good();
    let mut cases = media();
    cases.extend(lists(raw));
    check_completeness(raw, &cases);
    for case in cases.iter().filter(|case| !except.contains(&case.opcode())) {
        send_less(raw, mode, case);
        if case.is_good() {
            let reply = send(raw, mode, &case.cdb, &case.data);
            assert_eq!((reply.status, reply.sense(), reply.residual), (0, 0, 0), "{:02x?}", case.cdb);
            send_more(raw, mode, case);
        }
        raw.write_blocks(0, 0, &[0; 32 * 512]).good();
    }
}
