//! Programs that run during an experiment.

use lunar_bench::CleanupGuard;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which to check whether a program has ended.
const TICK: Duration = Duration::from_millis(5);

/// A running program, stopped on drop or by `clean_up_all`.
pub struct PeerProcess {
    child: Arc<Mutex<Child>>,
    _cleanup: CleanupGuard,
}

impl PeerProcess {
    /// Starts a program in its own process group, so that ^C reaches only the experiment. On drop it receives
    /// SIGTERM, and SIGKILL after `patience`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command, patience: Duration) -> io::Result<PeerProcess> {
        let (child, cleanup) = CleanupGuard::create(|| {
            let child = Arc::new(Mutex::new(command.process_group(0).spawn()?));
            let ended = child.clone();
            Ok::<_, io::Error>((child, move || end(&mut locked(&ended), patience)))
        })?;
        Ok(PeerProcess { child, _cleanup: cleanup })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        locked(&self.child).id()
    }

    /// Its output; available once.
    pub fn stdout(&self) -> Option<ChildStdout> {
        locked(&self.child).stdout.take()
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        !matches!(locked(&self.child).try_wait(), Ok(None))
    }
}

fn locked(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end(child: &mut Child, patience: Duration) {
    if !patience.is_zero() {
        // It may already have ended.
        _ = kill_process(Pid::from_child(child), Signal::TERM);
        let last = Instant::now() + patience;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < last {
            thread::sleep(TICK);
        }
    }
    _ = child.kill();
    _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn program_ends_with_owner_even_if_it_ignores_sigterm() {
        for (script, patience) in [("trap '' TERM; echo; read x", 50), ("echo; read x", 10_000)] {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let process = PeerProcess::start(&mut command, Duration::from_millis(patience))
                .expect("the program starts");
            let mut said = [0];
            io::Read::read_exact(&mut process.stdout().expect("its output"), &mut said)
                .expect("output of the program");
            assert!(!process.is_gone());
            let (id, begun) = (process.id(), Instant::now());
            drop(process);
            assert!(begun.elapsed() < Duration::from_secs(5), "{script}");
            assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "{script}");
        }
    }
}
