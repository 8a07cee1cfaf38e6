//! Floods of hostile logins, texts and discovery sessions. An honest host can always log in, and its data stay
//! correct. The server's memory, open files and log stay bounded.

use crate::NO_ANSWER;
use crate::attacks::{Attacker, reset};
use crate::tally::{Tally, joined};
use interop::{Chap, Folder, Login, Pdu, Random, Raw, Received, Server, TARGET, chap};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

pub const HONEST: &str = "iqn.2026-11.org.example:alice";
pub const HONEST_ISID: [u8; 6] = [0x40, 0, 0, 0xa1, 0, 1];
const ALICE: &[u8] = b"alice's secret 1";
pub const MALLORY: &[u8] = b"mallory's secret";
/// A target that every initiator may use.
pub const OPEN: &str = "iqn.2026-11.org.example:open";
const THREADS: u64 = 4;
const ATTACKS: u64 = 4000;
const ATTACKS_SHORT: u64 = 400;
const CELLS: u32 = 64;
/// The growth that the server is allowed during a flood.
const GROWTH_KIB: u64 = 512 << 10;
/// Limits of log lines about logins, session ends and rejections: lines of each kind in [`STRETCH_S`] seconds, for
/// one address and for all addresses together (docs/operate.md, "Logs").
const LINES_OF_ADDRESS: u64 = 10;
const LINES_OF_ALL: u64 = 50;
/// Rejected connections, rejected logins, session starts and session ends.
const KINDS_OF_LINES: u64 = 4;
const STRETCH_S: u64 = 10;
/// Lines of the server's start and end, which have no limit.
const OTHER_LINES: u64 = 100;
/// `connections` of [limits], and the server's other open files.
const FILES: usize = 4096 + 256;

pub fn round(seed: u64, tally: &mut Tally) -> Result<(), String> {
    more_files();
    let mut random = Random::new(seed);
    let attacks = if tally.is_short() { ATTACKS_SHORT } else { ATTACKS };
    let started_at = Instant::now();
    let mut server = Server::start_in(folder(tally), &configuration());
    let mut honest = HonestHost::new(&server, &mut random);
    honest.visit(tally)?;
    let before = ProcessSize::of(&server);
    let sources = sources(&mut random);
    // The honest host has another address.
    let addresses = sources.len() as u64 + 1;
    flood(&server, &mut honest, &mut random, sources, attacks, tally)?;
    honest.leave();
    settles(&server, &before)?;
    honest.visit(tally)?;
    let log = server.log();
    let judged = log_is_bounded(&log, most_lines(started_at.elapsed(), addresses), attacks)?;
    tally.add(if judged { "logs checked" } else { "logs that may have a line for each attack" }, 1);
    if !server.lives() {
        return Err("the server has ended".into());
    }
    server.signal(15);
    let status = server.wait(NO_ANSWER).code();
    if status == Some(0) { Ok(()) } else { Err(format!("the server ended with {status:?}")) }
}

/// Raises the soft limit on open files to the hard limit: the attackers keep thousands of connections.
fn more_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn folder(tally: &Tally) -> Folder {
    let folder = tally.folder();
    for (name, secret) in [("alice", ALICE), ("mallory", MALLORY)] {
        let file = folder.join(name);
        fs::write(&file, secret).expect("a secret");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("set the file mode");
    }
    folder
}

fn configuration() -> String {
    let lun = |lun: u16| {
        format!("[[target.lun]]\nlun = {lun}\nbackend = \"memory\"\nsize = \"1MiB\"\nserial = \"l{lun}\"\n")
    };
    let user = |name: &str| format!("[[chap_user]]\nname = \"{name}\"\nsecret_file = \"{name}\"\n");
    format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n{}{}\
         [[target.access]]\ninitiators = [\"{HONEST}\"]\nchap = [\"alice\"]\nluns = [0]\n\
         [[target.access]]\nchap = [\"mallory\"]\nluns = [1]\n\
         [[target]]\nname = \"{OPEN}\"\n[[target.lun]]\nlun = 0\nbackend = \"null\"\nsize = \"1GiB\"\n{}{}",
        lun(0),
        lun(1),
        user("alice"),
        user("mallory")
    )
}

