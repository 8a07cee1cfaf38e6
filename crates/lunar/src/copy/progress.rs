//! Progress of a running copy, on stderr.

use crate::output;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lunar_copy::CopyMeter;
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressFormat {
    /// A bar that is redrawn.
    Bar,
    /// A line every few seconds.
    Lines,
    /// Not at all.
    Nothing,
}

impl ProgressFormat {
    /// A bar on a terminal. Elsewhere lines if `wanted`, else nothing. With `--quiet` nothing.
    pub fn suitable(wanted: bool) -> ProgressFormat {
        match (std::io::stderr().is_terminal(), wanted) {
            _ if output::is_quiet() => ProgressFormat::Nothing,
            (true, _) => ProgressFormat::Bar,
            (false, true) => ProgressFormat::Lines,
            (false, false) => ProgressFormat::Nothing,
        }
    }

    fn every(self) -> Duration {
        match self {
            ProgressFormat::Bar => Duration::from_millis(200),
            ProgressFormat::Lines | ProgressFormat::Nothing => Duration::from_secs(3),
        }
    }
}

/// Bytes are copied, and flushed at the end.
pub const COPIED: &str = "copied";
/// Bytes are compared.
pub const COMPARED: &str = "compared";

/// The phase of the copy that is shown.
#[derive(Clone)]
pub struct CopyPhase {
    /// [`COPIED`] or [`COMPARED`].
    pub what: &'static str,
    /// Bytes that an earlier run has done.
    pub start: u64,
    /// All bytes, if known.
    pub total: Option<u64>,
    /// Counts the bytes of this run.
    pub meter: Arc<CopyMeter>,
}

/// Shows progress until it is dropped.
pub struct ProgressReporter {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressReporter {
    /// Starts a thread that shows progress. If the thread cannot start, no progress is shown.
    pub fn start(form: ProgressFormat, phase: CopyPhase) -> ProgressReporter {
        let (over, ended) = channel();
        let show = move || {
            let mut display = ProgressThread::new(form, phase);
            while ended.recv_timeout(form.every()) == Err(RecvTimeoutError::Timeout) {
                display.show(Instant::now());
            }
            display.bar.finish_and_clear();
        };
        let thread = match form {
            ProgressFormat::Nothing => None,
            _ => std::thread::Builder::new().name("progress".into()).spawn(show).ok(),
        };
        ProgressReporter { over: Some(over), thread }
    }
}

impl Drop for ProgressReporter {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            // A panic of this thread does not affect the copy.
            _ = thread.join();
        }
    }
}

struct ProgressThread {
    form: ProgressFormat,
    phase: CopyPhase,
    pace: RateWindow,
    bar: ProgressBar,
}

impl ProgressThread {
    fn new(form: ProgressFormat, phase: CopyPhase) -> ProgressThread {
        let target = match form {
            ProgressFormat::Bar => ProgressDrawTarget::stderr(),
            ProgressFormat::Lines | ProgressFormat::Nothing => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(phase.total, target);
        let shape = if phase.total.is_some() { "[{wide_bar}] {msg}" } else { "{spinner} {msg}" };
        let style = ProgressStyle::with_template(shape).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        ProgressThread { form, pace: RateWindow::new(Instant::now()), phase, bar }
    }

    fn show(&mut self, now: Instant) {
        let new = self.phase.meter.done.get();
        self.pace.note(now, new);
        let zeros = self.phase.meter.zeroed.get() + self.phase.meter.skipped.get();
        let line = line(&self.phase, (new, zeros), self.pace.per_s());
        match self.form {
            ProgressFormat::Bar => {
                self.bar.set_position(self.phase.start + new);
                self.bar.set_message(line);
                self.bar.tick();
            }
            ProgressFormat::Lines => output::stderr_line(line),
            ProgressFormat::Nothing => {}
        }
    }
}

/// The progress as text. `zeros` are the bytes that were not written.
fn line(phase: &CopyPhase, (new, zeros): (u64, u64), per_s: f64) -> String {
    let done = phase.start + new;
    let mut text = format!("{} {}", phase.what, size(done));
    if let Some(total) = phase.total {
        let percent = done.checked_mul(100).and_then(|n| n.checked_div(total)).unwrap_or(100);
        text += &format!(" of {} ({percent} %)", size(total));
    }
    text += &format!(", {}", rate(per_s));
    if phase.what == COPIED && zeros > 0 {
        text += &format!(", {} of zeros not written", size(zeros));
    }
    if phase.what == COPIED && phase.total == Some(done) {
        return text + ", flushing";
    }
    if let Some(total) = phase.total
        && per_s >= 1.0
    {
        text += &format!(", {} left", clock((total.saturating_sub(done) as f64 / per_s) as u64));
    }
    text
}

/// A number of bytes with a binary unit.
pub fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{value:.2} {}", units[unit]) }
}

