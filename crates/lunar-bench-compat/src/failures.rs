//! Reports failed commands one by one while a job runs.

use flume::{Receiver, Sender};
use lunar_bench::{Error, JobOutcome};
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The interval at which to check whether a job has ended.
const TICK: Duration = Duration::from_millis(20);

/// A failed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandFailure {
    /// Whether it was a read; otherwise a write.
    pub read: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// The reason.
    pub why: String,
}

/// A disk that reports failed commands.
pub struct FailureReporter {
    disk: Arc<dyn Backend>,
    sender: Sender<CommandFailure>,
    hides_errors: bool,
}

impl FailureReporter {
    /// Reports failures and returns them.
    pub fn reporting(disk: Arc<dyn Backend>, sender: Sender<CommandFailure>) -> FailureReporter {
        FailureReporter { disk, sender, hides_errors: false }
    }

    /// Reports failures and hides them: a failed read returns zeros, a failed write is skipped.
    pub fn replacing_by_zeros(disk: Arc<dyn Backend>, sender: Sender<CommandFailure>) -> FailureReporter {
        FailureReporter { disk, sender, hides_errors: true }
    }

    fn ended(&self, read: bool, offset: u64, (result, mut buf): BufResult) -> BufResult {
        let Err(e) = result else { return (Ok(()), buf) };
        // The receiver may be gone; then the whole run ends.
        _ = self.sender.send(CommandFailure { read, offset, len: buf.len(), why: e.to_string() });
        if !self.hides_errors {
            return (Err(e), buf);
        }
        if read {
            buf.fill(0);
        }
        (Ok(()), buf)
    }
}

impl Backend for FailureReporter {
    fn info(&self) -> BackendInfo {
        self.disk.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move { self.ended(true, offset, self.disk.read(offset, buf).await) })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move { self.ended(false, offset, self.disk.write(offset, buf, fua).await) })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.write_zeroes(offset, len, unmap)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.disk.describe()
    }
}

/// Runs a job and passes its failures to `hear` as they occur. `end` ends the job if `hear` fails.
///
/// # Errors
/// The error of the job, or of `hear`.
pub fn heard(
    failures: &Receiver<CommandFailure>,
    mut each: impl FnMut(CommandFailure) -> Result<(), Error>,
    end: impl Fn(),
    run: impl FnOnce() -> Result<JobOutcome, Error> + Send,
) -> Result<JobOutcome, Error> {
    thread::scope(|scope| {
        let running = scope.spawn(run);
        let mut heard = Ok(());
        while !running.is_finished() && heard.is_ok() {
            heard = failures.recv_timeout(TICK).map_or(Ok(()), &mut each);
        }
        if heard.is_err() {
            end();
        }
        let died = || crate::refused("a worker thread panicked", "this is a bug in Lunar: report it");
        let outcome = running.join().map_err(|_| died())?;
        heard?;
        failures.try_iter().try_for_each(each)?;
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_bench::testing::{RecordingDisk, run_on_core};

    #[test]
    fn failures_are_reported_and_returned_or_hidden() {
        let probe = RecordingDisk::new(4096);
        let (sender, failures) = flume::unbounded();
        let strict = FailureReporter::reporting(probe.clone(), sender.clone());
        let forgiving = FailureReporter::replacing_by_zeros(probe, sender);
        let full = || {
            let mut buf = Buf::zeroed(512);
            buf.fill(7);
            buf
        };
        run_on_core(move || async move {
            strict.read(4096, full()).await.0.unwrap_err();
            strict.write(0, full(), false).await.0.expect("a write within the capacity");
            let (result, buf) = forgiving.read(8192, full()).await;
            assert!(result.is_ok() && buf.iter().all(|byte| *byte == 0));
            assert!(forgiving.write(4096, full(), false).await.0.is_ok());
        });
        let failure = |read, offset| CommandFailure { read, offset, len: 512, why: "behind the end".into() };
        let all: Vec<CommandFailure> = failures.try_iter().collect();
        assert_eq!(all, [failure(true, 4096), failure(true, 8192), failure(false, 4096)]);
    }
}