/// Runs the attacks, while the honest host logs in repeatedly.
fn flood(
    server: &Server,
    honest: &mut HonestHost,
    random: &mut Random,
    sources: Vec<IpAddr>,
    attacks: u64,
    tally: &Tally,
) -> Result<(), String> {
    let portal = server.portal();
    let begun = AtomicU64::new(0);
    let begun = &begun;
    thread::scope(|scope| {
        let crowd: Vec<_> = (0..THREADS)
            .map(|_| Attacker::new(portal, sources.clone(), random.fork()))
            .map(|mut attacker| scope.spawn(move || attacker.run(begun, attacks)))
            .collect();
        let mut result = Ok(());
        while result.is_ok() && !crowd.iter().all(|thread| thread.is_finished()) {
            result = honest.visit(tally).and_then(|()| ProcessSize::of(server).is_bounded());
        }
        crowd.into_iter().map(joined).for_each(|n| tally.add("answers to attacks", n));
        tally.add("attacks", attacks);
        result
    })
}

/// One or several source addresses of the attackers.
fn sources(random: &mut Random) -> Vec<IpAddr> {
    let count = *random.pick(&[1, 1, 3, 8]);
    (0..count).map(|n| Ipv4Addr::new(127, 9, random.below(250) as u8, n + 1).into()).collect()
}

/// The host that must always be able to log in.
struct HonestHost {
    portal: SocketAddr,
    random: Random,
    cells: Vec<u64>,
    stamp: u64,
    session: Option<Raw>,
}

impl HonestHost {
    fn new(server: &Server, random: &mut Random) -> HonestHost {
        let cells = vec![0; CELLS as usize];
        HonestHost { portal: server.portal(), random: random.fork(), cells, stamp: 0, session: None }
    }

    /// Logs in, writes, and reads all that it has written. The previous session was closed, or is replaced.
    fn visit(&mut self, tally: &Tally) -> Result<(), String> {
        // Only this host may end the session that it left open.
        let mut kept = self.session.take();
        kept.iter_mut().try_for_each(|raw| self.check(raw))?;
        let mut raw = self.log_in().map_err(|why| format!("the honest host does not get in: {why}"))?;
        tally.add("honest logins", 1);
        drop(kept);
        raw.clear_attentions(0);
        for _ in 0..4 {
            self.stamp += 1;
            let cell = self.random.below(u64::from(CELLS)) as u32;
            raw.write_blocks(0, cell * 8, &self.stamp.to_be_bytes().repeat(512)).good();
            self.cells[cell as usize] = self.stamp;
        }
        self.check(&mut raw)?;
        tally.add("honest reads checked", u64::from(CELLS));
        match self.random.below(4) {
            0 => self.session = Some(raw),
            1 => drop(raw.logout(0, 0)),
            2 => raw.cut(),
            _ => reset(&raw.stream),
        }
        Ok(())
    }

    fn log_in(&mut self) -> Result<Raw, String> {
        let login =
            Login::new().initiator(HONEST).isid(HONEST_ISID).source(Ipv4Addr::new(127, 8, 0, 1).into());
        let mut raw = login.connect(self.portal);
        let algorithm = *self.random.pick(&["5", "6", "7", "8"]);
        asks(&mut raw, &login.clone().key("AuthMethod", "CHAP").request(0, None))?;
        let challenge = asks(&mut raw, &login.empty(0, None).keys(&[("CHAP_A", algorithm)]))?;
        let response = chap::hex(&Chap::read(&challenge).response(ALICE));
        let keys = [("CHAP_N", "alice"), ("CHAP_R", &response[..])];
        asks(&mut raw, &login.empty(0, Some(1)).keys(&keys))?;
        let refused = |status| format!("login status {status:#06x}");
        login.finish(&mut raw, login.empty(1, Some(3))).map_err(refused)?;
        Ok(raw)
    }

