//! A server of 10,000 LUNs: its start, changes by the control API, and their effect on commands of another LUN.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::load::{self, BlastLoad};
use super::rows::{BenchRun, median_of};
use super::server::{Backing, BenchServer};
use super::table::{RatioLimit, RowResult};

const LUNS: u32 = 10_000;
const SERVER: &str = "10,000 null LUNs";
const START_S: f64 = 2.0;
const APPLY_S: f64 = 2.0;
const CHANGE_MS: f64 = 50.0;
const STALL_MS: f64 = 10.0;

const READER: BlastLoad = BlastLoad::new("read", 4096, 1);
/// A request must not hang the benchmark.
const ANSWER: Duration = Duration::from_secs(60);

impl BenchRun<'_> {
    /// Times are reported with their limits, and never fail.
    pub fn many_luns(&self) -> Result<Vec<RowResult>> {
        let rows = [self.start_of_many()?, self.changes_of_many()?, self.apply_of_many()?];
        Ok(rows.into_iter().flatten().collect())
    }

    fn start_of_many(&self) -> Result<Vec<RowResult>> {
        let name = &format!("{SERVER}, start");
        if !self.wants(name) {
            return Ok(Vec::new());
        }
        let started = Instant::now();
        let _lunar = self.lunar(Backing::Null(LUNS))?;
        let s = started.elapsed().as_secs_f64();
        Ok(vec![RowResult::figure(name, "s", s, RatioLimit::Reported(START_S))])
    }

    /// Adds and removes a LUN, alone and beside a reader.
    fn changes_of_many(&self) -> Result<Vec<RowResult>> {
        let name = format!("{SERVER}, add and remove one by the API");
        if !self.wants(&name) {
            return Ok(Vec::new());
        }
        let lunar = self.lunar(Backing::Null(LUNS))?;
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        let quiet = self.stall(&lunar, || Ok(()))?;
        let stall = self.stall(&lunar, || {
            for _ in 0..self.options.rounds.max(3) {
                added.push(milliseconds(|| add(&lunar))?);
                removed.push(milliseconds(|| remove(&lunar))?);
            }
            Ok(())
        })?;
        let change = |what: &str, times: &[f64]| {
            let ms = median_of(times, |ms| *ms);
            RowResult::figure(&format!("{SERVER}, {what}"), "ms", ms, RatioLimit::Reported(CHANGE_MS))
        };
        let longest = format!("{SERVER}, longest 4 KiB read of another LUN");
        Ok(vec![
            change("add one by the API", &added),
            change("remove one by the API", &removed),
            RowResult::figure(&format!("{longest}, no change"), "ms", quiet, RatioLimit::None),
            RowResult::figure(
                &format!("{longest}, during changes"),
                "ms",
                stall,
                RatioLimit::Reported(STALL_MS),
            ),
        ])
    }

    /// Applies a configuration with 10,000 LUNs to a server with one.
    fn apply_of_many(&self) -> Result<Vec<RowResult>> {
        let name = &format!("{SERVER}, apply");
        if !self.wants(name) {
            return Ok(Vec::new());
        }
        let lunar = self.lunar(Backing::Null(1))?;
        lunar.rewrite(Backing::Null(LUNS))?;
        let mut ms = 0.0;
        let stall = self.stall(&lunar, || {
            ms = milliseconds(|| ask(&lunar, "POST", "/v1/config/apply", "{}"))?;
            Ok(())
        })?;
        let longest = format!("{name}, longest 4 KiB read of another LUN");
        Ok(vec![
            RowResult::figure(name, "s", ms / 1e3, RatioLimit::Reported(APPLY_S)),
            RowResult::figure(&longest, "ms", stall, RatioLimit::Reported(STALL_MS)),
        ])
    }

    /// The longest latency in milliseconds of a reader of the first LUN during `change`.
    fn stall(&self, lunar: &BenchServer, change: impl FnOnce() -> Result<()>) -> Result<f64> {
        let seconds = self.options.seconds.max(3);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| load::longest_us(&self.programs.blast, lunar, &READER, seconds));
            std::thread::sleep(Duration::from_millis(500));
            change()?;
            let longest = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
            Ok(longest / 1e3)
        })
    }
}

fn milliseconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64() * 1e3)
}

fn path(lunar: &BenchServer) -> String {
    format!("/v1/targets/{}/luns/{}", lunar.target, LUNS)
}

fn add(lunar: &BenchServer) -> Result<()> {
    ask(lunar, "PUT", &path(lunar), "{ \"backend\": \"null\", \"size\": \"1TiB\" }")
}

/// By force: the reader has logged in to the target, so the LUN is in use.
fn remove(lunar: &BenchServer) -> Result<()> {
    ask(lunar, "DELETE", &format!("{}?force=true", path(lunar)), "")
}

/// Sends a request to the API, and waits for its response.
fn ask(lunar: &BenchServer, method: &str, path: &str, body: &str) -> Result<()> {
    let mut socket = UnixStream::connect(lunar.admin_socket()).context("the admin socket")?;
    socket.set_read_timeout(Some(ANSWER))?;
    // The API removes nothing without a condition.
    let condition = if method == "DELETE" { "If-Match: *\r\n" } else { "" };
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nHost: lunar\r\nConnection: close\r\n{condition}\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 20"), "{method} {path}: {}", String::from_utf8_lossy(&answer));
    Ok(())
}
