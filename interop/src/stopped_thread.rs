//! A single thread of a process that stands still, as one does whose core is busy or blocked.

use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::fs;

/// A thread that is held by ptrace; it goes on when this is dropped, by the thread that holds it.
#[derive(Debug)]
pub struct StoppedThread {
    thread: Pid,
    /// Only the thread that began to trace may end it.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl StoppedThread {
    /// Holds a thread of another process, and waits until it stands. The process must be a child, or the caller root.
    pub fn hold(thread: i32) -> Result<StoppedThread, String> {
        let (thread, text) =
            (Pid::from_raw(thread), |e: nix::Error| format!("ptrace of thread {thread}: {e}"));
        ptrace::seize(thread, Options::empty()).map_err(text)?;
        let held = StoppedThread { thread, _not_send: std::marker::PhantomData };
        ptrace::interrupt(thread).map_err(text)?;
        waitpid(thread, Some(WaitPidFlag::__WALL)).map_err(text)?;
        Ok(held)
    }

    /// Goes on.
    pub fn resume(self) {}
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.thread, None); // a thread that has ended needs it no more
    }
}

/// The threads of a process whose names begin so.
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
