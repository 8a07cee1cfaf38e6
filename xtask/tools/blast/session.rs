//! A connection under load.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::aligned::AlignedBuf;
use crate::first::{self, FirstDataTimer};
use crate::iscsi::IscsiLoad;
use crate::job::BlastJob;
use crate::latency::LatencyHistogram;
use crate::login::BlastLogin;
use crate::nvme::NvmeLoad;
use crate::nvme_controller::NvmeController;
use crate::protocol::{BlastProtocol, CommandEnd, WritePayload, send_all};

const RECEIVE_BUFFER: usize = 4 << 20;

/// Counters, written by the session's thread and read by the reporting thread.
#[derive(Debug, Default)]
pub struct CommandCounters {
    /// Commands that ended
    pub done: AtomicU64,
    /// Of these, commands that failed
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

/// A connection and its commands in flight: a session of iSCSI, or an I/O queue of NVMe.
#[derive(Debug)]
pub struct BlastSession {
    job: Arc<BlastJob>,
    socket: TcpStream,
    protocol: Box<dyn BlastProtocol>,
    /// The send time of each tag's command
    sent_at: Vec<Instant>,
    free_tags: Vec<u32>,
    random: u64,
    sequence: u64,
    /// Commands to send, without their immediate data: headers and data digests
    output: Vec<u8>,
    payload: WritePayload,
    /// The received start of an incomplete PDU, with one thread for many sessions
    partial: Vec<u8>,
    /// The remaining payload of a PDU, which is ignored
    skip: usize,
    counters: Arc<CommandCounters>,
}

impl BlastSession {
    /// Logs session number `id` in. With NVMe, it has one connection for each I/O queue.
    pub fn open(job: &Arc<BlastJob>, id: u32) -> Result<Vec<BlastSession>> {
        if !job.nvme {
            let (socket, load) = IscsiLoad::new(Arc::clone(job), BlastLogin::open(job, id)?);
            return Ok(vec![BlastSession::new(job, socket, Box::new(load), id)]);
        }
        let controller = Arc::new(NvmeController::open(job, id)?);
        let open = |queue| {
            let (socket, load) = NvmeLoad::open(&controller, queue as u16)?;
            Ok(BlastSession::new(job, socket, Box::new(load), id * job.queues + queue - 1))
        };
        (1..=job.queues).map(open).collect()
    }

    fn new(
        job: &Arc<BlastJob>,
        socket: TcpStream,
        protocol: Box<dyn BlastProtocol>,
        seed: u32,
    ) -> BlastSession {
        let layout = protocol.layout();
        BlastSession {
            socket,
            protocol,
            sent_at: vec![Instant::now(); job.depth as usize],
            free_tags: (0..job.depth).collect(),
            random: 88_172_645_463_325_252 + u64::from(seed) * 7919,
            sequence: 0,
            output: Vec::with_capacity((layout.head + layout.tail) * job.depth as usize),
            payload: WritePayload::new(job.bytes),
            partial: Vec::new(),
            skip: 0,
            counters: Arc::default(),
            job: Arc::clone(job),
        }
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

    /// Sends every command that the depth and the target allow.
    pub fn submit(&mut self, times: &mut CommandLatencies) -> Result<()> {
        let now = Instant::now();
        while self.protocol.is_open() {
            let Some(tag) = self.free_tags.pop() else { break };
            self.sent_at[tag as usize] = now;
            if self.job.first {
                times.first.sent(now);
            }
            let place = self.next_place();
            self.protocol.command(tag, place, &mut self.payload, &mut self.output);
        }
        let sent = self.send_commands();
        self.output.clear();
        sent
    }

    /// Sends the output, with the immediate data of each command. The data are not copied: targets without immediate
    /// data would cost the client less.
    fn send_commands(&mut self) -> Result<()> {
        let layout = self.protocol.layout();
        if layout.data == 0 {
            return Ok(self.socket.write_all(&self.output)?);
        }
        send_all(&mut self.socket, &mut layout.parts(&self.output, &self.payload.bytes))
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
        let (now, header_len) = (Instant::now(), self.protocol.header_len());
        let mut at = self.skip.min(input.len());
        self.skip -= at;
        if at > 0 {
            times.first.data(now, self.skip == 0);
        }
        while self.skip == 0 && input.len() - at >= header_len {
            let header = &input[at..at + header_len];
            let whole = self.protocol.pdu_len(header);
            ensure!(whole >= header_len, "a PDU of {whole} bytes");
            if let Some(end) = self.protocol.answer(header, &mut self.payload, &mut self.socket)? {
                self.finish(end, now, times)?;
            }
            let here = whole.min(input.len() - at);
            self.skip = whole - here;
            at += here;
            if here > header_len {
                times.first.data(now, self.skip == 0);
            }
        }
        Ok(at)
    }

    /// A command has ended.
    fn finish(&mut self, end: CommandEnd, now: Instant, times: &mut CommandLatencies) -> Result<()> {
        ensure!(end.tag < self.job.depth, "status for the unknown tag {:#x}", end.tag);
        CommandCounters::add(&self.counters.done, 1);
        if !end.is_good {
            CommandCounters::add(&self.counters.errors, 1);
        }
        times.whole.count((now - self.sent_at[end.tag as usize]).as_nanos() as u64);
        self.free_tags.push(end.tag);
        Ok(())
    }
}
