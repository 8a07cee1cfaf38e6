//! All sessions on one thread, by epoll.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use rustix::event::{Timespec, epoll};

use crate::aligned::AlignedBuf;
use crate::session::{BlastSession, CommandLatencies};

/// Maximum bytes of one receive.
const RECEIVE: usize = 128 << 10;
/// Sockets that one wait returns at most.
const EVENTS: usize = 1024;
/// How often `stop` is checked at least, although nothing arrives.
const CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Sends and receives until `stop`; returns the latencies of all commands.
pub fn run(sessions: &mut [BlastSession], stop: &AtomicBool) -> Result<CommandLatencies> {
    let (mut memory, mut times) = (AlignedBuf::zeroed(RECEIVE), CommandLatencies::default());
    let input = memory.bytes();
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (at, session) in sessions.iter_mut().enumerate() {
        epoll::add(&poll, session.socket(), epoll::EventData::new_u64(at as u64), epoll::EventFlags::IN)?;
        session.submit(&mut times)?;
    }
    let mut ready = Vec::with_capacity(EVENTS);
    while !stop.load(Ordering::Relaxed) {
        ready.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut ready), Some(&CHECK))?;
        for event in &ready {
            sessions[event.data.u64() as usize].turn(input, &mut times)?;
        }
    }
    Ok(times)
}
