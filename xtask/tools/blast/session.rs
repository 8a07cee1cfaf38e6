//! A session under load.

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use crate::aligned::AlignedBuf;
use crate::bytes::{BHS, RESERVED_TAG, get24, get32, padded, put24, put32};
use crate::first::{self, FirstDataTimer};
use crate::job::{BlastJob, IoOp};
use crate::latency::LatencyHistogram;
use crate::login::{BlastLogin, put_lun};

const RECEIVE_BUFFER: usize = 4 << 20;

/// Counters, written by the session's thread and read by the reporting thread.
#[derive(Debug, Default)]
pub struct CommandCounters {
    /// Commands that ended
    pub done: AtomicU64,
    /// Of these, commands without GOOD, or without the iSCSI response "completed at target"
    pub errors: AtomicU64,
}

impl CommandCounters {
    /// Only the session's thread writes: a plain load and store suffice.
    fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

/// The latencies of commands.
#[derive(Debug, Default)]
pub struct CommandLatencies {
    /// From sending to the status
    pub whole: LatencyHistogram,
    /// To the first data, with --first
    pub first: FirstDataTimer,
}

impl CommandLatencies {
    /// Adds the latencies of another session.
    pub fn add(&mut self, other: &CommandLatencies) {
        self.whole.add(&other.whole);
        self.first.byte.add(&other.first.byte);
        self.first.pdu.add(&other.first.pdu);
    }
}

/// A logged-in session and its commands in flight.
#[derive(Debug)]
pub struct BlastSession {
    job: Arc<BlastJob>,
    socket: TcpStream,
    cmd_sn: u32,
    max_cmd_sn: u32,
    exp_stat_sn: u32,
    max_segment: u32,
    immediate: u32,
    /// The send time of each tag's command
    sent_at: Vec<Instant>,
    free_tags: Vec<u32>,
    random: u64,
    sequence: u64,
    /// Commands to send, without their immediate data: headers and data digests
    output: Vec<u8>,
    payload: Vec<u8>,
    /// CRC32C of the first `len` bytes of the payload, per length
    digests: Vec<(u32, u32)>,
    /// The received start of an incomplete PDU, with one thread for many sessions
    partial: Vec<u8>,
    /// The remaining payload of a PDU, which is ignored
    skip: usize,
    counters: Arc<CommandCounters>,
}

impl BlastSession {
    /// Logs session number `id` in.
    pub fn open(job: Arc<BlastJob>, id: u32) -> Result<BlastSession> {
        let login = BlastLogin::open(&job, id)?;
        let immediate = match job.op {
            IoOp::Read => 0,
            IoOp::Write => job.bytes.min(login.first_burst).min(login.max_segment),
        };
        Ok(BlastSession {
            socket: login.socket,
            cmd_sn: login.cmd_sn,
            max_cmd_sn: login.max_cmd_sn,
            exp_stat_sn: login.exp_stat_sn,
            max_segment: login.max_segment,
            immediate,
            sent_at: vec![Instant::now(); job.depth as usize],
            free_tags: (0..job.depth).collect(),
            random: 88_172_645_463_325_252 + u64::from(id) * 7919,
            sequence: 0,
            output: Vec::with_capacity((BHS + 4) * job.depth as usize),
            payload: vec![0x5a; job.bytes as usize],
            digests: Vec::new(),
            partial: Vec::new(),
            skip: 0,
            counters: Arc::default(),
            job,
        })
    }

    /// Its connection.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The counters for the reporting thread.
    pub fn counters(&self) -> Arc<CommandCounters> {
        Arc::clone(&self.counters)
    }

    /// Sends and receives until `stop`; returns the latencies of all commands.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<CommandLatencies> {
        let mut memory = AlignedBuf::zeroed(if self.job.first { first::RECEIVE } else { RECEIVE_BUFFER });
        let input = memory.bytes();
        let mut times = CommandLatencies::default();
        let mut have = 0;
        while !stop.load(Ordering::Relaxed) {
            // The status arrives with the header of the last data, which still belong to the command before.
            if !self.job.first || self.skip == 0 {
                self.submit(&mut times)?;
            }
            have = self.receive(input, have, &mut times)?;
        }
        Ok(times)
    }

    /// Receives behind `have` bytes and processes complete PDUs; returns the number of bytes left over, which are at
    /// the start of `input`.
    fn receive(&mut self, input: &mut [u8], have: usize, times: &mut CommandLatencies) -> Result<usize> {
        let received = self.socket.read(&mut input[have..])?;
        ensure!(received > 0, "the target closed the connection");
        let used = self.take(&input[..have + received], times)?;
        input.copy_within(used..have + received, 0);
        Ok(have + received - used)
    }

