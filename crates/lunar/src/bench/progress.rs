//! A progress line on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lunar_bench::RunHandle;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval of updates.
const INTERVAL: Duration = Duration::from_millis(500);

/// Shows progress until it is dropped.
pub struct ProgressLine {
    bar: ProgressBar,
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Starts a thread that shows progress, if stderr is a terminal.
    pub fn start(handle: &RunHandle) -> ProgressLine {
        if !io::stderr().is_terminal() || crate::output::is_quiet() {
            return ProgressLine { bar: ProgressBar::hidden(), over: None, thread: None };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        let (over, ended) = channel();
        let (handle, shown) = (handle.clone(), bar.clone());
        let show = move || show(&handle, &shown, &ended);
        let thread = std::thread::Builder::new().name("progress".into()).spawn(show).ok();
        ProgressLine { bar, over: Some(over), thread }
    }

    /// A writer that hides the progress line while it writes.
    pub fn suspending_writer<W: Write>(&self, out: W) -> ProgressWriter<W> {
        ProgressWriter { out, bar: self.bar.clone(), line: Vec::new(), has_output: false }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            // A panic of this thread does not affect the run.
            _ = thread.join();
        }
    }
}

fn show(handle: &RunHandle, bar: &ProgressBar, ended: &Receiver<()>) {
    let (mut before, mut since) = (handle.done(), Instant::now());
    while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let (now, done) = (Instant::now(), handle.done());
        let message = format!("{} {}", handle.activity(), line(before, done, now - since));
        bar.set_message(message.trim_start().to_owned());
        bar.tick();
        (before, since) = (done, now);
    }
    bar.finish_and_clear();
}

/// The rates between two counts of commands and bytes.
fn line(before: (u64, u64), now: (u64, u64), time: Duration) -> String {
    let seconds = time.as_secs_f64().max(1e-9);
    let per_s = |before: u64, now: u64| (now - before) as f64 / seconds;
    format!("{:.0} IOPS, {:.1} MB/s", per_s(before.0, now.0), per_s(before.1, now.1) / 1e6)
}

/// A writer that buffers until it is flushed, and then writes whole lines.
pub struct ProgressWriter<W> {
    out: W,
    bar: ProgressBar,
    line: Vec<u8>,
    has_output: bool,
}

impl<W: Write> ProgressWriter<W> {
    /// Whether anything was written.
    pub fn has_output(&self) -> bool {
        self.has_output
    }

    /// The writer below.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Write for ProgressWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.has_output = true;
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let ProgressWriter { out, bar, line, .. } = self;
        let written = bar.suspend(|| out.write_all(line).and_then(|()| out.flush()));
        line.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_shows_rate_since_the_last_one() {
        assert_eq!(line((100, 0), (600, 4_000_000), Duration::from_millis(500)), "1000 IOPS, 8.0 MB/s");
    }

    #[test]
    fn output_during_progress_has_whole_lines() {
        let mut out = ProgressLine::start(&RunHandle::default()).suspending_writer(Vec::new());
        assert!(!out.has_output());
        write!(out, "1+0 records in").expect("memory");
        assert!(out.out.is_empty() && out.has_output());
        out.write_all(b"\n").and_then(|()| out.flush()).expect("memory");
        assert_eq!(out.into_inner(), b"1+0 records in\n");
    }
}
