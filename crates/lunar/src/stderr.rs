//! stderr: a bounded queue and one thread that writes it. If the reader stalls or the disk is full, lines are lost,
//! but no serving thread blocks.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, poll};

/// Limit of queued bytes; further text is dropped.
const MAX_QUEUE_BYTES: usize = 1 << 20;
/// At its end, the process waits this long for a writer that makes no progress.
const STALLED: Duration = Duration::from_secs(1);
/// At its end, the process waits at most this long in total.
const LAST_WORDS: Duration = Duration::from_secs(5);

static STDERR: LogQueue = LogQueue::new();

/// Starts the writing thread, unless this was tried before. Without the thread, the queue holds text until
/// [`settle`], because a caller may be an event loop and must not write.
pub fn start() -> bool {
    static WRITER: OnceLock<bool> = OnceLock::new();
    let start = || std::thread::Builder::new().name("stderr".into()).spawn(|| STDERR.serve(Stderr)).is_ok();
    *WRITER.get_or_init(start)
}

/// Queues text for stderr. Neither blocks nor fails.
pub fn put(text: impl Into<Vec<u8>>) {
    start();
    STDERR.push(text.into());
}

/// Waits a bounded time until the queue is written.
pub fn settle() {
    if start() {
        STDERR.settle();
    } else {
        STDERR.drain(Stderr);
    }
}

/// Calls [`settle`] on drop: at the end of the process, and after a panic.
pub struct FlushOnDrop;

impl Drop for FlushOnDrop {
    fn drop(&mut self) {
        settle();
    }
}

