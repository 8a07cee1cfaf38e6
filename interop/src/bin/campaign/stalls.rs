//! A core of the storage stalls for longer than the time limits of its initiators: `lunar attach` over two portals,
//! and routers with one URL and with two.
//!
//! Writes in flight end over other paths, and newer ones of the same blocks are acknowledged. Then the core continues: it
//! must not execute the old writes that it still has. See [`crate::stamps`] for the values that a block may have.

use crate::NO_ANSWER;
use crate::attach::Attach;
use crate::site::{self, HEAD, ROUTED, router};
use crate::stamps::Stamps;
use crate::tally::Tally;
use interop::nbd::{self, Nbd, NbdReply};
use interop::queued_session::{Command, QueuedSession, SessionEvent};
use interop::routed::{session, until};
use interop::scsi::write10;
use interop::stopped_thread::{StoppedThread, threads};
use interop::{Random, Raw, Server, TARGET};
use std::collections::HashMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a block, and its sectors of 512 bytes.
const BLOCK: usize = 4096;
const SECTORS: u32 = 8;
/// The block of long writes, which the target takes in pieces.
const LONG: u64 = 2048;
const LONG_BYTES: usize = 3 << 20;
/// Hosts of a router.
const HOSTS: usize = 4;
/// Longer than the sum of the time-outs in [`OPTIONS`]. A write that has not ended by then waits for the core.
const OLD: Duration = Duration::from_secs(9);
/// Time for the core to execute old commands. It only affects the probability of finding a fault.
const SETTLE: Duration = Duration::from_millis(1500);
const OPTIONS: &str = "?noop_interval=1&noop_timeout=1&login_timeout=1&command_timeout=2&abort_timeout=1\
                       &lun_reset_timeout=1&target_reset_timeout=1";

/// The writer: an attachment, or hosts of a router in this mode with this number of URLs.
const VARIANTS: [(&str, usize); 5] =
    [("attach", 2), ("block", 1), ("passthrough", 1), ("block", 2), ("passthrough", 2)];

/// Stalls of one variant. Consecutive seeds use all variants.
pub fn round(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let (kind, urls) = VARIANTS[(seed % VARIANTS.len() as u64) as usize];
    let mut random = Random::new(seed);
    let storage = storage(tally);
    let urls: Vec<String> = storage.portals()[..urls]
        .iter()
        .map(|portal| format!("iscsi://{portal}/{TARGET}{OPTIONS}"))
        .collect();
    let mut front = WriterKind::open(kind, &urls, tally)?;
    let cores = threads(storage.pid(), "core");
    for stall in 0..if tally.is_short() { 1 } else { 3 } {
        let core = *random.pick(&cores);
        one(&storage, &mut front, core, &mut random, tally)
            .map_err(|fault| format!("{kind}, {} URLs, stall {stall}: {fault}", urls.len()))?;
    }
    Ok(())
}

fn storage(tally: &Tally) -> Server {
    let second = "[[portal_group]]\ntag = 2\nportals = [\"127.0.0.1:0\"]\n";
    let lun = site::lun(0, &site::file("disk.img", ""));
    let toml = format!("[server]\ncores = 2\n{HEAD}{second}[[target]]\nname = \"{TARGET}\"\n{lun}");
    Server::start_in(tally.folder(), &toml)
}

