//! Runs `blast`, also for idle sessions.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::server::{self, BenchServer};

/// How much longer a neighbour runs than the measured load, which starts and ends within its time.
const AROUND: Duration = Duration::from_secs(1);

/// The load on a target.
#[derive(Clone, Copy, Debug)]
pub struct BlastLoad {
    /// `read` or `write`
    pub op: &'static str,
    /// Bytes of one command
    pub bytes: u32,
    /// Commands in flight of each session
    pub depth: u32,
    /// Concurrent sessions
    pub sessions: u32,
    /// LUNs that receive commands in turn
    pub luns: u32,
    /// I/O queues of each session, with NVMe/TCP only
    pub queues: u32,
    /// CRC32C data digests both ways
    pub data_digest: bool,
    /// CRC32C header digests both ways, with NVMe/TCP only
    pub header_digest: bool,
    /// One thread of `blast` for all sessions
    pub one_thread: bool,
}

impl BlastLoad {
    /// One session on one LUN without digests.
    pub const fn new(op: &'static str, bytes: u32, depth: u32) -> BlastLoad {
        BlastLoad {
            op,
            bytes,
            depth,
            sessions: 1,
            luns: 1,
            queues: 1,
            data_digest: false,
            header_digest: false,
            one_thread: false,
        }
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct LoadResult {
    /// Commands per second
    pub iops: f64,
    /// The server's CPU time per command, in microseconds
    pub cpu_us_per_io: f64,
}

/// The CPU time of a command in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct CpuCost {
    /// Of the server
    pub server_us: f64,
    /// Of the client
    pub client_us: f64,
}

/// Median times of READs, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct FirstData {
    /// From sending a READ to its first byte of data
    pub byte_us: f64,
    /// From sending a READ to the last byte of its first Data-In
    pub pdu_us: f64,
}

/// Latencies of commands, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct LatencyResult {
    /// Commands per second
    pub iops: f64,
    /// The median
    pub p50_us: f64,
    /// The latency that 99 % of the commands do not exceed
    pub p99_us: f64,
    /// The same for 99.9 %
    pub p999_us: f64,
}

/// Runs `blast` for `seconds`.
pub fn run(blast: &Path, server: &BenchServer, load: &BlastLoad, seconds: u64) -> Result<LoadResult> {
    let figures = figures(&mut command(blast, server, load, seconds), load)?;
    Ok(LoadResult {
        iops: figure(&figures, "iops")?,
        cpu_us_per_io: figure(&figures, "target_cpu_us_per_io")?,
    })
}

/// Runs `blast` for the CPU time of both sides.
pub fn cpu(blast: &Path, server: &BenchServer, load: &BlastLoad, seconds: u64) -> Result<CpuCost> {
    let figures = figures(&mut command(blast, server, load, seconds), load)?;
    Ok(CpuCost {
        server_us: figure(&figures, "target_cpu_us_per_io")?,
        client_us: figure(&figures, "client_cpu_us_per_io")?,
    })
}

/// Runs `blast` for the latencies of its commands.
pub fn latency(blast: &Path, server: &BenchServer, load: &BlastLoad, seconds: u64) -> Result<LatencyResult> {
    let figures = figures(&mut command(blast, server, load, seconds), load)?;
    Ok(LatencyResult {
        iops: figure(&figures, "iops")?,
        p50_us: figure(&figures, "p50_us")?,
        p99_us: figure(&figures, "p99_us")?,
        p999_us: figure(&figures, "p999_us")?,
    })
}

/// Runs `blast` for the longest latency of a command, in microseconds.
pub fn longest_us(blast: &Path, server: &BenchServer, load: &BlastLoad, seconds: u64) -> Result<f64> {
    let figures = figures(&mut command(blast, server, load, seconds), load)?;
    figure(&figures, "max_us")
}