/// File descriptor 2, without the lock and the panics of the standard library.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = rustix::stdio::stderr();
        loop {
            match rustix::io::write(stderr, bytes) {
                // Another process that shares the descriptor may have made it non-blocking.
                Err(rustix::io::Errno::AGAIN) => {
                    poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)?;
                }
                result => return Ok(result?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum LogEntry {
    Text(Vec<u8>),
    /// The number of entries dropped at this place.
    Dropped(u64),
}

struct State {
    entries: VecDeque<LogEntry>,
    /// Bytes of the queued texts.
    bytes: usize,
    /// Entries dropped since the last `Dropped` entry.
    dropped: u64,
    /// Whether the writer is processing an entry.
    is_writing: bool,
    /// Entries that the writer has processed.
    done: u64,
}

/// The queue of one writer.
struct LogQueue {
    state: Mutex<State>,
    changed: Condvar,
}

impl LogQueue {
    const fn new() -> LogQueue {
        let state = State { entries: VecDeque::new(), bytes: 0, dropped: 0, is_writing: false, done: 0 };
        LogQueue { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, text: Vec<u8>) {
        let mut state = self.state();
        if state.bytes > 0 && state.bytes + text.len() > MAX_QUEUE_BYTES {
            state.dropped += 1;
            return;
        }
        state.note_dropped();
        state.bytes += text.len();
        state.entries.push_back(LogEntry::Text(text));
        self.changed.notify_all();
    }

    /// Writes entries endlessly.
    fn serve(&self, mut sink: impl Write) {
        let mut half = false;
        loop {
            let entry = self.next();
            let written = put_whole(&mut sink, &mut half, &entry.bytes());
            self.done(&entry, written.is_ok());
        }
    }

    /// Writes the queued entries, if there is no writing thread.
    fn drain(&self, mut sink: impl Write) {
        self.state().note_dropped();
        let next = || self.state().entries.pop_front();
        let mut half = false;
        for entry in std::iter::from_fn(next) {
            let written = put_whole(&mut sink, &mut half, &entry.bytes());
            self.done(&entry, written.is_ok());
            if written.is_err() {
                return;
            }
        }
    }

    fn next(&self) -> LogEntry {
        let mut state = self.state();
        loop {
            if let Some(entry) = state.entries.pop_front() {
                state.is_writing = true;
                return entry;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, entry: &LogEntry, is_written: bool) {
        let mut state = self.state();
        state.is_writing = false;
        state.done += 1;
        match entry {
            LogEntry::Text(text) => state.bytes -= text.len(),
            LogEntry::Dropped(_) => {}
        }
        if !is_written {
            // The next entry reports them.
            state.dropped += entry.count();
        } else if state.entries.is_empty() {
            state.note_dropped();
        }
        self.changed.notify_all();
    }

    fn settle(&self) {
        let end = Instant::now() + LAST_WORDS;
        let mut state = self.state();
        while state.is_writing || !state.entries.is_empty() {
            let (before, patience) = (state.done, end.saturating_duration_since(Instant::now()).min(STALLED));
            let waited = self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            if waited.1.timed_out() && state.done == before {
                return;
            }
        }
    }
}

impl State {
    fn note_dropped(&mut self) {
        if self.dropped > 0 {
            self.entries.push_back(LogEntry::Dropped(std::mem::take(&mut self.dropped)));
        }
    }
}

impl LogEntry {
    /// Lines that are lost with the entry.
    fn count(&self) -> u64 {
        match self {
            LogEntry::Text(_) => 1,
            LogEntry::Dropped(count) => *count,
        }
    }

    fn bytes(&self) -> std::borrow::Cow<'_, [u8]> {
        match self {
            LogEntry::Text(text) => text.into(),
            LogEntry::Dropped(count) => {
                let time = humantime::format_rfc3339_micros(SystemTime::now());
                let lines = if *count == 1 { "1 line was".into() } else { format!("{count} lines were") };
                format!("{time}  WARN stderr: {lines} dropped: stderr was blocked\n").into_bytes().into()
            }
        }
    }
}

/// Writes all bytes. With `half`, the last entry was written in part, so a new line is started first.
fn put_whole(sink: &mut impl Write, half: &mut bool, bytes: &[u8]) -> io::Result<()> {
    if *half {
        sink.write_all(b"\n")?;
        *half = false;
    }
    let mut left = bytes;
    while !left.is_empty() {
        match sink.write(left) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => left = &left[len..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => {
                *half = left.len() < bytes.len();
                return Err(e);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Blocks each write until the test permits it, and passes the bytes to the test.
    struct Gate {
        may: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.may.recv().map_err(io::Error::other)?;
            self.written.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn queue() -> &'static LogQueue {
        Box::leak(Box::new(LogQueue::new()))
    }

    fn without_time(line: &[u8]) -> String {
        let line = String::from_utf8_lossy(line);
        line.split_once("WARN stderr: ").map_or(line.to_string(), |(_, note)| note.to_owned())
    }

    #[test]
    fn stalled_sink_costs_lines_and_their_number_is_written() {
        let queue = queue();
        let (may, allowed) = channel();
        let (written, lines) = channel();
        std::thread::spawn(move || queue.serve(Gate { may: allowed, written }));
        let large = vec![b'x'; MAX_QUEUE_BYTES / 4];
        (0..7).for_each(|_| queue.push(large.clone()));
        may.send(()).expect("a writer");
        // After the first line is written, the queue has room for one more.
        lines.recv().expect("the first line");
        while queue.state().done == 0 {
            std::thread::yield_now();
        }
        queue.push(b"last\n".to_vec());
        (0..5).for_each(|_| may.send(()).expect("a writer"));
        let rest: Vec<_> = lines.iter().take(5).collect();
        assert!(rest[..3].iter().all(|line| *line == large));
        assert_eq!(without_time(&rest[3]), "3 lines were dropped: stderr was blocked\n");
        assert_eq!(rest[4], b"last\n");
        queue.settle();
    }

    /// Fails like a full disk, after a partial write.
    struct Disk {
        is_full: &'static AtomicBool,
        written: Sender<Vec<u8>>,
        has_begun: bool,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let is_full = self.is_full.load(SeqCst);
            self.has_begun = is_full && !self.has_begun;
            if is_full && !self.has_begun {
                return Err(ErrorKind::StorageFull.into());
            }
            let len = if is_full { 1 } else { bytes.len() };
            self.written.send(bytes[..len].to_vec()).map_err(io::Error::other)?;
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn full_disk_costs_lines_and_the_next_begins_anew() {
        static FULL: AtomicBool = AtomicBool::new(true);
        let queue = queue();
        let (written, parts) = channel();
        std::thread::spawn(move || queue.serve(Disk { is_full: &FULL, written, has_begun: false }));
        queue.push(b"first\n".to_vec());
        queue.settle();
        FULL.store(false, SeqCst);
        queue.push(b"second\n".to_vec());
        queue.settle();
        let parts: Vec<_> = parts.try_iter().map(|part| without_time(&part)).collect();
        assert_eq!(parts, ["f", "\n", "1 line was dropped: stderr was blocked\n", "second\n"]);
    }

    #[test]
    fn without_a_writer_lines_are_kept_and_counted() {
        let queue = queue();
        let large = vec![b'x'; MAX_QUEUE_BYTES];
        (0..3).for_each(|_| queue.push(large.clone()));
        let mut written = Vec::new();
        queue.drain(&mut written);
        assert!(written.starts_with(&large));
        assert_eq!(without_time(&written[large.len()..]), "2 lines were dropped: stderr was blocked\n");
    }

    #[test]
    fn end_waits_for_a_stalled_sink_no_longer_than_its_bound() {
        let queue = queue();
        let (_may, allowed) = channel();
        let (written, _lines) = channel();
        std::thread::spawn(move || queue.serve(Gate { may: allowed, written }));
        queue.push(b"x".to_vec());
        queue.settle();
        assert!(queue.state().is_writing, "the sink still blocks");
    }
}
