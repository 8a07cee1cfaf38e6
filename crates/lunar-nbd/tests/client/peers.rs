//! Tests of the client with nbdkit, qemu-nbd and nbd-server.

use super::{MIB, described_value, on_a_core, open, pattern, read, refused, write};
use interop::Folder;
use interop::tool::{self, Tool};
use lunar_block::Backend;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const NBDKIT: [Tool; 1] = [Tool { program: "nbdkit", package: "nbdkit" }];
const QEMU: [Tool; 2] = [
    Tool { program: "qemu-nbd", package: "qemu-utils" },
    Tool { program: "qemu-img", package: "qemu-utils" },
];
const NBD_SERVER: [Tool; 1] = [Tool { program: "nbd-server", package: "nbd-server" }];

/// A server of another project, on a Unix socket in its own directory.
struct Peer {
    child: Child,
    dir: Folder,
}

impl Peer {
    fn start(dir: Folder, program: &str, arguments: &[&str]) -> Peer {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&*dir).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().expect(program);
        let peer = Peer { child, dir };
        let end = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(peer.socket()).is_err() {
            assert!(Instant::now() < end, "{program} {arguments:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        peer
    }

    fn nbdkit(arguments: &[&str]) -> Peer {
        Peer::start(Folder::fresh(), "nbdkit", &[&["-f", "-U", "nbd.sock"], arguments].concat())
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    fn url(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A server that runs in the background has written its process ID to a file.
        let written = std::fs::read_to_string(self.dir.join("pid")).ok();
        if let Some(pid) = written.and_then(|text| Pid::from_raw(text.trim().parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Writes and reads back data in parallel, in many sizes. Then tests flushes, zeroing, extents, and commands after a
/// close.
async fn lives(url: String, extents: bool) {
    let disk = open(&url).await;
    assert!(disk.info().capacity == 64 * MIB && !disk.info().read_only, "{:?}", disk.info());
    assert_eq!(
        described_value(&*disk, "offers").contains("extents"),
        extents,
        "{}",
        described_value(&*disk, "offers")
    );
    let pieces: Vec<_> = (0..24u64)
        .map(|i| {
            let disk = disk.clone();
            compio::runtime::spawn(async move {
                let (offset, bytes) = (i * 2 * MIB, pattern(i, (MIB as usize) >> (i % 12)));
                write(&*disk, offset, &bytes, i % 5 == 0).await;
                assert!(read(&*disk, offset, bytes.len()).await == bytes, "bytes at {offset} differ");
            })
        })
        .collect();
    for piece in pieces {
        piece.await.expect("the task panicked");
    }
    disk.flush().await.expect("the flush succeeds");
    disk.write_zeroes(0, 4 * MIB, false).await.expect("WRITE_ZEROES succeeds");
    disk.unmap(4 * MIB, 4 * MIB).await.expect("TRIM succeeds");
    assert!(read(&*disk, 0, 8 << 20).await.iter().all(|byte| *byte == 0));
    whole_map(&*disk).await;
    disk.close().await;
    let (result, _) = disk.read(0, lunar_runtime::Buf::zeroed(512)).await;
    assert_eq!(
        result.expect_err("a read after the close succeeded").kind(),
        std::io::ErrorKind::NotConnected
    );
}

/// Checks that the extents cover the disk without gaps, and that unmapped ones are zeros.
async fn whole_map(disk: &dyn Backend) {
    let (mut at, capacity) = (0, disk.info().capacity);
    while at < capacity {
        let extent = disk.extent(at, capacity - at).await.expect("the extent is reported");
        assert!(extent.offset == at && extent.len > 0 && at + extent.len <= capacity, "{extent:?}");
        let bytes = read(disk, at, extent.len as usize).await;
        assert!(extent.mapped || bytes.iter().all(|byte| *byte == 0), "{extent:?} is not zeros");
        at += extent.len;
    }
}

#[test]
fn nbdkit_keeps_what_it_gets() {
    if !tool::have(&NBDKIT) {
        return;
    }
    let peer = Peer::nbdkit(&["memory", "64M"]);
    let url = peer.url("");
    on_a_core(move || lives(url, true));
    // Without structured replies, extents, zeroes and FUA, and with small requests only.
    let filters =
        ["--no-sr", "--filter=nozero", "--filter=fua", "--filter=blocksize-policy", "memory", "64M"];
    let policy = ["blocksize-minimum=512", "blocksize-preferred=4096", "blocksize-maximum=64K"];
    let policy = [&policy[..], &["blocksize-error-policy=error"]].concat();
    let peer = Peer::nbdkit(&[&filters[..], &policy].concat());
    let url = peer.url("");
    on_a_core(move || lives(url, false));
}

#[test]
fn unaligned_request_is_refused_before_it_is_sent() {
    if !tool::have(&NBDKIT) {
        return;
    }
    let sizes = ["blocksize-minimum=4096", "blocksize-preferred=4096", "blocksize-maximum=32M"];
    let peer = Peer::nbdkit(&[&["--filter=blocksize-policy", "memory", "1000000"][..], &sizes].concat());
    let url = peer.url("");
    on_a_core(move || async move {
        let disk = open(&url).await;
        assert_eq!(
            disk.info().capacity,
            1_000_000 / 4096 * 4096,
            "the capacity is not rounded down to whole blocks"
        );
        let (result, _) = disk.read(512, lunar_runtime::Buf::zeroed(4096)).await;
        let said = result.expect_err("an unaligned read succeeded").to_string();
        assert!(said.contains("multiples of 4096 bytes"), "{said}");
        let (result, _) = disk.write(4096, lunar_runtime::Buf::zeroed(100), false).await;
        assert_eq!(
            result.expect_err("an unaligned write succeeded").kind(),
            std::io::ErrorKind::InvalidInput
        );
        let (result, _) = disk.read(999_424, lunar_runtime::Buf::zeroed(4096)).await;
        assert_eq!(
            result.expect_err("a read beyond the end succeeded").kind(),
            std::io::ErrorKind::UnexpectedEof
        );
        assert_eq!(read(&*disk, 4096, 4096).await, [0; 4096], "the connection is no longer usable");
    });
}

#[test]
fn read_only_export_is_not_written() {
    if !tool::have(&NBDKIT) {
        return;
    }
    let peer = Peer::nbdkit(&["-r", "pattern", "1M"]);
    let url = peer.url("");
    on_a_core(move || async move {
        let disk = open(&url).await;
        assert!(disk.info().read_only);
        let (result, _) = disk.write(0, lunar_runtime::Buf::zeroed(512), true).await;
        assert_eq!(
            result.expect_err("a write to a read-only export succeeded").kind(),
            std::io::ErrorKind::ReadOnlyFilesystem
        );
        assert_eq!(
            read(&*disk, 512, 8).await,
            [0, 0, 0, 0, 0, 0, 2, 0],
            "the data is not the pattern of offsets"
        );
    });
}

#[test]
fn medium_error_is_reported_and_the_connection_continues() {
    if !tool::have(&NBDKIT) {
        return;
    }
    let peer =
        Peer::nbdkit(&["--filter=error", "memory", "64M", "error-pwrite=ENOSPC", "error-pwrite-rate=1"]);
    let url = peer.url("");
    on_a_core(move || async move {
        let disk = open(&url).await;
        let (result, buf) = disk.write(0, lunar_runtime::Buf::zeroed(4096), false).await;
        let e = result.expect_err("the write succeeded");
        assert_eq!((e.kind(), buf.len()), (std::io::ErrorKind::StorageFull, 4096), "{e}");
        assert_eq!(read(&*disk, 0, 512).await, [0; 512]);
    });
}

#[test]
fn server_that_is_killed_fails_what_is_in_flight() {
    if !tool::have(&NBDKIT) {
        return;
    }
    let mut peer = Peer::nbdkit(&["--filter=delay", "memory", "64M", "rdelay=60", "wdelay=60"]);
    let url = peer.url("");
    let (begun, wait) = std::sync::mpsc::channel();
    let user = std::thread::spawn(move || {
        on_a_core(move || async move {
            let disk = open(&url).await;
            begun.send(()).expect("the test waits");
            let (read, write) = (
                disk.read(0, lunar_runtime::Buf::zeroed(4096)),
                disk.write(0, lunar_runtime::Buf::zeroed(8 << 20), true),
            );
            let [(read, _), (write, buf)] =
                futures_util::future::join_all([read, write]).await.try_into().expect("two results");
            let later = disk.flush().await;
            (
                [read, write.and(later)].map(|result| result.expect_err("the command succeeded").to_string()),
                buf.len(),
            )
        })
    });
    wait.recv().expect("the client is connected");
    std::thread::sleep(Duration::from_millis(100));
    let _ = peer.child.kill();
    let (said, len) = user.join().expect("the client thread panicked");
    assert_eq!(len, 8 << 20);
    for said in said {
        assert!(said.contains("the connection to nbd+unix://") && said.contains("is lost"), "{said}");
    }
}

/// A sparse file of 64 MiB.
fn file(dir: &Path) {
    std::fs::File::create(dir.join("disk"))
        .and_then(|file| file.set_len(64 * MIB))
        .expect("the file is created");
}

#[test]
fn qemu_nbd_keeps_what_it_gets() {
    if !tool::have(&QEMU) {
        return;
    }
    let dir = Folder::fresh();
    file(&dir);
    let socket = dir.join("nbd.sock").display().to_string();
    let arguments = ["-t", "-f", "raw", "-x", "a disk", "-e", "4", "-k", &socket, "--discard=unmap", "disk"];
    let peer = Peer::start(dir, "qemu-nbd", &arguments);
    let url = peer.url("a%20disk");
    on_a_core(move || lives(url, true));
    let (what, hint) = refused(&peer.url("none"));
    assert!(what.contains("the server refuses export \"none\": no such export"), "{what}");
    assert_eq!(hint, "the server has the exports \"a disk\"");
}

#[test]
fn nbd_server_keeps_what_it_gets() {
    if !tool::have(&NBD_SERVER) {
        return;
    }
    let dir = Folder::fresh();
    file(&dir);
    let [socket, disk, configured, pid] =
        ["nbd.sock", "disk", "configuration", "pid"].map(|name| dir.join(name).display().to_string());
    // Port 0 makes nbd-server serve on its standard input.
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let port = free.expect("a free port").port();
    let configuration = format!(
        "[generic]\nunixsock = {socket}\nlistenaddr = 127.0.0.1\nport = {port}\nallowlist = true\n\
         [disk]\nexportname = {disk}\nflush = true\nfua = true\ntrim = true\n"
    );
    std::fs::write(&configured, configuration).expect("the configuration is written");
    let peer = Peer::start(dir, "nbd-server", &["-C", &configured, "-p", &pid]);
    let url = peer.url("disk");
    on_a_core(move || lives(url, false));
    let (what, hint) = refused(&peer.url("none"));
    assert!(what.contains("none") && hint.contains("\"disk\""), "{what}; {hint}");
}