/// The same, while other sessions load the server.
pub fn latency_beside(
    blast: &Path,
    server: &BenchServer,
    load: &BlastLoad,
    neighbour: &BlastLoad,
    seconds: u64,
) -> Result<LatencyResult> {
    let number = (load.sessions + 1).to_string();
    let mut beside = command(blast, server, neighbour, seconds + AROUND.as_secs());
    beside.args(["--first-session", &number]).stdout(Stdio::null());
    let mut beside = beside.spawn().context("cannot run blast")?;
    std::thread::sleep(AROUND / 2);
    let reached = latency(blast, server, load, seconds);
    let end = beside.wait()?;
    ensure!(end.success(), "blast {neighbour:?}: {end}");
    reached
}

/// Runs `blast` for the times to the first data, at depth 1.
pub fn first_data(blast: &Path, server: &BenchServer, load: &BlastLoad, seconds: u64) -> Result<FirstData> {
    let figures = figures(command(blast, server, load, seconds).arg("--first"), load)?;
    Ok(FirstData { byte_us: figure(&figures, "first_byte_us")?, pdu_us: figure(&figures, "first_pdu_us")? })
}

fn command(blast: &Path, server: &BenchServer, load: &BlastLoad, seconds: u64) -> Command {
    let mut command = client(blast, server);
    command.args(["--op", load.op, "--lun", &server.lun.to_string()]);
    for (option, value) in [
        ("--bytes", load.bytes),
        ("--depth", load.depth),
        ("--sessions", load.sessions),
        ("--luns", load.luns),
        ("--pid", server.pid()),
    ] {
        command.args([option, &value.to_string()]);
    }
    command.args(["--seconds", &seconds.to_string()]);
    if server.is_nvme() {
        command.args(["--queues", &load.queues.to_string()]);
    }
    for (option, is_set) in [
        ("--data-digest", load.data_digest),
        ("--header-digest", load.header_digest),
        ("--one-thread", load.one_thread),
    ] {
        command.args(is_set.then_some(option));
    }
    command
}

/// The names and numbers in the output of `blast`.
fn figures(command: &mut Command, load: &BlastLoad) -> Result<BTreeMap<String, f64>> {
    let output = command.stderr(Stdio::inherit()).output().context("cannot run blast")?;
    let line = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "blast {load:?}: {}: {line}", output.status);
    let words: Vec<&str> = line.split_whitespace().collect();
    let pair = |pair: &[&str]| Ok((pair[0].to_owned(), pair[1].parse().context("a number")?));
    words.chunks_exact(2).map(pair).collect::<Result<_>>().with_context(|| format!("output of blast: {line}"))
}

fn figure(figures: &BTreeMap<String, f64>, name: &str) -> Result<f64> {
    figures.get(name).copied().with_context(|| format!("blast printed no {name}"))
}

fn client(blast: &Path, server: &BenchServer) -> Command {
    let mut command = server::pinned_to(server.cores, blast);
    command.args(server.is_nvme().then_some("--nvme"));
    command.args(["--portal", &server.portal.to_string(), "--target", &server.target]);
    command
}

/// Idle sessions; closed on drop.
#[derive(Debug)]
pub struct IdleSessions(Child);

impl IdleSessions {
    /// Logs in `sessions` sessions and waits for all of them.
    pub fn open(blast: &Path, server: &BenchServer, sessions: u32) -> Result<IdleSessions> {
        let mut command = client(blast, server);
        command.args(["--hold", "--lun", &server.lun.to_string(), "--sessions", &sessions.to_string()]);
        IdleSessions::hold(&mut command, sessions)
    }

    /// Logs in one session, without output on failure.
    pub fn try_open(blast: &Path, server: &BenchServer) -> Result<IdleSessions> {
        let mut command = client(blast, server);
        command.args(["--hold", "--lun", &server.lun.to_string()]).stderr(Stdio::null());
        IdleSessions::hold(&mut command, 1)
    }

    fn hold(command: &mut Command, sessions: u32) -> Result<IdleSessions> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot run blast")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("piped")?.by_ref()).read_line(&mut line)?;
        let held = IdleSessions(child);
        ensure!(line.trim() == format!("held {sessions}"), "output of blast --hold: {line}");
        Ok(held)
    }
}

impl Drop for IdleSessions {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
