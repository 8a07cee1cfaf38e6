//! Late bytes of sessions that were replaced, reset or closed: none of them may overwrite newer data.
//!
//! A trial leaves old commands behind: in the socket of a stopped server, or on a connection whose bytes a relay holds back.
//! The old session then ends, newer data are acknowledged, and the rest of the old bytes arrives. The newer data must stay. A
//! second region is not written again, so it shows whether an old command was executed at all.

use crate::late_paths;
use crate::left::{BLOCK, KINDS, LONG_BLOCKS, LateCommand, LateKind, STORED_BLOCKS, stamped};
use crate::tally::Tally;
use interop::routed::until;
use interop::scsi::{WRITE, cdb10, write10};
use interop::{Login, NONE, Random, Raw, Server, TARGET, op};
use std::fs;
use std::net::Shutdown;
use std::time::Duration;

const DISK_BLOCKS: u32 = 16384;
/// Start of the regions that are not written again.
const CONTROL: u32 = DISK_BLOCKS / 2;
const LUNS: [u16; 2] = [0, 1];
/// TCP_CLOSE_WAIT of Linux.
const CLOSE_WAIT: u8 = 8;
const LUN_RESET: u8 = 5;
const TARGET_WARM_RESET: u8 = 6;
const TRIALS: u32 = 300;
const TRIALS_SHORT: u32 = 8;

/// The end of the old session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionEnd {
    Reset,
    Close,
    Login,
    LunReset,
    TargetReset,
}

const CONNECTION_ENDS: [ConnectionEnd; 5] = [
    ConnectionEnd::Reset,
    ConnectionEnd::Close,
    ConnectionEnd::Login,
    ConnectionEnd::LunReset,
    ConnectionEnd::TargetReset,
];

#[derive(Debug)]
struct LateTrial {
    lun: u16,
    lba: u32,
    blocks: u16,
    kind: LateKind,
    end: ConnectionEnd,
    /// The server is stopped while the old bytes and the end arrive.
    is_paused: bool,
    /// Thousandths of the old bytes that arrive before the end.
    early: u64,
    digests: [bool; 2],
}

impl LateTrial {
    fn choose(random: &mut Random) -> LateTrial {
        let (kind, end) = (*random.pick(&KINDS), *random.pick(&CONNECTION_ENDS));
        let blocks = match kind {
            LateKind::CompareAndWrite => 1,
            LateKind::Long => LONG_BLOCKS,
            LateKind::Immediate | LateKind::Extended | LateKind::BehindHole => *random.pick(&[1, 8, 16]),
            _ => *random.pick(&[1, 8, 64]),
        };
        let is_task_function = matches!(end, ConnectionEnd::LunReset | ConnectionEnd::TargetReset);
        let waits = matches!(kind, LateKind::Solicited | LateKind::Long | LateKind::BehindHole);
        let is_paused = match end {
            ConnectionEnd::Reset | ConnectionEnd::Close => true,
            ConnectionEnd::Login => random.one_in(2),
            // On a live connection, a reset ends only the commands that the server has received.
            ConnectionEnd::LunReset | ConnectionEnd::TargetReset => !waits,
        };
        let early = match random.below(3) {
            _ if is_task_function && is_paused => 1000,
            _ if is_task_function => 0,
            0 => 1000,
            1 => 0,
            _ => random.below(1000),
        };
        let lba = random.below(u64::from(CONTROL) - u64::from(blocks)) as u32;
        let digests = [random.one_in(2), random.one_in(2)];
        LateTrial { lun: *random.pick(&LUNS), lba, blocks, kind, end, is_paused, early, digests }
    }

    fn is_task_function(&self) -> bool {
        matches!(self.end, ConnectionEnd::LunReset | ConnectionEnd::TargetReset)
    }

    /// Blocks that may be stored before the relay holds back the old bytes.
    fn stored_blocks(&self) -> usize {
        if self.kind == LateKind::Long { STORED_BLOCKS } else { 0 }
    }

    /// Whether no old command may have been executed: its bytes arrived together with the session's end, or later.
    fn begins_nothing(&self) -> bool {
        match self.end {
            ConnectionEnd::Reset | ConnectionEnd::Close => true,
            ConnectionEnd::Login => self.early == 0,
            ConnectionEnd::LunReset | ConnectionEnd::TargetReset => !self.is_paused,
        }
    }
}

