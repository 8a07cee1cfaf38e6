//! Late bytes of `lunar attach` and of a router: relays in front of the storage hold them back.
//!
//! A relay delivers the held bytes after the initiator has logged in there again, so the storage has ended the old
//! session. Earlier, on a live connection, the storage cannot distinguish late bytes from timely ones
//! (docs/attach.md). The rounds with raw sessions test bytes that the server has received already.

use crate::NO_ANSWER;
use crate::attach::Attach;
use crate::gate::{Cut, HoldingRelay};
use crate::site::{self, HEAD, ROUTED};
use crate::tally::Tally;
use interop::nbd::{self, Nbd, NbdReply};
use interop::queued_session::{Command, QueuedSession, SessionEvent};
use interop::routed::session;
use interop::scsi::{read10, write10};
use interop::{Login, Random, Server, TARGET};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const BLOCK: u32 = 4096;
const DISK_BLOCKS: u64 = 2048;
/// Blocks of a trial.
const AT_ONCE: usize = 12;
const TRIALS: u32 = 3;
const TRIES: u32 = 500;
/// Time limit for a session to return to its relay. On a slow machine it may be too short, because the time-outs of
/// [`WAITS`] are short too. The held bytes are then dropped.
const RETURN: Duration = Duration::from_secs(15);
/// Short time-outs of the initiator.
const WAITS: &str = "noop_interval=1&noop_timeout=1&login_timeout=1&command_timeout=2&abort_timeout=1\
                     &lun_reset_timeout=1&target_reset_timeout=1";

/// The kind of initiator under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InitiatorKind {
    Attach,
    Block,
    Pass,
}

/// The initiator in front of the storage, and the completions that no caller has waited for yet.
struct Initiator {
    kind: InitiatorKind,
    side: Endpoint,
    ends: HashMap<u64, (bool, Vec<u8>)>,
}

