mod atomic;
mod durability;
mod growth;
mod pages;
mod volumes;

use super::*;
use crate::BackendKind;
use std::path::Path;

/// An open, unlinked file of one page.
fn nameless() -> FileBackend {
    let path = std::env::temp_dir().join(format!(
        "lunar-block-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let spec =
        BackendSpec { kind: BackendKind::File, size: Some(4096), create: true, ..BackendSpec::path(&path) };
    let file = FileBackend::open(&spec).expect("a file");
    std::fs::remove_file(path).expect("its name");
    file
}

fn write(file: &FileBackend, fua: bool) -> io::Result<()> {
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(file.write(0, Buf::zeroed(512), fua)).0
}

#[test]
fn read_waits_for_an_overlapping_write() {
    let file = nameless();
    let mark = InFlightWrites::try_write(&*file.in_flight, RegionIndices::of(0, 512));
    let mut buf = [0; 512];
    assert!(matches!(file.try_read(0, &mut buf), TryIo::WouldWait), "an inline read would be torn");
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut read = file.read(0, Buf::zeroed(512));
        for _ in 0..20 {
            let once = std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx)));
            assert!(once.await.is_pending(), "a write is in flight");
            compio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        drop(mark);
        read.await.0.expect("the write has ended");
    });
    write(&file, false).expect("no reader is left");
}

/// Runs the test on a file with a journal directory. Both are removed at the end.
fn with_journal(name: &str, test: impl AsyncFnOnce(&BackendSpec, FileBackend)) {
    with_journal_in(name, None, test);
}

/// As `with_journal`, with the records in `folder` if given.
fn with_journal_in(name: &str, folder: Option<&Path>, test: impl AsyncFnOnce(&BackendSpec, FileBackend)) {
    let path = std::env::temp_dir().join(format!("lunar-{name}-{}", std::process::id()));
    let own = path.with_extension("records");
    std::fs::create_dir_all(&own).expect("a folder");
    let journal = Some(folder.unwrap_or(&own).to_path_buf());
    let spec = BackendSpec {
        kind: BackendKind::File,
        size: Some(1 << 16),
        create: true,
        journal,
        ..BackendSpec::path(&path)
    };
    let file = FileBackend::open(&spec).expect("a file");
    compio::runtime::Runtime::new().expect("a runtime").block_on(test(&spec, file));
    std::fs::remove_file(&path).expect("a file");
    std::fs::remove_dir_all(&own).expect("a folder");
}

fn of(byte: u8, len: usize) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    buf
}

fn shrink(spec: &BackendSpec) {
    let file = std::fs::OpenOptions::new().write(true).open(&spec.path).expect("a file");
    file.set_len(4096).expect("shorter");
}

fn size(spec: &BackendSpec) -> u64 {
    std::fs::metadata(&spec.path).expect("a file").len()
}

async fn poll_once<T>(work: &mut LocalBoxFuture<'_, T>) -> std::task::Poll<T> {
    std::future::poll_fn(|cx| std::task::Poll::Ready(work.as_mut().poll(cx))).await
}

/// Undoes a failed atomic write of this range, whose old blocks were ones.
async fn undo(file: &FileBackend, offset: u64, len: usize) -> io::Result<()> {
    let journal = file.journal.as_ref().expect("a journal");
    journal.put(&journal.record(offset, &of(1, len), &of(2, len))).expect("kept");
    file.open.fail(offset, of(1, len));
    file.no_record().await
}

/// The file of a descriptor, as the table of this process shows it.
fn file_of(descriptor: i32) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()
}

/// A socket whose close waits for its peer stands for a device that writes its data at the last close.
#[test]
fn mark_lasts_until_the_close_has_ended() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let sender = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("a socket");
    let peer = listener.accept().expect("a connection").0;
    sender.set_nonblocking(true).expect("a mode");
    while std::io::Write::write(&mut &sender, &[0; 65536]).is_ok() {}
    sender.set_nonblocking(false).expect("a mode");
    let linger = Some(std::time::Duration::from_secs(60));
    rustix::net::sockopt::set_socket_linger(&sender, linger).expect("an option");
    let plain = std::fs::File::from(std::os::fd::OwnedFd::from(sender));
    let number = std::os::fd::AsRawFd::as_raw_fd(&plain);
    let files =
        medium::OpenFiles { plain, through: None, claim: None, is_in_memory: false, mark: Arc::default() };
    let (mark, socket) = (Arc::downgrade(&files.mark), file_of(number));
    let closing = std::thread::spawn(move || drop(files));
    while file_of(number) == socket {
        std::thread::yield_now();
    }
    assert_eq!(mark.strong_count(), 1, "the close is in progress");
    drop(peer);
    closing.join().expect("it is closed");
    assert_eq!(mark.strong_count(), 0);
}

#[test]
fn mark_lasts_as_long_as_an_operation_in_flight() {
    let file = nameless();
    let (mark, in_flight) = (file.open_mark().expect("a file has descriptors"), file.medium.files.clone());
    drop(file);
    assert_eq!(mark.strong_count(), 1);
    drop(in_flight);
    assert_eq!(mark.strong_count(), 0);
}