/// Stalls a core once, and checks the blocks.
fn one(
    storage: &Server,
    front: &mut WriterKind,
    core: i32,
    random: &mut Random,
    tally: &Tally,
) -> Result<(), String> {
    let mut stamps = Stamps::default();
    let blocks: Vec<u64> = (0..16).map(|n| n * 64 + random.below(64)).chain([LONG]).collect();
    for block in &blocks {
        if !surely(front, &mut stamps, *block)? {
            return Err(format!("block {block} cannot be written although no core stalls"));
        }
    }
    let before = random.below(blocks.len() as u64 / 2) as usize;
    for block in &blocks[..before] {
        front.send(&mut stamps, *block, None);
    }
    let held = StoppedThread::hold(core)?;
    for block in &blocks[before..] {
        front.send(&mut stamps, *block, None);
    }
    front.wait(&mut stamps, if tally.is_short() { OLD / 3 } else { OLD })?;
    // Without an end, no newer write can start, so nothing is tested.
    front
        .wait_until(&mut stamps, NO_ANSWER, |stamps| !blocks.iter().all(|block| stamps.is_flying(*block)))?;
    let ended: Vec<u64> = blocks.iter().copied().filter(|block| !stamps.is_flying(*block)).collect();
    for block in ended {
        let is_acknowledged = surely(front, &mut stamps, block)?;
        tally.add("newer writes acknowledged", is_acknowledged.into());
    }
    held.resume();
    tally.add("stalls", 1);
    front.wait(&mut stamps, NO_ANSWER)?;
    if let Some(block) = blocks.iter().find(|block| stamps.is_flying(**block)) {
        return Err(format!("no answer to a write of block {block}"));
    }
    thread::sleep(SETTLE);
    check(storage, &stamps, &blocks, tally)?;
    front.repair()
}