/// A rate in MB/s (10^6 bytes per second) and MiB/s (2^20).
pub fn rate(per_s: f64) -> String {
    format!("{:.1} MB/s ({:.1} MiB/s)", per_s / 1e6, per_s / f64::from(1 << 20))
}

fn clock(seconds: u64) -> String {
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m}:{s:02}") }
}

/// The rate over the last [`WINDOW`].
struct RateWindow(VecDeque<(Instant, u64)>);

/// Length of the window of a rate.
const WINDOW: Duration = Duration::from_secs(10);

impl RateWindow {
    fn new(now: Instant) -> RateWindow {
        RateWindow(VecDeque::from([(now, 0)]))
    }

    fn note(&mut self, now: Instant, done: u64) {
        self.0.push_back((now, done));
        while self.0.len() > 2 && now.duration_since(self.0[1].0) >= WINDOW {
            self.0.pop_front();
        }
    }

    /// Bytes a second.
    fn per_s(&self) -> f64 {
        let (Some((begin, before)), Some((end, after))) = (self.0.front(), self.0.back()) else { return 0.0 };
        let seconds = end.duration_since(*begin).as_secs_f64();
        if seconds > 0.0 { (after - before) as f64 / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(total: Option<u64>) -> CopyPhase {
        CopyPhase { what: COPIED, start: 1 << 30, total, meter: Arc::default() }
    }

    #[test]
    fn progress_line_has_both_units_and_time_left() {
        assert_eq!(
            line(&phase(Some(4 << 30)), (1 << 30, 0), 1e8),
            "copied 2.00 GiB of 4.00 GiB (50 %), 100.0 MB/s (95.4 MiB/s), 0:21 left"
        );
        assert_eq!(line(&phase(None), (512 << 20, 0), 0.0), "copied 1.50 GiB, 0.0 MB/s (0.0 MiB/s)");
        assert_eq!(
            line(&phase(Some(1 << 30)), (0, 0), 0.0),
            "copied 1.00 GiB of 1.00 GiB (100 %), 0.0 MB/s (0.0 MiB/s), flushing"
        );
        assert_eq!(
            line(&phase(None), (1 << 20, 1 << 20), 0.0),
            "copied 1.00 GiB, 0.0 MB/s (0.0 MiB/s), 1.00 MiB of zeros not written"
        );
        assert_eq!((size(1023), clock(3661)), ("1023 bytes".into(), "1:01:01".into()));
    }

    #[test]
    fn pace_is_that_of_the_last_seconds() {
        let started_at = Instant::now();
        let at = |s| started_at + Duration::from_secs(s);
        let mut pace = RateWindow::new(started_at);
        assert_eq!(pace.per_s(), 0.0);
        pace.note(at(1), 1000);
        assert_eq!(pace.per_s(), 1000.0);
        (2..=60).for_each(|s| pace.note(at(s), 1000 + (s - 1) * 10));
        assert_eq!(pace.per_s(), 10.0, "the fast beginning is forgotten");
        assert!(pace.0.len() < 20);
    }
}
