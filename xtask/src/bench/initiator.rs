//! Compares Lunar's initiator with libiscsi's `iscsi-perf` and with `blast`, on targets with a low cost:
//! `floor` and STGT's null LUN. Also measures the path through an NBD export.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::load::{self, BlastLoad, LoadResult};
use super::server::{BenchServer, pinned};

/// Bytes of one block, as `iscsi-perf` counts them.
const BLOCK: u32 = 512;

/// A client that reads.
#[derive(Clone, Copy, Debug)]
pub enum BenchClient<'a> {
    /// Lunar's library, driven by its example `load`
    Lunar(&'a Path),
    /// The same over RDMA, with or without CRCs
    Iser { program: &'a Path, crc: bool },
    /// `lunar bench`, with all of its measurements
    Engine(&'a Path),
    /// iscsi-perf
    Libiscsi,
    /// The neutral load generator
    Blast(&'a Path),
}

impl BenchClient<'_> {
    /// Runs for `seconds`; the CPU time is that of the client.
    pub fn run(self, server: &BenchServer, load: &BlastLoad, seconds: u64) -> Result<LoadResult> {
        match self {
            BenchClient::Lunar(program) => lunar(program, &server.url(), load, seconds),
            BenchClient::Iser { program, crc } => {
                let digest = if crc { "?data_digest=crc32c" } else { "" };
                lunar(program, &(server.url().replacen("iscsi", "iser", 1) + digest), load, seconds)
            }
            BenchClient::Engine(program) => engine(pinned(program), &server.url(), load, seconds),
            BenchClient::Libiscsi => libiscsi(server, load, seconds),
            BenchClient::Blast(program) => load::run(program, server, load, seconds),
        }
    }
}

/// The number after a word.
pub fn after(text: &str, word: &str) -> Result<f64> {
    let mut words = text.split_whitespace().skip_while(|w| *w != word).skip(1);
    words.next().with_context(|| format!("no {word} in: {text}"))?.parse().context("a number")
}

/// Initiator and target in one process without a network: `iser` or `srp`. The CPU time is that of both.
pub fn in_memory(program: &Path, transport: &str, load: &BlastLoad, seconds: u64) -> Result<LoadResult> {
    lunar(program, transport, load, seconds)
}

fn lunar(program: &Path, url: &str, load: &BlastLoad, seconds: u64) -> Result<LoadResult> {
    let mut command = pinned(program);
    command.args([url, load.op, &load.bytes.to_string(), &load.depth.to_string()]);
    let output =
        command.arg(seconds.to_string()).stderr(Stdio::inherit()).output().context("cannot run load")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "load: {}: {said}", output.status);
    Ok(LoadResult { iops: after(&said, "iops")?, cpu_us_per_io: after(&said, "cpu_us_per_io")? })
}

/// `lunar bench` on a target, whose data it overwrites.
pub fn engine(mut command: Command, target: &str, load: &BlastLoad, seconds: u64) -> Result<LoadResult> {
    let (work, bytes, depth) = (format!("rand{}", load.op), load.bytes.to_string(), load.depth.to_string());
    // Limit the span to that of the other clients.
    command.args(["bench", &work, target, "--span", "256m", "--bs", &bytes, "--depth", &depth, "--destroy"]);
    command.args(["--runtime", &seconds.to_string(), "--json"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run lunar bench")?;
    ensure!(output.status.success(), "lunar bench: {}", output.status);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).context("its JSON")?;
    let outcome = &document["runs"][0]["outcome"];
    let figure = |value: &serde_json::Value| value.as_f64().context("a figure of lunar bench");
    let ios = figure(&outcome[load.op]["ios"])?;
    let iops = ios / figure(&outcome["elapsed_s"])?;
    Ok(LoadResult { iops, cpu_us_per_io: figure(&outcome["cpu"]["client_s"])? * 1e6 / ios.max(1.0) })
}

/// `iscsi-perf` ends with `iops average N (N MB/s)`. Its CPU time is the growth of that of all ended children.
fn libiscsi(server: &BenchServer, load: &BlastLoad, seconds: u64) -> Result<LoadResult> {
    let before = cpu_of_children()?;
    let mut command = pinned(Path::new("iscsi-perf"));
    command.args(["-r", "-m", &load.depth.to_string(), "-b", &(load.bytes / BLOCK).to_string()]);
    let output = command
        .args(["-t", &seconds.to_string(), &server.url()])
        .output()
        .context("cannot run iscsi-perf")?;
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
    let last = said.lines().rfind(|line| line.contains("iops average"));
    let iops = after(last.with_context(|| format!("iscsi-perf said: {said}"))?, "average")?;
    let used = cpu_of_children()? - before;
    Ok(LoadResult { iops, cpu_us_per_io: used * 1e6 / (iops * seconds as f64) })
}

/// CPU seconds of all ended children (proc(5), fields 16 and 17 of stat).
fn cpu_of_children() -> Result<f64> {
    const TICKS_PER_S: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).context("no CPU time");
    Ok((ticks(13)? + ticks(14)?) / TICKS_PER_S)
}

/// A LUN of a server as an NBD export; stopped on drop.
#[derive(Debug)]
pub struct NbdExport {
    child: Child,
    uri: String,
    dir: PathBuf,
}

impl NbdExport {
    /// Attaches the LUN, on the core of all programs.
    pub fn attach(program: &Path, server: &BenchServer, dir: PathBuf) -> Result<NbdExport> {
        std::fs::create_dir_all(&dir)?;
        let socket = format!("unix:{}", dir.join("nbd.sock").display());
        let mut command = pinned(program);
        command.args(["attach", "--foreground", "--name", "bench", "--nbd", &socket, &server.url()]);
        command.env("LUNAR_RUN_DIR", &dir).env("XDG_STATE_HOME", &dir).env("XDG_CONFIG_HOME", &dir);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().context("cannot run lunar attach")?;
        let mut lines = BufReader::new(child.stdout.take().context("piped")?).lines();
        let uri = lines.by_ref().map_while(Result::ok).find_map(|line| {
            line.split_whitespace().find(|word| word.starts_with("nbd+unix:")).map(str::to_owned)
        });
        let Some(uri) = uri else {
            let _ = child.kill();
            bail!("lunar attach printed no URI");
        };
        std::thread::spawn(move || lines.for_each(drop));
        Ok(NbdExport { child, uri, dir })
    }

    /// Reads the whole export with `nbdcopy`. Returns the number of bytes and the time.
    pub fn copy_out(&self) -> Result<(u64, Duration)> {
        let size =
            Command::new("nbdinfo").args(["--size", &self.uri]).output().context("cannot run nbdinfo")?;
        let bytes: u64 = String::from_utf8_lossy(&size.stdout).trim().parse().context("the export's size")?;
        let start = Instant::now();
        let mut command = pinned(Path::new("nbdcopy"));
        let status = command
            .args(["--no-extents", "--request-size=262144", "--requests=8", "--connections=1"])
            .args([&self.uri, "null:"])
            .status()
            .context("cannot run nbdcopy")?;
        ensure!(status.success(), "nbdcopy: {status}");
        Ok((bytes, start.elapsed()))
    }
}

impl Drop for NbdExport {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_follows_its_name() {
        assert_eq!(after("iops 12 cpu_us_per_io 0.5", "cpu_us_per_io").expect("a figure"), 0.5);
        assert_eq!(after("iops average 314049 (1226 MB/s)", "average").expect("a figure"), 314_049.0);
        assert!(after("nothing", "iops").is_err());
    }

    #[test]
    fn cpu_time_of_children_grows() {
        let before = cpu_of_children().expect("a figure");
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", busy]).status().expect("a shell").success());
        assert!(cpu_of_children().expect("a figure") > before);
    }
}