    /// One receive, and the commands that it makes possible, with a buffer that sessions share. The socket is readable.
    pub fn turn(&mut self, input: &mut [u8], times: &mut CommandLatencies) -> Result<()> {
        let have = self.partial.len();
        input[..have].copy_from_slice(&self.partial);
        let left = self.receive(input, have, times)?;
        self.partial.clear();
        self.partial.extend_from_slice(&input[..left]);
        self.submit(times)
    }

    /// Sends every command that the depth and the CmdSN window allow.
    pub fn submit(&mut self, times: &mut CommandLatencies) -> Result<()> {
        let now = Instant::now();
        while self.max_cmd_sn.wrapping_sub(self.cmd_sn) as i32 >= 0 {
            let Some(tag) = self.free_tags.pop() else { break };
            self.sent_at[tag as usize] = now;
            if self.job.first {
                times.first.sent(now);
            }
            self.command(tag);
        }
        let sent = self.send_commands();
        self.output.clear();
        sent
    }

    /// Sends the output, with the immediate data of each command. The data are not copied: targets without immediate
    /// data would cost the client less.
    fn send_commands(&mut self) -> Result<()> {
        let data = &self.payload[..self.immediate as usize];
        if data.is_empty() {
            return Ok(self.socket.write_all(&self.output)?);
        }
        let mut parts = parts(&self.output, self.digest_len(), data);
        send_all(&mut self.socket, &mut parts)
    }

    fn digest_len(&self) -> usize {
        if self.job.data_digest { 4 } else { 0 }
    }

    /// Appends one READ(10) or WRITE(10) to the output, or the one of 16 bytes for a length that needs it.
    fn command(&mut self, tag: u32) {
        let place = self.next_place();
        let flags = match self.job.op {
            IoOp::Read => 0xc1,
            IoOp::Write => 0xa1,
        };
        let mut header = [0; BHS];
        header[0] = 0x01;
        header[1] = flags;
        put24(&mut header, 5, self.immediate);
        put_lun(&mut header, self.job.lun + (place % u64::from(self.job.luns)) as u16);
        put32(&mut header, 16, tag);
        put32(&mut header, 20, self.job.bytes);
        put32(&mut header, 24, self.cmd_sn);
        put32(&mut header, 28, self.exp_stat_sn);
        let (lba, blocks) = (place as u32 * self.job.blocks(), self.job.blocks());
        let is_read = matches!(self.job.op, IoOp::Read);
        if let Ok(blocks) = u16::try_from(blocks) {
            header[32] = if is_read { 0x28 } else { 0x2a };
            put32(&mut header, 34, lba);
            header[39..41].copy_from_slice(&blocks.to_be_bytes());
        } else {
            header[32] = if is_read { 0x88 } else { 0x8a };
            put32(&mut header, 38, lba);
            put32(&mut header, 42, blocks);
        }
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        self.output.extend_from_slice(&header);
        if self.immediate > 0 && self.job.data_digest {
            let digest = self.digest(self.immediate);
            self.output.extend_from_slice(&digest);
        }
    }