/// The server, two of its hosts, and the expected contents of its disks.
struct LateStage {
    server: Server,
    /// Another initiator.
    host: Raw,
    /// Another session of the initiator that opens the old sessions.
    mate: Raw,
    disks: [Vec<u8>; 2],
    stamp: u64,
}

pub fn round(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let mut random = Random::new(seed);
    if random.one_in(4) {
        return late_paths::round(&mut random, tally);
    }
    let mut stage = LateStage::set(tally);
    for number in 0..if tally.is_short() { TRIALS_SHORT } else { TRIALS } {
        let trial = LateTrial::choose(&mut random);
        stage.perform(&trial, tally).map_err(|why| format!("trial {number}, {trial:?}: {why}"))?;
        tally.add("trials", 1);
    }
    LUNS.iter().try_for_each(|lun| stage.is_whole(*lun))?;
    tally.add("disks checked", LUNS.len() as u64);
    if stage.server.lives() { Ok(()) } else { Err("the server has ended".into()) }
}

fn disk(lun: u16, keys: &str) -> String {
    format!("[[target.lun]]\nlun = {lun}\nsize = \"{}KiB\"\n{keys}\n", DISK_BLOCKS / 2)
}

impl LateStage {
    fn set(tally: &Tally) -> LateStage {
        let luns = disk(0, "backend = \"memory\"") + &disk(1, "backend = \"file\"\npath = \"disk.img\"");
        let toml = format!(
            "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
             [[target]]\nname = \"{TARGET}\"\n{luns}"
        );
        let server = Server::start_in(tally.folder(), &toml);
        let host = Login::new().initiator("iqn.2026-11.org.example:other").on(server.portal());
        let mate = Login::new().on(server.portal());
        let size = DISK_BLOCKS as usize * BLOCK;
        LateStage { server, host, mate, disks: [vec![0; size], vec![0; size]], stamp: 0 }
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// Sets the expected contents of a region.
    fn holds(&mut self, lun: u16, lba: u32, data: &[u8]) {
        self.disks[usize::from(lun)][lba as usize * BLOCK..][..data.len()].copy_from_slice(data);
    }

    fn perform(&mut self, trial: &LateTrial, tally: &Tally) -> Result<(), String> {
        let [base, old_stamp, newer] = std::array::from_fn(|_| self.next_stamp());
        let (lun, blocks) = (trial.lun, trial.blocks);
        let places = [trial.lba, trial.lba + CONTROL];
        for lba in places {
            put(&mut self.host, lun, lba, &stamped(base, blocks))?;
            self.holds(lun, lba, &stamped(base, blocks));
        }
        [&mut self.host, &mut self.mate].into_iter().for_each(|raw| raw.clear_attentions(lun));
        let (login, mut old) = self.old_session(trial);
        // A late COMPARE AND WRITE compares with the current contents.
        let compared = [newer, base];
        let bytes = left_behind(&mut old, trial, places, compared, old_stamp);
        let early = bytes.len() as u64 * trial.early / 1000;
        let (early, late) = bytes.split_at(early as usize);
        if trial.is_paused {
            self.server.pause();
        }
        old.send_bytes(early);
        let (left, next) = self.end(trial, &login, old, &stamped(newer, blocks))?;
        self.holds(lun, places[0], &stamped(newer, blocks));
        tally.add("newer writes acknowledged", 1);
        self.come_late(trial, left, late);
        tally.add("late bytes", late.len() as u64);
        drop(next);
        self.check(trial, places, old_stamp, tally)
    }

    /// The session whose bytes arrive late.
    fn old_session(&self, trial: &LateTrial) -> (Login, Raw) {
        let digest = |wanted: bool| if wanted { "CRC32C" } else { "None" };
        let unasked = trial.kind == LateKind::Unsolicited;
        let login = Login::new().with(&[
            ("HeaderDigest", digest(trial.digests[0])),
            ("DataDigest", digest(trial.digests[1])),
            ("ImmediateData", if trial.kind.is_asked_for() || unasked { "No" } else { "Yes" }),
            ("InitialR2T", if unasked { "No" } else { "Yes" }),
        ]);
        let mut old = login.on(self.server.portal());
        old.clear_attentions(trial.lun);
        (login, old)
    }

    /// Ends the old session, and writes newer data. Returns the old connection and a new one, as far as they must
    /// stay open.
    fn end(
        &mut self,
        trial: &LateTrial,
        login: &Login,
        old: Raw,
        data: &[u8],
    ) -> Result<(Option<Raw>, Option<Raw>), String> {
        let LateTrial { lun, lba, .. } = *trial;
        match trial.end {
            ConnectionEnd::Reset | ConnectionEnd::Close => {
                let left = leave(old, trial.end);
                let count = (data.len() / BLOCK) as u16;
                let now = data.len().min(self.host.send_max).min(self.host.first_burst);
                let write = self.host.command(lun, 0x80 | WRITE, &write10(lba, count), data.len() as u32);
                let write = write.data(&data[..now]);
                self.host.send(&write);
                self.resume(trial);
                let reply = self.host.collect(write.tag(), data);
                (reply.status == 0).then_some((left, None)).ok_or(format!("the newer write: {reply:?}"))
            }
            ConnectionEnd::Login => {
                let mut next = Raw::connect(self.server.portal());
                next.send(&plain(login).request(1, Some(3)));
                self.resume(trial);
                let answer = next.recv_op(op::LOGIN_RESPONSE);
                if answer.status() != 0 {
                    return Err(format!("the next login: {answer:?}"));
                }
                put(&mut next, lun, lba, data)?;
                Ok((Some(old), Some(next)))
            }
            ConnectionEnd::LunReset | ConnectionEnd::TargetReset => {
                let function =
                    if trial.end == ConnectionEnd::LunReset { LUN_RESET } else { TARGET_WARM_RESET };
                let function = self.mate.tmf(function, lun, NONE, 0);
                self.mate.send(&function);
                self.resume(trial);
                let answer = self.mate.recv_for(function.tag());
                if answer.bhs[2] != 0 {
                    return Err(format!("the reset: {answer:?}"));
                }
                put(&mut self.mate, lun, lba, data)?;
                Ok((Some(old), None))
            }
        }
    }

    fn resume(&self, trial: &LateTrial) {
        if trial.is_paused {
            self.server.resume();
        }
    }

    /// Delivers the rest of the old bytes, and gives the server time to execute them wrongly.
    fn come_late(&self, trial: &LateTrial, left: Option<Raw>, late: &[u8]) {
        let Some(mut old) = left else { return };
        if trial.end != ConnectionEnd::Close {
            old.send_bytes(late);
        }
        if trial.is_task_function() {
            old.ping();
            let _ = old.logout(0, 0);
        } else {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn check(&mut self, trial: &LateTrial, places: [u32; 2], old: u64, tally: &Tally) -> Result<(), String> {
        let (lun, blocks) = (trial.lun, trial.blocks);
        let found = get(&mut self.host, lun, places[0], blocks)?;
        self.compare(lun, places[0], &found).map_err(|why| format!("after a newer write, {why}"))?;
        let found = get(&mut self.host, lun, places[1], blocks)?;
        tally.add("regions checked", 2);
        let Err(why) = self.compare(lun, places[1], &found) else { return Ok(()) };
        if trial.begins_nothing() {
            let begun = trial.stored_blocks();
            let behind = &found[begun * BLOCK..];
            self.compare(lun, places[1] + begun as u32, behind)
                .map_err(|why| format!("an old command was carried out: {why}"))?;
        }
        if trial.kind == LateKind::Long {
            return self.check_long(trial, places[1], old, &found, tally);
        }
        let carried_out =
            if trial.kind == LateKind::Unmap { stamped(0, blocks) } else { stamped(old, blocks) };
        if found != carried_out {
            return Err(format!("an old command was carried out in part: {why}"));
        }
        tally.add("old commands carried out in time", 1);
        self.holds(lun, places[1], &found);
        Ok(())
    }

    /// The server executes a long write in order, so only a prefix of its blocks may be stored.
    fn check_long(
        &mut self,
        trial: &LateTrial,
        lba: u32,
        old: u64,
        found: &[u8],
        tally: &Tally,
    ) -> Result<(), String> {
        let block = stamped(old, 1);
        let stored = found.chunks(BLOCK).take_while(|chunk| *chunk == block).count();
        self.compare(trial.lun, lba + stored as u32, &found[stored * BLOCK..])
            .map_err(|why| format!("behind {stored} blocks of a long write, {why}"))?;
        tally.add("long writes carried out in part", (stored < usize::from(trial.blocks)).into());
        self.holds(trial.lun, lba, found);
        Ok(())
    }

    fn compare(&self, lun: u16, lba: u32, found: &[u8]) -> Result<(), String> {
        let expected = &self.disks[usize::from(lun)][lba as usize * BLOCK..][..found.len()];
        let Some(at) = expected.iter().zip(found).position(|(a, b)| a != b) else { return Ok(()) };
        let stamp = |bytes: &[u8]| u64::from_be_bytes(bytes[at / 8 * 8..][..8].try_into().expect("8 bytes"));
        Err(format!("LUN {lun}, byte {at} from LBA {lba}: {} instead of {}", stamp(found), stamp(expected)))
    }

    fn is_whole(&mut self, lun: u16) -> Result<(), String> {
        for lba in (0..DISK_BLOCKS).step_by(128) {
            let found = get(&mut self.host, lun, lba, 128)?;
            self.compare(lun, lba, &found).map_err(|why| format!("at the end of the round, {why}"))?;
        }
        Ok(())
    }
}

/// The login without the keys that change the form of PDUs.
fn plain(login: &Login) -> Login {
    ["HeaderDigest", "DataDigest", "ImmediateData", "InitialR2T"]
        .iter()
        .fold(login.clone(), |l, k| l.without(k))
}

/// Resets a connection, or closes one direction, and waits until the other end has seen it.
fn leave(old: Raw, end: ConnectionEnd) -> Option<Raw> {
    let port = old.stream.local_addr().expect("connected").port();
    let portal = old.stream.peer_addr().expect("connected").port();
    if end == ConnectionEnd::Reset {
        // A close would send nothing while a child process that is being spawned still holds the descriptor.
        rustix::net::connect_unspec(&old.stream).expect("a socket");
        until("the reset has arrived", || state_of(portal, port).is_none().then_some(()));
        return None;
    }
    old.stream.shutdown(Shutdown::Write).expect("a socket");
    until("the end has arrived", || (state_of(portal, port)? == CLOSE_WAIT).then_some(()));
    Some(old)
}

/// The TCP state of the socket at port `from` that is connected to port `to` (/proc/net/tcp).
fn state_of(from: u16, to: u16) -> Option<u8> {
    let table = fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let (from, to) = (format!(":{from:04X}"), format!(":{to:04X}"));
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.len() > 3 && fields[1].ends_with(&from) && fields[2].ends_with(&to);
        is_it.then(|| u8::from_str_radix(fields[3], 16).expect("a state"))
    })
}

/// Returns the late bytes of a trial: one command for each region. Sends the PDUs that the server must receive
/// before.
fn left_behind(
    raw: &mut Raw,
    trial: &LateTrial,
    places: [u32; 2],
    compared: [u64; 2],
    stamp: u64,
) -> Vec<u8> {
    let LateTrial { lun, blocks, kind, .. } = *trial;
    let hole = (kind == LateKind::BehindHole).then(|| raw.command(lun, 0x80, &[0; 6], 0));
    let mut pdus = Vec::new();
    for (lba, compared) in places.into_iter().zip(compared) {
        pdus.extend(LateCommand { kind, lun, lba, blocks, compared, stamp }.pdus(raw));
    }
    if let Some(hole) = hole {
        raw.send_all(&pdus);
        pdus = vec![hole];
    }
    pdus.iter().flat_map(|pdu| pdu.encode(raw.header_digest, raw.data_digest)).collect()
}

/// Writes, and retries after unit attentions.
pub fn put(raw: &mut Raw, lun: u16, lba: u32, data: &[u8]) -> Result<(), String> {
    again(lun, || raw.write_blocks(lun, lba, data)).map(drop)
}

/// Reads, and retries after unit attentions.
fn get(raw: &mut Raw, lun: u16, lba: u32, blocks: u16) -> Result<Vec<u8>, String> {
    again(lun, || raw.read(lun, &cdb10(0x28, lba, blocks), u32::from(blocks) * BLOCK as u32))
}

fn again(lun: u16, mut command: impl FnMut() -> interop::Reply) -> Result<Vec<u8>, String> {
    for _ in 0..16 {
        let reply = command();
        match (reply.status, reply.sense() >> 16) {
            (0, _) => return Ok(reply.data),
            // A unit attention.
            (2, 6) => {}
            _ => return Err(format!("LUN {lun}: status {}, sense {:06x}", reply.status, reply.sense())),
        }
    }
    Err(format!("unit attentions of LUN {lun} do not end"))
}
