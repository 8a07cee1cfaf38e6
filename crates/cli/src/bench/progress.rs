//! A line that tells how it goes, on a terminal.

use bench::Watch;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(500);

/// Tells until it is dropped.
pub struct Progress {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins to tell, if stderr is a terminal.
    pub fn start(watch: &Watch) -> Progress {
        let (over, ended) = channel();
        let watch = watch.clone();
        let tell = move || {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{spinner} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            let (mut before, mut since) = (watch.done(), Instant::now());
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let (now, done) = (Instant::now(), watch.done());
                bar.set_message(
                    format!("{} {}", watch.doing(), line(before, done, now - since)).trim_start().to_owned(),
                );
                bar.tick();
                (before, since) = (done, now);
            }
            bar.finish_and_clear();
        };
        let is_seen = std::io::stderr().is_terminal();
        let thread = is_seen.then(|| std::thread::Builder::new().name("progress".into()).spawn(tell).ok());
        Progress { over: Some(over), thread: thread.flatten() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            // Nothing depends on what it told.
            _ = thread.join();
        }
    }
}

/// Commands and bytes before and now.
fn line(before: (u64, u64), now: (u64, u64), time: Duration) -> String {
    let seconds = time.as_secs_f64().max(1e-9);
    let per_s = |before: u64, now: u64| (now - before) as f64 / seconds;
    format!("{:.0} IOPS, {:.1} MB/s", per_s(before.0, now.0), per_s(before.1, now.1) / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_what_was_done_since_the_last_one() {
        assert_eq!(line((100, 0), (600, 4_000_000), Duration::from_millis(500)), "1000 IOPS, 8.0 MB/s");
    }
}