    /// The next offset in the span, in units of the command's length.
    fn next_place(&mut self) -> u64 {
        if self.job.sequential {
            self.sequence += 1;
            return self.sequence % self.job.places();
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % self.job.places()
    }

    /// Processes complete PDUs in `input`; returns the number of consumed bytes.
    fn take(&mut self, input: &[u8], times: &mut CommandLatencies) -> Result<usize> {
        let now = Instant::now();
        let mut at = self.skip.min(input.len());
        self.skip -= at;
        if at > 0 {
            times.first.data(now, self.skip == 0);
        }
        while self.skip == 0 && input.len() - at >= BHS {
            let header = &input[at..at + BHS];
            let len = get24(header, 5);
            let digest = if self.job.data_digest && len > 0 { 4 } else { 0 };
            let whole = BHS + padded(len) + digest;
            self.answer(header, now, times)?;
            let here = whole.min(input.len() - at);
            self.skip = whole - here;
            at += here;
            if here > BHS {
                times.first.data(now, self.skip == 0);
            }
        }
        Ok(at)
    }

    fn answer(&mut self, header: &[u8], now: Instant, times: &mut CommandLatencies) -> Result<()> {
        self.max_cmd_sn = get32(header, 32);
        match header[0] & 0x3f {
            0x25 if header[1] & 1 != 0 => self.finish(header, header[3] == 0, now, times),
            0x25 => Ok(()),
            0x21 => self.finish(header, header[2] == 0 && header[3] == 0, now, times),
            0x31 => self.data_out(header),
            0x20 => self.pong(header),
            other => bail!("unexpected opcode {other:#04x}"),
        }
    }

    /// A command has ended.
    fn finish(
        &mut self,
        header: &[u8],
        good: bool,
        now: Instant,
        times: &mut CommandLatencies,
    ) -> Result<()> {
        let tag = get32(header, 16);
        ensure!(tag < self.job.depth, "status for the unknown tag {tag:#x}");
        self.exp_stat_sn = get32(header, 24).wrapping_add(1);
        CommandCounters::add(&self.counters.done, 1);
        if !good {
            CommandCounters::add(&self.counters.errors, 1);
        }
        times.whole.count((now - self.sent_at[tag as usize]).as_nanos() as u64);
        self.free_tags.push(tag);
        Ok(())
    }

    /// Sends the Data-Out PDUs that an R2T requests.
    fn data_out(&mut self, r2t: &[u8]) -> Result<()> {
        let (mut offset, len) = (get32(r2t, 40), get32(r2t, 44));
        ensure!(offset.checked_add(len).is_some_and(|end| end <= self.job.bytes), "R2T beyond the command");
        let end = offset + len;
        let mut data_sn = 0;
        while offset < end {
            let segment = (end - offset).min(self.max_segment);
            let mut header = [0; BHS];
            header[0] = 0x05;
            header[1] = if offset + segment == end { 0x80 } else { 0 };
            put24(&mut header, 5, segment);
            header[8..24].copy_from_slice(&r2t[8..24]); // LUN, task tag and transfer tag
            put32(&mut header, 28, self.exp_stat_sn);
            put32(&mut header, 36, data_sn);
            put32(&mut header, 40, offset);
            let digest = if self.job.data_digest { self.digest(segment) } else { [0; 4] };
            let tail = if self.job.data_digest { &digest[..] } else { &[] };
            let data = &self.payload[offset as usize..(offset + segment) as usize];
            send_all(&mut self.socket, &mut [&header[..], data, tail].map(IoSlice::new))?;
            data_sn += 1;
            offset += segment;
        }
        Ok(())
    }

    /// Responds to a NOP-In that requests it.
    fn pong(&mut self, nop_in: &[u8]) -> Result<()> {
        if get32(nop_in, 20) == RESERVED_TAG {
            return Ok(());
        }
        let mut header = [0; BHS];
        header[0] = 0x40;
        header[1] = 0x80;
        header[8..16].copy_from_slice(&nop_in[8..16]);
        put32(&mut header, 16, RESERVED_TAG);
        header[20..24].copy_from_slice(&nop_in[20..24]);
        put32(&mut header, 24, self.cmd_sn);
        put32(&mut header, 28, self.exp_stat_sn);
        Ok(self.socket.write_all(&header)?)
    }

    /// The digest of `len` bytes of payload: all bytes are equal, so only the length matters.
    fn digest(&mut self, len: u32) -> [u8; 4] {
        if let Some((_, crc)) = self.digests.iter().find(|(known, _)| *known == len) {
            return crc.to_le_bytes();
        }
        let data = &self.payload[..len as usize];
        let crc = crc32c::crc32c(data);
        self.digests.push((len, crc));
        crc.to_le_bytes()
    }
}

/// Commands of one length, each a header and a digest of `digest_len` bytes, with `data` between both.
fn parts<'a>(commands: &'a [u8], digest_len: usize, data: &'a [u8]) -> Vec<IoSlice<'a>> {
    let whole = commands.chunks_exact(BHS + digest_len).flat_map(|command| {
        let (header, digest) = command.split_at(BHS);
        [header, data, digest]
    });
    whole.filter(|part| !part.is_empty()).map(IoSlice::new).collect()
}

/// Sends all slices, in as few calls as the socket allows.
fn send_all(socket: &mut TcpStream, mut rest: &mut [IoSlice]) -> Result<()> {
    while rest.iter().any(|slice| !slice.is_empty()) {
        let sent = socket.write_vectored(rest)?;
        IoSlice::advance_slices(&mut rest, sent);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_precede_the_digest() {
        let commands = [&[1; BHS][..], b"crc1", &[2; BHS], b"crc2"].concat();
        let sent: Vec<&[u8]> = vec![&[1; BHS], b"data", b"crc1", &[2; BHS], b"data", b"crc2"];
        let parts = parts(&commands, 4, b"data");
        assert_eq!(parts.iter().map(|part| &part[..]).collect::<Vec<_>>(), sent);
    }

    #[test]
    fn parts_without_a_digest_are_two_per_command() {
        assert_eq!(parts(&[3; 2 * BHS], 0, b"data").len(), 4);
    }
}
