//! `kill -9` of a storage server, or of the router in front of it, during writes.
//!
//! The page cache outlives a process, so every acknowledged write must be there afterwards. The writes are WRITE with
//! and without FUA, WRITE ATOMIC, COMPARE AND WRITE, WRITE SAME and UNMAP. Any blocks of a write in flight may be
//! there; of an atomic one, all blocks or none. Registrations and a reservation with APTPL must be as acknowledged.

use crate::keys::PersistentKey;
use crate::site::{self, ServedBy, Storage};
use crate::slots::Writer;
use crate::tally::{Tally, joined};
use interop::{Random, Server};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Concurrent writers, hosts 0 to 2, each with its own slots.
const WRITERS: usize = 3;
/// The host that only reads.
const READER: usize = 9;

/// How sessions reach the storage; whether the router is killed instead of the storage; keys of the LUN.
type Variant = (ServedBy, bool, &'static str);

const VARIANTS: [Variant; 8] = [
    (ServedBy::Direct, false, ""),
    (ServedBy::Direct, false, "direct = true"),
    (ServedBy::Pass, false, ""),
    (ServedBy::Pass, true, ""),
    (ServedBy::Direct, false, "write_cache = false"),
    (ServedBy::Direct, false, "block_size = 4096"),
    (ServedBy::Block, false, ""),
    (ServedBy::Block, true, "direct = true"),
];

/// Kills of one variant. Consecutive seeds use all variants.
pub fn round(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let mut random = Random::new(seed);
    let (served_by, kills_router, keys) = VARIANTS[(seed % VARIANTS.len() as u64) as usize];
    let luns = site::lun(0, &site::file("disk.img", keys)) + &site::lun(1, &site::file("keys.img", ""));
    let mut site = Storage::start(tally, served_by, &luns, OPTIONS);
    let block = if keys.contains("4096") { 4096 } else { 512 };
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|host| Writer::new(host, block, served_by != ServedBy::Block, random.fork()))
        .collect();
    let mut reservation = PersistentKey::establish(&site)?;
    for kill in 0..if tally.is_short() { 2 } else { 16 } {
        let moment = Duration::from_millis(20 + random.below(if tally.is_short() { 200 } else { 600 }));
        one(&mut site, kills_router, moment, &mut writers, &mut reservation, tally).map_err(|fault| {
            format!("{served_by:?}, {}, {keys:?}, kill {kill}: {fault}", victim(kills_router))
        })?;
    }
    Ok(())
}

/// Short time-outs of a router's upstream, so that it soon finds a restarted storage.
const OPTIONS: &str = "?noop_interval=1&noop_timeout=5&login_timeout=10";

fn victim(is_router: bool) -> &'static str {
    if is_router { "router" } else { "storage" }
}

/// Kills and restarts a server, and checks everything.
fn one(
    site: &mut Storage,
    kills_router: bool,
    moment: Duration,
    writers: &mut [Writer],
    reservation: &mut PersistentKey,
    tally: &Tally,
) -> Result<(), String> {
    let sessions: Vec<_> = writers.iter().map(|w| site.session(&site.login(w.host), &[0, 1])).collect();
    let registrant = site.session(&site.login(crate::keys::HOST), &[0, 1]);
    let stop = &AtomicBool::new(false);
    let keys = &mut *reservation;
    thread::scope(|scope| {
        let write = |(writer, raw): (_, _)| {
            let writer: &mut Writer = writer;
            scope.spawn(move || writer.write_on(raw, stop, tally))
        };
        let mut threads: Vec<_> = writers.iter_mut().zip(sessions).map(write).collect();
        threads.push(scope.spawn(move || keys.change_on(registrant, stop, tally)));
        thread::sleep(moment);
        kill(site, kills_router);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(joined)
    })?;
    tally.add("kills", 1);
    let mut raw = site.session(&site.login(READER), &[0, 1]);
    writers.iter_mut().try_for_each(|writer| writer.check(&mut raw, tally))?;
    reservation.check(site, &mut raw, tally)
}

/// Kills the storage or the router, and restarts it.
fn kill(site: &mut Storage, kills_router: bool) {
    let server: &mut Server = match &mut site.router {
        Some(router) if kills_router => router,
        _ => &mut site.storage,
    };
    server.restart();
}
