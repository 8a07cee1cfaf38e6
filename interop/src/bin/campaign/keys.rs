//! A persistent reservation whose key changes continuously.

use crate::NO_ANSWER;
use crate::site::Storage;
use crate::tally::Tally;
use interop::Raw;
use interop::queued_session::{Command, QueuedSession, SessionEvent};
use interop::scsi::{read_keys, reserve_out};
use std::sync::atomic::{AtomicBool, Ordering};

/// The host that holds the reservation.
pub const HOST: usize = 8;
const LUN: u16 = 1;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const WRITE_EXCLUSIVE: u8 = 1;
const APTPL: u8 = 1;
const CONFLICT: u8 = 0x18;

/// A persistent reservation of LUN 1 with APTPL.
pub struct PersistentKey {
    /// The key that was acknowledged last
    key: u64,
    /// The key that was requested last
    next: u64,
}

impl PersistentKey {
    /// Registers and reserves.
    pub fn establish(site: &Storage) -> Result<PersistentKey, String> {
        let mut raw = site.session(&site.login(HOST), &[0, LUN]);
        for (action, kind, key, new) in [(REGISTER, 0, 0, 1), (RESERVE, WRITE_EXCLUSIVE, 1, 0)] {
            let reply = reserve_out(&mut raw, LUN, action, kind, key, new, APTPL);
            if reply.status != 0 {
                return Err(format!(
                    "PERSISTENT RESERVE OUT {action}: {:#x}, {:06x}",
                    reply.status,
                    reply.sense()
                ));
            }
        }
        Ok(PersistentKey { key: 1, next: 1 })
    }

    /// Changes the key until the connection ends, or after `stop`.
    pub fn change_on(&mut self, raw: Raw, stop: &AtomicBool, tally: &Tally) -> Result<(), String> {
        let mut depth = QueuedSession::new(raw);
        while !stop.load(Ordering::Relaxed) {
            self.next = self.key + 1;
            depth.send(self.change());
            match depth.next(NO_ANSWER) {
                SessionEvent::Completion(end) if end.is_good() => {
                    self.key = self.next;
                    tally.add("reservation changes", 1);
                }
                // The target may have executed the change or not.
                SessionEvent::Completion(_) | SessionEvent::Closed => return Ok(()),
                SessionEvent::Nothing => return Err("no answer to PERSISTENT RESERVE OUT".into()),
            }
        }
        Ok(())
    }

    fn change(&self) -> Command {
        let list =
            [&self.key.to_be_bytes()[..], &self.next.to_be_bytes(), &[0, 0, 0, 0, APTPL, 0, 0, 0]].concat();
        let command = Command::new(&[0x5f, REGISTER, 0, 0, 0, 0, 0, 0, 24, 0]).writes(list);
        Command { lun: LUN, ..command }
    }

    /// Checks that exactly one key is registered, the acknowledged or the requested one, and that other hosts cannot
    /// write.
    pub fn check(&mut self, site: &Storage, other: &mut Raw, tally: &Tally) -> Result<(), String> {
        let keys = read_keys(other, LUN);
        if keys != [self.key] && keys != [self.next] {
            return Err(format!(
                "registered keys {keys:?}, acknowledged {}, asked for {}",
                self.key, self.next
            ));
        }
        (self.key, self.next) = (keys[0], keys[0]);
        let status = other.settled(|raw| raw.write_blocks(LUN, 0, &[1; 512])).status;
        if status != CONFLICT {
            return Err(format!("a write beside a reservation ended with status {status:#x}"));
        }
        let mut holder = site.session(&site.login(HOST), &[0, LUN]);
        let status = holder.settled(|raw| raw.write_blocks(LUN, 0, &[2; 512])).status;
        tally.add("reservations checked", 1);
        if status == 0 { Ok(()) } else { Err(format!("the holder's write ended with status {status:#x}")) }
    }
}