    fn check(&self, raw: &mut Raw) -> Result<(), String> {
        let disk = raw.read_blocks(0, 0, (CELLS * 8) as u16);
        let expected = self.cells.iter().flat_map(|stamp| stamp.to_be_bytes().repeat(512));
        let wrong = expected.zip(&disk).position(|(a, b)| a != *b);
        wrong.map_or(Ok(()), |at| Err(format!("the honest host's cell {} is wrong", at / 4096)))
    }

    fn leave(&mut self) {
        self.session = None;
    }
}

/// Sends a Login Request, and returns its successful response.
fn asks(raw: &mut Raw, request: &Pdu) -> Result<Pdu, String> {
    let request = request.clone().exp_stat_sn(raw.exp_stat_sn);
    raw.send(&request);
    match raw.get(NO_ANSWER) {
        Received::Pdu(answer) if answer.status() == 0 => Ok(answer),
        Received::Pdu(answer) => Err(format!("login status {:#06x}", answer.status())),
        Received::Closed => Err("the connection was closed".into()),
        Received::Nothing => Err("no answer".into()),
    }
}

/// Resources of the server.
struct ProcessSize {
    rss_kib: u64,
    files: usize,
    grown_to_kib: u64,
}

impl ProcessSize {
    fn of(server: &Server) -> ProcessSize {
        let files = fs::read_dir(format!("/proc/{}/fd", server.pid())).map_or(0, Iterator::count);
        let rss_kib = server.rss_kib();
        ProcessSize { rss_kib, files, grown_to_kib: rss_kib + GROWTH_KIB }
    }

    fn is_bounded(&self) -> Result<(), String> {
        match self.files > FILES || self.rss_kib > 2 * GROWTH_KIB {
            true => Err(format!("the server has {} files open and {} KiB", self.files, self.rss_kib)),
            false => Ok(()),
        }
    }
}

/// Waits until the server has freed the resources of the attackers.
fn settles(server: &Server, before: &ProcessSize) -> Result<(), String> {
    let end = Instant::now() + NO_ANSWER;
    loop {
        let now = ProcessSize::of(server);
        if now.files <= before.files + 4 && now.rss_kib <= before.grown_to_kib {
            return Ok(());
        }
        if Instant::now() > end {
            let ProcessSize { rss_kib, files, .. } = now;
            return Err(format!("{files} files and {rss_kib} KiB stay, {} files were", before.files));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The number of lines that the server's limits allow in this time. The limits are per time, and the time for the
/// attacks depends on the machine.
fn most_lines(elapsed: Duration, addresses: u64) -> u64 {
    let of_kind = LINES_OF_ALL.min(LINES_OF_ADDRESS * addresses);
    let stretches = elapsed.as_secs() / STRETCH_S + 1;
    OTHER_LINES + stretches * KINDS_OF_LINES * of_kind
}

/// Checks that the log has at most `max` lines, and no panic. Returns false if the check proves nothing, because
/// `max` also allows a line for each attack.
fn log_is_bounded(log: &str, max: u64, attacks: u64) -> Result<bool, String> {
    if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
        return Err(format!("the log has: {line}"));
    }
    let lines = log.lines().count() as u64;
    if lines <= max && log.len() as u64 <= max * 400 {
        return Ok(max < attacks);
    }
    Err(format!(
        "the log has {lines} lines and {} bytes after {attacks} attacks; {max} lines may be",
        log.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_line_for_every_attack_is_rejected() {
        let log = "a line\n".repeat(ATTACKS as usize);
        let max = most_lines(Duration::from_secs(20), 9);
        assert!(log_is_bounded(&log, max, ATTACKS).expect_err("a fault").contains("4000 lines"));
        assert_eq!(log_is_bounded(&log[..log.len() / 8], max, ATTACKS), Ok(true));
    }

    #[test]
    fn log_bound_grows_with_the_run_time() {
        let log = "a line\n".repeat(1497);
        assert_eq!(log_is_bounded(&log, most_lines(Duration::from_secs(120), 4), ATTACKS), Ok(true));
        assert_eq!(log_is_bounded(&log, most_lines(Duration::from_secs(600), 9), ATTACKS), Ok(false));
    }
}