enum Endpoint {
    Attached(Nbd, #[expect(dead_code, reason = "it ends with its owner")] Attach),
    Routed(Box<QueuedSession>, #[expect(dead_code, reason = "it ends with its owner")] Server),
}

pub fn round(random: &mut Random, tally: &Tally) -> Result<(), String> {
    let server = Server::start_in(tally.folder(), &storage());
    let path_count = 1 + random.below(2) as usize;
    let gates: Vec<HoldingRelay> =
        server.portals()[..path_count].iter().map(|portal| HoldingRelay::to(*portal)).collect();
    let kind = *random.pick(&[InitiatorKind::Attach, InitiatorKind::Block, InitiatorKind::Pass]);
    let mut front = Initiator::before(&gates, kind, tally)?;
    let mut last = HashMap::new();
    for number in 0..if tally.is_short() { 1 } else { TRIALS } {
        let trial = trial(&mut front, &gates, random, &mut last, tally);
        trial.map_err(|why| format!("{kind:?} over {path_count} paths, trial {number}: {why}"))?;
        tally.add("trials of initiators", 1);
    }
    Ok(())
}

/// A portal group with two portals.
fn storage() -> String {
    format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\n\
         size = \"8MiB\"\n"
    )
}

/// A relay holds back writes in flight. The initiator ends them, newer writes are acknowledged, and then the old
/// bytes arrive.
fn trial(
    front: &mut Initiator,
    gates: &[HoldingRelay],
    random: &mut Random,
    last: &mut HashMap<u64, u64>,
    tally: &Tally,
) -> Result<(), String> {
    let mut stamp = last.values().max().copied().unwrap_or(0);
    let mut blocks: Vec<u64> = (0..AT_ONCE).map(|_| random.below(DISK_BLOCKS)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let mut next = || {
        stamp += 1;
        stamp
    };
    for block in &blocks {
        last.insert(*block, next());
        front.surely(*block, last[block])?;
    }
    let used: Vec<&HoldingRelay> = gates.iter().filter(|gate| gate.is_used()).collect();
    let gate = *random.pick(&used);
    gate.hold();
    let old: Vec<u64> = blocks.iter().map(|block| front.begin(*block, next())).collect();
    // With one path, no write can end before the next login.
    if gates.len() == 1 || random.one_in(2) {
        std::thread::sleep(Duration::from_millis(random.below(1500)));
        gate.open();
    }
    old.into_iter().try_for_each(|write| front.end(write).map(drop))?;
    for block in &blocks {
        last.insert(*block, next());
        front.surely(*block, last[block])?;
    }
    tally.add("newer writes acknowledged", blocks.len() as u64);
    gate.open();
    let is_over = front.is_one_nexus() || comes_back(gate);
    match random.below(4) {
        0 => gate.cut(Cut::Reset),
        1 => gate.cut(Cut::Close),
        _ if !is_over => {
            tally.add("sessions not back in time", 1);
            gate.cut(Cut::Reset);
        }
        _ => tally.add("late bytes", gate.release()),
    }
    std::thread::sleep(Duration::from_millis(50));
    for (block, stamp) in last.iter() {
        let found = front.read(*block)?;
        if found != *stamp {
            return Err(format!("block {block} holds {found}; {stamp} was acknowledged"));
        }
    }
    tally.add("blocks checked", last.len() as u64);
    Ok(())
}

fn routed(urls: &[String], path: &str, tally: &Tally) -> Endpoint {
    let urls: Vec<String> = urls.iter().map(|url| url.replace("/0?", "?")).collect();
    let router = Server::start_in(tally.folder(), &format!("{HEAD}{}", site::router(path, &urls, "")));
    let raw = session(&Login::new().target(ROUTED), router.portal(), &[0]);
    Endpoint::Routed(Box::new(QueuedSession::new(raw)), router)
}

/// Waits until the held session has logged in again. Attachments and routers keep the ISID of a path, so the next
/// login ends the held session in any state.
fn comes_back(gate: &HoldingRelay) -> bool {
    let end = Instant::now() + RETURN;
    while !gate.is_back() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    gate.is_back()
}

impl Initiator {
    fn before(gates: &[HoldingRelay], kind: InitiatorKind, tally: &Tally) -> Result<Initiator, String> {
        let urls: Vec<String> =
            gates.iter().map(|gate| format!("iscsi://{}/{TARGET}/0?{WAITS}", gate.address())).collect();
        let side = match kind {
            InitiatorKind::Attach => {
                let options: &[&str] = if urls.len() > 1 { &["--policy", "round-robin"] } else { &[] };
                let attach = Attach::start(tally, &urls, options)?;
                Endpoint::Attached(attach.connect()?, attach)
            }
            InitiatorKind::Block => routed(&urls, "block", tally),
            InitiatorKind::Pass => routed(&urls, "passthrough", tally),
        };
        Ok(Initiator { kind, side, ends: HashMap::new() })
    }

    /// Whether all relays belong to one initiator port. A login over any of them has then ended the old session.
    fn is_one_nexus(&self) -> bool {
        self.kind == InitiatorKind::Pass
    }

    /// Sends a write, and returns its number.
    fn begin(&mut self, block: u64, stamp: u64) -> u64 {
        let data = stamp.to_be_bytes().repeat(BLOCK as usize / 8);
        match &mut self.side {
            Endpoint::Attached(nbd, _) => nbd.send(nbd::WRITE, block * u64::from(BLOCK), BLOCK, &data),
            Endpoint::Routed(depth, _) => {
                depth.send(Command::new(&write10(block as u32 * 8, 8)).writes(data)).into()
            }
        }
    }

    /// Waits for the end of a command: whether it was good, and the data that it read.
    fn end(&mut self, command: u64) -> Result<(bool, Vec<u8>), String> {
        loop {
            if let Some(end) = self.ends.remove(&command) {
                return Ok(end);
            }
            let (command, end) = self.wait()?;
            self.ends.insert(command, end);
        }
    }

    fn wait(&mut self) -> Result<(u64, (bool, Vec<u8>)), String> {
        match &mut self.side {
            Endpoint::Attached(nbd, _) => match nbd.next(NO_ANSWER) {
                NbdReply::End(cookie, error, data) => Ok((cookie, (error == 0, data))),
                NbdReply::Closed => Err("the attachment closed its socket".into()),
                NbdReply::Nothing => Err("no answer of the attachment".into()),
            },
            Endpoint::Routed(depth, _) => match depth.next(NO_ANSWER) {
                SessionEvent::Completion(end) => Ok((end.tag.into(), (end.is_good(), end.data))),
                SessionEvent::Closed => Err("the router closed the session".into()),
                SessionEvent::Nothing => Err("no answer of the router".into()),
            },
        }
    }

    /// Repeats a write until it is acknowledged.
    fn surely(&mut self, block: u64, stamp: u64) -> Result<(), String> {
        self.again(|front| front.begin(block, stamp)).map(drop)
    }

    /// The stamp of a block, which must fill it.
    fn read(&mut self, block: u64) -> Result<u64, String> {
        let data = self.again(|front| match &mut front.side {
            Endpoint::Attached(nbd, _) => nbd.send(nbd::READ, block * u64::from(BLOCK), BLOCK, &[]),
            Endpoint::Routed(depth, _) => {
                depth.send(Command::new(&read10(block as u32 * 8, 8)).reads(BLOCK)).into()
            }
        })?;
        let stamp: [u8; 8] = data[..8].try_into().expect("8 bytes");
        match data.chunks_exact(8).all(|part| part == stamp) {
            true => Ok(u64::from_be_bytes(stamp)),
            false => Err(format!("block {block} holds parts of several writes")),
        }
    }

    fn again(&mut self, begin: impl Fn(&mut Initiator) -> u64) -> Result<Vec<u8>, String> {
        for _ in 0..TRIES {
            let command = begin(self);
            let (is_good, data) = self.end(command)?;
            if is_good {
                return Ok(data);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(format!("a command has failed {TRIES} times"))
    }
}
