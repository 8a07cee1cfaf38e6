//! Stops one thread of a process. To its peers it looks like a thread on a busy or blocked core.

use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::fs;

/// A thread that ptrace has stopped. Dropping this resumes it, and must happen on the thread that stopped it.
#[derive(Debug)]
pub struct StoppedThread {
    thread: Pid,
    /// Only the tracing thread may detach.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl StoppedThread {
    /// Stops a thread of another process, and waits until it has stopped. The process must be a child, or the caller root.
    pub fn hold(thread: i32) -> Result<StoppedThread, String> {
        let (thread, text) =
            (Pid::from_raw(thread), |e: nix::Error| format!("ptrace of thread {thread}: {e}"));
        ptrace::seize(thread, Options::empty()).map_err(text)?;
        let held = StoppedThread { thread, _not_send: std::marker::PhantomData };
        ptrace::interrupt(thread).map_err(text)?;
        waitpid(thread, Some(WaitPidFlag::__WALL)).map_err(text)?;
        Ok(held)
    }

    /// Resumes the thread.
    pub fn resume(self) {}
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.thread, None); // the thread may have ended
    }
}

/// The threads of a process whose names have this prefix.
pub fn threads(pid: u32, name: &str) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").flatten();
    let is_named = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    let number = |task: fs::DirEntry| task.file_name().to_str().and_then(|n| n.parse().ok());
    let mut threads: Vec<i32> = tasks.filter(is_named).filter_map(number).collect();
    threads.sort_unstable();
    threads
}