/// Repeats a write of a block until it is acknowledged. Returns false after 20 failures.
fn surely(front: &mut WriterKind, stamps: &mut Stamps, block: u64) -> Result<bool, String> {
    for attempt in 0..20 {
        let newest = front.send(stamps, block, Some(attempt));
        front.wait_for(stamps, newest, Duration::from_secs(4))?;
        if stamps.is_acknowledged(newest) {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(false)
}

fn check(storage: &Server, stamps: &Stamps, blocks: &[u64], tally: &Tally) -> Result<(), String> {
    let file = File::open(storage.dir().join("disk.img")).map_err(|e| format!("disk.img: {e}"))?;
    let mut raw = session(&site::login(20), storage.portal(), &[0]);
    for block in blocks {
        let length = length(*block);
        let read = raw.read_blocks(0, *block as u32 * SECTORS, (length / 512) as u16);
        let mut data = vec![0; length];
        file.read_exact_at(&mut data, *block * BLOCK as u64).map_err(|e| format!("disk.img: {e}"))?;
        for data in [data, read].iter().flat_map(|data| data.chunks(BLOCK)) {
            stamps.check(*block, data)?;
            tally.add("blocks compared", 1);
        }
    }
    Ok(())
}

/// Bytes of a write that begins at this block.
fn length(block: u64) -> usize {
    if block == LONG { LONG_BYTES } else { BLOCK }
}

/// The initiator that writes.
enum WriterKind {
    Attach(Box<(Attach, Nbd, HashMap<u64, u64>)>),
    Router(Box<RouterHosts>),
}

impl WriterKind {
    fn open(kind: &str, urls: &[String], tally: &Tally) -> Result<WriterKind, String> {
        if kind == "attach" {
            let attach = Attach::start(tally, urls, &["--policy", "round-robin"])?;
            let nbd = attach.connect()?;
            return Ok(WriterKind::Attach(Box::new((attach, nbd, HashMap::new()))));
        }
        let policy = if urls.len() > 1 && kind == "block" { "policy = \"round-robin\"\n" } else { "" };
        let router = Server::start_in(tally.folder(), &format!("{HEAD}{}", router(kind, urls, policy)));
        let hosts = (0..HOSTS).map(|host| open(host, router.portal())).collect();
        let hosts = RouterHosts { router, hosts, in_flight: HashMap::new(), next: 0 };
        Ok(WriterKind::Router(Box::new(hosts)))
    }

    /// Sends a write with a new stamp, from this host of a router or from each host in turn.
    fn send(&mut self, stamps: &mut Stamps, block: u64, host: Option<usize>) -> u64 {
        let stamp = stamps.send(block);
        let data = crate::stamps::data(block, stamp, length(block));
        match self {
            WriterKind::Attach(attach) => {
                let cookie = attach.1.send(nbd::WRITE, block * BLOCK as u64, data.len() as u32, &data);
                attach.2.insert(cookie, stamp);
            }
            WriterKind::Router(hosts) => {
                if !hosts.send(block, stamp, data, host) {
                    stamps.ended(stamp, false); // no host has a session
                }
            }
        }
        stamp
    }

    /// Waits until all writes have ended, at most for `limit`.
    fn wait(&mut self, stamps: &mut Stamps, limit: Duration) -> Result<(), String> {
        self.wait_until(stamps, limit, Stamps::none_flies)
    }

    /// Waits until this write has ended, at most for `limit`.
    fn wait_for(&mut self, stamps: &mut Stamps, stamp: u64, limit: Duration) -> Result<(), String> {
        self.wait_until(stamps, limit, |stamps| stamps.has_ended(stamp))
    }

    fn wait_until(
        &mut self,
        stamps: &mut Stamps,
        limit: Duration,
        is_over: impl Fn(&Stamps) -> bool,
    ) -> Result<(), String> {
        let end = Instant::now() + limit;
        while !is_over(stamps) && Instant::now() < end {
            match self {
                WriterKind::Attach(attach) => match attach.1.next(Duration::from_millis(20)) {
                    NbdReply::End(cookie, error, _) => {
                        stamps.ended(attach.2.remove(&cookie).ok_or("a reply to nothing")?, error == 0);
                    }
                    NbdReply::Closed => return Err("lunar attach closed the connection".into()),
                    NbdReply::Nothing => {}
                },
                WriterKind::Router(hosts) => hosts.take(stamps),
            }
        }
        Ok(())
    }

    /// Replaces the sessions that have ended.
    fn repair(&mut self) -> Result<(), String> {
        let WriterKind::Router(hosts) = self else { return Ok(()) };
        let portal = hosts.router.portal();
        for (number, host) in hosts.hosts.iter_mut().enumerate() {
            let depth = host.take().map(|mut depth| {
                depth.raw.clear_attentions(0);
                depth
            });
            *host = depth.or_else(|| open(number, portal));
        }
        Ok(())
    }
}

/// Hosts of a router. A host whose session has ended is None until the stall ends.
struct RouterHosts {
    router: Server,
    hosts: Vec<Option<QueuedSession>>,
    /// Stamps by host and tag
    in_flight: HashMap<(usize, u32), u64>,
    next: usize,
}

impl RouterHosts {
    /// Sends from the first host with a session, starting at `host`. Returns false if no host has one.
    fn send(&mut self, block: u64, stamp: u64, data: Vec<u8>, host: Option<usize>) -> bool {
        let first = host.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        let count = self.hosts.len();
        let number = (first..first + count).map(|n| n % count).find(|n| self.hosts[*n].is_some());
        let Some(number) = number else { return false };
        let depth = self.hosts[number].as_mut().expect("found");
        let sectors = (data.len() / 512) as u16;
        let command = Command::new(&write10(block as u32 * SECTORS, sectors)).writes(data);
        let tag = depth.send(command);
        self.in_flight.insert((number, tag), stamp);
        true
    }

    /// Handles the completions that have arrived for any host.
    fn take(&mut self, stamps: &mut Stamps) {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            let Some(depth) = host.as_mut().filter(|depth| depth.in_flight() > 0) else { continue };
            match depth.next(Duration::from_millis(5)) {
                SessionEvent::Completion(end) => {
                    let stamp =
                        self.in_flight.remove(&(number, end.tag)).expect("the tag of a command in flight");
                    stamps.ended(stamp, end.is_good());
                }
                // The ends of its writes are unknown.
                SessionEvent::Closed => {
                    *host = None;
                    self.in_flight.retain(|(of, _), stamp| {
                        if *of == number {
                            stamps.lost(*stamp);
                        }
                        *of != number
                    });
                }
                SessionEvent::Nothing => {}
            }
        }
    }
}

fn open(host: usize, portal: SocketAddr) -> Option<QueuedSession> {
    let login = site::login(host).target(ROUTED);
    let mut raw: Raw = session(&login, portal, &[0]);
    until("the LUN is ready", || (raw.simple(0, &[0; 6]).status == 0).then_some(()));
    Some(QueuedSession::new(raw))
}
