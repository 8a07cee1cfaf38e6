//! Files and pipes as streams of buffers. Each has a thread, because reads and writes block.

use lunar_runtime::Buf;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};

/// Buffers between the thread and the copy.
const AHEAD: usize = 8;

/// Reads to the end, in buffers of `block` bytes; the last one may be shorter.
///
/// # Errors
/// When no thread can be started.
pub fn reader(mut file: File, block: u64) -> io::Result<flume::Receiver<io::Result<Buf>>> {
    let (sender, stream) = flume::bounded(AHEAD);
    let read = move || {
        loop {
            let got = fill(&mut file, block as usize);
            if got.as_ref().is_ok_and(|buf| buf.is_empty()) {
                return;
            }
            let last = got.is_err();
            if sender.send(got).is_err() || last {
                return;
            }
        }
    };
    std::thread::Builder::new().name("reader".into()).spawn(read)?;
    Ok(stream)
}

fn fill(file: &mut File, block: usize) -> io::Result<Buf> {
    let mut buf = Buf::zeroed(block);
    let mut at = 0;
    while at < block {
        match file.read(&mut buf[at..]) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    buf.set_visible(at);
    Ok(buf)
}

/// Writes each buffer that is sent. When all senders are dropped, it flushes, and sends the result to the second channel.
///
/// # Errors
/// When no thread can be started.
pub fn writer(mut file: File) -> io::Result<(flume::Sender<Buf>, flume::Receiver<io::Result<()>>)> {
    let (sender, stream) = flume::bounded::<Buf>(AHEAD);
    let (ended, end) = flume::bounded(1);
    let write = move || {
        let mut written = stream.iter().try_for_each(|buf| file.write_all(&buf));
        // Senders get an error from now on.
        drop(stream);
        if written.is_ok() {
            written = sync(&file);
        }
        // The receiver may be gone.
        _ = ended.send(written);
    };
    std::thread::Builder::new().name("writer".into()).spawn(write)?;
    Ok((sender, end))
}

/// Flushes a file. Pipes and terminals do not support that.
fn sync(file: &File) -> io::Result<()> {
    match rustix::fs::fdatasync(file) {
        Err(Errno::INVAL | Errno::ROFS | Errno::OPNOTSUPP) => Ok(()),
        other => Ok(other?),
    }
}
